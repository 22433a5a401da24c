"""The records of a table version: what differs, and how its values are written."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession

from tests.unit.handmade import write_commit
from tidelake.config import KafkaSource
from tidelake.config.table_settings import Publish
from tidelake.delta import access
from tidelake.delta.access import changed_rows, load_old, read_between
from tidelake.delta.log import Added
from tidelake.delta.positions import TableChange, TopicPosition
from tidelake.delta.store import Catalog, CatalogTable
from tidelake.delta.tables import Lake, Table
from tidelake.errors import RefusedError, TidelakeError, UnpublishedError
from tidelake.kafka import topic_source
from tidelake.runtime import publish, runner
from tidelake.runtime.failures import TOO_OLD
from tidelake.runtime.progress import Progress
from tidelake.runtime.publish import (
    Publishing,
    RecordHead,
    differing,
    to_records,
)
from tidelake.runtime.triggers import parse_trigger
from tidelake.spark import internals
from tidelake.spark.internals import jvm_with
from tidelake.spark.tuning import OLD_VERSION_SETTINGS

_HEAD = RecordHead("gold.clicks", "g2", 7, 41)


def publication_of(lake: Lake, spark: SparkSession | None = None) -> publish._Publication:
    to = KafkaSource(kind="kafka", bootstrap="127.0.0.1:1", topic="clicks")
    pipeline = SimpleNamespace(name="shop")
    run: Any = background_run([])
    run.spark, run.pipeline, run.lake = spark, pipeline, lake
    return publish._Publication(run, lake.gold("clicks"), ("user_id",), to)


def totals(spark: SparkSession, *rows: tuple[Any, ...]) -> DataFrame:
    texts = spark.createDataFrame(list(rows), "user_id STRING, total STRING, _batch BIGINT")
    return texts.selectExpr("user_id", "CAST(total AS DECIMAL(20,2)) AS total", "_batch")


def test_rows_are_paired_by_key_and_those_that_look_the_same_are_left_out(
    spark: SparkSession,
) -> None:
    before = totals(spark, ("same", "1", 1), ("changed", "2", 1), ("gone", None, 1), (None, "4", 1))
    after = totals(spark, ("same", "1", 2), ("changed", "3", 2), ("new", "5", 2), (None, "6", 2))
    found = {row["key"]: row for row in differing(before, after, ["user_id"]).collect()}
    assert sorted(found) == [
        f'{{"user_id":{name}}}' for name in ('"changed"', '"gone"', '"new"', "null")
    ]
    gone, new = found['{"user_id":"gone"}'], found['{"user_id":"new"}']
    assert (gone["before"], gone["after"]) == ('{"user_id":"gone","total":null}', None)
    assert (new["before"], new["after"]) == (None, '{"user_id":"new","total":"5.00"}')


def test_a_record_says_which_version_it_is_of_and_what_was_before_and_after(
    spark: SparkSession,
) -> None:
    before = totals(spark, ("a", "1", 1), ("b", "2", 1))
    pairs = differing(before, totals(spark, ("a", "1.50", 2)), ["user_id"])
    records = {row["key"]: row for row in to_records(pairs, _HEAD).collect()}
    of_a, of_b = records['{"user_id":"a"}'], records['{"user_id":"b"}']
    assert of_a["value"] == (
        '{"table":"gold.clicks","generation":"g2","batch":7,"version":41,"op":"upsert",'
        '"before":{"user_id":"a","total":"1.00"},"after":{"user_id":"a","total":"1.50"}}'
    )
    deleted = json.loads(of_b["value"])
    assert (deleted["op"], deleted["after"]) == ("delete", None)
    assert {one["key"]: bytes(one["value"]) for one in of_b["headers"]} == {
        "table": b"gold.clicks",
        "version": b"41",
        "op": b"delete",
    }


def test_values_are_exact_and_in_utc(spark: SparkSession) -> None:
    row = spark.sql(
        "SELECT CAST('0' AS DECIMAL(38,18)) AS nothing, "
        "CAST('12345678901234567890.5' AS DECIMAL(38,2)) AS much, "
        "9007199254740993 AS big, double('NaN') AS nan, "
        "TIMESTAMP'2026-01-05 10:00:00.000001Z' AS at, DATE'2026-01-05' AS day, "
        "struct(CAST('1.10' AS DECIMAL(4,2)) AS price, CAST(NULL AS INT) AS none) AS nested, "
        "array(CAST('2.20' AS DECIMAL(4,2))) AS many, X'0102' AS raw, 'a\"b' AS text"
    )
    [(_, _, found)] = differing(row.limit(0), row, ["text"]).collect()
    assert json.loads(found) == {
        "nothing": "0.000000000000000000",
        "much": "12345678901234567890.50",
        "big": 9007199254740993,
        "nan": "NaN",
        "at": "2026-01-05T10:00:00.000001Z",
        "day": "2026-01-05",
        "nested": {"price": "1.10", "none": None},
        "many": ["2.20"],
        "raw": "AQI=",
        "text": 'a"b',
    }


@pytest.mark.parametrize("reads", ["a version", "its changes", "both versions", "what was added"])
@pytest.mark.parametrize("engine", ["in process", "connect", "refusing"])
def test_versions_of_any_age_are_read_when_their_rows_are(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, engine: str, reads: str
) -> None:
    """Spark Connect analyzes a frame when it is used, after this."""
    spark, settings = MagicMock(), dict[str, str]()
    table: Any = lake.gold("clicks")
    if reads == "what was added":
        table = CatalogTable("silver.shop", Catalog("c", lambda: spark), "silver", "shop")
    opened: list[dict[str, str]] = []
    monkeypatch.setattr(type(table), "open", lambda *_: opened.append({**settings}) or MagicMock())
    monkeypatch.setattr(access, "added_between", lambda *_: Added(1, 1))
    spark.conf.get.side_effect = settings.get
    spark.conf.unset.side_effect = settings.pop
    spark.conf.set.side_effect = settings.__setitem__
    if engine == "refusing":
        spark.conf.set.side_effect = AnalysisException("[CONFIG_NOT_AVAILABLE]")
    monkeypatch.setattr(access, "runs_in_process", lambda: engine == "in process")
    if reads == "a version":
        load_old(spark, table, 3)
    elif reads == "what was added":
        read_between(spark, table, (3, -1), (5, -1))
    else:
        changed_rows(spark, table, TableChange(3, "g1", 0, 1, is_fed=reads == "its changes"))
    admitted = {} if engine == "refusing" else OLD_VERSION_SETTINGS
    assert opened == [admitted] * (2 if reads == "both versions" else 1)
    assert settings == (OLD_VERSION_SETTINGS if engine == "connect" else {})


def test_a_version_that_delta_refuses_by_its_age_is_not_told_as_gone(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files may be there: an empty topic would have to take all rows again."""
    refused = AnalysisException(f"[{TOO_OLD}] Cannot time travel")
    monkeypatch.setattr(publish._Publication, "go", MagicMock(side_effect=refused))
    one: Any = publication_of(lake)
    monkeypatch.setattr(publish, "asks_brokers", lambda *_: True)
    with pytest.raises(RefusedError, match=r"keep them with: .*maintain shop") as told:
        publish._publish(one.run, one.table, one.key, SimpleNamespace(topic="t", client=one.to))
    assert "are gone" not in str(told.value)


