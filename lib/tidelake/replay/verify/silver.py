"""Decide every row of bronze anew, in one batch, and hold silver and its side tables against it.

What a batch knew when it decided is in its note: each row is judged by the watermark before the
batch that its table says, and looked up in the dimensions' versions of that batch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import reduce

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tidelake.errors import UsageError
from tidelake.ops.books import history
from tidelake.ops.side import Closed, still_there
from tidelake.replay.verify.contents import Comparison, Difference, Shape, compare
from tidelake.replay.views import query_over
from tidelake.runtime.decision import Decider
from tidelake.runtime.enrichment import Lookup, enriched, lookups
from tidelake.runtime.gold_inputs import up_to
from tidelake.runtime.held import Held
from tidelake.runtime.hop import Run
from tidelake.silver.fields import extra_columns
from tidelake.silver.route import FATE, to_late, to_quarantine, to_silver, with_lateness
from tidelake.sinks.commits import Commit, newest_version
from tidelake.sinks.erased import deductions_in, erased_rows
from tidelake.sinks.evolution import types_of
from tidelake.sinks.notes import SilverNote, add_up, positions
from tidelake.tables import Table

SILVER = Shape(key=("record_id",), moment="event_time")
QUARANTINE = Shape(key=("record_id",), moment="ingested_at")

_MARK, _PINS = "_mark", "_pins"
ORIGIN = ("_generation", "_batch")


@dataclass(frozen=True)
class SilverInputs:
    """What silver has taken, and what it made of it.

    Attributes:
        version: Silver's.
        closing: Its commits, newest first.
        bronze: Bronze as far as it was taken.
        requeued: The requeue likewise.
        silver: Silver as of its newest commit.
        quarantine: The rows that are still there, of closed batches.
        late: Likewise.
    """

    version: int
    closing: Sequence[Commit]
    bronze: DataFrame
    requeued: DataFrame
    silver: DataFrame
    quarantine: DataFrame
    late: DataFrame

    def since(self, instant: datetime | None) -> SilverInputs:
        """Cut to what arrived from an instant on."""
        if instant is None:
            return self
        arrived = F.col("ingested_at") >= F.lit(instant)
        # What arrived since was decided since.
        later = [commit for commit in self.closing if commit.written_at >= instant]
        return SilverInputs(
            self.version,
            later or self.closing[:1],
            self.bronze.where(arrived),
            self.requeued.where(arrived),
            self.silver.where(arrived),
            self.quarantine.where(arrived),
            self.late.where(arrived),
        )


def read_inputs(run: Run) -> SilverInputs:
    """Read the tables as silver's last closed batch left them, also while a run is writing."""
    spark, lake, name = run.spark, run.lake, run.pipeline.name
    silver, requeue = lake.silver(name), lake.requeue(name)
    # The version before the notes: batches that close meanwhile are not looked at.
    version = newest_version(silver)
    closing = [commit for commit in history(lake, silver) if commit.version <= version]
    last = closing[0]
    inputs = {"bronze": lake.bronze(name), "requeue": requeue}
    until = {key: positions(last).get(key, (0, -1)) for key in inputs}
    read = up_to(spark, inputs, until)
    requeued = read("requeue")
    closed = Closed(last.generation, last.batch)

    def side(table: Table) -> DataFrame:
        stored = spark.read.format("delta").load(str(table.path))
        query = still_there(table, requeue, closed)
        return query_over(spark, query, {table: stored, requeue: requeued})

    stored = spark.read.format("delta").option("versionAsOf", version)
    return SilverInputs(
        version,
        closing,
        read("bronze"),
        requeued,
        stored.load(str(silver.path)),
        side(lake.quarantine(name)),
        side(lake.late(name)),
    )


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
    lake, pipeline = run.lake, run.pipeline
    known = F.lit(False) if since is None else F.col("ingested_at") < F.lit(since)
    batch = inputs.closing[0].batch + 1
    decider = Decider(run.spark, pipeline, lake, batch, known=known)
    decision = decider.decide(_arrived(inputs), watermark=None, hold=hold)
    marked = decision.rows.join(_batches_of(run, inputs), on="record_id", how="left")
    allowed = pipeline.watermark.allowed_lateness
    judged = with_lateness(marked, F.col(_MARK), allowed)
    decided = hold(_looked_up(run, judged, inputs.closing))
    stored_types = types_of(inputs.silver.schema)
    extra = extra_columns(stored_types, pipeline.defined_columns)
    name = pipeline.name
    expected = {
        lake.silver(name): to_silver(decided, pipeline, extra=extra, generation="", batch=0),
        lake.quarantine(name): to_quarantine(decided, generation="", batch=0),
        lake.late(name): to_late(
            decided, pipeline, watermark=F.col(_MARK), extra=extra, generation="", batch=0
        ),
    }
    stored = {
        lake.silver(name): (inputs.silver, SILVER),
        lake.quarantine(name): (inputs.quarantine, QUARANTINE),
        lake.late(name): (inputs.late, SILVER),
    }
    found = {
        table.name: compare(rows.drop(*ORIGIN), *stored[table]) for table, rows in expected.items()
    }
    if since is None:
        silver, off = lake.silver(name).name, list(_fates_that_differ(decided, inputs.closing))
        found[silver] = found[silver].with_more(off)
    return found


