"""Answer SQL on any table by its logical name, with DuckDB on the Delta tables."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
from duckdb_extensions import import_extension

from tidelake.delta.log import last_commit
from tidelake.delta.notes import Final
from tidelake.delta.store import Catalog
from tidelake.delta.tables import Lake, Table
from tidelake.errors import MachineError, NotBuiltError, TidelakeError, UsageError
from tidelake.object_store import duckdb_secret
from tidelake.ops.statements import DUCKDB, SPARK, known, refuse_beside_tables, tables_in
from tidelake.ops.target import Target


@dataclass(frozen=True)
class Answer:
    """The columns and rows of a query."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]

    def as_dicts(self) -> list[dict[str, Any]]:
        """Give each row by column name.

        Raises:
            UsageError: Two columns have the same name, and one would hide the other.
        """
        if len(set(self.columns)) < len(self.columns):
            raise UsageError("two columns have the same name; give one another with AS.")
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


def ask(lake: Lake, sql: str) -> Answer:
    """Run one SELECT of our own, in DuckDB's words.

    Raises:
        UsageError: The statement is no query, or DuckDB does not understand it.
    """
    wanted = tables_in(sql, lake)
    if lake.catalog is not None:
        return _ask_catalog(lake.catalog, sql, wanted, {}, dialect=DUCKDB)
    # A catalog of its own keeps the views of one question from another's.
    catalog = f"asked_{next(_numbers)}"
    with _instance().cursor() as connection:
        _reach(connection, lake)
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute(f"ATTACH ':memory:' AS {catalog}")
        try:
            connection.execute(f"USE {catalog}")
            _name(connection, wanted, {})
            return _answer(connection, sql, lake)
        finally:
            connection.execute("USE memory")
            connection.execute(f"DETACH {catalog}")


def ask_for_user(lake: Lake, sql: str, versions: Mapping[str, int] | None = None) -> Answer:
    """Run one SELECT of the user's, which reaches the tables that it names and nothing else.

    It is in DuckDB's words; on a catalog Spark answers it, and it is in Spark's.

    Args:
        lake: Where the tables are.
        sql: The statement.
        versions: Those in which to read tables, by logical name; others are read as they are.

    Raises:
        UsageError: The statement is no query, or DuckDB does not understand it.
    """
    if lake.catalog is not None:
        wanted = tables_in(sql, lake, dialect=SPARK)
        refuse_beside_tables(sql, lake, wanted, dialect=SPARK)
        return _ask_catalog(lake.catalog, sql, wanted, versions or {}, dialect=SPARK)
    with _for_user(lake, sql, versions or {}) as connection:
        return _answer(connection, sql, lake)


def write_for_user(
    lake: Lake, sql: str, target: Target, versions: Mapping[str, int] | None = None
) -> int:
    """Write what one SELECT of the user's answers into a file, row by row, whole or not at all.

    Args:
        lake: Where the tables are.
        sql: The statement.
        target: The file; a statement reaches no other.
        versions: As for :func:`ask_for_user`.

    Returns:
        How many rows.

    Raises:
        UsageError: What :func:`ask_for_user` refuses.
        TidelakeError: The file cannot be written.
        NotBuiltError: The tables are in a catalog.
    """
    if lake.catalog is not None:
        raise NotBuiltError("Writing an answer from a catalog into a file", "Ask Databricks SQL.")
    with (
        target.whole() as part,
        _for_user(lake, sql, versions or {}, writes=part) as connection,
    ):
        try:
            connection.sql(sql).create_view("answer")
        except duckdb.Error as error:
            raise _not_understood(error, lake) from error
        path = str(part).replace("'", "''")
        try:
            done = connection.execute(f"COPY (SELECT * FROM answer) TO '{path}' ({target.options})")
            return int((done.fetchone() or (0,))[0])
        except duckdb.Error as error:
            if str(part) in str(error):
                raise TidelakeError(f"{target.file}: {_plain(error)}") from error
            raise _not_understood(error, lake) from error


