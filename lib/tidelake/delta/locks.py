"""Hop locks: one writer at a time, by a file lock on a disk or a lease on an object store.

The system releases a file lock when its process ends. A lock object remains, so its holder rewrites
it every few seconds; one not written for :data:`LEASE_SECONDS` has expired. Writes are conditional
on its content (If-Match), so two processes never both acquire it. Ages are by the store's clock.
"""

from __future__ import annotations

import _thread
import errno
import fcntl
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Literal, TextIO

import psutil

from tidelake.delta.holders import Waiting, is_alive, machine_id
from tidelake.delta.tables import Hop, Lake
from tidelake.errors import LeaseLostError, LockedError, MachineError, NoLocksError, RefusedError
from tidelake.folders import SCHEME, Folder
from tidelake.object_store import client, translating_errors
from tidelake.typed import runnable

LEASE_SECONDS = 60.0
# The second pause is that after a renewal that failed.
_RENEWED_EVERY, _RENEWED_AGAIN = 10.0, 1.0
_POLLS, _POLL_SECONDS = 20, 0.05
# Error codes for a write whose condition failed, or that conflicts with a concurrent write.
_REFUSED = frozenset({"PreconditionFailed", "ConditionalRequestConflict", "412", "409"})
_MISSING = frozenset({"NoSuchKey", "404"})
_UNSUPPORTED = frozenset({"NotImplemented", "501"})


@dataclass(frozen=True)
class _LockState:
    """A lock object as read: its ETag, its owner and its age in seconds."""

    tag: str
    owner: dict[str, Any]
    age: float

    @property
    def is_free(self) -> bool:
        """Whether it was released, has expired, or its holder on this machine has ended."""
        if self.owner.get("free") or self.age > LEASE_SECONDS:
            return True
        return self.owner.get("machine") == machine_id() and not is_alive(self.owner.get("process"))

    def holder(self) -> str:
        return f"process {self.owner.get('process')} on {self.owner.get('host')}"


@contextmanager
def lease(file: Folder, what: str, *, waits: Waiting | None = None) -> Iterator[Callable[[], None]]:
    """Hold a lease on an object of a store, like :func:`hold`; the check accesses the store.

    Raises a MachineError where the store does not support conditional writes.
    """
    held = _Lease(str(file), what)
    with translating_errors(what.rstrip(",")):
        held.take(waits)
    renewal = threading.Thread(target=held.keep, name="tidelake-lease", daemon=True)
    # Short work of another thread, such as appending metrics, does not interrupt the run: a
    # lost lease is an error at the end of the block.
    if not waits or threading.current_thread() is threading.main_thread():
        _INTERRUPTING.add(held.token)
    renewal.start()
    try:
        yield held.check
    except KeyboardInterrupt as error:
        if held.lost:
            raise held.refusal() from error
        raise
    finally:
        held.done.set()
        # Before the join: an interrupt during it must not find a lease that is held.
        _INTERRUPTING.discard(held.token)
        renewal.join()
        if not held.lost:
            with suppress(Exception):
                held._put({"IfMatch": held.tag}, free=True)
    if held.lost:
        raise held.refusal()


class _InterruptingLeases:
    """The leases, by token, for which the main thread is interrupted: once, for the first lost.

    A second interruption would end the process, as a second Ctrl-C does.
    """

    def __init__(self) -> None:
        self._held: set[str] = set()
        self._has_interrupted = False
        self._lock = threading.Lock()

    def add(self, token: str) -> None:
        with self._lock:
            self._held.add(token)

    def discard(self, token: str) -> None:
        with self._lock:
            self._held.discard(token)
            self._has_interrupted &= bool(self._held)

    def lose(self, token: str) -> None:
        with self._lock:
            is_due = not self._has_interrupted and token in self._held
            self._has_interrupted |= is_due
        if is_due:
            _thread.interrupt_main()


_INTERRUPTING = _InterruptingLeases()


