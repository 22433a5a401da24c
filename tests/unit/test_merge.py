"""Merges into gold: once for each batch, however often it comes."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from tidelake.delta.access import load
from tidelake.delta.log import last_commit
from tidelake.delta.merge import merge
from tidelake.delta.tables import Lake
from tidelake.gold.kinds import MergePlan


def test_a_batch_that_is_merged_again_changes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    table = Lake(tmp_path).gold("totals")
    ddl = "user_id string, events bigint, _batch bigint"
    stored = [("kept", 1, 0), ("grown", 1, 0), ("gone", 1, 0), ("of a later batch", 1, 2)]
    spark.createDataFrame(stored, ddl).coalesce(1).write.format("delta").save(str(table.path))
    rows = [
        ("grown", 2, 1, False),
        ("gone", 0, 1, True),
        ("of a later batch", 9, 1, False),
        ("new", 4, 1, False),
        ("gone before", 0, 1, True),
    ]
    plan = MergePlan(
        spark.createDataFrame(rows, f"{ddl}, _gone boolean"),
        on="t.user_id = s.user_id",
        update={"events": "t.events + s.events", "_batch": "s._batch"},
    )
    for _ in range(2):
        merge(plan, table, {"generation": "g1", "batch": 1})
        found = {row["user_id"]: row["events"] for row in load(spark, table).collect()}
        assert found == {"kept": 1, "grown": 3, "of a later batch": 1, "new": 4}
    last = last_commit(table)
    assert last is not None
    assert (last.generation, last.batch) == ("g1", 1)
