"""P4: what a batch of silver costs after 50 TTLs against after 3, at a constant rate.

One hop runs on through all of them, with what comes with a long run: compactions, checkpoints of
the log, batches that expire. Its lake is kept as it was after 3 TTLs and after 50; then batches
are timed on copies of both, in turns. Memory is what the JVM holds after it collected its garbage,
looked at when each state was reached.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from benchmarks.measuring import Finding, Goal, Report, arguments, hand_in, in_turns, ratios, say
from benchmarks.silver_data import Cut, twin
from benchmarks.silver_lake import (
    NAME,
    context,
    create_bronze,
    land,
    play,
)
from benchmarks.silver_side import TTL, Side
from tidelake.config import load_environment
from tidelake.delta.log import last_commit
from tidelake.delta.tables import Lake
from tidelake.runtime.hop import Run
from tidelake.spark.session import build_session

_LIMIT = 1.15
_SEARCHED = Goal("ids searched", _LIMIT, at_least=False)
_MEMORY = Goal("memory", _LIMIT, at_least=False)
_CHECKPOINT = Goal("bytes of the checkpoint", _LIMIT, at_least=False)
_SECONDS = Goal("seconds of a batch", _LIMIT, at_least=False)
_A_TTL = 3
_TTL_MICROS = 86_400_000_000
_ONE_FILE = 1
_COLLECTIONS = 6
# Spark keeps its plans of the last 100 batches, however short they were. 3 TTLs are 9 batches
# here, so that its own default would show as growth.
_RETAINED = {"spark.sql.streaming.minBatchesToRetain": "5"}


@dataclass
class State:
    """The lake as it was after some TTLs, the batches of one more in bronze alone.

    Attributes:
        side: Goes on with it.
        memory: Bytes that the JVM held.
        checkpoint: Bytes of the checkpoint.
    """

    side: Side
    memory: int
    checkpoint: int


def main() -> None:
    """Measure, and hand in what was found."""
    parser = arguments(__doc__)
    parser.add_argument("--rows", type=int, default=5_000, help="of a batch, three to a TTL")
    parser.add_argument("--early", type=int, default=3, help="TTLs")
    parser.add_argument("--late", type=int, default=50, help="TTLs")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        local = load_environment("local", root=f"{folder}/spark")
        local = local.model_copy(update={"spark": {**local.spark, **_RETAINED}})
        spark = build_session(local)
        try:
            root = Path(folder)
            # What a young JVM holds is not what it holds at work.
            reach(spark, root / "warm-up", options.rows, options.early)
            early = reach(spark, root / "lake", options.rows, options.early)
            late = reach(spark, root / "lake", options.rows, options.late)
            spent = in_turns({"early": early.side.play, "late": late.side.play}, options.repeats)
        finally:
            spark.stop()
    findings = [
        Finding.of(_SEARCHED, ratios(late.side.searched, early.side.searched)),
        Finding.of(_MEMORY, [late.memory / early.memory]),
        Finding.of(_CHECKPOINT, [late.checkpoint / early.checkpoint]),
        Finding.of(_SECONDS, ratios(spent["late"], spent["early"])),
    ]
    states = {"early": early, "late": late}
    report = Report(
        "P4",
        f"silver after {options.late} TTLs against after {options.early}, at a constant rate",
        findings,
        spent,
        "silver's new rows are those that the stream's numbers give, in both states; "
        "the books add up",
        {
            **{name: getattr(options, name) for name in ("rows", "early", "late")},
            "ttl": TTL,
            "batches_a_ttl": _A_TTL,
            "spark": _RETAINED,
        },
        {
            name: {
                "searched": state.side.searched,
                "memory_bytes": state.memory,
                "checkpoint_bytes": state.checkpoint,
                "batches": state.side.told,
            }
            for name, state in states.items()
        },
    )
    hand_in(report, options.json)


def reach(spark: SparkSession, root: Path, rows: int, ttls: int) -> State:
    """Go on with a lake until it is so many TTLs old, and keep it as it is then."""
    is_new = not root.exists()
    run = context(spark, root, batch_bytes=_ONE_FILE, ttl=TTL)
    if is_new:
        create_bronze(run)
    _land(run, rows, _batches(run), ttls * _A_TTL)
    play(run)
    memory, held = _memory(spark), _checkpoint(run)
    say(f"after {ttls} TTLs: the JVM holds {memory:,} bytes, the checkpoint {held:,}")
    base = root.parent / f"after-{ttls}-{root.name}"
    twin(root, base)
    closed = ttls * _A_TTL
    _land(replace(run, lake=Lake(base)), rows, closed, closed + _A_TTL)
    cuts = [_cut(rows, number, number + 1) for number in range(closed, closed + _A_TTL)]
    return State(Side(spark, base, _ONE_FILE, cuts, closed - 1), memory, held)


def _cut(rows: int, first: int, end: int) -> Cut:
    step = _TTL_MICROS // _A_TTL // rows
    return Cut(rows * first, rows * end, reach=rows * _A_TTL, step=step, together=rows)


def _land(run: Run, rows: int, first: int, end: int) -> None:
    """Append rows to bronze in one commit; each of its files is a batch of silver."""
    land(run, first, _cut(rows, first, end), files=end - first)


def _batches(run: Run) -> int:
    """Tell how many batches silver closed; its checkpoint keeps the last of them alone."""
    last = last_commit(run.lake.silver(NAME))
    return 0 if last is None else last.batch + 1


def _memory(spark: SparkSession) -> int:
    """Give the bytes that are in use after the garbage was collected."""
    jvm: Any = spark._jvm
    beans = jvm.java.lang.management.ManagementFactory.getMemoryMXBean()
    found = []
    # What Spark kept for a batch goes once a collection tells it that nobody refers to it.
    for _ in range(_COLLECTIONS):
        jvm.System.gc()
        time.sleep(0.5)
        found.append(int(beans.getHeapMemoryUsage().getUsed()))
    return min(found)


def _checkpoint(run: Run) -> int:
    folder = run.lake.checkpoints(NAME, "silver")
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


if __name__ == "__main__":
    main()
