"""Run SQL on tables by logical name: with DuckDB on Delta tables, with Spark on a catalog.

A statement reads the current tables, given versions, or the consistent versions of an epoch. Under
a root it reads each table at one version, however often it names it.
"""

from __future__ import annotations

import functools
import itertools
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import duckdb
from duckdb_extensions import import_extension
from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import TimestampType
from sqlglot import transpile

from tidelake.delta.commit_metadata import Final
from tidelake.delta.log import last_commit, newest_version
from tidelake.delta.tables import Lake, Table
from tidelake.errors import DamagedError, MachineError, NotBuiltError, TidelakeError, UsageError
from tidelake.fingerprints import IN_SPARK
from tidelake.folders import Folder
from tidelake.instants import from_micros
from tidelake.ledger.statements import (
    DUCKDB,
    SPARK,
    cast,
    columns_for,
    dialect_of,
    known_tables,
    read_instead,
    tables_in,
)
from tidelake.object_store import duckdb_error, duckdb_secret
from tidelake.spark.engine import with_settings
from tidelake.spark.tuning import OLD_VERSION_SETTINGS
from tidelake.typed import runnable
from tidelake.visible import kind_of

_T = TypeVar("_T")
# DuckDB's COPY options by file extension. JSON files have one row per line.
_FORMATS = {".csv": "FORMAT csv, HEADER", ".parquet": "FORMAT parquet", ".json": "FORMAT json"}


