"""Infer the types of SQL expressions as Spark does, from the types of their columns.

sqlglot's own inference is not used: a quotient of decimals, ``coalesce(text, date)`` or
``trunc(day, 'MM')`` has another type in Spark. Only what is listed here has a type; a new entry
needs a comparison with Spark's ``typeof``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress

from sqlglot import exp

from tidelake.config.model import Problems, unknown
from tidelake.config.types import FieldType, parse_schema
from tidelake.names import quoted

_Types = Mapping[str, str | None]

_INTEGERS = ("TINYINT", "SMALLINT", "INT", "BIGINT")
_FLOATS = ("FLOAT", "DOUBLE")
_NUMBERS = (*_INTEGERS, *_FLOATS)
_TIMESTAMPS = ("TIMESTAMP", "TIMESTAMP_NTZ")
_TIMES = ("DATE", *_TIMESTAMPS)
_DTYPE = exp.DataType.Type
# What a cast may name, except DECIMAL.
_NAMED = {
    **{_DTYPE[kind]: kind for kind in (*_NUMBERS, "BOOLEAN", "BINARY", "DATE")},
    **dict.fromkeys((_DTYPE.TIMESTAMP, _DTYPE.TIMESTAMPTZ, _DTYPE.TIMESTAMPLTZ), "TIMESTAMP"),
    _DTYPE.TIMESTAMPNTZ: "TIMESTAMP_NTZ",
    _DTYPE.TEXT: "STRING",
}
# Functions with one type whatever their arguments are, by sqlglot's names: `date_trunc` is its
# `timestamp_trunc`, `split` its `regexp_split`, `date_format` its `time_to_str`, and
# `get_json_object` its `json_extract_scalar`.
_RETURNED = {
    "STRING": """
        lower upper trim btrim initcap replace translate regexp_replace regexp_extract split_part
        repeat concat_ws md5 sha sha2 hex to_base64 time_to_str json_extract_scalar
    """,
    "BOOLEAN": "is_nan starts_with ends_with contains isnull isnotnull equal_null",
    "INT": """
        length year month day day_of_month day_of_week day_of_year week_of_year quarter hour minute
        second
    """,
    "BIGINT": "bigint unix_millis unix_seconds unix_micros xxhash64",
    "DOUBLE": "sqrt exp ln pow",
    "DATE": "ts_or_ds_to_date ts_or_ds_add add_months last_day make_date",
    "TIMESTAMP": "timestamp_trunc timestamp_millis timestamp_seconds timestamp_micros str_to_time",
    "ARRAY<STRING>": "regexp_split",
}
_KIND_OF = {name: kind for kind, names in _RETURNED.items() for name in names.split()}
# Functions whose type is that of their first argument, if that is one of these.
_OF_FIRST = {
    **dict.fromkeys(("CONCAT", "SUBSTRING", "LEFT", "RIGHT", "PAD", "REVERSE"), ("STRING",)),
    **dict.fromkeys(("ABS", "NEGATIVE"), (*_NUMBERS, "DECIMAL")),
    "ROUND": _NUMBERS,
    "TIMESTAMP_ADD": _TIMESTAMPS,
    "NULLIF": (*_NUMBERS, "DECIMAL", *_TIMES, "STRING", "BOOLEAN", "BINARY"),
}


def kind_of(node: exp.Expr, columns: _Types) -> str | None:
    """Infer a node's type, as in ``DECIMAL(18,2)``; None where only Spark can infer it.

    The types are those of Spark's ANSI mode, which each session has. The names of ``columns`` are
    in lower case.
    """
    found: str | None = None
    match node:
        case exp.Paren():
            found = kind_of(node.this, columns)
        case exp.Column():
            found = _of_column(node, columns)
        case exp.Boolean() | exp.Predicate() | exp.Connector() | exp.Not():
            found = "BOOLEAN"
        case exp.Literal() | exp.RawString():
            found = _of_literal(node)
        case exp.Cast():
            found = _of_cast(node.to)
        case exp.Bracket():
            nested = _nested(kind_of(node.this, columns))
            inner = nested and (nested.element or nested.value)
            # `structs['a']` is an array of their fields.
            found = _written(inner.sql) if inner and not inner.fields else None
        case exp.Array():
            item = _widest(kind_of(one, columns) for one in node.expressions)
            found = f"ARRAY<{item}>" if item else None
        case exp.Struct() if all(map(_is_named, node.expressions)):
            fields = {one.name: kind_of(one.expression, columns) for one in node.expressions}
            inside = ",".join(f"{quoted(name)}: {kind}" for name, kind in fields.items())
            found = f"STRUCT<{inside}>" if all(fields.values()) else None
        case exp.Case() | exp.If() | exp.Coalesce() | exp.Nvl2() | exp.Greatest() | exp.Least():
            *_, values = operands_of_a_type(node)
            found = _widest(
                kind_of(one, columns) for one in values if not isinstance(one, exp.Null)
            )
        case exp.Func():
            found = _of_function(node, columns)
        case exp.Unary() | exp.Binary():
            found = _of_operator(node, [kind_of(one, columns) for one in node.iter_expressions()])
    return found


def _is_named(field: exp.Expr) -> bool:
    """Return whether Spark certainly calls a field of a struct as the parser does."""
    if not isinstance(field, exp.PropertyEQ):
        return isinstance(field, exp.Column)
    # Spark calls `m['k']` and `(s).k` by their last part; a name in quotes may be computed.
    is_part = isinstance(field.expression, exp.Bracket | exp.Dot)
    return not (is_part or field.this.args.get("quoted"))


def _of_function(node: exp.Func, columns: _Types) -> str | None:
    name = node.name if isinstance(node, exp.Anonymous) else node.sql_name()
    kind = _KIND_OF.get(name.lower())
    if kind is not None or name not in _OF_FIRST:
        return kind
    first = kind_of(next(node.iter_expressions()), columns)
    return first if first and first.partition("(")[0] in _OF_FIRST[name] else None


def _of_operator(node: exp.Expr, kinds: list[str | None]) -> str | None:
    """Infer the type of an operator's result from those of its operands."""
    widest, found = _widest(kinds), None
    is_exact = any(kind is not None and kind.startswith("DECIMAL") for kind in kinds)
    match node:
        case exp.DPipe():
            found = "STRING" if "STRING" in kinds else None
        case exp.Neg():
            found = widest if _is_number(widest) else None
        case exp.Add(expression=exp.Interval()) | exp.Sub(expression=exp.Interval()):
            found = kinds[0] if kinds[0] in _TIMESTAMPS else None
        case exp.Add() | exp.Sub() | exp.Mul() | exp.Mod():
            found = widest if widest in _NUMBERS else None
        case exp.Div() if all(map(_is_number, kinds)) and not (is_exact and widest != "DOUBLE"):
            found = "DOUBLE"
        case exp.IntDiv() if {*kinds} <= {*_INTEGERS}:
            found = "BIGINT"
    return found


