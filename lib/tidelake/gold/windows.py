"""Aggregate events per key and tumbling, hopping or global window.

Windows are over event time, aligned to the epoch in UTC and shifted by their offset. Starts are
inclusive, ends exclusive.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from functools import cached_property
from operator import or_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from tidelake.columns import VALUE, between, holds, in_pairs, try_eval
from tidelake.config import GlobalWindow, GoldTable, HoppingWindow, TumblingWindow
from tidelake.config.expressions import columns_in
from tidelake.config.gold_definitions import FinalAfter
from tidelake.gold.kinds import (
    ALL,
    OWN,
    Expression,
    GoldBatch,
    GoldKind,
    Inputs,
    key_problems,
    type_sensitive,
)
from tidelake.gold.measures import (
    GoldPlan,
    aggregates_of,
    columns_of,
    merges_at_random,
    shown_of,
    states_of,
    sum_problems,
    to_values,
    tolerances,
    unhashed_of,
    with_shown,
    with_terms,
)
from tidelake.gold.merge_plan import GONE, MergePlan, checkpoint_with_span

BOUNDS = ("window_start", "window_end")
# Internal columns: a struct of the derived values, and whether one of them failed.
_TRIED, _FAILED = "_tried", "_failed"
_WINDOW = "_window"
# Spark's `window` has a part of the plan for each of an event's windows, and is faster than an
# array for a few of them. Of a day by the minute, planning took three minutes.
_PLANNED_WINDOWS = 30
# Aggregates whose type follows from that of their values.
_OF_THEIR_TYPE = ("sum", "avg", "min", "max", "first", "last")


class Aggregated(GoldKind):
    """Base of kinds that aggregate measures per key and window or session."""

    # The columns that precede the measures.
    _leading: tuple[str, ...]

    def __init__(self, name: str, place: str, gold: GoldTable) -> None:
        """Store the definition."""
        self.name, self.place, self.definition, self.gold = name, place, gold, gold

    @cached_property
    def columns(self) -> GoldPlan:
        """The measures' columns, built once."""
        return GoldPlan(self.gold)

    def expressions(self) -> dict[str, Expression]:
        """Return ``where`` and the measures."""
        where = self.gold.where
        named = {"where": Expression(OWN, where, is_condition=True)} if where else {}
        return named | {
            f"measures.{name}": Expression(OWN, sql)
            for name, sql in aggregates_of(self.gold).items()
        }

    def eligible(self) -> Column:
        """Return the table's ``where``."""
        return holds(self.gold.where) if self.gold.where else F.lit(True)

    def failed(self, key: str, events: DataFrame) -> Column:
        """Return the events on which ``where`` or a measure fails."""
        return self.columns.typed(events).failed

    def type_problems(self, inputs: Mapping[str, DataFrame]) -> Mapping[str, str]:
        """Return the measures that cannot be summed, and the keys that cannot be compared."""
        events = inputs[OWN]
        problems = sum_problems(self.columns.typed(events).table)
        return key_problems("keys", self.gold.keys, events) | {
            f"measures.{name}": problem for name, problem in problems.items()
        }

    def tolerances(self, types: Mapping[str, str]) -> Mapping[str, str]:
        """Return the tolerances of sums of doubles, means and sketches."""
        return tolerances(self.gold, types)

    @property
    def rounded(self) -> tuple[str, ...]:
        """The measures that are means."""
        return tuple(one.name for one in self.gold.measures if one.aggregate == "avg")

    def typed(self) -> Mapping[tuple[str, str], bool]:
        """Return the columns of ``where``, of measures, and of measures that ``derive`` reads."""
        derived = [type_sensitive(sql) for sql in self.derived.values()]
        exact = self.behind(frozenset().union(*derived))
        if self.gold.where:
            exact |= type_sensitive(self.gold.where)
        texts: set[str] = set()
        for measure in self.gold.measures:
            if measure.expression.strip() != "*":
                exact |= type_sensitive(measure.expression)
            if measure.aggregate == "approx_count_distinct":
                # Its sketch counts texts.
                texts |= columns_in(measure.expression)
        return {(OWN, name): name in exact for name in exact | texts}

    def behind(self, names: Collection[str]) -> set[str]:
        """Return the silver columns, in lower case, that determine the types of columns here.

        ``names`` are in lower case, or :data:`.kinds.ALL`.
        """

        def is_named(name: str) -> bool:
            return ALL in names or name.lower() in names

        found = {key.lower() for key in self.gold.keys if is_named(key)}
        for measure in self.gold.measures:
            if measure.aggregate in _OF_THEIR_TYPE and is_named(measure.name):
                found |= columns_in(measure.expression)
        for name, sql in self.derived.items():
            if is_named(name):
                found |= self.behind(columns_in(sql))
        return found

    @property
    def unhashed(self) -> frozenset[str]:
        """The unhashed columns of the measures."""
        return unhashed_of(self.gold)

    def with_terms(self, types: Mapping[str, str]) -> GoldKind:
        """Return this kind with a sum of absolute values for each sum of doubles."""
        return type(self)(self.name, self.place, with_terms(self.gold, types))

    @property
    def derived(self) -> Mapping[str, str]:
        """The columns of ``derive``."""
        return self.gold.derive

    def without_derived(self) -> GoldKind:
        """Return the kind of the same table without ``derive``."""
        gold = self.gold.model_copy(update={"derive": {}})
        return type(self)(self.name, self.place, gold)

    @cached_property
    def _tried(self) -> Column:
        return F.struct(*[try_eval(sql).alias(name) for name, sql in self.derived.items()])

    def ordered(self, aggregated: DataFrame, *more: str) -> DataFrame:
        """Compute the derived columns, and select the columns in the table's order."""
        columns = (*self._leading, *columns_of(self.gold), *more)
        if not self.derived:
            return aggregated.select(*columns)
        tried = {name: F.col(_TRIED).getField(name) for name in self.derived}
        values = {name: one.getField(VALUE) for name, one in tried.items()}
        failed = in_pairs(or_, [one.isNull() for one in tried.values()])
        return (
            aggregated.withColumn(_TRIED, self._tried)
            .withColumns(values | {_FAILED: failed})
            .select(*columns)
        )

    def first(self, batch: GoldBatch, aggregated: DataFrame) -> MergePlan:
        """Return the plan of a first batch, whose aggregates are the table's rows."""
        if not self.derived:
            return MergePlan(batch.stamped(self.ordered(aggregated)), on="")
        rows, failed = self.materialized(batch, aggregated, batch.stored(self.name).schema)
        return MergePlan(rows, on="", failed=failed)

    def materialized(
        self, batch: GoldBatch, merged: DataFrame, stored: StructType, *more: str
    ) -> tuple[DataFrame, int]:
        """Return the checkpointed rows to merge, and on how many a derived column failed.

        Derived columns are computed from the values as they will be stored, in the ``stored``
        types: sums that are combined have wider ones.
        """
        if not self.derived:
            return batch.frames.materialize(batch.stamped(self.ordered(merged, *more)))[0], 0
        types = {one.name: one.dataType for one in stored.fields if one.name in merged.columns}
        typed = merged.withColumns({name: F.col(name).cast(kind) for name, kind in types.items()})
        rows = batch.stamped(self.ordered(typed, *more, _FAILED))
        failed = F.col(_FAILED) & ~F.col(GONE) if GONE in more else F.col(_FAILED)
        kept, counted = batch.frames.materialize(rows, F.count_if(failed).alias(_FAILED))
        return kept.drop(_FAILED), counted.get(_FAILED) or 0


