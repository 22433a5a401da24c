"""What stays as it is where only what arrived from an instant on is decided anew.

A row's fate depends on what arrived before it, so everything from the instant on is decided, and
what came before counts as accepted, quarantined or late as the live tables have it. Copies and
filtered rows lie in no table: those from before are decided with the others, and meet the same
fate.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidelake.config import Source
from tidelake.delta.notes import FRESH
from tidelake.errors import UsageError
from tidelake.fingerprints import fingerprint
from tidelake.replay.verify.inputs import ORIGIN as _OF_THE_BATCH
from tidelake.replay.verify.inputs import read_inputs
from tidelake.runtime.accepted_rows import AcceptedRows
from tidelake.runtime.hop import Run
from tidelake.runtime.silver import Stored
from tidelake.silver.classify import ORIGIN, STAGE
from tidelake.silver.route import FATE, QUARANTINED, SILVER
from tidelake.silver.watermark import partition_of


@dataclass(frozen=True)
class Stays:
    """Rows of the live tables that stay.

    Attributes:
        kept: The rows.
        source: Of the pipeline.
    """

    kept: Stored
    source: Source

    def others(self, bronze: DataFrame) -> DataFrame:
        """Leave of bronze what is decided anew."""
        ids = self.kept.silver.select("record_id").union(self.kept.quarantine.select("record_id"))
        return bronze.join(ids, on="record_id", how="left_anti")

    def counted(self) -> list[dict[str, Any]]:
        """Count what stays, in the shape of a count by fate."""
        return [
            *self._groups(self.kept.silver, SILVER, F.lit(None).cast("string"), "event_time"),
            *self._groups(self.kept.quarantine, QUARANTINED, F.col("stage"), None),
        ]

    def _groups(
        self, rows: DataFrame, fate: str, stage: Any, moment: str | None
    ) -> list[dict[str, Any]]:
        newest = F.unix_micros(moment) if moment else F.lit(None).cast("bigint")
        found = (
            rows.groupBy(stage.alias(STAGE), partition_of(self.source).alias("partition"))
            .agg(
                F.count("*").alias("rows"),
                fingerprint().alias("fingerprint"),
                F.max(newest).alias("newest"),
                F.max(F.unix_micros("ingested_at")).alias("last"),
            )
            .collect()
        )
        return [{**row.asDict(), FATE: fate, ORIGIN: FRESH} for row in found]


def what_stays(live: Run, since: datetime) -> Stays:
    """Take what arrived before an instant as the live tables have it.

    Nothing is late in a replay: what was late before the instant is silver.

    Args:
        live: What the live tables are read with.
        since: The instant (UTC).

    Raises:
        UsageError: Silver is not there, or rows from before the instant were sent again: those
            may have lost to others that came later.
    """
    lake, pipeline = live.lake, live.pipeline
    if not lake.silver(pipeline.name).exists:
        raise UsageError(
            f"{lake.silver(pipeline.name).name} does not exist yet. "
            f"Fill it with: tidelake run {pipeline.name}"
        )
    inputs = read_inputs(live)
    before = F.col("ingested_at") < F.lit(since)
    if not inputs.requeued.where(before).isEmpty():
        raise UsageError(
            f"rows of {pipeline.name} that arrived before {since:%Y-%m-%d %H:%M:%S}Z were sent "
            "again since, and what became of them depends on all of bronze. Decide all of it "
            f"with: tidelake backfill run {pipeline.name}"
        )
    silver = inputs.silver.where(before)
    late = inputs.late.where(before).select(*silver.columns)
    accepted = silver.unionByName(late).withColumn("is_late", F.lit(False)).drop(*_OF_THE_BATCH)
    quarantine = inputs.quarantine.where(before).drop(*_OF_THE_BATCH)
    batch = inputs.closing[0].batch + 1
    accepted_before = AcceptedRows(live.spark, pipeline, lake, batch, known=before)
    return Stays(Stored(accepted_before, accepted, quarantine), pipeline.source)