@dataclass(frozen=True)
class Answer:
    """The columns and rows of a query, and the columns' types, in the words of its engine."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    types: tuple[str, ...] = ()

    def as_dicts(self) -> list[dict[str, Any]]:
        """Return each row as a dict; raise a UsageError if two columns have the same name."""
        self.refuse_same_names()
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]

    def refuse_same_names(self) -> None:
        """Raise a UsageError if two columns have the same name: one would hide the other."""
        if len(set(self.columns)) < len(self.columns):
            raise UsageError("two columns have the same name; rename one with AS.")


@dataclass(frozen=True)
class AnswerFile:
    """The output file of an answer: written atomically, replaced only with ``overwrite``."""

    file: Path
    overwrite: bool = False

    def __post_init__(self) -> None:
        """Raise a UsageError if the file cannot be written."""
        if self.file.suffix.lower() not in _FORMATS:
            raise UsageError(
                f"{self.file} must end in one of {', '.join(_FORMATS)}, which sets its format."
            )
        if not self.file.parent.is_dir():
            raise UsageError(f"the folder {self.file.parent} does not exist.")
        if self.file.is_dir():
            raise UsageError(f"{self.file} is a folder.")
        if self.file.exists() and not self.overwrite:
            raise UsageError(f"{self.file} already exists. Replace it with --overwrite.")


@dataclass(frozen=True)
class Epoch:
    """Consistent versions of tables, by logical name."""

    pipeline: str
    number: int
    closed_at: datetime
    versions: dict[str, int]

    def __str__(self) -> str:
        """Describe the epoch for a message."""
        return f"epoch {self.number} of {self.pipeline}, closed {self.closed_at:%Y-%m-%d %H:%M:%S}Z"


def ask(lake: Lake, sql: str, versions: Mapping[str, int] | None = None) -> Answer:
    """Run one trusted SELECT in DuckDB's dialect; raise a UsageError if it fails.

    ``versions`` is that of :func:`ask_for_user`.
    """
    wanted, pins = tables_in(sql, lake, trusted=True), versions or {}
    if lake.catalog is not None:
        return _ask_spark(lake, sql, wanted, pins, dialect=DUCKDB)
    # Create the views in a separate database, so that concurrent statements do not conflict.
    catalog = f"asked_{next(_numbers)}"
    with _instance().cursor() as connection:
        _prepare(connection, on_store=lake.is_on_object_store)
        connection.execute(f"ATTACH ':memory:' AS {catalog}")
        try:
            connection.execute(f"USE {catalog}")
            _create_views(connection, wanted, pins)
            return _answer(connection, sql, lake)
        finally:
            connection.execute("USE memory")
            connection.execute(f"DETACH {catalog}")


def first_rows(path: Folder, count: int) -> Any:
    """Return at most ``count`` rows of any Delta table, on a disk or an object store.

    They are those of the newest files in the log.

    Returns:
        A ``pyarrow.Table``. Its last column, ``filename``, is the file of each row.

    Raises:
        UsageError: The table cannot be read.
    """
    with _instance().cursor() as connection:
        _prepare(connection, on_store=(on_store := not isinstance(path, Path)))
        try:
            scan = "SELECT *, filename FROM delta_scan($1) LIMIT $2"
            with _stopped_by_interrupt(connection):
                return connection.execute(scan, [str(path), count]).to_arrow_table()
        except duckdb.Error as error:
            what, why = f"the Delta table {path} cannot be read", _first_line(error)
            stored = duckdb_error(error, what) if on_store else None
            raise stored or UsageError(f"{what}: {why}") from error


def ask_for_user(lake: Lake, sql: str, versions: Mapping[str, int] | None = None) -> Answer:
    """Run one untrusted SELECT, which can access only the tables that it names.

    The dialect is DuckDB's, or Spark's on a catalog. ``versions`` maps logical names to table
    versions; other tables are read in their newest version.

    Raises:
        UsageError: The statement is not a query, is refused, or fails.
    """
    if lake.catalog is not None:
        wanted = tables_in(sql, lake, dialect=SPARK)
        return _ask_spark(lake, sql, wanted, versions or {}, dialect=SPARK)
    with _for_user(lake, sql, versions or {}) as connection:
        return _answer(connection, sql, lake)


def write_for_user(
    lake: Lake, sql: str, target: AnswerFile, versions: Mapping[str, int] | None = None
) -> int:
    """Write the answer of :func:`ask_for_user` to a file, and return the number of rows.

    Raises:
        UsageError: As for :func:`ask_for_user`.
        TidelakeError: The file cannot be written.
        NotBuiltError: The tables are in a catalog.
    """
    if lake.catalog is not None:
        raise NotBuiltError("Writing an answer from a catalog into a file", "Ask Databricks SQL.")
    file = target.file
    part = file.with_name(f".{file.name}.part").absolute()
    path, suffix = str(part).replace("'", "''"), file.suffix.lower()
    # Of a run that was killed. DuckDB would write beside a file that exists, which is refused.
    part.unlink(missing_ok=True)
    try:
        with _for_user(lake, sql, versions or {}, writes=part) as connection:
            asked = connection.sql(sql)
            Answer(tuple(map(str.lower, asked.columns)), ()).refuse_same_names()
            asked.create_view("answer")
            view = connection.view("answer")
            columns = columns_for(suffix, view)
            copy = f"COPY (SELECT {columns} FROM answer) TO '{path}' ({_FORMATS[suffix]})"
            with _stopped_by_interrupt(connection):
                rows = int((connection.execute(copy).fetchone() or (0,))[0])
        part.replace(file)
    except duckdb.Error as error:
        if str(part) in str(error):
            raise TidelakeError(f"{file}: {_first_line(error)}") from error
        raise _refused(error, lake) from error
    finally:
        part.unlink(missing_ok=True)
    return rows


def ask_at_epoch(lake: Lake, sql: str) -> tuple[Answer, Epoch | None]:
    """Run one untrusted SELECT on the newest epoch that has all tables of the statement.

    The epoch is None if the statement names no table.

    Raises:
        UsageError: No epoch has all tables, or files of its versions are gone; or as for
            :func:`ask_for_user`.
    """
    return at_epoch(lake, sql, functools.partial(ask_for_user, lake, sql))


def at_epoch(
    lake: Lake, sql: str, read: Callable[[Mapping[str, int]], _T]
) -> tuple[_T, Epoch | None]:
    """Call ``read`` with the table versions of the epoch of :func:`ask_at_epoch`."""
    tables = tables_in(sql, lake, dialect=dialect_of(lake.catalog))
    names = {table.name for table in tables.values()}
    if not names:
        return read({}), None
    epoch = _epoch_of(lake, names)
    try:
        return read(epoch.versions), epoch
    except (UsageError, DamagedError) as error:
        # An IO error means a missing table file: the statement cannot name other files. Another
        # epoch would lack it too if the newest versions do.
        if not isinstance(error.__cause__, duckdb.IOException) or all(
            newest_version(lake.table(name)) == epoch.versions[name] for name in names
        ):
            raise
        pinned = ", ".join(f"version {epoch.versions[name]} of {name}" for name in sorted(names))
        raise UsageError(
            f"{epoch} can no longer be read ({pinned}): a file is gone, by VACUUM for example. "
            f"Close a new epoch with: {runnable('tidelake run', epoch.pipeline)}\n"
            f"DuckDB says: {str(error).splitlines()[0]}"
        ) from error


def _epoch_of(lake: Lake, names: Collection[str]) -> Epoch:
    """Find the newest epoch that has all tables; raise a UsageError if there is none."""
    # The ops tables describe the others, and are in no epoch.
    unpinned = sorted(name for name in names if name.startswith("ops."))
    if unpinned:
        raise UsageError(
            f"{', '.join(unpinned)} belongs to no epoch; query it without --consistent."
        )
    if found := _newest_epoch(lake, names):
        return found
    alone = [name for name in sorted(names) if _newest_epoch(lake, [name]) is None]
    commits = [last_commit(lake.table(name)) for name in alone or names]
    pipelines = {str(one.note.get("pipeline", "NAME")) if one else "NAME" for one in commits}
    runs = " and ".join(runnable("tidelake run", pipeline) for pipeline in sorted(pipelines))
    if alone:
        raise UsageError(f"no epoch holds {', '.join(alone)} yet. Close one with: {runs}")
    raise UsageError(
        f"{', '.join(sorted(names))} are in no common epoch: an epoch holds the tables of one "
        "pipeline and their inputs. Query them separately, or without --consistent; "
        f"tables of one pipeline get a common epoch with: {runs}"
    )


def _newest_epoch(lake: Lake, names: Collection[str]) -> Epoch | None:
    if not lake.epochs().exists:
        return None
    # These are names of existing tables, so they need no quoting.
    wanted = " AND ".join(f"versions['{name}'] IS NOT NULL" for name in names)
    query = (
        f"SELECT pipeline, epoch, closed_at, versions FROM {lake.epochs().name} "
        f"WHERE {wanted} ORDER BY closed_at DESC LIMIT 1"
    )
    return next((Epoch(*row) for row in ask(lake, query).rows), None)


@contextmanager
def _for_user(
    lake: Lake, sql: str, versions: Mapping[str, int], *, writes: Path | None = None
) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open a database that can only read a statement's tables and write one file."""
    wanted = tables_in(sql, lake)
    with _database() as connection:
        _prepare(connection, on_store=lake.is_on_object_store)
        _create_views(connection, wanted, versions)
        folders = [f"{table.path}/" for table in wanted.values()]
        connection.execute("SET allowed_directories = $1", [folders])
        connection.execute("SET allowed_paths = $1", [[str(writes)] if writes else []])
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
        yield connection


