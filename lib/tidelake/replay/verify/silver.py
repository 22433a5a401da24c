"""Decide every row of bronze anew, in one batch, and hold silver and its side tables against it.

What a batch knew when it decided is in its note: each row is judged by the watermark before the
batch that its table says, and looked up in the dimensions' versions of that batch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import reduce

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tidelake.delta.append import types_of
from tidelake.delta.log import CREATION, Commit
from tidelake.delta.notes import SilverNote, add_up, deductions_in, erased_rows
from tidelake.errors import UsageError
from tidelake.replay.verify.contents import Comparison, Difference
from tidelake.replay.verify.inputs import ORIGIN, SilverInputs
from tidelake.replay.verify.routes import Route, compare_routes
from tidelake.replay.verify.sums import Shape
from tidelake.runtime.accepted_rows import AcceptedRows
from tidelake.runtime.held import Held
from tidelake.runtime.hop import Run
from tidelake.runtime.schemas import Lookup, enriched, lookups, remembered
from tidelake.runtime.silver import decide_fates
from tidelake.silver.fields import extra_columns
from tidelake.silver.payloads import WriterSchemas
from tidelake.silver.route import (
    LATE,
    QUARANTINED,
    SILVER,
    late_columns,
    lateness,
    quarantine_columns,
    silver_columns,
    with_lateness,
)
from tidelake.spark.tuning import BROADCAST

EVENTS = Shape(key=("record_id",), moment="event_time")
_FAILED = Shape(key=("record_id",), moment="ingested_at")

_MARK, _PINS = "_mark", "_pins"
_UNREAD = "_quarantined_unread"


def judge_silver(
    run: Run, inputs: SilverInputs, since: datetime | None, hold: Held
) -> dict[str, Comparison]:
    """Compare silver, quarantine and late with what follows from bronze.

    Args:
        run: What the command works with.
        inputs: From :func:`read_inputs`, cut to ``since``.
        since: The instant from which on arrivals are judged; None: all of them.
        hold: Keeps what is read more than once.
    """
    lake, pipeline, plan = run.lake, run.pipeline, run.plan
    known = None if since is None else F.col("ingested_at") < F.lit(since)
    batch = inputs.closing[0].batch + 1
    accepted = AcceptedRows(run.spark, pipeline, lake, batch, known=known, afresh=since is None)
    schemas = remembered(run, stands=F.col(_UNREAD))
    arrived = _with_unread(_arrived(inputs), inputs, schemas)
    judged = plan.judge(arrived, schemas)
    decision = decide_fates(judged, plan, accepted, None, hold)
    marked = decision.rows.join(_seen_by_batches(run, inputs, hold), on="record_id", how="left")
    judged = with_lateness(marked, plan.fates, F.col(_MARK), pipeline.watermark.allowed_lateness)
    decided = _looked_up(run, judged, inputs.closing)
    extra = extra_columns(types_of(inputs.silver.schema), pipeline.defined_columns)
    # The table of late rows has a new column from the first late row on that came after it.
    of_late = [column for column in extra if column in inputs.late.columns]
    name = pipeline.name
    routes = [
        Route(
            SILVER, lake.silver(name), silver_columns(plan.routing, extra), inputs.silver, EVENTS
        ),
        Route(QUARANTINED, lake.quarantine(name), quarantine_columns(), inputs.quarantine, _FAILED),
        Route(
            LATE,
            lake.late(name),
            late_columns(plan.routing, of_late, F.col(_MARK)),
            inputs.late,
            EVENTS,
        ),
    ]
    found, computed = compare_routes(decided, routes)
    if since is None:
        silver, off = lake.silver(name).name, list(_fates_that_differ(computed, inputs.closing))
        found[silver] = found[silver].with_more(off)
    return found


def _fates_that_differ(
    computed: Mapping[str, int], closing: Sequence[Commit]
) -> Iterator[Difference]:
    """Hold the fates that leave no row in a table against the notes."""
    noted = add_up(count for commit in closing for count in SilverNote.of(commit).counts)
    erased = deductions_in(closing)
    for fate in ("duplicate", "filtered"):
        rows = computed.get(fate, 0), noted[fate] - erased_rows(erased, fate)
        if rows[0] != rows[1]:
            yield Difference("altered", {"fate": fate}, {"rows": rows})


def _arrived(inputs: SilverInputs) -> DataFrame:
    """Give each record of bronze once, with what it was last sent again for."""
    again = inputs.requeued.groupBy("record_id").agg(
        F.max_by("reason", "requeued_at").alias("reason"),
        F.max("requeued_at").alias("requeued_at"),
    )
    return inputs.bronze.join(again, on="record_id", how="left").select(
        *inputs.bronze.columns, "reason", "requeued_at"
    )


def _with_unread(
    arrived: DataFrame, inputs: SilverInputs, schemas: WriterSchemas | None
) -> DataFrame:
    """Tell which rows are in quarantine because their schema was refused, and accepted later.

    Others of such a schema were sent again, or decided anew, since. The refusal itself must be
    one that the table of schemas holds, for rows that had arrived.
    """
    texts = schemas.texts_overruled() if schemas else []
    if not texts:
        return arrived.withColumn(_UNREAD, F.lit(False))
    refused = (F.col("stage") == "parse") & F.get("reasons", F.lit(0)).isin(texts)
    unread = inputs.quarantine.where(refused).select("record_id").distinct()
    return arrived.join(unread.withColumn(_UNREAD, F.lit(True)), on="record_id", how="left")


def _seen_by_batches(run: Run, inputs: SilverInputs, hold: Held) -> DataFrame:
    """Tell of stored records which watermark and which versions their batch saw.

    Of all those, that is, of which it decides anything: most were on time, and dimensions mostly
    the same for all. A record that says of itself that it was on time and was not differs by its
    own columns.
    """
    stored = inputs.silver.select("record_id", "event_time", *ORIGIN).union(
        inputs.late.select("record_id", "event_time", *ORIGIN)
    )
    facts = F.broadcast(_facts(run.spark, inputs.closing))
    seen = stored.join(facts, on=list(ORIGIN), how="left")
    is_one_of_all = len(_pins_of(inputs.closing)) > 1
    if not is_one_of_all:
        allowed = run.pipeline.watermark.allowed_lateness
        seen = seen.where(lateness(F.col(_MARK), allowed) != "on_time")
    first = F.min_by(F.struct(_MARK, _PINS), F.struct(*ORIGIN))
    once = seen.groupBy("record_id").agg(first.alias("_seen")).select("record_id", "_seen.*")
    if is_one_of_all:
        return once
    kept = hold(once)
    return F.broadcast(kept) if kept.count() <= BROADCAST else kept


def _facts(spark: SparkSession, closing: Sequence[Commit]) -> DataFrame:
    """Give what each batch of silver knew, by its generation and number."""
    pins = {versions: number for number, versions in enumerate(_pins_of(closing))}
    rows = [
        {
            "_generation": commit.generation,
            "_batch": commit.batch,
            _MARK: mark.isoformat() if mark else None,
            _PINS: pins[_versions(note)],
        }
        for commit in closing
        if commit.batch > CREATION
        for note in [SilverNote.of(commit)]
        for mark in [note.watermark_in]
    ]
    # As text, which Spark parses: a list of Python rows would go through a Python worker.
    kind = f"array<struct<_generation string, _batch bigint, {_MARK} timestamp, {_PINS} int>>"
    return spark.range(1).select(F.inline(F.from_json(F.lit(json.dumps(rows)), kind)))


def _versions(note: SilverNote) -> tuple[tuple[str, int], ...]:
    return tuple((use.table, use.version) for use in note.dimensions)


def _pins_of(closing: Sequence[Commit]) -> list[tuple[tuple[str, int], ...]]:
    """List the sets of versions that batches saw, each once, in a certain order."""
    closed = [commit for commit in closing if commit.batch > CREATION]
    return sorted({_versions(SilverNote.of(commit)) for commit in closed}) or [()]


def _looked_up(run: Run, rows: DataFrame, closing: Sequence[Commit]) -> DataFrame:
    """Look each row up in the versions that its batch saw."""
    pipeline = run.pipeline
    if not pipeline.enrich:
        return rows
    today = lookups(run.lake, pipeline)
    parts = []
    pins = _pins_of(closing)
    for number, versions in enumerate(pins):
        mine = rows.where(F.col(_PINS) == number) if len(pins) > 1 else rows
        try:
            parts.append(enriched(mine, run.plan, _pinned(today, versions)))
        except PySparkException as error:
            last = max(c.written_at for c in closing if _versions(SilverNote.of(c)) == versions)
            told = ", ".join(f"{table} as of version {version}" for table, version in versions)
            raise UsageError(
                f"{pipeline.name} looked up {told}, which cannot be read any more: it is older "
                "than what maintenance keeps. Judge what arrived after that with: "
                f"tidelake verify {pipeline.name} --since {last:%Y-%m-%dT%H:%M:%SZ}"
            ) from error
    if len(pins) > 1:
        parts.append(enriched(rows.where(F.col(_PINS).isNull()), run.plan, today))
    return reduce(DataFrame.unionByName, parts)


def _pinned(today: Sequence[Lookup], versions: Sequence[tuple[str, int]]) -> list[Lookup]:
    """Give the lookups of a batch; today's where the definition was another one then."""
    if [lookup.table.name for lookup in today] != [table for table, _ in versions]:
        return list(today)
    return [
        Lookup(lookup.enrich, lookup.table, version)
        for lookup, (_, version) in zip(today, versions, strict=True)
    ]
