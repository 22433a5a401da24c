"""Gold tables written as SQL over another gold table or silver, and what refuses their parts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar

from tidelake.config.expressions import (
    CONDITIONS,
    Types,
    columns_in,
    condition_problems,
    expression_problems,
    type_of,
)
from tidelake.config.gold_definitions import GoldTable, Measure
from tidelake.config.model import Model, parsed_by
from tidelake.config.query_parts import Call, QueryParts, parse_query
from tidelake.config.table_settings import Publishable, TableSettings
from tidelake.names import TableName, logical_name

# Types whose sums depend on the order of the rows.
INEXACT_TYPES = ("DOUBLE", "FLOAT", "STRING")
CAST_TO_DECIMAL = (
    "a sum of DOUBLE or FLOAT depends on the order of rows; cast the argument to DECIMAL"
)
# A query casts the argument of count_if to BOOLEAN, unlike WHERE, HAVING and a measure, where Spark
# accepts conditions only. These types have such a cast; JSON is what sqlglot calls a VARIANT.
_COUNTED = (
    *CONDITIONS,
    *("TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL", "VARIANT", "JSON"),
)
_INEXACT_MEASURES = {
    "avg": "write its sum divided by its count",
    "approx_count_distinct": "with the key in the table that is read, count(DISTINCT key) is exact",
    "approx_percentile": "write max or min of the value",
}


class Query(TableSettings, Publishable):
    """A gold table that is computed from another one, or from silver, by SQL.

    Attributes:
        name: The gold table.
        sql: ``SELECT … FROM gold.table … GROUP BY``, over a table of ``gold`` with tumbling or
            hopping windows, or over the pipeline's silver; the grouped columns include a window.
    """

    keys_elsewhere: ClassVar[dict[str, str]] = {
        key: "is for tables of gold; write it into sql"
        for key in ("window", "where", "keys", "measures", "derive")
    }

    name: TableName
    sql: Annotated[str, parsed_by(parse_query)]

    @property
    def parts(self) -> QueryParts:
        """The parts of the statement."""
        return parse_query(self.sql)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns in order, without internal columns."""
        return tuple(column.name for column in self.parts.columns)


class ResolvedQuery(Model):
    """What the rows of a query depend on: its statement, and the table that it reads.

    Attributes:
        text: The statement without comments and with single spaces.
        source: The gold table; None for silver.
    """

    text: str
    source: GoldTable | None


def measure_of(call: Call, name: str = "value") -> Measure:
    """Return an aggregate as a measure, which does not know DISTINCT."""
    written = {"name": name, "aggregate": call.function, "expression": call.argument}
    return Measure.model_validate(written)


def inexact_columns(table: GoldTable, types: Types) -> dict[str, str]:
    """Return the columns whose recomputed value may differ, with the advice for an error message.

    Sums of floating-point numbers depend on the order of rows, means are rounded twice, and
    sketches have an error; a column that is derived from one of these differs too. Names are in
    lower case.
    """
    found: dict[str, str] = {}
    for one in table.measures:
        if one.aggregate in _INEXACT_MEASURES:
            found[one.name.lower()] = _INEXACT_MEASURES[one.aggregate]
        elif one.aggregate == "sum" and (types.get(one.name) or "").upper() in ("DOUBLE", "FLOAT"):
            found[one.name.lower()] = (
                f"let the measure sum a DECIMAL, by CAST({one.expression} AS DECIMAL(18,6)), "
                "since texts and floating-point numbers are summed as DOUBLE"
            )
    for name, sql in table.derive.items():
        if read := sorted(columns_in(sql) & found.keys()):
            found[name.lower()] = f"it is derived from {read[0]}: {found[read[0]]}"
    return found


def query_problems(query: Query, table: GoldTable | None, shown: Types) -> Iterator[str]:
    """List the problems of a query's parts that the columns of its table show, without Spark.

    ``table`` is None for silver; ``shown`` are the types of the columns that may be used, None
    where only Spark can infer it.
    """
    parts, known = query.parts, {name.lower() for name in shown}
    inexact = inexact_columns(table, shown) if table else {}
    for place, sql in parts.used():
        # A column has no parenthesis in its name, but may be named where.
        if place.startswith("count_if("):
            problems = condition_problems(sql, shown, _COUNTED)
        elif (place, sql) == ("WHERE", parts.where):
            problems = condition_problems(sql, shown)
        else:
            problems = expression_problems(sql, shown)
        yield from (f"{place}: {problem}" for problem in problems)
        for used in sorted(columns_in(sql) & inexact.keys()) if not problems else ():
            yield f"{place}: {used} is not exact; {inexact[used]}"
    for key in parts.keys:
        if key.by_name and key.name.lower() in known:
            yield (
                f"{key.name} is a column of {parts.source} too, which GROUP BY {key.name} "
                "means in Spark; write the expression or the column's number there"
            )
    for call in parts.calls:
        is_sum = call.function in ("sum", "avg") and not columns_in(call.argument) & inexact.keys()
        kind = type_of(call.argument, shown) if is_sum else None
        if kind in INEXACT_TYPES:
            cause = "is STRING, which is summed as DOUBLE; " if kind == "STRING" else ""
            yield f"{call.function}({call.argument}): {cause}{CAST_TO_DECIMAL}"
    scope: dict[str, str | None] = {key.internal: shown.get(key.internal) for key in parts.keys}
    scope |= dict.fromkeys(call.internal for call in parts.calls)
    for name, _, sql in parts.columns:
        yield from (f"{name}: {problem}" for problem in expression_problems(sql, scope))
    if parts.having is not None:
        yield from (f"HAVING: {problem}" for problem in condition_problems(parts.having, scope))


def shown_by(query: Query, table: GoldTable) -> Iterator[str]:
    """List what a query shows of a table although the table's settings hide it."""
    calls = {call.internal: call for call in query.parts.calls}
    keys = {key.internal: key.sql for key in query.parts.keys}
    masked = {name.lower() for name in table.masks}
    for column in query.parts.columns:
        used: set[str] = set()
        for name in columns_in(column.computed):
            call = calls.get(name)
            if call is None:
                used |= columns_in(keys.get(name, name))
            elif not call.function.startswith("count"):
                used |= columns_in(call.argument)
        if (hidden := sorted(used & masked)) and column.name not in query.masks:
            what = f"{hidden[0]}, which {logical_name('gold', table.name)} masks"
            yield f"{column.name} shows {what}; mask this column too"
    if table.row_filter is not None and query.row_filter is None:
        source = logical_name("gold", table.name)
        yield f"needs a row_filter, because {source} has one, whose rows it sums up"
