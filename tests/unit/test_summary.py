"""What is counted of a batch does not depend on when its repeats are found."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from tests.pipelines import bronze, shop
from tidelake.fingerprints import Fingerprint, fingerprint
from tidelake.runtime.held import Held
from tidelake.silver.classify import ORIGIN, STAGE, Judging, classify
from tidelake.silver.dedup import Comparison, find_repeats
from tidelake.silver.route import FATE, Fates, decide
from tidelake.silver.summary import Counting, corrected, summarize

# Rows arrive then; the watermark and what is allowed behind it decide what is too late.
_RULES = {
    "watermark": datetime(2024, 1, 1, 11, tzinfo=UTC),
    "allowed": timedelta(hours=1),
}


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


def test_counts_that_are_corrected_are_those_of_the_decided_rows(
    spark: SparkSession, tmp_path: Path
) -> None:
    pipeline = shop(tmp_path, event={"where": "user_id <> 'bot'"})
    with Held() as hold:
        judged = hold(classify(_batch(spark), Judging(pipeline)))
        first, arrivals = summarize(decide(judged, None, Fates(), **_RULES), Counting(pipeline))
        repeats = find_repeats(judged, arrivals, None, Comparison(pipeline.dedup), hold=hold)
        decided = decide(judged, repeats.rows, Fates(), **_RULES)
        summary = corrected(first, decided, Counting(pipeline))
        rows = decided.groupBy(ORIGIN, FATE, STAGE).count().collect()
        marks = decided.groupBy(ORIGIN, FATE, STAGE).agg(fingerprint().alias("mark")).collect()
    assert arrivals.rows == 10
    assert summary.rows() == {tuple(row)[:3]: row["count"] for row in rows}
    assert {key: mark for key, mark in summary.marks.items() if mark != Fingerprint()} == {
        tuple(row)[:3]: Fingerprint.of(*row["mark"]) for row in marks
    }
    assert summary.rows()["bronze", "duplicate", None] == 3
    assert summary.rows()["bronze", "quarantined", "conflicting_duplicate"] == 2
    assert first.rows()["bronze", "silver", None] == 6
    reached = summary.partitions({})["0"].max_event_time
    assert reached == datetime(2024, 1, 1, 11, 40, tzinfo=UTC)
    assert first.partitions({})["0"].max_event_time == datetime(2024, 1, 1, 11, 59, tzinfo=UTC)
    assert summary.has_unknown()
    assert summary.of_accepted("unknown") == 1
    assert first.of_accepted("unknown") == 2
