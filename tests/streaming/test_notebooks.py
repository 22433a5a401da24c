"""The notebooks hold no logic and run; what the dictionary says of a lake is true of it."""

from __future__ import annotations

import ast
import json
import runpy
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.running import run, versions
from tidelake.config import Environment, Pipeline, load_environment, load_pipeline
from tidelake.config.meanings import TableEntry, entries_of
from tidelake.delta.tables import Lake
from tidelake.examples import generate
from tidelake.lakehouse import open_lakehouse
from tidelake.ledger.query import ask, ask_for_user
from tidelake.ledger.terms import read_ledger
from tidelake.replay.fate import fates_of

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.py"))
_EVENTS = 2000


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return load_environment("local", root=str(tmp_path_factory.mktemp("notebooks") / "lake"))


@pytest.fixture(scope="module")
def pipeline(spark: SparkSession, environment: Environment) -> Pipeline:
    """Give the reference pipeline, run once over a small stream."""
    assert environment.root is not None
    landing = environment.root / "landing"
    for name in ("products", "clickstream"):
        generate(name, landing / name, events=_EVENTS, seed=1)
        run(spark, environment, load_pipeline(name, environment))
    return load_pipeline("clickstream", environment)


@pytest.fixture(scope="module")
def lake(environment: Environment, pipeline: Pipeline) -> Lake:
    assert environment.root is not None
    return Lake(environment.root)


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
    lake: Lake, pipeline: Pipeline, environment: Environment
) -> None:
    products = load_pipeline("products", environment)
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


def test_every_example_of_the_dictionary_runs(
    lake: Lake, pipeline: Pipeline, environment: Environment
) -> None:
    products = load_pipeline("products", environment)
    for entry in (*entries_of(pipeline), *entries_of(products)):
        answer = ask(lake, entry.example)
        assert answer.columns
        assert answer.rows or "__" in entry.table, entry.table


def test_a_frame_has_numbers_that_plots_take(lake: Lake) -> None:
    house = open_lakehouse(str(lake.root))
    frame = house.ask("SELECT product_id, events, revenue FROM gold.product_totals")

    assert str(frame["revenue"].dtype) == "float64"
    assert frame["events"].sum() == house.books("clickstream").set_index("term")["rows"]["silver"]