@contextmanager
def _for_user(
    lake: Lake, sql: str, versions: Mapping[str, int], *, writes: Path | None = None
) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open a database that holds the tables of a statement and reaches nothing else.

    Args:
        lake: Where the tables are.
        sql: The user's statement.
        versions: Those in which to read tables.
        writes: The one file that may be written.
    """
    wanted = tables_in(sql, lake)
    refuse_beside_tables(sql, lake, wanted)
    with duckdb.connect() as connection:
        import_extension("delta", con=connection)
        _reach(connection, lake)
        connection.execute("SET TimeZone = 'UTC'")
        _name(connection, wanted, versions)
        folders = [f"{table.path}/" for table in wanted.values()]
        connection.execute("SET allowed_directories = $1", [folders])
        connection.execute("SET allowed_paths = $1", [[str(writes)] if writes else []])
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
        yield connection


def _ask_catalog(
    catalog: Catalog,
    sql: str,
    wanted: Mapping[str, Table],
    versions: Mapping[str, int],
    *,
    dialect: str,
) -> Answer:
    from tidelake.ops.asking import ask_catalog  # noqa: PLC0415  imports Spark

    kept = {
        view: _final_condition(view, table, versions.get(table.name))
        for view, table in wanted.items()
        if view != table.name
    }
    columns, rows = ask_catalog(catalog, sql, wanted, dialect=dialect, versions=versions, kept=kept)
    return Answer(columns, rows)


_numbers = itertools.count()


@functools.cache
def _instance() -> duckdb.DuckDBPyConnection:
    """Keep one database for our own questions: the first look at a Delta table costs 0.2 s."""
    connection = duckdb.connect()
    import_extension("delta", con=connection)
    # A table's log may be rewritten under the same name; only the disk says what it holds.
    connection.execute("SET enable_external_file_cache = false")
    return connection


def _reach(connection: duckdb.DuckDBPyConnection, lake: Lake) -> None:
    """Let a connection read the lake where it lies on a store; keys stay in memory.

    They are told anew each time: those of a role change every few hours.
    """
    if not lake.is_on_object_store:
        return
    try:
        import_extension("httpfs", con=connection)
    except ImportError as error:
        raise MachineError(
            "what lets DuckDB read an object store is not installed. "
            "Install it with: pip install 'tidelake[s3]'"
        ) from error
    connection.execute(*duckdb_secret())


def _name(
    connection: duckdb.DuckDBPyConnection, tables: Mapping[str, Table], versions: Mapping[str, int]
) -> None:
    """Give tables their logical names in a connection.

    Raises:
        UsageError: A table cannot be read in its version, or has no final rows.
    """
    for view, table in tables.items():
        layer, name = view.split(".")
        connection.execute(f'CREATE SCHEMA IF NOT EXISTS "{layer}"')
        path = str(table.path).replace("'", "''")
        version = versions.get(table.name)
        pin = "" if version is None else f", version = {version}"
        kept = _final_condition(view, table, version) if view != table.name else "true"
        scan = f"SELECT * FROM delta_scan('{path}'{pin}) WHERE {kept}"
        try:
            connection.execute(f'CREATE VIEW "{layer}"."{name}" AS {scan}')
        except duckdb.Error as error:
            raise UsageError(f"{table.name} cannot be read: {_plain(error)}") from error


def _final_condition(view: str, table: Table, version: int | None) -> str:
    """Cut a gold table to the rows that are final in a version of it.

    Raises:
        UsageError: The table has no windows that end.
    """
    final = Final.of(last_commit(table, up_to=version))
    if final is None:
        raise UsageError(
            f"{view} does not exist: the rows of {table.name} have no end, or no batch has "
            f"closed since its pipeline was updated. Read {table.name} itself."
        )
    return final.condition()


def _answer(connection: duckdb.DuckDBPyConnection, sql: str, lake: Lake) -> Answer:
    try:
        result = connection.execute(sql)
        columns = tuple(column[0] for column in result.description or [])
        return Answer(columns, tuple(result.fetchall()))
    except duckdb.Error as error:
        raise _not_understood(error, lake) from error


def _not_understood(error: duckdb.Error, lake: Lake) -> UsageError:
    return UsageError(f"{_plain(error)}\n{known(lake)}")


def _plain(error: duckdb.Error) -> str:
    return str(error).strip().splitlines()[0]
