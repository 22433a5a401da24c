"""Let one process at a time write a hop: a file's lock on a disk, a lease on an object store.

A file's lock ends with its holder. An object stays, so whoever holds it writes it anew every few
seconds; one that nobody wrote for :data:`LEASE_SECONDS` belongs to a holder that is gone. Each
write names the content that it replaces (If-Match), so two takers never both succeed. Times are
those of the store alone: no clock of ours is compared.
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
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Literal, TextIO

from tidelake.delta.tables import Hop, Lake
from tidelake.errors import LeaseLostError, LockedError, MachineError, NoLocksError, RefusedError
from tidelake.folders import SCHEME, Folder
from tidelake.object_store import client, named

LEASE_SECONDS = 60.0
_RENEWED_EVERY = 10.0
_WAIT_SECONDS = 0.2
# What stores answer when a condition of a write does not hold, or another write is under way.
_REFUSED = frozenset({"PreconditionFailed", "ConditionalRequestConflict", "412", "409"})


@dataclass(frozen=True)
class _Seen:
    """A lock object as it was read: its tag, who wrote it and how many seconds ago."""

    tag: str
    owner: dict[str, Any]
    age: float

    @property
    def is_free(self) -> bool:
        """Whether it was given back, or its holder is surely gone."""
        if self.owner.get("free") or self.age > LEASE_SECONDS:
            return True
        return self.owner.get("machine") == _machine() and not _lives(self.owner.get("process"))

    def __str__(self) -> str:
        """Name the holder."""
        return f"process {self.owner.get('process')} on {self.owner.get('host')}"


@contextmanager
def lease(file: Folder, what: str, *, waits: bool = False) -> Iterator[Callable[[], None]]:
    """Hold the lock that an object on a store is, as :func:`hold` does; its check asks the store.

    A MachineError where the store does not know conditional writes.
    """
    held = _Lease(str(file), what)
    with named(what.rstrip(",")):
        held.take(waits=waits)
    renewing = threading.Thread(target=held.keep, name="tidelake-lease", daemon=True)
    renewing.start()
    try:
        yield held.check
    except KeyboardInterrupt as error:
        if held.lost:
            raise held.refusal() from error
        raise
    finally:
        held.done.set()
        renewing.join()
        if not held.lost:
            with suppress(Exception):
                held._put({"IfMatch": held.tag}, free=True)
    if held.lost:
        raise held.refusal()


@dataclass
class _Lease:
    """A lock of ours, and how it is kept."""

    place: str
    what: str
    # Of the content that we wrote last.
    tag: str = ""
    lost: bool = False
    writes: int = 0
    heard: float = 0.0
    done: threading.Event = field(default_factory=threading.Event)
    token: str = field(default_factory=lambda: uuid.uuid4().hex)
    one_at_a_time: threading.Lock = field(default_factory=threading.Lock)

    def take(self, *, waits: bool) -> None:
        while not self._put({"IfNoneMatch": "*"}):
            seen = self._look()
            if seen is None:
                continue
            if seen.is_free:
                if self._put({"IfMatch": seen.tag}):
                    break
                continue
            if not waits:
                raise LockedError(
                    f"{self.what} is being written by {seen}. Wait for it to end, or stop it, "
                    f"then run again. One that died elsewhere is passed over {LEASE_SECONDS:.0f} "
                    f"seconds after its last sign of life, which was {seen.age:.0f} seconds ago."
                )
            time.sleep(_WAIT_SECONDS)
        # A store that does not know the condition would let everybody in.
        if self._put({"IfNoneMatch": "*"}):
            raise MachineError(
                f"the object store does not keep conditional writes (If-None-Match) for "
                f"{self.place}, so two runs could write {self.what} at once. Use one that does."
            )

    @property
    def _object(self) -> dict[str, str]:
        bucket, _, key = self.place.removeprefix(SCHEME).partition("/")
        return {"Bucket": bucket, "Key": key}

    def _put(self, condition: dict[str, str], **more: Any) -> bool:
        """Write our name into it, if the condition holds."""
        from botocore.exceptions import ClientError  # noqa: PLC0415

        self.writes += 1
        owner = {
            "host": socket.gethostname(),
            "machine": _machine(),
            "process": os.getpid(),
            "token": self.token,
            # A content that comes again would have the tag of the one before.
            "write": self.writes,
            **more,
        }
        try:
            body = json.dumps(owner).encode()
            answer = client().put_object(**self._object, Body=body, **condition)
        except ClientError as error:
            if str(error.response.get("Error", {}).get("Code")) in _REFUSED:
                return False
            raise
        self.tag = answer["ETag"]
        self.heard = time.monotonic()
        return True

    def _look(self) -> _Seen | None:
        from botocore.exceptions import ClientError  # noqa: PLC0415

        try:
            answer = client().get_object(**self._object)
        except ClientError as error:
            if str(error.response.get("Error", {}).get("Code")) in ("NoSuchKey", "404"):
                return None
            raise
        try:
            owner = dict(json.loads(answer["Body"].read()))
        except ValueError:
            owner = {}
        told = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
        written: datetime = answer["LastModified"]
        now = parsedate_to_datetime(told) if told else written
        return _Seen(answer["ETag"], owner, (now - written).total_seconds())

    def keep(self) -> None:
        """Write it anew again and again; give up the work where that does not succeed in time."""
        while not self.done.wait(_RENEWED_EVERY):
            if self.lost:
                return
            if not self._renewed():
                _thread.interrupt_main()
                return

    def check(self) -> None:
        """Write it anew now, whenever that was done last: this process may have stood still."""
        self._renewed()
        if self.lost:
            raise self.refusal()

    def _renewed(self) -> bool:
        """Write it anew; False for the one caller who finds that it is lost."""
        with self.one_at_a_time:
            if self.lost:
                # Whoever found that stops the work.
                return True
            renewed: bool | None = None
            with suppress(Exception):
                renewed = self._put({"IfMatch": self.tag})
            # What was refused may be our own write whose answer was lost.
            self.lost = not renewed and (
                (renewed is False and not self._is_ours())
                or time.monotonic() - self.heard > LEASE_SECONDS - 2 * _RENEWED_EVERY
            )
            return not self.lost

    def _is_ours(self) -> bool:
        with suppress(Exception):
            seen = self._look()
            if seen is not None and seen.owner.get("token") == self.token:
                self.tag = seen.tag
                return True
            return False
        return True

    def refusal(self) -> LeaseLostError:
        """Return the error that somebody else may hold it now."""
        return LeaseLostError(self.what, self.place)


def _machine() -> str:
    """Tell this start of this machine, and its space of process numbers, from all others."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        # Nobody is surely gone then before its time is over.
        return uuid.uuid4().hex


