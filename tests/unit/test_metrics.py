"""What is measured of a batch, and the places where it goes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tests.pipelines import shop
from tests.unit.handmade import write_commit, write_measures
from tidelake.config.standard_tables import PROGRESS_COLUMNS
from tidelake.delta.commit_metadata import FATES
from tidelake.delta.tables import Lake
from tidelake.ledger.history import Backlog
from tidelake.ops.alerts import Alert
from tidelake.ops.metrics import (
    EXPORTED,
    Measured,
    MetricRegistry,
    Sink,
    measures_since,
    newest_measures,
    served,
)
from tidelake.ops.observers import (
    BatchJoiner,
    Closed,
    RunObserver,
    TriggerProgress,
)
from tidelake.ops.status import Advice, SourceLag

NEW_YEAR = datetime(2024, 1, 1, tzinfo=UTC)
PHASES = {"addBatch": 4000, "walCommit": 300, "commitOffsets": 200, "triggerExecution": 5000}
PROJECT = Path(__file__).parents[2]


def at(second: float) -> datetime:
    return NEW_YEAR + timedelta(seconds=second)


Report = Callable[[BatchJoiner], Iterable[Measured]]


def trigger(hop: str, batch: int, second: float, *, phases: dict[str, int] | None = None) -> Report:
    found = TriggerProgress(f"shop-{hop}", batch, at(second), phases or PHASES, None, None)
    return lambda joining: joining.triggered(found)


def closed(hop: Any, batch: int, rows: int, second: float, *, seconds: float = 4.0) -> Report:
    return lambda joining: joining.closed(Closed(hop, batch, rows, seconds, at(second)))


def started(hop: Any, generation: str, limit: int | None) -> Report:
    return lambda joining: joining.started(hop, generation, limit)


def failed(hop: Any, kind: str, message: str, second: float) -> Report:
    return lambda joining: joining.failed(hop, kind, message, at(second))


@pytest.fixture
def joining(tmp_path: Path) -> BatchJoiner:
    """Give a shop whose silver closed two batches, ten rows of bronze wait for it."""
    lake = Lake(tmp_path)
    write_commit(lake.bronze("shop"), 0, note={"generation": "g1", "batch": -1})
    for version in (1, 2):
        note = {"generation": "g1", "batch": version - 1, "files": []}
        write_commit(lake.bronze("shop"), version, note=note, rows=10, adds=[(10, True)])
    for batch, mark in enumerate(("2023-12-31T23:50:00+00:00", "2023-12-31T23:50:00+00:00")):
        note = {
            "generation": "g1",
            "batch": batch,
            "watermark_in": None,
            "watermark": mark,
            "partitions": {},
            "counts": [
                ["silver", None, "bronze", 7, 0],
                ["quarantined", "parse", "bronze", 3, 0],
            ],
            "taken": {"bronze": 10},
            "until": {"bronze": [2, -1]},
            "warnings": {},
            "dedup": {"searched": 42, "seconds": 0.1},
            "prefiltered": None,
            "columns": [],
        }
        write_commit(lake.silver("shop"), batch, note=note, rows=7, adds=[(7, True)])
    return BatchJoiner(lake, shop(tmp_path), "run 1", 10.0)


def take(joining: BatchJoiner, *reports: Report) -> list[Measured]:
    return [one for report in reports for one in report(joining)]


def test_a_batch_is_what_the_run_spark_and_the_note_say_of_it(joining: BatchJoiner) -> None:
    found = take(
        joining,
        started("silver", "g1", 1024),
        closed("silver", 0, 10, 14.8),
        trigger("silver", 0, 10),
        closed("silver", 1, 10, 24.8),
        trigger("silver", 1, 20),
    )
    first, second = found
    assert (first.pipeline, first.hop, first.generation, first.run) == (
        *("shop", "silver", "g1"),
        "run 1",
    )
    assert (first.started_at, first.ended_at, first.seconds) == (at(10), at(15), 5.0)
    assert (first.rows, first.processed_rows_per_second, first.input_rows_per_second) == (
        *(10, 2.0),
        None,
    )
    assert (first.checkpoint_seconds, first.interval_seconds, first.limit) == (0.5, 10.0, 1024)
    assert first.fates == {"silver": 7, "duplicate": 0, "quarantined": 3, "late": 0, "filtered": 0}
    assert (first.state_rows, first.state_bytes) == (42, None)
    assert (first.waiting, first.lag_seconds) == (10, 13.0)
    assert first.event_time_lag_seconds == 615
    assert (first.watermark_age_seconds, second.watermark_age_seconds) == (0.0, 10.0)
    assert second.input_rows_per_second == 1.0


def test_the_time_that_a_batch_waits_for_other_hops_is_not_its_own(joining: BatchJoiner) -> None:
    first, second = take(
        joining,
        closed("silver", 0, 10, 12.8),
        lambda joining: joining.gave_way("silver", 0, 2.0, at(15)),
        trigger("silver", 0, 10),
        closed("silver", 1, 10, 24.8),
        trigger("silver", 1, 20),
    )
    assert (first.seconds, first.ended_at, first.processed_rows_per_second) == (3.0, at(13), 10 / 3)
    less = {"addBatch": 2000, "triggerExecution": 3000}
    assert first.phases == PHASES | less | {"turn": 2000}
    assert (second.seconds, second.phases) == (5.0, PHASES)


def test_a_batch_that_an_earlier_run_wrote_is_not_counted_again(joining: BatchJoiner) -> None:
    assert take(joining, started("silver", "g1", None), trigger("silver", 0, 10)) == []


def test_spark_may_report_a_trigger_before_the_run_tells_of_its_batch(joining: BatchJoiner) -> None:
    found = take(joining, trigger("silver", 0, 10), closed("silver", 0, 10, 16))
    assert [(one.batch, one.rows, one.seconds) for one in found] == [(0, 10, 5.0)]


def test_triggers_of_other_queries_are_passed_over(joining: BatchJoiner) -> None:
    other = trigger("silver-backfill", 0, 0)
    assert take(joining, closed("silver", 0, 10, 5), other) == []
    assert joining.waits


def test_the_second_pass_over_a_batch_that_changed_its_limit_tells_no_time(
    joining: BatchJoiner,
) -> None:
    second_pass = trigger("silver", 0, 30, phases={"addBatch": 10, "triggerExecution": 50})
    found = take(joining, closed("silver", 0, 10, 20, seconds=8), second_pass)
    assert (found[0].seconds, found[0].started_at) == (8.0, at(12))


def test_a_batch_that_spark_did_not_report_is_measured_when_the_run_ends(
    joining: BatchJoiner,
) -> None:
    take(joining, closed("gold", 0, 7, 20, seconds=2))
    assert list(joining.rest(until=at(20))) == []
    found = list(joining.rest(until=at(21)))
    assert [(one.hop, one.rows, one.seconds, one.phases) for one in found] == [("gold", 7, 2.0, {})]
    # Its tables are its state; no batch is made to count them.
    assert (found[0].state_rows, found[0].state_bytes) == (None, None)
    assert not joining.waits


def test_a_batch_that_waits_for_other_hops_is_not_overdue(joining: BatchJoiner) -> None:
    take(joining, closed("gold", 0, 7, 20), lambda joining: joining.pauses("gold", 0))
    assert list(joining.rest(until=at(300))) == []
    take(joining, lambda joining: joining.gave_way("gold", 0, 280.0, at(300)))
    assert list(joining.rest(until=at(300))) == []
    assert [one.batch for one in joining.rest(until=at(301))] == [0]


def test_a_failure_is_kept_with_the_batch_that_was_open(joining: BatchJoiner) -> None:
    found = take(
        joining,
        started("silver", "g1", None),
        closed("silver", 0, 10, 5),
        trigger("silver", 0, 1),
        failed("silver", "LostError", "records are gone", 9),
        failed("gold", "UsageError", "no table", 9),
    )
    failures = [(one.hop, one.batch, one.error_class, one.error) for one in found[1:]]
    assert failures == [
        ("silver", 1, "LostError", "records are gone"),
        ("gold", -1, "UsageError", "no table"),
    ]


def test_a_hop_that_ends_without_a_batch_is_measured_and_one_with_a_batch_is_not_twice(
    joining: BatchJoiner,
) -> None:
    found = take(joining, lambda joining: joining.ended("gold", at(9)))
    assert [(one.hop, one.batch, one.rows, one.error_class) for one in found] == [
        ("gold", -1, 0, None)
    ]
    assert found[0].is_idle and found[0].ended_at == at(9)
    # Of silver's batch, Spark's report may come before or after the end.
    batches = take(
        joining,
        closed("silver", 0, 10, 5),
        lambda joining: joining.ended("silver", at(6)),
        trigger("silver", 0, 1),
        lambda joining: joining.ended("silver", at(7)),
    )
    assert [one.is_idle for one in batches] == [False]


def test_the_end_of_a_hop_without_a_batch_is_known_to_alerts_and_no_batch_of_prometheus(
    joining: BatchJoiner,
) -> None:
    registry = MetricRegistry("shop")
    observer = RunObserver(joining, [registry], lambda _: None)
    observer.ends("gold")
    observer.close()
    assert [(one.hop, one.is_idle) for one in observer.recent()] == [("gold", True)]
    assert values_of(generate_latest(registry.collected).decode()) == {}


def measured(hop: str = "silver", batch: int = 0, **changes: Any) -> Measured:
    values: dict[str, Any] = {
        "pipeline": "shop",
        "hop": hop,
        "generation": "g1",
        "batch": batch,
        "run": "r",
        "started_at": at(10),
        "ended_at": at(15),
        "seconds": 5.0,
        "interval_seconds": 10.0,
        "rows": 10,
        "input_rows_per_second": 1.0,
        "processed_rows_per_second": 2.0,
        "phases": PHASES,
        "checkpoint_seconds": 0.5,
        "state_rows": 42,
        "state_bytes": 1000,
        "waiting": 3,
        "lag_seconds": 7.0,
        "watermark": at(-600),
        "event_time_lag_seconds": 615.0,
        "watermark_age_seconds": 1.0,
        "fates": {"silver": 8, "quarantined": 2},
        "limit": 1024,
    }
    return Measured(**{**values, **changes})


def test_the_table_has_a_column_for_each_value_of_a_batch() -> None:
    assert list(PROGRESS_COLUMNS) == list(asdict(measured()))


class Collecting(Sink):
    """A sink that keeps what it is given, and breaks when it is told to."""

    name = "the test"

    def __init__(self) -> None:
        self.found: list[Measured] = []
        self.breaks = False
        self.is_closed = False

    def put(self, measured: Measured) -> None:
        if self.breaks:
            raise RuntimeError("the disk is full\nand more")
        self.found.append(measured)

    def close(self) -> None:
        self.is_closed = True


def test_a_sink_that_fails_is_told_once_and_harms_nobody(joining: BatchJoiner) -> None:
    said: list[str] = []
    broken, well = Collecting(), Collecting()
    broken.breaks = True
    observer = RunObserver(joining, [broken, well], said.append)
    for batch in (0, 1):
        observer.hear(closed("silver", batch, 10, 5), joining)
        observer.hear(trigger("silver", batch, 1), joining)
    observer.settle()
    observer.close()
    assert said == ["metrics: the test failed and was disabled: RuntimeError. The run continues."]
    assert [one.batch for one in well.found] == [0, 1] == [one.batch for one in observer.recent()]
    assert well.is_closed


def test_a_hop_has_closed_no_batch_from_its_start_on_also_for_prometheus(
    joining: BatchJoiner,
) -> None:
    registry = MetricRegistry("shop")
    observer = RunObserver(joining, [registry], lambda _: None)
    for hop in ("gold", "silver"):
        observer.starts(hop, "g1", None)
    observer.close()
    found = values_of(generate_latest(registry.collected).decode())
    assert set(found.values()) == {0}
    of_hop = "hop_rows_total", "hop_batches_total", "hop_batch_seconds_count"
    for hop in ("gold", "silver"):
        names = [f"tidelake_{name}{{'hop': '{hop}', 'pipeline': 'shop'}}" for name in of_hop]
        assert names == [name for name in names if name in found]
    fates = {f"tidelake_silver_rows_total{{'fate': '{one}', 'pipeline': 'shop'}}" for one in FATES}
    assert {name for name in found if "silver_rows" in name} == fates
    assert {re.split(r"[{]", name)[0] for name in found} == {
        *(f"tidelake_{name}" for name in of_hop),
        "tidelake_hop_batch_seconds_bucket",
        "tidelake_hop_batch_seconds_sum",
        "tidelake_silver_rows_total",
    }


def test_tables_that_cannot_be_read_are_told_once(joining: BatchJoiner) -> None:
    said: list[str] = []
    observer = RunObserver(joining, [], said.append)
    log = joining.lake.silver("shop").path / "_delta_log"
    (log / "00000000000000000001.json").write_text("not JSON")
    for batch in (0, 1):
        observer.hear(closed("silver", batch, 10, 5), joining)
        observer.hear(trigger("silver", batch, 1), joining)
    observer.settle()
    observer.close()
    assert len(said) == 1 and said[0].startswith("metrics: a batch could not be measured: ")


def values_of(text: str) -> dict[str, float]:
    """Give each series by its name and labels."""
    return {
        sample.name + (str(dict(sorted(sample.labels.items()))) if sample.labels else ""): (
            sample.value
        )
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def filled(measures: Sequence[Measured]) -> MetricRegistry:
    registry = MetricRegistry("shop")
    for one in measures:
        registry.put(one)
    return registry


def test_prometheus_reads_every_metric_that_is_documented() -> None:
    registry = filled([measured(), measured(error_class="LostError", error="gone")])
    opened = Alert("stale", "shop", None, "critical", "no batch", None, "tidelake run shop")
    registry.show([opened], [])
    text = generate_latest(registry.collected).decode()
    families = set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE))
    assert families == set(EXPORTED)
    found = values_of(text)
    # Each has a value, none stands there with its help alone.
    assert {name for name in EXPORTED if not any(key.startswith(name) for key in found)} == set()
    hop = "{'hop': 'silver', 'pipeline': 'shop'}"
    assert found[f"tidelake_hop_rows_total{hop}"] == 10
    assert found[f"tidelake_hop_lag_seconds{hop}"] == 7
    assert found[f"tidelake_hop_batch_seconds_sum{hop}"] == 5
    assert found["tidelake_silver_fate_ratio{'fate': 'quarantined', 'pipeline': 'shop'}"] == 0.2
    assert found["tidelake_watermark_timestamp_seconds{'pipeline': 'shop'}"] == (
        at(-600).timestamp()
    )
    assert not [name for name in found if "_created" in name]


def test_counters_add_up_and_gauges_stay_where_a_batch_does_not_know() -> None:
    registry = filled([measured(), measured(batch=1, waiting=None, lag_seconds=None)])
    found = values_of(generate_latest(registry.collected).decode())
    hop = "{'hop': 'silver', 'pipeline': 'shop'}"
    assert found[f"tidelake_hop_rows_total{hop}"] == 20
    assert found[f"tidelake_hop_waiting{hop}"] == 3


def test_a_phase_that_a_batch_did_not_have_took_no_time_in_it() -> None:
    def phases(*measures: Measured) -> dict[str, float]:
        found = values_of(generate_latest(filled(measures).collected).decode())
        name = "tidelake_hop_phase_seconds{'hop': 'silver', 'phase': '"
        return {
            key.removeprefix(name).split("'")[0]: value
            for key, value in found.items()
            if key.startswith(name)
        }

    first = measured(phases={"addBatch": 4000, "turn": 2000})
    other = measured("gold", phases={"commitOffsets": 100})
    then = measured(batch=1, phases={"addBatch": 1000})
    assert phases(first, other, then) == {"addBatch": 1, "turn": 0}
    # Of a batch that Spark did not report, nothing is known.
    assert phases(first, measured(batch=1, phases={})) == {"addBatch": 4, "turn": 2}


def test_an_alert_that_closes_and_a_lag_that_grows_show_between_batches() -> None:
    registry = filled([measured()])
    opened = Alert("stale", "shop", None, "critical", "no batch", None, "tidelake run shop")
    registry.show([opened], [Backlog("silver", "rows", 99, at(0), 0, 0)])
    found = values_of(generate_latest(registry.collected).decode())
    alert = "{'hop': '', 'pipeline': 'shop', 'rule': 'stale', 'severity': 'critical'}"
    assert found[f"tidelake_alert_open{alert}"] == 1
    assert found["tidelake_hop_waiting{'hop': 'silver', 'pipeline': 'shop'}"] == 99
    assert found["tidelake_hop_lag_seconds{'hop': 'silver', 'pipeline': 'shop'}"] > 1e6
    advice = Advice("unknown", None, "")
    registry.show([], [], SourceLag(at(0), "", (), 7, None, None, None, advice))
    registry.show([], [], SourceLag(at(0), "the broker is away", (), 3, None, None, None, advice))
    found = values_of(generate_latest(registry.collected).decode())
    assert found["tidelake_hop_waiting{'hop': 'bronze', 'pipeline': 'shop'}"] == 7
    assert "tidelake_alert_open{" not in generate_latest(registry.collected).decode()


def test_an_alert_that_stays_open_is_exported_all_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    registry = MetricRegistry("shop")
    first, second = (
        Alert(rule, "shop", None, "critical", "", None, "") for rule in ("stale", "hop_failed")
    )
    registry.show([first], [])
    gauge, seen = registry._metrics["tidelake_alert_open"], list[str]()
    for name in ("labels", "remove", "clear"):
        real = getattr(gauge, name)

        def scraped(*labels: str, real: Any = real) -> Any:
            made = real(*labels)
            seen.append(generate_latest(registry.collected).decode())
            return made

        monkeypatch.setattr(gauge, name, scraped)
    registry.show([first, second], [])
    registry.show([first], [])
    assert len(seen) == 4
    assert all('rule="stale",severity="critical"} 1.0' in text for text in seen)
    assert "hop_failed" in seen[2] and "hop_failed" not in seen[3]


def test_metrics_are_served_on_this_machine_until_the_run_ends() -> None:
    registry = filled([measured()])
    with served(registry, "127.0.0.1:0") as port:
        address = f"http://127.0.0.1:{port}/metrics"
        with urlopen(address, timeout=5) as answer:
            assert b"tidelake_hop_rows_total{" in answer.read()
        with pytest.raises(OSError, match="in use"), served(registry, f"127.0.0.1:{port}"):
            pass
    with pytest.raises(OSError):
        urlopen(address, timeout=5)


def test_what_runs_kept_is_read_back_failures_for_longer(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    assert measures_since(lake, "shop", at(0)) == ()
    assert newest_measures(lake, "shop", at(0)) == {}
    kept = [
        measured(batch=0, ended_at=at(10), error_class="LostError", error="it's gone"),
        measured(batch=1, ended_at=at(20)),
        measured(batch=2, ended_at=at(30), lag_seconds=None, fates={}),
        measured(batch=3, ended_at=at(30), pipeline="other"),
        # The end of a run without a batch, which resolves the failure.
        measured(batch=-1, ended_at=at(15)),
    ]
    write_measures(lake, kept)
    first, *others, _, resolved = kept
    assert measures_since(lake, "shop", at(0)) == (first, resolved, *others)
    assert measures_since(lake, "shop", at(25)) == (kept[2],)
    assert measures_since(lake, "shop", at(25), failed_since=at(5)) == (first, resolved, kept[2])


def test_the_newest_metrics_are_one_of_each_hop_be_it_a_failure(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    silver = [measured(batch=batch, ended_at=at(10 * batch)) for batch in range(5)]
    # Two batches of one instant, and a failure after the last batch.
    bronze = [measured(hop="bronze", batch=batch, ended_at=at(10)) for batch in (0, 1)]
    failure = measured(hop="gold", batch=-1, ended_at=at(9), error_class="LostError", error="gone")
    others = [measured(pipeline="other", batch=9, ended_at=at(90))]
    gold = [measured(hop="gold", batch=batch, ended_at=at(batch)) for batch in range(3)]
    write_measures(lake, [*silver, *bronze, failure, *others, *gold])
    newest = {"bronze": bronze[1], "silver": silver[4], "gold": failure}
    assert newest_measures(lake, "shop", at(0)) == newest
    assert newest_measures(lake, "shop", at(20)) == {"silver": silver[4]}
