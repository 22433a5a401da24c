"""Read the records of an Avro container file as JSON payloads.

The container is read here, with every block's marker, checksum and record count compared, and
fastavro reads each datum. Logical types are replaced by own ones, whose readers return JSON text:
fastavro's return Python values, which lack nanoseconds and years beyond 9999.
"""

from __future__ import annotations

import bz2
import json
import lzma
import math
import zlib
from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime, timedelta
from functools import lru_cache
from io import BytesIO
from typing import Any
from uuid import UUID

import fastavro
import fastavro.read
import msgspec
import pyarrow as pa

from tidelake.bronze.file_format import BrokenFileError, Chunk

_MAGIC = b"Obj\x01"
_MARKER_BYTES = 16
_MOST_BYTES_OF_A_NUMBER = 10
# When a chunk is handed on: records, and uncompressed bytes. A block may hold more.
_CHUNK_RECORDS, _CHUNK_BYTES = 8192, 8 << 20
# How deep records, arrays and maps may lie in each other. fastavro recurses in C without a limit,
# so several thousand levels end the process.
_MOST_DEPTH = 200
# Longer decimals are not written as digits: Python refuses more than 4,300 of them.
_MOST_BITS_OF_A_DECIMAL = 14_000
# Nor those with more digits behind the point, or zeros before it: 10 to this power is longer.
_MOST_SCALE = 4_300
# A damaged number of records that take no bytes is found nowhere else, and reading would not end.
_MOST_RECORDS_WITHOUT_BYTES = 100_000
# What may take no bytes, beside a fixed type without a size.
_OF_NO_BYTES = ("null", "record", "error")
_PLAIN = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
_ENCODER = msgspec.json.Encoder(decimal_format="number")
# The prefix of the logical types whose readers are registered here.
_OWN = "tidelake-"
_EPOCH = datetime(1970, 1, 1)
_EPOCH_DAY = _EPOCH.toordinal()


def read_avro_container(content: bytes) -> Iterator[Chunk]:
    """Yield an Avro container file's records as JSON with exact values.

    A union's value is written without its branch. Bytes become base64; a decimal its digits, or
    text if they are more than 4,000; a time ISO 8601 with microseconds, or nanoseconds if its type
    has them; a duration an object; NaN and infinities text.

    Raises:
        BrokenFileError: It is not such a file, is truncated or damaged, its codec is unknown, or
            its schema is recursive, has a scale that is no whole number or an array of items that
            take no bytes.
    """
    stream = BytesIO(content)
    schema, codec, marker = _header(stream)
    decompress = _CODECS[codec]
    wanted = fastavro.parse_schema(_with_own_types(schema))
    several = fastavro.parse_schema({"type": "array", "items": wanted})
    chunk: list[bytes] = []
    size = block = 0
    while stream.tell() < len(content):
        block += 1
        try:
            count, data = _number(stream), stream.read(_number(stream))
            if stream.read(_MARKER_BYTES) != marker or count < 0:
                raise BrokenFileError("truncated or damaged")
            data = decompress(data)
            size += len(data)
            records = _read_at_once(data, count, wanted, several)
            for part in [records] if records else _read_singly(data, count, wanted):
                chunk += _encoded(part)
                # Blocks are often small, and rows that are handed on together are faster.
                if len(chunk) >= _CHUNK_RECORDS or size >= _CHUNK_BYTES:
                    yield pa.array(chunk, pa.binary()), {}
                    chunk, size = [], 0
        # Given damaged bytes, fastavro and the codecs raise errors of many kinds. Their texts may
        # contain values.
        except Exception as error:
            why = str(error) if isinstance(error, BrokenFileError) else type(error).__name__
            raise BrokenFileError(f"not a readable Avro file: block {block}: {why}") from error
    if chunk:
        yield pa.array(chunk, pa.binary()), {}


def _read_at_once(data: bytes, count: int, wanted: Any, several: Any) -> list[Any]:
    """Read the records of a block as one Avro array, which takes less time than each of them.

    Returns:
        Nothing if the block is large, damaged or empty.
    """
    if not 0 < count <= _CHUNK_RECORDS:
        return []
    first = BytesIO(data)
    # An array is its number of items, the items, and a zero.
    datum = BytesIO()
    fastavro.schemaless_writer(datum, "long", count)
    datum.write(data + b"\0")
    datum.seek(0)
    try:
        _read(first, wanted)
        if not first.tell():
            # If bytes follow records that take none, they may be read as a number of more items,
            # which would not end.
            return []
        records: list[Any] = _read(datum, several)
    except Exception:
        # Read singly, the block's damage is named.
        return []
    return [] if len(records) != count or datum.read(1) else records


