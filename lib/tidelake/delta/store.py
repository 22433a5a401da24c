"""Table stores: folders on a disk or an object store, or names in a catalog.

A lake chooses the store of its tables once, and every write goes through it. The files of a catalog
table are off limits: its commits are read from Spark's table history, which has the rows and bytes
that each commit added, but not the files.

Commands without Spark import this module, so Spark is imported inside the functions that need it.
"""

from __future__ import annotations

import functools
import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, TypeVar

from tidelake.delta.log import USER_METADATA, Added, Entry, Info, created_id, files_of
from tidelake.folders import Folder, is_stored
from tidelake.instants import from_micros
from tidelake.names import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamReader
    from pyspark.sql.types import StructType

    _Reader = TypeVar("_Reader", DataFrameReader, DataStreamReader)

Mode = Literal["append", "overwrite", "error"]
# The columns that the change feed adds.
_FEED_COLUMNS = ("_change_type", "_commit_version", "_commit_timestamp")
_FEED = "readChangeFeed"
_ALL_FILES = (1 << 31) - 1
# Concurrent pipelines in one session share the sibling session whose metadata setting is changed.
_CREATE_LOCK = threading.Lock()


class TableStore(ABC):
    """The storage of one table; ``folder`` is None where its files are off limits.

    Attributes:
        takes_whole_commits: Whether a stream reads whole commits, from the table's change feed.
        is_created_first: Whether the table must be created before the first commit with metadata.
    """

    takes_whole_commits: ClassVar[bool] = False
    is_created_first: ClassVar[bool] = False
    folder: Folder | None

    @property
    def reads_files_directly(self) -> bool:
        """Whether opening a data file by its path costs nothing."""
        return False

    @property
    def needs_transaction_ids(self) -> bool:
        """Whether locks may be missing or lost, so that Delta must refuse duplicate appends."""
        return True

    @property
    @abstractmethod
    def sql(self) -> str:
        """The table's identifier in Spark SQL."""

    @property
    @abstractmethod
    def exists(self) -> bool:
        """Whether the table has at least one commit."""

    @property
    @abstractmethod
    def id(self) -> str | None:
        """The Delta table id from creation; None where the log no longer has it."""

    @abstractmethod
    def entries(self, up_to: int | None = None) -> Iterator[Entry]:
        """Yield the log's commits up to a version, newest first; none for a missing table."""

    @abstractmethod
    def open(self, reader: _Reader) -> DataFrame:
        """Read the table with a Spark reader."""

    @abstractmethod
    def follow(self, reader: DataStreamReader, *, max_bytes: int | None, idle: bool) -> DataFrame:
        """Read the table as a stream; see :func:`tidelake.delta.access.follow`."""

    @abstractmethod
    def create(
        self,
        spark: SparkSession,
        schema: StructType,
        properties: Mapping[str, str],
        metadata: str = "",
        description: str = "",
    ) -> None:
        """Create an empty table.

        Where ``is_created_first`` is set, the commit metadata and the description are not written.
        """

    @abstractmethod
    def save(self, rows: DataFrame, options: Mapping[str, str], mode: Mode, where: str) -> None:
        """Write rows in one commit.

        ``overwrite`` replaces the rows that match ``where``, an SQL condition, or all rows if it is
        empty; ``error`` creates the table.
        """

    def merge(self, rows: DataFrame, *, on: str, clauses: str) -> None:
        """Merge rows (alias ``s``) into the table (alias ``t``), with the session's metadata."""
        # MERGE needs a named source; the name is unique because sessions are shared.
        name = f"tidelake_{uuid.uuid4().hex}"
        rows.createOrReplaceTempView(name)
        try:
            rows.sparkSession.sql(f"MERGE INTO {self.sql} AS t USING {name} AS s ON {on} {clauses}")
        finally:
            rows.sparkSession.catalog.dropTempView(name)

    def compact(self, spark: SparkSession) -> None:
        """Compact the table's small files in a commit that changes no row."""
        spark.sql(f"OPTIMIZE {self.sql}")


