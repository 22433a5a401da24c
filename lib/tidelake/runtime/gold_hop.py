"""Silver to gold: one query merges each batch into every gold table of the pipeline."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tidelake.config.meanings import meaning_of
from tidelake.config.sizes import bytes_of
from tidelake.errors import UsageError
from tidelake.runtime.gold_inputs import by_input, inputs_of, open_stream, up_to
from tidelake.runtime.held import Held
from tidelake.runtime.hop import HopQuery, Run
from tidelake.runtime.schemas import gold_freedom, target_schema
from tidelake.runtime.small_batches import fitted
from tidelake.runtime.targets import OWN, Inputs, Target, targets_of
from tidelake.sinks.append import ensure_table
from tidelake.sinks.commits import last_commit
from tidelake.sinks.compaction import CONFLICTS, has_vectors, relieve
from tidelake.sinks.definitions import changed_definition
from tidelake.sinks.finality import settled_until
from tidelake.sinks.generations import Fence
from tidelake.sinks.positions import BEGINNING, Position, rows_between
from tidelake.tables import Table

# How often a batch is merged again after a compaction got in between.
_TRIES = 5


class GoldHop(HopQuery):
    """Merges silver's new events into the gold tables."""

    hop = "gold"

    def __init__(self, run: Run, *, creates: bool = True, fence: Fence | None = None) -> None:
        """Find the tables and what they follow; then as every hop."""
        self._targets = targets_of(run.lake, run.pipeline)
        self._inputs = inputs_of(run.lake, run.pipeline)
        super().__init__(run, creates=creates, fence=fence)

    @property
    def most(self) -> int:
        """The environment's limit."""
        return bytes_of(self.run.environment.limits.gold_bytes)

    def closing_tables(self) -> list[Table]:
        """Each gold table closes a batch for itself."""
        return [target.table for target in self._targets]

    def compacted(self, spark: SparkSession) -> list[Table]:
        """Without deletion vectors a merge would copy the large files that this makes."""
        return [table for table in self.closing_tables() if has_vectors(spark, table)]

    @property
    def inputs(self) -> dict[str, Table]:
        """Gold's tables follow silver, all from one position."""
        return self._inputs

    def create_tables(self) -> None:
        """Create the gold tables."""
        for table in self._inputs.values():
            if not table.exists:
                name = table.name.removeprefix("silver.")
                raise UsageError(
                    f"{table.name} does not exist yet. "
                    f"Fill it with: tidelake run {name} --hop silver"
                )
        for target in self._targets:
            if changed_definition(last_commit(target.table), target.definition):
                raise self.fence.refusal(f"{target.table.name} was filled under another definition")
        for target in self._targets:
            ensure_table(
                self.run.spark,
                target.table,
                target_schema(self.run, target),
                self.creation_note(),
                meaning=meaning_of(self.run.pipeline, target.table.name),
                freedom=gold_freedom(self.run.pipeline),
            )

    def stream(self) -> DataFrame:
        """Follow silver from its first commit on."""
        return open_stream(
            self.run.spark,
            self._inputs,
            max_bytes=self.limit,
            idle=self.standing.idle(),
        )

    def write(self, rows: DataFrame, batch: int) -> None:
        """Merge a batch into each table that does not hold it yet."""
        began = time.monotonic()
        until = self.standing.planned(batch)
        open_targets = [
            target for target in self._targets if self.fence.admits(target.table, batch, until)
        ]
        if not open_targets:
            return
        with fitted(rows.sparkSession, self._size(until)), Held() as hold:
            taken = by_input(hold(rows), self._inputs)
            inputs = Inputs(taken, up_to(rows.sparkSession, self._inputs, until))
            count = self._merge_all(inputs, open_targets, batch, until)
        detail = f"into {len(open_targets)} tables"
        self.run.progress.closed(self.hop, batch, count, began, detail=detail)

    def _size(self, until: Mapping[str, Position]) -> int:
        """Tell how many rows a batch takes, by Delta's statistics."""
        reached = self.standing.reached()
        return sum(
            rows_between(table, reached.get(key, BEGINNING), until[key])
            for key, table in self._inputs.items()
        )

    def _merge_all(
        self,
        inputs: Inputs,
        targets: Sequence[Target],
        batch: int,
        until: Mapping[str, Position],
    ) -> int:
        events = inputs.taken[OWN]
        # Numbered, since a table's name may be that of a column.
        eligible = [
            F.count_if(F.expr(target.eligible or "true")).alias(f"_{number}")
            for number, target in enumerate(targets)
        ]
        counted = events.agg(F.count("*").alias("_rows"), *eligible).collect()[0]
        settled = settled_until((table, until[key]) for key, table in self._inputs.items())
        for number, target in enumerate(targets):
            note = self.note(
                batch,
                rows=counted["_rows"],
                eligible=counted[f"_{number}"],
                **target.books(until, settled),
            )
            self._merge(target, inputs, note, until)
        return int(counted["_rows"])

    def _merge(
        self, target: Target, inputs: Inputs, note: dict[str, Any], until: Mapping[str, Position]
    ) -> None:
        """Merge into one table; again, where a compaction rewrote what the merge had read."""
        for left in reversed(range(_TRIES)):
            try:
                with Held() as hold:
                    target.merge(inputs, note, hold)
                # Delta leaves out the commit of a merge that changes no row.
                if self.fence.admits(target.table, note["batch"], until):
                    target.close_unchanged(inputs, note)
                relieve(inputs.taken[OWN].sparkSession, target.table)
            except CONFLICTS:
                if not left:
                    raise
                if self.fence.admits(target.table, note["batch"], until):
                    continue
            return
