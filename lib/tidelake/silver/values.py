"""Turn the text of a payload's value into its type, or say that it would not survive exactly.

Spark's own casts are too kind: "12,50" becomes 1250.00, 12.999 becomes 13.00 and "10:15" becomes
today at 10:15. Here each value comes with a verdict, and a broken one is null.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from operator import or_

from pyspark.sql import Column
from pyspark.sql import functions as F

from tidelake.config import FieldType
from tidelake.instants import DATE, LOCAL, TO_THE_MINUTE, ZONED

# Marks a number whose digits did not fit an exact type when the payload was parsed.
INEXACT = "~"

_NUMBER = r"^-?([0-9]+)(?:\.([0-9]+))?(?:[eE]([+-]?[0-9]{1,4}))?$"
_NOT_ZERO = r"^-?[0.]*[1-9]"
# Spark makes a decimal of them by writing all of their zeros out: seconds a value, or an error that
# no attempt catches.
_LONG_EXPONENT = r"[eE][+-]?[0-9]{5}"
# Numbers of a payload that are another one as a double, or may be: 39 digits or points (a variant
# keeps 38 digits), 16 before an exponent, or several digits below 1e-290.
DOUBTFUL = (
    r"[:,\[]\s*-?(?:[0-9.]{39}|[0-9.]{16,}[eE]"
    r"|[0-9]*[1-9][0-9.]*[1-9][0-9.]*[eE]-0*(?:29[0-9]|3[0-9]{2}))"
)
# A number by JSON's grammar, where a value stands, that may be zero or infinity as a double. Spark
# reads no number of more than a thousand letters.
_EXTREME = (
    r"(?<=[:,\[\s])(?=[0-9.eE+-]{1,1000}+(?![0-9.eE+-]))"
    r"(?=-?[0-9.]++[eE][+-]?0*+(?:29[0-9]|[3-9][0-9]{2}|[0-9]{4})|-?[0-9][0-9.]{299})"
    r"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?+(?:[eE][+-]?[0-9]++)?+(?=\s*[,}\]])"
)
# What stands before the next of them: texts, and whatever else is none. Possessive, so that Java
# matches in a loop.
_BEFORE = rf'\G((?:"(?:[^"\\]++|\\.)*+"|(?!{_EXTREME})[^"])*+)'
_INTEGER_DIGITS = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 19}


@dataclass(frozen=True)
class Value:
    """A typed column and the condition under which the text was broken."""

    typed: Column
    broken: Column


def read_exactly(text: Column, kind: FieldType) -> Value:
    """Convert JSON text to a type without changing the value.

    Args:
        text: The value as text, null where the payload has none.
        kind: The declared type.

    Returns:
        The typed column, null where broken; a missing value is null and not broken.
    """
    if kind.kind == "string":
        return Value(text, F.lit(False))
    if kind.kind not in _SCALARS:
        return _nested(text, kind)
    typed = _SCALARS[kind.kind](text, kind)
    return Value(typed, text.isNotNull() & typed.isNull())


def _fits_scale(text: Column, scale: int) -> Column:
    """Tell whether a number's text has no digit other than zero beyond the scale."""
    fraction = F.regexp_extract(text, _NUMBER, 2)
    digits = F.concat(F.regexp_extract(text, _NUMBER, 1), fraction)
    zeros = F.length(digits) - F.length(F.rtrim(digits, F.lit("0")))
    exponent = F.coalesce(F.regexp_extract(text, _NUMBER, 3).try_cast("int"), F.lit(0))
    return text.rlike(_NUMBER) & (F.length(fraction) - zeros - exponent <= scale)


def try_decimal(text: Column, sql: str) -> Column:
    """Cast a text to a decimal; null where it has an exponent that no decimal can have."""
    short = ~(F.contains(text, F.lit("e")) | F.contains(text, F.lit("E")))
    return F.when(short | ~text.rlike(_LONG_EXPONENT), text.try_cast(sql))


