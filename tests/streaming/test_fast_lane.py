"""The fast lane on a real broker: alerts at once, each confirmed or retracted by the tables."""

from __future__ import annotations

import importlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import MagicMock

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tests.brokers import Followed, Kafka
from tests.running import land, read
from tests.worlds import TO_SILVER
from tidelake.bronze.records import HEADERS_DDL
from tidelake.cli import app
from tidelake.cli.exits import run_command
from tidelake.cli.flow import fast_lane
from tidelake.config import Environment, load_environment, load_pipeline
from tidelake.delta.tables import Table
from tidelake.errors import NotBuiltError, UsageError
from tidelake.ops.maintenance import plan_upkeep
from tidelake.replay.erase_remains import others
from tidelake.runtime import fast_lane as fast_lane_module
from tidelake.runtime.fast_lane import Lane, reconcile
from tidelake.runtime.hop import Run
from tidelake.runtime.progress import Progress

# By its name: the package hides the module behind its command.
COMMANDS = importlib.import_module("tidelake.cli.flow")
# Within an hour, and never ahead of the clock: what is gets refused.
_NOW = (datetime.now(UTC) - timedelta(hours=1)).replace(minute=30, second=0, microsecond=0)
_SECONDS = 180


def payment(name: str, *, amount: str = "10.00", ago: timedelta = timedelta(0)) -> bytes:
    """Write a payment of a card that is called as the payment begins, at its home."""
    told = {
        "payment_id": name,
        "card_id": name[0],
        "paid_at": (_NOW - ago).isoformat(),
        "amount": amount,
        "latitude": 52.37,
        "longitude": 4.9,
    }
    return json.dumps(told).encode()


def history(card: str) -> list[bytes]:
    """Write what a card paid in the hours before."""
    return [payment(f"{card}-{n}", ago=timedelta(hours=n + 1)) for n in range(6)]


def payments(spark: SparkSession, environment: Environment, source: str) -> Followed:
    """Give the reference pipeline on a source, its lane renewed as often as Spark allows."""
    pipeline = load_pipeline("payments", environment, source=source)
    detection, fast = fast_lane(pipeline)
    # The tests' Spark has two slots, and a stream in real-time mode keeps one.
    quick = fast.model_copy(update={"refresh": timedelta(seconds=5), "streams": 1})
    detection = detection.model_copy(update={"fast": quick})
    changed = {"detections": (detection,), "gold": ()}
    return Followed(spark, environment, pipeline.model_copy(update=changed))


@contextmanager
def lane(followed: Followed) -> Iterator[list[str]]:
    """Run the lane in a thread; give what it says."""
    said: list[str] = []
    stop, failed = threading.Event(), []
    context = Run(
        followed.spark,
        followed.pipeline,
        followed.lake,
        followed.environment,
        Progress(said.append),
        stop,
    )

    def go() -> None:
        try:
            Lane(context, *fast_lane(followed.pipeline)).go()
        except KeyboardInterrupt:
            pass
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=go)
    thread.start()
    try:
        yield said
    finally:
        stop.set()
        thread.join(_SECONDS)
        assert not thread.is_alive()
        assert not failed, failed


def until(happened: Callable[[], Any], *, each: Callable[[int], None] = lambda _: None) -> Any:
    """Wait until something has happened; give it."""
    ends, turn = time.monotonic() + _SECONDS, 0
    while time.monotonic() < ends:
        each(turn)
        found = happened()
        if found:
            return found
        turn += 1
        time.sleep(0.5)
    raise AssertionError("it did not happen")


