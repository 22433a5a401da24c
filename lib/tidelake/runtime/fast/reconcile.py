"""Hold what the fast lane sent against the tables: each alert is confirmed or retracted."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidelake.config import Detection
from tidelake.config.gold import FastLane
from tidelake.delta.access import load
from tidelake.delta.append import append
from tidelake.delta.log import last_commit
from tidelake.delta.notes import positions
from tidelake.delta.positions import BEGINNING
from tidelake.delta.tables import Table
from tidelake.errors import UsageError
from tidelake.gold.detections import EVIDENCE, RULE
from tidelake.runtime.gold_inputs import inputs_of, up_to
from tidelake.runtime.hop import Run
from tidelake.runtime.targets import OWN

VERDICTS = ("confirmed", "retracted", "open", "missed")
_EVENT, _SENT, _ALERTED = "alerted_event", "sent_at", "alerted_at"


@dataclass(frozen=True)
class Reconciled:
    """What became of the alerts.

    Attributes:
        table: Holds a row for each of them.
        counts: By rule and verdict.
    """

    table: str
    counts: dict[str, dict[str, int]]


def reconcile(run: Run, detection: Detection, fast: FastLane) -> Reconciled:
    """Judge every alert of the fast lane by what the tables hold now.

    ``confirmed``: the tables have it too. ``retracted``: they have taken in its event and do not
    have it, or the event was refused. ``open``: its event is not decided yet. ``missed``: only
    the tables have it. What arrives later may change a verdict; the table is written anew.

    Raises:
        UsageError: A table is not there yet, or does not hold what is compared.
    """
    lake = run.lake
    exact_table, sent_table = lake.gold(detection.name), lake.silver(fast.pipeline)
    for table, pipeline in ((exact_table, run.pipeline.name), (sent_table, fast.pipeline)):
        if not table.exists:
            raise UsageError(
                f"{table.name} does not exist yet. Fill it with: tidelake run {pipeline}"
            )
    sent = _first_of_each(load(run.spark, sent_table), detection, fast)
    exact = load(run.spark, exact_table)
    judged = _judged(sent, exact, _decided(run, exact_table), detection)
    reconciled = lake.table(f"{exact_table.name}__reconciled")
    append(judged, reconciled, {"reconciled": detection.name}, replaces=True)
    counted = load(run.spark, reconciled).groupBy(RULE, "verdict").count().collect()
    counts: dict[str, dict[str, int]] = {}
    for row in sorted(counted):
        found = counts.setdefault(row[RULE], dict.fromkeys(VERDICTS, 0))
        found[row["verdict"]] = row["count"]
    return Reconciled(reconciled.name, counts)


def _first_of_each(sent: DataFrame, detection: Detection, fast: FastLane) -> DataFrame:
    """Take the first alert of each event and rule.

    Raises:
        UsageError: The pipeline that takes alerts in selects other columns.
    """
    needed = (RULE, _EVENT, EVIDENCE, _SENT, _ALERTED, *detection.keys)
    missing = [name for name in needed if name not in sent.columns]
    if missing:
        raise UsageError(
            f"silver.{fast.pipeline} has no column {', '.join(missing)}: name it under "
            f"event.select of the pipeline {fast.pipeline}"
        )
    told = F.struct(_ALERTED, "record_id", "event_time", EVIDENCE, _SENT, *detection.keys)
    first = sent.groupBy(F.col(_EVENT).alias("event_id"), RULE).agg(F.min(told).alias("_first"))
    return first.select(
        "event_id",
        RULE,
        F.col("_first.event_time").alias("_sent_time"),
        *[F.col(f"_first.{key}").alias(f"_sent_{key}") for key in detection.keys],
        F.col(f"_first.{EVIDENCE}").alias("fast_evidence"),
        F.col(f"_first.{_SENT}").alias(_SENT),
        F.col(f"_first.{_ALERTED}").alias(_ALERTED),
    )


def _decided(run: Run, exact: Table) -> DataFrame:
    """Give the ids of events that gold has taken in, and of those that silver refused."""
    tables = inputs_of(run.lake, run.pipeline)
    reached = positions(last_commit(exact))
    until = {key: reached.get(key, BEGINNING) for key in tables}
    ids = up_to(run.spark, tables, until)(OWN).select("event_id")
    name = run.pipeline.name
    for refused in (run.lake.quarantine(name), run.lake.late(name)):
        if refused.exists:
            rows = load(run.spark, refused)
            ids = ids.unionByName(rows.select("event_id"))
    return ids.distinct().withColumn("_decided", F.lit(True))


def _judged(
    sent: DataFrame, exact: DataFrame, decided: DataFrame, detection: Detection
) -> DataFrame:
    known = exact.select(
        "event_id", RULE, "event_time", *detection.keys, EVIDENCE, F.lit(True).alias("_exact")
    )
    both = sent.withColumn("_fast", F.lit(True)).join(known, on=["event_id", RULE], how="full")
    both = both.join(decided, on="event_id", how="left")
    verdict = (
        F.when(F.col("_exact").isNotNull() & F.col("_fast").isNotNull(), "confirmed")
        .when(F.col("_exact").isNotNull(), "missed")
        .when(F.col("_decided").isNotNull(), "retracted")
        .otherwise("open")
    )
    return both.select(
        verdict.alias("verdict"),
        RULE,
        "event_id",
        F.coalesce("event_time", "_sent_time").alias("event_time"),
        *[F.coalesce(key, f"_sent_{key}").alias(key) for key in detection.keys],
        EVIDENCE,
        "fast_evidence",
        _SENT,
        _ALERTED,
    )
