"""Read a sample of records from files, and parse records as JSON."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import IO, Any

from tidelake.errors import SourceError

# Maximum files read of a folder, which may hold a million: evenly spread by modification time.
_FILES = 50
_OPENERS: dict[str, Callable[..., IO[Any]]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
_UNREADABLE = frozenset({".zst", ".lz4", ".snappy", ".deflate", ".parquet", ".avro", ".orc"})
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

    ``values`` are the parsed records; numbers with a decimal point are ``Decimal``.
    """

    records: tuple[Record, ...]
    values: tuple[dict[str, Any], ...]
    broken: tuple[tuple[Record, str], ...]


def sample_of(records: Iterable[Record]) -> Sample:
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
        raise SourceError("the sample holds no record: every line is empty.")
    if len(broken) >= max(len(sound), 1):
        first, why = broken[0]
        raise SourceError(
            f"{first.place}: {why} ({len(broken):,} of {len(sound) + len(broken):,} records "
            f"are not one JSON object). {_remedy(first.payload)}"
        )
    return Sample(tuple(sound), tuple(values), tuple(broken))


def read_files(path: Path, *, lines: int) -> list[Record]:
    """Read the first lines of files by modification time, equally many from each file.

    A folder is read recursively, without hidden files.

    Raises:
        SourceError: The path does not exist, has no files, or a file cannot be read as text.
    """
    if not path.exists():
        raise SourceError(
            f"{path} does not exist. Pass a folder or a file of JSON lines, or "
            "kafka://HOST:PORT/TOPIC."
        )
    try:
        by_age = sorted((file.stat().st_mtime_ns, str(file), file) for file in _walk(path))
    except OSError as error:
        raise SourceError(f"{error.filename} cannot be read: {error.strerror}") from error
    if not by_age:
        raise SourceError(
            f"{path} holds no file. Put JSON-lines files into it (names that begin with . or _ are "
            "ignored), or pass a file with --sample."
        )
    step = max(len(by_age) / _FILES, 1)
    files = [by_age[int(at * step)][2] for at in range(min(len(by_age), _FILES))]
    each = max(lines // len(files), 1)
    return list(islice((r for file in files for r in islice(_lines(file), each)), lines))


def _walk(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    for entry in path.iterdir():
        if not entry.name.startswith((".", "_")):
            yield from _walk(entry)


def _lines(file: Path) -> Iterator[Record]:
    if file.suffix in _UNREADABLE:
        raise SourceError(
            f"{file} is not a text file. A files source is JSON, one object per line; pass such a "
            "file with --sample."
        )
    try:
        with _OPENERS.get(file.suffix, open)(file, "rb") as stream:
            for number, line in enumerate(
                iter(lambda: stream.readline(_MAX_RECORD_BYTES), b""), start=1
            ):
                payload = line.removesuffix(b"\n")
                if number == 1:
                    payload = payload.removeprefix(b"\xef\xbb\xbf")
                if payload.strip():
                    yield Record(f"{file} line {number}", "files", payload)
    except (OSError, EOFError, lzma.LZMAError) as error:
        raise SourceError(f"{file} cannot be read: {error}") from error


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
