"""Convert Arrow arrays to JSON text with exact values, a column at a time.

Rows are not converted to Python objects, except values that need escapes, base64 or plain digits.
Binary becomes base64, and what JSON numbers cannot express, NaN and infinities, becomes text: the
decoder of payloads expects both so. Times are ISO 8601 with microseconds, or with nanoseconds where
a value has some; those with a zone are written in UTC, with ``Z``.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from decimal import Decimal
from itertools import repeat
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

_BINARY = pa.binary()
_NULL = pa.scalar(b"null", _BINARY)
_ODD_TEXT = r'["\\\x00-\x1f]'
_ODD_BYTES = re.compile(_ODD_TEXT.encode())
_SHORT = {b'"': b'\\"', b"\\": b"\\\\", b"\n": b"\\n", b"\r": b"\\r", b"\t": b"\\t"}


class UnsupportedTypeError(ValueError):
    """An Arrow type has no JSON equivalent; the message names the type."""


def to_json_objects(
    columns: Sequence[pa.Array], names: Sequence[str], finer: Sequence[pa.Array | None] = ()
) -> pa.Array:
    """Return one JSON object per row, as an array of bytes.

    Args:
        columns: Of equal length.
        names: The members' names.
        finer: Optional; for each column None, or the same times in nanoseconds modulo 2^64, where
            ``columns`` has them in microseconds. Such times are instants.

    Raises:
        UnsupportedTypeError: A column has a type without JSON equivalent.
    """
    parts: list[Any] = []
    for number, (name, column, fine) in enumerate(
        zip(names, columns, finer or repeat(None), strict=False)
    ):
        opening = b"," if number else b"{"
        parts += [pa.scalar(opening + text_to_json(name.encode()) + b":"), _json(column, fine)]
    return _joined(*parts, pa.scalar(b"}"))


def text_to_json(text: bytes) -> bytes:
    """Return UTF-8 text as a JSON string; invalid bytes are kept."""
    return b'"' + _ODD_BYTES.sub(_escape, text) + b'"'


def _escape(found: re.Match[bytes]) -> bytes:
    char = found[0]
    return _SHORT.get(char) or b"\\u%04x" % ord(char)


def _json(column: pa.Array, finer: pa.Array | None = None) -> pa.Array:
    """Return the JSON text of each value; null values are the text ``null``."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _json(column.dictionary_decode())
    if isinstance(kind, pa.BaseExtensionType):
        if kind.extension_name == "arrow.uuid":
            return pc.fill_null(_by_value(column.storage, _uuid), _NULL)
        return _json(column.storage, finer)
    if pa.types.is_null(kind):
        return pa.repeat(_NULL, len(column))
    convert = next((convert for fits, convert in _CONVERTERS if fits(kind)), None)
    if convert is None:
        raise UnsupportedTypeError(f"values of type {kind} cannot be converted to JSON")
    return pc.fill_null(convert(column, finer), _NULL)


def _joined(*parts: Any) -> pa.Array:
    """Concatenate texts row by row; null if one of them is null."""
    return pc.binary_join_element_wise(*parts, pa.scalar(b""))


def _quoted(texts: pa.Array) -> pa.Array:
    return _joined(pa.scalar(b'"'), texts, pa.scalar(b'"'))


def _bytes_of(column: pa.Array) -> pa.Array:
    """Return a column's values in Arrow's text format."""
    return column.cast(pa.string()).cast(_BINARY)


def _by_value(column: pa.Array, convert: Callable[[Any], bytes]) -> pa.Array:
    texts = [None if value is None else convert(value) for value in column.to_pylist()]
    return pa.array(texts, _BINARY)


def _replaced(texts: pa.Array, chosen: pa.Array, convert: Callable[[Any], bytes]) -> pa.Array:
    """Convert the chosen values in Python; ``texts`` are JSON, or are replaced."""
    chosen = pc.fill_null(chosen, False)
    return pc.replace_with_mask(texts, chosen, _by_value(texts.filter(chosen), convert))


def _plain(column: pa.Array, _: object) -> pa.Array:
    return _bytes_of(column)


def _text(column: pa.Array, _: object) -> pa.Array:
    values = column.cast(_BINARY)
    is_odd = pc.match_substring_regex(values, _ODD_TEXT)
    quoted = _quoted(values)
    if not pc.any(is_odd).as_py():
        return quoted
    return _replaced(quoted, is_odd, lambda text: text_to_json(text[1:-1]))


def _base64(column: pa.Array, _: object) -> pa.Array:
    return _quoted(_by_value(column, lambda value: binascii.b2a_base64(value, newline=False)))


def _uuid(value: bytes) -> bytes:
    return b'"%s"' % str(UUID(bytes=value)).encode()


def _floating(column: pa.Array, _: object) -> pa.Array:
    # Widened, because the shortest digits of a 32-bit number are not its exact value.
    wide = column.cast(pa.float32()) if pa.types.is_float16(column.type) else column
    texts = _bytes_of(wide.cast(pa.float64()))
    texts = pc.replace_substring_regex(texts, r"^(-?[0-9]+)$", r"\1.0")
    return _replaced(texts, pc.invert(pc.is_finite(wide)), _not_finite)


