"""Gold on topics: who applies the records has the table, whatever died, and nothing is silent."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import uuid
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.brokers import Kafka, assert_applied, changes_on, written_rows
from tests.running import click, read
from tests.stores import a_free_port
from tests.worlds import TO_SILVER, World, world
from tidelake.config import KafkaSource
from tidelake.delta.log import last_commit, newest_version
from tidelake.delta.merge import compact, vacuum
from tidelake.delta.positions import published_to
from tidelake.delta.tables import HOPS, Hop
from tidelake.errors import RefusedError, UnpublishedError
from tidelake.kafka.topic_source import has_records
from tidelake.ops.maintenance import plan_upkeep
from tidelake.ops.status import read_status
from tidelake.replay.generations import rebuild_gold
from tidelake.runtime import publish
from tidelake.runtime.progress import Progress
from tidelake.runtime.runner import run_hops
from tidelake.runtime.triggers import AVAILABLE_NOW, parse_trigger

_VISITS = "gold.visits"


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


@pytest.fixture(scope="module")
def filled(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> World:
    """Give a pipeline of which a file has come to silver."""
    made = world(
        spark,
        tmp_path_factory.mktemp("publish"),
        gold=gold("not-yet", "127.0.0.1:1"),
        quality=None,
        small=False,
    )
    made.land("0.jsonl", [click(n, minute=10 * n) for n in range(12)])
    made.run(hops=TO_SILVER)
    return made


@pytest.fixture
def played(filled: World, tmp_path: Path, kafka: Kafka) -> World:
    """Give a copy, with a topic that does not exist yet, and another landing folder."""
    own = replace(filled.copied(tmp_path / "copy"), landing=tmp_path / "landing")
    own.landing.mkdir()
    return own.redefined(gold=gold(f"visits-{uuid.uuid4().hex}", kafka.bootstrap))


def topic_of(played: World) -> str:
    return played.pipeline.published[_VISITS].topic


def go(played: World, *, hops: Sequence[Hop] = HOPS) -> list[str]:
    """Run hops as the command does; give what it says."""
    said: list[str] = []
    context = replace(played.context, progress=Progress(said.append))
    run_hops(context, hops, parse_trigger(AVAILABLE_NOW), publishes=True)
    return said


def assert_same(played: World, kafka: Kafka) -> None:
    assert_applied(kafka, topic_of(played), played.lake, _VISITS)


def values_by_key(found: Iterable[tuple[str, dict[str, Any], bytes]]) -> dict[str, list[bytes]]:
    by_key = defaultdict(list)
    for key, _, value in found:
        by_key[key].append(value)
    return dict(by_key)


@pytest.mark.long
def test_a_consumer_that_applies_the_records_has_the_table(played: World, kafka: Kafka) -> None:
    topic, table = topic_of(played), played.lake.table(_VISITS)
    said = go(played, hops=["gold"])[-1]
    assert re.search(rf"publish gold\.visits, versions \d+ to \d+, to topic {topic}", said)
    assert_same(played, kafka)
    # Sessions of user 0 are bridged: rows are deleted; of another a value changes.
    played.land("1.jsonl", [click(100, minute=25), click(101, minute=10.5, value=0.01)])
    go(played)
    values = [value for _, value, _ in changes_on(kafka, topic)]
    assert {value["op"] for value in values} == {"upsert", "delete"}
    assert {value["table"] for value in values} == {_VISITS}
    assert_same(played, kafka)
    count, version = len(values), newest_version(table)
    go(played, hops=["gold"])
    assert newest_version(table) == version
    # Files are rewritten, and rows computed anew in another generation: none of them changes.
    compact(played.spark, table)
    rebuild_gold(played.context)
    go(played, hops=["gold"])
    assert len(kafka.records(topic)) == count
    # A rollback is a version too, although the next one is as before.
    played.spark.sql(f"RESTORE TABLE {table.sql} TO VERSION AS OF 0")
    rebuild_gold(played.context)
    played.land("2.jsonl", [click(103, minute=301)])
    go(played)
    last, found = last_commit(table), [value for _, value, _ in changes_on(kafka, topic)]
    deleted = [one for one in found if (one["generation"], one["op"]) == ("g3", "delete")]
    assert len(deleted) == len(written_rows(played.lake, _VISITS)) - 1
    newest = max(found, key=lambda value: int(value["version"]))
    assert last is not None
    assert (newest["generation"], newest["batch"]) == ("g3", last.batch)
    assert_same(played, kafka)
    [status] = read_status(played.lake, played.pipeline).topics
    assert (status.topic, status.version, status.waiting) == (topic, newest["version"], 0)


class CutOffError(Exception):
    """What a run dies of."""


def die(*_: object) -> None:
    raise CutOffError


_KILLED = """
import os, signal
from tidelake import cli
from tidelake.runtime import publish
def die(*arguments):
    os.killpg(0, signal.SIGKILL)
