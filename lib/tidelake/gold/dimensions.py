"""Convert a changelog into dimension tables: versions per key (SCD type 2) or the latest state.

The version valid at an instant is the change with the highest sequence among the changes up to that
instant. Changes that arrive out of order are therefore inserted at their place, and a change that
was superseded before its event time is never valid. Of changes with one sequence and one time the
last is the one with the largest event id, or, where the ids are record ids, the one furthest on in
its partition or file.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from tidelake.config import DimensionSpec
from tidelake.gold.kinds import OWN, Expression, GoldBatch, GoldKind, Inputs
from tidelake.gold.merge_plan import GONE, MergePlan
from tidelake.names import IS_DELETE, SEQUENCE

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
        """Compute the dimension's rows from all changes of their keys.

        Returns:
            Keys, columns, ``_change`` (the change's record id) and ``_gone``, true for deletes.
            For the latest state also ``_changed_at``. For versions ``valid_from`` (inclusive),
            ``valid_to`` (exclusive; null if current) and ``is_current``; ``_gone`` is also true for
            changes that were never valid.
        """
        order = [F.col(SEQUENCE), F.col("event_time"), *_arrival()]
        by_sequence = Window.partitionBy(*self.spec.key).orderBy(*order)
        after = by_sequence.rowsBetween(1, Window.unboundedFollowing)
        # When a change is superseded by one later in sequence, or null.
        rows = changes.withColumn("_overtaken_at", F.min("event_time").over(after))
        ended, began, deletes = F.col("_overtaken_at"), F.col("event_time"), F.col(IS_DELETE)
        columns = [F.col(name) for name in (*self.spec.key, *self.columns)]
        change = F.col("record_id").alias(CHANGE)
        if not self.history:
            return rows.where(ended.isNull()).select(
                *columns, began.alias(CHANGED_AT), change, deletes.alias(GONE)
            )
        return rows.select(
            *columns,
            began.alias(VALID_FROM),
            ended.alias(VALID_TO),
            ended.isNull().alias(IS_CURRENT),
            change,
            (deletes | F.coalesce(ended <= began, F.lit(False))).alias(GONE),
        )


def _arrival() -> list[Column]:
    """Return what orders changes of one sequence and time: their ids, or their positions.

    As texts, offset 9 would follow offset 10.
    """
    numbers = F.split(F.regexp_extract("record_id", "((?::[0-9]+)*+)$", 1), ":")
    return [
        F.when(F.col("event_id") != F.col("record_id"), F.col("event_id")),
        F.regexp_replace("record_id", "(?::[0-9]+)++$", ""),
        F.transform(numbers, lambda number: number.try_cast("bigint")),
        F.col("record_id"),
    ]
