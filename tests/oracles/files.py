"""Events in files, read by the libraries that others use for each format."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq

Record = dict[str, Any]

_UNPACKED: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.decompress,
    ".bz2": bz2.decompress,
    ".zst": lambda content: pa.CompressedInputStream(pa.BufferReader(content), "zstd").read(),
}


def records_of(file: Path, *, format_: str, envelope: bool = False) -> list[Record]:
    """Read the records of a file that are well-formed.

    Args:
        file: Compressed where its name says so.
        format_: ``json``, ``csv``, ``parquet`` or ``avro``.
        envelope: Whether the records are Debezium's; of those, give the rows.

    Returns:
        The fields by name; of texts, only their text.
    """
    content = file.read_bytes()
    if format_ == "parquet":
        return list(pq.read_table(io.BytesIO(content)).to_pylist())
    if format_ == "avro":
        return [dict(one) for one in fastavro.reader(io.BytesIO(content))]  # type: ignore[arg-type]
    if format_ == "csv":
        return list(_of_csv(content))
    lines = _UNPACKED.get(file.suffix, bytes)(content).splitlines()
    found = [one for one in map(_object, lines) if one is not None]
    if not envelope:
        return found
    changes = [one.get("payload", one) for one in found]
    return [row for one in changes if (row := one.get("after") or one.get("before"))]


def _of_csv(content: bytes) -> Iterator[Record]:
    text = content.decode("utf-8-sig", errors="replace")
    for row in csv.DictReader(io.StringIO(text, newline="")):
        # Too few fields, or too many.
        if None not in row and None not in row.values():
            yield {name: field or None for name, field in row.items()}


def _object(line: bytes) -> Record | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
