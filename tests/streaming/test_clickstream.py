"""The clickstream, whole: generated files through real Delta tables, against the oracle.

What the dictionary says of such a lake is true of it, and the notebooks play on it.
"""

from __future__ import annotations

import ast
import json
import runpy
import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.comparing import assert_gold_equals_oracle
from tests.oracles import clickstream as oracle
from tests.running import clickstream, place_of, read, run, versions
from tidelake.config import Environment, Limits, Pipeline, load_environment, load_pipeline
from tidelake.config.descriptions import TableEntry, entries_of
from tidelake.delta.merge import compact
from tidelake.delta.tables import Lake
from tidelake.examples import generate
from tidelake.lakehouse import open_lakehouse
from tidelake.ledger.query import ask, ask_for_user
from tidelake.ledger.terms import read_ledger
from tidelake.ops.status import read_status
from tidelake.replay.fate import fates_of

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.py"))
_EVENTS = 6_000
_STAGES = {
    "malformed": "parse",
    "contract": "contract",
    "expectation": "expectation",
    "future": "future_event_time",
    "conflicting": "conflicting_duplicate",
}


@dataclass(frozen=True)
class World:
    """A finished run and what the oracle says of it."""

    environment: Environment
    pipeline: Pipeline
    lake: Lake
    lines: list[bytes]
    fates: list[oracle.Fate]
    places: dict[tuple[str, int], int]
    log: list[str]

    def positions(self, table: str) -> list[int]:
        """Give the input positions of a table's rows."""
        return sorted(self.places[place_of(row[0])] for row in read(self.lake, table, "record_id"))

    def expected(self, *verdicts: str) -> list[int]:
        """Give the positions that the oracle gives these verdicts."""
        return [fate.position for fate in self.fates if fate.verdict in verdicts]


