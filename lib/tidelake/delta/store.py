"""Where tables are: in folders on a disk or an object store, under names in a catalog.

A lake decides once which store its tables have. Everything else asks the store what it can do, or
to do it: each write to a table passes through its store. Nobody may touch the files of a table in
a catalog: there Spark is asked for the table's history, which says how much each commit brought,
but not in which files.

Commands that need no Spark import this module, so Spark is imported where it is needed.
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

from tidelake.config.types import quoted
from tidelake.delta.log import USER_METADATA, Added, Entry, Info, created_id, files_of
from tidelake.folders import Folder, is_stored
from tidelake.instants import from_micros

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamReader
    from pyspark.sql.types import StructType

    _Reader = TypeVar("_Reader", DataFrameReader, DataStreamReader)

Mode = Literal["append", "overwrite", "error"]
# What the change feed of a table adds to its columns.
_OF_THE_FEED = ("_change_type", "_commit_version", "_commit_timestamp")
_FEED = "readChangeFeed"
_ALL_FILES = (1 << 31) - 1
# Pipelines that run at once in one session create tables with metadata of their own.
_ONE_AT_A_TIME = threading.Lock()


class TableStore(ABC):
    """One table, where it is stored: a folder, or None where nobody may touch its files.

    Attributes:
        takes_whole_commits: Whether a stream takes commits whole, from the table's change feed.
        is_created_first: Whether a table is to exist before the first commit with metadata.
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
        """Whether locks may be missing or lost: Delta must refuse a batch's second append."""
        return True

    @property
    @abstractmethod
    def sql(self) -> str:
        """What stands for the table in a statement of Spark's."""

    @property
    @abstractmethod
    def exists(self) -> bool:
        """Tell whether the table has at least one commit."""

    @property
    @abstractmethod
    def id(self) -> str | None:
        """The id with which the table was made; None where the log does not have it any more."""

    @abstractmethod
    def entries(self, up_to: int | None = None) -> Iterator[Entry]:
        """Yield the log's commits up to a version, newest first; none for no table."""

    @abstractmethod
    def open(self, reader: _Reader) -> DataFrame:
        """Let a reader of Spark's read the table."""

    @abstractmethod
    def follow(self, reader: DataStreamReader, *, max_bytes: int | None, idle: bool) -> DataFrame:
        """Let a reader follow the table; see :func:`tidelake.delta.access.follow`."""

    @abstractmethod
    def create(
        self,
        spark: SparkSession,
        schema: StructType,
        properties: Mapping[str, str],
        metadata: str = "",
        description: str = "",
    ) -> None:
        """Create the table, without a row.

        A table that ``is_created_first`` carries neither the commit's metadata nor the description.
        """

    @abstractmethod
    def save(self, rows: DataFrame, options: Mapping[str, str], mode: Mode, where: str) -> None:
        """Write rows in one commit.

        ``overwrite``: the rows replace those that the table has and for which ``where`` holds, SQL,
        empty for all; ``error``: they make the table.
        """

    def merge(self, rows: DataFrame, *, on: str, clauses: str) -> None:
        """Merge rows, ``s``, into the table, ``t``, with the metadata that the session has."""
        # A statement names its source, by a name that no other has.
        name = f"tidelake_{uuid.uuid4().hex}"
        rows.createOrReplaceTempView(name)
        try:
            rows.sparkSession.sql(f"MERGE INTO {self.sql} AS t USING {name} AS s ON {on} {clauses}")
        finally:
            rows.sparkSession.catalog.dropTempView(name)

    def compact(self, spark: SparkSession) -> None:
        """Put the table's small files together, in a commit that changes no row."""
        spark.sql(f"OPTIMIZE {self.sql}")


