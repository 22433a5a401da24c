"""Infer the payload schema and silver's columns from a sample: names, types, time formats.

In doubt the wider type is chosen: a value that does not fit exactly would be quarantined, while a
string can still be parsed by an expression. DuckDB's JSON sniffer is not used: it reads money and
long integers as DOUBLE, drops names that differ in case, and does not tell which line is broken.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from tidelake.cli.init.field_names import is_amount, is_epoch, is_money, is_nameable, is_quantity
from tidelake.cli.init.file_schema import UNTYPED
from tidelake.cli.init.time_formats import EPOCH_UNITS, TIME_KINDS, Clock, clock_of, is_iso
from tidelake.config.expressions import columns_in, expression_problems
from tidelake.config.source import CHANGE_COLUMNS
from tidelake.config.types import Field, FieldType, is_internal, unstorable_names
from tidelake.errors import SourceError
from tidelake.instants import from_micros, to_json
from tidelake.names import LATE_COLUMNS, SILVER_RESERVED, is_column_name, quoted

if TYPE_CHECKING:
    from tidelake.silver.envelope import Unwrapped

STRING = FieldType("string")
_KINDS: dict[type, str] = {
    bool: "boolean", str: "text", int: "whole", Decimal: "fraction", dict: "object", list: "array"
}  # fmt: skip
_BIGINT_END = 1 << 63
# An object is a map if it has more names than this, or many names that most records lack.
_NAMES = 60
_RARE_NAMES, _RARE = 20, 0.2
_MONEY_DIGITS, _MONEY_SCALE = 18, 4
# Digits after the point at least: of money, and of a quantity, since 0.125 may follow 2.5.
_CENTS, _PARTS = 2, 6
# Of a number that needs more: digits in all, and after the point if the whole part leaves room.
_MOST_DIGITS, _WIDE_SCALE = 38, 18
# Gold sums the values of a DECIMAL(38,s) that fit this many digits; of money, those before the
# point may be this many more than in the sample.
SUMMED_DIGITS, _SUM_ROOM = 28, 6
# A double of so many digits, more of them after the point than amounts are stored with, comes from
# arithmetic. The next may have more of them than any DECIMAL, such as 5.551115123125783e-17.
_COMPUTED_DIGITS, _FIXED_SCALE = 16, 8
# A decimal number in text, without the leading zeros of codes; and one whose point is certainly not
# between thousands, as it may be in 1.250.
_IN_TEXT = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?")
_POINTED = re.compile(r"-?(?:(?:0|[0-9]{4,})\.[0-9]+|[0-9]+\.(?![0-9]{3}$)[0-9]+)")


@dataclass(frozen=True)
class Shape:
    """A field's type in the payload schema, with notes for the user."""

    type: FieldType
    notes: tuple[str, ...] = ()


def value_shape(name: str, values: Iterable[object]) -> Shape:
    """Infer a field's type from its values; numbers with a decimal point are ``Decimal``.

    The name decides whether such numbers are money.
    """
    present = [value for value in values if value is not None]
    kinds = {_KINDS[type(value)] for value in present}
    if kinds and kinds <= {"whole", "fraction"}:
        numbers = [Decimal(v) for v in present if isinstance(v, int | Decimal)]
        return _number(numbers, has_money=is_money(name))
    if len(kinds) != 1:
        mixed = f"mixed in the sample: {', '.join(sorted(kinds))}"
        return Shape(STRING, (mixed if kinds else "always null in the sample",))
    if kinds == {"object"}:
        return _object([value for value in present if isinstance(value, dict)])
    if kinds == {"array"}:
        items = [item for value in present if isinstance(value, list) for item in value]
        inner = value_shape(name, items)
        notes = inner.notes if items else ("always empty in the sample",)
        return Shape(FieldType("array", element=inner.type), notes)
    clock = clock_of(present) if kinds == {"text"} else None
    if clock is not None and clock.type != STRING:
        return Shape(clock.type, (clock.note,) if clock.note else ())
    amount = _amount_in_text(name, present) if kinds == {"text"} and clock is None else None
    return amount or Shape(FieldType("boolean") if kinds == {"boolean"} else STRING)


def fields_of(values: Sequence[Mapping[str, Any]]) -> dict[str, Shape]:
    """Infer the fields of objects, in order of first appearance."""
    names = dict.fromkeys(name for value in values for name in value)
    return {name: value_shape(name, [value.get(name) for value in values]) for name in names}


