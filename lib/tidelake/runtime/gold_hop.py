"""Silver to gold: one query merges each batch into every gold table of the pipeline."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidelake.config import GlobalWindow, GoldTable, Pipeline, SessionWindow
from tidelake.errors import UsageError
from tidelake.gold.sessions import gap_of, regroup, to_sessions
from tidelake.gold.windows import BOUNDS, to_partials
from tidelake.instants import from_micros
from tidelake.runtime.held import Held
from tidelake.runtime.hop import HopQuery
from tidelake.runtime.offsets import planned_positions
from tidelake.runtime.schemas import gold_columns, gold_freedom, gold_schema
from tidelake.runtime.small_batches import fitted
from tidelake.sinks.append import append, ensure_table
from tidelake.sinks.commits import Position, last_commit, rows_between
from tidelake.sinks.definitions import changed_definition, definition_note
from tidelake.sinks.finality import consumed_watermark, final_note
from tidelake.sinks.merge import merge_partials, merge_sessions
from tidelake.sinks.notes import position
from tidelake.tables import Lake, Table


def tables_of(lake: Lake, pipeline: Pipeline) -> list[Table]:
    """List the tables that the gold hop of a pipeline fills; each closes a batch for itself."""
    return [lake.gold(gold.name) for gold in pipeline.gold]


class GoldHop(HopQuery):
    """Merges silver's new events into the gold tables."""

    hop = "gold"

    def _table(self, gold: GoldTable) -> Table:
        return self.run.lake.gold(gold.name)

    def closing_tables(self) -> list[Table]:
        """Each gold table closes a batch for itself."""
        return tables_of(self.run.lake, self.run.pipeline)

    def followed(self) -> dict[Table, Position]:
        """Gold's tables follow silver, all from one position."""
        return {self.run.lake.silver(self.run.pipeline.name): self._position()}

    def _position(self) -> Position:
        return position(last_commit(self.closing_tables()[0]), "silver")

    def create_tables(self) -> None:
        """Create the gold tables."""
        name = self.run.pipeline.name
        if not self.run.lake.silver(name).exists:
            raise UsageError(
                f"silver.{name} does not exist yet. Fill it with: tidelake run {name} --hop silver"
            )
        for gold in self.run.pipeline.gold:
            if changed_definition(last_commit(self._table(gold)), gold):
                raise self.fence.refusal(
                    f"gold.{gold.name} was filled under another definition than today's"
                )
            schema = gold_schema(self.run.spark, self.run.pipeline, gold)
            ensure_table(
                self.run.spark,
                self._table(gold),
                schema,
                self.creation_note(),
                freedom=gold_freedom(self.run.pipeline),
            )

    def stream(self) -> DataFrame:
        """Follow silver from its first commit on."""
        silver = self.run.lake.silver(self.run.pipeline.name)
        return (
            self.run.spark.readStream.format("delta")
            .option("startingVersion", 0)
            .option("maxBytesPerTrigger", self.run.environment.limits.gold_bytes)
            .load(str(silver.path))
            .drop("_payload_hash", "_generation", "_batch")
        )

    def write(self, rows: DataFrame, batch: int) -> None:
        """Merge a batch into each table that does not hold it yet."""
        began = time.monotonic()
        until = planned_positions(self.checkpoint, batch, 1)[0]
        open_tables = [
            gold
            for gold in self.run.pipeline.gold
            if self.fence.admits(self._table(gold), batch, {"silver": until})
        ]
        if not open_tables:
            return
        with fitted(rows.sparkSession, self._size(until)), Held() as hold:
            taken = self._merge_all(hold(rows), open_tables, batch, until)
        detail = f"into {len(open_tables)} tables"
        self.run.progress.closed(self.hop, batch, taken, began, detail=detail)

    def _size(self, until: Position) -> int:
        """Tell how many rows a batch takes, by Delta's statistics."""
        silver = self.run.lake.silver(self.run.pipeline.name)
        return rows_between(silver, self._position(), until)

    def _merge_all(
        self, events: DataFrame, tables: Sequence[GoldTable], batch: int, until: Position
    ) -> int:
        eligible = [
            F.count_if(F.expr(gold.where) if gold.where else F.lit(True)).alias(gold.name)
            for gold in tables
        ]
        counted = events.agg(F.count("*").alias("_rows"), *eligible).collect()[0]
        pipeline = self.run.pipeline
        mark = consumed_watermark(self.run.lake.silver(pipeline.name), until)
        for gold in tables:
            note = self.note(
                batch,
                rows=counted["_rows"],
                eligible=counted[gold.name],
                until={"silver": list(until)},
                **definition_note(gold),
                **final_note(gold, mark, pipeline.watermark.allowed_lateness),
            )
            kept = events.where(gold.where) if gold.where else events
            with Held() as hold:
                self._merge(kept, gold, note, hold)
        return int(counted["_rows"])

    def _merge(self, events: DataFrame, gold: GoldTable, note: dict[str, Any], hold: Held) -> None:
        """Merge a table's events; a commit without rows where it has none, so that it keeps up."""
        target = self._table(gold)
        if not note["eligible"]:
            stored = self.run.spark.read.format("delta").load(str(target.path))
            append(stored.limit(0), target, note, surely_filled=False)
        elif isinstance(gold.window, SessionWindow):
            partials = hold(to_sessions(events, gold))
            within = _near(partials, gap_of(gold))
            stored = events.sparkSession.read.format("delta").load(str(target.path)).alias("t")
            changed = regroup(partials, stored.where(within), gold)
            merge_sessions(
                hold(self._stamped(changed, gold, note)), target, within=within, note=note
            )
        else:
            partials = hold(to_partials(events, gold))
            within = "" if isinstance(gold.window, GlobalWindow) else _within(partials, BOUNDS[0])
            source = self._stamped(partials, gold, note)
            merge_partials(source, target, gold, within=within, note=note)

    def _stamped(self, rows: DataFrame, gold: GoldTable, note: dict[str, Any]) -> DataFrame:
        """Give rows the table's columns and the batch that its note names."""
        return gold_columns(rows, gold, generation=note["generation"], batch=note["batch"])


def _within(partials: DataFrame, column: str) -> str:
    """Bound the batch's windows by literals over ``t``."""
    low, high = _range(partials, column, column)
    return f"t.{column} >= {_literal(low)} AND t.{column} <= {_literal(high)}"


def _near(sessions: DataFrame, gap: timedelta) -> str:
    """Bound the stored sessions that the batch's could touch by literals over ``t``."""
    low, high = _range(sessions, "session_start", "session_end")
    return f"t.session_end >= {_literal(low - gap)} AND t.session_start <= {_literal(high + gap)}"


def _range(rows: DataFrame, low: str, high: str) -> tuple[datetime, datetime]:
    found = rows.agg(F.min(F.unix_micros(low)), F.max(F.unix_micros(high))).collect()[0]
    first, last = from_micros(found[0]), from_micros(found[1])
    if first is None or last is None:
        raise ValueError("a batch without rows has no bounds")
    return first, last


def _literal(instant: datetime) -> str:
    return f"TIMESTAMP'{instant:%Y-%m-%d %H:%M:%S.%f}Z'"