_numbers = itertools.count()


@functools.cache
def _spills() -> tempfile.TemporaryDirectory[str]:
    """Create the folder of what does not fit into memory, for this user only; deleted at exit."""
    return tempfile.TemporaryDirectory(prefix="tidelake-")


def _database() -> duckdb.DuckDBPyConnection:
    """Open a database that can read Delta tables; it spills to a folder of its own."""
    connection = duckdb.connect()
    import_extension("delta", con=connection)
    # By default it is in the working directory.
    connection.execute("SET temp_directory = $1", [f"{_spills().name}/{next(_numbers)}"])
    return connection


@functools.cache
def _instance() -> duckdb.DuckDBPyConnection:
    """Cache one database for trusted statements: its first access to a Delta table takes 0.2 s."""
    connection = _database()
    # Log files may be rewritten under the same names, which the cache would not detect.
    connection.execute("SET enable_external_file_cache = false")
    return connection


def _prepare(connection: duckdb.DuckDBPyConnection, *, on_store: bool) -> None:
    """Set the time zone to UTC, and the access keys if the tables are on an object store.

    Keys are in memory only and set each time: those of a role change every few hours.
    """
    connection.execute("SET TimeZone = 'UTC'")
    if not on_store:
        return
    try:
        import_extension("httpfs", con=connection)
    except ImportError as error:
        raise MachineError(
            "the DuckDB extension that reads object stores is not installed. "
            "Install it with: pip install 'tidelake[s3]'"
        ) from error
    connection.execute(*duckdb_secret())


