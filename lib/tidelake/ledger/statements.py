"""Check that a statement is exactly one query, of existing tables and nothing else; rewrite it."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import re
from collections.abc import Collection, Iterator, Mapping
from itertools import dropwhile
from typing import Any

import duckdb
from sqlglot import exp, parse
from sqlglot.dialects import Databricks
from sqlglot.tokenizer_core import TokenType

from tidelake.config.expressions import UNREADABLE, XPATH
from tidelake.delta.tables import Lake, Table
from tidelake.errors import UsageError
from tidelake.typed import first_command, runnable

# It warns of statements that are refused here.
logging.getLogger("sqlglot").setLevel(logging.ERROR)

DUCKDB, SPARK = "duckdb", "databricks"
# What sqlglot stores with a table's name and a subquery in its place can have too.
_TABLE_PARTS = ("joins", "laterals", "pivots", "sample")
_FINAL, _INFORMATION = "__final", "information_schema"
# Spark functions that call the JVM or a service, or read a file or secret given as an argument.
SPARK_REFUSED = frozenset(
    {
        *("reflect", "try_reflect", "java_method"),
        *("from_avro", "to_avro", "schema_of_avro", "from_protobuf", "to_protobuf"),
        *("from_xml", "schema_of_xml", "python_worker_logs", "table_changes_by_path"),
        *("secret", "try_secret", "http_request", "remote_query", "ai_query"),
        # A document of theirs may name a DTD, which Java's parser reads from a file or a URL.
        *XPATH,
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
        _refuse_in_spark(sql, statement, lake)
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
        parsed = parse(sql, dialect=dialect)
    except UNREADABLE as error:
        raise UsageError(f"the statement cannot be read: {str(error).splitlines()[0]}") from error
    # A Semicolon is one before a comment.
    statements = [one for one in parsed if one and not isinstance(one, exp.Semicolon)]
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


def _refuse_in_spark(sql: str, statement: exp.Query | exp.Describe, lake: Lake) -> None:
    if statement.find(exp.QueryTransform):
        raise UsageError(_ONE_SELECT)
    for function in statement.find_all(exp.Func):
        name = _function_name(function)
        _refuse_unless(name not in SPARK_REFUSED, name, lake)
    inner = {found.alias.lower() for found in statement.find_all(exp.CTE)}
    # A function after LATERAL is not parsed as a table.
    for source in statement.find_all(exp.Table, exp.Lateral):
        if source.find_ancestor(exp.Hint):
            continue
        if isinstance(source.this, exp.Func):
            name = _function_name(source.this)
            _refuse_unless(name in _SPARK_ROWS, name, lake)
        elif isinstance(source, exp.Table) and source.db:
            _refuse_elsewhere(source, lake)
        elif isinstance(source, exp.Table) and source.name.lower() not in inner:
            raise _unknown([source.name], lake)
    if "${" in sql:
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
    if not is_named or more - {"this", "db", "catalog", "alias", *_TABLE_PARTS}:
        raise UsageError(
            f"{table.sql(dialect=SPARK)} is refused: `tidelake sql` reads the current version of "
            f"{table.db}.{table.name}, or that of the last epoch with --consistent. Write only the "
            "name, or use a SQL warehouse for another version."
        )


def read_instead(sql: str, tables: Mapping[str, str]) -> str:
    """Return a statement in Spark's dialect, with other SQL in place of the names of its tables.

    All else is as written: sqlglot would write some functions as others (``percentile_cont``). Only
    comments and hints are left out, as Spark may see another end of them, and what follows was not
    checked.

    Args:
        sql: The statement.
        tables: What is read, by the names of :func:`tables_in`: a full name, or a query with an
            alias in parentheses.

    Raises:
        UsageError: It cannot be determined where a name is written.
    """
    statement = _one_query(sql, SPARK)
    words = Databricks().tokenize(sql)
    tokens = list(dropwhile(lambda one: one.token_type is TokenType.SEMICOLON, words))
    texts = {token.start: token.text for token in tokens}
    # By the position of a name, where it ends and what is written instead.
    instead: dict[int, tuple[int, str]] = {}
    named: Iterator[Any] = statement.find_all(exp.Table, exp.Column)
    for found in named:
        parts = found.parts if isinstance(found, exp.Table) else found.parts[:-1]
        name = ".".join(part.name for part in parts[-2:]).lower()
        # Spark knows the columns of a table by its layer too, those of a query by its alias alone.
        if name not in tables or found.find_ancestor(exp.Hint):
            continue
        if any(texts.get(part.meta.get("start", -1)) != part.name for part in parts):
            raise UsageError(f"{name} cannot be located in the statement; write it in another way.")
        begin, last = parts[0].meta["start"], parts[-1].meta
        if isinstance(found, exp.Table):
            query = ""
            if isinstance(found.parent, exp.Describe):
                # Spark describes a query, but none with an alias, and not after TABLE or EXTENDED.
                begin, query = tokens[1].start, "SELECT * FROM "
            instead[begin] = last["end"] + 1, query + tables[name]
        elif tables[name].startswith("("):
            instead[begin] = last["start"], ""
    written, end = "", 0
    for token in tokens:
        # `1L` is three tokens at one position.
        if token.token_type is TokenType.HINT or token.start < end:
            continue
        gap = " " if token.start > end else ""
        end, text = instead.get(token.start, (token.end + 1, sql[token.start : token.end + 1]))
        written += gap + text
    return written.strip()


def columns_for(suffix: str, rows: duckdb.DuckDBPyRelation) -> str:
    """Return SQL of columns with the values that a file's format has.

    JSON has no NaN and no infinity, which become null. In Parquet a HUGEINT, such as a sum of
    integers, would become a DOUBLE.
    """
    found = []
    for name, kind in zip(map(_quoted, rows.columns), rows.types, strict=True):
        value = cast(name, kind, "U?HUGEINT", "DECIMAL(38,0)") if suffix == ".parquet" else name
        found.append(f"{_finite(name, kind) if suffix == '.json' else value} AS {name}")
    return ", ".join(found)


def cast(sql: str, kind: Any, replaced: str, wanted: str = "VARCHAR") -> str:
    """Return SQL of a value of one of DuckDB's types, cast where that contains another type."""
    becomes = re.sub(rf"\b{replaced}\b", wanted, str(kind))
    return sql if becomes == str(kind) else f"CAST({sql} AS {becomes})"


def _finite(sql: str, kind: Any) -> str:
    """Return SQL of a value of one of DuckDB's types, with null for each number that is none."""
    if not ("DOUBLE" in str(kind) or "FLOAT" in str(kind)):
        return sql
    match kind.id:
        case "double" | "float":
            return f"CASE WHEN isfinite({sql}) THEN {sql} END"
        case "list" | "array":
            return f"list_transform({sql}, lambda x: {_finite('x', kind.children[0][1])})"
        case "map":
            value = _finite("x", kind.children[1][1])
            return f"map(map_keys({sql}), list_transform(map_values({sql}), lambda x: {value}))"
        # The fields of row(…) have no names.
        case "struct" if all(name for name, _ in kind.children):
            names = [_quoted(name) for name, _ in kind.children]
            values = [_finite(f"({sql}).{_quoted(name)}", field) for name, field in kind.children]
            fields = ", ".join(map(" := ".join, zip(names, values, strict=True)))
            return f"CASE WHEN {sql} IS NOT NULL THEN struct_pack({fields}) END"
    return sql


def _quoted(name: str) -> str:
    return exp.to_identifier(name, quoted=True).sql(DUCKDB)


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
