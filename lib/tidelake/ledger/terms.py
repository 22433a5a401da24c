"""The ledger: counts of the source's records, of bronze's rows, and of rows by fate.

Each term is counted independently, from commit metadata, Delta's statistics and the tables; none
is derived from another.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Literal

from tidelake.config import FilesSource, GlobalWindow, Pipeline, TumblingWindow
from tidelake.delta.commit_metadata import (
    FATES,
    add_up,
    arrivals_in,
    erased_rows,
    position,
    positions,
)
from tidelake.delta.locks import unfinished
from tidelake.delta.log import CREATION, Commit, last_commit, newest_version, note_of
from tidelake.delta.positions import (
    Position,
    added_between,
    lacks_read,
    rewriting,
    slowest_of,
    unfilled_tables,
    unread,
)
from tidelake.delta.tables import HOPS, Hop, Lake
from tidelake.errors import SourceError
from tidelake.instants import ALWAYS, Range
from tidelake.ledger.commit_checks import (
    Batch,
    altered_batches,
    problems_of,
    repetitions,
    tally,
    tally_bronze,
    topic_offsets,
)
from tidelake.ledger.history import closed_version, history, require_tables
from tidelake.ledger.query import ask
from tidelake.ledger.side_tables import in_closed_batch, quarantined_by, side_rows
from tidelake.names import logical_name
from tidelake.runtime.landed_files import LandedFile, list_files, taken_files
from tidelake.typed import runnable

_TRIES = 3


@dataclass(frozen=True)
class SourceCounts:
    """Files and bytes of the landing folder, including files since removed, and those read.

    Files of folders that are ``unlisted``, because listing them failed, count only if read.
    """

    offered: int = 0
    taken: int = 0
    bytes_offered: int = 0
    bytes_taken: int = 0
    unlisted: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the counts, and the unlisted folders if there are any."""
        return {name: value for name, value in asdict(self).items() if value != ()}


@dataclass(frozen=True)
class GoldCounts:
    """Rows of silver that a gold table's batches merged, and the sum of its count measure."""

    expected: int
    counted: int


@dataclass(frozen=True)
class Ledger:
    """The ledger of one pipeline.

    Attributes:
        records: Records of the source, counted by a separate read.
        bronze: Rows of bronze; ``erased`` those that an erasure removed.
        fates: Rows by current fate.
        stages: Rows of quarantine by stage; ``reasons`` by reason, of which a row may have several.
        discarded: Rows of quarantine that a user discarded; they stay there.
        requeued: Requeued rows that silver has not processed yet; ``pending`` those of bronze.
        batches: Silver's batches, oldest first.
        problems: Descriptions of imbalances, the earliest first.
        topics: Offsets of topics, ``offered`` and ``taken``; empty for other sources.
    """

    pipeline: str
    records: int
    source: SourceCounts
    bronze: int
    erased: int
    fates: Counter[str]
    stages: Mapping[str, int]
    reasons: Mapping[str, int]
    discarded: int
    requeued: int
    pending: int
    gold: Mapping[str, GoldCounts]
    batches: tuple[Batch, ...]
    problems: tuple[str, ...]
    topics: Mapping[str, int]

    @property
    def balanced(self) -> bool:
        """Whether no check found a problem."""
        return not self.problems

    @property
    def first_problem(self) -> str:
        """The earliest problem and the number of others; empty if there is none."""
        first, more = self.problems[:1], len(self.problems) - 1
        return "".join(first) + (f"; and {more} more" if more > 0 else "")

    def to_json(self) -> dict[str, Any]:
        """Return the terms and their components."""
        terms = {
            "pipeline": self.pipeline,
            "source": self.records,
            "bronze": self.bronze,
            "erased": self.erased,
            **_fates_to_json(self.fates),
            "pending": self.pending,
            "requeued": self.requeued,
            "balanced": self.balanced,
            "problems": list(self.problems),
            "gold": {name: asdict(counts) for name, counts in self.gold.items()},
            "conflicts": self.stages.get("conflicting_duplicate", 0),
            "discarded": self.discarded,
            "quarantined_by_stage": dict(self.stages),
            "quarantined_by_reason": dict(self.reasons),
            "source_files": self.source.to_json(),
        }
        if self.topics:
            without_record = self.topics["offered"] - self.records
            terms["source_offsets"] = {**self.topics, "without_record": without_record}
        return terms


@dataclass(frozen=True)
class LedgerLine:
    """The ledger of one batch (named like ``batch 3``), of a day's (UTC), or of a range's.

    ``taken`` counts rows of bronze, ``returned`` rows of the requeue, ``conflicts`` rows that were
    quarantined because another payload had their id.
    """

    name: str
    taken: int
    returned: int
    fates: Counter[str]
    conflicts: int
    closed_at: datetime

    def to_json(self) -> dict[str, Any]:
        """Return the terms under the names that the whole ledger uses."""
        return {
            "name": self.name,
            "taken": self.taken,
            "returned": self.returned,
            **_fates_to_json(self.fates),
            "conflicts": self.conflicts,
            "closed_at": self.closed_at.isoformat(),
        }


