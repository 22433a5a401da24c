"""Every row of a batch is counted with its fate, however its repeats are found."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.pipelines import bronze, shop
from tidelake.delta.tables import Lake
from tidelake.fingerprints import Fingerprint, fingerprint
from tidelake.runtime.accepted_rows import AcceptedRows
from tidelake.runtime.checkpointed_frames import CheckpointedFrames
from tidelake.runtime.silver import decide_fates
from tidelake.silver import dedup
from tidelake.silver.fates import FATE
from tidelake.silver.plan import SilverPlan
from tidelake.silver.stages import ORIGIN, STAGE

_WATERMARK = datetime(2024, 1, 1, 11, tzinfo=UTC)
_RULES = {"delay": "10 minutes", "allowed_lateness": "1 hour"}


def _event(number: int, clock: str, **more: object) -> str:
    known = {"event_id": f"e{number}", "event_time": f"2024-01-01T{clock}Z", "user_id": "u"}
    return json.dumps({**known, **more})


def _batch(spark: SparkSession) -> DataFrame:
    """Make a batch with rows of every fate, copies and conflicts of each kind that has them."""
    fresh = [
        _event(1, "11:30:00"),
        _event(1, "11:30:00"),
        # Later than what it conflicts with: it must not move the watermark.
        _event(1, "11:59:00"),
        _event(2, "11:40:00"),
        # Too late, and a copy of what is too late.
        _event(3, "09:00:00"),
        _event(3, "09:00:00"),
        _event(4, "09:00:00", value=2),
        _event(4, "09:00:00", value=3),
        "no object",
        _event(5, "11:00:00", value="12,50"),
        _event(6, "11:10:00", user_id="bot"),
        _event(7, "11:20:00", colour="red"),
        _event(7, "11:20:00", colour="red"),
    ]
    return bronze(spark, [{"record_id": f"f:{n}", "payload": text} for n, text in enumerate(fresh)])


@pytest.mark.parametrize(
    ("numbered", "small", "compared"),
    [(True, True, 1_000), (True, False, 1_000), (True, False, 1), (False, False, 1_000)],
)
def test_each_row_is_counted_with_the_fate_that_it_has(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    numbered: bool,
    small: bool,
    compared: int,
) -> None:
    # With more rows than these Spark compares, and counts, in place of the driver.
    monkeypatch.setattr(dedup, "COMPARED_ROWS", compared)
    pipeline = shop(tmp_path, event={"where": "user_id <> 'bot'"}, watermark=_RULES)
    search = AcceptedRows(spark, pipeline, Lake(tmp_path), 0, nothing_accepted=True)
    with CheckpointedFrames(small=small, rows=0 if numbered else None) as frames:
        plan = SilverPlan(pipeline)
        decision = decide_fates(
            plan.judge(_batch(spark)), plan, search, _WATERMARK, frames, counts=True
        )
        decided, summary = decision.rows, decision.summary
        assert summary is not None
        rows = decided.groupBy(ORIGIN, FATE, STAGE).count().collect()
        marks = decided.groupBy(ORIGIN, FATE, STAGE).agg(fingerprint().alias("mark")).collect()
    assert summary.rows() == {tuple(row)[:3]: row["count"] for row in rows}
    assert {key: mark for key, mark in summary.marks.items() if mark != Fingerprint()} == {
        tuple(row)[:3]: Fingerprint.of(*row["mark"]) for row in marks
    }
    assert summary.rows()["bronze", "duplicate", None] == 3
    assert summary.rows()["bronze", "quarantined", "conflicting_duplicate"] == 2
    assert summary.rows()["bronze", "silver", None] == 3
    reached = summary.partitions({})["0"].max_event_time
    assert reached == datetime(2024, 1, 1, 11, 40, tzinfo=UTC)
    assert summary.has_unknown()
    assert summary.of_accepted("unknown") == 1


@pytest.mark.parametrize("small", [True, False])
def test_a_batch_without_rows_counts_nothing(
    spark: SparkSession, tmp_path: Path, small: bool
) -> None:
    plan = SilverPlan(shop(tmp_path))
    search = AcceptedRows(spark, plan.pipeline, Lake(tmp_path), 0, nothing_accepted=True)
    with CheckpointedFrames(small=small, rows=0) as frames:
        judged = plan.judge(_batch(spark).limit(0))
        summary = decide_fates(judged, plan, search, None, frames, counts=True).summary
    assert summary is not None
    assert summary.rows() == {}
    assert summary.partitions({}) == {}
