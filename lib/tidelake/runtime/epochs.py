"""Close epochs: write to ``ops.epochs`` which versions of a pipeline's tables belong together."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import functions as F

from tidelake.config.standard import EPOCHS_COLUMNS
from tidelake.delta.append import append, ensure_final_view, ensure_table
from tidelake.delta.boundaries import find_boundary
from tidelake.delta.compaction import compact, is_due
from tidelake.delta.generations import CREATION, FIRST_GENERATION
from tidelake.delta.locks import hold
from tidelake.delta.log import last_commit
from tidelake.delta.notes import Final
from tidelake.delta.tables import Table
from tidelake.instants import from_json, to_json
from tidelake.runtime.hop import Run
from tidelake.runtime.schemas import from_ddl

_DDL = ", ".join(f"{name} {kind}" for name, kind in EPOCHS_COLUMNS.items())
_STRUCT = ", ".join(f"{name}: {kind}" for name, kind in EPOCHS_COLUMNS.items())


def close_epoch(run: Run) -> None:
    """Close an epoch where the tables stand at a boundary that no epoch has yet.

    Looks into the logs alone; Spark works only where there is something to write.
    """
    lake, name = run.lake, run.pipeline.name
    epochs = lake.epochs()
    # Hops may run in processes of their own, and each of them closes epochs.
    with hold(lake.marks("ops"), epochs.name, waits=True, optional=True):
        closing = [lake.table(table) for table in run.pipeline.gold_names]
        found = find_boundary(lake, name, closing)
        last = last_commit(epochs)
        # Carried on, so that the last epoch of each pipeline outlives the log of this table too.
        known: dict[str, Any] = last.note["last"] if last else {}
        before = known.get(name, {"epoch": 0, "versions": {}})
        if found is None or found.versions == before["versions"]:
            return
        stamp = {"pipeline": name, "hop": "epochs", "generation": FIRST_GENERATION}
        schema = from_ddl(run.spark, _DDL)
        made = {**stamp, "batch": CREATION, "last": {}}
        ensure_table(run.spark, epochs, schema, made, freedom="columns")
        closed_at = _now(last.note.get("closed_at") if last else None)
        number = before["epoch"] + 1
        ends = _finals(closing, found.versions)
        row = {
            "pipeline": name,
            "epoch": number,
            "closed_at": closed_at,
            "watermark": to_json(found.watermark),
            "generation": found.generation,
            "batch": found.batch,
            "versions": found.versions,
            "final": {name: to_json(final.until) for name, final in ends.items()},
        }
        closed = {name: {"epoch": number, "versions": found.versions}}
        batch = last.batch + 1 if last else 0
        note = {
            **stamp,
            "batch": batch,
            "closed_at": closed_at,
            "last": {**known, **closed},
        }
        # As text, which Spark parses: a list of Python rows would go through a Python worker.
        parsed = F.inline(F.from_json(F.lit(json.dumps([row])), f"array<struct<{_STRUCT}>>"))
        append(run.spark.range(1).select(parsed), epochs, note)
        # Readers open each file.
        if is_due(batch):
            compact(run.spark, epochs)
    # Tables of a backfill have no view: theirs would take the live one's name.
    if lake.catalog is not None and not lake.suffix:
        for table in closing:
            if table.name in ends:
                column = ends[table.name].column
                ensure_final_view(run.spark, lake, table, column=column, pipeline=name)


def _finals(closing: Sequence[Table], versions: Mapping[str, int]) -> dict[str, Final]:
    """Read which rows are final in those of the tables whose rows ever are."""
    heads = {t.name: last_commit(t, up_to=versions[t.name]) for t in closing if t.name in versions}
    found = {name: Final.of(head) for name, head in heads.items()}
    return {name: final for name, final in found.items() if final is not None}


def _now(before: str | None) -> str:
    """Write the present moment, or one just after the last epoch when the clock went back."""
    now, last = datetime.now(UTC), from_json(before)
    return (now if last is None else max(now, last + timedelta(microseconds=1))).isoformat()
