"""Closing epochs: each boundary once, counted up by pipeline."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tests.pipelines import shop
from tests.running import read
from tests.unit.handmade import write_commit
from tidelake import instants
from tidelake.config import Environment
from tidelake.delta.commit_metadata import last_epochs, recent_epochs
from tidelake.delta.log import newest_version
from tidelake.delta.tables import Lake
from tidelake.runtime import epochs
from tidelake.runtime.epochs import close_epoch
from tidelake.runtime.hop import Run
from tidelake.runtime.progress import Progress
from tidelake.spark import tuning


@pytest.fixture
def run(spark: SparkSession, environment: Environment, lake: Lake, tmp_path: Path) -> Run:
    """Give a pipeline that stands at its first boundary."""
    run = Run(spark, shop(tmp_path), lake, environment, Progress(lambda _: None))
    for version in (0, 1):
        batch(run, version)
    return run


def batch(run: Run, version: int) -> None:
    """Close a batch in each hop; version 0 makes the tables."""
    name = run.pipeline.name
    after: dict[str, Any] = {"until": {}} if not version else {"until": {"silver": [version, 0]}}
    for table in (run.lake.bronze(name), run.lake.silver(name), *golds(run)):
        note = {"pipeline": name, "generation": "g1", "batch": version - 1, **after}
        write_commit(table, version, note=note, adds=[(1, True)] if version else [])


def golds(run: Run) -> list[Any]:
    return [run.lake.gold(gold.name) for gold in run.pipeline.gold]


@pytest.mark.parametrize(
    ("number", "shows", "wants", "asked"),
    [
        (1, True, False, [False]),
        (2, True, False, []),
        (None, True, False, []),
        (2, False, True, []),
        (1, False, True, [False]),
        (None, True, True, [True]),
    ],
)
def test_views_are_looked_at_after_the_first_epoch_and_where_they_follow_each(
    monkeypatch: pytest.MonkeyPatch,
    number: int | None,
    shows: bool,
    wants: bool,
    asked: list[bool],
) -> None:
    told: list[bool] = []
    monkeypatch.setattr(epochs, "_close", lambda *_: number)
    monkeypatch.setattr(epochs, "ensure_views", lambda _, *, consistent: told.append(consistent))
    wanted = SimpleNamespace(environment=SimpleNamespace(consistent_views=wants))
    close_epoch(cast(Run, wanted), shows=shows)
    assert told == asked


def found(lake: Lake, columns: str = "pipeline, epoch, versions['gold.counted']") -> list[Any]:
    return read(lake, "ops.epochs", columns)


def test_a_boundary_is_written_once(run: Run, lake: Lake) -> None:
    close_epoch(run)
    close_epoch(run)
    assert found(lake) == [("shop", 1, 1)]
    before = newest_version(lake.epochs())

    batch(run, 2)
    close_epoch(run)
    assert found(lake) == [("shop", 1, 1), ("shop", 2, 2)]
    assert newest_version(lake.epochs()) == before + 1


def test_a_pipeline_that_stands_at_no_boundary_has_no_epochs(run: Run, lake: Lake) -> None:
    note = {"pipeline": "shop", "generation": "g1", "batch": 1, "until": {"silver": [1, 0]}}
    write_commit(lake.silver("shop"), 1, note=note, adds=[(1, True), (1, True)])

    close_epoch(run)
    assert not lake.epochs().exists


def test_each_pipeline_counts_for_itself(run: Run, lake: Lake) -> None:
    gold = run.pipeline.gold[0].model_copy(update={"name": "other"})
    other = replace(run, pipeline=run.pipeline.model_copy(update={"name": "b", "gold": (gold,)}))
    for version in (0, 1):
        batch(other, version)
    for version in (2, 3):
        for one in (run, other):
            close_epoch(one)
            batch(one, version)
    close_epoch(run)

    assert found(lake, "pipeline, epoch") == [
        *(("b", 1), ("b", 2)),
        *(("shop", 1), ("shop", 2), ("shop", 3)),
    ]


def test_pipelines_that_close_at_once_without_a_lock_keep_their_numbers(
    run: Run, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = replace(lake, needs_locks=False)
    run = replace(run, lake=lake)
    other = replace(run, pipeline=run.pipeline.model_copy(update={"name": "b"}))
    monkeypatch.setattr(epochs, "hold", lambda *_, **__: nullcontext())
    real, waiting = epochs.append_records, [other]
    batch(other, 0)
    for version in (1, 2):
        batch(run, version)
        batch(other, version)
        if version == 1:
            close_epoch(run)
            close_epoch(other)

    def append_records(*args: Any, **more: Any) -> None:
        # The other pipeline closes an epoch after this one has read which are closed.
        if waiting:
            close_epoch(waiting.pop())
        real(*args, **more)

    monkeypatch.setattr(epochs, "append_records", append_records)
    close_epoch(run)
    newest, *_ = recent_epochs(lake)
    assert newest.note["last"]["b"]["epoch"] == 1
    assert last_epochs(recent_epochs(lake))["b"]["epoch"] == 2

    batch(other, 3)
    close_epoch(other)
    assert found(lake, "pipeline, epoch") == [
        *(("b", 1), ("b", 2), ("b", 3)),
        *(("shop", 1), ("shop", 2)),
    ]
    newest, *_ = recent_epochs(lake)
    assert {name: one["epoch"] for name, one in newest.note["last"].items()} == {"b": 3, "shop": 2}


def test_an_epoch_is_known_after_the_log_forgot_when_it_was_closed(run: Run, lake: Lake) -> None:
    close_epoch(run)
    other = replace(run, pipeline=run.pipeline.model_copy(update={"name": "b"}))
    for version in (0, 1):
        batch(other, version)
    close_epoch(other)
    newest = newest_version(lake.epochs())
    DeltaTable(str(lake.epochs().path)).create_checkpoint()
    for version in range(newest):
        (lake.epochs().path / "_delta_log" / f"{version:020}.json").unlink()

    close_epoch(run)
    assert newest_version(lake.epochs()) == newest
    batch(run, 2)
    close_epoch(run)
    assert found(lake)[-1] == ("shop", 2, 2)


def test_epochs_close_in_order_whatever_the_clock_does(
    run: Run, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ahead(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return datetime(2100, 1, 1, tzinfo=UTC)

    with monkeypatch.context() as patched:
        patched.setattr(instants, "datetime", Ahead)
        close_epoch(run)
    batch(run, 2)
    close_epoch(run)

    times = found(lake, "epoch, closed_at::VARCHAR")
    assert times == [(1, "2100-01-01 00:00:00+00"), (2, "2100-01-01 00:00:00.000001+00")]


def test_many_epochs_are_kept_in_few_files(
    run: Run, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "COMPACTION_BATCHES", 3)
    for version in range(2, 6):
        close_epoch(run)
        batch(run, version)
    assert len(DeltaTable(str(lake.epochs().path)).file_uris()) == 2

    close_epoch(run)
    assert [number for _, number, _ in found(lake)] == [1, 2, 3, 4, 5]