def _lives(process: Any) -> bool:
    try:
        os.kill(int(process), 0)
    except PermissionError:
        return True
    except (OSError, ValueError, TypeError):
        return False
    return True


# What changes several tables, one after the other.
Work = Literal["erasure", "swap"]
# Volumes and some network drives know no locks, or no writing to a file's end.
_NO_LOCKS = frozenset({errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOLCK})
_LOOKS, _LOOK_SECONDS = 20, 0.05


@dataclass
class HopLocks:
    """The locks that a command holds, and the steps that it does under them.

    A lock on an object store may be lost while its holder stands still. So a command that writes
    several tables asks before each of them, by a check for each lock. ``command`` goes on where it
    was interrupted; empty: the same one.
    """

    command: str = ""
    checks: list[Callable[[], None]] = field(default_factory=list)
    _done: list[str] = field(default_factory=list)
    _current: str = ""
    _next: str = ""

    def step(self, what: str) -> None:
        """Begin a step, right before it writes; the one before it is done.

        ``what`` is for people: ``replace silver.shop``. A LeaseLostError where it must not begin.
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
    """Hold the locks of a pipeline's hops, as :func:`hold` does.

    Args:
        lake: Where the tables are.
        pipeline: The pipeline's name.
        hops: Which.
        goes_on_with: What the holder may go on with where it was interrupted. Without, a
            RefusedError says that several tables do not agree yet.
        command: See :class:`HopLocks`; a LeaseLostError says which steps were done.
    """
    locks = HopLocks(command)
    try:
        with ExitStack() as held:
            for hop in hops:
                folder, what = lake.checkpoints(pipeline, hop), f"{pipeline}, hop {hop},"
                check = held.enter_context(hold(folder, what, optional=not lake.needs_locks))
                locks.checks.append(check)
            _refuse_unfinished(lake, pipeline, hops, goes_on_with)
            yield locks
    except LeaseLostError as error:
        raise locks.lost(error) from error


def _refuse_unfinished(
    lake: Lake, pipeline: str, hops: Sequence[Hop], goes_on_with: Work | None
) -> None:
    if goes_on_with != "erasure" and lake.erasure(pipeline).exists():
        raise RefusedError(
            f"an erasure of {pipeline} was interrupted, and its tables do not agree yet. "
            "Go on with it, with the same subject: "
            f"tidelake erase {pipeline} --subject COLUMN=VALUE"
        )
    swapped = {"silver", "gold"} & set(hops)
    if goes_on_with != "swap" and swapped and lake.swap(pipeline).exists():
        back = f"tidelake backfill rollback {pipeline}"
        remedy = f"Go on with it: {back}"
        if not is_put_back(lake, pipeline):
            promote = f"tidelake backfill promote {pipeline}"
            remedy = f"Go on with it: {promote}, or take it back: {back}"
        raise RefusedError(
            f"a swap of {pipeline}'s tables was interrupted, and they do not agree yet. {remedy}"
        )


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

    A store has no such locks: there it is an object, and frees itself a while after its holder was
    last heard of. Yields a check that raises LeaseLostError where the lock is lost; on a disk it
    never is.

    Args:
        folder: Whose lock.
        what: What is written under it, for the message.
        waits: Wait for the other process; for what takes moments.
        optional: Whether the work is done without a lock where the file system has none. The
            tables alone keep writers apart then: each batch asks them which generation and which
            batch is next, and its appends carry transaction ids.

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

    The lock itself is not asked: to try it would make a run fail that begins in this moment. So it
    may be a process that has nothing to do with it, under a number that was used again.
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