@dataclass(frozen=True)
class FolderStore(TableStore):
    """A table that is a folder; its writers are refused where they get no lock, if it needs locks.

    ``newest``, shared by the tables of a lake, has the newest version that was seen in each log:
    only where to look from, never what is there.
    """

    folder: Folder
    needs_locks: bool = field(default=True, compare=False)
    newest: dict[Path, int] = field(default_factory=dict, compare=False, repr=False)

    @property
    def reads_files_directly(self) -> bool:
        """Only on a disk."""
        return not is_stored(self.folder)

    @property
    def needs_transaction_ids(self) -> bool:
        """Leases on an object store can be lost."""
        return is_stored(self.folder) or not self.needs_locks

    @property
    def sql(self) -> str:
        """Name it by its path."""
        return f"delta.{quoted(str(self.folder))}"

    @property
    def exists(self) -> bool:
        """Look for a commit's file."""
        return any((self.folder / "_delta_log").glob("[0-9]*.json"))

    @property
    def id(self) -> str | None:
        """Read it from the first commit."""
        return created_id(self.folder)

    def entries(self, up_to: int | None = None) -> Iterator[Entry]:
        """Read the commits' files."""
        files = files_of(self.folder, self.newest)
        return (file for file in files if up_to is None or file.version <= up_to)

    def open(self, reader: _Reader) -> DataFrame:
        """Load the path."""
        return reader.load(str(self.folder))

    def follow(self, reader: DataStreamReader, *, max_bytes: int | None, idle: bool) -> DataFrame:
        """Follow the table's files."""
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
        """Create it by a statement, whose metadata is a setting of a session of its own."""
        from pyspark.sql.utils import is_remote  # noqa: PLC0415

        from tidelake.spark.engine import with_settings  # noqa: PLC0415

        # What is left of a creation that was cut off is a table to Spark's catalog, not to a
        # writer.
        was_begun = (self.folder / "_delta_log").exists()
        if not (was_begun or is_remote()):
            listed = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
            comment = f"COMMENT {sql_text(description)}" if description else ""
            apart = _sibling(spark)
            with _ONE_AT_A_TIME, with_settings(apart, {USER_METADATA: metadata}):
                if apart.conf.get(USER_METADATA, None) == metadata:
                    apart.sql(
                        f"CREATE TABLE {self.sql} ({schema.toDDL()}) USING delta "
                        f"{comment} TBLPROPERTIES ({listed})"
                    )
                    return
        # A session that takes no settings: a writer carries the metadata, the next run describes.
        self.save(no_rows(spark, schema), {"userMetadata": metadata, **properties}, "error", "")

    def save(self, rows: DataFrame, options: Mapping[str, str], mode: Mode, where: str) -> None:
        """Save to the path."""
        only = {"replaceWhere": where} if where else {}
        rows.write.format("delta").mode(mode).options(**options, **only).save(str(self.folder))


@functools.lru_cache(maxsize=4)
def _sibling(spark: SparkSession) -> SparkSession:
    """Keep a session for creating tables, so that nobody else commits under its metadata."""
    return spark.newSession()


def no_rows(spark: SparkSession, schema: StructType) -> DataFrame:
    """Make a frame without a row."""
    from pyspark.sql import functions as F  # noqa: PLC0415
    from pyspark.sql.utils import is_remote  # noqa: PLC0415

    if is_remote():
        # A type that a client names says the collation of each text, and with that in a table's
        # schema other readers of Delta give up.
        return spark.createDataFrame([], schema)
    # Not from a Python list, which would start a Python worker here.
    return spark.range(0).select(
        *[
            F.lit(None).cast(field.dataType).alias(field.name, metadata=field.metadata)
            for field in schema.fields
        ]
    )


def sql_text(words: str) -> str:
    """Write a text in Spark SQL."""
    return "'" + words.replace("\\", "\\\\").replace("'", "\\'") + "'"


@dataclass(frozen=True)
class Catalog:
    """A catalog, whose schemas are the layers; a Spark session reaches its tables.

    ``histories`` has the commits that are known, by table and version. A commit never changes, so
    later questions ask Spark for the newest few alone.
    """

    name: str
    session: Callable[[], SparkSession] = field(compare=False, repr=False)
    histories: dict[str, dict[int, HistoryEntry]] = field(
        default_factory=dict, compare=False, repr=False
    )

    def layers(self) -> frozenset[str]:
        """List the schemas that it has."""
        found = self.session().sql(f"SHOW SCHEMAS IN {quoted(self.name)}").collect()
        return frozenset(str(row[0]) for row in found)

    def schema(self, layer: str) -> str:
        """Name a layer's schema in SQL."""
        return f"{quoted(self.name)}.{quoted(layer)}"


