"""What a gold table follows from, and what a batch changes in it: the MERGE, as data.

Each kind of table is a :class:`GoldKind` in a module of its own. It derives the table's rows from
all of silver, and from a batch the rows that the batch changes. :mod:`tidelake.runtime.gold` knows
the stored tables and merges.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple, Protocol

from pydantic import BaseModel
from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F

from tidelake.columns import stamped
from tidelake.config.gold_definitions import Ends
from tidelake.instants import from_micros

# The key of the pipeline's own silver among the inputs; others go by their table's name.
OWN = "silver"
# Of a row to merge: the table holds it no more.
GONE = "_gone"
# What an event has whatever the definition selects.
_ALWAYS = {"record_id", "event_id", "event_time"}


@dataclass(frozen=True)
class Inputs:
    """The silver tables that gold follows: the rows that are new with the batch, by input.

    ``whole`` gives all rows of an input up to the end of the batch.
    """

    taken: Mapping[str, DataFrame]
    whole: Callable[[str], DataFrame]


class FrameCheckpoints(Protocol):
    """Checkpoints frames that a batch reads more than once, until it ends."""

    def checkpoint(self, frame: DataFrame) -> DataFrame:
        """Keep the rows as soon as something reads them."""

    def checkpoint_now(self, frame: DataFrame) -> DataFrame:
        """Keep the rows at once, in a job that completes their observations."""


@dataclass(frozen=True)
class GoldBatch:
    """A batch as a table's kind sees it.

    Attributes:
        inputs: The events, by input.
        eligible: How many of the pipeline's own go into the table.
        stored: Reads the rows of a gold table of the pipeline, by its name.
        generation: That the batch is of.
        number: Of the batch.
        slots: Tasks that run at a time.
        frames: Checkpoints frames.
    """

    inputs: Inputs
    eligible: int
    stored: Callable[[str], DataFrame]
    generation: str
    number: int
    slots: int
    frames: FrameCheckpoints

    @property
    def events(self) -> DataFrame:
        """The new events of the pipeline's own silver."""
        return self.inputs.taken[OWN]

    def stamped(self, rows: DataFrame) -> DataFrame:
        """Add the batch that rows come from."""
        return stamped(rows, generation=self.generation, batch=self.number)


@dataclass(frozen=True)
class MergePlan:
    """One MERGE; in its SQL ``t`` is the stored table, ``s`` the rows.

    Attributes:
        rows: Kept rows with ``_generation``, ``_batch`` and, where rows may vanish, ``_gone``.
        on: Finds a row's earlier state, bounded by literals over ``t`` where rows have a time: in a
            MERGE only conditions on the target alone let Delta skip files.
        changed: A stored row for which it is false stays as it is.
        update: What a matched row becomes, by column; None: the row of ``s``.
    """

    rows: DataFrame
    on: str
    changed: str = "true"
    update: Mapping[str, str] | None = None


class Expression(NamedTuple):
    """An expression of a definition: over which input, its SQL, whether it is a condition."""

    key: str
    sql: str
    is_condition: bool = False


class GoldKind(ABC):
    """What a table follows from.

    Attributes:
        name: The table's logical name.
        place: Its definition's place in the pipeline file.
        definition: What it is filled by.
        identity: The columns of its key.
        moment: The instant of a row; None where it has none.
        ends: When a row ends; None where rows never do.
        reach: How far before an event a row that it changes may lie; None: any time. With a reach,
            a row follows from events at its moment and later alone.
        sources: The inputs that it reads.
    """

    name: str
    place: str
    definition: BaseModel
    identity: tuple[str, ...]
    moment: str | None = None
    ends: Ends | None = None
    reach: timedelta | None = None
    sources: tuple[str, ...] = (OWN,)

    @abstractmethod
    def expressions(self) -> dict[str, Expression]:
        """Return each expression of the definition, by its place."""

    @abstractmethod
    def of_all(self, inputs: Inputs) -> DataFrame:
        """Compute the table's rows from all of silver."""

    @abstractmethod
    def plan(self, batch: GoldBatch) -> MergePlan | None:
        """Return what a batch changes; None for nothing."""

    def eligible(self) -> Column:
        """Return which events of the pipeline's own silver go into it."""
        return F.lit(True)

    def failed(self, key: str, events: DataFrame) -> Column:
        """Return on which events of an input, ``key``, an expression of the definition fails."""
        return F.lit(False)

    def tolerances(self, types: Mapping[str, str]) -> Mapping[str, str]:
        """Return how far values computed anew may differ: see :func:`.measures.tolerances`."""
        return {}

    @property
    def unhashed(self) -> frozenset[str]:
        """The columns that only tolerances read."""
        return frozenset()

    def with_terms(self, types: Mapping[str, str]) -> GoldKind:
        """Return the kind that computes what its tolerances need beside the table's columns."""
        return self


def columns_read(kinds: Collection[GoldKind], columns: Collection[str]) -> list[str]:
    """Return those of silver's columns that a batch of some tables may read, in their order.

    A column that an expression uses stands in it by its name, so a name that does not is not read.
    All columns where an expression may mean all of them.
    """
    written = " ".join(one.sql for kind in kinds for one in kind.expressions().values())
    if re.search(r"[(,.]\s*\*", re.sub(r"(?i)\bcount\s*\(\s*\*\s*\)", "", written)):
        return list(columns)
    words = {word.lower() for word in re.findall(r"\w+", written)}
    words |= _ALWAYS | {name.lower() for kind in kinds for name in kind.identity}
    return [name for name in columns if name.lower() in words or not re.fullmatch(r"\w+", name)]


def span(rows: DataFrame, low: str, high: str) -> tuple[datetime, datetime] | None:
    """Return the first and the last instant of two columns (UTC); None without rows."""
    return _instants(rows.agg(*_bounds(low, high)).collect()[0].asDict())


def held_with_span(
    rows: DataFrame, low: str, high: str, frames: FrameCheckpoints
) -> tuple[DataFrame, tuple[datetime, datetime]]:
    """Keep rows, of which there are some, at once, and return their span, in one job."""
    told = Observation()
    kept = frames.checkpoint_now(rows.observe(told, *_bounds(low, high)))
    bounds = _instants(told.get)
    if bounds is None:
        raise ValueError("a batch without rows has no bounds")
    return kept, bounds


def _bounds(low: str, high: str) -> list[Column]:
    return [F.min(F.unix_micros(low)).alias("first"), F.max(F.unix_micros(high)).alias("last")]


def _instants(found: Mapping[str, int | None]) -> tuple[datetime, datetime] | None:
    first, last = from_micros(found.get("first")), from_micros(found.get("last"))
    return None if first is None or last is None else (first, last)
