"""Put finished files into a landing folder, where a landed file never changes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from tidelake.errors import UsageError
from tidelake.folders import Folder

# In milliseconds.
SECOND = 1000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
_MILLISECOND_NS = 1_000_000
_SHOWN = 5
_FILES = 20


@dataclass(frozen=True)
class Generated:
    """What a generator made.

    Attributes:
        files: Files of the stream.
        written: Those among them that were not there before.
        records: Lines in all files.
        kinds: Lines of each kind; their sum is ``records``.
    """

    files: int
    written: int
    records: int
    kinds: dict[str, int]


class Delivery(NamedTuple):
    """A line and when it arrives, in milliseconds since the stream began."""

    at: int
    line: bytes


def stamp(moment: datetime) -> str:
    """Write an instant in UTC, to the millisecond."""
    return moment.isoformat(timespec="milliseconds") + "Z"


def in_files(deliveries: Iterable[Delivery], *, name: str) -> dict[str, bytes]:
    """Cut deliveries, in order of arrival, into files."""
    ordered = sorted(deliveries, key=lambda delivery: delivery.at)
    size = -(-len(ordered) // _FILES)
    return {
        f"{name}-{start // size:04d}.jsonl": b"".join(
            delivery.line + b"\n" for delivery in ordered[start : start + size]
        )
        for start in range(0, len(ordered), size)
    }


def land(
    to: Folder, files: Mapping[str, bytes], *, progress: Callable[[str], None] | None = None
) -> int:
    """Write the files that are missing, each one whole or not at all.

    All files are compared before the first is written, so a refusal leaves the folder as it was.
    New files get different modification times, in their order: a streaming reader takes files by
    that time, in milliseconds, and would shuffle small files that were written within one.

    Args:
        to: The folder, made if it is missing.
        files: Content by name, in delivery order.
        progress: Called once per written file.

    Raises:
        UsageError: A file is there with other bytes, or ``to`` is no folder.
    """
    if to.exists() and not to.is_dir():
        raise UsageError(f"{to} is a file; give a folder to generate into")
    to.mkdir(parents=True, exist_ok=True)
    present = {name for name in files if (to / name).exists()}
    changed = [name for name in files if name in present and not _holds(to / name, files[name])]
    if changed:
        more = f" and {len(changed) - _SHOWN} more" if len(changed) > _SHOWN else ""
        raise UsageError(
            f"{to} already holds {', '.join(changed[:_SHOWN])}{more} with other content, "
            "and a landed file is never changed; generate into another folder"
        )
    newest = 0
    for name, content in files.items():
        if name in present:
            continue
        newest = _write(to / name, content, after=newest)
        if progress is not None:
            progress(f"wrote {name} ({len(content):,} bytes)")
    return len(files) - len(present)


def _holds(path: Folder, content: bytes) -> bool:
    """Return whether a file has exactly this content, without reading one of another size."""
    return path.is_file() and path.stat().st_size == len(content) and path.read_bytes() == content


def _write(path: Folder, content: bytes, *, after: int) -> int:
    """Write one file, with a modification time beyond ``after``; return that time in ms."""
    if not isinstance(path, Path):
        # The store stamps it, in whole seconds; within one, readers go by the name.
        path.write_bytes(content)
        return after
    # Readers pass over names that begin with a dot, so nobody sees half a file.
    draft = path.with_name(f".{path.name}.tmp")
    draft.write_bytes(content)
    written_at = draft.stat().st_mtime_ns // _MILLISECOND_NS
    if written_at <= after:
        written_at = after + 1
        os.utime(draft, ns=(written_at * _MILLISECOND_NS, written_at * _MILLISECOND_NS))
    os.replace(draft, path)
    return written_at
