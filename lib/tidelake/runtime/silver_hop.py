"""Bronze to silver: one fate for each row, side tables first, silver's commit closes the batch."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.utils import is_remote

from tidelake.access import follow
from tidelake.bronze import as_never_requeued
from tidelake.config.meanings import meaning_of
from tidelake.config.sizes import bytes_of
from tidelake.errors import GenerationError, UsageError
from tidelake.runtime.avro import refuse_unlimited
from tidelake.runtime.decision import Decider
from tidelake.runtime.enrichment import lookups
from tidelake.runtime.files_in_reach import FilesInReach
from tidelake.runtime.held import Held
from tidelake.runtime.hop import HopQuery, Run
from tidelake.runtime.prefilter import Recovered, recover
from tidelake.runtime.schemas import from_ddl, late_schema, silver_freedom, silver_schema
from tidelake.runtime.silver_batch import Reached, SilverBatch
from tidelake.silver.classify import PAYLOAD_HASH, classify
from tidelake.silver.prefilter import hold_back_copies
from tidelake.silver.route import QUARANTINE_DDL
from tidelake.sinks.append import ensure_table
from tidelake.sinks.commits import last_commit
from tidelake.sinks.definitions import changed_parts
from tidelake.sinks.notes import SilverNote
from tidelake.sinks.positions import BEGINNING, Position, rows_between
from tidelake.spark.engine import REFUSED, fitted
from tidelake.spark.tuning import SEARCHED_PER_ROW, STATE_SETTINGS, is_small
from tidelake.tables import Table

_TWIN = ("event_id", PAYLOAD_HASH, "ingested_at")


class SilverHop(HopQuery):
    """Decides the fate of bronze's rows and of those that were requeued."""

    hop = "silver"

    @cached_property
    def _files(self) -> dict[str, FilesInReach]:
        name = self.run.pipeline.name
        tables = (self.run.lake.silver(name), self.run.lake.late(name))
        return {table.name: FilesInReach(table) for table in tables}

    @property
    def table(self) -> Table:
        """Silver itself."""
        return self.run.lake.silver(self.run.pipeline.name)

    @property
    def _prefilters(self) -> bool:
        return self.run.pipeline.dedup.prefilter == "operator"

    @property
    def _judges_in_stream(self) -> bool:
        """Whether rows can be judged before what is known of their batch."""
        return not self._prefilters and self.run.pipeline.registry is None

    @property
    def most(self) -> int:
        """The environment's limit."""
        return bytes_of(self.run.environment.limits.silver_bytes)

    def closing_tables(self) -> list[Table]:
        """Silver's commit closes a batch."""
        return [self.table]

    @property
    def inputs(self) -> dict[str, Table]:
        """Silver follows bronze and the requeue."""
        lake, name = self.run.lake, self.run.pipeline.name
        return {"bronze": lake.bronze(name), "requeue": lake.requeue(name)}

    def create_tables(self) -> None:
        """Create silver and its side tables."""
        name = self.run.pipeline.name
        if not self.run.lake.bronze(name).exists:
            raise UsageError(
                f"bronze.{name} does not exist yet. Fill it with: tidelake run {name} --hop bronze"
            )
        self._refuse_other_prefilter()
        if self.run.pipeline.reads_avro:
            refuse_unlimited(self.run.spark)
        changed = changed_parts(last_commit(self.table), self.run.pipeline).identity
        if changed:
            raise self.fence.refusal(
                f"{self.table.name} was filled under another {' and '.join(changed)}"
            )
        for lookup in lookups(self.run.lake, self.run.pipeline):
            if lookup.version < 0:
                self.run.progress.say(
                    f"{lookup.table.name} does not exist yet: its columns stay null. "
                    f"Fill it with: tidelake run {lookup.enrich.dimension}"
                )
        create_silver(self.run, self.creation_note())

    def _refuse_other_prefilter(self) -> None:
        """Stop where the checkpoint holds the prefilter's state and needs none, or the reverse."""
        last = last_commit(self.table)
        if last is None or last.batch < 0:
            return
        had = SilverNote.of(last).prefiltered is not None
        if had != self._prefilters:
            if self._prefilters:
                raise GenerationError(
                    "dedup.prefilter is operator now, and was none in the batches of the "
                    "checkpoint. Nothing was written. Set it back to none, or begin with it on a "
                    "new --root."
                )
            raise self.fence.refusal(
                "dedup.prefilter is none now, and was operator in the batches of the checkpoint"
            )

    def stream(self) -> DataFrame:
        """Read bronze and the requeue from their first commit on, in the order of commits."""
        bronze = self._follow("bronze")
        if self._prefilters:
            self._set_state_up()
            bronze = hold_back_copies(bronze, ttl=self.run.pipeline.dedup.ttl)
        rows = as_never_requeued(bronze).unionByName(self._follow("requeue"))
        # Planned once for all batches: it is most of what there is to plan.
        return classify(rows, self.run.pipeline) if self._judges_in_stream else rows

    def _set_state_up(self) -> None:
        refused = UsageError(
            "dedup.prefilter: operator needs settings of the session that this compute "
            "refuses. Set it to none."
        )
        if is_remote():
            raise refused
        try:
            for key, value in STATE_SETTINGS.items():
                self.run.spark.conf.set(key, value)
        except REFUSED as error:
            raise refused from error

    def _follow(self, key: str) -> DataFrame:
        table, idle = self.inputs[key], key in self.standing.idle()
        return follow(self.run.spark, table, max_bytes=self.limit, idle=idle)

    def write(self, rows: DataFrame, batch: int) -> None:
        """Decide a batch and write it."""
        began = time.monotonic()
        until = self.standing.planned(batch)
        if not self.fence.admits(self.table, batch, until):
            if self._prefilters:
                # The operator's state moves on only where its rows are read.
                rows.write.format("noop").mode("overwrite").save()
            return
        before = SilverNote.of(last_commit(self.table))
        reached = self._reached(before.until, until)
        size = sum(reached.rows.values()) + before.searched // SEARCHED_PER_ROW
        writer = SilverBatch(
            self.run,
            self.fence.generation,
            batch,
            files=self._files,
            # Only the first batch of a query may have been begun by an interrupted one.
            may_be_retry=batch <= self.fence.closed + 1,
        )
        small = is_small(*self.standing.size(until))
        with fitted(rows.sparkSession, size), Held(small=small) as hold:
            recovered = self._recovered(rows, batch, before, reached, hold)
            note = writer.write(recovered, before, reached, hold)
        counts = note.total()
        told = [f"{fate} {n:,}" for fate, n in counts.items() if n]
        missed = [
            f"not in {use.table} {use.unmatched:,}" for use in note.dimensions if use.unmatched
        ]
        self.run.progress.closed(
            self.hop,
            batch,
            sum(counts.values()),
            began,
            watermark=note.watermark,
            detail=" ".join([*told, *missed]),
        )

    def _recovered(
        self, rows: DataFrame, batch: int, before: SilverNote, reached: Reached, hold: Held
    ) -> Recovered:
        """Bring back what the prefilter held back and may not."""
        if not self._prefilters:
            return Recovered(rows, [], None, judged=self._judges_in_stream)
        decider = Decider(rows.sparkSession, self.run.pipeline, self.run.lake, batch)
        silver, late = decider.accepted()
        accepted = silver.select(*_TWIN).unionByName(late.select(*_TWIN))
        span = before.until.get("bronze", BEGINNING), reached.until["bronze"]
        return recover(self.run, hold(rows), accepted, span, hold)

    def _reached(self, before: Mapping[str, Position], until: Mapping[str, Position]) -> Reached:
        """Tell also how many rows Delta says lie in between."""
        taken = {
            key: rows_between(table, before.get(key, BEGINNING), until[key])
            for key, table in self.inputs.items()
        }
        return Reached(until, taken)


def create_silver(run: Run, note: dict[str, Any]) -> None:
    """Create silver and the tables beside it, or bring those that exist to the definition.

    Args:
        run: What the command works with.
        note: Of the commit that makes a table.

    Raises:
        SchemaChangedError: The definition does not fit a stored table.
    """
    spark, pipeline, lake = run.spark, run.pipeline, run.lake
    freedom = silver_freedom(pipeline)
    for table, schema in (
        (lake.late(pipeline.name), late_schema(spark, pipeline)),
        (lake.quarantine(pipeline.name), from_ddl(spark, QUARANTINE_DDL)),
        (lake.silver(pipeline.name), silver_schema(spark, pipeline)),
    ):
        side = table == lake.quarantine(pipeline.name)
        ensure_table(
            spark,
            table,
            schema,
            note,
            meaning=meaning_of(pipeline, table.name),
            freedom="none" if side else freedom,
        )
