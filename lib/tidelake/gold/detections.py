"""Compare events with their key's history: unusual amounts, bursts, impossible travel.

Alerts depend on silver alone, whatever the order of arrival. History before an event's hour comes
from the hourly features, one row per key and hour, so that months of history are few rows. History
within the hour comes from the events.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from functools import cached_property, reduce
from operator import and_, or_

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from tidelake.columns import VALUE as _VALUE
from tidelake.columns import in_pairs, instant, literal, try_eval
from tidelake.config import GoldTable, Measure
from tidelake.config.expressions import as_operand
from tidelake.config.gold_definitions import (
    HOUR,
    LAST_PLACE,
    TOTAL,
    VALUES,
    Burst,
    Detection,
    FinalAfter,
    ImpossibleTravel,
    UnusualAmount,
)
from tidelake.config.queries import CAST_TO_DECIMAL, INEXACT_TYPES
from tidelake.gold.kinds import OWN, Expression, GoldBatch, GoldKind, Inputs, key_problems
from tidelake.gold.measures import GoldPlan, sum_problems, value_of
from tidelake.gold.merge_plan import GONE, MergePlan, broadcast_few, checkpoint_with_span
from tidelake.gold.windows import Windowed, to_partials
from tidelake.instants import back

RECORD, RULE, EVIDENCE = "_record", "rule", "evidence"
HOUR_OF, PLACE, VALUE = "_hour", "_place", "_value"
_COUNT, _SUM, _BEFORE = "_count", "_sum", "_before"
FOUND = "_found"
_COUNT_NOW, _SUM_NOW, _NOW = "_count_now", "_sum_now", "_now"
_LAST, _RECENT = "_last", "_recent"
_EARTH_KM = 6371.0088
_WITHOUT_ZEROS = (
    "regexp_replace({{{}.evidence}}, "
    """'^(."value":-?[0-9]+)(?:[.]0*|([.][0-9]*[1-9])0*)(?=,)', '$1$2')"""
)
# Per key: the time from which a batch may change alerts, and the time from which events are read.
_FROM, _SINCE = "_from", "_since"


class Features(Windowed):
    """The hourly history of a detection."""

    @cached_property
    def columns(self) -> GoldPlan:
        """The measures' columns, without places that are nowhere."""
        return hours_plan(self.gold)

    def type_problems(self, inputs: Mapping[str, DataFrame]) -> Mapping[str, str]:
        """Return nothing: the detection names its own expressions."""
        return {}


