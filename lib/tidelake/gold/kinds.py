"""The interface of gold table kinds.

Each kind of table is a :class:`GoldKind` in a separate module. It computes the table's rows from
all of silver, and from a batch the rows to merge (:mod:`tidelake.gold.merge_plan`).
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import NamedTuple

import sqlglot
from pydantic import BaseModel
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from sqlglot import exp

from tidelake.columns import stamped
from tidelake.config.expressions import UNREADABLE, as_operand
from tidelake.config.gold_definitions import FinalAfter
from tidelake.config.types import incomparable, is_comparable
from tidelake.gold.merge_plan import FrameCheckpoints, MergePlan

# The input name of the pipeline's own silver; other inputs are named by their table.
OWN = "silver"
# Columns that gold reads whatever the definition selects.
_ALWAYS = {"record_id", "event_id", "event_time"}
# If one of these compares a column with a number or a null, the column's type does not matter.
_COMPARISONS = (
    *(exp.EQ, exp.NEQ, exp.NullSafeEQ, exp.Is, exp.In, exp.Between),
    *(exp.LT, exp.LTE, exp.GT, exp.GTE),
)
# Stands for all columns of an input.
ALL = "*"


@dataclass(frozen=True)
class Inputs:
    """The silver rows that gold reads.

    Attributes:
        taken: The batch's new rows, by input.
        whole: Returns all rows of an input up to the end of the batch.
    """

    taken: Mapping[str, DataFrame]
    whole: Callable[[str], DataFrame]


@dataclass(frozen=True)
class GoldBatch:
    """A batch, as passed to a gold kind.

    Attributes:
        inputs: The events, by input.
        eligible: Number of the pipeline's own new events that go into the table.
        stored: Reads the stored rows of one of the pipeline's gold tables, by name.
        generation: The batch's generation.
        number: The batch's number.
        is_first: Whether the table is empty and the batch has all rows of the inputs, so that no
            stored row is combined with the batch's.
        slots: Number of tasks that run concurrently.
        frames: Checkpoints frames.
    """

    inputs: Inputs
    eligible: int
    stored: Callable[[str], DataFrame]
    generation: str
    number: int
    is_first: bool
    slots: int
    frames: FrameCheckpoints

    @property
    def events(self) -> DataFrame:
        """The new events of the pipeline's own silver."""
        return self.inputs.taken[OWN]

    def stamped(self, rows: DataFrame) -> DataFrame:
        """Add ``_generation`` and ``_batch`` to rows."""
        return stamped(rows, generation=self.generation, batch=self.number)


class Expression(NamedTuple):
    """An expression of a definition: its input, its SQL, and whether it is a condition."""

    key: str
    sql: str
    is_condition: bool = False