def _create_views(
    connection: duckdb.DuckDBPyConnection, tables: Mapping[str, Table], versions: Mapping[str, int]
) -> None:
    """Create views with the logical names; raise a UsageError for an unreadable version."""
    # Each reference to a view reads the log anew, and a run may commit between two of them.
    pins = {
        table.name: versions[table.name] if table.name in versions else _newest(table)
        for table in tables.values()
    }
    for view, table in tables.items():
        layer, name = view.split(".")
        connection.execute(f'CREATE SCHEMA IF NOT EXISTS "{layer}"')
        path = str(table.path).replace("'", "''")
        version = pins[table.name]
        pin = "" if version is None else f", version = {version}"
        kept = _final_condition(view, table, version)
        scan = f"SELECT * FROM delta_scan('{path}'{pin}) WHERE {kept}"
        try:
            connection.execute(f'CREATE VIEW "{layer}"."{name}" AS {scan}')
        except duckdb.Error as error:
            what, why = f"{table.name} cannot be read", _first_line(error)
            if not isinstance(table.path, Path) and (stored := duckdb_error(error, what)):
                raise stored from error
            # An older version may be cleaned up.
            is_current = version in (None, _newest(table))
            if is_current and isinstance(error, duckdb.IOException):
                raise DamagedError(what, why) from error
            raise UsageError(f"{what}: {why}") from error


def _newest(table: Table) -> int | None:
    """Return a table's newest version; None if it has just been deleted."""
    version = newest_version(table)
    return None if version < 0 else version


def _final_condition(view: str, table: Table, version: int | None) -> str:
    """Return a view's row condition: a ``__final`` view has only the rows final in a version."""
    if view == table.name:
        return "true"
    final = Final.of(last_commit(table, up_to=version))
    if final is None:
        raise UsageError(
            f"{view} does not exist: the rows of {table.name} never become final, or no batch has "
            f"been committed since its pipeline was updated. Read {table.name} itself."
        )
    return final.condition()


def _answer(connection: duckdb.DuckDBPyConnection, sql: str, lake: Lake) -> Answer:
    try:
        with _stopped_by_interrupt(connection):
            result = connection.execute(sql)
            columns = tuple(column[0] for column in result.description or [])
            types = tuple(str(column[1]) for column in result.description or [])
            if any("INTERVAL" in kind for kind in types):
                # As Python's timedelta a month would be 30 days.
                fields = (cast(f"#{n}", kind, "INTERVAL") for n, kind in enumerate(types, 1))
                rows = connection.sql(sql).project(", ".join(fields)).fetchall()
            else:
                rows = result.fetchall()
            return Answer(columns, tuple(rows), types)
    except duckdb.Error as error:
        raise _refused(error, lake) from error
    except (OverflowError, ValueError) as error:
        raise UsageError("a value is too large to show; cast its column to VARCHAR.") from error


