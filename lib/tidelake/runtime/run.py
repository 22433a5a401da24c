"""What a run works with, and what of it can be sent to another process."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from functools import cached_property

from pyspark.sql import SparkSession

from tidelake.config import Environment, Pipeline
from tidelake.delta.locks import HopLocks
from tidelake.delta.store import Catalog
from tidelake.delta.tables import Lake
from tidelake.runtime.progress import Progress
from tidelake.silver.plan import SilverPlan


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
        locks: What a command that changes several tables holds; hears of each step.
    """

    spark: SparkSession
    pipeline: Pipeline
    lake: Lake
    environment: Environment
    progress: Progress
    stop: threading.Event = field(default_factory=threading.Event)
    replays: bool = False
    locks: HopLocks = field(default_factory=HopLocks)

    @cached_property
    def plan(self) -> SilverPlan:
        """Silver's columns, built once for all batches of the run; they belong to its session."""
        return SilverPlan(self.pipeline)


@dataclass(frozen=True)
class Described:
    """A run without what belongs to one process: session, printer, request to stop.

    Attributes:
        pipeline: The definition.
        lake: Where the files are.
        catalog: The catalog's name, since a session cannot be sent; None: there is none.
        environment: What differs by place.
        replays: As of the run.
    """

    pipeline: Pipeline
    lake: Lake
    catalog: str | None
    environment: Environment
    replays: bool

    @staticmethod
    def of(run: Run) -> Described:
        """Describe a run."""
        catalog = run.lake.catalog
        lake = replace(run.lake, catalog=None)
        name = None if catalog is None else catalog.name
        return Described(run.pipeline, lake, name, run.environment, run.replays)

    def run(self, spark: SparkSession) -> Run:
        """Make the run anew in another process; what it would say, its tables tell."""
        lake = self.lake
        if self.catalog is not None:
            lake = replace(lake, catalog=Catalog(self.catalog, lambda: spark))
        silent = Progress(lambda _: None)
        return Run(spark, self.pipeline, lake, self.environment, silent, replays=self.replays)
