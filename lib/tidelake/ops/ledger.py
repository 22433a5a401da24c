"""Add up the books: what the source offered, what bronze holds, and the fate of each row.

Every term is counted by itself: by the commit that wrote it, by Delta's statistics, and in the
tables; none is derived from another.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from tidelake.config import FilesSource, GlobalWindow, GoldTable, Pipeline, TumblingWindow
from tidelake.errors import SourceError
from tidelake.ops.balance import Batch, Tally, batch_of, problems_of, tally
from tidelake.ops.books import history, require_tables
from tidelake.ops.query import ask
from tidelake.ops.side import closed_batch, still_there, unless_discarded
from tidelake.runtime.landing import list_files, taken_files
from tidelake.sinks.commits import Commit, newest_version, rows_between
from tidelake.sinks.notes import position
from tidelake.tables import Lake

_TRIES = 3


@dataclass(frozen=True)
class SourceBooks:
    """What a files source offered and what was taken.

    Attributes:
        files_offered: Files in the folder now, those taken earlier and gone since included.
        files_taken: Files that bronze's commits name.
        bytes_offered: Their bytes.
        bytes_taken: Bytes of the files taken.
    """

    files_offered: int = 0
    files_taken: int = 0
    bytes_offered: int = 0
    bytes_taken: int = 0


@dataclass(frozen=True)
class GoldBooks:
    """What a gold table must hold and what it holds.

    Attributes:
        expected: Rows of silver that the table's batches found eligible.
        counted: The sum of its ``count: "*"`` measure.
    """

    expected: int
    counted: int


@dataclass(frozen=True)
class Ledger:
    """The books of one pipeline.

    Attributes:
        pipeline: Its name.
        records: Records that the source held, counted in a read of its own.
        source: Its files.
        bronze: Rows of bronze.
        fates: Rows by their fate as it now is.
        stages: Rows of quarantine by stage.
        reasons: The same by reason; a row may have several.
        discarded: Rows of quarantine that somebody gave up; they stay there.
        requeued: Rows sent again that silver has not taken yet.
        pending: Rows of bronze that silver has not taken yet.
        gold: By table.
        batches: Silver's batches, oldest first.
        problems: What does not add up; the first is the earliest.
    """

    pipeline: str
    records: int
    source: SourceBooks
    bronze: int
    fates: Counter[str]
    stages: Mapping[str, int]
    reasons: Mapping[str, int]
    discarded: int
    requeued: int
    pending: int
    gold: Mapping[str, GoldBooks]
    batches: tuple[Batch, ...]
    problems: tuple[str, ...]

    @property
    def balanced(self) -> bool:
        """Tell whether nothing was lost or doubled."""
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        """Give the contract's terms, with what they rest on beside them."""
        source = self.source
        return {
            "pipeline": self.pipeline,
            "source": self.records,
            "bronze": self.bronze,
            "silver": self.fates["silver"],
            "duplicates": self.fates["duplicate"],
            "quarantined": self.fates["quarantined"],
            "late": self.fates["late"],
            "filtered": self.fates["filtered"],
            "pending": self.pending,
            "requeued": self.requeued,
            "balanced": self.balanced,
            "problems": list(self.problems),
            "gold": {
                name: {"expected": books.expected, "counted": books.counted}
                for name, books in self.gold.items()
            },
            "conflicts": self.stages.get("conflicting_duplicate", 0),
            "discarded": self.discarded,
            "quarantined_by_stage": dict(self.stages),
            "quarantined_by_reason": dict(self.reasons),
            "source_files": {
                "offered": source.files_offered,
                "taken": source.files_taken,
                "bytes_offered": source.bytes_offered,
                "bytes_taken": source.bytes_taken,
            },
        }


@dataclass(frozen=True)
class BooksLine:
    """The books of a batch, or of all batches that were closed on one day (UTC).

    Attributes:
        name: ``batch 3``, or the day.
        taken: Rows taken from bronze.
        returned: Rows taken from the requeue.
        fates: Rows by fate.
        conflicts: Rows whose id another payload had.
        closed_at: When the last batch was closed.
    """

    name: str
    taken: int
    returned: int
    fates: Counter[str]
    conflicts: int
    closed_at: datetime

    def to_json(self) -> dict[str, Any]:
        """Give the terms by the names that the whole ledger has for them."""
        return {
            "name": self.name,
            "taken": self.taken,
            "returned": self.returned,
            "silver": self.fates["silver"],
            "duplicates": self.fates["duplicate"],
            "quarantined": self.fates["quarantined"],
            "conflicts": self.conflicts,
            "late": self.fates["late"],
            "filtered": self.fates["filtered"],
            "closed_at": self.closed_at.isoformat(),
        }


def books_by(batches: Sequence[Batch], by: Literal["batch", "day"]) -> list[BooksLine]:
    """Roll silver's batches up.

    Args:
        batches: Oldest first.
        by: One line a batch, or one a day.
    """
    lines: dict[str, BooksLine] = {}
    for batch in batches:
        name = f"batch {batch.number}" if by == "batch" else f"{batch.closed_at:%Y-%m-%d}"
        before = lines.get(name, BooksLine(name, 0, 0, Counter(), 0, batch.closed_at))
        lines[name] = BooksLine(
            name,
            before.taken + batch.taken,
            before.returned + batch.returned,
            before.fates + batch.fates,
            before.conflicts + batch.conflicts,
            batch.closed_at,
        )
    return list(lines.values())


