"""Measures: aggregated at once, combined or merged, they are the same."""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path

import pytest
from chispa import assert_df_equality
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.pipelines import gold, shop, timed
from tidelake.config import GoldTable, Pipeline, load_environment
from tidelake.delta.tables import Lake
from tidelake.errors import ConfigError
from tidelake.gold.kinds import Inputs
from tidelake.gold.measures import (
    GoldPlan,
    TypedTable,
    columns_of,
    shown_of,
    states_of,
    to_values,
    tolerances,
    with_shown,
)
from tidelake.gold.windows import Windowed
from tidelake.replay.compare import compare
from tidelake.replay.verify import shape_of
from tidelake.runtime.hop import Run
from tidelake.runtime.progress import Progress
from tidelake.runtime.schemas import check_definition

MEASURES = {
    "events": {"count": "*"},
    "valued": {"count": "value"},
    "large": {"count_if": "value > 2"},
    "total": {"sum": "value"},
    "least_value": {"min": "value"},
    "most_value": {"max": "value"},
    "mean": {"avg": "value"},
    "first_value": {"first": "value"},
    "last_value": {"last": "value"},
}
NOON, LATER = "2024-01-01 12:00:00", "2024-01-01 12:00:00.000001"
# Key, half, event id, event time, value.
EVENTS = [
    ("plain", 0, "e1", NOON, "1.25"),
    ("plain", 0, "e2", LATER, "3.00"),
    ("plain", 1, "e3", "2024-01-01 11:00:00", "-2.00"),
    ("plain", 1, "e4", "2024-01-01 13:00:00", "4.00"),
    ("old half null", 0, "e1", NOON, None),
    ("old half null", 1, "e2", LATER, "2.00"),
    ("new half null", 0, "e1", NOON, "2.00"),
    ("new half null", 1, "e2", LATER, None),
    ("all null", 0, "e1", NOON, None),
    ("all null", 1, "e2", LATER, None),
    ("ties, old first", 0, "e1", NOON, "1.00"),
    ("ties, old first", 1, "e2", NOON, "2.00"),
    ("ties, new first", 0, "e2", NOON, "2.00"),
    ("ties, new first", 1, "e1", NOON, "1.00"),
    # An id that came back past the TTL: the value decides, null is the least.
    ("one id, old less", 0, "e1", NOON, "1.00"),
    ("one id, old less", 1, "e1", NOON, "2.00"),
    ("one id, new less", 0, "e1", NOON, "2.00"),
    ("one id, new less", 1, "e1", NOON, "1.00"),
    ("one id, old null", 0, "e1", NOON, None),
    ("one id, old null", 1, "e1", NOON, "1.00"),
    ("one id, new null", 0, "e1", NOON, "1.00"),
    ("one id, new null", 1, "e1", NOON, None),
]
DDL = "user_id string; half int; event_id string; event_time timestamp; value string"


# Appended to each value's digits after the point: such sums have all of Spark's 38 digits.
FINEST = 15 * "0" + "1"


def events_of(spark: SparkSession, kind: str = "decimal(18,2)", more: str = "") -> DataFrame:
    value = F.concat("value", F.lit(more)).cast(kind)
    return timed(spark, EVENTS, DDL).withColumn("value", value)


def partials(events: DataFrame, table: GoldTable, *by: str) -> DataFrame:
    return aggregated(values_of(events, table, *by), table, *by)


def values_of(events: DataFrame, table: GoldTable, *by: str) -> DataFrame:
    known = {"event_id": F.lit("e"), "event_time": F.timestamp_seconds(F.lit(0))}
    whole = events.withColumns({k: v for k, v in known.items() if k not in events.columns})
    return to_values(
        whole, TypedTable(GoldPlan(table).typed(whole).table.model_copy(update={"keys": by}))
    )


def aggregated(events: DataFrame, table: GoldTable, *by: str) -> DataFrame:
    states = [F.expr(state.partial).alias(state.name) for state in states_of(table)]
    return events.groupBy(*by).agg(*states)


