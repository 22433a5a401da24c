"""Read the rows that a batch may repeat: silver and late, as far as they lie in its scope.

After each commit Delta puts a table's state together anew before it tells which files a reader
needs: a job over the log, several times the work of a small batch. Here Delta is asked now and
then, and what commits bring in between is read from the log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark import InheritableThread
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from tidelake.config import Pipeline
from tidelake.config.names import ID_HASH
from tidelake.delta.access import load, properties
from tidelake.delta.log import commits_after, newest_version
from tidelake.delta.tables import Lake, Table
from tidelake.silver.dedup import Accepted, Met
from tidelake.silver.driver_dedup import ACCEPTED, spread
from tidelake.silver.row_sets import Numbers, may_have_hash
from tidelake.silver.scope import RANGES, DedupScope, Range, united
from tidelake.spark import tuning
from tidelake.spark.engine import reads_local_paths

_OF_SILVER = pa.schema([one for one in ACCEPTED if one.name not in ("record_id", "_late")])
# Of a late row its name and its batch too.
_OF_LATE = pa.schema([*_OF_SILVER, ACCEPTED.field("record_id"), pa.field("_batch", pa.int64())])
# Files that are read at a time; each of its columns are by themselves.
_READERS = 4
_UNREADABLE = (FileNotFoundError, pa.ArrowInvalid)
# With one of them a data file does not say by itself which rows the table holds.
_MOVING = {
    ("delta.feature.deletionVectors", "supported"),
    ("delta.columnMapping.mode", "name"),
    ("delta.columnMapping.mode", "id"),
}


@dataclass(frozen=True)
class AcceptedRows:
    """Silver and late as the last closed batch left them.

    Attributes:
        batch: Late rows of this batch and later ones are not accepted yet: an interrupted attempt
            at the same batch wrote them.
        known: Only rows for which this holds count as accepted; None: all.
        afresh: Whether nothing was accepted before.
        files: Knows the tables' files from the batches before; None: Delta is asked for them.
    """

    spark: SparkSession
    pipeline: Pipeline
    lake: Lake
    batch: int
    known: Column | None = None
    afresh: bool = False
    files: Mapping[str, FilesInScope] = field(default_factory=dict)

    def read(self, scope: DedupScope | None = None) -> tuple[DataFrame, DataFrame]:
        """Read both tables, at least the rows in scope."""
        name = self.pipeline.name
        silver, late = (
            self._read(table, scope) for table in (self.lake.silver(name), self.lake.late(name))
        )
        if self.known is not None:
            silver, late = silver.where(self.known), late.where(self.known)
        return silver, late.where(F.col("_batch") < self.batch)

    def _read(self, table: Table, scope: DedupScope | None) -> DataFrame:
        if scope is None or not self.files:
            return load(self.spark, table)
        return self.files[table.name].rows(self.spark, scope)

    def within(self, scope: DedupScope) -> Accepted:
        """Give the rows of both tables in a scope."""
        if self.afresh:
            return Accepted(None, 0)
        silver, late = self.read(scope)
        rows = scope.within(silver, is_late_table=False).unionByName(
            scope.within(late, is_late_table=True)
        )
        counts = [files.count for files in self.files.values()]
        known = [count for count in counts if count is not None]
        return Accepted(rows, sum(known) if known and len(known) == len(counts) else None)

    def meeting(self, scope: DedupScope, hashes: Numbers) -> Met | None:
        """Return the rows in scope whose id has one of some hashes, ascending; None for too many.

        Rows of late that this batch wrote are not among them.
        """
        found = self._known(scope, hashes) if self.files and not self.afresh else None
        if found is None:
            rows, searched = self.within(scope).counted()
            if rows is None:
                return Met(ACCEPTED.empty_table(), 0)
            near = rows.where(may_have_hash(self.spark, ID_HASH, hashes))
            table = near.limit(tuning.COMPARED_ROWS + 1).select(*ACCEPTED.names).toArrow()
            found = Met(table.cast(ACCEPTED), searched())
        return None if found.rows.num_rows > tuning.COMPARED_ROWS else found

    def _known(self, scope: DedupScope, hashes: Numbers) -> Met | None:
        """Look the hashes up in the driver; None where it does not hold those of the tables."""
        name = self.pipeline.name
        parts = []
        for table, columns in (
            (self.lake.silver(name), _OF_SILVER),
            (self.lake.late(name), _OF_LATE),
        ):
            found = self.files[table.name].meeting(self.spark, scope, hashes, columns)
            if found is None:
                return None
            is_late = columns is _OF_LATE
            if is_late:
                found = found.filter(pc.less(found["_batch"], self.batch))
            else:
                found = found.append_column("record_id", pa.nulls(found.num_rows, pa.string()))
            late = pa.array(np.full(found.num_rows, is_late))
            parts.append(found.append_column("_late", late).select(ACCEPTED.names))
        searched = sum(files.count or 0 for files in self.files.values())
        return Met(pa.concat_tables(parts), searched)


@dataclass
class _InScope:
    """The data files that were found for a scope.

    Attributes:
        version: The newest of the table that ``files`` covers.
        rows: How many rows they hold.
        came: How many of the files came since Delta was asked.
        days: Event dates that batches had since then.
    """

    scope: DedupScope
    schema: StructType
    version: int
    files: list[str]
    rows: int
    came: int = 0
    days: tuple[Range, ...] = ()

    def is_too_wide(self, scope: DedupScope) -> bool:
        """Tell whether a batch had better ask for its own scope."""
        is_far = self.scope.is_far_beyond(scope, days=tuning.SPARE_DAYS)
        return self.rows > tuning.SPARE_ROWS and is_far


class _Ids(NamedTuple):
    """The hashes of a file's ids, ascending, and the place of each in the file."""

    hashes: Numbers
    places: np.ndarray[Any, np.dtype[np.int32]]


