"""What a Kafka source means: Spark's options, offsets that are held against each other, loss."""

from __future__ import annotations

import json
import shlex
import socket
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock, Mock

import pytest
from pydantic import ValidationError
from pyspark.sql import SparkSession

from tidelake.config import KafkaSource
from tidelake.config.loading import Address, address_of, is_address
from tidelake.errors import LostError, RefusedError, SourceError, UsageError
from tidelake.kafka import broker, client, topic_source
from tidelake.kafka.broker import down, find, log_tail
from tidelake.kafka.client import offset_difference, planned_offsets
from tidelake.kafka.topic_source import (
    Topic,
    failure,
    lost,
    options_of,
    refuse_changed,
    refuse_expired,
    refuse_unselected,
)
from tidelake.spark.internals import JavaError


def _source(**more: object) -> KafkaSource:
    return KafkaSource.model_validate(
        {"kind": "kafka", "bootstrap": "h:1", "topic": "clicks", **more}
    )


def test_a_broker_that_refuses_access_is_not_said_to_be_away() -> None:
    away = str(failure("h:1", None))
    assert away == "the Kafka broker at h:1 does not answer: not in time. Check it, then run again."
    told = "org.apache.kafka.common.errors.TopicAuthorizationException: Not authorized"
    assert str(failure("h:1", f"{told}\nat x")) == (
        f"the Kafka broker at h:1 refuses access: {told}. "
        "Check the options and the rights of the client, then run again."
    )


def test_records_that_are_gone_always_stop_a_stream_and_aborted_ones_are_not_read() -> None:
    told = options_of(_source())
    assert told["failOnDataLoss"] == "true"
    assert told["kafka.isolation.level"] == "read_committed"
    assert (told["subscribe"], told["startingOffsets"]) == ("clicks", "earliest")
    assert "maxOffsetsPerTrigger" not in told


def test_the_brokers_may_be_a_reference_whose_value_is_not_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = _source(bootstrap="env:BROKERS")
    monkeypatch.setenv("BROKERS", "127.0.0.1:1")
    assert options_of(source)["kafka.bootstrap.servers"] == "127.0.0.1:1"
    with pytest.raises(SourceError, match=r"\(env:BROKERS: .*Check source\.bootstrap") as refused:
        client.refuse_unreachable(source.bootstrap)
    assert "127.0.0.1" not in str(refused.value)
    monkeypatch.delenv("BROKERS")
    with pytest.raises(UsageError, match="the variable BROKERS, which is not set"):
        options_of(source)


def test_a_credential_of_databricks_is_used_by_spark_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where Kafka's own clients are there: they would connect without it."""
    source = _source(options={"databricks.serviceCredential": "msk"})
    monkeypatch.setattr(topic_source, "jvm_with", lambda *_: Mock())
    spark = Mock()
    assert topic_source.asks_brokers(spark, _source())
    assert not topic_source.asks_brokers(spark, source)
    assert topic_source.describe_topics(spark, source, ["clicks"]) is None
    assert topic_source.ensure_topic(spark, source, "clicks") is None
    with pytest.raises(
        SourceError, match=r"only Spark .*: option databricks\.serviceCredential is"
    ):
        client.ends_of(source, {"clicks": {"0": 1}})


def test_a_topic_whose_policy_may_not_be_asked_for_counts_as_compacted() -> None:
    admin = Mock()
    admin.describeConfigs.side_effect = JavaError("", SimpleNamespace(_target_id="o1"))
    assert topic_source._compacted(MagicMock(), admin, ["t"]) == {"t": True}


@pytest.mark.parametrize("port", ["one", "9" * 30])
def test_a_port_that_is_none_is_told_with_its_address(port: str) -> None:
    with pytest.raises(SourceError, match=f"localhost:{port}: not HOST:PORT"):
        client.refuse_unreachable(f"localhost:{port}")


def test_options_that_kafkas_client_refuses_are_told_with_the_reason(spark: SparkSession) -> None:
    source = _source(options={"kafka.security.protocol": "NOPE"})
    with pytest.raises(SourceError, match=r"does not start: .*NOPE.*Check .* the options"):
        topic_source.describe_topics(spark, source, ["clicks"])


def test_a_batch_waits_for_its_broker_for_a_minute() -> None:
    assert options_of(_source())["kafkaConsumer.pollTimeoutMs"] == "60000"


