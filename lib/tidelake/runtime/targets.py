"""The tables that gold's batches close: aggregates, joins, alerts, dimensions."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import cached_property, reduce
from operator import and_, or_
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidelake.columns import holds, instant
from tidelake.config import (
    Detection,
    DimensionSpec,
    GlobalWindow,
    GoldTable,
    HoppingWindow,
    Join,
    Pipeline,
    SessionWindow,
    TumblingWindow,
)
from tidelake.config.pipeline import selected_columns
from tidelake.delta.access import load
from tidelake.delta.merge import merge_partials, merge_rows
from tidelake.delta.notes import Ends
from tidelake.delta.tables import Lake, Table
from tidelake.gold import GONE, detections, joins
from tidelake.gold.detections import EVIDENCE, RECORD, RULE
from tidelake.gold.dimensions import CHANGE, VALID_FROM, VALID_TO, latest, versions
from tidelake.gold.joins import LEFT, LEFT_TIME, RIGHT, RIGHT_TIME
from tidelake.gold.measures import (
    GoldPlan,
    aggregates_of,
    columns_of,
    to_values,
    tolerances,
    unhashed_of,
    with_terms,
)
from tidelake.gold.sessions import gap_of, regroup, session_id, to_sessions
from tidelake.gold.windows import BOUNDS, to_partials
from tidelake.instants import back
from tidelake.runtime.gold_target import OWN, Inputs, Target, held_with_span, literal, span, stamped
from tidelake.runtime.held import Held
from tidelake.spark import tuning
from tidelake.spark.engine import slots_of


def targets_of(lake: Lake, pipeline: Pipeline) -> list[Target]:
    """List the tables that a pipeline's gold hop fills, in the file's order."""
    if pipeline.dimension is not None:
        newest, *history = (lake.table(name) for name in pipeline.gold_names)
        key = pipeline.dimension.key
        columns = tuple(name for name in selected_columns(pipeline.event) if name not in key)
        return [
            DimensionTable(newest, pipeline.dimension, columns),
            *[
                DimensionTable(table, pipeline.dimension, columns, history=True)
                for table in history
            ],
        ]
    return [
        *[
            Aggregated(lake.gold(gold.name), f"gold[{number}]", gold)
            for number, gold in enumerate(pipeline.gold)
        ],
        *[
            Joined(lake.gold(join.name), f"joins[{number}]", join, pipeline.name)
            for number, join in enumerate(pipeline.joins)
        ],
        # Features and, after them, the alerts that look back at them.
        *[
            target
            for number, detection in enumerate(pipeline.detections)
            for features in [lake.gold(detection.features)]
            for target in (
                Aggregated(features, f"detections[{number}].features", detection.hours),
                Detected(lake.gold(detection.name), f"detections[{number}]", detection, features),
            )
        ],
    ]


class Aggregated(Target):
    """One row a window and key, or a session and key."""

    def __init__(self, table: Table, place: str, gold: GoldTable) -> None:
        """Take where windows begin and end.

        A session ends when its gap has passed, and may begin long before an event of its own.
        """
        window, self.gold = gold.window, gold
        first: tuple[str, ...] = ()
        moment, ends, reach = None, None, None
        if isinstance(window, SessionWindow):
            first, moment = ("session_id",), "session_start"
            ends = Ends("session_end", window.gap)
        elif isinstance(window, TumblingWindow | HoppingWindow):
            first, moment, ends, reach = BOUNDS, BOUNDS[0], Ends("window_end"), window.size
        identity = (*first, *gold.keys)
        super().__init__(
            table, place, gold, identity=identity, moment=moment, ends=ends, reach=reach
        )

    @cached_property
    def _plan(self) -> GoldPlan:
        return GoldPlan(self.gold)

    def eligible(self) -> Column:
        """Tell which events the table's ``where`` admits."""
        return holds(self.gold.where) if self.gold.where else F.lit(True)

    def failed(self, key: str, events: DataFrame) -> Column:
        """Tell where ``where`` or a measure fails."""
        return self._plan.typed(events).failed

    def tolerances(self, types: Mapping[str, str]) -> Mapping[str, str]:
        """Sums of doubles, means and sketches."""
        return tolerances(self.gold, types)

    @property
    def unhashed(self) -> frozenset[str]:
        """Those of its measures."""
        return unhashed_of(self.gold)

    def with_terms(self, types: Mapping[str, str]) -> Target:
        """Compute beside each sum of doubles how large its terms were."""
        return Aggregated(self.table, self.place, with_terms(self.gold, types))

    def expressions(self) -> dict[str, tuple[str, Column]]:
        """Give ``where`` and the measures."""
        where = self.gold.where
        named = {"where": F.count_if(F.expr(where))} if where else {}
        named |= {
            f"measures.{name.lstrip('_')}": F.expr(sql)
            for name, sql in aggregates_of(self.gold).items()
        }
        return {path: (OWN, column) for path, column in named.items()}

    def of_all(self, inputs: Inputs) -> DataFrame:
        """Aggregate all of silver."""
        events = inputs.whole(OWN)
        if isinstance(self.gold.window, SessionWindow):
            sessions = to_sessions(events, self._plan)
            return self._ordered(sessions.withColumn("session_id", session_id(self.gold)))
        return self._ordered(to_partials(events, self._plan))

    def merge(self, inputs: Inputs, note: dict[str, Any], hold: Held) -> None:
        """Merge the batch's partial aggregates."""
        if not note["eligible"]:
            self.close_unchanged(inputs, note)
            return
        events = inputs.taken[OWN]
        typed = self._plan.typed(events)
        gold = typed.table
        if isinstance(self.gold.window, SessionWindow):
            salt = self._salt(to_values(events, typed), note["eligible"])
            sessions = to_sessions(events, self._plan, salt=salt)
            partials, bounds = held_with_span(sessions, "session_start", "session_end", hold)
            first, last = _filled(bounds)
            first, last = first - gap_of(self.gold), last + gap_of(self.gold)
            # The stored sessions that the batch's could touch, by literals over ``t``.
            within = f"t.session_end >= {literal(first)} AND t.session_start <= {literal(last)}"
            stored = load(events.sparkSession, self.table).alias("t")
            changed = self._ordered(regroup(partials, stored.where(within), gold))
            on = f"t.session_id = s.session_id AND {within}"
            merge_rows(hold.now(_stamped(changed, note)), self.table, on=on, note=note)
        else:
            partials, within = to_partials(events, self._plan), ""
            if isinstance(self.gold.window, GlobalWindow):
                partials = hold.now(partials)
            else:
                partials, bounds = held_with_span(partials, BOUNDS[0], BOUNDS[0], hold)
                first, last = _filled(bounds)
                # The batch's windows, by literals over ``t``.
                within = f"t.{BOUNDS[0]} >= {literal(first)} AND t.{BOUNDS[0]} <= {literal(last)}"
            source = _stamped(self._ordered(partials), note)
            merge_partials(source, self.table, gold, within=within, note=note)

    def _salt(self, events: DataFrame, count: int) -> timedelta | None:
        """Cut keys into stretches where one of them would keep a task at work alone."""
        slots = slots_of(events.sparkSession)
        if count < tuning.SPLIT_EVENTS or slots <= tuning.SPLIT_COST:
            return None
        micros = F.unix_micros("event_time")
        by_key = events.groupBy(*self.gold.keys).agg(
            F.count("*").alias("_events"), F.min(micros).alias("_low"), F.max(micros).alias("_high")
        )
        found = by_key.agg(F.max("_events"), F.min("_low"), F.max("_high")).collect()[0]
        if found[0] <= count * tuning.SPLIT_COST / slots:
            return None
        stretch = timedelta(microseconds=(found[2] - found[1]) // (tuning.SPLIT_STRETCHES * slots))
        return max(stretch, gap_of(self.gold))

    def _ordered(self, aggregated: DataFrame) -> DataFrame:
        """Put the columns in the order in which analysts read them; marks are kept."""
        keys = list(self.gold.keys)
        if isinstance(self.gold.window, SessionWindow):
            leading = [*keys, "session_id", "session_start", "session_end"]
        elif isinstance(self.gold.window, GlobalWindow):
            leading = keys
        else:
            leading = [*BOUNDS, *keys]
        marks = [GONE] if GONE in aggregated.columns else []
        return aggregated.select(*leading, *columns_of(self.gold), *marks)


def _stamped(rows: DataFrame, note: Mapping[str, Any]) -> DataFrame:
    return stamped(rows, generation=note["generation"], batch=note["batch"])


def _filled(bounds: tuple[datetime, datetime] | None) -> tuple[datetime, datetime]:
    if bounds is None:
        raise ValueError("a batch without rows has no bounds")
    return bounds


class Joined(Target):
    """One row a left event of the pipeline's own silver, open as long as a match may come."""

    def __init__(self, table: Table, place: str, join: Join, pipeline: str) -> None:
        """Find the right side's input; ``pipeline`` is the left side's, and may be both."""
        other = join.right.pipeline
        self._right = OWN if other == pipeline else f"silver.{other}"
        self.join = join
        super().__init__(
            table,
            place,
            join,
            identity=(LEFT,),
            moment=LEFT_TIME,
            ends=Ends(LEFT_TIME, join.within),
            reach=join.within,
            inputs=(OWN,) if self._right == OWN else (OWN, self._right),
        )

    def eligible(self) -> Column:
        """Tell which events the left side's ``where`` admits."""
        return holds(self.join.left.where) if self.join.left.where else F.lit(True)

    def failed(self, key: str, events: DataFrame) -> Column:
        """Tell where a side's ``where`` or one of its columns fails."""
        sides = ((OWN, self.join.left), (self._right, self.join.right))
        return reduce(or_, [joins.failed(side) for of, side in sides if of == key])

    def expressions(self) -> dict[str, tuple[str, Column]]:
        """Give both sides' conditions, columns and keys."""
        named: dict[str, tuple[str, Column]] = {}
        for name, key, side in (
            ("left", OWN, self.join.left),
            ("right", self._right, self.join.right),
        ):
            if side.where:
                named[f"{name}.where"] = key, F.count_if(F.expr(side.where))
            for column, sql in side.columns.items():
                named[f"{name}.columns.{column}"] = key, F.expr(sql)
        for column in self.join.on:
            named[f"on.{column}"] = self._right, F.col(column)
        return named

    def of_all(self, inputs: Inputs) -> DataFrame:
        """Join all of silver."""
        left = joins.left_side(inputs.whole(OWN), self.join)
        return joins.matched(
            left, joins.right_side(inputs.whole(self._right), self.join), self.join
        )

    def merge(self, inputs: Inputs, note: dict[str, Any], hold: Held) -> None:
        """Compute the rows anew that the batch may change, and replace those that it does."""
        join = self.join
        new_left = joins.left_side(inputs.taken[OWN], join)
        new_right = joins.right_side(inputs.taken[self._right], join)
        # The left events that the batch may change.
        spans = [span(new_left, LEFT_TIME, LEFT_TIME)]
        of_right = span(new_right, RIGHT_TIME, RIGHT_TIME)
        spans.append(None if of_right is None else (of_right[0] - join.within, of_right[1]))
        bounds = [one for one in spans if one is not None]
        if not bounds:
            self.close_unchanged(inputs, note)
            return
        first, last = min(low for low, _ in bounds), max(high for _, high in bounds)
        known = joins.left_side(inputs.whole(OWN).where(_between(first, last)), join)
        left = hold(joins.changed_by(new_left, new_right, known, join))
        near = inputs.whole(self._right).where(_between(first, last + join.within))
        rows = joins.matched(left, joins.right_side(near, join), join)
        merge_rows(
            hold(_stamped(rows, note)),
            self.table,
            on=(
                f"t.{LEFT} = s.{LEFT} AND t.{LEFT_TIME} >= {literal(first)} "
                f"AND t.{LEFT_TIME} <= {literal(last)}"
            ),
            note=note,
            changed=f"NOT t.{RIGHT} <=> s.{RIGHT}",
        )


def _between(first: datetime, last: datetime) -> str:
    return f"event_time >= {literal(first)} AND event_time <= {literal(last)}"


# From when on a key's alerts may change with a batch, and from when on its events are read.
_FROM, _SINCE = "_from", "_since"


class Detected(Target):
    """One row an event and rule that it broke; only events before it count.

    A batch computes anew the alerts of its keys from its earliest event of each key on: an event
    changes what is told of those after it, never of those before. It changes no hour of the table
    ``features`` before those of its events, so that it does not matter whether the table holds it.
    """

    def __init__(self, table: Table, place: str, detection: Detection, features: Table) -> None:
        """Take the rules; where the fast lane sends its alerts is no part of the definition."""
        super().__init__(
            table,
            place,
            detection.model_copy(update={"fast": None}),
            identity=(RECORD, RULE),
            moment="event_time",
            ends=Ends("event_time"),
        )
        self.detection, self.features = detection, features
        # How far back a burst reaches.
        self._within = detection.burst.within if detection.burst else timedelta(0)

    @cached_property
    def _hours(self) -> GoldPlan:
        return GoldPlan(self.detection.hours)

    def eligible(self) -> Column:
        """Tell which events have all keys."""
        return reduce(and_, [F.col(key).isNotNull() for key in self.detection.keys])

    def failed(self, key: str, events: DataFrame) -> Column:
        """Tell where a column, or what a rule looks at, fails."""
        return self.eligible() & detections.failed(events, self.detection, self._hours)

    def expressions(self) -> dict[str, tuple[str, Column]]:
        """Give the keys, the columns and what the rules look at."""
        detection = self.detection
        named = {f"keys.{key}": key for key in detection.keys}
        named |= {f"columns.{name}": sql for name, sql in detection.columns.items()}
        if detection.unusual_amount:
            named["unusual_amount.value"] = detection.unusual_amount.value
        if detection.impossible_travel:
            named["impossible_travel.latitude"] = detection.impossible_travel.latitude
            named["impossible_travel.longitude"] = detection.impossible_travel.longitude
        return {path: (OWN, F.expr(sql)) for path, sql in named.items()}

    def of_all(self, inputs: Inputs) -> DataFrame:
        """Judge all of silver."""
        events = detections.keyed(inputs.whole(OWN), self.detection)
        before = detections.summed_up(to_partials(events, self._hours), self.detection)
        found = detections.judged(
            detections.looked_at(events, self.detection, self._hours), before, self.detection
        )
        return detections.to_alerts(found, self.detection)

    def merge(self, inputs: Inputs, note: dict[str, Any], hold: Held) -> None:
        """Judge anew what the batch may change, and replace what differs."""
        batch = detections.keyed(inputs.taken[OWN], self.detection)
        bounds = span(batch, "event_time", "event_time")
        if bounds is None:
            self.close_unchanged(inputs, note)
            return
        first = bounds[0]
        keys = hold(self._keys(batch))
        found = hold(self._found(inputs, keys, first))
        changed = hold(self._with_gone(found, keys, first))
        if changed.isEmpty():
            self.close_unchanged(inputs, note)
            return
        merge_rows(
            hold(_stamped(changed, note)),
            self.table,
            on=(
                f"t.{RECORD} = s.{RECORD} AND t.{RULE} = s.{RULE} "
                f"AND t.event_time >= {literal(first)}"
            ),
            note=note,
            changed=f"t.{EVIDENCE} <> s.{EVIDENCE}",
        )

    def _keys(self, batch: DataFrame) -> DataFrame:
        """Say for each key of a batch from when on, and from which hour on."""
        return (
            batch.groupBy(*self.detection.keys)
            .agg(F.min("event_time").alias(_FROM))
            .withColumn(_SINCE, detections.hour_of(F.col(_FROM) - F.lit(self._within)))
        )

    def _found(self, inputs: Inputs, keys: DataFrame, first: datetime) -> DataFrame:
        """Compute the alerts of the keys from their first event in the batch on."""
        detection, on = self.detection, list(self.detection.keys)
        since = back(first, self._within).replace(minute=0, second=0, microsecond=0)
        recent = inputs.whole(OWN).where(F.col("event_time") >= instant(since))
        recent = recent.join(F.broadcast(keys), on=on, how="inner")
        recent = recent.where(F.col("event_time") >= F.col(_SINCE))
        stored = load(keys.sparkSession, self.features)
        hours = to_partials(recent, self._hours)
        earlier = (
            stored.where(F.col("window_start") >= instant(back(since, detection.lookback)))
            .join(F.broadcast(keys), on=on, how="inner")
            .where(F.col("window_start") < F.col(_SINCE))
            .select(*hours.columns)
        )
        before = detections.summed_up(earlier.unionByName(hours), detection)
        found = detections.judged(
            detections.looked_at(recent, detection, self._hours), before, detection
        )
        open_events = found.join(F.broadcast(keys.select(*on, _FROM)), on=on, how="inner")
        return detections.to_alerts(
            open_events.where(F.col("event_time") >= F.col(_FROM)), detection
        )

    def _with_gone(self, found: DataFrame, keys: DataFrame, first: datetime) -> DataFrame:
        """Add the stored alerts that no longer hold."""
        on = list(self.detection.keys)
        stored = load(found.sparkSession, self.table)
        gone = (
            stored.where(F.col("event_time") >= instant(first))
            .join(F.broadcast(keys.select(*on, _FROM)), on=on, how="inner")
            .where(F.col("event_time") >= F.col(_FROM))
            .join(found, on=[RECORD, RULE], how="left_anti")
            .select(*found.columns, F.lit(True).alias(GONE))
        )
        return found.withColumn(GONE, F.lit(False)).unionByName(gone)


class DimensionTable(Target):
    """Follows from all changes of a key; a batch computes its keys anew."""

    def __init__(
        self, table: Table, spec: DimensionSpec, columns: tuple[str, ...], *, history: bool = False
    ) -> None:
        """Take the columns beside the key.

        With ``history`` it has a row for each change that held for some time, otherwise one for
        each key that is not deleted, whenever that began. A late change may come for any row.
        """
        identity = (CHANGE,) if history else tuple(spec.key)
        moment = VALID_FROM if history else None
        super().__init__(table, "dimension", spec, identity=identity, moment=moment)
        self.spec, self.columns, self.history = spec, columns, history

    def expressions(self) -> dict[str, tuple[str, Column]]:
        """Give the key."""
        return {f"key.{name}": (OWN, F.col(name)) for name in self.spec.key}

    def of_all(self, inputs: Inputs) -> DataFrame:
        """Replay all changes."""
        return self._rows(inputs.whole(OWN)).where(~F.col(GONE)).drop(GONE)

    def merge(self, inputs: Inputs, note: dict[str, Any], hold: Held) -> None:
        """Replay all changes of the batch's keys."""
        if not note["eligible"]:
            self.close_unchanged(inputs, note)
            return
        keys = inputs.taken[OWN].select(*self.spec.key).distinct()
        changes = inputs.whole(OWN).join(keys, on=list(self.spec.key), how="left_semi")
        rows = _stamped(self._rows(changes), note)
        same = " AND ".join(f"t.{name} = s.{name}" for name in self.identity)
        changed = (
            f"NOT t.{VALID_TO} <=> s.{VALID_TO}" if self.history else f"t.{CHANGE} <> s.{CHANGE}"
        )
        merge_rows(hold(rows), self.table, on=same, changed=changed, note=note)

    def _rows(self, changes: DataFrame) -> DataFrame:
        """Compute rows with ``_gone`` from changes."""
        replay = versions if self.history else latest
        return replay(changes, self.spec.key, self.columns)
