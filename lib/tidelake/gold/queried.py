"""Compute a gold table from another one, or from silver, by SQL.

A batch computes whole windows again: it finds those of its events, reads the other table's rows in
them, which hold the batch already, and replaces what differs. Nothing is carried from batch to
batch, so each aggregate that does not depend on the order of rows is exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from operator import and_, or_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidelake.columns import VALUE, between, failed_within, holds, in_pairs, try_eval
from tidelake.config import GlobalWindow, GoldTable, Measure, SessionWindow
from tidelake.config.expressions import columns_in
from tidelake.config.gold_definitions import FinalAfter
from tidelake.config.queries import (
    CAST_TO_DECIMAL,
    INEXACT_TYPES,
    Query,
    ResolvedQuery,
    measure_of,
)
from tidelake.config.query_parts import Call
from tidelake.config.types import is_comparable
from tidelake.gold.kinds import OWN, Expression, GoldBatch, GoldKind, Inputs, type_sensitive
from tidelake.gold.measures import GoldPlan, sum_problems, tried_of
from tidelake.gold.merge_plan import GONE, MergePlan, broadcast_few, checkpoint_with_span
from tidelake.gold.windows import Windowed, window_of

_WINDOW, _FAILED, _TRIED = "_window", "_failed", "_tried"
# A condition's value as by `try_eval`, null if it fails.
_HELD = "_held"
_NOT_ADDED = (
    *("BOOLEAN", "DATE", "TIMESTAMP", "INTERVAL", "BINARY", "ARRAY", "STRUCT", "MAP", "VARIANT"),
)


class Queried(GoldKind):
    """One row per combination of a query's keys, one of which is a window."""

    definition: ResolvedQuery

    def __init__(self, name: str, place: str, query: Query, source: Windowed | None) -> None:
        """Store the query and the table that it reads, None for silver."""
        self.name, self.place, self.source = name, place, source
        self.parts = parts = query.parts
        # A changed definition of the other table changes these rows too.
        self.definition = ResolvedQuery(text=parts.text, source=source.gold if source else None)
        self.identity = tuple(key.name for key in parts.keys)
        window = source.gold.window if source else None
        if isinstance(window, SessionWindow | GlobalWindow):
            raise TypeError(f"{parts.source} has no windows with bounds")
        lasts = parts.lasts(window)
        self.moment, self.reach = parts.window.name, lasts
        self.ends = FinalAfter(parts.window.name, lasts)
        self.reads = (source.name,) if source else ()
        self.fan_out = source.fan_out if source else 1
        # All aggregates but count(*).
        self._valued = [call for call in parts.calls if call.argument != "*"]

    def expressions(self) -> dict[str, Expression]:
        """Return the query's parts over silver, or those of the other table that it reads."""
        if self.source is not None:
            return self.source.expressions()
        used = enumerate(self.parts.used())
        return {f"sql.{number}": Expression(OWN, sql) for number, (_, sql) in used}

    @property
    def rounded(self) -> tuple[str, ...]:
        """The columns that are means."""
        means = {call.internal for call in self.parts.calls if call.function == "avg"}
        return tuple(one.name for one in self.parts.columns if one.computed.strip("` ") in means)

    def typed(self) -> Mapping[tuple[str, str], bool]:
        """Return the columns of the query's expressions, and those of the other table."""
        parts = self.parts
        used = [sql for _, sql in parts.used()]
        # What is computed from aggregates and keys depends on their types too.
        outer = [column.computed for column in parts.columns]
        outer += [parts.having] if parts.having is not None else []
        computed = frozenset().union(*map(type_sensitive, outer))
        names = set().union(*map(type_sensitive, used))
        for internal, sql in (
            *((call.internal, call.argument) for call in parts.calls if call.function != "count"),
            *((key.internal, key.sql) for key in parts.keys),
        ):
            if internal.lower() in computed:
                names |= columns_in(sql)
        if self.source is None:
            return {(OWN, name): True for name in names}
        means = {name.lower() for name in self.source.rounded} & set().union(*map(columns_in, used))
        by_text = {(OWN, name): False for name in self.source.behind(means)}
        behind = {(OWN, name): True for name in self.source.behind(names)}
        return {**by_text, **self.source.typed(), **behind}

    def eligible(self) -> Column:
        """Return which events go into the other table, or from silver into this one."""
        if self.source is not None:
            return self.source.eligible()
        return holds(self.parts.where) if self.parts.where else F.lit(True)

    def failed(self, key: str, events: DataFrame) -> Column:
        """Return the events on which the ``WHERE`` of a query over silver fails.

        Failures of other parts, and on rows of another gold table, are counted by :meth:`plan`.
        """
        return failed_within(None if self.source else self.parts.where, F.lit(False))

    def read(self, inputs: Inputs) -> DataFrame:
        """Recompute the query's input, the rows that it aggregates, from all rows of silver."""
        return self.source.of_all(inputs) if self.source else inputs.whole(OWN)

    def of_all(self, inputs: Inputs) -> DataFrame:
        """Compute the query over the rows that it reads."""
        return self.answer(self.read(inputs)).where(~F.col(GONE)).drop(_FAILED, GONE)

    def plan(self, batch: GoldBatch) -> MergePlan | None:
        """Compute the windows of the batch's events again, and replace the rows that differ."""
        if not batch.eligible:
            return None
        moment, start = self.parts.window.name, self.parts.start
        starts = batch.events.where(self.eligible())
        if self.source is not None:
            starts = starts.select(window_of(self.source.gold.window).alias(_WINDOW))
            starts = starts.select(F.col(f"{_WINDOW}.start").alias(start))
        touched = starts.select(self._cut().alias(_WINDOW)).distinct()
        windows, (first, last), count = checkpoint_with_span(batch.frames, touched, _WINDOW)
        windows = broadcast_few(windows, count)

        def within(rows: DataFrame, window: Column) -> DataFrame:
            """Select the rows in the batch's windows."""
            return rows.join(windows, on=window == F.col(_WINDOW), how="left_semi")

        rows = batch.stored(self.source.name) if self.source else batch.inputs.whole(OWN)
        rows = rows.where(between(start, (first, last + self.parts.period)))
        found = self.answer(within(rows, self._cut()))
        near = batch.stored(self.name).where(between(f"`{moment}`", (first, last)))
        stored = within(near, F.col(moment))
        changed = batch.frames.checkpoint(batch.stamped(self._differing(found, stored)))
        counted = changed.agg(F.count("*"), F.count_if(_FAILED)).collect()[0]
        if not counted[0]:
            return None
        on = [f"t.`{name}` <=> s.`{name}`" for name in self.identity]
        on.append(between(f"t.`{moment}`", (first, last)))
        return MergePlan(changed.drop(_FAILED), on=" AND ".join(on), failed=counted[1])

    def answer(self, rows: DataFrame) -> DataFrame:
        """Compute the query over the rows that it reads.

        Returns:
            The query's columns, null where an expression fails; ``_failed``, true where one does,
            in the column, in ``HAVING`` or in a row that it aggregates; and ``_gone``, true for a
            row that is only there to be counted, because ``WHERE`` or ``HAVING`` fails.
        """
        parts = self.parts
        found = self.aggregated(rows).withColumn(_HELD, _held(parts.having))
        fails = F.col(_HELD).isNull()
        found = found.where(F.col(_HELD).getField(VALUE) | fails | F.col(GONE))
        tried = {one.name: try_eval(one.computed) for one in parts.columns}
        struct = F.struct(*[column.alias(name) for name, column in tried.items()])
        found = found.withColumn(_TRIED, struct)
        each = {name: F.col(_TRIED).getField(name) for name in tried}
        failed = in_pairs(or_, [F.col(_FAILED), fails, *[one.isNull() for one in each.values()]])
        values = [one.getField(VALUE).alias(name) for name, one in each.items()]
        gone = F.col(GONE) | fails
        return found.select(*values, failed.alias(_FAILED), gone.alias(GONE))

    def aggregated(self, rows: DataFrame) -> DataFrame:
        """Group the rows that the query reads by the keys.

        Returns:
            The keys and the aggregates under their internal names; ``_failed``, true if an
            expression fails on one of the rows; and ``_gone``, true if ``WHERE`` fails on all of
            them. Rows of another gold table on which it fails are in no aggregate.
        """
        parts, window, measures = self.parts, self.parts.window, self._measured(rows)
        rows = rows.withColumn(_HELD, _held(parts.where))
        is_in, fails = F.col(_HELD).getField(VALUE), F.col(_HELD).isNull()
        rows = rows.where(is_in | fails if self.source else is_in)
        keys = {
            key.internal: try_eval(key.sql) for key in parts.keys if key.internal != window.internal
        }
        tried = keys | {name: tried_of(measure) for name, measure in measures.items()}
        each = rows.select(
            self._cut().alias(window.internal),
            _HELD,
            *[column.alias(name) for name, column in tried.items()],
        )
        failed = in_pairs(or_, [fails, *[F.col(name).isNull() for name in tried]])
        values = {name: F.col(name).getField(VALUE) for name in tried}
        values |= {name: F.when(~fails, values[name]) for name in measures}
        each = each.select(
            window.internal,
            _HELD,
            *[value.alias(name) for name, value in values.items()],
            failed.alias(_FAILED),
        )
        aggregates = [
            F.expr(_aggregate(call, measures)).alias(call.internal) for call in parts.calls
        ]
        grouped = each.groupBy(window.internal, *keys)
        gone = F.count(_HELD) == 0
        return grouped.agg(*aggregates, F.max(_FAILED).alias(_FAILED), gone.alias(GONE))

    def call_problems(self, rows: DataFrame) -> list[str]:
        """Return why aggregates cannot be computed, may overflow or depend on the rows' order."""
        if self._plan is None:
            return []
        table, problems = self._plan.typed(rows).table, []
        types = {one.name: (one.value_type or "").upper() for one in table.measures}
        overflowing = sum_problems(table)
        for call in self.parts.calls:
            name, what = _bare(call), f"{call.function}({call.argument})"
            if name in overflowing:
                problems.append(f"the argument of {what} {overflowing[name]}")
            elif _is_uncomputable(call.function, types.get(name, "")):
                problems.append(f"{what}: {call.function} takes no {types[name]}; cast it")
            elif call.function in ("sum", "avg") and types[name] in INEXACT_TYPES:
                problems.append(f"{what}: {CAST_TO_DECIMAL}")
        return problems

    @cached_property
    def _plan(self) -> GoldPlan | None:
        if not self._valued:
            return None
        measures = tuple(measure_of(call, _bare(call)) for call in self._valued)
        window = GlobalWindow(kind="global")
        return GoldPlan(GoldTable(name="query", window=window, measures=measures))

    def _measured(self, rows: DataFrame) -> dict[str, Measure]:
        """Return the aggregates as measures with the types of their arguments, by internal name."""
        if self._plan is None:
            return {}
        typed = {one.name: one for one in self._plan.typed(rows).table.measures}
        return {call.internal: typed[_bare(call)] for call in self._valued}

    def _cut(self) -> Column:
        """Return the query's window of a row that it reads."""
        unit, start = self.parts.window.unit, F.col(self.parts.start)
        return F.date_trunc(unit, start) if unit else start

    def _differing(self, found: DataFrame, stored: DataFrame) -> DataFrame:
        """Return the rows that are new or differ, and those that are gone, stored or not."""
        names = [column.name for column in self.parts.columns]
        sides = found.select(F.struct(*names, _FAILED, GONE).alias("s")).join(
            stored.select(F.struct(*names).alias("t")),
            on=[F.col(f"s.{name}").eqNullSafe(F.col(f"t.{name}")) for name in self.identity],
            how="full_outer",
        )
        # A row has a window's start, so that a missing side differs from any row.
        same = [F.col(f"s.{name}").eqNullSafe(F.col(f"t.{name}")) for name in names]
        is_missing, is_out = F.col("s").isNull(), F.col(f"s.{GONE}")
        values = [
            F.when(is_missing, F.col(f"t.{name}")).otherwise(F.col(f"s.{name}")).alias(name)
            for name in names
        ]
        failed = F.coalesce(F.col(f"s.{_FAILED}"), F.lit(False)).alias(_FAILED)
        changed = sides.where(~in_pairs(and_, same) | is_out)
        return changed.select(*values, (is_missing | is_out).alias(GONE), failed)


