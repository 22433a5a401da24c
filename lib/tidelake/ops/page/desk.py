"""Keep the facts of the page current, reading only what changed and only while it is viewed.

One thread reads. A request wakes it; it compares the pulse of the pipeline (versions and listings,
no table or commit is read) with the last one, and reads the parts whose pulse changed, the fast
ones first. It pauses in proportion to the cost: the pulse takes at most a fiftieth of the time,
reading a part a fifth.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tidelake.config import Pipeline
from tidelake.delta.locks import writer
from tidelake.delta.log import newest_version
from tidelake.delta.tables import HOPS, Lake
from tidelake.errors import TidelakeError
from tidelake.folders import Folder, list_folder, matching
from tidelake.instants import now
from tidelake.ledger.history import offered_files
from tidelake.ledger.terms import read_ledger
from tidelake.ops.alerts import alerts_of
from tidelake.ops.page.facts import Facts, read_flow, read_plots, read_sides
from tidelake.typed import Typed
from tidelake.visible import kind_of

# Least seconds between two pulses; pauses after a pulse and after a part, as multiples of the cost.
_LOOK, _LOOK_REST, _READ_REST = 2.0, 50, 5
# Ages and a broker's offsets change without a commit: least seconds between two readings, and the
# pause as a multiple of the cost.
_AGES, _AGES_REST = 30.0, 100
_AGING = ("flow", "alerts")
# Seconds after a request in which the page counts as viewed.
_WATCHED = 10.0


@dataclass
class _Part:
    """A part of the facts: the pulse at its reading, and when it may and must be read again."""

    key: object = None
    rests_until: float = 0.0
    ages_at: float = 0.0


@dataclass
class _Watch:
    """The reading thread's state of a pipeline."""

    asked_at: float = 0.0
    looks_at: float = 0.0
    file: tuple[str, int] | None = None
    parts: dict[str, _Part] = field(default_factory=dict)


