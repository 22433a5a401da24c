"""Begin a new generation of a hop: exactly after what its tables hold, or from nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tidelake.config import FilesSource, KafkaSource
from tidelake.delta.locks import hold_hops
from tidelake.delta.notes import SilverNote, changed_parts, positions
from tidelake.delta.positions import BEGINNING, rewritten_after
from tidelake.delta.tables import Hop
from tidelake.errors import NotBuiltError, UsageError
from tidelake.fingerprints import EMPTY, bronze_marks
from tidelake.folders import listed
from tidelake.ops.books import history
from tidelake.replay.beginning import begin, next_generation
from tidelake.replay.going_on import (
    go_on_gold,
    go_on_silver,
    missing,
    name_generation,
    newest_of,
    numbered,
)
from tidelake.replay.rebuild_gold import rebuild_gold, stands_alike
from tidelake.replay.rebuild_silver import rebuild_silver
from tidelake.runtime.checkpoints import file_entry
from tidelake.runtime.gold_target import inputs_of
from tidelake.runtime.hop import Run
from tidelake.runtime.landing import taken_files


@dataclass(frozen=True)
class Repaired:
    """What a repair did.

    Attributes:
        hop: Which arrow.
        generation: The new one.
        rebuilt: Whether the tables were computed anew; otherwise they are as they were.
        why: What made that necessary; empty otherwise.
    """

    hop: Hop
    generation: str
    rebuilt: bool
    why: str = ""


def repair(run: Run, hop: Hop) -> Repaired:
    """Begin a new generation of a hop.

    The commit that closes the hop's table comes last, after its checkpoint and its side tables:
    interrupted before, the hop is refused as it was, and the repair can be run again.

    Raises:
        UsageError: The hop has no tables yet.
        NotBuiltError: A source whose position the table does not tell.
        LockedError: Another process writes the hop.
        LeaseLostError: The lock was lost; the message says which steps were done.
    """
    repairs: dict[Hop, Callable[[Run], Repaired]] = {
        "bronze": _bronze,
        "silver": _silver,
        "gold": _gold,
    }
    again = f"tidelake repair {run.pipeline.name} --hop {hop}"
    with hold_hops(run.lake, run.pipeline.name, [hop], command=again) as locks:
        return repairs[hop](replace(run, locks=locks))


def _bronze(run: Run) -> Repaired:
    source, table = run.pipeline.source, run.lake.bronze(run.pipeline.name)
    last = newest_of(run, table, "bronze")
    files: list[str] = []
    place: dict[str, Any] = {}
    if isinstance(source, FilesSource):
        offset: dict[str, Any] = {"logOffset": 0}
        taken = taken_files(history(run.lake, table)).values()
        files = [file_entry(listed(file.path), file) for file in taken]
    elif isinstance(source, KafkaSource):
        place = {key: last.note.get(key, {}) for key in ("offsets", "topics")}
        offset = place["offsets"]
        # Nothing more was read.
        place |= {"from": offset, "read": {}}
    else:
        raise NotBuiltError(f"Repairing bronze of a {source.kind} source")
    generation = next_generation(run, "bronze", [table])
    begin(run, "bronze", generation, numbered(last), [json.dumps(offset)], files)
    marks = bronze_marks(EMPTY, EMPTY)
    books = {"records": 0, **marks, "files": [], **place}
    name_generation(run, table, last, generation, batch=numbered(last), **books)
    return Repaired("bronze", generation, rebuilt=False)


def _silver(run: Run) -> Repaired:
    lake, name = run.lake, run.pipeline.name
    table = lake.silver(name)
    if run.pipeline.dedup.prefilter == "operator":
        raise NotBuiltError(
            "Repairing silver with dedup.prefilter: operator",
            "Set it to none, repair, and leave it so.",
        )
    generation = next_generation(run, "silver", [table])
    if not table.exists and lake.bronze(name).exists:
        rebuild_silver(run, generation)
        return Repaired("silver", generation, True, f"{table.name} was not there")
    last = newest_of(run, table, "silver")
    changed = changed_parts(last, run.pipeline).identity
    if changed:
        rebuild_silver(run, generation)
        return Repaired("silver", generation, True, f"{' and '.join(changed)} changed")
    before = SilverNote.of(last)
    inputs = {"bronze": lake.bronze(name), "requeue": lake.requeue(name)}
    for key, followed in inputs.items():
        version = rewritten_after(followed, before.until.get(key, BEGINNING))
        if version is not None:
            rebuild_silver(run, generation)
            return Repaired("silver", generation, True, f"{followed.name} was rewritten")
    go_on_silver(run, generation, before.until)
    return Repaired("silver", generation, rebuilt=False)


def _gold(run: Run) -> Repaired:
    lake, pipeline = run.lake, run.pipeline
    inputs = inputs_of(lake, pipeline)
    tables = [lake.table(name) for name in pipeline.gold_names]
    for table in inputs.values():
        if not table.exists:
            raise UsageError(missing(table.name.removeprefix("silver."), "silver"))
    generation = next_generation(run, "gold", tables)
    why = stands_alike(run)
    if why:
        rebuild_gold(run, generation)
        return Repaired("gold", generation, True, why)
    go_on_gold(run, tables, generation, positions(newest_of(run, tables[0], "gold")))
    return Repaired("gold", generation, rebuilt=False)