def _decimal(text: Column, kind: FieldType) -> Column:
    value = try_decimal(text, kind.sql)
    # The canonical text is the common case and spares the regular expressions.
    exact = (value.cast("string") == text) | _fits_scale(text, kind.scale or 0)
    return F.when(exact, value)


def _integer(text: Column, kind: FieldType) -> Column:
    value = text.try_cast(kind.sql)
    wide = try_decimal(text, f"decimal({_INTEGER_DIGITS[kind.kind]},0)").try_cast(kind.sql)
    return F.when(value.cast("string") == text, value).when(_fits_scale(text, 0), wide)


def _floating(text: Column, kind: FieldType) -> Column:
    number = F.regexp_replace(text, f"^{INEXACT}", "")
    value = number.try_cast(kind.sql)
    finite = F.abs(value) < F.lit(float("inf"))
    # A number so small that it became zero did not survive either.
    kept = (value != 0) | ~number.rlike(_NOT_ZERO)
    return F.when(number.rlike(_NUMBER) & finite & kept, value)


def _boolean(text: Column, kind: FieldType) -> Column:
    return F.when(text.isin("true", "false"), text == "true")


def _date(text: Column, kind: FieldType) -> Column:
    return F.when(text.rlike(f"^{DATE}$"), text.try_cast("date"))


def _timestamp(text: Column, kind: FieldType) -> Column:
    zoned = F.when(text.rlike(ZONED), text.try_cast("timestamp"))
    # Spark wants seconds.
    full = F.regexp_replace(text, TO_THE_MINUTE, "$1:00$2")
    rare = F.when(full.rlike(ZONED), full.try_cast("timestamp"))
    # A stamp without a zone is UTC whatever the session's zone is.
    utc = F.when(F.length(full) == 10, F.concat(full, F.lit("T00:00:00Z"))).otherwise(
        F.concat(full, F.lit("Z"))
    )
    return F.coalesce(zoned, rare, F.when(full.rlike(LOCAL), utc.try_cast("timestamp")))


def _timestamp_ntz(text: Column, kind: FieldType) -> Column:
    full = F.regexp_replace(text, TO_THE_MINUTE, "$1:00$2")
    return F.when(full.rlike(LOCAL), full.try_cast("timestamp_ntz"))


def _binary(text: Column, kind: FieldType) -> Column:
    return F.try_to_binary(text, F.lit("base64"))


_SCALARS: dict[str, Callable[[Column, FieldType], Column]] = {
    "boolean": _boolean,
    "tinyint": _integer,
    "smallint": _integer,
    "int": _integer,
    "bigint": _integer,
    "float": _floating,
    "double": _floating,
    "decimal": _decimal,
    "date": _date,
    "timestamp": _timestamp,
    "timestamp_ntz": _timestamp_ntz,
    "binary": _binary,
}


def json_objects(text: Column, ddl: str) -> Column:
    """Parse text as the objects of an array; exactly one where the text is one JSON object.

    In an array, what follows the object breaks the array. Only a bracket that closes our own
    array escapes; :func:`json_variant` has none such.
    """
    options = {"allowNonNumericNumbers": "false", "allowSingleQuotes": "false"}
    wrapped = F.concat(F.lit("["), text, F.lit("]"))
    return F.from_json(wrapped, f"array<{ddl}>", options)


def json_variant(text: Column) -> Column:
    """Parse text as one JSON value, as a variant; null when anything follows it.

    No text can close an array and an object at once, so the two wrappings together are strict.
    """
    inside = F.try_parse_json(F.concat(F.lit('{"r":'), text, F.lit("}")))
    alone = F.try_parse_json(F.concat(F.lit("["), text, F.lit("]")))
    one = F.size(F.try_variant_get(alone, "$", "array<variant>")) == 1
    return F.when(one, F.try_variant_get(inside, "$.r", "variant"))


def variant_text(value: Column, kind: FieldType) -> Column:
    """Write a variant as text; a number that had become a double is marked.

    A variant keeps up to 38 decimal digits, and only what exceeds them, or has an exponent, is a
    double. For a string the text is all there is.
    """
    text = F.try_variant_get(value, "$", "string")
    if kind.kind == "string":
        return text
    return F.when(is_double(value), F.concat(F.lit(INEXACT), text)).otherwise(text)


