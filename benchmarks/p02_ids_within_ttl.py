"""P2: a small silver batch with ten million accepted ids within the TTL, against ten thousand.

The two lakes differ only in these ids; the duplicates in the batches come from all of them. The
history is written directly, as the hop would leave it after a compaction.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.measuring import Finding, Goal, Report, arguments, hand_in, in_turns, ratios, say
from benchmarks.silver_data import Cut
from benchmarks.silver_lake import (
    ALL,
    append_history,
    batch_limit,
    context,
    create_bronze,
    land,
    play,
)
from benchmarks.silver_side import TTL, Side
from tidelake.config import load_environment
from tidelake.spark.session import build_session

_GOAL = Goal("seconds of a batch with many ids over those with few", 1.3, at_least=False)
# Accepted rows in a file after compaction.
_ROWS_A_FILE = 400_000


def main() -> None:
    """Measure, and write the report."""
    parser = arguments(__doc__)
    parser.add_argument("--rows", type=int, default=10_000, help="rows a batch")
    parser.add_argument("--batches", type=int, default=4, help="measured batches a round")
    parser.add_argument(
        "--few", type=int, default=10_000, help="ids within the TTL on the small side"
    )
    parser.add_argument(
        "--many", type=int, default=10_000_000, help="ids within the TTL on the large side"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        spark = build_session(load_environment("local", root=f"{folder}/spark"))
        try:
            sides = {
                name: prepare(spark, Path(folder) / name, options.rows, options.batches, ids)
                for name, ids in (("few", options.few), ("many", options.many))
            }
            turns = {name: side.play for name, side in sides.items()}
            spent = in_turns(turns, options.repeats)
        finally:
            spark.stop()
    report = Report(
        "P2",
        f"a silver batch of {options.rows:,} rows with {options.many:,} ids within the TTL "
        f"against {options.few:,}",
        [Finding.of(_GOAL, ratios(spent["many"], spent["few"]))],
        spent,
        "silver's new rows equal the expected events, on both sides; the ledger balances",
        {
            **{name: getattr(options, name) for name in ("rows", "batches", "few", "many")},
            "ttl": TTL,
            "copies": "one row in five, half of them duplicate a row from anywhere in the history",
        },
        {
            name: {"searched": side.searched, "batches": side.progress}
            for name, side in sides.items()
        },
    )
    hand_in(report, options.json)


def prepare(spark: SparkSession, base: Path, rows: int, batches: int, ids: int) -> Side:
    """Fill silver with ``ids`` accepted ids, those of the first batch through the hop."""
    run = context(spark, base, batch_bytes=ALL, ttl=TTL)
    create_bronze(run)
    first = min(rows, ids)
    land(run, 0, Cut(0, first))
    play(run)
    if ids > first:
        files = max(1, ids // _ROWS_A_FILE)
        append_history(run, Cut(first, ids, together=rows), files=files)
    cuts = [Cut(start, start + rows, reach=ids) for start in range(ids, ids + batches * rows, rows)]
    for number, cut in enumerate(cuts):
        land(run, number + 1, cut)
    say(f"{base.name}: silver holds {ids:,} ids")
    return Side(spark, base, batch_limit(run), cuts)


if __name__ == "__main__":
    main()
