"""Convert a changelog into dimension tables: versions per key (SCD type 2) or the latest state.

The version valid at an instant is the change with the highest sequence among the changes up to that
instant. Changes that arrive out of order are therefore inserted at their place, and a change that
was superseded before its event time is never valid.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from tidelake.config import DimensionSpec
from tidelake.config.names import IS_DELETE, SEQUENCE
from tidelake.gold.kinds import GONE, OWN, Expression, GoldBatch, GoldKind, Inputs, MergePlan

CHANGE, CHANGED_AT = "_change", "_changed_at"
VALID_FROM, VALID_TO, IS_CURRENT = "valid_from", "valid_to", "is_current"


class Dimension(GoldKind):
    """A dimension, computed from all changes of a key; a batch recomputes its keys."""

    place = "dimension"

    def __init__(
        self, name: str, spec: DimensionSpec, columns: tuple[str, ...], *, history: bool = False
    ) -> None:
        """Store the definition; ``columns`` are those besides the key.

        With ``history`` there is one row per change that was ever valid, otherwise one per key that
        is not deleted. A late change may affect any row.
        """
        self.name, self.definition, self.spec = name, spec, spec
        self.identity = (CHANGE,) if history else tuple(spec.key)
        self.moment = VALID_FROM if history else None
        self.columns, self.history = columns, history

    def expressions(self) -> dict[str, Expression]:
        """Return the key columns."""
        return {f"key.{name}": Expression(OWN, f"`{name}`") for name in self.spec.key}

    def of_all(self, inputs: Inputs) -> DataFrame:
        """Replay all changes."""
        return self._rows(inputs.whole(OWN)).where(~F.col(GONE)).drop(GONE)

    def plan(self, batch: GoldBatch) -> MergePlan | None:
        """Replay all changes of the batch's keys."""
        if not batch.eligible:
            return None
        keys = batch.events.select(*self.spec.key).distinct()
        changes = batch.inputs.whole(OWN).join(keys, on=list(self.spec.key), how="left_semi")
        return MergePlan(
            batch.frames.checkpoint(batch.stamped(self._rows(changes))),
            on=" AND ".join(f"t.{name} = s.{name}" for name in self.identity),
            changed=(
                f"NOT t.{VALID_TO} <=> s.{VALID_TO}"
                if self.history
                else f"t.{CHANGE} <> s.{CHANGE}"
            ),
        )

    def _rows(self, changes: DataFrame) -> DataFrame:
        """Compute the dimension's rows with ``_gone`` from changes."""
        replay = versions if self.history else latest
        return replay(changes, self.spec.key, self.columns)


def latest(changes: DataFrame, keys: Sequence[str], columns: Sequence[str]) -> DataFrame:
    """Return each key's last change in sequence, from all changes of the keys.

    Returns:
        Keys, columns, ``_changed_at``, ``_change`` (the change's record id) and ``_gone``, true if
        the last change is a delete.
    """
    rows = _in_order(changes, keys).where(F.col("_overtaken_at").isNull())
    return rows.select(
        *keys,
        *columns,
        F.col("event_time").alias(CHANGED_AT),
        F.col("record_id").alias(CHANGE),
        F.col(IS_DELETE).alias(GONE),
    )


def versions(changes: DataFrame, keys: Sequence[str], columns: Sequence[str]) -> DataFrame:
    """Return each key's versions, from all changes of the keys.

    Returns:
        Keys, columns, ``valid_from`` (inclusive), ``valid_to`` (exclusive; null if current),
        ``is_current``, ``_change`` and ``_gone``, true for deletes and for changes that were never
        valid.
    """
    ended = F.col("_overtaken_at")
    rows = _in_order(changes, keys)
    return rows.select(
        *keys,
        *columns,
        F.col("event_time").alias(VALID_FROM),
        ended.alias(VALID_TO),
        ended.isNull().alias(IS_CURRENT),
        F.col("record_id").alias(CHANGE),
        (F.col(IS_DELETE) | F.coalesce(ended <= F.col("event_time"), F.lit(False))).alias(GONE),
    )


def _in_order(changes: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Add ``_overtaken_at``: when a change is superseded by one later in sequence, or null."""
    by_sequence = Window.partitionBy(*keys).orderBy(SEQUENCE, "event_time", "event_id", "record_id")
    after = by_sequence.rowsBetween(1, Window.unboundedFollowing)
    return changes.withColumn("_overtaken_at", F.min("event_time").over(after))
