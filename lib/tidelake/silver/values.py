"""Convert the values of one payload field to its type, exactly or not at all.

This module defines what "exact" means for each type; with the decoder the file would exceed 500
lines. Arrow casts whole columns of plainly written values; other values are read one by one. The
last part writes numbers and nested values as text.

A number in a string field is formatted by value, like a Java double: 1.10 becomes ``1.1``. A number
that neither a double nor 38 digits represent is refused, because its text would be that of another
number. One that overflows or underflows a double, such as 1e-400, is treated as text: a string
field keeps it, any other type refuses it.
"""

from __future__ import annotations

import binascii
import math
import re
from collections.abc import Callable, Iterable
from datetime import date
from decimal import Decimal
from itertools import accumulate
from types import NoneType
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tidelake.instants import DATE, STAMP

# Deeper objects are refused: how deep Python can parse depends on its stack.
MOST_DEPTH = 500
_NUMBER = re.compile(r"-?([0-9]+)(?:\.([0-9]+))?(?:[eE]([+-]?[0-9]{1,4}))?")
_NOT_ZERO = re.compile(r"-?[0.]*[1-9]")
# Numbers whose digits a double may lose: a fraction with 17 characters in all, 16 digits before an
# exponent (a double keeps 15 for certain), or an exponent below -290 (it keeps fewer there).
_LONG = re.compile(
    r"-?(?:(?=[0-9]*\.[0-9])[0-9.]{17}|[0-9.]{16,}[eE]|[0-9.]+[eE]-0*(?:29[0-9]|3[0-9]{2}))"
)
# Numbers that may not fit 38 digits either.
_LOSSY = re.compile(r"-?(?:[0-9.]{39}|[0-9.]{16,}[eE]|[0-9.]+[eE]-0*(?:29[0-9]|3[0-9]{2}))")
_DATE, _STAMP = re.compile(DATE), re.compile(STAMP)
_MOST_OFFSET_MINUTES = 18 * 60
# Timestamps that Arrow parses exactly as _timestamp does.
_ARROW_STAMP = (
    r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?"
    r"(?:Z|[+-](?:0[0-9]|1[0-7]):[0-5][0-9])$"
)
_BASE64 = re.compile(r"[A-Za-z0-9+/]*={0,2}")
# After an escaped backslash, "u001a" is text.
_CONTROL = re.compile(rb"(?<!\\)((?:\\\\)*\\)(u00[01][0-9a-f])")
# Also one that is not closed, up to the end: to go back in it takes time with the square of its
# length.
_TEXTS_OF_JSON = re.compile(rb'"(?:[^"\\]++|(?s:\\.))*+(?:"|\\?\Z)')

_DAY_MICROS = 86_400_000_000
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_DAYS_A_CYCLE, _YEARS_A_CYCLE = 146_097, 400


class Number(str):
    """A JSON number with a fraction or an exponent, as it was written."""

    __slots__ = ()


class Refused(Exception):
    """A value cannot be converted to its type exactly."""


def is_too_deep(payload: bytes) -> bool:
    """Return whether an object is nested deeper than :data:`MOST_DEPTH`."""
    # Each level takes two characters.
    if len(payload) <= 2 * MOST_DEPTH or payload.count(b"[") + payload.count(b"{") <= MOST_DEPTH:
        return False
    letters = _TEXTS_OF_JSON.sub(b"", payload)
    depths = accumulate((letter in b"[{") - (letter in b"]}") for letter in letters)
    return max(depths, default=0) > MOST_DEPTH


# Columns: cast in Arrow if all values are plainly written, else value by value.


def to_column(values: list[Any], kind: pa.DataType) -> tuple[pa.Array, list[int]]:
    """Convert one field's values, from msgspec with :class:`Number` as float hook, to its type.

    Returns:
        The column, with null for refused values, and the row numbers of the refused values.
    """
    fast = _FAST.get(kind.id)
    column = None if fast is None else fast(values, kind)
    return _one_by_one(values, kind) if column is None else column


_Column = tuple[pa.Array, list[int]]


def to_text_column(texts: pa.Array, kind: pa.DataType) -> tuple[pa.Array, list[int]]:
    """Convert one field's texts to its type, as :func:`to_column` does with JSON strings."""
    if pa.types.is_string(kind):
        return texts, []
    pattern = _plain_pattern(kind)
    column = None if pattern is None else _with_rest(texts, pattern, None, kind)
    return _one_by_one(texts.to_pylist(), kind) if column is None else column


