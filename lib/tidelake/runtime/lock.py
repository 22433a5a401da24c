"""Let one process at a time write a hop."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal, TextIO

from tidelake.errors import LockedError, RefusedError
from tidelake.store.folders import Folder
from tidelake.store.lease import lease
from tidelake.tables import Hop, Lake

# What changes several tables, one after the other.
Work = Literal["erasure", "swap"]
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
        RefusedError: Work on several tables has begun and not ended: they do not agree yet.
    """
    with ExitStack() as locks:
        for hop in hops:
            folder = lake.checkpoints(pipeline, hop)
            locks.enter_context(hold(folder, f"{pipeline}, hop {hop},"))
        if goes_on_with != "erasure" and lake.erasure(pipeline).exists():
            raise RefusedError(
                f"an erasure of {pipeline} was interrupted, and its tables do not agree yet. "
                "Go on with it, with the same subject: "
                f"tidelake erase {pipeline} --subject COLUMN=VALUE"
            )
        swapped = {"silver", "gold"} & set(hops)
        if goes_on_with != "swap" and swapped and lake.swap(pipeline).exists():
            raise RefusedError(
                f"a swap of {pipeline}'s tables was interrupted, and they do not agree yet. "
                f"Go on with it: tidelake backfill promote {pipeline}, or take it back: "
                f"tidelake backfill rollback {pipeline}"
            )
        yield


@contextmanager
def hold(folder: Folder, what: str, *, waits: bool = False) -> Iterator[None]:
    """Hold a folder's lock; the system frees it when the process ends, however it ends.

    A store has no such locks: there it is an object, and frees itself a while after its holder
    was last heard of.

    Args:
        folder: Whose lock.
        what: What is written under it, for the message.
        waits: Wait for the other process; for what takes moments.

    Raises:
        LockedError: Another process holds it.
    """
    if not isinstance(folder, Path):
        with lease(folder / ".lock", what, waits=waits):
            yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
        except BlockingIOError as error:
            raise LockedError(
                f"{what} is being written by process {_holder(file)}. "
                "Wait for it to end, or stop it, then run again."
            ) from error
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


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
