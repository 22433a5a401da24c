"""Give Spark's catalog of one server the tables of a lake, by their logical names."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from pyspark.sql import SparkSession

from tidelake.config.types import quoted
from tidelake.delta.log import last_commit
from tidelake.delta.notes import Final
from tidelake.delta.tables import Lake, Table

_LAYERS = ("bronze", "silver", "gold", "dim", "ops")


@dataclass
class Registered:
    """The tables that the catalog has, and up to when their final rows go.

    The catalog is in memory and knows where tables lie; Delta's log says the rest, so that new
    rows and new columns are seen at once. What :meth:`refresh` brings are tables that were not
    there before, and the bounds of the views of final rows.

    Attributes:
        spark: The server's session.
        lake: Where the tables are.
        tables: The names that are known.
    """

    spark: SparkSession
    lake: Lake
    tables: set[str] = field(default_factory=set)
    _bounds: dict[str, datetime | None] = field(default_factory=dict)

    def refresh(self) -> list[str]:
        """Register what came since; give the names that are new."""
        if not self.tables:
            for layer in _LAYERS:
                self.spark.sql(f"CREATE SCHEMA IF NOT EXISTS {layer}")
        found = []
        for table in self.lake.existing():
            if table.name not in self.tables:
                self.spark.sql(f"CREATE TABLE {table.name} USING DELTA LOCATION '{_path(table)}'")
                self.tables.add(table.name)
                found.append(table.name)
            if table.name.startswith("gold.") and self._follow_final(table):
                found.append(f"{table.name}__final")
        return found

    def _follow_final(self, table: Table) -> bool:
        """Cut the view of a table's final rows where its newest commit says; True for a new one."""
        final = Final.of(last_commit(table))
        known = table.name in self._bounds
        if final is None or (known and self._bounds[table.name] == final.until):
            return False
        self._bounds[table.name] = final.until
        kept = (
            "false"
            if final.until is None
            else f"{quoted(final.column)} <= TIMESTAMP'{final.until.isoformat()}'"
        )
        self.spark.sql(
            f"CREATE OR REPLACE VIEW {table.name}__final AS SELECT * FROM {table.name} WHERE {kept}"
        )
        return not known


def _path(table: Table) -> str:
    return str(table.path).replace("\\", "\\\\").replace("'", "\\'")
