"""Decode JSON payloads strictly: one object per record, every value exactly as written.

An Arrow array of payloads becomes typed columns, reasons for refused values, and the fields that
are not in the schema. The decoder needs neither Spark nor a pipeline, so the stream, backfill,
verify and the tests share it. msgspec parses the JSON; this module decides which values fit their
type. ``"12,50"``, ``12.999`` for two decimals, ``10:15`` as a timestamp and a value that overflows
are refused rather than rounded or guessed.

A number in a string field is formatted by value, like a Java double: 1.10 becomes ``1.1``. A number
that neither a double nor 38 digits represent is refused, because its text would be that of another
number. A number that overflows or underflows a double, such as 1e-400, is treated as text: a string
field keeps it, any other type refuses it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import repeat
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from tidelake.silver.values import (
    MOST_DEPTH,
    Number,
    as_text,
    canonical_json,
    is_too_deep,
    to_column,
)

# Jackson rejects longer names, so tables written with it contain none.
MOST_NAME_LETTERS = 50_000
# Limits on the unknown fields shown in reasons: their number, and the length of a name.
_SHOWN_FIELDS, _SHOWN_LETTERS = 20, 100

_NAMES_OF_JSON = re.compile(rb'"((?:[^"\\]|\\.)*)"\s*:')

_REASONS = pa.list_(pa.field("element", pa.string()))


class DecodedField(NamedTuple):
    """A field of the schema."""

    name: str
    type: pa.DataType
    sql: str


class Decoder:
    """Decodes payloads of one schema."""

    def __init__(self, fields: Sequence[DecodedField], evolution: str) -> None:
        """Compile a schema.

        Args:
            fields: The schema's fields.
            evolution: How to treat unknown fields: ``strict`` adds a reason for each, ``additive``
                returns their values as strings, ``rescue`` returns them as one JSON object.
        """
        self.fields = tuple(fields)
        self.evolution = evolution
        self._attributes = [f"f{number}" for number in range(len(self.fields))]
        self._record: Any = msgspec.defstruct(
            "Record",
            [
                (attribute, _plain_type(field.type), None)
                for attribute, field in zip(self._attributes, self.fields, strict=True)
            ],
            rename=dict(zip(self._attributes, [field.name for field in self.fields], strict=True)),
            forbid_unknown_fields=True,
            gc=False,
        )
        self._nothing = self._record()
        self._plain = msgspec.json.Decoder(self._record, float_hook=Number)
        self._any = msgspec.json.Decoder(dict[str, Any], float_hook=Number)
        self._names = frozenset(field.name for field in self.fields)
        self.unknown_type: pa.DataType = (
            pa.map_(pa.string(), pa.string()) if evolution == "additive" else pa.string()
        )

    def __reduce__(self) -> tuple[type[Decoder], tuple[tuple[DecodedField, ...], str]]:
        """Pickle only the schema."""
        return Decoder, (self.fields, self.evolution)

    @property
    def type(self) -> pa.StructType:
        """The Arrow type that :meth:`decode` returns."""
        values = pa.struct([(field.name, field.type) for field in self.fields])
        return pa.struct(
            [
                ("parsed", pa.bool_()),
                ("values", values),
                ("broken", _REASONS),
                ("unknown", self.unknown_type),
            ]
        )

    def decode(self, payloads: pa.Array) -> pa.StructArray:
        """Decode an array of payloads.

        Args:
            payloads: Binary; null if missing.

        Returns:
            One struct per payload: ``parsed`` (whether it is one JSON object), ``values`` (a struct
            of the schema's fields, null if missing or refused), ``broken`` (a reason per refused
            value) and ``unknown`` (the fields not in the schema, null if none).
        """
        records: list[Any] = []
        refused: list[int] = []
        strict: dict[int, list[str]] = {}
        unknown: dict[int, Any] = {}
        plain, keep = self._plain.decode, records.append
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
            others = [name for name in fields if name not in self._names]
            if others and self.evolution == "strict":
                strict[row] = [
                    f"{name[:_SHOWN_LETTERS]}: not in schema" for name in others[:_SHOWN_FIELDS]
                ]
            elif others:
                unknown[row] = self._unknown({name: fields[name] for name in others})
            keep(self._record(*[fields.get(field.name) for field in self.fields]))
        broken: dict[int, list[str]] = {}
        columns = []
        for attribute, field in zip(self._attributes, self.fields, strict=True):
            column, bad = to_column(list(map(attrgetter(attribute), records)), field.type)
            columns.append(column)
            for row in bad:
                broken.setdefault(row, []).append(f"{field.name}: not exactly {field.sql}")
        for row, reasons in strict.items():
            broken.setdefault(row, []).extend(reasons)
        values = pa.StructArray.from_arrays(columns, [field.name for field in self.fields])
        return pa.StructArray.from_arrays(
            [
                _flags(len(records), refused),
                values,
                _lists(len(records), broken),
                _sparse(len(records), unknown, self.unknown_type),
            ],
            fields=list(self.type),
        )

    def _read(self, payload: bytes | None) -> dict[str, Any] | None:
        """Parse an object with any fields; None if the payload is not a JSON object."""
        if payload is None or is_too_deep(payload):
            return None
        try:
            fields: dict[str, Any] = self._any.decode(payload)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError):
            return None
        if len(payload) > MOST_NAME_LETTERS and any(
            len(name.decode()) > MOST_NAME_LETTERS for name in _NAMES_OF_JSON.findall(payload)
        ):
            return None
        return fields

    def _unknown(self, others: dict[str, Any]) -> Any:
        if self.evolution == "rescue":
            return canonical_json(others)
        return [(name, as_text(value)) for name, value in sorted(others.items())]


def _plain_type(kind: pa.DataType) -> Any:
    """Return the type msgspec parses a field as; other values take the slower generic path."""
    if pa.types.is_boolean(kind):
        return bool | None
    if pa.types.is_integer(kind):
        return int | None
    if pa.types.is_nested(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return Any
    return str | None


# Arrays in which most rows are empty.


def _flags(length: int, refused: list[int]) -> pa.Array:
    flags = np.ones(length, dtype=np.bool_)
    flags[refused] = False
    return pa.array(flags)


def _lists(length: int, found: dict[int, list[str]]) -> pa.Array:
    counts = np.zeros(length + 1, dtype=np.int32)
    rows = sorted(found)
    counts[[row + 1 for row in rows]] = [len(found[row]) for row in rows]
    texts = pa.array([text for row in rows for text in found[row]], pa.string())
    return pa.ListArray.from_arrays(pa.array(np.cumsum(counts, dtype=np.int32)), texts, _REASONS)


def _sparse(length: int, found: dict[int, Any], kind: pa.DataType) -> pa.Array:
    if not found:
        return pa.nulls(length, kind)
    return pa.array(list(map(found.get, range(length), repeat(None))), kind)