@dataclass
class FilesInScope:
    """The files of one table; only on a disk, where to open one by its path costs nothing.

    Attributes:
        table: A table that only grows.
    """

    table: Table
    _found: _InScope | None = field(default=None, init=False)
    # By file.
    _ids: dict[str, _Ids] = field(default_factory=dict, init=False)

    def prepare(self, spark: SparkSession) -> None:
        """Let Delta put the table's state together while something else goes on."""
        if self._is_direct():
            InheritableThread(self._prepare, args=(spark,), daemon=True).start()

    def _prepare(self, spark: SparkSession) -> None:
        # Whatever it is, the batch that asks will say.
        with suppress(Exception):
            # No file can have such a row, by its statistics.
            load(spark, self.table).where(F.col("ingested_at").isNull()).inputFiles()

    def _is_direct(self) -> bool:
        return reads_local_paths() and self.table.store.reads_files_directly

    def rows(self, spark: SparkSession, scope: DedupScope) -> DataFrame:
        """Read at least the rows in scope, as the newest commit left them."""
        found = self._in_scope(spark, scope)
        if found is None:
            return load(spark, self.table)
        if not found.files:
            return load(spark, self.table).limit(0)
        return spark.read.schema(found.schema).parquet(*found.files)

    def meeting(
        self, spark: SparkSession, scope: DedupScope, hashes: Numbers, columns: pa.Schema
    ) -> pa.Table | None:
        """Read the rows of the files in scope whose id has one of some hashes, ascending.

        Returns:
            None where the files do not tell the rows, are too many for the driver to hold their
            hashes, are of a version without them, or cannot be read: Spark says why.
        """
        found = self._in_scope(spark, scope)
        if found is None or found.rows > tuning.INDEXED_IDS:
            return None
        try:
            if self._are_known(found.files):
                with ThreadPoolExecutor(_READERS) as readers:
                    rows = readers.map(
                        lambda file: _with_hash(self._ids[file], file, hashes, columns), found.files
                    )
                    return pa.concat_tables([columns.empty_table(), *rows])
        except _UNREADABLE:
            pass
        return None

    def _are_known(self, files: Sequence[str]) -> bool:
        """Read the hashes of files that were not looked at yet."""
        self._ids = {file: self._ids[file] for file in files if file in self._ids}
        for file in files:
            if file not in self._ids:
                if ID_HASH not in pq.read_schema(file).names:
                    return False
                column = _read_file(file, [ID_HASH])[ID_HASH]
                if column.null_count:
                    return False
                hashes = column.to_numpy()
                places = np.argsort(hashes)
                self._ids[file] = _Ids(hashes[places], places.astype(np.int32))
        return True

    def _in_scope(self, spark: SparkSession, scope: DedupScope) -> _InScope | None:
        if not self._is_direct():
            return None
        if not self._is_brought_up(scope):
            try:
                self._found = self._asked(spark, scope)
            except _UNREADABLE:
                self._found = None
        if self._found is not None:
            self._found.days = united((*self._found.days, *scope.days))
        return self._found

    @property
    def count(self) -> int | None:
        """How many rows the files hold that were found last; None where Delta was left to it."""
        return None if self._found is None else self._found.rows

    def _is_brought_up(self, scope: DedupScope) -> bool:
        """Take in what commits brought since; false where Delta is to be asked again."""
        found = self._found
        if found is None or not found.scope.holds(scope):
            return False
        new = commits_after(self.table, found.version)
        # A compaction's files hold what others did, and a new column changes the schema.
        if not all(commit.only_appends() for commit in new):
            return False
        added = [add for commit in new for add in commit.added()]
        came = [self._path(add.path) for add in added]
        if found.came + len(came) > tuning.MOST_PATHS:
            return False
        found.files += came
        found.rows += sum(add.rows for add in added)
        found.came += len(came)
        found.version = max((commit.version for commit in new), default=found.version)
        # A batch with dates or arrivals of years leaves nothing to those after it.
        return not found.is_too_wide(scope)

    def _asked(self, spark: SparkSession, scope: DedupScope) -> _InScope | None:
        """Let Delta find them by its statistics; None where files alone do not tell the rows."""
        if _MOVING & properties(spark, self.table).items():
            return None
        version = newest_version(self.table)
        rows = load(spark, self.table, version=version)
        # With the dates of the batches since the last time, so that not every batch has to ask.
        wide = scope if self._found is None else scope.with_days(self._found.days)
        if len(wide.days) <= RANGES:
            found = _look_up(rows, version, wide)
            if not found.is_too_wide(scope):
                return found
        return _look_up(rows, version, scope)

    def _path(self, name: str) -> str:
        return str(self.table.path / unquote(name))


def _look_up(rows: DataFrame, version: int, scope: DedupScope) -> _InScope:
    """Ask Delta for the files of a table's version that hold the rows in scope."""
    named = scope.within(rows, is_late_table=False).inputFiles()
    files = [str(Path(file.removeprefix("file:"))) for file in named]
    held = sum(pq.read_metadata(file).num_rows for file in files)
    return _InScope(scope, rows.schema, version, files, held)


def _with_hash(ids: _Ids, file: str, hashes: Numbers, columns: pa.Schema) -> pa.Table:
    """Read the rows of a file whose id has one of some hashes, ascending and each once."""
    first, end = (np.searchsorted(ids.hashes, hashes, side) for side in ("left", "right"))
    places, _ = spread(first, end - first)
    if not places.size:
        return columns.empty_table()
    return _read_file(file, columns.names).take(np.sort(ids.places[places])).cast(columns)


def _read_file(file: str, columns: list[str]) -> pa.Table:
    return pq.read_table(file, columns=columns, coerce_int96_timestamp_unit="us", partitioning=None)
