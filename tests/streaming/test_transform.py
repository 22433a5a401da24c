"""A function of the user's between select and the rules: its columns count, its rows are judged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType

from tests.crashes import before_silver_closes
from tests.worlds import TO_SILVER
from tidelake.config import Environment, load_pipeline
from tidelake.delta.access import load
from tidelake.delta.log import commits
from tidelake.delta.tables import HOPS, Lake
from tidelake.errors import RowsChangedError, TidelakeError, TransformError, UsageError
from tidelake.ledger.query import ask
from tidelake.ledger.terms import read_ledger
from tidelake.replay.backfill import build
from tidelake.replay.backfill_state import green_lake
from tidelake.replay.erase_records import find_records
from tidelake.replay.subject import Subject
from tidelake.replay.verify import verify
from tidelake.runtime.hop import Run
from tidelake.runtime.progress import Progress
from tidelake.runtime.runner import run_hops
from tidelake.runtime.triggers import AVAILABLE_NOW, parse_trigger
from tidelake.silver.transform import UserFunction
from tidelake.testing import transformed

_FUNCTIONS = """
from pyspark.sql import Window
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType

half = F.udf(lambda value: None if value is None else value // 2, IntegerType())


def scored(rows):
    by_user = Window.partitionBy("user_id").orderBy(F.desc("value"))
    rows = rows.withColumn("_rank", F.row_number().over(by_user)).drop("_rank")
    risk = F.when(F.col("value") > 5, "high").otherwise("low")
    return rows.withColumns({"risk": risk, "score": half("value"), "user_id": F.upper("user_id")})


def doubled_for_dropped(rows):
    rows = scored(rows)
    a, b = (rows.where(F.col("event_id") == name) for name in "ab")
    return rows.where("event_id NOT IN ('a', 'b') OR event_id IS NULL").union(a).union(a)


def breaking(rows):
    return scored(rows).withColumn("score", F.udf(lambda value: 1 // 0, IntegerType())("value"))
"""
_SUITE = """
name: shop
expectations:
  - type: expect_column_values_to_be_in_set
    kwargs: {column: risk, value_set: [low, high]}
  - type: expect_column_values_to_be_between
    kwargs: {column: score, max_value: 4}
"""


def _run(spark: SparkSession, folder: Path, function: str = "scored") -> Run:
    module = f"functions_{folder.name}"
    (folder / "conf/pipelines").mkdir(parents=True, exist_ok=True)
    (folder / "conf/suite.yml").write_text(_SUITE)
    (folder / f"{module}.py").write_text(_FUNCTIONS)
    content: dict[str, Any] = {
        "name": "shop",
        "source": {"kind": "files", "path": "${root}/landing"},
        "event": {
            "schema": "id STRING, at TIMESTAMP, user_id STRING, value INT",
            "select": {"user_id": "user_id", "value": "value"},
            "id": "id",
            "time": "at",
        },
        "transform": {
            "function": f"{module}:{function}",
            "columns": "risk STRING, score INT, user_id STRING",
        },
        "quality": {"suite": "suite.yml"},
        "gold": [
            {
                "name": "by_risk",
                "window": {"kind": "global"},
                "keys": ["risk"],
                "measures": {"events": {"count": "*"}, "total": {"sum": "score"}},
            }
        ],
    }
    file = folder / "conf/pipelines/shop.yml"
    file.write_text(yaml.safe_dump(content))
    environment = Environment(name="local", root=folder)
    pipeline = load_pipeline(str(file), environment)
    assert environment.root is not None
    return Run(spark, pipeline, Lake(environment.root), environment, Progress(lambda _: None))


def _land(folder: Path, name: str, **values: int) -> None:
    landing = folder / "landing"
    landing.mkdir(exist_ok=True)
    rows = [
        {"id": key, "at": "2026-01-05T10:00:00Z", "user_id": "u", "value": value}
        for key, value in values.items()
    ]
    lines = [*map(json.dumps, rows), "garbage"]
    (landing / name).write_text("".join(f"{line}\n" for line in lines))


def _go(run: Run) -> None:
    run_hops(run, HOPS, parse_trigger(AVAILABLE_NOW))


@pytest.mark.long
def test_its_columns_are_judged_stored_summed_and_verified(
    spark: SparkSession, tmp_path: Path
) -> None:
    run = _run(spark, tmp_path)
    _land(tmp_path, "a.jsonl", a=3, b=8, c=20)
    _go(run)
    silver = ask(run.lake, "SELECT event_id, user_id, risk, score FROM silver.shop ORDER BY 1")
    assert list(silver.rows) == [("a", "U", "low", 1), ("b", "U", "high", 4)]
    gold = ask(run.lake, "SELECT risk, events, total FROM gold.by_risk ORDER BY 1")
    assert list(gold.rows) == [("high", 1, 4), ("low", 1, 1)]
    stages = ask(run.lake, "SELECT stage, payload FROM silver.shop__quarantine ORDER BY 1").rows
    assert [stage for stage, _ in stages] == ["expectation", "parse"]
    assert bytes(stages[1][1]) == b"garbage"
    assert read_ledger(run.lake, run.pipeline).problems == ()
    assert verify(run).equal

    build(run, "bronze")
    green = green_lake(run.lake, run.pipeline, "bronze")
    rebuilt = load(spark, green.silver("shop")).orderBy("event_id").select("risk", "score")
    assert [tuple(row) for row in rebuilt.collect()] == [("low", 1), ("high", 4)]

    # The function's code has changed, its name has not.
    changed = _run(spark, tmp_path)
    names = UserFunction.of(changed.pipeline).function.__globals__  # type: ignore[attr-defined]
    names["half"] = F.udf(lambda value: value and -1, IntegerType())
    judged = {one.table.name: one.comparison.equal for one in verify(changed).tables}
    assert not judged["silver.shop"]

    _land(tmp_path, "b.jsonl", a=1, b=1)
    for function, kind, message in (
        ("doubled_for_dropped", RowsChangedError, r"silver, batch \d: .* 1 vanished, 1 appeared"),
        ("breaking", TidelakeError, r"silver, batch \d: .*ZeroDivisionError \(.*functions_.*line"),
    ):
        with pytest.raises(kind, match=message):
            _go(_run(spark, tmp_path, function))
    assert ask(run.lake, "SELECT count(*) FROM silver.shop").rows[0] == (2,)
    with pytest.raises(RowsChangedError, match=r"shop, erase: .* 2 vanished, 2 appeared"):
        find_records(_run(spark, tmp_path, "doubled_for_dropped"), Subject("event_id", "a"))


def test_a_batch_that_is_retried_with_other_code_is_decided_by_that_alone(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The definition is the same: nothing in it shows that the function's code changed."""
    run = _run(spark, tmp_path)
    _land(tmp_path, "a.jsonl", a=3, b=8, c=20)
    with before_silver_closes():
        run_hops(run, TO_SILVER, parse_trigger(AVAILABLE_NOW))
    # What bronze did is kept longer than its log, also where silver fails in each run.
    copied = ask(run.lake, "SELECT table_name, max(version) FROM ops.books GROUP BY 1").rows
    assert ("bronze.shop", next(commits(run.lake.bronze("shop"))).version) in copied
    # What was too much passes now, and the other way round.
    names = UserFunction.of(run.pipeline).function.__globals__  # type: ignore[attr-defined]
    names["half"] = F.udf(lambda value: value and 14 - value, IntegerType())
    changed = _run(spark, tmp_path)
    run_hops(changed, TO_SILVER, parse_trigger(AVAILABLE_NOW))
    silver = ask(run.lake, "SELECT event_id, score FROM silver.shop ORDER BY 1").rows
    refused = ask(run.lake, "SELECT event_id FROM silver.shop__quarantine ORDER BY 1").rows
    assert list(silver) == [("c", -6)]
    assert list(refused) == [("a",), ("b",), (None,)]
    assert read_ledger(run.lake, run.pipeline).problems == ()


def _cut(rows: DataFrame) -> DataFrame:
    return rows.where("v > 1").withColumn("w", F.col("v"))


def _exploded(rows: DataFrame) -> DataFrame:
    return rows.withColumn("w", F.explode(F.array("v", "v")))


def _swapped(rows: DataFrame) -> DataFrame:
    first = rows.where("v = 1")
    return rows.where("v > 2").union(first).union(first).withColumn("w", F.col("v"))


def _ranked(rows: DataFrame) -> DataFrame:
    return rows.withColumn("w", F.row_number().over(Window.orderBy(F.desc("v"))))


def _plain(rows: DataFrame) -> DataFrame:
    return rows.orderBy(F.desc("v")).withColumn("w", F.col("v") * 2)


def _by_chance(rows: DataFrame) -> DataFrame:
    return rows.withColumn("w", F.rand().cast("int"))


def _undeclared(rows: DataFrame) -> DataFrame:
    return _plain(rows).withColumn("x", F.lit(1))


def _of_another_type(rows: DataFrame) -> DataFrame:
    return rows.withColumn("w", F.lit("text"))


def _failing(rows: DataFrame) -> DataFrame:
    raise ValueError(f"no {rows.columns[1]}")


_ROWS = [{"v": 1}, {"v": 2}, {"v": 3}]


@pytest.mark.parametrize(
    ("function", "kind", "message"),
    [
        (_cut, RowsChangedError, "1 vanished, 0 appeared"),
        (_exploded, RowsChangedError, "0 vanished, 3 appeared"),
        (_swapped, RowsChangedError, "1 vanished, 1 appeared"),
        (_ranked, TransformError, "another result"),
        (_by_chance, TransformError, "nondeterministic"),
        (_undeclared, TransformError, "column x, which is not declared"),
        (_of_another_type, TransformError, "w is declared as int, but is string"),
        (lambda rows: rows, TransformError, "does not return the declared column w"),
        (lambda rows: rows.select("v", F.lit(1).alias("w")), TransformError, "_record"),
        (_failing, TransformError, r"ValueError: no v \(.*test_transform.py, line \d+\)"),
    ],
)
def test_what_breaks_the_contract_is_refused(
    spark: SparkSession, function: Any, kind: type[TidelakeError], message: str
) -> None:
    with pytest.raises(kind, match=message):
        transformed(function, _ROWS, schema="v INT", columns="w INT")


def test_a_misspelt_column_of_a_row_is_named(spark: SparkSession) -> None:
    rows = [{"v": 1}, {"V": 2, "w": 3}]
    with pytest.raises(UsageError, match=r"column V; did you mean v\?; unknown column w"):
        transformed(_plain, rows, schema="v INT", columns="w INT")


def test_a_function_that_keeps_it_gives_its_columns(spark: SparkSession) -> None:
    found = transformed(_plain, _ROWS, schema="v INT", columns="w INT")
    assert found == [{"w": 2}, {"w": 4}, {"w": 6}]
