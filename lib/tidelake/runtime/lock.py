"""Let one process at a time write a hop."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TextIO

from tidelake.errors import LeaseLostError, LockedError, NoLocksError, RefusedError
from tidelake.store.folders import Folder
from tidelake.store.lease import lease
from tidelake.tables import Hop, Lake

# What changes several tables, one after the other.
Work = Literal["erasure", "swap"]
# Volumes and some network drives know no locks, or no writing to a file's end.
_NO_LOCKS = frozenset({errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOLCK})
_LOOKS, _LOOK_SECONDS = 20, 0.05


@dataclass
class HopLocks:
    """The locks that a command holds, and the steps that it does under them.

    A lock on an object store may be lost while its holder stands still. So a command that writes
    several tables asks before each of them.

    Attributes:
        command: Which goes on where it was interrupted; empty: the same one.
        checks: One a lock; each raises LeaseLostError where the lock is lost.
    """

    command: str = ""
    checks: list[Callable[[], None]] = field(default_factory=list)
    _done: list[str] = field(default_factory=list)
    _current: str = ""
    _next: str = ""

    def step(self, what: str) -> None:
        """Begin a step, right before it writes; the one before it is done.

        Args:
            what: What it does, for people: ``replace silver.shop``.

        Raises:
            LeaseLostError: A lock is lost, and the step must not begin.
        """
        if not self.checks:
            return
        if self._current:
            self._done.append(self._current)
        self._current, self._next = "", what
        for check in self.checks:
            check()
        self._current, self._next = what, ""

    def lost(self, error: LeaseLostError) -> LeaseLostError:
        """Say of a lost lock which steps were done."""
        if not (self._done or self._current or self._next):
            return error
        return LeaseLostError(
            error.what,
            error.place,
            done=self._done,
            interrupted=self._current,
            not_begun=self._next,
            command=self.command,
        )


@contextmanager
def hold_hops(
    lake: Lake,
    pipeline: str,
    hops: Sequence[Hop],
    *,
    goes_on_with: Work | None = None,
    command: str = "",
) -> Iterator[HopLocks]:
    """Hold the locks of a pipeline's hops.

    Args:
        lake: Where the tables are.
        pipeline: Whose.
        hops: Which.
        goes_on_with: What the holder may go on with where it was interrupted.
        command: See :class:`HopLocks`.

    Raises:
        LockedError: Another process writes one of them.
        NoLocksError: The file system has no locks, and the lake needs them.
        LeaseLostError: One of them was lost; the message says which steps were done.
        RefusedError: Work on several tables has begun and not ended: they do not agree yet.
    """
    locks = HopLocks(command)
    try:
        with _held(lake, pipeline, hops, goes_on_with) as checks:
            locks.checks += checks
            yield locks
    except LeaseLostError as error:
        raise locks.lost(error) from error


@contextmanager
def _held(
    lake: Lake, pipeline: str, hops: Sequence[Hop], goes_on_with: Work | None
) -> Iterator[list[Callable[[], None]]]:
    with ExitStack() as locks:
        checks = [
            locks.enter_context(
                hold(
                    lake.checkpoints(pipeline, hop),
                    f"{pipeline}, hop {hop},",
                    optional=not lake.needs_locks,
                )
            )
            for hop in hops
        ]
        if goes_on_with != "erasure" and lake.erasure(pipeline).exists():
            raise RefusedError(
                f"an erasure of {pipeline} was interrupted, and its tables do not agree yet. "
                "Go on with it, with the same subject: "
                f"tidelake erase {pipeline} --subject COLUMN=VALUE"
            )
        swapped = {"silver", "gold"} & set(hops)
        if goes_on_with != "swap" and swapped and lake.swap(pipeline).exists():
            back = f"tidelake backfill rollback {pipeline}"
            remedy = (
                f"Go on with it: {back}"
                if is_put_back(lake, pipeline)
                else f"Go on with it: tidelake backfill promote {pipeline}, or take it back: {back}"
            )
            raise RefusedError(
                f"a swap of {pipeline}'s tables was interrupted, and they do not agree yet. "
                f"{remedy}"
            )
        yield checks


def is_put_back(lake: Lake, pipeline: str) -> bool:
    """Tell whether a swap that has begun is a rollback: then only a rollback goes on with it."""
    try:
        return lake.swap(pipeline).read_text(encoding="utf-8") == "rolling back"
    except FileNotFoundError:
        return False


@contextmanager
def hold(
    folder: Folder, what: str, *, waits: bool = False, optional: bool = False
) -> Iterator[Callable[[], None]]:
    """Hold a folder's lock; the system frees it when the process ends, however it ends.

    A store has no such locks: there it is an object, and frees itself a while after its holder
    was last heard of.

    Args:
        folder: Whose lock.
        what: What is written under it, for the message.
        waits: Wait for the other process; for what takes moments.
        optional: Whether the work is done without a lock where the file system has none. The
            tables alone keep writers apart then: each batch asks them which generation and which
            batch is next, and its appends carry transaction ids.

    Yields:
        A check that raises LeaseLostError where the lock is not held any more; on a disk it always
        is.

    Yields:
        A check that raises LeaseLostError where the lock is not held any more; on a disk it always
        is.

    Raises:
        LockedError: Another process holds it.
        NoLocksError: The file system has no locks.
    """
    if not isinstance(folder, Path):
        with lease(folder / ".lock", what, waits=waits) as check:
            yield check
        return
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as held:
        try:
            file = held.enter_context((folder / ".lock").open("a+", encoding="utf-8"))
            _lock(file, what, waits=waits)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            if not optional:
                raise NoLocksError(
                    f"{what} cannot be locked: the file system of {folder} has no locks "
                    f"({error.strerror}), and two processes could append the same rows. Nothing "
                    "was written. Put the tables on a file system with locks. Where only one "
                    "process at a time writes a pipeline, write `locks: none` into the "
                    "environment's file under conf/environments."
                ) from error
        yield lambda: None


def _lock(file: TextIO, what: str, *, waits: bool) -> None:
    """Take a file's lock, and write down who has it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
    except BlockingIOError as error:
        raise LockedError(
            f"{what} is being written by process {_holder(file)}. "
            "Wait for it to end, or stop it, then run again."
        ) from error
    file.truncate(0)
    # Not through the buffer, which would be written once more when the file is closed.
    os.write(file.fileno(), str(os.getpid()).encode())


def writer(lake: Lake, pipeline: str, hop: Hop) -> int | None:
    """Give the process that writes a hop; None where none on this machine does.

    The lock itself is not asked: to try it would make a run fail that begins in this moment. So a
    process that has nothing to do with it may stand here, under a number that was used again.
    """
    try:
        told = (lake.checkpoints(pipeline, hop) / ".lock").read_text(encoding="utf-8").strip()
    except OSError:
        return None
    return int(told) if told.isdecimal() and _lives(told) else None


def _holder(file: TextIO) -> str:
    """Read who holds a lock; whoever took it this moment has not written it down yet."""
    told = ""
    for _ in range(_LOOKS):
        file.seek(0)
        told = file.read().strip()
        if told and _lives(told):
            break
        time.sleep(_LOOK_SECONDS)
    return told or "unknown"


def _lives(process: str) -> bool:
    try:
        os.kill(int(process), 0)
    except PermissionError:
        return True
    except (OSError, ValueError):
        return False
    return True
