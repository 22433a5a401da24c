"""What brings two things together: enrichment in silver, joins in gold."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tidelake.config.described import Described
from tidelake.config.durations import PositiveDuration
from tidelake.config.model import Model
from tidelake.config.names import ColumnName, TableName


class Enrich(Model):
    """Columns of a dimension, added in silver.

    Attributes:
        dimension: The dimension's name.
        on: Silver's column to the dimension's column; ``"on"`` in YAML, with its quotes.
        columns: The dimension's columns to add.
        as_of: Silver's column telling which version holds; None for the latest.
    """

    dimension: TableName
    on: Annotated[dict[ColumnName, ColumnName], Field(min_length=1)]
    columns: Annotated[tuple[ColumnName, ...], Field(min_length=1)]
    as_of: str | None = None


class LeftSide(Model):
    """The events that each give one row.

    Attributes:
        where: SQL over silver; None for every event.
        columns: What the row takes from it, name to SQL.
    """

    where: str | None = None
    columns: Annotated[dict[ColumnName, str], Field(min_length=1)]


class RightSide(Model):
    """The events looked for, in this pipeline's silver or in another's.

    Attributes:
        pipeline: Whose silver is looked into.
        where: SQL over that silver; None for every event.
        columns: What the row takes from it, name to SQL.
    """

    pipeline: TableName
    where: str | None = None
    columns: Annotated[dict[ColumnName, str], Field(min_length=1)]


class Join(Described):
    """A gold table with one row a left event.

    Attributes:
        name: The gold table.
        left: The side that gives the rows.
        right: The side that may match.
        on: Columns equal on both sides; ``"on"`` in YAML, with its quotes.
        within: Longest time from the left event to the right one.
        type: Whether a left event without a match gives a row.
    """

    name: TableName
    left: LeftSide
    right: RightSide
    on: Annotated[tuple[ColumnName, ...], Field(min_length=1)]
    within: PositiveDuration
    type: Literal["left", "inner"] = "left"

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that analysts read, in order."""
        return (*self.left.columns, *self.right.columns)
