"""Unwrap a database's change events, in Debezium's envelope, to the changed row's fields.

A change event is ``{"before": row, "after": row, "source": {…}, "op": …, "ts_ms": …}``, bare or as
``{"schema": …, "payload": event}``. The row is handed to the decoder as the JSON that the connector
wrote, so its fields behave as those of a plain JSON object. Only where the message carries its
schema, values whose JSON is an encoding (base64 of a decimal, days and microseconds since the
epoch) are written as plain text first; a value that has no such text stays as it is, and the
field's type decides.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import lru_cache, partial
from hashlib import md5
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
import pyarrow as pa

from tidelake.silver.decode import Decoder
from tidelake.silver.values import Number, is_too_deep

# Written for a large value that an update did not change and the database did not log.
_PLACEHOLDER = b"__debezium_unavailable_value"
_TEXT = _PLACEHOLDER.decode()


def _base64(data: bytes) -> str:
    return binascii.b2a_base64(data, newline=False).decode()


# How it is written in columns of text, of bytes (base64, hexadecimal), of a map (also as JSON text)
# and of arrays of texts, bytes and UUIDs.
_UNAVAILABLE: tuple[Any, ...] = (
    _TEXT,
    _base64(_PLACEHOLDER),
    _PLACEHOLDER.hex(),
    {_TEXT: _TEXT},
    f'{{"{_TEXT}":"{_TEXT}"}}',
    [_TEXT],
    [_base64(_PLACEHOLDER)],
    [str(UUID(bytes=md5(_PLACEHOLDER, usedforsecurity=False).digest(), version=3))],
)
# Arrays of numbers have a number for each of its bytes. Decimals are base64.
_BYTES = {_base64(bytes([code])): code for code in _PLACEHOLDER}
# Geometries have a point that is none, by its bytes or by its coordinates.
_NOWHERE = -99_999_999
_NO_POINTS = (
    "AQEAACDmEAAAAAAA/IPXl8EAAAD8g9eXwQ==",
    "AQEAACDmEAAADCHn/f9/ZkAYQs77/39WQA==",
)
# One of these is in each row with such a value: of an array the beginning. Arrays and geometries
# are of PostgreSQL, where only an update leaves a value out.
_TRACES = (_PLACEHOLDER, _base64(_PLACEHOLDER).encode(), _PLACEHOLDER.hex().encode(), b"95,95,100,")
_TRACES_IN_UPDATES = (
    *_TRACES,
    _UNAVAILABLE[-1][0].encode(),
    b"95.0,95.0,100.0,",
    b'"Xw=="',
    b"AQEAACDmEAAA",
    # -9.9999999E7, -99999999.0
    b"9999999",
)

_ROW_OPS = {"c": "after", "u": "after", "r": "after", "d": "before"}
_DELETE, _TRUNCATE, _MESSAGE = "d", "t", "m"
# After these a row is complete.
_FIRST_OPS = ("c", "r")
_NO_EVENT = "payload: not one change event (before, after, source, op)"
_NO_ROW = "payload: its row is not one JSON object"
_NO_SCHEMA = "payload: its schema cannot be read"
_TRUNCATED = "payload: op t empties the whole table, which no row expresses"
_NOT_SENT = "not sent by the connector (a large value that did not change)"
_MOST_LETTERS = 20

_BROKEN = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError, TypeError)
# A microsecond count beyond this is no instant that a table holds.
_MOST_MICROS = 1 << 62
# Limits of a decimal: more digits fit no type, and writing them out could take long.
_MOST_BYTES, _MOST_SCALE = 32, 200
_EPOCH = datetime(1970, 1, 1)
_DAY_NANOS = 86_400_000_000_000
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_SCHEMAS = 64


class Unwrapped(NamedTuple):
    """A change event, unwrapped.

    ``row`` is a JSON object, ``source_time`` in microseconds since the epoch. ``skipped`` is why
    the record has no row and is filtered, ``refusal`` why it cannot be unwrapped; else both are
    None. ``unavailable`` names the row's fields whose values the connector did not send.
    """

    row: bytes = b"{}"
    op: str | None = None
    source_time: int | None = None
    source_position: str | None = None
    skipped: str | None = None
    refusal: str | None = None
    unavailable: tuple[str, ...] = ()


class _Source(msgspec.Struct, gc=False):
    ts_us: Any = None
    ts_ms: Any = None
    lsn: Any = None
    file: Any = None
    pos: Any = None
    row: Any = None


class _Event(msgspec.Struct, gc=False):
    before: msgspec.Raw = msgspec.Raw()
    after: msgspec.Raw = msgspec.Raw()
    source: _Source | None = None
    op: Any = None
    ts_us: Any = None
    ts_ms: Any = None


class _Message(_Event, gc=False):
    payload: msgspec.Raw = msgspec.Raw()
    schema: msgspec.Raw = msgspec.Raw()


_message = msgspec.json.Decoder(_Message | None)
_event = msgspec.json.Decoder(_Event | None)
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_items = msgspec.json.Decoder(list[msgspec.Raw])
_value = msgspec.json.Decoder(float_hook=Number)


def unwrap(payload: bytes | None, key: bytes | None = None) -> Unwrapped:
    """Unwrap a record's change event.

    A JSON ``null`` is a tombstone. The fields of a tombstone, and of a delete without ``before``,
    are those of the record's ``key``, a JSON object with or without its schema.
    """
    try:
        event, schema = _read(payload)
    except _BROKEN:
        return Unwrapped(refusal=_NO_EVENT)
    if event is None:
        return Unwrapped(_row_of_key(key) or b"{}", skipped="payload: a tombstone")
    op, source = event.op, event.source or _Source()
    time = _instant(source.ts_us, source.ts_ms) or _instant(event.ts_us, event.ts_ms)
    change = Unwrapped(op=op, source_time=time, source_position=_position(source))
    if op == _MESSAGE:
        return change._replace(skipped="payload: op m has no row")
    if op not in _ROW_OPS:
        unknown = f"payload: op {op[:_MOST_LETTERS]} is not known"
        return change._replace(refusal=_TRUNCATED if op == _TRUNCATE else unknown)
    image = _ROW_OPS[op]
    row = bytes(getattr(event, image)) or b"null"
    if row == b"null":
        found = _row_of_key(key) if op == _DELETE else None
        missing = f"payload: op {op} without {image}"
        return change._replace(row=found) if found else change._replace(refusal=missing)
    return _with_row(change, row, schema, image)


def _read(payload: bytes | None) -> tuple[_Event | None, bytes]:
    """Return the event, None for a tombstone, and the JSON of its schema; or raise."""
    if payload is None or is_too_deep(payload):
        raise ValueError(_NO_EVENT)
    message = _message.decode(payload)
    event: _Event | None = message
    schema = b""
    if message is not None and message.op is None and bytes(message.payload):
        event, schema = _event.decode(message.payload), bytes(message.schema)
    if event is not None and not isinstance(event.op, str):
        raise ValueError(_NO_EVENT)
    return event, schema


def _with_row(change: Unwrapped, row: bytes, schema: bytes, image: str) -> Unwrapped:
    """Add the row, converted by the message's schema, without the values that were not sent."""
    try:
        convert = _converters(schema).get(image)
    except (*_BROKEN, KeyError, AttributeError):
        return change._replace(refusal=_NO_SCHEMA)
    try:
        unavailable: tuple[str, ...] = ()
        traces = _TRACES if change.op in _FIRST_OPS else _TRACES_IN_UPDATES
        if any(map(row.__contains__, traces)):
            # Before the conversion, which would make times of the numbers in an array.
            row, unavailable = _without_unavailable(row)
        row = row if convert is None else convert(row)
    except _BROKEN:
        return change._replace(refusal=_NO_ROW)
    # A delete needs no other value than the key's.
    return change._replace(row=row, unavailable=() if change.op == _DELETE else unavailable)


