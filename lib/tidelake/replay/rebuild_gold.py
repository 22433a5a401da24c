"""Compute gold anew from silver, in one commit a table."""

from __future__ import annotations

from pyspark.sql import functions as F

from tidelake.runtime.hop import Run
from tidelake.runtime.schemas import aggregate, gold_columns, gold_freedom, gold_schema
from tidelake.sinks.append import append
from tidelake.sinks.commits import BEGINNING, REBUILT, last_commit, rewritten_after
from tidelake.sinks.definitions import changed_definition, definition_note
from tidelake.sinks.evolution import differences
from tidelake.sinks.finality import consumed_watermark, final_note
from tidelake.sinks.notes import position
from tidelake.tables import Table

# The number of a rebuilt table's batch: a checkpoint is prepared from the batch before it on.
FIRST = 1


def stands_alike(run: Run, silver: Table) -> str:
    """Say why gold's tables cannot go on together as they are; empty when they can.

    Args:
        run: What the command works with.
        silver: The table that they follow.
    """
    positions = set()
    for gold in run.pipeline.gold:
        table = run.lake.gold(gold.name)
        last = last_commit(table) if table.exists else None
        if last is None:
            return f"{table.name} is new"
        if changed_definition(last, gold):
            return f"{table.name} has another definition now"
        stored = run.spark.read.format("delta").load(str(table.path)).schema
        wanted = gold_schema(run.spark, run.pipeline, gold)
        found = differences(stored, wanted, gold_freedom(run.pipeline))
        if any(one.verdict == "refused" for one in found):
            return f"{table.name} has other columns now"
        positions.add((last.batch, position(last, "silver")))
    if len(positions) > 1:
        return "its tables stand at different batches"
    _, reached = positions.pop() if positions else (0, BEGINNING)
    return f"{silver.name} was rewritten" if rewritten_after(silver, reached) is not None else ""


def rebuild_gold(run: Run, silver: Table, version: int, generation: str) -> None:
    """Replace every gold table of the pipeline by its aggregate over one version of silver."""
    events = run.spark.read.format("delta").option("versionAsOf", version).load(str(silver.path))
    until = (version + 1, -1)
    mark = consumed_watermark(silver, until)
    rows = events.count()
    for gold in run.pipeline.gold:
        eligible = events.where(gold.where) if gold.where else events
        note = {
            "pipeline": run.pipeline.name,
            "hop": "gold",
            "generation": generation,
            "batch": FIRST,
            REBUILT: True,
            "rows": rows,
            "eligible": eligible.agg(F.count("*")).collect()[0][0],
            "until": {"silver": list(until)},
            **final_note(gold, mark, run.pipeline.watermark.allowed_lateness),
            **definition_note(gold),
        }
        made = gold_columns(aggregate(events, gold), gold, generation=generation, batch=FIRST)
        append(made, run.lake.gold(gold.name), note, surely_filled=False, replaces=True)