def _amount_in_text(name: str, values: Sequence[object]) -> Shape | None:
    """Return the DECIMAL of decimal numbers in text, as Debezium may write them; None for others.

    The name must be that of amounts: other texts of digits may be identifiers.
    """
    texts = [str(value) for value in values] if is_amount(name) else []
    if not any(map(_POINTED.fullmatch, texts)) or not all(map(_IN_TEXT.fullmatch, texts)):
        return None
    least = _PARTS if is_quantity(name) else _CENTS
    found = _number([Decimal(text) for text in texts], has_money=True, least=least).type
    note = "numbers in text; as DECIMAL their sums are exact, and other texts are quarantined"
    return Shape(found, (note,)) if found.kind == "decimal" else None


def _number(values: Sequence[Decimal], *, has_money: bool, least: int = _CENTS) -> Shape:
    # Scale as written: 1e2 has no decimals, 2.50 has two.
    exponents = [int(number.as_tuple().exponent) for number in values]
    scale = max(-min(exponents), 0)
    digits = max(1, *(number.adjusted() + 1 for number in values))
    usual, most = max(scale, least), max(_MONEY_SCALE, least)
    if has_money and scale <= most and digits + usual <= _MONEY_DIGITS:
        return Shape(FieldType("decimal", precision=_MONEY_DIGITS, scale=usual))
    if any(exponents):
        is_exact = has_money and scale <= _WIDE_SCALE
        is_exact = is_exact and digits <= _MOST_DIGITS - _WIDE_SCALE
        computed = _computed(values) if has_money and scale > _FIXED_SCALE else None
        if (computed is not None or not is_exact) and all(map(_is_double, values)):
            note = f"DOUBLE, because {computed} was computed with floating-point numbers"
            return Shape(FieldType("double"), () if computed is None else (note,))
        # Room on both sides of the point: other values may have more digits than the sample's.
        free = SUMMED_DIGITS - digits - _SUM_ROOM if is_exact else (_MOST_DIGITS - digits) // 2
        room = max(scale, min(_WIDE_SCALE, free))
    elif all(-_BIGINT_END <= number < _BIGINT_END for number in values):
        return Shape(FieldType("bigint"))
    else:
        room = 0
    if digits + room <= _MOST_DIGITS:
        return Shape(FieldType("decimal", precision=_MOST_DIGITS, scale=room))
    return Shape(STRING, (f"numbers of {digits + scale} digits",))


def _computed(values: Iterable[Decimal]) -> Decimal | None:
    """Return a number with as many digits as only arithmetic gives a double, or None."""
    texts = ((number, "".join(map(str, number.as_tuple().digits))) for number in values)
    return next((number for number, t in texts if len(t.strip("0")) >= _COMPUTED_DIGITS), None)


def _is_double(number: Decimal) -> bool:
    """Return whether a number has the digits of a double: its shortest ones, or all 17."""
    value = float(number)
    return any(Decimal(text) == number for text in (repr(value), f"{value:.17g}"))


def _object(values: Sequence[dict[str, Any]]) -> Shape:
    names = {name for value in values for name in value}
    if not names:
        empty = FieldType("map", key=STRING, value=STRING)
        return Shape(empty, ("always empty in the sample",))
    filled = sum(len(value) for value in values) / (len(names) * len(values))
    rare = len(names) > _RARE_NAMES and filled < _RARE
    folded = {name.lower() for name in names if is_nameable(name)}
    if len(names) > _NAMES or rare or len(folded) < len(names):
        inner = value_shape("", [item for value in values for item in value.values()])
        note = f"{len(names)} names in the sample, so a map"
        return Shape(FieldType("map", key=STRING, value=inner.type), (note, *inner.notes))
    inferred = fields_of(values)
    fields = tuple(Field(name, shape.type) for name, shape in inferred.items())
    notes = tuple(f"{name}: {note}" for name, shape in inferred.items() for note in shape.notes)
    return Shape(FieldType("struct", fields=fields), notes)


