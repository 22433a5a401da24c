"""Gold tables of windows, keys and measures."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from pydantic import BaseModel
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidelake.config import GlobalWindow, GoldTable, SessionWindow
from tidelake.gold import GONE
from tidelake.gold.measures import columns_of, states_of
from tidelake.gold.sessions import gap_of, regroup, session_id, to_sessions
from tidelake.gold.windows import BOUNDS, to_partials
from tidelake.runtime.held import Hold
from tidelake.runtime.targets.target import OWN, Inputs, Target, literal, span, stamped
from tidelake.sinks.finality import Ends
from tidelake.sinks.merge import merge_partials, merge_rows


@dataclass(frozen=True)
class Aggregated(Target):
    """One row a window and key, or a session and key."""

    gold: GoldTable

    @property
    def definition(self) -> BaseModel:
        """The gold table."""
        return self.gold

    @property
    def eligible(self) -> str | None:
        """The table's ``where``."""
        return self.gold.where

    @property
    def ends(self) -> Ends | None:
        """A window ends with itself, a session when its gap has passed."""
        if isinstance(self.gold.window, GlobalWindow):
            return None
        if isinstance(self.gold.window, SessionWindow):
            return Ends("session_end", self.gold.window.gap)
        return Ends("window_end")

    def expressions(self) -> dict[str, tuple[str, Column]]:
        """Give ``where`` and the measures."""
        where = self.gold.where
        named = {"where": F.count_if(F.expr(where))} if where else {}
        named |= {
            f"measures.{state.name.lstrip('_')}": F.expr(state.partial)
            for state in states_of(self.gold)
        }
        return {path: (OWN, column) for path, column in named.items()}

    def of_all(self, inputs: Inputs) -> DataFrame:
        """Aggregate all of silver."""
        events = self._kept(inputs.whole(OWN))
        if isinstance(self.gold.window, SessionWindow):
            sessions = to_sessions(events, self.gold)
            return self._ordered(sessions.withColumn("session_id", session_id(self.gold)))
        return self._ordered(to_partials(events, self.gold))

    def merge(self, inputs: Inputs, note: dict[str, Any], hold: Hold) -> None:
        """Merge the batch's partial aggregates."""
        if not note["eligible"]:
            self.close_unchanged(inputs, note)
            return
        events = self._kept(inputs.taken[OWN])
        stamp = {"generation": note["generation"], "batch": note["batch"]}
        if isinstance(self.gold.window, SessionWindow):
            partials = hold(to_sessions(events, self.gold))
            within = _near(partials, gap_of(self.gold))
            stored = events.sparkSession.read.format("delta").load(str(self.table.path)).alias("t")
            changed = self._ordered(regroup(partials, stored.where(within), self.gold))
            on = f"t.session_id = s.session_id AND {within}"
            merge_rows(hold(stamped(changed, **stamp)), self.table, on=on, note=note)
        else:
            partials = hold(to_partials(events, self.gold))
            within = "" if isinstance(self.gold.window, GlobalWindow) else _within(partials)
            source = stamped(self._ordered(partials), **stamp)
            merge_partials(source, self.table, self.gold, within=within, note=note)

    def _kept(self, events: DataFrame) -> DataFrame:
        return events.where(self.gold.where) if self.gold.where else events

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


def _within(partials: DataFrame) -> str:
    """Bound the batch's windows by literals over ``t``."""
    first, last = _filled(partials, BOUNDS[0], BOUNDS[0])
    return f"t.{BOUNDS[0]} >= {literal(first)} AND t.{BOUNDS[0]} <= {literal(last)}"


def _near(sessions: DataFrame, gap: timedelta) -> str:
    """Bound the stored sessions that the batch's could touch by literals over ``t``."""
    first, last = _filled(sessions, "session_start", "session_end")
    return f"t.session_end >= {literal(first - gap)} AND t.session_start <= {literal(last + gap)}"


def _filled(rows: DataFrame, low: str, high: str) -> tuple[datetime, datetime]:
    bounds = span(rows, low, high)
    if bounds is None:
        raise ValueError("a batch without rows has no bounds")
    return bounds
