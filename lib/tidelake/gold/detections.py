"""Hold events against what their keys did before: unusual amounts, bursts, impossible travel.

An alert follows from silver alone, in whatever order events came. What lies before an event's hour
is taken from hours, one row a key and hour, so that months of history are few rows; what lies in
the hour itself from the events.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from tidelake.columns import VALUE as _VALUE
from tidelake.columns import instant, try_eval
from tidelake.config.gold import (
    HOUR,
    LAST_PLACE,
    TOTAL,
    VALUES,
    Burst,
    Detection,
    ImpossibleTravel,
    UnusualAmount,
)
from tidelake.gold.measures import GoldPlan, value_of
from tidelake.instants import back

RECORD, RULE, EVIDENCE = "_record", "rule", "evidence"
HOUR_OF, PLACE, VALUE = "_hour", "_place", "_value"
_COUNT, _SUM, _BEFORE = "_count", "_sum", "_before"
FOUND = "_found"
_COUNT_NOW, _SUM_NOW, _NOW = "_count_now", "_sum_now", "_now"
_LAST, _RECENT = "_last", "_recent"
_EARTH_KM = 6371.0088
_SECONDS_AN_HOUR = 3600


def keyed(events: DataFrame, detection: Detection) -> DataFrame:
    """Leave out the events without a key."""
    for key in detection.keys:
        events = events.where(F.col(key).isNotNull())
    return events


def looked_at(events: DataFrame, detection: Detection, hours: GoldPlan, *more: str) -> DataFrame:
    """Take of events what the rules look at.

    Returns:
        ``_record`` (unique in silver), ``event_id``, ``event_time``, the keys, the told columns,
        ``_hour`` (its beginning), ``_value`` and ``_place``, null where there is no such rule.
    """
    typed = hours.typed(events).table
    measured = {one.name: value_of(one) for one in typed.measures if one.aggregate != "count"}
    return events.select(
        F.col("record_id").alias(RECORD),
        "event_id",
        "event_time",
        *detection.keys,
        *[try_eval(sql).getField(_VALUE).alias(name) for name, sql in detection.columns.items()],
        hour_of(F.col("event_time")).alias(HOUR_OF),
        measured.get(TOTAL, F.lit(None)).alias(VALUE),
        measured.get(LAST_PLACE, F.lit(None)).alias(PLACE),
        *more,
    )


def failed(events: DataFrame, detection: Detection, hours: GoldPlan) -> Column:
    """Tell the events on which a told column, or what a rule looks at, fails."""
    told = [try_eval(sql).isNull() for sql in detection.columns.values()]
    return reduce(or_, told, hours.typed(events).failed)


def hour_of(instant: Column) -> Column:
    """Give the beginning of an instant's hour in UTC, whatever the session's zone is."""
    micros = F.unix_micros(instant)
    return F.timestamp_micros(micros - F.pmod(micros, F.lit(HOUR // timedelta(microseconds=1))))


def summed_up(hours: DataFrame, detection: Detection) -> DataFrame:
    """Say for each key and hour what came before the hour.

    Returns:
        The keys, ``_hour``, ``_count`` and ``_sum`` of the values in the history, ``_before``
        (the last place).
    """
    amount, travel = detection.unusual_amount, detection.impossible_travel
    told = [F.lit(None).alias(name) for name in (_COUNT, _SUM, _BEFORE)]
    by_time = Window.partitionBy(*detection.keys).orderBy(F.unix_seconds("window_start"))
    if amount:
        history = by_time.rangeBetween(-int(amount.history.total_seconds()), -1)
        told[0] = F.try_sum(VALUES).over(history).alias(_COUNT)
        told[1] = F.try_sum(TOTAL).over(history).alias(_SUM)
    if travel:
        earlier = by_time.rangeBetween(Window.unboundedPreceding, -1)
        told[2] = F.max(LAST_PLACE).over(earlier).alias(_BEFORE)
    return hours.select(*detection.keys, F.col("window_start").alias(HOUR_OF), *told)


def judged(events: DataFrame, before: DataFrame, detection: Detection) -> DataFrame:
    """Find what each event breaks.

    Args:
        events: From :func:`looked_at`: of each key all events since the beginning of some hour,
            and of the hours before it that a burst may reach into.
        before: From :func:`summed_up`, for all hours of ``events``.
        detection: The definition.

    Returns:
        ``events`` plus ``_found`` (array of ``rule`` and ``evidence``, a JSON object; empty for
        most).
    """
    keys = list(detection.keys)
    known = events.join(before, on=[*keys, HOUR_OF], how="left")
    findings = []
    if detection.unusual_amount:
        findings.append(_unusual(detection.unusual_amount))
    if detection.burst:
        findings.append(_burst(detection.burst, keys))
    if detection.impossible_travel:
        order = Window.partitionBy(*keys, HOUR_OF).orderBy("event_time", "event_id")
        earlier = F.max(PLACE).over(order.rowsBetween(Window.unboundedPreceding, -1))
        known = known.withColumn(_BEFORE, F.coalesce(earlier, F.col(_BEFORE)))
        findings.append(impossible(detection.impossible_travel, F.col(_BEFORE), F.col(PLACE)))
    return known.withColumn(FOUND, F.array_compact(F.array(*findings)))


def to_alerts(judged_events: DataFrame, detection: Detection) -> DataFrame:
    """Give a row for each rule that an event broke.

    Returns:
        ``rule``, ``event_id``, ``event_time``, the keys, the told columns, ``evidence`` and
        ``_record``.
    """
    one = F.col("_one")
    return (
        judged_events.where(F.size(FOUND) > 0)
        .select("*", F.explode(FOUND).alias("_one"))
        .select(
            one.getField(RULE).alias(RULE),
            "event_id",
            "event_time",
            *detection.keys,
            *detection.columns,
            one.getField(EVIDENCE).alias(EVIDENCE),
            RECORD,
        )
    )


def finding(rule: str, broken: Column, **evidence: Column) -> Column:
    """Name a rule and why, where it is broken; null elsewhere."""
    why = F.to_json(F.struct(*[column.alias(name) for name, column in evidence.items()]))
    return F.when(broken, F.struct(F.lit(rule).alias(RULE), why.alias(EVIDENCE)))


def exceeds(rule: UnusualAmount, value: Column, count: Column, total: Column) -> Column:
    """Find a value far above the mean of ``count`` values whose sum is ``total``."""
    many = count.cast("int")
    enough = many >= rule.at_least
    # Multiplied out: a mean would be rounded. Where the products have too many digits, doubles do.
    times = F.lit(rule.times)
    exact = F.try_multiply(value, many) > F.try_multiply(total, times)
    above = F.coalesce(exact, value.cast("double") * many > total.cast("double") * times)
    return finding(
        "unusual_amount",
        enough & above,
        value=value,
        mean=F.round(F.try_divide(total, many), 2),
        values=many,
    )


def impossible(rule: ImpossibleTravel, origin: Column, place: Column) -> Column:
    """Find two places that are too far apart for the time between them."""
    km = _distance(origin, place)
    micros = F.unix_micros(place.getField("at")) - F.unix_micros(origin.getField("at"))
    hours = micros / F.lit(1e6 * _SECONDS_AN_HOUR)
    too_far = (km >= rule.at_least_km) & (km > hours * F.lit(float(rule.kmh)))
    return finding(
        "impossible_travel",
        # A place that is no number, or infinite, is nowhere.
        too_far & (micros >= 0) & _is_somewhere(origin) & _is_somewhere(place),
        km=F.round(km).cast("int"),
        seconds=F.round(micros / F.lit(1e6)).cast("bigint"),
        since=origin.getField("at"),
        latitude=origin.getField("latitude"),
        longitude=origin.getField("longitude"),
    )


def frequent(rule: Burst, count: Column, since: Column) -> Column:
    """Find the event with which there are too many in a short time."""
    return finding("burst", count >= rule.events, events=count, since=since)


def _unusual(rule: UnusualAmount) -> Column:
    return exceeds(rule, F.col(VALUE), F.col(_COUNT), F.col(_SUM))


def _burst(rule: Burst, keys: list[str]) -> Column:
    within = int(rule.within / timedelta(microseconds=1))
    recent = (
        Window.partitionBy(*keys).orderBy(F.unix_micros("event_time")).rangeBetween(1 - within, 0)
    )
    return frequent(rule, F.count("*").over(recent), F.min("event_time").over(recent))


def _is_somewhere(place: Column) -> Column:
    degrees = place.getField("latitude") + place.getField("longitude")
    return ~F.isnan(degrees - degrees)


def _distance(one: Column, other: Column) -> Column:
    """Great-circle distance in km by the haversine formula (R. W. Sinnott, 1984)."""
    first, second = (F.radians(place.getField("latitude")) for place in (one, other))
    across = F.radians(other.getField("longitude")) - F.radians(one.getField("longitude"))
    half = F.pow(F.sin((second - first) / 2), F.lit(2))
    half = half + F.cos(first) * F.cos(second) * F.pow(F.sin(across / 2), F.lit(2))
    return F.lit(2 * _EARTH_KM) * F.asin(F.sqrt(F.least(half, F.lit(1.0))))


def known(hours: DataFrame, recent: DataFrame, detection: Detection, *, now: datetime) -> DataFrame:
    """Aggregate the features of each key, which the fast lane broadcasts.

    The fast lane judges by the same rules over what the tables held a while ago. Later events are
    missing there, so an alert may be wrong or missing; the tables say which.

    Args:
        hours: Rows of the features table, all that :attr:`Detection.lookback` reaches.
        recent: The newest events, as far back as a burst reaches.
        detection: The definition.
        now: The newest hour of the features (UTC).
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
    """Judge events at once, without waiting for the tables.

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
    found = F.array_compact(F.array(*_fast_findings(detection)))
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


def _fast_findings(detection: Detection) -> list[Column]:
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
