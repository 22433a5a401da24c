"""Read a log from the JSON files under ``_delta_log``, without Spark.

On a disk the folder is listed once: commits are numbered without a gap, so the next one has a name
to look for, and a batch that asks for the newest commit a dozen times does not go through a
thousand of them each time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any

from tidelake.sinks.entries import Added, Info
from tidelake.store.files import Listed, list_folder
from tidelake.store.folders import Folder

_COMMIT_FILE = re.compile(r"[0-9]{20}\.json")


@dataclass(frozen=True)
class LogFile:
    """A commit's file; read when it is asked."""

    file: Listed

    @property
    def version(self) -> int:
        """The table's version that it made."""
        return int(self.file.stem)

    @cached_property
    def info(self) -> Info:
        """What the commit says of itself."""
        told: dict[str, Any] = next(self._actions("commitInfo"), {})
        return Info(
            written_at=datetime.fromtimestamp(told.get("timestamp", 0) / 1000, tz=UTC),
            operation=told.get("operation", ""),
            parameters=told.get("operationParameters", {}),
            metrics=told.get("operationMetrics", {}),
            metadata=told.get("userMetadata"),
        )

    def added(self) -> list[Added]:
        """List the data files that it brought."""
        return [
            Added(_records(add), int(add["size"]), add["path"])
            for add in self._actions("add")
            if add.get("dataChange")
        ]

    def takes_out(self) -> bool:
        """Tell whether it took out a data file for more than to rearrange its rows."""
        return any(remove.get("dataChange", True) for remove in self._actions("remove"))

    def only_appends(self) -> bool:
        """Tell whether it brought rows and did nothing else, so that what was read stays valid."""
        others = (any(self._actions(kind)) for kind in ("remove", "metaData", "protocol"))
        rearranged = any(not add.get("dataChange") for add in self._actions("add"))
        return not rearranged and not any(others)

    @property
    def id(self) -> str | None:
        """The id of the table, where the commit wrote it."""
        return next((str(action["id"]) for action in self._actions("metaData")), None)

    def _actions(self, kind: str) -> Iterator[dict[str, Any]]:
        for line in self.file.text().splitlines():
            action = json.loads(line).get(kind)
            if action is not None:
                yield action


def files_of(folder: Folder) -> Iterator[LogFile]:
    """Yield a folder's commit files, newest first; checkpoints and compacted logs are none."""
    log = folder / "_delta_log"
    if not isinstance(log, Path):
        yield from _listed(log)
        return
    version = _newest(log)
    while version >= 0 and (file := _commit_file(log, version)).exists():
        yield LogFile(Listed(file))
        version -= 1
    if version >= 0:
        # The oldest were cleaned up, or somebody took one out.
        yield from (file for file in _listed(log) if file.version < version)


def commits_after(folder: Folder, version: int) -> list[LogFile]:
    """List the commits of a table in a folder that came after a version, newest first."""
    return list(takewhile(lambda file: file.version > version, files_of(folder)))


def first_id(folder: Folder) -> str | None:
    """Give the id with which a table was made; None where the log has its first commit no more."""
    if isinstance(folder, Path):
        file = _commit_file(folder / "_delta_log", 0)
        return LogFile(Listed(file)).id if file.exists() else None
    *_, first = [None, *files_of(folder)]
    return None if first is None or first.version else first.id


# The newest version that was seen in a log; only where to look from, never what is there.
_seen: dict[Path, int] = {}


def _newest(log: Path) -> int:
    """Find the newest version; -1 for none."""
    newest = _seen.get(log, -1)
    if newest < 0 or not _commit_file(log, newest).exists():
        # Looked at for the first time, or made anew since.
        newest = next((file.version for file in _listed(log)), -1)
    while newest >= 0 and _commit_file(log, newest + 1).exists():
        newest += 1
    _seen[log] = newest
    return newest


def _listed(log: Folder) -> Iterator[LogFile]:
    found = [file for file in list_folder(log) if _COMMIT_FILE.fullmatch(file.name)]
    return map(LogFile, sorted(found, key=lambda file: file.name, reverse=True))


def _commit_file(log: Path, version: int) -> Path:
    return log / f"{version:020d}.json"


def _records(add: dict[str, Any]) -> int:
    stats = add.get("stats")
    return int(json.loads(stats)["numRecords"]) if stats else 0
