"""Recompute silver and its side tables from bronze, in one batch, and compare.

A batch's commit metadata holds its watermark and its dimension versions: each stored row is judged
by those of the batch that wrote it.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import reduce
from itertools import pairwise
from urllib.parse import unquote

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tidelake.delta.access import load, load_old
from tidelake.delta.append import types_of
from tidelake.delta.commit_metadata import SilverNote, add_up, deductions_in, erased_rows, position
from tidelake.delta.log import CREATION, ERASED, FOLLOWS, REBUILT, Commit, newest_version
from tidelake.delta.tables import Table
from tidelake.errors import DamagedError, UsageError
from tidelake.instants import from_json, from_micros
from tidelake.ledger.history import history
from tidelake.names import BRONZE_COLUMNS
from tidelake.replay import compare
from tidelake.replay.compatibility import unknown_columns
from tidelake.replay.requeue import read_side
from tidelake.runtime.accepted_rows import AcceptedRows
from tidelake.runtime.checkpointed_frames import CheckpointedFrames
from tidelake.runtime.failures import FOREIGN, damage, error_text
from tidelake.runtime.gold_tables import up_to
from tidelake.runtime.hop import Run
from tidelake.runtime.lookups import Lookup, enriched, lookups, replaced, unreadable
from tidelake.runtime.schemas import from_records, stored_schemas
from tidelake.runtime.silver import decide_fates
from tidelake.runtime.transformed_rows import same_rows
from tidelake.silver.fates import (
    FATE,
    LATE,
    QUARANTINED,
    SILVER,
    late_columns,
    lateness,
    quarantine_columns,
    silver_columns,
    with_lateness,
)
from tidelake.silver.payloads import WriterSchemas
from tidelake.silver.search_bounds import with_id_hash
from tidelake.silver.stages import REQUEUED_AT
from tidelake.spark.tuning import BROADCAST
from tidelake.typed import runnable
from tidelake.visible import HEAD, kind_of, visible

# The columns that identify the batch that wrote a row.
BATCH_COLUMNS = ("_generation", "_batch")
EVENTS = compare.TableShape(key=("record_id",), moment="event_time")
RECORDS = compare.TableShape(key=("record_id",), moment="ingested_at")

# Spark's error for a data file that it cannot read. It encodes the path.
_UNREADABLE = re.compile(
    rf"{HEAD}\[FAILED_READ_FILE\.(?P<why>\w+)\] Encountered error while reading file "
    r"(?P<file>\S+?)\.(?=\s)",
    re.MULTILINE,
)
_MARK, _PINS = "_mark", "_pins"
# The turn of a replayed row, and when it was requeued.
_OF, _BEFORE, _AFTER, _TAKEN, _REQUEUED = "_turn_of", "_before", "_after", "_taken", "_requeued"
_UNREAD = "_quarantined_unread"


@dataclass(frozen=True)
class SilverInputs:
    """A version of silver, its side tables, and its inputs up to the position it has reached.

    ``decided`` has the rows of silver, quarantine and late, in this order; the side tables' rows
    are those of committed batches that were not requeued. ``closing`` are silver's commits, newest
    first.
    """

    version: int
    closing: Sequence[Commit]
    bronze: DataFrame
    requeued: DataFrame
    decided: Mapping[Table, DataFrame]

    def since(self, instant: datetime | None) -> SilverInputs:
        """Return only the rows that arrived from an instant on (UTC)."""
        if instant is None:
            return self
        arrived = F.col("ingested_at") >= F.lit(instant)
        # A commit of a clock that went back has a time before that of its arrivals.
        later = [
            commit
            for commit in self.closing
            for found in [SilverNote.of(commit).partitions.values()]
            if max([commit.written_at, *(one.last_ingested_at for one in found)]) >= instant
        ]
        return replace(
            self,
            closing=later or self.closing[:1],
            bronze=self.bronze.where(arrived),
            requeued=self.requeued.where(arrived),
            decided={table: rows.where(arrived) for table, rows in self.decided.items()},
        )


def read_inputs(run: Run) -> SilverInputs:
    """Read the tables as of silver's last committed batch, even while a run is writing."""
    spark, lake, name = run.spark, run.lake, run.pipeline.name
    silver, quarantine, late = lake.silver(name), lake.quarantine(name), lake.late(name)
    # Read the version first, so that later batches are not read.
    version = newest_version(silver)
    closing = history(lake, silver, up_to=version)
    last = closing[0]
    inputs = lake.silver_inputs(name)
    read = up_to(spark, inputs, {key: position(last, key) for key in inputs})
    requeued = read("requeue")
    decided = {
        silver: with_id_hash(load_old(spark, silver, version)),
        quarantine: read_side(run, quarantine, last, requeued=requeued),
        late: with_id_hash(read_side(run, late, last, requeued=requeued)),
    }
    return SilverInputs(version, closing, read("bronze"), requeued, decided)


