"""How far bronze lags behind topics, from the notes of its commits and from the broker."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.brokers import Kafka
from tests.unit.handmade import write_commit
from tidelake.cli import app
from tidelake.cli.exits import run_command
from tidelake.config import Pipeline, load_environment, load_pipeline
from tidelake.delta.log import Commit
from tidelake.delta.tables import Lake, Table
from tidelake.kafka.client import client_options, offsets_behind, offsets_between
from tidelake.ops.status import (
    BRIEF_RUN_BYTES,
    Check,
    lag_of,
    little_waits,
    read_status,
    waiting_input,
)

_NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)
_CLICKS = {
    "name": "clicks",
    "source": {"kind": "files", "path": "${root}/landing"},
    "event": {
        "schema": "event_id STRING, event_time TIMESTAMP",
        "id": "event_id",
        "time": "event_time",
    },
    "gold": [
        {
            "name": "totals",
            "window": {"kind": "global"},
            "keys": ["event_id"],
            "measures": {"events": {"count": "*"}},
        }
    ],
}


def _note(batch: int, at: float, lags: list[int], **changes: Any) -> dict[str, Any]:
    """Note a batch of 1000 records that took two seconds and ended so many seconds after noon."""
    when = _NOON + timedelta(seconds=at)
    note = {
        "pipeline": "clicks",
        "hop": "bronze",
        "generation": "g1",
        "batch": batch,
        "records": 1000,
        "began": (when - timedelta(seconds=2)).isoformat(),
        "looked_at": when.isoformat(),
        "slots": 2,
        "limit": None,
        "bootstrap": "127.0.0.1:1",
        "offsets": {"t": {str(n): 500 * (batch + 1) for n in range(len(lags))}},
        "behind": {"t": {str(n): lag for n, lag in enumerate(lags)}},
    }
    return note | changes


def _commit(batch: int, at: float, lags: list[int], **changes: Any) -> Commit:
    note = _note(batch, at, lags, **changes)
    return Commit(batch + 1, _NOON + timedelta(seconds=at), 1000, note)


def _at(seconds: float) -> datetime:
    return _NOON + timedelta(seconds=seconds)


def test_the_offsets_beyond_those_that_were_taken_are_behind() -> None:
    reached = {"t": {"0": 5, "1": 7}, "gone": {"0": 1}}
    assert offsets_behind(reached, {"t": {"0": 9, "1": 3}}) == {"t": {"0": 4, "1": 0}}
    assert offsets_between({"t": {"0": 2}}, reached) == 3


def test_records_that_arrive_where_nothing_waited_count_as_arriving() -> None:
    found = lag_of([_commit(1, 40, [70]), _commit(0, 0, [0])], None, now=_at(41))
    assert found is not None
    # 500 were taken and 70 wait.
    assert found.arriving_per_second == pytest.approx(570 / 40)


def test_a_lag_is_held_against_the_check_of_half_a_minute_ago() -> None:
    commits = [_commit(2, 40, [130, 10]), _commit(1, 20, [1, 500]), _commit(0, 5, [100, 100])]
    found = lag_of(commits, None, not_asked="away", now=_at(41))
    assert found is not None
    told = [(one.partition, one.taken, one.end, one.lag, one.trend) for one in found.partitions]
    assert told == [(0, 1500, 1630, 130, "growing"), (1, 1500, 1510, 10, "falling")]
    assert (found.lag, found.not_asked, found.checked_at) == (140, "away", _at(40))
    # 2000 were taken and the lag fell by 60, in 35 s; a batch takes 1000 in 2 s.
    assert found.arriving_per_second == pytest.approx(1940 / 35)
    assert found.rows_per_second == pytest.approx(500)
    assert found.catch_up_seconds == pytest.approx(140 / (500 - 1940 / 35))
    assert found.advice.verdict == "falls"


def test_what_the_broker_says_now_comes_before_what_was_noted() -> None:
    commits = [_commit(1, 40, [10, 10]), _commit(0, 5, [0, 0])]
    now = Check(_at(80), {"t": {"0": 1000, "1": 1000}}, {"t": {"0": 500_000, "1": 500_000}})
    found = lag_of(commits, now, now=_at(80))
    assert found is not None
    assert [one.trend for one in found.partitions] == ["growing", "growing"]
    assert (found.lag, found.catch_up_seconds) == (1_000_000, None)
    # 250 rows/s a slot for 300 s: seven slots' worth, but two partitions.
    assert (found.advice.verdict, found.advice.slots) == ("partitions", 2)
    wide = lag_of(commits, now, min_partitions=16, now=_at(80))
    assert wide is not None and (wide.advice.verdict, wide.advice.slots) == ("slots", 14)


@pytest.mark.parametrize(
    ("topic", "not_asked", "waiting"),
    [("t", "", 20), (["other", "t"], "", 20), ("other", "", None), ("t", "it is away", None)],
)
def test_what_waits_for_a_run_is_behind_the_topics_that_it_would_read(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    topic: str | list[str],
    not_asked: str,
    waiting: int | None,
) -> None:
    lag = lag_of([_commit(1, 40, [10, 10])], None, now=_at(80))
    assert lag is not None
    found = replace(lag, not_asked=not_asked)
    monkeypatch.setattr("tidelake.ops.status.source_lag", lambda *_, **__: found)
    source = {"kind": "kafka", "bootstrap": "127.0.0.1:1", "topic": topic}
    file = tmp_path / "clicks.yml"
    file.write_text(yaml.safe_dump(_CLICKS | {"source": source}))
    pipeline = load_pipeline(str(file), load_environment("local", root=str(tmp_path)))
    assert waiting_input(Lake(tmp_path), pipeline)["bronze"] == waiting


def test_rows_that_were_sent_again_wait_for_silver_like_those_of_bronze(tmp_path: Path) -> None:
    file = tmp_path / "clicks.yml"
    file.write_text(yaml.safe_dump(_CLICKS))
    pipeline = load_pipeline(str(file), load_environment("local", root=str(tmp_path)))
    lake, begun = Lake(tmp_path), {"generation": "g1", "batch": 0}
    (tmp_path / "landing").mkdir()
    (tmp_path / "landing" / "0.jsonl").touch()
    for table in (lake.bronze("clicks"), lake.requeue("clicks")):
        write_commit(table, 0, note=begun, adds=[(1000, True)])
    write_commit(lake.silver("clicks"), 0, note=begun | {"until": {"bronze": [1, -1]}})
    assert waiting_input(lake, pipeline)["silver"] == 1000
    assert little_waits(lake, pipeline)
    write_commit(lake.requeue("clicks"), 1, note=begun, adds=[(BRIEF_RUN_BYTES // 100, True)])
    assert not little_waits(lake, pipeline)


def test_a_limit_holds_back_where_batches_are_full_and_bronze_rests_between_them() -> None:
    full = [_commit(n, 10.0 * n, [1000 + n], limit=1000) for n in (2, 1, 0)]
    found = lag_of(full, None, now=_at(30))
    assert found is not None and found.advice.verdict == "limit"
    busy = [_commit(n, 2.0 * n, [1000 + n], limit=1000) for n in (2, 1, 0)]
    found = lag_of(busy, None, now=_at(30))
    assert found is not None and found.advice.verdict == "enough"
    part = [_commit(n, 10.0 * n, [1000 + n], limit=2000) for n in (2, 1, 0)]
    found = lag_of(part, None, now=_at(30))
    assert found is not None and found.advice.verdict == "enough"


def test_a_run_that_closed_no_batch_for_long_is_told() -> None:
    commits = [_commit(1, 40, [10]), _commit(0, 5, [10])]
    now = Check(_at(400), {"t": {"0": 1000}}, {"t": {"0": 500}})
    found = lag_of(commits, now, now=_at(400))
    assert found is not None and found.advice.verdict == "rests"


def test_notes_from_before_lags_were_noted_tell_nothing() -> None:
    old = Commit(1, _NOON, 5, {"batch": 0, "offsets": {"t": {"0": 5}}})
    assert lag_of([old], None, now=_NOON) is None


def test_a_login_of_java_s_becomes_one_of_the_client_s() -> None:
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    told = client_options(
        {
            "kafka.security.protocol": "SASL_SSL",
            "kafka.sasl.jaas.config": f'{module} required username="me" password="p=1;";',
        }
    )
    assert told == {
        "security.protocol": "SASL_SSL",
        "sasl.username": "me",
        "sasl.password": "p=1;",
    }


def _lake(root: Path, notes: list[dict[str, Any]]) -> str:
    """Write bronze by hand; give the pipeline's file."""
    file = root / "clicks.yml"
    file.write_text(yaml.safe_dump(_CLICKS))
    bronze: Table = Lake(root).bronze("clicks")
    write_commit(bronze, 0, note={"generation": "g1", "batch": -1})
    for version, note in enumerate(notes, start=1):
        write_commit(bronze, version, note=note, rows=1000, adds=[(1000, True)])
    return str(file)


