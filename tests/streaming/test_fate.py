"""Where a record is: one word for each fate, found by event id and by record id."""

from __future__ import annotations

import json
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.sql import SparkSession

from tests.running import START, click, place_of
from tests.unit.handmade import write_commit
from tests.worlds import TO_SILVER, World, world
from tidelake.cli import app
from tidelake.cli.exits import run_command
from tidelake.delta.tables import Lake
from tidelake.errors import UsageError
from tidelake.ledger.query import ask
from tidelake.ledger.terms import read_ledger
from tidelake.replay import fate
from tidelake.replay.fate import Fate, fates_of
from tidelake.replay.requeue import Choice, apply_late, discard_quarantine

_DAY = 24 * 60
_ARRIVAL = START + timedelta(days=6)
_FIRST = [click(number, minute=6 * _DAY - number) for number in range(4)]
_SECOND = [
    click(1, minute=6 * _DAY - 1),
    click(1, minute=6 * _DAY - 1, value=1),
    click(10, minute=5),
    click(10, minute=5),
    b'{"event_id":"e11",',
    click(12, minute=6 * _DAY, value=-1),
    click(13, minute=6 * _DAY, action=None),
    click(100, minute=6 * _DAY),
]
# What becomes of each line of the second file.
_STATES = [
    *("duplicate", "quarantined", "late", "duplicate"),
    *("quarantined", "quarantined", "filtered", "silver"),
]