def test_a_client_under_another_name_is_not_taken_for_kafka(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = KafkaSource(kind="kafka", bootstrap="127.0.0.1:1", topic="t")
    assert topic_source.asks_brokers(spark, source)
    # As on a managed runtime.
    monkeypatch.setattr(topic_source, "_ADMIN", "kafkashaded.org.apache.kafka.clients.admin.Admin")
    assert not topic_source.asks_brokers(spark, source)
    assert topic_source.describe_topics(spark, source, ["t"]) is None
    assert topic_source.ensure_topic(spark, source, "t") is None
    monkeypatch.setattr(internals, "is_remote", lambda: True)
    assert jvm_with(spark, "java.lang.String") is None


class Reader:
    """Stands for Spark's reader of a topic: whether it is empty, or its error."""

    def __init__(self, found: bool | Exception) -> None:
        self.found, self.read, self.given = found, self, dict[str, str]()

    def format(self, _: str) -> Reader:
        return self

    def options(self, **given: str) -> Reader:
        self.given = given
        return self

    def load(self) -> Reader:
        return self

    def isEmpty(self) -> bool:
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


def test_a_topic_that_is_not_there_has_no_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKERS", "h:1")
    source = KafkaSource(kind="kafka", bootstrap="env:BROKERS", topic="t")
    unknown = PySparkException("kafka.common.errors.UnknownTopicOrPartitionException: no such")
    for found, expected in ((True, False), (False, True), (unknown, False)):
        reader: Any = Reader(found)
        assert topic_source.has_records(reader, source, "t") is expected
        assert reader.given == {
            "kafka.bootstrap.servers": "h:1",
            "subscribe": "t",
            "startingOffsets": "earliest",
        }
    denied: Any = Reader(PySparkException("TopicAuthorizationException"))
    with pytest.raises(PySparkException, match="Authorization"):
        topic_source.has_records(denied, source, "t")


@pytest.mark.parametrize("is_taken", [True, False])
def test_where_the_broker_is_not_asked_the_topic_is_read_before_it_begins(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, is_taken: bool
) -> None:
    write_commit(lake.gold("clicks"), 0, note={"generation": "g1", "batch": 0})
    steps: list[Any] = []
    monkeypatch.setattr(publish, "refuse_unreachable", lambda *_, **__: None)
    monkeypatch.setattr(publish, "ensure_topic", lambda *_: None)
    monkeypatch.setattr(publish, "has_records", lambda *_: is_taken)
    monkeypatch.setattr(publish, "asks_brokers", lambda *_: False)
    monkeypatch.setattr(publish._Publication, "_save", lambda _, to: steps.append(to.begun))
    monkeypatch.setattr(publish._Publication, "_send_all", lambda *_: steps.append("sent"))
    publication = publication_of(lake)
    to = Publish(topic="clicks", bootstrap="127.0.0.1:1")
    arguments = publication.run, publication.table, publication.key, to
    if not is_taken:
        publish._publish(*arguments)
        assert steps == [True, "sent", False]
        return
    with pytest.raises(RefusedError) as caught:
        publish._publish(*arguments)
    assert steps == []
    # A topic made anew would not be noticed.
    assert str(caught.value).endswith(
        "the topic has records already, and gold.clicks has not published to it. Give the table "
        "an empty topic: another name. It gets all rows of the table, then each change."
    )


def joins(
    monkeypatch: pytest.MonkeyPatch, publication: publish._Publication, topic_id: str
) -> list[TopicPosition]:
    """Publish to an empty topic, whose id is unknown if it is empty; give the saved positions."""
    saved: list[TopicPosition] = []
    topic = topic_source.Topic(topic_id, {"0": (0, 0)}) if topic_id else None
    monkeypatch.setattr(publish, "refuse_unreachable", lambda *_, **__: None)
    monkeypatch.setattr(publish, "ensure_topic", lambda *_: topic)
    monkeypatch.setattr(publish, "has_records", lambda *_: False)
    monkeypatch.setattr(publish._Publication, "_save", lambda _, to: saved.append(to))
    for name in ("_send_all", "_send_change"):
        monkeypatch.setattr(publish._Publication, name, lambda *_: None)
    publication.go()
    return saved


def write_position(table: Table, version: int, reached: TopicPosition) -> None:
    metadata = reached.options(table)["userMetadata"]
    write_commit(table, version, metadata=metadata, operation="WRITE")


@pytest.mark.parametrize(
    ("theirs", "topic_id", "is_refused"),
    [
        (("clicks", "id-1", "h:1"), "id-1", True),
        (("clicks", "id-0", "h:1"), "id-1", False),
        (("others", "id-1", "h:1"), "id-1", False),
        # Where the broker is not asked, brokers tell clusters apart.
        (("clicks", "id-1", "127.0.0.1:1"), "", True),
        (("clicks", "", "h:2, 127.0.0.1:1"), "id-1", True),
        (("clicks", "", "h:1"), "", False),
        (("clicks", "", ""), "", True),
    ],
)
def test_the_topic_of_another_table_is_refused_also_while_it_is_empty(
    lake: Lake,
    monkeypatch: pytest.MonkeyPatch,
    theirs: tuple[str, str, str],
    topic_id: str,
    is_refused: bool,
) -> None:
    topic, known, bootstrap = theirs
    made, other = {"generation": "g1", "batch": 0}, lake.gold("visits")
    for table in (lake.gold("clicks"), other):
        write_commit(table, 0, note=made)
    write_position(other, 1, TopicPosition(topic, known, ("k",), 0, bootstrap=bootstrap))
    publication = publication_of(lake)
    if not is_refused:
        begun, recorded = joins(monkeypatch, publication, topic_id)
        assert (begun.begun, begun.bootstrap, recorded.begun) == (True, "127.0.0.1:1", False)
        return
    with pytest.raises(RefusedError, match=r"^gold\.visits is published to the topic$") as caught:
        joins(monkeypatch, publication, topic_id)
    monkeypatch.setattr(publish._Publication, "go", MagicMock(side_effect=caught.value))
    monkeypatch.setattr(publish, "asks_brokers", lambda *_: True)
    to = Publish(topic="clicks", bootstrap="127.0.0.1:1")
    # To delete it would take the other table's records away.
    with pytest.raises(
        RefusedError, match=r"Give the table an empty topic: another name\. It gets"
    ):
        publish._publish(publication.run, publication.table, publication.key, to)


@pytest.mark.parametrize(
    ("before", "topic_id", "begins"),
    [
        # Of an earlier version, which stored no brokers.
        (("", ""), "", False),
        (("", "127.0.0.1:1,h:2"), "", False),
        (("", "h:2"), "", True),
        # It may name the same brokers.
        (("", "env:BROKERS"), "", False),
        (("", ""), "id-1", False),
        (("id-1", "h:2"), "id-1", False),
        (("id-0", "127.0.0.1:1"), "id-1", True),
    ],
)
def test_another_cluster_has_another_topic_and_what_is_known_of_it_is_recorded(
    lake: Lake,
    monkeypatch: pytest.MonkeyPatch,
    before: tuple[str, str],
    topic_id: str,
    begins: bool,
) -> None:
    table, made = lake.gold("clicks"), {"pipeline": "shop", "generation": "g1"}
    write_commit(table, 0, note={**made, "batch": 0}, adds=[(3, True)], operation="MERGE")
    known, bootstrap = before
    position = TopicPosition("clicks", known, ("user_id",), 0, bootstrap=bootstrap)
    write_position(table, 1, position)
    write_commit(table, 2, note={**made, "batch": 1}, adds=[(1, True)], operation="MERGE")
    saved = joins(monkeypatch, publication_of(lake), topic_id)
    wanted = TopicPosition("clicks", topic_id, ("user_id",), 2, bootstrap="127.0.0.1:1")
    assert saved == [replace(wanted, begun=True)] * begins + [wanted]


def test_of_a_topic_of_another_cluster_with_records_both_clusters_are_told(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_commit(lake.gold("clicks"), 0, note={"generation": "g1", "batch": 0})
    monkeypatch.setattr(publish, "has_records", lambda *_: True)
    reached = TopicPosition("clicks", "", ("user_id",), 0, bootstrap="h:2")
    told = "gold.clicks has not published to it at 127.0.0.1:1, only at h:2"
    with pytest.raises(RefusedError, match=told):
        publication_of(lake)._joined(reached, None)


@pytest.mark.parametrize(
    ("bootstrap", "told"),
    [
        ("h:2,127.0.0.1:1", "publish topic clicks was recreated"),
        ("env:BROKERS", "publish topic clicks was recreated"),
        ("h:2", "publish topic clicks is another topic than before"),
    ],
)
def test_a_topic_of_another_cluster_is_not_said_to_be_recreated(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, bootstrap: str, told: str
) -> None:
    write_commit(lake.gold("clicks"), 0, note={"generation": "g1", "batch": 0})
    reached = TopicPosition("clicks", "id-0", ("user_id",), 0, bootstrap=bootstrap)
    write_position(lake.gold("clicks"), 1, reached)
    said: list[str] = []
    publication = publication_of(lake)
    run: Any = publication.run
    run.progress = Progress(said.append)
    write_commit(lake.gold("clicks"), 2, note={"generation": "g1", "batch": 1}, adds=[(1, True)])
    joins(monkeypatch, publication, "id-1")
    assert said[0] == told


def test_a_continuous_run_says_once_what_fails_and_when_it_is_something_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []
    away, refused = UnpublishedError("away"), RefusedError("taken")
    outcomes: list[dict[str, TidelakeError]] = [
        {},
        {"gold.a": away},
        {"gold.a": UnpublishedError("still away")},
        {"gold.a": away, "gold.b": refused},
        # Of the table that rests nothing new is heard.
        {"gold.a": away},
        {},
        {"gold.b": refused},
        {},
    ]
    rested: list[list[str]] = []

    def tried(_: object, *, but: Iterable[str]) -> dict[str, TidelakeError]:
        rested.append(sorted(but))
        return outcomes.pop(0)

    monkeypatch.setattr(publish, "_failures", tried)
    publishing = Publishing(background_run(said))
    while len(outcomes) > 2:
        publishing.step()
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 301)
    while outcomes:
        publishing.step()
        now += 301
    assert rested == [[], [], [], [], ["gold.b"], ["gold.b"], [], []]
    head = "publishing failed and will be retried"
    assert said == [
        f"{head}: away",
        f"{head}: away\ntaken",
        f"{head}: taken",
        "publishing resumed",
    ]


def background_run(said: list[str], interrupt: Any = None) -> Any:
    spark = SimpleNamespace(interruptAll=interrupt)
    return SimpleNamespace(progress=Progress(said.append), spark=spark, stop=threading.Event())


def test_a_step_that_waits_for_its_broker_holds_up_nobody_and_ends_with_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried, gave_up, begun = [0], threading.Event(), threading.Event()

    def waits(run: Any, **_: object) -> dict[str, TidelakeError]:
        tried[0] += 1
        begun.set()
        assert gave_up.wait(60)
        assert run.stop.is_set()
        raise KeyboardInterrupt

    monkeypatch.setattr(publish, "_failures", waits)
    monkeypatch.setattr(publish, "_END_SECONDS", 0.01)
    publishing = Publishing(background_run([], gave_up.set))
    publishing.begin_step()
    assert begun.wait(60)
    for _ in range(3):
        publishing.begin_step()
    publishing.end()
    assert (tried, gave_up.is_set()) == ([1], True)


def test_what_no_one_expects_in_a_step_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*_: object, **__: object) -> dict[str, TidelakeError]:
        raise ZeroDivisionError

    monkeypatch.setattr(publish, "_failures", breaks)
    publishing = Publishing(background_run([]))
    with pytest.raises(ZeroDivisionError):
        for _ in range(600):
            publishing.begin_step()
            time.sleep(0.1)
    publishing.end()