def judge_requeue(run: Run, since: datetime | None) -> tuple[int, compare.TableComparison]:
    """Compare the requeue with the same records in bronze, also those that silver has not read.

    ``since`` limits the rows to those that arrived from this instant on (UTC).

    Returns:
        The compared version, -1 if there is no requeue yet, and the result.
    """
    table, bronze = run.lake.requeue(run.pipeline.name), run.lake.bronze(run.pipeline.name)
    version = newest_version(table)
    if version < 0:
        return version, compare.TableComparison(0, {}, {})
    # Bronze is read after the version, so that it has all of these records.
    sides = load_old(run.spark, table, version), load(run.spark, bronze)
    arrived = F.lit(True) if since is None else F.col("ingested_at") >= F.lit(since)
    requeued, arrivals = (rows.where(arrived).select(*BRONZE_COLUMNS) for rows in sides)
    if requeued.isEmpty():
        return version, compare.TableComparison(0, {}, {})
    once = requeued.distinct()
    wanted = arrivals.join(once.select("record_id"), on="record_id", how="left_semi")
    return version, compare.compare(wanted, once, RECORDS)


@contextmanager
def naming_damage(run: Run) -> Iterator[None]:
    """Convert the error of a table's file that is missing or truncated into a DamagedError.

    Other errors pass, also that of a missing file of an older version, which VACUUM may delete.
    """
    try:
        yield
    except FOREIGN as error:
        text = error_text(error)
        found = None if run.lake.catalog else _UNREADABLE.search(text)
        if found is None or (found["why"] == "FILE_NOT_EXIST" and not damage(run, text)):
            raise
        file = unquote(re.sub("^file:/*", "/", found["file"]))
        for table in run.lake.existing():
            if f"{table.path}/" in file:
                why = f"{visible(file)}: {kind_of(error)}"
                raise DamagedError(f"{table.name} cannot be read", why) from error
        raise


def judge_silver(
    run: Run, inputs: SilverInputs, since: datetime | None, frames: CheckpointedFrames
) -> dict[str, compare.TableComparison]:
    """Compare silver, quarantine and late with a recomputation from bronze, by table.

    The inputs are those of :func:`read_inputs`, limited to ``since``.
    """
    lake, pipeline, plan = run.lake, run.pipeline, run.plan
    known = None if since is None else F.col("ingested_at") < F.lit(since)
    last = inputs.closing[0]
    accepted = AcceptedRows(
        run.spark,
        pipeline,
        lake,
        last.batch + 1,
        position(last, "requeue"),
        known=known,
        nothing_accepted=since is None,
    )
    schemas = stored_schemas(run, still_refused=F.col(_UNREAD))
    records = _bronze_records(inputs, schemas)
    place = f"{pipeline.name}, verify"
    judged = same_rows(records, plan.judge(records, schemas), pipeline, frames, place)
    decided = _decided_in_turn(run, inputs, judged, accepted, frames)
    marked = decided.join(_seen_by_batches(run, inputs, frames), on="record_id", how="left")
    judged = with_lateness(marked, plan.fates, F.col(_MARK), pipeline.watermark.allowed_lateness)
    looked_up = _looked_up(run, judged, inputs.closing)
    found, computed = _compare_tables(run, inputs, looked_up)
    if since is None:
        silver, late = lake.silver(pipeline.name).name, lake.late(pipeline.name).name
        off = list(_fates_that_differ(computed, inputs.closing))
        found[silver] = found[silver].with_more(off)
        own, of_late = (found[table].columns.keys() for table in (silver, late))
        if {"event_time", "ingested_at"} <= own & of_late and "watermark" in of_late:
            found[late] = found[late].with_more(list(_late_without_cause(run, inputs)))
    return found


