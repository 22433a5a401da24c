"""A run that is observed: what it costs, what it tells, and that nobody can harm it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest
from pyspark.sql import SparkSession

from tests.catalogs import a_catalog
from tests.running import START, click, read
from tests.worlds import World, reference_gold, world
from tidelake.config.environment import AlertTargets, Lineage, Metrics
from tidelake.delta.tables import HOPS, Hop
from tidelake.errors import RefusedError, TidelakeError
from tidelake.ops.alerts import alerts_of
from tidelake.ops.metrics import Measured, ProgressTable, measures_since, newest_measures
from tidelake.ops.observers import RunObserver, observing
from tidelake.runtime.hop import Run
from tidelake.runtime.progress import Progress
from tidelake.runtime.runner import run_hops
from tidelake.runtime.triggers import AVAILABLE_NOW, parse_trigger

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def observed(
    made: World, said: list[str], hops: Sequence[Hop] = HOPS, **targets: Any
) -> RunObserver:
    """Run hops the way the command line does; give what measured them."""
    environment = made.environment.model_copy(update=targets)
    run = Run(made.spark, made.pipeline, made.lake, environment, Progress(said.append))
    trigger = parse_trigger(AVAILABLE_NOW)
    with observing(run, trigger) as seen:
        run_hops(seen, hops, trigger)
    observer = seen.progress.observer
    assert isinstance(observer, RunObserver)
    return observer


def jobs(spark: SparkSession) -> int:
    """Give the number of the next job."""
    context = spark.sparkContext
    context.setJobGroup("counting", "")
    spark.range(1).write.format("noop").mode("overwrite").save()
    found = max(context.statusTracker().getJobIdsForGroup("counting"))
    context.setLocalProperty("spark.jobGroup.id", None)
    return int(found)


def lines(first: int, count: int) -> list[bytes]:
    return [click(first + n, minute=first + n) for n in range(count)]


@pytest.fixture(scope="module")
def two_runs(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Run a file through all hops: on a copy with nobody watching, then with everybody."""
    folder = tmp_path_factory.mktemp("observed")
    made = world(spark, folder / "world", gold=reference_gold("user_sessions"))
    kept = folder / "kept"
    # Whatever a first run does once is done.
    made.land("a.json", lines(0, 40))
    made.run()
    made.land("b.json", [*lines(100, 30), b"broken"])
    plain = made.copied(folder / "plain")
    started = jobs(spark)
    plain.run()
    alone = jobs(spark) - started
    said: list[str] = []
    observer = observed(
        made,
        said,
        metrics=Metrics(prometheus="127.0.0.1:0"),
        lineage=Lineage(file=kept / "lineage.jsonl"),
    )
    watched = jobs(spark) - started - alone
    return {
        "made": made,
        "plain": plain,
        "said": said,
        "kept": kept,
        "jobs": (alone, watched),
        "sinks": observer._sinks,
        "batches": observer.recent(),
    }


def test_each_batch_of_each_hop_is_measured_once(two_runs: dict[str, Any]) -> None:
    found = [(one.hop, one.batch, one.rows) for one in two_runs["batches"]]
    assert sorted(found) == [("bronze", 1, 31), ("gold", 1, 30), ("silver", 1, 31)]
    for one in two_runs["batches"]:
        assert one.phases["addBatch"] <= one.phases["triggerExecution"]
        assert one.phases["triggerExecution"] == round(one.seconds * 1000)
        assert 0 < one.checkpoint_seconds < one.seconds
        assert one.processed_rows_per_second == pytest.approx(one.rows / one.seconds)
        assert one.waiting is not None and one.lag_seconds is not None


def test_silver_tells_its_fates_and_its_watermark(two_runs: dict[str, Any]) -> None:
    found = next(one for one in two_runs["batches"] if one.hop == "silver")
    assert found.fates["silver"] == 30 and found.fates["quarantined"] == 1
    # Ten minutes behind the newest event.
    assert found.watermark == datetime(2026, 1, 5, 1, 59, tzinfo=UTC)
    assert found.state_rows == 40 and found.limit == 1024
    assert (found.waiting, found.lag_seconds) == (0, 0)


