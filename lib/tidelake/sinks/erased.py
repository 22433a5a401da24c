"""What an erasure took out of the tables, as the notes of its commits say it.

Rows were counted and summed up when they came; what left is told beside that, and both together
are what a table must hold. Bronze's delete says it by arrival, silver's next generation by batch
and fate. No note has a value of any row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from tidelake.fingerprints import Fingerprint
from tidelake.sinks.commits import ERASED, Commit

# In place of a fate: the records themselves, each once.
RECORDS = "bronze"


class Arrival(NamedTuple):
    """Rows that bronze lost of one arrival.

    Attributes:
        ingested_at: When they had come (UTC).
        rows: How many.
        fingerprint: Of their record ids: the exclusive or.
        contents: Of the whole records, likewise.
        id_sum: Of the record ids: the sum; None in commits of earlier versions.
        content_sum: Of the whole records, likewise.
    """

    ingested_at: datetime
    rows: int
    fingerprint: int
    contents: int
    id_sum: int | None = None
    content_sum: int | None = None

    @property
    def ids(self) -> Fingerprint:
        """The fingerprint of the record ids."""
        return Fingerprint.of(self.fingerprint, self.id_sum)

    @property
    def whole(self) -> Fingerprint:
        """The fingerprint of the whole records."""
        return Fingerprint.of(self.contents, self.content_sum)


class Deduction(NamedTuple):
    """Rows that a batch had given a fate and that were erased.

    Attributes:
        generation: The batch's; empty for fates that leave no row in a table, and for records.
        batch: Its number; -1 likewise.
        fate: Which, or :data:`RECORDS`.
        rows: How many.
        fingerprint: Of their record ids: the exclusive or; 0 where that is not known.
        id_sum: Likewise: the sum; None in commits of earlier versions.
    """

    generation: str
    batch: int
    fate: str
    rows: int
    fingerprint: int
    id_sum: int | None = None

    @property
    def ids(self) -> Fingerprint:
        """The fingerprint of the record ids."""
        return Fingerprint.of(self.fingerprint, self.id_sum)


def arrivals_note(erasure: str, arrivals: Iterable[Arrival]) -> dict[str, Any]:
    """Write what bronze's delete says."""
    told = [[one.ingested_at.isoformat(), *one[1:]] for one in arrivals]
    return {"by": erasure, "arrivals": told}


def deductions_note(erasure: str, deductions: Iterable[Deduction]) -> dict[str, Any]:
    """Write what silver's next generation says."""
    return {"by": erasure, "rows": [list(one) for one in deductions]}


def erasure_of(commit: Commit) -> str | None:
    """Name the erasure that a commit belongs to; None for others."""
    told = commit.note.get(ERASED)
    return None if told is None else str(told["by"])


def arrivals_in(commits: Iterable[Commit]) -> list[Arrival]:
    """List what commits of bronze say that it lost."""
    return [
        Arrival(datetime.fromisoformat(at), *rest)
        for commit in commits
        for at, *rest in commit.note.get(ERASED, {}).get("arrivals", [])
    ]


def deductions_in(commits: Iterable[Commit]) -> tuple[Deduction, ...]:
    """List what commits of silver say that its batches lost."""
    return tuple(
        Deduction(*one) for commit in commits for one in commit.note.get(ERASED, {}).get("rows", [])
    )


def erased_rows(deductions: Sequence[Deduction], fate: str) -> int:
    """Add up the rows that met one fate."""
    return sum(one.rows for one in deductions if one.fate == fate)
