"""Test each row on its own: parse errors, filter, contract, rules, future event times.

The tests run in this order, and the first that applies sets the row's stage. The row's fate, which
also depends on other rows, is decided in :mod:`tidelake.silver.fates`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from operator import or_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidelake.columns import VALUE, in_pairs, try_eval
from tidelake.config import Pipeline
from tidelake.config.pipeline import payload_types
from tidelake.instants import EARLIEST_SECOND, LATEST_SECOND
from tidelake.names import BRONZE_COLUMNS, ID_HASH, IS_DELETE, SEQUENCE
from tidelake.silver.payloads import (
    BROKEN,
    PARSED,
    REFUSAL,
    SKIPPED,
    UNKNOWN,
    VALUES,
    WriterSchemas,
    decoding,
    read_payloads,
)
from tidelake.silver.quality import compile_rules
from tidelake.silver.transform import UserFunction

STAGE, REASONS, FAILED_RULES, WARNINGS = "_stage", "_reasons", "_failed_rules", "_warnings"
ORIGIN, REQUEUED_AT, SELECTED = "_origin", "_requeued_at", "_selected"
ROW, PAYLOAD_HASH = "_row", "_payload_hash"
FILTERED, CONFLICTING = "filtered", "conflicting_duplicate"
_SECONDS_A_DAY = 86_400
# Bronze columns of the output, and the results of decoding beside the values.
_OWN = ("record_id", "payload", "source", "ingested_at")
_DECODED = (PARSED, REFUSAL, BROKEN, UNKNOWN)


def classify(rows: DataFrame, judging: Judging, schemas: WriterSchemas | None = None) -> DataFrame:
    """Decode each row's event and set the stage of rows that are not candidates for silver.

    ``rows`` have bronze's columns plus ``reason`` and ``requeued_at``, null unless requeued;
    ``schemas`` is needed for rows of a pipeline with a registry.

    Returns:
        ``record_id``, ``payload``, ``source``, ``ingested_at``, ``event_id``, ``event_time``,
        ``event_date``, ``_selected`` (struct), ``_unknown`` (payload fields that are not
        in the schema), ``_payload_hash``, ``_id_hash``, ``_row`` (unique), ``_origin``
        (``bronze``, or the reason for the requeue), ``_requeued_at``, ``_stage`` (null if
        none of the tests applies), ``_reasons``, ``_refusal`` (why it was not decoded) and
        ``_warnings`` (texts of the warning rules that fail).
    """
    read = read_payloads(rows, judging.pipeline, schemas, decode=judging.decode)
    attempted = payload_scope(read, judging.pipeline).select(*judging.attempted)
    judged = attempted.select(*judging.judged).withColumn(REASONS, judging.reasons)
    return _with_rules(judging.transformed(judged), judging).select(*judging.output)


class Judging:
    """The columns that classify rows of a pipeline, built once.

    ``decode`` is the Arrow UDF that decodes payloads; ``attempted`` (the definition's expressions,
    guarded), ``judged`` and ``output`` are three selects, ``reasons`` the contract violations.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        """Compile everything except the rules, which need the types of silver's columns."""
        self.pipeline = pipeline
        self.decode = decoding(pipeline)
        self.attempted, self.judged = _evaluated(pipeline)
        self.reasons = _reasons(pipeline)
        self.output = _output(pipeline.watermark.max_future_skew)
        self._rules: list[Column] | None = None
        self._transform: UserFunction | None = None

    def transformed(self, judged: DataFrame) -> DataFrame:
        """Call the user's function, if there is one; loaded and tried with the first frame."""
        if self.pipeline.transform is None:
            return judged
        if self._transform is None:
            self._transform = UserFunction.of(self.pipeline)
        return self._transform.on_selected(judged, self.pipeline, SELECTED)

    def rules(self, plain: DataFrame) -> list[Column]:
        """Return the rules, compiled once for the column types of the first frame."""
        if self._rules is None:
            compiled = compile_rules(self.pipeline.rules, dict(plain.dtypes))
            self._rules = [F.col("_kept.*")]
            applies = F.lit(True)
            if IS_DELETE in self.pipeline.selected:
                # A deletion may have no other values than those of the key.
                applies = ~F.col(f"_kept.{SELECTED}.{IS_DELETE}")
            for name, severity in ((FAILED_RULES, "critical"), (WARNINGS, "warning")):
                own = (rule for rule in compiled if rule.severity == severity)
                tests = [(rule.fails & applies, rule.text) for rule in own]
                self._rules.append(texts_where(tests).alias(name))
        return self._rules


