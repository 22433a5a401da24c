"""Add up the books: what the source offered, what bronze holds, and the fate of each row.

Every term is counted by itself, by the commit that wrote it; none is derived from another.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import dataclass
from typing import Any

from tidelake.config import FilesSource, GlobalWindow, GoldTable, Pipeline, TumblingWindow
from tidelake.errors import SourceError, UsageError
from tidelake.ops.query import ask
from tidelake.runtime.landing import list_files
from tidelake.runtime.offsets import rows_not_taken
from tidelake.sinks.commits import commits
from tidelake.sinks.notes import SilverNote, add_up
from tidelake.tables import Lake, Table


@dataclass(frozen=True)
class SourceBooks:
    """What a files source offered and what was taken.

    Attributes:
        records: Records counted in the source, in a read of its own; None for other sources.
        files_offered: Files in the folder now, those taken earlier and gone since included.
        files_taken: Files that bronze's commits name.
        bytes_offered: Their bytes.
        bytes_taken: Bytes of the files taken.
    """

    records: int | None
    files_offered: int
    files_taken: int
    bytes_offered: int
    bytes_taken: int


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
    """The books of one pipeline."""

    pipeline: str
    source: SourceBooks
    bronze: int
    fates: Counter[str]
    pending: int
    gold: dict[str, GoldBooks]

    @property
    def balanced(self) -> bool:
        """Tell whether nothing was lost or doubled: each row that bronze holds has one fate."""
        taken = self.source.records is None or self.source.records == self.bronze
        # What waits is counted from the log, by where silver's reader stands.
        fated = self.fates.total() + self.pending == self.bronze
        return taken and fated and all(g.expected == g.counted for g in self.gold.values())

    def to_json(self) -> dict[str, Any]:
        """Give the contract's terms, with the source's files beside them."""
        source = self.source
        return {
            "pipeline": self.pipeline,
            "source": self.bronze if source.records is None else source.records,
            "bronze": self.bronze,
            "silver": self.fates["silver"],
            "duplicates": self.fates["duplicate"],
            "quarantined": self.fates["quarantined"],
            "late": self.fates["late"],
            "filtered": self.fates["filtered"],
            "pending": self.pending,
            "balanced": self.balanced,
            "gold": {
                name: {"expected": books.expected, "counted": books.counted}
                for name, books in self.gold.items()
            },
            "source_files": {
                "offered": source.files_offered,
                "taken": source.files_taken,
                "bytes_offered": source.bytes_offered,
                "bytes_taken": source.bytes_taken,
            },
        }


def read_ledger(lake: Lake, pipeline: Pipeline) -> Ledger:
    """Read a pipeline's books from its tables' logs.

    Raises:
        UsageError: The pipeline has not run under this root.
    """
    bronze = lake.bronze(pipeline.name)
    if not bronze.exists:
        raise UsageError(
            f"{pipeline.name} has no tables under {lake.root}. "
            f"Fill them with: tidelake run {pipeline.name}"
        )
    notes = [SilverNote.of(commit) for commit in commits(lake.silver(pipeline.name))]
    counts = [count for note in notes for count in note.counts]
    fates = add_up(count for count in counts if not count.requeued)
    rows = sum(commit.rows or 0 for commit in commits(bronze))
    return Ledger(
        pipeline=pipeline.name,
        source=_source_books(bronze, pipeline),
        bronze=rows,
        fates=fates,
        pending=rows_not_taken(
            lake, pipeline.name, hop="silver", written=lake.silver(pipeline.name), read=bronze
        ),
        gold=_gold_books(lake, pipeline),
    )


def _count(lake: Lake, sql: str) -> int:
    return int(ask(lake, sql).rows[0][0] or 0)


def _source_books(bronze: Table, pipeline: Pipeline) -> SourceBooks:
    if not isinstance(pipeline.source, FilesSource):
        return SourceBooks(None, 0, 0, 0, 0)
    taken = [entry for commit in commits(bronze) for entry in commit.note.get("files", [])]
    sizes = {path: size for path, size, _, _ in taken}
    offered = dict(sizes)
    # Files may have been archived since they were taken.
    with contextlib.suppress(SourceError):
        offered |= {path: file.size for path, file in list_files(pipeline.source.path).items()}
    return SourceBooks(
        records=sum(records for _, _, _, records in taken),
        files_offered=len(offered),
        files_taken=len(sizes),
        bytes_offered=sum(offered.values()),
        bytes_taken=sum(sizes.values()),
    )


def _gold_books(lake: Lake, pipeline: Pipeline) -> dict[str, GoldBooks]:
    books = {}
    for gold in pipeline.gold:
        counter = _counter(gold)
        table = lake.gold(gold.name)
        if counter is None or not table.exists:
            continue
        expected = sum(int(commit.note.get("eligible", 0)) for commit in commits(table))
        counted = _count(lake, f'SELECT sum("{counter}") FROM {table.name}')
        books[gold.name] = GoldBooks(expected, counted)
    return books


def _counter(gold: GoldTable) -> str | None:
    """Name the measure that counts every event once, if the table has one."""
    if not isinstance(gold.window, TumblingWindow | GlobalWindow):
        return None
    names = [m.name for m in gold.measures if m.aggregate == "count" and m.expression == "*"]
    return names[0] if names else None