@dataclass
class _Lease:
    """A lease held by this process, and its renewal; ``tag`` is the ETag of the last write."""

    place: str
    what: str
    tag: str = ""
    lost: bool = False
    writes: int = 0
    renewed_at: float = 0.0
    done: threading.Event = field(default_factory=threading.Event)
    token: str = field(default_factory=lambda: uuid.uuid4().hex)
    renewal_lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, waits: Waiting | None) -> None:
        # Must fail: a store that ignores a condition would grant the lock to everybody.
        probes = [{"IfMatch": f'"{0:032}"'}]
        while not self._put({"IfNoneMatch": "*"}):
            seen = self._look()
            if seen is None:
                continue
            # It is our own if the answer to the first write was lost.
            if seen.is_free or seen.owner.get("token") == self.token:
                if self._put({"IfMatch": seen.tag}):
                    break
                continue
            if waits is None:
                raise LockedError(
                    f"{self.what} is being written by {seen.holder()}. Wait for it to end, or stop "
                    f"it, then run again. The lock of a process that died on another machine "
                    f"expires {LEASE_SECONDS:.0f} seconds after its last renewal, which was "
                    f"{seen.age:.0f} seconds ago."
                )
            waits.pause(self.what, seen.holder)
        else:
            # Where the lock was there, that condition has failed above.
            probes.append({"IfNoneMatch": "*"})
        try:
            if any(self._put(condition) for condition in probes):
                raise self._unconditional()
        except Exception:
            # Other machines would wait until it expires.
            with suppress(Exception):
                self._put({"IfMatch": self.tag}, free=True)
            raise

    def _unconditional(self) -> MachineError:
        return MachineError(
            "the object store does not support conditional writes (If-None-Match and If-Match) for "
            f"{self.place}, so two runs could write {self.what} at once. Use one that does."
        )

    def _request(self, operation: str, *, unless: frozenset[str], **more: Any) -> Any:
        """Send a request for the lock object; None where the store refuses it with such a code."""
        from botocore.exceptions import ClientError  # noqa: PLC0415  an extra

        bucket, _, key = self.place.removeprefix(SCHEME).partition("/")
        try:
            return getattr(client(), operation)(Bucket=bucket, Key=key, **more)
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code"))
            if code in unless:
                return None
            if code in _UNSUPPORTED:
                # Without its cause, which would be reported instead.
                raise self._unconditional() from None
            raise

    def _put(self, condition: dict[str, str], **more: Any) -> bool:
        """Write the lock object with this process as owner, if the condition holds."""
        self.writes += 1
        began = time.monotonic()
        owner = {"host": socket.gethostname(), "machine": machine_id(), "process": os.getpid()}
        # Repeated content would get the same ETag: so the number of the write is part of it.
        body = json.dumps(owner | {"token": self.token, "write": self.writes, **more}).encode()
        answer = self._request("put_object", unless=_REFUSED, Body=body, **condition)
        if answer is not None:
            # A slow store may have written it at once.
            self.tag, self.renewed_at = answer["ETag"], began
        return answer is not None

    def _look(self) -> _LockState | None:
        answer = self._request("get_object", unless=_MISSING)
        if answer is None:
            return None
        owner: dict[str, Any] = {}
        with suppress(ValueError):
            owner = dict(json.loads(answer["Body"].read()))
        date_header = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
        written: datetime = answer["LastModified"]
        now = parsedate_to_datetime(date_header) if date_header else written
        return _LockState(answer["ETag"], owner, (now - written).total_seconds())

    def keep(self) -> None:
        """Renew the lease until it is released; if it is lost, interrupt the main thread."""
        pause = _RENEWED_EVERY
        while not self.done.wait(pause) and not self.lost:
            before = self.renewed_at
            if not self._renewed():
                _INTERRUPTING.lose(self.token)
            pause = _RENEWED_EVERY if self.renewed_at > before else _RENEWED_AGAIN

    def check(self) -> None:
        """Renew the lease now, however recent the last renewal: the process may have paused."""
        self._renewed()
        if self.lost:
            raise self.refusal()

    def _renewed(self) -> bool:
        """Renew the lease; return False only to the first caller that finds it lost."""
        with self.renewal_lock:
            if self.lost:
                return True
            renewed: bool | None = None
            with suppress(Exception):
                renewed = self._put({"IfMatch": self.tag})
            # A failed condition may be due to our own write whose response was lost.
            self.lost = not renewed and (
                (renewed is False and not self._is_ours())
                or time.monotonic() - self.renewed_at > LEASE_SECONDS - 2 * _RENEWED_EVERY
            )
            return not self.lost

    def _is_ours(self) -> bool:
        """Return whether the last write is ours; true if the store cannot be read."""
        with suppress(Exception):
            seen = self._look()
            if seen is None or seen.owner.get("token") != self.token:
                return False
            self.tag = seen.tag
        return True

    def refusal(self) -> LeaseLostError:
        return LeaseLostError(self.what, self.place)


