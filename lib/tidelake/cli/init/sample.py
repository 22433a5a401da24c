"""Read a sample of records from files, as JSON: lines, or rows of Parquet and Avro files."""

from __future__ import annotations

import bz2
import gzip
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import IO, Any

from tidelake.cli.init.file_schema import common_types, types_in
from tidelake.config import FilesSource
from tidelake.config.source import FileFormat
from tidelake.config.types import FieldType
from tidelake.errors import SourceError
from tidelake.runtime.landed_files import LandedFile, refuse_unfit

# Maximum files read of a folder, which may hold a million: evenly spread by modification time.
_FILES = 50
# What a file begins with.
_MAGIC: dict[bytes, FileFormat] = {b"PAR1": "parquet", b"Obj\x01": "avro"}
# Compressions of text that only Spark reads.
_UNREADABLE = frozenset({".lz4", ".snappy", ".deflate"})
# Maximum bytes of a record, to bound memory.
_MAX_RECORD_BYTES = 16 << 20


@dataclass(frozen=True)
class Record:
    """A record: its location for messages, its source partition (one for all files), its bytes."""

    place: str
    partition: str
    payload: bytes


@dataclass(frozen=True)
class Sample:
    """Records that are JSON objects, in order of arrival, and ``broken`` ones with the reason.

    ``values`` are the parsed records; numbers with a decimal point are ``Decimal``. ``types`` are
    those of the fields that the files' schemas define.
    """

    records: tuple[Record, ...]
    values: tuple[dict[str, Any], ...]
    broken: tuple[tuple[Record, str], ...]
    format: FileFormat = "json"
    types: Mapping[str, FieldType] = field(default_factory=dict)


def sample_of(
    records: Iterable[Record],
    format_: FileFormat = "json",
    types: Mapping[str, FieldType] | None = None,
) -> Sample:
    """Parse records as JSON.

    Raises:
        SourceError: There are no records, or most are not JSON objects; names the first of those.
    """
    sound: list[Record] = []
    values: list[dict[str, Any]] = []
    broken: list[tuple[Record, str]] = []
    for record in records:
        parsed = _parse(record.payload)
        if isinstance(parsed, str):
            broken.append((record, parsed))
        else:
            sound.append(record)
            values.append(parsed)
    if not sound and not broken:
        raise SourceError("the sample holds no record: every file or line is empty.")
    if len(broken) >= max(len(sound), 1):
        first, why = broken[0]
        raise SourceError(
            f"{first.place}: {why} ({len(broken):,} of {len(sound) + len(broken):,} records "
            f"are not one JSON object). {_remedy(first.payload)}"
        )
    return Sample(tuple(sound), tuple(values), tuple(broken), format_, types or {})


