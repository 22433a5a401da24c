"""Break tables in ten ways, and want ``tidelake verify`` to find each by its name.

Usage: python -m tests.recovery.break_tables [EVENTS]
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from delta.tables import DeltaTable
from pyspark.sql import DataFrame

from tidelake.cli.exits import say
from tidelake.cli.render import print_table
from tidelake.config import Environment, Pipeline, load_environment, load_pipeline
from tidelake.delta.tables import HOPS, Lake
from tidelake.examples import generate
from tidelake.replay.verify import verify
from tidelake.runtime.hop import Run
from tidelake.runtime.progress import Progress
from tidelake.runtime.runner import run_hops
from tidelake.runtime.triggers import AVAILABLE_NOW, parse_trigger
from tidelake.spark.session import build_session

_NAME = "clickstream"
_LATE = {
    "event_id": "late",
    "user_id": "u00001",
    "event_time": "2026-01-05T00:00:01.000Z",
    "action": "click",
    "product_id": "p0000",
    "value": None,
}
Damage = Callable[[DeltaTable, DataFrame], None]


@dataclass(frozen=True)
class Break:
    """One way to break a table.

    Attributes:
        told: What is done, in words.
        table: Where.
        kind: How it must show.
        damage: Does it, to the stored table and one of its rows.
    """

    told: str
    table: str
    kind: str
    damage: Damage


def _delete(stored: DeltaTable, one: DataFrame) -> None:
    stored.alias("t").merge(one.alias("s"), _same(one)).whenMatchedDelete().execute()


def _double(stored: DeltaTable, one: DataFrame) -> None:
    path = stored.detail().select("location").collect()[0][0]
    one.write.format("delta").mode("append").save(path)


def _set(column: str, sql: str) -> Damage:
    """Give what sets a column of the row to SQL over its values, ``t``."""

    def damage(stored: DeltaTable, one: DataFrame) -> None:
        merge = stored.alias("t").merge(one.alias("s"), _same(one))
        merge.whenMatchedUpdate(set={column: sql}).execute()

    return damage


def _same(one: DataFrame) -> str:
    """Find a row by its record, or by its window and key."""
    names = ["record_id"] if "record_id" in one.columns else ["window_start", "user_id"]
    return " AND ".join(f"t.{name} = s.{name}" for name in names)


_SILVER, _GOLD = f"silver.{_NAME}", "gold.user_activity_1m"
BREAKS = (
    Break("an event is deleted", _SILVER, "missing", _delete),
    Break("an event is there twice", _SILVER, "doubled", _double),
    Break(
        "an event moves by a millisecond",
        _SILVER,
        "altered",
        _set("event_time", "t.event_time + INTERVAL 1 MILLISECOND"),
    ),
    Break("a verdict on lateness is turned", _SILVER, "altered", _set("is_late", "NOT t.is_late")),
    Break("a quarantined row is deleted", f"{_SILVER}__quarantine", "missing", _delete),
    Break("a late event is deleted", f"{_SILVER}__late", "missing", _delete),
    Break(
        "a payload loses its last byte",
        f"bronze.{_NAME}",
        "altered",
        _set("payload", "substring(t.payload, 1, length(t.payload) - 1)"),
    ),
    Break("a record is deleted", f"bronze.{_NAME}", "missing", _delete),
    Break("a window counts one too many", _GOLD, "altered", _set("events", "t.events + 1")),
    Break("a session is there twice", "gold.user_sessions", "doubled", _double),
)


def main(events: int = 5_000) -> int:
    """Fill tables, break a copy of them in each way, and print what verification says.

    Returns:
        0 when each was found, otherwise 3.
    """
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "whole"
        environment = load_environment("local", root=str(whole))
        spark = build_session(environment)
        try:
            for pipeline in _pipelines(Path(folder), environment, events):
                filled = Run(spark, pipeline, Lake(whole), environment, Progress(say))
                run_hops(filled, HOPS, parse_trigger(AVAILABLE_NOW))
            # Of the stream's beginning, and after its end.
            (Path(folder) / "landing" / _NAME / "late.jsonl").write_text(json.dumps(_LATE) + "\n")
            run_hops(filled, HOPS, parse_trigger(AVAILABLE_NOW))
            untouched = verify(filled).equal
            say(f"Tables of {events:,} events: {'equal' if untouched else 'NOT EQUAL'}")
            rows = [_tried(filled, whole, Path(folder) / "broken", one) for one in BREAKS]
        finally:
            spark.stop()
    print_table(["", "what was done", "where", "verify says", "of"], rows)
    found = sum(row[0] == "ok" for row in rows)
    say(f"{found} of {len(rows)} found")
    return 0 if untouched and found == len(rows) else 3


def _pipelines(folder: Path, environment: Environment, events: int) -> list[Pipeline]:
    """Write the stream of each pipeline, and give them: the dimensions first."""
    landing = folder / "landing"
    definition = load_pipeline(_NAME, environment, source=str(landing / _NAME))
    found = []
    for one in (*definition.dimensions.values(), definition):
        generate(one.name, landing / one.name, events=events if one == definition else 0, seed=1)
        found.append(load_pipeline(one.name, environment, source=str(landing / one.name)))
    return found


def _tried(filled: Run, whole: Path, copy: Path, way: Break) -> list[str]:
    """Break a copy of the tables, and say what verification found."""
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(whole, copy)
    broken = replace(filled, lake=Lake(copy), progress=Progress(lambda _: None))
    path = str(broken.lake.table(way.table).path)
    stored = DeltaTable.forPath(filled.spark, path)
    # Read anew: a merge cannot tell its source from its target by columns of the same ids.
    one = filled.spark.read.format("delta").load(path).limit(1).localCheckpoint()
    way.damage(stored, one)
    # A row that is in no table is missing in silver, wherever it had been.
    verdict = {judged.table.name: judged.comparison for judged in verify(broken).tables}
    told = [*verdict[way.table].differences, *verdict[_SILVER].differences]
    named = [d for d in told if d.kind == way.kind]
    said = sorted(str(d.kind) for d in told) or ["equal"]
    where = (
        ", ".join(f"{k}={str(v).rsplit('/', 1)[-1]}" for k, v in named[0].where.items())
        if named
        else ""
    )
    return ["ok" if named else "!!", way.told, way.table, ", ".join(dict.fromkeys(said)), where]


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