class Windowed(Aggregated):
    """One row per window and key; with a global window, one row per key."""

    def __init__(self, name: str, place: str, gold: GoldTable) -> None:
        """Store the definition and the window's bounds."""
        super().__init__(name, place, gold)
        self._leading = self.identity = gold.keys
        if isinstance(gold.window, TumblingWindow | HoppingWindow):
            self._leading = self.identity = (*BOUNDS, *gold.keys)
            self.moment, self.ends = BOUNDS[0], FinalAfter(BOUNDS[1])
            self.reach = gold.window.size
        if isinstance(gold.window, HoppingWindow):
            self.fan_out = -(-gold.window.size // gold.window.slide)

    def of_all(self, inputs: Inputs) -> DataFrame:
        """Aggregate all of silver."""
        return self.ordered(to_partials(inputs.whole(OWN), self.columns))

    def plan(self, batch: GoldBatch) -> MergePlan | None:
        """Merge the batch's partial aggregates into the stored windows."""
        if not batch.eligible:
            return None
        partials, within = to_partials(batch.events, self.columns), []
        if batch.is_first:
            return self.first(batch, partials)
        gold = self.columns.typed(batch.events).table
        if self.moment is None:
            partials = batch.frames.checkpoint(partials)
        else:
            partials, bounds, _ = checkpoint_with_span(batch.frames, partials, self.moment)
            within = [between(f"t.{self.moment}", bounds)]
        on = " AND ".join([*[f"t.{name} <=> s.{name}" for name in self.identity], *within])
        if self.derived or merges_at_random(self.gold):
            # A MERGE cannot compute derived columns: `try_eval` has no form in SQL. And it would
            # merge a sketch twice, for itself and for the column shown, with different results.
            stored = batch.stored(self.name).alias("t").where(" AND ".join(within) or "true")
            combined = _combined(partials, stored, gold, self.identity)
            rows, failed = self.materialized(batch, combined, stored.schema)
            return MergePlan(rows, on=on, failed=failed)
        merged = {state.name: state.merge for state in states_of(gold)}
        # Delta casts assigned values to the stored column's type.
        update = merged | {shown.name: shown.over(merged) for shown in shown_of(gold)}
        return MergePlan(
            batch.stamped(self.ordered(partials)),
            on=on,
            update=update | {name: f"s.{name}" for name in ("_generation", "_batch")},
        )


def to_partials(events: DataFrame, plan: GoldPlan) -> DataFrame:
    """Aggregate events into one row per window and combination of keys.

    In a hopping window an event counts in several rows. The result is added to the stored rows, by
    MERGE or before it.

    Returns:
        The window's bounds (no such columns for a global window), the keys, the state columns
        (which merge: a sum and a count for a mean, a sketch for a percentile) and the columns
        shown, computed from these events' states alone.
    """
    table = plan.typed(events)
    if table.steps is None:
        table.steps = _steps(table.table)
    keys, states, columns = table.steps
    values, window = to_values(events, table), table.table.window
    if not isinstance(window, GlobalWindow):
        values = values.withColumn(_WINDOW, window_of(window))
    return values.groupBy(*keys).agg(*states).select(*columns)


def _combined(
    partials: DataFrame, stored: DataFrame, table: GoldTable, identity: Sequence[str]
) -> DataFrame:
    """Combine a batch's rows with the stored rows (alias ``t``) of the same windows and keys.

    Returns:
        The bounds and keys, the state columns and the columns shown, of the batch's windows only.
    """
    columns = [*identity, *[state.name for state in states_of(table)]]
    same = [F.col(f"t.{name}").eqNullSafe(F.col(f"s.{name}")) for name in identity]
    touched = stored.join(partials.alias("s"), on=same, how="left_semi")
    states = partials.select(*columns).unionByName(touched.select(*columns))
    combined = [F.expr(state.combine).alias(state.name) for state in states_of(table)]
    return with_shown(states.groupBy(*identity).agg(*combined), table)


def _steps(table: GoldTable) -> tuple[list[Column], list[Column], list[Column]]:
    """Return the grouping columns, the aggregates and the output columns."""
    has_bounds = not isinstance(table.window, GlobalWindow)
    grouping = [F.col(key) for key in table.keys]
    if has_bounds:
        grouping.insert(0, F.col(_WINDOW))
    states = [F.expr(state.partial).alias(state.name) for state in states_of(table)]
    likes = [F.expr(shown.like).alias(shown.name) for shown in shown_of(table)]
    ends = zip(BOUNDS, ("start", "end"), strict=True)
    bounds = [F.col(f"{_WINDOW}.{end}").alias(name) for name, end in ends] if has_bounds else []
    aggregated = [state.name for state in states_of(table)]
    aggregated += [shown.name for shown in shown_of(table)]
    columns = [*bounds, *[F.col(name) for name in (*table.keys, *aggregated)]]
    return grouping, [*states, *likes], columns


def window_of(window: object) -> Column:
    """Return an event's window, ``start`` and ``end``; hopping windows make a row for each."""
    if not isinstance(window, TumblingWindow | HoppingWindow):
        raise TypeError(f"{window!r} has no bounds")
    step = window.slide if isinstance(window, HoppingWindow) else window.size
    lengths = [one // timedelta(microseconds=1) for one in (window.size, step, window.offset)]
    size, slide, offset = lengths
    if size <= slide * _PLANNED_WINDOWS:
        return F.window("event_time", *[f"{length} microseconds" for length in lengths])
    at = F.unix_micros("event_time")
    last = at - F.pmod(at - F.lit(offset), F.lit(slide))
    # The first start that is later than a size before the event.
    spare = last + F.lit(size - 1) - at
    first = last - spare + F.pmod(spare, F.lit(slide))
    starts = F.sequence(first, last, F.lit(slide))
    return F.explode(F.transform(starts, lambda start: _bounded(start, F.lit(size))))


def _bounded(start: Column, size: Column) -> Column:
    bounds = F.timestamp_micros(start), F.timestamp_micros(start + size)
    return F.struct(bounds[0].alias("start"), bounds[1].alias("end"))
