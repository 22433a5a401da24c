"""What may be written under ``publish``, and what is refused before Spark starts."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.running import land
from tests.unit.handmade import SHOP, write_commit
from tests.unit.test_config_loading import CLOUD, GOOD, JOIN, LAPTOP, changed, violations, write
from tests.unit.test_json_schema import problems
from tidelake.cli import app
from tidelake.cli.exits import run_command
from tidelake.config import KafkaSource, load_pipeline
from tidelake.config.pipeline import written_out
from tidelake.config.table_settings import Publish, refuse_unset
from tidelake.delta.commit_metadata import hash_of
from tidelake.delta.positions import TopicPosition
from tidelake.delta.tables import Lake
from tidelake.errors import ConfigError, SourceError, UsageError
from tidelake.kafka.client import refuse_unreachable
from tidelake.kafka.topic_source import java_client_options, options_of

_TO = {"topic": "clicks.per_minute", "bootstrap": "h:1"}
_JAAS = "kafka.sasl.jaas.config"
_TOPICS = {"kind": "kafka", "bootstrap": "h:1", "topic": ["a", "b"]}


def published(**more: Any) -> dict[str, Any]:
    return changed(gold__0__publish=_TO | more)


def test_each_kind_of_gold_table_names_its_topic_and_the_definition_stays_the_same(
    tmp_path: Path,
) -> None:
    raw = published(options={"kafka.linger.ms": 5}) | {"joins": [JOIN | {"publish": _TO}]}
    raw["joins"][0]["publish"] = {"topic": "pairs", "bootstrap": "env:BROKERS"}
    pipeline = load_pipeline(write(tmp_path, raw), LAPTOP)
    assert {name: to.topic for name, to in pipeline.published.items()} == {
        "gold.per_minute": "clicks.per_minute",
        "gold.pairs": "pairs",
    }
    assert pipeline.published["gold.per_minute"].options == {"kafka.linger.ms": "5"}
    assert problems("pipeline", raw) == []
    plain = load_pipeline(write(tmp_path, GOOD), LAPTOP)
    assert plain.published == {}
    # A stored table is not another one because it is published.
    assert hash_of(pipeline.gold[0]) == hash_of(plain.gold[0])
    # `validate --resolved` shows it.
    assert written_out(pipeline)["gold"][0]["publish"]["topic"] == "clicks.per_minute"


@pytest.mark.parametrize(
    ("more", "path", "message"),
    [
        ({"topic": "a b"}, "topic", "'a b' is not a valid topic name"),
        ({"topic": None}, "topic", "must be text"),
        ({"bootstrap": " "}, "bootstrap", "must not be empty"),
        ({"options": {_JAAS: 'password="x"'}}, "options", f"option {_JAAS} contains a secret"),
        ({"options": {"acks": "1"}}, "options", "not a setting of a Kafka client"),
        ({"options": {"kafka.acks": 1}}, "options", "option kafka.acks is set by Tidelake"),
        # Spark takes names in any case.
        ({"options": {"kafka.Acks": 1}}, "options", "option kafka.Acks is set by Tidelake"),
        (
            {"options": {"kafka.partitioner.class": "org.x.RoundRobin"}},
            "options",
            "option kafka.partitioner.class is set by Tidelake",
        ),
        (
            {"options": {"kafka.partitioner.ignore.keys": "true"}},
            "options",
            "option kafka.partitioner.ignore.keys is set by Tidelake",
        ),
        (
            {"options": {"kafka.bootstrap.servers": "h:2"}},
            "options",
            "is set by Tidelake: write bootstrap",
        ),
        ({"partitions": 3}, "partitions", "unknown key"),
    ],
)
def test_a_mistake_is_named_with_its_place(
    tmp_path: Path, more: dict[str, Any], path: str, message: str
) -> None:
    [found] = violations(tmp_path, published(**more))
    assert found.path == f"gold[0].publish.{path}"
    assert message in found.message


def test_a_topic_belongs_to_one_table(tmp_path: Path) -> None:
    raw = published() | {"joins": [JOIN | {"publish": _TO}]}
    [found] = violations(tmp_path, raw)
    assert str(found).startswith("joins[0].publish.topic")
    assert found.message == "clicks.per_minute is already the topic of gold[0]"
    # Of another broker it is another topic.
    raw["joins"][0]["publish"] = _TO | {"bootstrap": "h:2"}
    assert len(load_pipeline(write(tmp_path, raw), LAPTOP).published) == 2


@pytest.mark.parametrize(
    ("more", "places"),
    [
        ({"gold__0__publish": _TO | {"topic": ["a"]}}, ["gold[0].publish.topic"]),
        ({"gold__0__publish": _TO | {"bootstrap": ["h:1"]}}, ["gold[0].publish.bootstrap"]),
        ({"source": _TOPICS | {"bootstrap": ["h:1"]}}, ["source.bootstrap"]),
        ({"source": _TOPICS | {"topic": 5}}, ["source.topic"]),
    ],
)
def test_another_type_than_text_is_named_by_validate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: dict[str, Any], places: list[str]
) -> None:
    file = write(tmp_path, changed(**more))
    assert run_command(app, ["validate", str(file)]) == 2
    told = capsys.readouterr()
    assert all(place in told.out + told.err for place in places), told


@pytest.mark.parametrize("topics", [["a", "b"], "a,b", "b , a"])
def test_no_table_is_published_to_what_the_pipeline_reads(
    tmp_path: Path, topics: str | list[str]
) -> None:
    raw = published(topic="b") | {"source": _TOPICS | {"topic": topics}}
    [found] = violations(tmp_path, raw)
    assert found.message == "b is already the topic of source"
    load_pipeline(write(tmp_path, published(topic="b", bootstrap="h:2")), LAPTOP)


def test_each_option_that_is_refused_is_named_at_once(tmp_path: Path) -> None:
    options = {"kafka.acks": "1", _JAAS: "x", "acks": "1"}
    found = [one.message for one in violations(tmp_path, published(options=options))]
    assert {message.split(maxsplit=2)[1] for message in found} == options.keys()


def test_a_topic_of_a_fast_lane_is_taken(tmp_path: Path) -> None:
    lane = {
        "name": "odd",
        "features": "hours",
        "keys": ["user_id"],
        "burst": {},
        "fast": {"topic": "odd", "pipeline": "odd_again"},
        "publish": _TO | {"topic": "odd"},
    }
    raw = GOOD | {"source": _TOPICS, "detections": [lane]}
    [found] = violations(tmp_path, raw)
    assert found.message == "odd is already the topic of detections[0].fast"


def test_in_prod_the_connection_is_encrypted(tmp_path: Path) -> None:
    raw = published() | {"source": {"kind": "rate"}}
    with pytest.raises(ConfigError, match=r"gold\[0\]\.publish\.options .*must be SSL or SASL_SSL"):
        load_pipeline(write(tmp_path, raw), CLOUD)
    raw = published(options={"kafka.security.protocol": "SSL"}) | {"source": {"kind": "rate"}}
    assert load_pipeline(write(tmp_path, raw), CLOUD).published


def test_a_service_credential_is_a_name_and_encrypts_the_connection(tmp_path: Path) -> None:
    named = {"databricks.serviceCredential": "msk", "databricks.serviceCredential.scope": "https:"}
    raw = published(options=named) | {"source": _TOPICS | {"options": named}}
    pipeline = load_pipeline(write(tmp_path, raw), CLOUD)
    clients = [pipeline.source, *(to.client for to in pipeline.published.values())]
    for client in clients:
        assert isinstance(client, KafkaSource)
        assert options_of(client).items() >= named.items()
        assert java_client_options(client) == {"kafka.bootstrap.servers": "h:1", **named}
    refuse_unset(pipeline.published, CLOUD)
    with pytest.raises(
        UsageError, match=r"publish\.options has .*environment local has no catalog"
    ):
        refuse_unset(pipeline.published, LAPTOP)
    # What is written counts.
    raw = published(options=named | {"kafka.security.protocol": "SASL_PLAINTEXT"})
    with pytest.raises(ConfigError, match=r"must be SSL or SASL_SSL in prod"):
        load_pipeline(write(tmp_path, raw), CLOUD)
    [found] = violations(tmp_path, published(options={"databricks.serviceCredentials": "msk"}))
    assert "option databricks.serviceCredentials contains a secret" in found.message


def test_references_are_resolved_before_spark_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    to = Publish(topic="t", bootstrap="env:BROKERS", options={_JAAS: "env:LOGIN"})
    with pytest.raises(UsageError, match=r"publish\.bootstrap refers to the variable BROKERS"):
        refuse_unset({"gold.t": to}, LAPTOP)
    monkeypatch.setenv("BROKERS", "a:1,b:2")
    with pytest.raises(UsageError, match="variable LOGIN, which is not set"):
        refuse_unset({"gold.t": to}, LAPTOP)
    monkeypatch.setenv("LOGIN", "secret")
    refuse_unset({"gold.t": to}, LAPTOP)
    # The values themselves are read when they are used, and told by no message.
    assert (to.client.bootstrap, to.client.options) == ("env:BROKERS", {_JAAS: "env:LOGIN"})
    assert java_client_options(to.client) == {"kafka.bootstrap.servers": "a:1,b:2", _JAAS: "secret"}
    monkeypatch.setenv("BROKERS", "127.0.0.1:1,[::1]:one")
    with pytest.raises(SourceError) as caught:
        refuse_unreachable(to.client.bootstrap, key="publish.bootstrap")
    assert re.fullmatch(
        r"no Kafka broker can be reached \(env:BROKERS: [^:;]*; env:BROKERS: not HOST:PORT\)\. "
        r"Check publish\.bootstrap.*",
        str(caught.value),
    )


@pytest.mark.parametrize("more", [[], ["--all"]])
def test_a_run_with_an_unset_reference_is_refused_before_spark_starts(
    empty_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    more: list[str],
) -> None:
    monkeypatch.setattr("tidelake.cli.flow.started", _must_not_start)
    raw = published(bootstrap="env:NO_BROKERS")
    (empty_folder / "conf" / "pipelines").mkdir(parents=True)
    write(empty_folder / "conf" / "pipelines", raw)
    (empty_folder / "conf" / "environments").mkdir()
    environment = empty_folder / "conf" / "environments" / "local.yml"
    environment.write_text("root: lake\n")
    land(empty_folder / "lake" / "landing", "a.jsonl", [b"{}"])
    names = more or ["shop"]
    assert run_command(app, ["run", *names]) == 2
    assert "publish.bootstrap refers to the variable NO_BROKERS" in capsys.readouterr().err
    # Neither another hop nor an environment that publishes nothing needs it.
    for arguments in (["--hop", "silver"], []):
        with pytest.raises(AssertionError, match="Spark started"):
            run_command(app, ["run", *names, *arguments])
        environment.write_text("root: lake\npublish: false\n")


def test_maintenance_keeps_what_waits_only_where_runs_publish(
    empty_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (empty_folder / "conf" / "pipelines").mkdir(parents=True)
    raw = SHOP | {"gold": [SHOP["gold"][0] | {"publish": _TO}]}
    write(empty_folder / "conf" / "pipelines", raw)
    (empty_folder / "conf" / "environments").mkdir()
    environment = empty_folder / "conf" / "environments" / "local.yml"
    table, note = Lake(empty_folder / "lake").gold("totals"), {"pipeline": "shop", "hop": "gold"}
    for batch in (-1, 0):
        adds = [(3, True)] * (batch + 1)
        made = note | {"generation": "g1", "batch": batch}
        write_commit(table, batch + 1, note=made, adds=adds, operation="MERGE")
    reached = TopicPosition("clicks", "id-1", ("user_id",), 0)
    write_commit(table, 2, metadata=reached.options(table)["userMetadata"])
    readers = {}
    for publishes in ("true", "false"):
        environment.write_text(f"root: lake\npublish: {publishes}\n")
        assert run_command(app, ["maintain", "shop", "--dry-run", "--json"]) == 0
        [row] = [r for r in json.loads(capsys.readouterr().out) if r["table"] == table.name]
        readers[publishes] = row["by"]
    assert readers == {"true": "topic clicks has not got further", "false": None}


def _must_not_start(*_: object, **__: object) -> None:
    raise AssertionError("Spark started")
