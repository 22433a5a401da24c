"""Keep what the page shows up to date, and rest while nobody looks or nothing changed.

One thread reads. Somebody who looks wakes it; then it takes the pulse of that pipeline, without
reading a table or parsing a commit, and reads the parts whose pulse changed, quick ones first. It
rests in proportion to what that cost: a look takes a fiftieth of the time at most, reading a part
a fifth.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from tidelake.config import Pipeline
from tidelake.delta.locks import writer
from tidelake.delta.log import newest_version
from tidelake.delta.tables import HOPS, Lake
from tidelake.errors import TidelakeError
from tidelake.folders import Folder, list_folder, matching
from tidelake.ops.alerts import alerts_of
from tidelake.ops.history import offered_files
from tidelake.ops.ledger import read_ledger
from tidelake.ops.page.facts import Facts, read_flow, read_plots, read_sides
from tidelake.typed import Typed
from tidelake.visible import kind_of

# Seconds between two looks at the least, and how many times its own cost each rests.
_LOOK, _LOOK_REST, _READ_REST = 2.0, 50, 5
# Time alone changes what waits for how long, and what a broker holds: seconds between two such
# readings at the least, and how many times its own cost each rests.
_AGES, _AGES_REST = 30.0, 100
# For how long somebody who looked once is taken to look still.
_WATCHED = 10.0


class Pulse(NamedTuple):
    """The newest version of each table, -1 for none, and what else tells whether anything changed.

    Which is: files on offer, checkpoints, who writes, what was interrupted.
    """

    versions: tuple[int, ...]
    beside: tuple[object, ...]


@dataclass
class _Part:
    """One part of the facts: under which pulse it was read, when it may be again and must be."""

    key: object = None
    rests_until: float = 0.0
    ages_at: float = 0.0


@dataclass
class _Watch:
    """What the reading thread knows of a pipeline."""

    asked_at: float = 0.0
    looks_at: float = 0.0
    file: tuple[str, int] | None = None
    parts: dict[str, _Part] = field(default_factory=dict)


class Desk:
    """Facts of some pipelines, read in a thread of its own."""

    def __init__(
        self,
        lake: Lake,
        called: Mapping[str, str],
        load: Callable[[str], Pipeline],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Know the pipelines; nothing is read before somebody asks.

        Args:
            lake: Where the tables are.
            called: The pipelines' names, and what each is called by: that name, or a file's path.
            load: Reads a definition by what it is called by.
            clock: Seconds that only grow.
        """
        self._lake, self._load, self._clock = lake, load, clock
        self._called = dict(called)
        self._facts = {name: Facts(name, called=one) for name, one in called.items()}
        self._watches = {name: _Watch() for name in called}
        self._changed = threading.Condition()
        self._asked = threading.Event()
        self._stopped = False
        self._thread = threading.Thread(target=self._work, name="page", daemon=True)

    @property
    def names(self) -> tuple[str, ...]:
        """The pipelines, in the order in which they were given."""
        return tuple(self._facts)

    def start(self) -> None:
        """Begin to read, once for all pipelines, so that the first look finds something."""
        now = self._clock()
        for watch in self._watches.values():
            watch.asked_at = now
        self._asked.set()
        self._thread.start()

    def stop(self) -> None:
        """End the thread; what it reads at the moment is read to its end."""
        self._stopped = True
        self._asked.set()
        if self._thread.is_alive():
            self._thread.join()

    def look(self, names: Sequence[str], *, patience: float) -> tuple[Facts, ...]:
        """Give what is known of pipelines, and let it be brought up to date.

        ``patience`` is for how many seconds to wait for a first answer, and for one after a pause.
        """
        now = self._clock()
        fresh = datetime.now(UTC).timestamp() - _WATCHED
        for name in names:
            self._watches[name].asked_at = now
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
            now = self._clock()
            for name, watch in self._watches.items():
                if now - watch.asked_at < _WATCHED and not self._stopped:
                    self.bring_up_to_date(name)

    def bring_up_to_date(self, name: str) -> None:
        """Take a pipeline's pulse, if it is time, and read what changed."""
        watch, began = self._watches[name], self._clock()
        if began < watch.looks_at:
            return
        pipeline = self._definition(name, watch)
        if pipeline is None:
            watch.looks_at = began + _LOOK
            return
        try:
            pulse = pulse_of(self._lake, pipeline)
        except Exception as error:
            # Whatever it was: a thread that ended would leave a page that looks well.
            self._report(name, "pulse", f"the tables cannot be looked at: {_told(error)}")
            watch.looks_at = began + _LOOK
            return
        ended = self._clock()
        watch.looks_at = began + max(_LOOK, _LOOK_REST * (ended - began))
        has_run = pulse.versions[0] >= 0
        before = self._facts[name]
        is_news = (before.has_run, before.pipeline) != (has_run, pipeline) or not before.looked_at
        self._publish(name, is_news=is_news, pipeline=pipeline, has_run=has_run)
        self._report(name, "pulse")
        if has_run:
            for part in ("flow", "alerts", "sides", "plots", "books"):
                self._refresh(name, part, pulse, pipeline)

    def _definition(self, name: str, watch: _Watch) -> Pipeline | None:
        """Give the definition; read anew when its file changed."""
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

    def _refresh(self, name: str, part: str, pulse: Pulse, pipeline: Pipeline) -> None:
        """Read one part, if it is another than it was and may be read again."""
        ages = part in ("flow", "alerts")
        key: object = pulse if ages else pulse.versions
        known = self._watches[name].parts.setdefault(part, _Part())
        began = self._clock()
        is_old = ages and began >= known.ages_at
        if began < known.rests_until or (known.key == key and not is_old):
            return
        try:
            found = self._read(part, pipeline)
        except Exception as error:
            # As above: of a damaged table anything may come.
            self._report(name, part, f"{part} cannot be read: {_told(error)}")
        else:
            is_news = getattr(self._facts[name], part) != found
            self._report(name, part)
            self._publish(name, is_news=is_news, **{part: found})
        ended = self._clock()
        known.key, cost = key, ended - began
        known.rests_until = ended + _READ_REST * cost
        known.ages_at = ended + max(_AGES, _AGES_REST * cost)

    def _read(self, part: str, pipeline: Pipeline) -> object:
        if part == "flow":
            return read_flow(self._lake, pipeline, now=datetime.now(UTC))
        if part == "alerts":
            typed = Typed(called=self._called[pipeline.name])
            now = datetime.now(UTC)
            return alerts_of(self._lake, pipeline, now=now, counts=False, typed=typed)
        if part == "sides":
            return read_sides(self._lake, pipeline)
        if part == "plots":
            return read_plots(self._lake, pipeline)
        return read_ledger(self._lake, pipeline)

    def _report(self, name: str, part: str, why: str = "") -> None:
        """Note why a part cannot be read, or nothing where it can."""
        before = self._facts[name].broken
        broken = tuple(one for one in before if one[0] != part)
        if why:
            broken = (*broken, (part, why))
        if why or broken != before:
            self._publish(name, is_news=broken != before, broken=broken)

    def _publish(self, name: str, *, is_news: bool, **known: Any) -> None:
        with self._changed:
            facts = replace(self._facts[name], looked_at=datetime.now(UTC), **known)
            self._facts[name] = replace(facts, serial=facts.serial + is_news)
            self._changed.notify_all()


