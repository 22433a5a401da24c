"""What follows from a definition of silver is built once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.pipelines import shop
from tests.unit.judged import expect
from tidelake.bronze.records import REQUEUE_DDL
from tidelake.config import Pipeline
from tidelake.silver import dedup, fates, stages, summary
from tidelake.silver.fates import decide, to_silver
from tidelake.silver.plan import SilverPlan
from tidelake.silver.summary import summarize

pytestmark = pytest.mark.usefixtures("interpreted")

_BUILDERS: dict[Any, tuple[str, ...]] = {
    stages: ("_evaluated", "_reasons", "_output", "compile_rules", "decoding"),
    dedup.Comparison: ("__init__",),
    dedup: ("_grouping", "_matched", "_ranks", "arrival_columns", "compared_columns"),
    fates.Fates: ("__init__",),
    fates.Routing: ("__init__",),
    fates: ("_fate",),
    summary.Counting: ("__init__",),
}


def _batch(spark: SparkSession, plan: SilverPlan) -> list[str]:
    classified = plan.judge(spark.createDataFrame([], REQUEUE_DDL))
    # What follows reads stored rows, as in a batch; otherwise it is planned for a minute.
    judged = spark.createDataFrame([], classified.schema)
    allowed = plan.pipeline.watermark.allowed_lateness
    new = dedup.undecided_rows(judged, plan.comparison)
    repeats = dedup.Repeats(dedup.rank_arrivals(new, plan.comparison), 0)
    decided = decide(judged, repeats, plan.fates, watermark=None, allowed=allowed)
    summarize(decided, plan.counting)
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

    wanted = {f"{owner.__name__}.{name}" for owner, names in _BUILDERS.items() for name in names}
    for owner, names in _BUILDERS.items():
        for name in names:
            build = counted(f"{owner.__name__}.{name}", getattr(owner, name))
            monkeypatch.setattr(owner, name, build)
    rule = expect("column_values_to_not_be_null", column="user_id")
    monkeypatch.setattr(Pipeline, "rules", (rule,))
    plan = SilverPlan(shop(tmp_path))
    columns = _batch(spark, plan)
    assert set(built) == wanted
    built.clear()
    assert _batch(spark, plan) == columns
    assert not built


def test_a_plan_of_another_definition_gives_other_columns(
    spark: SparkSession, tmp_path: Path
) -> None:
    one, other = (
        SilverPlan(shop(tmp_path)),
        SilverPlan(shop(tmp_path, event={"select": {"user_id": "user_id"}})),
    )
    assert _batch(spark, one) != _batch(spark, other)