def test_measuring_starts_no_job(two_runs: dict[str, Any]) -> None:
    alone, watched = two_runs["jobs"]
    # The log of a copy is read for the first time.
    assert 10 < alone - 1 <= watched <= alone


def test_an_observed_run_fills_the_same_tables(two_runs: dict[str, Any]) -> None:
    for table, columns in (
        ("silver.clickstream", "event_id, event_time, is_late"),
        ("gold.user_sessions", "user_id, session_start, events"),
    ):
        tables = [read(two_runs[which].lake, table, columns) for which in ("made", "plain")]
        assert tables[0] == tables[1]


def test_the_run_says_where_its_metrics_are_and_fills_them(two_runs: dict[str, Any]) -> None:
    assert "metrics: http://127.0.0.1:0/metrics" in two_runs["said"]
    (registry,) = two_runs["sinks"]
    text = generate_latest(registry.collected).decode()
    assert 'tidelake_hop_rows_total{hop="silver",pipeline="clickstream"} 31.0' in text
    assert 'tidelake_hop_waiting{hop="gold",pipeline="clickstream"} 0.0' in text


def test_lineage_tells_of_every_hop_with_its_columns(two_runs: dict[str, Any]) -> None:
    events = [
        json.loads(line) for line in (two_runs["kept"] / "lineage.jsonl").read_text().splitlines()
    ]
    told = [(one["eventType"], one["job"]["name"]) for one in events]
    assert (told[0], told[-1]) == (("START", "clickstream"), ("COMPLETE", "clickstream"))
    states = ("START", "COMPLETE")
    # Hops overlap, but each starts and ends once, after the one before.
    names = [f"clickstream.{hop}" for hop in HOPS]
    assert sorted(told[1:-1]) == sorted((state, name) for name in names for state in states)
    for state in states:
        assert [name for each, name in told[1:-1] if each == state] == names
    ended = events[told.index(("COMPLETE", "clickstream.silver"))]
    outputs = {one["name"]: one for one in ended["outputs"]}
    silver = outputs["silver.clickstream"]
    assert silver["outputFacets"]["outputStatistics"]["rowCount"] == 30
    rows = outputs["silver.clickstream__quarantine"]["outputFacets"]["outputStatistics"]["rowCount"]
    assert rows == 1
    columns = {one["name"]: one["type"] for one in silver["facets"]["schema"]["fields"]}
    assert columns["event_time"] == "timestamp" and columns["value"] == "decimal(18,2)"


@pytest.mark.long
def test_a_run_keeps_its_batches_in_a_table_and_a_failure_opens_an_alert(
    spark: SparkSession, tmp_path: Path
) -> None:
    made = world(spark, tmp_path / "world")
    made.land("a.json", lines(0, 10))
    observed(made, [], ("bronze", "silver"), metrics=Metrics(table=True))
    kept = measures_since(made.lake, "clickstream", EPOCH)
    assert [(one.hop, one.batch, one.rows) for one in kept] == [
        ("bronze", 0, 10),
        ("silver", 0, 10),
    ]
    assert kept[1].phases["addBatch"] > 0 and kept[1].fates["silver"] == 10
    assert kept[0].started_at.tzinfo is not None
    assert kept[0].started_at - datetime.now(UTC) < timedelta(minutes=10)

    (made.landing / "a.json").write_bytes(b"changed")
    said: list[str] = []
    with pytest.raises(RefusedError):
        observed(made, said, metrics=Metrics(table=True))
    failed = measures_since(made.lake, "clickstream", EPOCH)[-1]
    assert (failed.hop, failed.batch, failed.error_class) == ("bronze", -1, "SourceChangedError")
    opened = {one.rule: one for one in alerts_of(made.lake, made.pipeline, now=datetime.now(UTC))}
    assert opened["hop_failed"].hop == opened["hop_refused"].hop == "bronze"
    assert [line for line in said if line.startswith("alert opens: critical hop_failed")]

    # What is kept no longer leaves the table with the first append of another day.
    table = ProgressTable(made.context, timedelta(minutes=1))
    old = datetime.now(UTC) - timedelta(days=2)
    table.put(replace(kept[0], run="old", started_at=old, ended_at=old))
    table.close()
    assert "old" in {one.run for one in measures_since(made.lake, "clickstream", EPOCH)}
    assert table._cleaned(old, datetime.now(UTC)) > old
    assert "old" not in {one.run for one in measures_since(made.lake, "clickstream", EPOCH)}


