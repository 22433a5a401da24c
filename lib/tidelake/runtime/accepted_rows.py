"""Read the accepted rows of silver and late in a batch's deduplication scope.

After each commit Delta reconstructs a table's state to find the files of a scan: a job over the
log, several times the work of a small batch. So the files are found in the log itself: in its last
checkpoint when a query starts, and in the commits after it.
"""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import date, datetime
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from tidelake.config import Pipeline
from tidelake.delta.access import DELETION_VECTORS, load, properties, read_parquet
from tidelake.delta.log import commits_after, last_commit, live_files
from tidelake.delta.positions import BEGINNING, Position
from tidelake.delta.tables import Lake, Table
from tidelake.folders import Folder
from tidelake.instants import from_json, to_micros
from tidelake.names import ID_HASH
from tidelake.silver.dedup import Accepted, AcceptedMatches
from tidelake.silver.driver_dedup import ACCEPTED, Numbers, may_have_hash, spread
from tidelake.silver.search_bounds import DedupScope, Range
from tidelake.spark import tuning
from tidelake.spark.engine import runs_in_process

if TYPE_CHECKING:
    import duckdb

_OF_SILVER = pa.schema([column for column in ACCEPTED if column.name not in ("record_id", "_late")])
# Late rows also have a record id, a batch, and when they were requeued before, if ever.
_OF_LATE = pa.schema(
    [
        *_OF_SILVER,
        ACCEPTED.field("record_id"),
        pa.field("_batch", pa.int64()),
        pa.field("_requeued_at", ACCEPTED.field("ingested_at").type),
    ]
)
# Number of files read concurrently.
_READERS = 4
# Among the latter are Arrow's.
_UNREADABLE = (OSError, ValueError)
# With any of these, the data files alone do not determine the table's rows.
_INDIRECT = {
    (DELETION_VECTORS, "supported"),
    ("delta.columnMapping.mode", "name"),
    ("delta.columnMapping.mode", "id"),
}
_ROWS_AT = (
    "SELECT {} FROM read_parquet($1, file_row_number = true, hive_partitioning = false) "
    "WHERE file_row_number IN (SELECT unnest($2)) ORDER BY file_row_number"
)
_ALWAYS = (np.iinfo(np.int64).min, np.iinfo(np.int64).max)
_1970 = date(1970, 1, 1).toordinal()


@dataclass(frozen=True)
class AcceptedRows:
    """The accepted rows: silver and late as of the last closed batch.

    Late rows of ``batch`` and later ones are ignored: an interrupted attempt at it wrote them. So
    are those that were decided again since: the earlier batches have read the requeue up to
    ``requeue_end``, and what they accepted of it is in silver. ``refused`` are rows of the batch
    itself, with ``record_id`` and ``requeued_at``, that were requeued and are not accepted again.
    Only ``known`` rows count, if given, and of silver those of ``version``. Without cached
    ``files`` Delta finds those to read.
    """

    spark: SparkSession
    pipeline: Pipeline
    lake: Lake
    batch: int
    requeue_end: Position = BEGINNING
    refused: DataFrame | None = None
    known: Column | None = None
    version: int | None = None
    nothing_accepted: bool = False
    files: Mapping[str, FilesInScope] = field(default_factory=dict)

    def read(self, scope: DedupScope | None = None) -> tuple[DataFrame, DataFrame]:
        """Read silver and late, at least the rows in scope."""
        silver, late = (
            self.files[table.name].rows(self.spark, scope)
            if scope is not None and self.files
            else load(self.spark, table, version=version)
            for table, version in zip(self._tables, (self.version, None), strict=True)
        )
        if self.known is not None:
            silver, late = silver.where(self.known), late.where(self.known)
        late = late.where(F.col("_batch") < self.batch)
        again = self._decided_again
        return silver, late if again is None else _without(late, again)

    @property
    def _decided_again(self) -> DataFrame | None:
        """The rows of the requeue for which a late row no longer counts; None if there are none."""
        version, files = self.requeue_end
        requeue = self.lake.requeue(self.pipeline.name)
        last = last_commit(requeue, up_to=version if files >= 0 else version - 1)
        until = from_json(last.note.get("requeued_at")) if last else None
        if until is None:
            return self.refused
        rows = load(self.spark, requeue).where(F.col("requeued_at") <= F.lit(until))
        rows = rows.select("record_id", "requeued_at")
        return rows if self.refused is None else rows.unionByName(self.refused)

    @property
    def _tables(self) -> tuple[Table, Table]:
        return self.lake.silver(self.pipeline.name), self.lake.late(self.pipeline.name)

    def within(self, scope: DedupScope) -> Accepted:
        """Return the rows of both tables in a scope."""
        if self.nothing_accepted:
            return Accepted(None, 0)
        silver, late = self.read(scope)
        rows = scope.within(silver, is_late_table=False).unionByName(
            scope.within(late, is_late_table=True)
        )
        counts = [files.count for files in self.files.values()]
        known = [count for count in counts if count is not None]
        return Accepted(rows, sum(known) if known and len(known) == len(counts) else None)

    def with_hashes(self, scope: DedupScope, hashes: Numbers) -> AcceptedMatches | None:
        """Return the rows in scope whose id has one of ``hashes`` (ascending); None for too many.

        Rows of late that this batch wrote are not among them.
        """
        found = self._known(scope, hashes) if self.files and not self.nothing_accepted else None
        if found is None:
            rows, searched = self.within(scope).counted()
            if rows is None:
                return AcceptedMatches(ACCEPTED.empty_table(), 0)
            near = rows.where(may_have_hash(self.spark, ID_HASH, hashes))
            table = near.limit(tuning.COMPARED_ROWS + 1).select(*ACCEPTED.names).toArrow()
            found = AcceptedMatches(table.cast(ACCEPTED), searched())
        return None if found.rows.num_rows > tuning.COMPARED_ROWS else found

    def _known(self, scope: DedupScope, hashes: Numbers) -> AcceptedMatches | None:
        """Look the hashes up in the driver's index; None if it does not cover both tables."""
        of_silver, of_late = (self.files[table.name] for table in self._tables)
        silver = of_silver.with_hashes(self.spark, scope, hashes, _OF_SILVER)
        if silver is None:
            return None
        late = of_late.with_hashes(self.spark, scope, hashes, _OF_LATE)
        if late is None:
            return None
        late = late.filter(pc.less(late["_batch"], self.batch))
        if late.num_rows and (again := self._decided_again) is not None:
            late = _without(self.spark.createDataFrame(late), again).toArrow().cast(late.schema)
        parts = [
            silver.append_column("_late", pa.repeat(False, silver.num_rows)),
            late.append_column("_late", pa.repeat(True, late.num_rows)),
        ]
        # Silver's record ids become null.
        found = pa.concat_tables(parts, promote_options="default").select(ACCEPTED.names)
        return AcceptedMatches(found, sum(files.count or 0 for files in self.files.values()))