class Detected(GoldKind):
    """One row per event and broken rule; only earlier events count as history.

    A batch recomputes each key's alerts from its earliest event of the key on: an event affects
    the alerts of later events, never of earlier ones. A batch does not change hours of the
    ``features`` table before its own events, so it does not matter whether ``features`` already
    includes the batch.
    """

    moment = "event_time"
    identity = (RECORD, RULE)
    ends = FinalAfter.after_last("event_time")

    def __init__(self, name: str, place: str, detection: Detection, features: str) -> None:
        """Store the rules; the fast lane's alert sink is excluded from the definition."""
        self.name, self.place, self.detection, self.features = name, place, detection, features
        self.definition = detection.model_copy(update={"fast": None})
        # Length of the burst window.
        self._within = detection.burst.within if detection.burst else timedelta(0)
        self._hours = hours_plan(detection.hours)

    def expressions(self) -> dict[str, Expression]:
        """Return the keys, the alert columns and the inputs of the rules."""
        detection = self.detection
        named = {f"keys.{key}": key for key in detection.keys}
        named |= {f"columns.{name}": sql for name, sql in detection.columns.items()}
        if detection.unusual_amount:
            named["unusual_amount.value"] = detection.unusual_amount.value
        if travel := detection.impossible_travel:
            # With the cast that a place applies, which Spark refuses for some types.
            for name, sql in (("latitude", travel.latitude), ("longitude", travel.longitude)):
                named[f"impossible_travel.{name}"] = f"CAST({as_operand(sql)} AS DOUBLE)"
        return {path: Expression(OWN, sql) for path, sql in named.items()}

    def eligible(self) -> Column:
        """Return which events have all keys."""
        return _has_keys(self.detection)

    def failed(self, key: str, events: DataFrame) -> Column:
        """Return the events on which an alert column or a rule input fails."""
        failures = [try_eval(sql).isNull() for sql in self.detection.columns.values()]
        return self.eligible() & in_pairs(or_, [self._hours.typed(events).failed, *failures])

    def type_problems(self, inputs: Mapping[str, DataFrame]) -> Mapping[str, str]:
        """Return why the values of ``unusual_amount`` cannot be summed, or keys not compared.

        A rule compares sums exactly: of sums that depend on the order of arrival, alerts would too.
        """
        events = inputs[OWN]
        hours = self._hours.typed(events).table
        kinds = {one.name: (one.value_type or "").upper() for one in hours.measures}
        problem = sum_problems(hours).get(TOTAL)
        if kinds.get(TOTAL) in INEXACT_TYPES:
            problem = f"is {kinds[TOTAL]}; {CAST_TO_DECIMAL}"
        found = {"unusual_amount.value": problem} if problem else {}
        return key_problems("keys", self.detection.keys, events) | found

    def tolerances(self, types: Mapping[str, str]) -> Mapping[str, str]:
        """Return that evidence is the same whatever zeros end the value.

        It was written in the type of its time, which may have been widened since.
        """
        return {EVIDENCE: " <=> ".join(_WITHOUT_ZEROS.format(side) for side in "es")}

    def of_all(self, inputs: Inputs) -> DataFrame:
        """Compute the alerts of all of silver."""
        return self._alerts(keyed(inputs.whole(OWN), self.detection))

    def plan(self, batch: GoldBatch) -> MergePlan | None:
        """Recompute the alerts that the batch may change, and replace those that differ.

        Returns:
            None if no event of the batch has all keys, or no alert is found or removed.
        """
        if not batch.eligible:
            return None
        events, on = keyed(batch.events, self.detection), list(self.detection.keys)
        if batch.is_first:
            return MergePlan(batch.stamped(self._alerts(events)), on="")
        starts = events.groupBy(*on).agg(F.min("event_time").alias(_FROM))
        starts = starts.withColumn(_SINCE, hour_of(F.col(_FROM) - F.lit(self._within)))
        keys, (first, _), count = checkpoint_with_span(batch.frames, starts, _FROM)
        keys = broadcast_few(keys, count)

        def from_first(alerts: DataFrame) -> DataFrame:
            """Select the alerts of each key from its first event in the batch on."""
            joined = alerts.join(keys.select(*on, _FROM), on=on, how="inner")
            return joined.where(F.col("event_time") >= F.col(_FROM)).drop(_FROM)

        since = back(first, self._within).replace(minute=0, second=0, microsecond=0)
        recent = batch.inputs.whole(OWN).where(F.col("event_time") >= instant(since))
        recent = recent.join(keys, on=on, how="inner")
        earliest = instant(back(since, self.detection.lookback))
        earlier = batch.stored(self.features).where(F.col("window_start") >= earliest)
        earlier = earlier.join(keys, on=on, how="inner")
        found = self._alerts(
            recent.where(F.col("event_time") >= F.col(_SINCE)),
            earlier.where(F.col("window_start") < F.col(_SINCE)),
        )
        found = batch.frames.checkpoint(from_first(found).select(*found.columns))
        stored = from_first(
            batch.stored(self.name).where(F.col("event_time") >= instant(first))
        ).join(found, on=[RECORD, RULE], how="left_anti")
        gone = stored.select(*found.columns, F.lit(True).alias(GONE))
        changed = batch.frames.checkpoint(found.withColumn(GONE, F.lit(False)).unionByName(gone))
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

    def _alerts(self, events: DataFrame, earlier: DataFrame | None = None) -> DataFrame:
        """Compute the alerts of events with all keys, and of stored features before them."""
        hours = to_partials(events, self._hours)
        if earlier is not None:
            hours = earlier.select(*hours.columns).unionByName(hours)
        before = history_by_hour(hours, self.detection)
        inputs = rule_inputs(events, self.detection, self._hours)
        return to_alerts(judged(inputs, before, self.detection), self.detection)


