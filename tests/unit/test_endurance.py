"""The long run's records have the fates they are made for, and its oracle finds what is wrong."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import duckdb
import pyarrow.parquet as pq
import pytest
from benchmarks.endurance.oracle import judge
from benchmarks.endurance.page import written
from benchmarks.endurance.stream import SCHEMA, SHARES, Stream
from deltalake import write_deltalake

from tests.oracles.clickstream import fates

_RECORDS, _PROMOTED = 4_000, 2_500
_GOLD: list[dict[str, Any]] = [
    {
        "name": "totals",
        "window": {"kind": "global"},
        "keys": ["campaign"],
        "measures": {"events": {"count": "*"}, "value": {"sum": "value"}},
    }
]
# The verdict of the clickstream's oracle, which knows neither watermarks nor the time of arrival.
_VERDICTS = {
    "fresh": "accepted",
    "out of order": "accepted",
    "too late": "accepted",
    "future": "accepted",
    "copy": "duplicate",
    "old copy": "duplicate",
    "conflict": "conflicting",
    "parse": "malformed",
    "contract": "contract",
    "expectation": "expectation",
    "filtered": "filtered",
}
_ROW = (
    "payload->>'event_id' AS event_id, payload->>'user_id' AS user_id, "
    "CAST(payload->>'event_time' AS TIMESTAMPTZ) AS event_time, payload->>'action' AS action, "
    "payload->>'product_id' AS product_id, CAST(payload->>'value' AS DECIMAL(18,2)) AS value, "
    "payload->>'campaign' AS campaign FROM sent"
)
_IS_SILVER = (
    f"WHERE kind IN ('fresh', 'out of order') OR (kind = 'too late' AND number < {_PROMOTED})"
)
_TABLES = {
    "bronze/clickstream": "SELECT CAST(encode(payload) AS BLOB) AS payload FROM sent",
    "silver/clickstream": f"SELECT {_ROW} {_IS_SILVER}",
    "silver/clickstream__late": (
        f"SELECT payload->>'event_id' AS event_id FROM sent "
        f"WHERE kind = 'too late' AND number >= {_PROMOTED}"
    ),
    "silver/clickstream__quarantine": (
        "SELECT CASE kind WHEN 'future' THEN 'future_event_time' "
        "WHEN 'conflict' THEN 'conflicting_duplicate' ELSE kind END AS stage FROM sent "
        "WHERE kind IN ('parse', 'contract', 'expectation', 'future', 'conflict')"
    ),
    "gold/totals": (
        "SELECT campaign, count(*) AS events, sum(value) AS value "
        f"FROM (SELECT {_ROW} {_IS_SILVER}) GROUP BY ALL"
    ),
}


@pytest.fixture(scope="module")
def sent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Draw records without a broker, and write them as a run does."""
    file = tmp_path_factory.mktemp("sent") / "sent.parquet"
    stream, chance = Stream("", "", 1, file, 0, too_late=True), random.Random(7)
    with pq.ParquetWriter(file, SCHEMA) as writer:
        for number in range(_RECORDS):
            stream.campaigns = number > _RECORDS // 3
            stream.draw(chance)
        stream.write(writer)
    return file


@pytest.fixture
def right(sent: Path, tmp_path: Path) -> Path:
    """Write the tables as they should be."""
    for table, sql in _TABLES.items():
        _write(tmp_path / table, sent, sql)
    return tmp_path


def _write(table: Path, sent: Path, sql: str) -> None:
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute(f"CREATE VIEW sent AS SELECT * FROM read_parquet('{sent}')")
        write_deltalake(str(table), connection.sql(sql).arrow(), mode="overwrite")


def _judged(root: Path, sent: Path) -> dict[str, Any]:
    return judge(root, sent, "clickstream", _GOLD, _PROMOTED)


def test_records_have_the_fate_that_they_are_made_for(sent: Path) -> None:
    rows = pq.read_table(sent).to_pylist()
    kinds = Counter(row["kind"] for row in rows)
    assert kinds.keys() == {"fresh", *SHARES}
    found = fates([row["payload"].encode() for row in rows])
    wrong = [
        (row, fate.verdict)
        for row, fate in zip(rows, found, strict=True)
        if fate.verdict != _VERDICTS[row["kind"]]
    ]
    assert wrong == []


def test_tables_that_are_right_are_found_so(right: Path, sent: Path) -> None:
    judged = _judged(right, sent)
    assert (judged["lost"], judged["doubled"], judged["different"]) == (0, 0, 0)
    expected = judged["expected"]
    fates_of = ("silver", "duplicates", "late", "filtered", "quarantined")
    assert sum(expected[name] for name in fates_of) == expected["bronze"] == _RECORDS


