"""Read the accepted rows of silver and late in a batch's deduplication scope.

After each commit Delta reconstructs a table's state to find the files of a scan: a job over the
log, several times the work of a small batch. So Delta is queried only from time to time, and files
that commits added since, or since a young table's creation, are read from the log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from tidelake.config import Pipeline
from tidelake.delta.access import DELETION_VECTORS, ask_ahead, load, properties, read_parquet
from tidelake.delta.log import commits_after, last_commit, newest_version
from tidelake.delta.positions import BEGINNING, Position
from tidelake.delta.tables import Lake, Table
from tidelake.instants import from_json
from tidelake.names import ID_HASH
from tidelake.silver.dedup import Accepted, AcceptedMatches
from tidelake.silver.driver_dedup import ACCEPTED, Numbers, may_have_hash, spread
from tidelake.silver.search_bounds import RANGES, DedupScope, Range, united
from tidelake.spark import tuning
from tidelake.spark.engine import runs_in_process

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
_UNREADABLE = (FileNotFoundError, pa.ArrowInvalid)
# With any of these, the data files alone do not determine the table's rows.
_INDIRECT = {
    (DELETION_VECTORS, "supported"),
    ("delta.columnMapping.mode", "name"),
    ("delta.columnMapping.mode", "id"),
}
_ALWAYS = (np.iinfo(np.int64).min, np.iinfo(np.int64).max)
_EVERYTHING = DedupScope(datetime.min.replace(tzinfo=UTC), requeued=(_ALWAYS,), days=(_ALWAYS,))


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
        """Return the rows in scope whose id has one of some hashes, ascending; None for too many.

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


@dataclass
class _InScope:
    """The data files found for a scope, with their row count, up to a table ``version``.

    So many were ``added`` since Delta was queried, by batches with the event dates ``days``.
    """

    scope: DedupScope
    schema: StructType
    version: int
    files: list[str]
    rows: int
    added: int = 0
    days: tuple[Range, ...] = ()

    def is_too_wide(self, scope: DedupScope) -> bool:
        """Return whether a batch should query Delta with its own, narrower scope."""
        is_far = self.scope.is_far_beyond(scope, days=tuning.SPARE_DAYS)
        return self.rows > tuning.SPARE_ROWS and is_far


class _Ids(NamedTuple):
    """The hashes of a file's ids, ascending, and the row index of each in the file."""

    hashes: Numbers
    places: np.ndarray[Any, np.dtype[np.int32]]


@dataclass
class FilesInScope:
    """The files in scope of an append-only table, cached; only on a disk, where opens are cheap."""

    table: Table
    _found: _InScope | None = field(default=None, init=False)
    # By file path.
    _ids: dict[str, _Ids] = field(default_factory=dict, init=False)

    def prepare(self, spark: SparkSession) -> None:
        """Let Delta reconstruct the table's state in a thread, unless its log names the files."""
        if self._is_direct() and not self._is_young():
            # Statistics exclude every file, so that no file is read.
            none = F.col("ingested_at").isNull()
            ask_ahead(lambda: load(spark, self.table).where(none).inputFiles())

    def _is_direct(self) -> bool:
        return runs_in_process() and self.table.reads_files_directly

    def _is_young(self) -> bool:
        """Return whether all commits since the table was created empty are in a short log."""
        if newest_version(self.table) > tuning.MOST_PATHS:
            return False
        oldest = commits_after(self.table, -1)[-1:]
        return not any(one.version or any(one.actions("add")) for one in oldest)

    def rows(self, spark: SparkSession, scope: DedupScope) -> DataFrame:
        """Read at least the rows in scope, as of the newest commit."""
        found = self._in_scope(spark, scope)
        if found is None:
            return load(spark, self.table)
        if not found.files:
            return load(spark, self.table).limit(0)
        return read_parquet(spark, found.files, found.schema)

    def with_hashes(
        self, spark: SparkSession, scope: DedupScope, hashes: Numbers, columns: pa.Schema
    ) -> pa.Table | None:
        """Read the rows of the files in scope whose id has one of some hashes, ascending.

        None if the driver cannot answer: the data files alone do not determine the rows, have too
        many rows to index, have no hash column, or cannot be read (Spark then reports it).
        """
        found = self._in_scope(spark, scope)
        if found is None or found.rows > tuning.INDEXED_IDS:
            return None
        try:
            if self._index(found.files):
                with ThreadPoolExecutor(_READERS) as readers:
                    rows = readers.map(
                        lambda file: _with_hash(self._ids[file], file, hashes, columns), found.files
                    )
                    return pa.concat_tables([columns.empty_table(), *rows])
        except _UNREADABLE:
            pass
        return None

    def _index(self, files: Sequence[str]) -> bool:
        """Index the id hashes of new files; return False if a file has none."""
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
        if not self._catch_up(scope):
            try:
                self._found = self._find(spark, scope)
            except _UNREADABLE:
                self._found = None
        if self._found is not None:
            self._found.days = united((*self._found.days, *scope.days))
        return self._found

    @property
    def count(self) -> int | None:
        """Row count of the files found last; None if Delta reads the table itself."""
        return None if self._found is None else self._found.rows

    def _catch_up(self, scope: DedupScope) -> bool:
        """Add the files of newer commits; return False if they must be found anew."""
        found = self._found
        if found is None or not found.scope.holds(scope):
            return False
        new = commits_after(self.table, found.version)
        # A compaction's files repeat rows of other files, and a new column changes the schema.
        if not all(commit.only_appends() for commit in new):
            return False
        added = [add for commit in new for add in commit.added()]
        paths = [str(self.table.path / unquote(add.path)) for add in added]
        if found.added + len(paths) > tuning.MOST_PATHS:
            return False
        found.files += paths
        found.rows += sum(add.rows for add in added)
        found.added += len(paths)
        found.version = max((commit.version for commit in new), default=found.version)
        # A scope of years must not be kept for the batches after it.
        return not found.is_too_wide(scope)

    def _find(self, spark: SparkSession, scope: DedupScope) -> _InScope | None:
        """Find the files in scope; None if files alone do not determine the rows."""
        if _INDIRECT & properties(spark, self.table).items():
            return None
        version = newest_version(self.table)
        rows = load(spark, self.table, version=version)
        if self._found is None and self._is_young():
            # As it was created, without a file: what commits added since, the log says.
            self._found = _InScope(_EVERYTHING, rows.schema, 0, [], 0)
            if self._catch_up(scope):
                return self._found
        # Include the dates of recent batches, so that not every batch has to query Delta.
        recent = () if self._found is None else self._found.days
        wide = replace(scope, days=united((*scope.days, *recent)))
        if len(wide.days) <= RANGES:
            found = _look_up(rows, version, wide)
            if not found.is_too_wide(scope):
                return found
        return _look_up(rows, version, scope)


def _look_up(rows: DataFrame, version: int, scope: DedupScope) -> _InScope:
    """Query Delta for the files of a table version that may hold rows in scope."""
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