def test_the_newest_metrics_of_each_hop_are_read_from_a_catalog_too(
    spark: SparkSession, tmp_path: Path
) -> None:
    with a_catalog(spark, tmp_path) as environment:
        made = world(spark, tmp_path / "world", environment=environment)
        table = ProgressTable(made.context, timedelta(days=1))
        batches = [
            Measured("clickstream", hop, "g1", number, "r", at, at, fates={"silver": number})
            for hop in ("bronze", "silver")
            for number in range(3)
            for at in [START + timedelta(minutes=number)]
        ]
        failure = replace(batches[-1], batch=-1, error_class="LostError", error="it's gone")
        failure = replace(failure, ended_at=START + timedelta(minutes=9))
        for one in [*batches, failure]:
            table.put(one)
        table.close()

        newest = newest_measures(made.lake, "clickstream", START)

        assert newest == {"bronze": batches[2], "silver": failure}
        assert newest_measures(made.lake, "clickstream", failure.ended_at) == {"silver": failure}


def test_nothing_that_observes_can_harm_a_run(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOK", "http://127.0.0.1:1/s3cret")
    monkeypatch.setenv("LINEAGE", "http://127.0.0.1:1/s3cret")
    monkeypatch.setattr("tidelake.ops.alert_delivery._PAUSES", ())

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tidelake.ops.metrics.MetricRegistry.put", full)
    made = world(spark, tmp_path / "world")
    made.land("a.json", [b"broken"] * 100)
    blocked = tmp_path / "world" / "lake" / "ops" / "progress"
    assert str(made.lake.progress().path) == str(blocked)
    blocked.parent.mkdir(parents=True)
    blocked.write_text("")
    said: list[str] = []
    observed(
        made,
        said,
        ("bronze", "silver"),
        metrics=Metrics(prometheus="192.0.2.1:1", table=True),
        alerts=AlertTargets(webhook="env:HOOK"),
        lineage=Lineage(url="env:LINEAGE"),
    )
    told = "\n".join(said)
    assert "metrics: cannot listen on 192.0.2.1:1" in told
    assert (
        told.count("metrics: Prometheus failed and was disabled: OSError: No space left on device")
        == 1
    )
    assert told.count("metrics: ops.progress failed and was disabled") == 1
    assert "alert opens: warning quarantine_rate" in told
    assert "the webhook did not accept them: it did not respond" in told
    assert "lineage: cannot send events to the backend" in told
    assert "s3cret" not in told
    assert read(made.lake, "silver.clickstream__quarantine", "count(*)") == [(100,)]


def test_a_hop_that_stops_is_blamed_and_others_are_not(spark: SparkSession, tmp_path: Path) -> None:
    heard: list[tuple[Hop, str]] = []

    class Hearing:
        def failed(self, hop: Hop, error: Exception) -> None:
            heard.append((hop, type(error).__name__))

        def __getattr__(self, name: str) -> Any:
            return lambda *_: None

    made = world(spark, tmp_path / "world")
    run = replace(made.context, progress=Progress(lambda _: None, Hearing()))
    with pytest.raises(TidelakeError):
        run_hops(run, ("silver",), parse_trigger(AVAILABLE_NOW))
    assert heard == [("silver", "UsageError")]