@dataclass(frozen=True)
class FolderStore(TableStore):
    """A table in a folder; with ``needs_locks``, writers must hold a lock.

    ``newest``, shared by the tables of a lake, has the newest version seen in each log. It is only
    a starting point for the next listing; versions are always read from the log.
    """

    folder: Folder
    needs_locks: bool = field(default=True, compare=False)
    newest: dict[Path, int] = field(default_factory=dict, compare=False, repr=False)

    @property
    def reads_files_directly(self) -> bool:
        """True only on a disk."""
        return not is_stored(self.folder)

    @property
    def needs_transaction_ids(self) -> bool:
        """True on an object store, whose leases can be lost, and without locks."""
        return is_stored(self.folder) or not self.needs_locks

    @property
    def sql(self) -> str:
        """The table's path in SQL."""
        return f"delta.{quoted(str(self.folder))}"

    @property
    def exists(self) -> bool:
        """Whether the log has a commit file."""
        return any((self.folder / "_delta_log").glob("[0-9]*.json"))

    @property
    def id(self) -> str | None:
        """The table id in the first commit."""
        return created_id(self.folder)

    def entries(self, up_to: int | None = None) -> Iterator[Entry]:
        """Read the commit files."""
        files = files_of(self.folder, self.newest)
        return (file for file in files if up_to is None or file.version <= up_to)

    def open(self, reader: _Reader) -> DataFrame:
        """Load the path."""
        return reader.load(str(self.folder))

    def follow(self, reader: DataStreamReader, *, max_bytes: int | None, idle: bool) -> DataFrame:
        """Stream the table's files."""
        if max_bytes is not None:
            reader = reader.option("maxBytesPerTrigger", max_bytes)
        return self.open(reader)

    def create(
        self,
        spark: SparkSession,
        schema: StructType,
        properties: Mapping[str, str],
        metadata: str = "",
        description: str = "",
    ) -> None:
        """Create it by SQL, with the metadata set in a session used only for creating tables."""
        from pyspark.sql.utils import is_remote  # noqa: PLC0415

        from tidelake.spark.engine import with_settings  # noqa: PLC0415

        # CREATE TABLE fails on the remains of an interrupted creation; a DataFrame writer does not.
        was_begun = (self.folder / "_delta_log").exists()
        if not (was_begun or is_remote()):
            listed = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
            comment = f"COMMENT {sql_text(description)}" if description else ""
            sibling = _sibling(spark)
            with _CREATE_LOCK, with_settings(sibling, {USER_METADATA: metadata}):
                if sibling.conf.get(USER_METADATA, None) == metadata:
                    sibling.sql(
                        f"CREATE TABLE {self.sql} ({schema.toDDL()}) USING delta "
                        f"{comment} TBLPROPERTIES ({listed})"
                    )
                    return
        # Without session settings a writer commits the metadata; the next run adds the comments.
        self.save(no_rows(spark, schema), {"userMetadata": metadata, **properties}, "error", "")

    def save(self, rows: DataFrame, options: Mapping[str, str], mode: Mode, where: str) -> None:
        """Write to the path."""
        only = {"replaceWhere": where} if where else {}
        rows.write.format("delta").mode(mode).options(**options, **only).save(str(self.folder))


@functools.lru_cache(maxsize=4)
def _sibling(spark: SparkSession) -> SparkSession:
    """Return a cached session only for creating tables, so no other commit gets its metadata."""
    return spark.newSession()


def no_rows(spark: SparkSession, schema: StructType) -> DataFrame:
    """Return an empty frame with a schema."""
    from pyspark.sql import functions as F  # noqa: PLC0415
    from pyspark.sql.utils import is_remote  # noqa: PLC0415

    if is_remote():
        # A cast here would write each string's collation into the table's schema, which other
        # Delta readers do not support.
        return spark.createDataFrame([], schema)
    # Not createDataFrame, which would start a Python worker here.
    return spark.range(0).select(
        *[
            F.lit(None).cast(field.dataType).alias(field.name, metadata=field.metadata)
            for field in schema.fields
        ]
    )


