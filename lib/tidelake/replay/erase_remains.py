"""List what an erasure leaves: old files, the source, and copies that others made of the rows.

The steps are in :mod:`.erase`, since one file would exceed 500 lines.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from tidelake.config import Detection, FilesSource, KafkaSource, Source
from tidelake.config.sections import settings_of
from tidelake.config.table_settings import FILE_RETENTION, LEAST, LOG_RETENTION
from tidelake.delta.access import load, properties
from tidelake.delta.commit_metadata import SilverNote, positions
from tidelake.delta.log import last_commit
from tidelake.delta.merge import vacuum_uses_hours
from tidelake.delta.positions import topics_of
from tidelake.delta.properties import others_retentions, stored_interval
from tidelake.delta.tables import Lake, Table, delta_readers
from tidelake.kafka.topic_source import asks_brokers
from tidelake.ledger.history import history
from tidelake.replay.erase_records import tables_with_records
from tidelake.replay.subject import EVENT_ID, Subject
from tidelake.runtime.fast_lane import reconciled_table
from tidelake.runtime.hop import Run
from tidelake.typed import runnable

_MOST_FILES = 20
_UNMANAGED = "not managed by Tidelake"
_WHOLE_FILES = f"{_UNMANAGED}: delete or archive whole files (a changed file stops bronze)"
# For how long Unity Catalog keeps a dropped table, and its files, for UNDROP.
_UNDROP = timedelta(days=7)


class Remains(NamedTuple):
    """Data that an erasure leaves in a table, file or pipeline.

    It is removed at ``until`` (UTC); None if ``remedy`` is required first.
    """

    what: str
    where: str
    until: datetime | None
    remedy: str


def filled_tables(run: Run) -> list[Table]:
    """List the existing tables of a pipeline that may hold a subject's rows."""
    gold = [one for one in run.lake.closing_tables(run.pipeline, "gold") if one.exists]
    return [*reversed(tables_with_records(run.lake, run.pipeline.name)), *gold]


def old_files(run: Run, *, purged: bool) -> Iterator[Remains]:
    """Yield what Delta still holds of the erased rows, and until when, for an erasure's report.

    That is files that tables no longer use, unless ``purged`` (they were just vacuumed), and the
    statistics of such files in the logs.
    """
    now = datetime.now(UTC)
    maintain = runnable("tidelake maintain", run.pipeline.name)
    remedy = f"{maintain} deletes them after that time; erase with --now does at once"
    retentions = {name: settings.retentions for name, _, settings in settings_of(run.pipeline)}
    horizon = run.environment.recovery_horizon
    if not vacuum_uses_hours(run.spark):
        horizon = max(horizon, LEAST[FILE_RETENTION])
    for table in filled_tables(run):
        left = _files_left(run, table)
        # In a catalog they cannot be counted.
        if not (left == 0 or (left is None and purged)):
            files = "files" if left is None else f"{left:,} files"
            what = f"{files} that the table no longer uses, with the erased rows"
            kept = max(horizon, retentions.get(table.name, {}).get(FILE_RETENTION, horizon))
            text = others_retentions(properties(run.spark, table)).get(FILE_RETENTION)
            by, of_others = "", kept if text is None else stored_interval(text)
            if of_others > kept:
                by = f"its {FILE_RETENTION} of '{text}' keeps them; "
            yield Remains(what, table.name, now + max(kept, of_others), f"{by}{remedy}")
    # Maintenance gives all tables of a pipeline the same retention, or that of the file.
    stored = properties(run.spark, run.lake.bronze(run.pipeline.name)).get(LOG_RETENTION, "")
    retention = stored_interval(stored) if stored else LEAST[LOG_RETENTION]
    of_file = [one[LOG_RETENTION] for one in retentions.values() if LOG_RETENTION in one]
    yield Remains(
        "column minima and maxima of deleted files, in Delta's log",
        "every table",
        now + max([retention, *of_file]),
        "Delta then cleans up its log with the table's next commits",
    )


