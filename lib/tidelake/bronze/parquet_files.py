"""Read the rows of a Parquet file as JSON payloads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice, repeat
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidelake.bronze.arrow_json import UnsupportedTypeError, to_json_objects
from tidelake.bronze.file_format import BrokenFileError, Chunk

# Bounds of what is read at once, and of what is converted at once, which takes several times its
# size: bytes, and rows.
_READ_BYTES, _CONVERTED_BYTES, _BATCH_ROWS = 64 << 20, 8 << 20, 8192
# How many rows are read to learn how long rows are.
_FIRST_ROWS = 64
# Of how many row groups, spread over the file, the dictionaries are read: each takes milliseconds.
_SAMPLED_GROUPS = 16
_ENDS = b"PAR1"
# A name in a damaged schema may not be UTF-8.
_DAMAGE = (pa.ArrowException, OSError, UnicodeError)


def read_parquet(content: bytes) -> Iterator[Chunk]:
    """Yield a Parquet file's rows as JSON objects with exact values.

    Values are converted as :mod:`tidelake.bronze.arrow_json` describes. INT96 times, which Spark
    and Hive write, are instants.

    Raises:
        BrokenFileError: It is not a Parquet file, is truncated or damaged, or has a type without
            JSON equivalent, or two columns or two fields of a struct have one name.
    """
    if not (content.startswith(_ENDS) and content.endswith(_ENDS)):
        raise BrokenFileError("it is not a Parquet file, or is truncated")
    try:
        file = _opened(content, "us")
        names = _names(file)
        # Nanoseconds reach from 1677 to 2262, so INT96 times are read in both units.
        fine = _opened(content, "ns") if _int96_columns(file) else None
        yield from _chunks(file, fine, names, _rows_to_read(content, file))
    except (*_DAMAGE, UnsupportedTypeError) as error:
        raise BrokenFileError(f"not a readable Parquet file: {error}") from error


def parquet_schema(content: bytes) -> tuple[pa.Schema, frozenset[str]]:
    """Return a Parquet file's schema, and its columns with INT96 times.

    Raises:
        BrokenFileError: As :func:`read_parquet`.
    """
    try:
        file = _opened(content, "us")
        return file.schema_arrow, _int96_columns(file)
    except _DAMAGE as error:
        raise BrokenFileError(f"not a readable Parquet file: {error}") from error


def _opened(content: bytes, unit: str, dictionaries: Sequence[str] = ()) -> pq.ParquetFile:
    return pq.ParquetFile(
        pa.BufferReader(content),
        read_dictionary=[*dictionaries],
        coerce_int96_timestamp_unit=unit,
        page_checksum_verification=True,
    )


def _names(file: pq.ParquetFile) -> list[str]:
    double = next(_double_names(pa.struct(file.schema_arrow)), None)
    if double is not None:
        raise BrokenFileError(f"it has two columns with the name {double}")
    return [*file.schema_arrow.names]


def _double_names(kind: pa.DataType) -> Iterator[str]:
    """Yield the names that two fields of a struct have, at any depth, each with its path."""
    fields = _fields(kind)
    times = Counter(field.name for field in fields)
    yield from (name for name, count in times.items() if count > 1)
    for field in fields:
        yield from (f"{field.name}.{name}" for name in _double_names(field.type))


def _int96_columns(file: pq.ParquetFile) -> frozenset[str]:
    """Return the columns that are INT96 or contain it.

    Parquet's leaves are in the order of the columns; their paths do not tell, as names may have
    dots.
    """
    leaves = map(file.schema.column, range(len(file.schema)))
    are_int96 = (leaf.physical_type == "INT96" for leaf in leaves)
    return frozenset(
        field.name
        for field in file.schema_arrow
        if any(list(islice(are_int96, _leaf_count(field.type))))
    )


def _leaf_count(kind: pa.DataType) -> int:
    return sum(_leaf_count(field.type) for field in _fields(kind)) or 1


def _fields(kind: pa.DataType) -> list[pa.Field]:
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if pa.types.is_map(kind):
        # Its one field, of the entries, has the name of the column.
        return [kind.key_field, kind.item_field]
    return [kind.field(at) for at in range(kind.num_fields)]


def _chunks(
    file: pq.ParquetFile, fine: pq.ParquetFile | None, names: list[str], size: int
) -> Iterator[Chunk]:
    converted = _FIRST_ROWS
    finer: Any = repeat(None) if fine is None else _batches(fine, size)
    finer_names = _int96_columns(file)
    for batch, other in zip(_batches(file, size), finer, strict=False):
        twins = [
            other.column(at) if other is not None and name in finer_names else None
            for at, name in enumerate(names)
        ]
        begin, most = 0, _rows_within(_CONVERTED_BYTES, batch.nbytes, batch.num_rows)
        while begin < batch.num_rows:
            rows = min(converted, most, batch.num_rows - begin)
            part = batch.slice(begin, rows)
            fine_part = [twin if twin is None else twin.slice(begin, rows) for twin in twins]
            # Without columns a row is an empty object.
            empty = pa.repeat(pa.scalar(b"{}"), rows)
            payloads = to_json_objects(part.columns, names, fine_part) if names else empty
            begin += rows
            # A column that is a dictionary in Arrow too takes its bytes only now.
            converted = _rows_within(_CONVERTED_BYTES, payloads.nbytes, rows)
            yield payloads, {}


def _batches(file: pq.ParquetFile, size: int) -> Iterator[pa.RecordBatch]:
    # A task of Spark has one core.
    yield from file.iter_batches(batch_size=size, use_threads=False)


def _rows_to_read(content: bytes, file: pq.ParquetFile) -> int:
    """Return how many rows to read at once.

    A row group's size is that of its encoded values: a text that many rows have may count once, as
    it is in a dictionary. So the longest texts of the dictionaries count for each row, and the
    first rows are read, as nested texts are too many to look at each.
    """
    groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
    sizes = [(group.total_byte_size, group.num_rows) for group in groups]
    first = next(_batches(file, _FIRST_ROWS), None)
    if first is not None:
        sizes.append((first.nbytes, first.num_rows))
    texts = [field.name for field in file.schema_arrow if _is_text(field.type)]
    if texts:
        # Read so, the first rows come with the whole dictionary of their row group.
        encoded = _opened(content, "us", texts)
        sampled = range(0, len(groups), -(-len(groups) // _SAMPLED_GROUPS) or 1)
        sizes += [(_longest_texts(encoded, number, texts), 1) for number in sampled]
    return min((_rows_within(_READ_BYTES, *size) for size in sizes), default=1)


def _is_text(kind: pa.DataType) -> bool:
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary)
    return any(fits(kind) for fits in tests)


def _longest_texts(file: pq.ParquetFile, group: int, names: list[str]) -> int:
    """Return the bytes of the longest text of each column's dictionary, added up."""
    for batch in file.iter_batches(
        batch_size=_FIRST_ROWS, row_groups=[group], columns=names, use_threads=False
    ):
        columns = [column for column in batch.columns if pa.types.is_dictionary(column.type)]
        lengths = [pc.max(pc.binary_length(column.dictionary)).as_py() for column in columns]
        return sum(length or 0 for length in lengths)
    return 0


def _rows_within(most: int, size: int, rows: int) -> int:
    """Return how many rows fit into some bytes, of which a number of rows has a size."""
    return max(1, min(_BATCH_ROWS, most * max(rows, 1) // max(size, 1)))
