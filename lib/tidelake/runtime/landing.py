"""Compare the files of a source with what bronze took of them, so that none changes unseen.

Spark's file source reads a path once and never looks at it again: lines that are appended later
would be lost without a word. Files are compared when a run starts, at intervals while it goes on,
and around each read of a batch.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from tidelake.delta.log import Commit, commits
from tidelake.delta.tables import Table
from tidelake.errors import SourceChangedError, SourceError
from tidelake.folders import SCHEME, Folder, folder, has_one_time, place_of, state_of, states_of
from tidelake.object_store import named

if TYPE_CHECKING:
    from upath import UPath

_COMPRESSED = frozenset({".gz", ".bz2", ".zst", ".lz4", ".snappy", ".deflate", ".xz"})
# A missing last line feed adds one byte, a byte order mark that Spark drops takes three.
_HARMLESS = frozenset({0, 1, -3, -2})

# A run that goes on lists its source at most so often, and for at most one part in so many of its
# time: 100,000 files on a disk take about a second.
LISTING_SECONDS = 60.0
_LISTING_SHARE = 20


@dataclass(frozen=True, slots=True)
class LandedFile:
    """A file as it stood when it was looked at: bytes and milliseconds of its last change."""

    path: str
    size: int
    modified: int

    def __str__(self) -> str:
        """Name the file and its size."""
        return f"{self.path} ({self.size:,} bytes)"


def list_files(source: str) -> dict[str, LandedFile]:
    """List the files that a source offers, by path; hidden ones are not offered.

    A SourceError where the folder is missing, unreadable or holds no file.
    """
    # Links are not followed: Spark names files by the path that it was given.
    root = folder(source)
    if not isinstance(root, Path):
        return _list_store(root)
    if not root.exists():
        raise SourceError(
            f"the source {source} does not exist. Create it and put JSON-lines files into it, "
            "or name another with --source."
        )
    try:
        paths = [root] if root.is_file() else list(_walk(root))
        found = {file.path: file for file in _look_at([str(path) for path in paths])}
    except OSError as error:
        raise SourceError(
            f"the source {error.filename} cannot be read: {error.strerror}"
        ) from error
    for name in found:
        if ":" in str(Path(name).relative_to(root)):
            raise SourceError(
                f"the source holds {name}, and Spark cannot read a file with a colon in its name. "
                "Rename it, then run again."
            )
    if not found:
        raise SourceError(
            f"the source {source} holds no file. Put JSON-lines files into it "
            "(names that begin with . or _ are passed over), then run again."
        )
    return found


def _walk(folder: Path) -> Iterable[Path]:
    for entry in sorted(folder.iterdir()):
        if entry.name.startswith((".", "_")):
            continue
        if entry.is_dir():
            yield from _walk(entry)
        else:
            yield entry


def _list_store(root: UPath) -> dict[str, LandedFile]:
    with named(f"the source {root}"):
        entries = root.fs.find(root.path, detail=True).values()
    found = {}
    for entry in entries:
        path = f"{SCHEME}{entry['name']}"
        below = path.removeprefix(str(root)).split("/")
        # Those that stand for a folder are none.
        is_object = entry["type"] == "file" and (below[-1] or path == str(root))
        if is_object and not any(part.startswith((".", "_")) for part in below):
            found[path] = LandedFile(path, *state_of(entry))
    if not found:
        raise SourceError(
            f"the source {root} holds no file, or is not there. Put JSON-lines files into it "
            "(names that begin with . or _ are passed over), then run again."
        )
    return found


def _look_at(paths: Sequence[str]) -> list[LandedFile]:
    return [LandedFile(path, *state) for path, state in zip(paths, states_of(paths), strict=True)]


def taken_files(bronze: Iterable[Commit]) -> dict[str, LandedFile]:
    """List the files that bronze's commits say they took.

    Read them before what they are compared with: a file that is taken between the two may have
    changed before that.
    """
    return {
        path: LandedFile(path, size, modified)
        for commit in bronze
        for path, size, modified, _ in commit.note.get("files", [])
    }


def refuse_changed(offered: Mapping[str, LandedFile], taken: Mapping[str, LandedFile]) -> None:
    """Raise a SourceChangedError that names the taken files that are offered with other bytes."""
    changes = [
        f"{path}: {before.size:,} bytes when read, {offered[path].size:,} bytes now, modified since"
        for path, before in taken.items()
        if path in offered and offered[path] != before
    ]
    if changes:
        raise SourceChangedError(changes)


def check_landing(source: str, taken: Mapping[str, LandedFile]) -> None:
    """Compare the files of a source, a folder or prefix, with those that bronze took.

    A SourceError where it cannot be read or is empty, a SourceChangedError where a file changed.
    """
    refuse_changed(list_files(source), taken)


class LandingGuard:
    """Compares a source's files with those that bronze took, again and again during a run.

    Remembers the taken files that are still in the folder, and reads only new commits of bronze.
    """

    def __init__(
        self,
        source: str,
        bronze: Table,
        taken_before: Callable[[Collection[str]], Mapping[str, LandedFile]],
    ) -> None:
        """Read nothing yet.

        ``taken_before`` finds, among some paths, the files that bronze took in commits that its log
        does not have any more.
        """
        self._source, self._bronze, self._taken_before = source, bronze, taken_before
        self._taken: dict[str, LandedFile] = {}
        self._version = -1
        self._due = 0.0

    def check(self) -> None:
        """Compare all files once; raises as :func:`check_landing` does."""
        began, is_first = time.monotonic(), self._version < 0
        new = list(takewhile(lambda one: one.version > self._version, commits(self._bronze)))
        taken = self._taken | taken_files(new)
        offered = list_files(self._source)
        if is_first:
            taken.update(self._taken_before(offered.keys() - taken.keys()))
        refuse_changed(offered, taken)
        self._taken = {path: file for path, file in taken.items() if path in offered}
        self._version = new[0].version if new else self._version
        ended = time.monotonic()
        self._due = ended + max(LISTING_SECONDS, _LISTING_SHARE * (ended - began))

    def check_if_due(self) -> None:
        """Compare them once more if the last time is long enough ago.

        A folder from which all files were moved away meanwhile is nothing wrong.
        """
        if time.monotonic() >= self._due:
            with suppress(SourceError):
                self.check()


def batch_files(checkpoint: Folder, batch: int) -> list[LandedFile]:
    """Look up the files of a planned micro-batch in Spark's file source log."""
    return _look_at(batch_paths(checkpoint, batch))


