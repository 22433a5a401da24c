"""Put together what the run says of a batch and what Spark says of its trigger.

The run tells of a batch when its tables hold it, Spark of the trigger when the checkpoint does.
Both only put a message into a queue; all work is done in a thread of its own.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from queue import Empty, SimpleQueue

from tidelake.ops.metrics.joining import Joining
from tidelake.ops.metrics.measured import Measured
from tidelake.ops.metrics.messages import Message
from tidelake.ops.metrics.sinks import Guarded
from tidelake.runtime.progress import Say

_POLL_SECONDS = 1.0
# How long the end of a run waits for Spark's last reports, and for the sinks.
_LAST_SECONDS, _CLOSE_SECONDS = 3.0, 30.0
# For the alerts of a run that goes on: an hour of batches of a second.
_RECENT = 3_600


class Recorder:
    """Measures the batches of one run, and hands them to the sinks."""

    def __init__(self, joining: Joining, sinks: Sequence[Guarded], say: Say) -> None:
        """Begin to listen."""
        self._joining = joining
        self._sinks = sinks
        self._say = say
        self._queue: SimpleQueue[Message | None] = SimpleQueue()
        self._recent: deque[Measured] = deque(maxlen=_RECENT)
        self._lock = threading.Lock()
        self._has_told = False
        self._thread = threading.Thread(target=self._work, name="tidelake-metrics", daemon=True)
        self._thread.start()

    def hear(self, message: Message) -> None:
        """Take a message; from any thread, at once."""
        self._queue.put(message)

    def recent(self) -> tuple[Measured, ...]:
        """Give the latest batches, oldest first; from any thread."""
        with self._lock:
            return tuple(self._recent)

    def settle(self) -> None:
        """Wait for what Spark has still to report of batches that are closed."""
        until = time.monotonic() + _LAST_SECONDS
        while time.monotonic() < until and (self._joining.waits or not self._queue.empty()):
            time.sleep(0.05)

    def close(self) -> None:
        """Write what waits, and let go."""
        self._queue.put(None)
        self._thread.join(_CLOSE_SECONDS)

    def _work(self) -> None:
        while True:
            try:
                message = self._queue.get(timeout=_POLL_SECONDS)
            except Empty:
                self._tick()
                continue
            if message is None:
                break
            self._take(message)
            self._tick()
        for measured in self._joining.rest():
            self._put(measured)
        for sink in self._sinks:
            sink.close()

    def _take(self, message: Message) -> None:
        try:
            measured = self._joining.take(message)
        except Exception as error:
            # A log that cannot be read now is the run's own matter; it says so by itself.
            if not self._has_told:
                self._has_told = True
                self._say(f"metrics: a batch could not be measured: {error}. The run goes on.")
            return
        if measured is not None:
            self._put(measured)

    def _put(self, measured: Measured) -> None:
        with self._lock:
            self._recent.append(measured)
        for sink in self._sinks:
            sink.put(measured)

    def _tick(self) -> None:
        for sink in self._sinks:
            sink.tick()