def like(frame: DataFrame, model: DataFrame) -> DataFrame:
    """Cast to the stored columns' types, as Delta does on assignment."""
    return frame.select(*[F.col(f.name).cast(f.dataType) for f in model.schema])


def test_combining_two_halves_gives_the_whole(spark: SparkSession, tmp_path: Path) -> None:
    events = events_of(spark)
    table = GoldPlan(gold(tmp_path, measures=MEASURES)).typed(events).table
    whole = partials(events, table, "user_id")
    combined = (
        partials(events, table, "user_id", "half")
        .groupBy("user_id")
        .agg(*[F.expr(state.combine).alias(state.name) for state in states_of(table)])
    )
    assert_df_equality(like(combined, whole), whole, ignore_row_order=True, ignore_nullable=True)


@pytest.mark.parametrize(
    ("kind", "more"), [("decimal(18,2)", ""), ("decimal(38,18)", FINEST)], ids=["usual", "finest"]
)
def test_merging_a_new_half_into_a_stored_one_gives_the_whole(
    spark: SparkSession, tmp_path: Path, kind: str, more: str
) -> None:
    events = events_of(spark, kind, more)
    table = GoldPlan(gold(tmp_path, measures=MEASURES)).typed(events).table
    whole = partials(events, table, "user_id")
    halves = partials(events, table, "user_id", "half")
    stored, new = halves.where("half = 0").alias("t"), halves.where("half = 1").alias("s")
    merged = stored.join(new, on=F.expr("t.user_id = s.user_id"), how="inner").select(
        "t.user_id", *[F.expr(state.merge).alias(state.name) for state in states_of(table)]
    )
    assert_df_equality(like(merged, whole), whole, ignore_row_order=True, ignore_nullable=True)


def test_a_merged_sum_of_decimals_is_rounded_only_where_it_has_no_room(
    spark: SparkSession,
) -> None:
    table = GoldTable.model_validate({**ALL, "measures": {"total": {"sum": "value"}}})
    events = spark.sql("SELECT CAST(1 AS DECIMAL(38,18)) AS value")
    (state,) = states_of(GoldPlan(table).typed(events).table)
    most, tenth, last = "9" * 19 + "." + "9" * 18, "1" + "0" * 19, "0." + "0" * 17 + "1"
    sides = {
        "37 digits": (most, most),
        "38 digits": (tenth, last),
        "too many": ("9" * 20, tenth),
    }
    found = {}
    for name, (t, s) in sides.items():
        both = spark.sql(
            f"SELECT named_struct('total', CAST('{t}' AS DECIMAL(38,18))) AS t, "
            f"named_struct('total', CAST('{s}' AS DECIMAL(38,18))) AS s"
        ).select(F.expr(state.merge).alias("total"))
        assert both.dtypes == [("total", "decimal(38,18)")]
        found[name] = both.collect()[0]["total"]
    twice = Decimal("1" + most[:-1] + "8")
    assert found == {"37 digits": twice, "38 digits": Decimal(tenth), "too many": None}


