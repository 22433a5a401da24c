"""Let one process at a time write a hop."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal, TextIO

from tidelake.errors import LockedError, NoLocksError, RefusedError
from tidelake.store.folders import Folder
from tidelake.store.lease import lease
from tidelake.tables import Hop, Lake

# What changes several tables, one after the other.
Work = Literal["erasure", "swap"]
# Volumes and some network drives know no locks, or no writing to a file's end.
_NO_LOCKS = frozenset({errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOLCK})
_LOOKS, _LOOK_SECONDS = 20, 0.05


@contextmanager
def hold_hops(
    lake: Lake, pipeline: str, hops: Sequence[Hop], *, goes_on_with: Work | None = None
) -> Iterator[None]:
    """Hold the locks of a pipeline's hops.

    Args:
        lake: Where the tables are.
        pipeline: Whose.
        hops: Which.
        goes_on_with: What the holder may go on with where it was interrupted.

    Raises:
        LockedError: Another process writes one of them.
        NoLocksError: The file system has no locks, and the lake needs them.
        RefusedError: Work on several tables has begun and not ended: they do not agree yet.
    """
    with ExitStack() as locks:
        for hop in hops:
            folder = lake.checkpoints(pipeline, hop)
            what = f"{pipeline}, hop {hop},"
            locks.enter_context(hold(folder, what, optional=not lake.needs_locks))
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
        yield


def is_put_back(lake: Lake, pipeline: str) -> bool:
    """Tell whether a swap that has begun is a rollback: then only a rollback goes on with it."""
    try:
        return lake.swap(pipeline).read_text(encoding="utf-8") == "rolling back"
    except FileNotFoundError:
        return False


@contextmanager
def hold(
    folder: Folder, what: str, *, waits: bool = False, optional: bool = False
) -> Iterator[None]:
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

    Raises:
        LockedError: Another process holds it.
        NoLocksError: The file system has no locks.
    """
    if not isinstance(folder, Path):
        with lease(folder / ".lock", what, waits=waits):
            yield
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
        yield


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
