"""Producers and definitions change: the tables follow, or the run stops and nothing is lost."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.running import START, read, versions
from tests.worlds import TO_SILVER, World, world
from tidelake.config import Limits
from tidelake.errors import RefusedError, SchemaChangedError
from tidelake.ledger.terms import read_ledger
from tidelake.replay.backfill import build
from tidelake.replay.backfill_promotion import promote
from tidelake.replay.compatibility import judge_tables, payload_drift
from tidelake.replay.repairing import repair
from tidelake.replay.requeue import Choice, replay_quarantine
from tidelake.replay.verify import verify
from tidelake.spark.engine import with_settings

_SCHEMA = "id STRING, at TIMESTAMP, user STRING, amount INT, price DECIMAL(6,2)"
_BASE: dict[str, Any] = {
    "name": "growing",
    "source": {"kind": "files", "path": "${root}/landing"},
    "event": {"schema": _SCHEMA, "id": "id", "time": "at"},
    "gold": [
        {
            "name": "growing_total",
            "window": {"kind": "global"},
            "keys": ["user"],
            "measures": {"events": {"count": "*"}, "amount": {"sum": "amount"}},
        }
    ],
}
_NOW = START + timedelta(hours=1)


def _line(number: int, **changes: Any) -> bytes:
    """Write an event; a change to ``...`` leaves the field out."""
    event = {
        "id": f"e{number}",
        "at": "2026-01-05T00:30:00Z",
        "user": "u",
        "amount": number,
        "price": "1.50",
    }
    kept = {name: value for name, value in (event | changes).items() if value is not ...}
    return json.dumps(kept).encode()


# What a producer may do to a payload from one day to the next.
_DRIFTS: tuple[dict[str, Any], ...] = (
    {},
    {"channel": "web", "nested": {"a": [1, 2.50]}},
    {"price": ...},
    {"user": ..., "customer": "c"},
    {"amount": 2**40},
    {"amount": 2**40, "CHANNEL": "clash", "a b": 1, "_own": 1, "nothing": None},
    {"channel": 12.30},
)
# After these drifts the pipeline is stopped and started again.
_RESTARTS = (0, 3)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("strict", marks=pytest.mark.long),
        "additive",
        pytest.param("rescue", marks=pytest.mark.long),
    ],
)
def drifted(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> World:
    """Let each drift arrive in a batch of its own, with restarts in between."""
    event = {"evolution": request.param}
    played = world(spark, tmp_path_factory.mktemp(request.param), base=_BASE, event=event)
    # A drift is a batch of silver; gold takes in all of them at once.
    limits = Limits(silver_bytes="1k")
    environment = played.environment.model_copy(update={"limits": limits})
    played = replace(played, environment=environment)
    for number, drift in enumerate(_DRIFTS):
        played.land(f"{number}.jsonl", [_line(number, **drift), _line(100 + number)])
        if number in _RESTARTS:
            played.run(_NOW, hops=TO_SILVER)
    played.run(_NOW)
    return played


def _reasons(played: World) -> dict[str, list[str]]:
    rows = read(played.lake, "silver.growing__quarantine", "event_id, reasons")
    return {name: list(reasons) for name, reasons in rows}


def test_whatever_producers_change_no_row_is_lost(drifted: World) -> None:
    told = read_ledger(drifted.lake, drifted.pipeline).to_json()
    assert told["problems"] == []
    assert told["bronze"] == 2 * len(_DRIFTS)
    assert told["silver"] + told["quarantined"] == told["bronze"]
    assert told["gold"]["growing_total"]["counted"] == told["silver"]
    names = {row[0] for row in read(drifted.lake, "silver.growing", "event_id")}
    assert {f"e{100 + number}" for number in range(len(_DRIFTS))} <= names


def test_what_they_changed_follows_from_bronze(drifted: World) -> None:
    # New columns came, and no late row with them.
    judged = verify(drifted.context)
    assert judged.equal, judged.to_json()


def test_what_the_schema_does_not_know_goes_where_the_definition_says(drifted: World) -> None:
    evolution = drifted.pipeline.event.evolution
    wide = ["amount: not exactly INT"]
    if evolution == "strict":
        strange = [[f"{name}: not in schema" for name in names] for names in _unknown()]
        assert _reasons(drifted) == {
            "e1": strange[0],
            "e3": strange[1],
            "e4": wide,
            "e5": wide + strange[2],
            "e6": strange[3],
        }
        return
    assert _reasons(drifted) == {"e4": wide, "e5": wide}
    if evolution == "additive":
        columns = "event_id, channel, nested, customer"
        assert [row for row in read(drifted.lake, "silver.growing", columns) if any(row[1:])] == [
            ("e1", "web", '{"a":[1,2.5]}', None),
            ("e3", None, None, "c"),
            ("e6", "12.3", None, None),
        ]
        return
    found = read(drifted.lake, "silver.growing", "event_id, _rescued_data")
    assert {name: json.loads(text) for name, text in found if text} == {
        "e1": {"channel": "web", "nested": {"a": [1, 2.5]}},
        "e3": {"customer": "c"},
        "e6": {"channel": 12.3},
    }


def _unknown() -> list[list[str]]:
    return [
        ["channel", "nested"],
        ["customer"],
        ["CHANNEL", "a b", "_own", "nothing"],
        ["channel"],
    ]


@pytest.fixture(scope="module")
def stored(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> World:
    """Fill tables under the first definition; two rows are too wide for it."""
    played = world(spark, tmp_path_factory.mktemp("stored"), base=_BASE)
    wide = [_line(2, amount=2**40), _line(3, price="123456.789")]
    played.land("a.jsonl", [_line(1), *wide])
    played.run(_NOW)
    return played


def _grown(played: World, schema: str, **event: Any) -> World:
    return played.redefined(event={"schema": schema, **event})


@pytest.mark.long
def test_a_wider_definition_releases_what_was_too_wide_before(
    stored: World, tmp_path: Path
) -> None:
    played = stored.copied(tmp_path / "copy")
    wide = _SCHEMA.replace("INT", "BIGINT").replace("(6,2)", "(12,4)") + ", channel STRING"
    played = _grown(played, wide)
    played.landing.joinpath("b.jsonl").write_bytes(_line(4, channel="web") + b"\n")
    try:
        # Only a run brings the tables to the definition.
        played.run(_NOW)
        replay = replay_quarantine(played.context, Choice())
        assert (replay.released, replay.requeued) == (2, 2)
        played.run(_NOW)
    finally:
        played.landing.joinpath("b.jsonl").unlink()
    found = read(played.lake, "silver.growing", "event_id, amount, cast(price AS VARCHAR), channel")
    assert found == [
        ("e1", 1, "1.5000", None),
        ("e2", 2**40, "1.5000", None),
        ("e3", 3, "123456.7890", None),
        ("e4", 4, "1.5000", "web"),
    ]
    told = read_ledger(played.lake, played.pipeline).to_json()
    assert (told["silver"], told["quarantined"], told["problems"]) == (4, 0, [])
    assert told["gold"]["growing_total"] == {"expected": 4, "counted": 4}


@pytest.mark.long
def test_where_a_stream_cannot_pass_a_wider_type_a_backfill_continues_behind_it(
    stored: World, tmp_path: Path
) -> None:
    """As on Databricks' runtimes up to 18.0."""
    played = stored.copied(tmp_path / "copy")
    played = _grown(played, _SCHEMA.replace("INT", "BIGINT"))
    played.landing.joinpath("b.jsonl").write_bytes(_line(4, amount=2**41) + b"\n")
    needed = {"spark.databricks.delta.typeWidening.enableStreamingSchemaTracking": "true"}
    try:
        with with_settings(played.spark, needed):
            for _ in range(2):
                with pytest.raises(RefusedError, match=r"Runtime 18\.1 or newer goes on"):
                    played.run(_NOW)
            assert repair(played.context, "gold").why == ""
            with pytest.raises(RefusedError, match=r"Runtime 18\.1 or newer goes on"):
                played.run(_NOW)
            build(played.context, "silver")
            promote(played.context)
            played.run(_NOW)
    finally:
        played.landing.joinpath("b.jsonl").unlink()
    told = read_ledger(played.lake, played.pipeline).to_json()
    assert told["gold"]["growing_total"] == {"expected": 2, "counted": 2}


