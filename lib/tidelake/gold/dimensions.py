"""Turn a changelog into versions: what held for a key at which time, and what holds now.

At an instant the version holds that is highest in sequence among the changes up to that instant.
So a change that comes out of order finds its place, and one that was overtaken before it began
never holds.
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
    """Follows from all changes of a key; a batch computes its keys anew."""

    place = "dimension"

    def __init__(
        self, name: str, spec: DimensionSpec, columns: tuple[str, ...], *, history: bool = False
    ) -> None:
        """Take the columns beside the key.

        With ``history`` it has a row for each change that held for some time, otherwise one for
        each key that is not deleted, whenever that began. A late change may come for any row.
        """
        self.name, self.definition, self.spec = name, spec, spec
        self.identity = (CHANGE,) if history else tuple(spec.key)
        self.moment = VALID_FROM if history else None
        self.columns, self.history = columns, history

    def expressions(self) -> dict[str, Expression]:
        """Return the key."""
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
        """Compute rows with ``_gone`` from changes."""
        replay = versions if self.history else latest
        return replay(changes, self.spec.key, self.columns)


def latest(changes: DataFrame, keys: Sequence[str], columns: Sequence[str]) -> DataFrame:
    """Give each key its last change in sequence, from all changes of the keys.

    Returns:
        Keys, columns, ``_changed_at``, ``_change`` (the change's record id) and ``_gone``, true
        where the last change deletes.
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
    """Give each key its versions, from all changes of the keys.

    Returns:
        Keys, columns, ``valid_from`` (included), ``valid_to`` (excluded; null: until now),
        ``is_current``, ``_change`` and ``_gone``, true for deletions and for changes that never
        hold.
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
    """Tell of each change from when on a later one in sequence holds instead."""
    by_sequence = Window.partitionBy(*keys).orderBy(SEQUENCE, "event_time", "event_id", "record_id")
    after = by_sequence.rowsBetween(1, Window.unboundedFollowing)
    return changes.withColumn("_overtaken_at", F.min("event_time").over(after))
