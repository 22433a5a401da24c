"""Judge an event by what is known of its key, without waiting for the tables.

The same rules as in :mod:`tidelake.gold.detections`, over what the tables held a while ago: a copy
that is broadcast. What happened since is not in it, so that an alert may be wrong and one may be
missing; the tables say which.
"""

from __future__ import annotations

from datetime import datetime

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidelake.columns import instant
from tidelake.config.gold import LAST_PLACE, TOTAL, VALUES, Detection
from tidelake.gold.detections import (
    EVIDENCE,
    FOUND,
    HOUR_OF,
    PLACE,
    RULE,
    VALUE,
    exceeds,
    frequent,
    impossible,
    keyed,
    looked_at,
)
from tidelake.gold.measures import GoldPlan
from tidelake.instants import back

_COUNT, _SUM, _COUNT_NOW, _SUM_NOW, _NOW = "_count", "_sum", "_count_now", "_sum_now", "_now"
_LAST, _RECENT = "_last", "_recent"


def known(hours: DataFrame, recent: DataFrame, detection: Detection, *, now: datetime) -> DataFrame:
    """Sum up what is known of each key.

    Args:
        hours: Rows of the features table, all that :attr:`Detection.lookback` reaches.
        recent: The newest events, as far back as a burst reaches.
        detection: The definition.
        now: The newest hour of the features (UTC).

    Returns:
        One row a key: the keys and what each rule looks at.
    """
    keys = list(detection.keys)
    columns = [instant(now).alias(_NOW)]
    if detection.unusual_amount:
        in_history = F.col("window_start") >= instant(back(now, detection.unusual_amount.history))
        for name, of in ((VALUES, (_COUNT, _COUNT_NOW)), (TOTAL, (_SUM, _SUM_NOW))):
            before = in_history & (F.col("window_start") < instant(now))
            columns.append(F.sum(F.when(before, F.col(name))).alias(of[0]))
            within = F.col("window_start") == instant(now)
            columns.append(F.sum(F.when(within, F.col(name))).alias(of[1]))
    if detection.impossible_travel:
        columns.append(F.max(LAST_PLACE).alias(_LAST))
    summed = keyed(hours, detection).groupBy(*keys).agg(*columns)
    if not detection.burst:
        return summed
    times = (
        keyed(recent, detection)
        .groupBy(*keys)
        .agg(F.sort_array(F.collect_list("event_time")).alias(_RECENT))
    )
    return summed.join(times, on=keys, how="left")


def to_fast_alerts(events: DataFrame, known_keys: DataFrame, detection: Detection) -> DataFrame:
    """Judge events at once.

    Args:
        events: Events as silver would hold them, and ``sent_at``, when each came to the source.
        known_keys: From :func:`known`; broadcast.
        detection: The definition.

    Returns:
        ``rule``, ``event_id``, ``event_time``, the keys, the told columns, ``evidence`` and
        ``sent_at``.
    """
    looked = looked_at(keyed(events, detection), detection, GoldPlan(detection.hours), "sent_at")
    met = looked.join(F.broadcast(known_keys), on=list(detection.keys), how="left")
    found = F.array_compact(F.array(*_findings(detection)))
    broken = met.withColumn(FOUND, found).select("*", F.explode(FOUND).alias("_one"))
    return broken.select(
        F.col("_one").getField(RULE).alias(RULE),
        "event_id",
        "event_time",
        *detection.keys,
        *detection.columns,
        F.col("_one").getField(EVIDENCE).alias(EVIDENCE),
        "sent_at",
    )


def _findings(detection: Detection) -> list[Column]:
    findings = []
    if detection.unusual_amount:
        # In a later hour than the newest that is known, all of that one is history.
        later = F.col(HOUR_OF) > F.col(_NOW)
        counts, sums = (
            F.coalesce(F.col(before), F.lit(0))
            + F.when(later, F.coalesce(now, F.lit(0))).otherwise(0)
            for before, now in ((_COUNT, _COUNT_NOW), (_SUM, _SUM_NOW))
        )
        findings.append(exceeds(detection.unusual_amount, F.col(VALUE), counts, sums))
    if detection.burst:
        within = detection.burst.within

        def counts_in(time: Column) -> Column:
            return (time > F.col("event_time") - F.lit(within)) & (time <= F.col("event_time"))

        recent = F.filter(F.coalesce(_RECENT, F.array().cast("array<timestamp>")), counts_in)
        since = F.least(F.col("event_time"), F.array_min(recent))
        findings.append(frequent(detection.burst, F.size(recent) + 1, since))
    if detection.impossible_travel:
        findings.append(impossible(detection.impossible_travel, F.col(_LAST), F.col(PLACE)))
    return findings
