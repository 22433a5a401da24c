"""The MERGE that a batch causes in a gold table, as data, and its bounds.

A batch's MERGE touches only stored rows in reach of the batch's events: each kind of table computes
the range of times that these rows can have, and writes it as literals into :attr:`MergePlan.on`.
:mod:`tidelake.delta.merge` executes the plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidelake.instants import from_micros
from tidelake.spark import tuning

# Column of rows to merge: true if the row is to be deleted.
GONE = "_gone"


@dataclass(frozen=True)
class MergePlan:
    """A MERGE; in its SQL, ``t`` is the stored table and ``s`` the source rows.

    Attributes:
        rows: Rows with ``_generation``, ``_batch`` and, if rows may be deleted, ``_gone``.
            Checkpointed, except those of a first batch: an append reads them once.
        on: The match condition, with literal bounds on ``t`` if rows have a time: in a MERGE, Delta
            skips files only by conditions on the target alone. Empty for a first batch.
        changed: Matched rows for which this is false are not updated.
        update: New values of a matched row, by column; None to take the row of ``s``.
        failed: Number of rows on which the expression of a derived column fails.
    """

    rows: DataFrame
    on: str
    changed: str = "true"
    update: Mapping[str, str] | None = None
    failed: int = 0


class FrameCheckpoints(Protocol):
    """Checkpoints frames that a batch reads more than once, until the batch ends."""

    def checkpoint(self, frame: DataFrame) -> DataFrame:
        """Checkpoint lazily, when the rows are first read."""

    def materialize(
        self, frame: DataFrame, *measures: Column
    ) -> tuple[DataFrame, Mapping[str, Any]]:
        """Checkpoint eagerly, in a job that also computes aggregates, returned by name."""


def span(rows: DataFrame, column: str) -> tuple[datetime, datetime] | None:
    """Return the minimum and the maximum of a column (UTC); None without rows."""
    return _instants(rows.agg(*_bounds(column, column)).collect()[0].asDict())


def checkpoint_with_span(
    frames: FrameCheckpoints, rows: DataFrame, low: str, high: str | None = None
) -> tuple[DataFrame, tuple[datetime, datetime], int]:
    """Checkpoint rows; in the same job, find their bounds and count them.

    There must be at least one row.

    Returns:
        The rows, the minimum of ``low`` with the maximum of ``high`` (of ``low`` without it), and
        the number of rows.
    """
    counted = F.count("*").alias("rows")
    kept, found = frames.materialize(rows, *_bounds(low, high or low), counted)
    bounds = _instants(found)
    if bounds is None:
        raise ValueError("a batch without rows has no bounds")
    return kept, bounds, found["rows"]


def broadcast_few(rows: DataFrame, count: int) -> DataFrame:
    """Have joins broadcast the rows to every task, unless they are too many."""
    return F.broadcast(rows) if count <= tuning.BROADCAST else rows


def _bounds(low: str, high: str) -> list[Column]:
    return [F.min(F.unix_micros(low)).alias("first"), F.max(F.unix_micros(high)).alias("last")]


def _instants(found: Mapping[str, int | None]) -> tuple[datetime, datetime] | None:
    first, last = from_micros(found.get("first")), from_micros(found.get("last"))
    return None if first is None or last is None else (first, last)