def _bare(call: Call) -> str:
    # A measure's name begins with a letter.
    return call.internal.lstrip("_")


def _held(condition: str | None) -> Column:
    """Evaluate a condition as by ``try_eval``; true without one."""
    if condition is None:
        return F.struct(F.lit(True).alias(VALUE))
    return try_eval(condition, "boolean")


def _is_uncomputable(function: str, kind: str) -> bool:
    """Return whether Spark has no such aggregate of a type (uppercase)."""
    if function in ("sum", "avg"):
        return kind.startswith(_NOT_ADDED)
    return function in ("min", "max") and not is_comparable(kind)


def _aggregate(call: Call, measures: dict[str, Measure]) -> str:
    """Return the aggregate over the values, which fails on no row."""
    name = call.internal
    match call.function:
        case "count":
            distinct = "DISTINCT " if call.distinct else ""
            return f"count({_HELD})" if call.argument == "*" else f"count({distinct}{name})"
        case "sum":
            return f"try_sum({name})"
        case "avg":
            kind = measures[name].value_type or ""
            # A mean of integers is added up in doubles, whose sum depends on the order.
            exact = f"try_divide(CAST(try_sum({name}) AS DOUBLE), count({name}))"
            return f"try_avg({name})" if kind.startswith("decimal") else exact
    return f"{call.function}({name})"
