"""Tables and checkpoints of a lake by name, and their paths.

Under a root, a table is a folder (``gold.sales`` is ``gold/sales``). In a catalog it is a name, and
checkpoints and other files are on a volume. Names are validated by :mod:`tidelake.names`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tidelake.config import DeltaSource, Environment, Pipeline, load_pipeline
from tidelake.config.locations import pipeline_names
from tidelake.delta.store import Catalog, CatalogTable, FolderTable
from tidelake.errors import UsageError
from tidelake.folders import Folder, absolute, is_stored, list_matching
from tidelake.names import BACKFILL_INFIX, LAYERS, is_logical_name, logical_name, quoted, split_name
from tidelake.object_store import refuse_unreachable_bucket
from tidelake.spark.session import build_session
from tidelake.typed import runnable
from tidelake.visible import visible

Hop = Literal["bronze", "silver", "gold"]
HOPS: tuple[Hop, ...] = ("bronze", "silver", "gold")
# DuckDB's reader decodes a path twice, also that of a URI, and takes a backslash for a slash.
_MISREAD = re.compile(r"[%\\\0-\x1f]")


def hops_in(pipeline: Pipeline) -> tuple[Hop, ...]:
    """Return a pipeline's hops in the order of the flow; gold only if it fills a table."""
    return HOPS if pipeline.gold_names else ("bronze", "silver")


Table = FolderTable | CatalogTable


@dataclass(frozen=True)
class Lake:
    """All tables and checkpoints.

    Attributes:
        root: The folder of checkpoints, locks and marks; without a catalog also of the tables.
        catalog: The catalog of the tables; None where they are folders under the root.
        needs_locks: Whether hops are refused where the file system has no locks. Without it, and
            in a catalog, whose volumes may have none, each append of a batch carries a
            transaction id, and Delta refuses the duplicate.
        newest: The newest version seen in each table's log.
    """

    root: Folder
    catalog: Catalog | None = field(default=None, kw_only=True)
    needs_locks: bool = field(default=True, kw_only=True)
    newest: dict[Path, int] = field(default_factory=dict, kw_only=True, compare=False, repr=False)

    @property
    def place(self) -> str:
        """Where the tables are, for messages."""
        return f"under {self.root}" if self.catalog is None else f"in catalog {self.catalog.name}"

    @property
    def is_on_object_store(self) -> bool:
        """Whether its files are on an object store."""
        return is_stored(self.root)

    @property
    def suffix(self) -> str:
        """The suffix of its table names in a catalog."""
        return ""

    def table(self, name: str) -> Table:
        """Resolve a logical name such as ``gold.user_sessions``."""
        layer, bare = split_name(name)
        if self.catalog is not None:
            return CatalogTable(name, self.catalog, layer, f"{bare}{self.suffix}")
        return FolderTable(name, self.root / layer / bare, self.needs_locks, self.newest)

    def bronze(self, pipeline: str) -> Table:
        """Raw records with unchanged payloads."""
        return self.table(logical_name("bronze", pipeline))

    def requeue(self, pipeline: str) -> Table:
        """Rows requeued for silver."""
        return self.table(logical_name("bronze", pipeline, "requeue"))

    def schemas(self, pipeline: str) -> Table:
        """Avro writer schemas."""
        return self.table(logical_name("bronze", pipeline, "schemas"))

    def silver_inputs(self, pipeline: str) -> dict[str, Table]:
        """The input tables of silver, in the order of its stream."""
        return {"bronze": self.bronze(pipeline), "requeue": self.requeue(pipeline)}

    def hop_inputs(self, pipeline: Pipeline, hop: Hop) -> dict[str, Table]:
        """The tables that a hop reads by key, in the order of its stream; none for bronze.

        Gold reads the silver of its own pipeline, under the key ``silver``, and that of others.
        """
        if hop == "bronze":
            return {}
        if hop == "silver":
            return self.silver_inputs(pipeline.name)
        own = self.silver(pipeline.name)
        others = [self.silver(join.right.pipeline) for join in pipeline.joins]
        return {"silver": own} | {table.name: table for table in others if table != own}

    def own_inputs(self, pipeline: Pipeline, hop: Hop) -> dict[str, Table]:
        """The input tables that the pipeline's own hops fill, by key.

        Others are the requeue, which commands write, and the silver tables of other pipelines.
        """
        own = self.bronze(pipeline.name), self.silver(pipeline.name)
        return {key: table for key, table in self.hop_inputs(pipeline, hop).items() if table in own}

    def silver(self, pipeline: str) -> Table:
        """Accepted, deduplicated events."""
        return self.table(logical_name("silver", pipeline))

    def quarantine(self, pipeline: str) -> Table:
        """Rows that violated a rule, with all reasons."""
        return self.table(logical_name("silver", pipeline, "quarantine"))

    def late(self, pipeline: str) -> Table:
        """Events too late for silver."""
        return self.table(logical_name("silver", pipeline, "late"))

    def discarded(self, pipeline: str) -> Table:
        """Quarantined rows discarded by a user, with the reason."""
        return self.table(logical_name("silver", pipeline, "discarded"))

    def gold(self, name: str) -> Table:
        """A gold table."""
        return self.table(logical_name("gold", name))

    def closing_tables(self, pipeline: Pipeline, hop: Hop) -> list[Table]:
        """List the tables whose commits close a hop's batches."""
        names = pipeline.gold_names if hop == "gold" else (logical_name(hop, pipeline.name),)
        return [self.table(name) for name in names]

    def books(self) -> Table:
        """The ledger, kept beyond the retention of Delta's logs."""
        return self.table("ops.books")

    def epochs(self) -> Table:
        """Epochs: consistent sets of table versions."""
        return self.table("ops.epochs")

    def progress(self) -> Table:
        """The cost of each batch."""
        return self.table("ops.progress")

    def existing(self) -> list[Table]:
        """List the tables that exist, in the order of the layers."""
        found = [
            self.table(f"{layer}.{name}")
            for layer in LAYERS
            for name in self._names_in(layer)
            if is_logical_name(f"{layer}.{name}")
        ]
        # A catalog lists only existing tables.
        return [table for table in found if self.catalog is not None or table.exists]

    def _names_in(self, layer: str) -> list[str]:
        if self.catalog is None:
            return [str(folder.name) for folder in list_matching(self.root / layer, "*")]
        return [name for name in self.catalog.tables_in(layer) if BACKFILL_INFIX not in name]

    def checkpoints(self, pipeline: str, hop: Hop) -> Folder:
        """Return the folder of a hop's checkpoints, one subfolder per generation."""
        return self.root / "checkpoints" / self.bronze(pipeline).bare / hop

    def lock_of(self, table: Table) -> Folder:
        """Return the folder of the lock of a table that all pipelines append to."""
        layer, _, name = table.name.partition(".")
        return self.root / layer / f".{name}"

    def data_docs(self, pipeline: str) -> Path:
        """Return the folder of a pipeline's Data Docs: on a disk, where a browser opens them."""
        disk = self.root if isinstance(self.root, Path) else Path.cwd()
        return disk / "data_docs" / pipeline

    def fast(self, name: str) -> Folder:
        """Return the folder of a fast lane: its checkpoint, and its output without a broker."""
        return self.root / "fast" / self.gold(name).bare

    def erasure(self, pipeline: str) -> Folder:
        """Return the file that exists while an erasure is unfinished."""
        return self.root / "erasures" / self.bronze(pipeline).bare / "erasure.json"

    def alerts(self, pipeline: str) -> Folder:
        """Return the folder that records which alerts of a pipeline were sent."""
        return self.root / "alerts" / self.bronze(pipeline).bare

    def swap(self, pipeline: str) -> Folder:
        """Return the file that holds ``promoting`` or ``rolling back`` during a swap of tables."""
        return self.root / "backfill" / self.bronze(pipeline).bare / "swapping"


