"""Decode JSON payloads strictly: one object per record, every value exactly as written.

The decoder needs neither Spark nor a pipeline, so the stream, backfill, verify and the tests share
it. msgspec parses the JSON; :mod:`tidelake.silver.values` decides which values fit their type:
``"12,50"``, ``12.999`` for two decimals, ``10:15`` as a timestamp and a value that overflows are
refused rather than rounded or guessed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from operator import attrgetter
from typing import Any, NamedTuple, NoReturn

import msgspec
import numpy as np
import pyarrow as pa

from tidelake.silver.values import (
    MOST_DEPTH,
    Number,
    Refused,
    as_text,
    canonical_json,
    is_too_deep,
    nested,
    to_column,
)

# Limits on the unknown fields shown in reasons: their number, and the length of a name.
_SHOWN_FIELDS, _SHOWN_LETTERS = 20, 100

# Names with one of these cannot be members of msgspec's structs.
_ODD_NAME = re.compile(r'["\\\x00-\x1f]')

_REASONS = pa.list_(pa.field("element", pa.string()))


class DecodedField(NamedTuple):
    """A field of the schema."""

    name: str
    type: pa.DataType
    sql: str


def decoded_type(fields: Sequence[DecodedField], evolution: str) -> pa.StructType:
    """Return the Arrow type of a decoded payload: what :meth:`Decoder.decode` returns."""
    is_additive = evolution == "additive"
    return pa.struct(
        [
            ("parsed", pa.bool_()),
            ("values", pa.struct([(field.name, field.type) for field in fields])),
            ("broken", _REASONS),
            ("unknown", pa.map_(pa.string(), pa.string()) if is_additive else pa.string()),
        ]
    )


def assembled(
    kind: pa.StructType,
    columns: Sequence[pa.Array],
    refused: Collection[int],
    broken: Mapping[int, list[str]],
    unknown: Mapping[int, Any],
) -> pa.StructArray:
    """Build the struct array that :meth:`Decoder.decode` returns.

    Args:
        kind: Its type, from :func:`decoded_type`.
        columns: The values, an array for each field.
        refused: Numbers of the rows that could not be parsed; ``parsed`` is false there.
        broken: The reasons, by row number.
        unknown: The fields that are not in the schema, by row number.
    """
    length = len(columns[0])
    parsed = np.ones(length, dtype=np.bool_)
    parsed[list(refused)] = False
    unknown_type = kind.field("unknown").type
    unknowns = pa.nulls(length, unknown_type)
    if unknown:
        unknowns = pa.array(list(map(unknown.get, range(length))), unknown_type)
    values = pa.StructArray.from_arrays(columns, fields=list(kind.field("values").type))
    children = [pa.array(parsed), values, _lists(length, broken), unknowns]
    return pa.StructArray.from_arrays(children, fields=list(kind))


def add_inexact(broken: dict[int, list[str]], field: DecodedField, rows: Iterable[int]) -> None:
    """Add the reason of the rows whose value does not fit the field's type exactly."""
    for row in rows:
        broken.setdefault(row, []).append(f"{field.name}: not exactly {field.sql}")


def unknown_fields(
    others: Mapping[int, Mapping[str, Any]], broken: dict[int, list[str]], evolution: str
) -> dict[int, Any]:
    """Return the column ``unknown`` of the rows with other fields, or add reasons if strict."""
    if evolution == "strict":
        last: Any = None
        reasons: list[str] = []
        for row, found in others.items():
            # Records of one CSV file share the same.
            if found is not last:
                shown = [name[:_SHOWN_LETTERS] for name in islice(found, _SHOWN_FIELDS)]
                last, reasons = found, [f"{name}: not in schema" for name in shown]
            broken.setdefault(row, []).extend(reasons)
        return {}
    if evolution == "rescue":
        return {row: canonical_json(dict(found)) for row, found in others.items()}
    return {
        row: [
            (name, value if type(value) is str else as_text(value))
            for name, value in sorted(found.items())
        ]
        for row, found in others.items()
    }