def test_the_states_and_the_mean_are_what_the_events_say(
    spark: SparkSession, tmp_path: Path
) -> None:
    events = events_of(spark)
    table = GoldPlan(gold(tmp_path, measures=MEASURES)).typed(events).table
    [mean] = shown_of(table)
    states = partials(events, table, "user_id").withColumn(
        "mean", F.expr(mean.over({name: name for name in mean.states}))
    )
    names = [name for name in columns_of(table) if not name.endswith("_at")]
    texts = states.select(
        "user_id", *[F.col(name).cast("double").alias(name) for name in names]
    ).collect()
    found = {row["user_id"]: list(row[1:]) for row in texts}
    assert names == [*MEASURES, "_mean_sum", "_mean_count"]
    assert found == {
        "plain": [4, 4, 2, 6.25, -2, 4, 1.5625, -2, 4, 6.25, 4],
        "old half null": [2, 1, 0, 2, 2, 2, 2, None, 2, 2, 1],
        "new half null": [2, 1, 0, 2, 2, 2, 2, 2, None, 2, 1],
        "all null": [2, 0, 0, None, None, None, None, None, None, None, 0],
        "ties, old first": [2, 2, 0, 3, 1, 2, 1.5, 1, 2, 3, 2],
        "ties, new first": [2, 2, 0, 3, 1, 2, 1.5, 1, 2, 3, 2],
        "one id, old less": [2, 2, 0, 3, 1, 2, 1.5, 1, 2, 3, 2],
        "one id, new less": [2, 2, 0, 3, 1, 2, 1.5, 1, 2, 3, 2],
        "one id, old null": [2, 1, 0, 1, 1, 1, 1, None, 1, 1, 1],
        "one id, new null": [2, 1, 0, 1, 1, 1, 1, None, 1, 1, 1],
    }


def test_a_mean_of_decimals_has_the_digits_of_spark_whatever_the_batches(
    spark: SparkSession,
) -> None:
    kinds = [(18, 2), (24, 3), (25, 3), (28, 28), (38, 0), (38, 6), (38, 18)]
    columns = {f"m{digits}_{scale}": (digits, scale) for digits, scale in kinds}
    ddl = "decimal({},{})".format
    events = spark.sql("SELECT * FROM VALUES (0, 0.5BD), (0, 0BD), (1, 0BD) AS t(half, value)")
    events = events.withColumns(
        {
            name: F.col("value").cast("decimal({},{})".format(*kind))
            for name, kind in columns.items()
        }
    )
    measures = {f"{name}_mean": {"avg": name} for name in columns}
    given = GoldTable.model_validate({**ALL, "measures": measures})
    table = GoldPlan(given).typed(events).table
    values = values_of(events, table, "half")
    whole = values.agg(*[F.expr(one.like).alias(one.name) for one in shown_of(table)])
    halves = aggregated(values, table, "half")
    stored, new = halves.where("half = 0").alias("t"), halves.where("half = 1").alias("s")
    merged = {state.name: state.merge for state in states_of(table)}
    means = [F.expr(one.over(merged)).alias(one.name) for one in shown_of(table)]

    of_spark = events.agg(*[F.avg(name).alias(f"{name}_mean") for name in columns])
    types = {name: (min(digits, 28) + 4, scale + 4) for name, (digits, scale) in columns.items()}
    assert dict(whole.dtypes) == {f"{name}_mean": ddl(*kind) for name, kind in types.items()}
    expected = like(of_spark, whole).collect()
    assert whole.collect() == expected
    assert like(stored.crossJoin(new).select(*means), whole).collect() == expected
    states = [F.expr(state.combine).alias(state.name) for state in states_of(table)]
    combined = with_shown(halves.groupBy().agg(*states), table)
    assert like(combined, whole).collect() == expected


@pytest.mark.parametrize(
    ("stored", "differs"),
    [("0.3333333333", False), ("0.333333", False), ("0.333332", True), ("0.33334", True)],
)
def test_a_mean_that_an_earlier_version_merged_may_have_fewer_digits(
    spark: SparkSession, stored: str, differs: bool
) -> None:
    table = GoldTable.model_validate({**ALL, "measures": {"mean": {"avg": "value"}}})
    near = tolerances(table, {"mean": "decimal(32,10)"})["mean"]
    sides = {"e": "0.3333333333", "s": stored}
    kinds = ", ".join(
        f"named_struct('mean', CAST({value} AS DECIMAL(32,10))) AS {side}"
        for side, value in sides.items()
    )
    condition = re.sub(r"\{([es])\.mean\}", r"\1.mean", near)
    (row,) = spark.sql(f"SELECT {condition} AS same FROM (SELECT {kinds})").collect()
    assert row["same"] is not differs


