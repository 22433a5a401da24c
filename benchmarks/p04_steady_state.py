"""P4: the cost of a silver batch after 50 TTLs against after 3, at a constant rate.

One hop runs through all of them, including compactions, checkpoints of the Delta log and expiring
batches. Its lake is saved after 3 TTLs and after 50; batches are then timed on copies of both, in
alternating rounds. Memory is the JVM heap after a garbage collection, measured when each state was
reached.
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
# By default Spark retains the plans of the last 100 batches. 3 TTLs are 9 batches here, so the
# default would look like growth.
_RETAINED = {"spark.sql.streaming.minBatchesToRetain": "5"}


@dataclass
class State:
    """The lake after some TTLs, with the batches of one more TTL only in bronze.

    Attributes:
        side: Runs silver on it.
        memory: Bytes of JVM heap in use.
        checkpoint: Bytes of the checkpoint.
    """

    side: Side
    memory: int
    checkpoint: int


def main() -> None:
    """Measure, and write the report."""
    parser = arguments(__doc__)
    parser.add_argument("--rows", type=int, default=5_000, help="rows a batch, three batches a TTL")
    parser.add_argument("--early", type=int, default=3, help="TTLs of the early state")
    parser.add_argument("--late", type=int, default=50, help="TTLs of the late state")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        local = load_environment("local", root=f"{folder}/spark")
        local = local.model_copy(update={"spark": {**local.spark, **_RETAINED}})
        spark = build_session(local)
        try:
            root = Path(folder)
            # A JVM that has just started holds less than a warm one.
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
        "silver's new rows equal the expected events, in both states; the ledger balances",
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
                "batches": state.side.progress,
            }
            for name, state in states.items()
        },
    )
    hand_in(report, options.json)


def reach(spark: SparkSession, root: Path, rows: int, ttls: int) -> State:
    """Run silver until the lake is ``ttls`` TTLs old, and save a copy."""
    is_new = not root.exists()
    run = context(spark, root, batch_bytes=_ONE_FILE, ttl=TTL)
    if is_new:
        create_bronze(run)
    _land(run, rows, _batches(run), ttls * _A_TTL)
    play(run)
    memory, checkpoint = _memory(spark), _checkpoint(run)
    say(f"after {ttls} TTLs: JVM heap {memory:,} bytes, checkpoint {checkpoint:,} bytes")
    base = root.parent / f"after-{ttls}-{root.name}"
    twin(root, base)
    closed = ttls * _A_TTL
    _land(replace(run, lake=Lake(base)), rows, closed, closed + _A_TTL)
    cuts = [_cut(rows, number, number + 1) for number in range(closed, closed + _A_TTL)]
    return State(Side(spark, base, _ONE_FILE, cuts, closed - 1), memory, checkpoint)


def _cut(rows: int, first: int, end: int) -> Cut:
    step = _TTL_MICROS // _A_TTL // rows
    return Cut(rows * first, rows * end, reach=rows * _A_TTL, step=step, together=rows)


def _land(run: Run, rows: int, first: int, end: int) -> None:
    """Append batches to bronze in one commit; each file is a batch of silver."""
    land(run, first, _cut(rows, first, end), files=end - first)


def _batches(run: Run) -> int:
    """Return how many batches silver committed; its checkpoint retains only the last few."""
    last = last_commit(run.lake.silver(NAME))
    return 0 if last is None else last.batch + 1


def _memory(spark: SparkSession) -> int:
    """Return the bytes of heap in use after garbage collections."""
    jvm: Any = spark._jvm
    beans = jvm.java.lang.management.ManagementFactory.getMemoryMXBean()
    used = []
    # Spark's cleaner releases a batch's data only after a collection finds it unreferenced.
    for _ in range(_COLLECTIONS):
        jvm.System.gc()
        time.sleep(0.5)
        used.append(int(beans.getHeapMemoryUsage().getUsed()))
    return min(used)


def _checkpoint(run: Run) -> int:
    folder = run.lake.checkpoints(NAME, "silver")
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


if __name__ == "__main__":
    main()