def sql_text(text: str) -> str:
    """Return a text as a Spark SQL string literal."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


@dataclass(frozen=True)
class Catalog:
    """A catalog with one schema per layer, accessed through a Spark session.

    ``histories`` caches commits by table and version. Commits never change, so only the newest few
    are requested from Spark again.
    """

    name: str
    session: Callable[[], SparkSession] = field(compare=False, repr=False)
    histories: dict[str, dict[int, HistoryEntry]] = field(
        default_factory=dict, compare=False, repr=False
    )

    def layers(self) -> frozenset[str]:
        """List the catalog's schemas."""
        rows = self.session().sql(f"SHOW SCHEMAS IN {quoted(self.name)}").collect()
        return frozenset(str(row[0]) for row in rows)

    def schema(self, layer: str) -> str:
        """Return the SQL name of a layer's schema."""
        return f"{quoted(self.name)}.{quoted(layer)}"


@dataclass(frozen=True)
class CatalogStore(TableStore):
    """A table in a catalog; its files must not be accessed."""

    catalog: Catalog
    schema: str
    table: str

    takes_whole_commits = True
    is_created_first = True
    folder = None

    @property
    def sql(self) -> str:
        """The table's full name in SQL."""
        return f"{self.catalog.schema(self.schema)}.{quoted(self.table)}"

    @property
    def exists(self) -> bool:
        """Whether the catalog has the table."""
        return self.catalog.session().catalog.tableExists(self.sql)

    @property
    def id(self) -> str | None:
        """The id that Delta reports; None where the table does not exist."""
        from delta.tables import DeltaTable  # noqa: PLC0415
        from pyspark.errors import AnalysisException  # noqa: PLC0415

        try:
            detail = DeltaTable.forName(self.catalog.session(), self.sql).detail()
            return str(detail.select("id").collect()[0]["id"])
        except AnalysisException:
            return None

    def entries(self, up_to: int | None = None) -> Iterator[Entry]:
        """Read the table history; cached commits are not requested again."""
        cached = self.catalog.histories.get(self.sql, {})
        if up_to is None or up_to not in cached:
            cached = self._refreshed()
        versions = [version for version in cached if up_to is None or version <= up_to]
        return iter([cached[version] for version in sorted(versions, reverse=True)])

    def _refreshed(self) -> dict[int, HistoryEntry]:
        """Add the newest commits to the cached history, and return it."""
        newest = _history(self, _NEWEST)
        cached = self.catalog.histories.get(self.sql, {})
        # Compare the commit, not only its version: the table may have been dropped and recreated.
        overlaps = bool(newest) and cached.get(newest[-1].version) == newest[-1]
        # No gap if the newest commits reach back to version 0 or to a cached commit.
        complete = not newest or newest[-1].version == 0 or overlaps
        entries = {entry.version: entry for entry in (newest if complete else _history(self, None))}
        if overlaps:
            entries = {**cached, **entries}
        self.catalog.histories[self.sql] = entries
        return entries

    def open(self, reader: _Reader) -> DataFrame:
        """Read the table by name."""
        return reader.table(self.sql)

    def follow(self, reader: DataStreamReader, *, max_bytes: int | None, idle: bool) -> DataFrame:
        """Stream the change feed, which fails if it starts after the newest version.

        A batch reads all available commits. A limit could end a batch between two files of one
        commit, and the history does not say which files come first.
        """
        # Delta's default limit is a thousand files a batch.
        reader = reader.option("maxFilesPerTrigger", _ALL_FILES)
        return self.open(reader) if idle else _inserted(self.open(reader.option(_FEED, True)))

    def inserted(self, reader: DataFrameReader, first: int, last: int) -> DataFrame:
        """Read the rows inserted by the versions ``first`` to ``last``, inclusive."""
        reader = reader.option(_FEED, True).option("startingVersion", first)
        return _inserted(self.open(reader.option("endingVersion", last)))

    def create(
        self,
        spark: SparkSession,
        schema: StructType,
        properties: Mapping[str, str],
        metadata: str = "",
        description: str = "",
    ) -> None:
        """Create a managed table; its first commit cannot carry metadata."""
        writer = no_rows(spark, schema).writeTo(self.sql).using("delta")
        for key, value in properties.items():
            writer = writer.tableProperty(key, value)
        writer.create()

    def save(self, rows: DataFrame, options: Mapping[str, str], mode: Mode, where: str) -> None:
        """Write to the table by name."""
        if mode == "overwrite":
            from pyspark.sql import functions as F  # noqa: PLC0415

            # `saveAsTable` would replace the table and lose its properties.
            rows.writeTo(self.sql).options(**options).overwrite(F.expr(where or "true"))
        else:
            rows.write.format("delta").mode(mode).options(**options).saveAsTable(self.sql)


