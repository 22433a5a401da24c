"""Gold on topics: who applies the records has the table, whatever died, and nothing is silent."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import defaultdict
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.brokers import Kafka
from tests.running import click, read
from tests.stores import a_free_port
from tests.worlds import World, world
from tidelake.delta.log import last_commit, newest_version
from tidelake.delta.merge import compact, vacuum
from tidelake.delta.publications import published_to
from tidelake.errors import RefusedError, UnpublishedError
from tidelake.ops.maintenance import plan_upkeep
from tidelake.ops.status import read_status
from tidelake.replay.generations import rebuild_gold
from tidelake.runtime import publish
from tidelake.runtime.progress import Progress
from tidelake.runtime.runner import run_hops
from tidelake.runtime.triggers import AVAILABLE_NOW, parse_trigger

_VISITS = "gold.visits"
_COLUMNS = "session_id, user_id, session_start, session_end, events, total"
# The version of the record that a consumer applied last, by topic key, with the row.
Applied = dict[str, tuple[int, dict[str, Any] | None]]


def gold(topic: str, bootstrap: str) -> list[dict[str, Any]]:
    """Define sessions, whose rows merge, with a sum of money."""
    return [
        {
            "name": "visits",
            "window": {"kind": "session", "gap": "30 minutes"},
            "keys": ["user_id"],
            "measures": {"events": {"count": "*"}, "total": {"sum": "value"}},
            "publish": {
                "topic": topic,
                "bootstrap": bootstrap,
                "options": {"kafka.max.block.ms": 5000},
            },
        }
    ]


@pytest.fixture
def played(spark: SparkSession, tmp_path: Path, kafka: Kafka) -> World:
    """Give a pipeline whose topic does not exist yet, and a first file."""
    topic = f"visits-{tmp_path.name}".replace("_", "-")
    made = world(
        spark, tmp_path / "w", gold=gold(topic, kafka.bootstrap), quality=None, small=False
    )
    made.land("0.jsonl", [click(n, minute=10 * n) for n in range(12)])
    return made


def topic_of(played: World) -> str:
    return played.pipeline.published[_VISITS].topic


def go(played: World, said: list[str] | None = None) -> None:
    """Run all hops as the command does."""
    context = replace(played.context, progress=Progress((said if said is not None else []).append))
    run_hops(context, ("bronze", "silver", "gold"), parse_trigger(AVAILABLE_NOW), publishes=True)


def records(kafka: Kafka, topic: str) -> list[tuple[str, dict[str, Any], bytes]]:
    """Read a topic: key, value and the bytes of the value, in order within a partition."""
    found = kafka.records(topic)
    found.sort(key=lambda one: [int(part) for part in one[0].split(":")[1:]])
    for _, _, value, headers in found:
        assert dict(headers)["version"] == str(json.loads(value)["version"]).encode()
    return [(key.decode(), json.loads(value), value) for _, key, value, _ in found]


def applied(kafka: Kafka, topic: str) -> Applied:
    """Apply a topic as a consumer does that knows the version of each key."""
    state: Applied = {}
    for key, value, _ in records(kafka, topic):
        known = state.get(key, (-1, None))
        if value["version"] > known[0]:
            # Once a topic has begun, each change says what it found.
            assert key not in state or value["before"] == known[1]
            state[key] = value["version"], value["after"]
    return state


def rows_in(state: Applied) -> list[tuple[Any, ...]]:
    rows = [row for _, row in state.values() if row is not None]
    return sorted((tuple(row[name] for name in _COLUMNS.split(", ")) for row in rows), key=repr)


def rows_of(played: World) -> list[tuple[Any, ...]]:
    """Read gold as a consumer writes it."""

    def written(value: Any) -> Any:
        if isinstance(value, datetime):
            return f"{value.astimezone(UTC):%Y-%m-%dT%H:%M:%S.%fZ}"
        return value if value is None or isinstance(value, int | str) else str(value)

    found = read(played.lake, _VISITS, _COLUMNS)
    return sorted((tuple(map(written, row)) for row in found), key=repr)


def assert_same(played: World, kafka: Kafka) -> None:
    assert rows_in(applied(kafka, topic_of(played))) == rows_of(played) != []


def sequences(found: list[tuple[str, dict[str, Any], bytes]]) -> dict[str, list[bytes]]:
    by_key = defaultdict(list)
    for key, _, value in found:
        by_key[key].append(value)
    return dict(by_key)


def test_a_consumer_that_applies_the_records_has_the_table(played: World, kafka: Kafka) -> None:
    topic, table, said = topic_of(played), played.lake.table(_VISITS), list[str]()
    go(played, said)
    assert_same(played, kafka)
    assert re.search(rf"publish gold\.visits, versions \d+ to \d+, to topic {topic}", said[-1])
    # Sessions of user 0 are bridged: rows are deleted; of another a value changes.
    played.land("1.jsonl", [click(100, minute=25), click(101, minute=10.5, value=0.005)])
    played.land("2.jsonl", [click(102, minute=300)])
    go(played)
    values = [value for _, value, _ in records(kafka, topic)]
    assert {value["op"] for value in values} == {"upsert", "delete"}
    assert {value["table"] for value in values} == {_VISITS}
    assert_same(played, kafka)
    before = len(values), newest_version(table)
    go(played)
    assert (len(kafka.records(topic)), newest_version(table)) == before
    # Files are rewritten, and rows computed anew in another generation: none of them changes.
    compact(played.spark, table)
    rebuild_gold(played.context)
    go(played)
    assert len(kafka.records(topic)) == before[0]
    played.land("3.jsonl", [click(103, minute=301)])
    go(played)
    assert records(kafka, topic)[-1][1] is not None
    newest = max((value for _, value, _ in records(kafka, topic)), key=lambda one: one["version"])
    last = last_commit(table)
    assert last is not None
    assert (newest["generation"], newest["batch"]) == ("g2", last.batch)
    assert_same(played, kafka)
    [status] = read_status(played.lake, played.pipeline).topics
    assert (status.topic, status.version, status.waiting) == (topic, newest["version"], 0)


@pytest.mark.parametrize("step", ["_send", "_save"])
def test_what_a_run_that_dies_left_out_is_sent_and_what_repeats_is_the_same(
    played: World, kafka: Kafka, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    go(played)
    first = records(kafka, topic_of(played))
    played.land("1.jsonl", [click(100, minute=25), click(101, minute=10.5)])

    class CutOffError(Exception):
        pass

    def die(*_: object) -> None:
        raise CutOffError

    with monkeypatch.context() as patch, pytest.raises(CutOffError):
        patch.setattr(publish._Publication, step, die)
        go(played)
    sent = records(kafka, topic_of(played))
    assert (len(sent) > len(first)) == (step == "_save")
    played.land("2.jsonl", [click(102, minute=300)])
    go(played)
    found = records(kafka, topic_of(played))
    if step == "_save":
        repeated = [one for one in found if found.count(one) > 1]
        assert {key for key, _, _ in repeated} == {key for key, _, _ in sent[len(first) :]} or (
            len(repeated) == 2 * (len(sent) - len(first))
        )
        assert len(repeated) == 2 * (len(sent) - len(first))
    for values in sequences(found).values():
        versions = [json.loads(value)["version"] for value in values]
        # What is sent again begins with what was sent, in the same order.
        again = next((n for n in range(1, len(values)) if versions[n] <= versions[n - 1]), None)
        if again is not None:
            start = values.index(values[again])
            assert values[again : again + again - start] == values[start:again]
    assert_same(played, kafka)


def test_a_broker_that_is_away_fails_the_run_after_its_tables_are_committed(
    played: World, kafka: Kafka
) -> None:
    away = played.redefined(gold=gold(topic_of(played), f"127.0.0.1:{a_free_port()}"))
    with pytest.raises(UnpublishedError) as caught:
        go(away)
    assert caught.value.exit_code == 1
    assert re.search(
        r"clickstream, publishing gold\.visits to topic .* stopped: no Kafka broker can be reached "
        r"\(.*\)\. Check publish\.bootstrap.*\nThe tables are committed, and the next run",
        str(caught.value),
        re.DOTALL,
    )
    assert rows_of(away)
    assert read(away.lake, "ops.epochs", "epoch") == [(1,)]
    [status] = read_status(away.lake, away.pipeline).topics
    assert (status.version, status.waiting) == (None, None)
    played.land("1.jsonl", [click(100, minute=25)])
    go(played)
    assert_same(played, kafka)


def test_a_recreated_topic_gets_all_rows_and_a_foreign_one_none(
    played: World, kafka: Kafka
) -> None:
    topic, said = topic_of(played), list[str]()
    go(played)
    kafka.drop(topic)
    played.land("1.jsonl", [click(100, minute=25)])
    go(played, said)
    assert any(f"topic {topic} was recreated" in line for line in said)
    found = records(kafka, topic)
    assert {value["before"] is None for _, value, _ in found} == {True}
    assert_same(played, kafka)
    foreign = kafka.topic()
    kafka.send(foreign, [b"of another"])
    other = played.redefined(gold=gold(foreign, kafka.bootstrap))
    with pytest.raises(RefusedError, match=r"the topic has records already, and gold\.visits has"):
        go(other)
    assert len(kafka.records(foreign)) == 1
    # The first one goes on.
    played.land("2.jsonl", [click(101, minute=26)])
    go(played)
    assert_same(played, kafka)


def test_changes_whose_files_are_gone_are_refused_by_name(
    played: World, kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    go(played)
    table = played.lake.table(_VISITS)
    quiet = replace(played, environment=played.environment.model_copy(update={"publish": False}))
    for part in (1, 2):
        played.land(f"{part}.jsonl", [click(100 + part, minute=24 + part)])
        go(quiet)
    [status] = read_status(played.lake, played.pipeline).topics
    assert status.waiting == 2
    # Maintenance keeps them.
    later = datetime.now(UTC) + timedelta(days=9)
    plans = {
        plan.table.name: plan
        for plan in plan_upkeep(played.lake, played.pipeline, horizon=timedelta(days=7), now=later)
    }
    assert plans[_VISITS].keep > timedelta(days=9)
    assert "topic" in plans[_VISITS].needs[0].by
    vacuum(played.spark, table, hours=0)
    count = len(kafka.records(topic_of(played)))
    with pytest.raises(
        RefusedError, match=r"(?s)version that was not published yet are gone.*empty"
    ):
        go(played)
    assert len(kafka.records(topic_of(played))) == count
    kafka.drop(topic_of(played))
    go(played)
    assert_same(played, kafka)


_KILLED = """
import os, signal
from tidelake import cli
from tidelake.runtime import publish
def die(*arguments):
    os.killpg(0, signal.SIGKILL)
publish._Publication._send_change = die
cli.main()
"""


def test_nothing_is_lost_if_a_run_is_killed_between_commit_and_publication(
    played: World, kafka: Kafka
) -> None:
    go(played)
    played.land("1.jsonl", [click(100, minute=25), click(101, minute=10.5)])
    count, root = len(kafka.records(topic_of(played))), str(played.environment.root)
    arguments = ["run", str(played.pipeline.file), "--root", root]
    done = subprocess.run(
        [sys.executable, "-c", _KILLED, *arguments, "--source", str(played.landing)],
        start_new_session=True,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    reached, last = (
        published_to(played.lake.table(_VISITS)),
        last_commit(played.lake.table(_VISITS)),
    )
    assert reached is not None
    assert last is not None
    assert (last.version > reached.version, len(kafka.records(topic_of(played)))) == (True, count)
    go(played)
    assert_same(played, kafka)
