"""Compare every table of a pipeline with what follows from bronze; write and check certificates."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import tidelake
from tidelake.columns import instant
from tidelake.config import Pipeline
from tidelake.config.names import BRONZE_COLUMNS
from tidelake.delta.access import load
from tidelake.delta.log import Commit, last_commit, newest_version, repeated
from tidelake.delta.notes import Arrival, arrivals_in, erasure_of, hash_of, positions
from tidelake.delta.positions import BEGINNING, rows_between
from tidelake.delta.tables import Table
from tidelake.errors import UsageError
from tidelake.fingerprints import (
    EMPTY,
    Fingerprint,
    combined,
    contents,
    contents_in,
    fingerprint,
    ids_in,
)
from tidelake.gold.plan import Inputs, Kind
from tidelake.instants import from_json, from_micros
from tidelake.ops.history import history
from tidelake.replay.compare import (
    SHOWN,
    RowDifference,
    TableComparison,
    TableShape,
    by_group,
    compare,
    joined,
    row_hash,
    sums_of,
    sums_of_hash,
    types_in,
)
from tidelake.replay.verify_silver import EVENTS, ORIGIN, judge_silver, read_inputs
from tidelake.runtime.gold_tables import Target, inputs_of, targets_of, up_to
from tidelake.runtime.held import Held
from tidelake.runtime.hop import Run
from tidelake.spark.engine import fitted

_BRONZE = TableShape(key=("record_id",), moment="ingested_at")
_FORMAT = 1


@dataclass(frozen=True)
class Judged:
    """A table, the version that was compared, and what came out."""

    table: Table
    version: int
    comparison: TableComparison


@dataclass(frozen=True)
class Verification:
    """What a verification of arrivals since an instant (UTC), or of all, found.

    Tables are in the order of the flow.
    """

    pipeline: str
    since: datetime | None
    tables: tuple[Judged, ...]

    @property
    def equal(self) -> bool:
        """Return whether every table holds what it should."""
        return all(one.comparison.equal for one in self.tables)

    def with_changes(self, changes: Mapping[str, Sequence[RowDifference]]) -> Verification:
        """Add what is not as an earlier certificate saw it, by table."""
        tables = [
            replace(one, comparison=one.comparison.with_more(changes.get(one.table.name, ())))
            for one in self.tables
        ]
        return replace(self, tables=tuple(tables))

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "pipeline": self.pipeline,
            "equal": self.equal,
            "tables": {one.table.name: one.comparison.to_json() for one in self.tables},
        }


def verify(run: Run, *, since: datetime | None = None) -> Verification:
    """Compute silver from bronze and gold from silver, and compare row by row.

    Nothing is locked and nothing is written: tables are read as the last closed batches left them.
    ``since`` limits it to what arrived from that instant on (UTC).

    Raises:
        UsageError: The pipeline has not run under this root.
    """
    lake, pipeline = run.lake, run.pipeline
    bronze = lake.bronze(pipeline.name)
    for table in (bronze, lake.silver(pipeline.name)):
        if not table.exists:
            raise UsageError(
                f"{table.name} does not exist yet. Fill it with: tidelake run {pipeline.name}"
            )
    judged = []
    with fitted(run.spark, rows_between(bronze, BEGINNING)):
        for one in _judged(run, since):
            verdict = "equal" if one.comparison.equal else f"{one.comparison.differing:,} DIFFER"
            run.progress.say(f"{one.table.name}: {one.comparison.rows:,} rows, {verdict}")
            judged.append(one)
    return Verification(pipeline.name, since, tuple(judged))


def _judged(run: Run, since: datetime | None) -> Iterator[Judged]:
    """Judge table by table, in the order of the flow."""
    lake, name = run.lake, run.pipeline.name
    # Silver's position before the heads of its inputs: what comes in meanwhile is not read.
    inputs = read_inputs(run).since(since)
    yield Judged(lake.bronze(name), *judge_bronze(run, since))
    requeue = lake.requeue(name)
    yield Judged(requeue, newest_version(requeue), _judge_requeue(inputs.requeued, inputs.bronze))
    with Held() as hold:
        for found, comparison in judge_silver(run, inputs, since, hold).items():
            table = lake.table(found)
            closed = inputs.version if table == lake.silver(name) else newest_version(table)
            yield Judged(table, closed, comparison)
    for target in targets_of(lake, run.pipeline):
        version = newest_version(target.table)
        if version < 0:
            run.progress.say(f"{target.table.name} does not exist yet")
            continue
        yield Judged(target.table, version, judge_target(run, target, version, since))


class _Mark(NamedTuple):
    """The rows of one arrival: how many, and the fingerprints of ids and of whole records.

    The contents are None where some commit does not tell.
    """

    rows: int = 0
    ids: Fingerprint = EMPTY
    contents: Fingerprint | None = EMPTY

    def agrees(self, other: _Mark) -> bool:
        same = self.rows == other.rows and self.ids.agrees(other.ids)
        if self.contents is None or other.contents is None:
            return same
        return same and self.contents.agrees(other.contents)


def judge_bronze(run: Run, since: datetime | None) -> tuple[int, TableComparison]:
    """Compare bronze's rows with what its commits say they wrote, arrival by arrival.

    Returns the version that was judged too.
    """
    table = run.lake.bronze(run.pipeline.name)
    version = newest_version(table)
    commits = [commit for commit in history(run.lake, table) if commit.version <= version]
    rows = load(run.spark, table, version=version)
    if since is not None:
        rows = rows.where(F.col("ingested_at") >= F.lit(since))
    written: dict[datetime, list[Commit]] = {}
    for commit in commits:
        arrived = from_json(commit.note.get("ingested_at"))
        if arrived is not None and (since is None or arrived >= since):
            written.setdefault(arrived, []).append(commit)
    gone: dict[datetime, list[Arrival]] = {}
    for one in arrivals_in(commits):
        gone.setdefault(one.ingested_at, []).append(one)
    told = {arrived: _told(ours, gone.get(arrived, ())) for arrived, ours in written.items()}
    found, by_day = _found(rows)
    differences = []
    for arrived in sorted(told.keys() | found.keys()):
        wanted, stored = told.get(arrived, _Mark()), found.get(arrived, _Mark())
        if not wanted.agrees(stored):
            where = {"ingested_at": arrived.isoformat()}
            counts = {"rows": (wanted.rows, stored.rows)}
            if wanted.rows == stored.rows:
                differences.append(RowDifference("altered", where))
            elif wanted.rows > stored.rows:
                differences.append(RowDifference("missing", where, counts))
            else:
                differences.append(RowDifference("extra", where, counts))
    repeats = [
        RowDifference(
            "doubled", {"generation": generation, "batch": batch}, {"commits": (1, len(versions))}
        )
        for (generation, batch), versions in repeated(
            commit for ours in written.values() for commit in ours
        ).items()
    ]
    count, doubled = _doubled(rows)
    return version, TableComparison(
        sum(mark.rows for mark in found.values()),
        BRONZE_COLUMNS,
        by_day,
        len(differences) + len(repeats) + count,
        (*repeats, *doubled, *differences)[:SHOWN],
    )


def _judge_requeue(requeued: DataFrame, bronze: DataFrame) -> TableComparison:
    """Compare what was requeued with the same records in bronze."""
    if requeued.isEmpty():
        return TableComparison(0, BRONZE_COLUMNS, {})
    once = requeued.select(*BRONZE_COLUMNS).distinct()
    wanted = bronze.select(*BRONZE_COLUMNS).join(once.select("record_id"), "record_id", "left_semi")
    return compare(wanted, once, _BRONZE)


def _told(commits: Sequence[Commit], gone: Sequence[Arrival]) -> _Mark:
    """Add up what commits of one arrival say, less what was erased of it."""
    ids = combined(ids_in(commit.note) for commit in commits)
    # Contents were not always noted.
    whole = [contents_in(commit.note) for commit in commits]
    known = [mark for mark in whole if mark is not None]
    return _Mark(
        sum(int(commit.note["records"]) for commit in commits) - sum(one.rows for one in gone),
        ids.minus(combined(one.ids for one in gone)),
        combined(known).minus(combined(one.whole for one in gone))
        if len(known) == len(whole)
        else None,
    )


def _found(rows: DataFrame) -> tuple[dict[datetime, _Mark], dict[str, tuple[int, int]]]:
    """Count the stored rows by arrival and, with the sums of their hashes, by day (UTC)."""
    columns = {name: F.col(name) for name in BRONZE_COLUMNS}
    hashed = row_hash(columns, types_in(rows))
    summed = rows.groupBy(F.unix_micros("ingested_at")).agg(
        F.count("*"), fingerprint(), contents(), *sums_of_hash(hashed)
    )
    found: dict[datetime, _Mark] = {}
    days: dict[str, tuple[int, int]] = {}
    for micros, count, ids, marks, *parts in summed.collect():
        arrived = from_micros(micros)
        if arrived is not None:
            found[arrived] = _Mark(count, Fingerprint.of(*ids), Fingerprint.of(*marks))
            day = arrived.astimezone(UTC).date().isoformat()
            total, hashes = days.get(day, (0, 0))
            days[day] = total + count, hashes + joined(parts)
    return found, days


def _doubled(rows: DataFrame) -> tuple[int, list[RowDifference]]:
    """Count the records that are there more than once, and name the first of them.

    Numbers are grouped, which are shuffled sooner than long texts; where any comes twice, the
    texts are looked at.
    """
    ids = rows.select("record_id", F.xxhash64("record_id").alias("_hash"))
    hashes = ids.groupBy("_hash").count().where("count > 1").select("_hash")
    if hashes.isEmpty():
        return 0, []
    among = ids.join(hashes, on="_hash", how="left_semi")
    found = among.groupBy("record_id").agg(F.count("*").alias("rows")).where("rows > 1")
    first = found.orderBy("record_id").limit(SHOWN).collect()
    total = len(first) if len(first) < SHOWN else found.count()
    return total, [
        RowDifference("doubled", {"record_id": row["record_id"]}, {"rows": (1, row["rows"])})
        for row in first
    ]


def judge_target(run: Run, target: Target, version: int, since: datetime | None) -> TableComparison:
    """Compare a version of a gold table with what follows from the silver that it has consumed.

    With ``since`` only the rows that arrivals from that instant on may have changed; tables whose
    rows may reach back any time, such as sessions, are judged whole.
    """
    tables = inputs_of(run.lake, run.pipeline)
    reached = positions(last_commit(target.table, up_to=version))
    read = up_to(run.spark, tables, {key: reached.get(key, BEGINNING) for key in tables})
    found = load(run.spark, target.table, version=version).drop(*ORIGIN)
    kind = target.kind.with_terms(_types_of(found))
    shape = shape_of(kind, found)
    if since is None or kind.reach is None or kind.moment is None:
        return compare(kind.of_all(Inputs({}, read)), found, shape)
    # From when on rows may have changed by what arrived.
    earliest = []
    for key in kind.sources:
        arrived = read(key).where(F.col("ingested_at") >= F.lit(since))
        micros = arrived.agg(F.min(F.unix_micros("event_time"))).collect()[0][0]
        if (at := from_micros(micros)) is not None:
            earliest.append(at)
    if not earliest:
        return compare(found.limit(0), found.limit(0), shape)
    first = instant(min(earliest) - kind.reach)
    expected = kind.of_all(Inputs({}, lambda key: read(key).where(F.col("event_time") >= first)))
    late_enough = F.col(kind.moment) >= first
    return compare(expected.where(late_enough), found.where(late_enough), shape)


def shape_of(kind: Kind, stored: DataFrame) -> TableShape:
    """Say how a gold table's rows are compared."""
    return TableShape(
        key=kind.identity,
        moment=kind.moment,
        near=kind.tolerances(_types_of(stored)),
        unhashed=kind.unhashed,
    )


