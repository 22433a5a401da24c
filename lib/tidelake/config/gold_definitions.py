"""Models of gold tables: windows with mergeable measures, joins, and detections."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from decimal import Decimal
from math import ceil
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self, get_args

from pydantic import (
    BeforeValidator,
    Field,
    PrivateAttr,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from tidelake.config.expressions import as_operand, columns_in
from tidelake.config.model import (
    Duration,
    Model,
    PositiveDuration,
    PositiveInt,
    suggestion,
)
from tidelake.config.source import TopicName
from tidelake.config.table_settings import Publishable, TableSettings
from tidelake.names import ColumnName, TableName

_Exact = Literal["count", "count_if", "sum", "min", "max", "avg", "first", "last"]
Aggregate = Literal[_Exact, "approx_count_distinct", "approx_percentile"]
AGGREGATES: tuple[str, ...] = get_args(Aggregate)
# Hopping windows of one event: each is a row of a batch before it is aggregated.
MOST_WINDOWS = 10_000
# Spark's minimum of a batch in real-time mode (spark.sql.streaming.realTimeMode.minBatchDuration).
_SHORTEST_BATCH = timedelta(seconds=5)


class FinalAfter(NamedTuple):
    """When a row becomes final: ``after`` past the time in ``column``."""

    column: str
    after: timedelta = timedelta(0)

    @classmethod
    def after_last(cls, column: str, after: timedelta = timedelta(0)) -> FinalAfter:
        """Return it for rows that an event at the very end changes; windows exclude their end."""
        return cls(column, after + timedelta(microseconds=1))


class TumblingWindow(Model):
    """Adjacent windows of a fixed size.

    Attributes:
        kind: ``tumbling``.
        size: The length of a window.
        offset: Shifts the windows, which are aligned to the epoch in UTC.
    """

    kind: Literal["tumbling"]
    size: PositiveDuration
    offset: Duration = timedelta(0)


class HoppingWindow(Model):
    """Overlapping windows, one of which begins every ``slide``.

    Attributes:
        kind: ``hopping``.
        size: The length of a window.
        slide: The time between the beginnings of two windows.
        offset: Shifts the windows, which are aligned to the epoch in UTC.
    """

    kind: Literal["hopping"]
    size: PositiveDuration
    slide: PositiveDuration
    offset: Duration = timedelta(0)


def window_problems(window: TumblingWindow | HoppingWindow) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with a window, each as the key and a message."""
    step = window.slide if isinstance(window, HoppingWindow) else window.size
    if step > window.size:
        yield "slide", "is longer than size; events between two windows would be in no window"
    if window.size > step * MOST_WINDOWS:
        yield "slide", f"puts an event into more than {MOST_WINDOWS:,} windows; write a longer one"
    if window.offset >= step:
        yield "offset", "must be shorter than the time between the starts of two windows"


class SessionWindow(Model):
    """Windows that last as long as events follow within ``gap``.

    Attributes:
        kind: ``session``.
        gap: The longest time between two events of one session.
    """

    kind: Literal["session"]
    gap: PositiveDuration


class GlobalWindow(Model):
    """No window: one row per key for all time.

    Attributes:
        kind: ``global``.
    """

    kind: Literal["global"]


Window = Annotated[
    TumblingWindow | HoppingWindow | SessionWindow | GlobalWindow, Field(discriminator="kind")
]


class Measure(Model):
    """One aggregate of one SQL expression over silver.

    Attributes:
        name: The column in gold.
        aggregate: The aggregate function.
        expression: SQL; ``*`` only for ``count``.
        p: The percentile, 0 to 1; only for ``approx_percentile``.
    """

    name: ColumnName
    aggregate: Aggregate
    expression: str
    p: float | None = None

    _value_type: str | None = PrivateAttr(default=None)

    @property
    def value_type(self) -> str | None:
        """Spark's type of the expression; None until :meth:`typed` sets it."""
        return self._value_type

    def typed(self, value_type: str) -> Measure:
        """Return the measure with the type of its expression."""
        measure = self.model_copy()
        measure._value_type = value_type
        return measure


def _measure(pair: object) -> object:
    if not isinstance(pair, tuple):
        return pair
    name, body = pair
    if not isinstance(body, Mapping):
        raise ValueError("write one aggregate and its SQL, such as {sum: value}")
    rest = dict(body)
    p = rest.pop("p", None)
    if len(rest) != 1:
        raise ValueError(f"needs exactly one aggregate of: {', '.join(AGGREGATES)}")
    aggregate, expression = next(iter(rest.items()))
    if aggregate not in AGGREGATES:
        percentile = f"; write {{approx_percentile: {expression}, p: 0.5}}"
        hint = percentile if aggregate == "median" else suggestion(str(aggregate), AGGREGATES)
        raise ValueError(f"unknown aggregate {aggregate}{hint} (known: {', '.join(AGGREGATES)})")
    if aggregate == "approx_percentile":
        expression, p = _percentile(expression, p)
    elif p is not None:
        raise ValueError("p is allowed with approx_percentile only")
    if not isinstance(expression, str):
        raise ValueError(f"{aggregate} takes SQL as text; put it in quotes")
    return {"name": name, "aggregate": aggregate, "expression": expression, "p": p}