def test_a_pattern_limits_and_an_instant_reach_spark() -> None:
    told = options_of(
        _source(
            topic=None,
            pattern="c.*",
            starting="2026-01-05T01:00:00+01:00",
            max_offsets_per_trigger=10,
            min_partitions=8,
        )
    )
    assert told["subscribePattern"] == "c.*" and "subscribe" not in told
    assert told["startingTimestamp"] == "1767571200000" and "startingOffsets" not in told
    assert (told["maxOffsetsPerTrigger"], told["minPartitions"]) == ("10", "8")


def test_several_topics_reach_spark_as_one_subscription() -> None:
    assert options_of(_source(topic=["clicks", "taps"]))["subscribe"] == "clicks,taps"
    for names in ([], ["a,b"], ["a", "a"], ["a", 1], ["${x}"]):
        with pytest.raises(ValidationError, match="topic"):
            _source(topic=names)


def test_a_reference_becomes_its_value_at_the_moment_of_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    option = "kafka.ssl.keystore.password"
    source = _source(options={option: "env:STORE", "kafka.ssl.keystore.type": "PEM"})
    with pytest.raises(UsageError, match=f"option {option} refers to the variable STORE"):
        options_of(source)
    monkeypatch.setenv("STORE", "hunter2")
    assert options_of(source)[option] == "hunter2"
    assert "hunter2" not in repr(source)


@pytest.mark.parametrize(
    ("held", "told"),
    [
        ({"0": (0, 9), "1": (3, 3)}, ""),
        ({"0": (7, 9), "1": (0, 3)}, "clicks partition 0: offsets 5 to 6 are gone"),
        ({"0": (0, 4), "1": (0, 3)}, "clicks partition 0: ends at offset 4, but was read up to 5"),
        ({"0": (0, 5)}, "clicks partition 1: ends at offset 0"),
    ],
)
def test_what_is_gone_is_told_by_partition_and_offset(
    held: dict[str, tuple[int, int]], told: str
) -> None:
    reached = {"clicks": {"0": 5, "1": 3}}
    found = lost(reached, {"clicks": "a"}, {"clicks": Topic("a", held)})
    assert found.startswith(told) and bool(found) is bool(told)


