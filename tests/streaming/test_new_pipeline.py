"""What `tidelake init` writes runs as it stands, and passes the test that it brings along."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.changes import line, postgres, with_schema
from tests.samples import hit, land, order, reading
from tidelake.cli import app
from tidelake.cli.exits import run_command
from tidelake.errors import UsageError
from tidelake.testing import playing

_ROW: list[dict[str, Any]] = [
    {"type": "int64", "field": "id"},
    {"type": "string", "field": "name"},
    {"type": "int64", "name": "io.debezium.time.MicroTimestamp", "field": "seen"},
]


@pytest.mark.parametrize(
    "make",
    [
        order,
        pytest.param(reading, marks=pytest.mark.long),
        pytest.param(hit, marks=pytest.mark.long),
    ],
)
def test_a_new_pipeline_passes_its_own_test(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[[int], dict[str, Any]],
) -> None:
    monkeypatch.chdir(tmp_path)
    land(Path("events/a.jsonl"), [make(n) for n in range(60)])
    assert run_command(app, ["init", "mine", "--source", "events", "--yes"]) == 0
    written = runpy.run_path("tests/test_mine.py")
    tests = [value for name, value in written.items() if name.startswith("test_")]

    with playing() as play:
        played = play(written["PIPELINE"], written["SENT"], tmp_path / "played")
        for test in tests:
            test(played)

        assert len(tests) == 4
        assert played.ask("SELECT count(*) FROM silver.mine") == [(20,)]
        with pytest.raises(UsageError, match="was used by an earlier play"):
            play(written["PIPELINE"], [], tmp_path / "played")
    # A session that was there before is left to its owner.
    assert spark.sql("SELECT 1").count() == 1


@pytest.mark.long
def test_a_new_dimension_of_change_events_passes_its_own_test(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # Each row is created and changed; every third is deleted, with its key alone.
    events = []
    for n in range(18):
        op, key = ("c", "u", "d" if n % 9 == 8 else "u")[n % 3], n // 3
        row = {"id": key, "name": f"n{n}", "seen": 1_767_607_200_000_000}
        gone = {"id": key, "name": None, "seen": None}
        images: dict[str, Any] = {"before": None, "after": row}
        images = {"before": gone, "after": None} if op == "d" else images
        event = postgres(op, at=1_767_607_200_000_000 + n, lsn=n, **images)
        events.append(line(with_schema(event, _ROW)))
    Path("events").mkdir()
    Path("events/a.jsonl").write_bytes(b"\n".join(reversed(events)))
    assert run_command(app, ["init", "mine", "--source", "events", "--yes"]) == 0
    written = runpy.run_path("tests/test_mine.py")

    with playing() as play:
        played = play(written["PIPELINE"], written["SENT"], tmp_path / "played")
        for test in (value for name, value in written.items() if name.startswith("test_")):
            test(played)
        rows = played.ask("SELECT id, name, epoch_us(seen) FROM dim.mine ORDER BY id")

    assert rows == [(key, f"n{3 * key + 2}", 1_767_607_200_000_000) for key in (0, 1, 3, 4)]


@pytest.mark.long
def test_every_way_of_writing_a_time_means_to_spark_what_it_means_to_init(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    written: dict[str, Any] = {
        "iso": "2026-01-05T10:00:00Z",
        "seconds": 1_767_607_200,
        "millis": 1_767_607_200_000,
        "micros": 1_767_607_200_000_000,
        "nanos": 1_767_607_200_000_000_000,
        "fraction": 1_767_607_200.5,
        "text": "1767607200000",
        "apache": "05/Jan/2026:11:00:00 +0100",
        "slashes": "2026/01/05 10:00:00",
        "dots": "05.01.2026 10:00:00",
        "english": "05/01/2026 10:00:00",
        "words": "2026-01-05 10:00:00 UTC",
        "digits": "20260105T100000Z",
        "comma": "2026-01-05 10:00:00,000",
    }
    lines = [{"id": f"e{n}", **{f"{k}_at": v for k, v in written.items()}} for n in range(3)]
    land(Path("events/a.jsonl"), lines)
    assert run_command(app, ["init", "mine", "--source", "events", "--yes"]) == 0

    with playing() as play:
        sent = Path("events/a.jsonl").read_bytes().splitlines()
        played = play("mine", sent, tmp_path / "played")
        columns = ", ".join(f"epoch_ms({name}_at)" for name in written)
        (row,) = played.ask(f"SELECT DISTINCT {columns} FROM silver.mine")

    off = {name: 500 if name == "fraction" else 0 for name in written}
    assert dict(zip(written, row, strict=True)) == {n: 1_767_607_200_000 + off[n] for n in written}


@pytest.mark.long
def test_names_that_sql_or_yaml_would_read_otherwise_keep_their_values(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = ["a.b", "a b", "a`b", "a'b", "größe", "select", "on", "order", "timestamp", "end"]
    names += ["date", "interval", "case", "null", "1st", "# c", "a: b", "*", "is_late", "record_id"]
    lines = [{"id": f"e{n}", "in": {name: n for name in names}} for n in range(3)]
    lines = [line | {name: str(n) for name in names} for n, line in enumerate(lines)]
    land(Path("events/a.jsonl"), lines)
    assert run_command(app, ["init", "odd", "--source", "events", "--yes"]) == 0

    with playing() as play:
        sent = Path("events/a.jsonl").read_bytes().splitlines()
        played = play("odd", sent, tmp_path / "played")
        rows = played.ask("SELECT * EXCLUDE (event_time, _batch) FROM silver.odd ORDER BY event_id")

    assert played.fates == {"silver": 3}
    for number, row in enumerate(rows):
        assert sum(value == str(number) for value in row) == len(names)
        assert sum(value == number for value in row if type(value) is int) == len(names)
