"""Repair a hop whose tables and checkpoint do not match; recompute hops, or one gold table.

A single gold table is computed from silver as of the last batch that the other tables hold, and its
commit has that batch's number and positions. So the next batch continues all tables in the same
generation, from the same checkpoint.

How a generation begins: :mod:`.generations`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal, NamedTuple

from tidelake.config import FilesSource, KafkaSource, Pipeline
from tidelake.delta.access import load, read_between
from tidelake.delta.append import schema_differences
from tidelake.delta.commit_metadata import changed_definition, changed_parts, positions
from tidelake.delta.locks import hold_hops
from tidelake.delta.log import CREATION, Commit, last_commit, oldest_version
from tidelake.delta.positions import BEGINNING, Position, stream_breaks, unfilled_tables
from tidelake.delta.tables import Hop, Lake, Table, hops_in, require_table
from tidelake.errors import NotBuiltError, RefusedError, UsageError
from tidelake.fingerprints import EMPTY, bronze_marks
from tidelake.folders import listed
from tidelake.ledger.history import history
from tidelake.ledger.side_tables import in_closed_batch
from tidelake.names import logical_name
from tidelake.replay.generations import (
    continue_gold,
    continue_hop,
    continue_silver,
    gold_mismatches,
    heads,
    newest_of,
    rebuild_gold,
    rebuild_silver,
    replace_rows,
)
from tidelake.runtime.checkpoints import (
    file_entry,
    refuse_foreign_gold,
    replaced_sides,
)
from tidelake.runtime.failures import NO_INPUT, naming
from tidelake.runtime.fence import bronze_is_gone, overtaken
from tidelake.runtime.gold_tables import Target, filled_as_of, last_closed, targets_of
from tidelake.runtime.hop import Run
from tidelake.runtime.landed_files import taken_files
from tidelake.runtime.schemas import column_changes, silver_freedom, silver_schemas
from tidelake.typed import runnable

_AGAIN = "The same command then begins again."


def need_gold(pipeline: Pipeline) -> None:
    """Raise a UsageError if a pipeline fills no gold table."""
    if not pipeline.gold_names:
        raise UsageError(f"{pipeline.name} defines no gold table; there is nothing to recompute.")


class Repaired(NamedTuple):
    """The new generation, and why the tables were rebuilt ("" if they were not)."""

    generation: str
    why: str


def repair(run: Run, hop: Hop, *, agreed: Callable[[str], None] = lambda why: None) -> Repaired:
    """Begin a new generation of a hop whose tables and checkpoint do not match.

    The hop continues after the last batch in its tables; if that cannot be determined, the tables
    are rebuilt. Before that ``agreed`` is called with the reason; it raises an error to leave them
    as they are.

    Raises:
        UsageError: The hop has no tables yet.
        NotBuiltError: The checkpoint state of the source or the prefilter cannot be prepared.
        LockedError: Another process writes the hop.
        LeaseLostError: The lock was lost; the message says which steps were done.
    """
    command = runnable("tidelake repair", run.pipeline.name, f"--hop {hop}")
    with hold_hops(run.lake, run.pipeline.name, [hop], command=command, stop=run.stop) as locks:
        why, locked = why_rebuilt(run, hop), replace(run, locks=locks)
        if hop == "bronze":
            return Repaired(_repair_bronze(locked), why)
        if why:
            agreed(why)
            with naming(run, "repair", gone=NO_INPUT, retry=_AGAIN):
                return Repaired((rebuild_silver if hop == "silver" else rebuild_gold)(locked), why)
        tables = run.lake.closing_tables(run.pipeline, hop)
        until = positions(newest_of(run, hop, tables[0]))
        if hop == "silver":
            return Repaired(continue_silver(locked, until), why)
        return Repaired(continue_gold(locked, tables, until), why)


def why_rebuilt(run: Run, hop: Hop) -> str:
    """Return why a repair would rebuild a hop's tables; empty if they can be continued.

    Nothing is written.

    Raises:
        UsageError: The hop has no tables yet, or gold is rebuilt before silver's types are widened.
        NotBuiltError: The checkpoint state of the source or the prefilter cannot be prepared.
    """
    if hop == "gold":
        need_gold(run.pipeline)
        refuse_foreign_gold(run.lake, run.pipeline)
        for table in run.lake.hop_inputs(run.pipeline, "gold").values():
            newest_of(run, "silver", table)
        why = next(gold_mismatches(run), "")
        if why:
            refuse_narrow(run)
        return why
    if hop == "silver":
        return next(_silver_mismatches(run), "")
    bronze = run.lake.bronze(run.pipeline.name)
    if not bronze.exists and any(run.lake.checkpoints(run.pipeline.name, hop).glob("g*")):
        raise bronze_is_gone(bronze.name)
    newest_of(run, "bronze", bronze)
    source = run.pipeline.source
    if not isinstance(source, FilesSource | KafkaSource):
        raise NotBuiltError(
            f"{run.pipeline.file}: repairing bronze of a {source.kind} source",
            "Restore its checkpoint as of the last batch from a backup, or use a new --root.",
        )
    is_cut = isinstance(source, FilesSource) and oldest_version(bronze) > 0
    if is_cut and history(run.lake, bronze)[-1].batch > CREATION:
        raise RefusedError(
            f"commits of {bronze.name} are gone from its log and from ops.books, so that files "
            "which they ingested would be read again. Restore ops.books, or the checkpoint of hop "
            "bronze, from a backup"
        )
    return ""


def refuse_narrow(run: Run) -> None:
    """Raise a UsageError if silver's next run will widen types of its columns.

    Gold would be computed from the narrower ones, and its next run would refuse that.
    """
    silver, wanted = run.lake.silver(run.pipeline.name), silver_schemas(run.spark, run.plan)
    stored = load(run.spark, silver).schema
    for one in schema_differences(stored, wanted["silver"], silver_freedom(run.pipeline)):
        if one.verdict == "widened":
            raise UsageError(
                f"{silver.name} has {one.column} as {one.stored} still, which is {one.defined} in "
                "the definition. Widen it first with: "
                f"{runnable('tidelake run', run.pipeline.name, '--hop silver')}"
            )


def _silver_mismatches(run: Run) -> Iterator[str]:
    """Yield why silver cannot continue from its current state."""
    lake, name = run.lake, run.pipeline.name
    table = lake.silver(name)
    _refuse_prefilter(run.pipeline)
    if not table.exists and lake.bronze(name).exists:
        yield f"{table.name} did not exist"
        return
    last = newest_of(run, "silver", table)
    if changed := changed_parts(last, run.pipeline).identity:
        yield f"{' and '.join(changed)} changed"
    if replaced := replaced_sides(lake, name, last):
        yield replaced
    if problem := overtaken(table, lake.checkpoints(name, "silver")):
        yield problem
    if last.batch == CREATION and (side := _filled_side(run, last)):
        # A rebuild of a deleted silver was interrupted: all rows would be decided once more.
        yield f"{table.name} has no batch, but {side} has rows of one"
    until = positions(last)
    for key, followed in lake.silver_inputs(name).items():
        since = last.written_at if key in until else None
        for one in stream_breaks(followed, "silver", until.get(key, BEGINNING), since):
            yield one.reason
    if _are_requeued_unread(run, until):
        yield f"{lake.requeue(name).name} holds copies of records that silver has yet to read"


def _filled_side(run: Run, closed: Commit) -> str:
    """Return the name of a side table that has rows outside silver's open batch; "" for none."""
    for side in (run.lake.quarantine(run.pipeline.name), run.lake.late(run.pipeline.name)):
        if not side.exists:
            continue
        # Rows of an open batch are deleted by a repair, and decided again.
        if not load(run.spark, side).alias("q").where(in_closed_batch(closed)).isEmpty():
            return side.name
    return ""


