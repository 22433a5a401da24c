"""Alerts of the fast lane beside those of the tables: the first of each counts, with a verdict."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tidelake.cli.flow import fast_lane
from tidelake.config import load_environment, load_pipeline
from tidelake.delta.log import Commit
from tidelake.errors import UsageError
from tidelake.runtime.fast_lane import _count_verdicts, _first_alerts, _refused_ids, _with_verdicts

_SENT = (
    "alerted_event string, rule string, alerted_at int, record_id string, event_time int, "
    "evidence string, sent_at int, card_id string"
)
_EXACT = "event_id string, rule string, event_time int, card_id string, evidence string"


def test_each_event_and_rule_has_one_verdict_by_its_first_alert(
    spark: SparkSession, tmp_path: Path
) -> None:
    environment = load_environment("local", root=str(tmp_path))
    detection, fast = fast_lane(load_pipeline("payments", environment))
    sent = spark.createDataFrame(
        [
            ("both", "amount", 7, "r:2", 1, "later", 5, "c"),
            ("both", "amount", 6, "r:3", 1, "sooner", 4, "c"),
            ("known", "amount", 6, "r:1", 2, "x", 4, "d"),
            ("ahead", "burst", 6, "r:4", 3, "x", 4, "e"),
            ("ahead", None, 6, "r:5", 3, "x", 4, "e"),
            ("known", None, 6, "r:6", 2, "x", 4, "d"),
        ],
        _SENT,
    )
    exact = spark.createDataFrame(
        [("both", "amount", 1, "c", "exact"), ("slow", "amount", 9, "f", "exact")], _EXACT
    )
    decided = spark.createDataFrame([("both",), ("known",), ("slow",)], "event_id string")
    decided = decided.withColumn("_decided", F.lit(True))
    first = _first_alerts(sent, detection, fast)
    found = _with_verdicts(first, exact, decided, detection)
    assert found.columns[:5] == ["verdict", "rule", "event_id", "event_time", "card_id"]
    assert sorted((tuple(row) for row in found.collect()), key=str) == sorted(
        [
            ("confirmed", "amount", "both", 1, "c", "exact", "sooner", 4, 6),
            ("retracted", "amount", "known", 2, "d", None, "x", 4, 6),
            ("open", "burst", "ahead", 3, "e", None, "x", 4, 6),
            ("missed", "amount", "slow", 9, "f", "exact", None, None, None),
            # Records of the topic that are no alerts stay visible.
            ("open", None, "ahead", 3, "e", None, "x", 4, 6),
            ("retracted", None, "known", 2, "d", None, "x", 4, 6),
        ],
        key=str,
    )
    assert _count_verdicts(found) == {
        "amount": {"confirmed": 1, "retracted": 1, "open": 0, "missed": 1},
        "burst": {"confirmed": 0, "retracted": 0, "open": 1, "missed": 0},
        "without a rule": {"confirmed": 0, "retracted": 1, "open": 1, "missed": 0},
    }


def test_a_table_of_alerts_without_their_columns_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    environment = load_environment("local", root=str(tmp_path))
    detection, fast = fast_lane(load_pipeline("payments", environment))
    bare = spark.createDataFrame([], _SENT).drop("evidence", "card_id")
    with pytest.raises(UsageError, match="has no column evidence, card_id: name it under"):
        _first_alerts(bare, detection, fast)


def test_refused_rows_decide_with_their_batch_and_conflicting_duplicates_never(
    spark: SparkSession,
) -> None:
    quarantine = spark.sql(
        "SELECT * FROM VALUES "
        "('committed', 'contract', 'g2', 3), "
        "('open', 'contract', 'g2', 4), "
        "('earlier generation', 'expectation', 'g1', 9), "
        "('of another writer', 'contract', NULL, NULL), "
        # Its event was accepted before, with another payload.
        "('conflict', 'conflicting_duplicate', 'g2', 3) "
        "AS t(event_id, stage, _generation, _batch)"
    )
    closed = Commit(7, datetime.now(UTC), None, {"generation": "g2", "batch": 3})

    def ids(side: DataFrame) -> set[str]:
        return {row.event_id for row in _refused_ids(side, closed).collect()}

    decided = {"committed", "earlier generation", "of another writer"}
    assert ids(quarantine) == decided
    # Late rows have no stage.
    assert ids(quarantine.drop("stage")) == decided | {"conflict"}