@pytest.fixture(scope="module")
def filled(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> World:
    """Run one file through gold, and another one."""
    played = world(spark, tmp_path_factory.mktemp("fate"))
    played.land("a.jsonl", _FIRST)
    played.land("b.jsonl", _SECOND)
    played.run(_ARRIVAL, _ARRIVAL + timedelta(minutes=1))
    return played


def of_line(played: World, line: int, file: str = "b.jsonl") -> Fate:
    """Tell the fate of one line of a file."""
    records = [r for (r,) in ask(played.lake, "SELECT record_id FROM bronze.clickstream").rows]
    (record,) = (one for one in records if place_of(one) == (file, line))
    (found,) = fates_of(played.lake, played.pipeline, record_id=record)
    return found


def test_each_line_has_the_fate_that_the_books_say(filled: World) -> None:
    fates = [of_line(filled, line) for line in range(len(_SECOND))]

    assert [one.state for one in fates] == _STATES
    told = read_ledger(filled.lake, filled.pipeline).to_json()
    counted = Counter([*_STATES, *["silver"] * len(_FIRST)])
    names = {"duplicates": "duplicate", "quarantined": "quarantined", "late": "late"}
    names |= {"silver": "silver", "filtered": "filtered"}
    assert {name: told[name] for name in names} == {
        name: counted[state] for name, state in names.items()
    }


def test_a_fate_says_why(filled: World) -> None:
    first = of_line(filled, 1, "a.jsonl")
    copy, conflict, late, again, broken, refused, filtered, _ = (
        of_line(filled, line) for line in range(len(_SECOND))
    )

    assert copy.copy_of == first.record_id
    assert conflict.stage == "conflicting_duplicate"
    assert "behind the watermark" in late.reasons[0]
    assert again.copy_of == late.record_id
    assert (broken.stage, broken.event_id) == ("parse", None)
    assert refused.reasons == ("value: expect_column_values_to_be_between(min_value=0)",)
    assert filtered.reasons == ("outside where: action IS NOT NULL",)
    assert filtered.payload == _SECOND[6]


@pytest.mark.parametrize(
    ("event", "states"),
    [
        ("e1", ["silver", "duplicate", "quarantined"]),
        ("e10", ["late", "duplicate"]),
        ("e11", ["quarantined"]),
        ("e13", ["filtered"]),
        ("e100", ["silver"]),
    ],
)
def test_an_event_is_all_of_its_records_and_no_others(
    filled: World, event: str, states: list[str]
) -> None:
    assert [f.state for f in fates_of(filled.lake, filled.pipeline, event_id=event)] == states


def test_an_accepted_event_is_found_in_gold(filled: World) -> None:
    accepted = of_line(filled, 2, "a.jsonl")

    rows = {one.table: one.rows for one in accepted.counted}
    assert [row["user_id"] for row in rows["gold.user_sessions"]] == ["u2"]
    assert [row["product_id"] for row in rows["gold.product_totals"]] == ["p2"]


@pytest.mark.long
def test_what_was_sent_again_waits_and_then_counts(filled: World, tmp_path: Path) -> None:
    played = filled.copied(tmp_path / "copy")
    assert apply_late(played.context) == 1
    discard_quarantine(played.context, Choice("parse", None), why="cut off")

    assert of_line(played, 4).state == "discarded"
    assert of_line(played, 4).reasons[-1] == "cut off"
    assert of_line(played, 2).state == "requeued"
    played.land("c.jsonl", [click(200, minute=6 * _DAY)])
    played.run(_ARRIVAL + timedelta(minutes=2), hops=["bronze"])
    assert of_line(played, 0, "c.jsonl").state == "pending"
    played.run(hops=TO_SILVER)
    taken = of_line(played, 2)
    assert taken.state == "silver"
    assert {one.verdict for one in taken.counted} == {"waiting"}
    assert of_line(played, 3).state == "duplicate"
    played.run()
    assert {one.verdict for one in of_line(played, 2).counted} == {"counts"}


def test_a_batch_that_is_committed_meanwhile_makes_no_record_its_own_duplicate(
    filled: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = filled.copied(tmp_path / "copy")
    played.land("c.jsonl", [click(200, minute=6 * _DAY)])
    played.run(_ARRIVAL + timedelta(minutes=2), hops=["bronze"])
    asked = fate._waiting

    def committed(*args: Any) -> Any:
        played.run(hops=["silver"])
        return asked(*args)

    monkeypatch.setattr(fate, "_waiting", committed)
    assert of_line(played, 0, "c.jsonl").state == "silver"


def test_a_record_of_a_commit_that_is_read_in_part_may_have_been_decided(tmp_path: Path) -> None:
    lake, note = Lake(tmp_path), {"generation": "g1", "batch": 0}
    arrived = [_ARRIVAL, _ARRIVAL + timedelta(minutes=1)]
    for version, at in enumerate(arrived):
        own = note | {"ingested_at": at.isoformat()}
        write_commit(lake.bronze("shop"), version, note=own, adds=[(5, True)] * 2)
    write_commit(lake.silver("shop"), 0, note=note | {"until": {"bronze": [0, 0]}})
    waiting = fate._waiting(lake, "shop")
    assert waiting == dict(zip(arrived, (True, False), strict=True))

    pipeline: Any = None
    row = {"record_id": "a:0", "source": "a", "payload": b"{}"}
    told = [
        fate._fate(lake, pipeline, row | {"ingested_at": at}, {}, waiting).reasons[0]
        for at in arrived
    ]
    assert "a part of its commit" in told[0]
    assert told[1] == "silver has not processed it yet"


def test_a_table_whose_where_lets_it_out_says_so(filled: World, tmp_path: Path) -> None:
    played = filled.copied(tmp_path / "copy")
    kept = [
        gold.model_copy(update={"where": where})
        for gold, where in zip(
            played.pipeline.gold, ("action = 'nothing'", "luhn_check(user_id)"), strict=True
        )
    ]
    pipeline = played.pipeline.model_copy(update={"gold": tuple(kept)})
    record = of_line(played, 2, "a.jsonl").record_id

    (found,) = fates_of(played.lake, pipeline, record_id=record)
    assert [one.verdict for one in found.counted] == ["outside", "unknown"]


_TYPES = {
    **{"text": "STRING", "n": "BIGINT", "money": "DECIMAL(18,2)", "rate": "DOUBLE"},
    **{
        "ok": "BOOLEAN",
        "seen": "TIMESTAMP",
        "Day": "DATE",
        "few": "FLOAT",
        "xs": "ARRAY<STRING>",
        "odd": None,
    },
}
_ROWS = """
    SELECT * FROM (VALUES
        ('Bot', 9007199254740993, CAST(1.5 AS DECIMAL(18,2)), CAST(0.1 AS DOUBLE), true,
         CAST('2023-12-31 23:59:59.999999+00:00' AS {time}), CAST('2023-12-31' AS DATE)),
        (concat('a', chr(92), 'b'), -1, -0.01, CAST('nan' AS DOUBLE), false,
         CAST('2024-02-29 12:30:00+00:00' AS {time}), CAST('2024-02-29' AS DATE)),
        (NULL, NULL, NULL, NULL, NULL, NULL, NULL)
    ) AS t(text, n, money, rate, ok, seen, day)
"""


def test_duckdb_evaluates_only_what_it_computes_as_spark_does(spark: SparkSession) -> None:
    alike = [
        *("text <> 'bot' OR n > 100", "lower(text) = 'bot'", "text = 'a\\b'", "upper(TEXT)"),
        *("NOT ok AND text IS NULL", "money > -0.01", "n >= 9007199254740993", "money = 1.5"),
        *("rate < 0.5", "n BETWEEN -1 AND 1.5", "text IN ('Bot', NULL)", "ok IS NOT TRUE"),
        *(
            "date_trunc('week', seen)",
            "date_trunc('MONTH', seen) = seen",
            "minute(seen) < hour(seen)",
        ),
        *("Day = day", "ok", "n -- why"),
    ]
    asked = [fate._in_duckdb(sql, "t", _TYPES, fate._COMPARABLE) for sql in alike]
    assert None not in asked
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        texts = ", ".join(f"replace(({sql})::VARCHAR, '+00', '')" for sql in asked)
        rows_in_duckdb = _ROWS.format(time="TIMESTAMPTZ")
        found = connection.sql(f"SELECT {texts} FROM ({rows_in_duckdb}) t").fetchall()
    columns = [f"CAST(({sql}\n) AS STRING)" for sql in alike]
    rows = spark.sql(_ROWS.format(time="TIMESTAMP")).selectExpr(*columns).collect()
    assert found == [tuple(row) for row in rows]


@pytest.mark.parametrize(
    "sql",
    [
        *("dayofweek(seen) = 1", "weekday(seen) = 0", "cast(0.5 + 1 AS INT) = 2", "n / 2 > 1"),
        *("timestampdiff(HOUR, seen, seen) > 1", "few = 0.1", "text > 5", "seen > '2024-01-01'"),
        *("text LIKE 'a\\\\_b'", "xs IS NULL", "text.a = 'x'", "luhn_check(text)"),
        *("odd = 1", "text", "n"),
    ],
)
def test_what_the_engines_may_compute_in_two_ways_is_left_to_spark(sql: str) -> None:
    assert fate._in_duckdb(sql, "s", _TYPES) is None


@pytest.mark.parametrize("how", ["event_id", "record_id"])
def test_what_nobody_sent_is_told_with_the_next_command(filled: World, how: str) -> None:
    with pytest.raises(UsageError, match=r"(?s)('it''s nothing'|\"it's nothing\").*tidelake sql"):
        fates_of(filled.lake, filled.pipeline, **{how: "it's nothing"})


def test_the_command_tells_it_for_people_and_for_machines(
    filled: World, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(filled.folder / "clickstream.yml")
    arguments = ["fate", file, "--event-id", "e1", "--root", str(filled.lake.root)]

    assert run_command(app, arguments) == 0
    out = capsys.readouterr().out
    assert "accepted" in out
    assert "in quarantine, conflicting_duplicate" in " ".join(out.split())
    assert "gold.user_sessions" in out
    assert max(len(line) for line in out.splitlines()) <= 100
    assert run_command(app, [*arguments, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [one["state"] for one in told] == ["silver", "duplicate", "quarantined"]
    assert told[0]["counted"][0]["rows"]


def test_the_command_wants_one_id(filled: World, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(filled.folder / "clickstream.yml")
    for ids in ([], ["--event-id", "a", "--record-id", "b"]):
        assert run_command(app, ["fate", file, *ids, "--root", str(filled.lake.root)]) == 2
        assert "give exactly one of --event-id and --record-id" in capsys.readouterr().err