@pytest.mark.long
def test_each_fast_alert_is_confirmed_or_retracted_and_what_was_missed_is_listed(
    spark: SparkSession, environment: Environment, kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    vacuumed, vacuum = [], fast_lane_module.vacuum

    def spied(spark: SparkSession, table: Table, *, hours: int) -> None:
        vacuumed.append(table.name)
        vacuum(spark, table, hours=hours)

    monkeypatch.setattr(fast_lane_module, "vacuum", spied)
    kafka.topic(partitions=1, name="payments")
    kafka.topic(partitions=1, name="payment-alerts")
    followed = payments(spark, environment, f"kafka://{kafka.bootstrap}/payments")
    # Card b is known by one payment too few, as far as the tables know yet.
    kafka.send("payments", [*history("a"), *history("b")[:4], *history("c")])
    followed.run()
    frauds = [payment("a-fraud", amount="99.00"), payment("b-fraud", amount="99.00")]

    def alerts() -> list[dict[str, Any]]:
        return [json.loads(value) for _, _, value, _ in kafka.records("payment-alerts")]

    def probe(turn: int) -> None:
        kafka.send("payments", [payment(f"c-{turn}-probe", amount="77.00")])

    with lane(followed) as said:
        # It begins with what is newest when it is ready.
        probes = until(alerts, each=probe)
        assert {one["event_id"][:2] for one in probes} == {"c-"}
        kafka.send("payments", [*history("b"), b"broken", *frauds])
        until(lambda: any(one["event_id"] == "a-fraud" for one in alerts()))
        assert not any(one["event_id"] == "b-fraud" for one in alerts())
    assert said[0].endswith(f"alerts go to topic payment-alerts at {kafka.bootstrap}")
    # And again when it is started again: this is no longer news.
    kafka.send("payments", [payment("c-stale", amount="99.00")])
    before = len(alerts())
    with lane(followed):
        until(lambda: len(alerts()) > before, each=probe)
    assert not any(one["event_id"] == "c-stale" for one in alerts())
    alert = next(one for one in alerts() if one["event_id"] == "a-fraud")
    assert (alert["rule"], alert["card_id"], alert["amount"]) == ("unusual_amount", "a", 99.0)
    assert json.loads(alert["evidence"]) == {"value": 99.0, "mean": 10.0, "values": 6}
    # Two that nothing speaks for: of an event that the tables know, and of one that they do not.
    for name in ("a-0", "z-9"):
        kafka.send("payment-alerts", [json.dumps({**alert, "event_id": name}).encode()])
    taken = load_pipeline(
        "payment_fast_alerts", environment, source=f"kafka://{kafka.bootstrap}/payment-alerts"
    )
    replace(followed, pipeline=taken).run(TO_SILVER)
    followed.run()
    found = reconcile(followed.context, *fast_lane(followed.pipeline))
    rows = read(followed.lake, found.table, "event_id, rule, verdict")
    verdicts = {one: verdict for one, rule, verdict in rows if rule == "unusual_amount"}
    assert verdicts["a-fraud"] == "confirmed"
    assert (verdicts["b-fraud"], verdicts["c-stale"]) == ("missed", "missed")
    assert verdicts["a-0"] == "retracted"
    assert verdicts["z-9"] == "open"
    assert sum(found.counts["unusual_amount"].values()) == len(verdicts)
    assert not (environment.root or Path()).joinpath("fast", "payment_alerts", "known").exists()
    # Each copy of the features would leave the one before.
    assert set(vacuumed) == {"known"} and len(vacuumed) >= 2
    # Its old files are deleted by maintenance, and an erasure names it.
    plans = plan_upkeep(followed.lake, followed.pipeline, horizon=timedelta(days=7))
    assert found.table in {plan.table.name for plan in plans}
    remains = {one.where: one.remedy for one in others(followed.lake, followed.context)}
    of_alerts = "tidelake erase payment_fast_alerts --subject COLUMN=VALUE"
    # Reconciling alone would write the subject's alerts back: it reads silver of that pipeline.
    first = f"first {of_alerts}; then tidelake fast reconcile payments; "
    assert remains[found.table].startswith(first)
    assert {"bronze.payment_fast_alerts", "topic payment-alerts"} < {
        where.partition(", ")[0] for where in remains
    }


@pytest.mark.long
def test_without_a_broker_alerts_are_files_in_short_micro_batches_and_the_lane_says_so(
    spark: SparkSession, environment: Environment, tmp_path: Path
) -> None:
    landing = tmp_path / "landing"
    land(landing, "0.jsonl", history("a"))
    followed = payments(spark, environment, str(landing))
    followed.run()
    folder = followed.lake.fast("payment_alerts") / "alerts"
    with lane(followed) as said:
        until(lambda: any(line.startswith("Fast lane") for line in said))
        land(landing, "1.jsonl", [payment("a-fraud", amount="99.00"), *history("a")])

        def written() -> list[str]:
            files = folder.glob("part-*") if folder.exists() else ()
            return [line for file in files for line in file.read_text().splitlines()]

        lines = until(written)
    assert [json.loads(line)["event_id"] for line in lines] == ["a-fraud"]
    assert said[0] == (
        "Real-time mode is unavailable (it needs a Kafka source); using short micro-batches"
    )
    taken = load_pipeline("payment_fast_alerts", environment, source=str(folder))
    replace(followed, pipeline=taken).run()
    told = read(followed.lake, "silver.payment_fast_alerts", "alerted_event, rule")
    assert told == [("a-fraud", "unusual_amount")]
    # The next start continues.
    with lane(followed):
        land(landing, "2.jsonl", [payment("a-again", amount="98.00")])
        until(lambda: len(written()) > 1)
    assert sorted(json.loads(line)["event_id"] for line in written()) == ["a-again", "a-fraud"]


def test_a_lane_over_files_continues_whatever_ran_in_between(
    spark: SparkSession, environment: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def each(events: DataFrame, *_: object) -> DataFrame:
        return events.select("event_id")

    monkeypatch.setattr(fast_lane_module, "to_fast_alerts", each)
    landing = tmp_path / "landing"
    files = lane_of(payments(spark, environment, str(landing)))
    topic = lane_of(payments(spark, environment, "kafka://127.0.0.1:9/payments"))
    root = Path(str(files.folder))
    spark.range(1).write.format("delta").save(str(root / "known"))

    def alerted() -> list[str]:
        """Run the lane over files as long as there are any; give all that was ever alerted."""
        files._prepare_folder()
        query = files._start_stream(0)
        try:
            query.processAllAvailable()
        finally:
            query.stop()
        found = list((root / "alerts").iterdir())
        assert {file.name[:5] for file in found} <= {"part-"}
        lines = [line for file in found for line in file.read_text().splitlines()]
        return sorted(json.loads(line)["event_id"] for line in lines)

    # What a lane over a topic, and Spark's sink, left in an earlier version.
    for left in (
        "checkpoint-0/offsets/0",
        "topic-checkpoint-0/offsets/0",
        "alerts/_spark_metadata/0",
    ):
        (root / left).parent.mkdir(parents=True)
        (root / left).write_text('v1\n{"batchWatermarkMs":0}\n{"payments":{"0":7}}')
    land(landing, "0.jsonl", [payment("a-1")])
    assert alerted() == ["a-1"]
    assert not (root / "checkpoint-0").exists()
    (root / "topic-checkpoint-1").mkdir()
    topic._prepare_folder()
    assert not list(root.glob("topic-*"))
    land(landing, "1.jsonl", [payment("a-2")])
    assert alerted() == ["a-1", "a-2"]
    # The lane was killed before Spark committed the batch.
    for file in root.glob("files-checkpoint-0/commits/*1*"):
        file.unlink()
    assert alerted() == ["a-1", "a-2", "a-2"]


def test_alerts_are_written_to_files_that_appear_when_they_are_complete(
    spark: SparkSession, environment: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    over_files = lane_of(payments(spark, environment, str(tmp_path / "landing")))
    folder = Path(str(over_files.folder / "alerts"))
    visible: list[list[int]] = []
    monkeypatch.setattr(fast_lane_module, "_ALERTS_A_FILE", 2)
    replaced = Path.replace

    def spied(self: Path, target: Path) -> Path:
        visible.append(sorted(lines_of(file) for file in folder.glob("[!.]*")))
        return replaced(self, target)

    monkeypatch.setattr(Path, "replace", spied)
    over_files._prepare_folder()
    messages = spark.range(3).selectExpr("CAST(id AS STRING)").coalesce(1)
    over_files._write_files(messages, 0)
    assert visible == [[], [2]]
    over_files._write_files(messages.limit(0), 1)
    assert sorted(lines_of(file) for file in folder.glob("part-0-*.jsonl")) == [1, 2]
    assert not list(folder.glob("part-1-*"))


def test_an_alert_is_sent_with_the_microseconds_of_its_times(
    spark: SparkSession, environment: Environment, tmp_path: Path
) -> None:
    over_files, alerts = (
        lane_of(payments(spark, environment, str(tmp_path / "landing"))),
        MagicMock(),
    )
    over_files._writer(alerts)
    [message] = alerts.select.call_args.args
    row = spark.sql(
        "SELECT TIMESTAMP'2026-01-05 10:00:00.000001Z' AS event_time, DATE'2026-01-05' AS day, "
        """CAST(NULL AS STRING) AS city, '{"value":1.50}' AS evidence"""
    )
    [(text,)] = row.select(message).collect()
    assert json.loads(text) == {
        "event_time": "2026-01-05T10:00:00.000001Z",
        "day": "2026-01-05",
        "city": None,
        "evidence": '{"value":1.50}',
    }


def lines_of(file: Path) -> int:
    """Count the lines of a file."""
    return len(file.read_text().splitlines())


def lane_of(followed: Followed, **event: str) -> Lane:
    """Give the lane of a pipeline, some expressions of its event changed."""
    pipeline = followed.pipeline
    changed = pipeline.model_copy(update={"event": pipeline.event.model_copy(update=event)})
    context = replace(followed.context, pipeline=changed)
    return Lane(context, *fast_lane(changed))


def test_over_a_topic_a_record_has_the_id_that_bronze_gives_it(
    spark: SparkSession, environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = spark.sql(
        "SELECT CAST(NULL AS BINARY) AS key, CAST(payload AS BINARY) AS payload, "
        f"CAST(NULL AS {HEADERS_DDL}) AS headers, 'payments' AS source, "
        "current_timestamp() AS source_timestamp, '2:17' AS _position FROM VALUES ("
        f"'{payment('a-1').decode()}') AS t(payload)"
    )
    monkeypatch.setattr(fast_lane_module, "read_stream", lambda *_: sent)
    followed = payments(spark, environment, "kafka://127.0.0.1:9/payments")
    for expression, expected in (("record_id", "payments:2:17"), ("payment_id", "a-1")):
        (event,) = lane_of(followed, id=expression)._events().collect()
        assert (event.event_id, event.record_id) == (expected, "payments:2:17")


def test_a_lane_is_refused_that_cannot_compute_a_column_or_may_miss_a_file(
    spark: SparkSession, environment: Environment, tmp_path: Path
) -> None:
    fit = lane_of(payments(spark, environment, str(tmp_path / "landing")))
    of_late = fit.detection.model_copy(update={"columns": {"late": "is_late"}})
    with pytest.raises(NotBuiltError, match="a fast lane with is_late or event_date in the det"):
        replace(fit, detection=of_late).go()
    source = fit.run.pipeline.source.model_copy(update={"clean_source": "delete"})
    cleaned = fit.run.pipeline.model_copy(update={"source": source})
    with pytest.raises(NotBuiltError, match="a fast lane over files that bronze removes"):
        replace(fit, run=replace(fit.run, pipeline=cleaned)).go()


def test_over_files_a_lane_that_needs_record_ids_is_refused(
    spark: SparkSession, environment: Environment, tmp_path: Path
) -> None:
    followed = payments(spark, environment, str(tmp_path / "landing"))
    used = {"id": "record_id", "where": "record_id IS NOT NULL"}
    with pytest.raises(UsageError, match=r"record_id, which is in event\.id, event\.where\. Use"):
        lane_of(followed, **used).go()
    needing = lane_of(followed)
    of_detection = needing.detection.model_copy(update={"columns": {"record": "record_id"}})
    with pytest.raises(UsageError, match=r"is in the detection payment_alerts\. Use a field"):
        replace(needing, detection=of_detection).go()


@pytest.mark.parametrize(
    ("source", "then"),
    [
        ("kafka", "The next start begins with the newest records of the topic."),
        ("files", "Committed batches are kept; the next run continues from there."),
    ],
)
def test_an_interrupted_lane_says_where_the_next_one_begins(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    source: str,
    then: str,
) -> None:
    def interrupted(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(COMMANDS, "started", interrupted)
    land(tmp_path / "landing", "0.jsonl", [payment("a-1")])
    place = str(tmp_path / "landing") if source == "files" else "kafka://127.0.0.1:9/payments"
    arguments = ["fast", "run", "payments", "--root", str(tmp_path / "lake"), "--source", place]
    assert run_command(app, arguments) == 130
    assert capsys.readouterr().err.splitlines()[-1] == f"Stopped. {then}"


def test_two_streams_begin_apart_and_end_together(
    spark: SparkSession, environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed = payments(spark, environment, "kafka://127.0.0.1:9/payments")
    detection, fast = fast_lane(followed.pipeline)
    context = followed.context
    often = {"streams": 2, "refresh": timedelta(seconds=1)}
    twins = Lane(context, detection, fast.model_copy(update=often))
    started: list[_Stream] = []

    def start(_: Lane, number: int) -> _Stream:
        assert number == len(started)
        started.append(_Stream(context))
        return started[-1]

    monkeypatch.setattr(Lane, "_start_stream", start)
    with pytest.raises(KeyboardInterrupt):
        twins._run_streams()
    first, second = started
    # Half of the second that a batch lasts.
    assert second.began - first.began >= 0.5
    assert first.stopped
    assert second.stopped


class _Stream:
    """A stream that waits a little when asked, and asks the run to end at the sixth time."""

    lastProgress = None

    def __init__(self, run: Run) -> None:
        self.began, self.stopped = time.monotonic(), False
        self._run, self._asked = run, 0

    def awaitTermination(self, seconds: int) -> bool:
        time.sleep(seconds / 5)
        self._asked += 1
        if self._asked == 6:
            self._run.stop.set()
        return False

    def stop(self) -> None:
        self.stopped = True


def test_spark_before_real_time_mode_is_told(
    spark: SparkSession, environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed = payments(spark, environment, "kafka://127.0.0.1:9/payments")
    old = Lane(followed.context, *fast_lane(followed.pipeline))
    assert old.why_not() == ""
    monkeypatch.setattr(DataStreamWriter, "trigger", lambda self, *, processingTime: self)
    assert old.why_not().startswith("it needs Spark 4.2")


def test_a_lane_wants_tables_to_look_back_at(
    spark: SparkSession, environment: Environment, tmp_path: Path
) -> None:
    followed = payments(spark, environment, str(tmp_path / "landing"))
    with pytest.raises(UsageError, match=r"card_hours does not exist yet.*tidelake run payments"):
        Lane(followed.context, *fast_lane(followed.pipeline)).go()


def test_a_pipeline_without_a_fast_lane_is_told_how_to_get_one() -> None:
    flights = load_pipeline("clickstream", load_environment("local", root="/lake"))
    with pytest.raises(UsageError, match="0 detections have a fast lane"):
        fast_lane(flights)