def _without_unavailable(row: bytes) -> tuple[bytes, tuple[str, ...]]:
    fields = _fields.decode(row)
    found = tuple(name for name, raw in fields.items() if _is_unavailable(_value.decode(raw)))
    kept = {name: raw for name, raw in fields.items() if name not in found}
    return msgspec.json.encode(kept), found


def _is_unavailable(value: Any) -> bool:
    """Return whether a value of a row, as JSON, is one that the connector did not send."""
    if isinstance(value, list) and len(value) == len(_PLACEHOLDER):
        return [*map(_code, value)] == [*_PLACEHOLDER]
    if isinstance(value, dict) and "wkb" in value:
        coordinates = [_code(value.get(axis)) for axis in "xy"]
        return coordinates == [_NOWHERE, _NOWHERE] or value["wkb"] in _NO_POINTS
    return value in _UNAVAILABLE


def _code(item: Any) -> Any:
    """Return a number, also of a decimal of one byte; anything else as it is."""
    if isinstance(item, dict):
        item = item.get("value")
    if type(item) is Number:
        return float(item)
    return _BYTES.get(item, item) if isinstance(item, str) else item


def _row_of_key(key: bytes | None) -> bytes | None:
    """Return the fields of a record's key as a JSON object; None if it is none."""
    if key is None or is_too_deep(key):
        return None
    try:
        fields = _fields.decode(key)
        if fields.keys() != {"schema", "payload"}:
            return key
        row = bytes(fields["payload"])
        convert = _converter(_schema_of(bytes(fields["schema"])))
        _fields.decode(row)
        return row if convert is None else convert(row)
    except (*_BROKEN, KeyError, AttributeError):
        return None