def _refused(error: duckdb.Error, lake: Lake) -> TidelakeError:
    """Return the error of a statement: a DamagedError if a file of a table cannot be read."""
    why, is_io = _first_line(error), isinstance(error, duckdb.IOException)
    if _spills().name in why:
        return MachineError(
            f"the statement does not fit into memory, and DuckDB cannot spill it to disk: {why}. "
            "Free disk space, or set TMPDIR to a folder that has more."
        )
    on_store = lake.is_on_object_store
    if is_io and on_store and (stored := duckdb_error(error, "the statement stopped")):
        return stored
    # A truncated file is invalid input, as an argument in the statement may be.
    if is_io or isinstance(error, duckdb.InvalidInputException):
        named = [one.name for one in lake.existing() if f"{one.path}/" in why]
        # The statement cannot name other files.
        if named or (is_io and not on_store):
            return DamagedError(f"{named[0] if named else 'a file of a table'} cannot be read", why)
    return UsageError(f"{why}\n{known_tables(lake)}")


@contextmanager
def _stopped_by_interrupt(connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """Raise the KeyboardInterrupt of Ctrl-C, which DuckDB turns into a RuntimeError."""
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error.__cause__, KeyboardInterrupt):
            raise
        # Other threads still run the query, and closing the connection waits for them.
        connection.interrupt()
        raise KeyboardInterrupt from None


def _first_line(error: Exception) -> str:
    # The reader of logs adds a dump of its file objects.
    return str(error).strip().splitlines()[0].partition(": ParsedLogPath")[0]


def _ask_spark(
    lake: Lake, sql: str, tables: Mapping[str, Table], versions: Mapping[str, int], *, dialect: str
) -> Answer:
    """Run one SELECT on the tables of a catalog, with Spark."""
    assert lake.catalog is not None
    if dialect == DUCKDB:
        for in_duckdb, in_spark in IN_SPARK.items():
            sql = sql.replace(in_duckdb, in_spark)
        sql = transpile(sql, read=DUCKDB, write=SPARK)[0]
    reads = {}
    for view, table in tables.items():
        version = versions.get(table.name)
        reads[view] = table.sql + ("" if version is None else f" VERSION AS OF {version}")
        if view != table.name:
            kept = transpile(_final_condition(view, table, version), read=DUCKDB, write=SPARK)[0]
            query = f"SELECT * FROM {reads[view]} WHERE {kept}"
            # In parentheses it can have another alias, and a sample before that.
            reads[view] = f"(({query}) AS `{view.split('.')[1]}`)"
    statement = read_instead(sql, reads)
    try:
        session = lake.catalog.session()
        # Versions that are pinned may be older than Delta reads otherwise.
        with with_settings(session, OLD_VERSION_SETTINGS if versions else {}):
            rows = session.sql(statement)
            return Answer(tuple(rows.columns), _collected(rows), tuple(t for _, t in rows.dtypes))
    except (AnalysisException, ParseException) as error:
        raise UsageError(_first_line(error)) from error
    except PySparkException as error:
        raise UsageError(kind_of(error)) from error


def _collected(rows: DataFrame) -> tuple[tuple[Any, ...], ...]:
    """Collect rows, with timestamps as UTC instants; column names may repeat."""
    is_instant = [isinstance(field.dataType, TimestampType) for field in rows.schema.fields]
    numbered = rows.toDF(*[f"_{number}" for number in range(len(is_instant))])
    columns = [
        F.unix_micros(name) if instant else F.col(name)
        for name, instant in zip(numbered.columns, is_instant, strict=True)
    ]

    def plain(value: Any, instant: bool) -> Any:
        if instant:
            return from_micros(value)
        return bytes(value) if isinstance(value, bytearray) else value

    return tuple(tuple(map(plain, row, is_instant)) for row in numbered.select(*columns).collect())
