"""What every hop has in common: its place, its query, its failures."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tidelake.config import Environment, Pipeline
from tidelake.errors import TidelakeError
from tidelake.runtime.failures import named
from tidelake.runtime.offsets import planned_positions, planned_tables, unreadable
from tidelake.runtime.progress import Progress
from tidelake.sinks.commits import (
    BEGINNING,
    Commit,
    Position,
    last_commit,
    newest_version,
    oldest_version,
    rewritten_after,
    table_id,
)
from tidelake.sinks.compaction import compact, is_due
from tidelake.sinks.generations import CREATION, Fence, open_generation
from tidelake.sinks.notes import positions
from tidelake.tables import Hop, Lake, Table

_POLL_SECONDS = 1
_SCHEMA_CHANGED = "DELTA_SCHEMA_CHANGED"


@dataclass(frozen=True)
class Run:
    """What a run works with.

    Attributes:
        spark: The session.
        pipeline: The definition.
        lake: Where the tables are.
        environment: What differs by place.
        progress: Hears of each closed batch.
        stop: Set to end the run: the open batch is given up, the next run repeats it.
        replays: Whether what had arrived long before comes once more: nothing of it is late.
    """

    spark: SparkSession
    pipeline: Pipeline
    lake: Lake
    environment: Environment
    progress: Progress
    stop: threading.Event = field(default_factory=threading.Event)
    replays: bool = False


class InputGrewError(TidelakeError):
    """The table that a query follows got columns while it ran; a new query goes on with them."""


class HopQuery(ABC):
    """One arrow of the pipeline: a streaming query that writes through ``foreachBatch``."""

    hop: ClassVar[Hop]

    def __init__(self, run: Run, *, creates: bool = True) -> None:
        """Find the generation and create the tables that do not exist yet.

        Args:
            run: What the hop works with.
            creates: Whether tables are to be created; without, nothing is written.

        Raises:
            GenerationError: Table and checkpoint do not belong together.
            SchemaChangedError: The definition does not fit the stored tables.
        """
        self.run = run
        self.fence: Fence = open_generation(
            run.pipeline.name, self.hop, self.closing_tables(), self._checkpoints
        )
        self._failure: Exception | None = None
        self._refuse_rewritten()
        self._refuse_astray()
        if creates:
            self.create_tables()

    @property
    def _checkpoints(self) -> Path:
        return self.run.lake.checkpoints(self.run.pipeline.name, self.hop)

    @property
    def checkpoint(self) -> Path:
        """The folder of this generation's checkpoint."""
        return self._checkpoints / self.fence.generation

    @abstractmethod
    def closing_tables(self) -> list[Table]:
        """List the tables whose commits close a batch."""

    def compacted(self, spark: SparkSession) -> list[Table]:
        """List the tables whose small files are put together now and then."""
        return self.closing_tables()

    @property
    def inputs(self) -> Mapping[str, Table]:
        """The tables that the hop follows, in the order in which its stream names them."""
        return {}

    def reached(self) -> dict[str, Position]:
        """Tell where the hop stands in each input; empty before the first batch."""
        return positions(last_commit(self.closing_tables()[0]))

    def planned(self, batch: int) -> dict[str, Position]:
        """Tell how far a batch goes in each input.

        Raises:
            GenerationError: Behind what the table holds, or past what the input holds: rows would
                be taken twice, or never.
        """
        ends = planned_positions(self.checkpoint, batch, len(self.inputs))
        until = dict(zip(self.inputs, ends, strict=True))
        for key, reached in self.reached().items():
            table, newest = self.inputs.get(key), until.get(key)
            if table and newest and not reached <= newest <= (newest_version(table) + 1, -1):
                raise self.fence.refusal(
                    f"its checkpoint lets batch {batch} end at version {newest[0]} of {table.name}"
                )
        return until

    def astray(self, closed: Commit) -> str:
        """Say how the checkpoint goes on elsewhere than a batch ended; empty where it does not.

        Args:
            closed: The newest batch of a table.
        """
        told = positions(closed)
        if not told or set(told) != set(self.inputs):
            return ""
        planned = planned_positions(self.checkpoint, closed.batch, len(self.inputs))
        ids = planned_tables(self.checkpoint, closed.batch)
        for (key, table), position, known in zip(self.inputs.items(), planned, ids, strict=True):
            if known and table_id(table) not in (None, known):
                return f"{table.name} is another table now than the one that was read"
            if told[key] != position:
                return (
                    f"its checkpoint stands at version {position[0]} of {table.name}, "
                    f"batch {closed.batch} ended at version {told[key][0]}"
                )
        return ""

    def _refuse_astray(self) -> None:
        """Stop where the checkpoint is broken: it would skip rows, or take some twice."""
        for table in self.closing_tables():
            closed = last_commit(table)
            if closed is None or closed.batch <= CREATION:
                continue
            problem = unreadable(self.checkpoint, closed.batch) or self.astray(closed)
            if problem:
                raise self.fence.refusal(f"{self.run.pipeline.name}, hop {self.hop}: {problem}")

    def _refuse_rewritten(self) -> None:
        """Stop where rows that were read already may have changed: a stream cannot take it back."""
        reached = self.reached()
        for key, table in self.inputs.items():
            position = reached.get(key, BEGINNING)
            if position == BEGINNING and oldest_version(table) > 0:
                raise self.fence.refusal(f"the first commits of {table.name} are gone")
            version = rewritten_after(table, position) if table.exists else None
            if version is not None:
                raise self.fence.refusal(
                    f"version {version} of {table.name} took out or replaced rows "
                    f"that hop {self.hop} may have read"
                )

    @abstractmethod
    def create_tables(self) -> None:
        """Create what does not exist, and check what does."""

    @abstractmethod
    def stream(self) -> DataFrame:
        """Open the hop's input as a stream."""

    @abstractmethod
    def write(self, rows: DataFrame, batch: int) -> None:
        """Write one micro-batch."""

    def note(self, batch: int, **more: Any) -> dict[str, Any]:
        """Start the note of a commit."""
        return {
            "pipeline": self.run.pipeline.name,
            "hop": self.hop,
            "generation": self.fence.generation,
            "batch": batch,
            **more,
        }

    def creation_note(self) -> dict[str, Any]:
        """Write the note of the commit that makes a table."""
        return self.note(CREATION)

    def start(self, trigger: dict[str, Any]) -> StreamingQuery:
        """Start the query."""

        def on_batch(rows: DataFrame, batch: int) -> None:
            try:
                self.write(rows, batch)
                if is_due(batch):
                    for table in self.compacted(rows.sparkSession):
                        compact(rows.sparkSession, table)
            except Exception as error:
                # Py4J hands only a text across the JVM; the error itself waits here.
                self._failure = error
                raise

        name = f"{self.run.pipeline.name}-{self.hop}"
        return (
            self.stream()
            # A session knows a name once, and a backfill may go on beside the live hop.
            .writeStream.queryName(f"{name}-backfill" if self.run.replays else name)
            .option("checkpointLocation", str(self.checkpoint))
            .foreachBatch(on_batch)
            .trigger(**trigger)
            .start()
        )

    def check(self, query: StreamingQuery) -> None:
        """Raise what ended the query, if anything did, as the error that it was.

        Raises:
            KeyboardInterrupt: The run was asked to stop.
            InputGrewError: The hop's input has new columns; start it again.
            TidelakeError: The batch's own error, or one that names the query's failure.
        """
        if self.run.stop.is_set():
            raise KeyboardInterrupt
        try:
            query.awaitTermination(_POLL_SECONDS)
        except StreamingQueryException as error:
            if _SCHEMA_CHANGED in str(error):
                raise InputGrewError(f"the input of hop {self.hop} has new columns") from error
            if isinstance(self._failure, TidelakeError):
                raise self._failure from error
            place = f"{self.run.pipeline.name}, hop {self.hop}"
            raise named(self._failure or error, place, gone=self._gone()) from error

    def _gone(self) -> str:
        """Say what it means, and what to do, when a file that is to be read does not exist."""
        if not self.inputs:
            return ""
        name, start = self.run.pipeline.name, " --from silver" if self.hop == "gold" else ""
        return (
            "a file of a table that it follows is gone, by a VACUUM with too little retention. "
            f"Compute the tables anew with: tidelake backfill run {name}{start}, then: "
            f"tidelake backfill promote {name}"
        )

    def finish(self, query: StreamingQuery) -> None:
        """Wait for a query that ends by itself; stop it when interrupted."""
        try:
            while query.isActive:
                self.check(query)
            self.check(query)
        finally:
            if query.isActive:
                query.stop()