def hours_plan(hours: GoldTable) -> GoldPlan:
    """Return the columns of the features, in which a place that is nowhere is null.

    One with a NaN or infinite coordinate would replace the last place, and hide a travel. The
    definition has the expression as it was: its hash is in the tables' commits.
    """

    def somewhere(measure: Measure) -> Measure:
        if measure.name != LAST_PLACE:
            return measure
        place = measure.expression
        # Zero times infinity is NaN, too.
        off = f"isnan(0 * ({place}).latitude + 0 * ({place}).longitude)"
        sql = f"CASE WHEN NOT {off} THEN {place} END"
        return measure.model_copy(update={"expression": sql})

    return GoldPlan(hours.model_copy(update={"measures": tuple(map(somewhere, hours.measures))}))


def keyed(events: DataFrame, detection: Detection) -> DataFrame:
    """Filter out events with a null key."""
    return events.where(_has_keys(detection))


def _has_keys(detection: Detection) -> Column:
    return reduce(and_, [F.col(key).isNotNull() for key in detection.keys])


def rule_inputs(
    events: DataFrame, detection: Detection, hours: GoldPlan, *more: Column
) -> DataFrame:
    """Select the inputs of the rules from events.

    Returns:
        ``_record`` (unique in silver), ``event_id``, ``event_time``, the keys, the alert columns,
        ``_hour`` (start of the hour), and ``_value`` and ``_place``, null without such a rule.
    """
    measures = hours.typed(events).table.measures
    measured = {one.name: value_of(one) for one in measures if one.aggregate != "count"}
    return events.select(
        F.col("record_id").alias(RECORD),
        *("event_id", "event_time", *detection.keys),
        *[try_eval(sql).getField(_VALUE).alias(name) for name, sql in detection.columns.items()],
        hour_of(F.col("event_time")).alias(HOUR_OF),
        measured.get(TOTAL, F.lit(None)).alias(VALUE),
        measured.get(LAST_PLACE, F.lit(None)).alias(PLACE),
        *more,
    )


