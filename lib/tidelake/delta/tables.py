"""Name every table and checkpoint once: the only place that builds an identifier.

On a laptop a table is a folder under the root, dots become slashes. In a catalog it is a name
there, and checkpoints and the like are files on a volume. Names are checked here, so nothing from a
config file reaches a path or a statement unchecked.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tidelake.config import Environment
from tidelake.delta.store import Catalog, CatalogStore, FolderStore, TableStore
from tidelake.errors import UsageError
from tidelake.folders import Folder, is_stored, matching
from tidelake.spark.session import build_session

Hop = Literal["bronze", "silver", "gold"]
HOPS: tuple[Hop, ...] = ("bronze", "silver", "gold")

LAYERS = ("bronze", "silver", "gold", "dim", "ops")
_LOGICAL = re.compile(rf"({'|'.join(LAYERS)})\.[a-z][a-z0-9_]*")
# Between the name of a table in a catalog and the backfill that fills another beside it.
BESIDE = "__green_"


@dataclass(frozen=True)
class Table:
    """A table's logical name, and where it is stored."""

    name: str
    store: TableStore

    @property
    def path(self) -> Folder:
        """The folder; a TypeError for a name in a catalog, whose files are not to be touched."""
        if self.store.folder is None:
            raise TypeError(f"{self.name} lies in a catalog and has no folder of its own")
        return self.store.folder

    @property
    def bare(self) -> str:
        """Its name without the layer."""
        return self.name.partition(".")[2]

    @property
    def sql(self) -> str:
        """What stands for it in a statement of Spark's."""
        return self.store.sql

    @property
    def exists(self) -> bool:
        """Tell whether the table has at least one commit."""
        return self.store.exists


@dataclass(frozen=True)
class Lake:
    """All tables and checkpoints.

    Attributes:
        root: The folder of all files: checkpoints, locks, marks; without a catalog tables as well.
        catalog: Where tables are names; None: they are folders under the root.
        needs_locks: Whether hops are refused where the file system has no locks. Without it, and
            in a catalog, whose volumes may have none, each append of a batch carries a
            transaction id, and Delta refuses the second one.
        newest: The newest version that was seen in each log of its tables.
    """

    root: Folder
    catalog: Catalog | None = field(default=None, kw_only=True)
    needs_locks: bool = field(default=True, kw_only=True)
    newest: dict[Path, int] = field(default_factory=dict, kw_only=True, compare=False, repr=False)

    @property
    def place(self) -> str:
        """Say where tables are, for messages."""
        return f"under {self.root}" if self.catalog is None else f"in catalog {self.catalog.name}"

    @property
    def is_on_object_store(self) -> bool:
        """Tell whether its files lie on an object store."""
        return is_stored(self.root)

    @property
    def suffix(self) -> str:
        """What the names of its tables end with in a catalog."""
        return ""

    def table(self, name: str) -> Table:
        """Resolve a logical name such as ``gold.user_sessions``."""
        if not _LOGICAL.fullmatch(name):
            raise UsageError(
                f"{name!r} is no table name: write layer.table in lower case, "
                "layer one of bronze, silver, gold, dim, ops."
            )
        layer, _, bare = name.partition(".")
        if self.catalog is not None:
            return Table(name, CatalogStore(self.catalog, layer, f"{bare}{self.suffix}"))
        return Table(name, FolderStore(self.root / layer / bare, self.needs_locks, self.newest))

    def bronze(self, pipeline: str) -> Table:
        """Every payload as it came."""
        return self.table(f"bronze.{pipeline}")

    def requeue(self, pipeline: str) -> Table:
        """Rows sent into silver once more."""
        return self.table(f"bronze.{pipeline}__requeue")

    def schemas(self, pipeline: str) -> Table:
        """What is known of the schemas that writers of Avro used."""
        return self.table(f"bronze.{pipeline}__schemas")

    def silver_inputs(self, pipeline: str) -> dict[str, Table]:
        """What silver follows, in the order in which its stream names them."""
        return {"bronze": self.bronze(pipeline), "requeue": self.requeue(pipeline)}

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

    def progress(self) -> Table:
        """What each batch cost."""
        return self.table("ops.progress")

    def existing(self) -> list[Table]:
        """List the tables that exist, in the order of the layers."""
        found = [
            self.table(f"{layer}.{name}")
            for layer in LAYERS
            for name in self._names_in(layer)
            if _LOGICAL.fullmatch(f"{layer}.{name}")
        ]
        # A catalog lists nothing that does not exist.
        return [table for table in found if self.catalog is not None or table.exists]

    def _names_in(self, layer: str) -> list[str]:
        if self.catalog is None:
            return [str(folder.name) for folder in matching(self.root / layer, "*")]
        session, schema = self.catalog.session(), self.catalog.schema(layer)
        if layer not in self.catalog.layers():
            return []
        views = {row["viewName"] for row in session.sql(f"SHOW VIEWS IN {schema}").collect()}
        tables = session.sql(f"SHOW TABLES IN {schema}").collect()
        names = {row["tableName"] for row in tables if not row["isTemporary"]}
        return sorted(name for name in names - views if BESIDE not in name)

    def checkpoints(self, pipeline: str, hop: Hop) -> Folder:
        """Give the folder of a hop's checkpoints, one subfolder a generation."""
        return self.root / "checkpoints" / self.bronze(pipeline).bare / hop

    def marks(self, layer: str) -> Folder:
        """Give the folder of a layer's locks."""
        return self.root / layer

    def fast(self, name: str) -> Folder:
        """Give the folder of a fast lane: its checkpoint, and what it writes without a broker."""
        return self.root / "fast" / self.gold(name).bare

    def erasure(self, pipeline: str) -> Folder:
        """Give the file that is there while an erasure has begun and not ended."""
        return self.root / "erasures" / self.bronze(pipeline).bare / "erasure.json"

    def alerts(self, pipeline: str) -> Folder:
        """Give the folder that remembers which alerts of a pipeline were told."""
        return self.root / "alerts" / self.bronze(pipeline).bare

    def swap(self, pipeline: str) -> Folder:
        """Give the file that holds ``promoting`` or ``rolling back`` while tables are swapped."""
        return self.root / "backfill" / self.bronze(pipeline).bare / "swapping"


def lake_of(environment: Environment) -> Lake:
    """Return an environment's tables; a catalog starts Spark only when a table is accessed."""
    if environment.files is None:
        raise UsageError(f"environment {environment.name} has neither a root nor a volume.")
    if environment.catalog is None:
        return Lake(environment.files, needs_locks=environment.locks == "required")
    session = functools.cache(lambda: build_session(environment))
    catalog = Catalog(environment.catalog, session)
    return Lake(environment.files, catalog=catalog, needs_locks=False)