def _evaluated(pipeline: Pipeline) -> tuple[list[Column], list[Column]]:
    """Return the columns that evaluate the definition's expressions, and those of the results."""
    event = pipeline.event
    types = payload_types(event, pipeline.envelope)
    tried = {"event.id": event.id, "event.time": event.time}
    tried |= {"event.where": event.where} if event.where else {}
    tried |= {f"select.{name}": sql for name, sql in pipeline.selected.items()}
    # Spark's implicit cast of a text to a condition would fail outside of the guard.
    casts = {"event.id": "string", "event.time": "timestamp", "event.where": "boolean"}
    decoded = _decoded(pipeline)
    attempted = [
        *[F.col(f"_in_{name}").alias(name) for name in _OWN],
        F.col("_in_requeued_at").alias(REQUEUED_AT),
        F.coalesce("_in_reason", F.lit("bronze")).alias(ORIGIN),
        *[F.col(name) for name in decoded],
        *[
            try_eval(sql, casts.get(name), types=types).alias(_tried(name))
            for name, sql in tried.items()
        ],
    ]

    def value(name: str) -> Column:
        return F.col(_tried(name)).getField(VALUE)

    wanted = F.lit(True)
    if event.where:
        # A row on which `where` fails is not filtered: it breaks the contract.
        is_filter = F.coalesce(value("event.where"), F.lit(False))
        wanted = is_filter | F.col(_tried("event.where")).isNull()
    if pipeline.envelope:
        wanted = wanted & ~F.col(SKIPPED)
    failed = [(F.col(_tried(name)).isNull(), f"{name}: cannot be computed") for name in tried]
    selected = [value(f"select.{name}").alias(name) for name in pipeline.selected]
    return attempted, [
        *[F.col(name) for name in (*_OWN, REQUEUED_AT, ORIGIN, *_DECODED)],
        wanted.alias("_wanted"),
        texts_where(failed).alias("_failed"),
        value("event.id").alias("event_id"),
        value("event.time").alias("event_time"),
        F.struct(*selected).alias(SELECTED),
    ]


def _output(max_future_skew: timedelta) -> list[Column]:
    ahead = F.col("event_time") > F.col("ingested_at") + F.lit(max_future_skew)
    is_broken = F.size(REASONS) > 0
    stage = (
        F.when(~F.col(PARSED), "parse")
        .when(~F.col("_wanted"), FILTERED)
        .when(is_broken, "contract")
        .when(F.size(FAILED_RULES) > 0, "expectation")
        .when(ahead, "future_event_time")
    )
    return [
        *[F.col(name) for name in (*_OWN, "event_id", "event_time")],
        utc_date("event_time").alias("event_date"),
        *[F.col(name) for name in (SELECTED, UNKNOWN)],
        F.xxhash64("payload").alias(PAYLOAD_HASH),
        hash_of_id().alias(ID_HASH),
        row_id(REQUEUED_AT).alias(ROW),
        *[F.col(name) for name in (ORIGIN, REQUEUED_AT)],
        stage.alias(STAGE),
        F.when(is_broken, F.col(REASONS)).otherwise(F.col(FAILED_RULES)).alias(REASONS),
        *[F.col(name) for name in (REFUSAL, WARNINGS)],
    ]


def row_id(requeued_at: str) -> Column:
    """Return a row's id, which differs between a record and its requeued copy."""
    requeued = F.concat_ws("#", "record_id", F.col(requeued_at).cast("string"))
    return F.when(F.col(requeued_at).isNotNull(), requeued).otherwise(F.col("record_id"))


