"""The columns that gold's tables read, and on whose types their values depend."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.unit.handmade import write_commit
from tidelake.config import Detection, GoldTable
from tidelake.config.gold_definitions import Join
from tidelake.config.queries import Query
from tidelake.delta.append import Difference
from tidelake.delta.commit_metadata import definition_note
from tidelake.delta.log import last_commit
from tidelake.delta.tables import Lake
from tidelake.gold.detections import Detected, Features
from tidelake.gold.joins import Joined
from tidelake.gold.kinds import OWN, columns_read, type_sensitive
from tidelake.gold.queried import Queried
from tidelake.gold.windows import Windowed
from tidelake.runtime.gold_tables import Target, changed_types, input_types

COLUMNS = [
    "event_id",
    "event_time",
    "user_id",
    "Action",
    "product_id",
    "value",
    "is_late",
    "record_id",
    "ingested_at",
    "event_date",
]


def table(**changed: Any) -> Windowed:
    """Count by user and minute, with changes."""
    given = {
        "name": "counted",
        "window": {"kind": "tumbling", "size": "1 minute"},
        "keys": ["user_id"],
        "measures": {"events": {"count": "*"}},
    }
    return Windowed("gold.counted", "gold[0]", GoldTable.model_validate({**given, **changed}))


def test_keys_conditions_and_measures_are_read_whatever_their_case() -> None:
    kind = table(where="upper(action) = 'BUY'", measures={"total": {"sum": "Value * 2"}})
    assert columns_read([kind], COLUMNS) == [
        "event_id",
        "event_time",
        "user_id",
        "Action",
        "value",
        "record_id",
    ]


def test_what_no_table_names_is_not_read() -> None:
    assert columns_read([table()], COLUMNS) == ["event_id", "event_time", "user_id", "record_id"]


def test_all_tables_count_and_both_sides_of_a_join() -> None:
    join = Join.model_validate(
        {
            "name": "bought",
            "left": {"where": "action = 'click'", "columns": {"user": "user_id"}},
            "right": {"pipeline": "clicks", "columns": {"paid": "value"}},
            "on": ["product_id"],
            "within": "1 hour",
        }
    )
    kinds = [table(measures={"late": {"count_if": "is_late"}}), Joined("g", "j", join, "clicks")]
    left_out = {"ingested_at", "event_date"}
    assert columns_read(kinds, COLUMNS) == [name for name in COLUMNS if name not in left_out]


@pytest.mark.parametrize("sql", ["hash(*)", "to_json(struct( * ))", "size(array(value, *))"])
def test_an_expression_over_all_columns_reads_all(sql: str) -> None:
    assert columns_read([table(measures={"most": {"max": sql}})], COLUMNS) == COLUMNS


def test_a_product_is_no_star_and_an_odd_name_is_kept() -> None:
    kind = table(measures={"total": {"sum": "(value) * (2)"}})
    assert columns_read([kind], [*COLUMNS, "an odd name"])[-1] == "an odd name"
    assert "product_id" not in columns_read([kind], COLUMNS)


@pytest.mark.parametrize(
    ("sql", "columns"),
    [
        ("price", ""),
        ("(`price`) -- as it is", ""),
        ("price > 5 AND n BETWEEN -1 AND 2 OR n IN (3, 4)", ""),
        ("price IS NOT NULL", ""),
        ("CAST((price) AS DOUBLE)", ""),
        ("n * n", "n"),
        ("Price / 3", "price"),
        ("CAST(price AS STRING)", "price"),
        ("price > '5'", "price"),
        ("price > n", "price n"),
        ("CASE WHEN n > 1 THEN price END", "price"),
        ("to_json(struct(*))", "*"),
    ],
)
def test_an_expression_depends_on_the_types_of_columns_that_it_computes_with(
    sql: str, columns: str
) -> None:
    assert type_sensitive(sql) == set(columns.split())


def typed(kind: Any) -> dict[str, bool]:
    assert {key for key, _ in kind.typed()} <= {OWN}
    return {name: is_exact for (_, name), is_exact in kind.typed().items()}


def test_columns_alone_and_what_no_expression_names_may_widen() -> None:
    measures = {
        "events": {"count": "*"},
        "total": {"sum": "price"},
        "most": {"max": "n"},
        "large": {"count_if": "price > 100"},
    }
    assert typed(table(where="price > 5", measures=measures, derive={"each": "events / 2"})) == {}
    travel = {"latitude": "lat", "longitude": "lon"}
    given = {"name": "alerts", "features": "hours", "keys": ["user_id"]}
    rules = {"impossible_travel": travel, "unusual_amount": {"value": "price"}}
    alerts = Detection.model_validate({**given, **rules})
    features = Features("gold.hours", "detections[0].features", alerts.hours)
    # Only numbers can be widened.
    assert typed(features).keys() <= {"event_time", "event_id"}
    assert typed(Detected("gold.alerts", "detections[0]", alerts, "gold.hours")) == {}


def test_measures_and_what_is_derived_from_them_depend_on_the_types_of_their_columns() -> None:
    measures = {
        "squares": {"sum": "n * n"},
        "total": {"sum": "price"},
        "prices": {"approx_count_distinct": "price"},
        "sizes": {"approx_count_distinct": "size"},
        "most": {"max": "weight"},
    }
    kind = table(where="height + 1 > 2", measures=measures, derive={"third": "total / 3"})
    assert typed(kind) == {"n": True, "price": True, "size": False, "height": True}


def test_queries_depend_on_types_through_the_table_that_they_read() -> None:
    measures = {"total": {"sum": "price"}, "mean": {"avg": "n"}, "most": {"max": "weight"}}
    source = table(measures=measures)

    def query(*columns: str, of: str = "gold.counted", more: str = "") -> dict[str, bool]:
        start = "window_start" if of.startswith("gold") else "event_time"
        listed = ", ".join([f"date_trunc('hour', {start}) AS hour", *columns])
        sql = f"SELECT {listed} FROM {of} GROUP BY hour{more}"
        made = Query.model_validate({"name": "asked", "sql": sql})
        kind = Queried("gold.asked", "queries[0]", made, source if of.startswith("gold") else None)
        return {name: one for name, one in typed(kind).items() if name != "event_time"}

    assert query("sum(total) AS total", "max(most) AS most") == {}
    assert query("max(CAST(total AS STRING)) AS text") == {"price": True}
    assert query("sum(most) / count(*) AS each") == {"weight": True}
    assert query("max(mean) AS mean") == {"n": False}
    assert query("max(most) AS most", more=" HAVING sum(total) > 3") == {}
    assert query("count(DISTINCT price) AS prices", of="silver.shop") == {}
    assert query("sum(n * n) AS squares", of="silver.shop") == {"n": True}


def test_means_widen_only_to_types_with_as_many_digits_after_the_point() -> None:
    measures = {"mean": {"avg": "price"}, "total": {"sum": "price"}}
    assert table(measures=measures).alike == ("mean",)
    sql = "SELECT date_trunc('hour', event_time) AS hour, avg(n) AS a, sum(n) AS b, avg(n) / 2 AS c"
    query = Query.model_validate({"name": "q", "sql": f"{sql} FROM silver.shop GROUP BY hour"})
    assert Queried("gold.q", "queries[0]", query, None).alike == ("a",)


def test_a_join_depends_on_the_types_of_both_sides() -> None:
    join = Join.model_validate(
        {
            "name": "bought",
            "left": {"columns": {"user": "user_id", "text": "CAST(n AS STRING)"}},
            "right": {"pipeline": "orders", "columns": {"third": "price / 3", "paid": "total"}},
            "on": ["user_id"],
            "within": "1 hour",
        }
    )
    assert Joined("gold.bought", "joins[0]", join, "clicks").typed() == {
        (OWN, "n"): True,
        ("silver.orders", "price"): True,
    }


@pytest.mark.parametrize(
    ("types", "changed"),
    [
        ("price decimal(10,2), size int, n int", []),
        ("price decimal(12,2), size bigint, n int", []),
        ("price decimal(12,4), size int, n int", [("price", "decimal(10,2)", "decimal(12,4)")]),
        ("price decimal(10,2), size int, n bigint", [("n", "int", "bigint")]),
    ],
)
def test_a_table_says_of_which_types_its_rows_were_computed(
    spark: SparkSession, lake: Lake, types: str, changed: list[tuple[str, str, str]]
) -> None:
    measures = {
        "squares": {"sum": "n * n"},
        "prices": {"approx_count_distinct": "price"},
        "sizes": {"approx_count_distinct": "size"},
        "names": {"approx_count_distinct": "user_id"},
    }
    target = Target(lake.gold("counted"), table(measures=measures))
    rows = "user_id string, price decimal(10,2), size int, n int, other int"
    first = input_types(target.kind, lambda _: spark.createDataFrame([], rows))
    assert first == {"silver.price": "decimal(10,2)", "silver.size": "int", "silver.n": "int"}
    note = {"generation": "g1", "batch": 0, **definition_note(target.kind.definition, first)}
    write_commit(target.table, 0, note=note)
    now = spark.createDataFrame([], f"user_id string, other bigint, {types}")
    assert changed_types(target.kind, last_commit(target.table), lambda _: now) == [
        Difference(f"silver.{name}", old, new, "refused") for name, old, new in changed
    ]
    # Commits of earlier versions do not say.
    write_commit(target.table, 1, note=note | definition_note(target.kind.definition))
    assert changed_types(target.kind, last_commit(target.table), lambda _: now) == []
