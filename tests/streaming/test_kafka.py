"""A real broker: each record once and verbatim, and what is gone is never passed over."""

from __future__ import annotations

import json
import shutil
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.brokers import Kafka, following, until_decided
from tests.caretaker import clearing_up
from tests.fates import arriving_at
from tests.recovery.failpoints import armed
from tests.running import START, click, read
from tests.worlds import TO_SILVER
from tidelake.bronze.records import HEADERS_DDL
from tidelake.cli import app
from tidelake.cli.exits import run_command
from tidelake.config import KafkaSource, Limits, load_environment, load_pipeline
from tidelake.delta.log import commits, last_commit
from tidelake.delta.tables import Hop
from tidelake.errors import GenerationError, LostError, RefusedError, SourceError
from tidelake.kafka import client, topic_source
from tidelake.kafka.broker import kill
from tidelake.ledger.terms import read_ledger
from tidelake.ops.status import read_status
from tidelake.replay.repairing import repair
from tidelake.replay.verify import verify
from tidelake.runtime import bronze_hop, runner, triggers
from tidelake.runtime.bronze_hop import BronzeHop
from tidelake.runtime.hop import Heads, HopQuery
from tidelake.runtime.progress import LimitChangedError

_BRONZE: tuple[Hop, ...] = ("bronze",)


def _clicks(first: int, count: int) -> list[bytes]:
    return [click(n, minute=n) for n in range(first, first + count)]


