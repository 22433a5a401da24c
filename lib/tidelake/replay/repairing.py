"""Repair a hop whose tables and checkpoint do not match, and recompute hops from their inputs.

How a generation begins: :mod:`.generations`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal, NamedTuple

from tidelake.config import FilesSource, KafkaSource, Pipeline
from tidelake.delta.locks import hold_hops
from tidelake.delta.notes import SilverNote, changed_parts, positions
from tidelake.delta.positions import BEGINNING, rewritten_after
from tidelake.delta.tables import Hop, Lake, hops_in
from tidelake.errors import NotBuiltError, UsageError
from tidelake.fingerprints import EMPTY, bronze_marks
from tidelake.folders import listed
from tidelake.ledger.history import history, require_table
from tidelake.replay.generations import (
    continue_gold,
    continue_hop,
    continue_silver,
    gold_mismatches,
    newest_of,
    rebuild_gold,
    rebuild_silver,
)
from tidelake.runtime.checkpoints import file_entry
from tidelake.runtime.hop import Run
from tidelake.runtime.landed_files import taken_files
from tidelake.typed import runnable


def need_gold(pipeline: Pipeline) -> None:
    """Raise a UsageError if a pipeline fills no gold table."""
    if not pipeline.gold_names:
        raise UsageError(f"{pipeline.name} defines no gold table; there is nothing to recompute.")


class Repaired(NamedTuple):
    """The new generation, and why the tables were rebuilt ("" if they were not)."""

    generation: str
    why: str


def repair(run: Run, hop: Hop) -> Repaired:
    """Begin a new generation of a hop whose tables and checkpoint do not match.

    The hop continues after the last batch in its tables; if that cannot be determined, the tables
    are rebuilt.

    Raises:
        UsageError: The hop has no tables yet.
        NotBuiltError: The checkpoint state of the source or the prefilter cannot be prepared.
        LockedError: Another process writes the hop.
        LeaseLostError: The lock was lost; the message says which steps were done.
    """
    command = runnable("tidelake repair", run.pipeline.name, f"--hop {hop}")
    with hold_hops(run.lake, run.pipeline.name, [hop], command=command) as locks:
        why, locked = why_rebuilt(run, hop), replace(run, locks=locks)
        if hop == "bronze":
            generation = _repair_bronze(locked)
        elif hop == "silver":
            generation = rebuild_silver(locked) if why else _repair_silver(locked)
        else:
            generation = rebuild_gold(locked) if why else _repair_gold(locked)
        return Repaired(generation, why)


def why_rebuilt(run: Run, hop: Hop) -> str:
    """Return why a repair would rebuild a hop's tables; empty if they can be continued.

    Nothing is written.

    Raises:
        UsageError: The hop has no tables yet.
        NotBuiltError: The checkpoint state of the source or the prefilter cannot be prepared.
    """
    if hop == "gold":
        need_gold(run.pipeline)
        for table in run.lake.hop_inputs(run.pipeline, "gold").values():
            newest_of(run, "silver", table)
        return next(gold_mismatches(run), "")
    if hop == "silver":
        return next(_silver_mismatches(run), "")
    newest_of(run, "bronze", run.lake.bronze(run.pipeline.name))
    source = run.pipeline.source
    if not isinstance(source, FilesSource | KafkaSource):
        raise NotBuiltError(f"Repairing bronze of a {source.kind} source")
    return ""


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
    until = SilverNote.of(last).until
    for key, followed in lake.silver_inputs(name).items():
        if rewritten_after(followed, until.get(key, BEGINNING)) is not None:
            yield f"{followed.name} was rewritten"


def _refuse_prefilter(pipeline: Pipeline) -> None:
    if pipeline.dedup.prefilter == "operator":
        raise NotBuiltError(
            "Repairing silver with dedup.prefilter: operator",
            "Set it to none, repair, and keep it at none.",
        )


def refuse_unresettable(lake: Lake, pipeline: Pipeline, hop: Literal["silver", "gold"]) -> None:
    """Raise what :func:`reset` raises of a pipeline that cannot be recomputed; needs no Spark."""
    name = pipeline.name
    if hop == "gold":
        need_gold(pipeline)
    require_table(lake.bronze(name) if hop == "silver" else lake.silver(name), name)
    if hop == "silver":
        _refuse_prefilter(pipeline)


def reset(run: Run, hop: Literal["silver", "gold"]) -> dict[Hop, str]:
    """Recompute a hop and the next ones from their inputs; return the new generations by hop.

    Unlike a repair it never continues, and unlike a backfill it replaces the tables at once. As in
    a backfill no row of silver is late, and the requeue is emptied. Bronze is kept. If it is
    interrupted, run it again.

    Raises:
        UsageError: There is nothing to recompute from.
        NotBuiltError: The state of silver's prefilter cannot be prepared.
        LockedError: Another process writes one of the hops.
        LeaseLostError: A lock was lost; the message says which steps were done.
    """
    lake, name = run.lake, run.pipeline.name
    refuse_unresettable(lake, run.pipeline, hop)
    hops = hops_in(run.pipeline)[1 if hop == "silver" else 2 :]
    command, made = runnable("tidelake reset", name, f"--hop {hop}"), dict[Hop, str]()
    with hold_hops(lake, name, hops, command=command) as locks:
        locked = replace(run, locks=locks)
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


def _repair_silver(run: Run) -> str:
    last = newest_of(run, "silver", run.lake.silver(run.pipeline.name))
    return continue_silver(run, SilverNote.of(last).until)


def _repair_gold(run: Run) -> str:
    tables = run.lake.closing_tables(run.pipeline, "gold")
    return continue_gold(run, tables, positions(newest_of(run, "gold", tables[0])))
