"""Keep a small copy of what is known of each key, for a stream that cannot ask the tables."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidelake.columns import instant
from tidelake.config import Detection
from tidelake.delta.access import load
from tidelake.delta.log import last_commit
from tidelake.delta.notes import SilverNote
from tidelake.errors import UsageError
from tidelake.folders import Folder
from tidelake.foreign import kind_of
from tidelake.gold.fast import known
from tidelake.instants import BEGINNING, back, from_micros
from tidelake.runtime.failures import FOREIGN
from tidelake.runtime.hop import Run


@dataclass(frozen=True)
class Knowledge:
    """What the tables know of each key, in a Delta table of its own.

    A stream's plan sees a new version of a Delta table with its next batch. The copy is one row a
    key: the stream stands still while it is read and broadcast.

    Attributes:
        run: What the command works with.
        detection: The definition.
        path: Where the copy is; replaced by each refresh.
    """

    run: Run
    detection: Detection
    path: Folder

    def refuse_missing(self) -> None:
        """Want the tables that the rules look back at.

        Raises:
            UsageError: They are not there yet.
        """
        name = self.run.pipeline.name
        if not self.run.lake.gold(self.detection.features).exists:
            raise UsageError(
                f"gold.{self.detection.features} does not exist yet, and the rules look back at "
                f"it. Fill it with: tidelake run {name}"
            )

    def refresh(self) -> None:
        """Write the copy anew."""
        rows = self._known().coalesce(1)
        rows.write.format("delta").mode("overwrite").save(str(self.path))

    def read(self) -> DataFrame:
        """Read the copy; as part of a stream, with each batch anew."""
        return self.run.spark.read.format("delta").load(str(self.path))

    @contextmanager
    def kept_fresh(self, every: timedelta) -> Iterator[None]:
        """Refresh now and then, until the work ends.

        A refresh that fails is told, and the lane goes on with the last one.
        """
        ended = threading.Event()

        def work() -> None:
            while not ended.wait(every.total_seconds()):
                try:
                    self.refresh()
                except FOREIGN as error:
                    if not ended.is_set():
                        self.run.progress.say(
                            f"what is known of keys was not read anew: {kind_of(error)}"
                        )

        thread = threading.Thread(target=work, daemon=True, name="knowledge")
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(timeout=every.total_seconds())

    def _known(self) -> DataFrame:
        spark, lake, detection = self.run.spark, self.run.lake, self.detection
        hours = load(spark, lake.gold(detection.features))
        newest = hours.agg(F.max(F.unix_micros("window_start"))).collect()[0][0]
        now = from_micros(newest) or BEGINNING
        reached = back(now, detection.lookback)
        silver = lake.silver(self.run.pipeline.name)
        recent = load(spark, silver)
        burst = detection.burst.within if detection.burst else timedelta(0)
        last = self._last_event()
        return known(
            hours.where(F.col("window_start") >= instant(reached)),
            recent.where(F.col("event_time") > instant(back(last, burst))),
            detection,
            now=now,
        )

    def _last_event(self) -> datetime:
        note = SilverNote.of(last_commit(self.run.lake.silver(self.run.pipeline.name)))
        times = [one.max_event_time for one in note.partitions.values()]
        return max((time for time in times if time is not None), default=BEGINNING)