def _instant(micros: Any, millis: Any) -> int | None:
    """Return microseconds since the epoch; None if unknown, which old snapshots write as 0."""
    found = micros if type(micros) is int else None
    if found is None and type(millis) is int:
        found = millis * 1000
    return found if found and abs(found) < _MOST_MICROS else None


def _position(source: _Source) -> str | None:
    """Return a text that orders the changes of one database; None if the source has none.

    PostgreSQL: the LSN. MySQL and MariaDB: number of the binary log, position, row of the event.
    Numbers are padded to one length, so that texts compare as the numbers do.
    """
    if type(source.lsn) is int and source.lsn >= 0:
        return f"{source.lsn:020d}"
    if isinstance(source.file, str) and type(source.pos) is int and source.pos >= 0:
        number = source.file.rpartition(".")[2]
        row = source.row if type(source.row) is int and source.row >= 0 else 0
        if number.isascii() and number.isdigit() and len(number) <= 10:
            return f"{int(number):010d}:{source.pos:020d}:{row:010d}"
    return None


# Conversion of values by the message's schema.

_Convert = Callable[[bytes], bytes]


@lru_cache(_SCHEMAS)
def _converters(schema: bytes) -> Mapping[str, _Convert | None]:
    """Return how to convert ``before`` and ``after``, None if no conversion is needed."""
    parsed = _schema_of(schema)
    images = {field["field"]: field for field in parsed.get("fields") or ()}
    return {name: _converter(images.get(name, {})) for name in ("before", "after")}


def _schema_of(schema: bytes) -> dict[str, Any]:
    parsed = msgspec.json.decode(schema) if schema else None
    return {} if parsed is None else msgspec.convert(parsed, dict[str, Any])


def _converter(schema: Mapping[str, Any]) -> _Convert | None:
    """Return how to convert the JSON of a value with this schema; None if none is needed."""
    name, kind = schema.get("name"), schema.get("type")
    if name == "org.apache.kafka.connect.data.Decimal":
        scale = int((schema.get("parameters") or {})["scale"])
        return partial(_scalar, partial(_decimal, scale=scale))
    if isinstance(name, str) and name in _LOGICAL:
        return partial(_scalar, _LOGICAL[name])
    if kind == "struct":
        found = {field["field"]: _converter(field) for field in schema["fields"]}
        wanted = {field: convert for field, convert in found.items() if convert is not None}
        return partial(_object, wanted) if wanted else None
    inner = schema.get("items" if kind == "array" else "values")
    convert = _converter(inner) if isinstance(inner, dict) else None
    if convert is None:
        return None
    return partial(_array, convert) if kind == "array" else partial(_map, convert)


def _object(converts: Mapping[str, _Convert], written: bytes) -> bytes:
    if written == b"null":
        return written
    fields = _fields.decode(written)
    for name in fields.keys() & converts.keys():
        fields[name] = msgspec.Raw(converts[name](bytes(fields[name])))
    return msgspec.json.encode(fields)


def _map(convert: _Convert, written: bytes) -> bytes:
    if not written.startswith(b"{"):
        # Null, or a map whose keys are no texts: a list of pairs.
        return written
    fields = _fields.decode(written)
    return msgspec.json.encode(
        {name: msgspec.Raw(convert(bytes(raw))) for name, raw in fields.items()}
    )


def _array(convert: _Convert, written: bytes) -> bytes:
    if written == b"null":
        return written
    return msgspec.json.encode([msgspec.Raw(convert(bytes(raw))) for raw in _items.decode(written)])


def _scalar(to_text: Callable[[Any], str | None], written: bytes) -> bytes:
    text = to_text(_value.decode(written))
    return written if text is None else msgspec.json.encode(text)


def _decimal(value: Any, *, scale: int) -> str | None:
    """Return a decimal's digits from the base64 of its unscaled value."""
    if not isinstance(value, str) or type(value) is Number or abs(scale) > _MOST_SCALE:
        return None
    try:
        unscaled = binascii.a2b_base64(value, strict_mode=True)
    except ValueError:
        return None
    if not unscaled or len(unscaled) > _MOST_BYTES:
        return None
    number = int.from_bytes(unscaled, "big", signed=True)
    return format(Decimal(f"{number}e{-scale}"), "f")


def _variable_decimal(value: Any) -> str | None:
    if not isinstance(value, dict) or type(value.get("scale")) is not int:
        return None
    return _decimal(value.get("value"), scale=value["scale"])


def _date(value: Any) -> str | None:
    try:
        return date.fromordinal(_EPOCH_DAY + value).isoformat() if type(value) is int else None
    except (ValueError, OverflowError):
        return None