def hash_of_id() -> Column:
    """Return the 64-bit hash of the event id, used to find candidates for deduplication."""
    return F.xxhash64("event_id")


def texts_where(tests: Sequence[tuple[Column, str]]) -> Column:
    """Return the texts whose condition is true; build no array if none is."""
    nothing = F.array().cast("array<string>")
    if not tests:
        return nothing
    found = F.array_compact(F.array(*[F.when(test, F.lit(text)) for test, text in tests]))
    return F.when(in_pairs(or_, [test for test, _ in tests]), found).otherwise(nothing)


def rule_texts(pipeline: Pipeline) -> list[str]:
    """Return the texts of the ``warning`` rules, in suite order."""
    return [rule.text for rule in pipeline.rules if rule.severity == "warning"]


def _with_rules(judged: DataFrame, judging: Judging) -> DataFrame:
    """Evaluate the suite's rules over silver's columns by their plain names.

    The row is kept in a struct meanwhile, as a selected column may have an internal column's name.
    """
    if not judging.pipeline.rules:
        nothing = texts_where([])
        return judged.withColumn(FAILED_RULES, nothing).withColumn(WARNINGS, nothing)
    plain = judged.select(
        F.struct("*").alias("_kept"),
        "event_id",
        "event_time",
        *[F.col(SELECTED).getField(name).alias(name) for name in judging.pipeline.silver_columns],
    )
    return plain.select(*judging.rules(plain))


def _tried(name: str) -> str:
    return "_try_" + name.replace(".", "_")


def reasons_by_stage() -> Column:
    """Return the reasons of a quarantined row: those collected, or the text for its stage."""
    ahead, conflict = "event_time: in the future", "event_id: seen before with another payload"
    return (
        F.when(F.col(STAGE) == "parse", F.array(REFUSAL))
        .when(F.col(STAGE) == "future_event_time", F.array(F.lit(ahead)))
        .when(F.col(STAGE) == CONFLICTING, F.array(F.lit(conflict)))
        .otherwise(F.col(REASONS))
    )


def payload_scope(parsed: DataFrame, pipeline: Pipeline) -> DataFrame:
    """Select the expressions' scope: payload fields, and bronze columns that none of them hides."""
    fields = pipeline.payload_columns
    hidden = {name.lower() for name in fields}
    return parsed.select(
        *[F.col(name).alias(f"_in_{name}") for name in (*BRONZE_COLUMNS, "reason", "requeued_at")],
        *[name for name in BRONZE_COLUMNS if name not in hidden],
        *_decoded(pipeline),
        *[F.col(VALUES).getField(name).alias(name) for name in fields],
    )


def _decoded(pipeline: Pipeline) -> tuple[str, ...]:
    return (*_DECODED, SKIPPED) if pipeline.envelope else _DECODED


def utc_date(instant: str | Column) -> Column:
    """Return the UTC date, independent of the session time zone."""
    days = F.floor(F.unix_seconds(instant) / _SECONDS_A_DAY)
    return F.date_from_unix_date(days.cast("int"))


def is_representable(instant: str) -> Column:
    """Return whether an instant is supported by windows, literals and readers of the tables.

    Before the year 1000, subtracting an interval may leave Python's date range, and some readers
    shift dates between calendars. Python and most readers have no dates after 9999.
    """
    return F.unix_seconds(instant).between(EARLIEST_SECOND, LATEST_SECOND)


def _reasons(pipeline: Pipeline) -> Column:
    """Return all contract violations of a row."""
    needed = (*pipeline.dimension.key, SEQUENCE) if pipeline.dimension else ()
    missing = [
        (F.coalesce(F.col("event_id"), F.lit("")) == "", "event_id: missing"),
        (F.col("event_time").isNull(), "event_time: missing"),
        (~is_representable("event_time"), "event_time: not in the years 1000 to 9999"),
        *[
            (F.col(SELECTED).getField(name).isNull(), f"{name.lstrip('_')}: missing")
            for name in needed
        ],
    ]
    return F.concat(F.col(BROKEN), F.col("_failed"), texts_where(missing))
