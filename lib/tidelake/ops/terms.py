"""Count single terms of the books in the tables and in the source, without Spark."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

from tidelake.config import FilesSource, GlobalWindow, GoldTable, Pipeline, TumblingWindow
from tidelake.delta.log import Commit
from tidelake.delta.tables import Lake
from tidelake.errors import SourceError
from tidelake.ops.books import history
from tidelake.ops.query import ask
from tidelake.ops.side import closed_batch, still_there, unless_discarded
from tidelake.runtime.landing import list_files, taken_files


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


def side_rows(lake: Lake, name: str) -> dict[str, int]:
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


def quarantined_by(lake: Lake, name: str, expression: str) -> dict[str, int]:
    """Count quarantine's rows that are still there, by an expression of ours over its columns."""
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


def source_books(taken: Sequence[Commit], pipeline: Pipeline) -> SourceBooks:
    """Hold the files on offer beside those that bronze's commits name."""
    if not isinstance(pipeline.source, FilesSource):
        return SourceBooks()
    sizes = {path: file.size for path, file in taken_files(taken).items()}
    offered = dict(sizes)
    # Files may have been archived since they were taken.
    with contextlib.suppress(SourceError):
        offered |= {path: file.size for path, file in list_files(pipeline.source.path).items()}
    return SourceBooks(len(offered), len(sizes), sum(offered.values()), sum(sizes.values()))


def gold_books(lake: Lake, pipeline: Pipeline) -> dict[str, GoldBooks]:
    """Hold what gold's commits found eligible beside what its tables count."""
    books = {}
    for gold in pipeline.aggregates:
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