def lake_of(environment: Environment) -> Lake:
    """Return an environment's lake; with a catalog, Spark starts only when a table is accessed."""
    if environment.files is None:
        raise UsageError(
            f"environment {environment.name}: set root, or catalog and volume, or give --root DIR"
        )
    if environment.catalog is None:
        if odd := _MISREAD.search(str(environment.files)):
            raise UsageError(
                f"{visible(str(environment.files))} has a {visible(odd[0])!r} in its path, which "
                "DuckDB would misread: give another --root"
            )
        return Lake(environment.files, needs_locks=environment.locks == "required")
    catalog = Catalog(environment.catalog, functools.cache(lambda: build_session(environment)))
    return Lake(environment.files, catalog=catalog, needs_locks=False)


def require_table(table: Table, pipeline: str) -> None:
    """Raise a UsageError if no run of the pipeline has created the table yet."""
    if not table.exists:
        raise UsageError(
            f"{table.name} does not exist yet. Fill it with: {runnable('tidelake run', pipeline)}"
        )


def refuse_unusable(root: Folder) -> None:
    """Check that a root can be used; nothing is created.

    Raises:
        UsageError: It is not a folder, or cannot be read; there is no such bucket.
        MachineError: The object store does not answer, or refuses access.
    """
    if is_stored(root):
        refuse_unreachable_bucket(str(root), what=f"the root {root}")
        return
    for place in (root, *root.parents):
        try:
            if place.is_dir():
                next(place.iterdir(), None)
                return
            found = place.exists()
        except OSError as error:
            raise UsageError(f"the root {root} cannot be read: {error.strerror}") from error
        if found:
            raise UsageError(f"the root {root} cannot be used: {place} is a file, not a folder.")


def delta_readers(
    tables: Sequence[Table], environment: Environment, *, own: str
) -> Iterator[tuple[Pipeline, Table]]:
    """Yield the pipelines other than ``own`` whose source is one of some tables, with the table.

    They are those of the conf folder; one that is invalid cannot run, and is left out.
    """
    names = list[str]()
    # Definitions may be given by their paths, without a conf folder.
    with suppress(UsageError):
        names = pipeline_names()
    for name in names:
        try:
            other = load_pipeline(name, environment, follows_dimensions=False)
        except UsageError:
            continue
        if other.name != own and (table := _source_in(other, tables)) is not None:
            yield other, table


def reads(pipeline: Pipeline, other: Pipeline, lake: Lake | None) -> bool:
    """Return whether a pipeline reads a table of another: in a lookup, a join, or as its source.

    Sources are compared with the tables of ``lake``, without one not at all.
    """
    if other.name in pipeline.dimensions or other.name == pipeline.name:
        return other.name != pipeline.name
    if any(join.right.pipeline == other.name for join in pipeline.joins):
        return True
    if lake is None or not isinstance(pipeline.source, DeltaSource):
        return False
    name = other.name
    own = [lake.bronze(name), lake.silver(name), lake.late(name), lake.quarantine(name)]
    return _source_in(pipeline, [*own, *lake.closing_tables(other, "gold")]) is not None


def _source_in(pipeline: Pipeline, tables: Sequence[Table]) -> Table | None:
    """Return the table that is a pipeline's source, None if it is none of some tables."""
    source = pipeline.source
    if not isinstance(source, DeltaSource):
        return None
    # A catalog's names are the same in any case, a folder's are not.
    known = {t.sql.lower() if isinstance(t, CatalogTable) else t.sql: t for t in tables}
    read = f"delta.{quoted(absolute(source.path))}" if source.path else source.sql.lower()
    return known.get(read)