def test_the_status_shows_each_partition_also_where_the_broker_is_away(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pipeline = _lake(tmp_path, [_note(0, 5, [100, 100]), _note(1, 40, [130, 10])])
    assert run_command(app, ["status", pipeline, "--json", "--root", str(tmp_path)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [hop["waiting"] for hop in found["hops"]][:1] == [140]
    source = found["source"]
    assert "no Kafka broker can be reached (127.0.0.1:1" in source["not_asked"]
    assert source["partitions"][0] == {
        "topic": "t",
        "partition": 0,
        "taken": 1000,
        "end": 1130,
        "lag": 130,
        "trend": "growing",
    }
    assert source["checked_at"] == "2026-01-05T12:00:40+00:00"
    run_command(app, ["status", pipeline, "--root", str(tmp_path)])
    out = capsys.readouterr().out
    assert "Kafka at 2026-01-05 12:00:40Z: 140 records wait" in out
    assert "140 records" in out
    assert "as of the last batch; the broker was not asked: no Kafka broker" in out
    assert max(len(line) for line in out.splitlines()) <= 100


def test_of_many_partitions_the_status_shows_those_that_lag_most(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pipeline = _lake(tmp_path, [_note(0, 5, list(range(60)))])
    assert run_command(app, ["status", pipeline, "--root", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "t:59 " in out and "t:40 " in out and "t:39 " not in out
    assert "and 40 partitions more, with --json" in out


def _following(root: Path, kafka: Kafka, topics: list[str]) -> Pipeline:
    file = root / "clicks.yml"
    source = {"kind": "kafka", "bootstrap": kafka.bootstrap, "topic": topics}
    file.write_text(yaml.safe_dump(_CLICKS | {"source": source}))
    return load_pipeline(str(file), load_environment("local", root=str(root)))


def test_records_wait_in_partitions_and_topics_that_were_added_since_the_last_batch(
    tmp_path: Path, kafka: Kafka
) -> None:
    """A run would read them, from their first offset on."""
    topic, added, unmade = kafka.topic(partitions=1), kafka.topic(partitions=1), "not-made-yet"
    kafka.send(topic, [b"{}"] * 3)
    read = {"offsets": {topic: {"0": 3}}, "behind": {topic: {"0": 0}}}
    _lake(tmp_path, [_note(0, 5, [0], **read)])
    lake, clicks = Lake(tmp_path), _following(tmp_path, kafka, [topic, added, unmade])
    found = read_status(lake, clicks).source
    assert found is not None
    seen = {(one.topic, one.partition): (one.taken, one.end) for one in found.partitions}
    assert (found.not_asked, seen) == ("", {(topic, 0): (3, 3), (added, 0): (0, 0)})

    kafka.widen(topic, 2)
    until = time.monotonic() + 30
    while kafka.partitions(topic) < 2:
        assert time.monotonic() < until
        time.sleep(0.05)
    kafka.send(topic, [b"{}"] * 4)
    kafka.send(added, [b"{}"] * 5)
    kafka.forget(added, {0: 1})
    found = read_status(lake, clicks).source
    assert found is not None
    seen = {(one.topic, one.partition): (one.taken, one.end) for one in found.partitions}
    assert (found.not_asked, seen) == (
        "",
        {(topic, 0): (3, 5), (topic, 1): (0, 2), (added, 0): (1, 5)},
    )
    assert (found.lag, waiting_input(lake, clicks)["bronze"]) == (8, 8)
    assert unmade not in kafka._admin.list_topics(timeout=30).topics
    # Bronze was filled by `run --source`; what the file names is not read into it.
    found = read_status(lake, _following(tmp_path, kafka, [added])).source
    assert found is not None and (found.not_asked, found.lag) == ("", 4)


def test_a_topic_that_is_gone_is_named(tmp_path: Path, kafka: Kafka) -> None:
    _lake(tmp_path, [_note(0, 5, [10], offsets={"gone": {"0": 1}}, behind={"gone": {"0": 10}})])
    found = read_status(Lake(tmp_path), _following(tmp_path, kafka, ["gone"])).source
    assert found is not None and found.lag == 10
    assert found.not_asked == f"gone no longer exists at {kafka.bootstrap}: restore it"