def _fates_to_json(fates: Counter[str]) -> dict[str, int]:
    return {"duplicates" if fate == "duplicate" else fate: fates[fate] for fate in FATES}


def ledger_by(
    batches: Sequence[Batch], by: Literal["batch", "day", "range"], within: Range = ALWAYS
) -> list[LedgerLine]:
    """Add up silver's batches by batch or by day, oldest first, or all of a range.

    ``within`` limits them to those that were closed in a range.
    """
    grouped: dict[str, list[Batch]] = defaultdict(list)
    for batch in batches:
        if within.includes(batch.closed_at):
            names = {"batch": f"batch {batch.number}", "day": f"{batch.closed_at:%Y-%m-%d}"}
            grouped[names.get(by, by)].append(batch)
    return [
        LedgerLine(
            name,
            sum(one.taken for one in group),
            sum(one.returned for one in group),
            add_up(count for one in group for count in one.counts),
            sum(c.rows for one in group for c in one.counts if c.stage == "conflicting_duplicate"),
            group[-1].closed_at,
        )
        for name, group in grouped.items()
    ]


def read_ledger(lake: Lake, pipeline: Pipeline) -> Ledger:
    """Read and check a pipeline's ledger; raise a UsageError if the pipeline has not run."""
    require_tables(lake, pipeline.name)
    for _ in range(_TRIES):
        before = _versions(lake, pipeline)
        ledger = _read(lake, pipeline)
        # The tables may have been rebuilt between the reads: retry.
        if ledger.balanced or _versions(lake, pipeline) == before:
            break
    return ledger


def _versions(lake: Lake, pipeline: Pipeline) -> list[int]:
    name = pipeline.name
    tables = [lake.bronze(name), lake.requeue(name), lake.silver(name)]
    return [newest_version(t) for t in [*tables, *lake.closing_tables(pipeline, "gold")]]


def rows_waiting(lake: Lake, pipeline: Pipeline) -> dict[Hop, int]:
    """Count the rows that silver and gold have not read, by hop; no hop without a table."""
    found: dict[Hop, int] = {}
    for hop in HOPS[1:]:
        if (table := slowest_of(lake.closing_tables(pipeline, hop))) is not None:
            reached = positions(last_commit(table))
            found[hop] = unread(lake.hop_inputs(pipeline, hop), reached).rows
    return found


def _read(lake: Lake, pipeline: Pipeline) -> Ledger:
    name = pipeline.name
    silver, bronze, requeue = lake.silver(name), lake.bronze(name), lake.requeue(name)
    # A run may commit meanwhile, so all terms are of these versions. Silver's is read first: rows
    # that have arrived since count as pending.
    newest = {table.name: newest_version(table) for table in (silver, requeue, bronze)}
    closing, taken = (history(lake, table, up_to=newest[table.name]) for table in (silver, bronze))
    versions = {table: version for table, version in newest.items() if version >= 0}
    batches = tuple(Batch.of(commit) for commit in reversed(closing) if commit.batch >= 0)
    last = closing[0] if closing else None
    pending, requeued = (
        added_between(read, position(last, key), (newest[read.name] + 1, -1)).rows
        for key, read in (("bronze", bronze), ("requeue", requeue))
    )
    tables = {
        "bronze": tally_bronze(lake, bronze, versions),
        "silver": tally(lake, silver, versions),
        "quarantined": tally(lake, lake.quarantine(name), versions, in_closed_batch(last)),
        "late": tally(lake, lake.late(name), versions, in_closed_batch(last)),
    }
    sides = side_rows(lake, name, last, versions)
    booked = add_up(count for batch in batches for count in batch.counts)
    erased = [one for batch in batches for one in batch.erased]
    fates = Counter(
        silver=tables["silver"].total.rows,
        duplicate=booked["duplicate"] - erased_rows(erased, "duplicate"),
        quarantined=sides["quarantined"],
        late=sides["late"],
        filtered=booked["filtered"] - erased_rows(erased, "filtered"),
    )
    gold = _gold_counts(lake, pipeline)
    topics, topic_problems = topic_offsets(lake, bronze, versions, taken)
    closings = {"bronze": taken, "silver": closing}
    problems = list(repetitions(lake, bronze, versions, tables["bronze"], closings))
    problems += altered_batches(lake, bronze, versions, tables["bronze"], taken)
    problems += topic_problems
    counted = list(problems_of(batches, taken, tables, fates, pending=pending, requeued=requeued))
    found = rewriting(bronze, position(last, "bronze")) if counted else None
    if found is not None and note_of(found) is None:
        # Rewritten rows seem to wait, which hides where the difference is.
        version = f"version {found.version} of {bronze.name} ({found.info.operation})"
        problems.append(f"bronze: another writer's {version} deleted or replaced rows")
    problems += counted
    problems += [
        f"{logical_name('gold', table)}: {counts.expected:,} events were merged, "
        f"it counts {counts.counted:,}"
        for table, counts in gold.items()
        if counts.expected != counts.counted
    ]
    source, changed = _source_counts(taken, pipeline)
    problems += [*changed, *_gone(lake, name), *_ahead(lake, pipeline)]
    problems[:0] = unfinished(lake, name).values()
    return Ledger(
        pipeline=name,
        records=sum(int(commit.note.get("records", 0)) for commit in taken),
        source=source,
        bronze=tables["bronze"].total.rows,
        erased=sum(one.rows for one in arrivals_in(taken)),
        fates=fates,
        stages=quarantined_by(lake, name, "stage", last, versions),
        reasons=quarantined_by(lake, name, "unnest(reasons)", last, versions),
        discarded=sides["discarded"],
        requeued=requeued,
        pending=pending,
        gold=gold,
        batches=batches,
        problems=tuple(problems),
        topics=topics,
    )