def _plain_pattern(kind: pa.DataType) -> str | None:
    """Return a pattern of texts that Arrow casts to the type as this module does; None if none."""
    if pa.types.is_boolean(kind):
        return "^(?:true|false)$"
    if pa.types.is_integer(kind):
        # All numbers with one digit less than the greatest fit.
        return f"^-?[0-9]{{1,{len(str(1 << (kind.bit_width - 1))) - 1}}}$"
    if pa.types.is_decimal(kind):
        fraction = rf"(?:\.[0-9]{{1,{kind.scale}}})?" if kind.scale else ""
        # Without digits before the point, 4 would overflow Arrow's 128 bits unnoticed.
        whole = rf"[0-9]{{1,{kind.precision - kind.scale}}}" if kind.precision > kind.scale else "0"
        return rf"^-?{whole}{fraction}$"
    if pa.types.is_float64(kind):
        return r"^-?[0-9]{1,30}(?:\.[0-9]{1,30})?$"
    if pa.types.is_date(kind):
        return f"^(?:{DATE})$"
    return _ARROW_STAMP if pa.types.is_timestamp(kind) and kind.tz else None


def _one_by_one(values: Iterable[Any], kind: pa.DataType) -> _Column:
    read = _READERS[kind.id]
    typed: list[Any] = []
    bad: list[int] = []
    for row, value in enumerate(values):
        try:
            typed.append(None if value is None else read(value, kind))
        except Refused:
            typed.append(None)
            bad.append(row)
    # Dates and timestamps are integers here, also inside structs and lists.
    return pa.array(typed, kind), bad


def _fast_plain(values: list[Any], kind: pa.DataType) -> _Column | None:
    """Convert texts, booleans and integers, which msgspec has parsed."""
    wanted = bool if pa.types.is_boolean(kind) else int if pa.types.is_integer(kind) else str
    if not set(map(type, values)) <= {wanted, NoneType}:
        return None
    try:
        return pa.array(values, kind), []
    except (pa.ArrowInvalid, OverflowError):
        return None


def _fast_numbers(values: list[Any], kind: pa.DataType) -> _Column | None:
    """Convert decimals and doubles that are written without an exponent."""
    if not set(map(type, values)) <= {str, Number, int, NoneType}:
        return None
    written = [str(value) if type(value) is int else value for value in values]
    texts = pa.array(written, pa.string())
    return _with_rest(texts, _plain_pattern(kind) or "", values, kind)


def _fast_stamps(values: list[Any], kind: pa.DataType) -> _Column | None:
    texts = _fast_plain(values, pa.string())
    return None if texts is None else _with_rest(texts[0], _ARROW_STAMP, values, kind)


def _with_rest(
    texts: pa.Array, plain: str, values: list[Any] | None, kind: pa.DataType
) -> _Column | None:
    """Cast the texts that match the pattern ``plain``; read the others one by one.

    Those are taken from ``values`` of the same rows, or from the texts without such.
    """
    is_plain = pc.match_substring_regex(texts, plain)
    odd = pc.invert(is_plain)
    rest = pc.indices_nonzero(pc.fill_null(odd, False)).to_pylist()
    try:
        cast = (pc.if_else(is_plain, texts, None) if rest else texts).cast(kind)
    except pa.ArrowInvalid:
        # A text matches the pattern but is not a valid value, such as February 30.
        return None
    if not rest:
        return cast, []
    others = [values[row] for row in rest] if values is not None else texts.take(rest).to_pylist()
    read, bad = _one_by_one(others, kind)
    column = pc.replace_with_mask(cast, pc.fill_null(odd, False), read)
    return column, [rest[row] for row in bad]


# Values: converted one by one.