@pytest.mark.parametrize(
    "table",
    [
        pytest.param(
            name, marks=[] if name.startswith("silver/clickstream__q") else pytest.mark.long
        )
        for name in _TABLES
    ],
)
def test_a_row_that_is_lost_or_doubled_is_found_in_each_table(
    right: Path, sent: Path, table: str
) -> None:
    name = table.replace("/", ".").removesuffix(".clickstream").rpartition("__")[2]
    _write(right / table, sent, f"FROM ({_TABLES[table]}) OFFSET 1")
    judged = _judged(right, sent)
    assert (judged["lost"], judged["doubled"]) == (1, 0)
    assert judged["tables"][name]["lost"] == 1
    _write(right / table, sent, f"{_TABLES[table]} UNION ALL (FROM ({_TABLES[table]}) LIMIT 1)")
    judged = _judged(right, sent)
    assert (judged["lost"], judged["doubled"]) == (0, 1)
    assert judged["tables"][name]["doubled"] == 1


def test_a_value_that_is_not_what_was_sent_is_found(right: Path, sent: Path) -> None:
    changed = "SELECT * REPLACE (if(event_id = 'e0', 'other', user_id) AS user_id)"
    _write(right / "silver/clickstream", sent, f"{changed} FROM ({_TABLES['silver/clickstream']})")
    assert _judged(right, sent)["different"] == 1


def _report(**more: Any) -> dict[str, Any]:
    """Make up the report of a run of ten minutes with one kill in its middle."""
    life = {"started": 0, "ended": 300, "how": "killed", "planned": ["gold"], "committed": []}
    first = {"bronze.clicks": 20.0, "gold.totals": 31.0}
    files = {"bronze.clicks": [5, 9], "gold.totals": [3, 4]}
    sample = {"java": 900.0, "python": 99.0, "files": files, "checkpoints": 2e6}
    return {
        "setting": {
            "minutes": 10,
            "records a second": 200,
            "seconds between kills": 300,
            "heap": "2g",
            "of a thousand records": {"copy": 60},
        },
        "machine": {"cores": 2, "memory_gb": 8, "system": "Linux", "python": "3", "commit": "abc"},
        "at": "2026-01-05T10:00:00",
        "began": 0,
        "sent": 120_000,
        "forgotten": 90_000,
        "marks": [{"minutes": 5.1, "mark": "field", "what": "the events have a new field"}],
        "lives": [
            life | {"first_commit": first},
            {"started": 301, "ended": 600, "how": "stopped", "first_commit": first},
        ],
        "batches": {"bronze.clicks": 90, "silver.clicks": 80, "gold.totals": 70},
        "operations": {"bronze.clicks": {"WRITE": 90, "OPTIMIZE": 2}, "gold.totals": {"MERGE": 70}},
        "upkeep": [[{"table": "bronze.clicks", "files before": 9, "files": 5, "deleted": 4}]],
        "oracle": {"lost": 0, "doubled": 0, "different": 0},
        "ledger": {"balanced": True},
        "verify": {"equal": True},
        "samples": [
            sample | {"at": 10 * n, "lag": {"bronze": 5, "silver": None if n else 1, "gold": n}}
            for n in range(61)
        ],
        "heap": [[10.0 * n, 400.0] for n in range(60)],
        "progress": [[hop, 60.0 * n, 1.5, 300] for n in range(10) for hop in ("bronze", "gold")],
        "problems": [],
    } | more


def test_the_page_shows_the_table_and_plots_of_a_report(tmp_path: Path) -> None:
    report = tmp_path / "endurance.json"
    report.write_text(json.dumps(_report()))
    page = written(report, tmp_path / "docs").read_text()
    for row in (
        "| records sent | 120,000 |",
        "| kills | 1 |",
        "| seconds from a start after a kill to gold's first commit | 31 (31 to 31) |",
        "| batches: bronze, silver, gold | 90, 80, 70 |",
        "| batches that a kill interrupted, each tried again | 1, 0 of them committed already |",
        "| compactions | 2 in 1 tables |",
        "| files deleted by `maintain` | 4 |",
        "| records that the topic forgot meanwhile | 90,000 |",
        "| lost | **0** |",
        "| verify | equal |",
        "| memory of the run, first and last twelfth, MB | 999 → 999 |",
        "| data files, first and last twelfth | 8 → 8 |",
    ):
        assert row in page, page
    assert "- minute 5: the events have a new field" in page
    assert "problems" not in page
    pictures = sorted((tmp_path / "docs" / "endurance").glob("*.svg"))
    assert len(pictures) == 6
    for picture in pictures:
        assert f"(endurance/{picture.name})" in page
        # The kill is a dashed line in each.
        assert "stroke-dasharray" in picture.read_text()
        ElementTree.parse(picture)


def test_the_page_says_what_was_wrong(tmp_path: Path) -> None:
    report = tmp_path / "endurance.json"
    wrong = {"oracle": {"lost": 3, "doubled": 0, "different": 0}, "problems": ["3 rows are lost"]}
    report.write_text(json.dumps(_report(**wrong)))
    page = written(report, tmp_path / "docs").read_text()
    assert "| lost | **3** |" in page
    assert "| **problems** | 3 rows are lost |" in page
