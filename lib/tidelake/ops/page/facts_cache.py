"""Cache the facts of the page; re-read only what changed, and only while the page is viewed.

One thread reads. A request wakes it; it compares the change fingerprint of the pipeline (table
versions and file listings; no table or commit is read) with the previous one, and re-reads the
parts whose fingerprint changed, the fast ones first. It pauses in proportion to the cost: the
fingerprint takes at most 1/50 of the time, reading a part 1/5.
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
from tidelake.config.sharing import defaults_beside
from tidelake.delta.locks import writer
from tidelake.delta.log import newest_version
from tidelake.delta.tables import HOPS, Lake
from tidelake.errors import TidelakeError
from tidelake.folders import Folder, list_folder, list_matching
from tidelake.instants import now
from tidelake.ledger.history import BacklogReader, offered_files
from tidelake.ledger.terms import read_ledger
from tidelake.ops.alerts import MEASURED, AlertContext, alerts_of, erases_or_swaps, judge
from tidelake.ops.page.facts import PARTS, Facts, read_flow, read_plots, read_sides
from tidelake.runtime.checkpoints import has_batches
from tidelake.typed import Typed
from tidelake.visible import kind_of

# Least seconds between two fingerprints; pauses after computing one and after reading a part, as
# multiples of the cost.
_CHECK_SECONDS, _CHECK_PAUSE, _READ_PAUSE = 2.0, 50, 5
# Ages and a broker's offsets change without a commit: least seconds between two reads of those
# parts, and the pause as a multiple of the cost.
_AGING_SECONDS, _AGING_PAUSE = 30.0, 100
_AGING_PARTS = ("flow", "alerts")
# The parts that are read from the pipeline's tables alone.
_OF_TABLES = ("flow", "sides", "plots", "books")
# The page counts as viewed for this many seconds after a request.
_VIEWED_SECONDS = 10.0


@dataclass
class _Part:
    """A part of the facts: its fingerprint when read, and when it may and must be re-read."""

    key: object = None
    paused_until: float = 0.0
    ages_at: float = 0.0


@dataclass
class _Watch:
    """The reading thread's state for one pipeline."""

    asked_at: float = 0.0
    next_check_at: float = 0.0
    files: tuple[tuple[str, int], ...] = ()
    parts: dict[str, _Part] = field(default_factory=dict)