def _widest(kinds: Iterable[str | None]) -> str | None:
    """Return the type to which Spark casts values of several types; None if that is not known."""
    found = {*kinds}
    if len(found) == 1:
        return found.pop()
    if found <= {*_INTEGERS}:
        return max(found, key=_INTEGERS.index, default=None)
    if found & {*_FLOATS} and all(map(_is_number, found)):
        return "DOUBLE"
    times = found - {"STRING"}
    times = times - {"DATE"} or times
    return times.pop() if len(times) == 1 and times <= {*_TIMES} else None


def _is_number(kind: str | None) -> bool:
    return kind is not None and (kind in _NUMBERS or kind.startswith("DECIMAL"))


def _of_column(column: exp.Column, columns: _Types) -> str | None:
    # In `a.b` the column is the struct `a`.
    first, *fields = (part.name.lower() for part in column.parts)
    kind = columns.get(first)
    for name in fields:
        found = _nested(kind)
        inner = {field.name.lower(): field.type.sql for field in found.fields} if found else {}
        kind = inner.get(name)
    return None if kind is None else _written(kind)


def field_problems(root: exp.Expr, columns: _Types) -> Iterator[str]:
    """List the fields that the types of their columns lack, as ``b`` in ``a.b`` and ``a[0].b``.

    Not of what only Spark knows, as results of functions, and variables of lambda functions. The
    names of ``columns`` are in lower case.
    """
    for node in root.find_all(exp.Column, exp.Dot):
        if isinstance(found := _field_type(node, columns), str) and not _is_variable(node):
            yield found


