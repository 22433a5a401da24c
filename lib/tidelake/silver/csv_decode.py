"""Decode CSV records strictly, into the same struct as JSON payloads.

A record is read in the dialect and with the column names of its own file, which bronze keeps beside
it. Its values are converted by the rules for JSON strings in :mod:`tidelake.silver.values`.

Arrow's CSV reader splits the records of a batch into fields at once. It does not check quotes: it
would take text after a closing one, and an unclosed one would swallow the records that follow. So
it is given only records whose quotes and number of fields have been checked, and
:mod:`tidelake.csv_records` splits the others. With :mod:`.payloads`, which chooses the decoder, the
file would exceed 500 lines.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as arrow_csv

from tidelake.csv_records import (
    Dialect,
    MalformedRecord,
    misplaced_quotes,
    parse_layout,
    split_fields,
)
from tidelake.silver.decode import (
    DecodedField,
    add_inexact,
    add_unknown_within,
    assembled,
    decoded_type,
    has_members,
    unknown_fields,
)
from tidelake.silver.values import to_text_column

_Rows = np.ndarray[Any, np.dtype[np.int64]]
_LF, _CR = b"\n\r"
_Mask = np.ndarray[Any, np.dtype[np.bool_]]
_NO_TEXTS = pa.nulls(0, pa.string())


@dataclass
class _Texts:
    """Fields as text of some rows, by column name, and the reasons of rows that were not parsed.

    ``rows`` are row numbers of the whole array, in the order of the columns; null fields are null.
    """

    rows: _Rows
    columns: dict[str, pa.Array]
    refused: dict[int, str] = field(default_factory=dict)


class CsvDecoder:
    """Decodes CSV records of one schema into the Arrow type ``type``."""

    def __init__(
        self, fields: Sequence[DecodedField], evolution: str, nulls: Iterable[str]
    ) -> None:
        """Store a schema; ``evolution`` is as for JSON, ``nulls`` are unquoted texts of null.

        An empty unquoted field is always null.
        """
        self.fields, self.evolution = tuple(fields), evolution
        self.nulls = frozenset(nulls) | {""}
        self.type = decoded_type(self.fields, evolution)
        self._names = frozenset(one.name for one in self.fields)
        # Fields whose texts are read a second time, for members that their type lacks.
        self._with_members = frozenset(
            one.name for one in self.fields if evolution != "additive" and has_members(one.type)
        )

    def decode(self, payloads: pa.Array, layouts: pa.Array) -> pa.StructArray:
        """Decode an array of records, each with the layout that bronze keeps beside it.

        Returns:
            What :meth:`tidelake.silver.decode.Decoder.decode` returns, but ``broken`` of a record
            that was not parsed has the one reason for that.
        """
        pieces = [self._read(*group) for group in _by_layout(payloads, layouts)]
        order = np.concatenate([piece.rows for piece in pieces] or [np.zeros(0, np.int64)])
        # Where each row is in the pieces, one after another.
        place = None if np.all(order[:-1] < order[1:]) else pa.array(np.argsort(order))
        refused = {row: [reason] for piece in pieces for row, reason in piece.refused.items()}
        broken: dict[int, list[str]] = {}
        others: dict[int, dict[str, Any]] = {}
        for piece in pieces:
            self._add_columns(piece, others)
        columns = []
        for wanted in self.fields:
            texts = _placed([_column(piece, wanted.name) for piece in pieces], place)
            column, bad = to_text_column(texts, wanted.type)
            columns.append(column)
            add_inexact(broken, wanted, bad)
            if wanted.name in self._with_members:
                add_unknown_within(others, wanted, texts.to_pylist())
        unknown = unknown_fields(others, broken, self.evolution)
        return assembled(self.type, columns, refused, broken | refused, unknown)

    def _add_columns(self, piece: _Texts, others: dict[int, dict[str, Any]]) -> None:
        """Add the columns that are not in the schema, by row number and name."""
        names = [name for name in piece.columns if name not in self._names]
        if not names:
            return
        rows = piece.rows.tolist()
        if self.evolution == "strict":
            # Reasons need only the names.
            shared = dict.fromkeys(names)
            others.update((row, shared) for row in rows if row not in piece.refused)
            return
        values = zip(*(piece.columns[name].to_pylist() for name in names), strict=True)
        for row, texts in zip(rows, values, strict=True):
            if row not in piece.refused:
                others[row] = dict(zip(names, texts, strict=True))

    def _read(self, rows: _Rows, payloads: pa.Array, layout: bytes | None) -> _Texts:
        """Split the records of one layout into fields."""
        try:
            dialect, names = parse_layout(layout or b"")
        except ValueError:
            reason = "payload: the layout of its CSV file is missing"
            return _Texts(rows, {}, dict.fromkeys(rows.tolist(), reason))
        records, refused = _as_utf8(payloads, dialect.encoding)
        fast, table = _read_sound(records, dialect, names, self.nulls)
        slow: list[list[str | None]] = []
        slow_at: list[int] = []
        for row in np.flatnonzero(~fast).tolist():
            record = records[row].as_py()
            if record is None:
                continue
            try:
                texts = split_fields(record.decode(), dialect, self.nulls)
            except MalformedRecord as error:
                refused[row] = f"payload: {error}"
                continue
            if len(texts) == len(names):
                slow.append(texts)
                slow_at.append(row)
            else:
                plural = "s" * (len(texts) != 1)
                of_file = f"its file has {len(names)} columns"
                refused[row] = f"payload: {len(texts)} field{plural}, {of_file}"
        place = None
        if not fast.all():
            order = [*np.flatnonzero(fast).tolist(), *slow_at, *refused]
            place = pa.array(np.argsort(order))
        split = list(zip(*slow, strict=True)) or [()] * len(names)
        nothing = pa.nulls(len(refused), pa.string())
        columns = {
            name: _placed([column, pa.array(texts, pa.string()), nothing], place)
            for name, column, texts in zip(names, table, split, strict=True)
        }
        return _Texts(rows, columns, {int(rows[row]): why for row, why in refused.items()})


def _by_layout(payloads: pa.Array, layouts: pa.Array) -> list[tuple[_Rows, pa.Array, bytes | None]]:
    """Group the rows by layout: their numbers, their payloads, and the layout."""
    groups = layouts.dictionary_encode(null_encoding="encode")
    rows = np.arange(len(payloads))
    if len(groups.dictionary) == 1:
        return [(rows, payloads, groups.dictionary[0].as_py())]
    codes = groups.indices.to_numpy(zero_copy_only=False)
    found = []
    for code, layout in enumerate(groups.dictionary.to_pylist()):
        of_layout = np.flatnonzero(codes == code)
        found.append((of_layout, payloads.take(pa.array(of_layout)), layout))
    return found


def _as_utf8(payloads: pa.Array, encoding: str) -> tuple[pa.Array, dict[int, str]]:
    """Return the records in UTF-8, null where they are no text, and the reasons for that."""
    # Spark may be set to send large types.
    payloads = payloads.cast(pa.binary())
    if encoding == "utf-8" and payloads.null_count == 0:
        try:
            payloads.cast(pa.string())
        except pa.ArrowInvalid:
            pass
        else:
            return payloads, {}
    records: list[bytes | None] = payloads.to_pylist()
    refused: dict[int, str] = {}
    for row, record in enumerate(records):
        try:
            records[row] = None if record is None else record.decode(encoding).encode()
        except UnicodeError:
            records[row] = None
            refused[row] = f"payload: not {encoding} text"
        if record is None:
            refused[row] = "payload: missing"
    return pa.array(records, pa.binary()), refused


def _read_sound(
    records: pa.BinaryArray, dialect: Dialect, names: Sequence[str], nulls: frozenset[str]
) -> tuple[_Mask, list[pa.Array]]:
    """Read the records that Arrow's reader is known to read as :func:`split_fields` does.

    Returns:
        Which records those are, and the columns of their fields.
    """
    nothing = np.zeros(len(records), np.bool_), [_NO_TEXTS] * len(names)
    if dialect.escape is not None or not len(records):
        return nothing
    fast = _have_closed_quotes(records, dialect)
    chosen = records.filter(pa.array(fast))
    data = _lines(chosen)
    sound = _are_sound(data, chosen, dialect, len(names))
    if not sound.all():
        chosen = chosen.filter(pa.array(sound))
        data = _lines(chosen)
        fast[fast] = sound
    if not len(chosen) or data[:3].to_pybytes() == codecs.BOM_UTF8:
        return nothing
    table = arrow_csv.read_csv(
        pa.BufferReader(data),
        read_options=arrow_csv.ReadOptions(
            use_threads=False, block_size=data.size + 1, column_names=names
        ),
        parse_options=arrow_csv.ParseOptions(
            delimiter=dialect.delimiter,
            quote_char=dialect.quote or False,
            newlines_in_values=True,
            ignore_empty_lines=False,
        ),
        convert_options=arrow_csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()),
            null_values=sorted(nulls),
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
    assert table.num_rows == len(chosen)
    return fast, [column.combine_chunks() for column in table.columns]


def _lines(records: pa.BinaryArray) -> pa.Buffer:
    """Return the records with a line feed after each.

    Without one at the end, Arrow takes an empty last field for a quoted one if the one before is.
    """
    with_end = pa.concat_arrays([records, pa.array([b""], pa.binary())])
    one = pa.ListArray.from_arrays([0, len(with_end)], with_end)
    return pc.binary_join(one, b"\n")[0].as_buffer()


def _have_closed_quotes(records: pa.BinaryArray, dialect: Dialect) -> _Mask:
    """Return which records are not empty and have an even number of quotes."""
    lengths = pc.fill_null(pc.binary_length(records), 0).to_numpy(zero_copy_only=False)
    whole: _Mask = lengths > 0
    if dialect.quote:
        quotes = pc.fill_null(pc.count_substring(records, dialect.quote), 0)
        whole &= quotes.to_numpy(zero_copy_only=False) % 2 == 0
    return whole


def _are_sound(data: pa.Buffer, records: pa.BinaryArray, dialect: Dialect, columns: int) -> _Mask:
    """Return which records have ``columns`` columns, and quotes only where they belong.

    ``data`` are the records, each with an even number of quotes, and a line feed after each.
    """
    letters = np.frombuffer(data, np.uint8)
    ends = np.cumsum(pc.binary_length(records).to_numpy(zero_copy_only=False) + 1)
    delimiters = np.flatnonzero(letters == ord(dialect.delimiter))
    breaks = np.flatnonzero((letters == _LF) | (letters == _CR))
    sound = np.ones(len(records), np.bool_)
    if dialect.quote and len(quotes := np.flatnonzero(letters == ord(dialect.quote))):
        misplaced = quotes[misplaced_quotes(letters, quotes, dialect)]
        sound[np.searchsorted(ends, misplaced, side="right")] = False
        delimiters = delimiters[np.searchsorted(quotes, delimiters) % 2 == 0]
        breaks = breaks[np.searchsorted(quotes, breaks) % 2 == 0]
    per_record = np.bincount(np.searchsorted(ends, delimiters, side="right"), minlength=len(ends))
    # One outside of quotes follows each record.
    inner = np.setdiff1d(breaks, ends - 1, assume_unique=True)
    sound[np.searchsorted(ends, inner, side="right")] = False
    fits: _Mask = sound & (per_record == columns - 1)
    return fits


def _column(piece: _Texts, name: str) -> pa.Array:
    found = piece.columns.get(name)
    return pa.nulls(len(piece.rows), pa.string()) if found is None else found


def _placed(parts: Sequence[pa.Array], place: pa.Array | None) -> pa.Array:
    """Concatenate parts, and bring them into the order of the rows."""
    filled = [part for part in parts if len(part)]
    whole = pa.concat_arrays(filled) if filled else _NO_TEXTS
    return whole if place is None else whole.take(place)