class Decoder:
    """Decodes payloads of one schema into the Arrow type ``type``."""

    def __init__(self, fields: Sequence[DecodedField], evolution: str) -> None:
        """Compile a schema.

        For unknown fields ``strict`` adds a reason each, ``additive`` returns their values as
        strings, and ``rescue`` returns them as one JSON object. Those inside
        nested values are ignored with ``additive``.
        """
        self.fields = tuple(fields)
        self.evolution = evolution
        self._names = [field.name for field in self.fields]
        self._attributes = [f"f{number}" for number in range(len(self.fields))]
        self._is_odd = any(map(_ODD_NAME.search, self._names))
        self._record: Any = msgspec.defstruct(
            "Record",
            [
                (attribute, _plain_type(field.type), None)
                for attribute, field in zip(self._attributes, self.fields, strict=True)
            ],
            rename=None if self._is_odd else dict(zip(self._attributes, self._names, strict=True)),
            forbid_unknown_fields=True,
            gc=False,
        )
        self._nothing = self._record()
        self._plain = msgspec.json.Decoder(self._record, float_hook=Number)
        self._any = msgspec.json.Decoder(dict[str, Any], float_hook=Number)
        self.type = decoded_type(self.fields, evolution)

    def __reduce__(self) -> tuple[type[Decoder], tuple[tuple[DecodedField, ...], str]]:
        """Pickle only the schema."""
        return Decoder, (self.fields, self.evolution)

    def decode(self, payloads: pa.Array) -> pa.StructArray:
        """Decode an array of binary payloads, null if missing.

        Returns:
            One struct per payload: ``parsed`` (whether it is one JSON object), ``values`` (a struct
            of the schema's fields, null if missing or refused), ``broken`` (a reason per refused
            value) and ``unknown`` (the fields not in the schema, null if none).
        """
        records: list[Any] = []
        refused: list[int] = []
        others: dict[int, dict[str, Any]] = {}
        plain: Callable[[bytes], Any] = _not_plain if self._is_odd else self._plain.decode
        keep, known = records.append, frozenset(self._names)
        for row, payload in enumerate(payloads.to_pylist()):
            try:
                if len(payload) <= 2 * MOST_DEPTH or not is_too_deep(payload):
                    keep(plain(payload))
                    continue
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, TypeError):
                pass
            fields = self._read(payload)
            if fields is None:
                refused.append(row)
                keep(self._nothing)
                continue
            if found := {name: value for name, value in fields.items() if name not in known}:
                others[row] = found
            keep(self._record(*map(fields.get, self._names)))
        broken: dict[int, list[str]] = {}
        columns = []
        for attribute, field in zip(self._attributes, self.fields, strict=True):
            values = list(map(attrgetter(attribute), records))
            column, bad = to_column(values, field.type)
            columns.append(column)
            add_inexact(broken, field, bad)
            if self.evolution != "additive" and has_members(field.type):
                add_unknown_within(others, field, values)
        unknown = unknown_fields(others, broken, self.evolution)
        return assembled(self.type, columns, refused, broken, unknown)

    def _read(self, payload: bytes | None) -> dict[str, Any] | None:
        """Parse an object with any fields; None if the payload is not a JSON object."""
        if payload is None or is_too_deep(payload):
            return None
        try:
            fields: dict[str, Any] = self._any.decode(payload)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError):
            return None
        return fields


def has_members(kind: pa.DataType) -> bool:
    """Return whether a value of a type may have members that the type lacks."""
    if pa.types.is_list(kind):
        return has_members(kind.value_type)
    return has_members(kind.item_type) if pa.types.is_map(kind) else pa.types.is_struct(kind)


def add_unknown_within(
    others: dict[int, dict[str, Any]], field: DecodedField, values: Iterable[Any]
) -> None:
    """Add the members of a field's values that its type lacks, by row number and path.

    ``others`` are the unknown fields so far. A path that is also the name of one of these, or that
    two members have, is followed by ``#2`` and so on.
    """
    for row, value in enumerate(values):
        found: dict[str, Any] | None = None
        numbers: dict[str, int] = {}
        for path, item in _unknown_within(value, field.type, field.name):
            if found is None:
                # Not in place: other rows may share it.
                found = others[row] = dict(others.get(row, ()))
            key = path
            while key in found:
                numbers[path] = numbers.get(path, 1) + 1
                key = f"{path}#{numbers[path]}"
            found[key] = item


def _unknown_within(value: Any, kind: pa.DataType, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the members of a nested value that its type lacks, by path: ``items[0].size``."""
    if value is None:
        return
    if pa.types.is_struct(kind):
        for name, item in _content(value, dict).items():
            at, place = kind.get_field_index(name), f"{path}.{name}"
            if at < 0:
                yield place, item
            elif pa.types.is_nested(inner := kind.field(at).type):
                yield from _unknown_within(item, inner, place)
    elif pa.types.is_list(kind) and pa.types.is_nested(inner := kind.value_type):
        for number, item in enumerate(_content(value, list)):
            yield from _unknown_within(item, inner, f"{path}[{number}]")
    elif pa.types.is_map(kind) and pa.types.is_nested(inner := kind.item_type):
        for key, item in _content(value, dict).items():
            yield from _unknown_within(item, inner, f"{path}.{key}")


def _content(value: Any, wanted: type) -> Any:
    """Return an array or an object, also of JSON in a string; an empty one of any other value."""
    if type(value) is wanted:
        return value
    try:
        return nested(value, wanted)
    except Refused:
        return wanted()


def _not_plain(_: bytes) -> NoReturn:
    raise TypeError


def _plain_type(kind: pa.DataType) -> Any:
    """Return the type msgspec parses a field as; other values take the slower generic path."""
    if pa.types.is_boolean(kind):
        return bool | None
    if pa.types.is_integer(kind):
        return int | None
    if pa.types.is_nested(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return Any
    return str | None


def _lists(length: int, found: Mapping[int, list[str]]) -> pa.Array:
    counts = np.zeros(length + 1, dtype=np.int32)
    rows = sorted(found)
    counts[[row + 1 for row in rows]] = [len(found[row]) for row in rows]
    texts = pa.array([text for row in rows for text in found[row]], pa.string())
    return pa.ListArray.from_arrays(pa.array(np.cumsum(counts, dtype=np.int32)), texts, _REASONS)