def _is_variable(node: exp.Expr) -> bool:
    """Return whether a name is, in any case, a variable of a lambda function around it."""
    column, around = node.find(exp.Column), node.parent
    while column is not None and around is not None:
        variables = around.expressions if isinstance(around, exp.Lambda) else []
        if column.parts[0].name.lower() in {one.name.lower() for one in variables}:
            return True
        around = around.parent
    return False


def _field_type(node: exp.Expr, columns: _Types) -> FieldType | str | None:
    """Return the type of a column, a field or an element; a text that says what has no field."""
    names: list[str] = []
    found: FieldType | str | None = None
    match node:
        case exp.Column() if not isinstance(node.this, exp.Star):
            place, *names = (part.name for part in node.parts)
            found = _nested(columns.get(place.lower()))
        case exp.Dot(expression=exp.Identifier()):
            place, names = node.this.sql(dialect="spark"), [node.name]
            found = _field_type(node.this, columns)
        case exp.Paren():
            found = _field_type(node.this, columns)
        case exp.Bracket():
            found = _field_type(node.this, columns)
            # `structs['a']` is an array of their fields.
            if isinstance(found, FieldType):
                found = found.value or (None if node.expressions[0].is_string else found.element)
    for name in names:
        if isinstance(found, FieldType):
            found, place = _field(found, name, place), f"{place}.{name}"
    return found


def _field(of: FieldType, name: str, place: str) -> FieldType | str | None:
    if of.element and of.element.kind == "struct":
        # Spark makes an array of the fields.
        found = _field(of.element, name, place)
        return FieldType("array", element=found) if isinstance(found, FieldType) else found
    if of.kind in ("map", "array"):
        return of.value
    if of.kind != "struct":
        return f"{place} is {of.sql}, which has no field {name}"
    fields = {field.name.lower(): field.type for field in of.fields}
    known = (field.name for field in of.fields)
    return fields.get(name.lower()) or f"{place}: {unknown('field', name, known)}"


def _written(kind: str) -> str:
    return kind.replace(", ", ",")


def _nested(kind: str | None) -> FieldType | None:
    with suppress(Problems):
        return parse_schema(f"x {kind}")[0].type if kind else None
    return None


def _of_literal(literal: exp.Expr) -> str | None:
    text = literal.name
    if isinstance(literal, exp.RawString) or literal.is_string:
        return "STRING"
    if text.isdecimal():
        return "INT" if int(text) < 1 << 31 else None
    # 0.5 is a DECIMAL.
    return "DOUBLE" if "e" in text.lower() else None


def _of_cast(to: exp.DataType) -> str | None:
    if to.this is _DTYPE.DECIMAL:
        digits = [digit.name for digit in to.expressions]
        precision, scale = [*digits, "10", "0"][:2] if not digits else [*digits, "0"][:2]
        return f"DECIMAL({precision},{scale})"
    return None if to.expressions else _NAMED.get(to.this)


def operands_of_a_type(node: exp.Expr) -> Iterator[list[exp.Expr]]:
    """Return the groups of operands that Spark casts to a common type."""
    if isinstance(node, exp.Case):
        branches = node.args["ifs"]
        yield [one for one in (node.this, *(branch.this for branch in branches)) if one is not None]
        values = [*(branch.args["true"] for branch in branches), node.args.get("default")]
        yield [one for one in values if one is not None]
    elif isinstance(node, exp.If | exp.Nvl2):
        yield [value for key in ("true", "false") if (value := node.args.get(key)) is not None]
    else:
        yield list(node.iter_expressions())
