"""Recognise CSV in a sample: its dialect, its header, and the types of its texts.

A module of its own because it imports numpy, which a sample of JSON does not need.
"""

from __future__ import annotations

import codecs
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import chain, islice
from typing import Any

from tidelake.cli.init.payload import STRING, value_shape
from tidelake.cli.init.sample import Record
from tidelake.cli.init.time_formats import clock_of
from tidelake.config import CsvFormat
from tidelake.csv_records import Dialect, MalformedRecord, split_fields, split_records
from tidelake.errors import SourceError
from tidelake.names import quoted
from tidelake.visible import shortened

_DELIMITERS = ",;\t|"
# Records that are looked at to find the delimiter, and the share of them with the usual number of
# fields.
_LOOKED_AT, _USUAL = 200, 0.8
# Characters of a record in a message.
_SHOWN = 60
_NULLS = ("NA", "N/A", "#N/A", "NULL", "null", "NaN", "nan", "None", "\\N", "-", "?")
# Without leading zeros: those are of codes, such as postal ones.
_WHOLE = re.compile(r"-?(?:0|[1-9][0-9]*)")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,3})?")
_YEAR = re.compile("(?:19|20)[0-9]{2}")
# Bytes that are no characters in Windows-1252.
_UNDEFINED = frozenset(b"\x81\x8d\x8f\x90\x9d")
# Records, each with the names of its file's columns.
_Records = Sequence[tuple[Record, tuple[str, ...]]]
_TRUTHS = {"true": True, "false": False}


@dataclass(frozen=True)
class CsvFile:
    """The beginning of a file: its path, its bytes, and whether it goes on after them."""

    place: str
    head: bytes
    is_cut: bool


def looks_like_csv(head: bytes, *, is_cut: bool) -> bool:
    """Return whether the beginning of a file is of records with a usual number of fields."""
    if head.lstrip()[:1] in (b"{", b"["):
        return False
    file = CsvFile("", head, is_cut)
    return _delimiter_of(_text_of(file, _encoding_of(file)), is_cut=is_cut) is not None


def sample_csv(
    files: Sequence[CsvFile], *, each: int
) -> tuple[CsvFormat, bytes | None, Iterable[tuple[Record, dict[str, Any] | str]], tuple[str, ...]]:
    """Read the first records of each file, all in the layout of the first.

    Returns:
        The layout; the header record of the first file; the records, each with its values by
        column, or why it has none; notes for the user.

    Raises:
        SourceError: The files differ in their encoding, their delimiter or in having a header.
    """
    encodings = [_encoding_of(file) for file in files]
    if "cp1252" in encodings:
        # Letters are the same in both.
        encodings = ["cp1252" if one == "latin-1" else one for one in encodings]
    encoding = _common(files, encodings, "encoding", also="ascii")
    encoding = "utf-8" if encoding == "ascii" else encoding
    contents = [_text_of(file, encoding) for file in files]
    pairs = list(zip(files, contents, strict=True))
    found = [_delimiter_of(content, is_cut=file.is_cut) or "" for file, content in pairs]
    delimiter = _common(files, found, "delimiter", also="") or ","
    dialect = Dialect(delimiter)
    split = [_first(content, dialect, each + 1, is_cut=file.is_cut) for file, content in pairs]
    headings = [_heading(rows, dialect) for rows in split]
    has_header = _common(files, headings, "header", also="") != "none"
    width = max((len(_fields(record, dialect) or ()) for record in chain(*split)), default=0)
    numbered = tuple(f"column_{number}" for number in range(1, width + 1))
    records: list[tuple[Record, tuple[str, ...]]] = []
    for file, rows in zip(files, split, strict=True):
        names = numbered
        if has_header and rows:
            _refuse_lead(file.place, rows, dialect)
            names = tuple(name or "" for name in _fields(rows[0], dialect) or ())
        own = rows[has_header:][:each]
        for number, row in enumerate(own, 1):
            records.append((Record(f"{file.place} record {number}", "files", row), names))
    nulls = _null_texts(records, dialect)
    layout = CsvFormat(
        columns=None if has_header or not numbered else numbered,
        delimiter=delimiter,
        encoding=encoding,
        nulls=nulls,
    )
    first = next((rows[0] for rows in split if rows), b"")
    notes = [_of_heading(first, dialect, is_header=has_header)]
    notes += [*_lost_texts(records, dialect, nulls), *_blanks_around(records, dialect, nulls)]
    header = first if has_header else None
    return layout, header, _valued(records, dialect, nulls), tuple(notes)