def _inserted(changes: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: PLC0415

    return changes.where(F.col("_change_type") == "insert").drop(*_FEED_COLUMNS)


# The commits requested before the whole history is: usually only one or two are new.
_NEWEST = 8
_WRITES = ("WRITE", "STREAMING UPDATE")
# Operations that change no rows.
_REARRANGES = frozenset(
    [
        *("OPTIMIZE", "AUTO COMPACTION", "REORG", "VACUUM START", "VACUUM END", "CREATE TABLE"),
        *("ADD COLUMNS", "CHANGE COLUMN", "RENAME COLUMN", "DROP COLUMNS", "CLUSTER BY"),
        *("SET TBLPROPERTIES", "UNSET TBLPROPERTIES", "UPGRADE PROTOCOL", "DROP FEATURE"),
        *("ADD DELETION VECTOR TOMBSTONES", "COMPUTE STATS", "ANALYZE TABLE", "SET OWNER"),
        *("CHANGE DATA CAPTURE", "MANUAL UPDATE STATS"),
    ]
)
_REMOVAL_METRICS = (
    *("numRemovedFiles", "numDeletionVectorsAdded", "numDeletionVectorsUpdated"),
    *("numTargetFilesRemoved", "numTargetDeletionVectorsAdded"),
    "numTargetDeletionVectorsUpdated",
)
_COLUMNS = ("version", "operation", "operationParameters", "operationMetrics", "userMetadata")


@dataclass(frozen=True)
class HistoryEntry:
    """A commit in a catalog table's history."""

    version: int
    info: Info

    def added(self) -> list[Added]:
        """Return the rows and bytes it added as one item; streams read whole commits.

        Decided by the row count: Delta also counts empty files, which it then omits. A commit
        without metrics may have added rows, and yields one item.
        """
        metrics = self.info.metrics
        if self.info.operation in _REARRANGES or (metrics and not self._metric("numOutputRows")):
            return []
        size = self._metric("numOutputBytes", "numTargetBytesAdded")
        return [Added(self._metric("numOutputRows"), size)]

    def removes_rows(self) -> bool:
        """Return whether it deleted or replaced rows.

        Without metrics, true for everything except plain appends.
        """
        info = self.info
        if info.operation in _REARRANGES:
            return False
        if info.operation in _WRITES and info.parameters.get("mode", "Append") == "Append":
            return False
        return not info.metrics or any(self._metric(name) for name in _REMOVAL_METRICS)

    def _metric(self, *names: str) -> int:
        metrics = self.info.metrics
        return next((int(metrics[name]) for name in names if name in metrics), 0)


def _history(table: CatalogStore, limit: int | None) -> list[HistoryEntry]:
    """Read the newest commits from Spark, newest first; none where the table does not exist."""
    from delta.tables import DeltaTable  # noqa: PLC0415
    from pyspark.errors import AnalysisException  # noqa: PLC0415
    from pyspark.sql import functions as F  # noqa: PLC0415

    session = table.catalog.session()
    try:
        delta = DeltaTable.forName(session, table.sql)
        history = delta.history() if limit is None else delta.history(limit)
        rows = history.select(*_COLUMNS, F.unix_micros("timestamp").alias("at")).collect()
    except AnalysisException:
        # Checked only on failure, because nearly all tables exist.
        if session.catalog.tableExists(table.sql):
            raise
        return []
    entries = []
    for version, operation, parameters, metrics, metadata, at in rows:
        written = from_micros(at)
        assert written is not None
        info = Info(written, operation, parameters or {}, metrics or {}, metadata)
        entries.append(HistoryEntry(int(version), info))
    return sorted(entries, key=lambda entry: entry.version, reverse=True)