def test_a_topic_that_the_source_no_longer_names_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where topics cannot be described, unless they are selected by a pattern."""
    monkeypatch.setattr(topic_source, "jvm_with", lambda *_: None)
    refuse_unselected(Mock(), _source(topic="clicks, taps"), ["taps", "clicks"])
    refuse_unselected(Mock(), _source(topic=None, pattern="t.*"), ["clicks"])
    with pytest.raises(RefusedError, match=r"reads topic taps, and the source is topic clicks now"):
        refuse_unselected(Mock(), _source(), ["taps", "clicks"])


def test_an_added_topic_must_begin_at_offset_0() -> None:
    topics = {"old": Topic("a", {"0": (7, 9)}), "new": Topic("b", {"0": (0, 2), "1": (4, 4)})}
    refuse_expired(topics, {"old", "new"})
    with pytest.raises(
        RefusedError, match=r"topic new was added, and its partition 1 .* offset 4:"
    ):
        refuse_expired(topics, {"old"})


def test_a_topic_of_another_id_is_another_topic() -> None:
    reached = {"clicks": {"0": 5}}
    now = {"clicks": Topic("b", {"0": (0, 50)})}
    assert "was deleted and recreated" in lost(reached, {"clicks": "a"}, now)
    assert "no longer exists" in lost(reached, {"clicks": "a"}, {})
    # Of a note from before ids were noted nothing more can be said.
    assert lost(reached, {}, now) == ""


@pytest.mark.parametrize(
    ("was", "topic_id", "kind", "why"),
    [
        ("h:1, h:2", "b", LostError, r"clicks was deleted and recreated: its offsets"),
        ("env:BROKERS", "b", LostError, r"clicks was deleted and recreated: its offsets"),
        ("old:1", "b", RefusedError, r"clicks is another topic than before \(it was read from old"),
        # The same cluster, at another address.
        ("old:1", "a", LostError, r"clicks partition 0: ends at offset 4, but was read up to 5\."),
        ("old:1", "", RefusedError, r".* 5 \(it .* old:1; source\.bootstrap is h:1\)\. .* former"),
    ],
)
def test_topics_of_another_cluster_are_not_said_to_be_recreated(
    monkeypatch: pytest.MonkeyPatch, was: str, topic_id: str, kind: type[Exception], why: str
) -> None:
    topics = {"clicks": Topic(topic_id or "a", {"0": (0, 4)})}
    monkeypatch.setattr(topic_source, "describe_topics", lambda *_, **__: topics)
    note = {"offsets": {"clicks": {"0": 5}}, "bootstrap": was}
    note |= {"topics": {"clicks": "a"} if topic_id else {}}
    with pytest.raises(RefusedError, match=f"clicks, hop bronze: {why}") as refused:
        refuse_changed(Mock(), _source(), note, {}, "clicks, hop bronze")
    assert type(refused.value) is kind


def test_a_checkpoint_that_is_not_where_bronze_ends_is_told(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    planned = {"clicks": {"0": 5, "10": 7}}
    (tmp_path / "offsets" / "3").write_text("v1\n{}\n" + json.dumps(planned))
    assert planned_offsets(tmp_path, 3) == planned
    assert planned_offsets(tmp_path, 4) == {}
    assert offset_difference(planned, planned) == ""
    told = offset_difference(planned, {"clicks": {"0": 5, "10": 9}})
    assert told == "clicks partition 10 at offset 7, bronze at 9"


@pytest.mark.parametrize("text", ["kafka://h:1", "kafka:///t", "kafka://h:1/a/b", "files/x"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="write kafka://HOST:PORT/TOPIC"):
        address_of(text)


def test_an_address_names_brokers_and_topic() -> None:
    assert is_address("kafka://a:1,b:2/clicks") and not is_address("/kafka")
    assert address_of("kafka://a:1,b:2/clicks") == Address("a:1,b:2", "clicks")


def test_where_no_broker_was_started_none_is_found(tmp_path: Path) -> None:
    assert find(tmp_path) is None
    assert down(tmp_path) is False
    assert log_tail(tmp_path) == ""


def test_a_broker_that_accepts_connections_and_never_answers_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client, "_SECONDS", 0.2)
    monkeypatch.setattr(client, "_PRODUCE_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        at = f"127.0.0.1:{silent.getsockname()[1]}"
        asked = (
            lambda: client.ends_of(_source(bootstrap=at), {"clicks": {"0": 1}}),
            lambda: client.first_records(Address(at, "clicks"), count=1),
            lambda: client.produce(Address(at, "clicks"), [b"{}"]),
        )
        # The answer that the client gives itself after a while, and none at all.
        for grace in (2.0, -0.15):
            monkeypatch.setattr(client, "_GRACE_SECONDS", grace)
            for ask in asked:
                with pytest.raises(
                    SourceError, match=f"Kafka broker {at}: it accepts connections and does not"
                ):
                    ask()


def test_a_damaged_note_of_a_broker_is_none(tmp_path: Path) -> None:
    for text in ("", "[]", '{"port": 1}'):
        (tmp_path / "broker.json").write_text(text)
        assert find(tmp_path) is None
        assert not down(tmp_path)


def test_a_folder_below_a_file_has_no_broker_and_gets_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker, "_java_command", list)
    below = tmp_path / "file" / "kafka"
    below.parent.touch()
    assert not down(below)
    with pytest.raises(UsageError, match="file/kafka cannot be written: Not a directory"):
        broker.up(below, 0)
    (tmp_path / broker._LOG).mkdir()
    with pytest.raises(UsageError, match="cannot be written: Is a directory"):
        broker.up(tmp_path, 0)


def test_the_command_for_another_port_can_be_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker, "_PORT_SECONDS", 0.1)
    folder = str(tmp_path / "it's here")
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(UsageError) as refused:
        broker.up(Path(folder), taken.getsockname()[1])
    command = str(refused.value).partition(" take any: ")[2]
    assert shlex.split(command) == ["tidelake", "kafka", "up", "--port", "0", "--dir", folder]


def test_a_process_that_is_no_broker_is_left_alone(tmp_path: Path) -> None:
    """After a restart of the machine another process may have the number."""
    state = {"folder": str(tmp_path), "port": 1, "process": 1}
    (tmp_path / "broker.json").write_text(json.dumps(state))
    found = find(tmp_path)
    assert found is not None and not found.runs
    assert down(tmp_path) is False


def test_a_broker_that_goes_away_and_comes_back_is_told_once_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client, "_EVERY_SECONDS", 0)
    told: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        contact = client.Contact(f"127.0.0.1:{port}", told.append)
        contact.look()
    assert told == []
    contact.look()
    contact.look()
    with socket.create_server(("127.0.0.1", port)):
        contact.look()
        contact.look()
    waits, resumed = told
    assert waits.startswith(f"bronze  waits: no Kafka broker can be reached (127.0.0.1:{port}: ")
    assert resumed == "bronze  resumed: a Kafka broker can be reached again"
