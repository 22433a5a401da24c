"""Write a stream's files to a landing folder; a landed file is never changed."""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from tidelake.errors import UsageError
from tidelake.folders import VOLUMES, Folder
from tidelake.object_store import refuse_unreachable_bucket

_T = TypeVar("_T")
# In milliseconds.
SECOND, MINUTE, HOUR = 1000, 60_000, 3_600_000
_MILLISECOND_NS = 1_000_000
_SHOWN = 5
_FILES = 20
_COMPACT = json.JSONEncoder(separators=(",", ":"))

# Receives lines of progress.
Say = Callable[[str], object]


@dataclass(frozen=True)
class Generated:
    """Counts of a generated stream: files, newly written files, and records by kind."""

    files: int
    written: int
    records: int
    kinds: dict[str, int]


class Delivery(NamedTuple):
    """A line and its arrival time, in milliseconds since the start of the stream."""

    at: int
    line: bytes


def stamp(moment: datetime) -> str:
    """Format an instant in UTC, to the millisecond."""
    return moment.isoformat(timespec="milliseconds") + "Z"


def json_line(record: Mapping[str, Any]) -> bytes:
    """Encode a record as a line of JSON, including the line feed."""
    return _COMPACT.encode(record).encode() + b"\n"


def seeded(name: str, seed: int, events: int) -> tuple[random.Random, str]:
    """Return the random generator of a stream and the prefix of its ids.

    Raises:
        UsageError: ``events`` is below 1.
    """
    if events < 1:
        raise UsageError(f"a stream of {name} needs at least 1 event, not {events}")
    stream = f"{name}/{seed}/{events}"
    return random.Random(stream), hashlib.sha256(stream.encode()).hexdigest()[:8]


def silently(_: str) -> None:
    """Ignore a line of progress."""


def pick(rng: random.Random, options: Sequence[_T]) -> _T:
    """Draw one of several options."""
    return options[int(rng.random() * len(options))]


def in_pieces(items: Sequence[_T], count: int) -> list[Sequence[_T]]:
    """Split items into at most ``count`` pieces of equal size, except the last."""
    size = -(-len(items) // count) or 1
    return [items[start : start + size] for start in range(0, len(items), size)]


def in_files(deliveries: Iterable[Delivery], *, name: str) -> dict[str, bytes]:
    """Split deliveries, sorted by arrival, into at most 20 files."""
    ordered = sorted(deliveries, key=lambda delivery: delivery.at)
    return {
        f"{name}-{number:04d}.jsonl": b"".join(delivery.line + b"\n" for delivery in piece)
        for number, piece in enumerate(in_pieces(ordered, _FILES))
    }


def land(to: Folder, files: Mapping[str, bytes], kinds: dict[str, int], progress: Say) -> Generated:
    """Write missing files, each atomically.

    All existing files are compared before the first write, so an error leaves the folder unchanged.
    New files get increasing modification times: Spark's file source orders files by modification
    time in milliseconds, and files written within the same millisecond would be in any order.

    Args:
        to: The folder, created if it does not exist; a bucket must exist.
        files: Content by name, in delivery order.
        kinds: Number of records of each kind.
        progress: Called for each written file.

    Raises:
        UsageError: A file exists with other content, ``to`` is not a folder, or there is no such
            bucket.
        MachineError: The object store does not answer, or refuses access.
    """
    if not isinstance(to, Path):
        refuse_unreachable_bucket(str(to), what=f"the folder {to}")
    missing = missing_in(to, files)
    if isinstance(to, Path):
        to.mkdir(parents=True, exist_ok=True)
    newest = 0
    for name in missing:
        newest = _write(to / name, files[name], after=newest)
        progress(f"wrote {name} ({len(files[name]):,} bytes)")
    return Generated(len(files), len(missing), sum(kinds.values()), kinds)


def missing_in(to: Folder, files: Mapping[str, bytes]) -> list[str]:
    """List the files that a folder does not have yet, in order.

    Raises:
        UsageError: A file exists with other content, or ``to`` is not a folder.
    """
    for one in (to, *to.parents):
        if one.exists() and not one.is_dir():
            raise UsageError(f"{one} is a file; give a folder to generate into")
    present = {name: to / name for name in files if (to / name).exists()}
    changed = []
    for name, path in present.items():
        content = files[name]
        same_size = path.is_file() and path.stat().st_size == len(content)
        if not (same_size and path.read_bytes() == content):
            changed.append(name)
    if changed:
        more = f" and {len(changed) - _SHOWN} more" if len(changed) > _SHOWN else ""
        raise UsageError(
            f"{to} already holds {', '.join(changed[:_SHOWN])}{more} with other content, "
            "and a landed file is never changed; generate into another folder"
        )
    return [name for name in files if name not in present]


def _write(path: Folder, content: bytes, *, after: int) -> int:
    """Write a file with a modification time after ``after`` (ms), and return that time."""
    if not isinstance(path, Path) or str(path).startswith(VOLUMES):
        # Object stores have times in whole seconds; within a second, readers order by name. A
        # volume is on one: it may have no rename, and keeps no time that is set.
        path.write_bytes(content)
        return after
    # Readers ignore names that begin with a dot.
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_bytes(content)
    written_at = temporary.stat().st_mtime_ns // _MILLISECOND_NS
    if written_at <= after:
        written_at = after + 1
        os.utime(temporary, ns=(written_at * _MILLISECOND_NS,) * 2)
    os.replace(temporary, path)
    return written_at