def _told(error: Exception) -> str:
    """Give an error's words; of one without a name of ours, its kind."""
    return str(error) if isinstance(error, TidelakeError) else kind_of(error)


def _is_seen(facts: Facts, since: float) -> bool:
    """Tell whether there is something to show that is not from before a pause."""
    if facts.looked_at is None or facts.looked_at.timestamp() < since:
        return False
    return facts.flow is not None or not facts.has_run or bool(facts.broken)


def _stamp(file: str) -> tuple[str, int]:
    return file, Path(file).stat().st_mtime_ns


def pulse_of(lake: Lake, pipeline: Pipeline) -> Pulse:
    """Take a pipeline's pulse."""
    name = pipeline.name
    tables = (
        *(lake.bronze(name), lake.requeue(name), lake.silver(name)),
        *(lake.quarantine(name), lake.late(name), lake.discarded(name)),
        *(lake.table(gold) for gold in pipeline.gold_names),
        lake.progress(),
    )
    files = (offered_files(pipeline) or {}).values()
    return Pulse(
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
    """Name each generation's logs and when a file last came or went there."""
    for log in matching(folder, "*/*"):
        # Files come and go under a run.
        with contextlib.suppress(FileNotFoundError):
            # Folders of a store have no time of their own; the names in them have to do.
            yield (
                f"{log.parent.name}/{log.name}",
                log.stat().st_mtime_ns
                if isinstance(log, Path)
                else sorted(file.name for file in list_folder(log)),
            )