def _types_of(stored: DataFrame) -> dict[str, str]:
    return {field.name: field.dataType.simpleString() for field in stored.schema.fields}


def certify(verification: Verification, pipeline: Pipeline) -> dict[str, Any]:
    """Return a verification's certificate: counts, sums of hashes, versions; no row of any table.

    A later verification can tell by it whether the tables still hold what they held.
    """
    return {
        "format": _FORMAT,
        "pipeline": verification.pipeline,
        "equal": verification.equal,
        "made_at": datetime.now(UTC).isoformat(),
        "since": verification.since.isoformat() if verification.since else None,
        "tidelake": tidelake.__version__,
        "code": _code(),
        "definition": hash_of(pipeline),
        "tables": {
            one.table.name: {
                "version": one.version,
                "equal": one.comparison.equal,
                "rows": one.comparison.rows,
                "differing": one.comparison.differing,
                "columns": list(one.comparison.columns),
                "groups": {
                    group: [count, str(total)]
                    for group, (count, total) in sorted(one.comparison.sums.items())
                },
            }
            for one in verification.tables
        },
    }


def read_certificate(path: Path, pipeline: str) -> dict[str, Any]:
    """Read an earlier certificate.

    Raises:
        UsageError: It is none, or of another pipeline.
    """
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read as a certificate: {error}") from error
    if not isinstance(told, dict) or told.get("format") != _FORMAT:
        raise UsageError(f"{path} is no certificate of this version's. Give another name.")
    if told["pipeline"] != pipeline:
        raise UsageError(f"{path} is a certificate of {told['pipeline']}, not of {pipeline}.")
    return told


