"""Convert Arrow arrays to JSON text with exact values, a column at a time.

A column becomes parts: texts of each row, and texts that are the same for all rows. The parts of
all columns are concatenated once. Rows are not converted to Python objects, except values with
control characters, and those that need base64 or plain digits.

Binary becomes base64, and what JSON numbers cannot express, NaN and infinities, becomes text: the
decoder of payloads expects both so. Timestamps are ISO 8601 with microseconds, or with nanoseconds
where a value has some; those with a zone are written in UTC, with ``Z``. Times of day have as many
digits as their unit.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from itertools import repeat
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_BINARY = pa.binary()
_NULL = b"null"
_CONTROL_TEXT = r"[\x00-\x1f]"
_CONTROL = re.compile(_CONTROL_TEXT.encode())
_ODD = re.compile(rb'["\\\x00-\x1f]')
_COMMON = bytes(letter for letter in range(256) if not _ODD.match(bytes([letter])))
# The backslash first: the others are replaced by texts with one.
_SHORT = {b"\\": b"\\\\", b'"': b'\\"', b"\n": b"\\n", b"\r": b"\\r", b"\t": b"\\t"}
_NOT_FINITE = {b"inf": b'"Infinity"', b"-inf": b'"-Infinity"'}
_MICROSECONDS = {"s": 1_000_000, "ms": 1000, "us": 1}
# Arrow writes no time after the year 32767. Further ones, as far before 1970 too, are text that no
# TIMESTAMP takes, as those of Avro are.
_MOST_MICROSECONDS = 971_890_963_199_999_999
_BLANK_TO_T = bytes.maketrans(b" ", b"T")
# What is concatenated: arrays with a text of each row, and bytes, which are the same for all rows.
_Parts = list[Any]


class UnsupportedTypeError(ValueError):
    """An Arrow type has no JSON equivalent; the message names the type."""


def to_json_objects(
    columns: Sequence[pa.Array], names: Sequence[str], finer: Sequence[pa.Array | None] = ()
) -> pa.Array:
    """Return one JSON object per row, as an array of bytes.

    Args:
        columns: Of equal length.
        names: The members' names.
        finer: Optional; for each column None, or the same column with some of its times in
            nanoseconds modulo 2^64, where ``columns`` has them in microseconds. Such times are
            instants.

    Raises:
        UnsupportedTypeError: A column has a type without JSON equivalent.
    """
    return _joined(*_object(columns, names, finer))


def _object(
    columns: Sequence[pa.Array], names: Sequence[str], finer: Sequence[pa.Array | None]
) -> _Parts:
    parts: _Parts = []
    for number, (name, column, fine) in enumerate(
        zip(names, columns, finer or repeat(None), strict=False)
    ):
        opening = b"," if number else b"{"
        parts += [opening + b'"%b":' % _ODD.sub(_escape, name.encode()), *_json(column, fine)]
    return [*parts, b"}"]


def _escape(found: re.Match[bytes]) -> bytes:
    char = found[0]
    return _SHORT.get(char) or b"\\u%04x" % ord(char)


def _json(column: pa.Array, finer: pa.Array | None = None) -> _Parts:
    """Return the JSON text of each value, in parts; null values are the text ``null``."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _json(column.dictionary_decode())
    if isinstance(kind, pa.BaseExtensionType):
        if kind.extension_name != "arrow.uuid":
            return _json(column.storage, finer)
        return [
            pc.fill_null(
                _by_value(column.storage, lambda of: b'"%b"' % str(UUID(bytes=of)).encode()), _NULL
            )
        ]
    if pa.types.is_null(kind):
        return [pa.repeat(_NULL, len(column))]
    convert = next((convert for fits, convert in _CONVERTERS if fits(kind)), None)
    if convert is None:
        raise UnsupportedTypeError(f"values of type {kind} cannot be converted to JSON")
    parts = convert(column, finer)
    return [pc.fill_null(_joined(*parts), _NULL)] if column.null_count else parts


