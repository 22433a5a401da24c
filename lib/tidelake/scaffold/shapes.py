"""The type of a field, from the values that a sample holds of it.

In doubt the type is the wider one: a value that does not fit exactly is quarantined later, and a
text can still be read by an expression.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from tidelake.config.types import Field, FieldType
from tidelake.scaffold.times import DATE_TYPE, TIMESTAMP, clock_of
from tidelake.scaffold.words import is_money

STRING = FieldType("string")
_BIGINT_END = 1 << 63
# An object with more names than this, or hardly one of them in each record, is a map.
_NAMES = 60
_RARE_NAMES, _RARE = 20, 0.2
_MONEY_DIGITS, _MONEY_SCALE = 18, 4
_MOST_DIGITS = 38


@dataclass(frozen=True)
class Shape:
    """What a field holds.

    Attributes:
        type: Its type in the payload's schema.
        notes: What a reader should know of the choice; empty where it is plain.
    """

    type: FieldType
    notes: tuple[str, ...] = ()


def shape_of(name: str, values: Iterable[object]) -> Shape:
    """Infer a field's type.

    Args:
        name: The field's; an amount of money is told by it.
        values: As JSON has them, nulls included; numbers with a point are ``Decimal``.
    """
    held = [value for value in values if value is not None]
    if not held:
        return Shape(STRING, ("always null in the sample",))
    kinds = {_kind(value) for value in held}
    if kinds <= {"whole", "fraction"}:
        return _number(name, [Decimal(value) for value in held if isinstance(value, int | Decimal)])
    if len(kinds) > 1:
        return Shape(STRING, (f"mixed in the sample: {', '.join(sorted(kinds))}",))
    if kinds == {"object"}:
        return _object([value for value in held if isinstance(value, dict)])
    if kinds == {"array"}:
        return _array(name, [value for value in held if isinstance(value, list)])
    texts = [value for value in held if isinstance(value, str)]
    return _text(texts) if texts else Shape(FieldType("boolean"))


def fields_of(values: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, Shape], ...]:
    """Infer the fields of objects, in the order in which they first appear."""
    names = dict.fromkeys(name for value in values for name in value)
    return tuple((name, shape_of(name, [value.get(name) for value in values])) for name in names)


def _kind(value: object) -> str:
    if isinstance(value, bool):
        return "boolean"
    kinds: tuple[tuple[type, str], ...] = (
        (str, "text"), (int, "whole"), (Decimal, "fraction"), (dict, "object"), (list, "array")
    )  # fmt: skip
    return next(name for kind, name in kinds if isinstance(value, kind))


def _text(held: Sequence[str]) -> Shape:
    clock = clock_of(held)
    if clock is None or clock.type not in (TIMESTAMP, DATE_TYPE):
        return Shape(STRING)
    return Shape(clock.type, (clock.note,) if clock.note else ())


def _number(name: str, held: Sequence[Decimal]) -> Shape:
    # 1e2 has no digit after the point, and 2.50 two: what was written counts.
    scales = [max(-int(one.as_tuple().exponent), 0) for one in held]
    scale = max(scales)
    digits = max(len(str(abs(int(one)))) for one in held)
    exponent = any(int(one.as_tuple().exponent) > 0 for one in held)
    if is_money(name) and scale <= _MONEY_SCALE and digits + max(scale, 2) <= _MONEY_DIGITS:
        return Shape(FieldType("decimal", precision=_MONEY_DIGITS, scale=max(scale, 2)))
    if scale or exponent:
        return Shape(FieldType("double"))
    if all(-_BIGINT_END <= one < _BIGINT_END for one in held):
        return Shape(FieldType("bigint"))
    if digits <= _MOST_DIGITS:
        return Shape(FieldType("decimal", precision=_MOST_DIGITS, scale=0))
    return Shape(STRING, (f"numbers of {digits} digits",))


def _array(name: str, held: Sequence[list[object]]) -> Shape:
    items = [item for one in held for item in one]
    if not items:
        return Shape(FieldType("array", element=STRING), ("always empty in the sample",))
    inner = shape_of(name, items)
    return Shape(FieldType("array", element=inner.type), inner.notes)


def _object(held: Sequence[dict[str, Any]]) -> Shape:
    names = {name for value in held for name in value}
    if not names:
        map_of_text = FieldType("map", key=STRING, value=STRING)
        return Shape(map_of_text, ("always empty in the sample",))
    filled = sum(len(value) for value in held) / (len(names) * len(held))
    folded = {name.lower() for name in names if name.strip() and name.isprintable()}
    if (
        len(names) > _NAMES
        or (len(names) > _RARE_NAMES and filled < _RARE)
        or len(folded) < len(names)
    ):
        inner = shape_of("", [item for value in held for item in value.values()])
        note = f"{len(names)} names in the sample, so a map"
        return Shape(FieldType("map", key=STRING, value=inner.type), (note, *inner.notes))
    read = fields_of(held)
    notes = tuple(f"{name}: {note}" for name, shape in read for note in shape.notes)
    return Shape(
        FieldType("struct", fields=tuple(Field(name, shape.type) for name, shape in read)), notes
    )
