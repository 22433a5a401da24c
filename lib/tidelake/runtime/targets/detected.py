"""Gold tables of alerts: a row for each rule that an event broke."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property, reduce
from operator import and_
from typing import Any

from pydantic import BaseModel
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidelake.columns import instant
from tidelake.config import Detection
from tidelake.delta.access import load
from tidelake.delta.merge import merge_rows
from tidelake.delta.notes import Ends
from tidelake.delta.tables import Table
from tidelake.gold import GONE
from tidelake.gold.detections import (
    EVIDENCE,
    RECORD,
    RULE,
    failed,
    hour_of,
    judged,
    keyed,
    looked_at,
    summed_up,
    to_alerts,
)
from tidelake.gold.measures import GoldPlan
from tidelake.gold.windows import to_partials
from tidelake.instants import back
from tidelake.runtime.held import Held
from tidelake.runtime.targets.target import OWN, Inputs, Target, literal, span, stamped

# From when on a key's alerts may change with a batch, and from when on its events are read.
_FROM, _SINCE = "_from", "_since"


@dataclass(frozen=True)
class Detected(Target):
    """One row an event and rule that it broke.

    A batch computes anew the alerts of its keys from its earliest event of each key on: an event
    changes what is told of those after it, never of those before.

    Attributes:
        detection: The definition.
        features: The gold table of hours. A batch changes no hour before those of its events,
            so that it does not matter whether the table holds the batch already.
    """

    detection: Detection
    features: Table

    @cached_property
    def _hours(self) -> GoldPlan:
        return GoldPlan(self.detection.hours)

    @property
    def definition(self) -> BaseModel:
        """The rules; where the fast lane sends its alerts is no part of them."""
        return self.detection.model_copy(update={"fast": None})

    def eligible(self) -> Column:
        """Tell which events have all keys."""
        return reduce(and_, [F.col(key).isNotNull() for key in self.detection.keys])

    def failed(self, key: str, events: DataFrame) -> Column:
        """Tell where a column, or what a rule looks at, fails."""
        return self.eligible() & failed(events, self.detection, self._hours)

    @property
    def ends(self) -> Ends:
        """With the event: only those before it count."""
        return Ends("event_time")

    @property
    def identity(self) -> tuple[str, ...]:
        """The event and the rule."""
        return (RECORD, RULE)

    @property
    def moment(self) -> str:
        """When the event happened."""
        return "event_time"

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
        events = keyed(inputs.whole(OWN), self.detection)
        before = summed_up(to_partials(events, self._hours), self.detection)
        found = judged(looked_at(events, self.detection, self._hours), before, self.detection)
        return to_alerts(found, self.detection)

    def merge(self, inputs: Inputs, note: dict[str, Any], hold: Held) -> None:
        """Judge anew what the batch may change, and replace what differs."""
        batch = keyed(inputs.taken[OWN], self.detection)
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
            hold(stamped(changed, generation=note["generation"], batch=note["batch"])),
            self.table,
            on=(
                f"t.{RECORD} = s.{RECORD} AND t.{RULE} = s.{RULE} "
                f"AND t.event_time >= {literal(first)}"
            ),
            note=note,
            changed=f"t.{EVIDENCE} <> s.{EVIDENCE}",
        )

    @property
    def _within(self) -> timedelta:
        """How far back a burst reaches."""
        return self.detection.burst.within if self.detection.burst else timedelta(0)

    def _keys(self, batch: DataFrame) -> DataFrame:
        """Say for each key of a batch from when on, and from which hour on."""
        return (
            batch.groupBy(*self.detection.keys)
            .agg(F.min("event_time").alias(_FROM))
            .withColumn(_SINCE, hour_of(F.col(_FROM) - F.lit(self._within)))
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
        before = summed_up(earlier.unionByName(hours), detection)
        found = judged(looked_at(recent, detection, self._hours), before, detection)
        open_events = found.join(F.broadcast(keys.select(*on, _FROM)), on=on, how="inner")
        return to_alerts(open_events.where(F.col("event_time") >= F.col(_FROM)), detection)

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
