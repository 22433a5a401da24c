"""What follows from a definition of silver is built once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.pipelines import shop
from tests.unit.judged import expect
from tidelake.bronze import REQUEUE_DDL
from tidelake.config import Pipeline
from tidelake.silver import classify, dedup, route, summary
from tidelake.silver.plan import SilverPlan
from tidelake.silver.route import decide, settle, to_silver
from tidelake.silver.summary import corrected, summarize

_BUILDERS = {
    classify: ("_steps", "_rule_columns", "decoding"),
    dedup: ("_compared", "_grouping", "_matched", "_ranks", "_ranking"),
    route: ("_verdicts", "_fate", "_event_columns"),
    summary: ("_columns", "_repeats", "arrival_keys", "arrival_counts"),
}


def _batch(spark: SparkSession, plan: SilverPlan) -> list[str]:
    judged = plan.judge(spark.createDataFrame([], REQUEUE_DDL))
    allowed = plan.pipeline.watermark.allowed_lateness
    decided = decide(judged, None, plan.fates, watermark=None, allowed=allowed)
    first, _ = summarize(decided, plan.counting)
    new = dedup.in_the_running(judged, plan.comparison)
    decided = settle(decided, dedup.rank_arrivals(new, plan.comparison), plan.fates)
    corrected(first, decided, plan.counting)
    return to_silver(decided, plan.routing, generation="g", batch=0).columns


def test_batches_of_one_plan_build_their_columns_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[str] = []

    def counted(name: str, build: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            built.append(name)
            return build(*args)

        return call

    for module, names in _BUILDERS.items():
        for name in names:
            monkeypatch.setattr(module, name, counted(name, getattr(module, name)))
    rule = expect("column_values_to_not_be_null", column="user_id")
    monkeypatch.setattr(Pipeline, "rules", (rule,))
    plan = SilverPlan(shop(tmp_path))
    columns = _batch(spark, plan)
    first = sorted(built)
    assert _batch(spark, plan) == columns
    assert sorted(built) == first == sorted(name for names in _BUILDERS.values() for name in names)


def test_a_plan_of_another_definition_gives_other_columns(
    spark: SparkSession, tmp_path: Path
) -> None:
    one, other = (
        SilverPlan(shop(tmp_path)),
        SilverPlan(shop(tmp_path, event={"select": {"user_id": "user_id"}})),
    )
    assert _batch(spark, one) != _batch(spark, other)