@pytest.fixture(scope="module")
def world(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> World:
    """Generate a stream with every kind of trouble and run it in several batches."""
    base = tmp_path_factory.mktemp("clickstream")
    landing = base / "lake" / "landing" / "clickstream"
    generate("clickstream", landing, events=_EVENTS, seed=3)
    generate("products", landing.with_name("products"), events=2_000, seed=1)
    # Several batches of silver, and few of gold, which has six tables to merge into.
    limits = {"limits": Limits(silver_bytes="1k", gold_bytes="256k")}
    environment = load_environment("local", root=str(base / "lake")).model_copy(update=limits)
    run(spark, environment, load_pipeline("products", environment))
    pipeline = clickstream(environment, landing)
    log = run(spark, environment, pipeline)
    assert environment.root is not None
    lake = Lake(environment.root)

    lines: list[bytes] = []
    places: dict[tuple[str, int], int] = {}
    for file in sorted(landing.iterdir()):
        for number, line in enumerate(file.read_bytes().split(b"\n")[:-1]):
            places[file.name, number] = len(lines)
            lines.append(line)
    # Watermarks follow from batches, which the oracle does not know; the tables say who was late.
    late = [places[place_of(row[0])] for row in read(lake, "silver.clickstream__late", "record_id")]
    return World(
        environment, pipeline, lake, lines, oracle.fates(lines, too_late=late), places, log
    )


def test_bronze_holds_every_line_verbatim(world: World) -> None:
    rows = read(world.lake, "bronze.clickstream", "record_id, payload")
    found = {world.places[place_of(record)]: bytes(payload) for record, payload in rows}
    assert [found[position] for position in range(len(world.lines))] == world.lines


def test_silver_holds_exactly_the_accepted_events(world: World) -> None:
    assert world.positions("silver.clickstream") == world.expected("accepted")


def test_silver_holds_the_values_as_they_were_written(world: World) -> None:
    columns = ("event_id", "event_time", "user_id", "action", "product_id", "value")
    expected = [
        tuple(fate.event[name] for name in columns)
        for fate in world.fates
        if fate.verdict == "accepted" and fate.event is not None
    ]
    assert read(world.lake, "silver.clickstream", ", ".join(columns)) == sorted(expected, key=repr)


def test_quarantine_holds_each_broken_line_verbatim_with_its_stage(world: World) -> None:
    rows = read(world.lake, "silver.clickstream__quarantine", "record_id, payload, stage, reasons")
    found = {
        world.places[place_of(record)]: (bytes(payload), stage)
        for record, payload, stage, _ in rows
    }
    expected = {
        fate.position: (world.lines[fate.position], _STAGES[fate.verdict])
        for fate in world.fates
        if fate.verdict in _STAGES
    }
    assert found == expected
    assert all(reasons for *_, reasons in rows)


def test_late_rows_lie_beyond_the_allowed_lateness_of_their_watermark(world: World) -> None:
    rows = read(world.lake, "silver.clickstream__late", "event_time, watermark, lateness_seconds")
    assert rows, "the stream was to hold events that come too late"
    for event_time, watermark, lateness in rows:
        assert lateness == pytest.approx((watermark - event_time).total_seconds())
        assert lateness > world.pipeline.watermark.allowed_lateness.total_seconds()


def test_late_but_allowed_events_are_marked_in_silver(world: World) -> None:
    assert Counter(row[0] for row in read(world.lake, "silver.clickstream", "is_late"))[True] > 0


def test_gold_equals_a_recomputation_over_the_accepted_events(world: World) -> None:
    accepted = [fate.event for fate in world.fates if fate.verdict == "accepted" and fate.event]
    assert_gold_equals_oracle(world.lake, accepted)


def test_the_books_balance_and_agree_with_the_oracle(world: World) -> None:
    told = read_ledger(world.lake, world.pipeline).to_json()
    assert told["balanced"]
    assert told["source"] == told["bronze"] == len(world.lines)
    assert told["silver"] == len(world.expected("accepted"))
    assert told["duplicates"] == len(world.expected("duplicate"))
    assert told["quarantined"] == len(world.expected(*_STAGES))
    assert told["late"] == len(world.expected("late"))
    assert told["filtered"] == len(world.expected("filtered"))
    files = told["source_files"]
    assert files["offered"] == files["taken"] == 20
    assert (
        files["bytes_offered"] == files["bytes_taken"] == sum(len(line) + 1 for line in world.lines)
    )


def test_status_says_that_nothing_waits(world: World) -> None:
    status = read_status(world.lake, world.pipeline)
    assert [hop.waiting for hop in status.hops] == [0, 0, 0]
    assert status.watermark is not None


def test_progress_tells_hop_batch_rows_and_watermark(world: World) -> None:
    assert len([line for line in world.log if line.startswith("silver")]) >= 4
    assert any("watermark 2026-01-0" in line for line in world.log)


@pytest.mark.long
def test_a_second_run_adds_nothing_and_a_new_file_adds_exactly_its_events(
    spark: SparkSession, world: World, tmp_path: Path
) -> None:
    lake = Lake(tmp_path / "lake")
    shutil.copytree(world.lake.root, lake.root, ignore=shutil.ignore_patterns("landing"))
    environment = world.environment.model_copy(update={"root": lake.root})
    # Files that were put together bring no row, and no batch.
    for table in (lake.bronze("clickstream"), lake.silver("clickstream")):
        compact(spark, table)
    before = versions(lake)
    lines = run(spark, environment, world.pipeline)
    assert [line for line in lines if "does not exist yet" not in line] == []
    # But for the epoch, which names the new versions.
    after = versions(lake)
    assert {**after, "ops.epochs": 0} == {**before, "ops.epochs": 0}

    landing = Path(world.pipeline.source.path)  # type: ignore[union-attr]
    copy = world.lines[world.expected("accepted")[-1]]
    fresh = copy.replace(b'"event_id": "', b'"event_id": "new-').replace(
        b'"event_id":"', b'"event_id":"new-'
    )
    (landing / "zz-more.jsonl").write_bytes(fresh + b"\n" + copy + b"\n")
    ledger = read_ledger(lake, world.pipeline).to_json()
    run(spark, environment, world.pipeline)
    grown = read_ledger(lake, world.pipeline).to_json()
    assert grown["bronze"] - ledger["bronze"] == 2
    assert grown["silver"] - ledger["silver"] == 1
    assert grown["duplicates"] - ledger["duplicates"] == 1
    assert grown["balanced"]


@pytest.fixture
def lake(world: World) -> Lake:
    return world.lake


@pytest.fixture
def pipeline(world: World) -> Pipeline:
    return world.pipeline


@pytest.fixture
def at_home(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let notebooks find the lake, and draw nowhere."""
    monkeypatch.setenv("TIDELAKE_ROOT", str(lake.root))
    monkeypatch.setenv("MPLBACKEND", "Agg")


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_a_notebook_imports_and_defines_nothing(notebook: Path) -> None:
    source = notebook.read_text(encoding="utf-8")
    nodes = list(ast.walk(ast.parse(source)))

    assert source.startswith("# Databricks notebook source\n")
    assert "# COMMAND ----------" in source
    assert "# MAGIC %md" in source
    logic = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda, ast.For, ast.While)
    assert not [ast.unparse(node) for node in nodes if isinstance(node, (*logic, ast.If))]
    assert [node for node in nodes if isinstance(node, ast.ImportFrom)]
    # On a catalog a statement is in Spark's dialect, which has no such function.
    assert "epoch(" not in source


def _play(name: str) -> dict[str, Any]:
    (notebook,) = (one for one in NOTEBOOKS if one.stem == name)
    return runpy.run_path(str(notebook))


@pytest.mark.usefixtures("at_home")
def test_the_analysts_notebook_draws_a_picture_of_each_question() -> None:
    import matplotlib.pyplot as plt  # noqa: PLC0415  picks its backend when imported

    plt.close("all")
    played = _play("analyst")

    titles = [plt.figure(number).axes[0].get_title() for number in plt.get_fignums()]
    plt.close("all")
    assert titles == [
        "Actions an hour (UTC)",
        "Length of visits with more than one action",
        "Revenue",
        "From click to purchase",
    ]
    assert set(played["by_hour"].columns) == {"view", "click", "add_to_cart", "purchase"}
    assert (played["revenue"]["revenue"] > 0).any()


@pytest.mark.long
@pytest.mark.usefixtures("at_home")
def test_the_incidents_notebook_follows_an_event_from_the_source_to_gold() -> None:
    played = _play("incident")

    books = dict(played["books"].itertuples(index=False))
    assert books["bronze"] == _EVENTS
    assert set(played["records"]["state"]) >= {"silver", "quarantined"}
    assert "gold.user_sessions" in set(played["counted"]["table"])
    assert played["verdict"]["equal"].all()


@pytest.mark.usefixtures("at_home")
@pytest.mark.long
def test_the_backfills_notebook_ends_where_it_began(lake: Lake) -> None:
    before = versions(lake)
    played = _play("backfill_walkthrough")

    assert played["changes"]["equal"].all()
    assert played["after"].equals(played["before"])
    assert played["restored"].equals(played["before"])
    assert versions(lake) != before


def test_each_record_has_the_fate_that_the_books_count(lake: Lake, pipeline: Pipeline) -> None:
    told = read_ledger(lake, pipeline).to_json()
    beside = ask_for_user(
        lake,
        "SELECT record_id FROM bronze.clickstream WHERE record_id NOT IN "
        "(SELECT record_id FROM silver.clickstream) ORDER BY hash(record_id) LIMIT 12",
    )
    states = [fates_of(lake, pipeline, record_id=record)[0].state for (record,) in beside.rows]
    assert set(states) <= {"duplicate", "quarantined", "filtered", "late"}
    assert told["duplicates"] and "duplicate" in states


def test_an_accepted_event_counts_in_the_rows_that_hold_it(lake: Lake, pipeline: Pipeline) -> None:
    event_id, user, when = ask_for_user(
        lake,
        "SELECT event_id, user_id, event_time FROM silver.clickstream "
        "WHERE action = 'click' AND category IS NOT NULL ORDER BY event_id LIMIT 1",
    ).rows[0]
    accepted = next(f for f in fates_of(lake, pipeline, event_id=event_id) if f.state == "silver")
    found = {one.table: one for one in accepted.counted}
    assert list(found) == [f"gold.{name.name}" for name in (*pipeline.gold, *pipeline.joins)]
    assert {one.verdict for one in found.values()} == {"counts"}
    (session,) = found["gold.user_sessions"].rows
    assert session["user_id"] == user
    assert session["session_start"] <= when <= session["session_end"]
    assert len(found["gold.action_activity_5m"].rows) == 5
    (click,) = found["gold.click_to_purchase"].rows
    assert click["clicked_at"] == when


def test_what_the_dictionary_says_of_columns_and_types_is_what_is_stored(
    lake: Lake, pipeline: Pipeline, world: World
) -> None:
    products = load_pipeline("products", world.environment)
    for entry in (*entries_of(pipeline), *entries_of(products)):
        stored = _stored(lake, entry)
        assert {c.name: c.type for c in entry.columns} == stored, entry.table
        assert all(column.meaning for column in entry.columns), entry.table


def _stored(lake: Lake, entry: TableEntry) -> dict[str, str]:
    """Read the schema that a table was made with, in DDL, without the system's own columns."""
    first = lake.table(entry.table).path / "_delta_log" / f"{0:020}.json"
    actions = [json.loads(line) for line in first.read_text(encoding="utf-8").splitlines()]
    (made,) = (action["metaData"] for action in actions if "metaData" in action)
    fields = json.loads(made["schemaString"])["fields"]
    return {f["name"]: _ddl(f["type"]) for f in fields if not f["name"].startswith("_")}


def _ddl(kind: Any) -> str:
    if isinstance(kind, str):
        return {"long": "BIGINT", "integer": "INT"}.get(kind, kind.upper())
    if kind["type"] == "array":
        return f"ARRAY<{_ddl(kind['elementType'])}>"
    inner = ", ".join(f"{field['name']}: {_ddl(field['type'])}" for field in kind["fields"])
    return f"STRUCT<{inner}>"


def test_every_example_of_the_dictionary_runs(lake: Lake, pipeline: Pipeline, world: World) -> None:
    products = load_pipeline("products", world.environment)
    for entry in (*entries_of(pipeline), *entries_of(products)):
        answer = ask(lake, entry.example)
        assert answer.columns
        assert answer.rows or "__" in entry.table, entry.table


def test_a_frame_has_numbers_that_plots_take(lake: Lake) -> None:
    house = open_lakehouse(str(lake.root))
    frame = house.ask("SELECT product_id, events, revenue FROM gold.product_totals")

    assert str(frame["revenue"].dtype) == "float64"
    assert frame["events"].sum() == house.books("clickstream").set_index("term")["rows"]["silver"]
