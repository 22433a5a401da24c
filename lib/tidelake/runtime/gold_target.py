"""What every table that gold fills has in common, and the silver tables that gold follows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import Any

from pydantic import BaseModel
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from tidelake.config import Pipeline
from tidelake.delta.access import follow, load, rows_that_came
from tidelake.delta.append import append
from tidelake.delta.notes import Ends, definition_note, final_note
from tidelake.delta.positions import Position
from tidelake.delta.tables import Lake, Table
from tidelake.instants import from_micros
from tidelake.runtime.held import Held

# The key of the pipeline's own silver among the inputs; others go by their table's name.
OWN = "silver"


@dataclass(frozen=True)
class Inputs:
    """The silver tables that gold follows: the rows that are new with the batch, by input.

    ``whole`` gives all rows of an input up to the end of the batch.
    """

    taken: Mapping[str, DataFrame]
    whole: Callable[[str], DataFrame]


class Target(ABC):
    """One table that gold's batches close."""

    def __init__(
        self,
        table: Table,
        place: str,
        definition: BaseModel,
        *,
        identity: tuple[str, ...],
        moment: str | None = None,
        ends: Ends | None = None,
        reach: timedelta | None = None,
        inputs: tuple[str, ...] = (OWN,),
    ) -> None:
        """Describe the table.

        Args:
            table: Where it is.
            place: Its definition's place in the pipeline file.
            definition: What it is filled by.
            identity: The columns of its key.
            moment: The instant of a row; None where it has none.
            ends: When a row ends; None where rows never do.
            reach: How far before an event a row that it changes may lie; None: any time. With a
                reach, a row follows from events at its moment and later alone.
            inputs: The tables that it reads.
        """
        self.table, self.place, self.definition = table, place, definition
        self.identity, self.moment, self.ends = identity, moment, ends
        self.reach, self.inputs = reach, inputs

    def eligible(self) -> Column:
        """Tell which events of the pipeline's own silver go into it."""
        return F.lit(True)

    def failed(self, key: str, events: DataFrame) -> Column:
        """Tell the events of an input, ``key``, on which an expression of the definition fails."""
        return F.lit(False)

    def tolerances(self, types: Mapping[str, str]) -> Mapping[str, str]:
        """Say how far values computed anew may differ: see :func:`.measures.tolerances`."""
        return {}

    @property
    def unhashed(self) -> frozenset[str]:
        """The columns that only tolerances read."""
        return frozenset()

    def with_terms(self, types: Mapping[str, str]) -> Target:
        """Return the target that computes what its tolerances need beside the table's columns."""
        return self

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
        """Return the metadata that follows from a batch's end and what is settled there."""
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


def count_contributions(
    inputs: Mapping[str, DataFrame], targets: Sequence[Target]
) -> list[dict[str, int]]:
    """Count the events of all inputs; see :func:`counted_for`."""
    found = []
    for key, events in inputs.items():
        told = contributions(events, key, targets)
        if told:
            # An aggregate refuses what `try_eval` gives, which counts as not deterministic.
            marks = events.select(*[condition.alias(name) for name, condition in told.items()])
            counts = marks.agg(*[F.count_if(name).alias(name) for name in told])
            found.append(counts.collect()[0].asDict())
    return counted_for(targets, found)


def counted_for(
    targets: Sequence[Target], found: Sequence[Mapping[str, Any]]
) -> list[dict[str, int]]:
    """Add up what :func:`contributions` counted in each input, for each table.

    ``rows`` of the pipeline's own silver, ``eligible``, those that go into the table, and
    ``failed``, those of all its inputs on which an expression failed, which is null there.
    """
    total = Counter[str]()
    for counts in found:
        total.update({name: int(count or 0) for name, count in counts.items()})
    return [
        {
            "rows": total["_rows"],
            "eligible": total[f"_eligible_{number}"],
            "failed": total[f"_failed_{number}"],
        }
        for number in range(len(targets))
    ]


def contributions(events: DataFrame, key: str, targets: Sequence[Target]) -> dict[str, Column]:
    """Return conditions: which events of an input go into each table, and which fail there.

    None where no table reads the input. By number, since a table's name may be that of a column.
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


# What silver's batches wrote beside the columns that users see.
_HIDDEN = ("_payload_hash", "_id_hash", "_generation", "_batch")


def inputs_of(lake: Lake, pipeline: Pipeline) -> dict[str, Table]:
    """Name the tables, the pipeline's own first."""
    others = [lake.silver(join.right.pipeline) for join in pipeline.joins]
    own = lake.silver(pipeline.name)
    return {OWN: own} | {table.name: table for table in others if table != own}


def open_stream(
    spark: SparkSession,
    inputs: Mapping[str, Table],
    *,
    max_bytes: int | None,
    idle: Collection[str] = (),
) -> DataFrame:
    """Follow each table from its first commit on; see :func:`tidelake.delta.access.follow`.

    Returns the table's rows; those of several tables each in a struct of its own, by number.
    """
    streams = [
        follow(spark, table, max_bytes=max_bytes, idle=key in idle).drop(*_HIDDEN)
        for key, table in inputs.items()
    ]
    if len(streams) == 1:
        return streams[0]
    packed = [rows.select(F.struct("*").alias(_packed(n))) for n, rows in enumerate(streams)]
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), packed)


def by_input(rows: DataFrame, inputs: Mapping[str, Table]) -> dict[str, DataFrame]:
    """Take a batch of the stream apart again."""
    if len(inputs) == 1:
        return dict.fromkeys(inputs, rows)
    return {
        key: rows.where(F.col(_packed(n)).isNotNull()).select(f"{_packed(n)}.*")
        for n, key in enumerate(inputs)
    }


def up_to(
    spark: SparkSession, inputs: Mapping[str, Table], until: Mapping[str, Position]
) -> Callable[[str], DataFrame]:
    """Give a reader of each table as far as a batch goes in it, which may be inside a commit."""

    def read(key: str) -> DataFrame:
        table, version = inputs[key], until[key][0]
        rows = load(spark, table, version=version - 1) if version else load(spark, table).limit(0)
        begun = rows_that_came(spark, table, (version, -1), until[key])
        if begun is not None:
            rows = rows.unionByName(begun)
        return rows.drop(*_HIDDEN)

    return read


def _packed(number: int) -> str:
    return f"_input_{number}"