def test_each_record_comes_once_and_verbatim_also_through_a_broker_s_death(
    spark: SparkSession, tmp_path: Path, kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run says that it waits for its broker, and goes on by itself."""
    monkeypatch.setattr(client, "_EVERY_SECONDS", 0)
    topic = kafka.topic()
    headers = [("trace", b"\x00\xff"), ("empty", None)]
    kafka.send(topic, _clicks(0, 20), key=b"k\xfe", headers=headers)
    kafka.send(topic, [b"no json", None, b""])
    kafka.send_and_abort(topic, [b"never"] * 10)
    clicks = following(spark, tmp_path, kafka, topic=topic)
    clicks.run(_BRONZE)
    kafka.send(topic, _clicks(10, 20))

    def go_away() -> None:
        kill(kafka.broker)
        # The run looks every second.
        time.sleep(3)
        kafka.start()

    with armed("bronze/read/before", go_away):
        lines = clicks.run()
    assert [line.split(":")[0] for line in lines if "batch" not in line] == [
        "bronze  waits",
        "bronze  resumed",
    ]
    # The broker's own client says what the topic holds.
    held = kafka.records(topic)
    assert len(held) == 43
    stored = read(clicks.lake, "bronze.clicks", "record_id, key, payload, headers")
    assert [(i, k, p) for i, k, p, _ in stored] == [(i, k, p) for i, k, p, _ in held]
    told = [None if h is None else [(one["key"], one["value"]) for one in h] for *_, h in stored]
    assert told == [h for *_, h in held]
    books = read_ledger(clicks.lake, clicks.pipeline).to_json()
    assert books["balanced"], books["problems"]
    assert (books["bronze"], books["silver"], books["duplicates"]) == (43, 30, 10)
    # Ten records were given up, and each partition that had any got a marker.
    ends = sum(kafka.ends(topic).values())
    assert books["source_offsets"] == {
        "offered": ends,
        "taken": 43,
        "without_record": ends - 43,
    }
    assert ends - 43 > 10
    assert read(clicks.lake, "gold.by_user", "sum(events)") == [(30,)]


def test_records_that_are_compacted_away_during_a_batch_are_in_it(
    spark: SparkSession, tmp_path: Path, kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that it holds as many rows as it counts."""
    other, topic = kafka.topic(), kafka.topic(partitions=1, is_compacted=True)
    kafka.send(topic, _clicks(0, 5), key=b"k")
    clicks = following(spark, tmp_path, kafka, topic=topic)
    assert isinstance(clicks.pipeline.source, KafkaSource)
    topics = topic_source.describe_topics(spark, clicks.pipeline.source, [topic, other])
    assert topics is not None
    assert {name: one.is_compacted for name, one in topics.items()} == {topic: True, other: False}
    read_once, real = tmp_path / "read", bronze_hop.identify

    def compacting(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        was_read = read_once.exists()
        read_once.touch()
        yield from (batch.slice(1) if was_read else batch for batch in batches)

    def identify(*arguments: Any) -> DataFrame:
        rows = real(*arguments)
        return rows.mapInArrow(compacting, rows.schema)

    monkeypatch.setattr(bronze_hop, "identify", identify)
    clicks.run(_BRONZE)
    assert read_once.exists()
    (batch, _) = commits(clicks.lake.bronze("clicks"))
    assert batch.note["records"] == batch.added_rows == 5


@pytest.mark.long
def test_an_idle_partition_holds_the_watermark_back_no_longer(
    spark: SparkSession, tmp_path: Path, kafka: Kafka
) -> None:
    """Until its last record arrived five minutes before the batch's."""
    topic, seen = kafka.topic(), []
    clicks = following(spark, tmp_path, kafka, topic=topic)
    # The first goes to one partition, the second to the other.
    for after, minutes in ((0, (60, 10)), (4, (120,)), (10, (121,))):
        kafka.send(topic, [click(minute, minute=minute) for minute in minutes])
        with arriving_at(START + timedelta(days=1, minutes=after)):
            clicks.run(TO_SILVER)
        told = read_status(clicks.lake, clicks.pipeline)
        assert told.watermark is not None
        seen.append(((told.watermark - START) // timedelta(minutes=1), told.idle))
    # Ten minutes behind the slower partition, then behind the only one that is not idle.
    assert seen == [(0, ()), (0, ()), (111, (f"{topic}:1",))]
    assert verify(clicks.context).equal


def test_the_commands_start_and_stop_a_broker(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "broker"
    folder.mkdir()

    def told(*words: str) -> dict[str, Any]:
        assert run_command(app, ["kafka", *words, "--dir", str(folder), "--json"]) == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    with clearing_up(folder):
        started = told("up", "--port", "0")
        host, port = started["bootstrap"].split(":")
        socket.create_connection((host, int(port)), 5).close()
        # Up is up: a second start finds it.
        assert told("up", "--port", "0") == started
        assert told("down") == {"stopped": True, "dir": str(folder)}
        with pytest.raises(OSError, match="refused"):
            socket.create_connection((host, int(port)), 5)
    assert told("down")["stopped"] is False


@pytest.mark.long
def test_a_run_that_waited_long_enough_ends_by_name_and_the_next_repeats_its_batch(
    spark: SparkSession, tmp_path: Path, kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_source, "_POLL_MILLISECONDS", 2000)
    topic = kafka.topic()
    kafka.send(topic, _clicks(0, 8))
    waits = {f"kafka.{of}.timeout.ms": 2000 for of in ("request", "default.api")}
    clicks = following(spark, tmp_path, kafka, topic=topic, options=waits)
    try:
        with (
            pytest.raises(SourceError, match=r"hop bronze stopped: the Kafka broker does not ans"),
            armed("bronze/read/before", lambda: kill(kafka.broker)),
        ):
            clicks.run(_BRONZE)
    finally:
        kafka.start()
    assert read(clicks.lake, "bronze.clicks", "record_id") == []
    clicks.run(_BRONZE)
    held = [row[0] for row in kafka.records(topic)]
    assert [row[0] for row in read(clicks.lake, "bronze.clicks", "record_id")] == held


@pytest.mark.long
def test_a_pattern_takes_new_topics_and_new_partitions(
    spark: SparkSession, tmp_path: Path, kafka: Kafka
) -> None:
    first = kafka.topic(name="orders-eu", partitions=1)
    kafka.send(first, _clicks(0, 5))
    orders = following(spark, tmp_path, kafka, pattern="orders-.*", max_offsets_per_trigger=2)
    orders.run(_BRONZE)
    second = kafka.topic(name="orders-us", partitions=1)
    kafka.send(second, _clicks(5, 3))
    kafka.widen(first, 3)
    kafka.send(first, _clicks(8, 6))
    orders.run(_BRONZE)
    held = [row[0] for topic in (first, second) for row in kafka.records(topic)]
    assert [row[0] for row in read(orders.lake, "bronze.clicks", "record_id")] == sorted(held)


@pytest.mark.long
def test_a_topic_that_the_source_no_longer_names_is_refused_before_a_batch_is_planned(
    spark: SparkSession, tmp_path: Path, kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that it can be named again; Spark would plan without it, and call its records lost."""
    kept, left, expired = (kafka.topic(partitions=1) for _ in range(3))
    kafka.send(kept, _clicks(0, 2))
    kafka.send(left, _clicks(2, 2))
    kafka.send(expired, _clicks(4, 3))
    kafka.forget(expired, {0: 2})
    both = following(spark, tmp_path, kafka, topic=[kept, left])
    with monkeypatch.context() as patch, pytest.raises(SourceError, match="died"):
        patch.setattr(BronzeHop, "write", Mock(side_effect=SourceError("died")))
        both.run(_BRONZE)
    # The first batch is planned, and not committed.
    with pytest.raises(RefusedError, match=f"bronze reads topic {left}, "):
        following(spark, tmp_path, kafka, topic=kept).run(_BRONZE)
    both.run(_BRONZE)
    offsets = both.lake.checkpoints("clicks", "bronze") / "g1" / "offsets"
    planned = sorted(offsets.iterdir())
    kafka.send(kept, _clicks(7, 1))
    for source, why in (
        ({"topic": kept}, f"bronze reads topic {left}, and the source is topic {kept} now"),
        ({"pattern": f"{kept}.*"}, f"bronze reads topic {left}, .* topics matching {kept}"),
        ({"topic": [kept, left, expired]}, f"{expired} was added, and its partition 0 .* offset 2"),
    ):
        other = following(spark, tmp_path, kafka, **source)
        with pytest.raises(RefusedError, match=why):
            other.run(_BRONZE)
        # The broker is not asked.
        assert ("bronze" in runner.refusals(other.context)) == (expired not in why)
    assert sorted(offsets.iterdir()) == planned
    # A plan that was made without it, as versions did that did not compare topics, is dropped.
    newest = max(offsets.glob("[0-9]*"), key=lambda file: int(file.name))
    *head, ends = newest.read_text(encoding="utf-8").splitlines()
    alone = json.dumps({kept: json.loads(ends)[kept]})
    following_one = offsets / str(int(newest.name) + 1)
    following_one.write_text("\n".join([*head, alone]), encoding="utf-8")
    with pytest.raises(GenerationError, match="tidelake repair clicks --hop bronze"):
        both.run(_BRONZE)
    repair(both.context, "bronze")
    both.run(_BRONZE)
    held = [row[0] for topic in (kept, left) for row in kafka.records(topic)]
    assert [row[0] for row in read(both.lake, "bronze.clicks", "record_id")] == sorted(held)


@pytest.mark.long
@pytest.mark.parametrize("starting", ["latest", "2999-01-01T00:00:00Z"])
def test_what_came_before_the_start_is_left_and_a_topic_that_was_deleted_is_named(
    spark: SparkSession,
    tmp_path: Path,
    kafka: Kafka,
    monkeypatch: pytest.MonkeyPatch,
    starting: str,
) -> None:
    topic = kafka.topic()
    kafka.send(topic, _clicks(0, 4))
    clicks = following(spark, tmp_path, kafka, topic=topic, starting=starting)
    clicks.run(_BRONZE)
    assert read(clicks.lake, "bronze.clicks", "record_id") == []
    kafka.send(topic, _clicks(4, 2))
    clicks.run(_BRONZE)
    before = read(clicks.lake, "bronze.clicks", "record_id")
    assert len(before) == 2
    first = [commit for commit in commits(clicks.lake.bronze("clicks")) if commit.batch >= 0][-1]
    assert first.note["from"] == {topic: {"0": 2, "1": 2}}

    running = BronzeHop(clicks.context)
    kafka.drop(topic)
    for _ in range(2):
        with pytest.raises(RefusedError, match=f"{topic} no longer exists"):
            clicks.run(_BRONZE)
    assert read(clicks.lake, "bronze.clicks", "record_id") == before
    # Made anew during a run, it stops that one before its records are taken.
    kafka.topic(name=topic)
    # Grown past the old end, so that offsets alone tell nothing.
    kafka.send(topic, _clicks(100, 18))
    with pytest.raises(LostError, match="was deleted and recreated"):
        running._offsets(0, [], first.note)
    # A worker of Spark Connect, which cannot ask for ids, passes them on.
    monkeypatch.setattr(bronze_hop, "describe_topics", lambda *_, **__: None)
    worker = BronzeHop(clicks.context, fence=running.fence)
    columns = f"key binary, payload binary, headers {HEADERS_DDL}, source string"
    nothing = spark.createDataFrame([], f"{columns}, source_timestamp timestamp, _position string")
    worker.take(nothing, next_batch := running.fence.closed + 1)
    last = last_commit(clicks.lake.bronze("clicks"))
    assert last is not None and (last.batch, last.added_rows) == (next_batch, 0)
    assert last.note["topics"] == first.note["topics"] != {}


@pytest.mark.long
def test_a_checkpoint_that_is_gone_or_old_is_refused_and_repaired(
    spark: SparkSession, tmp_path: Path, kafka: Kafka
) -> None:
    topic = kafka.topic()
    kafka.send(topic, _clicks(0, 6))
    clicks = following(spark, tmp_path, kafka, topic=topic, max_offsets_per_trigger=4)
    clicks.run(_BRONZE)
    checkpoint = clicks.lake.checkpoints("clicks", "bronze") / "g1"
    newest = max((checkpoint / "offsets").glob("[0-9]*"), key=lambda file: int(file.name))
    (checkpoint / "offsets" / f".{newest.name}.crc").unlink(missing_ok=True)
    newest.write_text(newest.read_text().replace(":3", ":2"))
    with pytest.raises(GenerationError, match=f"{topic} partition 0 at offset 2, bronze at 3"):
        clicks.run(_BRONZE)
    shutil.rmtree(checkpoint)
    with pytest.raises(GenerationError, match="tidelake repair clicks --hop bronze"):
        clicks.run(_BRONZE)
    assert repair(clicks.context, "bronze").why == ""
    kafka.send(topic, _clicks(6, 2))
    clicks.run(("bronze", "silver"))
    held = [row[0] for row in kafka.records(topic)]
    assert [row[0] for row in read(clicks.lake, "bronze.clicks", "record_id")] == held
    assert read_ledger(clicks.lake, clicks.pipeline).balanced


@pytest.mark.long
def test_what_arrives_during_a_batch_waits_until_silver_has_decided_that_batch(
    spark: SparkSession, tmp_path: Path, kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = kafka.topic()
    kafka.send(topic, _clicks(0, 5))
    clicks = following(spark, tmp_path, kafka, topic=topic)
    bronze, silver = clicks.lake.bronze("clicks"), clicks.lake.silver("clicks")
    undecided: list[int] = []
    real = BronzeHop.write

    def write(hop: BronzeHop, rows: DataFrame, batch: int, heads: Heads) -> None:
        added = [sum(commit.added_rows for commit in commits(one)) for one in (bronze, silver)]
        undecided.append(added[0] - added[1])
        real(hop, rows, batch, heads)
        if batch < 3:
            kafka.send(topic, _clicks(5 * (batch + 1), 5))

    monkeypatch.setattr(BronzeHop, "write", write)
    # However slow the machine is.
    monkeypatch.setattr(runner, "_LONGEST_TURN_SECONDS", 300)
    monkeypatch.setattr(triggers, "_LIGHT_SECONDS", 300)
    until_decided(clicks, 20, [])
    assert undecided == [0, 0, 0, 0]


@pytest.mark.long
def test_a_limit_that_changes_while_a_run_goes_on_loses_and_doubles_nothing(
    spark: SparkSession, tmp_path: Path, kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = kafka.topic()
    kafka.send(topic, _clicks(0, 20))
    clicks = following(spark, tmp_path, kafka, topic=topic, max_offsets_per_trigger=8)
    # About one commit of bronze, so that silver has a second batch whenever it begins.
    small = clicks.environment.model_copy(update={"limits": Limits(silver_bytes="8k")})
    clicks = replace(clicks, environment=small)
    # Each hop learns once, from its second batch.
    lower = {8: 4, 8 << 10: 4 << 10}
    ended: list[str] = []
    real = HopQuery.check

    def check(hop: HopQuery, query: StreamingQuery, *seconds: float) -> None:
        try:
            real(hop, query, *seconds)
        except LimitChangedError:
            ended.append(f"{hop.hop} {query.exception()}")
            raise

    monkeypatch.setattr(HopQuery, "check", check)
    monkeypatch.setattr(triggers, "next_limit", lambda *_, limit, **__: lower.get(limit, limit))
    lines: list[str] = []
    until_decided(clicks, 20, lines)
    notes = [commit.note for commit in commits(clicks.lake.bronze("clicks"))][-2::-1]
    assert [note["limit"] for note in notes] == [8, 8, 4]
    assert [note["behind"][topic] for note in notes] == [{"0": n, "1": n} for n in (6, 2, 0)]
    told = [line.partition(" a batch")[0] for line in lines if " limit " in line]
    assert sorted(told) == [
        "bronze  limit 8 -> 4 records",
        "silver  limit 8,192 -> 4,096 bytes",
    ]
    # No query failed for it: each was stopped after a batch.
    assert sorted(ended) == ["bronze None", "silver None"]
    held = [row[0] for row in kafka.records(topic)]
    assert [row[0] for row in read(clicks.lake, "bronze.clicks", "record_id")] == held
    clicks.run()
    assert read(clicks.lake, "gold.by_user", "sum(events)") == [(20,)]
    assert read_ledger(clicks.lake, clicks.pipeline).balanced
    # Three for one partition, two for the other.
    kafka.send(topic, _clicks(20, 5))
    lag = read_status(clicks.lake, clicks.pipeline).source
    assert lag is not None and (lag.not_asked, lag.lag) == ("", 5)
    seen = [(one.partition, one.taken, one.end) for one in lag.partitions]
    assert seen == [(0, 10, 13), (1, 10, 12)]


def test_a_run_begins_with_the_topics_that_are_there_or_names_those_that_are_not(
    spark: SparkSession, tmp_path: Path, kafka: Kafka
) -> None:
    """A stream of no topic would read all later ones from their beginning."""
    topic = kafka.topic(partitions=1)
    for source, why in (
        ({"topic": [topic, "nosuch", "nor-this"]}, "there is no topic nosuch, nor-this at "),
        ({"pattern": "nosuch-.*"}, r"no topic matches nosuch-\.\* at "),
    ):
        with pytest.raises(SourceError, match=f"{why}{kafka.bootstrap} .known: .*{topic}"):
            BronzeHop(following(spark, tmp_path, kafka, **source).context)
    clicks = following(spark, tmp_path, kafka, topic=topic, starting="latest")
    # As earlier versions left it.
    sources = clicks.lake.checkpoints("clicks", "bronze") / "g1" / "sources"
    begun = sources / "0" / "0"
    begun.parent.mkdir(parents=True)
    for offsets in ("{}", f'{{"{topic}":{{"0":0}}}}'):
        begun.write_text(f"\0v1\n{offsets}")
        BronzeHop(clicks.context)
        assert sources.exists() == (offsets != "{}")
        begun.parent.mkdir(parents=True, exist_ok=True)


def test_no_broker_is_told_at_once(spark: SparkSession, tmp_path: Path, kafka: Kafka) -> None:
    clicks = following(spark, tmp_path, kafka, topic="t", bootstrap="127.0.0.1:1")
    with pytest.raises(SourceError, match=r"127\.0\.0\.1:1: .*refused.*tidelake kafka up"):
        clicks.run(_BRONZE)
    assert not clicks.lake.bronze("clicks").exists


def test_a_new_pipeline_is_inferred_from_the_first_records_of_a_topic(
    kafka: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    topic = kafka.topic(partitions=2)
    kafka.send(topic, [b'{"id": "e%d", "user": "u%d"}' % (n, n % 3) for n in range(40)])
    kafka.send_and_abort(topic, [b"gone"])

    source = f"kafka://{kafka.bootstrap}/{topic}"
    assert run_command(app, ["init", "clicks", "--source", source, "--lines", "30", "--yes"]) == 0

    clicks = load_pipeline("clicks", load_environment())
    assert isinstance(clicks.source, KafkaSource)
    assert (clicks.source.bootstrap, clicks.source.topic) == (kafka.bootstrap, topic)
    assert (clicks.event.id, clicks.event.time) == ("id", "source_timestamp")
    assert len(Path("tests/clicks.sample.jsonl").read_bytes().splitlines()) == 20


def test_a_topic_that_is_not_there_lists_those_that_are(
    kafka: Kafka,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    known, empty = kafka.topic(), kafka.topic()
    here = f"kafka://{kafka.bootstrap}"
    assert run_command(app, ["init", "x", "--source", f"{here}/nope", "--yes"]) == 2
    assert known in capsys.readouterr().err
    assert run_command(app, ["init", "x", "--source", f"{here}/{empty}", "--yes"]) == 2
    assert "holds no record" in capsys.readouterr().err
    assert not Path("conf").exists()
