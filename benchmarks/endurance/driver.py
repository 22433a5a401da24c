"""The run of the pipeline as a process: started, killed with its group, stopped in order."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.recovery.processes import Started, started

from benchmarks.measuring import say
from tidelake.delta.log import batch_reached
from tidelake.delta.tables import HOPS, Hop, Lake
from tidelake.runtime.checkpoints import newest_logged

NAME = "clickstream"
_STOP_SECONDS, _COMMAND_SECONDS = 300, 3600
# Of a command's output when it fails.
_SHOWN = 3000


@dataclass
class Life:
    """From one start of the process to its end.

    Attributes:
        started: Seconds since the epoch.
        ended: The same; None while it runs.
        how: ``killed`` or ``stopped``; empty while it runs.
        planned: Hops with a planned batch that the checkpoint does not have as completed.
        committed: Those of them whose table had the batch already.
        gone: Seconds until nothing was left of the process group.
    """

    started: float
    ended: float | None = None
    how: str = ""
    planned: list[Hop] = field(default_factory=list)
    committed: list[Hop] = field(default_factory=list)
    gone: float = 0.0


@dataclass
class Driver:
    """Keeps a continuous run alive between kills.

    Attributes:
        folder: The working directory, with the configuration.
        file: The pipeline file.
        lake: The tables.
        lives: In their order.
        commands: Seconds of the other commands, in their order.
        lock: Held while the process is being ended or started.
    """

    folder: Path
    file: Path
    lake: Lake
    lives: list[Life] = field(default_factory=list)
    commands: list[dict[str, Any]] = field(default_factory=list)
    lock: threading.RLock = field(default_factory=threading.RLock)
    _running: ExitStack = field(default_factory=ExitStack)
    _process: Started | None = None

    @property
    def pid(self) -> int | None:
        """The process id, None between two lives."""
        return self._process.process.pid if self._process else None

    def start(self) -> None:
        """Start the continuous run."""
        with self.lock:
            arguments = ["run", str(self.file), "--root", str(self.lake.root)]
            name = f"run-{len(self.lives):03d}"
            self.lives.append(Life(time.time()))
            self._process = self._running.enter_context(
                started(self.folder, [*arguments, "--trigger", "continuous"], name=name)
            )

    def kill(self) -> None:
        """Kill the process group, look at what was under way, and start it again."""
        with self.lock:
            if self._process is None:
                return
            self._end("killed")
            life = self.lives[-1]
            found = {hop: self._open_batch(hop) for hop in HOPS}
            planned = {hop: batch for hop, batch in found.items() if batch is not None}
            life.planned = list(planned)
            life.committed = [hop for hop, batch in planned.items() if self._reached(hop) >= batch]
            say(f"killed; {', '.join(life.planned) or 'no hop'} had a batch under way")
            self.start()

    def stop(self) -> None:
        """End the run with SIGTERM, which it obeys after its batches."""
        with self.lock:
            process = self._process
            if process is not None:
                process.process.send_signal(signal.SIGTERM)
                process.process.wait(_STOP_SECONDS)
                self._end("stopped")

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop the run in order for the block, and start it again; nobody kills it meanwhile."""
        with self.lock:
            self.stop()
            yield
            self.start()

    def close(self) -> None:
        """Leave nothing of the process, whatever happened."""
        with self.lock:
            self._running.close()

    def assert_runs(self) -> None:
        """Raise SystemExit if the run ended by itself."""
        with self.lock:
            process = self._process
            if process is not None and (code := process.process.poll()) is not None:
                raise SystemExit(f"the run ended by itself with {code}:\n{process.words[-_SHOWN:]}")

    def command(self, *arguments: str, may_differ: bool = False) -> str:
        """Run a command of the pipeline to its end, and return what it printed.

        Raises:
            SystemExit: It failed; ``may_differ`` allows exit code 3.
        """
        words = [*arguments, str(self.file), "--root", str(self.lake.root)]
        name = "-".join([f"command-{len(self.commands):02d}", *arguments[:2]])
        began = time.time()
        with started(self.folder, words, name=name) as process:
            if not process.ends_within(_COMMAND_SECONDS):
                raise SystemExit(f"tidelake {' '.join(arguments)} does not end")
            code, output = process.process.returncode, process.words
        took = round(time.time() - began, 1)
        self.commands.append({"command": " ".join(arguments), "at": began, "seconds": took})
        say(f"tidelake {' '.join(arguments)}: exit {code} after {took} s")
        if code not in ((0, 3) if may_differ else (0,)):
            raise SystemExit(
                f"tidelake {' '.join(arguments)} ended with {code}:\n{output[-_SHOWN:]}"
            )
        return output

    def _end(self, how: str) -> None:
        assert self._process is not None
        life, began = self.lives[-1], time.time()
        life.ended, life.how = began, how
        # Kills the group, and waits until it is gone.
        self._running.close()
        life.gone = round(time.time() - began, 2)
        self._process = None

    def _open_batch(self, hop: Hop) -> int | None:
        """Return the batch that a hop's checkpoint planned and has not completed, if any."""
        folders = list(Path(str(self.lake.checkpoints(NAME, hop))).glob("*/offsets"))
        if not folders:
            return None
        newest = max(folders, key=lambda folder: folder.stat().st_mtime)
        planned, done = newest_logged(newest), newest_logged(newest.parent / "commits")
        return planned if planned > done else None

    def _reached(self, hop: Hop) -> int:
        tables = {"bronze": self.lake.bronze(NAME), "silver": self.lake.silver(NAME)}
        return batch_reached(tables.get(hop, self.lake.gold("product_totals")))


def printed_json(output: str) -> Any:
    """Find the JSON document in what a command printed: its other lines go to the same file."""
    lines = output.splitlines()
    for first, line in enumerate(lines):
        if line[:1] in "{[" and line:
            for last in range(len(lines), first, -1):
                try:
                    return json.loads("\n".join(lines[first:last]))
                except ValueError:
                    continue
    raise SystemExit(f"no JSON was printed:\n{output[-_SHOWN:]}")