def _without(late: DataFrame, again: DataFrame) -> DataFrame:
    """Return the rows of late that were not requeued after they were found too late."""
    is_later = F.col("q._requeued_at").isNull() | (F.col("r.requeued_at") > F.col("q._requeued_at"))
    same = (F.col("q.record_id") == F.col("r.record_id")) & is_later
    return late.alias("q").join(again.alias("r"), on=same, how="left_anti")


class _DataFile(NamedTuple):
    """A data file: its path, row count, and the ranges of its rows' arrivals and event dates."""

    path: str
    rows: int
    arrived: Range
    days: Range

    @classmethod
    def of(cls, folder: Folder, add: dict[str, Any]) -> _DataFile:
        """Read an ``add`` action; a range without statistics is unbounded."""
        # A clone names the files of its origin, by their whole paths.
        path = str(folder / unquote(add["path"]).removeprefix("file:"))
        stats = json.loads(add.get("stats") or "{}") or {}
        rows = stats.get("numRecords")
        return cls(
            path,
            pq.read_metadata(path).num_rows if rows is None else int(rows),
            _range(stats, "ingested_at", lambda text: to_micros(datetime.fromisoformat(text)), 999),
            _range(stats, "event_date", lambda text: date.fromisoformat(text).toordinal() - _1970),
        )


def _range(
    stats: dict[str, Any], column: str, number: Callable[[str], int], rounded: int = 0
) -> Range:
    """Return a column's range in a file; ``rounded`` is added: Delta truncates the maximum."""
    try:
        least, greatest = (number(stats[kind][column]) for kind in ("minValues", "maxValues"))
    except (KeyError, TypeError, ValueError):
        return _ALWAYS
    return least, greatest + rounded


@dataclass
class _Log:
    """What a table's log says of a version: its schema, and data files by their path in the log."""

    schema: StructType
    version: int
    files: dict[str, _DataFile]


class _Ids(NamedTuple):
    """The hashes of a file's ids, ascending, and the row index of each in the file."""

    hashes: Numbers
    places: np.ndarray[Any, np.dtype[np.int32]]