def _are_requeued_unread(run: Run, until: Mapping[str, Position]) -> bool:
    """Return whether unread rows of the requeue are copies of unread rows of bronze.

    After a RESTORE of silver: a record and its copy would get two fates.
    """
    inputs = run.lake.silver_inputs(run.pipeline.name)
    ends = heads(inputs)
    fresh, requeued = (
        read_between(run.spark, table, until.get(key, BEGINNING), ends[key])
        for key, table in inputs.items()
    )
    if fresh is None or requeued is None:
        return False
    return not requeued.join(fresh, on="record_id", how="left_semi").isEmpty()


def _refuse_prefilter(pipeline: Pipeline) -> None:
    if pipeline.dedup.prefilter == "operator":
        raise NotBuiltError(
            f"{pipeline.file}: repairing silver with dedup.prefilter: operator",
            "Set it to none, repair, and keep it at none.",
        )


def recomputed_from(lake: Lake, pipeline: Pipeline, layer: Literal["bronze", "silver"]) -> Table:
    """Return the table of a layer from which the next ones can be recomputed; needs no Spark.

    Raises:
        UsageError: The table does not exist, or no gold table is computed from it.
        RefusedError: Another pipeline fills one of the gold tables.
    """
    if layer == "silver":
        need_gold(pipeline)
    refuse_foreign_gold(lake, pipeline)
    source = lake.table(logical_name(layer, pipeline.name))
    require_table(source, pipeline.name)
    return source


