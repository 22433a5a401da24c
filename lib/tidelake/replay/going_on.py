"""Let a hop go on exactly after what its tables hold, in a new generation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tidelake.delta.access import load
from tidelake.delta.append import append
from tidelake.delta.log import CREATION, ERASED, REBUILT, Commit, last_commit
from tidelake.delta.notes import SilverNote
from tidelake.delta.positions import BEGINNING, Position
from tidelake.delta.tables import Hop, Table
from tidelake.errors import UsageError
from tidelake.ops.books import history
from tidelake.replay.beginning import begin, is_generation, offsets_of
from tidelake.replay.rebuild_gold import FIRST
from tidelake.runtime.gold_target import inputs_of
from tidelake.runtime.hop import Run


def go_on_silver(
    run: Run,
    generation: str,
    until: Mapping[str, Position],
    *,
    erased: Mapping[str, Any] | None = None,
) -> None:
    """Name a new generation of silver.

    Args:
        run: What the command works with.
        generation: The new one.
        until: Where silver stands in bronze and in the requeue.
        erased: What the note is to say that an erasure took out; None: there was none.
    """
    lake, name = run.lake, run.pipeline.name
    table = lake.silver(name)
    last = newest_of(run, table, "silver")
    closing = history(lake, table)
    for side in (lake.quarantine(name), lake.late(name)):
        _drop_rows_of_no_batch(run, side, closing)
    inputs = {"bronze": lake.bronze(name), "requeue": lake.requeue(name)}
    # A checkpoint of no batch begins at the first commit of each input.
    is_begun = last.batch > CREATION or any(one != BEGINNING for one in until.values())
    batch = max(last.batch, FIRST) if is_begun else CREATION
    begin(run, "silver", generation, batch, offsets_of(run, inputs, until))
    before = SilverNote.of(last)
    idle = replace(
        before,
        watermark_in=before.watermark,
        counts=(),
        taken={},
        until=until,
        warnings={},
        searched=0,
        seconds=0.0,
        prefiltered=None,
        columns=(),
    )
    books = idle.to_json() if is_begun else {}
    if erased is not None:
        books[ERASED] = dict(erased)
    name_generation(run, table, last, generation, batch=batch, **books)


def go_on_gold(
    run: Run, tables: Sequence[Table], generation: str, until: Mapping[str, Position]
) -> None:
    """Name a new generation of gold.

    Args:
        run: What the command works with.
        tables: Those that gold fills.
        generation: The new one.
        until: Where all of its tables stand in each input.
    """
    inputs = inputs_of(run.lake, run.pipeline)
    first = newest_of(run, tables[0], "gold")
    begin(run, "gold", generation, numbered(first), offsets_of(run, inputs, until))
    positions = {key: list(position) for key, position in until.items()}
    for table in tables:
        last = newest_of(run, table, "gold")
        reached = {"until": positions} if positions else {}
        name_generation(
            run, table, last, generation, batch=numbered(last), rows=0, eligible=0, **reached
        )


def newest_of(run: Run, table: Table, hop: Hop) -> Commit:
    """Give a table's newest commit of ours.

    Raises:
        UsageError: The hop has not run.
    """
    last = last_commit(table) if table.exists else None
    if last is None:
        raise UsageError(missing(run.pipeline.name, hop))
    return last


def missing(name: str, hop: Hop) -> str:
    """Say that a hop has no tables, and what fills them."""
    return f"{name} has no tables of hop {hop} to repair. Fill them with: tidelake run {name}"


def numbered(last: Commit) -> int:
    """Give the number of the batch that a checkpoint is to end with."""
    return last.batch if last.batch == CREATION else max(last.batch, FIRST)


def name_generation(
    run: Run, table: Table, last: Commit, generation: str, *, batch: int, **books: object
) -> None:
    """Write the new generation and its last closed batch into a table, without a row."""
    # What happened once is said once.
    kept = {key: told for key, told in last.note.items() if key not in (REBUILT, ERASED)}
    note = {**kept, **books, "generation": generation, "batch": batch}
    nothing = load(run.spark, table).limit(0)
    run.locks.step(f"begin generation {generation} in {table.name}")
    append(nothing, table, note, surely_filled=False)


def _drop_rows_of_no_batch(run: Run, side: Table, closing: Sequence[Commit]) -> None:
    """Delete what batches wrote into a side table that silver never closed, or closed no more."""
    newest: dict[str, int] = {}
    for commit in closing:
        newest[commit.generation] = max(newest.get(commit.generation, -1), commit.batch)
    # Generations are ours: a letter and digits.
    known = " OR ".join(
        f"(_generation = '{generation}' AND _batch <= {batch})"
        for generation, batch in newest.items()
        if is_generation(generation)
    )
    run.locks.step(f"delete rows of uncommitted batches from {side.name}")
    run.spark.sql(f"DELETE FROM {side.sql} WHERE NOT ({known or 'false'})")
