"""Convert errors of Spark, the JVM and the system: name pipeline, step and cause."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from pyspark.errors import PySparkException

from tidelake import errors
from tidelake.delta.log import live_files
from tidelake.names import is_logical_name
from tidelake.object_store import store_error
from tidelake.runtime.landed_files import planned_files, planned_with
from tidelake.spark.internals import BridgeError, stack_trace
from tidelake.spark.session import kept_log
from tidelake.typed import runnable
from tidelake.visible import HEAD, kind_of, visible

if TYPE_CHECKING:
    from tidelake.delta.tables import Table
    from tidelake.runtime.hop import Run

# What Python, Spark and the JVM raise on failures of the machine.
FOREIGN = (PySparkException, BridgeError, OSError)
# Where it is not known whether a missing file is of the table's newest version.
NO_INPUT = "a file of a table that it reads is gone. Restore that table's folder from a backup"
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
    HEAD + r"Some data may have been lost(?:[^\n]*\n){1,6}?\s*Reason:\s*([^\n]*)", re.MULTILINE
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
    r"|(?:botocore\.[\w.]+: )?An error occurred \((?!NoSuchKey|404)\w+\) when calling"
    r"|software\.amazon\.awssdk\.[\w.]*(?<!NoSuchKey)Exception: "
    r"|org\.apache\.hadoop\.fs\.s3a\.\w+: )[^\n]*)",
    re.MULTILINE,
)
_REASON = re.compile("|".join(map(re.escape, _REMEDIES)))
# Java's messages have the form: file (reason).
_FILE = re.compile(rf"{HEAD}([^\s'\"]+) \((?:{_REASON.pattern})\)", re.MULTILINE)
# Spark's error for a missing path that it is asked to read, such as a file that a table added
# between two positions. Where a source is read, it may also be a folder.
_NO_PATH = "[PATH_NOT_FOUND]"
# The missing file in messages of Spark's readers and Hadoop's file systems, without a full stop.
_GONE = re.compile(
    rf"{HEAD}(?:\[(?:[A-Z_.]*FILE_NOT_EXIST|PATH_NOT_FOUND)\][^'\"\n]*? |File )"
    r"((?:[a-z0-9]+:)?/[^\s'\"]+?)\.?(?=[\s'\"]|$)",
    re.MULTILINE,
)

# Delta's error for a version that is refused by its age, whether its files are there or not; only
# where compute refuses the setting that allows it (OLD_VERSION_SETTINGS).
TOO_OLD = "DELTA_UNSUPPORTED_TIME_TRAVEL_BEYOND_DELETED_FILE_RETENTION_DURATION"
# Databricks' errors for a Python function that needs more memory than it gets.
_NO_MEMORY = ("MEMORY_LIMIT", "UDF_PYSPARK_ERROR.OOM")
_LARGEST = 3


@contextmanager
def naming(run: Run, step: str, *, gone: str = "", retry: str = _RETRY) -> Iterator[None]:
    """Convert foreign errors in the block into a TidelakeError that names pipeline and step.

    ``gone`` and ``retry`` are those of :func:`named`; a damaged table is named first.
    """
    try:
        yield
    except FOREIGN as error:
        # A requested stop interrupts a run anywhere: its errors are no failures.
        if run.stop.is_set():
            raise
        gone = damage(run, error_text(error)) or gone
        raise named(error, f"{run.pipeline.name}, {step}", gone=gone, retry=retry) from error


def named(
    error: Exception, place: str, *, gone: str = "", retry: str = _RETRY
) -> errors.TidelakeError:
    """Convert an error into a TidelakeError, with a specific class for known failures.

    ``place``, pipeline and step, begins the message. ``gone`` says what a missing file means;
    empty: a file of the source changed. ``retry`` says what the next run does.
    """
    text = error_text(error)
    is_missing = isinstance(error, FileNotFoundError) and "NoSuchBucket" not in text
    if not is_missing and (stored := store_error(error, f"{place} stopped")):
        return type(stored)(f"{stored} {retry}")
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
    elif (
        "FILE_NOT_EXIST" in text
        or "FileNotFoundException" in text
        or (gone and (is_missing or _NO_PATH in text))
    ):
        file, what = _GONE.search(text), kind_of(error)
        if file and visible(file[1]) not in what:
            what += f": {visible(file[1])}"
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


def refuse_for_memory(error: Exception, paths: Sequence[str], repair: str) -> None:
    """Raise a SourceError with a batch's largest files if a Python function ran out of memory.

    Missing files are refused first, as by :func:`planned_files`, which explains ``repair``.
    """
    files = planned_files(paths, repair)
    largest = sorted(files, key=lambda file: file.size, reverse=True)[:_LARGEST]
    if largest and any(words in error_text(error) for words in _NO_MEMORY):
        problems = [f"{file.path}: {file.size:,} bytes" for file in largest]
        what = (
            "the compute has too little memory for a file of the batch, which Python reads whole "
            "and decompressed. Split it into several files. The largest are"
        )
        raise errors.SourceError(
            f"{errors.problem_list(what, problems)}{planned_with(repair)}"
        ) from error


def damage(run: Run, text: str) -> str:
    """Name the table whose newest version has the missing file of an error's text, and the remedy.

    Empty where that is not known: the file is of an older version, which VACUUM may have deleted,
    or of a table whose files cannot be listed here, in a catalog or on an object store. Also for
    the tables that a backfill fills, which no backup has.
    """
    found = _GONE.search(text)
    file = Path(unquote(re.sub(r"^(file:)?/+", "/", found[1]))) if found else Path()
    folder = next((one for one in file.parents if (one / "_delta_log").is_dir()), Path())
    name = f"{folder.parent.name}.{folder.name}"
    if not is_logical_name(name):
        return ""
    table = run.lake.table(name)
    is_green = run.replays and folder.parent.parent == run.lake.root
    if is_green or not table.reads_files_directly or table.path != folder:
        return ""
    try:
        live = live_files(table, lambda add: unquote(add["path"]))
    except (OSError, ValueError):
        return ""
    if live is None or str(file.relative_to(folder)) not in live[1].values():
        return ""
    return (
        f"{name} is damaged: a file of its newest version is gone. "
        f"Restore its folder, or that file, from a backup{_instead(run, table)}"
    )


def _instead(run: Run, table: Table) -> str:
    """Return what else than a backup brings a damaged table back; empty if nothing does."""
    layer, name = table.name.split(".")
    pipeline, _, side = name.partition("__")
    if layer == "bronze":
        return ", or ingest the source again under another --root"
    is_own = pipeline == run.pipeline.name or table.name in run.pipeline.gold_names
    if is_own and run.lake.swap(run.pipeline.name).exists():
        # An unfinished swap refuses all other writers.
        return ""
    if table.name in run.pipeline.gold_names and layer == "gold":
        # Without any gold table, its checkpoint would be refused.
        is_only = len(run.pipeline.gold_names) == 1
        filling = ("tidelake repair", "--hop gold") if is_only else ("tidelake run", "")
        fill = runnable(filling[0], run.pipeline.name, filling[1])
        return f", or delete {table.path} and fill it from silver with: {fill}"
    if layer not in ("silver", "dim") or side == "discarded":
        return ""
    # Not by its deletion: the new table's versions would not be those that other tables recorded.
    before, start = ("bronze", "") if layer == "silver" else ("silver", "--from silver")
    return (
        f", or recompute it from {before} with: "
        f"{runnable('tidelake backfill run', pipeline, start)}, "
        f"then: {runnable('tidelake backfill promote', pipeline)}"
    )


def error_text(error: BaseException) -> str:
    """Return the text of an error and of the errors that caused it."""
    cause = f"\n{error_text(error.__cause__)}" if error.__cause__ else ""
    return f"{stack_trace(error)}{cause}"