def refuse_unresettable(lake: Lake, pipeline: Pipeline, hop: Literal["silver", "gold"]) -> None:
    """Raise what :func:`reset` raises of a pipeline that cannot be recomputed; needs no Spark."""
    recomputed_from(lake, pipeline, "bronze" if hop == "silver" else "silver")
    if hop == "silver":
        _refuse_prefilter(pipeline)


def reset(run: Run, hop: Literal["silver", "gold"]) -> dict[Hop, str]:
    """Recompute a hop and the next ones from their inputs; return the new generations by hop.

    Unlike a repair it never continues, and unlike a backfill it replaces the tables at once. As in
    a backfill no row of silver is late, and the requeue is emptied. Bronze is kept. If it is
    interrupted, run it again.

    Raises:
        UsageError: There is nothing to recompute from, or silver's types are still to be widened.
        RefusedError: Another pipeline fills one of the gold tables.
        NotBuiltError: The state of silver's prefilter cannot be prepared.
        LockedError: Another process writes one of the hops.
        LeaseLostError: A lock was lost; the message says which steps were done.
    """
    lake, name = run.lake, run.pipeline.name
    refuse_unresettable(lake, run.pipeline, hop)
    hops = hops_in(run.pipeline)[1 if hop == "silver" else 2 :]
    command, made = runnable("tidelake reset", name, f"--hop {hop}"), dict[Hop, str]()
    if hop == "gold":
        refuse_narrow(run)
    with hold_hops(lake, name, hops, command=command, stop=run.stop) as locks:
        locked = replace(run, locks=locks)
        with naming(run, "reset", gone=NO_INPUT, retry=_AGAIN):
            if hop == "silver":
                made["silver"] = rebuild_silver(locked)
            if "gold" in hops:
                made["gold"] = rebuild_gold(locked)
    return made


def _repair_bronze(run: Run) -> str:
    source, table = run.pipeline.source, run.lake.bronze(run.pipeline.name)
    files: list[str] = []
    metadata: dict[str, Any] = {"records": 0, **bronze_marks(EMPTY, EMPTY), "files": []}
    if isinstance(source, FilesSource):
        offset: dict[str, Any] = {"logOffset": 0}
        taken = taken_files(history(run.lake, table)).values()
        files = [file_entry(listed(file.path), file) for file in taken]
    else:
        last = newest_of(run, "bronze", table)
        metadata |= {key: last.note.get(key, {}) for key in ("offsets", "topics")}
        offset = metadata["offsets"]
        # The repair itself reads nothing from the source.
        metadata |= {"from": offset, "read": {}}
    at = [json.dumps(offset)]
    return continue_hop(run, "bronze", [table], {}, metadata, source=at, files=files)


class TableBatch(NamedTuple):
    """A gold table, and the newest batch of the other tables."""

    target: Target
    closed: Commit