def refusals(spark: SparkSession, pipeline: Pipeline, folder: Path) -> dict[str, str]:
    """Let Spark judge a definition: what it refuses, by path."""
    environment = load_environment("local", root=str(folder / "lake"))
    lake, progress = Lake(folder / "lake"), Progress(lambda _: None)
    with pytest.raises(ConfigError) as refused:
        check_definition(Run(spark, pipeline, lake, environment, progress))
    return {one.path: one.message for one in refused.value.violations}


def test_keys_of_which_only_spark_can_tell_that_no_merge_compares_them_are_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    pipeline = shop(
        tmp_path,
        event={
            "schema": "id STRING, at TIMESTAMP, who STRING, tags MAP<STRING, STRING>",
            "select": {"who": "who", "tags": "map_filter(tags, (k, v) -> k <> '')"},
            "id": "id",
            "time": "at",
        },
        gold=[ALL | {"keys": ["who", "tags"], "measures": {"last": {"max": "who"}}}],
        joins=[
            {
                "name": "pairs",
                "type": "inner",
                "on": ["tags"],
                "within": "1 hour",
                "left": {"columns": {"who": "who"}},
                "right": {"pipeline": "shop", "columns": {"other": "who"}},
            }
        ],
    )
    found = refusals(spark, pipeline, tmp_path)
    assert list(found) == ["gold[0].keys[1]", "joins[0].on"]
    assert found["gold[0].keys[1]"].startswith("tags is map<string,string>, whose values cannot")
    assert "DATATYPE_MISMATCH" in found["joins[0].on"]


def test_sums_that_may_overflow_or_decide_alerts_inexactly_are_refused_with_their_place(
    spark: SparkSession, tmp_path: Path
) -> None:
    types = {
        "fine": "DECIMAL(38,30)",
        "side": "DECIMAL(18,15)",
        "wei": "DECIMAL(38,18)",
        "heat": "DOUBLE",
        "spelled": "STRING",
        "place": "ARRAY<DOUBLE>",
    }
    measures = {
        "total": {"sum": "fine"},
        "mean": {"avg": "side * side"},
        "most": {"max": "fine"},
        "cast": {"sum": "CAST(fine AS DECIMAL(38,28))"},
        "wei": {"avg": "wei"},
        "heat": {"sum": "heat"},
    }
    values = ("heat", "spelled", "fine", "CAST(heat AS DECIMAL(18,2))", "wei")
    pipeline = shop(
        tmp_path,
        event={
            "schema": ", ".join(["id STRING, at TIMESTAMP", *map(" ".join, types.items())]),
            "select": {name: name for name in types},
            "id": "id",
            "time": "at",
        },
        gold=[ALL | {"keys": ["spelled"], "measures": measures}],
        detections=[
            {
                "name": f"alerts_{number}",
                "features": f"hours_{number}",
                "keys": ["spelled"],
                "unusual_amount": {"value": value},
            }
            for number, value in enumerate(values)
        ]
        + [
            {
                "name": "travels",
                "features": "places",
                "keys": ["spelled"],
                "impossible_travel": {"latitude": "place -- north", "longitude": "wei"},
            }
        ],
    )
    found = refusals(spark, pipeline, tmp_path)
    order = "; a sum of DOUBLE or FLOAT depends on the order of rows; cast the argument to DECIMAL"
    room = (
        ", whose sum may overflow; cast it to a DECIMAL with at most 28 digits after the point, "
        "such as DECIMAL(38,18)"
    )
    for path in ("features.measures.last_place", "impossible_travel.latitude"):
        assert "CAST(place AS DOUBLE)" in found.pop(f"detections[5].{path}")
    assert found == {
        "gold[0].measures.total": f"is DECIMAL(38,30){room}",
        "gold[0].measures.mean": f"is DECIMAL(37,30){room}",
        "detections[0].unusual_amount.value": f"is DOUBLE{order}",
        "detections[1].unusual_amount.value": f"is STRING{order}",
        "detections[2].unusual_amount.value": f"is DECIMAL(38,30){room}",
    }