class FactsCache:
    """Cache of the facts of some pipelines, filled by a background thread."""

    def __init__(
        self,
        lake: Lake,
        called: Mapping[str, str],
        load: Callable[[str], Pipeline],
        *,
        publishes: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create an empty cache.

        ``called`` maps each pipeline's name to its command argument, a name or a file's path;
        ``load`` reads a definition by that argument; ``publishes`` is the environment's setting;
        ``clock`` returns monotonic seconds.
        """
        self._lake, self._load, self._clock = lake, load, clock
        self._called, self._publishes = dict(called), publishes
        self.names = tuple(called)
        self._facts = {name: Facts(name, called=argument) for name, argument in called.items()}
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
        """End the thread after its current read."""
        self._stopped = True
        self._asked.set()
        if self._thread.is_alive():
            self._thread.join()

    def get(self, names: Sequence[str], *, patience: float) -> tuple[Facts, ...]:
        """Return the facts of pipelines and wake the thread to update them.

        Waits at most ``patience`` seconds for facts that were never read, or that are outdated
        because the page was not viewed.
        """
        fresh = now().timestamp() - _VIEWED_SECONDS
        for name in names:
            self._watches[name].asked_at = self._clock()
        self._asked.set()
        with self._changed:
            self._changed.wait_for(
                lambda: all(_is_current(self._facts[name], fresh) for name in names), patience
            )
            return tuple(self._facts[name] for name in names)

    def _work(self) -> None:
        while not self._stopped:
            self._asked.wait()
            self._asked.clear()
            since = self._clock() - _VIEWED_SECONDS
            for name, watch in self._watches.items():
                if watch.asked_at > since and not self._stopped:
                    self.bring_up_to_date(name)

    def bring_up_to_date(self, name: str) -> None:
        """Compute a pipeline's fingerprint, if due, and re-read the parts that changed."""
        watch, began = self._watches[name], self._clock()
        if began < watch.next_check_at:
            return
        watch.next_check_at = began + _CHECK_SECONDS
        # Catch any error: without this thread the page would never be updated again.
        try:
            pipeline = self._definition(name, watch)
        except Exception as error:
            self._publish(name, {"definition": _reason(error)})
            return
        try:
            versions, others = change_fingerprint(self._lake, pipeline)
            cost = self._clock() - began
            watch.next_check_at = began + max(_CHECK_SECONDS, _CHECK_PAUSE * cost)
            # Its tables may have been deleted; ops.progress, the last, is of all pipelines.
            has_run = max(versions[:-1]) >= 0 or has_batches(
                self._lake.checkpoints(pipeline.name, "bronze")
            )
            # Of tables that were deleted nothing stays.
            gone: dict[str, None] = {} if has_run else dict.fromkeys(_OF_TABLES)
            for part in gone:
                watch.parts.pop(part, None)
            reasons = {"definition": "", "fingerprint": "", **dict.fromkeys(gone, "")}
            self._publish(name, reasons, pipeline=pipeline, has_run=has_run, **gone)
            for part, read in self._readers(name, pipeline, has_run=has_run).items():
                if part == "books" and erases_or_swaps(self._lake, pipeline.name):
                    continue
                # The flow and the alerts depend on more than the tables.
                key = (versions, others) if part in _AGING_PARTS else versions
                self._refresh(name, part, key, read)
        except Exception as error:
            why = f"the tables cannot be checked for changes: {_reason(error)}"
            self._publish(name, {"definition": "", "fingerprint": why})

    def _definition(self, name: str, watch: _Watch) -> Pipeline:
        """Return the definition, reloaded if its file or its folder's defaults changed."""
        known = self._facts[name].pipeline
        if known is not None and watch.files == _stamps(known.file):
            return known
        found = self._load(self._called[name])
        watch.files = _stamps(found.file)
        watch.parts.clear()
        return found

    def _readers(
        self, name: str, pipeline: Pipeline, *, has_run: bool
    ) -> dict[str, Callable[[], object]]:
        """Return a reader of each part of the facts, the fast ones first.

        Before the first table only the metrics can show that a run has failed.
        """
        # A file may be called otherwise than its pipeline, and be renamed while the page is served.
        lake, typed = self._lake, Typed(called=self._called[name])
        # Both parts need bronze's files, which are read once.
        backlogs = BacklogReader(lake, pipeline)
        if not has_run:
            context = AlertContext(lake, pipeline, now(), None, backlogs, typed, self._publishes)
            return {"alerts": lambda: judge(context, MEASURED)}
        return {
            "flow": lambda: read_flow(lake, pipeline, now=now(), backlogs=backlogs),
            "alerts": lambda: alerts_of(
                lake,
                pipeline,
                now=now(),
                backlogs=backlogs,
                counts=False,
                typed=typed,
                publishes=self._publishes,
            ),
            "sides": lambda: read_sides(lake, pipeline),
            "plots": lambda: read_plots(lake, pipeline),
            "books": lambda: read_ledger(lake, pipeline),
        }

    def _refresh(self, name: str, part: str, key: object, read: Callable[[], object]) -> None:
        """Read a part, if its fingerprint changed or is too old, and its pause is over."""
        known = self._watches[name].parts.setdefault(part, _Part())
        began = self._clock()
        # A file of a table that is restored makes no commit.
        ages = part in _AGING_PARTS or any(
            alert.rule == "unreadable" for alert in self._facts[name].open
        )
        is_old = ages and began >= known.ages_at
        if began < known.paused_until or (known.key == key and not is_old):
            return
        try:
            self._publish(name, {part: ""}, **{part: read()})
        except Exception as error:
            # Catch any error, as above: a damaged table may raise any.
            why = f"{PARTS[part][0]} cannot be read: {_reason(error)}"
            self._publish(name, {part: why}, **{part: None})
        ended = self._clock()
        known.key, cost = key, ended - began
        known.paused_until = ended + _READ_PAUSE * cost
        known.ages_at = ended + max(_AGING_SECONDS, _AGING_PAUSE * cost)

    def _publish(self, name: str, problems: Mapping[str, str], **known: Any) -> None:
        """Replace some facts of a pipeline; the serial increases if one of them changed.

        ``problems`` has by part why it cannot be read, "" if it was.
        """
        with self._changed:
            before = self._facts[name]
            broken = {**dict(before.broken), **problems}
            known["broken"] = tuple((part, why) for part, why in broken.items() if why)
            changed = any(getattr(before, part) != found for part, found in known.items())
            serial = before.serial + (changed or before.looked_at is None)
            self._facts[name] = replace(before, looked_at=now(), serial=serial, **known)
            self._changed.notify_all()


def _reason(error: Exception) -> str:
    """Return a Tidelake error's message; of other errors the class, without values of rows."""
    return str(error) if isinstance(error, TidelakeError) else kind_of(error)


def _is_current(facts: Facts, since: float) -> bool:
    """Return whether the facts were read since an instant and have something to show."""
    if facts.looked_at is None or facts.looked_at.timestamp() < since:
        return False
    return facts.flow is not None or not facts.has_run or bool(facts.broken)


def _stamps(file: str) -> tuple[tuple[str, int], ...]:
    files = [Path(file), *defaults_beside(Path(file))]
    return tuple((str(one), one.stat().st_mtime_ns) for one in files)


def change_fingerprint(
    lake: Lake, pipeline: Pipeline
) -> tuple[tuple[int, ...], tuple[object, ...]]:
    """Compute the change fingerprint: the newest version of each table (-1 for none), and the rest.

    The rest is landed files, running writers, interrupted operations and checkpoints.
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
    """Yield each checkpoint log of each generation with the time of its last change."""
    for log in list_matching(folder, "*/*"):
        # A run may delete files at the same time.
        with contextlib.suppress(FileNotFoundError):
            # Folders in an object store have no modification time: use the file names instead.
            yield (
                f"{log.parent.name}/{log.name}",
                log.stat().st_mtime_ns
                if isinstance(log, Path)
                else sorted(file.name for file in list_folder(log)),
            )
