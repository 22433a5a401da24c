"""Group events into sessions and merge them with the stored sessions.

The next event belongs to a session if ``event_time - session_end <= gap``. A late event may extend
a session, merge two or start a new one. Stored sessions that are absorbed are deleted, and so are
those whose start moves, since their id changes.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Literal

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from tidelake.columns import literal
from tidelake.config import GoldTable, SessionWindow
from tidelake.config.gold_definitions import FinalAfter
from tidelake.gold.kinds import OWN, GoldBatch, Inputs
from tidelake.gold.measures import GoldPlan, shown_of, states_of, to_values, with_shown
from tidelake.gold.merge_plan import GONE, MergePlan, checkpoint_with_span
from tidelake.gold.windows import Aggregated
from tidelake.spark import tuning

_SALT = "_salt"
_BOUNDS = ("session_start", "session_end")
_Form = Literal["partial", "combine"]


class Sessions(Aggregated):
    """One row per session and key. A session may begin long before one of its events."""

    def __init__(self, name: str, place: str, gold: GoldTable) -> None:
        """Store the definition; a session ends once the gap has passed."""
        super().__init__(name, place, gold)
        self.identity = ("session_id", *gold.keys)
        self._leading = (*gold.keys, "session_id", *_BOUNDS)
        self.moment, self.ends = "session_start", FinalAfter.after_last("session_end", gap_of(gold))

    @property
    def alike(self) -> tuple[str, ...]:
        """The keys too, whose text is part of the id: see :func:`session_id`."""
        return (*self.gold.keys, *super().alike)

    def of_all(self, inputs: Inputs) -> DataFrame:
        """Compute the sessions of all of silver."""
        sessions = to_sessions(inputs.whole(OWN), self.columns)
        return self.ordered(sessions.withColumn("session_id", session_id(self.gold)))

    def plan(self, batch: GoldBatch) -> MergePlan | None:
        """Plan the MERGE of the batch's sessions with the stored ones.

        Reads the stored sessions of the same keys that are at most the gap away from one of the
        batch's. Those that are absorbed, and those whose start and so whose id changes, are
        deleted.
        """
        if not batch.eligible:
            return None
        events, gap = batch.events, gap_of(self.gold)
        typed = self.columns.typed(events)
        salt = self.salt(to_values(events, typed), batch.eligible, batch.slots)
        sessions = to_sessions(events, self.columns, salt=salt)
        if batch.is_first:
            return self.first(batch, sessions.withColumn("session_id", session_id(self.gold)))
        partials, (first, last), _ = checkpoint_with_span(batch.frames, sessions, *_BOUNDS)
        # Bounds of the stored sessions that may be within the gap of a new one.
        within = (
            f"t.session_end >= {literal(first - gap)} AND t.session_start <= {literal(last + gap)}"
        )
        stored = batch.stored(self.name).alias("t").where(within)
        changed = regroup(partials, stored, typed.table)
        rows, failed = self.materialized(batch, changed, stored.schema, GONE)
        return MergePlan(rows, on=f"{matches(self.gold)} AND {within}", failed=failed)

    def salt(self, events: DataFrame, count: int, slots: int) -> timedelta | None:
        """Return the length of time slices for splitting skewed keys; None if not needed.

        Keys are split if one has too many of the ``count`` events for one task of ``slots``.
        """
        if count < tuning.SPLIT_EVENTS or slots <= tuning.SPLIT_COST:
            return None
        micros = F.unix_micros("event_time")
        by_key = events.groupBy(*self.gold.keys).agg(
            F.count("*").alias("_events"), F.min(micros).alias("_low"), F.max(micros).alias("_high")
        )
        found = by_key.agg(F.max("_events"), F.min("_low"), F.max("_high")).collect()[0]
        if found[0] <= count * tuning.SPLIT_COST / slots:
            return None
        micros_a_slice = (found[2] - found[1]) // (tuning.SPLIT_STRETCHES * slots)
        return max(timedelta(microseconds=micros_a_slice), gap_of(self.gold))


def gap_of(table: GoldTable) -> timedelta:
    """Return a session table's gap."""
    if not isinstance(table.window, SessionWindow):
        raise TypeError(f"{table.name} has no session window")
    return table.window.gap


