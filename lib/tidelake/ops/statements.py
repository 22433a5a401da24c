"""Find what a statement asks: one SELECT, and the tables that it names."""

from __future__ import annotations

import contextlib

from sqlglot import exp, parse
from sqlglot.errors import SqlglotError

from tidelake.errors import UsageError
from tidelake.tables import Lake, Table
from tidelake.typed import first_command

DUCKDB, SPARK = "duckdb", "databricks"
_FINAL = "__final"


def dialect_of(lake: Lake) -> str:
    """Name the dialect in which users ask."""
    return DUCKDB if lake.catalog is None else SPARK


def tables_in(sql: str, lake: Lake, *, dialect: str = DUCKDB) -> dict[str, Table]:
    """Find the tables that a statement names, by the names that it uses.

    Args:
        sql: The statement.
        lake: Where the tables are.
        dialect: The statement's.

    Raises:
        UsageError: It is not exactly one query, or names a table that does not exist.
    """
    try:
        statements = [statement for statement in parse(sql, dialect=dialect) if statement]
    except SqlglotError as error:
        raise UsageError(f"the statement cannot be read: {str(error).splitlines()[0]}") from error
    if len(statements) != 1 or not isinstance(statements[0], exp.Query | exp.Describe):
        raise UsageError("`tidelake sql` takes one SELECT; tables change only through `run`.")
    named = {
        f"{found.db}.{found.name}".lower()
        for found in statements[0].find_all(exp.Table)
        if found.db and found.db.lower() != "information_schema"
    }
    meant = {name: _meant(name, lake) for name in sorted(named)}
    unknown = [name for name, table in meant.items() if table is None]
    if unknown:
        raise UsageError(f"there is no table {', '.join(unknown)}.\n{known(lake)}")
    return {name: table for name, table in meant.items() if table is not None}


def _meant(name: str, lake: Lake) -> Table | None:
    """Find the table behind a name; None where there is none."""
    with contextlib.suppress(UsageError):
        table = lake.table(name.removesuffix(_FINAL) if name.startswith("gold.") else name)
        return table if table.exists else None
    return None


def known(lake: Lake) -> str:
    """List the tables that there are, for messages."""
    names = ", ".join(table.name for table in lake.existing())
    return f"Tables {lake.place}: {names or f'none yet; fill them with: {first_command()}'}"