def test_sums_of_queries_that_may_overflow_are_refused_with_their_place(
    spark: SparkSession, tmp_path: Path
) -> None:
    columns = ("sum(fine)", "2 * avg(fine)", "max(fine)", "sum(CAST(fine AS DECIMAL(38,28)))")
    hour = "SELECT date_trunc('hour', event_time) AS hour"
    queries = [
        {"name": f"q{number}", "sql": f"{hour}, {sql} AS x FROM silver.shop GROUP BY hour"}
        for number, sql in enumerate(columns)
    ]
    pipeline = shop(
        tmp_path,
        event={
            "schema": "id STRING, at TIMESTAMP, fine DECIMAL(38,30)",
            "select": {"fine": "fine"},
            "id": "id",
            "time": "at",
        },
        gold=[],
        queries=queries,
    )
    room = (
        "is DECIMAL(38,30), whose sum may overflow; cast it to a DECIMAL with at most 28 digits "
        "after the point, such as DECIMAL(38,18)"
    )
    assert refusals(spark, pipeline, tmp_path) == {
        "queries[0].sql": f"the argument of sum(fine) {room}",
        "queries[1].sql": f"the argument of avg(fine) {room}",
    }


def test_the_columns_analysts_read_come_before_those_that_only_merge(tmp_path: Path) -> None:
    table = gold(tmp_path, measures={"mean": {"avg": "value"}, "opening": {"first": "value"}})
    assert columns_of(table) == ["mean", "opening", "_mean_sum", "_mean_count", "_opening_at"]


def test_the_last_of_maps_is_picked_without_comparing_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = gold(tmp_path, measures={"latest": {"last": "map('value', value)"}})
    (row,) = partials(events_of(spark).where("user_id = 'plain'"), table).collect()
    assert row["latest"] == {"value": Decimal("4.00")}


SKETCHES = {
    "users": {"approx_count_distinct": "user_id"},
    "usual": {"approx_percentile": "value", "p": 0.5},
    "high": {"approx_percentile": "value", "p": 0.99},
}


def shown(states: DataFrame, table: GoldTable) -> tuple[float, ...]:
    """Compute what analysts see of one row of states."""
    columns = [
        F.expr(one.over({name: name for name in one.states})).alias(one.name)
        for one in shown_of(table)
    ]
    [row] = states.select(*columns).collect()
    return tuple(row)


def test_sketches_are_near_however_they_came_together(spark: SparkSession, tmp_path: Path) -> None:
    table = gold(tmp_path, measures=SKETCHES)
    # Values 0.00 to 199.99, each user a hundred times.
    events = spark.range(20_000).select(
        F.lit("k").alias("all"),
        F.concat(F.lit("u"), F.col("id") % 200).alias("user_id"),
        (F.col("id") / 100).cast("decimal(18,2)").alias("value"),
        (F.col("id") % 3).alias("part"),
    )
    parts = partials(events, table, "all", "part")
    old, new = parts.where("part = 0").alias("t"), parts.where("part > 0").alias("s")
    states = states_of(table)
    combined = new.groupBy("all").agg(*[F.expr(s.combine).alias(s.name) for s in states])
    merged = old.crossJoin(combined.alias("s")).select(
        *[F.expr(state.merge).alias(state.name) for state in states]
    )

    for users, usual, high in (shown(partials(events, table, "all"), table), shown(merged, table)):
        assert abs(users - 200) <= 200 * 0.05
        assert abs(usual - 100) <= 200 * 0.02
        assert abs(high - 198) <= 200 * 0.02


def test_sketches_of_no_value_show_nothing_and_merge(spark: SparkSession, tmp_path: Path) -> None:
    table = gold(tmp_path, measures=SKETCHES)
    events = spark.range(2).select(
        F.lit(None).cast("string").alias("user_id"),
        F.when(F.col("id") == 1, F.lit("2.50").cast("decimal(18,2)")).alias("value"),
        F.col("id").alias("part"),
    )
    empty, full = (partials(events.where(F.col("part") == n), table, "part") for n in (0, 1))

    assert shown(empty, table) == (0, None, None)
    merged = empty.alias("t").crossJoin(full.alias("s"))
    states = merged.select(*[F.expr(state.merge).alias(state.name) for state in states_of(table)])
    assert shown(states, table) == (0, 2.5, 2.5)


