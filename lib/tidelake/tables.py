"""Name every table and checkpoint once: the only place that builds an identifier.

On a laptop a table is a folder under the root, dots become slashes. Names are checked here, so
nothing from a config file reaches a path or a statement unchecked.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from tidelake.errors import UsageError
from tidelake.store.files import matching
from tidelake.store.folders import Folder

Hop = Literal["bronze", "silver", "gold"]
HOPS: tuple[Hop, ...] = ("bronze", "silver", "gold")

_LOGICAL = re.compile(r"(bronze|silver|gold|dim|ops)\.[a-z][a-z0-9_]*")


@dataclass(frozen=True)
class Table:
    """A table's logical name and the folder that holds it."""

    name: str
    path: Folder

    @property
    def exists(self) -> bool:
        """Tell whether the table has a Delta log with at least one commit."""
        return any((self.path / "_delta_log").glob("[0-9]*.json"))


@dataclass(frozen=True)
class Lake:
    """All tables and checkpoints below one root."""

    root: Folder

    def table(self, name: str) -> Table:
        """Resolve a logical name such as ``gold.user_sessions``.

        Raises:
            UsageError: The name is not ``layer.table`` in lower case.
        """
        if not _LOGICAL.fullmatch(name):
            raise UsageError(
                f"{name!r} is no table name: write layer.table in lower case, "
                "layer one of bronze, silver, gold, dim, ops."
            )
        return Table(name, self.root.joinpath(*name.split(".")))

    def bronze(self, pipeline: str) -> Table:
        """Every payload as it came."""
        return self.table(f"bronze.{pipeline}")

    def requeue(self, pipeline: str) -> Table:
        """Rows sent into silver once more."""
        return self.table(f"bronze.{pipeline}__requeue")

    def schemas(self, pipeline: str) -> Table:
        """What is known of the schemas that writers of Avro used."""
        return self.table(f"bronze.{pipeline}__schemas")

    def silver(self, pipeline: str) -> Table:
        """Accepted events, each once."""
        return self.table(f"silver.{pipeline}")

    def quarantine(self, pipeline: str) -> Table:
        """Rows that broke a rule, with every reason."""
        return self.table(f"silver.{pipeline}__quarantine")

    def late(self, pipeline: str) -> Table:
        """Events that came too late for silver."""
        return self.table(f"silver.{pipeline}__late")

    def discarded(self, pipeline: str) -> Table:
        """Quarantined rows that somebody gave up, with the reason."""
        return self.table(f"silver.{pipeline}__discarded")

    def gold(self, name: str) -> Table:
        """One aggregate."""
        return self.table(f"gold.{name}")

    def books(self) -> Table:
        """The ledger beyond the log's retention."""
        return self.table("ops.books")

    def epochs(self) -> Table:
        """Which versions belong together."""
        return self.table("ops.epochs")

    def existing(self) -> list[Table]:
        """List the tables that exist, in the order of the layers."""
        layers = ("bronze", "silver", "gold", "dim", "ops")
        found = [
            self.table(f"{layer}.{folder.name}")
            for layer in layers
            for folder in matching(self.root / layer, "*")
            if _LOGICAL.fullmatch(f"{layer}.{folder.name}")
        ]
        return [table for table in found if table.exists]

    def checkpoints(self, pipeline: str, hop: Hop) -> Folder:
        """Give the folder of a hop's checkpoints, one subfolder a generation."""
        checked = self.bronze(pipeline).path.name
        return self.root / "checkpoints" / checked / hop

    def fast(self, name: str) -> Folder:
        """Give the folder of a fast lane: its checkpoint, and what it writes without a broker."""
        return self.root / "fast" / self.gold(name).path.name

    def erasure(self, pipeline: str) -> Folder:
        """Give the file that is there while an erasure has begun and not ended."""
        checked = self.bronze(pipeline).path.name
        return self.root / "erasures" / checked / "erasure.json"

    def swap(self, pipeline: str) -> Folder:
        """Give the file that is there while the tables of a backfill are swapped."""
        checked = self.bronze(pipeline).path.name
        return self.root / "backfill" / checked / "swapping"
