"""Name what an erasure leaves: old files and statistics for a while, and what is not its to take.

A table's old files hold the rows until they are vacuumed, its log the least and greatest values of
the files that are gone; landed files are the user's, and other pipelines' tables theirs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta

from tidelake.config.model import parse_duration
from tidelake.delta.access import detail, load
from tidelake.delta.log import Commit, last_commit
from tidelake.delta.notes import SilverNote, positions
from tidelake.delta.tables import Lake, Table
from tidelake.replay.erase.books import held_tables
from tidelake.replay.erase.report import Remains
from tidelake.runtime.hop import Run

# Delta's own.
_LOG = timedelta(days=30)
_LOG_RETENTION = "delta.logRetentionDuration"
_MOST_FILES = 20


def filled_tables(run: Run) -> list[Table]:
    """List the tables of a pipeline that hold rows of subjects and exist."""
    lake, name = run.lake, run.pipeline.name
    gold = [lake.table(table) for table in run.pipeline.gold_names]
    return [*reversed(held_tables(lake, name)), *[table for table in gold if table.exists]]


def remains_of(run: Run, sources: Sequence[str]) -> list[Remains]:
    """List what is left after an erasure.

    Args:
        run: What the command works with.
        sources: Where the erased records came from.
    """
    return [*_old_files(run), *_landed(sources), *_others(run.lake, run)]


def _old_files(run: Run) -> Iterator[Remains]:
    now = datetime.now(UTC)
    goes = now + run.environment.recovery_horizon
    for table in filled_tables(run):
        left = _files_left(run, table)
        if left != 0:
            files = "files" if left is None else f"{left:,} files"
            yield Remains(
                f"{files} that the table no longer holds, with rows as they were",
                table.name,
                goes,
                f"tidelake maintain {run.pipeline.name} deletes them then; at once: --now",
            )
    yield Remains(
        "least and greatest values of columns, in Delta's log of files that are gone",
        "every table",
        now + _log_retention(run),
        "Delta cleans its log up then, with the table's next commits",
    )


def _files_left(run: Run, table: Table) -> int | None:
    """Count a table's data files that its newest version does not hold; None: nobody can look."""
    if table.store.folder is None:
        return None
    stored = load(run.spark, table)
    active = {uri.rsplit("/", 1)[-1] for uri in stored.inputFiles()}
    files = (file for file in table.path.rglob("*.parquet") if "_delta_log" not in file.parts)
    return sum(file.name not in active for file in files)


def _log_retention(run: Run) -> timedelta:
    """Read how long a log is kept; maintenance gives all tables of a pipeline the same."""
    bronze = run.lake.bronze(run.pipeline.name)
    told = detail(run.spark, bronze)["properties"].get(_LOG_RETENTION, "")
    try:
        return parse_duration(told.removeprefix("interval "))
    except ValueError:
        return _LOG


def _landed(sources: Sequence[str]) -> Iterator[Remains]:
    for source in sources[:_MOST_FILES]:
        yield Remains(
            "the records as they came in",
            source,
            None,
            "it is yours: delete or archive a whole file; a changed one would stop bronze",
        )
    if len(sources) > _MOST_FILES:
        more = f"{len(sources) - _MOST_FILES:,} more sources"
        yield Remains("the records as they came in", more, None, "they are yours likewise")


def _others(lake: Lake, run: Run) -> Iterator[Remains]:
    """Find tables that hold what came out of this pipeline's and that it does not fill."""
    name, gold = run.pipeline.name, run.pipeline.gold_names
    silver = lake.silver(name).name
    followers: set[str] = set()
    for table in lake.existing():
        last = last_commit(table)
        if last is None:
            continue
        theirs, hop = str(last.note.get("pipeline")), last.note.get("hop")
        if hop == "gold" and theirs == name and table.name not in gold:
            yield Remains(
                "rows computed under an earlier definition, which nothing fills any more",
                table.name,
                None,
                "remove the table's folder",
            )
        elif hop == "gold" and theirs != name and silver in positions(last):
            followers.add(theirs)
        elif theirs != name and _looks_up(last, gold):
            yield Remains(
                f"columns that were looked up in {gold[0]}",
                table.name,
                None,
                f"tidelake erase {theirs} --subject COLUMN=VALUE",
            )
    for theirs in sorted(followers):
        yield Remains(
            f"rows that follow {silver} too; the next run of hop gold is refused",
            f"gold of {theirs}",
            None,
            f"tidelake repair {theirs} --hop gold",
        )
        if (lake.root / "backfill" / theirs).exists():
            yield Remains(
                f"rows that follow {silver} too",
                f"backfill/{theirs}",
                None,
                f"tidelake backfill run {theirs}, from anew, or remove the folder",
            )


def _looks_up(last: Commit, gold: Sequence[str]) -> bool:
    if last.note.get("hop") != "silver":
        return False
    return any(use.table in gold for use in SilverNote.of(last).dimensions)
