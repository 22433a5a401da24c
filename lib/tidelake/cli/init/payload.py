"""Infer the payload schema and silver's columns from a sample: names, types, time formats.

In doubt the wider type is chosen: a value that does not fit exactly would be quarantined, while a
string can still be parsed by an expression. DuckDB's JSON sniffer is not used: it reads money and
long integers as DOUBLE, drops names that differ in case, and does not tell which line is broken.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any

from tidelake.cli.init.field_names import is_epoch, is_money
from tidelake.config.expressions import columns_in, expression_problems
from tidelake.config.source import CHANGE_COLUMNS
from tidelake.config.types import Field, FieldType, unstorable_names
from tidelake.errors import SourceError
from tidelake.instants import DATE, LOCAL, TO_THE_MINUTE, ZONED, from_micros, to_json
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
_MOST_DIGITS = 38


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
        return _number(name, [Decimal(v) for v in present if isinstance(v, int | Decimal)])
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
    return Shape(FieldType("boolean") if kinds == {"boolean"} else STRING)


def fields_of(values: Sequence[Mapping[str, Any]]) -> dict[str, Shape]:
    """Infer the fields of objects, in order of first appearance."""
    names = dict.fromkeys(name for value in values for name in value)
    return {name: value_shape(name, [value.get(name) for value in values]) for name in names}


def _number(name: str, values: Sequence[Decimal]) -> Shape:
    # Scale as written: 1e2 has no decimals, 2.50 has two.
    exponents = [int(number.as_tuple().exponent) for number in values]
    scale = max(-min(exponents), 0)
    digits = max(1, *(number.adjusted() + 1 for number in values))
    if is_money(name) and scale <= _MONEY_SCALE and digits + max(scale, 2) <= _MONEY_DIGITS:
        return Shape(FieldType("decimal", precision=_MONEY_DIGITS, scale=max(scale, 2)))
    if any(exponents):
        return Shape(FieldType("double"))
    if all(-_BIGINT_END <= number < _BIGINT_END for number in values):
        return Shape(FieldType("bigint"))
    if digits <= _MOST_DIGITS:
        return Shape(FieldType("decimal", precision=_MOST_DIGITS, scale=0))
    return Shape(STRING, (f"numbers of {digits} digits",))


def _object(values: Sequence[dict[str, Any]]) -> Shape:
    names = {name for value in values for name in value}
    if not names:
        empty = FieldType("map", key=STRING, value=STRING)
        return Shape(empty, ("always empty in the sample",))
    filled = sum(len(value) for value in values) / (len(names) * len(values))
    rare = len(names) > _RARE_NAMES and filled < _RARE
    folded = {name.lower() for name in names if name.strip() and name.isprintable()}
    if len(names) > _NAMES or rare or len(folded) < len(names):
        inner = value_shape("", [item for value in values for item in value.values()])
        note = f"{len(names)} names in the sample, so a map"
        return Shape(FieldType("map", key=STRING, value=inner.type), (note, *inner.notes))
    inferred = fields_of(values)
    fields = tuple(Field(name, shape.type) for name, shape in inferred.items())
    notes = tuple(f"{name}: {note}" for name, shape in inferred.items() for note in shape.notes)
    return Shape(FieldType("struct", fields=fields), notes)


_NO_ZONE = "without a zone, read as UTC"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Seconds since the epoch: a number outside the years 2000 to 2100 is not taken as a time.
_FIRST, _END = 946_684_800, 4_102_444_800
_EPOCH_UNITS = "epoch"
# Units in a second, Spark's expression, description.
_EPOCHS = (
    (1, "timestamp_seconds({0})", "epoch seconds"),
    (1_000, "timestamp_millis({0})", "epoch milliseconds"),
    (1_000_000, "timestamp_micros({0})", "epoch microseconds"),
    (1_000_000_000, "timestamp_micros({0} div 1000)", "epoch nanoseconds, cut to microseconds"),
)
# Spark timestamps have microseconds.
_SECONDS = FieldType("decimal", precision=20, scale=6)
# If a sample fits both day first and month first, day first is chosen, with a note.
_DAY_FIRST, _MONTH_FIRST = "%d/%m/%Y", "%m/%d/%Y"
_DATES = (
    ("%Y/%m/%d", "yyyy/MM/dd", "slashes"),
    ("%d.%m.%Y", "dd.MM.yyyy", "day first"),
    (_DAY_FIRST, "dd/MM/yyyy", "day first"),
    (_MONTH_FIRST, "MM/dd/yyyy", "month first"),
)
# As spreadsheets write them, without seconds or without a time of day.
_TIMES_OF_DAY = ((" %H:%M:%S", " HH:mm:ss"), (" %H:%M", " HH:mm"), ("", ""))
# Python's pattern, Spark's pattern, description.
_PATTERNS = (
    ("%d/%b/%Y:%H:%M:%S %z", "dd/MMM/yyyy:HH:mm:ss Z", "a web server's log"),
    ("%Y-%m-%d %H:%M:%S UTC", "yyyy-MM-dd HH:mm:ss 'UTC'", "UTC in words"),
    ("%Y-%m-%d %H:%M:%S,%f", "yyyy-MM-dd HH:mm:ss,SSS", "a comma before the milliseconds"),
    ("%Y%m%dT%H%M%SZ", "yyyyMMdd'T'HHmmss'Z'", "digits without separators"),
    *(
        (date + of_day, spark + of_day_in_spark, words)
        for date, spark, words in _DATES
        for of_day, of_day_in_spark in _TIMES_OF_DAY
    ),
)
# A number with a decimal comma, and dots between thousands, of at most 14 digits before the comma;
# in the syntax that Python and Spark share.
_COMMA_DIGITS = 14
_COMMA_TYPE = FieldType("decimal", precision=20, scale=6)
_COMMA = "-?(?:[1-9][0-9]{0,2}(?:[.][0-9]{3}){1,4}|[0-9]{1,14})(?:,[0-9]{1,6})?"


@dataclass(frozen=True)
class Clock:
    """A time format of a field, of the type it has in the schema; ``words`` describes it.

    ``sql`` converts the field, ``{0}``, to a timestamp. ``read`` parses a value, or returns None
    if it has another format. ``has_time`` is False for a date, which has no time of day.
    """

    type: FieldType
    sql: str
    words: str
    read: Callable[[object], datetime | None]
    note: str = ""
    has_time: bool = True


def clock_of(values: Iterable[object]) -> Clock | None:
    """Return the time format that all non-null values of a field have, or None."""
    present = [value for value in values if value is not None]
    clocks = _clocks(present) if present else ()
    return next((clock for clock in clocks if all(clock.read(v) for v in present)), None)


def _clocks(values: Sequence[object]) -> Iterator[Clock]:
    first = values[0]
    if isinstance(first, str):
        texts = [value for value in values if isinstance(value, str)]
        if all(re.fullmatch(DATE, text) for text in texts):
            date, sql = FieldType("date"), "CAST({0} AS TIMESTAMP)"
            yield Clock(date, sql, "a date", _read_iso, has_time=False)
        zoned = all(re.search(r"(?:Z|[+-][0-9]{2}:?[0-9]{2})$", text) for text in texts)
        timestamp, note = FieldType("timestamp"), "" if zoned else _NO_ZONE
        yield Clock(timestamp, "{0}", "ISO 8601", _read_iso, note)
        for python, spark, words in _PATTERNS:
            note = "" if python.endswith(("z", "UTC", "Z")) else _NO_ZONE
            month_first = python.replace(_DAY_FIRST, _MONTH_FIRST)
            if month_first != python and all(map(partial(_read_pattern, month_first), texts)):
                note += "; ambiguous order of day and month, read as day first"
            sql = "try_to_timestamp({0}, '" + spark.replace("'", "''") + "')"
            read, has_time = partial(_read_pattern, python), "%H" in python
            yield Clock(STRING, sql, f"{spark} ({words})", read, note, has_time)
        for scale, sql, words in _EPOCHS:
            of_text = sql.format("try_cast({0} AS BIGINT)")
            yield Clock(STRING, of_text, words, partial(_read_number, scale, _whole_text))
    elif isinstance(first, int | Decimal):
        for scale, sql, words in _EPOCHS:
            yield Clock(FieldType("bigint"), sql, words, partial(_read_number, scale, _whole))
        words = f"{_EPOCH_UNITS} seconds with a fraction"
        yield Clock(_SECONDS, _EPOCHS[0][1], words, partial(_read_number, 1, _to_micros))


def _read_iso(value: object) -> datetime | None:
    if not isinstance(value, str) or not any(
        re.match(pattern, value) for pattern in (ZONED, LOCAL, TO_THE_MINUTE)
    ):
        return None
    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _read_pattern(pattern: str, value: object) -> datetime | None:
    try:
        found = datetime.strptime(str(value), pattern)
    except ValueError:
        return None
    # Spark's patterns require every digit, and of a fraction take three; Python's also accept 5 for
    # 05, and six.
    text, whole = str(value), found.strftime(pattern)
    if not whole.startswith(text) or len(whole) - len(text) not in _cut(pattern):
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _cut(pattern: str) -> range:
    """Return how many of the last digits of a time in Python's pattern a text may lack."""
    return range(3, 6) if pattern.endswith("%f") else range(1)