def unclear_records(run: Run, subject: Subject, found: int) -> Iterator[Remains]:
    """Report ``found``, the number of records that mention the value and have none in the column.

    Yields one entry, or none if it is 0.
    """
    if found:
        some = "1 record that mentions" if found == 1 else f"{found:,} records that mention"
        what = f"{some} the value, without a {subject.column}"
        again = runnable("tidelake erase", run.pipeline.name, f"--subject {EVENT_ID}=ID")
        remedy = f"may be of others: look at payload, key and headers, and erase by {again}"
        yield Remains(what, run.lake.bronze(run.pipeline.name).name, None, remedy)


def _files_left(run: Run, table: Table) -> int | None:
    """Count a table's data files that its newest version does not use; None in a catalog."""
    if run.lake.catalog is not None:
        return None
    active = {uri.rsplit("/", 1)[-1] for uri in load(run.spark, table).inputFiles()}
    files = (file for file in table.path.rglob("*.parquet") if "_delta_log" not in file.parts)
    return sum(file.name not in active for file in files)


def landed(sources: Sequence[str], source: Source) -> Iterator[Remains]:
    """List the files and topics from which the erased records came."""
    what, hint = "the original records", _WHOLE_FILES
    if isinstance(source, FilesSource) and source.archive_dir is not None:
        hint = f"{_UNMANAGED}; archived files are in {source.archive_dir}"
    for place in sources[:_MOST_FILES]:
        yield Remains(what, place, None, hint)
    if len(sources) > _MOST_FILES:
        more = f"{len(sources) - _MOST_FILES:,} more sources"
        yield Remains(what, more, None, f"{_UNMANAGED} either")


def dropped(tables: Sequence[str]) -> Iterator[Remains]:
    """List tables of a backfill that were dropped from a catalog."""
    remedy = "Unity Catalog keeps a dropped table for UNDROP, and deletes its files then"
    for table in tables:
        yield Remains("dropped table of the backfill", table, datetime.now(UTC) + _UNDROP, remedy)


def readers(run: Run) -> Iterator[tuple[str, Remains]]:
    """List the other pipelines whose source is a table of this one, with that table."""
    tables, own = filled_tables(run), run.pipeline.name
    for other, table in delta_readers(tables, run.environment, own=own):
        refused = "once rows of it are deleted, its next run of hop bronze is refused"
        what = f"read by {other.name} as its source; {refused}"
        remedy = (
            f"fill {other.name} under another --root or catalog, since nothing else helps, and "
            "remove its tables here, which hold copies of the rows"
        )
        yield other.name, Remains(what, table.name, None, remedy)


def others(lake: Lake, run: Run) -> Iterator[Remains]:
    """List what other definitions, pipelines and streams wrote of this pipeline's rows."""
    name, gold = run.pipeline.name, run.pipeline.gold_names
    silver = lake.silver(name).name
    followers: set[str] = set()
    owned: dict[str, list[str]] = {}
    # By the name of a topic in a log: the table, and its pipeline.
    topics: dict[str, tuple[str, str]] = {}
    for table in lake.existing():
        last = last_commit(table)
        if last is None:
            continue
        owner, hop = str(last.note.get("pipeline")), last.note.get("hop")
        owned.setdefault(owner, []).append(table.name)
        follows = owner != name and hop == "gold" and silver in positions(last)
        if owner == name:
            if hop == "gold" and table.name not in gold:
                what = "rows computed under an earlier definition; no longer filled"
                yield Remains(what, table.name, None, "remove the table's folder")
        elif follows:
            followers.add(owner)
        elif hop == "silver" and run.pipeline.dimension and _looked_up(lake, table, gold):
            remedy = runnable("tidelake erase", owner, "--subject COLUMN=VALUE")
            yield Remains(f"columns looked up in {gold[0]}", table.name, None, remedy)
        if follows or (owner == name and hop == "gold"):
            topics |= dict.fromkeys(topics_of(table), (table.name, owner))
    for detection in run.pipeline.detections:
        yield from _fast_alerts(lake, run, detection, owned)
    yield from _published(run, topics)
    what = f"rows computed from {silver}"
    for owner in sorted(followers):
        refused = f"{what}; the next run of hop gold is refused"
        repair = runnable("tidelake repair", owner, "--hop gold")
        yield Remains(refused, f"gold of {owner}", None, repair)
        if (lake.root / "backfill" / owner).exists():
            again = runnable("tidelake backfill run", owner)
            remedy = f"{again} from the start, or remove the folder"
            yield Remains(what, f"backfill/{owner}", None, remedy)


