"""Read the records of a CSV file as payloads, byte for byte.

What silver needs to read a record again, the dialect and the names of its file's columns, is kept
beside it in a header: a changed definition does not read stored records differently.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa

from tidelake.bronze.file_format import BrokenFileError, Chunk
from tidelake.csv_records import (
    LAYOUT_HEADER,
    Dialect,
    MalformedRecord,
    keeps_bytes,
    record_layout,
    split_fields,
    split_records,
)


def read_csv(
    content: bytes, dialect: Dialect, columns: tuple[str, ...] | None = None
) -> Iterator[Chunk]:
    """Yield a CSV file's records, without line ends and without the header record.

    ``columns`` are the names in files without a header.

    The bytes are the file's, or of UTF-8 if records cannot be cut out of its encoding, such as
    UTF-16. A byte-order mark is dropped.

    Raises:
        BrokenFileError: The header is not well-formed, or has an empty name or one twice; or the
            content is not in an encoding that must be converted.
    """
    encoding = codecs.lookup(dialect.encoding).name
    if encoding == "utf-8-sig":
        encoding = "utf-8"
    if not keeps_bytes(encoding):
        content, encoding = _converted(content, encoding), "utf-8"
    dialect = replace(dialect, encoding=encoding)
    is_marked = encoding == "utf-8" and content.startswith(codecs.BOM_UTF8)
    start = len(codecs.BOM_UTF8) if is_marked else 0
    names = columns
    for records in split_records(content, dialect, start):
        has_header = names is None
        if names is None:
            names = _names(records[0], dialect)
        payloads = pa.array(records[has_header:], pa.binary())
        yield payloads, {LAYOUT_HEADER: record_layout(dialect, names)}


def _converted(content: bytes, encoding: str) -> bytes:
    try:
        return content.decode(encoding).encode()
    except UnicodeError as error:
        why = f"byte {error.start:,}" if isinstance(error, UnicodeDecodeError) else error
        raise BrokenFileError(f"it is not {encoding} text: {why}") from error


def _names(record: bytes, dialect: Dialect) -> tuple[str, ...]:
    """Return the names in a header record."""
    try:
        names = split_fields(record.decode(dialect.encoding), dialect)
    except MalformedRecord as error:
        raise BrokenFileError(f"its header cannot be read: {error}") from error
    except UnicodeError as error:
        raise BrokenFileError(f"its header is not {dialect.encoding} text") from error
    columns = tuple(name or "" for name in names)
    problems = [f"no name in column {at}" for at, name in enumerate(columns, 1) if not name]
    twice = dict.fromkeys(name for name in columns if name and columns.count(name) > 1)
    problems += [f"the name {name} {columns.count(name)} times" for name in twice]
    if problems:
        raise BrokenFileError(f"its header has {', '.join(problems[:10])}")
    return columns
