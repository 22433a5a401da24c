"""Hold events against what their keys did before: unusual amounts, bursts, impossible travel.

An alert follows from silver alone, in whatever order events came. What lies before an event's hour
is taken from hours, one row a key and hour, so that months of history are few rows; what lies in
the hour itself from the events.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import cached_property, reduce
from operator import and_, or_

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from tidelake.columns import VALUE as _VALUE
from tidelake.columns import instant, literal, try_eval
from tidelake.config.gold_definitions import (
    HOUR,
    LAST_PLACE,
    TOTAL,
    VALUES,
    Burst,
    Detection,
    Ends,
    ImpossibleTravel,
    UnusualAmount,
)
from tidelake.gold.kinds import GONE, OWN, Expression, GoldBatch, GoldKind, Inputs, MergePlan, span
from tidelake.gold.measures import GoldPlan, value_of
from tidelake.gold.windows import to_partials
from tidelake.instants import back

RECORD, RULE, EVIDENCE = "_record", "rule", "evidence"
HOUR_OF, PLACE, VALUE = "_hour", "_place", "_value"
_COUNT, _SUM, _BEFORE = "_count", "_sum", "_before"
FOUND = "_found"
_COUNT_NOW, _SUM_NOW, _NOW = "_count_now", "_sum_now", "_now"
_LAST, _RECENT = "_last", "_recent"
_EARTH_KM = 6371.0088
_SECONDS_AN_HOUR = 3600
# From when on a key's alerts may change with a batch, and from when on its events are read.
_FROM, _SINCE = "_from", "_since"


class Detected(GoldKind):
    """One row an event and rule that it broke; only events before it count.

    A batch computes anew the alerts of its keys from its earliest event of each key on: an event
    changes what is told of those after it, never of those before. It changes no hour of the table
    ``features`` before those of its events, so that it does not matter whether the table holds it.
    """

    moment = "event_time"
    identity = (RECORD, RULE)
    ends = Ends("event_time")

    def __init__(self, name: str, place: str, detection: Detection, features: str) -> None:
        """Take the rules; where the fast lane sends its alerts is no part of the definition."""
        self.name, self.place, self.detection, self.features = name, place, detection, features
        self.definition = detection.model_copy(update={"fast": None})
        # How far back a burst reaches.
        self._within = detection.burst.within if detection.burst else timedelta(0)

    @cached_property
    def _hours(self) -> GoldPlan:
        return GoldPlan(self.detection.hours)

    def expressions(self) -> dict[str, Expression]:
        """Return the keys, the columns and what the rules look at."""
        detection = self.detection
        named = {f"keys.{key}": key for key in detection.keys}
        named |= {f"columns.{name}": sql for name, sql in detection.columns.items()}
        if detection.unusual_amount:
            named["unusual_amount.value"] = detection.unusual_amount.value
        if detection.impossible_travel:
            named["impossible_travel.latitude"] = detection.impossible_travel.latitude
            named["impossible_travel.longitude"] = detection.impossible_travel.longitude
        return {path: Expression(OWN, sql) for path, sql in named.items()}

    def eligible(self) -> Column:
        """Return which events have all keys."""
        return reduce(and_, [F.col(key).isNotNull() for key in self.detection.keys])

    def failed(self, key: str, events: DataFrame) -> Column:
        """Return where a column, or what a rule looks at, fails."""
        told = [try_eval(sql).isNull() for sql in self.detection.columns.values()]
        return self.eligible() & reduce(or_, told, self._hours.typed(events).failed)

    def of_all(self, inputs: Inputs) -> DataFrame:
        """Judge all of silver."""
        events = keyed(inputs.whole(OWN), self.detection)
        before = summed_up(to_partials(events, self._hours), self.detection)
        found = judged(looked_at(events, self.detection, self._hours), before, self.detection)
        return to_alerts(found, self.detection)

    def plan(self, batch: GoldBatch) -> MergePlan | None:
        """Judge anew what the batch may change, and replace what differs."""
        events = keyed(batch.events, self.detection)
        bounds = span(events, "event_time", "event_time")
        if bounds is None:
            return None
        first = bounds[0]
        keys = batch.frames.checkpoint(self._keys(events))
        found = batch.frames.checkpoint(self._found(batch, keys, first))
        changed = batch.frames.checkpoint(
            self._with_gone(batch.stored(self.name), found, keys, first)
        )
        if changed.isEmpty():
            return None
        return MergePlan(
            batch.frames.checkpoint(batch.stamped(changed)),
            on=(
                f"t.{RECORD} = s.{RECORD} AND t.{RULE} = s.{RULE} "
                f"AND t.event_time >= {literal(first)}"
            ),
            changed=f"t.{EVIDENCE} <> s.{EVIDENCE}",
        )

    def _keys(self, events: DataFrame) -> DataFrame:
        """Return for each key of a batch from when on, and from which hour on."""
        return (
            events.groupBy(*self.detection.keys)
            .agg(F.min("event_time").alias(_FROM))
            .withColumn(_SINCE, hour_of(F.col(_FROM) - F.lit(self._within)))
        )

    def _found(self, batch: GoldBatch, keys: DataFrame, first: datetime) -> DataFrame:
        """Compute the alerts of the keys from their first event in the batch on."""
        detection, on = self.detection, list(self.detection.keys)
        since = back(first, self._within).replace(minute=0, second=0, microsecond=0)
        recent = batch.inputs.whole(OWN).where(F.col("event_time") >= instant(since))
        recent = recent.join(F.broadcast(keys), on=on, how="inner")
        recent = recent.where(F.col("event_time") >= F.col(_SINCE))
        hours = to_partials(recent, self._hours)
        lookback = instant(back(since, detection.lookback))
        earlier = (
            batch.stored(self.features)
            .where(F.col("window_start") >= lookback)
            .join(F.broadcast(keys), on=on, how="inner")
            .where(F.col("window_start") < F.col(_SINCE))
            .select(*hours.columns)
        )
        before = summed_up(earlier.unionByName(hours), detection)
        found = judged(looked_at(recent, detection, self._hours), before, detection)
        open_events = found.join(F.broadcast(keys.select(*on, _FROM)), on=on, how="inner")
        return to_alerts(open_events.where(F.col("event_time") >= F.col(_FROM)), detection)

    def _with_gone(
        self, stored: DataFrame, found: DataFrame, keys: DataFrame, first: datetime
    ) -> DataFrame:
        """Add the stored alerts that no longer hold."""
        on = list(self.detection.keys)
        gone = (
            stored.where(F.col("event_time") >= instant(first))
            .join(F.broadcast(keys.select(*on, _FROM)), on=on, how="inner")
            .where(F.col("event_time") >= F.col(_FROM))
            .join(found, on=[RECORD, RULE], how="left_anti")
            .select(*found.columns, F.lit(True).alias(GONE))
        )
        return found.withColumn(GONE, F.lit(False)).unionByName(gone)


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