def batch_paths(checkpoint: Folder, batch: int) -> list[str]:
    """Look up where they are, or were."""
    last, before = (
        int(json.loads(file.read_text(encoding="utf-8").splitlines()[2])["logOffset"])
        if (file := checkpoint / "offsets" / str(number)).exists()
        else -1
        for number in (batch, batch - 1)
    )
    paths: list[str] = []
    for number in range(before + 1, last + 1):
        file = checkpoint / "sources" / "0" / str(number)
        found = _entries(file if file.exists() else file.with_name(f"{number}.compact"))
        paths += [path for path, entry in found if entry == number]
    return paths


def logged_files(checkpoint: Folder) -> set[str]:
    """List the paths in Spark's file source log, which it will not read again."""
    log = checkpoint / "sources" / "0"
    return {path for file in log.glob("[0-9]*") for path, _ in _entries(file)}


def check_bytes(file: LandedFile, read: int, planned: LandedFile | None = None) -> None:
    """Compare a file after a read with how that read was planned, and with the bytes read.

    Those have a line feed for each line; ``planned`` is None where the file gave no row. Raises a
    SourceChangedError where they differ: the file was being written.
    """
    if planned is not None and not (
        planned.size == file.size
        and (planned.modified == file.modified or not has_one_time(file.path))
    ):
        told = f"{planned.size:,} bytes when the batch was planned, {file.size:,} bytes now"
        raise SourceChangedError([f"{file.path}: {told}, modified since"], taken=False)
    if Path(file.path).suffix in _COMPRESSED or read - file.size in _HARMLESS:
        return
    told = f"{file.path}: {file.size:,} bytes listed, {read:,} bytes read"
    raise SourceChangedError([told], taken=False)


def check_unchanged(files: Collection[LandedFile]) -> None:
    """Raise a SourceChangedError that names the files that changed; none of them was taken."""
    now = _look_at([file.path for file in files])
    changes = [
        f"{before.path}: {before.size:,} bytes when counted, {after.size:,} bytes now, "
        "modified since"
        for before, after in zip(files, now, strict=True)
        if before != after
    ]
    if changes:
        raise SourceChangedError(changes, taken=False)


def _entries(file: Folder) -> list[tuple[str, int]]:
    """Read the files that an entry of the log names, each with the entry that it came with."""
    entries = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()[1:]]
    return [(place_of(entry["path"]), int(entry["batchId"])) for entry in entries]
