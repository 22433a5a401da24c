"""Where tables are: in folders on a disk, in folders on an object store, under names in a catalog.

A lake decides once which store its tables have. Everything else asks the store, for what it can do
or to do it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal, TypeVar

from tidelake.config.types import quoted
from tidelake.delta.log import Entry, files_of, first_id
from tidelake.folders import Folder, is_stored

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamReader

    _Reader = TypeVar("_Reader", DataFrameReader, DataStreamReader)

Mode = Literal["append", "overwrite", "error"]
# What the change feed of a table adds to its columns.
_OF_THE_FEED = ("_change_type", "_commit_version", "_commit_timestamp")
_FEED = "readChangeFeed"
_ALL_FILES = (1 << 31) - 1


class TableStore(ABC):
    """One table, where it is stored.

    Attributes:
        reads_files_directly: Whether opening a data file by its path costs nothing.
        takes_whole_commits: Whether a stream takes commits whole, from the table's change feed.
        is_created_first: Whether a table is to exist before the first commit with metadata.
        needs_transaction_ids: Whether two writers may append the same batch: locks may be missing,
            or lost while their holder stands still, and Delta then has to refuse the second append.
        folder: Where the files are; None where nobody may touch them.
    """

    reads_files_directly: ClassVar[bool] = False
    takes_whole_commits: ClassVar[bool] = False
    is_created_first: ClassVar[bool] = False
    needs_transaction_ids: bool
    folder: Folder | None

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
    def entries(self, up_to: int | None) -> Iterator[Entry]:
        """Yield the log's commits up to a version, newest first; none for no table."""

    @abstractmethod
    def open(self, reader: _Reader) -> DataFrame:
        """Let a reader of Spark's read the table."""

    @abstractmethod
    def follow(self, reader: DataStreamReader, *, max_bytes: int | None, idle: bool) -> DataFrame:
        """Let a reader follow the table; see :func:`tidelake.delta.access.follow`."""

    @abstractmethod
    def save(self, rows: DataFrame, options: Mapping[str, str], mode: Mode, where: str) -> None:
        """Write rows in one commit.

        Args:
            rows: What to write.
            options: Of the writer.
            mode: ``overwrite``: the rows replace those that the table has; ``error``: they make it.
            where: SQL; an overwrite replaces only the rows for which it holds. Empty: all rows.
        """


@dataclass(frozen=True)
class FolderStore(TableStore):
    """A table that is a folder."""

    folder: Folder
    needs_transaction_ids: bool = field(default=False, compare=False)

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
        return first_id(self.folder)

    def entries(self, up_to: int | None) -> Iterator[Entry]:
        """Read the commits' files."""
        files = files_of(self.folder)
        return (file for file in files if up_to is None or file.version <= up_to)

    def open(self, reader: _Reader) -> DataFrame:
        """Load the path."""
        return reader.load(str(self.folder))

    def follow(self, reader: DataStreamReader, *, max_bytes: int | None, idle: bool) -> DataFrame:
        """Follow the table's files."""
        if max_bytes is not None:
            reader = reader.option("maxBytesPerTrigger", max_bytes)
        return self.open(reader)

    def save(self, rows: DataFrame, options: Mapping[str, str], mode: Mode, where: str) -> None:
        """Save to the path."""
        only = {"replaceWhere": where} if where else {}
        rows.write.format("delta").mode(mode).options(**options, **only).save(str(self.folder))


@dataclass(frozen=True)
class DiskStore(FolderStore):
    """A table that is a folder on a disk."""

    reads_files_directly = True


@dataclass(frozen=True)
class ObjectStore(FolderStore):
    """A table that is a folder on an object store."""

    needs_transaction_ids: bool = field(default=True, compare=False)


def folder_store(folder: Folder, *, needs_locks: bool = True) -> FolderStore:
    """Give the store of a table in a folder.

    Args:
        folder: The table's.
        needs_locks: Whether its writers are refused where they get no lock.
    """
    if is_stored(folder):
        return ObjectStore(folder)
    return DiskStore(folder, needs_transaction_ids=not needs_locks)


@dataclass(frozen=True)
class Catalog:
    """A catalog, whose schemas are the layers.

    Attributes:
        name: What it is called.
        session: Gives the Spark session through which its tables are reached.
    """

    name: str
    session: Callable[[], SparkSession] = field(compare=False, repr=False)

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
    needs_transaction_ids = True
    folder = None

    def __str__(self) -> str:
        """Write the name for SQL."""
        return self.sql

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
        from tidelake.delta.history import id_of  # noqa: PLC0415  imports Spark

        return id_of(self)

    def entries(self, up_to: int | None) -> Iterator[Entry]:
        """Ask for the history; what is known of older commits is not asked for again."""
        from tidelake.delta.history import commits_of  # noqa: PLC0415  imports Spark

        return commits_of(self, up_to)

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
