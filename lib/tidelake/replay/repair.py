"""Repair a hop whose table and checkpoint do not fit, by a new generation."""

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
from tidelake.ops.history import history
from tidelake.replay.generations import (
    closing_tables,
    go_on_gold,
    go_on_silver,
    gold_mismatch,
    missing,
    name_generation,
    newest_of,
    next_generation,
    numbered,
    prepare_checkpoint,
    rebuild_gold,
    rebuild_silver,
)
from tidelake.runtime.checkpoints import file_entry
from tidelake.runtime.gold_tables import inputs_of
from tidelake.runtime.hop import Run
from tidelake.runtime.landing import taken_files


@dataclass(frozen=True)
class Repaired:
    """The new generation, and why the tables were computed anew; empty: they were not."""

    generation: str
    why: str = ""

    @property
    def rebuilt(self) -> bool:
        """Return whether the tables were computed anew."""
        return bool(self.why)


def repair(run: Run, hop: Hop) -> Repaired:
    """Begin a new generation of a hop: exactly after what its tables hold, or from nothing.

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
    last = newest_of(run, "bronze", table)
    files: list[str] = []
    books: dict[str, Any] = {"records": 0, **bronze_marks(EMPTY, EMPTY), "files": []}
    if isinstance(source, FilesSource):
        offset: dict[str, Any] = {"logOffset": 0}
        taken = taken_files(history(run.lake, table)).values()
        files = [file_entry(listed(file.path), file) for file in taken]
    elif isinstance(source, KafkaSource):
        books |= {key: last.note.get(key, {}) for key in ("offsets", "topics")}
        offset = books["offsets"]
        # Nothing more was read.
        books |= {"from": offset, "read": {}}
    else:
        raise NotBuiltError(f"Repairing bronze of a {source.kind} source")
    generation = next_generation(run, "bronze")
    prepare_checkpoint(run, "bronze", generation, numbered(last), [json.dumps(offset)], files)
    name_generation(run, table, last, generation, batch=numbered(last), **books)
    return Repaired(generation)


def _silver(run: Run) -> Repaired:
    lake, name = run.lake, run.pipeline.name
    table = lake.silver(name)
    if run.pipeline.dedup.prefilter == "operator":
        raise NotBuiltError(
            "Repairing silver with dedup.prefilter: operator",
            "Set it to none, repair, and leave it so.",
        )
    if not table.exists and lake.bronze(name).exists:
        return Repaired(rebuild_silver(run), f"{table.name} was not there")
    last = newest_of(run, "silver", table)
    changed = changed_parts(last, run.pipeline).identity
    if changed:
        return Repaired(rebuild_silver(run), f"{' and '.join(changed)} changed")
    until = SilverNote.of(last).until
    for key, followed in (("bronze", lake.bronze(name)), ("requeue", lake.requeue(name))):
        if rewritten_after(followed, until.get(key, BEGINNING)) is not None:
            return Repaired(rebuild_silver(run), f"{followed.name} was rewritten")
    return Repaired(go_on_silver(run, until))


def _gold(run: Run) -> Repaired:
    for table in inputs_of(run.lake, run.pipeline).values():
        if not table.exists:
            raise UsageError(missing(table.name.removeprefix("silver."), "silver"))
    why = gold_mismatch(run)
    if why:
        return Repaired(rebuild_gold(run), why)
    tables = closing_tables(run, "gold")
    return Repaired(go_on_gold(run, tables, positions(newest_of(run, "gold", tables[0]))))
