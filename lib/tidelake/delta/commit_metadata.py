"""Commit metadata: silver batch summaries, definition hashes, erasures and final rows.

A silver commit has its batch's input and fate counts and the watermark. A table's commits name the
definition they were written under. An erasure counts the erased rows: a table must hold the counted
rows less these. A gold commit says up to when its rows are final, so that readers need only the
table. Metadata never contains values of rows.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import Any, NamedTuple

import msgspec
import pyspark
from pydantic import BaseModel

import tidelake
from tidelake.config import FieldType, Pipeline
from tidelake.config.expressions import columns_in
from tidelake.config.gold_definitions import FinalAfter
from tidelake.config.types import NUMERIC
from tidelake.delta.log import ERASED, Commit, commits, last_commit
from tidelake.delta.positions import BEGINNING, Position, version_at
from tidelake.delta.tables import Lake, Table
from tidelake.fingerprints import EMPTY, Fingerprint
from tidelake.gold.kinds import type_sensitive
from tidelake.instants import from_json, to_json
from tidelake.silver.watermark import PartitionProgress

# In display order.
FATES = ("silver", "duplicate", "quarantined", "late", "filtered")
# Commits of ``ops.epochs`` that may lack each other's epochs, where their writers had no lock.
_CONCURRENT = 50
# The origin of rows read directly from bronze; the origin of requeued rows is the reason.
FRESH = "bronze"


class FateCount(NamedTuple):
    """The number of rows of a batch with one fate, stage and origin.

    ``fate`` is one of :data:`FATES`; ``stage`` is where quarantined rows failed; ``origin`` is
    ``bronze`` or the reason why the rows were requeued. ``fingerprint`` is the exclusive or of
    their record ids, ``id_sum`` their sum, None in commits of earlier versions.
    """

    fate: str
    stage: str | None
    origin: str
    rows: int
    fingerprint: int = 0
    id_sum: int | None = None

    @staticmethod
    def of(key: tuple[str, str | None, str], rows: int, mark: Fingerprint) -> FateCount:
        """Create a count from its key (fate, stage, origin), rows and fingerprint."""
        return FateCount(*key, rows, mark.xor, mark.total)

    @property
    def mark(self) -> Fingerprint:
        """The fingerprint of the rows' record ids."""
        return Fingerprint.of(self.fingerprint, self.id_sum)


class DimensionUse(NamedTuple):
    """A batch's lookup in a dimension table.

    ``version`` is the table version read, -1 where the table did not exist yet; ``unmatched``
    counts accepted rows without a match, which are kept.
    """

    table: str
    version: int
    unmatched: int


@dataclass(frozen=True)
class SilverNote:
    """The commit summary of one silver batch.

    Attributes:
        watermark_in: The watermark before the batch (UTC); ``watermark`` the one after it.
        settled: The watermark less the allowed lateness: earlier events are too late.
        taken: Rows read by input table (``bronze``, ``requeue``), from Delta's statistics.
        until: The end position in each input table.
        warnings: Accepted rows by the rule of severity ``warning`` that they fail.
        searched: Accepted ids that deduplication searched, in ``seconds``; on a disk, all in the
            candidate files.
        prefiltered: Rows removed by the prefilter; None without a prefilter.
        columns: Payload fields added as silver columns by this batch.
        dimensions: Dimension lookups, in the order of ``enrich``.
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
        """Read a commit's summary; an empty one where the commit only created the table."""
        if commit is None or "counts" not in commit.note:
            return SilverNote()
        return msgspec.convert(commit.note | commit.note["dedup"], SilverNote)

    def to_json(self) -> dict[str, Any]:
        """Return the summary as JSON values."""
        dedup = {"searched": self.searched, "seconds": round(self.seconds, 3)}
        values = {**vars(self), "dedup": dedup}
        del values["searched"], values["seconds"]
        return dict(json.loads(json.dumps(values, default=to_json)))

    def total(self) -> Counter[str]:
        """Sum rows by fate."""
        return add_up(self.counts)


def rows_read(commit: Commit) -> int:
    """Return the number of rows that a hop's batch read."""
    if "counts" in commit.note:
        return sum(FateCount(*count).rows for count in commit.note["counts"])
    return int(commit.note.get("records", commit.note.get("rows", 0)))


def positions(commit: Commit | None) -> dict[str, Position]:
    """Read the end position of a commit's batch in each of its input tables."""
    return msgspec.convert(commit.note.get("until", {}) if commit else {}, dict[str, Position])