def text_of(value: Any) -> str:
    """Return a scalar as text; for any other value, a text that no type accepts."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    return "\0"


def _string(value: Any, _: pa.DataType) -> str:
    if type(value) is Number:
        return _number_text(value)
    if isinstance(value, dict | list):
        # With names in their original order.
        return _written(value, _number_text, order=None)
    return text_of(value)


def _boolean(value: Any, _: pa.DataType) -> bool:
    text = text_of(value)
    if text not in ("true", "false"):
        raise Refused
    return text == "true"


def _scaled(text: str, scale: int) -> int:
    """Return a number times ten to the power of ``scale``; refuse a fractional result."""
    found = _NUMBER.fullmatch(text)
    if found is None:
        raise Refused
    whole, fraction, exponent = found[1], found[2] or "", int(found[3] or 0)
    digits = (whole + fraction).rstrip("0")
    if not digits:
        # Zero, whatever its exponent.
        return 0
    zeros = len(whole) + len(fraction) - len(digits)
    if len(fraction) - zeros - exponent > scale:
        raise Refused
    power = zeros + exponent + scale - len(fraction)
    # Python converts texts of up to 4,300 digits, zeros at their beginning included.
    significant = digits.lstrip("0")
    if power + len(significant) > 40:
        # More digits than any type holds; computing the power could take thousands of digits.
        raise Refused
    number: int = int(significant) * 10 ** max(power, 0)
    return -number if text[0] == "-" else number


def _integer(value: Any, kind: pa.DataType) -> int:
    number = _scaled(text_of(value), 0)
    limit: int = 1 << (kind.bit_width - 1)
    if not -limit <= number < limit:
        raise Refused
    return number


def _decimal(value: Any, kind: pa.DataType) -> Decimal:
    number = _scaled(text_of(value), kind.scale)
    if abs(number) >= 10**kind.precision:
        raise Refused
    return Decimal(f"{number}e-{kind.scale}")


def _floating(value: Any, kind: pa.DataType) -> float:
    text = text_of(value)
    if _NUMBER.fullmatch(text) is None:
        raise Refused
    number = float(text)
    if kind.bit_width == 32:
        number = pa.scalar(number, pa.float64()).cast(pa.float32(), safe=False).as_py()
    # Underflow to zero is inexact too.
    if math.isinf(number) or (number == 0 and _NOT_ZERO.match(text)):
        raise Refused
    return number


def _day(year: int, month: int, day: int) -> int:
    """Return days since 1970-01-01; year 0, which Python lacks, is shifted by a 400-year cycle."""
    shift = 0 if year else 1
    try:
        ordinal = date(year + shift * _YEARS_A_CYCLE, month, day).toordinal()
    except ValueError:
        raise Refused from None
    return ordinal - shift * _DAYS_A_CYCLE - _EPOCH_DAY


def _date(value: Any, _: pa.DataType) -> int:
    text = text_of(value)
    if _DATE.fullmatch(text) is None:
        raise Refused
    return _day(*map(int, text.split("-")))


def _timestamp(value: Any, kind: pa.DataType) -> int:
    """Return microseconds since the epoch; a timestamp without a zone is UTC."""
    found = _STAMP.fullmatch(text_of(value))
    if found is None or (found[8] and kind.tz is None):
        raise Refused
    day = _day(*(int(found[number]) for number in (1, 2, 3)))
    hour, minute, second = (int(found[number] or 0) for number in (4, 5, 6))
    if hour > 23 or minute > 59 or second > 59:
        raise Refused
    micros = int((found[7] or "").ljust(6, "0"))
    offset = 0
    if found[9]:
        offset = int(found[10]) * 60 + int(found[11])
        if offset > _MOST_OFFSET_MINUTES or int(found[11]) > 59:
            raise Refused
        offset = -offset if found[9] == "-" else offset
    seconds = hour * 3600 + (minute - offset) * 60 + second
    return day * _DAY_MICROS + seconds * 1_000_000 + micros


def _binary(value: Any, _: pa.DataType) -> bytes:
    if not isinstance(value, str) or type(value) is Number:
        raise Refused
    text = "".join(value.split())
    if _BASE64.fullmatch(text) is None:
        raise Refused
    bare = text.rstrip("=")
    if len(bare) % 4 == 1 or (text != bare and len(text) % 4):
        raise Refused
    return binascii.a2b_base64(bare + "=" * (-len(bare) % 4))


def nested(value: Any, wanted: type) -> Any:
    """Return an array or an object; parse a string as JSON.

    Raises:
        Refused: The value, or what the string contains, is not of the type ``wanted``.
    """
    if isinstance(value, str):
        try:
            json = value.encode()
            value = None if is_too_deep(json) else _ANY.decode(json)
        except (msgspec.MsgspecError, UnicodeError, RecursionError, ValueError):
            raise Refused from None
    if not isinstance(value, wanted):
        raise Refused
    return value


def _inner(value: Any, kind: pa.DataType) -> Any:
    """Convert an element of an array, map or struct; as text, numbers keep up to 38 digits."""
    if value is None:
        return None
    if type(value) in (int, Number) and pa.types.is_string(kind):
        text = str(value)
        if not _is_extreme(text) and _is_lossy(text):
            raise Refused
        written = _variant_text(text)
        return _exact(written) or written
    return _READERS[kind.id](value, kind)


def _list(value: Any, kind: pa.DataType) -> list[Any]:
    return [_inner(item, kind.value_type) for item in nested(value, list)]


def _map(value: Any, kind: pa.DataType) -> list[tuple[str, Any]]:
    items = sorted(nested(value, dict).items())
    return [(name, _inner(item, kind.item_type)) for name, item in items]


def _struct(value: Any, kind: pa.DataType) -> dict[str, Any]:
    items = nested(value, dict)
    return {field.name: _inner(items.get(field.name), field.type) for field in kind}


_ANY = msgspec.json.Decoder(float_hook=Number)
_INTEGERS = [kind.id for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())]
_READERS: dict[int, Callable[[Any, Any], Any]] = {
    pa.string().id: _string,
    pa.bool_().id: _boolean,
    **dict.fromkeys(_INTEGERS, _integer),
    pa.float32().id: _floating,
    pa.float64().id: _floating,
    pa.decimal128(1).id: _decimal,
    pa.date32().id: _date,
    pa.timestamp("us").id: _timestamp,
    pa.binary().id: _binary,
    pa.list_(pa.null()).id: _list,
    pa.map_(pa.string(), pa.null()).id: _map,
    pa.struct([]).id: _struct,
}
_FAST: dict[int, Callable[[list[Any], Any], _Column | None]] = {
    **dict.fromkeys((pa.string().id, pa.bool_().id, *_INTEGERS), _fast_plain),
    pa.float64().id: _fast_numbers,
    pa.decimal128(1).id: _fast_numbers,
    pa.timestamp("us").id: _fast_stamps,
}


# Text of numbers and nested values.


def _is_extreme(text: str) -> bool:
    """Return whether a number overflows or underflows a double."""
    number = float(text)
    return math.isinf(number) or (number == 0 and _NOT_ZERO.match(text) is not None)


def _exact(text: str) -> str | None:
    """Return a number's digits; None beyond 38 digits or with an exponent.

    Spark's variant stores such numbers as decimals and all others as doubles.
    """
    if "e" in text or "E" in text:
        return None
    whole, _, fraction = text.lstrip("-").partition(".")
    if len(fraction) > 38 or len((whole + fraction).lstrip("0")) > 38:
        return None
    fraction = fraction.rstrip("0")
    plain = f"{whole}.{fraction}" if fraction else whole
    return f"-{plain}" if text[0] == "-" and plain.strip("0.") else plain


def _is_lossy(text: str) -> bool:
    """Return whether neither 38 digits nor a double's shortest text are equal to a number."""
    if _LOSSY.match(text) is None or _exact(text) is not None:
        return False
    number = float(text)
    # Decimal refuses the exponent that a zero may have.
    return number != 0 and Decimal(text) != Decimal(repr(number))