def _joined(*parts: Any) -> pa.Array:
    """Concatenate texts row by row; null if one of them is null."""
    merged: _Parts = []
    for part in parts:
        if isinstance(part, bytes) and merged and isinstance(merged[-1], bytes):
            merged[-1] += part
        else:
            merged.append(part)
    if len(merged) == 1:
        return merged[0]
    texts = [pa.scalar(part, _BINARY) if isinstance(part, bytes) else part for part in merged]
    return pc.binary_join_element_wise(*texts, pa.scalar(b"", _BINARY))


def _bytes_of(column: pa.Array) -> pa.Array:
    """Return a column's values in Arrow's text format."""
    return column.cast(pa.string()).cast(_BINARY)


def _letters(texts: pa.Array) -> bytes:
    """Return all texts of a binary array, one after another; null ones may have any bytes."""
    if not len(texts):
        return b""
    offsets = np.frombuffer(texts.buffers()[1], np.int32)
    begin, end = offsets[texts.offset].item(), offsets[texts.offset + len(texts)].item()
    return texts.buffers()[2].slice(begin, end - begin).to_pybytes() if end > begin else b""


def _by_value(column: pa.Array, convert: Callable[[Any], bytes]) -> pa.Array:
    texts = [None if value is None else convert(value) for value in column.to_pylist()]
    return pa.array(texts, _BINARY)


def _replaced(texts: pa.Array, chosen: pa.Array, convert: Callable[[Any], bytes]) -> pa.Array:
    """Convert the chosen values in Python."""
    if not pc.any(chosen).as_py():
        return texts
    chosen = pc.fill_null(chosen, False)
    return pc.replace_with_mask(texts, chosen, _by_value(texts.filter(chosen), convert))


def _plain(column: pa.Array, _: object) -> _Parts:
    return [_bytes_of(column)]


def _text(column: pa.Array, _: object) -> _Parts:
    values = column.cast(_BINARY)
    odd = set(_letters(values).translate(None, _COMMON))
    for letter, escaped in _SHORT.items():
        if letter[0] in odd:
            values = pc.replace_substring(values, letter, escaped)
    if odd - set(b"".join(_SHORT)):
        has_others = pc.match_substring_regex(values, _CONTROL_TEXT)
        values = _replaced(values, has_others, lambda text: _CONTROL.sub(_escape, text))
    return [b'"', values, b'"']


def _base64(column: pa.Array, _: object) -> _Parts:
    texts = _by_value(column, lambda value: binascii.b2a_base64(value, newline=False))
    return [b'"', texts, b'"']


def _floating(column: pa.Array, _: object) -> _Parts:
    # Widened, because the shortest digits of a 32-bit number are not its exact value.
    wide = column.cast(pa.float32()) if pa.types.is_float16(column.type) else column
    wide = wide.cast(pa.float64())
    texts = _bytes_of(wide)
    if pc.any(pc.equal(wide, pc.floor(wide))).as_py():
        texts = pc.replace_substring_regex(texts, r"^(-?[0-9]+)$", r"\1.0")
    return [
        _replaced(
            texts, pc.invert(pc.is_finite(wide)), lambda text: _NOT_FINITE.get(text, b'"NaN"')
        )
    ]


def _decimal(column: pa.Array, _: object) -> _Parts:
    texts = _bytes_of(column)
    # Small and large ones have an exponent, which the decoder would take for a double.
    has_exponent = pc.match_substring(texts, "E")
    return [_replaced(texts, has_exponent, lambda text: f"{Decimal(text.decode()):f}".encode())]