class GoldKind(ABC):
    """A gold table and how its rows are computed.

    Attributes:
        name: The table's logical name.
        place: Path of its definition in the pipeline file.
        definition: The definition that its rows depend on.
        identity: The key columns.
        moment: The column with a row's time; None if rows have none.
        ends: When a row ends; None if rows never end.
        reach: How far before an event the rows that it changes may lie; None if unbounded. If set,
            a row depends only on events at or after its moment. Used by verify and ranges of
            a backfill; a MERGE is bounded by :attr:`.MergePlan.on`.
        sources: The inputs that the table reads.
        fan_out: The most rows of the table, or windows of a query, that one event is part of.
        reads: The gold tables (logical names) that must hold a batch before it is planned.
    """

    name: str
    place: str
    definition: BaseModel
    identity: tuple[str, ...]
    moment: str | None = None
    ends: FinalAfter | None = None
    reach: timedelta | None = None
    sources: tuple[str, ...] = (OWN,)
    fan_out: int = 1
    reads: tuple[str, ...] = ()

    @abstractmethod
    def expressions(self) -> dict[str, Expression]:
        """Return each expression of the definition, by its path."""

    @abstractmethod
    def of_all(self, inputs: Inputs) -> DataFrame:
        """Compute the table's rows from all of silver."""

    @abstractmethod
    def plan(self, batch: GoldBatch) -> MergePlan | None:
        """Return the MERGE for a batch; None if it changes nothing.

        A batch that was interrupted is planned again, and the table may hold its rows already: the
        plan must give these rows the same keys, so that they match and the MERGE skips them
        (``_batch`` of a stored row is not below the batch's number) instead of adding them twice.
        """

    def eligible(self) -> Column:
        """Return the condition for events of the pipeline's own silver to go into the table."""
        return F.lit(True)

    def failed(self, key: str, events: DataFrame) -> Column:
        """Return the condition under which an expression fails on an event of input ``key``."""
        return F.lit(False)

    def type_problems(self, inputs: Mapping[str, DataFrame]) -> Mapping[str, str]:
        """Return why types of the inputs are refused, by path in the file; no rows are read."""
        return {}

    @property
    def derived(self) -> Mapping[str, str]:
        """The columns computed from others of the same row, name to SQL."""
        return {}

    def without_derived(self) -> GoldKind:
        """Return this kind without its derived columns."""
        return self

    @property
    def searched_by(self) -> tuple[str, ...]:
        """The columns that merges and readers find rows by; only these have file statistics."""
        times = (self.moment, self.ends.column if self.ends else None)
        return tuple(dict.fromkeys(name for name in (*times, *self.identity) if name))

    def tolerances(self, types: Mapping[str, str]) -> Mapping[str, str]:
        """Return by column the SQL under which ``verify`` takes two inexact values for equal.

        See :func:`.measures.tolerances`; ``types`` are those of the stored columns.
        """
        return {}

    @property
    def rounded(self) -> tuple[str, ...]:
        """The means; one of decimals has four digits after the point more than its terms."""
        return ()

    @property
    def alike(self) -> tuple[str, ...]:
        """The columns that widen only to types in which a value has the same text."""
        return self.rounded

    def typed(self) -> Mapping[tuple[str, str], bool]:
        """Return the columns of the inputs on whose types the table's values depend.

        Returns:
            By input and name, in lower case or :data:`ALL`: false if a type in which the values
            have the same text changes nothing.
        """
        used = self.expressions().values()
        return {(one.key, name): True for one in used for name in type_sensitive(one.sql)}

    @property
    def unhashed(self) -> frozenset[str]:
        """The columns that only tolerances read, excluded from row hashes."""
        return frozenset()

    def with_terms(self, types: Mapping[str, str]) -> GoldKind:
        """Return this kind with the extra columns that its tolerances read."""
        return self


def key_problems(path: str, keys: Sequence[str], events: DataFrame) -> dict[str, str]:
    """Return the keys of types that no MERGE can compare, by their paths below ``path``."""
    kinds = {field.name: field.dataType.simpleString() for field in events.schema.fields}
    return {
        f"{path}[{number}]": f"{key} {incomparable(kinds[key])}"
        for number, key in enumerate(keys)
        if not is_comparable(kinds.get(key, ""))
    }


@lru_cache(maxsize=1024)
def type_sensitive(sql: str) -> frozenset[str]:
    """Return the columns of an expression whose type, beside their value, may change its result.

    In lower case, or :data:`ALL`. Not among them are a column alone, one that is compared with a
    number or null, and one that is cast to DOUBLE: a wider type has the same values.
    """
    try:
        root = sqlglot.parse_one(f"SELECT ({as_operand(sql)})", dialect="spark")
    except UNREADABLE:
        return frozenset()
    stars = [one for one in root.find_all(exp.Star) if not isinstance(one.parent, exp.Count)]
    used = [one for one in root.find_all(exp.Column) if not isinstance(one.this, exp.Star)]
    names = {one.parts[0].name.lower() for one in used if not _is_used_by_value(one)}
    return frozenset(names | ({ALL} if stars else set()))


def _is_used_by_value(column: exp.Expr) -> bool:
    while isinstance(column.parent, exp.Paren):
        column = column.parent
    around = column.parent
    if isinstance(around, exp.Cast):
        return bool(around.to.is_type(exp.DataType.Type.DOUBLE))
    if not isinstance(around, _COMPARISONS):
        return isinstance(around, exp.Select)
    others = [one for one in around.iter_expressions() if one is not column]
    return all(one.is_number or isinstance(one, exp.Null) for one in others)


def columns_read(kinds: Collection[GoldKind], columns: Collection[str]) -> list[str]:
    """Return the silver columns that a batch of the given tables may read, in order.

    A column is included if its name occurs in an expression. If an expression may refer to all
    columns (``*``), all are returned.
    """
    written = " ".join(used.sql for kind in kinds for used in kind.expressions().values())
    if re.search(r"[(,.]\s*\*", re.sub(r"(?i)\bcount\s*\(\s*\*\s*\)", "", written)):
        return list(columns)
    words = {word.lower() for word in re.findall(r"\w+", written)}
    words |= _ALWAYS | {name.lower() for kind in kinds for name in kind.identity}
    return [name for name in columns if name.lower() in words or not re.fullmatch(r"\w+", name)]
