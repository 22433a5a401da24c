"""The two kinds of tables: folders on a disk or an object store, or names in a catalog.

A lake chooses the kind of its tables once, and every write is a method of the table. The files of a
catalog table are off limits: its commits are read from Spark's table history, which has the rows
and bytes that each commit added, but not the files.

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
from typing import TYPE_CHECKING, Literal, TypeVar

from tidelake.delta.log import USER_METADATA, Entry, HistoryEntry, Info, created_id, files_of
from tidelake.folders import Folder, is_stored
from tidelake.instants import from_micros
from tidelake.names import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamReader
    from pyspark.sql.types import StructType

    _Reader = TypeVar("_Reader", DataFrameReader, DataStreamReader)

Mode = Literal["append", "overwrite", "error"]
_COLUMNS = (
    *("version", "operation", "operationParameters", "operationMetrics", "userMetadata"),
    "isBlindAppend",
)
# The commits requested before the whole history is: usually only one or two are new.
_NEWEST = 8
# Concurrent pipelines in one session share the sibling session whose metadata setting is changed.
_CREATE_LOCK = threading.Lock()


@dataclass(frozen=True)
class _NamedTable(ABC):
    """A table by its logical name, such as ``gold.sales``.

    Both kinds have capability flags: ``takes_whole_commits`` (a stream reads whole
    commits, from the change feed), ``is_created_first`` (it must be created before the first commit
    with metadata), ``reads_files_directly`` (opening a data file by its path costs nothing) and
    ``needs_transaction_ids`` (locks may be missing, lost or released too early: Delta must refuse
    duplicate appends).
    """

    name: str

    @property
    def bare(self) -> str:
        """The name without the layer."""
        return self.name.partition(".")[2]

    @property
    @abstractmethod
    def sql(self) -> str:
        """The table's identifier in Spark SQL."""

    def merge(self, rows: DataFrame, *, on: str, clauses: str) -> None:
        """Merge rows (alias ``s``) into the table (alias ``t``), with the session's metadata."""
        # MERGE needs a named source; the name is unique because sessions are shared.
        name = f"tidelake_{uuid.uuid4().hex}"
        rows.createOrReplaceTempView(name)
        try:
            rows.sparkSession.sql(f"MERGE INTO {self.sql} AS t USING {name} AS s ON {on} {clauses}")
        finally:
            rows.sparkSession.catalog.dropTempView(name)


@dataclass(frozen=True)
class FolderTable(_NamedTable):
    """A table in a folder; with ``needs_locks``, writers must hold a lock.

    ``newest``, shared by the tables of a lake, has the newest version seen in each log. It is only
    a starting point for the next listing; versions are always read from the log.
    """

    path: Folder
    needs_locks: bool = field(default=True, compare=False)
    newest: dict[Path, int] = field(default_factory=dict, compare=False, repr=False)

    takes_whole_commits = False
    is_created_first = False

    @property
    def reads_files_directly(self) -> bool:
        """True only on a disk."""
        return not is_stored(self.path)

    @property
    def needs_transaction_ids(self) -> bool:
        """True on an object store, whose leases can be lost, without locks, and on Spark Connect.

        There the client holds the lock, and the server writes; it goes on if the client is killed.
        """
        from pyspark.sql.utils import is_remote  # noqa: PLC0415

        return is_stored(self.path) or not self.needs_locks or is_remote()

    @property
    def sql(self) -> str:
        """The table's path in SQL."""
        return f"delta.{quoted(str(self.path))}"

    @property
    def exists(self) -> bool:
        """Whether the log has a commit file."""
        return any((self.path / "_delta_log").glob("[0-9]*.json"))

    @property
    def id(self) -> str | None:
        """The Delta table id from creation; None where the log no longer has it."""
        return created_id(self.path)

    def entries(self, up_to: int | None = None) -> Iterator[Entry]:
        """Yield the commits up to a version, newest first; none for a missing table."""
        files = files_of(self.path, self.newest)
        return (file for file in files if up_to is None or file.version <= up_to)

    def open(self, reader: _Reader) -> DataFrame:
        """Load the path."""
        return reader.load(str(self.path))

    def create(
        self,
        spark: SparkSession,
        schema: StructType,
        properties: Mapping[str, str],
        metadata: str = "",
        description: str = "",
    ) -> None:
        """Create an empty table by SQL, with the metadata set in a session used only for this."""
        from pyspark.sql.utils import is_remote  # noqa: PLC0415

        from tidelake.spark.engine import with_settings  # noqa: PLC0415

        # CREATE TABLE fails on the remains of an interrupted creation; a DataFrame writer does not.
        if not ((self.path / "_delta_log").exists() or is_remote()):
            comment = f"COMMENT {sql_text(description)}" if description else ""
            sibling = _sibling(spark)
            with _CREATE_LOCK, with_settings(sibling, {USER_METADATA: metadata}):
                if sibling.conf.get(USER_METADATA, None) == metadata:
                    sibling.sql(
                        f"CREATE TABLE {self.sql} ({schema.toDDL()}) USING delta "
                        f"{comment} TBLPROPERTIES ({sql_pairs(properties)})"
                    )
                    return
        # Without session settings a writer commits the metadata; the next run adds the comments.
        self.save(no_rows(spark, schema), {"userMetadata": metadata, **properties}, "error", "")

    def save(self, rows: DataFrame, options: Mapping[str, str], mode: Mode, where: str) -> None:
        """Write rows in one commit.

        ``overwrite`` replaces the rows that match ``where``, an SQL condition, or all rows if it is
        empty; ``error`` creates the table.
        """
        only = {"replaceWhere": where} if where else {}
        rows.write.format("delta").mode(mode).options(**options, **only).save(str(self.path))