@dataclass
class FilesInScope:
    """The data files of a table that may hold rows in scope; only on a disk, where opens are cheap.

    ``count`` is the number of rows in the files found last; None if Delta reads the table itself.
    """

    table: Table
    count: int | None = field(default=None, init=False)
    _log: _Log | None = field(default=None, init=False)
    # By file path.
    _ids: dict[str, _Ids] = field(default_factory=dict, init=False)

    def rows(self, spark: SparkSession, scope: DedupScope) -> DataFrame:
        """Read at least the rows in scope, as of the newest commit."""
        files = self._in_scope(spark, scope)
        # Delta's error names a file that is gone.
        if files is None or self._log is None or not all(map(os.path.exists, files)):
            self.count = None
            return load(spark, self.table)
        if not files:
            return load(spark, self.table).limit(0)
        return read_parquet(spark, files, self._log.schema)

    def with_hashes(
        self, spark: SparkSession, scope: DedupScope, hashes: Numbers, columns: pa.Schema
    ) -> pa.Table | None:
        """Read ``columns`` of the rows whose id has one of ``hashes`` (ascending), without Spark.

        Only files are read that may hold rows in scope. Returns None if Spark must read the table
        instead: it has deletion vectors or renamed columns, more rows than the driver keeps hashes
        of, files without hashes, or a file that cannot be read, which Spark's error then names.
        """
        files = self._in_scope(spark, scope)
        if files is None or (self.count or 0) > tuning.INDEXED_IDS:
            return None
        try:
            if self._index(files):
                with ThreadPoolExecutor(_READERS) as readers:
                    rows = readers.map(
                        lambda file: _with_hash(self._ids[file], file, hashes, columns), files
                    )
                    return pa.concat_tables([columns.empty_table(), *rows])
        except _UNREADABLE:
            pass
        return None

    def _index(self, files: Sequence[str]) -> bool:
        """Index the id hashes of new files; return False if a file has none."""
        # Those of other files are kept for batches that reach back further, within limits.
        wanted, count = set(files), self.count or 0
        others = sum(ids.hashes.size for file, ids in self._ids.items() if file not in wanted)
        if others > min(max(count, tuning.SPARE_IDS), tuning.INDEXED_IDS - count):
            self._ids = {file: ids for file, ids in self._ids.items() if file in wanted}
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

    def _in_scope(self, spark: SparkSession, scope: DedupScope) -> list[str] | None:
        """Find the files that may hold rows in scope; None if Delta must read the table."""
        self.count = None
        if not (runs_in_process() and self.table.reads_files_directly):
            return None
        try:
            if not self._catch_up():
                self._log = self._read_log(spark)
        except _UNREADABLE:
            self._log = None
        if self._log is None:
            return None
        ranges = self._log.files.values()
        found = [file for file in ranges if scope.may_include(file.arrived, file.days)]
        self.count = sum(file.rows for file in found)
        return [file.path for file in found]

    def _catch_up(self) -> bool:
        """Apply the commits since the log was read; return False if it must be read again."""
        log = self._log
        newer = None if log is None else commits_after(self.table, log.version)
        if log is None or newer is None or any(commit.redefines() for commit in newer):
            return False
        for commit in newer:
            commit.apply(log.files, self._data_file)
            log.version = commit.version
        return True

    def _read_log(self, spark: SparkSession) -> _Log | None:
        """Read the log; None if it does not say which files hold the rows, or not these alone."""
        found = live_files(self.table, self._data_file)
        # Read afterwards: what changes them from now on is a commit after this version.
        stored = {(key, value.lower()) for key, value in properties(spark, self.table).items()}
        if found is None or _INDIRECT & stored:
            return None
        return _Log(load(spark, self.table).schema, *found)

    def _data_file(self, add: dict[str, Any]) -> _DataFile:
        return _DataFile.of(self.table.path, add)


def _with_hash(ids: _Ids, file: str, hashes: Numbers, columns: pa.Schema) -> pa.Table:
    """Read the rows of a file whose id has one of some hashes, ascending and each once."""
    first, end = (np.searchsorted(ids.hashes, hashes, side) for side in ("left", "right"))
    found, _ = spread(first, end - first)
    if not found.size:
        return columns.empty_table()
    places = np.sort(ids.places[found])
    # DuckDB would read the name as a pattern.
    if places.size * tuning.SPARSE > ids.hashes.size or glob.has_magic(file):
        return _read_file(file, columns.names).take(places).cast(columns)
    return _read_places(file, places, columns.names).cast(columns)


def _read_places(
    file: str, places: np.ndarray[Any, np.dtype[np.int32]], columns: list[str]
) -> pa.Table:
    """Read few rows of a file: DuckDB passes over those in between, where Arrow decodes all."""
    # Imported here, because it takes 50 ms and few runs need it.
    import duckdb  # noqa: PLC0415

    try:
        query = _ROWS_AT.format(", ".join(columns))
        return _connection().cursor().execute(query, [file, places]).to_arrow_table()
    except duckdb.Error as error:
        raise OSError(str(error)) from error


@cache
def _connection() -> duckdb.DuckDBPyConnection:
    import duckdb  # noqa: PLC0415

    # It would keep what it has read of each file in memory.
    return duckdb.connect(config={"enable_external_file_cache": "false"})


def _read_file(file: str, columns: list[str]) -> pa.Table:
    return pq.read_table(file, columns=columns, coerce_int96_timestamp_unit="us", partitioning=None)