def test_the_hops_of_a_continuous_run_are_watched_while_a_step_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[str] = []

    def check(_: object) -> None:
        seen.append("check")
        if len(seen) > 6:
            raise KeyboardInterrupt

    query = SimpleNamespace(check=check)
    streaming = SimpleNamespace(stop=lambda: seen.append("stop"))
    publishing = SimpleNamespace(
        begin_step=lambda: seen.append("begin"), end=lambda: seen.append("end")
    )
    monkeypatch.setattr(runner, "_publishing", lambda _: publishing)
    monkeypatch.setattr(runner, "turns_of", lambda *_: None)
    monkeypatch.setattr(runner, "_start_hop", lambda *_: (query, streaming))
    monkeypatch.setattr(runner, "_close_epoch", lambda *_, **__: None)
    monkeypatch.setattr(runner, "_EPOCH_SECONDS", -1)
    with pytest.raises(KeyboardInterrupt):
        runner._run_together(
            background_run([]), ["gold"], parse_trigger("continuous"), publishes=True
        )
    assert seen == ["check", "begin"] * 3 + ["check", "stop", "end"]


@pytest.mark.parametrize(
    ("of_b", "expected", "code"),
    [(UnpublishedError, UnpublishedError, 1), (RefusedError, RefusedError, 3)],
)
def test_a_table_that_fails_stops_no_other_and_all_failures_are_told(
    monkeypatch: pytest.MonkeyPatch,
    of_b: type[TidelakeError],
    expected: type[TidelakeError],
    code: int,
) -> None:
    tried: list[str] = []

    def fails(_: object, table: Any, *__: object) -> None:
        tried.append(table.name)
        if table.name != "gold.c":
            raise (UnpublishedError if table.name == "gold.a" else of_b)(f"{table.name} failed")

    targets = [
        SimpleNamespace(
            table=SimpleNamespace(name=f"gold.{name}"), kind=SimpleNamespace(identity=())
        )
        for name in "abcd"
    ]
    monkeypatch.setattr(publish, "targets_of", lambda *_: targets)
    monkeypatch.setattr(publish, "_publish", fails)
    run: Any = SimpleNamespace(lake=None, pipeline=None)
    run.published = {f"gold.{name}": "a topic" for name in "abc"}
    with pytest.raises(expected, match=r"^gold\.a failed\ngold\.b failed$") as caught:
        publish.publish_gold(run)
    assert (caught.value.exit_code, tried) == (code, ["gold.a", "gold.b", "gold.c"])