# A number with a decimal comma, and dots between thousands, of at most 14 digits before the comma;
# in the syntax that Python and Spark share.
_COMMA_DIGITS = 14
_COMMA_TYPE = FieldType("decimal", precision=20, scale=6)
_COMMA = "-?(?:[1-9][0-9]{0,2}(?:[.][0-9]{3}){1,4}|[0-9]{1,14})(?:,[0-9]{1,6})?"
_DEEPEST = 4
_NOT_FINITE = ("NaN", "Infinity", "-Infinity")


@dataclass(frozen=True)
class Column:
    """A column of silver: its name, its SQL expression over the payload, and its payload field.

    ``path`` is the field's path from the outermost struct to the field. ``values`` has its value
    in each record of the sample, None if missing; of texts that become numbers, the numbers, None
    for those that are not finite. ``clock`` is the format of a column of times, None for others.
    ``type`` is that of ``sql``, but with a ``clock`` that of the field. ``notes`` are for the user.
    """

    name: str
    path: tuple[str, ...]
    sql: str
    type: FieldType
    values: tuple[object, ...]
    clock: Clock | None
    notes: tuple[str, ...]

    @property
    def is_scalar(self) -> bool:
        """Whether the column can be a key or an id."""
        return self.type.kind not in ("array", "map", "struct")

    @property
    def field(self) -> str:
        """The field as SQL over the payload."""
        return sql_name(*self.path)

    @property
    def shown(self) -> str:
        """The field as shown in messages: ``customer.country``."""
        return ".".join(self.path)


@dataclass(frozen=True)
class Payload:
    """The schema of a sample's payloads, silver's columns, and notes on omitted fields.

    ``columns`` end with those of the envelope, if the payloads are change events.
    """

    fields: tuple[Field, ...]
    columns: tuple[Column, ...]
    notes: tuple[str, ...]


def column_named(name: str, columns: Iterable[Column]) -> Column | None:
    """Find a column by its name or by its field's path, ignoring case; None if unknown."""
    wanted = name.strip().replace("`", "").lower()
    return next((c for c in columns if wanted in (c.name.lower(), c.shown.lower())), None)


def payload_of(
    values: Sequence[Mapping[str, Any]],
    types: Mapping[str, FieldType] | None = None,
    changes: Sequence[Unwrapped] = (),
) -> Payload:
    """Infer the schema and columns from JSON objects; each field of a struct becomes a column.

    ``types`` are those that the schemas of files give, which are text where silver would refuse a
    value of the sample; ``changes`` are the change events of rows.

    Raises:
        SourceError: No field has a name that is valid in a schema.
    """
    fields: list[Field] = []
    columns: list[Column] = []
    notes: list[str] = []
    seen: set[str] = set()
    types = types or {}
    shapes = fields_of(values) | {
        name: Shape(_fitted(kind, [value.get(name) for value in values]))
        for name, kind in types.items()
    }
    for name, shape in shapes.items():
        why = ""
        if not name.strip() or not name.isprintable():
            why = "its name is blank or not printable"
        elif not is_nameable(name):
            why = "${ would begin a variable of the pipeline file"
        elif is_internal(name):
            why = "an internal column has this name; bronze keeps its values"
        elif changes and name.lower() in CHANGE_COLUMNS:
            why = "a column of the envelope has this name"
        elif name.lower() in seen:
            why = "another field has the same name in another case"
        if why:
            notes.append(f"{name!r} is left out: {why}")
            continue
        seen.add(name.lower())
        given = types.get(name)
        found = list(_columns((name,), shape, [value.get(name) for value in values], given))
        columns += found
        # Epoch seconds with a fraction need DECIMAL: DOUBLE would lose digits.
        is_whole = len(found) == 1 and found[0].clock is not None and given is None
        is_whole = is_whole and found[0].path == (name,)
        fields.append(Field(name, found[0].type if is_whole else shape.type))
    if not fields:
        empty = "Its records are empty objects: write records with fields, or pass another --sample"
        raise SourceError(
            f"the sample has no field that can be a column. {'. '.join(notes) or empty}"
        )
    own = _of_envelope(changes) if changes else []
    named = _named([*own, *columns])
    return Payload(tuple(fields), (*named[len(own) :], *named[: len(own)]), tuple(notes))


def _of_envelope(changes: Sequence[Unwrapped]) -> list[Column]:
    values: dict[str, list[Any]] = {
        "op": [change.op for change in changes],
        "source_time": [to_json(from_micros(change.source_time)) for change in changes],
        "source_position": [change.source_position for change in changes],
    }
    kinds = {name: STRING for name in CHANGE_COLUMNS} | {"source_time": FieldType("timestamp")}
    return [
        column
        for name, kind in kinds.items()
        for column in _columns((name,), Shape(kind), values[name], kind)
    ]


