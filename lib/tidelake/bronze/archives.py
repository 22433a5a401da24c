"""Read compressed files, and find those among them that are broken.

Spark's Python workers import this module too: see :mod:`.whole_files`.
"""

from __future__ import annotations

import bz2
import gzip
import io
import re
import zlib
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from io import SEEK_END, BytesIO
from pathlib import PurePosixPath
from typing import IO, Any

from tidelake.bronze.file_format import BrokenFileError
from tidelake.folders import for_each, opened
from tidelake.spark.tuning import WHOLE_FILE_BYTES

# What reading truncated or damaged content raises; Arrow's errors are among them.
DAMAGE = (EOFError, OSError, ValueError, zlib.error)
# What a file may grow to when it is decompressed in memory.
_MOST_DECOMPRESSED = 4 * WHOLE_FILE_BYTES
_STEP = 1 << 20
BZIP2_TAIL = 11
_BZIP2_END, _BZIP2_MASK = 0x177245385090, (1 << 48) - 1
_BZIP2_BEGIN = re.compile(rb"BZh[1-9]")
# Of Zstandard: the first bytes of a frame (a skippable one has sixteen values), the longest header
# of a frame, and the kind of a block that is one repeated byte.
_ZSTANDARD, _SKIPPABLE, _FRAME_HEADER, _REPEATED = 0xFD2FB528, 0x184D2A50, 18, 1


class _Bzip2(io.RawIOBase):
    """The content of a bzip2 file of one or more streams.

    ``bz2.BZ2File`` ends without an error where a later stream is damaged, or is none; Arrow fails
    at an empty stream after another.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._decoder = bz2.BZ2Decompressor()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        part = b""
        while not part:
            data = b""
            if self._decoder.eof:
                data = self._decoder.unused_data or self._stream.read(_STEP)
                if not data:
                    return 0
                self._decoder = bz2.BZ2Decompressor()
            elif self._decoder.needs_input:
                data = self._stream.read(_STEP)
                if not data:
                    raise EOFError("it ends inside of a stream")
            part = self._decoder.decompress(data, len(buffer))
        buffer[: len(part)] = part
        return len(part)


def _zstandard(stream: IO[bytes]) -> Any:
    import pyarrow as pa  # noqa: PLC0415  slow to import

    return io.BufferedReader(pa.CompressedInputStream(pa.PythonFile(stream, mode="r"), "zstd"))


# From a file opened for reading bytes to its decompressed content.
OPENERS: Mapping[str, Callable[[IO[bytes]], Any]] = {
    ".gz": lambda stream: gzip.GzipFile(fileobj=stream),
    ".bz2": lambda stream: io.BufferedReader(_Bzip2(stream)),
    ".zst": _zstandard,
}


def has_text(path: str) -> bool:
    """Return whether a compressed file holds more than a byte order mark, or is broken."""
    try:
        with opened(path) as stream:
            opener = OPENERS[PurePosixPath(path).suffix]
            text = opener(stream).read(len(BOM_UTF8) + 1)
    except DAMAGE:
        return True
    return text not in (b"", BOM_UTF8)


def decompressed(path: str, content: bytes) -> bytes:
    """Return a file's content, decompressed if its name says so (``.gz``, ``.bz2``, ``.zst``).

    Raises:
        BrokenFileError: It is truncated, damaged, or too large for memory.
    """
    opener = OPENERS.get(PurePosixPath(path).suffix)
    if opener is None:
        return content
    # Its value is its buffer, and not a copy: a worker may have no memory for the content twice.
    whole = BytesIO()
    for part in _parts(opener(BytesIO(content))):
        whole.write(part)
        if whole.tell() > _MOST_DECOMPRESSED:
            raise BrokenFileError(
                f"decompressed it has more than {_MOST_DECOMPRESSED >> 20:,} MiB: split it"
            )
    return whole.getvalue()


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
        return not ends_as_bzip2(stream.read()) or _has_streams(stream)


def _has_streams(stream: IO[bytes]) -> bool:
    """Return whether a file may have more than one stream of bzip2, as of ``pbzip2``.

    Spark skips a later one whose first block is damaged, without an error.
    """
    stream.seek(1)
    before = b""
    while part := stream.read(_STEP):
        if _BZIP2_BEGIN.search(before + part):
            return True
        before = part[-3:]
    return False


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
    except DAMAGE as error:
        raise BrokenFileError(f"it is truncated or damaged: {error}") from error
