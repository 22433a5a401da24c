"""Read a sample of records from files: JSON lines, CSV, or rows of Parquet and Avro files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from decimal import Decimal
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any

from tidelake.cli.init.csv_sample import CsvFile, looks_like_csv, sample_csv
from tidelake.cli.init.file_schema import common_types, types_in
from tidelake.compression import DAMAGE, OPENERS
from tidelake.config import CsvFormat, FilesSource
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
_JSON_SUFFIXES = frozenset({".json", ".jsonl", ".ndjson"})
_CSV_SUFFIXES = frozenset({".csv", ".tsv", ".psv"})
# What is read of a file to recognise CSV, and of a CSV file.
_HEAD_BYTES, _MAX_CSV_BYTES = 1 << 16, 16 << 20
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
    """Records that parse, in order of arrival, and ``broken`` ones with the reason.

    ``values`` are the parsed records; numbers with a decimal point are ``Decimal``. ``types`` are
    those of the fields that the files' schemas define. Of CSV files, ``csv`` is the layout and
    ``header`` the header record of the first, None if they have none.
    """

    records: tuple[Record, ...]
    values: tuple[dict[str, Any], ...]
    broken: tuple[tuple[Record, str], ...]
    format: FileFormat = "json"
    types: Mapping[str, FieldType] = field(default_factory=dict)
    csv: CsvFormat | None = None
    header: bytes | None = None


def sample_of(
    records: Iterable[Record],
    format_: FileFormat = "json",
    types: Mapping[str, FieldType] | None = None,
) -> Sample:
    """Parse records as JSON.

    Raises:
        SourceError: There are no records, or most are not JSON objects; names the first of those.
    """
    parsed = ((record, _parse(record.payload)) for record in records)
    return _sorted_out(parsed, Sample((), (), (), format_, types or {}))


def _sorted_out(parsed: Iterable[tuple[Record, dict[str, Any] | str]], empty: Sample) -> Sample:
    """Fill a sample with records, each with its values or the reason why it is broken."""
    sound: list[Record] = []
    values: list[dict[str, Any]] = []
    broken: list[tuple[Record, str]] = []
    for record, found in parsed:
        if isinstance(found, str):
            broken.append((record, found))
        else:
            sound.append(record)
            values.append(found)
    if not sound and not broken:
        raise SourceError("the sample holds no record: every file or line is empty.")
    if len(broken) >= max(len(sound), 1):
        first, why = broken[0]
        share = f"{len(broken):,} of {len(sound) + len(broken):,} records"
        if empty.csv is not None:
            remedy = "Write the pipeline file by hand, with the dialect under source.csv."
            raise SourceError(f"{first.place}: {why} ({share} are not CSV of one kind). {remedy}")
        raise SourceError(
            f"{first.place}: {why} ({share} are not one JSON object). {_remedy(first.payload)}"
        )
    return replace(empty, records=tuple(sound), values=tuple(values), broken=tuple(broken))


def read_files(path: Path, *, lines: int) -> Sample:
    """Sample the first records of files by modification time, equally many from each file.

    A folder is read recursively, without hidden files.

    Raises:
        SourceError: The path does not exist, has no files or files of several formats, or a file
            cannot be read.
    """
    if not path.exists():
        raise SourceError(
            f"{path} does not exist. Pass a folder or a file of JSON, CSV, Parquet or Avro, or "
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
    if format_ == "csv":
        return _csv_sample(files, each=each)
    if format_ != "json":
        return _of_whole_files(files, format_, each=each, lines=lines)
    return sample_of(islice((r for file in files for r in islice(_lines(file), each)), lines))


def _csv_sample(files: Sequence[Path], *, each: int) -> Sample:
    heads = []
    for file in files:
        head = _head(file, _MAX_CSV_BYTES)
        heads.append(CsvFile(str(file), head, is_cut=len(head) == _MAX_CSV_BYTES))
    found = sample_csv(heads, each=each)
    parsed = ((Record(one.place, "files", one.payload), one.values) for one in found.records)
    return _sorted_out(parsed, Sample((), (), (), "csv", csv=found.layout, header=found.header))


def _head(file: Path, size: int) -> bytes:
    with _opened(file) as stream:
        return stream.read(size)


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
    bare = file.with_suffix("") if file.suffix in OPENERS else file
    if bare.suffix.lower() in _CSV_SUFFIXES:
        return "csv"
    for known in _MAGIC.values():
        if named == known:
            return known
    with _reading(file), file.open("rb") as stream:
        found = _MAGIC.get(stream.read(4))
    if found is not None or bare.suffix.lower() in _JSON_SUFFIXES or file.suffix in _UNREADABLE:
        return found or "json"
    head = _head(file, _HEAD_BYTES)
    return "csv" if looks_like_csv(head, is_cut=len(head) == _HEAD_BYTES) else "json"


@contextmanager
def _reading(file: Path) -> Iterator[None]:
    """Name the file in errors of the block."""
    try:
        yield
    except DAMAGE as error:
        raise SourceError(f"{file} cannot be read: {error}") from error


@contextmanager
def _opened(file: Path) -> Iterator[IO[bytes]]:
    """Open a file, decompressed; errors of the block name it."""
    with _reading(file), file.open("rb") as stream:
        open_compressed = OPENERS.get(file.suffix)
        yield stream if open_compressed is None else open_compressed(stream)


def _of_whole_files(files: Sequence[Path], format_: FileFormat, *, each: int, lines: int) -> Sample:
    """Sample the first rows of files whose schemas have their fields' types."""
    # pyarrow, which a sample of JSON does not need, is slow to import.
    from tidelake.bronze.whole_files import decompressed, reader_of  # noqa: PLC0415

    read = reader_of(FilesSource(kind="files", path=str(files[0]), format=format_))
    assert read is not None
    records: list[Record] = []
    schemas = []
    for file in files:
        with _reading(file):
            content = decompressed(str(file), file.read_bytes())
            payloads = chain.from_iterable(chunk.to_pylist() for chunk, _ in read(content))
            records += [
                Record(f"{file} row {number}", "files", payload)
                for number, payload in enumerate(islice(payloads, each), start=1)
            ]
            schemas.append(types_in(format_, content))
    return sample_of(records[:lines], format_, common_types(schemas))


def _lines(file: Path) -> Iterator[Record]:
    if file.suffix in _UNREADABLE:
        raise SourceError(
            f"{file}: only Spark reads this compression; pass an uncompressed file with --sample."
        )
    with _opened(file) as stream:
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
        return "This looks like CSV; give its files names that end in .csv."
    return "A source is JSON, one object per line."