def _refuse_lead(place: str, rows: Sequence[bytes], dialect: Dialect) -> None:
    """Refuse a file whose header comes after other lines, such as a title or a comment.

    Then the usual record has another number of fields than the first. Short records at the end,
    such as totals, say nothing about the header.
    """
    widths = [len(_fields(row, dialect) or ()) for row in rows]
    # Of several usual widths the greatest, because titles and totals are narrower than a table.
    times, usual = max((times, width) for width, times in Counter(widths).items() if width)
    lead = widths.index(usual)
    if lead and times > 1:
        # Named, not counted: blank lines are no records, and each file may have another number.
        raise SourceError(
            f"{place}: its first record ({_beginning(rows[0])}) has another number of fields "
            f"({widths[0]}) than most others ({usual}), so it cannot be their header. If their "
            f"header is {_beginning(rows[lead])}, remove the lines above it from the files. If it "
            "is the first record, let it name each column."
        )


def _beginning(record: bytes) -> str:
    """Return a record's first line, cut to what fits into a message."""
    return shortened(next(iter(record.decode().splitlines()), ""), _SHOWN)


def _common(files: Sequence[CsvFile], found: Sequence[str], what: str, *, also: str) -> str:
    """Return what all files have; those with ``also`` fit any others."""
    places = {value: file.place for value, file in zip(found, files, strict=True) if value != also}
    if len(places) > 1:
        shown = ", ".join(f"{place} ({value!r})" for value, place in sorted(places.items()))
        raise SourceError(
            f"the CSV files of the sample differ in their {what}: {shown}. Put each kind into a "
            "folder with a pipeline of its own, or pass one file with --sample."
        )
    return next(iter(places), also)


def _encoding_of(file: CsvFile) -> str:
    if file.head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    if file.head.isascii():
        return "ascii"
    try:
        # A cut may be within a character.
        codecs.getincrementaldecoder("utf-8")().decode(file.head, final=not file.is_cut)
        return "utf-8"
    except UnicodeDecodeError:
        pass
    # Windows has letters, such as the sign of the euro, where Latin 1 has control characters.
    has_letters = any(0x80 <= byte < 0xA0 and byte not in _UNDEFINED for byte in set(file.head))
    return "cp1252" if has_letters and _UNDEFINED.isdisjoint(file.head) else "latin-1"


def _text_of(file: CsvFile, encoding: str) -> bytes:
    """Return the beginning in UTF-8, without a byte-order mark."""
    text = file.head.decode(encoding, errors="ignore")
    return text.removeprefix("\ufeff").encode()


def _first(content: bytes, dialect: Dialect, count: int, *, is_cut: bool) -> list[bytes]:
    """Return the first records, without one that is cut off."""
    found = list(islice(chain.from_iterable(split_records(content, dialect)), count))
    whole = len(found) == count or not is_cut
    return found if whole else found[:-1]


def _fields(record: bytes, dialect: Dialect, nulls: Iterable[str] = ()) -> list[str | None] | None:
    try:
        return split_fields(record.decode(), dialect, frozenset((*nulls, "")))
    except MalformedRecord:
        return None