def _percentile(expression: object, p: object) -> tuple[object, float]:
    if isinstance(expression, Mapping):
        unknown = expression.keys() - {"expression", "p"}
        if unknown or "expression" not in expression or (p is not None and "p" in expression):
            raise ValueError("write {approx_percentile: {expression: value, p: 0.95}}")
        p = expression.get("p", p)
        expression = expression["expression"]
    if isinstance(p, bool) or not isinstance(p, int | float) or not 0 <= p <= 1:
        raise ValueError("approx_percentile needs p, a number from 0 to 1")
    return expression, float(p)


def _measures(value: object) -> object:
    if isinstance(value, Mapping):
        # Pairs are validated separately, so that each reports its own problem.
        return list(value.items())
    if isinstance(value, tuple) and all(isinstance(item, Measure) for item in value):
        return value
    raise ValueError("write a mapping of names to measures, such as {events: {count: '*'}}")


Measures = Annotated[
    tuple[Annotated[Measure, BeforeValidator(_measure)], ...],
    BeforeValidator(_measures),
    Field(min_length=1),
]


class GoldTable(TableSettings, Publishable):
    """One gold table.

    Attributes:
        name: The table's name, without ``gold.``.
        window: The windows of event time.
        where: SQL condition over silver; other events are ignored.
        keys: Columns of silver to group by.
        measures: Column name to one aggregate of a SQL expression, ``{total: {sum: value}}``.
        derive: Column name to SQL over the row's bounds, keys and measures,
            ``{rate: "clicks / events"}``.
    """

    name: TableName
    window: Window
    where: str | None = None
    keys: tuple[str, ...] = ()
    measures: Measures
    derive: dict[ColumnName, str] = Field(default_factory=dict)

    @model_serializer(mode="wrap")
    def _dump(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        found: dict[str, Any] = dump(self)
        # Commits name a hash of the dump, also those of versions that did not know the key.
        if not found.get("derive"):
            found.pop("derive", None)
        return found

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns in order, without internal columns."""
        bounds: tuple[str, ...] = ("window_start", "window_end")
        if isinstance(self.window, SessionWindow):
            bounds = ("session_id", "session_start", "session_end")
        elif isinstance(self.window, GlobalWindow):
            bounds = ()
        return (*bounds, *self.keys, *(measure.name for measure in self.measures), *self.derive)


class LeftSide(Model):
    """The left side of a join: its events have one row each.

    Attributes:
        where: SQL condition over silver; None for every event.
        columns: Columns of the left event, name to SQL.
    """

    where: str | None = None
    columns: Annotated[dict[ColumnName, str], Field(min_length=1)]


class RightSide(Model):
    """The right side of a join: events of this pipeline or of another that may match.

    Attributes:
        pipeline: The pipeline whose silver is searched.
        where: SQL condition over that silver; None for every event.
        columns: Columns of the matching event, name to SQL.
    """

    pipeline: TableName
    where: str | None = None
    columns: Annotated[dict[ColumnName, str], Field(min_length=1)]


class Join(TableSettings, Publishable):
    """A gold table with one row per left event.

    Attributes:
        name: The gold table.
        left: The events that have a row.
        right: The events that may match.
        on: Columns equal on both sides; ``"on"`` in YAML, with its quotes.
        within: The maximum time from the left event to the right one.
        type: ``left`` keeps left events without a match, ``inner`` drops them.
    """

    keys_elsewhere: ClassVar[dict[str, str]] = {
        "derive": "is for tables of gold; write the expression under left.columns or right.columns"
    }

    name: TableName
    left: LeftSide
    right: RightSide
    on: Annotated[tuple[ColumnName, ...], Field(min_length=1)]
    within: PositiveDuration
    type: Literal["left", "inner"] = "left"

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns in order, without internal columns."""
        return (*self.left.columns, *self.right.columns)


HOUR = timedelta(hours=1)
# Half of the earth's circumference in km: the maximum distance between two places.
FARTHEST_KM = 20_038
# Columns of the features table.
EVENTS, VALUES, TOTAL, LAST_PLACE = "events", "valued", "total", "last_place"


class UnusualAmount(Model):
    """A value far above the mean of its key.

    Attributes:
        value: SQL over silver, an integer or a DECIMAL.
        times: The multiple of the mean that the value must exceed.
        history: The time before the event over which the mean is taken, in whole hours.
        at_least: The minimum number of values; with fewer, the rule does not apply.
    """

    value: str
    times: Annotated[Decimal, Field(gt=1, max_digits=9, decimal_places=3)] = Decimal(5)
    history: PositiveDuration = timedelta(days=30)
    at_least: PositiveInt = 5


class Burst(Model):
    """Many events of a key within a short time, the event itself included.

    Attributes:
        events: The minimum number of events.
        within: The time in which they occur.
    """

    events: Annotated[int, Field(strict=True, ge=2, le=2**31 - 1)] = 5
    within: PositiveDuration = timedelta(minutes=1)


class ImpossibleTravel(Model):
    """Two successive places of a key that are too far apart for the time between them.

    Attributes:
        latitude: SQL over silver, in degrees; events without a place are skipped.
        longitude: SQL over silver, in degrees.
        kmh: The maximum speed in km/h; at least 0.1.
        at_least_km: The minimum distance; shorter ones never break the rule.
    """

    latitude: str
    longitude: str
    # At a lower speed FARTHEST_KM would take longer than the longest allowed duration.
    kmh: Annotated[float, Field(ge=0.1, allow_inf_nan=False)] = 900
    at_least_km: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 50

    @field_validator("kmh", "at_least_km", mode="before")
    @classmethod
    def _is_no_flag(cls, value: object) -> object:
        if isinstance(value, bool):
            raise ValueError("must be a number")
        return value

    @property
    def reach(self) -> timedelta:
        """The travel time of ``FARTHEST_KM``: places earlier than that never break the rule."""
        return timedelta(hours=FARTHEST_KM / self.kmh)


class FastLane(Model):
    """A separate stream that sends alerts within milliseconds.

    Attributes:
        topic: The topic for alerts, on the source's broker.
        pipeline: The pipeline that reads the topic, for comparison with the exact alerts.
        refresh: How often the features are reloaded; at least 5 seconds.
        streams: With 2, one stream runs while the other plans its next batch, and every alert is
            sent twice.
    """

    topic: TopicName
    pipeline: TableName
    refresh: PositiveDuration = timedelta(minutes=5)
    streams: Annotated[int, Field(strict=True, ge=1, le=2)] = 2

    @field_validator("refresh")
    @classmethod
    def _lasts_a_batch(cls, value: timedelta) -> timedelta:
        if value < _SHORTEST_BATCH:
            raise ValueError("must be at least 5 seconds, the shortest batch in real-time mode")
        return value


class Detection(TableSettings, Publishable):
    """A gold table with one row per event and rule that the event broke.

    Attributes:
        name: The gold table.
        features: A gold table with hourly history per key, which the rules read.
        keys: Columns of the key; events with a null in one of them break no rule.
        columns: Columns of the event, name to SQL over silver.
        unusual_amount: See :class:`UnusualAmount`.
        burst: See :class:`Burst`.
        impossible_travel: See :class:`ImpossibleTravel`.
        fast: The fast lane; None to have none.
    """

    keys_elsewhere: ClassVar[dict[str, str]] = {
        "derive": "is for tables of gold; write the expression under columns"
    }

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
        """How far before an event's hour the rules read features, in whole hours."""
        history = self.unusual_amount.history if self.unusual_amount else timedelta(0)
        travel = self.impossible_travel.reach + HOUR if self.impossible_travel else timedelta(0)
        return ceil(max(history, travel) / HOUR) * HOUR

    @property
    def expressions(self) -> dict[tuple[str, str], str]:
        """The SQL over silver of the columns and the rules, by its two keys."""
        found = {("columns", name): sql for name, sql in self.columns.items()}
        if self.unusual_amount:
            found["unusual_amount", "value"] = self.unusual_amount.value
        if self.impossible_travel:
            found["impossible_travel", "latitude"] = self.impossible_travel.latitude
            found["impossible_travel", "longitude"] = self.impossible_travel.longitude
        return found

    @property
    def used_columns(self) -> frozenset[str]:
        """Silver's columns that the rules and the columns use, in lower case."""
        used = {name for sql in self.expressions.values() for name in columns_in(sql)}
        return frozenset(used | {key.lower() for key in self.keys})

    @property
    def shown(self) -> tuple[str, ...]:
        """The columns of the alerts in order, without internal columns."""
        return ("rule", "event_id", "event_time", *self.keys, *self.columns, "evidence")

    @property
    def hours(self) -> GoldTable:
        """The features table: one row per key and hour."""
        measures = [Measure(name=EVENTS, aggregate="count", expression="*")]
        if self.unusual_amount:
            value = self.unusual_amount.value
            measures += [
                Measure(name=VALUES, aggregate="count", expression=value),
                Measure(name=TOTAL, aggregate="sum", expression=value),
            ]
        if self.impossible_travel:
            place = event_place(self.impossible_travel)
            measures.append(Measure(name=LAST_PLACE, aggregate="max", expression=place))
        return GoldTable(
            name=self.features,
            window=TumblingWindow(kind="tumbling", size=HOUR),
            keys=self.keys,
            measures=tuple(measures),
        )


def event_place(rule: ImpossibleTravel) -> str:
    """Return SQL for a struct of an event's time and place; null without a place.

    The structs sort by event time, then by event id.
    """
    latitude, longitude = as_operand(rule.latitude), as_operand(rule.longitude)
    return (
        f"CASE WHEN ({latitude}) IS NOT NULL AND ({longitude}) IS NOT NULL THEN "
        "named_struct('at', event_time, 'event_id', event_id, "
        f"'latitude', CAST({latitude} AS DOUBLE), 'longitude', CAST({longitude} AS DOUBLE)) END"
    )
