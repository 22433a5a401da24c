"""What every table that gold fills has in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic import BaseModel
from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F

from tidelake.delta.access import load
from tidelake.delta.append import append
from tidelake.delta.notes import Ends, definition_note, final_note
from tidelake.delta.positions import Position
from tidelake.delta.tables import Table
from tidelake.instants import from_micros
from tidelake.runtime.held import Held

# The key of the pipeline's own silver among the inputs; others go by their table's name.
OWN = "silver"


@dataclass(frozen=True)
class Inputs:
    """The silver tables that gold follows.

    Attributes:
        taken: The rows that are new with the batch, by input.
        whole: Gives all rows of an input up to the end of the batch.
    """

    taken: Mapping[str, DataFrame]
    whole: Callable[[str], DataFrame]


@dataclass(frozen=True)
class Target(ABC):
    """One table that gold's batches close.

    Attributes:
        table: Where it is.
        place: Its definition's place in the pipeline file.
    """

    table: Table
    place: str

    @property
    @abstractmethod
    def definition(self) -> BaseModel:
        """What it is filled by."""

    def eligible(self) -> Column:
        """Tell which events of the pipeline's own silver go into it."""
        return F.lit(True)

    def failed(self, key: str, events: DataFrame) -> Column:
        """Tell the events on which an expression of the definition fails.

        Args:
            key: The input that they are of.
            events: Rows of it.
        """
        return F.lit(False)

    @property
    @abstractmethod
    def ends(self) -> Ends | None:
        """When a row ends; None where rows never do."""

    @property
    @abstractmethod
    def identity(self) -> tuple[str, ...]:
        """The columns that tell its rows apart."""

    @property
    @abstractmethod
    def moment(self) -> str | None:
        """The instant at which a row lies; None where it has none."""

    @property
    def reach(self) -> timedelta | None:
        """How far before an event a row that it changes may lie; None: any time.

        With a reach, a row follows from events at its moment and later alone.
        """
        return None

    def tolerances(self, types: Mapping[str, str]) -> Mapping[str, str]:
        """Say how far values computed anew may differ: see :mod:`tidelake.gold.tolerances`."""
        return {}

    @property
    def sketches(self) -> frozenset[str]:
        """The columns that hold sketches."""
        return frozenset()

    @property
    def inputs(self) -> tuple[str, ...]:
        """The inputs that it needs."""
        return (OWN,)

    @abstractmethod
    def expressions(self) -> dict[str, tuple[str, Column]]:
        """Give each expression of the definition by its place, with the input that it is over."""

    @abstractmethod
    def of_all(self, inputs: Inputs) -> DataFrame:
        """Compute the table's rows from all of silver."""

    @abstractmethod
    def merge(self, inputs: Inputs, note: dict[str, Any], hold: Held) -> None:
        """Bring the table up to date with a batch, in one commit that carries the note."""

    def books(self, until: Mapping[str, Position], settled: datetime | None) -> dict[str, Any]:
        """Write the part of a commit's note that follows from where the batch ends.

        Args:
            until: The position in each input.
            settled: From :func:`~tidelake.delta.notes.settled_until`.
        """
        return {
            "until": {key: list(position) for key, position in until.items()},
            **definition_note(self.definition),
            **final_note(self.ends, settled),
        }

    def close_unchanged(self, inputs: Inputs, note: dict[str, Any]) -> None:
        """Commit no row, so that the table keeps up with the batches."""
        spark = inputs.taken[OWN].sparkSession
        stored = load(spark, self.table)
        append(stored.limit(0), self.table, note, surely_filled=False)


@dataclass(frozen=True)
class Counted:
    """How many events of a batch contribute to each gold table.

    Attributes:
        rows: Events of the pipeline's own silver.
        targets: By table, in order: ``eligible``, those that go into it, and ``failed``, those of
            all its inputs on which an expression failed: they contribute null there.
    """

    rows: int
    targets: Sequence[Mapping[str, int]]

    @classmethod
    def of(cls, targets: Sequence[Target], found: Sequence[Mapping[str, Any]]) -> Counted:
        """Add up what :func:`contributions` counted in each input."""
        total = Counter[str]()
        for counts in found:
            total.update({name: int(count or 0) for name, count in counts.items()})
        return cls(
            total["_rows"],
            [
                {"eligible": total[f"_eligible_{number}"], "failed": total[f"_failed_{number}"]}
                for number in range(len(targets))
            ],
        )


def count_contributions(inputs: Mapping[str, DataFrame], targets: Sequence[Target]) -> Counted:
    """Count the events of all inputs."""
    found = []
    for key, events in inputs.items():
        told = contributions(events, key, targets)
        if told:
            # An aggregate refuses what `try_eval` gives, which counts as not deterministic.
            marks = events.select(*[condition.alias(name) for name, condition in told.items()])
            counts = marks.agg(*[F.count_if(name).alias(name) for name in told])
            found.append(counts.collect()[0].asDict())
    return Counted.of(targets, found)


def contributions(events: DataFrame, key: str, targets: Sequence[Target]) -> dict[str, Column]:
    """Tell which events of an input go into each table, and which fail there.

    Args:
        events: Rows of the input.
        key: Which one.
        targets: Tables; by number, since a table's name may be that of a column.

    Returns:
        Conditions by name; none where no table reads the input.
    """
    told = {"_rows": F.lit(True)} if key == OWN else {}
    for number, target in enumerate(targets):
        if key == OWN:
            told[f"_eligible_{number}"] = target.eligible()
        if key in target.inputs:
            told[f"_failed_{number}"] = target.failed(key, events)
    return told


def stamped(rows: DataFrame, *, generation: str, batch: int) -> DataFrame:
    """Add where rows come from."""
    return rows.withColumns(
        {"_generation": F.lit(generation), "_batch": F.lit(batch).cast("bigint")}
    )


def span(rows: DataFrame, low: str, high: str) -> tuple[datetime, datetime] | None:
    """Give the first and the last instant of two columns (UTC); None without rows."""
    return _instants(rows.agg(*_bounds(low, high)).collect()[0].asDict())


def held_with_span(
    rows: DataFrame, low: str, high: str, hold: Held
) -> tuple[DataFrame, tuple[datetime, datetime] | None]:
    """Keep rows at once, and give their span, in one job."""
    told = Observation()
    kept = hold.now(rows.observe(told, *_bounds(low, high)))
    return kept, _instants(told.get)


def _bounds(low: str, high: str) -> list[Column]:
    return [F.min(F.unix_micros(low)).alias("first"), F.max(F.unix_micros(high)).alias("last")]


def _instants(found: Mapping[str, Any]) -> tuple[datetime, datetime] | None:
    first, last = from_micros(found.get("first")), from_micros(found.get("last"))
    return None if first is None or last is None else (first, last)


def literal(instant: datetime) -> str:
    """Write an instant in Spark SQL; Spark wants a year of four digits, ``%Y`` gives 999."""
    return f"TIMESTAMP'{instant.astimezone(UTC).replace(tzinfo=None).isoformat(' ')}Z'"
