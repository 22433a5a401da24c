"""Decide each row's one fate, and route it to silver, quarantine or late, or only count it.

The first fate that applies is the row's: the stage from :mod:`tidelake.silver.stages`, duplicate
or conflict from :mod:`tidelake.silver.dedup`, too late, else silver.

Spark's own late filter drops rows silently; here a row that is too late goes to the late table.
The watermark is the one committed before the batch: a batch never makes its own rows late.

Payload fields that are not in the schema become columns by ``event.evolution``: ``strict``
quarantines their rows, ``additive`` adds a string column for each field, ``rescue`` stores them as
JSON in one column. Bronze keeps them verbatim in any case.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import reduce
from operator import and_

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from tidelake.config import Pipeline
from tidelake.instants import to_micros
from tidelake.names import ID_HASH, LATE_COLUMNS, SILVER_RESERVED, is_column_name
from tidelake.silver.dedup import IDENTITY, TWIN, VERDICT, Repeats
from tidelake.silver.driver_dedup import CONFLICT, DUPLICATE, NUMBER, has_number
from tidelake.silver.enrich import enriched_columns
from tidelake.silver.payloads import UNKNOWN
from tidelake.silver.stages import (
    CONFLICTING,
    FILTERED,
    ORIGIN,
    PAYLOAD_HASH,
    REQUEUED_AT,
    ROW,
    SELECTED,
    STAGE,
    reasons_by_stage,
)

TOO_LATE = "too_late"
FATE, LATENESS = "_fate", "_lateness"
SILVER, LATE, QUARANTINED = "silver", "late", "quarantined"
# Fate and stage of repeats, by verdict.
OF_REPEATS = {DUPLICATE: (DUPLICATE, None), CONFLICT: (QUARANTINED, CONFLICTING)}
# The identity columns, as named in the verdicts.
_VERDICT_NAMES = {name: f"_judged_{name}" for name in IDENTITY}

QUARANTINE_DDL = (
    "record_id string, payload binary, event_id string, reasons array<string>, stage string, "
    "ingested_at timestamp, _requeued_at timestamp, _payload_hash bigint, _generation string, "
    "_batch bigint"
)


def decide(
    classified: DataFrame,
    repeats: Repeats,
    fates: Fates,
    *,
    watermark: datetime | None,
    allowed: timedelta,
) -> DataFrame:
    """Add the fate of each row, the first that applies.

    Args:
        classified: Rows with the stage at which they failed, if any.
        repeats: Those whose id was accepted before, and whether with the same payload.
        fates: The columns that decide, built once for all batches.
        watermark: The one committed before the batch (UTC); None if there is none.
        allowed: The allowed lateness.

    Returns:
        ``classified`` plus ``_verdict`` (duplicate or conflict, null for others), ``_lateness`` and
        ``_fate`` (silver, duplicate, quarantined, late or filtered); ``_stage`` is set for
        conflicting duplicates too.
    """
    judged = with_verdicts(classified, repeats, fates).withColumn(STAGE, fates.stage)
    return with_lateness(judged, fates, marked(watermark), allowed)


def with_verdicts(rows: DataFrame, repeats: Repeats, fates: Fates) -> DataFrame:
    """Add ``_verdict``, null for rows that are not repeats."""
    if repeats.rows is None:
        spark, verdict = rows.sparkSession, F.lit(None).cast("string")
        for name, numbers in repeats.numbers.items():
            verdict = F.when(has_number(spark, NUMBER, numbers), name).otherwise(verdict)
        return rows.withColumn(VERDICT, verdict)
    verdicts = repeats.rows.select(*fates.verdicts)
    joined = rows.join(verdicts, on=fates.same_row, how="left").drop(*_VERDICT_NAMES.values())
    return joined.withColumn(VERDICT, fates.first_of_twins) if repeats.twins else joined


class Fates:
    """The columns of verdicts and fates, which are the same for all pipelines, built once.

    ``verdicts`` are joined with the rows by ``same_row``; ``first_of_twins`` is the verdict if one
    of several copies is accepted.
    """

    def __init__(self) -> None:
        """Build the columns."""
        verdict, names = F.col(VERDICT), _VERDICT_NAMES.items()
        self.verdicts = [*[F.col(name).alias(other) for name, other in names], verdict]
        # Join on a hash: looking up a number is faster than a long text. BETWEEN instead of
        # equality keeps the texts out of the join keys.
        same = [F.col(name).between(F.col(other), F.col(other)) for name, other in names]
        hashes = F.xxhash64(*_VERDICT_NAMES.keys()) == F.xxhash64(*_VERDICT_NAMES.values())
        self.same_row = reduce(and_, same, hashes)
        number = F.row_number().over(Window.partitionBy(*IDENTITY).orderBy(ROW))
        copies = F.when(number > 1, F.lit(DUPLICATE))
        self.first_of_twins = F.when(verdict == TWIN, copies).otherwise(verdict)
        is_conflict = verdict == CONFLICT
        self.stage = F.when(is_conflict, F.lit(CONFLICTING)).otherwise(F.col(STAGE))
        self.fate = _fate(F.col(LATENESS), verdict == DUPLICATE)


def with_lateness(
    judged: DataFrame, fates: Fates, watermark: Column, allowed: timedelta
) -> DataFrame:
    """Add or recompute ``_lateness`` and the fate."""
    late = judged.withColumn(LATENESS, lateness(watermark, allowed))
    return late.withColumn(FATE, fates.fate)


def _fate(lateness: Column, is_duplicate: Column) -> Column:
    # Rows requeued by `late apply` are accepted however late they are.
    too_late = (lateness == TOO_LATE) & (F.col(ORIGIN) != LATE)
    return (
        F.when(F.col(STAGE) == FILTERED, FILTERED)
        .when(F.col(STAGE).isNotNull(), QUARANTINED)
        .when(is_duplicate, DUPLICATE)
        .when(too_late, LATE)
        .otherwise(SILVER)
    )


def fate_unless_repeat(watermark: datetime | None, allowed: timedelta) -> Column:
    """Return the fate of a row that is not a repeat; arguments as in :func:`decide`."""
    return _fate(lateness(marked(watermark), allowed), F.lit(False)).alias(FATE)


def marked(watermark: datetime | None) -> Column:
    """Return a batch's watermark as a column; the rows must have ``_payload_hash``."""
    if watermark is None:
        return F.lit(None).cast("timestamp")
    return F.timestamp_micros(_of_batch(to_micros(watermark)))


