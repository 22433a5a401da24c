"""Decide the fate of rows against silver and late as the last closed batch left them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from tidelake.access import load
from tidelake.config import Pipeline
from tidelake.runtime.files_in_reach import FilesInReach
from tidelake.runtime.held import Held
from tidelake.runtime.verdicts import Known, find_verdicts, observed
from tidelake.silver.dedup import arrivals
from tidelake.silver.reach import Reach
from tidelake.silver.route import decide
from tidelake.tables import Lake, Table


@dataclass(frozen=True)
class Decision:
    """Rows with their fates.

    Attributes:
        rows: From :func:`tidelake.silver.route.decide`.
        searched: Accepted ids among which deduplication looked.
        seconds: What deduplication took.
    """

    rows: DataFrame
    searched: int
    seconds: float


@dataclass(frozen=True)
class Decider:
    """Knows the definition and the tables that a decision depends on.

    Attributes:
        spark: The session.
        pipeline: The definition.
        lake: Where the tables are.
        batch: Late rows of this batch and later ones are not accepted yet: an interrupted try of
            the same batch wrote them.
        known: Of silver and late, only rows for which this holds count as accepted; None: all.
        afresh: Whether nothing was accepted before.
        files: Knows the tables' files from the batches before; None: Delta is asked for them.
    """

    spark: SparkSession
    pipeline: Pipeline
    lake: Lake
    batch: int
    known: Column | None = None
    afresh: bool = False
    files: Mapping[str, FilesInReach] | None = None

    def decide(
        self,
        judged: DataFrame,
        *,
        watermark: datetime | None,
        hold: Held,
    ) -> Decision:
        """Give each row its fate.

        Args:
            judged: From :func:`tidelake.silver.classify.classify`.
            watermark: Before the rows (UTC).
            hold: Keeps what is read more than once.
        """
        classified, arrived = observed(judged, hold=hold)
        began = time.monotonic()
        accepted = None if self.afresh else self._accepted
        verdicts = find_verdicts(
            arrivals(classified), arrived, accepted, self.pipeline.dedup, hold=hold
        )
        decided = decide(
            classified,
            verdicts.rows,
            watermark=watermark,
            allowed=self.pipeline.watermark.allowed_lateness,
            twins=verdicts.twins,
        )
        return Decision(decided, verdicts.searched, time.monotonic() - began)

    def accepted(self, reach: Reach | None = None) -> tuple[DataFrame, DataFrame]:
        """Read silver and late as the last closed batch left them, at least the rows in reach."""
        name = self.pipeline.name
        silver, late = (
            self._read(table, reach) for table in (self.lake.silver(name), self.lake.late(name))
        )
        if self.known is not None:
            silver, late = silver.where(self.known), late.where(self.known)
        return silver, late.where(F.col("_batch") < self.batch)

    def _read(self, table: Table, reach: Reach | None) -> DataFrame:
        if reach is None or self.files is None:
            return load(self.spark, table)
        return self.files[table.name].rows(self.spark, reach)

    def _accepted(self, reach: Reach) -> Known:
        silver, late = self.accepted(reach)
        rows = reach.within(silver, is_late_table=False).unionByName(
            reach.within(late, is_late_table=True)
        )
        counts = [files.count for files in (self.files or {}).values()]
        told = [count for count in counts if count is not None]
        return Known(rows, sum(told) if told and len(told) == len(counts) else None)