def _not_finite(text: bytes) -> bytes:
    return {b"inf": b'"Infinity"', b"-inf": b'"-Infinity"'}.get(text, b'"NaN"')


def _decimal(column: pa.Array, _: object) -> pa.Array:
    texts = _bytes_of(column)
    # Small and large ones have an exponent, which the decoder would take for a double.
    has_exponent = pc.match_substring(texts, "E")
    return _replaced(texts, has_exponent, lambda text: f"{Decimal(text.decode()):f}".encode())


def _quoted_plain(column: pa.Array, _: object) -> pa.Array:
    return _quoted(_bytes_of(column))


def _duration(column: pa.Array, _: object) -> pa.Array:
    return _bytes_of(column.view(pa.int64()))


def _timestamp(column: pa.Array, finer: pa.Array | None) -> pa.Array:
    unit, is_instant = column.type.unit, column.type.tz is not None or finer is not None
    times = column.view(pa.timestamp(unit))
    nanos = None if finer is None else finer.view(pa.int64())
    if unit == "ns":
        nanos = times.view(pa.int64())
        times = pc.floor_temporal(times, unit="microsecond").cast(pa.timestamp("us"))
    elif unit != "us":
        # Further from 1970 than microseconds reach, the text has fewer digits.
        with suppress(pa.ArrowInvalid):
            times = times.cast(pa.timestamp("us"))
    texts = pc.replace_substring(_bytes_of(times), " ", "T", max_replacements=1)
    if nanos is not None:
        # Unchecked: both wrap around alike where nanoseconds overflow.
        rest = pc.subtract(nanos, pc.multiply(times.view(pa.int64()), 1000))
        digits = pc.utf8_lpad(rest.cast(pa.string()), 3, "0").cast(_BINARY)
        texts = pc.if_else(pc.equal(rest, 0), texts, _joined(texts, digits))
    return _quoted(_joined(texts, pa.scalar(b"Z")) if is_instant else texts)


def _struct(column: pa.StructArray, finer: pa.StructArray | None) -> pa.Array:
    if not column.type.num_fields:
        objects = pa.repeat(pa.scalar(b"{}"), len(column))
    else:
        names = [field.name for field in column.type]
        fine = () if finer is None else finer.flatten()
        objects = to_json_objects(column.flatten(), names, fine)
    return pc.if_else(column.is_valid(), objects, pa.scalar(None, _BINARY))


def _list(column: Any, finer: Any) -> pa.Array:
    items = _json(column.flatten(), None if finer is None else finer.flatten())
    return _between(b"[", _regrouped(column, items), b"]")


def _map(column: pa.MapArray, finer: pa.MapArray | None) -> pa.Array:
    entries = _entries(column)
    keys, values = entries.flatten().flatten()
    fine = None if finer is None else _entries(finer).flatten().flatten()[1]
    if pa.types.is_nested(keys.type):
        raise UnsupportedTypeError(f"a map with keys of type {keys.type} cannot be JSON")
    names = _json(keys)
    names = pc.if_else(pc.starts_with(names, '"'), names, _quoted(names))
    members = _joined(names, pa.scalar(b":"), _json(values, fine))
    return _between(b"{", _regrouped(entries, members), b"}")


def _entries(column: pa.MapArray) -> pa.ListArray:
    kind = column.type
    entry = pa.struct([("key", kind.key_type), ("value", kind.item_type)])
    return column.cast(pa.list_(entry))


def _regrouped(lists: Any, items: pa.Array) -> pa.Array:
    """Join the items of each list; those of null lists are not among the items."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0).cast(pa.int64())
    offsets = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(lengths)])
    joined = pc.binary_join(pa.LargeListArray.from_arrays(offsets, items), b",")
    return pc.if_else(lists.is_valid(), joined, pa.scalar(None, _BINARY))


def _between(opening: bytes, texts: pa.Array, closing: bytes) -> pa.Array:
    return _joined(pa.scalar(opening), texts, pa.scalar(closing))


def _any_of(*tests: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda kind: any(test(kind) for test in tests)


_T = pa.types
# The first test that fits decides.
_CONVERTERS: tuple[tuple[Callable[[Any], bool], Callable[[Any, Any], pa.Array]], ...] = (
    (_any_of(_T.is_string, _T.is_large_string, _T.is_string_view), _text),
    (_any_of(_T.is_integer, _T.is_boolean), _plain),
    (_T.is_floating, _floating),
    (_T.is_decimal, _decimal),
    (_T.is_timestamp, _timestamp),
    (_any_of(_T.is_date, _T.is_time), _quoted_plain),
    (_T.is_duration, _duration),
    (
        _any_of(_T.is_binary, _T.is_large_binary, _T.is_fixed_size_binary, _T.is_binary_view),
        _base64,
    ),
    (_T.is_struct, _struct),
    (_T.is_map, _map),
    (_any_of(_T.is_list, _T.is_large_list, _T.is_fixed_size_list), _list),
)
