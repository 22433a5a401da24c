"""The interface of formats that need a file's whole content, such as Parquet.

A reader is a pure function of the content: it knows neither Spark nor the file's path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeAlias

# Slow to import, and not installed where only files are validated.
if TYPE_CHECKING:
    import pyarrow as pa

# Consecutive records of a file: their payloads, as an array of bytes without nulls, and the bronze
# headers that all of them get.
Chunk: TypeAlias = "tuple[pa.BinaryArray, Mapping[str, bytes]]"
# Yields all records of a file in order, from its content; raises a BrokenFileError.
FileReader = Callable[[bytes], Iterator["Chunk"]]


class BrokenFileError(ValueError):
    """A file's content cannot be read as its format; the message says why, without its path."""
