"""Tell of batches that another process closed, by what the tables' commits say of them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime
from itertools import takewhile

from tidelake.delta.generations import CREATION
from tidelake.delta.log import Commit, commits, last_commit
from tidelake.delta.tables import Hop, Table
from tidelake.runtime.progress import Progress


class Closings:
    """Tells of each batch of a hop once."""

    def __init__(self, hop: Hop, tables: Sequence[Table], progress: Progress) -> None:
        """Begin with the batches to come.

        Args:
            hop: Which.
            tables: Those whose commits close a batch; the last one of them closes it for all.
            progress: Takes what is told.
        """
        self._hop, self._table, self._progress = hop, tables[-1], progress
        last = last_commit(self._table)
        self._told = CREATION if last is None else last.batch
        self._since = time.monotonic()

    def look(self) -> None:
        """Tell of what was closed since the last look."""
        fresh = list(takewhile(lambda commit: commit.batch > self._told, commits(self._table)))
        for commit in reversed(fresh):
            told = commit.note.get("watermark")
            self._progress.closed(
                self._hop,
                commit.batch,
                _rows(commit),
                self._since,
                watermark=None if told is None else datetime.fromisoformat(told),
            )
            self._told, self._since = commit.batch, time.monotonic()


def _rows(commit: Commit) -> int:
    """Tell how many rows a batch took, by the note of the hop that closed it."""
    note = commit.note
    if "counts" in note:
        return sum(int(count[3]) for count in note["counts"])
    return int(note.get("records", note.get("rows", 0)))
