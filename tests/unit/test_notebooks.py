"""The notebooks on a lake that lacks what they look for."""

from __future__ import annotations

import runpy
from pathlib import Path
from unittest import mock

import duckdb
import pandas as pd
import pytest

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


def _play_incident(**quarantined: str) -> mock.MagicMock:
    """Run the notebook on two accepted rows and one in quarantine, if any; return its lake."""
    store = duckdb.connect()
    store.execute("CREATE SCHEMA bronze; CREATE SCHEMA silver")
    for name in ("bronze.clickstream", "silver.clickstream", "silver.clickstream__quarantine"):
        store.execute(f"CREATE TABLE {name} (event_id TEXT, record_id TEXT, stage TEXT)")
    for name in ("bronze.clickstream", "silver.clickstream"):
        store.execute(f"INSERT INTO {name} VALUES ('e1', 'r1', NULL), ('e2', 'r2', NULL)")
    for stage, at in quarantined.items():
        row = f"('e{at}', 'r{at}', '{stage}')"
        store.execute(f"INSERT INTO silver.clickstream__quarantine VALUES {row}")
    lake = mock.MagicMock()
    lake.ask.side_effect = lambda sql: store.execute(sql).df()
    columns = ["record_id", "state", "stage", "reasons", "payload"]
    lake.fate.return_value = pd.DataFrame(columns=columns)
    with mock.patch("tidelake.lakehouse.open_lakehouse", return_value=lake):
        runpy.run_path(str(NOTEBOOKS / "incident.py"))
    return lake


def test_the_incidents_notebook_takes_any_row_where_nothing_is_wrong() -> None:
    lake = _play_incident()

    (event, record) = lake.fate.call_args_list
    assert event.kwargs["event_id"] in ("e1", "e2")
    assert record.kwargs["record_id"] in ("r1", "r2")


def test_the_incidents_notebook_prefers_a_conflict_and_a_broken_line() -> None:
    lake = _play_incident(conflicting_duplicate="7", parse="8")

    assert [one.kwargs for one in lake.fate.call_args_list] == [
        {"event_id": "e7"},
        {"record_id": "r8"},
    ]
    assert lake.counted.call_args.kwargs == {"event_id": "e7"}


@pytest.mark.parametrize("name", [file.name for file in sorted(NOTEBOOKS.glob("*.py"))])
def test_a_notebook_says_how_it_runs_on_databricks(name: str) -> None:
    first = (NOTEBOOKS / name).read_text(encoding="utf-8").split("# COMMAND ----------")[0]

    assert "`%pip install`" in first
    assert 'open_lakehouse(env="prod")' in first