def test_what_is_shown_of_new_rows_has_the_type_of_what_is_shown_of_merged_ones(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = gold(tmp_path, measures=SKETCHES)
    events = spark.range(1).selectExpr("'u' AS user_id", "1.25BD AS value")
    likes = values_of(events, table).agg(
        *[F.expr(one.like).alias(one.name) for one in shown_of(table)]
    )

    assert likes.dtypes == [("users", "bigint"), ("usual", "double"), ("high", "double")]
    assert [tuple(row) for row in likes.collect()] == [(1, 1.25, 1.25)]


FAILING = {
    "ratio": {"sum": "10 / n"},
    "wide": {"sum": "wide"},
    "typical": {"approx_percentile": {"expression": "text", "p": 0.5}},
    "spelled": {"avg": "text"},
    "matching": {"count_if": "text RLIKE '^(a|b)*$'"},
    "distinct": {"approx_count_distinct": "big * big"},
    "highest": {"max": "big + 1"},
    "latest": {"last": "CAST(text AS INT)"},
}
MOST = 2**63 - 1
ALL = {"name": "all", "window": {"kind": "global"}}


def test_an_event_on_which_a_measure_fails_contributes_null_and_is_counted(
    spark: SparkSession,
) -> None:
    table = GoldTable.model_validate({**ALL, "where": "10 / w > 0", "measures": FAILING})
    rows = [
        ("e1", 1, 1, 1, "7", "1"),
        ("e2", 1, 0, MOST, "a" * 100_000, "9" * 38),
        # Outside of where, or where fails itself.
        ("e3", -1, 0, MOST, "x", "1"),
        ("e4", 0, 0, MOST, "x", "1"),
    ]
    ddl = "event_id string, w int, n int, big bigint, text string, wide string"
    events = spark.createDataFrame(rows, ddl).withColumns(
        {"wide": F.col("wide").cast("decimal(38,0)"), "event_time": F.timestamp_seconds("w")}
    )
    typed = GoldPlan(table).typed(events)
    known = typed.table
    marked = events.select("event_id", typed.failed.alias("failed")).collect()
    assert dict(map(tuple, marked)) == {"e1": False, "e2": True, "e3": False, "e4": True}

    whole = partials(events, known)
    [states] = whole.collect()
    found = {name: states[name] for name in ("ratio", "wide", "matching", "highest", "latest")}
    assert found == {"ratio": 10, "wide": 1, "matching": 0, "highest": 2, "latest": None}
    assert (states["_spelled_sum"], states["_spelled_count"]) == (7, 1)
    assert shown(whole, known) == (7, 7, 1)


def test_a_sum_of_large_integers_is_exact_and_their_mean_a_double(
    spark: SparkSession,
) -> None:
    rows = [(MOST, 0), (MOST, 1), (1, 1), (None, 1)]
    events = spark.createDataFrame(rows, "n bigint, half int")
    table = GoldTable.model_validate(
        {**ALL, "measures": {"total": {"sum": "n"}, "mean": {"avg": "n"}}}
    )
    known = GoldPlan(table).typed(events).table
    halves = partials(events, known, "half")
    old, new = (halves.where(F.col("half") == n) for n in (0, 1))
    merged = old.alias("t").crossJoin(new.alias("s"))
    states = merged.select(*[F.expr(state.merge).alias(state.name) for state in states_of(known)])

    assert dict(halves.dtypes)["total"] == "decimal(38,0)"
    assert states.collect()[0]["total"] == 2 * MOST + 1
    assert shown(states, known) == ((2 * MOST + 1) / 3,)
    likes = values_of(events, known).agg(
        *[F.expr(one.like).alias("mean") for one in shown_of(known)]
    )
    assert likes.dtypes == [("mean", "double")]


_LARGEST = 1.7976931348623157e308


@pytest.mark.parametrize(
    ("terms", "stored", "differs"),
    [
        # What is left of terms that cancel depends on their order, and may be less than one.
        ([_LARGEST, -_LARGEST, 0.1, 0.1], 0.1, False),
        ([1e9, -1e9, 0.5], 0.25, False),
        ([1.0, -1.0, 0.5], 0.25, True),
        # Small terms are no reason for large differences.
        ([1e-12, 2e-12], 9e-12, True),
        ([1e-12, 2e-12], 3.0000000000000003e-12, False),
    ],
)
@pytest.mark.parametrize("aggregate", ["sum", "avg"])
def test_a_sum_of_doubles_is_judged_by_the_size_of_its_terms(
    spark: SparkSession, aggregate: str, terms: list[float], stored: float, differs: bool
) -> None:
    table = GoldTable.model_validate(
        {**ALL, "keys": ["user_id"], "measures": {"heat": {aggregate: "value"}}}
    )
    rows = [("u", f"e{n}", value) for n, value in enumerate(terms)]
    events = spark.createDataFrame(rows, "user_id string, event_id string, value double")
    events = events.withColumn("event_time", F.timestamp_seconds(F.lit(0)))
    types = {"heat": "double", "_heat_sum": "double"}
    target = Windowed("gold.t", "gold[0]", table)
    whole = Inputs({}, lambda _: events)
    found = target.of_all(whole)
    known = (
        {"heat": stored}
        if aggregate == "sum"
        else {"_heat_sum": stored, "heat": stored / len(terms)}
    )
    found = found.withColumns({name: F.lit(value) for name, value in known.items()})

    exact = target.with_terms(types)
    judged = compare(exact.of_all(whole), found, shape_of(exact, found))
    assert judged.equal is not differs
    assert set(judged.columns) == set(found.columns)


def test_a_derived_value_is_judged_exactly_by_its_own_row(spark: SparkSession) -> None:
    stored = {
        # The sum is within its tolerance, and what is derived follows from it exactly.
        "right": (0.30000000000000004, 0.6000000000000001, None),
        "other order": (0.3, 0.6, None),
        "of another sum": (0.3, 0.6000000000000001, None),
        "off by the least": (0.30000000000000004, 0.6, None),
        "lost": (0.3, None, None),
        "came from nowhere": (0.3, 0.6, 0.0),
        "of a wrong sum": (0.4, 0.8, None),
    }
    measures = {"events": {"count": "*"}, "heat": {"sum": "value"}}
    derive = {"twice": "heat * 2", "half": "events / 0", "both": "map(user_id, events)"}
    given = {**ALL, "keys": ["user_id"], "measures": measures, "derive": derive}
    target = Windowed("gold.t", "gold[0]", GoldTable.model_validate(given))
    exact = target.with_terms({"heat": "double"})
    rows = [(user, f"e{n}", value) for user in stored for n, value in enumerate((0.1, 0.2))]
    events = spark.createDataFrame(rows, "user_id string, event_id string, value double")
    whole = Inputs({}, lambda _: events.withColumn("event_time", F.timestamp_seconds(F.lit(0))))
    values = spark.createDataFrame(
        [(user, *found) for user, found in stored.items()],
        "user_id string, heat double, twice double, half double",
    )
    made = target.of_all(whole)
    found = made.drop("heat", "twice", "half").join(values, on="user_id", how="inner")

    judged = compare(exact.of_all(whole), found.select(*made.columns), shape_of(exact, found))

    assert {one.where["user_id"]: sorted(one.columns) for one in judged.differences} == {
        "of another sum": ["twice"],
        "off by the least": ["twice"],
        "lost": ["twice"],
        "came from nowhere": ["half"],
        "of a wrong sum": ["heat"],
    }


def test_what_a_redefined_table_lacks_is_not_compared(spark: SparkSession) -> None:
    given = {
        **ALL,
        "keys": ["user_id"],
        "measures": {"heat": {"sum": "value"}, "mean": {"avg": "value"}},
        "derive": {"twice": "mean * 2", "half": "heat / 2"},
    }
    target = Windowed("gold.t", "gold[0]", GoldTable.model_validate(given))
    made = spark.createDataFrame([("u", 1.0, 0.5)], "user_id string, heat double, half double")
    stored = made.withColumn("half", F.lit(0.6).cast("double"))
    found = compare(made, stored, shape_of(target, stored))
    assert [sorted(one.columns) for one in found.differences] == [["half"]]


def test_a_measure_may_have_the_name_of_a_word_of_sql(spark: SparkSession) -> None:
    names = ("null", "true", "false", "current_date", "current_path", "user", "select")
    kinds = ("sum", "min", "first", "avg")
    measures = {name: {kinds[n % 4]: "value"} for n, name in enumerate(names)}
    given = GoldTable.model_validate({**ALL, "measures": measures})
    events = spark.sql("SELECT * FROM VALUES (0, 5BD), (1, 5BD) AS t(half, value)")
    table = GoldPlan(given).typed(events).table
    combined = (
        partials(events, table, "half")
        .groupBy()
        .agg(*[F.expr(state.combine).alias(state.name) for state in states_of(table)])
    )
    (row,) = with_shown(combined, table).collect()
    assert {name: row[name] for name in names} == {
        name: 10 if kinds[n % 4] == "sum" else 5 for n, name in enumerate(names)
    }


@pytest.mark.parametrize(
    ("kind", "values", "distinct"),
    [
        ("string", ["x", "", ""], 2),
        ("string", ["", None], 1),
        ("string", ["0.0", "-0.0", ""], 3),
        ("double", ["0.0", "-0.0", "2.5"], 2),
        ("float", ["-0.0", None], 1),
        ("decimal(9,2)", ["0", "0.00", "1"], 2),
    ],
)
def test_equal_values_are_counted_once_and_an_empty_text_is_one(
    spark: SparkSession, kind: str, values: list[str | None], distinct: int
) -> None:
    measures = {"values": {"approx_count_distinct": "value"}}
    given = GoldTable.model_validate({**ALL, "measures": measures})
    events = spark.createDataFrame([(value,) for value in values], "value string")
    events = events.withColumn("value", F.col("value").cast(kind))
    table = GoldPlan(given).typed(events).table
    (row,) = with_shown(partials(events, table), table).collect()
    assert row["values"] == distinct


@pytest.mark.parametrize(
    ("kind", "total", "count", "mean"),
    [
        ("decimal(9,1)", "78695.1", 111, "708.96486"),
        ("decimal(5,0)", "50", 101, "0.4950"),
        ("decimal(9,2)", "100.00", 3, "33.333333"),
        # Of sums with more digits than the finer quotient takes.
        ("decimal(28,0)", "9" * 27, 2, "4" + "9" * 26 + ".5000"),
    ],
)
def test_a_mean_is_rounded_once(
    spark: SparkSession, kind: str, total: str, count: int, mean: str
) -> None:
    given = GoldTable.model_validate({**ALL, "measures": {"mean": {"avg": "value"}}})
    events = spark.range(count).select(
        F.when(F.col("id") == 0, total).otherwise("0").cast(kind).alias("value")
    )
    table = GoldPlan(given).typed(events).table
    states = with_shown(partials(events, table), table)
    scale = int(kind.rpartition(",")[2][:-1]) + 4
    stored = states.select(F.col("mean").cast(f"decimal(38,{scale})")).collect()
    assert stored == [(Decimal(mean),)]
    (whole,) = shown_of(table)
    like_it = values_of(events, table).agg(F.expr(whole.like).alias("mean")).collect()
    assert like_it == [(Decimal(mean),)]
