"""Hold bronze against what its commits say that they wrote."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidelake.config.names import BRONZE_COLUMNS
from tidelake.delta.access import load
from tidelake.delta.log import Commit, newest_version, repeated
from tidelake.delta.notes import Arrival, arrivals_in
from tidelake.fingerprints import (
    EMPTY,
    Fingerprint,
    combined,
    contents,
    contents_in,
    fingerprint,
    ids_in,
)
from tidelake.instants import from_json, from_micros
from tidelake.ops.books import history
from tidelake.replay.verify.contents import (
    SHOWN,
    Comparison,
    Difference,
    Told,
    compare,
    types_in,
)
from tidelake.replay.verify.sums import Shape, hash_of, joined, sums_of_hash
from tidelake.runtime.hop import Run

SHAPE = Shape(key=("record_id",), moment="ingested_at")


@dataclass(frozen=True)
class _Mark:
    """How many rows one arrival has, and which.

    Attributes:
        rows: How many.
        ids: Of their record ids.
        contents: Of the whole records; None where some commit does not tell.
    """

    rows: int = 0
    ids: Fingerprint = EMPTY
    contents: Fingerprint | None = EMPTY

    def agrees(self, other: _Mark) -> bool:
        """Tell whether both may be of the same rows."""
        same = self.rows == other.rows and self.ids.agrees(other.ids)
        if self.contents is None or other.contents is None:
            return same
        return same and self.contents.agrees(other.contents)


@dataclass(frozen=True)
class _Found:
    """The stored rows of one arrival: their mark, and the sum of their hashes."""

    mark: _Mark
    hashes: int


def judge_bronze(run: Run, since: datetime | None) -> tuple[int, Comparison]:
    """Count bronze's rows and sum up their contents, arrival by arrival.

    Args:
        run: What the command works with.
        since: Only arrivals from this instant on.

    Returns:
        The version that was judged, and what came out.
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
    stored = _found(rows)
    found = {arrived: one.mark for arrived, one in stored.items()}
    none = _Mark()
    differences = [
        _difference(arrived, told.get(arrived, none), found.get(arrived, none))
        for arrived in sorted(told.keys() | found.keys())
        if not told.get(arrived, none).agrees(found.get(arrived, none))
    ]
    count, doubled = _doubled(rows)
    twice = [*_repeated(chain.from_iterable(written.values())), *doubled]
    return version, Comparison(
        sum(mark.rows for mark in found.values()),
        BRONZE_COLUMNS,
        _by_day(stored),
        len(differences) + len(twice) - len(doubled) + count,
        (*twice, *differences)[:SHOWN],
    )


def judge_requeue(requeued: DataFrame, bronze: DataFrame) -> Comparison:
    """Hold what was sent again against the same records in bronze."""
    if requeued.isEmpty():
        return Comparison(0, BRONZE_COLUMNS, {})
    once = requeued.select(*BRONZE_COLUMNS).distinct()
    wanted = bronze.select(*BRONZE_COLUMNS).join(once.select("record_id"), "record_id", "left_semi")
    return compare(wanted, once, SHAPE)


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


def _found(rows: DataFrame) -> dict[datetime, _Found]:
    hashed = hash_of({name: F.col(name) for name in BRONZE_COLUMNS}, types_in(rows))
    summed = rows.groupBy(F.unix_micros("ingested_at")).agg(
        F.count("*"), fingerprint(), contents(), *sums_of_hash(hashed)
    )
    found: dict[datetime, _Found] = {}
    for micros, count, ids, marks, *hashes in summed.collect():
        arrived = from_micros(micros)
        if arrived is not None:
            mark = _Mark(count, Fingerprint.of(*ids), Fingerprint.of(*marks))
            found[arrived] = _Found(mark, joined(hashes))
    return found


def _by_day(found: Mapping[datetime, _Found]) -> Told:
    """Add arrivals up, in the groups of :func:`sums_of`."""
    days: dict[str, tuple[int, int]] = {}
    for arrived, one in found.items():
        day = arrived.astimezone(UTC).date().isoformat()
        rows, hashes = days.get(day, (0, 0))
        days[day] = rows + one.mark.rows, hashes + one.hashes
    return days


def _repeated(commits: Iterable[Commit]) -> Iterator[Difference]:
    """Name the batches that were committed more than once."""
    for (generation, batch), versions in repeated(commits).items():
        where = {"generation": generation, "batch": batch}
        yield Difference("doubled", where, {"commits": (1, len(versions))})


def _doubled(rows: DataFrame) -> tuple[int, list[Difference]]:
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
        Difference("doubled", {"record_id": row["record_id"]}, {"rows": (1, row["rows"])})
        for row in first
    ]


def _difference(arrived: datetime, told: _Mark, found: _Mark) -> Difference:
    where = {"ingested_at": arrived.isoformat()}
    if told.rows > found.rows:
        return Difference("missing", where, {"rows": (told.rows, found.rows)})
    if told.rows < found.rows:
        return Difference("extra", where, {"rows": (told.rows, found.rows)})
    return Difference("altered", where)