def _of_batch(number: int) -> Column:
    """Return a per-batch number as a column, without changing Spark's generated code.

    A literal is part of the generated code, so Spark and the JVM would compile it again for each
    batch. An array is passed to that code as an object instead. Its index is always zero, computed
    from the never-null ``_payload_hash`` so that Spark cannot fold it.
    """
    zero = F.col(PAYLOAD_HASH).bitwiseAND(F.lit(0)).cast("int")
    return F.get(F.array(F.lit(number).cast("bigint")), zero)


def lateness(watermark: Column, allowed: timedelta) -> Column:
    """Return ``on_time``, ``late`` or ``too_late``; ``watermark`` is null before the first."""
    event_time = F.col("event_time")
    return (
        F.when(watermark.isNull() | (event_time >= watermark), "on_time")
        .when(event_time >= watermark - F.lit(allowed), "late")
        .otherwise(TOO_LATE)
    )


class Routing:
    """The columns of a pipeline's accepted events, built once."""

    def __init__(self, pipeline: Pipeline) -> None:
        """Build the columns."""
        self.pipeline = pipeline
        self.events = [
            *[F.col(name) for name in ("event_id", "event_time")],
            *[F.col(SELECTED).getField(name).alias(name) for name in pipeline.silver_columns],
            *enriched_columns(pipeline.enrich),
            (F.col(LATENESS) != "on_time").alias("is_late"),
            *[F.col(name) for name in ("record_id", "ingested_at", "event_date")],
        ]


def to_silver(
    decided: DataFrame, routing: Routing, *, extra: Sequence[str] = (), generation: str, batch: int
) -> DataFrame:
    """Select the accepted events in silver's columns; ``extra`` names unknown-field columns."""
    return decided.where(F.col(FATE) == SILVER).select(
        *silver_columns(routing, extra), *_origin(generation, batch)
    )


