"""Check that a statement is exactly one query, of existing tables and nothing else."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
from collections.abc import Collection, Iterator
from typing import Any

import duckdb
from sqlglot import exp, parse

from tidelake.config.expressions import UNREADABLE
from tidelake.delta.tables import Lake, Table
from tidelake.errors import UsageError
from tidelake.typed import first_command, runnable

# It warns of statements that are refused here.
logging.getLogger("sqlglot").setLevel(logging.ERROR)

DUCKDB, SPARK = "duckdb", "databricks"
# What sqlglot stores with a table's name and a subquery in its place can have too.
TABLE_PARTS = ("joins", "laterals", "pivots", "sample")
_FINAL, _INFORMATION = "__final", "information_schema"
# Spark functions that call the JVM or a service, or read a file or secret given as an argument.
SPARK_REFUSED = frozenset(
    {
        *("reflect", "try_reflect", "java_method"),
        *("from_avro", "to_avro", "schema_of_avro", "from_protobuf", "to_protobuf"),
        *("from_xml", "schema_of_xml", "python_worker_logs", "table_changes_by_path"),
        *("secret", "try_secret", "http_request", "remote_query", "ai_query"),
    }
)
# DuckDB functions that read settings or the environment, which hold object store keys, that write,
# or that bind a statement that is their argument.
_DUCKDB_REFUSED = frozenset(
    {
        *("current_setting", "getenv", "getvariable", "write_log"),
        *("json_serialize_plan", "json_serialize_sql", "json_deserialize_sql"),
    }
)
# The names of system views begin with these.
_SYSTEM_VIEWS = ("duckdb_", "pg_", "pragma_", "sqlite_")
# Functions allowed in FROM: they read only their arguments.
_SPARK_ROWS = frozenset(
    {
        *("range", "explode", "explode_outer", "inline", "inline_outer", "json_tuple"),
        *("posexplode", "posexplode_outer", "stack"),
    }
)
_DUCKDB_ROWS = frozenset(
    {"range", "generate_series", "unnest", "repeat", "repeat_row", "json_each", "json_tree"}
)
_ONE_SELECT = "`tidelake sql` takes one SELECT; tables change only through `run`."


def dialect_of(catalog: object | None) -> str:
    """Return the dialect of statements over gold: Spark's in a catalog, else DuckDB's."""
    return DUCKDB if catalog is None else SPARK


def tables_in(
    sql: str, lake: Lake, *, dialect: str = DUCKDB, trusted: bool = False
) -> dict[str, Table]:
    """Return the tables of a statement by the names that it uses.

    A statement that is not ``trusted`` must not access anything else. DuckDB's settings alone do
    not ensure that: ``delta_scan`` reads any table's log before DuckDB checks whether the file is
    allowed.

    Raises:
        UsageError: It is not exactly one query, names an unknown table, or accesses anything else.
    """
    statement = _one_query(sql, dialect)
    named = {
        f"{found.db}.{found.name}".lower()
        for found in statement.find_all(exp.Table)
        if found.db and found.name and found.db.lower() != _INFORMATION
    }
    tables = {}
    for name in sorted(named):
        with contextlib.suppress(UsageError):
            table = lake.table(name.removesuffix(_FINAL) if name.startswith("gold.") else name)
            if table.exists:
                tables[name] = table
    if unknown := sorted(named - tables.keys()):
        raise _unknown(unknown, lake)
    if not trusted and dialect == SPARK:
        _refuse_in_spark(statement, lake)
    elif not trusted:
        _refuse_in_duckdb(sql, lake, tables)
    return tables


def _one_query(sql: str, dialect: str) -> exp.Query | exp.Describe:
    try:
        sql.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"the statement cannot be read: character {error.start + 1} is a byte that is not "
            "UTF-8. Save the statement as UTF-8, then run it again."
        ) from error
    try:
        statements = [statement for statement in parse(sql, dialect=dialect) if statement]
    except UNREADABLE as error:
        raise UsageError(f"the statement cannot be read: {str(error).splitlines()[0]}") from error
    if len(statements) != 1 or not isinstance(statements[0], exp.Query | exp.Describe):
        raise UsageError(_ONE_SELECT)
    return statements[0]


def _refuse_in_duckdb(sql: str, lake: Lake, tables: Collection[str]) -> None:
    with _parser().cursor() as connection:
        (text,) = connection.execute("SELECT json_serialize_sql($1)", [sql]).fetchall()[0]
    parsed = json.loads(text)
    if parsed["error"] and parsed["error_type"] == "parser":
        raise UsageError(f"the statement cannot be read: {parsed['error_message']}")
    if parsed["error"] or len(parsed["statements"]) != 1:
        raise UsageError(_ONE_SELECT)
    nodes = list(_nodes(parsed))
    inner = {one["key"].lower() for node in nodes for one in node.get("cte_map", {}).get("map", ())}
    for name in inner:
        # A CTE of a subquery has its own scope, outside of which this is the view.
        if name.startswith(_SYSTEM_VIEWS):
            raise UsageError(f"{name} is the name of a system view; give the CTE another name.")
    for node in nodes:
        kind = node.get("type")
        if kind == "BASE_TABLE":
            parts = (node["catalog_name"], node["schema_name"], node["table_name"])
            name = ".".join(part for part in parts if part)
            is_information = not parts[0] and parts[1].lower() == _INFORMATION
            if name.lower() not in {*inner, *tables} and not is_information:
                raise _unknown([name], lake)
        elif kind == "TABLE_FUNCTION":
            function = node["function"]["function_name"].lower()
            _refuse_unless(function in _DUCKDB_ROWS, function, lake)
        elif kind == "FUNCTION":
            function = node["function_name"].lower()
            _refuse_unless(function not in _DUCKDB_REFUSED, function, lake)


@functools.cache
def _parser() -> duckdb.DuckDBPyConnection:
    """Cache an empty database that only parses statements."""
    return duckdb.connect()


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """Yield every node of a parsed statement, however deep."""
    waiting = [tree]
    while waiting:
        found = waiting.pop()
        if isinstance(found, dict):
            yield found
            found = list(found.values())
        if isinstance(found, list):
            waiting.extend(found)


def _refuse_in_spark(statement: exp.Query | exp.Describe, lake: Lake) -> None:
    if statement.find(exp.QueryTransform):
        raise UsageError(_ONE_SELECT)
    for function in statement.find_all(exp.Func):
        name = _function_name(function)
        _refuse_unless(name not in SPARK_REFUSED, name, lake)
    inner = {found.alias.lower() for found in statement.find_all(exp.CTE)}
    # A function after LATERAL is not parsed as a table.
    for source in statement.find_all(exp.Table, exp.Lateral):
        if isinstance(source.this, exp.Func):
            name = _function_name(source.this)
            _refuse_unless(name in _SPARK_ROWS, name, lake)
        elif isinstance(source, exp.Table) and source.db:
            _refuse_elsewhere(source, lake)
        elif isinstance(source, exp.Table) and source.name.lower() not in inner:
            raise _unknown([source.name], lake)
    if "${" in statement.sql(dialect=SPARK):
        # Spark would put in an environment variable or a setting, which may be secret.
        raise UsageError("${ is refused: Spark replaces variables. Write '$' || '{' for the text.")


def _refuse_elsewhere(table: exp.Table, lake: Lake) -> None:
    """Refuse a table of another catalog, or another version: the answer would be of this one."""
    own = lake.catalog.name if lake.catalog else ""
    if table.catalog.lower() not in ("", own.lower()) or not isinstance(table.this, exp.Identifier):
        raise _unknown([".".join(part.name for part in table.parts)], lake)
    alias = table.args.get("alias")
    # Spark reads name@v3 as version 3; for sqlglot that is an alias.
    is_named = alias is None or isinstance(alias.this, exp.Identifier | None)
    more = {key for key, value in table.args.items() if value}
    if not is_named or more - {"this", "db", "catalog", "alias", *TABLE_PARTS}:
        raise UsageError(
            f"{table.sql(dialect=SPARK)} is refused: `tidelake sql` reads the current version of "
            f"{table.db}.{table.name}, or that of the last epoch with --consistent. Write only the "
            "name, or use a SQL warehouse for another version."
        )


def _function_name(function: exp.Func) -> str:
    is_unknown = isinstance(function, exp.Anonymous)
    return str(function.name if is_unknown else function.sql_name()).lower()


def _refuse_unless(is_allowed: bool, function: str, lake: Lake) -> None:
    if not is_allowed:
        raise UsageError(
            f"{function}() is refused: a statement cannot access anything but the lake's tables."
            f"\n{known_tables(lake)}"
        )


def _unknown(names: Collection[str], lake: Lake) -> UsageError:
    return UsageError(f"there is no table {', '.join(names)}.\n{known_tables(lake)}")


def known_tables(lake: Lake) -> str:
    """Return a message line that lists the existing tables."""
    names = ", ".join(table.name for table in lake.existing())
    first = "" if names else runnable(first_command())
    return f"Tables {lake.place}: {names or f'none yet; fill them with: {first}'}"