@pytest.mark.long
def test_a_replay_before_the_tables_follow_the_definition_loses_nothing(
    stored: World, tmp_path: Path
) -> None:
    played = _grown(stored.copied(tmp_path / "copy"), _SCHEMA.replace("INT", "BIGINT"))
    assert replay_quarantine(played.context, Choice()).requeued == 1
    played.run(_NOW)
    told = read_ledger(played.lake, played.pipeline).to_json()
    assert (told["silver"], told["quarantined"], told["problems"]) == (2, 1, [])


@pytest.mark.long
def test_a_definition_that_drops_a_field_keeps_its_column(stored: World, tmp_path: Path) -> None:
    played = stored.copied(tmp_path / "copy")
    played = _grown(played, _SCHEMA.replace(", price DECIMAL(6,2)", ""))
    assert replay_quarantine(played.context, Choice()).released == 1
    said = played.run(_NOW, hops=TO_SILVER)
    assert "silver: event.schema changed from batch 1 on" in said
    found = read(played.lake, "silver.growing", "event_id, cast(price AS VARCHAR)")
    assert found == [("e1", "1.50"), ("e3", None)]
    assert read_ledger(played.lake, played.pipeline).balanced
    # The older rows are of the older definition.
    told = {one.table: one.changed for one in judge_tables(played.context)}
    assert told["silver.growing"] == ("event.schema",)
    (price,) = payload_drift(played.context)
    assert price.follows == "stays in bronze only: it cannot be a text column of silver"


@pytest.mark.long
@pytest.mark.parametrize(
    "schema",
    [
        _SCHEMA.replace("INT", "STRING"),
        _SCHEMA.replace("INT", "SMALLINT"),
        _SCHEMA.replace("(6,2)", "(6,3)"),
        _SCHEMA.replace("(6,2)", "(5,2)"),
        _SCHEMA.replace("user STRING", "user BINARY"),
    ],
)
def test_a_definition_that_the_tables_cannot_hold_is_refused_and_changes_nothing(
    stored: World, tmp_path: Path, schema: str
) -> None:
    played = _grown(stored.copied(tmp_path / "copy"), schema)
    before = versions(played.lake)
    with pytest.raises(SchemaChangedError, match="was written under another definition"):
        played.run(_NOW, hops=TO_SILVER)
    assert versions(played.lake) == before


@pytest.mark.long
def test_strict_tables_follow_no_new_definition(spark: SparkSession, tmp_path: Path) -> None:
    played = world(spark, tmp_path, base=_BASE, event={"evolution": "strict"})
    played.land("a.jsonl", [_line(1)])
    played.run(_NOW, hops=TO_SILVER)
    before = versions(played.lake)
    for schema in (f"{_SCHEMA}, channel STRING", _SCHEMA.replace("INT", "BIGINT")):
        with pytest.raises(SchemaChangedError, match=r"silver\.growing"):
            _grown(played, schema).run(_NOW, hops=TO_SILVER)
        assert versions(played.lake) == before