class Desk:
    """The facts of some pipelines, read in a thread of its own."""

    def __init__(
        self,
        lake: Lake,
        called: Mapping[str, str],
        load: Callable[[str], Pipeline],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read nothing before the first request.

        ``called`` has by name the argument that stands for each pipeline, its name or a file's
        path; ``load`` reads a definition by that argument; ``clock`` has monotonic seconds.
        """
        self._lake, self._load, self._clock = lake, load, clock
        self._called = dict(called)
        self.names = tuple(called)
        self._facts = {name: Facts(name, called=one) for name, one in called.items()}
        self._watches = {name: _Watch() for name in called}
        self._changed = threading.Condition()
        self._asked = threading.Event()
        self._stopped = False
        self._thread = threading.Thread(target=self._work, name="page", daemon=True)

    def start(self) -> None:
        """Start the thread, and read all pipelines once for the first request."""
        for watch in self._watches.values():
            watch.asked_at = self._clock()
        self._asked.set()
        self._thread.start()

    def stop(self) -> None:
        """End the thread after its current reading."""
        self._stopped = True
        self._asked.set()
        if self._thread.is_alive():
            self._thread.join()

    def look(self, names: Sequence[str], *, patience: float) -> tuple[Facts, ...]:
        """Return the facts of pipelines, and let the thread update them.

        Waits at most ``patience`` seconds for facts that were never read, or not since a pause.
        """
        fresh = now().timestamp() - _WATCHED
        for name in names:
            self._watches[name].asked_at = self._clock()
        self._asked.set()
        with self._changed:
            self._changed.wait_for(
                lambda: all(_is_seen(self._facts[name], fresh) for name in names), patience
            )
            return tuple(self._facts[name] for name in names)

    def _work(self) -> None:
        while not self._stopped:
            self._asked.wait()
            self._asked.clear()
            since = self._clock() - _WATCHED
            for name, watch in self._watches.items():
                if watch.asked_at > since and not self._stopped:
                    self.bring_up_to_date(name)

    def bring_up_to_date(self, name: str) -> None:
        """Compute a pipeline's pulse, if it is time, and read what changed."""
        watch, began = self._watches[name], self._clock()
        if began < watch.looks_at:
            return
        watch.looks_at = began + _LOOK
        pipeline = self._definition(name, watch)
        if pipeline is None:
            return
        try:
            versions, others = pulse_of(self._lake, pipeline)
        except Exception as error:
            # Whatever the error: without the thread the page would never change again.
            self._report(name, "pulse", f"the tables cannot be looked at: {_text_of(error)}")
            return
        ended = self._clock()
        watch.looks_at = began + max(_LOOK, _LOOK_REST * (ended - began))
        has_run = versions[0] >= 0
        self._publish(name, pipeline=pipeline, has_run=has_run)
        self._report(name, "pulse")
        if has_run:
            for part in ("flow", "alerts", "sides", "plots", "books"):
                # The flow and the alerts depend on more than the tables.
                key = (versions, others) if part in _AGING else versions
                self._refresh(name, part, key, pipeline)

    def _definition(self, name: str, watch: _Watch) -> Pipeline | None:
        """Return the definition, reloaded when its file changed; None where it is invalid."""
        known = self._facts[name].pipeline
        try:
            if known is not None and watch.file == _stamp(known.file):
                return known
            found = self._load(self._called[name])
            watch.file = _stamp(found.file)
        except (TidelakeError, OSError) as error:
            self._report(name, "definition", str(error))
            return None
        watch.parts.clear()
        self._report(name, "definition")
        return found

    def _refresh(self, name: str, part: str, key: object, pipeline: Pipeline) -> None:
        """Read a part, if its pulse changed and its pause is over."""
        known = self._watches[name].parts.setdefault(part, _Part())
        began = self._clock()
        is_old = part in _AGING and began >= known.ages_at
        if began < known.rests_until or (known.key == key and not is_old):
            return
        try:
            found = self._read(part, pipeline)
        except Exception as error:
            # Whatever the error, as above: a damaged table may raise any.
            self._report(name, part, f"{part} cannot be read: {_text_of(error)}")
        else:
            self._report(name, part)
            self._publish(name, **{part: found})
        ended = self._clock()
        known.key, cost = key, ended - began
        known.rests_until = ended + _READ_REST * cost
        known.ages_at = ended + max(_AGES, _AGES_REST * cost)

    def _read(self, part: str, pipeline: Pipeline) -> object:
        if part == "flow":
            return read_flow(self._lake, pipeline, now=now())
        if part == "alerts":
            typed = Typed(called=self._called[pipeline.name])
            return alerts_of(self._lake, pipeline, now=now(), counts=False, typed=typed)
        if part == "sides":
            return read_sides(self._lake, pipeline)
        if part == "plots":
            return read_plots(self._lake, pipeline)
        return read_ledger(self._lake, pipeline)

    def _report(self, name: str, part: str, why: str = "") -> None:
        """Publish why a part cannot be read; without a reason, that it can."""
        before = self._facts[name].broken
        broken = tuple(one for one in before if one[0] != part)
        if why:
            broken = (*broken, (part, why))
        if why or broken != before:
            self._publish(name, broken=broken)

    def _publish(self, name: str, **known: Any) -> None:
        """Replace some facts of a pipeline; the serial grows where one of them changed."""
        with self._changed:
            before = self._facts[name]
            changed = any(getattr(before, part) != found for part, found in known.items())
            serial = before.serial + (changed or before.looked_at is None)
            self._facts[name] = replace(before, looked_at=now(), serial=serial, **known)
            self._changed.notify_all()


def _text_of(error: Exception) -> str:
    """Return the message of an error of ours; of any other its kind, without values of rows."""
    return str(error) if isinstance(error, TidelakeError) else kind_of(error)


def _is_seen(facts: Facts, since: float) -> bool:
    """Return whether there is something to show that is not from before a pause."""
    if facts.looked_at is None or facts.looked_at.timestamp() < since:
        return False
    return facts.flow is not None or not facts.has_run or bool(facts.broken)


def _stamp(file: str) -> tuple[str, int]:
    return file, Path(file).stat().st_mtime_ns


def pulse_of(lake: Lake, pipeline: Pipeline) -> tuple[tuple[int, ...], tuple[object, ...]]:
    """Return the newest version of each table, -1 for none, and the state of everything else.

    That is: landed files, running writers, interrupted operations and checkpoints.
    """
    name = pipeline.name
    tables = (
        *(lake.bronze(name), lake.requeue(name), lake.silver(name)),
        *(lake.quarantine(name), lake.late(name), lake.discarded(name)),
        *(lake.table(gold) for gold in pipeline.gold_names),
        lake.progress(),
    )
    files = (offered_files(pipeline) or {}).values()
    return (
        tuple(newest_version(table) for table in tables),
        (
            (len(files), sum(f.size for f in files), max((f.modified for f in files), default=0)),
            tuple(writer(lake, name, hop) for hop in HOPS),
            lake.swap(name).exists(),
            lake.erasure(name).exists(),
            *(mark for hop in HOPS for mark in _checkpoint(lake.checkpoints(name, hop))),
        ),
    )


def _checkpoint(folder: Folder) -> Iterator[tuple[str, object]]:
    """Return each log of each generation, and when its files last changed."""
    for log in matching(folder, "*/*"):
        # A run may delete files meanwhile.
        with contextlib.suppress(FileNotFoundError):
            # Folders on an object store have no modification time; their file names stand for it.
            yield (
                f"{log.parent.name}/{log.name}",
                log.stat().st_mtime_ns
                if isinstance(log, Path)
                else sorted(file.name for file in list_folder(log)),
            )