def _number_text(text: str) -> str:
    """Return a number as the text for a string field."""
    if not _is_extreme(text):
        if not _LONG.match(text):
            return _as_java(float(text))
        if _is_lossy(text):
            raise Refused
    return _variant_text(text)


def _variant_text(text: str) -> str:
    """Return the text of a number in an unknown or nested field: its digits, or a double.

    A number that neither represents stays as it was written.
    """
    if _is_extreme(text) or _is_lossy(text):
        return str(text)
    return _exact(text) or _as_java(float(text))


def _as_java(number: float) -> str:
    """Format a double as Java's ``Double.toString``."""
    if number == 0 or 1e-3 <= abs(number) < 1e7:
        # Python writes these in the same way.
        return repr(number)
    digits, _, power = f"{Decimal(repr(number)).normalize():E}".partition("E")
    if "." not in digits:
        # Java writes at least two digits; the second is usually zero.
        digits, _, power = f"{number:.1e}".partition("e")
    return f"{digits}E{int(power)}"


def as_text(value: Any) -> str | None:
    """Return an unknown field's value as text: strings unchanged, nested values as JSON."""
    if value is None or (isinstance(value, str) and type(value) is not Number):
        return value
    if isinstance(value, dict | list):
        return canonical_json(value)
    return text_of(value) if isinstance(value, bool) else _variant_text(str(value))


def canonical_json(value: Any) -> str:
    """Return JSON with sorted names; numbers keep their digits up to 38."""
    return _written(value, _variant_text, order="sorted")


def _written(value: Any, write_number: Callable[[str], str], *, order: Any) -> str:
    """Encode a value as JSON; its numbers are replaced in place."""
    # Iterative: recursion from an already deep stack could exceed Python's limit.
    root = [value]
    waiting: list[Any] = [root]
    while waiting:
        parent = waiting.pop()
        for key, item in list(parent.items() if isinstance(parent, dict) else enumerate(parent)):
            if isinstance(item, dict | list):
                waiting.append(item)
            elif type(item) is Number or (type(item) is int and abs(item) >= 10**38):
                text = str(item)
                parent[key] = text if _is_extreme(text) else msgspec.Raw(write_number(text))
    written = msgspec.json.encode(root[0], order=order)
    # Jackson writes control-character escapes with uppercase hex digits.
    return _CONTROL.sub(lambda found: found[1] + b"u" + found[2][1:].upper(), written).decode()