_Number = int | Decimal | None


def _read_number(scale: int, number: Callable[[object], _Number], value: object) -> datetime | None:
    found = number(value)
    if found is None or not _FIRST * scale <= found < _END * scale:
        return None
    return _EPOCH + timedelta(microseconds=int(found * 1_000_000 // scale))


def _whole(value: object) -> _Number:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _whole_text(value: object) -> _Number:
    return int(value) if isinstance(value, str) and re.fullmatch(r"[0-9]{10,19}", value) else None


def _to_micros(value: object) -> _Number:
    """Return a number with at most six decimals."""
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        return None
    exact = Decimal(value)
    return exact if int(exact.as_tuple().exponent) >= -6 else None


_DEEPEST = 4
_TIME_KINDS = {"date", "timestamp", "timestamp_ntz"}


@dataclass(frozen=True)
class Column:
    """A column of silver: its name, its SQL expression over the payload, and its payload field.

    ``path`` is the field's path from the outermost struct to the field; ``values`` its value in
    each record of the sample, None if missing.
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

    ``types`` are those that need not be inferred; ``changes`` the change events of rows.

    Raises:
        SourceError: No field has a name that is valid in a schema.
    """
    fields: list[Field] = []
    columns: list[Column] = []
    notes: list[str] = []
    seen: set[str] = set()
    types = types or {}
    shapes = fields_of(values) | {name: Shape(kind) for name, kind in types.items()}
    for name, shape in shapes.items():
        why = ""
        if not name.strip() or not name.isprintable():
            why = "its name is blank or not printable"
        elif name.startswith("_"):
            why = "names beginning with _ are reserved"
        elif changes and name.lower() in CHANGE_COLUMNS:
            why = "a column of the envelope has this name"
        elif name.lower() in seen:
            why = "another field has the same name in another case"
        if why:
            notes.append(f"{name!r} is left out: {why}")
            continue
        seen.add(name.lower())
        is_known = name in types
        found = list(_columns((name,), shape, [value.get(name) for value in values], is_known))
        columns += found
        # Epoch seconds with a fraction need DECIMAL: DOUBLE would lose digits.
        is_whole = len(found) == 1 and found[0].clock is not None and not is_known
        is_whole = is_whole and found[0].path == (name,)
        fields.append(Field(name, found[0].type if is_whole else shape.type))
    if not fields:
        raise SourceError(f"the sample has no field that can be a column. {'. '.join(notes)}")
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
        for column in _columns((name,), Shape(kind), values[name], is_known=True)
    ]


def _columns(
    path: tuple[str, ...], shape: Shape, values: list[Any], is_known: bool = False
) -> Iterator[Column]:
    """Yield the column of a field, or the columns of a struct's fields, without names yet.

    ``is_known``: the type is given, not inferred from the values.
    """
    kind = shape.type
    if kind.kind == "struct" and len(path) < _DEEPEST:
        for field in kind.fields:
            inner = [item.get(field.name) if isinstance(item, dict) else None for item in values]
            inferred = Shape(field.type) if is_known else value_shape(field.name, inner)
            yield from _columns((*path, field.name), inferred, inner, is_known)
        return
    column = Column("", path, sql_name(*path), kind, tuple(values), None, shape.notes)
    if (odd := next(unstorable_names(kind), None)) is not None:
        notes = (*shape.notes, f"as JSON, because no Delta table stores the name '{odd}' in it")
        yield replace(column, sql=f"to_json({column.sql})", type=STRING, notes=notes)
        return
    numbers = _with_comma(values) if kind == STRING else None
    if numbers is not None:
        sql, notes = column.sql, (*shape.notes, "with a decimal comma")
        if "" in values:
            sql = f"nullif({sql}, '')"
        sql = _of_comma(sql)
        yield replace(column, sql=sql, type=_COMMA_TYPE, values=numbers, notes=notes)
        return
    clock = clock_of(values) if column.is_scalar else None
    # A number counts as a time only if its name also suggests one.
    is_number = clock is not None and clock.words.startswith(_EPOCH_UNITS)
    if clock is None or (is_number and not is_epoch(path[-1], clock.words)):
        yield column
        return
    if is_known and kind.kind not in _TIME_KINDS | {clock.type.kind}:
        yield column
        return
    if is_known and kind.kind == "timestamp_ntz":
        clock = replace(clock, sql="CAST({0} AS TIMESTAMP)")
    elif is_known:
        clock = replace(clock, type=kind)
    if clock.type.kind == "decimal" and len(path) > 1:
        # The field's type is fixed by the struct's schema, so the expression casts.
        # The cast would round more digits: for those it is given a number too large for it.
        exact = "if({0} != CAST({0} AS DECIMAL(20,6)), 1e30, {0})"
        sql = f"timestamp_seconds(CAST({exact} AS DECIMAL(20,6)))"
        clock = replace(clock, sql=sql, type=kind)
    # A text of another format fails, so that its row is quarantined; only as the event time, which
    # may not be missing, it may be null.
    sql = clock.sql.replace("try_", "") if clock.has_time else "{0}"
    notes = (*column.notes, *(() if sql == "{0}" else (clock.words,)))
    if clock.note and clock.note not in notes:
        notes = (*notes, clock.note)
    yield replace(column, sql=sql.format(column.sql), type=clock.type, clock=clock, notes=notes)


def _of_comma(text: str) -> str:
    """Write the SQL that converts a text with a decimal comma; it fails on any other text.

    A cast alone would round, trim, and accept exponents: other texts get a sign that no number has.
    """
    other = f"(?s)^(?!{_COMMA}(?!.))"
    return f"CAST(translate(regexp_replace({text}, '{other}', '?'), ',.', '.') AS DECIMAL(20,6))"


def _with_comma(values: Sequence[object]) -> tuple[Decimal | None, ...] | None:
    """Return numbers from texts that have a decimal comma, or None if they have none for sure."""
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
    named: dict[str, Column] = {}
    for column in columns:
        plain = re.sub(r"[^A-Za-z0-9_]+", "_", "_".join(column.path)).strip("_") or "field"
        plain = (plain if plain[0].isalpha() else f"field_{plain}")[:60]
        name = f"payload_{plain}"[:60] if plain.lower() in reserved else plain
        number = 2
        while name.lower() in reserved | named.keys() or not is_column_name(name):
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