def with_extremes_as_texts(text: Column) -> Column:
    """Put numbers of a payload that a double makes zero or infinity into quotes.

    Spark reads most numbers as doubles: as a text or a decimal too they would be zero or infinity.
    As a text each keeps its digits, and breaks the contract of a field that is no text.
    """

    def vanishes(number: Column) -> Column:
        double = number.try_cast("double")
        return ((double == 0) & number.rlike(_NOT_ZERO)) | (F.abs(double) == float("inf"))

    found = F.regexp_extract_all(text, F.lit(f"({_EXTREME})"), F.lit(1))
    some = F.when(text.rlike(_EXTREME), F.exists(found, vanishes)).otherwise(F.lit(False))
    quoted = F.regexp_replace(text, F.lit(f"{_BEFORE}({_EXTREME})"), F.lit('$1"$2"'))
    return F.when(some, quoted).otherwise(text)


def loses_digits(value: Column, kind: FieldType) -> Column | None:
    """Tell whether a variant holds a double where the type wants the number as it was written.

    Args:
        value: The variant.
        kind: The declared type.

    Returns:
        The condition; None for a type of doubles alone, which are rounded.
    """
    if kind.kind == "array" and kind.element is not None:
        element = kind.element
        if loses_digits(value, element) is None:
            return None
        items = F.try_variant_get(value, "$", "array<variant>")
    elif kind.kind == "map" and kind.value is not None:
        element = kind.value
        if loses_digits(value, element) is None:
            return None
        items = F.map_values(F.try_variant_get(value, "$", "map<string,variant>"))
    elif kind.fields:
        fields = F.try_variant_get(value, "$", "map<string,variant>")
        of_fields = [
            loses_digits(F.try_element_at(fields, F.lit(field.name)), field.type)
            for field in kind.fields
        ]
        found = [F.coalesce(one, F.lit(False)) for one in of_fields if one is not None]
        return reduce(or_, found) if found else None
    else:
        return None if kind.kind in ("float", "double") else is_double(value)

    def loses(item: Column) -> Column:
        lost = loses_digits(item, element)
        return F.lit(False) if lost is None else F.coalesce(lost, F.lit(False))

    return F.exists(items, loses)


def is_double(value: Column) -> Column:
    """Tell whether a variant is a number that is kept as a double."""
    return F.schema_of_variant(value) == "DOUBLE"


def _nested(text: Column, kind: FieldType) -> Value:
    """Read an array, map or struct level by level, leaves as text."""
    value = json_variant(text)
    if kind.kind == "array" and kind.element is not None:
        element = kind.element
        items = F.try_variant_get(value, "$", "array<variant>")
        texts = F.transform(items, lambda item: variant_text(item, element))
        typed = F.transform(texts, lambda item: read_exactly(item, element).typed)
        inner = F.exists(texts, lambda item: read_exactly(item, element).broken)
    elif kind.kind == "map" and kind.value is not None:
        entry = kind.value
        items = F.try_variant_get(value, "$", "map<string,variant>")
        texts = F.transform_values(items, lambda _, item: variant_text(item, entry))
        typed = F.transform_values(texts, lambda _, item: read_exactly(item, entry).typed)
        inner = F.exists(F.map_values(texts), lambda item: read_exactly(item, entry).broken)
    else:
        items = F.try_variant_get(value, "$", "map<string,variant>")
        read = []
        for field in kind.fields:
            leaf = variant_text(F.try_element_at(items, F.lit(field.name)), field.type)
            read.append((field.name, read_exactly(leaf, field.type)))
        typed = F.when(items.isNotNull(), F.struct(*[v.typed.alias(name) for name, v in read]))
        inner = F.lit(False)
        for _, result in read:
            inner = inner | result.broken
    broken = text.isNotNull() & (items.isNull() | F.coalesce(inner, F.lit(False)))
    return Value(F.when(~broken, typed), broken)
