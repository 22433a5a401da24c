"""The metadata of commits: a silver batch's counts, definitions, erasures, and what is final.

A silver commit says what its batch took, each fate, and the watermark. A table's commits name the
definition that it was filled under. An erasure says what left: rows were counted when they came,
and both together are what a table must hold; no metadata has a value of any row. A gold commit says
up to when its rows are final, so that a reader needs the table alone.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from pydantic import BaseModel

from tidelake.config import Pipeline
from tidelake.config.gold_definitions import Ends
from tidelake.delta.log import ERASED, Commit, last_commit
from tidelake.delta.positions import BEGINNING, Position, version_at
from tidelake.delta.tables import Table
from tidelake.fingerprints import EMPTY, Fingerprint, combined
from tidelake.instants import from_json, to_json
from tidelake.silver.watermark import PartitionProgress

# The order in which people read them.
FATES = ("silver", "duplicate", "quarantined", "late", "filtered")
# Where a row came from: straight from bronze, or through the requeue for a reason.
FRESH = "bronze"


class FateCount(NamedTuple):
    """How many rows of a batch met one of :data:`FATES`; quarantined ones, where they failed.

    ``origin`` is ``bronze``, or the reason for which the rows were requeued. ``fingerprint`` is
    the exclusive or of their record ids, ``id_sum`` their sum, None in commits of earlier
    versions.
    """

    fate: str
    stage: str | None
    origin: str
    rows: int
    fingerprint: int = 0
    id_sum: int | None = None

    @staticmethod
    def of(key: tuple[str, str | None, str], rows: int, mark: Fingerprint) -> FateCount:
        """Count the rows of a fate, a stage and an origin."""
        return FateCount(*key, rows, mark.xor, mark.total)

    @property
    def mark(self) -> Fingerprint:
        """The fingerprint of the rows' record ids."""
        return Fingerprint.of(self.fingerprint, self.id_sum)


class DimensionUse(NamedTuple):
    """What a batch found in a version of a dimension's table; -1 where it was not there yet.

    ``unmatched``: accepted rows that found nothing, and stay.
    """

    table: str
    version: int
    unmatched: int


@dataclass(frozen=True)
class SilverNote:
    """The books of one silver batch.

    Attributes:
        watermark_in: Before the batch (UTC).
        watermark: After it.
        settled: The watermark less the allowed lateness: no ordinary event comes before it.
        partitions: How far each partition of the source has come.
        counts: Rows by fate, stage and origin.
        taken: Rows by input table (``bronze``, ``requeue``), as Delta's statistics have them.
        until: How far the batch went in each input table.
        warnings: Accepted rows by the rule of severity ``warning`` that they fail.
        searched: Accepted ids among which deduplication looked: on a disk, as many as lie in the
            files that could hold them.
        seconds: What that took.
        prefiltered: Rows that the prefilter held back; None where there is none.
        columns: Payload fields that became columns of silver with this batch.
        dimensions: What was looked up, in the order of ``enrich``.
    """

    watermark_in: datetime | None = None
    watermark: datetime | None = None
    settled: datetime | None = None
    partitions: Mapping[str, PartitionProgress] = field(default_factory=dict)
    counts: tuple[FateCount, ...] = ()
    taken: Mapping[str, int] = field(default_factory=dict)
    until: Mapping[str, Position] = field(default_factory=dict)
    warnings: Mapping[str, int] = field(default_factory=dict)
    searched: int = 0
    seconds: float = 0.0
    prefiltered: int | None = None
    columns: tuple[str, ...] = ()
    dimensions: tuple[DimensionUse, ...] = ()

    @staticmethod
    def of(commit: Commit | None) -> SilverNote:
        """Read a commit's note; an empty one where the commit only made the table."""
        if commit is None or "counts" not in commit.note:
            return SilverNote()
        note = commit.note
        return SilverNote(
            watermark_in=from_json(note["watermark_in"]),
            watermark=from_json(note["watermark"]),
            settled=from_json(note.get("settled")),
            partitions={
                name: PartitionProgress(from_json(newest), datetime.fromisoformat(arrived))
                for name, (newest, arrived) in note["partitions"].items()
            },
            counts=tuple(FateCount(*row) for row in note["counts"]),
            taken=note["taken"],
            until=positions(commit),
            warnings=note["warnings"],
            searched=note["dedup"]["searched"],
            seconds=note["dedup"]["seconds"],
            prefiltered=note["prefiltered"],
            columns=tuple(note["columns"]),
            dimensions=tuple(DimensionUse(*use) for use in note.get("dimensions", [])),
        )

    def to_json(self) -> dict[str, Any]:
        """Write the note."""
        return {
            "watermark_in": to_json(self.watermark_in),
            "watermark": to_json(self.watermark),
            "settled": to_json(self.settled),
            "partitions": {
                name: [to_json(p.max_event_time), to_json(p.last_ingested_at)]
                for name, p in self.partitions.items()
            },
            "counts": [list(count) for count in self.counts],
            "taken": dict(self.taken),
            "until": {name: list(position) for name, position in self.until.items()},
            "warnings": dict(self.warnings),
            "dedup": {"searched": self.searched, "seconds": round(self.seconds, 3)},
            "prefiltered": self.prefiltered,
            "columns": list(self.columns),
            "dimensions": [list(use) for use in self.dimensions],
        }

    def total(self) -> Counter[str]:
        """Add up rows by fate."""
        return add_up(self.counts)


