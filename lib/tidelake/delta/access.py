"""Read tables with Spark, from folders under a root or from a catalog."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from threading import Thread

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.types import StructType

from tidelake.config.environment import on_databricks
from tidelake.delta.positions import Position, TableChange, added_between, files_between
from tidelake.delta.store import CatalogTable, details
from tidelake.delta.tables import Table
from tidelake.folders import Folder, as_pattern
from tidelake.spark.engine import REFUSED, runs_in_process, with_settings
from tidelake.spark.tuning import OLD_VERSION_SETTINGS

# The columns that the change feed adds.
_FEED_COLUMNS = ("_change_type", "_commit_version", "_commit_timestamp")
_FEED = "readChangeFeed"
_ALL_FILES = (1 << 31) - 1
# The name of the threads of `ask_ahead`.
ASKING_AHEAD = "ask-ahead"
# The property of a table in which rows may be hidden by a deletion vector, now or once.
DELETION_VECTORS = "delta.feature.deletionVectors"
# The row of DESCRIBE TABLE EXTENDED in Unity Catalog: "ENABLE (inherited from METASTORE m)".
_PREDICTIVE = "Predictive Optimization"


def load(spark: SparkSession, table: Table, *, version: int | None = None) -> DataFrame:
    """Read the current or a given version of a table."""
    reader = spark.read.format("delta")
    if version is not None:
        reader = reader.option("versionAsOf", version)
    return table.open(reader)


def load_old(spark: SparkSession, table: Table, version: int) -> DataFrame:
    """Read a version of a table, however old, if its files are still there."""
    with _old_versions(spark):
        return load(spark, table, version=version)


def has_files(spark: SparkSession, table: Table, version: int) -> bool:
    """Return whether all data files of a version are still there.

    True of files that cannot be looked at: in a catalog, and on an object store.
    """
    if not table.reads_files_directly:
        return True
    files = load_old(spark, table, version).inputFiles()
    # Delta gives them as Hadoop writes a path: with a scheme, and nothing in it encoded.
    on_disk = (re.sub("^file:/*", "/", file) for file in files if file.startswith("file:"))
    return all(map(os.path.exists, on_disk))


@contextmanager
def _old_versions(spark: SparkSession) -> Iterator[None]:
    """Let the frames that are made in the block read versions of any age.

    Through Spark Connect a frame is analyzed when it is used, so the session keeps the settings.
    Where the compute refuses them, Delta refuses the versions that are older than its default.
    """
    if runs_in_process():
        with with_settings(spark, OLD_VERSION_SETTINGS):
            yield
        return
    with suppress(*REFUSED):
        for key, value in OLD_VERSION_SETTINGS.items():
            spark.conf.set(key, value)
    yield


def follow(
    spark: SparkSession, table: Table, *, max_bytes: int | None, idle: bool = False
) -> DataFrame:
    """Read an append-only table as a stream, from its first commit on.

    A micro-batch reads at most ``max_bytes`` compressed bytes, except in a catalog; None for no
    limit. ``idle`` says that all rows have been read: a change feed would fail there, because it
    cannot start after the newest version.
    """
    reader = spark.readStream.format("delta").option("startingVersion", 0)
    if not isinstance(table, CatalogTable):
        limit = {} if max_bytes is None else {"maxBytesPerTrigger": max_bytes}
        return table.open(reader.options(**limit))
    # A limit could end a batch between two files of one commit, and the history does not say which
    # files come first. Delta's default limit is a thousand files a batch.
    reader = reader.option("maxFilesPerTrigger", _ALL_FILES)
    return table.open(reader) if idle else _inserted(table.open(reader.option(_FEED, True)))


def detail(spark: SparkSession, table: Table) -> Row:
    """Read a table's Delta detail: id, properties, features, files, clustering."""
    return spark.sql(f"DESCRIBE DETAIL {table.sql}").collect()[0]


def ask_ahead(ask: Callable[[], object]) -> None:
    """Ask Delta about tables in a thread, so that their state is reconstructed when it is needed.

    Errors are ignored: the batch that reads the tables will raise the same. The thread has none of
    Spark's local properties, since its jobs do not belong to a batch.
    """

    def quietly() -> None:
        with suppress(Exception):
            ask()

    Thread(target=quietly, daemon=True, name=ASKING_AHEAD).start()


def properties(spark: SparkSession, table: Table) -> dict[str, str]:
    """Read a table's properties, including features, without its list of files."""
    return {
        row["key"]: row["value"] for row in spark.sql(f"SHOW TBLPROPERTIES {table.sql}").collect()
    }


def optimized_schemas(spark: SparkSession, tables: Iterable[Table]) -> list[str]:
    """List the schemas, in SQL, whose tables Databricks may compact and vacuum at any time.

    That is predictive optimization. Where Databricks could be the engine and does not say whether
    it is on, it counts as on.
    """
    may_be_on = on_databricks() or not runs_in_process()
    found = set()
    for table in tables:
        if isinstance(table, CatalogTable):
            stated = details(spark, table).get(_PREDICTIVE)
            if may_be_on if stated is None else not stated.startswith("DISABLE"):
                found.add(table.catalog.schema(table.schema))
    return sorted(found)


def read_between(
    spark: SparkSession, table: Table, after: Position, until: Position
) -> DataFrame | None:
    """Read the rows of an append-only table between two positions; None if there are none.

    The positions may be of any age, as in :func:`load_old`.
    """
    if isinstance(table, CatalogTable):
        if not added_between(table, after, until).rows:
            return None
        reader = spark.read.format("delta").option(_FEED, True).option("startingVersion", after[0])
        with _old_versions(spark):
            return _inserted(table.open(reader.option("endingVersion", until[0] - 1)))
    files = files_between(table, after, until)
    return read_parquet(spark, files, load(spark, table).schema) if files else None


def read_parquet(
    spark: SparkSession, paths: Iterable[Folder | str], schema: StructType | str
) -> DataFrame:
    """Read Parquet files or folders; Spark would read their paths as patterns."""
    return spark.read.schema(schema).parquet(*map(as_pattern, paths))


def changed_rows(
    spark: SparkSession, table: Table, change: TableChange
) -> tuple[DataFrame, DataFrame]:
    """Read the rows before and after a version that may differ: those in both are unchanged.

    Each frame has the columns that the table had at that time.
    """
    version = change.version
    reader = spark.read.format("delta").option(_FEED, True).option("startingVersion", version)
    with _old_versions(spark):
        if not change.is_fed:
            return load(spark, table, version=version - 1), load(spark, table, version=version)
        rows = table.open(reader.option("endingVersion", version))
    old = rows.where("_change_type IN ('delete', 'update_preimage')")
    new = rows.where("_change_type IN ('insert', 'update_postimage')")
    return old.drop(*_FEED_COLUMNS), new.drop(*_FEED_COLUMNS)


def _inserted(changes: DataFrame) -> DataFrame:
    return changes.where("_change_type = 'insert'").drop(*_FEED_COLUMNS)
