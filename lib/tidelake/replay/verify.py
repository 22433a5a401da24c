"""Compare every table of a pipeline with a recomputation; write and check certificates.

Only rows count (:mod:`tidelake.replay.compare`): it makes no difference how files were compacted.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

import tidelake
from tidelake.columns import instant
from tidelake.config import Pipeline
from tidelake.delta.access import load, load_old
from tidelake.delta.append import types_of
from tidelake.delta.commit_metadata import (
    arrivals_in,
    erasure_of,
    last_epochs,
    pipeline_hash,
    position,
    recent_epochs,
)
from tidelake.delta.log import TABLES, last_commit, newest_version, repeated
from tidelake.delta.tables import Table, require_table
from tidelake.errors import RefusedError, UsageError
from tidelake.fingerprints import Fingerprint, contents, contents_in, fingerprint, ids_in
from tidelake.gold.kinds import GoldKind, Inputs
from tidelake.gold.merge_plan import span
from tidelake.instants import from_json, from_micros
from tidelake.ledger.commit_checks import Mark
from tidelake.ledger.history import closed_version, history
from tidelake.names import BRONZE_COLUMNS, ID_HASH, logical_name
from tidelake.replay.compare import (
    SHOWN,
    Kind,
    RowDifference,
    TableComparison,
    TableShape,
    by_group,
    compare,
    joined,
    row_hash,
    sums_of,
    sums_of_hash,
)
from tidelake.replay.generations import fitted_to_bronze
from tidelake.replay.verify_silver import (
    BATCH_COLUMNS,
    EVENTS,
    SilverInputs,
    judge_requeue,
    judge_silver,
    naming_damage,
    read_inputs,
)
from tidelake.runtime.checkpointed_frames import CheckpointedFrames
from tidelake.runtime.gold_tables import Target, targets_of, up_to
from tidelake.runtime.hop import Run
from tidelake.silver.search_bounds import with_id_hash
from tidelake.typed import runnable

_BRONZE = TableShape(key=("record_id",), moment="ingested_at")
_FORMAT = 2


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
    """The results of all tables in dependency order; ``since`` limits the arrivals (UTC)."""

    pipeline: str
    since: datetime | None
    tables: tuple[Judged, ...]
    repeated: RepeatedIds

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
    result = Verification(name, since, tuple(judged), repeated)
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


class CertifiedTable(msgspec.Struct):
    """A table in a certificate: its version, its columns' types, and its rows by group.

    ``id`` is Delta's, None if its log did not have it; ``groups`` has the count and the sum of the
    hashes.
    """

    id: str | None
    version: int
    columns: dict[str, str]
    groups: dict[str, tuple[int, str]]


class Certificate(msgspec.Struct):
    """What a later :func:`verify` reads of a certificate; instants are UTC."""

    pipeline: str
    made_at: datetime
    since: datetime | None
    tables: dict[str, CertifiedTable]


def certify(verification: Verification, pipeline: Pipeline) -> dict[str, Any]:
    """Return a certificate of equal tables: versions, counts and sums of hashes, no values.

    A later :func:`verify` checks that the tables still hold these rows.
    """
    return {
        "format": _FORMAT,
        "pipeline": verification.pipeline,
        "equal": True,
        "made_at": datetime.now(UTC).isoformat(),
        "since": verification.since.isoformat() if verification.since else None,
        "tidelake": tidelake.__version__,
        "code": _code(),
        "definition": pipeline_hash(pipeline),
        "tables": {
            one.table.name: {
                "id": one.table.id,
                "version": one.version,
                "rows": one.comparison.rows,
                "columns": dict(one.comparison.columns),
                "groups": {
                    group: [count, str(total)]
                    for group, (count, total) in sorted(one.comparison.sums.items())
                },
            }
            for one in verification.tables
        },
    }


def read_certificate(path: Path, pipeline: str) -> Certificate:
    """Read an earlier certificate.

    Raises:
        UsageError: The file is not a certificate of this format and pipeline.
    """
    another = "Give another file with --certificate."
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(stored, dict) or stored.get("format") != _FORMAT:
            raise UsageError(
                f"{path} is not a certificate of this Tidelake version; an earlier one computed "
                f"other sums. {another}"
            )
        certificate = msgspec.convert(stored, Certificate)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read as a certificate: {error}. {another}") from error
    if certificate.pipeline != pipeline:
        raise UsageError(
            f"{path} is a certificate of {certificate.pipeline}, not of {pipeline}. {another}"
        )
    for layer in ("bronze", "silver"):
        if (table := logical_name(layer, pipeline)) not in certificate.tables:
            raise UsageError(f"{path} is not a certificate: it lacks {table}. {another}")
    return certificate


def changed_since(run: Run, earlier: Certificate) -> dict[str, list[RowDifference]]:
    """List by table the groups of rows that have changed since a certificate was written.

    Bronze and silver only grow, so their rows must still exist; a column may have a wider type by
    now. Other tables change with each batch, and a rebuild replaces silver: those are only compared
    with their recomputation.

    Raises:
        UsageError: Rows were erased since then, which look the same as lost rows.
    """
    name, certified = run.pipeline.name, earlier.tables
    bronze, silver = run.lake.bronze(name), run.lake.silver(name)
    version = certified[bronze.name].version
    taken = history(run.lake, bronze)
    if any(erasure_of(commit) for commit in taken if commit.version > version):
        raise UsageError(
            f"the certificate was made at {earlier.made_at.isoformat()}, and rows of {name} were "
            "erased after that. Write a new certificate: give another file with --certificate."
        )
    # Later batches may have come before the certificate was complete.
    arrivals = (
        from_json(commit.note.get("ingested_at")) for commit in taken if commit.version <= version
    )
    until = max((arrived for arrived in arrivals if arrived), default=earlier.made_at)
    kept = {bronze: (F.col("ingested_at") <= F.lit(until), _BRONZE)}
    closing = [commit for commit in history(run.lake, silver) if commit.batch >= 0]
    seen = [commit for commit in closing if commit.version <= certified[silver.name].version]
    ids = {certified[silver.name].id, silver.id} - {None}
    if seen and len(ids) < 2:
        # After a rebuild there is no such commit, or the table is another one.
        kept[silver] = F.col("_batch") <= seen[0].batch, EVENTS
    found = {}
    for table, (condition, shape) in kept.items():
        rows = load(run.spark, table).where(condition)
        if table == silver:
            rows = with_id_hash(rows)
        if earlier.since is not None:
            rows = rows.where(F.col("ingested_at") >= F.lit(earlier.since))
        after = by_group(sums_of(_as_certified(rows, certified[table.name].columns), shape))
        before = {
            group: (count, int(total))
            for group, (count, total) in certified[table.name].groups.items()
        }
        found[table.name] = [
            RowDifference("changed since", {"group": group}, {"rows": (then[0], now[0])})
            for group in sorted(before | after)
            if (then := before.get(group, (0, 0))) != (now := after.get(group, (0, 0)))
        ]
    return found


def _as_certified(rows: DataFrame, columns: Mapping[str, str]) -> DataFrame:
    """Select columns in the types that they had: a hash depends on the type."""
    types = types_of(rows.schema)
    selected = []
    for name, kind in columns.items():
        column = F.col(name) if name in types else F.lit(None)
        selected.append(column if types.get(name) == kind else column.try_cast(kind).alias(name))
    return rows.select(*selected)


def _code() -> str:
    """Return a hash of this package's source code."""
    home = Path(tidelake.__file__).parent
    files = sorted(home.rglob("*.py"))
    content = b"".join(str(f.relative_to(home)).encode() + f.read_bytes() for f in files)
    return hashlib.sha256(content).hexdigest()
