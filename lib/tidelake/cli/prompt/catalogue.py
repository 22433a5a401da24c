"""What a prompt may complete: the tables of a lake and their columns."""

from __future__ import annotations

from dataclasses import dataclass, field

from tidelake.delta.log import newest_version
from tidelake.delta.tables import Lake
from tidelake.errors import TidelakeError
from tidelake.ops.query import ask


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        name: Its name.
        type: Its type, as DuckDB says it.
    """

    name: str
    type: str


@dataclass
class Catalogue:
    """The tables of a lake, as they are now.

    Attributes:
        lake: Where they are.
    """

    lake: Lake
    _known: dict[tuple[str, int], tuple[Column, ...]] = field(default_factory=dict)

    def tables(self) -> list[str]:
        """Name the tables, in the order of the layers."""
        return [table.name for table in self.lake.existing()]

    def columns(self, table: str) -> tuple[Column, ...]:
        """List a table's columns; none where it does not exist or cannot be read."""
        name = table.lower().removesuffix("__final")
        if name not in self.tables():
            return ()
        key = name, newest_version(self.lake.table(name))
        if key not in self._known:
            try:
                told = ask(self.lake, f"DESCRIBE {name}").rows
            except TidelakeError:
                return ()
            self._known[key] = tuple(Column(row[0], row[1]) for row in told)
        return self._known[key]