def positions(commit: Commit | None) -> dict[str, Position]:
    """Read how far the batch of a commit went in each of its input tables."""
    until = {} if commit is None else commit.note.get("until", {})
    return {name: (int(version), int(index)) for name, (version, index) in until.items()}


def position(commit: Commit | None, table: str) -> Position:
    """Read how far in one input table; the beginning where no batch was closed yet."""
    return positions(commit).get(table, BEGINNING)


def add_up(counts: Iterable[FateCount]) -> Counter[str]:
    """Sum rows by fate, in the order of :data:`FATES`."""
    total = Counter(dict.fromkeys(FATES, 0))
    for count in counts:
        total[count.fate] += count.rows
    return total


def as_one(counts: Iterable[FateCount]) -> tuple[FateCount, ...]:
    """Add up the counts of several batches, which share no row."""
    found: dict[tuple[str, str | None, str], FateCount] = {}
    for one in counts:
        key = one.fate, one.stage, one.origin
        before = found.get(key, FateCount.of(key, 0, EMPTY))
        found[key] = FateCount.of(key, before.rows + one.rows, before.mark.plus(one.mark))
    return tuple(found.values())


def fingerprint_of(counts: Iterable[FateCount]) -> Fingerprint:
    """Combine the fingerprints of counts that share no row."""
    return combined(count.mark for count in counts)


_DEFINITION, _FINAL = "definition", "final"
_DECIDED_BY = "decided_by"
# What an id, a time and a change of a key are: rows that are stored cannot follow another.
_IDENTITY = frozenset({"event.id", "event.time", "event.sequence", "event.delete_when"})


def definition_note(definition: BaseModel) -> dict[str, Any]:
    """Write the part of a gold commit's note that names its definition."""
    return {_DEFINITION: hash_of(definition)}


def hash_of(definition: BaseModel) -> str:
    """Hash a definition."""
    return _digest(definition.model_dump_json())


def changed_definition(last: Commit | None, definition: BaseModel) -> bool:
    """Tell whether a table was filled under another definition than today's."""
    told = last.note.get(_DEFINITION) if last else None
    return told is not None and told != hash_of(definition)


def silver_note(pipeline: Pipeline) -> dict[str, Any]:
    """Write the part of silver's note that names its definition, part by part."""
    return {_DEFINITION: {name: _short(value) for name, value in _parts(pipeline).items()}}


def decision_note(pipeline: Pipeline, dimensions: Mapping[str, int]) -> dict[str, Any]:
    """Return the part of a side table's metadata that names what decided the batch.

    The whole file counts, gold included, and the version of each dimension that the batch reads: a
    batch that is retried under any other one is decided again, which costs one batch.
    """
    parts = [pipeline.model_dump(mode="json", by_alias=True), _parts(pipeline), dict(dimensions)]
    return {_DECIDED_BY: _short(parts)}


