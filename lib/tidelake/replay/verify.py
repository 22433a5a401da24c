"""Compare every table of a pipeline with a recomputation.

Only rows count (:mod:`tidelake.replay.compare`): it makes no difference how files were compacted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidelake.columns import instant
from tidelake.delta.access import load_old
from tidelake.delta.append import types_of
from tidelake.delta.commit_metadata import (
    arrivals_in,
    last_epochs,
    position,
    recent_epochs,
)
from tidelake.delta.log import TABLES, last_commit, newest_version, repeated
from tidelake.delta.tables import Hop, Table, require_table
from tidelake.errors import RefusedError
from tidelake.fingerprints import Fingerprint, contents, contents_in, fingerprint, ids_in
from tidelake.gold.kinds import GoldKind, Inputs
from tidelake.gold.merge_plan import span
from tidelake.instants import from_json, from_micros
from tidelake.ledger.commit_checks import Mark
from tidelake.ledger.history import closed_version, history
from tidelake.ledger.terms import rows_waiting
from tidelake.names import BRONZE_COLUMNS, ID_HASH
from tidelake.replay.certificates import Certificate, changed_since
from tidelake.replay.compare import (
    SHOWN,
    Kind,
    RowDifference,
    TableComparison,
    TableShape,
    compare,
    joined,
    row_hash,
    sums_of_hash,
)
from tidelake.replay.generations import fitted_to_bronze
from tidelake.replay.verify_silver import (
    BATCH_COLUMNS,
    SilverInputs,
    judge_requeue,
    judge_silver,
    naming_damage,
    read_inputs,
)
from tidelake.runtime.checkpointed_frames import CheckpointedFrames
from tidelake.runtime.gold_tables import Target, targets_of, up_to
from tidelake.runtime.hop import Run
from tidelake.typed import runnable


class RepeatedIds(NamedTuple):
    """How many event ids silver and late hold more than once, and the first of them.

    Their copies arrived past ``dedup.ttl`` on another event date, or with ``beyond_ttl: ignore``,
    and count as events.
    """

    ids: int
    first: tuple[str, ...]


class Judged(NamedTuple):
    """A table, the compared version, and the result."""

    table: Table
    version: int
    comparison: TableComparison


@dataclass(frozen=True)
class Verification:
    """The results of all tables in dependency order; ``since`` limits the arrivals (UTC).

    Rows ``waiting`` for a hop are in none of its compared tables.
    """

    pipeline: str
    since: datetime | None
    tables: tuple[Judged, ...]
    repeated: RepeatedIds
    waiting: Mapping[Hop, int]

    @property
    def equal(self) -> bool:
        """Return whether no table differs."""
        return all(one.comparison.equal for one in self.tables)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "pipeline": self.pipeline,
            "equal": self.equal,
            "tables": {one.table.name: one.comparison.to_json() for one in self.tables},
            "repeated_ids": {"count": self.repeated.ids, "first": list(self.repeated.first)},
            "waiting": dict(self.waiting),
        }


def verify(
    run: Run, *, since: datetime | None = None, earlier: Certificate | None = None
) -> Verification:
    """Recompute silver from bronze and gold from silver, and compare row by row.

    Nothing is locked or written: tables are read as of their last committed batches. ``since``
    limits the rows to those that arrived from this instant on (UTC); ``earlier`` is a certificate
    whose rows must still exist, see :func:`changed_since`.

    Raises:
        UsageError: The pipeline has not run under this root, or rows of the certificate were
            erased.
        RefusedError: Tables differ, and some of them were replaced meanwhile.
        DamagedError: A file of a table is truncated, or gone from its newest version.
    """
    name = run.pipeline.name
    for table in (run.lake.bronze(name), run.lake.silver(name)):
        require_table(table, name)
    generations = _generations(run)
    changes = changed_since(run, earlier) if earlier else {}
    judged = []
    with naming_damage(run), fitted_to_bronze(run):
        # Read silver's position first, so that no table is read past it.
        inputs = read_inputs(run).since(since)
        for one in _judged(run, inputs, since):
            found = one.comparison.with_more(changes.get(one.table.name, ()))
            verdict = "equal" if found.equal else f"{found.differing:,} DIFFER"
            run.progress.say(f"{one.table.name}: {found.rows:,} rows, {verdict}")
            judged.append(one._replace(comparison=found))
        repeated = find_repeated_ids(inputs)
    result = Verification(
        name, since, tuple(judged), repeated, rows_waiting(run.lake, run.pipeline)
    )
    if not result.equal and _generations(run) != generations:
        raise RefusedError(
            f"the tables of {name} were replaced meanwhile, as by a promotion, a rollback, an "
            "erasure, a reset or a repair, so rows of before and after were compared. "
            f"Verify them again with: {runnable('tidelake verify', name)}"
        )
    return result


def _generations(run: Run) -> dict[str, str]:
    """Return the generation of each table that a run only adds batches to, by name."""
    lake, name = run.lake, run.pipeline.name
    sides = (lake.silver(name), lake.quarantine(name), lake.late(name))
    tables = (*sides, *lake.closing_tables(run.pipeline, "gold"))
    last = {table.name: last_commit(table) for table in tables}
    return {own: commit.generation for own, commit in last.items() if commit}


def _judged(run: Run, inputs: SilverInputs, since: datetime | None) -> Iterator[Judged]:
    """Compare the tables one by one, in dependency order."""
    lake, name = run.lake, run.pipeline.name
    yield Judged(lake.bronze(name), *judge_bronze(run, since))
    yield Judged(lake.requeue(name), *judge_requeue(run, since))
    with CheckpointedFrames() as frames:
        for found, comparison in judge_silver(run, inputs, since, frames).items():
            table = lake.table(found)
            closed = inputs.version if table == lake.silver(name) else newest_version(table)
            yield Judged(table, closed, comparison)
    for target in targets_of(lake, run.pipeline):
        table, version = target.table, closed_version(lake, target.table)
        if version >= 0:
            yield Judged(table, version, judge_target(run, target, version, since))
        elif was_filled(run, table):
            gone = RowDifference("missing", {"table": table.name})
            yield Judged(table, version, TableComparison(0, {}, {}).with_more([gone]))
        else:
            run.progress.say(
                f"{table.name} is not verified: it does not exist yet. "
                f"Fill it with: {runnable('tidelake run', name)}"
            )


def was_filled(run: Run, table: Table) -> bool:
    """Return whether a gold table that does not exist was filled: it was deleted since.

    The pipeline's last epoch, or the last batch of another of its tables, names it then.
    """
    last = map(last_commit, run.lake.closing_tables(run.pipeline, "gold"))
    named = {name for commit in last if commit for name in commit.note.get(TABLES, ())}
    epoch = last_epochs(recent_epochs(run.lake)).get(run.pipeline.name, {"versions": {}})
    return table.name in named | epoch["versions"].keys()


def judge_bronze(run: Run, since: datetime | None) -> tuple[int, TableComparison]:
    """Compare row counts and fingerprints per ``ingested_at`` with the commits, less erased rows.

    Also list batches that were committed twice, and records that bronze holds more than once.

    Returns:
        The compared version, and the result.
    """
    table = run.lake.bronze(run.pipeline.name)
    version = newest_version(table)
    commits = history(run.lake, table, up_to=version)
    rows = load_old(run.spark, table, version)
    if since is not None:
        rows = rows.where(F.col("ingested_at") >= F.lit(since))
    expected: dict[datetime, Mark] = {}
    counted = []
    for commit in commits:
        note, arrived = commit.note, from_json(commit.note.get("ingested_at"))
        if arrived is not None and (since is None or arrived >= since):
            mark = Mark(int(note["records"]), ids_in(note), contents_in(note))
            expected[arrived] = expected.get(arrived, Mark()).plus(mark)
            counted.append(commit)
    for one in arrivals_in(commits):
        if one.ingested_at in expected:
            erased = Mark(one.rows, one.ids, one.whole)
            expected[one.ingested_at] = expected[one.ingested_at].minus(erased)
    found, by_day = _stored(rows)
    differences = []
    # Only rows that another writer inserted have no instant of arrival.
    for arrived in sorted(expected.keys() | found.keys(), key=str):
        wanted = expected.get(arrived, Mark()) if arrived else Mark()
        stored = found.get(arrived, Mark())
        if not wanted.agrees(stored):
            kind: Kind = "missing" if wanted.rows > stored.rows else "extra"
            counts = {"rows": (wanted.rows, stored.rows)}
            if wanted.rows == stored.rows:
                kind, counts = "altered", {}
            at = arrived and arrived.isoformat()
            differences.append(RowDifference(kind, {"ingested_at": at}, counts))
    repeats = [
        RowDifference(
            "doubled", {"generation": generation, "batch": batch}, {"commits": (1, len(versions))}
        )
        for (generation, batch), versions in repeated(counted).items()
    ]
    count, first = _more_than_once(rows, "record_id", F.xxhash64("record_id"))
    total = len(differences) + len(repeats) + count
    repeats += [
        RowDifference("doubled", {"record_id": value}, {"rows": (1, copies)})
        for value, copies in first
    ]
    return version, TableComparison(
        sum(mark.rows for mark in found.values()),
        {name: kind for name, kind in types_of(rows.schema).items() if name in BRONZE_COLUMNS},
        by_day,
        total,
        (*repeats, *differences)[:SHOWN],
    )


def _stored(
    rows: DataFrame,
) -> tuple[dict[datetime | None, Mark], dict[str, tuple[int, int]]]:
    """Count the stored rows by arrival and, with the sums of their hashes, by day (UTC)."""
    columns = {name: F.col(name) for name in BRONZE_COLUMNS}
    hashed = row_hash(columns, types_of(rows.schema))
    summed = rows.groupBy(F.unix_micros("ingested_at")).agg(
        F.count("*"), fingerprint(), contents(), *sums_of_hash(hashed)
    )
    found: dict[datetime | None, Mark] = {}
    days: dict[str, tuple[int, int]] = {}
    for micros, count, ids, marks, *parts in summed.collect():
        arrived = from_micros(micros)
        found[arrived] = Mark(count, Fingerprint.of(*ids), Fingerprint.of(*marks))
        if arrived is not None:
            day = arrived.astimezone(UTC).date().isoformat()
            total, hashes = days.get(day, (0, 0))
            days[day] = total + count, hashes + joined(parts)
    return found, days


def find_repeated_ids(inputs: SilverInputs) -> RepeatedIds:
    """Find the event ids that silver and late, less what was requeued, hold more than once."""
    silver, _, late = inputs.decided.values()
    ids = silver.select("event_id", ID_HASH).union(late.select("event_id", ID_HASH))
    total, first = _more_than_once(ids, "event_id", F.col(ID_HASH))
    return RepeatedIds(total, tuple(value for value, _ in first))


def _more_than_once(
    rows: DataFrame, column: str, hashed: Column
) -> tuple[int, list[tuple[str, int]]]:
    """Count the values of a text column that occur more than once; return the first with counts.

    Groups by their hash ``hashed``, which shuffles faster than long texts; these are grouped only
    where a hash repeats.
    """
    values = rows.select(column, hashed.alias("_hash"))
    hashes = values.groupBy("_hash").count().where("count > 1").select("_hash")
    if hashes.isEmpty():
        return 0, []
    among = values.join(hashes, on="_hash", how="left_semi")
    found = among.groupBy(column).agg(F.count("*").alias("rows")).where("rows > 1")
    first = [(value, count) for value, count in found.orderBy(column).limit(SHOWN).collect()]
    return len(first) if len(first) < SHOWN else found.count(), first


def judge_target(run: Run, target: Target, version: int, since: datetime | None) -> TableComparison:
    """Compare a version of a gold table with a recomputation from the silver that it has consumed.

    With ``since``, compare only rows that later arrivals may have changed. A table without a bound
    on how far back an arrival changes rows, such as sessions, is compared whole.
    """
    tables = run.lake.hop_inputs(run.pipeline, "gold")
    last = last_commit(target.table, up_to=version)
    read = up_to(run.spark, tables, {key: position(last, key) for key in tables})
    found = load_old(run.spark, target.table, version).drop(*BATCH_COLUMNS)
    kind = target.kind.with_terms(types_of(found.schema))
    shape = shape_of(kind, found)
    if since is None or kind.reach is None or kind.moment is None:
        return compare(kind.of_all(Inputs({}, read)), found, shape)
    arrived = F.col("ingested_at") >= F.lit(since)
    spans = [span(read(key).where(arrived), "event_time") for key in kind.sources]
    earliest = min((one[0] for one in spans if one), default=None)
    if earliest is None:
        return compare(found.limit(0), found.limit(0), shape)
    # The earliest rows that the arrivals may have changed.
    first = instant(earliest - kind.reach)
    expected = kind.of_all(Inputs({}, lambda key: read(key).where(F.col("event_time") >= first)))
    late_enough = F.col(kind.moment) >= first
    return compare(expected.where(late_enough), found.where(late_enough), shape)


def shape_of(kind: GoldKind, stored: DataFrame) -> TableShape:
    """Return how a gold table's rows are compared."""
    return TableShape(
        key=kind.identity,
        moment=kind.moment,
        near=kind.tolerances(types_of(stored.schema)),
        unhashed=kind.unhashed,
        derived=kind.derived,
    )