def _fitted(kind: FieldType, values: Sequence[object]) -> FieldType:
    """Return a schema's type, with text in place of what refuses a value of the sample.

    Silver refuses NaN and infinities in a DOUBLE, and digits below a microsecond in a time.
    """
    if kind.kind == "struct":
        objects = [value for value in values if isinstance(value, dict)]
        fields = ((field, [item.get(field.name) for item in objects]) for field in kind.fields)
        fitted = tuple(replace(field, type=_fitted(field.type, of)) for field, of in fields)
        return replace(kind, fields=fitted)
    if kind.element is not None:
        items = [item for value in values if isinstance(value, list) for item in value]
        return replace(kind, element=_fitted(kind.element, items))
    if kind.value is not None:
        items = [item for value in values if isinstance(value, dict) for item in value.values()]
        return replace(kind, value=_fitted(kind.value, items))
    texts = (value for value in values if isinstance(value, str))
    if kind.kind == "double":
        return STRING if any(text in _NOT_FINITE for text in texts) else kind
    is_instant = kind.kind in ("timestamp", "timestamp_ntz")
    return kind if not is_instant or all(map(is_iso, texts)) else STRING


def _columns(
    path: tuple[str, ...], shape: Shape, values: list[Any], given: FieldType | None = None
) -> Iterator[Column]:
    """Yield the column of a field, or the columns of a struct's fields, without names yet.

    ``given`` is the type in the schema of the files, None if it is inferred from the values.
    """
    kind = shape.type
    if kind.kind == "struct" and len(path) < _DEEPEST:
        givens = [None] * len(kind.fields) if given is None else [f.type for f in given.fields]
        for field, of_schema in zip(kind.fields, givens, strict=True):
            inner = [item.get(field.name) if isinstance(item, dict) else None for item in values]
            inferred = value_shape(field.name, inner) if given is None else Shape(field.type)
            yield from _columns((*path, field.name), inferred, inner, of_schema)
        return
    notes = _notes(shape, values, given)
    if kind.element is not None and kind.element.kind == "struct":
        notes = (*notes, "an array: gold counts a record, not its elements")
    column = Column("", path, sql_name(*path), kind, tuple(values), None, notes)
    if (odd := next(unstorable_names(kind), None)) is not None:
        notes = (*notes, f"as JSON, because no Delta table stores the name '{odd}' in it")
        yield replace(column, sql=f"to_json({column.sql})", type=STRING, notes=notes)
    elif _is_untyped(given, values):
        yield column
    else:
        yield _of_numbers(column, given) or _of_times(column, given)


def _of_numbers(column: Column, given: FieldType | None) -> Column | None:
    """Return the column of texts that become numbers, or None for others."""
    field, values = column.sql, column.values
    texts = [value for value in values if isinstance(value, str)]
    if given is None and column.type.kind == "decimal" and texts:
        return replace(column, values=tuple(v if v is None else Decimal(str(v)) for v in values))
    if given is not None and given.kind == "double" and column.type == STRING:
        # As null, because one of them would make each sum and mean of its group NaN or infinite.
        finite = f"CASE WHEN {field} NOT IN {_NOT_FINITE} THEN {field} END"
        held = tuple(None if value in _NOT_FINITE else value for value in values)
        return replace(column, sql=f"CAST({finite} AS DOUBLE)", type=given, values=held)
    numbers = _with_comma(values) if column.type == STRING else None
    if numbers is None:
        return None
    sql = _of_comma(f"nullif({field}, '')" if "" in values else field)
    notes = (*column.notes, "with a decimal comma")
    return replace(column, sql=sql, type=_COMMA_TYPE, values=numbers, notes=notes)


