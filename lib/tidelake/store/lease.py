"""Hold a lock that is an object on a store, with the store's conditional writes.

A disk's lock ends with its holder. An object stays, so whoever holds it writes it anew every few
seconds; one that nobody wrote for :data:`LEASE_SECONDS` belongs to a holder that is gone. Each
write names the content that it replaces (If-Match), so two takers never both succeed. Times are
those of the store alone: no clock of ours is compared.
"""

from __future__ import annotations

import _thread
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

from tidelake.errors import LeaseLostError, LockedError, MachineError
from tidelake.store.access import client, named
from tidelake.store.folders import SCHEME, Folder

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
    """Hold the lock that a file on a store is.

    Yields:
        A check that raises LeaseLostError unless the lock is still held. It asks the store.

    Args:
        file: The lock's object.
        what: What is written under it, for the message.
        waits: Wait for the other holder; for what takes moments.

    Raises:
        LockedError: Another process holds it.
        LeaseLostError: Another took it over, or may have, since this one had not been heard of.
        MachineError: The store does not know conditional writes.
    """
    held = _Held(str(file), what)
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
        held.give_back()
    if held.lost:
        raise held.refusal()


@dataclass
class _Held:
    """A lock of ours, and how it is kept."""

    place: str
    what: str
    tag: str = ""
    lost: bool = False
    writes: int = 0
    heard: float = 0.0
    done: threading.Event = field(default_factory=threading.Event)
    token: str = field(default_factory=lambda: uuid.uuid4().hex)
    one_at_a_time: threading.Lock = field(default_factory=threading.Lock)

    def take(self, *, waits: bool) -> None:
        """Write our name into it."""
        while not self._taken():
            seen = self._look()
            if seen is None:
                continue
            if seen.is_free:
                if self._taken(after=seen.tag):
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

    def _taken(self, *, after: str | None = None) -> bool:
        return self._put({"IfNoneMatch": "*"} if after is None else {"IfMatch": after})

    def _put(self, condition: dict[str, str], **more: Any) -> bool:
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
        bucket, key = _parts(self.place)
        try:
            answer = client().put_object(
                Bucket=bucket, Key=key, Body=json.dumps(owner).encode(), **condition
            )
        except ClientError as error:
            if str(error.response.get("Error", {}).get("Code")) in _REFUSED:
                return False
            raise
        self.tag = answer["ETag"]
        self.heard = time.monotonic()
        return True

    def _look(self) -> _Seen | None:
        from botocore.exceptions import ClientError  # noqa: PLC0415

        bucket, key = _parts(self.place)
        try:
            answer = client().get_object(Bucket=bucket, Key=key)
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
        """Write it anew now, whenever that was done last: this process may have stood still.

        Raises:
            LeaseLostError: It is not ours any more.
        """
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
                (renewed is False and not self._is_ours()) or _too_long(self.heard)
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

    def give_back(self) -> None:
        """Say that it is free, if it is still ours."""
        if not self.lost:
            with suppress(Exception):
                self._put({"IfMatch": self.tag}, free=True)

    def refusal(self) -> LeaseLostError:
        """Say that somebody else may hold it now."""
        return LeaseLostError(self.what, self.place)


def _too_long(heard: float) -> bool:
    return time.monotonic() - heard > LEASE_SECONDS - 2 * _RENEWED_EVERY


def _parts(place: str) -> tuple[str, str]:
    bucket, _, key = place.removeprefix(SCHEME).partition("/")
    return bucket, key


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
