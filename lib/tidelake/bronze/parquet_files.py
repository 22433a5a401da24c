"""Read the rows of a Parquet file as JSON payloads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from itertools import groupby, islice

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidelake.bronze.arrow_json import UnsupportedTypeError, to_json_objects
from tidelake.bronze.file_format import BrokenFileError, Chunk

# Bounds of what is read, and of what is converted at once: uncompressed bytes, and rows.
_READ_BYTES, _CONVERTED_BYTES, _BATCH_ROWS = 8 << 20, 8 << 20, 8192
# How much more the texts of a batch may take that are in the file once, in a dictionary.
_REPEATED_BYTES = 64 << 20
# How many rows are read to learn how long nested texts are.
_FIRST_ROWS = 16
_ENDS = b"PAR1"
# A name in a damaged schema may not be UTF-8.
_DAMAGE = (pa.ArrowException, OSError, UnicodeError)


def read_parquet(content: bytes) -> Iterator[Chunk]:
    """Yield a Parquet file's rows as JSON objects with exact values.

    Values are converted as :mod:`tidelake.bronze.arrow_json` describes. INT96 times, which Spark
    and Hive write, are instants.

    Raises:
        BrokenFileError: It is not a Parquet file, is truncated or damaged, or has a type without
            JSON equivalent, or two columns or two fields of a struct have one name; or not all of
            the rows that it names could be read, which shows after the last.
    """
    if not (content.startswith(_ENDS) and content.endswith(_ENDS)):
        raise BrokenFileError("it is not a Parquet file, or is truncated")
    try:
        file = _opened(content, "us")
        names = _names(file)
        # Nanoseconds reach from 1677 to 2262, so INT96 times are read in both units.
        finer_names = _int96_columns(file)
        count = 0
        for payloads, headers in _chunks(content, file, finer_names, names):
            count += len(payloads)
            yield payloads, headers
        if count != file.metadata.num_rows:
            raise BrokenFileError(f"{count:,} of its {file.metadata.num_rows:,} rows were read")
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
    content: bytes, file: pq.ParquetFile, finer_names: frozenset[str], names: list[str]
) -> Iterator[Chunk]:
    size = _batch_rows(file)
    texts = _RepeatedTexts(content, file, size)
    # Row groups without long texts are read together: a batch may hold several small ones.
    for long, numbers in groupby(range(file.num_row_groups), texts.long):
        groups = list(numbers)
        read = partial(_batches, content, size, groups, long)
        # Arrow cuts batches elsewhere where a column is read as a dictionary: both read alike.
        both = zip(read("us"), read("ns"), strict=True) if finer_names else zip(read("us"))
        for batch, *finer in both:
            other = finer[0] if finer else None
            if other is not None and other.num_rows != batch.num_rows:
                raise BrokenFileError("its times in nanoseconds are not of the same rows")
            twins = [
                other.column(at) if other is not None and name in finer_names else None
                for at, name in enumerate(names)
            ]
            for begin, rows in _parts(batch):
                columns = batch.slice(begin, rows).columns
                of_part = [twin if twin is None else twin.slice(begin, rows) for twin in twins]
                # Without columns a row is an empty object.
                empty = pa.repeat(pa.scalar(b"{}"), rows)
                yield to_json_objects(columns, names, of_part) if names else empty, {}


def _batches(
    content: bytes, size: int, groups: Sequence[int], dictionaries: Sequence[str], unit: str
) -> Iterator[pa.RecordBatch]:
    file = _opened(content, unit, dictionaries)
    # A task of Spark has one core.
    yield from file.iter_batches(batch_size=size, row_groups=groups, use_threads=False)


def _batch_rows(file: pq.ParquetFile) -> int:
    """Return how many rows are read at once, by the sizes of the row groups.

    A row group's size is that of its encoded values. A text that many rows have may count once,
    being in a dictionary; in nested columns, the first rows tell how long texts are.
    """
    groups = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
    sizes = [(group.total_byte_size, group.num_rows) for group in groups]
    nested = [field.name for field in file.schema_arrow if pa.types.is_nested(field.type)]
    if nested and (first := next(file.iter_batches(_FIRST_ROWS, columns=nested), None)):
        sizes.append((first.nbytes, first.num_rows))
    widest = max((size // max(rows, 1) for size, rows in sizes), default=1)
    return max(1, min(_BATCH_ROWS, _READ_BYTES // max(widest, 1)))


class _RepeatedTexts:
    """Which texts of a file's rows are long, and in a dictionary.

    Read as usual, each row of a batch gets a copy of its text. With such a column read as a
    dictionary, a batch has each text once, and copies are made for some rows at a time. The
    metadata of columns would tell more, but Arrow ends the process where it is damaged.
    """

    def __init__(self, content: bytes, file: pq.ParquetFile, size: int) -> None:
        self._content, self._metadata, self._size = content, file.metadata, size
        # Of a name with a dot, a reader may take the path of a nested column.
        fields = [one for one in file.schema_arrow if "." not in one.name and _is_text(one.type)]
        self._texts = [field.name for field in fields]

    @cached_property
    def _encoded(self) -> pq.ParquetFile:
        return _opened(self._content, "us", self._texts)

    def long(self, number: int) -> tuple[str, ...]:
        """Return the columns of a row group that are to be read as dictionaries."""
        group = self._metadata.row_group(number)
        rows = min(self._size, group.num_rows)
        # No text is longer than all values.
        if not self._texts or group.total_byte_size * rows <= _REPEATED_BYTES:
            return ()
        lengths = self._longest(number, self._texts)
        most = _REPEATED_BYTES / len(self._texts) / rows
        found = [name for name, length in lengths.items() if length > most]
        if not found:
            return ()
        try:
            for _ in self._encoded.iter_batches(self._size, row_groups=[number], columns=found):
                pass
        except (pa.ArrowNotImplementedError, OSError):
            # Later pages have another encoding.
            return ()
        return tuple(found)

    def _longest(self, number: int, names: Sequence[str]) -> dict[str, int]:
        """Return the bytes of the longest text of each column's dictionary."""
        try:
            # A first row comes with the dictionary of its row group.
            first = next(self._encoded.iter_batches(1, row_groups=[number], columns=names), None)
        except (pa.ArrowNotImplementedError, OSError):
            # A column of another encoding, which has no dictionary.
            apart = [self._longest(number, [name]) for name in names] if len(names) > 1 else []
            return {name: length for one in apart for name, length in one.items()}
        columns = zip(first.schema.names, first.columns, strict=True) if first else ()
        found = {name: pc.max(pc.binary_length(one.dictionary)).as_py() for name, one in columns}
        return {name: length for name, length in found.items() if length}


def _is_text(kind: pa.DataType) -> bool:
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary)
    return any(fits(kind) for fits in tests)


def _parts(batch: pa.RecordBatch) -> Iterator[tuple[int, int]]:
    """Yield where the parts of a batch that are converted at once begin, and their rows."""
    sizes = np.zeros(batch.num_rows, np.int64)
    for column in batch.columns:
        if pa.types.is_dictionary(column.type) and _is_text(column.type.value_type):
            lengths = pc.binary_length(column.dictionary).take(column.indices)
            sizes += pc.fill_null(lengths, 0).to_numpy(zero_copy_only=False)
    ends = np.cumsum(sizes)
    begin = 0
    while begin < batch.num_rows:
        most = ends[begin] - sizes[begin] + _CONVERTED_BYTES
        rows = max(1, int(np.searchsorted(ends, most, side="right")) - begin)
        yield begin, rows
        begin += rows
