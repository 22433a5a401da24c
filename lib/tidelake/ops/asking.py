"""Answer SQL on the tables of a catalog, with Spark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, TimestampType
from sqlglot import exp, parse_one, transpile

from tidelake.delta.store import Catalog
from tidelake.delta.tables import Table
from tidelake.errors import UsageError
from tidelake.fingerprints import IN_SPARK
from tidelake.foreign import kind_of
from tidelake.instants import from_micros

_DIALECT = "databricks"


def ask_catalog(
    catalog: Catalog,
    sql: str,
    tables: Mapping[str, Table],
    *,
    dialect: str,
    versions: Mapping[str, int],
    kept: Mapping[str, str],
) -> tuple[tuple[str, ...], tuple[tuple[Any, ...], ...]]:
    """Run one SELECT.

    Args:
        catalog: Where the tables are.
        sql: The statement.
        tables: Those that it names, by the names that it uses.
        dialect: The statement's: ``duckdb`` or ``databricks``, which is Spark's.
        versions: Those in which to read tables, by logical name.
        kept: Conditions on rows, in DuckDB's words, by the name that the statement uses.

    Returns:
        Columns and rows; instants in UTC.

    Raises:
        UsageError: Spark does not understand the statement.
    """
    for ours, theirs in IN_SPARK.items():
        sql = sql.replace(ours, theirs)
    statement = parse_one(sql, dialect=dialect)
    for found in list(statement.find_all(exp.Table)):
        name = f"{found.db}.{found.name}".lower()
        if name in tables:
            pin = versions.get(tables[name].name)
            found.replace(_scan(tables[name], pin, kept.get(name, ""), found.alias_or_name))
    try:
        rows = catalog.session().sql(statement.sql(dialect=_DIALECT))
        return tuple(rows.columns), _collected(rows)
    except (AnalysisException, ParseException) as error:
        raise UsageError(str(error).strip().splitlines()[0]) from error
    except PySparkException as error:
        raise UsageError(kind_of(error)) from error


def _scan(table: Table, version: int | None, condition: str, alias: str) -> exp.Expression:
    """Write what stands for a table in a statement."""
    pin = "" if version is None else f" VERSION AS OF {version}"
    where = ""
    if condition:
        where = " WHERE " + transpile(condition, read="duckdb", write=_DIALECT)[0]
    scan = parse_one(f"SELECT * FROM {table.sql}{pin}{where}", dialect=_DIALECT)
    assert isinstance(scan, exp.Select)
    return scan.subquery(alias)


def _collected(rows: DataFrame) -> tuple[tuple[Any, ...], ...]:
    """Collect rows; their columns may share a name, and instants come without a zone otherwise."""
    kinds = [field.dataType for field in rows.schema.fields]
    numbered = rows.toDF(*[f"_{number}" for number in range(len(kinds))])
    columns: list[Column] = [
        F.unix_micros(name) if isinstance(kind, TimestampType) else F.col(name)
        for name, kind in zip(numbered.columns, kinds, strict=True)
    ]

    def plain(value: Any, kind: object) -> Any:
        if isinstance(kind, TimestampType):
            return from_micros(value)
        return bytes(value) if isinstance(kind, BinaryType) and value is not None else value

    return tuple(
        tuple(plain(value, kind) for value, kind in zip(row, kinds, strict=True))
        for row in numbered.select(*columns).collect()
    )
