"""Gold tables of windows, keys and measures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from pydantic import BaseModel
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidelake.columns import holds
from tidelake.config import GlobalWindow, GoldTable, HoppingWindow, SessionWindow, TumblingWindow
from tidelake.delta.access import load
from tidelake.delta.merge import merge_partials, merge_rows
from tidelake.delta.notes import Ends
from tidelake.gold import GONE
from tidelake.gold.measures import GoldPlan, aggregates_of, columns_of, to_values
from tidelake.gold.sessions import gap_of, regroup, session_id, to_sessions
from tidelake.gold.tolerances import sketches_of, tolerances
from tidelake.gold.windows import BOUNDS, to_partials
from tidelake.runtime.held import Held
from tidelake.runtime.targets.target import OWN, Inputs, Target, held_with_span, literal, stamped
from tidelake.spark import tuning
from tidelake.spark.engine import slots_of

_Bounds = tuple[datetime, datetime] | None


@dataclass(frozen=True)
class Aggregated(Target):
    """One row a window and key, or a session and key."""

    gold: GoldTable

    @cached_property
    def _plan(self) -> GoldPlan:
        return GoldPlan(self.gold)

    @property
    def definition(self) -> BaseModel:
        """The gold table."""
        return self.gold

    def eligible(self) -> Column:
        """Tell which events the table's ``where`` admits."""
        return holds(self.gold.where) if self.gold.where else F.lit(True)

    def failed(self, key: str, events: DataFrame) -> Column:
        """Tell where ``where`` or a measure fails."""
        return self._plan.typed(events).failed

    @property
    def ends(self) -> Ends | None:
        """A window ends with itself, a session when its gap has passed."""
        if isinstance(self.gold.window, GlobalWindow):
            return None
        if isinstance(self.gold.window, SessionWindow):
            return Ends("session_end", self.gold.window.gap)
        return Ends("window_end")

    @property
    def identity(self) -> tuple[str, ...]:
        """The window, or where the session begins, and the keys."""
        if isinstance(self.gold.window, GlobalWindow):
            return tuple(self.gold.keys)
        first = ("session_id",) if isinstance(self.gold.window, SessionWindow) else BOUNDS
        return (*first, *self.gold.keys)

    @property
    def moment(self) -> str | None:
        """Where the window or the session begins."""
        if isinstance(self.gold.window, GlobalWindow):
            return None
        return "session_start" if isinstance(self.gold.window, SessionWindow) else BOUNDS[0]

    @property
    def reach(self) -> timedelta | None:
        """A window's size; a session may begin long before an event of its own."""
        window = self.gold.window
        return window.size if isinstance(window, TumblingWindow | HoppingWindow) else None

    def tolerances(self, types: Mapping[str, str]) -> Mapping[str, str]:
        """Sums of doubles, means and sketches."""
        return tolerances(self.gold, types)

    @property
    def sketches(self) -> frozenset[str]:
        """Those of its measures."""
        return sketches_of(self.gold)

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
        stamp = {"generation": note["generation"], "batch": note["batch"]}
        if isinstance(self.gold.window, SessionWindow):
            salt = self._salt(to_values(events, typed), note["eligible"])
            sessions = to_sessions(events, self._plan, salt=salt)
            partials, bounds = held_with_span(sessions, "session_start", "session_end", hold)
            within = _near(bounds, gap_of(self.gold))
            stored = load(events.sparkSession, self.table).alias("t")
            changed = self._ordered(regroup(partials, stored.where(within), gold))
            on = f"t.session_id = s.session_id AND {within}"
            merge_rows(hold.now(stamped(changed, **stamp)), self.table, on=on, note=note)
        else:
            partials, within = to_partials(events, self._plan), ""
            if isinstance(self.gold.window, GlobalWindow):
                partials = hold.now(partials)
            else:
                partials, bounds = held_with_span(partials, BOUNDS[0], BOUNDS[0], hold)
                within = _within(bounds)
            source = stamped(self._ordered(partials), **stamp)
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


def _within(bounds: _Bounds) -> str:
    """Bound the batch's windows by literals over ``t``."""
    first, last = _filled(bounds)
    return f"t.{BOUNDS[0]} >= {literal(first)} AND t.{BOUNDS[0]} <= {literal(last)}"


def _near(bounds: _Bounds, gap: timedelta) -> str:
    """Bound the stored sessions that the batch's could touch by literals over ``t``."""
    first, last = _filled(bounds)
    return f"t.session_end >= {literal(first - gap)} AND t.session_start <= {literal(last + gap)}"


def _filled(bounds: _Bounds) -> tuple[datetime, datetime]:
    if bounds is None:
        raise ValueError("a batch without rows has no bounds")
    return bounds