publish._Publication._send_change = die
cli.main()
"""


def _kill_a_run_of_gold(played: World) -> None:
    where = ["--hop", "gold", "--root", str(played.environment.root)]
    done = subprocess.run(
        [sys.executable, "-c", _KILLED, "run", played.pipeline.file, *where],
        start_new_session=True,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()


@pytest.mark.parametrize("is_killed", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_run_that_died_loses_nothing_and_what_repeats_is_the_same(
    played: World, kafka: Kafka, monkeypatch: pytest.MonkeyPatch, is_killed: bool
) -> None:
    go(played, hops=["gold"])
    table, first = played.lake.table(_VISITS), changes_on(kafka, topic_of(played))
    played.land("1.jsonl", [click(100, minute=25), click(101, minute=10.5)])
    played.run(hops=TO_SILVER)
    # Before the first record is sent.
    if is_killed:
        _kill_a_run_of_gold(played)
    else:
        with monkeypatch.context() as patch, pytest.raises(CutOffError):
            patch.setattr(publish._Publication, "_send_change", die)
            go(played, hops=["gold"])
    reached, last = published_to(table), last_commit(table)
    assert reached is not None
    assert last is not None
    assert last.version > reached.version
    assert changes_on(kafka, topic_of(played)) == first

    # Another version; then the run dies with all records sent, before it knows.
    played.land("2.jsonl", [click(105, minute=26)])
    with monkeypatch.context() as patch, pytest.raises(CutOffError):
        patch.setattr(publish._Publication, "_save", die)
        go(played)
    sent = values_by_key(one for one in changes_on(kafka, topic_of(played)) if one not in first)
    assert max(len(values) for values in sent.values()) == 2
    go(played, hops=["gold"])
    found = values_by_key(one for one in changes_on(kafka, topic_of(played)) if one not in first)
    assert found == {key: [*values, *values] for key, values in sent.items()}
    assert_same(played, kafka)


@pytest.mark.long
def test_what_cannot_be_published_is_told_and_the_tables_are_committed(
    played: World, kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, table = topic_of(played), played.lake.table(_VISITS)
    away = played.redefined(gold=gold(topic, f"127.0.0.1:{a_free_port()}"))
    with pytest.raises(UnpublishedError) as caught:
        go(away, hops=["gold"])
    assert caught.value.exit_code == 1
    assert re.search(
        r"clickstream, publishing gold\.visits to topic .* stopped: no Kafka broker can be reached "
        r"\(.*\)\. Check publish\.bootstrap.*\nThe tables are committed, and the next run",
        str(caught.value),
    )
    assert read(away.lake, "ops.epochs", "epoch") == [(1,)]
    assert status_of(away) == (None, None)
    # Dies with all rows sent, and goes on in the same topic.
    with monkeypatch.context() as patch, pytest.raises(CutOffError):
        patch.setattr(publish._Publication, "_record", die)
        go(played, hops=["gold"])
    sent = values_by_key(changes_on(kafka, topic))
    go(played, hops=["gold"])
    again = values_by_key(changes_on(kafka, topic))
    assert again == {key: [*values, *values] for key, values in sent.items()}
    assert_same(played, kafka)
    # An environment that publishes nothing.
    quiet = replace(played, environment=played.environment.model_copy(update={"publish": False}))
    for part in (1, 2):
        played.land(f"{part}.jsonl", [click(100 + part, minute=24 + part)])
        go(quiet)
    count = len(kafka.records(topic))
    reached = published_to(table)
    assert reached is not None
    assert status_of(played) == (reached.version, 2)
    # Maintenance keeps what waits; a VACUUM by hand does not.
    later, week = datetime.now(UTC) + timedelta(days=9), timedelta(days=7)
    plans = plan_upkeep(played.lake, played.pipeline, horizon=week, now=later)
    [plan] = [plan for plan in plans if plan.table == table]
    assert plan.keep > timedelta(days=9)
    assert plan.needs[0].by == f"topic {topic} has not got further"
    vacuum(played.spark, table, hours=0)
    with pytest.raises(RefusedError, match=r"(?s): the files or .* are gone\. Give the table"):
        go(played, hops=["gold"])
    assert len(kafka.records(topic)) == count
    # An empty topic begins with all rows; one with records of another origin gets none.
    kafka.drop(topic)
    assert f"publish topic {topic} was recreated" in go(played, hops=["gold"])
    assert {value["before"] is None for _, value, _ in changes_on(kafka, topic)} == {True}
    assert_same(played, kafka)
    foreign = kafka.topic()
    kafka.send(foreign, [b"of another"])
    with pytest.raises(RefusedError, match=r"the topic has records already, and gold\.visits has"):
        go(played.redefined(gold=gold(foreign, kafka.bootstrap)), hops=["gold"])
    # Where the broker cannot be asked, as through Spark Connect, the topic is read.
    monkeypatch.setattr(publish, "ensure_topic", lambda *_: None)
    with pytest.raises(RefusedError, match=r"the topic has records already, and gold\.visits has"):
        go(played.redefined(gold=gold(foreign, kafka.bootstrap)), hops=["gold"])
    assert len(kafka.records(foreign)) == 1


def test_a_topic_without_a_record_is_told_from_one_with_some(
    spark: SparkSession, kafka: Kafka
) -> None:
    source = KafkaSource(kind="kafka", bootstrap=kafka.bootstrap, topic="unused")
    filled, empty = kafka.topic(), kafka.topic()
    kafka.send(filled, [b"1"])
    names = filled, empty, "of-nobody"
    assert [has_records(spark, source, name) for name in names] == [True, False, False]


def status_of(played: World) -> tuple[int | None, int | None]:
    [status] = read_status(played.lake, played.pipeline).topics
    return status.version, status.waiting