def _looked_up(lake: Lake, silver: Table, dimensions: Collection[str]) -> bool:
    """Return whether rows of silver were looked up in a dimension, also under an older definition.

    A column stays when the definition no longer has the lookup. Side tables have no note of it.
    """
    if "__" in silver.name:
        return False
    notes = map(SilverNote.of, history(lake, silver))
    return any(use.table in dimensions for note in notes for use in note.dimensions)


def _published(run: Run, topics: Mapping[str, tuple[str, str]]) -> Iterator[Remains]:
    """List the topics of the definition, then others in tables' logs, with table and pipeline."""
    for table_name, to in run.pipeline.published.items():
        remedy = (
            "delete the topic: with the table's next change all rows are published to a new one"
        )
        if not asks_brokers(run.spark, to.client):
            remedy = (
                "write another topic in the pipeline file, then delete this one: the next run "
                "sends all rows of the table to the other; a new topic of this name is not "
                "noticed here"
            )
        what = f"rows of {table_name} that were published, before and after the erasure"
        yield Remains(what, f"topic {to.topic}", None, remedy)
    current = {to.topic for to in run.pipeline.published.values()}
    for topic, (table_name, owner) in topics.items():
        if topic in current:
            continue
        what = f"rows of {table_name} that were published"
        remedy = "delete the topic: the pipeline no longer publishes to it"
        if owner != run.pipeline.name:
            repair = runnable("tidelake repair", owner, "--hop gold")
            remedy = (
                f"{repair}; then, if {owner} still publishes to it, write another topic in its "
                "pipeline file; then delete this one"
            )
        yield Remains(what, f"topic {topic}", None, remedy)


def _fast_alerts(
    lake: Lake, run: Run, detection: Detection, owned: dict[str, list[str]]
) -> Iterator[Remains]:
    """List what a fast lane sent, and the tables filled from it; ``owned`` has all by pipeline."""
    name, fast = run.pipeline.name, detection.fast
    maintain = f"{runnable('tidelake maintain', name)} deletes the old files"
    remedy = f"{runnable('tidelake fast reconcile', name)}; {maintain}"
    if fast is not None:
        # Reconciling reads silver of that pipeline, and would write the subject's alerts back.
        erase = runnable("tidelake erase", fast.pipeline, "--subject COLUMN=VALUE")
        remedy = f"first {erase}; then {remedy}"
        lane = lake.fast(detection.name)
        if tables := owned.get(fast.pipeline):
            yield Remains("alerts of the fast lane", ", ".join(tables), None, erase)
        in_files = (lane / "alerts").exists()
        if in_files:
            yield Remains("alerts of the fast lane", str(lane / "alerts"), None, _WHOLE_FILES)
        if lane.exists() and (isinstance(run.pipeline.source, KafkaSource) or not in_files):
            kept = f"{_UNMANAGED}: it keeps its records until its retention time ends"
            yield Remains("alerts of the fast lane", f"topic {fast.topic}", None, kept)
        if (lane / "known").exists():
            restart = "stop the lane, which deletes it, and start it again: "
            restart += runnable("tidelake fast run", name)
            yield Remains("features of the fast lane", str(lane / "known"), None, restart)
    table = reconciled_table(lake, detection)
    if table.exists:
        yield Remains("alerts of the fast lane, with their verdicts", table.name, None, remedy)
