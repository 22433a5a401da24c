"""Convert errors of Spark, the JVM and the system: name pipeline, step and cause."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException

from tidelake import errors
from tidelake.spark.internals import BridgeError, stack_trace
from tidelake.spark.session import kept_log
from tidelake.typed import runnable
from tidelake.visible import HEAD, kind_of, visible

if TYPE_CHECKING:
    from tidelake.runtime.hop import Run

# What Python, Spark and the JVM raise on failures of the machine.
FOREIGN = (PySparkException, BridgeError, OSError)
_RETRY = "The uncommitted batch will be retried by the next run."
# By the operating system's message, which all libraries pass on.
_REMEDIES = {
    "No space left on device": "Free some space, or move the root to a larger disk",
    "Disk quota exceeded": "Free some space, or ask for a larger quota",
    "File too large": "Raise the limit on the size of files (ulimit -f)",
    "Read-only file system": "Make the file system writable",
    "Permission denied": "Give this user the right to read and write there",
    "Operation not permitted": "Give this user the right to read and write there",
    "Too many open files": "Raise the limit on open files (ulimit -n)",
}
# Message of Spark's Kafka source when records in its offset range are missing.
_LOST = re.compile(
    HEAD + r"Some data may have been lost[^\n]*\n\s*(?:Reason: )?([^\n]*)", re.MULTILINE
)
# Messages of Kafka's clients after a timeout.
_AWAY = re.compile(
    HEAD + r"(?:org\.apache\.kafka\.common\.errors\."
    r"(?:Timeout|Disconnect|Network|\w*NotAvailable|NotLeaderOrFollower)Exception: ([^\n]*)"
    r"|(Cannot fetch record for offset [^\n]*))",
    re.MULTILINE,
)
# Messages of object store clients when the store is unreachable or refuses access.
_STORE = re.compile(
    HEAD + r"((?:Could not connect to the endpoint|(?:Connect|Read) timeout on endpoint"
    r"|software\.amazon\.awssdk\.[\w.]*(?<!NoSuchKey)Exception: "
    r"|org\.apache\.hadoop\.fs\.s3a\.\w+: )[^\n]*)",
    re.MULTILINE,
)
_REASON = re.compile("|".join(map(re.escape, _REMEDIES)))
# Java's messages have the form: file (reason).
_FILE = re.compile(rf"{HEAD}([^\s'\"]+) \((?:{_REASON.pattern})\)", re.MULTILINE)
# The missing file in messages of Spark's readers and Hadoop's file systems.
_GONE = re.compile(
    rf"{HEAD}(?:\[[A-Z_.]*FILE_NOT_EXIST\][^'\"\n]*? |File )((?:[a-z0-9]+:)?/[^\s'\"]+)",
    re.MULTILINE,
)

# Delta's error for a version that is refused by its age; only where compute refuses the setting
# that allows it.
TOO_OLD = "DELTA_UNSUPPORTED_TIME_TRAVEL_BEYOND_DELETED_FILE_RETENTION_DURATION"


@contextmanager
def naming(run: Run, step: str) -> Iterator[None]:
    """Convert foreign errors in the block into a TidelakeError that names pipeline and step."""
    try:
        yield
    except FOREIGN as error:
        # A requested stop interrupts a run anywhere: its errors are no failures.
        if run.stop.is_set():
            raise
        raise named(error, f"{run.pipeline.name}, {step}") from error


def named(
    error: Exception, place: str, *, gone: str = "", retry: str = _RETRY
) -> errors.TidelakeError:
    """Convert an error into a TidelakeError, with a specific class for known failures.

    ``place``, pipeline and step, begins the message. ``gone`` says what a missing file means;
    empty: a file of the source changed. ``retry`` says what the next run does.
    """
    text = error_text(error)
    reason, lost, away, store = (
        pattern.search(text) for pattern in (_REASON, _LOST, _AWAY, _STORE)
    )
    found: errors.TidelakeError
    if reason:
        file = _FILE.search(text)
        what = f"{visible(file[1])} ({reason[0]})" if file else reason[0]
        remedy = f"{_REMEDIES[reason[0]]}, then run again. {retry}"
        found = errors.TidelakeError(f"{place} stopped: {what}\n{remedy}")
    elif lost:
        found = errors.LostError(f"{place}: records of a topic are gone. {visible(lost[1])}")
    elif away:
        found = errors.SourceError(
            f"{place} stopped: the Kafka broker does not answer: {visible(away[1] or away[2])}\n"
            f"Check it, then run again. {retry}"
        )
    elif store:
        found = errors.MachineError(
            f"{place} stopped: the object store: {visible(store[1])[:300]}\n"
            f"Check the store, AWS_ENDPOINT_URL and the credentials, then run again. {retry}"
        )
    elif "FILE_NOT_EXIST" in text or "FileNotFoundException" in text:
        file = _GONE.search(text)
        what = f"{kind_of(error)}: {visible(file[1])}" if file else kind_of(error)
        found = errors.SourceChangedError([f"{place}: {what}"], taken=False)
        if gone:
            found = errors.RefusedError(f"{place}: {gone}\n{what}")
    elif TOO_OLD in text:
        maintain = runnable("tidelake maintain", place.partition(",")[0])
        found = errors.RefusedError(
            f"{place}: it reads a version that is older than its table keeps deleted files. "
            f"Let the table keep them with: {maintain}, then run again"
        )
    else:
        found = errors.TidelakeError(
            f"{place} stopped: {kind_of(error)}\n{retry} "
            f"The full message, which may contain values: {kept_log(error)}"
        )
    return found


def error_text(error: BaseException) -> str:
    """Return the text of an error and of the errors that caused it."""
    cause = f"\n{error_text(error.__cause__)}" if error.__cause__ else ""
    return f"{stack_trace(error)}{cause}"
