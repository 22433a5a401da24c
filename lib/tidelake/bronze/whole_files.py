"""Read files whose format needs the whole content.

Spark's Python workers import this module, and end when they are idle for a minute. So it and the
readers import no models of the configuration, which take most of a second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelake.bronze.archives import decompressed
from tidelake.bronze.avro_files import read_avro_container
from tidelake.bronze.csv_files import read_csv
from tidelake.bronze.file_format import BrokenFileError, FileReader
from tidelake.bronze.parquet_files import read_parquet
from tidelake.csv_records import Dialect
from tidelake.spark.workers import prepare_worker

if TYPE_CHECKING:
    from tidelake.config import FilesSource

_READERS: dict[str, FileReader] = {"avro": read_avro_container, "parquet": read_parquet}
_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
# Spark holds each chunk as one value.
_MOST_PAYLOADS, _CHUNK_BYTES = 4096, 1 << 20


def reader_of(source: FilesSource) -> FileReader | None:
    """Return the reader of a source's format; None for lines of text, which Spark reads."""
    if source.format == "csv":
        layout = source.csv
        dialect = Dialect(layout.delimiter, layout.quote, layout.escape, layout.encoding)
        return partial(read_csv, dialect=dialect, columns=layout.columns)
    return _READERS.get(source.format)


def to_chunks(reader: FileReader) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """Return a function for ``mapInArrow`` that turns files into chunks of their records.

    It expects a row per file, with its ``content``. For each it yields a file row, with
    ``_bytes``, then rows with the ``_payloads`` of consecutive records and the index of the first
    as ``_begin``. If the file cannot be read, a second file row with the reason as ``_error`` ends
    its rows.

    Passing a chunk to Spark takes a fraction of the time of a row per record, each with the columns
    of its file.
    """

    def chunks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        prepare_worker()
        for batch in batches:
            for at in range(batch.num_rows):
                yield from _chunks_of(batch.slice(at, 1), reader)

    return chunks


def _chunks_of(file: pa.RecordBatch, reader: FileReader) -> Iterator[pa.RecordBatch]:
    content = file.column("content")[0].as_py()
    yield _row(file, bytes_read=len(content))
    try:
        begin = 0
        for payloads, headers in reader(decompressed(file.column("source")[0].as_py(), content)):
            for part in _parts_of(payloads):
                yield _row(file, payloads=part, headers=headers, begin=begin)
                begin += len(part)
    except BrokenFileError as error:
        yield _row(file, error=str(error))


def _parts_of(payloads: pa.BinaryArray) -> Iterator[pa.BinaryArray]:
    """Cut payloads into parts of limited size; a large payload is a part of its own."""
    ends = np.cumsum(pc.binary_length(payloads).to_numpy(zero_copy_only=False), dtype=np.int64)
    begin = 0
    while begin < len(payloads):
        most = _CHUNK_BYTES + (int(ends[begin - 1]) if begin else 0)
        fitting = int(np.searchsorted(ends, most, side="right"))
        end = max(begin + 1, min(fitting, begin + _MOST_PAYLOADS))
        yield payloads.slice(begin, end - begin)
        begin = end


def _row(
    file: pa.RecordBatch,
    *,
    payloads: pa.BinaryArray | None = None,
    headers: Mapping[str, bytes] | None = None,
    begin: int | None = None,
    bytes_read: int | None = None,
    error: str | None = None,
) -> pa.RecordBatch:
    shown = [{"key": key, "value": value} for key, value in (headers or {}).items()] or None
    columns = {
        "_payloads": pa.nulls(1, pa.list_(pa.binary()))
        if payloads is None
        else pa.ListArray.from_arrays([0, len(payloads)], payloads),
        "headers": pa.array([shown], _HEADERS),
        "source": file.column("source"),
        "source_timestamp": file.column("source_timestamp"),
        "_begin": pa.array([begin], pa.int64()),
        "_size": file.column("_size"),
        "_bytes": pa.array([bytes_read], pa.int64()),
        "_error": pa.array([error], pa.string()),
    }
    return pa.RecordBatch.from_pydict(columns)
