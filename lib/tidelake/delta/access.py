"""Read and write tables with Spark: by their folder under a root, by their name in a catalog."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeVar

from pyspark.sql import DataFrame, DataFrameReader, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamReader

from tidelake.delta.positions import Position, files_between, rows_between
from tidelake.delta.tables import CatalogName, Table

Mode = Literal["append", "overwrite", "error"]
# What the change feed of a table adds to its columns.
_OF_THE_FEED = ("_change_type", "_commit_version", "_commit_timestamp")
_FEED = "readChangeFeed"
_Reader = TypeVar("_Reader", DataFrameReader, DataStreamReader)
_ALL_FILES = (1 << 31) - 1
# Of a table whose change feed is read.
FEED_PROPERTY = "delta.enableChangeDataFeed"


def load(spark: SparkSession, table: Table, *, version: int | None = None) -> DataFrame:
    """Read a table as it is, or as a version of it was."""
    reader = spark.read.format("delta")
    if version is not None:
        reader = reader.option("versionAsOf", version)
    return _read(reader, table)


def follow(
    spark: SparkSession, table: Table, *, max_bytes: int | None, idle: bool = False
) -> DataFrame:
    """Read a table that only grows as a stream, from its first commit on.

    In a catalog a batch takes all commits that there are. Any limit may fall between two files of
    one commit, of the change feed too, and nobody could tell there which files lie before it.

    Args:
        spark: The session.
        table: Which.
        max_bytes: How many compressed bytes a batch takes at most; None for no limit. Not heeded in
            a catalog.
        idle: Whether the reader has taken all that there is. A change feed fails at a start behind
            the newest version; the ordinary stream does not.
    """
    reader = spark.readStream.format("delta").option("startingVersion", 0)
    if isinstance(table.place, CatalogName):
        # Without a word Delta limits a batch to a thousand files.
        reader = reader.option("maxFilesPerTrigger", _ALL_FILES)
        return _read(reader, table) if idle else _inserted(_read(reader.option(_FEED, True), table))
    if max_bytes is not None:
        reader = reader.option("maxBytesPerTrigger", max_bytes)
    return _read(reader, table)


def inserted_between(spark: SparkSession, table: Table, first: int, last: int) -> DataFrame:
    """Read the rows that some commits of a table in a catalog brought.

    Args:
        spark: The session.
        table: One whose change feed is kept.
        first: The first of the versions.
        last: The last of them.
    """
    reader = spark.read.format("delta").option(_FEED, True)
    return _inserted(
        _read(reader.option("startingVersion", first).option("endingVersion", last), table)
    )


def detail(spark: SparkSession, table: Table) -> Row:
    """Read what Delta says of a table: id, properties, features, files, clustering."""
    return spark.sql(f"DESCRIBE DETAIL {table.sql}").collect()[0]


def create(rows: DataFrame, table: Table, properties: Mapping[str, str]) -> None:
    """Make a managed table in a catalog with some rows; its first commit can carry no note.

    Under a root the first rows that are saved make a table.
    """
    writer = rows.writeTo(table.sql).using("delta")
    for key, value in properties.items():
        writer = writer.tableProperty(key, value)
    writer.create()


def save(
    rows: DataFrame,
    table: Table,
    options: Mapping[str, str],
    mode: Mode = "append",
    *,
    where: str = "",
) -> None:
    """Write rows into a table in one commit.

    Args:
        rows: What to write.
        table: Where to; one in a catalog exists already.
        options: Of the writer.
        mode: ``overwrite``: the rows take the place of those that the table has;
            ``error``: they make it.
        where: SQL; an overwrite replaces only the rows for which it holds. Empty: all rows.
    """
    if not isinstance(table.place, CatalogName):
        only = {"replaceWhere": where} if where else {}
        rows.write.format("delta").mode(mode).options(**options, **only).save(str(table.place))
    elif mode == "overwrite":
        # `saveAsTable` would make another table, without this one's properties.
        rows.writeTo(table.sql).options(**options).overwrite(F.expr(where or "true"))
    else:
        rows.write.format("delta").mode(mode).options(**options).saveAsTable(table.sql)


def _read(reader: _Reader, table: Table) -> DataFrame:
    if isinstance(table.place, CatalogName):
        return reader.table(str(table.place))
    return reader.load(str(table.place))


def _inserted(changes: DataFrame) -> DataFrame:
    return changes.where(F.col("_change_type") == "insert").drop(*_OF_THE_FEED)


def rows_that_came(
    spark: SparkSession, table: Table, after: Position, until: Position
) -> DataFrame | None:
    """Read the rows between two positions of a table that only grows.

    Args:
        spark: The session.
        table: Bronze, the requeue or silver.
        after: Where the reader stood.
        until: Where it stands now; in a catalog the end of a commit, as ``after`` is.

    Returns:
        The table's columns; None where no row came in.
    """
    if isinstance(table.place, CatalogName):
        if not rows_between(table, after, until):
            return None
        return inserted_between(spark, table, after[0], until[0] - 1)
    files = [str(file) for file in files_between(table, after, until)]
    if not files:
        return None
    return spark.read.schema(load(spark, table).schema).parquet(*files)
