"""Put rows in the place of those of the live tables: a new generation, one commit a table.

The order is that of every batch: the checkpoint that goes on after it is prepared first, side
tables come before silver, and the commit that closes comes last. Interrupted in between, the
swap is done again or taken back before anything else; readers see each table whole, as it was or as
it becomes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame

from tidelake.delta.access import load
from tidelake.delta.append import append
from tidelake.delta.log import REBUILT, Commit, newest_version
from tidelake.delta.notes import SilverNote, silver_note
from tidelake.delta.positions import Position
from tidelake.delta.tables import Hop, Table
from tidelake.replay.beginning import begin, next_generation, offsets_of
from tidelake.replay.rebuild_gold import FIRST
from tidelake.runtime.gold_target import OWN, inputs_of, stamped
from tidelake.runtime.hop import Run

# Green tables may be empty.
_REPLACES: dict[str, Any] = {"surely_filled": False, "replaces": True}


@dataclass(frozen=True)
class SilverContents:
    """What silver and the tables beside it are to hold.

    Attributes:
        silver: Rows of silver; all frames without the columns of a batch.
        quarantine: Rows of quarantine.
        late: Rows of the late table.
        note: The books, with the position in bronze.
    """

    silver: DataFrame
    quarantine: DataFrame
    late: DataFrame
    note: SilverNote


@dataclass(frozen=True)
class GoldContents:
    """What gold tables are to hold.

    Attributes:
        rows: By table.
        books: What the note of each says beside its identity and position.
        until: The position in each input; silver's own is set where silver is replaced too.
    """

    rows: Mapping[Table, DataFrame]
    books: Mapping[Table, Mapping[str, Any]]
    until: Mapping[str, Position]


def install_silver(run: Run, contents: SilverContents) -> None:
    """Replace silver, quarantine and late, and empty the requeue; silver's commit closes it."""
    lake, name = run.lake, run.pipeline.name
    silver, requeue = lake.silver(name), lake.requeue(name)
    generation = next_generation(run, "silver", [silver])
    note = _note(run, "silver", generation)
    nothing = load(run.spark, requeue).limit(0)
    run.locks.step(f"empty {requeue.name}")
    append(nothing, requeue, {**note, "hop": "requeue"}, **_REPLACES)
    until = {
        "bronze": contents.note.until["bronze"],
        "requeue": (newest_version(requeue) + 1, -1),
    }
    inputs = {"bronze": lake.bronze(name), "requeue": requeue}
    begin(run, "silver", generation, FIRST, offsets_of(run, inputs, until))
    stamp: dict[str, Any] = {"generation": generation, "batch": FIRST}
    for rows, table in (
        (contents.quarantine, lake.quarantine(name)),
        (contents.late, lake.late(name)),
    ):
        run.locks.step(f"replace {table.name}")
        append(stamped(rows, **stamp), table, note, **_REPLACES)
    books = {**contents.note.to_json(), "until": {k: list(v) for k, v in until.items()}}
    books |= silver_note(run.pipeline)
    run.locks.step(f"replace {silver.name}")
    append(stamped(contents.silver, **stamp), silver, {**note, **books}, **_REPLACES)


def install_gold(run: Run, contents: GoldContents, *, follows_new_silver: bool) -> None:
    """Replace gold tables.

    Args:
        run: What the command works with.
        contents: What they are to hold.
        follows_new_silver: Whether the pipeline's silver was replaced just now, and gold holds
            what follows from all of it.
    """
    inputs = inputs_of(run.lake, run.pipeline)
    until = {key: contents.until[key] for key in inputs}
    if follows_new_silver:
        until[OWN] = newest_version(inputs[OWN]) + 1, -1
    generation = next_generation(run, "gold", list(contents.rows))
    begin(run, "gold", generation, FIRST, offsets_of(run, inputs, until))
    positions = {key: list(position) for key, position in until.items()}
    for table, rows in contents.rows.items():
        note = _note(run, "gold", generation) | {**contents.books[table], "until": positions}
        made = stamped(rows, generation=generation, batch=FIRST)
        run.locks.step(f"replace {table.name}")
        append(made, table, note, **_REPLACES)


def _note(run: Run, hop: Hop, generation: str) -> dict[str, Any]:
    return {
        "pipeline": run.pipeline.name,
        "hop": hop,
        "generation": generation,
        "batch": FIRST,
        REBUILT: True,
    }


def gold_books(newest_first: Sequence[Commit]) -> dict[str, Any]:
    """Add up what a table's commits counted; the rest is as the newest says."""
    last = newest_first[0].note
    told: dict[str, Any] = {key: last[key] for key in ("definition", "final") if key in last}
    for key in ("rows", "eligible", "failed"):
        told[key] = sum(int(commit.note.get(key, 0)) for commit in newest_first)
    return told
