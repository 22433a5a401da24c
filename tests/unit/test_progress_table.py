"""The table of metrics, when it cannot be written: rows are kept, and reported once."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from delta.exceptions import ConcurrentDeleteReadException

from tests.unit.handmade import write_measures, write_rows
from tidelake.delta.locks import hold
from tidelake.delta.tables import Lake, Table
from tidelake.instants import now
from tidelake.ledger.query import ask
from tidelake.ops.metrics import Measured, ProgressTable
from tidelake.runtime.progress import Progress

NEW_YEAR = datetime(2024, 1, 1, tzinfo=UTC)


def measured(batch: int) -> Measured:
    return Measured("shop", "silver", "g1", batch, "a run", NEW_YEAR, NEW_YEAR)


@pytest.fixture
def table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[ProgressTable, list[str], list[Exception]]:
    """Give a sink to a table, what it says, and the errors of its next appends."""
    said: list[str] = []
    errors: list[Exception] = []

    def append(
        _: object, table: Table, rows: Sequence[dict[str, Any]], *__: Any, **note: Any
    ) -> None:
        note = {key: value for key, value in note.items() if key != "newest"}
        if not errors or isinstance(errors[0], AfterTheCommit):
            numbers = ", ".join(f"({row['batch']})" for row in rows)
            sql = f"SELECT * FROM (VALUES {numbers}) AS t(batch)"
            write_rows(table, sql, note={"generation": "g1", "batch": 0, **note})
        if errors:
            raise errors.pop(0)

    monkeypatch.setattr("tidelake.ops.metrics.append_records", append)
    monkeypatch.setattr("tidelake.ops.metrics._SECONDS", 0.0)
    run: Any = SimpleNamespace(
        spark=None,
        lake=Lake(tmp_path / "lake"),
        pipeline=SimpleNamespace(name="shop"),
        progress=Progress(said.append),
    )
    return ProgressTable(run, timedelta(days=30)), said, errors


class AfterTheCommit(Exception):
    """An append fails once its rows are committed."""


def appended(table: ProgressTable) -> list[int]:
    rows = ask(table.run.lake, "SELECT batch FROM ops.progress ORDER BY 1").rows
    return [number for (number,) in rows]


def test_the_end_of_a_hop_without_a_batch_is_written_where_its_last_run_failed(
    table: tuple[ProgressTable, list[str], list[Exception]],
) -> None:
    """It ends the alert on the failure; runs with nothing to do append nothing otherwise."""
    sink, _, _ = table
    moment = now()
    failed = Measured("shop", "gold", "g1", 7, "r", moment, moment, error_class="A", error="a")
    well = Measured("shop", "silver", "g1", 7, "r", moment, moment)
    write_measures(sink.run.lake, [failed, well])
    for hop in ("bronze", "silver", "gold"):
        sink.put(Measured("shop", hop, "g1", -1, "r", moment, moment))

    assert [(row["hop"], row["batch"]) for row in sink._waiting] == [("gold", -1)]


def test_rows_that_cannot_be_written_are_kept_and_told_once_an_outage(
    table: tuple[ProgressTable, list[str], list[Exception]],
) -> None:
    sink, said, errors = table
    errors += [OSError(28, "No space left on device")] * 2
    for batch in range(3):
        sink.put(measured(batch))
        sink.tick()
    assert appended(sink) == [0, 1, 2]
    errors += [RuntimeError("the store does not answer")]
    sink.put(measured(batch=3))
    sink.tick()
    sink.close()

    assert appended(sink) == [0, 1, 2, 3]
    after = "The run continues, keeps the rows, and tries again every minute."
    assert [line.endswith(after) for line in said] == [True, True]
    assert "No space left on device" in said[0] and "RuntimeError" in said[1]


def test_beside_a_process_that_does_not_release_the_lock_rows_are_kept(
    table: tuple[ProgressTable, list[str], list[Exception]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait is short: the thread has other sinks, and the rows are kept for the next minute."""
    sink, said, _ = table
    lock = sink.run.lake.lock_of(sink.run.lake.progress())
    monkeypatch.setattr("tidelake.ops.metrics.BRIEF_WAIT_SECONDS", 0.3)
    sink.put(measured(0))
    with hold(lock, "ops.progress"):
        sink.tick()
    assert said == [
        "metrics: ops.progress could not be written: LockedError: ops.progress is being written by "
        f"process {os.getpid()}, and was not released within 0.3 s. "
        "The run continues, keeps the rows, and tries again every minute."
    ]
    sink.tick()
    assert appended(sink) == [0]


def test_the_end_of_a_run_reports_rows_that_cannot_be_written(
    table: tuple[ProgressTable, list[str], list[Exception]],
) -> None:
    sink, said, errors = table
    errors += [OSError(28, "No space left on device")]
    sink.put(measured(0))
    with pytest.raises(OSError, match="No space"):
        sink.close()
    assert said == []


def test_rows_that_were_committed_are_not_appended_again(
    table: tuple[ProgressTable, list[str], list[Exception]],
) -> None:
    sink, said, errors = table
    errors += [AfterTheCommit("the compaction met another one")]
    for batch in range(2):
        sink.put(measured(batch))
        sink.tick()

    assert appended(sink) == [0, 1]
    assert len(said) == 1


def test_of_more_rows_than_can_wait_the_newest_are_kept(
    table: tuple[ProgressTable, list[str], list[Exception]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelake.ops.metrics._MOST_WAITING", 2)
    sink, _, errors = table
    errors += [OSError(28, "No space left on device")] * 4
    for batch in range(5):
        sink.put(measured(batch))
        sink.tick()

    assert appended(sink) == [3, 4]


@pytest.mark.parametrize(
    ("failures", "tries", "reported"),
    [
        ([ConcurrentDeleteReadException("compacted")], 2, 0),
        ([RuntimeError("the table is append-only")], 1, 1),
    ],
)
def test_a_deletion_that_meets_a_compaction_is_tried_again_and_no_other_keeps_rows_back(
    table: tuple[ProgressTable, list[str], list[Exception]],
    failures: list[Exception],
    tries: int,
    reported: int,
) -> None:
    sink, said, _ = table
    begun: list[str] = []

    def sql(statement: str) -> None:
        begun.append(statement)
        if failures:
            raise failures.pop(0)

    sink.run.spark = SimpleNamespace(sql=sql)  # type: ignore[misc, assignment]
    note = {"generation": "g1", "batch": 0, "cleaned_at": NEW_YEAR.isoformat()}
    write_rows(sink.run.lake.progress(), "SELECT -1 AS batch", note=note)
    for batch in range(2):
        sink.put(measured(batch))
        sink.tick()

    assert appended(sink) == [-1, 0, 1]
    assert len(begun) == tries and begun[0].startswith("DELETE FROM ")
    assert [line.startswith("metrics: old rows of ops.progress could not") for line in said] == [
        True
    ] * reported