@functools.lru_cache(maxsize=4)
def _sibling(spark: SparkSession) -> SparkSession:
    """Return a cached session only for creating tables, so no other commit gets its metadata."""
    from tidelake.spark.session import sibling_of  # noqa: PLC0415

    return sibling_of(spark)


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


def sql_pairs(entries: Mapping[str, str]) -> str:
    """Return properties or tags as Spark SQL sets them."""
    return ", ".join(f"{sql_text(key)} = {sql_text(value)}" for key, value in entries.items())


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

    def tables_in(self, layer: str) -> list[str]:
        """List the names of a layer's tables, without views; none where there is no schema."""
        if layer not in self.layers():
            return []
        session, schema = self.session(), self.schema(layer)
        views = {row["viewName"] for row in session.sql(f"SHOW VIEWS IN {schema}").collect()}
        tables = session.sql(f"SHOW TABLES IN {schema}").collect()
        return sorted({row["tableName"] for row in tables if not row["isTemporary"]} - views)


@dataclass(frozen=True)
class CatalogTable(_NamedTable):
    """A table in a catalog; its files must not be accessed."""

    catalog: Catalog
    schema: str
    table: str

    takes_whole_commits = True
    is_created_first = True
    reads_files_directly = False
    needs_transaction_ids = True

    @property
    def path(self) -> Folder:
        """A TypeError: the files of a catalog table must not be accessed."""
        raise TypeError(f"{self.name} is in a catalog and has no folder")

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
        from pyspark.errors import AnalysisException  # noqa: PLC0415

        try:
            detail = self.catalog.session().sql(f"DESCRIBE DETAIL {self.sql}").collect()
            return str(detail[0]["id"])
        except AnalysisException:
            return None

    def entries(self, up_to: int | None = None) -> Iterator[Entry]:
        """Yield the commits up to a version, newest first; cached ones are not requested again."""
        cached = self.catalog.histories.get(self.sql, {})
        if up_to is None or up_to not in cached:
            cached = self._refreshed()
        found = sorted(cached.items(), reverse=True)
        return (entry for version, entry in found if up_to is None or version <= up_to)

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

    def create(
        self,
        spark: SparkSession,
        schema: StructType,
        properties: Mapping[str, str],
        metadata: str = "",
        description: str = "",
    ) -> None:
        """Create a managed table; the commit metadata and the description are not written."""
        writer = no_rows(spark, schema).writeTo(self.sql).using("delta")
        for key, value in properties.items():
            writer = writer.tableProperty(key, value)
        writer.create()

    def save(self, rows: DataFrame, options: Mapping[str, str], mode: Mode, where: str) -> None:
        """Write rows in one commit; see :meth:`FolderTable.save`."""
        if mode == "overwrite":
            from pyspark.sql import functions as F  # noqa: PLC0415

            # `saveAsTable` would replace the table and lose its properties.
            rows.writeTo(self.sql).options(**options).overwrite(F.expr(where or "true"))
        else:
            rows.write.format("delta").mode(mode).options(**options).saveAsTable(self.sql)


def details(spark: SparkSession, table: _NamedTable) -> dict[str, str]:
    """Read what Spark says of a table or a view, by name; runs no Spark job."""
    rows = spark.sql(f"DESCRIBE TABLE EXTENDED {table.sql}").collect()
    return {row["col_name"]: row["data_type"] for row in rows}


def _history(table: CatalogTable, limit: int | None) -> list[HistoryEntry]:
    """Read the newest commits from Spark, newest first; none where the table does not exist."""
    from pyspark.errors import AnalysisException  # noqa: PLC0415

    session = table.catalog.session()
    newest = "" if limit is None else f" LIMIT {limit}"
    try:
        history = session.sql(f"DESCRIBE HISTORY {table.sql}{newest}")
        rows = history.selectExpr(*_COLUMNS, "unix_micros(timestamp)").collect()
    except AnalysisException:
        # Checked only on failure, because nearly all tables exist. Others may have made a table of
        # another kind in the schemas.
        if table.exists and details(session, table).get("Provider", "").lower() == "delta":
            raise
        return []
    entries = []
    for version, operation, parameters, metrics, metadata, adds_only, at in rows:
        written = from_micros(at)
        assert written is not None
        info = Info(written, operation, parameters or {}, metrics or {}, metadata, bool(adds_only))
        entries.append(HistoryEntry(int(version), info))
    return sorted(entries, key=lambda entry: entry.version, reverse=True)