def position(commit: Commit | None, table: str) -> Position:
    """Read the end position in one input table; the beginning before the first batch."""
    return positions(commit).get(table, BEGINNING)


def add_up(counts: Iterable[FateCount]) -> Counter[str]:
    """Sum rows by fate, in the order of :data:`FATES`."""
    total = Counter(dict.fromkeys(FATES, 0))
    for count in counts:
        total[count.fate] += count.rows
    return total


def merged_counts(counts: Iterable[FateCount]) -> tuple[FateCount, ...]:
    """Merge the counts of several batches, which share no row."""
    sums: dict[tuple[str, str | None, str], FateCount] = {}
    for count in counts:
        key = count.fate, count.stage, count.origin
        before = sums.get(key, FateCount.of(key, 0, EMPTY))
        sums[key] = FateCount.of(key, before.rows + count.rows, before.mark.plus(count.mark))
    return tuple(sums.values())


_DEFINITION, _FINAL, _DECIDED_BY = "definition", "final", "decided_by"
# Of a gold table's definition, if its values depend on types.
_HASH, _TYPES = "hash", "types"
# Parts that define an event's id, time, order and deletion: stored rows cannot be adapted to a
# change of them.
_ENVELOPE = "source.envelope"
_EVENT = ("event.id", "event.time", "event.sequence", "event.delete_when")
_TYPE_IN = "type of a column in "
_READS_BRONZE = " (all of bronze is read by it: restore it, or use another pipeline or --root)"
# Keys of an Avro schema on which no datum depends.
_REMARKS = ("doc", "aliases", "default", "order")


