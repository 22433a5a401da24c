"""One ``run --select``: members of one file, their dimension, and one whose folder is missing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.test_many_pipelines import ITEMS, ORDERS, single, write
from tidelake.config import Environment, load_pipeline
from tidelake.delta.tables import lake_of
from tidelake.ledger.query import ask_for_user
from tidelake.ledger.terms import read_ledger


@pytest.mark.long
def test_a_selection_runs_inputs_first_and_a_failure_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder, root = tmp_path / "conf" / "pipelines", tmp_path / "lake"
    folder.mkdir(parents=True)
    enrich = [{"dimension": "items", "on": {"user_id": "item"}, "columns": ["category"]}]
    write(folder / "orders.yml", {**ORDERS, "enrich": enrich})
    write(folder / "items.yml", ITEMS)
    write(folder / "orders_lost.yml", single("orders_lost"))
    order = '{"event_id": "%s", "event_time": "2024-01-01T00:00:00Z", "user_id": "u"}\n'
    item = '{"item": "u", "n": 1, "at": "2023-01-01T00:00:00Z", "category": "c"}\n'
    lines = {"landing/orders-de": order % "a", "landing/o-at": order % "b", "items": item}
    for place, line in lines.items():
        (root / place).mkdir(parents=True)
        (root / place / "1.jsonl").write_text(line)
    command = [sys.executable, "-m", "tidelake.cli", "run", "--select", "orders_*", "--json"]
    ran = subprocess.run(
        [*command, "--root", str(root)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ,
        timeout=600,
    )
    assert ran.returncode == 2, ran.stderr
    assert ran.stderr.count("Starting Spark") == 1
    outcomes = {one["pipeline"]: one["outcome"] for one in json.loads(ran.stdout)["pipelines"]}
    assert next(iter(outcomes)) == "items"
    assert outcomes == {
        "items": "done",
        "orders_at": "done",
        "orders_de": "done",
        "orders_lost": "failed",
    }
    environment = Environment(name="local", root=root)
    lake = lake_of(environment)
    for name in ("orders_de", "orders_at"):
        assert read_ledger(lake, load_pipeline(name, environment)).problems == ()
        found = ask_for_user(lake, f"SELECT user_id, events FROM gold.{name}_total")
        assert list(found.rows) == [("u", 1)]
        found = ask_for_user(lake, f"SELECT category FROM silver.{name}")
        assert list(found.rows) == [("c",)]