def _read_singly(data: bytes, count: int, wanted: Any) -> Iterator[list[Any]]:
    datum = BytesIO(data)
    for begin in range(0, count, _CHUNK_RECORDS):
        if begin >= _MOST_RECORDS_WITHOUT_BYTES and not datum.tell():
            most = f"{_MOST_RECORDS_WITHOUT_BYTES:,}"
            raise BrokenFileError(
                f"{count:,} records without bytes, of which at most {most} are read"
            )
        yield [_read(datum, wanted) for _ in range(min(_CHUNK_RECORDS, count - begin))]
    if datum.read(1):
        raise BrokenFileError("it has more bytes than its records")


def _read(datum: BytesIO, schema: Any) -> Any:
    return fastavro.schemaless_reader(datum, schema, handle_unicode_errors="surrogateescape")


def _encoded(records: list[Any]) -> list[bytes]:
    """Write records as JSON."""
    try:
        # JSON has no line feeds but those between the records.
        return _ENCODER.encode_lines(records).split(b"\n")[:-1]
    except UnicodeEncodeError:
        return [_encoded_singly(record) for record in records]


def _encoded_singly(record: Any) -> bytes:
    try:
        return _ENCODER.encode(record)
    except UnicodeEncodeError:
        return _ENCODER.encode(_escaped(record))


def datum_reader(schema: Any) -> Callable[[BytesIO], bytes]:
    """Return a function that reads a stream's next datum of a schema as JSON, as in a container.

    Given other bytes, it raises errors of many kinds.

    Raises:
        BrokenFileError: The schema is recursive or nested too deeply, has a scale that is no whole
            number or an array of items that take no bytes.
    """
    wanted = fastavro.parse_schema(_with_own_types(schema))
    if problem := _schema_problem(wanted):
        raise BrokenFileError(problem)
    return lambda stream: _encoded_singly(_read(stream, wanted))


def avro_schema_of(content: bytes) -> Any:
    """Return the writer's schema of an Avro container file.

    Raises:
        BrokenFileError: As :func:`read_avro_container`.
    """
    return _header(BytesIO(content))[0]


def _header(stream: BytesIO) -> tuple[Any, str, bytes]:
    """Read the writer's schema, the codec's name and the marker after each block."""
    if stream.read(len(_MAGIC)) != _MAGIC:
        raise BrokenFileError("it is not an Avro container file")
    try:
        metadata: dict[str, bytes] = {}
        while count := _number(stream):
            if count < 0:
                # The size of the block in bytes follows.
                _number(stream)
            for _ in range(abs(count)):
                name = _exactly(stream, _number(stream)).decode()
                metadata[name] = _exactly(stream, _number(stream))
        marker = _exactly(stream, _MARKER_BYTES)
        schema = json.loads(metadata["avro.schema"])
        problem = _schema_problem(fastavro.parse_schema(_with_own_types(schema)))
    # A damaged schema fails in fastavro with errors of many kinds.
    except Exception as error:
        raise BrokenFileError(f"its Avro header cannot be read: {error!r}") from error
    if problem:
        raise BrokenFileError(problem)
    codec = metadata.get("avro.codec", b"null").decode("utf-8", "replace")
    if codec not in _CODECS:
        known = ", ".join(sorted(_CODECS))
        raise BrokenFileError(f"its codec {codec} is not supported (supported: {known})")
    return schema, codec, marker


def _schema_problem(schema: Any) -> str:
    """Return why data of a parsed schema cannot be read safely, or an empty string."""
    try:
        depth, _ = _measured(schema, {}, "")
    except BrokenFileError as error:
        return str(error)
    if depth <= _MOST_DEPTH:
        return ""
    return (
        f"its types lie in each other {depth:,} levels deep, at most {_MOST_DEPTH:,} are read: "
        "write the inner values as JSON text"
    )


