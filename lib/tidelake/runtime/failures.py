"""Name what stopped a step of a run: which pipeline, which step, what the machine lacked."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException

from tidelake.delta.tables import Hop
from tidelake.errors import (
    LostError,
    MachineError,
    RefusedError,
    SourceChangedError,
    SourceError,
    TidelakeError,
)
from tidelake.spark.internals import BridgeError, stack_trace
from tidelake.spark.session import kept_log
from tidelake.visible import HEAD, kind_of, visible

if TYPE_CHECKING:
    from tidelake.runtime.hop import Run

# What Python, Spark and the JVM raise when the machine lets them down.
FOREIGN = (PySparkException, BridgeError, OSError)
_AGAIN = "Nothing of the open batch counts; the next run repeats it."
# In the system's words, whichever library passes them on.
_REMEDIES = {
    "No space left on device": "Free some space, or move the root to a larger disk",
    "Disk quota exceeded": "Free some space, or ask for a larger quota",
    "File too large": "Raise the limit on the size of files (ulimit -f)",
    "Read-only file system": "Make the file system writable",
    "Permission denied": "Give this user the right to read and write there",
    "Operation not permitted": "Give this user the right to read and write there",
    "Too many open files": "Raise the limit on open files (ulimit -n)",
}
# What Spark's Kafka source says when it finds fewer records than it was told of.
_LOST = re.compile(
    HEAD + r"Some data may have been lost[^\n]*\n\s*(?:Reason: )?([^\n]*)", re.MULTILINE
)
# What Kafka's clients say when they have waited for a broker long enough.
_AWAY = re.compile(
    HEAD + r"(?:org\.apache\.kafka\.common\.errors\."
    r"(?:Timeout|Disconnect|Network|\w*NotAvailable|NotLeaderOrFollower)Exception: ([^\n]*)"
    r"|(Cannot fetch record for offset [^\n]*))",
    re.MULTILINE,
)
# What the readers of an object store say when it is away, or does not let them in.
_STORE = re.compile(
    HEAD + r"((?:Could not connect to the endpoint|(?:Connect|Read) timeout on endpoint"
    r"|software\.amazon\.awssdk\.[\w.]*(?<!NoSuchKey)Exception: "
    r"|org\.apache\.hadoop\.fs\.s3a\.\w+: )[^\n]*)",
    re.MULTILINE,
)
_REASON = re.compile("|".join(map(re.escape, _REMEDIES)))
# Java names the file before the reason, in a message of its own.
_FILE = re.compile(rf"{HEAD}([^\s'\"]+) \((?:{_REASON.pattern})\)", re.MULTILINE)
# The file that is gone, as Spark's readers and Hadoop's file systems name it.
_GONE = re.compile(
    rf"{HEAD}(?:\[[A-Z_.]*FILE_NOT_EXIST\][^'\"\n]*? |File )((?:[a-z0-9]+:)?/[^\s'\"]+)",
    re.MULTILINE,
)


@contextmanager
def naming(run: Run, step: str) -> Iterator[None]:
    """Let what stops a step outside of its batches be named as well, as a TidelakeError."""
    try:
        yield
    except FOREIGN as error:
        # Asked to stop, a run is cut short anywhere, and nothing is wrong.
        if run.stop.is_set():
            raise
        raise named(error, f"{run.pipeline.name}, {step}") from error


def named(error: Exception, place: str, *, gone: str = "") -> TidelakeError:
    """Name what stopped a step: the failures that users meet by their own error.

    ``gone``: what it means when a file does not exist; empty: a file of the source changed.
    """
    told = told_by(error)
    reason = _REASON.search(told)
    if reason is not None:
        file = _FILE.search(told)
        what = f"{visible(file[1])} ({reason[0]})" if file else reason[0]
        remedy = f"{_REMEDIES[reason[0]]}, then run again. {_AGAIN}"
        return TidelakeError(f"{place} stopped: {what}\n{remedy}")
    records = _LOST.search(told)
    if records is not None:
        return LostError(f"{place}: records of a topic are gone. {visible(records[1])}")
    away = _out_of_reach(told, place)
    if away is not None:
        return away
    if "FILE_NOT_EXIST" in told or "FileNotFoundException" in told:
        file = _GONE.search(told)
        what = f"{kind_of(error)}: {visible(file[1])}" if file else kind_of(error)
        if gone:
            return RefusedError(f"{place}: {gone}\n{what}")
        return SourceChangedError([f"{place}: {what}"], taken=False)
    log = kept_log(error)
    return TidelakeError(
        f"{place} stopped: {kind_of(error)}\n{_AGAIN} All of its words, values among them: {log}"
    )


def _out_of_reach(told: str, place: str) -> TidelakeError | None:
    """Name a broker or a store that does not answer; None where neither is to blame."""
    broker = _AWAY.search(told)
    if broker is not None:
        return SourceError(
            f"{place} stopped: the Kafka broker does not answer: "
            f"{visible(broker[1] or broker[2])}\n"
            f"Look at it, then run again. {_AGAIN}"
        )
    store = _STORE.search(told)
    if store is not None:
        return MachineError(
            f"{place} stopped: the object store: {visible(store[1])[:300]}\n"
            f"Look at it, at AWS_ENDPOINT_URL and at who asks, then run again. {_AGAIN}"
        )
    return None


def told_by(error: BaseException) -> str:
    """Give what an error says, and what the errors say that caused it."""
    found: BaseException | None = error
    texts = []
    while found is not None:
        texts.append(stack_trace(found))
        found = found.__cause__
    return "\n".join(texts)


def swept(pipeline: str, hop: Hop) -> str:
    """Say what it means, and what to do, when a file of a table that a hop follows is gone."""
    start = " --from silver" if hop == "gold" else ""
    return (
        "a file of a table that it follows is gone, by a VACUUM with too little retention. "
        f"Compute the tables anew with: tidelake backfill run {pipeline}{start}, then: "
        f"tidelake backfill promote {pipeline}"
    )
