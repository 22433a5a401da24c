"""Look at a pipeline from within its run, again and again, in a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from tidelake.config import Pipeline
from tidelake.delta.tables import Lake
from tidelake.instants import now
from tidelake.ops.alerts import RUNNING, alerts_beside
from tidelake.ops.alerts.alert import Alert
from tidelake.ops.alerts.telling import Teller
from tidelake.ops.backlogs import Backlog, TakenFiles
from tidelake.ops.metrics.measured import Measured
from tidelake.ops.metrics.sinks import first_line
from tidelake.runtime.progress import Say
from tidelake.typed import Typed

_EVERY_SECONDS = 15.0
# Of the time at most a part in so many goes into looking, however long a look takes.
_SHARE = 20
_CLOSE_SECONDS = 10.0


class Watch:
    """Judges a pipeline while its run goes on, and once more when it ends."""

    def __init__(
        self,
        lake: Lake,
        pipeline: Pipeline,
        teller: Teller,
        *,
        measures: Callable[[], Sequence[Measured]],
        shows: Callable[[Sequence[Alert], Sequence[Backlog]], None] | None,
        say: Say,
        typed: Typed,
        every: float = _EVERY_SECONDS,
    ) -> None:
        """Begin to look.

        Args:
            lake: Where the tables are.
            pipeline: The definition.
            teller: Tells what changed.
            measures: Gives the latest batches.
            shows: Takes each time what is open and what waits; None for nobody.
            say: Hears when the tables cannot be judged.
            typed: Completes the commands that alerts name.
            every: Seconds between two looks.
        """
        self._lake = lake
        self._pipeline = pipeline
        self._teller = teller
        self._measures = measures
        self._shows = shows
        self._say = say
        self._typed = typed
        self._every = every
        self._taken = TakenFiles(lake, pipeline)
        self._problem = ""
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._work, name="tidelake-alerts", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Look once more and end."""
        self._end.set()
        self._thread.join(_CLOSE_SECONDS)

    def _work(self) -> None:
        pause = self._every
        while not self._end.wait(pause):
            began = time.monotonic()
            self._look()
            pause = max(self._every, _SHARE * (time.monotonic() - began))
        self._look()

    def _look(self) -> None:
        if not self._lake.bronze(self._pipeline.name).exists:
            return
        try:
            found, waiting = alerts_beside(
                self._lake,
                self._pipeline,
                self._taken,
                now=now(),
                measures=self._measures(),
                typed=self._typed,
            )
            if self._shows is not None:
                self._shows(found, waiting)
            self._teller.tell(found, rules=RUNNING)
        except Exception as error:
            # Judging is a service to the run; what is wrong with its tables it says by itself.
            told = first_line(error)
            if told != self._problem:
                self._problem = told
                self._say(f"alerts: the tables could not be judged: {told}. The run goes on.")