def _compare_tables(
    run: Run, inputs: SilverInputs, decided: DataFrame
) -> tuple[dict[str, compare.TableComparison], dict[str, int]]:
    """Compare each table with its computed rows, hashing all tables' rows in one pass.

    Returns:
        The comparisons by table, and the number of computed rows by fate.
    """
    routing, (silver, _, late) = run.plan.routing, inputs.decided.values()
    extra = unknown_columns(run, types_of(silver.schema))
    # The late table gets a new column only with its next late row.
    of_late = [column for column in extra if column in late.columns]
    columns = {
        SILVER: silver_columns(routing, extra),
        QUARANTINED: quarantine_columns(),
        LATE: late_columns(routing, of_late, F.col(_MARK)),
    }
    shapes = {SILVER: EVENTS, QUARANTINED: RECORDS, LATE: EVENTS}
    tables = dict(zip(columns, inputs.decided.items(), strict=True))
    shaped = decided.select(FATE, *[F.struct(*made).alias(fate) for fate, made in columns.items()])
    for fate, (_, stored) in tables.items():
        made = shaped.select(f"{fate}.*")
        types, off = compare.common_types(made, stored)
        typed = {
            name: (F.lit(None) if name in off else F.col(f"{fate}.{name}")).cast(types[name])
            for name in made.columns
            if name in types
        }
        shape, of_row = shapes[fate], F.lit(None)
        if not {*shape.key, shape.moment} & off.keys():
            of_row = F.when(F.col(FATE) == fate, compare.marks(typed, types, shape))
        shaped = shaped.withColumn(f"_of_{fate}", of_row)
    first = F.coalesce(*[f"_of_{fate}" for fate in tables]).alias("_of_row")
    sums = compare.summed(shaped.select(FATE, first).select(FATE, "_of_row.*"), F.col(FATE))
    found = {}
    for fate, (table, stored) in tables.items():
        computed = decided.where(F.col(FATE) == fate).select(*columns[fate])
        found[table.name] = compare.compare(computed, stored, shapes[fate], sums.get(fate, {}))
    return found, {fate: sum(one[0] for one in groups.values()) for fate, groups in sums.items()}


def _fates_that_differ(
    computed: Mapping[str, int], closing: Sequence[Commit]
) -> Iterator[compare.RowDifference]:
    """Compare the fates that leave no row in a table with the counts in the commits."""
    noted = add_up(count for commit in closing for count in SilverNote.of(commit).counts)
    erased = deductions_in(closing)
    for fate in ("duplicate", "filtered"):
        rows = computed.get(fate, 0), noted[fate] - erased_rows(erased, fate)
        if rows[0] != rows[1]:
            yield compare.RowDifference("altered", {"fate": fate}, {"rows": rows})


def _late_without_cause(run: Run, inputs: SilverInputs) -> Iterator[compare.RowDifference]:
    """Find late rows whose watermark no event had reached that arrived before them.

    The recomputation takes watermarks from silver's commits. This compares them with accepted rows
    of earlier commits of bronze, which alone make a row late. Nothing is compared if the order of
    arrival is unknown, since the clock went back, or if rows of silver were erased.
    """
    arrived = [
        at
        for commit in reversed(history(run.lake, run.lake.bronze(run.pipeline.name)))
        if commit.note.get("records") and ERASED not in commit.note
        if (at := from_json(commit.note.get("ingested_at"))) is not None
    ]
    if deductions_in(inputs.closing) or any(one >= other for one, other in pairwise(arrived)):
        return
    silver, _, late = inputs.decided.values()
    arrival_of = F.unix_micros("ingested_at").alias("at")
    # Requeued rows are judged again when later events have arrived.
    judged_once = late.where(F.col(REQUEUED_AT).isNull()).dropna(
        subset=["ingested_at", "watermark"]
    )
    late_rows = judged_once.groupBy(arrival_of).agg(
        F.max(F.unix_micros("watermark")), F.count("*"), F.min("record_id")
    )
    found = sorted(late_rows.collect())
    if not found:
        return
    own = silver.dropna(subset=["ingested_at", "event_time"])
    newest = own.groupBy(arrival_of).agg(F.max(F.unix_micros("event_time")))
    accepted, reached = deque(sorted(newest.collect())), None
    for arrival, mark, rows, record in found:
        while accepted and accepted[0][0] < arrival:
            time = accepted.popleft()[1]
            reached = time if reached is None else max(reached, time)
        if reached is None or mark > reached:
            shown = tuple(None if one is None else str(from_micros(one)) for one in (reached, mark))
            where = {"ingested_at": str(from_micros(arrival)), "rows": rows, "record_id": record}
            yield compare.RowDifference("altered", where, {"watermark": (shown[0], shown[1])})