def _timestamp(column: pa.Array, finer: pa.Array | None) -> _Parts:
    if finer is not None and finer.type == column.type:
        # Within a nested column that has finer times elsewhere.
        finer = None
    unit, is_instant = column.type.unit, column.type.tz is not None or finer is not None
    counts = column.view(pa.timestamp(unit)).view(pa.int64())
    nanos = None if finer is None else finer.view(pa.int64())
    is_far = None
    if unit == "ns":
        nanos = counts
        micros = pc.divide(counts, 1000)
        # Rounded down, also before 1970.
        is_less = pc.less(pc.subtract(counts, pc.multiply(micros, 1000)), 0)
        micros = pc.subtract(micros, is_less.cast(pa.int64()))
    else:
        factor = _MICROSECONDS[unit]
        most = _MOST_MICROSECONDS // factor
        is_far = pc.or_(pc.greater(counts, most), pc.less(counts, -most))
        micros = pc.multiply(pc.if_else(is_far, 0, counts), factor)
    texts = _with_t(_bytes_of(micros.view(pa.timestamp("us"))))
    if nanos is not None:
        # Unchecked: both wrap around alike where nanoseconds overflow.
        rest = pc.subtract(nanos, pc.multiply(micros, 1000))
        digits = pc.utf8_lpad(rest.cast(pa.string()), 3, "0").cast(_BINARY)
        texts = pc.if_else(pc.equal(rest, 0), texts, _joined(texts, digits))
    ending = b'Z"' if is_instant else b'"'
    if is_far is None or not pc.any(is_far).as_py():
        return [b'"', texts, ending]
    plain = _by_value(counts, lambda count: b'"%d microseconds"' % (count * factor))
    return [pc.if_else(is_far, plain, _joined(b'"', texts, ending))]


def _with_t(texts: pa.Array) -> pa.Array:
    """Replace the blank between date and time, the only one in each text."""
    valid, offsets, letters = texts.buffers()
    if letters is None:
        return texts
    changed = pa.py_buffer(letters.to_pybytes().translate(_BLANK_TO_T))
    return pa.Array.from_buffers(_BINARY, len(texts), [valid, offsets, changed], -1, texts.offset)


def _struct(column: pa.StructArray, finer: pa.StructArray | None) -> _Parts:
    if not column.type.num_fields:
        return [pc.if_else(column.is_valid(), pa.scalar(b"{}"), pa.scalar(None, _BINARY))]
    names = [field.name for field in column.type]
    fine = () if finer is None else finer.flatten()
    parts = _object(column.flatten(), names, fine)
    if not column.null_count:
        return parts
    return [pc.if_else(column.is_valid(), _joined(*parts), pa.scalar(None, _BINARY))]


def _list(column: Any, finer: Any) -> _Parts:
    items = _joined(*_json(column.flatten(), None if finer is None else finer.flatten()))
    return [b"[", _regrouped(column, items), b"]"]


def _map(column: pa.MapArray, finer: pa.MapArray | None) -> _Parts:
    entries = _entries(column)
    keys, values = entries.flatten().flatten()
    fine_keys, fine = (None, None) if finer is None else _entries(finer).flatten().flatten()
    if pa.types.is_nested(keys.type):
        raise UnsupportedTypeError(f"a map with keys of type {keys.type} cannot be JSON")
    names = _joined(*_json(keys, fine_keys))
    names = pc.if_else(pc.starts_with(names, '"'), names, _joined(b'"', names, b'"'))
    members = _joined(names, b":", *_json(values, fine))
    return [b"{", _regrouped(entries, members), b"}"]


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


def _any_of(*tests: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda kind: any(test(kind) for test in tests)


_T = pa.types
# The first test that fits decides.
_CONVERTERS: tuple[tuple[Callable[[Any], bool], Callable[[Any, Any], _Parts]], ...] = (
    (_any_of(_T.is_string, _T.is_large_string, _T.is_string_view), _text),
    (_any_of(_T.is_integer, _T.is_boolean), _plain),
    (_T.is_floating, _floating),
    (_T.is_decimal, _decimal),
    (_T.is_timestamp, _timestamp),
    (_any_of(_T.is_date, _T.is_time), lambda column, _: [b'"', _bytes_of(column), b'"']),
    (_T.is_duration, lambda column, _: [_bytes_of(column.view(pa.int64()))]),
    (
        _any_of(_T.is_binary, _T.is_large_binary, _T.is_fixed_size_binary, _T.is_binary_view),
        _base64,
    ),
    (_T.is_struct, _struct),
    (_T.is_map, _map),
    (_any_of(_T.is_list, _T.is_large_list, _T.is_fixed_size_list), _list),
)