def _delimiter_of(content: bytes, *, is_cut: bool) -> str | None:
    """Return the delimiter that gives most records the same number of fields, of the most."""
    ranked = []
    for letter in _DELIMITERS:
        dialect = Dialect(letter)
        records = _first(content, dialect, _LOOKED_AT, is_cut=is_cut)
        counts = Counter(len(_fields(record, dialect) or ()) for record in records)
        for fields, number in counts.most_common(1):
            if fields > 1 and number >= _USUAL * len(records):
                ranked.append((number / len(records), fields, letter))
    return max(ranked)[2] if ranked else None


def _heading(rows: Sequence[bytes], dialect: Dialect) -> str:
    """Return what the first record of a file is: "a header", "none", or "" if nothing tells.

    The first of these rules decides that applies to a field of that record and those below it:

    1. none: the field is empty or equal to another, which bronze refuses in a header
    2. none: it is a time above times, or a truth value above truth values
    3. a header: it is above numbers, times or truth values alone, and of another type
    4. none: it is above texts, and one of them or a code of their form
    5. a header: it is one of two years above values that are none
    6. none: it is a number, time or truth value

    DuckDB's ``sniff_csv`` takes any texts above texts for a header, which loses the record if they
    are data, and finds no years.
    """
    if not _are_names(rows[0] if rows else b"", dialect):
        return "none" if rows else ""
    # A header that comes again, as in files that were put together, says nothing.
    distinct = dict.fromkeys(rows[:_LOOKED_AT])
    first, *others = (_fields(row, dialect, _NULLS) or [] for row in distinct)
    above: set[tuple[str, str]] = set()
    years, is_alike = 0, False
    whole = [row for row in others if len(row) == len(first)]
    for name, *column in zip(first, *whole, strict=True):
        below = [text for text in column if text is not None]
        if name is None or not below:
            continue
        kind = _kind(below)
        above.add((_kind([name]), kind))
        is_alike |= kind == "text" and (name in below or _are_codes([name, *below]))
        years += bool(_YEAR.fullmatch(name)) and not any(map(_YEAR.fullmatch, below))
    if above & {("time", "time"), ("boolean", "boolean")}:
        return "none"
    if any(kind not in (own, "text") for own, kind in above):
        return "a header"
    if is_alike:
        return "none"
    if years > 1:
        return "a header"
    are_texts = all(_kind([name]) == "text" for name in _fields(rows[0], dialect) or ())
    return "" if are_texts else "none"


def _are_names(record: bytes, dialect: Dialect) -> bool:
    """Return whether each field has a text, and none that of another."""
    names = _fields(record, dialect) or [None]
    return all(names) and len(set(names)) == len(names)


def _kind(texts: Sequence[str | None]) -> str:
    """Return what all texts are: ``number``, ``time`` or ``boolean``; else ``text``."""
    values = _typed(texts)
    kind = value_shape("", values).type.kind
    if kind == "string":
        return "text" if clock_of(values) is None else "time"
    return {"boolean": "boolean", "date": "time", "timestamp": "time"}.get(kind, "number")


def _are_codes(texts: Sequence[str]) -> bool:
    """Return whether all texts have a digit, and their lengths or their runs of letters agree."""
    forms = (len, lambda text: re.sub("[0-9]+", "9", re.sub("[A-Za-z]+", "a", text)))
    is_uniform = any(len({form(text) for text in texts}) == 1 for form in forms)
    return is_uniform and all(map(re.compile("[0-9]").search, texts))


def _of_heading(record: bytes, dialect: Dialect, *, is_header: bool) -> str:
    """Return the note on what the first record was taken for."""
    shown = _beginning(record)
    if is_header:
        return (
            f"the first record is taken as the header: {shown}. If it is data, write the names of "
            "the columns as source.csv.columns in place of header, and in event"
        )
    remedy = "write header: true in place of source.csv.columns, and its names in event"
    if not _are_names(record, dialect):
        remedy = "correct the files: a header names each column, and none like another"
    return f"the first record is read as data, no header: {shown}. If it is the header, {remedy}"


