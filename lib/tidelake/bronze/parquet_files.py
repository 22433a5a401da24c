"""Read the rows of a Parquet file as JSON payloads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice, repeat
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tidelake.bronze.arrow_json import UnsupportedTypeError, to_json_objects
from tidelake.bronze.file_format import BrokenFileError, Chunk

# Bounds of what is converted at once: uncompressed bytes, and rows.
_BATCH_BYTES, _BATCH_ROWS = 8 << 20, 8192
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
        yield from _chunks(file, fine, names)
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


def _opened(content: bytes, unit: str) -> pq.ParquetFile:
    return pq.ParquetFile(
        pa.BufferReader(content),
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


def _chunks(file: pq.ParquetFile, fine: pq.ParquetFile | None, names: list[str]) -> Iterator[Chunk]:
    size = _batch_rows(file.metadata)
    finer: Any = repeat(None) if fine is None else _batches(fine, size)
    finer_names = _int96_columns(file)
    for batch, other in zip(_batches(file, size), finer, strict=False):
        twins = [
            other.column(at) if other is not None and name in finer_names else None
            for at, name in enumerate(names)
        ]
        # Without columns a row is an empty object.
        empty = pa.repeat(pa.scalar(b"{}"), batch.num_rows)
        yield to_json_objects(batch.columns, names, twins) if names else empty, {}


def _batches(file: pq.ParquetFile, size: int) -> Iterator[pa.RecordBatch]:
    # A task of Spark has one core.
    yield from file.iter_batches(batch_size=size, use_threads=False)


def _batch_rows(metadata: pq.FileMetaData) -> int:
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    widest = max((group.total_byte_size // max(group.num_rows, 1) for group in groups), default=1)
    return max(1, min(_BATCH_ROWS, _BATCH_BYTES // max(widest, 1)))