def _bronze_records(inputs: SilverInputs, schemas: WriterSchemas | None) -> DataFrame:
    """Read each record of bronze once, with the reason for which it was last requeued.

    The last column marks rows in quarantine whose schema was refused and later accepted; other
    rows of such a schema have since been requeued or decided again. Only refusals recorded in the
    table of schemas count.
    """
    requeues = inputs.requeued.groupBy("record_id").agg(
        F.max_by("reason", "requeued_at").alias("reason"), F.max("requeued_at").alias("requeued_at")
    )
    arrived = inputs.bronze.join(requeues, on="record_id", how="left").select(
        *inputs.bronze.columns, "reason", "requeued_at"
    )
    texts = schemas.texts_overruled() if schemas else []
    if not texts:
        return arrived.withColumn(_UNREAD, F.lit(False))
    refused = (F.col("stage") == "parse") & F.get("reasons", F.lit(0)).isin(texts)
    _, quarantine, _ = inputs.decided.values()
    unread = quarantine.where(refused).select("record_id").distinct()
    return arrived.join(unread.withColumn(_UNREAD, F.lit(True)), on="record_id", how="left")


def _decided_in_turn(
    run: Run,
    inputs: SilverInputs,
    judged: DataFrame,
    accepted: AcceptedRows,
    frames: CheckpointedFrames,
) -> DataFrame:
    """Decide all rows in one batch, replayed ones in the turn of the batch that took them.

    A replayed row counts as arrived when it was requeued. But its batch may have left earlier
    arrivals unread, since the bytes of each input are limited, and an earlier batch may have read
    later ones. So an accepted row is placed before the first arrival that its batch left unread,
    and any other row after the last arrival that it read.
    """
    turns = list(_turns(run, inputs))
    if not turns:
        return decide_fates(judged, run.plan, accepted, None, frames).rows
    batches = from_records(
        run.spark, turns, f"{_OF} timestamp, {_BEFORE} timestamp, {_AFTER} timestamp"
    )
    silver, _, late = inputs.decided.values()
    stored = silver.select("record_id").union(late.select("record_id"))
    again = inputs.requeued.select("record_id").distinct()
    taken = again.join(stored, on="record_id", how="left_semi").withColumn(_TAKEN, F.lit(True))
    turn = F.when(F.col(_TAKEN), F.least(_OF, _BEFORE)).otherwise(F.greatest(_OF, _AFTER))
    placed = (
        judged.join(taken, on="record_id", how="left")
        .withColumnRenamed(REQUEUED_AT, _REQUEUED)
        .join(F.broadcast(batches), on=F.col(_OF) == F.col(_REQUEUED), how="left")
        .withColumn(REQUEUED_AT, F.coalesce(turn, _REQUEUED))
        .drop(_OF, _BEFORE, _AFTER, _TAKEN)
    )
    decided = decide_fates(placed, run.plan, accepted, None, frames).rows
    return decided.drop(REQUEUED_AT).withColumnRenamed(_REQUEUED, REQUEUED_AT)


def _turns(run: Run, inputs: SilverInputs) -> Iterator[dict[str, datetime | None]]:
    """Find the replays of quarantined rows that silver read out of the order of arrival.

    Yields for each when it was requeued, the first arrival in bronze that its batch left unread,
    at least in part, and the instant after the last arrival that it read (UTC).
    """
    lake, name = run.lake, run.pipeline.name
    replays = {
        commit.version: from_json(commit.note["requeued_at"])
        for commit in history(lake, lake.requeue(name))
        if commit.note.get("reason") == "quarantine" and ERASED not in commit.note
    }
    if not replays:
        return
    arrivals = [
        (commit.version, arrived)
        for commit in history(lake, lake.bronze(name))
        if commit.note.get("records") and ERASED not in commit.note
        if (arrived := from_json(commit.note.get("ingested_at"))) is not None
    ]
    # A rebuild decides all rows from bronze; it reads nothing from the requeue.
    ends = [
        (position(one, "requeue"), None if one.note.get(REBUILT) else position(one, "bronze"))
        for one in reversed(inputs.closing)
    ]
    for version, requeued_at in replays.items():
        end = next((bronze for requeue, bronze in ends if requeue > (version, -1)), None)
        if requeued_at is None or end is None:
            continue
        # The batch may end between two files of a commit.
        left = [at for number, at in arrivals if number >= end[0]]
        took = [at for number, at in arrivals if (number, 0) <= end]
        first = min(left, default=None)
        after = max(took) + timedelta(microseconds=1) if took else None
        if (first and first <= requeued_at) or (after and after > requeued_at):
            yield {_OF: requeued_at, _BEFORE: first, _AFTER: after}