def _null_texts(records: _Records, dialect: Dialect) -> tuple[str, ...]:
    """Return the texts that stand among values of another type than text."""
    found = set()
    for name, texts in _columns(records, dialect, ()).items():
        others = [text for text in texts if text is not None and text not in _NULLS]
        if others and value_shape(name, _typed(others)).type != STRING:
            found |= {text for text in texts if text in _NULLS}
    return tuple(text for text in _NULLS if text in found)


def _lost_texts(records: _Records, dialect: Dialect, nulls: Sequence[str]) -> Iterator[str]:
    """Yield a note for each column of texts in which a text of ``nulls`` is null too."""
    if not nulls:
        return
    read = _columns(records, dialect, nulls)
    for name, texts in _columns(records, dialect, ()).items():
        kept = [text for text in read[name] if text is not None]
        lost = Counter(texts) - Counter(read[name])
        if not (kept and lost and value_shape(name, _typed(kept)).type == STRING):
            continue
        for text in lost:
            yield (
                f"{name}: {text} is null here too, in {lost[text]:,} records, because the texts of "
                "source.csv.nulls are null in each column. If it is a value, remove it from nulls, "
                "declare the columns of numbers that have it as STRING, and convert these in "
                f"event.select: CAST(nullif(COLUMN, '{text}') AS DOUBLE)"
            )


def _blanks_around(records: _Records, dialect: Dialect, nulls: Sequence[str]) -> Iterator[str]:
    """Yield a note if blanks keep the values of columns from being read as numbers or times."""
    found: dict[str, list[str]] = {}
    for name, column in _columns(records, dialect, nulls).items():
        texts = [text for text in column if text is not None]
        trimmed = [text.strip(" ") for text in texts]
        if texts and _kind(texts) == "text" and _kind(trimmed) != "text":
            found[name] = trimmed
    if found:
        name, trimmed = next(iter(found.items()))
        values, sql = _typed(trimmed), f"trim({quoted(name)})"
        kind, clock = value_shape("", values).type, clock_of(values)
        told = f"CAST({sql} AS {kind.sql})"
        if kind == STRING and clock is not None:
            told = clock.failing_sql.format(sql)
        yield (
            f"{', '.join(map(repr, found))}: read as text, because blanks around a value are part "
            "of it. Write the files without them, or convert in event.time and event.select: "
            f"{told}"
        )


def _columns(
    records: _Records, dialect: Dialect, nulls: Sequence[str]
) -> dict[str, list[str | None]]:
    columns: dict[str, list[str | None]] = {}
    for record, names in records:
        fields = _fields(record.payload, dialect, nulls)
        if fields is not None and len(fields) == len(names):
            for name, text in zip(names, fields, strict=True):
                columns.setdefault(name, []).append(text)
    return columns


def _valued(
    records: _Records, dialect: Dialect, nulls: Sequence[str]
) -> Iterator[tuple[Record, dict[str, Any] | str]]:
    """Yield each record with its values, or why it has none; a column has values of one type."""
    texts = _columns(records, dialect, nulls)
    columns = {name: iter(_typed(values)) for name, values in texts.items()}
    for record, names in records:
        fields = _fields(record.payload, dialect, nulls)
        if fields is None:
            yield record, "a quote is not closed, or text follows a closing one"
        elif len(fields) != len(names):
            yield record, f"{len(fields)} fields, its file has {len(names)} columns"
        else:
            yield record, {name: next(columns[name]) for name in names}


def _typed(texts: Sequence[str | None]) -> list[Any]:
    """Convert the texts of a column to numbers or truth values, if all of them are."""
    values = [None if text is None else _value(text) for text in texts]
    kinds = {type(value) for value in values if value is not None}
    is_uniform = kinds == {bool} or kinds <= {int, Decimal}
    return values if is_uniform else list(texts)


def _value(text: str) -> object:
    if text in _TRUTHS:
        return _TRUTHS[text]
    if _WHOLE.fullmatch(text):
        return int(text) if len(text) <= 40 else text
    return Decimal(text) if _NUMBER.fullmatch(text) else text
