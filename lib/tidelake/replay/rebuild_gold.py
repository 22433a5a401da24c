"""Compute gold anew from silver, in one commit a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pyspark.sql import DataFrame

from tidelake.delta.access import load
from tidelake.delta.append import append, differences
from tidelake.delta.log import (
    REBUILT,
    Commit,
    last_commit,
    newest_version,
    oldest_version,
    written_at,
)
from tidelake.delta.notes import changed_definition, positions, settled_until
from tidelake.delta.positions import BEGINNING, Position, rewritten_after
from tidelake.replay.beginning import begin, offsets_of
from tidelake.runtime.gold_target import (
    Inputs,
    Target,
    count_contributions,
    inputs_of,
    stamped,
    up_to,
)
from tidelake.runtime.hop import Run
from tidelake.runtime.schemas import GOLD_FREEDOM, target_schema
from tidelake.runtime.targets import targets_of

# The number of a rebuilt table's batch: a checkpoint is prepared from the batch before it on.
FIRST = 1


def stands_alike(run: Run) -> str:
    """Say why gold's tables cannot go on together as they are; empty when they can."""
    found: list[Commit] = []
    for target in targets_of(run.lake, run.pipeline):
        table = target.table
        last = last_commit(table) if table.exists else None
        if last is None:
            return f"{table.name} is new"
        if changed_definition(last, target.definition):
            return f"{table.name} has another definition now"
        stored = load(run.spark, table).schema
        changes = differences(stored, target_schema(run, target), GOLD_FREEDOM)
        if any(one.verdict == "refused" for one in changes):
            return f"{table.name} has other columns now"
        found.append(last)
    if len({(one.batch, str(positions(one))) for one in found}) > 1:
        return "its tables stand at different batches"
    return _rewritten(run, found[0])


def _rewritten(run: Run, last: Commit) -> str:
    reached = positions(last)
    for key, table in inputs_of(run.lake, run.pipeline).items():
        made = written_at(table, 0) if oldest_version(table) == 0 else None
        if reached and made is not None and made > last.written_at:
            return f"{table.name} was made anew"
        if reached and key not in reached:
            return f"{table.name} is followed now"
        if rewritten_after(table, reached.get(key, BEGINNING)) is not None:
            return f"{table.name} was rewritten"
    return ""


def rebuild_gold(
    run: Run,
    generation: str,
    *,
    until: Mapping[str, Position] | None = None,
    rows_of: Callable[[Target, Inputs], DataFrame] = lambda target, inputs: target.of_all(inputs),
) -> None:
    """Replace every gold table of the pipeline by what follows from all of silver.

    Args:
        run: What the command works with.
        generation: The new one, which goes on after that.
        until: How far silver is read; None for all of it.
        rows_of: Computes a table's rows.
    """
    tables = inputs_of(run.lake, run.pipeline)
    if until is None:
        until = {key: (newest_version(table) + 1, -1) for key, table in tables.items()}
    begin(run, "gold", generation, FIRST, offsets_of(run, tables, until))
    read = up_to(run.spark, tables, until)
    inputs = Inputs({}, read)
    settled = settled_until((table, until[key]) for key, table in tables.items())
    targets = targets_of(run.lake, run.pipeline)
    counted = count_contributions({key: read(key) for key in tables}, targets)
    for target, contributed in zip(targets, counted, strict=True):
        note = {
            "pipeline": run.pipeline.name,
            "hop": "gold",
            "generation": generation,
            "batch": FIRST,
            REBUILT: True,
            **contributed,
            **target.books(until, settled),
        }
        made = stamped(rows_of(target, inputs), generation=generation, batch=FIRST)
        run.locks.step(f"compute {target.table.name} anew")
        append(made, target.table, note, surely_filled=False, replaces=True)