# Operations that change several tables in sequence.
Work = Literal["erasure", "swap"]
# Errors of network drives that support no locks, or no appending to a file.
_NO_LOCKS = {errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOLCK, errno.ESPIPE}
# A full disk, or a missing right: whoever may not write locks may not write checkpoints either.
_REAL_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS}


@dataclass
class HopLocks:
    """The locks that a command holds, and the steps it takes under them.

    A lease on an object store may be lost while its holder is paused. So a command that writes
    several tables checks every lock before each of them. ``command`` is the command that resumes
    the work; empty for the same command.
    """

    command: str = ""
    checks: list[Callable[[], None]] = field(default_factory=list)
    _done: list[str] = field(default_factory=list)
    _current: str = ""
    _next: str = ""

    def step(self, what: str) -> None:
        """Check the locks and begin a step, right before it writes; the previous step is done.

        ``what`` is for messages: ``replace silver.shop``. Raises a LeaseLostError for a lost lock.
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
        """Add the completed, interrupted and next steps to a LeaseLostError."""
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
    resumes: Work | None = None,
    command: str = "",
    stop: threading.Event | None = None,
) -> Iterator[HopLocks]:
    """Hold the locks of a pipeline's hops, as :func:`hold` does.

    ``resumes`` is the interrupted operation that the caller may resume. Another one that left the
    tables of these hops inconsistent raises a RefusedError. For ``command`` see :class:`HopLocks`;
    a LeaseLostError lists the completed steps. Once ``stop`` is set, steps raise KeyboardInterrupt.
    """

    def check_stop() -> None:
        if stop is not None and stop.is_set():
            raise KeyboardInterrupt

    locks = HopLocks(command, [check_stop])
    try:
        with ExitStack() as held:
            for hop in hops:
                folder, what = lake.checkpoints(pipeline, hop), f"{pipeline}, hop {hop},"
                check = held.enter_context(hold(folder, what, optional=not lake.needs_locks))
                locks.checks.append(check)
            for work, what in unfinished(lake, pipeline).items():
                if work != resumes and (work == "erasure" or {"silver", "gold"} & set(hops)):
                    raise RefusedError(what)
            yield locks
    except LeaseLostError as error:
        raise locks.lost(error) from error


def hold_upkeep(lake: Lake, pipeline: str) -> AbstractContextManager[Callable[[], None]]:
    """Hold the lock of maintenance, an erasure or a rollback, as :func:`hold` does; before others.

    VACUUM deletes files that another process is about to commit: of a compaction or a rollback.
    """
    folder = lake.root / "checkpoints" / lake.bronze(pipeline).bare / "maintain"
    what = f"{pipeline}, upkeep (maintain, erase or rollback),"
    return hold(folder, what, optional=not lake.needs_locks)


def unfinished(lake: Lake, pipeline: str) -> dict[Work, str]:
    """Describe the operations that have not ended, each with its remedy; they may be running."""
    found: dict[Work, str] = {}
    for work, (command, options) in resuming(lake, pipeline).items():
        resume = runnable(f"tidelake {command}", pipeline, options)
        what, remedy = f"an erasure of {pipeline}", f" with the same subject: {resume}"
        if work == "swap":
            rollback = runnable("tidelake backfill rollback", pipeline)
            or_back = "" if resume == rollback else f", or roll it back: {rollback}"
            what, remedy = f"a swap of {pipeline}'s tables", f": {resume}{or_back}"
        found[work] = f"{what} has not finished; if none is running, continue it{remedy}"
    return found


def resuming(lake: Lake, pipeline: str) -> dict[Work, tuple[str, str]]:
    """Return the command that resumes each unfinished operation, with the options it needs."""
    found: dict[Work, tuple[str, str]] = {}
    if lake.erasure(pipeline).exists():
        found["erasure"] = "erase", "--subject COLUMN=VALUE"
    if lake.swap(pipeline).exists():
        found["swap"] = f"backfill {'rollback' if rolls_back(lake, pipeline) else 'promote'}", ""
    return found


def rolls_back(lake: Lake, pipeline: str) -> bool:
    """Return whether an interrupted swap is a rollback, which only a rollback can resume."""
    with suppress(FileNotFoundError):
        return lake.swap(pipeline).read_text(encoding="utf-8") == "rolling back"
    return False


@contextmanager
def hold(
    folder: Folder, what: str, *, waits: Waiting | None = None, optional: bool = False
) -> Iterator[Callable[[], None]]:
    """Hold a folder's lock until the block ends; on an object store it is a :func:`lease`.

    Yields a check that raises LeaseLostError if the lock was lost; on a disk it never is. ``what``
    is written under the lock. ``waits``: how to wait for a holder, for short work. ``optional``:
    continue without a lock where the file system has none; then only the tables prevent duplicate
    writes: each batch reads its generation and number from them, and appends with transaction ids.

    Raises:
        LockedError: Another process holds it, also after the wait.
        KeyboardInterrupt: The wait was stopped.
        NoLocksError: The file system has no locks.
    """
    if not isinstance(folder, Path):
        with lease(folder / ".lock", what, waits=waits) as check:
            yield check
        return
    folder.mkdir(parents=True, exist_ok=True)
    held = ExitStack()
    try:
        try:
            file = held.enter_context((folder / ".lock").open("a+", encoding="utf-8"))
            _lock(file, what, waits)
            # A name that is left in the file is that of a process that was killed.
            held.callback(file.truncate, 0)
        except OSError as error:
            # Volumes have various codes for this; that a file cannot be sought has none.
            if error.errno in _REAL_ERRORS or not (optional or error.errno in {*_NO_LOCKS, None}):
                raise
            if not optional:
                raise NoLocksError(
                    f"{what} cannot be locked: the file system of {folder} has no locks "
                    f"({error.strerror or error}), and two processes could append the same rows. "
                    "Nothing was written. Put the tables on a file system with locks. Where only "
                    "one process at a time writes a pipeline, write `locks: none` into the "
                    "environment's file under conf/environments."
                ) from error
        yield lambda: None
    finally:
        # The work is committed by now.
        with suppress(*([OSError] if optional else [])):
            held.close()


def _lock(file: TextIO, what: str, waits: Waiting | None) -> None:
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError as error:
            if waits is None:
                raise LockedError(
                    f"{what} is being written by process {_holder(file)}. "
                    "Wait for it to end, or stop it, then run again."
                ) from error
            waits.pause(what, lambda: f"process {_holder(file)}")
    file.truncate(0)
    # Not through the buffer, which would be written again when the file is closed.
    os.write(file.fileno(), f"{os.getpid()} {psutil.Process().create_time():.2f}".encode())


def writer(lake: Lake, pipeline: str, hop: Hop) -> int | None:
    """Return the id of the process that writes a hop; None if none on this machine does.

    The lock itself is not tried, because that could fail a run that starts at this moment.
    """
    try:
        text = (lake.checkpoints(pipeline, hop) / ".lock").read_text(encoding="utf-8")
        lease = dict(json.loads(text)) if text.startswith("{") else None
    except (OSError, ValueError):
        return None
    if lease is None:
        process, _, started = text.strip().partition(" ")
        return int(process) if is_alive(process, started) else None
    is_held = lease.get("machine") == machine_id() and not lease.get("free")
    return int(lease["process"]) if is_held and is_alive(lease.get("process")) else None


def _holder(file: TextIO) -> str:
    """Read the process id of a lock's holder, which a new holder takes a moment to write."""
    for _ in range(_POLLS):
        file.seek(0)
        process = file.read().strip().partition(" ")[0]
        if is_alive(process):
            break
        time.sleep(_POLL_SECONDS)
    return process or "unknown"