def gold_table(lake: Lake, pipeline: Pipeline, name: str) -> TableBatch:
    """Find a gold table, by its name with or without the layer, and the batch of the others.

    Raises:
        UsageError: The pipeline has no such table, or the next run fills it anyway.
        RefusedError: Gold reads a table of which no batch has a position.
    """
    found = _find(lake, pipeline, name)
    reached = positions(found.closed)
    for key, table in lake.hop_inputs(pipeline, "gold").items():
        if key not in reached:
            raise RefusedError(
                f"{found.target.table.name} cannot be recomputed alone: {table.name} is a new "
                f"input of gold, of which batch {found.closed.batch} has no position. Recompute "
                "all gold tables with: "
                f"{runnable('tidelake backfill run', pipeline.name, '--from silver')}, then "
                "promote; or at once with: "
                f"{runnable('tidelake repair', pipeline.name, '--hop gold')}"
            )
    return found


def _find(lake: Lake, pipeline: Pipeline, name: str) -> TableBatch:
    tables = lake.closing_tables(pipeline, "gold")
    unfilled = unfilled_tables(tables)
    for target in targets_of(lake, pipeline):
        if name not in (target.table.name, target.table.bare):
            continue
        filled = [table for table in tables if table not in unfilled]
        closed = last_closed(filled, except_for=[target.table])
        if closed is None or target.table in unfilled:
            raise UsageError(
                f"{target.table.name} is not filled yet. "
                f"Fill it with: {runnable('tidelake run', pipeline.name)}"
            )
        return TableBatch(target, closed)
    known = ", ".join(pipeline.gold_names)
    raise UsageError(f"{pipeline.name} has no gold table {name}. Its tables are: {known}")


def fill_table(run: Run, name: str, green: Table) -> None:
    """Compute a green table as of the live tables' last batch, unless it is there already."""
    (target, closed), last = gold_table(run.lake, run.pipeline, name), last_commit(green)
    if (
        _batch_of(last) == _batch_of(closed)
        and not changed_definition(last, target.kind.definition)
        # Filled before silver's types were widened.
        and not column_changes(run, target._replace(table=green))
    ):
        return
    run.progress.say(f"computing {name} from silver as of batch {closed.batch}")
    recompute_table(run, name, green)


def install_table(run: Run, name: str, green: Table) -> None:
    """Replace the rows of a live gold table with those of a green one.

    The green table must be at the batch of the other live tables, and these at that of gold's
    checkpoint; the caller ensures it, and this does not check it. Does nothing if the green table
    has no commit.
    """
    last = last_commit(green)
    if last is not None:
        table, rows = run.lake.table(name), load(run.spark, green)
        replace_rows(run, table, rows, last.note, may_repeat=True)


def can_restore(lake: Lake, pipeline: Pipeline, name: str, version: int) -> bool:
    """Return whether a version of a table is at the batch of the other tables; needs no Spark.

    If not, a rollback recomputes the table.

    Raises:
        UsageError: The table is no longer in the pipeline file.
        RefusedError: The version is at another batch, and the definition changed since.
    """
    if name not in pipeline.gold_names:
        raise UsageError(
            f"{name} is no longer in {pipeline.file}. Put its definition back, then roll back"
        )
    target, closed = _find(lake, pipeline, name)
    before = last_commit(target.table, up_to=version)
    if _batch_of(before) == _batch_of(closed):
        return True
    if changed_definition(before, target.kind.definition):
        raise RefusedError(
            f"batches were committed since {name} was promoted, so its version {version} lacks "
            f"rows. Restore its definition in {pipeline.file}, then roll back: the table is "
            "then recomputed from silver"
        )
    gold_table(lake, pipeline, name)
    return False


def recompute_table(run: Run, name: str, table: Table | None = None) -> None:
    """Recompute the rows of a table, by default the live one, from its current definition."""
    target, closed = gold_table(run.lake, run.pipeline, name)
    inputs = run.lake.hop_inputs(run.pipeline, "gold")
    for _, rows, note in filled_as_of(run.spark, inputs, [target], closed):
        replace_rows(run, table or target.table, rows, note, may_repeat=True)


def _batch_of(last: Commit | None) -> object:
    return None if last is None else (last.generation, last.batch, positions(last))