@pytest.mark.parametrize(("second", "is_renewed"), [(2.0, True), (None, False)])
def test_an_old_position_is_recorded_again_before_the_log_forgets_it(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, second: float | None, is_renewed: bool
) -> None:
    table, made = lake.gold("clicks"), {"pipeline": "shop", "generation": "g1"}
    reached = TopicPosition("clicks", "id-1", ("user_id",), 1)
    seconds = second or (datetime.now(UTC) - datetime(2024, 1, 1, tzinfo=UTC)).total_seconds()
    write_commit(table, 0, note={**made, "batch": -1}, operation="CREATE TABLE")
    write_commit(table, 1, note={**made, "batch": 0}, adds=[(3, True)], operation="MERGE")
    metadata = reached.options(table)["userMetadata"]
    write_commit(table, 2, metadata=metadata, second=seconds)
    kept: list[int] = []
    monkeypatch.setattr(
        publish._Publication, "_record", lambda _, version, __: kept.append(version)
    )
    publication = publication_of(lake)
    publication.go()
    # Nothing was closed since.
    assert kept == []
    write_commit(table, 3, note={**made, "batch": 1}, operation="WRITE")
    publication.go()
    assert kept == [3] * is_renewed


def test_a_position_that_is_recorded_again_is_still_that_of_its_key_and_its_cluster(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, made = lake.gold("clicks"), {"pipeline": "shop", "generation": "g1"}
    reached = TopicPosition("clicks", "id-1", ("session_id",), 0, bootstrap="h:2")
    write_commit(table, 0, note={**made, "batch": 0}, adds=[(3, True)], operation="MERGE")
    write_position(table, 1, reached)
    write_commit(table, 2, note={**made, "batch": 1}, operation="WRITE")
    saved: list[TopicPosition] = []
    monkeypatch.setattr(publish._Publication, "_save", lambda _, to: saved.append(to))
    publication_of(lake).go()
    assert saved == [replace(reached, version=2)]


def test_a_change_that_is_committed_meanwhile_is_not_recorded_as_published(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, made = lake.gold("clicks"), {"pipeline": "shop", "generation": "g1"}
    reached = TopicPosition("clicks", "id-1", ("user_id",), 1)
    write_commit(table, 0, note={**made, "batch": -1}, operation="CREATE TABLE")
    write_commit(table, 1, note={**made, "batch": 0}, adds=[(3, True)], operation="MERGE")
    write_commit(table, 2, metadata=reached.options(table)["userMetadata"], second=2.0)
    write_commit(table, 3, note={**made, "batch": 1}, operation="WRITE")
    kept: list[int] = []
    monkeypatch.setattr(
        publish._Publication, "_record", lambda _, version, __: kept.append(version)
    )

    def waits(found: bool) -> bool:
        # Gold merges the next batch while the log is read.
        write_commit(table, 4, note={**made, "batch": 2}, adds=[(1, True)], operation="MERGE")
        return found

    real = publish._Publication._waits
    monkeypatch.setattr(publish._Publication, "_waits", lambda *args: waits(real(*args)))
    publication_of(lake).go()
    assert kept == [3]
