r"""Split CSV into records and a record into fields, in the dialect of one file.

Records end as for Python's ``csv``: at LF, CRLF or a lone CR outside of quotes. A quote opens only
at the start of a field; anywhere else it is an ordinary character. Inside quotes two of them stand
for one. The escape character, if there is one, takes the meaning from the character after it,
inside quotes and outside. Empty lines are no records. A quote that is not closed reaches to the end
of the content.

Splitting into records is lenient, so that every byte belongs to a record or to a line end;
splitting into fields is strict, like ``csv`` with ``strict=True``: a quote that is not closed, or
text between a closing quote and the next delimiter, is an error of the record.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

# The name of bronze's header that holds a record's layout.
LAYOUT_HEADER = "csv"

# Content is split in pieces of this many bytes, which bounds memory.
_PIECE_BYTES = 1 << 20
_LF, _CR = b"\n\r"
_ASCII = bytes(range(128))


class MalformedRecord(ValueError):
    """A record that is not well-formed in its dialect; the message is the reason."""


@dataclass(frozen=True)
class Dialect:
    """How fields are written: each a single ASCII character, or None; ``encoding`` is a codec."""

    delimiter: str = ","
    quote: str | None = '"'
    escape: str | None = None
    encoding: str = "utf-8"

    @cached_property
    def record_pattern(self) -> re.Pattern[bytes]:
        """A record, from its first byte, and the line end after it; matches at every position."""
        delimiter, quote, escape = map(_class_of, (self.delimiter, self.quote, self.escape))
        escaped = rf"|{escape}(?s:.)|{escape}\Z" if escape else ""
        field = rf"(?:[^{delimiter}{escape}\r\n]++{escaped})*+"
        if quote:
            inside = rf"(?:[^{quote}{escape}]++|{quote}{quote}{escaped})*+"
            field = rf"(?:{quote}{inside}(?:{quote}|\Z))?+{field}"
        return re.compile(rf"({field}(?:{delimiter}{field})*+)(?:\r\n|\r|\n|\Z)".encode())

    @cached_property
    def field_pattern(self) -> re.Pattern[str]:
        """One well-formed field, up to the delimiter or the end; group 1 is quoted content."""
        delimiter, quote, escape = map(_class_of, (self.delimiter, self.quote, self.escape))
        escaped = rf"|{escape}(?s:.)" if escape else ""
        end = rf"(?={delimiter}|\Z)"
        bare = rf"((?:[^{delimiter}{escape}]++{escaped})*+){end}"
        if not quote:
            return re.compile(f"(?!)()|{bare}")
        inside = rf"((?:[^{quote}{escape}]++|{quote}{quote}{escaped})*+)"
        return re.compile(f"{quote}{inside}{quote}{end}|(?!{quote}){bare}")


def _class_of(letter: str | None) -> str:
    """Escape a character for use in and outside of a set of characters."""
    return "" if letter is None else rf"\x{ord(letter):02x}"


def record_layout(dialect: Dialect, columns: Sequence[str]) -> bytes:
    """Return what is needed to read a record again, as canonical JSON."""
    layout = {**asdict(dialect), "columns": list(columns)}
    return json.dumps(layout, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()


@lru_cache(maxsize=256)
def parse_layout(layout: bytes) -> tuple[Dialect, tuple[str, ...]]:
    """Read what :func:`record_layout` wrote; a ValueError if it did not write this."""
    try:
        parts = json.loads(layout)
        columns = tuple(parts.pop("columns"))
        return Dialect(**parts), columns
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"not a layout: {error}") from error


@lru_cache(maxsize=64)
def keeps_bytes(encoding: str) -> bool:
    """Return whether records may be cut out of the encoded bytes as they are.

    True where each byte below 128 is its ASCII character wherever it stands, as in UTF-8 and
    Latin-1. In Shift-JIS, for example, it may be the second half of a character.
    """
    name = codecs.lookup(encoding).name
    if name.startswith(("iso2022", "hz")):
        # These switch between character sets, so a part cannot be read on its own.
        return False
    try:
        if _ASCII.decode(name) != _ASCII.decode("ascii"):
            return False
    except UnicodeDecodeError:
        return False
    for first in range(128, 256):
        for second in _ASCII:
            try:
                text = bytes((first, second)).decode(name)
            except UnicodeDecodeError:
                continue
            if len(text) != 2 or text[1] != chr(second):
                return False
    return True


def split_records(content: bytes, dialect: Dialect, start: int = 0) -> Iterator[list[bytes]]:
    """Yield the records of encoded content from ``start`` on, in order, in lists of thousands.

    Without their line ends, otherwise byte for byte. The content is split in pieces. Pieces without
    quotes are split at line ends; well-placed quotes are counted. Pieces with other quotes or an
    escape character, and records longer than a piece, are split with a pattern, which takes up to
    eight times as long.
    """
    position, size = start, len(content)
    while position < size:
        stop = min(position + _PIECE_BYTES, size)
        piece = content[position:stop]
        records, length = _split_piece(piece, dialect, is_last=stop == size)
        if length == 0:
            records, end = _split_by_pattern(content, dialect, position, stop)
            length = end - position
        position += length
        if records:
            yield records


def _split_piece(piece: bytes, dialect: Dialect, *, is_last: bool) -> tuple[list[bytes], int]:
    """Split a piece without the pattern, up to the end of its last whole record.

    Returns:
        The records, and the length of what was split: 0 if only the pattern can split the piece.
    """
    quote, escape = ((letter or "").encode() for letter in (dialect.quote, dialect.escape))
    if escape and escape in piece:
        return [], 0
    if not quote or quote not in piece:
        end = len(piece) if is_last else max(piece.rfind(b"\n"), piece.rfind(b"\r")) + 1
        return list(filter(None, piece[:end].splitlines())), end
    letters = np.frombuffer(piece, np.uint8)
    quotes = np.flatnonzero(letters == ord(quote))
    if len(misplaced_quotes(letters, quotes, dialect)):
        return [], 0
    breaks = np.flatnonzero(letters == _LF)
    if b"\r" in piece:
        breaks = np.flatnonzero((letters == _LF) | (letters == _CR))
    breaks = breaks[np.searchsorted(quotes, breaks) % 2 == 0]
    if is_last:
        breaks = np.append(breaks, len(piece))
    elif not len(breaks):
        return [], 0
    ends = breaks.tolist()
    starts = [0, *(end + 1 for end in ends)]
    records = [piece[at:end] for at, end in zip(starts, ends, strict=False) if at != end]
    return records, min(ends[-1] + 1, len(piece))


def misplaced_quotes(letters: Any, quotes: Any, dialect: Dialect) -> Any:
    """Return which of the quotes, by index, neither open nor close a field nor are doubled.

    Quotes at even indices should open, the others close. ``letters`` are the bytes of whole records
    and ``quotes`` the positions of the quotes in them, as arrays of NumPy.
    """
    edges = np.zeros(256, np.bool_)
    # A quote before an opening one is the closing one before it: the two are a doubled quote.
    edges[[_LF, _CR, ord(dialect.delimiter), ord(dialect.quote or "")]] = True
    framed = np.full(len(letters) + 2, _LF, np.uint8)
    framed[1:-1] = letters
    outside = quotes.copy()
    outside[1::2] += 2
    return np.flatnonzero(~edges[framed[outside]])


def _split_by_pattern(
    content: bytes, dialect: Dialect, start: int, stop: int
) -> tuple[list[bytes], int]:
    """Split records until one ends at ``stop`` or behind it; return them and that end."""
    records = []
    for found in dialect.record_pattern.finditer(content, start):
        if found[1]:
            records.append(found[1])
        if found.end() >= stop:
            break
    return records, found.end()


def split_fields(
    text: str, dialect: Dialect, nulls: frozenset[str] = frozenset()
) -> list[str | None]:
    """Return the fields of a record; None for an unquoted field whose text is in ``nulls``.

    Raises:
        MalformedRecord: The record is not well-formed.
    """
    match, quote, escape = dialect.field_pattern.match, dialect.quote, dialect.escape
    fields: list[str | None] = []
    position, size = 0, len(text)
    while True:
        found = match(text, position)
        if found is None:
            raise MalformedRecord(_malformed(text, position, len(fields) + 1, dialect))
        value = found[1]
        if value is None:
            value = found[2]
            # Compared as written: \N, where the backslash escapes, is not the letter N.
            if value in nulls:
                fields.append(None)
            else:
                fields.append(value if escape is None else _unescaped(value, dialect))
        elif escape is not None:
            fields.append(_unescaped(value, dialect, quoted=True))
        else:
            # The pattern has checked that each quote inside is doubled.
            fields.append(value.replace(f"{quote}{quote}", quote or ""))
        position = found.end()
        if position == size:
            return fields
        position += 1


def _unescaped(text: str, dialect: Dialect, *, quoted: bool = False) -> str:
    escape, quote = _class_of(dialect.escape), _class_of(dialect.quote)
    doubled = f"|{quote}({quote})" if quoted and quote else "|(?!)()"
    return re.sub(rf"(?s){escape}(.){doubled}", lambda m: m[1] or m[2], text)


def _malformed(text: str, position: int, number: int, dialect: Dialect) -> str:
    quote, escape = _class_of(dialect.quote), _class_of(dialect.escape)
    if not quote or text[position : position + 1] != dialect.quote:
        return "ends with the escape character"
    escaped = rf"|{escape}(?s:.)" if escape else ""
    inside = rf"{quote}(?:[^{quote}{escape}]++|{quote}{quote}{escaped})*+"
    if re.compile(inside + quote).match(text, position):
        return f"text after the closing quote of field {number}"
    return f"the quote of field {number} is not closed"