def definition_note(
    definition: BaseModel, types: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the part of a gold commit's metadata that holds the hash of its table's definition.

    ``types`` are those of the columns on whose types its values depend: see :func:`typed_as`.
    """
    own = hash_of(definition)
    return {_DEFINITION: {_HASH: own, _TYPES: dict(types)} if types else own}


def hash_of(definition: BaseModel) -> str:
    """Return the hash of a definition that commits name."""
    return _digest(definition.model_dump_json())


def pipeline_hash(pipeline: Pipeline) -> str:
    """Return the hash of all that a pipeline's tables are computed by.

    Covers the files to which the pipeline's refers: the suite, the schema and the dimensions.
    """
    dimensions = {name: pipeline_hash(one) for name, one in pipeline.dimensions.items()}
    return _short([*_whole(pipeline), dimensions])


def is_of_pipeline(stored: str, pipeline: Pipeline) -> bool:
    """Return whether a stored hash is that of a pipeline.

    Earlier releases stored :func:`hash_of` the file alone: work that they began can be finished.
    """
    return stored in (pipeline_hash(pipeline), hash_of(pipeline))


def changed_definition(last: Commit | None, definition: BaseModel) -> bool:
    """Return whether a table's last commit was written under another definition."""
    stored = last.note.get(_DEFINITION) if last else None
    if isinstance(stored, dict):
        stored = stored.get(_HASH)
    return stored is not None and stored != hash_of(definition)


def typed_as(last: Commit | None) -> dict[str, str]:
    """Return the types that the values of a gold table were computed from, by input and column.

    Empty if they depend on none, and in commits of earlier versions.
    """
    stored = last.note.get(_DEFINITION) if last else None
    return dict(stored.get(_TYPES, {})) if isinstance(stored, dict) else {}


def silver_note(pipeline: Pipeline) -> dict[str, Any]:
    """Return the part of a silver commit's metadata that hashes each part of the definition."""
    parts = _parts(pipeline) | _meanings(pipeline)
    return {_DEFINITION: {name: _short(value) for name, value in parts.items()}}


def decision_note(pipeline: Pipeline, dimensions: Mapping[str, int]) -> dict[str, Any]:
    """Return the part of a side table's metadata that hashes what determined the batch's fates.

    Covers the whole pipeline file, gold included, the version of each dimension that the batch
    reads, of Tidelake and Spark: a batch retried with any change is classified again. Empty for a
    pipeline with a ``transform``: nothing shows whether its function, or what that uses, changed.
    """
    if pipeline.transform:
        return {}
    versions = tidelake.__version__, pyspark.__version__, dict(dimensions)
    return {_DECIDED_BY: _short([*versions, *_whole(pipeline)])}


def is_decided_by(commit: Commit, note: Mapping[str, Any]) -> bool:
    """Return whether a side table's commit has the same hash as ``note``, by :func:`decision_note`.

    A note without a hash never matches.
    """
    return _DECIDED_BY in note and bool(commit.note.get(_DECIDED_BY) == note[_DECIDED_BY])


class Changed(NamedTuple):
    """Parts of silver's definition that changed since its last batch.

    Changes of ``identity`` need a rebuild of stored rows; ``rules`` apply from the next batch on.
    """

    identity: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()


def changed_parts(last: Commit | None, pipeline: Pipeline) -> Changed:
    """Compare the definition with the one of silver's last batch."""
    stored = last.note.get(_DEFINITION) if last else None
    if stored is None:
        return Changed()
    parts = {**({_ENVELOPE: None} if _ENVELOPE in stored else {}), **_parts(pipeline)}
    changed = [name for name, value in parts.items() if stored.get(name) != _short(value)]
    identity = [name for name in changed if name in {*_EVENT, _ENVELOPE}]
    for name, value in _meanings(pipeline).items():
        # Commits of earlier versions have none.
        is_other = name in stored and stored[name] != _short(value)
        if is_other and name.removeprefix(_TYPE_IN) not in identity:
            identity.append(name if name.startswith(_TYPE_IN) else name + _READS_BRONZE)
    return Changed(tuple(identity), tuple(name for name in changed if name not in identity))


def _whole(pipeline: Pipeline) -> list[dict[str, Any]]:
    return [pipeline.model_dump(mode="json", by_alias=True), _parts(pipeline)]


def _parts(pipeline: Pipeline) -> dict[str, Any]:
    event = pipeline.event.model_dump(mode="json", by_alias=True)
    whole = pipeline.model_dump(mode="json", include={"watermark", "dedup", "enrich", "transform"})
    rules = [rule.model_dump(mode="json") for rule in pipeline.rules]
    parts = {f"event.{name}": value for name, value in event.items()} | whole | {"quality": rules}
    if pipeline.csv:
        parts["source.csv.nulls"] = pipeline.csv.nulls
    # Only where used; otherwise existing pipelines would report a change of definition.
    of_payload = {"source.schema": pipeline.avro_schema, _ENVELOPE: pipeline.envelope}
    return parts | {name: value for name, value in of_payload.items() if value}


def _meanings(pipeline: Pipeline) -> dict[str, Any]:
    """Return how payloads are decoded, and what the columns in the identity's expressions are.

    A payload field hides bronze's column of its name. Files of Parquet and Avro are JSON in bronze.
    """
    found: dict[str, Any] = {"source.format": "csv" if pipeline.csv else "json"}
    if pipeline.reads_avro:
        # With a registry each record names its own.
        schema = json.loads(pipeline.avro_schema or "null", object_pairs_hook=_without_remarks)
        found |= {"source.format": "avro", "fields of source.schema": schema}
    fields = {field.name.lower(): field.type for field in pipeline.event.fields}
    for part in _EVENT:
        if sql := getattr(pipeline.event, part.removeprefix("event.")):
            # Times and orders depend on the value of a number, ids also on its text.
            texts = columns_in(sql) if part == "event.id" else type_sensitive(sql)
            found[_TYPE_IN + part] = {
                name: _alike(fields[name], sql, by_text=name in texts) if name in fields else ""
                for name in columns_in(sql)
            }
    return found


def _alike(kind: FieldType, sql: str, *, by_text: bool) -> Any:
    """Return what types of a column have in common that give an expression the same result."""
    if kind.kind in NUMERIC:
        # A number of another width has another hash.
        has_width = re.search(r"(?i)\b(hash|xxhash64|binary)\b", sql)
        is_exact = has_width or kind.kind in ("float", "double")
        return "number" if not by_text else kind.sql if is_exact else kind.scale or 0
    if kind.kind == "struct":
        # A member that is added changes only an expression over the whole.
        words = set(re.findall(r"\w+", sql.lower()))
        members = [one for one in kind.fields if one.name.lower() in words] or kind.fields
        return {one.name.lower(): _alike(one.type, sql, by_text=by_text) for one in members}
    inner = kind.element or kind.value
    return [kind.kind, _alike(inner, sql, by_text=by_text)] if inner else kind.kind


def _without_remarks(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return {key: value for key, value in pairs if key not in _REMARKS}


def _short(value: object) -> str:
    return _digest(json.dumps(value, sort_keys=True))[:12]


def _digest(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


# Used in place of a fate: the distinct records themselves.
RECORDS = "bronze"


class Arrival(NamedTuple):
    """Rows of one arrival (UTC) that were erased from bronze.

    With the exclusive or and sum of their record ids and of the whole records; the sums are None in
    commits of earlier versions.
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
    """Erased rows by the fate that a batch had given them.

    For fates that leave no row in a table, and for :data:`RECORDS`, the generation is empty and the
    batch -1. ``fingerprint`` is the exclusive or of the record ids, 0 where unknown; ``id_sum`` is
    their sum, None in commits of earlier versions.
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
    """Return the erasure metadata of bronze's delete commit."""
    return {"by": erasure, "arrivals": [[to_json(at), *rest] for at, *rest in arrivals]}


def deductions_note(erasure: str, deductions: Iterable[Deduction]) -> dict[str, Any]:
    """Return the erasure metadata of silver's next generation."""
    return {"by": erasure, "rows": [list(deduction) for deduction in deductions]}


def erasure_of(commit: Commit) -> str | None:
    """Return the erasure that a commit belongs to, if any."""
    erased = commit.note.get(ERASED)
    return None if erased is None else str(erased["by"])


def arrivals_in(commits: Iterable[Commit]) -> list[Arrival]:
    """List the rows that bronze's commits record as erased."""
    noted = [row for commit in commits for row in commit.note.get(ERASED, {}).get("arrivals", [])]
    return msgspec.convert(noted, list[Arrival])


def deductions_in(commits: Iterable[Commit]) -> tuple[Deduction, ...]:
    """List the rows that silver's commits record as erased."""
    noted = [row for commit in commits for row in commit.note.get(ERASED, {}).get("rows", [])]
    return msgspec.convert(noted, tuple[Deduction, ...])


def erased_rows(deductions: Sequence[Deduction], fate: str) -> int:
    """Sum the erased rows of one fate."""
    return sum(deduction.rows for deduction in deductions if deduction.fate == fate)


@dataclass(frozen=True)
class Final:
    """Which rows are final: those whose ``column`` is at or before ``until`` (UTC)."""

    column: str
    until: datetime | None

    @staticmethod
    def of(commit: Commit | None) -> Final | None:
        """Read it from a gold commit; None where rows never become final, or it has no entry."""
        entry = commit.note.get(_FINAL) if commit else None
        return Final(entry["column"], from_json(entry["until"])) if entry else None

    def condition(self) -> str:
        """Return the SQL condition on the table's rows, for DuckDB."""
        if self.until is None:
            return "false"
        return f"\"{self.column}\" <= TIMESTAMPTZ '{self.until.isoformat()}'"


def settled_until(inputs: Iterable[tuple[Table, Position]]) -> datetime | None:
    """Return the time before which all events are too late, as of a reader's position in silver.

    The minimum, over the silver tables with the reader's position in each, of the watermark less
    the allowed lateness. Batches that were read in part do not count. None where a table has none
    yet.
    """
    times = []
    for silver, until in inputs:
        version = version_at(silver, until)
        # The position is within a commit: use the commit before it.
        up_to = until[0] - 1 if version is None else version
        settled = SilverNote.of(last_commit(silver, up_to=up_to)).settled
        if settled is None:
            return None
        times.append(settled)
    return min(times, default=None)


def final_note(ends: FinalAfter | None, settled: datetime | None) -> dict[str, Any]:
    """Return the part of a gold commit's metadata that says which rows are final, if rows ever are.

    ``settled`` comes from :func:`settled_until`.
    """
    if ends is None:
        return {}
    until = None if settled is None else settled - ends.after
    return {_FINAL: {"column": ends.column, "until": to_json(until)}}


def recent_epochs(lake: Lake) -> list[Commit]:
    """Return the newest commits of ``ops.epochs``, newest first; see :func:`last_epochs`."""
    return list(islice(commits(lake.epochs()), 1 if lake.needs_locks else _CONCURRENT))


def last_epochs(recent: Iterable[Commit]) -> dict[str, dict[str, Any]]:
    """Return the number and versions of each pipeline's last epoch, by :func:`recent_epochs`.

    Each commit repeats those of all pipelines. One that was written while another pipeline closed
    an epoch, without a lock, has that pipeline's epoch of before.
    """
    last: dict[str, dict[str, Any]] = {}
    for commit in recent:
        for pipeline, epoch in commit.note.get("last", {}).items():
            if pipeline not in last or epoch["epoch"] > last[pipeline]["epoch"]:
                last[pipeline] = epoch
    return last
