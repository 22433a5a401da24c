"""Read files whose format needs the whole content, and decompress files in this process.

Spark's Python workers import this module, and end when they are idle for a minute. So it and the
readers import no models of the configuration, which take most of a second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from io import SEEK_END, BytesIO
from pathlib import PurePosixPath
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelake.bronze.avro_files import read_avro_container
from tidelake.bronze.csv_files import read_csv
from tidelake.bronze.file_format import BrokenFileError, FileReader
from tidelake.bronze.parquet_files import read_parquet
from tidelake.csv_records import Dialect
from tidelake.folders import DAMAGE, OPENERS, for_each, opened
from tidelake.spark.tuning import WHOLE_FILE_BYTES
from tidelake.spark.workers import leave_loaded_alone

if TYPE_CHECKING:
    from tidelake.config import FilesSource

_READERS: dict[str, FileReader] = {"avro": read_avro_container, "parquet": read_parquet}
_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
# Spark holds each chunk as one value.
_MOST_PAYLOADS, _CHUNK_BYTES = 4096, 1 << 20
# What a file may grow to when it is decompressed in memory.
_MOST_DECOMPRESSED = 4 * WHOLE_FILE_BYTES
_STEP = 1 << 20
BZIP2_TAIL = 11
_BZIP2_END, _BZIP2_MASK = 0x177245385090, (1 << 48) - 1
# Of Zstandard: the first bytes of a frame (a skippable one has sixteen values), the longest header
# of a frame, and the kind of a block that is one repeated byte.
_ZSTANDARD, _SKIPPABLE, _FRAME_HEADER, _REPEATED = 0xFD2FB528, 0x184D2A50, 18, 1


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
        leave_loaded_alone()
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


def decompressed(path: str, content: bytes) -> bytes:
    """Return a file's content, decompressed if its name says so (``.gz``, ``.bz2``, ``.zst``).

    Raises:
        BrokenFileError: It is truncated, damaged, or too large for memory.
    """
    opener = OPENERS.get(PurePosixPath(path).suffix)
    if opener is None:
        return content
    parts, size = [], 0
    for part in _parts(opener(BytesIO(content))):
        parts.append(part)
        size += len(part)
        if size > _MOST_DECOMPRESSED:
            raise BrokenFileError(
                f"decompressed it has more than {_MOST_DECOMPRESSED >> 20:,} MiB: split it"
            )
    return b"".join(parts)


def ends_as_bzip2(tail: bytes) -> bool:
    """Return whether a file's last ``BZIP2_TAIL`` bytes end a stream of bzip2.

    Spark reads a file that is cut in the last bytes of a stream, or in the first ones of the next,
    without an error, and text that is named ``.bz2`` as no rows. A stream ends with a mark of six
    bytes, a checksum of four and up to seven bits that fill the last byte.
    """
    bits = int.from_bytes(tail[-BZIP2_TAIL:], "big")
    return any((bits >> 32 + padding) & _BZIP2_MASK == _BZIP2_END for padding in range(8))


def ends_as_zstandard(stream: IO[bytes]) -> bool:
    """Return whether a file consists of whole frames of Zstandard.

    Spark reads a file of several frames that is cut in the last 128 KiB without an error, and loses
    the frame that was cut. This reads the headers of frames and blocks (RFC 8878) and skips what is
    in the blocks: damage to that is an error in Spark too.
    """
    size, at = stream.seek(0, SEEK_END), 0
    while at < size:
        stream.seek(at)
        header = stream.read(_FRAME_HEADER)
        magic, skipped = (int.from_bytes(header[byte : byte + 4], "little") for byte in (0, 4))
        if len(header) >= 8 and magic & ~0xF == _SKIPPABLE:
            at += 8 + skipped
            continue
        if len(header) < 5 or magic != _ZSTANDARD:
            return False
        flags = header[4]
        is_single = flags >> 5 & 1
        at += 6 - is_single + (0, 1, 2, 4)[flags & 3] + (is_single, 2, 4, 8)[flags >> 6]
        is_last = False
        while not is_last:
            stream.seek(at)
            block = stream.read(3)
            if len(block) < 3:
                return False
            number = int.from_bytes(block, "little")
            is_last, length = bool(number & 1), number >> 3
            at += 3 + (1 if number >> 1 & 3 == _REPEATED else length)
        # The checksum of the content.
        at += (flags >> 2 & 1) * 4
    return at == size


def suspect_archives(paths: Sequence[str]) -> list[str]:
    """Return those of the paths that may be broken archives which Spark reads without an error."""
    found = for_each(_is_suspect, paths)
    return [path for path, is_suspect in zip(paths, found, strict=True) if is_suspect]


def _is_suspect(path: str) -> bool:
    if not path.endswith((".bz2", ".zst")):
        return False
    with opened(path) as stream:
        if path.endswith(".zst"):
            return not ends_as_zstandard(stream)
        stream.seek(-min(BZIP2_TAIL, stream.seek(0, SEEK_END)), SEEK_END)
        return not ends_as_bzip2(stream.read())


def broken_archives(paths: Iterable[str]) -> dict[str, str]:
    """Decompress the compressed files among some; return why, by path, those that are broken."""
    errors = {}
    for path in paths:
        try:
            with opened(path) as stream:
                refuse_broken_archive(path, stream)
        except BrokenFileError as error:
            errors[path] = str(error)
    return errors


def refuse_broken_archive(path: str, stream: Any) -> None:
    """Decompress a file and drop the result.

    Args:
        path: Its suffix names the compression; with one not in ``OPENERS`` nothing is read.
        stream: The file, opened for reading bytes.

    Raises:
        BrokenFileError: It is truncated or damaged.
    """
    opener = OPENERS.get(PurePosixPath(path).suffix)
    if opener is not None:
        for _ in _parts(opener(stream)):
            pass


def _parts(stream: Any) -> Iterator[bytes]:
    try:
        while part := stream.read(_STEP):
            yield part
    except (*DAMAGE, pa.ArrowException) as error:
        raise BrokenFileError(f"it is truncated or damaged: {error}") from error