def _measured(schema: Any, named: dict[str, tuple[int, bool]], place: str) -> tuple[int, bool]:
    """Measure a parsed schema.

    Args:
        schema: A type, or the name of one.
        named: Receives the measures of the types with a name.
        place: The names of the fields around the type, with dots between them.

    Returns:
        How many records, arrays and maps lie in each other, and whether a value takes no bytes.

    Raises:
        BrokenFileError: A type holds itself, an array's items take no bytes, or a decimal's scale
            is no whole number.
    """
    if isinstance(schema, list):
        # A union's value begins with the number of its branch.
        return max((_measured(branch, named, place)[0] for branch in schema), default=0), False
    if isinstance(schema, str):
        if schema in named or schema in _PLAIN:
            return named.get(schema, (0, schema == "null"))
        # A name is defined before it is used, so this one is still being defined.
        raise BrokenFileError(
            f"its schema is recursive: {schema} holds itself, so its data may be nested deeper "
            "than can be read. Write the inner values as JSON text, or the file as JSON lines"
        )
    where = f"its field {place}" if place else "its schema"
    if schema.get("logicalType") == f"{_OWN}decimal" and type(schema.get("scale", 0)) is not int:
        raise BrokenFileError(
            f"{where} has a decimal with the scale {json.dumps(schema['scale'])}, which is no "
            "whole number: write the file with the scale of its values"
        )
    inner = [
        _measured(field["type"], named, f"{place}.{field['name']}".removeprefix("."))
        for field in schema.get("fields", ())
    ]
    inner += [_measured(schema[key], named, place) for key in ("items", "values") if key in schema]
    kind, is_empty = schema["type"], all(is_empty for _, is_empty in inner)
    if kind == "array" and is_empty:
        # A damaged number of such items would be read without an end.
        raise BrokenFileError(
            f"{where} has an array whose items take no bytes, so that a damaged number of them is "
            "not found: write their number, or the array as JSON text"
        )
    is_empty = schema["size"] <= 0 if kind == "fixed" else is_empty and kind in _OF_NO_BYTES
    measure = max((depth + 1 for depth, _ in inner), default=0), is_empty
    if "name" in schema:
        named[schema["name"]] = measure
    return measure


def _exactly(stream: BytesIO, length: int) -> bytes:
    data = stream.read(max(length, 0))
    if len(data) != length:
        raise BrokenFileError("truncated or damaged")
    return data


def _number(stream: BytesIO) -> int:
    """Read a zigzag-encoded number."""
    found = 0
    for at in range(_MOST_BYTES_OF_A_NUMBER):
        byte = _exactly(stream, 1)[0]
        found |= (byte & 0x7F) << (7 * at)
        if byte < 0x80:
            return (found >> 1) ^ -(found & 1)
    raise BrokenFileError("a length is damaged")


def _snappy(data: bytes) -> bytes:
    """Decompress a block of snappy, which begins with its length and is followed by a CRC."""
    body, crc = data[:-4], int.from_bytes(data[-4:], "big")
    length, at = 0, 0
    while True:
        length |= (body[at] & 0x7F) << (7 * at)
        at += 1
        if body[at - 1] < 0x80:
            break
    plain: bytes = pa.decompress(body, length, "snappy", asbytes=True)
    if zlib.crc32(plain) != crc:
        raise BrokenFileError("its checksum differs")
    return plain


def _deflate(data: bytes) -> bytes:
    inflater = zlib.decompressobj(-15)
    plain = inflater.decompress(data)
    if not inflater.eof:
        raise BrokenFileError("truncated or damaged")
    return plain


def _zstandard(data: bytes) -> bytes:
    plain: bytes = pa.CompressedInputStream(pa.BufferReader(data), "zstd").read()
    return plain


_CODECS: Mapping[str, Callable[[bytes], bytes]] = {
    "null": bytes,
    "deflate": _deflate,
    "snappy": _snappy,
    "zstandard": _zstandard,
    "bzip2": bz2.decompress,
    "xz": lzma.decompress,
}


def _with_own_types(schema: Any) -> Any:
    """Replace a schema's logical types by those whose readers are registered below."""
    if isinstance(schema, list):
        return [_with_own_types(branch) for branch in schema]
    if isinstance(schema, str):
        return {"type": schema, "logicalType": f"{_OWN}{schema}"} if schema in _FLOATS else schema
    found = dict(schema)
    # A type may be written as {"type": {"type": …}}.
    if isinstance(found.get("type"), dict | list):
        found["type"] = _with_own_types(found["type"])
    for key in ("items", "values"):
        if key in found:
            found[key] = _with_own_types(found[key])
    if "fields" in found:
        # Defaults are of a reader's schema; some writers write invalid ones.
        found["fields"] = [
            {name: value for name, value in field.items() if name != "default"}
            | {"type": _with_own_types(field["type"])}
            for field in found["fields"]
        ]
    logical = found.pop("logicalType", None)
    if found.get("type") in _FLOATS:
        found["logicalType"] = f"{_OWN}{found['type']}"
    elif logical is not None and f"{found.get('type')}-{_OWN}{logical}" in _LOGICAL:
        found["logicalType"] = f"{_OWN}{logical}"
    return found