def _seen_by_batches(run: Run, inputs: SilverInputs, frames: CheckpointedFrames) -> DataFrame:
    """Return the watermark and the dimension versions that a stored record's batch used.

    Only for records whose result depends on them: most were on time, and most batches used the
    same dimension versions. A record wrongly stored as on time differs in its own columns.
    """
    columns = ("record_id", "event_time", *BATCH_COLUMNS)
    silver, _, late = inputs.decided.values()
    stored = silver.select(*columns).union(late.select(*columns))
    facts = F.broadcast(_batch_inputs(run.spark, inputs.closing))
    seen = stored.join(facts, on=list(BATCH_COLUMNS), how="left")
    has_several_pins = len(_pins_of(inputs.closing)) > 1
    if not has_several_pins:
        allowed = run.pipeline.watermark.allowed_lateness
        seen = seen.where(lateness(F.col(_MARK), allowed) != "on_time")
    first = F.min_by(F.struct(_MARK, _PINS), F.struct(*BATCH_COLUMNS))
    once = seen.groupBy("record_id").agg(first.alias("_seen")).select("record_id", "_seen.*")
    if has_several_pins:
        return once
    kept = frames.checkpoint(once)
    return F.broadcast(kept) if kept.count() <= BROADCAST else kept


def _batch_inputs(spark: SparkSession, closing: Sequence[Commit]) -> DataFrame:
    """Return the watermark and dimension versions of each batch of silver as a frame."""
    pins = {versions: number for number, versions in enumerate(_pins_of(closing))}
    rows = [
        {
            "_generation": commit.generation,
            "_batch": commit.batch,
            _MARK: note.watermark_in,
            _PINS: pins[_versions(note)],
        }
        for commit in closing
        if commit.batch > CREATION
        for note in [SilverNote.of(commit)]
    ]
    ddl = f"_generation string, _batch bigint, {_MARK} timestamp, {_PINS} int"
    return from_records(spark, rows, ddl)


def _versions(note: SilverNote) -> tuple[tuple[str, int], ...]:
    return tuple((use.table, use.version) for use in note.dimensions)


def _pins_of(closing: Sequence[Commit]) -> list[tuple[tuple[str, int], ...]]:
    """List the distinct sets of dimension versions that batches used, in a fixed order."""
    used = {_versions(SilverNote.of(commit)) for commit in closing if commit.batch > CREATION}
    return sorted(used) or [()]


def _looked_up(run: Run, rows: DataFrame, closing: Sequence[Commit]) -> DataFrame:
    """Look up each row in the dimension versions that its batch used."""
    pipeline = run.pipeline
    if not pipeline.enrich:
        return rows
    today = lookups(run.lake, pipeline)
    parts = []
    pins = _pins_of(closing)
    for number, versions in enumerate(pins):
        pinned_rows = rows.where(F.col(_PINS) == number) if len(pins) > 1 else rows
        pinned = today
        # If the definition has other dimensions now, read the current versions.
        if [lookup.table.name for lookup in today] == [table for table, _ in versions]:
            pinned = [one._replace(version=v) for one, (_, v) in zip(today, versions, strict=True)]
            _refuse_unreadable(run, pinned, today, closing)
        parts.append(enriched(pinned_rows, run.plan, pinned))
    if len(pins) > 1:
        parts.append(enriched(rows.where(F.col(_PINS).isNull()), run.plan, today))
    return reduce(DataFrame.unionByName, parts)


def _refuse_unreadable(
    run: Run, pinned: Sequence[Lookup], today: Sequence[Lookup], closing: Sequence[Commit]
) -> None:
    """Raise a UsageError if a version in which a batch looked rows up can no longer be read."""
    used = tuple((one.table.name, one.version) for one in pinned)
    of_them = [one for one in closing if _versions(SilverNote.of(one)) == used]
    made = [one for one in of_them if FOLLOWS not in one.note] or of_them
    name = run.pipeline.name
    for one, newest in zip(pinned, today, strict=True):
        if what := replaced(one.table, one.version, made[0]):
            raise UsageError(
                f"{name}: {what}. Restore its newest copy, or look all rows up again with: "
                f"{runnable('tidelake backfill run', name)}, and promote it"
            )
        if one.version not in (-1, newest.version) and (why := unreadable(run.spark, one)):
            start = f"--start {of_them[0].written_at:%Y-%m-%dT%H:%M:%SZ}"
            raise UsageError(
                f"{name} looked up {one.table.name} as of version {one.version}, which can no "
                "longer be read: it is older than what maintenance keeps. Verify only later "
                f"arrivals with: {runnable('tidelake verify', name, start)}"
            ) from why