def hour_of(instant: Column) -> Column:
    """Return the start of an instant's UTC hour, independent of the session time zone."""
    micros = F.unix_micros(instant)
    return F.timestamp_micros(micros - F.pmod(micros, F.lit(HOUR // timedelta(microseconds=1))))


def history_by_hour(hours: DataFrame, detection: Detection) -> DataFrame:
    """Compute each key's history before each hour.

    Returns:
        The keys, ``_hour``, ``_count`` and ``_sum`` of the values in the history, and ``_before``
        (the last place).
    """
    amount, travel = detection.unusual_amount, detection.impossible_travel
    summaries = [F.lit(None).alias(name) for name in (_COUNT, _SUM, _BEFORE)]
    by_time = Window.partitionBy(*detection.keys).orderBy(F.unix_seconds("window_start"))
    if amount:
        history = by_time.rangeBetween(-int(amount.history.total_seconds()), -1)
        summaries[0] = F.try_sum(VALUES).over(history).alias(_COUNT)
        summaries[1] = F.try_sum(TOTAL).over(history).alias(_SUM)
    if travel:
        earlier = by_time.rangeBetween(Window.unboundedPreceding, -1)
        summaries[2] = F.max(LAST_PLACE).over(earlier).alias(_BEFORE)
    return hours.select(*detection.keys, F.col("window_start").alias(HOUR_OF), *summaries)


def judged(events: DataFrame, before: DataFrame, detection: Detection) -> DataFrame:
    """Find the rules that each event breaks.

    ``events`` are from :func:`rule_inputs`: all events of each key since the start of some hour,
    including the earlier hours that a burst window covers; ``before`` is from
    :func:`history_by_hour`, for all their hours.

    Returns:
        ``events`` plus ``_found``: an array of ``rule`` and ``evidence`` (a JSON object), empty for
        most events.
    """
    keys = list(detection.keys)
    known = events.join(before, on=[*keys, HOUR_OF], how="left")
    if detection.impossible_travel:
        order = Window.partitionBy(*keys, HOUR_OF).orderBy("event_time", "event_id", RECORD)
        earlier = F.max(PLACE).over(order.rowsBetween(Window.unboundedPreceding, -1))
        known = known.withColumn(_BEFORE, F.coalesce(earlier, F.col(_BEFORE)))

    def burst(rule: Burst) -> tuple[Column, Column]:
        by_time = Window.partitionBy(*keys).orderBy(F.unix_micros("event_time"))
        recent = by_time.rangeBetween(1 - int(rule.within / timedelta(microseconds=1)), 0)
        return F.count("*").over(recent), F.min("event_time").over(recent)

    return known.withColumn(
        FOUND, _broken(detection, F.col(_COUNT), F.col(_SUM), burst, F.col(_BEFORE))
    )


def _broken(
    detection: Detection,
    count: Column,
    total: Column,
    burst: Callable[[Burst], tuple[Column, Column]],
    origin: Column,
) -> Column:
    """Return the findings of the rules that an event breaks.

    ``count`` and ``total`` are of the values in the history, ``burst`` returns the number of events
    in a burst window and the time of the first, ``origin`` is the last place before the event.
    """
    found = []
    if detection.unusual_amount:
        found.append(exceeds(detection.unusual_amount, F.col(VALUE), count, total))
    if detection.burst:
        events, since = burst(detection.burst)
        too_many = events >= detection.burst.events
        found.append(finding("burst", too_many, events=events, since=since))
    if detection.impossible_travel:
        found.append(impossible(detection.impossible_travel, origin, F.col(PLACE)))
    return F.array_compact(F.array(*found))


def to_alerts(judged_events: DataFrame, detection: Detection, also: str = RECORD) -> DataFrame:
    """Return one row per event and broken rule, with the columns below and ``also``."""
    found = judged_events.where(F.size(FOUND) > 0).select("*", F.explode(FOUND).alias("_one"))
    return found.select(
        F.col("_one").getField(RULE).alias(RULE),
        *("event_id", "event_time", *detection.keys, *detection.columns),
        F.col("_one").getField(EVIDENCE).alias(EVIDENCE),
        also,
    )


def finding(rule: str, broken: Column, **evidence: Column) -> Column:
    """Return the rule and its evidence if it is broken, else null."""
    details = F.to_json(F.struct(*[column.alias(name) for name, column in evidence.items()]))
    return F.when(broken, F.struct(F.lit(rule).alias(RULE), details.alias(EVIDENCE)))


def exceeds(rule: UnusualAmount, value: Column, count: Column, total: Column) -> Column:
    """Test for a value far above the mean of ``count`` values with sum ``total``."""
    many = count.cast("int")
    # Compare products, as a mean would be rounded; use doubles if the products overflow.
    times = F.lit(rule.times)
    exact = F.try_multiply(value, many) > F.try_multiply(total, times)
    above = F.coalesce(exact, value.cast("double") * many > total.cast("double") * times)
    return finding(
        "unusual_amount",
        (many >= rule.at_least) & above,
        value=value,
        mean=F.round(F.try_divide(total, many), 2),
        values=many,
    )


def impossible(rule: ImpossibleTravel, origin: Column, place: Column) -> Column:
    """Test for two places too far apart for the time between them."""
    km = _distance(origin, place)
    micros = F.unix_micros(place.getField("at")) - F.unix_micros(origin.getField("at"))
    hours = micros / F.lit(HOUR / timedelta(microseconds=1))
    too_far = (km >= rule.at_least_km) & (km > hours * F.lit(float(rule.kmh)))
    return finding(
        "impossible_travel",
        # Features that an earlier version computed may have NaN or infinite coordinates.
        too_far & (micros >= 0) & _is_somewhere(origin) & _is_somewhere(place),
        km=F.round(km).cast("int"),
        seconds=F.round(micros / F.lit(1e6)).cast("bigint"),
        since=origin.getField("at"),
        latitude=origin.getField("latitude"),
        longitude=origin.getField("longitude"),
    )


def _is_somewhere(place: Column) -> Column:
    degrees = place.getField("latitude") + place.getField("longitude")
    return ~F.isnan(degrees - degrees)


def _distance(origin: Column, target: Column) -> Column:
    """Return the great-circle distance in km by the haversine formula (R. W. Sinnott, 1984)."""
    first, second = (F.radians(place.getField("latitude")) for place in (origin, target))
    across = F.radians(target.getField("longitude")) - F.radians(origin.getField("longitude"))
    half = F.pow(F.sin((second - first) / 2), F.lit(2))
    half = half + F.cos(first) * F.cos(second) * F.pow(F.sin(across / 2), F.lit(2))
    # Beyond the poles a cosine is negative, and so may be the sum.
    within = F.greatest(F.least(half, F.lit(1.0)), F.lit(0.0))
    return F.lit(2 * _EARTH_KM) * F.asin(F.sqrt(within))


def features_by_key(
    hours: DataFrame, recent: DataFrame, detection: Detection, *, now: datetime
) -> DataFrame:
    """Aggregate the features of each key for the fast lane, which broadcasts them.

    The fast lane applies the same rules to an older state of the tables. Later events are missing
    from it, so a fast alert may be wrong or missing; the alerts table is authoritative.

    ``hours`` are rows of the features table within :attr:`Detection.lookback`, ``recent`` the
    newest events, at least those of the burst window, and ``now`` the newest hour (UTC).
    """
    keys = list(detection.keys)
    columns = [instant(now).alias(_NOW)]
    if detection.unusual_amount:
        in_history = F.col("window_start") >= instant(back(now, detection.unusual_amount.history))
        before = in_history & (F.col("window_start") < instant(now))
        within = F.col("window_start") == instant(now)
        for name, in_earlier, in_newest in ((VALUES, _COUNT, _COUNT_NOW), (TOTAL, _SUM, _SUM_NOW)):
            columns.append(F.sum(F.when(before, F.col(name))).alias(in_earlier))
            columns.append(F.sum(F.when(within, F.col(name))).alias(in_newest))
    if detection.impossible_travel:
        columns.append(F.max(LAST_PLACE).alias(_LAST))
    summed = keyed(hours, detection).groupBy(*keys).agg(*columns)
    if not detection.burst:
        return summed
    times = F.sort_array(F.collect_list("event_time")).alias(_RECENT)
    return summed.join(keyed(recent, detection).groupBy(*keys).agg(times), on=keys, how="left")


def to_fast_alerts(events: DataFrame, known_keys: DataFrame, detection: Detection) -> DataFrame:
    """Detect alerts immediately, without waiting for the tables.

    ``events`` have the columns of silver that the rules use, ``ingested_at`` being the time when
    the source received each; ``known_keys`` are from :func:`features_by_key`, and broadcast.
    Returns the columns of :func:`to_alerts`.
    """
    sent_at = F.col("ingested_at").alias("sent_at")
    inputs = rule_inputs(keyed(events, detection), detection, hours_plan(detection.hours), sent_at)
    joined = inputs.join(F.broadcast(known_keys), on=list(detection.keys), how="left")
    # For an event after the newest known hour, that whole hour is history.
    later = F.col(HOUR_OF) > F.col(_NOW)
    count, total = (
        F.coalesce(F.col(before), F.lit(0)) + F.when(later, F.coalesce(now, F.lit(0))).otherwise(0)
        for before, now in ((_COUNT, _COUNT_NOW), (_SUM, _SUM_NOW))
    )

    def burst(rule: Burst) -> tuple[Column, Column]:
        event_time = F.col("event_time")
        recent = F.filter(
            F.coalesce(_RECENT, F.array().cast("array<timestamp>")),
            lambda time: (time > event_time - F.lit(rule.within)) & (time <= event_time),
        )
        return F.size(recent) + 1, F.least(event_time, F.array_min(recent))

    broken = _broken(detection, count, total, burst, F.col(_LAST))
    return to_alerts(joined.withColumn(FOUND, broken), detection, "sent_at")
