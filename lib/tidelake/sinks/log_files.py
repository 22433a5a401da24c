"""Read a log from the JSON files under ``_delta_log``, without Spark."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from itertools import takewhile
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
    files = list_folder(folder / "_delta_log")
    found = [file for file in files if _COMMIT_FILE.fullmatch(file.name)]
    return map(LogFile, sorted(found, key=lambda file: file.name, reverse=True))


def newest_commit(folder: Folder) -> int:
    """Give the newest version of a table in a folder; -1 for no table."""
    return next((file.version for file in files_of(folder)), -1)


def commits_after(folder: Folder, version: int) -> list[LogFile]:
    """List the commits of a table in a folder that came after a version, newest first."""
    return list(takewhile(lambda file: file.version > version, files_of(folder)))


def first_id(folder: Folder) -> str | None:
    """Give the id with which a table was made; None where the log has its first commit no more."""
    *_, first = [None, *files_of(folder)]
    return None if first is None or first.version else first.id


def _records(add: dict[str, Any]) -> int:
    stats = add.get("stats")
    return int(json.loads(stats)["numRecords"]) if stats else 0