def _finite(number: float, *_: Any) -> Any:
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def _decimal(data: bytes, schema: Mapping[str, Any], *_: Any) -> msgspec.Raw | str:
    """Write a decimal's digits, also beyond the declared precision; a very long one as text.

    No DECIMAL holds either, so that silver quarantines the row, and the file's others are read.
    A scale below 0, as Kafka Connect has, is the number of zeros behind the digits.
    """
    unscaled, scale = int.from_bytes(data, "big", signed=True), schema.get("scale", 0)
    number = unscaled
    if scale < 0:
        number, scale = unscaled * 10 ** min(-scale, _MOST_SCALE), 0
    if number.bit_length() > _MOST_BITS_OF_A_DECIMAL or scale > _MOST_SCALE:
        return f"unscaled {unscaled:#x}"
    digits = str(abs(number)).rjust(scale + 1, "0")
    text = f"{digits[:-scale]}.{digits[-scale:]}" if scale else digits
    return msgspec.Raw(f"{'-' if unscaled < 0 else ''}{text}".encode())


def _day(days: int, *_: Any) -> str:
    """Write a date; outside the years 1 to 9999, its number of days as text."""
    try:
        return date.fromordinal(days + _EPOCH_DAY).isoformat()
    except (ValueError, OverflowError):
        return f"day {days}"


def _clock(units_a_second: int) -> Callable[..., str]:
    digits = max(len(str(units_a_second)) - 1, 6)

    def read(units: int, *_: Any) -> str:
        seconds, rest = divmod(units, units_a_second)
        fraction = f"{rest * 10**digits // units_a_second:0{digits}}"
        return f"{timedelta(seconds=seconds)!s:0>8}.{fraction}"

    return read


def _instant(units_a_second: int, zone: str) -> Callable[..., str]:
    units_a_minute = 60 * units_a_second
    digits = len(str(units_a_minute))
    # Milliseconds are written as microseconds.
    ending = "000" + zone if units_a_second == 1000 else zone
    is_nanos = units_a_second == 1_000_000_000

    def read(units: int, *_: Any) -> str:
        minute, rest = divmod(units, units_a_minute)
        try:
            begin = _minute(minute)
        except OverflowError:
            # Python's years are 1 to 9999.
            return f"{units * 1_000_000 // units_a_second} microseconds"
        text = f"{rest:0{digits}}"
        if is_nanos and text.endswith("000"):
            text = text[:-3]
        return f"{begin}{text[:2]}.{text[2:]}{ending}"

    return read


@lru_cache(maxsize=4096)
def _minute(minutes: int) -> str:
    """Write a time up to the seconds; times of one file are often close to each other."""
    return (_EPOCH + timedelta(minutes=minutes)).isoformat(timespec="minutes") + ":"


def _duration(data: bytes, *_: Any) -> dict[str, int]:
    parts = (int.from_bytes(data[at : at + 4], "little") for at in (0, 4, 8))
    return dict(zip(("months", "days", "milliseconds"), parts, strict=True))


def _uuid(data: bytes, *_: Any) -> str | bytes:
    # Of another size, it is no uuid.
    return str(UUID(bytes=data)) if len(data) == 16 else data


_UNITS = {"millis": 1000, "micros": 1_000_000, "nanos": 1_000_000_000}
_FLOATS = ("float", "double")
# By Avro type and logical type. A uuid is text already, or a fixed type.
_LOGICAL: dict[str, Callable[..., Any]] = {
    **{f"{kind}-{_OWN}{kind}": _finite for kind in _FLOATS},
    f"bytes-{_OWN}decimal": _decimal,
    f"fixed-{_OWN}decimal": _decimal,
    f"fixed-{_OWN}duration": _duration,
    f"fixed-{_OWN}uuid": _uuid,
    f"int-{_OWN}date": _day,
    f"int-{_OWN}time-millis": _clock(1000),
    f"long-{_OWN}time-micros": _clock(1_000_000),
    **{
        f"long-{_OWN}{kind}-{unit}": _instant(units, zone)
        for kind, zone in (("timestamp", "Z"), ("local-timestamp", ""))
        for unit, units in _UNITS.items()
    },
}
fastavro.read.LOGICAL_READERS.update(_LOGICAL)


def _escaped(value: Any) -> Any:
    """Escape bytes that are not UTF-8, so that silver quarantines the row with them.

    They become lone surrogates, which are no valid JSON for the decoder. As another text, a map's
    key could be that of another entry.
    """
    if isinstance(value, dict):
        entries = (
            json.dumps(name).encode() + b":" + _ENCODER.encode(_escaped(item))
            for name, item in value.items()
        )
        return msgspec.Raw(b"{%b}" % b",".join(entries))
    if isinstance(value, list):
        return [_escaped(item) for item in value]
    return msgspec.Raw(json.dumps(value).encode()) if isinstance(value, str) else value