def silver_columns(routing: Routing, extra: Sequence[str]) -> list[Column]:
    """Return silver's columns without generation and batch."""
    unknown = _unknown_columns(routing.pipeline, extra)
    return [*routing.events, *unknown, F.col(PAYLOAD_HASH), F.col(ID_HASH)]


def to_late(
    decided: DataFrame,
    routing: Routing,
    watermark: datetime | None,
    *,
    extra: Sequence[str] = (),
    generation: str,
    batch: int,
) -> DataFrame:
    """Select the events beyond the allowed lateness, with the watermark that was applied."""
    # Filter first: few rows are too late, and only these need the join with the verdicts.
    too_late = decided.where(F.col(LATENESS) == TOO_LATE)
    return too_late.where(F.col(FATE) == LATE).select(
        *late_columns(routing, extra, marked(watermark)), *_origin(generation, batch)
    )


def late_columns(routing: Routing, extra: Sequence[str], watermark: Column) -> list[Column]:
    """Return the columns of late rows without generation and batch."""
    behind = F.unix_micros(watermark) - F.unix_micros("event_time")
    return [
        *routing.events,
        F.col("payload"),
        watermark.alias("watermark"),
        (behind / 1_000_000).cast("double").alias("lateness_seconds"),
        *_unknown_columns(routing.pipeline, extra),
        *[F.col(name) for name in (REQUEUED_AT, PAYLOAD_HASH, ID_HASH)],
    ]


def refused_again(judged: DataFrame) -> DataFrame:
    """Select the requeued rows that are not accepted, whatever silver holds."""
    is_requeued = F.col(REQUEUED_AT).isNotNull()
    refused = judged.where(is_requeued & F.col(STAGE).isNotNull())
    return refused.select("record_id", F.col(REQUEUED_AT).alias("requeued_at"))


def to_quarantine(decided: DataFrame, *, generation: str, batch: int) -> DataFrame:
    """Select quarantined rows, with the original payload and all reasons."""
    return decided.where(F.col(FATE) == QUARANTINED).select(
        *quarantine_columns(), *_origin(generation, batch)
    )


def quarantine_columns() -> list[Column]:
    """Return the columns of quarantined rows without generation and batch."""
    return [
        *[F.col(name) for name in ("record_id", "payload", "event_id")],
        reasons_by_stage().alias("reasons"),
        F.col(STAGE).alias("stage"),
        *[F.col(name) for name in ("ingested_at", REQUEUED_AT, PAYLOAD_HASH)],
    ]


def _unknown_columns(pipeline: Pipeline, extra: Sequence[str]) -> list[Column]:
    """Return the columns for unknown payload fields, as ``event.evolution`` defines."""
    if pipeline.event.evolution == "rescue":
        return [F.col(UNKNOWN).alias(RESCUED)]
    return [F.col(UNKNOWN).getItem(name).alias(name) for name in extra]


def _origin(generation: str, batch: int) -> list[Column]:
    return [F.lit(generation).alias("_generation"), _of_batch(batch).alias("_batch")]


RESCUED = "_rescued_data"
# Limits the columns that a stream of hostile field names can create.
MOST_COLUMNS = 100


def extra_columns(stored: Mapping[str, str], defined: Collection[str]) -> tuple[str, ...]:
    """Return the stored columns for unknown fields: strings that are not in the definition."""
    taken = {name.lower() for name in (*SILVER_RESERVED, *defined)}
    return tuple(
        name
        for name, kind in stored.items()
        if kind == "string" and name.lower() not in taken and not name.startswith("_")
    )


def new_columns(
    names: Iterable[str], *, defined: Collection[str], stored: Mapping[str, str]
) -> tuple[str, ...]:
    """Return the unknown fields that become new columns of silver.

    Omits names that are not valid column names, names that match an existing column ignoring case,
    and those beyond :data:`MOST_COLUMNS`; bronze still has the values.
    """
    taken = {name.lower() for name in (*SILVER_RESERVED, *LATE_COLUMNS, *defined, *stored)}
    room = MOST_COLUMNS - len(extra_columns(stored, defined))
    chosen: list[str] = []
    for name in sorted(names):
        if len(chosen) < room and is_column_name(name) and name.lower() not in taken:
            taken.add(name.lower())
            chosen.append(name)
    return tuple(chosen)