def to_sessions(events: DataFrame, plan: GoldPlan, *, salt: timedelta | None = None) -> DataFrame:
    """Group a batch's events into sessions.

    ``salt`` is the length of the event-time slices that each key is split into first. With None,
    one task sorts all events of a key.

    Returns:
        The keys, ``session_start``, ``session_end``, the state columns and the columns shown.
    """
    typed = plan.typed(events)
    table, values = typed.table, to_values(events, typed)
    instants = values.withColumns(dict.fromkeys(_BOUNDS, F.col("event_time")))
    if salt is None:
        return _group(instants, table, form="partial")
    slice_number = F.floor(F.unix_micros("event_time") / (salt // timedelta(microseconds=1)))
    sliced = instants.withColumn(_SALT, slice_number)
    # Sessions within a slice are partial: those within the gap of each other are merged.
    return _group(_group(sliced, table, form="partial", salt=_SALT), table, form="combine")


def regroup(partials: DataFrame, stored: DataFrame, table: GoldTable) -> DataFrame:
    """Merge a batch's sessions with the stored sessions within the gap.

    Stored sessions of a key are more than a gap apart, so only those directly within the gap of a
    new session can be merged.

    Returns:
        The rows to write: ``session_id``, keys, bounds and states, with ``_gone`` true for stored
        sessions to delete.
    """
    touched = _touched(stored, partials, table)
    columns = [*table.keys, *_BOUNDS]
    states = [state.name for state in states_of(table)]
    combined = partials.select(*columns, *states).unionByName(touched.select(*columns, *states))
    merged = _group(combined, table, form="combine").withColumn("session_id", session_id(table))
    kept = merged.select(*table.keys, "session_id").alias("s")
    gone = touched.alias("t").join(kept, on=F.expr(matches(table)), how="left_anti")
    written = ["session_id", *columns, *states, *[shown.name for shown in shown_of(table)]]
    return (
        merged.select(*written)
        .withColumn(GONE, F.lit(False))
        .unionByName(gone.select(*written).withColumn(GONE, F.lit(True)))
    )


def matches(table: GoldTable) -> str:
    """Return the SQL condition that ``t`` and ``s`` are one session, before and after a batch."""
    keys = [f"t.{key} <=> s.{key}" for key in table.keys]
    return " AND ".join(["t.session_id = s.session_id", *keys])


def session_id(table: GoldTable) -> Column:
    """Return a hash of the keys and the start, so that recomputed sessions keep their id.

    Keys are hashed as JSON, which has times in milliseconds: sessions of keys that differ by less
    may have one id.
    """
    start = F.unix_micros("session_start").alias("session_start")
    return F.md5(F.to_json(F.struct(*table.keys, start)))


def _touched(stored: DataFrame, partials: DataFrame, table: GoldTable) -> DataFrame:
    gap = F.lit(gap_of(table))
    # No column of a table has one of these names.
    named = {f"_new_{number}": key for number, key in enumerate(table.keys)}
    named |= {f"_new_{bound}": bound for bound in _BOUNDS}
    new = partials.select(*[F.col(key).alias(name) for name, key in named.items()])
    near = (F.col("session_start") <= F.col("_new_session_end") + gap) & (
        F.col("_new_session_start") <= F.col("session_end") + gap
    )
    same = [F.col(key).eqNullSafe(F.col(f"_new_{n}")) for n, key in enumerate(table.keys)]
    return stored.join(new, on=[*same, near], how="left_semi")


def _group(rows: DataFrame, table: GoldTable, *, form: _Form, salt: str | None = None) -> DataFrame:
    """Assign events or partial sessions to sessions by gaps, and aggregate each session."""
    gap = F.lit(gap_of(table))
    keys = [*table.keys, *([salt] if salt else [])]
    by_start = Window.partitionBy(*keys).orderBy("session_start")
    before = by_start.rowsBetween(Window.unboundedPreceding, -1)
    reached = F.max("session_end").over(before)
    starts = F.when(F.col("session_start") <= reached + gap, 0).otherwise(1)
    numbered = rows.withColumn("_starts", starts).withColumn(
        "_session", F.sum("_starts").over(by_start.rowsBetween(Window.unboundedPreceding, 0))
    )
    shown = shown_of(table) if form == "partial" else ()
    grouped = numbered.groupBy(*keys, "_session").agg(
        F.min("session_start").alias("session_start"),
        F.max("session_end").alias("session_end"),
        *[F.expr(getattr(state, form)).alias(state.name) for state in states_of(table)],
        *[F.expr(one.like).alias(one.name) for one in shown],
    )
    if form == "combine":
        grouped = with_shown(grouped, table)
    return grouped.drop("_session")
