"""Decompress files in this process, by their suffix."""

from __future__ import annotations

import bz2
import gzip
import io
import zlib
from collections.abc import Callable, Mapping
from typing import IO, Any

# What reading truncated or damaged content raises.
DAMAGE = (EOFError, OSError, ValueError, zlib.error)


def _zstandard(stream: IO[bytes]) -> Any:
    import pyarrow as pa  # noqa: PLC0415  slow to import

    file = pa.PythonFile(stream, mode="r")
    return io.BufferedReader(pa.CompressedInputStream(file, "zstd"))


# From a file opened for reading bytes to its decompressed content.
OPENERS: Mapping[str, Callable[[IO[bytes]], Any]] = {
    ".gz": lambda stream: gzip.GzipFile(fileobj=stream),
    ".bz2": bz2.BZ2File,
    ".zst": _zstandard,
}