def read_files(path: Path, *, lines: int) -> Sample:
    """Sample the first records of files by modification time, equally many from each file.

    A folder is read recursively, without hidden files.

    Raises:
        SourceError: The path does not exist, has no files or files of several formats, or a file
            cannot be read.
    """
    if not path.exists():
        raise SourceError(
            f"{path} does not exist. Pass a folder or a file of JSON lines, Parquet or Avro, or "
            "kafka://HOST:PORT/TOPIC."
        )
    try:
        by_age = sorted((file.stat().st_mtime_ns, str(file), file) for file in _walk(path))
    except OSError as error:
        raise SourceError(f"{error.filename} cannot be read: {error.strerror}") from error
    if not by_age:
        raise SourceError(
            f"{path} holds no file. Put files into it (names that begin with . or _ are ignored), "
            "or pass a file with --sample."
        )
    step = max(len(by_age) / _FILES, 1)
    files = [by_age[int(at * step)][2] for at in range(min(len(by_age), _FILES))]
    each = max(lines // len(files), 1)
    formats = {_format_of(file): file for file in reversed(files)}
    if len(formats) > 1:
        examples = ", ".join(f"{file} ({name})" for name, file in sorted(formats.items()))
        raise SourceError(
            f"{path} holds files of several formats: {examples}. A source has one format: pass a "
            "folder for each, or a file with --sample."
        )
    (format_,) = formats
    refuse_unfit([LandedFile(str(file), file.stat().st_size, 0) for file in files], format_)
    reader = _lines if format_ == "json" else _rows
    records = islice((r for file in files for r in islice(reader(file), each)), lines)
    schemas = [] if format_ == "json" else [types_in(format_, _content(file)) for file in files]
    return sample_of(list(records), format_, common_types(schemas))


def _walk(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    for entry in path.iterdir():
        if not entry.name.startswith((".", "_")):
            yield from _walk(entry)


def _format_of(file: Path) -> FileFormat:
    """Return a file's format by its suffix, or by what it begins with."""
    named = file.suffix.lower().removeprefix(".")
    for known in _MAGIC.values():
        if named == known:
            return known
    with _reading(file), file.open("rb") as stream:
        return _MAGIC.get(stream.read(4), "json")


@contextmanager
def _reading(file: Path) -> Iterator[None]:
    """Name the file in errors of the block."""
    try:
        yield
    except (OSError, EOFError, ValueError) as error:
        raise SourceError(f"{file} cannot be read: {error}") from error


def _content(file: Path) -> bytes:
    from tidelake.bronze.whole_files import decompressed  # noqa: PLC0415  imports PySpark

    return decompressed(str(file), file.read_bytes())


def _rows(file: Path) -> Iterator[Record]:
    from tidelake.bronze.whole_files import reader_of  # noqa: PLC0415  imports PySpark

    source = FilesSource(kind="files", path=str(file), format=_format_of(file))
    read = reader_of(source)
    assert read is not None
    with _reading(file):
        number = 0
        for payloads, _ in read(_content(file)):
            for payload in payloads:
                number += 1
                yield Record(f"{file} row {number}", "files", payload)


def _open_zstandard(file: Path, _: str) -> IO[Any]:
    import pyarrow as pa  # noqa: PLC0415  slow to import

    return io.BufferedReader(pa.input_stream(str(file), compression="zstd"))


_OPENERS: dict[str, Callable[..., IO[Any]]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".zst": _open_zstandard,
}


def _lines(file: Path) -> Iterator[Record]:
    if file.suffix in _UNREADABLE:
        raise SourceError(
            f"{file}: only Spark reads this compression; pass an uncompressed file with --sample."
        )
    with _reading(file), _OPENERS.get(file.suffix, open)(file, "rb") as stream:
        for number, line in enumerate(
            iter(lambda: stream.readline(_MAX_RECORD_BYTES), b""), start=1
        ):
            payload = line.removesuffix(b"\n")
            if number == 1:
                payload = payload.removeprefix(b"\xef\xbb\xbf")
            if payload.strip():
                yield Record(f"{file} line {number}", "files", payload)


def _parse(payload: bytes) -> dict[str, Any] | str:
    """Return the JSON object of a payload, or the reason why it is not one."""
    try:
        text = payload.decode("utf-8")
        value = json.loads(text, parse_float=Decimal, parse_constant=_no_constant)
    except UnicodeDecodeError:
        return "not UTF-8 text"
    except json.JSONDecodeError as error:
        return f"not JSON: {error.msg} at character {error.pos + 1}: {_shown(text)}"
    except (ValueError, RecursionError) as error:
        return f"not JSON: {error}"
    if not isinstance(value, dict):
        return f"JSON, but not an object: {_shown(text)}"
    return value


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _shown(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:40]}…"


def _remedy(payload: bytes) -> str:
    try:
        text = payload.decode("utf-8").strip()
    except UnicodeDecodeError:
        return "Avro needs a schema: write the pipeline file by hand, with source.format: avro."
    if text.startswith("[{"):
        return "Write one object per line: jq -c '.[]' FILE > LINES.jsonl"
    if text in ("[", "{", "}") or text.startswith('"'):
        return "Write each object on one line: jq -c . FILE > LINES.jsonl"
    if "," in text and "{" not in text:
        return "This looks like CSV; convert it to one JSON object per line."
    return "A source is JSON, one object per line."