def _of_times(column: Column, given: FieldType | None) -> Column:
    """Return the column with the SQL that converts it to a timestamp, if it holds times."""
    kind = column.type
    clock = clock_of(column.values) if column.is_scalar else None
    # A number counts as a time only if its name also suggests one.
    is_number = clock is not None and clock.words.startswith(EPOCH_UNITS)
    if clock is None or (is_number and not is_epoch(column.path[-1], clock.words)):
        return column
    if given is not None and kind.kind not in TIME_KINDS | {clock.type.kind}:
        return column
    if given is not None and kind.kind == "timestamp_ntz":
        clock = replace(clock, sql="CAST({0} AS TIMESTAMP)")
    elif given is not None:
        clock = replace(clock, type=kind)
    if clock.type.kind == "decimal" and len(column.path) > 1:
        # The field's type is fixed by the struct's schema, so the expression casts.
        # The cast would round more digits: for those it is given a number too large for it.
        exact = "if({0} != CAST({0} AS DECIMAL(20,6)), 1e30, {0})"
        sql = f"timestamp_seconds(CAST({exact} AS DECIMAL(20,6)))"
        clock = replace(clock, sql=sql, type=kind)
    # Only as the event time, which may not be missing, a text of another format may be null.
    sql = clock.failing_sql
    notes = (*column.notes, *(() if sql == "{0}" else (clock.words,)))
    if clock.note and clock.note not in notes:
        notes = (*notes, clock.note)
    return replace(column, sql=sql.format(column.sql), type=clock.type, clock=clock, notes=notes)


def _notes(shape: Shape, values: Sequence[object], given: FieldType | None) -> tuple[str, ...]:
    """Return the notes of a shape, and why it is text in spite of, or for want of, a schema."""
    if _is_untyped(given, values):
        return (*shape.notes, "as text, because its schema gives no type that a column can have")
    if given is None or given == shape.type:
        return shape.notes
    if given.kind == "double":
        return (*shape.notes, "NaN and infinities are null")
    return (*shape.notes, f"as text, because values of the sample do not fit {given.sql}")


def _is_untyped(given: FieldType | None, values: Iterable[object]) -> bool:
    """Return whether a schema gives no type, so that none is guessed from the sample's values."""
    return given is UNTYPED or (
        given == STRING and not all(isinstance(value, str | None) for value in values)
    )


def _of_comma(text: str) -> str:
    """Write the SQL that converts a text with a decimal comma; it fails on any other text.

    A cast alone would round, trim, and accept exponents: other texts get a sign that no number has.
    """
    other = f"(?s)^(?!{_COMMA}(?!.))"
    return f"CAST(translate(regexp_replace({text}, '{other}', '?'), ',.', '.') AS DECIMAL(20,6))"


def _with_comma(values: Sequence[object]) -> tuple[Decimal | None, ...] | None:
    """Return numbers from texts that have a decimal comma, or None unless one certainly has."""
    texts = ["" if value is None else str(value) for value in values]
    if not all(re.fullmatch(_COMMA, text) for text in texts if text):
        return None
    # Three digits after a comma, without a dot, may be thousands.
    if not any("," in text and ("." in text or len(text.partition(",")[2]) != 3) for text in texts):
        return None
    plain = [text.replace(".", "").replace(",", ".") for text in texts]
    if any(len(text.partition(".")[0]) > _COMMA_DIGITS for text in plain):
        return None
    return tuple(Decimal(text) if text else None for text in plain)


def _named(columns: Sequence[Column]) -> tuple[Column, ...]:
    """Give each column a valid and unique name in silver."""
    reserved = {*SILVER_RESERVED, *LATE_COLUMNS} - {"event_id", "event_time"}
    fields = {column.shown.lower() for column in columns}
    named: dict[str, Column] = {}
    for column in columns:
        plain = re.sub(r"[^A-Za-z0-9_]+", "_", "_".join(column.path)).strip("_") or "field"
        plain = (plain if plain[0].isalpha() else f"field_{plain}")[:60]
        name = f"payload_{plain}"[:60] if plain.lower() in reserved else plain
        number = 2
        # A name that is given to one field, such as `id` to `_id`, is not that of another.
        taken = reserved | named.keys() | (fields - {column.shown.lower()})
        while name.lower() in taken or not is_column_name(name):
            name = f"{plain[:56]}_{number}"
            number += 1
        named[name.lower()] = replace(column, name=name)
    return tuple(named.values())


def sql_name(*path: str) -> str:
    """Format a field as SQL, in backquotes if the bare name could be parsed differently."""
    bare = ".".join(path)
    plain = all(re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) for name in path)
    if plain and not expression_problems(bare, path[:1]) and columns_in(bare) == {path[0].lower()}:
        return bare
    return ".".join(map(quoted, path))