def _timestamp(nanos: int, value: Any) -> str | None:
    """Return a time without zone from a count of units since the epoch, each of ``nanos`` ns."""
    if type(value) is not int:
        return None
    micros, rest = divmod(value * nanos, 1000)
    try:
        moment = _EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        return None
    if not rest:
        return moment.isoformat()
    return f"{moment.isoformat(timespec='microseconds')}{rest:03d}"


def _time(nanos: int, value: Any) -> str | None:
    """Return a time of day; MySQL's may also be ``-01:30:00`` or ``25:00:00``."""
    if type(value) is not int or abs(value) > _MOST_MICROS:
        return None
    days, rest = divmod(abs(value) * nanos, _DAY_NANOS)
    text = (_timestamp(1, rest) or "").partition("T")[2]
    return f"{'-' if value < 0 else ''}{int(text[:2]) + 24 * days:02}{text[2:]}"


def _without_zone(value: Any) -> str | None:
    return value.removesuffix("Z") if isinstance(value, str) else None


# By the name in a schema. Other types are written as their text or number already.
_LOGICAL: dict[str, Callable[[Any], str | None]] = {
    "io.debezium.data.VariableScaleDecimal": _variable_decimal,
    "io.debezium.time.Date": _date,
    "org.apache.kafka.connect.data.Date": _date,
    "io.debezium.time.Timestamp": partial(_timestamp, 1_000_000),
    "org.apache.kafka.connect.data.Timestamp": partial(_timestamp, 1_000_000),
    "io.debezium.time.MicroTimestamp": partial(_timestamp, 1000),
    "io.debezium.time.NanoTimestamp": partial(_timestamp, 1),
    "io.debezium.time.Time": partial(_time, 1_000_000),
    "org.apache.kafka.connect.data.Time": partial(_time, 1_000_000),
    "io.debezium.time.MicroTime": partial(_time, 1000),
    "io.debezium.time.NanoTime": partial(_time, 1),
    **{f"io.debezium.time.Iso{kind}": _without_zone for kind in ("Date", "Time", "Timestamp")},
}


# The envelope's columns among the values; `CHANGE_COLUMNS` of the config has their SQL types.
_OWN = {
    "op": pa.string(),
    "source_time": pa.timestamp("us", tz="UTC"),
    "source_position": pa.string(),
}


class ChangeDecoder:
    """Decodes change events into the Arrow type ``type``.

    That of the row's decoder, with ``op``, ``source_time`` and ``source_position`` among the
    values, and ``skipped`` (whether the record is filtered) and ``refusal`` (why it could not be
    unwrapped, else null) beside them.
    """

    def __init__(self, rows: Decoder) -> None:
        """Store the decoder of the rows."""
        self.rows = rows
        types = {field.name: field.type for field in rows.type}
        self._values = pa.struct([*types["values"], *_OWN.items()])
        types |= {"values": self._values, "skipped": pa.bool_(), "refusal": pa.string()}
        self.type: pa.StructType = pa.struct([*types.items()])

    def decode(self, payloads: pa.Array, keys: pa.Array) -> pa.StructArray:
        """Decode records, given their payloads and keys, both binary."""
        pairs = zip(payloads.to_pylist(), keys.to_pylist(), strict=True)
        changes = [unwrap(payload, key) for payload, key in pairs]
        decoded = self.rows.decode(pa.array([change.row for change in changes], pa.binary()))
        is_row, values, broken, unknown = decoded.flatten()
        refusals = [
            change.refusal or (None if parsed or change.skipped else _NO_ROW)
            for change, parsed in zip(changes, is_row.to_pylist(), strict=True)
        ]
        own = [
            pa.array([getattr(change, name) for change in changes], kind)
            for name, kind in _OWN.items()
        ]
        columns = [
            pa.array([refusal is None for refusal in refusals], pa.bool_()),
            pa.StructArray.from_arrays([*values.flatten(), *own], fields=list(self._values)),
            self._with_reasons(broken, changes),
            unknown,
            pa.array([change.skipped is not None for change in changes], pa.bool_()),
            pa.array(refusals, pa.string()),
        ]
        return pa.StructArray.from_arrays(columns, fields=list(self.type))

    def _with_reasons(self, broken: pa.Array, changes: Sequence[Unwrapped]) -> pa.Array:
        """Add a reason for each declared field that was not sent, and for a record without row."""
        if not any(change.unavailable or change.skipped for change in changes):
            return broken
        declared = {field.name for field in self.rows.fields}
        added = [
            [f"{name}: {_NOT_SENT}" for name in change.unavailable if name in declared]
            + ([change.skipped] if change.skipped else [])
            for change in changes
        ]
        lists = [[*old, *new] for old, new in zip(broken.to_pylist(), added, strict=True)]
        return pa.array(lists, broken.type)