@dataclass(frozen=True)
class CatalogStore(TableStore):
    """A table that is a name in a catalog; its files are not to be touched."""

    catalog: Catalog
    schema: str
    table: str

    takes_whole_commits = True
    is_created_first = True
    folder = None

    @property
    def sql(self) -> str:
        """Name it."""
        return f"{self.catalog.schema(self.schema)}.{quoted(self.table)}"

    @property
    def exists(self) -> bool:
        """Ask the catalog."""
        return self.catalog.session().catalog.tableExists(self.sql)

    @property
    def id(self) -> str | None:
        """Ask Delta; None where the table does not exist."""
        from delta.tables import DeltaTable  # noqa: PLC0415
        from pyspark.errors import AnalysisException  # noqa: PLC0415

        try:
            detail = DeltaTable.forName(self.catalog.session(), self.sql).detail()
            return str(detail.select("id").collect()[0]["id"])
        except AnalysisException:
            return None

    def entries(self, up_to: int | None = None) -> Iterator[Entry]:
        """Ask for the history; what is known of older commits is not asked for again."""
        known = self.catalog.histories.get(self.sql, {})
        if up_to is None or up_to not in known:
            known = self._refreshed()
        wanted = [version for version in known if up_to is None or version <= up_to]
        return iter([known[version] for version in sorted(wanted, reverse=True)])

    def _refreshed(self) -> dict[int, HistoryEntry]:
        """Bring what is known of the table to what it is now."""
        newest = _asked(self, _NEWEST)
        known = self.catalog.histories.get(self.sql, {})
        # One commit, and not that of a table made anew by the same name.
        goes_on = bool(newest) and known.get(newest[-1].version) == newest[-1]
        # From the first commit on, or from one that is known: nothing is missing in between.
        whole = not newest or newest[-1].version == 0 or goes_on
        found = {one.version: one for one in (newest if whole else _asked(self, None))}
        if goes_on:
            found = {**known, **found}
        self.catalog.histories[self.sql] = found
        return found

    def open(self, reader: _Reader) -> DataFrame:
        """Read it by its name."""
        return reader.table(self.sql)

    def follow(self, reader: DataStreamReader, *, max_bytes: int | None, idle: bool) -> DataFrame:
        """Follow the change feed; it fails at a start behind the newest version.

        A batch takes all commits that there are. Any limit may fall between two files of one
        commit, and nobody could tell there which files lie before it.
        """
        # Without a word Delta limits a batch to a thousand files.
        reader = reader.option("maxFilesPerTrigger", _ALL_FILES)
        return self.open(reader) if idle else _inserted(self.open(reader.option(_FEED, True)))

    def inserted(self, reader: DataFrameReader, first: int, last: int) -> DataFrame:
        """Read the rows that the commits from one version to another brought."""
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
        """Make a managed table; its first commit can carry no metadata."""
        writer = no_rows(spark, schema).writeTo(self.sql).using("delta")
        for key, value in properties.items():
            writer = writer.tableProperty(key, value)
        writer.create()

    def save(self, rows: DataFrame, options: Mapping[str, str], mode: Mode, where: str) -> None:
        """Save under the name."""
        if mode == "overwrite":
            from pyspark.sql import functions as F  # noqa: PLC0415

            # `saveAsTable` would make another table, without this one's properties.
            rows.writeTo(self.sql).options(**options).overwrite(F.expr(where or "true"))
        else:
            rows.write.format("delta").mode(mode).options(**options).saveAsTable(self.sql)


def _inserted(changes: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: PLC0415

    return changes.where(F.col("_change_type") == "insert").drop(*_OF_THE_FEED)


# How many commits are asked for before all are: most questions come after one or two more.
_NEWEST = 8
_WRITES = ("WRITE", "STREAMING UPDATE")
# Move or describe rows, and change none.
_REARRANGES = frozenset(
    [
        *("OPTIMIZE", "AUTO COMPACTION", "REORG", "VACUUM START", "VACUUM END", "CREATE TABLE"),
        *("ADD COLUMNS", "CHANGE COLUMN", "RENAME COLUMN", "DROP COLUMNS", "CLUSTER BY"),
        *("SET TBLPROPERTIES", "UNSET TBLPROPERTIES", "UPGRADE PROTOCOL", "DROP FEATURE"),
        *("ADD DELETION VECTOR TOMBSTONES", "COMPUTE STATS", "ANALYZE TABLE", "SET OWNER"),
        *("CHANGE DATA CAPTURE", "MANUAL UPDATE STATS"),
    ]
)
_TAKEN_OUT = (
    *("numRemovedFiles", "numDeletionVectorsAdded", "numDeletionVectorsUpdated"),
    *("numTargetFilesRemoved", "numTargetDeletionVectorsAdded"),
    "numTargetDeletionVectorsUpdated",
)
_COLUMNS = ("version", "operation", "operationParameters", "operationMetrics", "userMetadata")


@dataclass(frozen=True)
class HistoryEntry:
    """A commit, by what a catalog's history says of it."""

    version: int
    info: Info

    def added(self) -> list[Added]:
        """Give what it brought as one sum; streams take a commit whole.

        Delta counts a file without a row that it then leaves out, so the rows decide. Where it
        counted nothing, something may have come.
        """
        told = self.info.metrics
        if self.info.operation in _REARRANGES or (told and not self._number("numOutputRows")):
            return []
        size = self._number("numOutputBytes", "numTargetBytesAdded")
        return [Added(self._number("numOutputRows"), size)]

    def takes_out(self) -> bool:
        """Tell whether it took rows out, or put others in their place.

        Where Delta counted nothing, that is taken to be so for all but plain appends.
        """
        info = self.info
        if info.operation in _REARRANGES:
            return False
        if info.operation in _WRITES and info.parameters.get("mode", "Append") == "Append":
            return False
        return not info.metrics or any(self._number(name) for name in _TAKEN_OUT)

    def _number(self, *names: str) -> int:
        metrics = self.info.metrics
        return next((int(metrics[name]) for name in names if name in metrics), 0)


def _asked(table: CatalogStore, limit: int | None) -> list[HistoryEntry]:
    """Ask for the newest commits, newest first; none where the table does not exist."""
    from delta.tables import DeltaTable  # noqa: PLC0415
    from pyspark.errors import AnalysisException  # noqa: PLC0415
    from pyspark.sql import functions as F  # noqa: PLC0415

    session = table.catalog.session()
    try:
        delta = DeltaTable.forName(session, table.sql)
        history = delta.history() if limit is None else delta.history(limit)
        rows = history.select(*_COLUMNS, F.unix_micros("timestamp").alias("at")).collect()
    except AnalysisException:
        # Told apart only now: most tables that are asked for exist.
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