def _fates_that_differ(decided: DataFrame, closing: Sequence[Commit]) -> Iterator[Difference]:
    """Hold the fates that leave no row in a table against the notes."""
    computed = {row[FATE]: int(row["count"]) for row in decided.groupBy(FATE).count().collect()}
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


def _batches_of(run: Run, inputs: SilverInputs) -> DataFrame:
    """Tell of each stored record which watermark and which versions its batch saw."""
    tables = (inputs.silver, inputs.quarantine, inputs.late)
    stored = reduce(DataFrame.unionByName, [one.select("record_id", *ORIGIN) for one in tables])
    once = stored.groupBy("record_id").agg(F.min(F.struct(*ORIGIN)).alias("_of"))
    named = once.select("record_id", *[F.col(f"_of.{name}").alias(name) for name in ORIGIN])
    facts = _facts(run.spark, inputs.closing)
    return named.join(F.broadcast(facts), on=list(ORIGIN), how="left").drop(*ORIGIN)


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
    return sorted({_versions(SilverNote.of(commit)) for commit in closing})


def _looked_up(run: Run, rows: DataFrame, closing: Sequence[Commit]) -> DataFrame:
    """Look each row up in the versions that its batch saw."""
    pipeline = run.pipeline
    if not pipeline.enrich:
        return rows
    today = lookups(run.lake, pipeline)
    parts = []
    for number, versions in enumerate(_pins_of(closing)):
        mine = F.col(_PINS) == number
        try:
            parts.append(enriched(rows.where(mine), pipeline, _pinned(today, versions)))
        except PySparkException as error:
            last = max(c.written_at for c in closing if _versions(SilverNote.of(c)) == versions)
            told = ", ".join(f"{table} as of version {version}" for table, version in versions)
            raise UsageError(
                f"{pipeline.name} looked up {told}, which cannot be read any more: it is older "
                "than what maintenance keeps. Judge what arrived after that with: "
                f"tidelake verify {pipeline.name} --since {last:%Y-%m-%dT%H:%M:%SZ}"
            ) from error
    parts.append(enriched(rows.where(F.col(_PINS).isNull()), pipeline, today))
    return reduce(DataFrame.unionByName, parts)


def _pinned(today: Sequence[Lookup], versions: Sequence[tuple[str, int]]) -> list[Lookup]:
    """Give the lookups of a batch; today's where the definition was another one then."""
    if [lookup.table.name for lookup in today] != [table for table, _ in versions]:
        return list(today)
    return [
        Lookup(lookup.enrich, lookup.table, version)
        for lookup, (_, version) in zip(today, versions, strict=True)
    ]