def is_decided_by(commit: Commit, note: Mapping[str, Any]) -> bool:
    """Tell whether a side table's commit names the same decision as :func:`decision_note` gave.

    Commits of earlier releases name none: nobody knows what decided them.
    """
    return bool(commit.note.get(_DECIDED_BY) == note[_DECIDED_BY])


class Changed(NamedTuple):
    """Parts of silver's definition that are not what its last batch was decided by.

    Stored rows cannot follow ``identity``: they are to be decided anew. ``rules`` hold from now on.
    """

    identity: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()


def changed_parts(last: Commit | None, pipeline: Pipeline) -> Changed:
    """Compare the definition with the one that silver's last batch was decided by."""
    told = last.note.get(_DEFINITION) if last else None
    if told is None:
        return Changed()
    parts = _parts(pipeline)
    changed = [name for name, value in parts.items() if told.get(name) != _short(value)]
    return Changed(
        tuple(name for name in changed if name in _IDENTITY),
        tuple(name for name in changed if name not in _IDENTITY),
    )


def _parts(pipeline: Pipeline) -> dict[str, Any]:
    event = pipeline.event.model_dump(mode="json", by_alias=True)
    whole = pipeline.model_dump(mode="json", include={"watermark", "dedup", "enrich", "transform"})
    rules = [rule.model_dump(mode="json") for rule in pipeline.rules]
    parts = {f"event.{name}": value for name, value in event.items()} | whole | {"quality": rules}
    # Not there for others, or their stored notes would say that something changed.
    return parts | ({"source.schema": pipeline.avro_schema} if pipeline.avro_schema else {})


def _short(value: object) -> str:
    return _digest(json.dumps(value, sort_keys=True))[:12]


def _digest(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


# In place of a fate: the records themselves, each once.
RECORDS = "bronze"


class Arrival(NamedTuple):
    """Rows that bronze lost of one arrival (UTC).

    Exclusive or and sum of their record ids, and of the whole records; no sums in commits of
    earlier versions.
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

    For fates that leave no row in a table, and for :data:`RECORDS`, the generation is empty and
    the batch -1. ``fingerprint`` is the exclusive or of their record ids, 0 where that is not
    known, ``id_sum`` their sum, None in commits of earlier versions.
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


@dataclass(frozen=True)
class Final:
    """Which rows are final: whose column has no later time (UTC) than ``until``."""

    column: str
    until: datetime | None

    @staticmethod
    def of(commit: Commit | None) -> Final | None:
        """Read a gold commit's note; None where rows never end, or it does not say."""
        told = commit.note.get(_FINAL) if commit else None
        return Final(told["column"], from_json(told["until"])) if told else None

    def condition(self) -> str:
        """Write the condition on the table's rows; for DuckDB."""
        if self.until is None:
            return "false"
        return f"\"{self.column}\" <= TIMESTAMPTZ '{self.until.isoformat()}'"


def settled_until(inputs: Iterable[tuple[Table, Position]]) -> datetime | None:
    """Return the instant before which no ordinary event comes any more in what a reader has taken.

    Of each table of silver with the reader's position in it, where a batch that was not taken
    whole does not count: the earliest watermark less the allowed lateness; None where one has none
    yet.
    """
    marks = []
    for silver, until in inputs:
        version = version_at(silver, until)
        # Inside a commit: the one before it was taken whole.
        up_to = until[0] - 1 if version is None else version
        marks.append(SilverNote.of(last_commit(silver, up_to=up_to)).settled)
    known = [mark for mark in marks if mark is not None]
    return min(known) if known and len(known) == len(marks) else None


def final_note(ends: Ends | None, settled: datetime | None) -> dict[str, Any]:
    """Return the part of a gold commit's metadata that says which rows are final, if rows ever are.

    ``settled`` comes from :func:`settled_until`.
    """
    if ends is None:
        return {}
    until = None if settled is None else settled - ends.after
    return {_FINAL: {"column": ends.column, "until": to_json(until)}}
