"""Recompute one gold table of a pipeline; the other tables are not written.

A table is computed from silver as of the last batch that the other tables hold, and its commit has
that batch's number and positions. So the next batch continues all tables in the same generation,
from the same checkpoint.

:mod:`tidelake.replay.backfill` fills the green table, :mod:`tidelake.replay.backfill_promotion`
installs it and rolls back.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from pyspark.sql import DataFrame

from tidelake.config import Pipeline
from tidelake.delta.access import load
from tidelake.delta.append import append
from tidelake.delta.log import REBUILT, Commit, last_commit
from tidelake.delta.notes import changed_definition, positions
from tidelake.delta.positions import unfilled_tables
from tidelake.delta.tables import Lake, Table
from tidelake.errors import RefusedError, UsageError
from tidelake.runtime.gold import GoldHop
from tidelake.runtime.gold_tables import Target, filled_as_of, last_closed, targets_of
from tidelake.runtime.hop import Run
from tidelake.typed import runnable


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
        closed = last_closed(filled, but=[target.table])
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
    found, last = gold_table(run.lake, run.pipeline, name), last_commit(green)
    if _batch_of(last) == _batch_of(found.closed) and not _is_redefined(last, found.target):
        return
    run.progress.say(f"computing {name} from silver as of batch {found.closed.batch}")
    _replace_table(run, found, green)


def install_table(run: Run, name: str, green: Table) -> None:
    """Replace the rows of a live table with those of a green one, which is at the same batch.

    Raises:
        GenerationError: The tables and the checkpoint of gold do not match.
    """
    GoldHop(run, creates=False)
    last = last_commit(green)
    if last is not None:
        _replace(run, run.lake.table(name), load(run.spark, green), last.note)


def can_restore(lake: Lake, pipeline: Pipeline, name: str, version: int) -> bool:
    """Return whether a version of a table is at the batch of the other tables; needs no Spark.

    If not, a rollback recomputes the table.

    Raises:
        UsageError: The table is no longer in the pipeline file.
        RefusedError: It is not, and cannot be computed either: the definition is another one.
    """
    if name not in pipeline.gold_names:
        raise UsageError(
            f"{name} is no longer in {pipeline.file}. Put its definition back, then roll back"
        )
    target, closed = _find(lake, pipeline, name)
    before = last_commit(target.table, up_to=version)
    if _batch_of(before) == _batch_of(closed):
        return True
    if _is_redefined(before, target):
        raise RefusedError(
            f"batches were committed since {name} was promoted, so its version {version} lacks "
            f"rows. Restore its definition in {pipeline.file}, then roll back: the table is "
            "then recomputed from silver"
        )
    gold_table(lake, pipeline, name)
    return False


def recompute_table(run: Run, name: str) -> None:
    """Replace the rows of a live table with those that its definition gives."""
    found = gold_table(run.lake, run.pipeline, name)
    _replace_table(run, found, found.target.table)


def _replace_table(run: Run, found: TableBatch, table: Table) -> None:
    inputs = run.lake.hop_inputs(run.pipeline, "gold")
    for _, rows, note in filled_as_of(run.spark, inputs, [found.target], found.closed):
        _replace(run, table, rows, note)


def _replace(run: Run, table: Table, rows: DataFrame, note: dict[str, Any]) -> None:
    run.locks.step(f"replace {table.name}")
    made = {**note, REBUILT: True}
    # The table may have a commit of this batch: without an id of its own this one is skipped.
    append(rows, table, made, surely_filled=False, replaces=True, may_repeat=True)


def _batch_of(last: Commit | None) -> object:
    return None if last is None else (last.generation, last.batch, positions(last))


def _is_redefined(last: Commit | None, target: Target) -> bool:
    return changed_definition(last, target.kind.definition)
