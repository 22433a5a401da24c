from __future__ import annotations

import pytest
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from tests.costs import newest_job
from tidelake.runtime import checkpointed_frames
from tidelake.runtime.checkpointed_frames import CheckpointedFrames
from tidelake.silver.driver_dedup import NUMBER
from tidelake.spark import internals


def varied(spark: SparkSession) -> DataFrame:
    """Rows of types whose values change where a row leaves Spark's own form and comes back."""
    return spark.range(40).selectExpr(
        "id",
        "map('z', id, 'a', 1, 'f', 2, 'b', 3, 'q', 9, 'c', 1) AS numbers",
        "timestamp_seconds(-id * 2000000000) AS instant",
        "date_from_unix_date(-cast(id AS int) * 20000) AS day",
        "cast(id AS decimal(38, 18)) AS price",
        'parse_json(\'{"b": 1, "a": [1.10, null]}\') AS anything',
        "encode('x', 'utf-8') AS payload",
        "named_struct('a', id, 'b', array('x', null)) AS nested",
        "cast('NaN' AS double) AS share",
        "cast(null AS string) AS nothing",
    )


def texts(rows: DataFrame) -> list[str]:
    fields = [F.to_json("anything").alias("anything"), "payload"]
    others = [name for name in rows.columns if name not in ("anything", "payload")]
    shown = rows.select(F.to_json(F.struct(*others)).alias("others"), *fields)
    return sorted(str(row.asDict()) for row in shown.collect())


def test_a_small_batchs_rows_are_the_same_in_the_driver(spark: SparkSession) -> None:
    rows = varied(spark)
    with CheckpointedFrames(small=True) as frames:
        kept, _ = frames.checkpoint_now(rows)
        plan = kept._jdf.queryExecution().toString()
        assert "LocalTableScan" in plan
        assert kept.schema == rows.schema
        assert texts(kept) == texts(rows)


def test_a_kept_frame_joins_itself(spark: SparkSession) -> None:
    with CheckpointedFrames(small=True) as frames:
        kept, _ = frames.checkpoint_now(spark.range(10).withColumn("half", F.expr("id div 2")))
        halves = kept.select("half").distinct()
        assert kept.join(halves, on="half").count() == 10


def test_rows_are_computed_once_and_observed(spark: SparkSession) -> None:
    for small in (True, False):
        told = Observation()
        with CheckpointedFrames(small=small) as frames:
            kept, _ = frames.checkpoint_now(
                spark.range(5)
                .withColumn("drawn", F.expr("uuid()"))
                .observe(told, F.count("*").alias("rows"))
            )
            first, again = kept.collect(), kept.collect()
        assert first == again
        assert told.get == {"rows": 5}


@pytest.mark.parametrize("small", [True, False])
def test_rows_are_computed_once_and_measured(spark: SparkSession, small: bool) -> None:
    drawn = spark.range(5).withColumn("drawn", F.expr("uuid()"))
    with CheckpointedFrames(small=small) as frames:
        kept, measured = frames.materialize(
            drawn, F.count("*").alias("rows"), F.max("drawn").alias("most")
        )
        first, again = kept.collect(), kept.collect()
        assert first == again
        assert measured == {"rows": 5, "most": max(row["drawn"] for row in first)}
        assert frames.materialize(drawn)[1] == {}


class _Unreported(Observation):
    """An observation of which the engine says nothing."""

    get = property(lambda _: {})


@pytest.mark.parametrize(
    ("remote", "measured"),
    [
        # Spark itself drops only those of an empty input.
        (False, {}),
        (True, {"rows": 5}),
    ],
)
def test_measures_that_a_remote_engine_does_not_report_are_computed_again(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, remote: bool, measured: dict[str, int]
) -> None:
    monkeypatch.setattr(checkpointed_frames, "Observation", _Unreported)
    monkeypatch.setattr(checkpointed_frames, "runs_in_process", lambda: not remote)
    with CheckpointedFrames() as frames:
        kept, found = frames.checkpoint_now(spark.range(5), F.count("*").alias("rows"))
        assert (kept.count(), found) == (5, measured)


def test_a_small_batch_is_computed_and_measured_in_one_job(spark: SparkSession) -> None:
    # Not a range, which Spark evaluates without a job.
    rows = spark.range(0, 40, 1, 2).where(F.rand() < 2)
    with CheckpointedFrames(small=True) as frames:
        before = newest_job(spark)
        kept, measured = frames.materialize(rows, F.count("*").alias("rows"))
        spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
        assert (measured, newest_job(spark) - before) == ({"rows": 40}, 1)
        assert "LocalTableScan" in kept._jdf.queryExecution().toString()


def test_rows_of_no_small_batch_stay_with_the_executors(spark: SparkSession) -> None:
    with CheckpointedFrames() as frames:
        assert (
            "LocalTableScan"
            not in frames.checkpoint_now(spark.range(3))[0]._jdf.queryExecution().toString()
        )
    with CheckpointedFrames(small=True) as frames:
        assert (
            "LocalTableScan"
            not in frames.checkpoint(spark.range(3))._jdf.queryExecution().toString()
        )


def test_where_spark_is_built_otherwise_rows_are_kept_all_the_same(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other(*_: object) -> DataFrame:
        raise internals.BridgeError("Constructor LocalRelation does not exist")

    monkeypatch.setattr(internals, "_relation_classes", other)
    with CheckpointedFrames(small=True, rows=3) as frames:
        assert frames.checkpoint_now(spark.range(3))[0].count() == 3
        kept_now, measured = frames.materialize(spark.range(3), F.count("*").alias("rows"))
        assert (kept_now.count(), measured) == (3, {"rows": 3})
        kept = frames.checkpoint_batch(spark.range(3))
        assert (kept.rows.count(), kept.numbered) == (3, True)


@pytest.mark.parametrize("small", [True, False])
def test_each_row_keeps_its_number(spark: SparkSession, small: bool) -> None:
    # What is computed anew would have other rows.
    rows = spark.range(0, 100, 1, 3).where(F.rand() < 0.7)
    with CheckpointedFrames(small=small, rows=100) as frames:
        kept = frames.checkpoint_batch(rows)
        assert (kept.numbered, kept.is_small) == (True, small)
        first, second = (kept.rows.orderBy(NUMBER).collect() for _ in range(2))
    assert first == second
    assert len({row[NUMBER] for row in first}) == len(first) > 0


def test_rows_of_which_nobody_knows_how_many_there_are_get_no_number(spark: SparkSession) -> None:
    with CheckpointedFrames() as frames:
        kept = frames.checkpoint_batch(spark.range(3))
    assert not kept.numbered
    assert NUMBER not in kept.rows.columns