def changed_since(run: Run, earlier: Mapping[str, Any]) -> dict[str, list[RowDifference]]:
    """Name by table the groups of rows that a certificate saw and that are not the same any more.

    Bronze and silver only grow, so that what they held then must still be there. Other tables
    change with each batch, and silver is another one after a rebuild: those are judged by their
    recomputation alone.

    Raises:
        UsageError: Rows that it saw were erased since, so that they cannot be told from lost ones.
    """
    name, made_at = run.pipeline.name, from_json(earlier["made_at"])
    bronze, silver = run.lake.bronze(name), run.lake.silver(name)
    told = earlier["tables"]
    version = told[bronze.name]["version"]
    if any(erasure_of(commit) for commit in history(run.lake, bronze) if commit.version > version):
        raise UsageError(
            f"the certificate was made at {earlier['made_at']}, and rows of {name} were erased "
            "since. Write a new one: give another file."
        )
    kept = {bronze: (F.col("ingested_at") <= F.lit(made_at), _BRONZE)}
    closing = [commit for commit in history(run.lake, silver) if commit.batch >= 0]
    seen = [commit for commit in closing if commit.version <= told[silver.name]["version"]]
    if seen:
        # A rebuilt table has no commit from before.
        kept[silver] = F.col("_batch") <= seen[0].batch, EVENTS
    since = from_json(earlier["since"])
    found = {}
    for table, (condition, shape) in kept.items():
        rows = load(run.spark, table).where(condition)
        if since is not None:
            rows = rows.where(F.col("ingested_at") >= F.lit(since))
        now = by_group(sums_of(rows.select(*told[table.name]["columns"]), shape))
        groups = told[table.name]["groups"].items()
        then = {group: (int(count), int(total)) for group, (count, total) in groups}
        found[table.name] = [
            RowDifference(
                "changed since",
                {"group": group},
                {"rows": (then.get(group, (0, 0))[0], now.get(group, (0, 0))[0])},
            )
            for group in sorted(then | now)
            if then.get(group) != now.get(group)
        ]
    return found


@cache
def _code() -> str:
    """Hash the code that judged."""
    home = Path(tidelake.__file__).parent
    files = sorted(home.rglob("*.py"))
    content = b"".join(str(f.relative_to(home)).encode() + f.read_bytes() for f in files)
    return hashlib.sha256(content).hexdigest()
