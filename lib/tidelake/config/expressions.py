"""Check one SQL expression before Spark sees it.

Spark would find most of these too, but one at a time, after a minute, and an unsteady function not
at all: it would only make a retry of a batch decide otherwise than the first attempt did.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

import sqlglot
from sqlglot import exp
from sqlglot.errors import ParseError, SqlglotError

from tidelake.config.model import suggestion

_UNSTEADY = frozenset(
    [
        "rand",
        "randn",
        "random",
        "randstr",
        "uniform",
        "uuid",
        "shuffle",
        "now",
        "curdate",
        "current_date",
        "current_time",
        "current_timestamp",
        "current_timezone",
        "current_user",
        "session_user",
        "current_catalog",
        "current_database",
        "current_schema",
        "localtimestamp",
        "localtime",
        "monotonically_increasing_id",
        "spark_partition_id",
        "input_file_name",
        "input_file_block_start",
        "input_file_block_length",
        "reflect",
        "java_method",
        "try_reflect",
        "current_path",
        "current_version",
    ]
)
_AGGREGATES = frozenset(
    [
        "any",
        "some",
        "every",
        "bool_and",
        "bool_or",
        "bit_and",
        "bit_or",
        "bit_xor",
        "collect_list",
        "collect_set",
        "count_if",
        "count_min_sketch",
        "first",
        "first_value",
        "last",
        "last_value",
        "any_value",
        "mode",
        "percentile",
        "percentile_approx",
        "percentile_cont",
        "percentile_disc",
        "approx_percentile",
        "approx_count_distinct",
        "histogram_numeric",
        "hll_sketch_agg",
        "hll_union_agg",
        "kurtosis",
        "std",
        "stddev",
        "variance",
        "skewness",
        "try_sum",
        "try_avg",
        "listagg",
        "string_agg",
        "grouping",
        "grouping_id",
        "bitmap_construct_agg",
        "bitmap_or_agg",
        "regr_count",
        "regr_r2",
        "regr_slope",
    ]
)
_AGGREGATE_FAMILIES = ("kll_sketch_agg", "kll_merge_agg", "theta_", "regr_", "approx_top_k")
_WINDOW = frozenset(
    [
        "window",
        "session_window",
        "row_number",
        "rank",
        "dense_rank",
        "percent_rank",
        "cume_dist",
        "ntile",
        "lag",
        "lead",
        "nth_value",
    ]
)
_GENERATORS = frozenset(
    [
        "explode",
        "explode_outer",
        "posexplode",
        "posexplode_outer",
        "inline",
        "inline_outer",
        "stack",
        "json_tuple",
        "variant_explode",
        "variant_explode_outer",
    ]
)
_BARE_UNSTEADY = frozenset({"localtimestamp", "session_user"})


def expression_problems(sql: str, columns: Collection[str] | None) -> list[str]:
    """List what is wrong with an expression that gives one value for one row.

    Args:
        sql: One Spark SQL expression.
        columns: Names that it may use, without regard to case; None when they cannot be known,
            and then columns are not checked.

    Returns:
        The problems in words; empty when there are none.
    """
    if not sql.strip():
        return ["is empty; write one SQL expression"]
    try:
        statements = sqlglot.parse(f"SELECT (\n{sql}\n)", dialect="spark")
    except RecursionError:
        return ["is nested too deeply"]
    except SqlglotError as error:
        return [_syntax_problem(sql, error)]
    root = _only_expression(statements)
    if isinstance(root, str):
        return [root]
    found = [*_kind_problems(root)]
    if columns is not None:
        found += _column_problems(root, columns)
    return list(dict.fromkeys(found))


def _syntax_problem(sql: str, error: SqlglotError) -> str:
    if ";" in re.sub(r"'[^']*'|\"[^\"]*\"|`[^`]*`", "", sql):
        return "holds a semicolon; write one SQL expression, not several statements"
    if isinstance(error, ParseError) and error.errors:
        first = error.errors[0]
        # sqlglot names its own classes where a keyword's operand is missing.
        said = re.sub(r"Required keyword.*", "something is missing", str(first["description"]))
        return f"is not valid SQL: {said} near '{first['highlight']}'"
    return "is not valid SQL: a quote or a comment is left open"


def _only_expression(statements: list[exp.Expr | None]) -> exp.Expr | str:
    select = statements[0] if len(statements) == 1 else None
    if not isinstance(select, exp.Select):
        return "holds more than one statement; write one SQL expression"
    clauses = [name for name, value in select.args.items() if value and name != "expressions"]
    roots = select.expressions
    if clauses or len(roots) != 1 or isinstance(roots[0], exp.Tuple):
        return "holds more than one expression; write one"
    root: exp.Expr = roots[0]
    if isinstance(root, exp.Paren) and isinstance(root.this, exp.Alias):
        return f"names its result ({root.this.alias}); the key already does, leave AS out"
    return root


def _kind_problems(root: exp.Expr) -> Iterator[str]:
    """Tell what kinds of thing, allowed elsewhere in SQL, have no place here."""
    if root.find(exp.Query):
        yield "holds a subquery; only the row itself can be used"
    for node in root.walk():
        if isinstance(node, exp.Window):
            yield "holds a window function (OVER); only the row itself can be used"
        elif isinstance(node, exp.Star):
            yield "holds *; name the columns"
        elif isinstance(node, exp.Distinct):
            yield "holds DISTINCT, which only an aggregate can do (approx_count_distinct)"
        elif isinstance(node, exp.Placeholder | exp.Parameter):
            yield "holds a parameter marker; nothing would fill it"
        elif isinstance(node, exp.Func):
            yield from _function_problems(node)
        elif isinstance(node, exp.Column) and node.name.lower() in _BARE_UNSTEADY:
            yield _unsteady(node.name)


def _unsteady(name: str) -> str:
    return f"calls {name}, whose answer changes from run to run; a retry would decide otherwise"


def _function_problems(function: exp.Func) -> Iterator[str]:
    name = function.name if isinstance(function, exp.Anonymous) else function.sql_name()
    name = name.lower()
    if name in _WINDOW:
        yield f"calls {name}, a window function; only the row itself can be used"
    elif name in _GENERATORS or isinstance(function, exp.Explode | exp.Inline):
        yield f"calls {name}, which makes several rows of one"
    elif (
        isinstance(function, exp.AggFunc)
        or name in _AGGREGATES
        or name.startswith(_AGGREGATE_FAMILIES)
    ):
        spark_name = function.sql(dialect="spark").split("(")[0].lower()
        yield f"calls {spark_name}, an aggregate; this expression sees one row at a time"
    elif name in _UNSTEADY:
        yield _unsteady(name)


def _column_problems(root: exp.Expr, columns: Collection[str]) -> Iterator[str]:
    known = {column.lower() for column in columns}
    for column in root.find_all(exp.Column):
        # `a.b` reaches into the struct `a`: the outermost part is the column.
        name = column.parts[0].name
        if name.lower() in known or name.lower() in _BARE_UNSTEADY:
            continue
        hint = suggestion(name, columns) or f" (known: {', '.join(columns)})"
        yield f"unknown column {name}{hint}"


def columns_in(sql: str) -> set[str]:
    """Name the columns that a sound expression uses, in lower case."""
    root = sqlglot.parse_one(f"SELECT ({sql})", dialect="spark")
    return {column.parts[0].name.lower() for column in root.find_all(exp.Column)}