def _ahead(lake: Lake, pipeline: Pipeline) -> Iterator[str]:
    """Find inputs that end before what gold has read of them: older copies, cut off, or gone."""
    inputs = lake.hop_inputs(pipeline, "gold")
    furthest = dict[str, tuple[Position, str, datetime]]()
    # Not only of the first table, which may be new; of those that the next run fills from all of
    # silver, the positions are of no use.
    closing = lake.closing_tables(pipeline, "gold")
    unfilled = unfilled_tables(closing)
    for table in (one for one in closing if one not in unfilled):
        last = last_commit(table)
        for key, reached in positions(last).items():
            if last and (key not in furthest or reached > furthest[key][0]):
                furthest[key] = reached, table.name, last.written_at
    for key, (reached, name, since) in furthest.items():
        if key not in inputs:
            continue
        read, version = inputs[key], reached[0] - (reached[1] < 0)
        merged = f"{name} was merged up to version {version} of {read.name}"
        if version > (newest := newest_version(read)):
            is_what = f"whose newest version is {newest}" if newest >= 0 else "which is gone"
            yield f"{merged}, {is_what}"
        elif lacks_read(read, reached, since):
            yield f"{merged}, which was written after that: it was an older copy"


def _gone(lake: Lake, pipeline: str) -> Iterator[str]:
    """Describe a silver table that was deleted although its side tables have rows of its batches.

    It is created before its first batch, so they show that it was there also without gold.
    """
    silver = lake.silver(pipeline)
    sides = () if silver.exists else (lake.quarantine(pipeline), lake.late(pipeline))
    for side in sides:
        last = last_commit(side)
        if last is not None and last.batch > CREATION:
            yield (
                f"{silver.name} is gone, although {side.name} holds batch {last.batch}. "
                "Restore its folder from a backup, or recompute it from bronze with: "
                + runnable("tidelake repair", pipeline, "--hop silver")
            )
            return


def _source_counts(taken: Sequence[Commit], pipeline: Pipeline) -> tuple[SourceCounts, list[str]]:
    """Count the files of the landing folder; describe the first that has another size than read."""
    if not isinstance(pipeline.source, FilesSource):
        return SourceCounts(), []
    sizes = {path: file.size for path, file in taken_files(taken).items()}
    listed = dict[str, LandedFile]()
    unlisted = []
    for path in pipeline.source.paths:
        # Files may have been archived after bronze read them, or the folder deleted.
        try:
            listed |= list_files(path, may_be_empty=True, recent=True)
        except SourceError:
            unlisted.append(path)
    offered = sizes | {path: file.size for path, file in listed.items()}
    changed = [path for path, size in sizes.items() if offered[path] != size]
    problems = [
        f"{path}: bronze read {sizes[path]:,} bytes, it has {offered[path]:,} now"
        + (f", and {more} more files changed" if (more := len(changed) - 1) else "")
        for path in changed[:1]
    ]
    counts = len(offered), len(sizes), sum(offered.values()), sum(sizes.values())
    return SourceCounts(*counts, tuple(unlisted)), problems


def _gold_counts(lake: Lake, pipeline: Pipeline) -> dict[str, GoldCounts]:
    merged = {}
    for gold in pipeline.aggregates:
        table = lake.gold(gold.name)
        # Only count(*) measures count each event once.
        names = [m.name for m in gold.measures if m.aggregate == "count" and m.expression == "*"]
        if isinstance(gold.window, TumblingWindow | GlobalWindow) and names and table.exists:
            version = closed_version(lake, table)
            merged_by = history(lake, table, up_to=version)
            expected = sum(int(commit.note.get("eligible", 0)) for commit in merged_by)
            total = f'SELECT sum("{names[0]}") FROM {table.name}'
            counted = ask(lake, total, {table.name: version}).rows[0][0]
            merged[gold.name] = GoldCounts(expected, int(counted or 0))
    return merged