def read_ledger(lake: Lake, pipeline: Pipeline) -> Ledger:
    """Read a pipeline's books and hold them against its tables.

    Raises:
        UsageError: The pipeline has not run under this root.
    """
    require_tables(lake, pipeline.name)
    for _ in range(_TRIES):
        before = _versions(lake, pipeline)
        ledger = _read(lake, pipeline)
        # Books that were read while a run was writing may disagree by what came in between.
        if ledger.balanced or _versions(lake, pipeline) == before:
            break
    return ledger


def _read(lake: Lake, pipeline: Pipeline) -> Ledger:
    name = pipeline.name
    # Silver's notes before bronze's: what comes into bronze meanwhile is pending.
    closing = history(lake, lake.silver(name))
    batches = tuple(batch_of(commit) for commit in reversed(closing) if commit.batch >= 0)
    taken = history(lake, lake.bronze(name))
    last = closing[0] if closing else None
    pending = rows_between(lake.bronze(name), position(last, "bronze"))
    requeued = (
        rows_between(lake.requeue(name), position(last, "requeue"))
        if lake.requeue(name).exists
        else 0
    )
    tables = _tallies(lake, name)
    sides = _sides(lake, name)
    counts = [count for batch in batches for count in batch.counts]
    fates = Counter(
        silver=tables["silver"].rows,
        duplicate=sum(count.rows for count in counts if count.fate == "duplicate"),
        quarantined=sides["quarantined"],
        late=sides["late"],
        filtered=sum(count.rows for count in counts if count.fate == "filtered"),
    )
    gold = _gold_books(lake, pipeline)
    return Ledger(
        pipeline=name,
        records=sum(int(commit.note.get("records", 0)) for commit in taken),
        source=_source_books(taken, pipeline),
        bronze=tables["bronze"].rows,
        fates=fates,
        stages=_groups(lake, name, "stage"),
        reasons=_groups(lake, name, "unnest(reasons)"),
        discarded=sides["discarded"],
        requeued=requeued,
        pending=pending,
        gold=gold,
        batches=batches,
        problems=(
            *problems_of(batches, taken, tables, fates, pending=pending, requeued=requeued),
            *(
                f"gold.{table}: {books.expected:,} events were merged, it counts {books.counted:,}"
                for table, books in gold.items()
                if books.expected != books.counted
            ),
        ),
    )


def _versions(lake: Lake, pipeline: Pipeline) -> list[int]:
    name = pipeline.name
    tables = [lake.bronze(name), lake.requeue(name), lake.silver(name)]
    return [newest_version(t) for t in [*tables, *(lake.gold(g.name) for g in pipeline.gold)]]


def _tallies(lake: Lake, name: str) -> dict[str, Tally]:
    closed = closed_batch(lake, name)
    return {
        "bronze": tally(lake, lake.bronze(name), None),
        "silver": tally(lake, lake.silver(name), closed),
        "quarantined": tally(lake, lake.quarantine(name), closed),
        "late": tally(lake, lake.late(name), closed),
    }


def _sides(lake: Lake, name: str) -> dict[str, int]:
    """Count the side tables' rows that are still there."""
    if not lake.silver(name).exists:
        return {"quarantined": 0, "late": 0, "discarded": 0}
    closed, requeue = closed_batch(lake, name), lake.requeue(name)
    there = still_there(lake.quarantine(name), requeue, closed)
    late = still_there(lake.late(name), requeue, closed)
    quarantined = _count(lake, there)
    kept = _count(lake, unless_discarded(there, lake.discarded(name)))
    return {
        "quarantined": quarantined,
        "late": _count(lake, late),
        "discarded": quarantined - kept,
    }


def _groups(lake: Lake, name: str, expression: str) -> dict[str, int]:
    if not lake.silver(name).exists:
        return {}
    there = still_there(lake.quarantine(name), lake.requeue(name), closed_batch(lake, name))
    rows = ask(
        lake,
        f"SELECT what, count(*) FROM (SELECT {expression} AS what FROM ({there})) "
        "GROUP BY 1 ORDER BY 2 DESC, 1",
    ).rows
    return {str(what): int(count) for what, count in rows}


def _count(lake: Lake, query: str) -> int:
    return int(ask(lake, f"SELECT count(*) FROM ({query})").rows[0][0] or 0)


def _source_books(taken: Sequence[Commit], pipeline: Pipeline) -> SourceBooks:
    if not isinstance(pipeline.source, FilesSource):
        return SourceBooks()
    sizes = {path: file.size for path, file in taken_files(taken).items()}
    offered = dict(sizes)
    # Files may have been archived since they were taken.
    with contextlib.suppress(SourceError):
        offered |= {path: file.size for path, file in list_files(pipeline.source.path).items()}
    return SourceBooks(len(offered), len(sizes), sum(offered.values()), sum(sizes.values()))


def _gold_books(lake: Lake, pipeline: Pipeline) -> dict[str, GoldBooks]:
    books = {}
    for gold in pipeline.gold:
        counter = _counter(gold)
        table = lake.gold(gold.name)
        if counter is None or not table.exists:
            continue
        expected = sum(int(commit.note.get("eligible", 0)) for commit in history(lake, table))
        counted = ask(lake, f'SELECT sum("{counter}") FROM {table.name}').rows[0][0]
        books[gold.name] = GoldBooks(expected, int(counted or 0))
    return books


def _counter(gold: GoldTable) -> str | None:
    """Name the measure that counts every event once, if the table has one."""
    if not isinstance(gold.window, TumblingWindow | GlobalWindow):
        return None
    names = [m.name for m in gold.measures if m.aggregate == "count" and m.expression == "*"]
    return names[0] if names else None
