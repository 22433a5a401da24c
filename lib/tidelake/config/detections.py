"""Rules that judge each event by what its keys did before."""

from __future__ import annotations

import re
from datetime import timedelta
from decimal import Decimal
from math import ceil
from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from tidelake.config.described import Described
from tidelake.config.durations import PositiveDuration
from tidelake.config.expressions import columns_in
from tidelake.config.gold import GoldTable, Measure, TumblingWindow
from tidelake.config.model import Model, PositiveInt
from tidelake.config.names import ColumnName, TableName

HOUR = timedelta(hours=1)
# Half of the earth's circumference in km: no two places lie farther apart.
FARTHEST_KM = 20_038
# What the features table holds for the rules.
EVENTS, VALUES, TOTAL, LAST_PLACE = "events", "valued", "total", "last_place"

_Positive = Annotated[float, Field(gt=0)]
# With less, the longest way would take longer than any duration may be.
_Speed = Annotated[float, Field(ge=0.1)]
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")


def _topic(name: str) -> str:
    if not _TOPIC.fullmatch(name):
        raise ValueError(
            f"'{name}' is no name for a topic: write letters, digits, dots, dashes and underscores"
        )
    return name


class UnusualAmount(Model):
    """A value far above the mean of the key's own.

    Attributes:
        value: SQL over silver.
        times: How many times the mean it exceeds.
        history: How far back the mean looks: over whole hours before the event's own.
        at_least: How many values there must be to have a mean.
    """

    value: str
    times: Annotated[Decimal, Field(gt=1, max_digits=9, decimal_places=3)] = Decimal(5)
    history: PositiveDuration = timedelta(days=30)
    at_least: PositiveInt = 5


class Burst(Model):
    """Many events of a key within a short time, the event itself among them.

    Attributes:
        events: How many.
        within: In how short a time.
    """

    events: Annotated[int, Field(strict=True, ge=2)] = 5
    within: PositiveDuration = timedelta(minutes=1)


class ImpossibleTravel(Model):
    """Two places of a key, one after the other, too far apart for the time between.

    Attributes:
        latitude: SQL over silver, in degrees; an event without a place is passed over.
        longitude: Likewise.
        kmh: The highest speed that is possible, in km/h; at least 0.1.
        at_least_km: Shorter distances are possible in any time.
    """

    latitude: str
    longitude: str
    kmh: _Speed = 900
    at_least_km: _Positive = 50

    @property
    def reach(self) -> timedelta:
        """How long the longest way takes: an earlier place cannot be too far."""
        return timedelta(hours=FARTHEST_KM / self.kmh)


class FastLane(Model):
    """Alerts at once, from a stream beside the tables.

    Attributes:
        topic: Where they go, at the source's broker.
        pipeline: Takes them into tables, where they are held against the exact ones.
        refresh: How often what the rules look back at is read anew.
        streams: With two, one goes on while the other plans its next batch, and every alert is
            sent twice.
    """

    topic: Annotated[str, AfterValidator(_topic)]
    pipeline: TableName
    refresh: PositiveDuration = timedelta(minutes=5)
    streams: Annotated[int, Field(strict=True, ge=1, le=2)] = 2


class Detection(Described):
    """A gold table with one row an event and rule that it broke.

    Attributes:
        name: The gold table.
        features: A gold table of hours, which the rules look back at.
        keys: Whose past an event is held against; events without one of them break no rule.
        columns: What is told of the event, name to SQL over silver.
        unusual_amount: See :class:`UnusualAmount`.
        burst: See :class:`Burst`.
        impossible_travel: See :class:`ImpossibleTravel`.
        fast: A fast lane beside the table; None for none.
    """

    name: TableName
    features: TableName
    keys: Annotated[tuple[ColumnName, ...], Field(min_length=1)]
    columns: dict[ColumnName, str] = Field(default_factory=dict)
    unusual_amount: UnusualAmount | None = None
    burst: Burst | None = None
    impossible_travel: ImpossibleTravel | None = None
    fast: FastLane | None = None

    @model_validator(mode="after")
    def _has_a_rule(self) -> Self:
        if not (self.unusual_amount or self.burst or self.impossible_travel):
            raise ValueError("needs one of unusual_amount, burst, impossible_travel")
        return self

    @property
    def lookback(self) -> timedelta:
        """How far before an event's hour the features may matter to it, in whole hours."""
        lengths = [timedelta(0)]
        if self.unusual_amount:
            lengths.append(self.unusual_amount.history)
        if self.impossible_travel:
            lengths.append(self.impossible_travel.reach + HOUR)
        return ceil(max(lengths) / HOUR) * HOUR

    @property
    def looks_at(self) -> frozenset[str]:
        """Silver's columns that the rules and the told columns need, in lower case."""
        written = list(self.columns.values())
        if self.unusual_amount:
            written.append(self.unusual_amount.value)
        if self.impossible_travel:
            written += [self.impossible_travel.latitude, self.impossible_travel.longitude]
        used = {name for sql in written for name in columns_in(sql)}
        return frozenset(used | {key.lower() for key in self.keys})

    @property
    def shown(self) -> tuple[str, ...]:
        """The columns of the alerts that analysts read, in order."""
        return ("rule", "event_id", "event_time", *self.keys, *self.columns, "evidence")

    @property
    def hours(self) -> GoldTable:
        """The features table: for each key and hour what the rules need of it."""
        measures = [Measure(name=EVENTS, aggregate="count", expression="*")]
        if self.unusual_amount:
            value = self.unusual_amount.value
            measures += [
                Measure(name=VALUES, aggregate="count", expression=value),
                Measure(name=TOTAL, aggregate="sum", expression=value),
            ]
        if self.impossible_travel:
            place = place_of(self.impossible_travel)
            measures.append(Measure(name=LAST_PLACE, aggregate="max", expression=place))
        return GoldTable(
            name=self.features,
            window=TumblingWindow(kind="tumbling", size=HOUR),
            keys=self.keys,
            measures=tuple(measures),
        )


def place_of(rule: ImpossibleTravel) -> str:
    """Write in SQL where and when an event was; null without a place.

    Compared as it stands, the later place is the greater one; equal times go by event id.
    """
    latitude, longitude = rule.latitude, rule.longitude
    return (
        f"CASE WHEN ({latitude}) IS NOT NULL AND ({longitude}) IS NOT NULL THEN "
        "named_struct('at', event_time, 'event_id', event_id, "
        f"'latitude', CAST({latitude} AS DOUBLE), 'longitude', CAST({longitude} AS DOUBLE)) END"
    )
