"""SQL of the definition that raises: its row fails alone and says where; nulls stay nulls."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DecimalType, StringType

from tests.pipelines import bronze, shop
from tidelake.cli.init.payload import payload_of
from tidelake.columns import VALUE, equal, in_type_of, instant, literal, try_eval
from tidelake.config.expressions import expression_problems
from tidelake.silver.stages import REASONS, SELECTED, STAGE, Judging, classify

DDL = "row string, s string, n int, l array<int>, `odd name` int"
ROWS = [
    ("good", "1", 2, [1, 2], 7),
    ("bad", "x", 0, [], 7),
    ("null", None, None, None, None),
    ("most", "2147483648", 2147483647, [1], 7),
]
RAISED = "raised"
# Numbers with zeros at either end, a point or none, and an exponent or none.
_NUMBERS = st.from_regex(
    r"-?0{0,2}[0-9]{1,3}0{0,3}(\.[0-9]{0,3}0{0,3})?(e[+-]?[0-6])?", fullmatch=True
)


def outcomes(spark: SparkSession, sql: str, cast: str | None = None) -> dict[str, Any]:
    """Give each row's value, or that it raised."""
    tried = spark.createDataFrame(ROWS, DDL).select("row", try_eval(sql, cast).alias("tried"))
    return {
        row["row"]: RAISED if row["tried"] is None else row["tried"][VALUE]
        for row in tried.collect()
    }


@pytest.mark.parametrize(
    "sql",
    [
        *("CAST(s AS TIMESTAMP)", "s::timestamp_ntz", "timestamp(s)", "to_timestamp(s)"),
        *("hour(to_timestamp_ntz(s))", "try_to_timestamp(s)", "TRY_CAST(s AS TIMESTAMP)"),
        *("s > at", "at <=> s", "coalesce(s, at)", "CASE WHEN at IS NULL THEN at ELSE s END"),
        *("at BETWEEN s AND at", "array(at, s)", "nvl2(s, at, s)", "at IN (s)", "s - at"),
        *("s + INTERVAL 1 HOUR", "date_trunc('day', s)", "date_format(s, 'yyyy')"),
        *("timestampdiff(DAY, s, at)", "months_between(s, at)", "unix_seconds(timestamp(s))"),
        *("timestampadd(DAY, 1, s) -- a day later", "s > at OR at > s"),
        "sequence(at, s, INTERVAL 1 HOUR)",
    ],
)
def test_a_text_without_a_date_is_no_timestamp(spark: SparkSession, sql: str) -> None:
    """Spark would make it a time of today, and of another day in a retry or a verification."""
    texts = ["2024-01-01 12:30", "2024-01-01T12:30:00Z", "12:30", "T12", " 1:05", None]
    frame = spark.createDataFrame([(text,) for text in texts], "s string")
    frame = frame.withColumn("at", F.lit(datetime(2024, 1, 1, tzinfo=UTC)))
    found = frame.select("s", try_eval(sql).isNull().alias("fails")).collect()
    assert [row["s"] for row in found if row["fails"]] == ["12:30", "T12", " 1:05"]


@pytest.mark.parametrize(
    "collated",
    [
        "collate(s, 'UTF8_LCASE')",
        "s COLLATE UTF8_LCASE",
        "collate(collate(s, 'UTF8_BINARY'), concat('UTF8', '_LCASE'))",
    ],
)
def test_the_guard_of_a_collated_text_is_sql_of_spark(spark: SparkSession, collated: str) -> None:
    found = outcomes(spark, f"{collated} = upper(s)")
    assert found == {"good": True, "bad": True, "null": None, "most": True}


def test_what_is_no_text_or_no_timestamp_needs_no_date(spark: SparkSession) -> None:
    # Of a literal array the optimizer makes null of `l[9]`, which would fail.
    row = ("12:30", date(2024, 1, 1), ["2024-01-01"], (datetime(2024, 1, 1, tzinfo=UTC),))
    frame = spark.createDataFrame(
        [row], "s string, d date, l array<string>, p struct<at:timestamp>"
    )
    sure = ["CAST(d AS TIMESTAMP)", "to_timestamp(s, 'HH:mm')", "hour(s)", "s = s", "s > l[0]"]
    # The text beside the date is not evaluated on this row, and would fail.
    sure += ["transform(l, x -> CAST(x AS TIMESTAMP))", "IF(s = '', l[9] > timestamp(d), true)"]
    sure += ["IF(s = '', CAST(l[9] AS TIMESTAMP), d)", "s > '' OR l[9] RLIKE '(a|b)*'"]
    # These are not even times, of which Spark would make timestamps of today.
    sure += ["TRY_CAST('T100' AS TIMESTAMP)", "TRY_CAST(concat('1', s, '0') AS TIMESTAMP)"]
    sure += ["s > '08:00'", "p.at > '2024-01-01 08:00'", "date_trunc('day', p.at)"]
    for sql in sure:
        (found,) = frame.select(try_eval(sql).alias("tried")).collect()
        assert found["tried"] is not None, sql


def test_a_literal_without_a_date_is_no_timestamp_where_spark_alone_knows_the_types(
    spark: SparkSession,
) -> None:
    frame = spark.sql("SELECT struct(TIMESTAMP'2024-01-01 00:00:00Z' AS at) AS p, '2024' AS n")
    failing = ["p.at > '08:00'", "try_to_timestamp(n) < 'T08'", "coalesce(p.at, ' 8:00')"]
    failing += ["date_trunc('day', '08:00')", "timestampadd(HOUR, 1, '08:00')", "p.at - '08:00'"]
    for sql in failing:
        assert expression_problems(sql, {"p": None, "n": "STRING"}) == []
        (row,) = frame.select(try_eval(sql).alias("tried")).collect()
        assert row["tried"] is None, sql
    # Where the types are known, it is found when the file is read.
    assert expression_problems("timestamp_millis(n) < 'T08'", {"n": "BIGINT"})


@pytest.mark.parametrize(
    ("sql", "cast", "good", "bad", "null", "most"),
    [
        ("CAST(s AS INT)", None, 1, RAISED, None, RAISED),
        ("s", "int", 1, RAISED, None, RAISED),
        ("s", None, "1", "x", None, "2147483648"),
        ("`odd name`", None, 7, 7, None, 7),
        ("10 / n", None, 5.0, RAISED, None, 10 / 2147483647),
        ("n % n", None, 0, RAISED, None, 0),
        ("l[1]", None, 2, RAISED, None, RAISED),
        ("element_at(l, 1)", None, 1, RAISED, None, 1),
        ("n + 1", None, 3, 1, None, RAISED),
        ("-n - 2", None, -4, -2, None, RAISED),
        ("try_cast(s AS INT)", None, 1, None, None, None),
        ("CASE WHEN n = 0 THEN raise_error('no') ELSE n END", None, 2, RAISED, None, 2147483647),
        ("to_date(concat('2024-01-', s))", None, ..., RAISED, None, RAISED),
        # The guard of the pattern's text has a condition that raises.
        ("CASE WHEN l[1] = 2 THEN s END RLIKE '(1|2)+'", None, True, RAISED, None, RAISED),
        ("CAST('x' AS INT)", None, RAISED, RAISED, RAISED, RAISED),
        ("1 / 0", None, RAISED, RAISED, RAISED, RAISED),
        ("CAST(NULL AS INT)", None, None, None, None, None),
    ],
)
def test_an_expression_that_raises_on_a_row_raises_for_that_row_alone(
    spark: SparkSession, sql: str, cast: str | None, good: Any, bad: Any, null: Any, most: Any
) -> None:
    found = outcomes(spark, sql, cast)
    if good is ...:
        good = found["good"]
        assert good not in (None, RAISED)
    assert found == {"good": good, "bad": bad, "null": null, "most": most}


def test_attempts_that_share_a_part_that_raises_fail_alone_too(spark: SparkSession) -> None:
    tried = spark.createDataFrame(ROWS, DDL).select(
        "row",
        try_eval("CAST(s AS INT) + 1").alias("one"),
        try_eval("CAST(s AS INT) + 2").alias("two"),
        try_eval("length(s)").alias("three"),
    )
    found = {
        row["row"]: [None if one is None else one[VALUE] for one in row[1:]]
        for row in tried.where("row <> 'null'").collect()
    }
    assert found == {"good": [2, 3, 1], "bad": [None, None, 1], "most": [None, None, 10]}


def test_an_attempt_that_is_read_several_times_fails_alone(spark: SparkSession) -> None:
    rows = spark.createDataFrame(ROWS, DDL).where("row = 'bad' OR row = 'good'")
    tried = rows.select("row", try_eval("10 / n").alias("tried"))
    kept = tried.select(
        "row",
        F.col("tried").isNull().alias("failed"),
        F.coalesce(F.col("tried").getField(VALUE), F.lit(-1.0)).alias("value"),
    ).where("failed OR value > 0")
    assert {tuple(row) for row in kept.collect()} == {("bad", True, -1.0), ("good", False, 5.0)}


GOOD = {"event_id": "e1", "event_time": "2024-01-01T12:00:00Z", "user_id": "1", "value": 1.5}


def judged(
    spark: SparkSession, folder: Path, payloads: dict[str, dict[str, Any]], **event: Any
) -> dict[str, tuple[str | None, list[str]]]:
    """Classify a payload each: its stage and reasons."""
    rows = bronze(
        spark,
        [
            {"record_id": name, "payload": json.dumps({**GOOD, **changes})}
            for name, changes in payloads.items()
        ],
    )
    found = classify(rows, Judging(shop(folder, event=event))).select("record_id", STAGE, REASONS)
    return {row["record_id"]: (row[STAGE], row[REASONS]) for row in found.collect()}


def test_a_filter_that_cannot_be_computed_breaks_its_row_and_does_not_filter_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    payloads = {
        "in": {"user_id": "1"},
        "out": {"user_id": "-1"},
        "null": {"user_id": None},
        "raises": {"user_id": "x"},
    }
    assert judged(spark, tmp_path, payloads, where="CAST(user_id AS INT) > 0") == {
        "in": (None, []),
        "out": ("filtered", []),
        "null": ("filtered", []),
        "raises": ("contract", ["event.where: cannot be computed"]),
    }


def test_a_text_that_is_no_condition_breaks_its_row_alone(
    spark: SparkSession, tmp_path: Path
) -> None:
    payloads = {"in": {"user_id": "true"}, "out": {"user_id": "0"}, "raises": {"user_id": "maybe"}}
    assert judged(spark, tmp_path, payloads, where="user_id") == {
        "in": (None, []),
        "out": ("filtered", []),
        "raises": ("contract", ["event.where: cannot be computed"]),
    }


def test_every_expression_that_cannot_be_computed_is_named(
    spark: SparkSession, tmp_path: Path
) -> None:
    found = judged(
        spark,
        tmp_path,
        {
            "good": {},
            "null": {"user_id": None, "value": None},
            "text": {"user_id": "x"},
            "zero": {"value": 0},
            "both": {"user_id": "x", "value": 0},
        },
        select={"user_id": "CAST(user_id AS INT)", "value": "100 / value"},
    )
    assert found == {
        "good": (None, []),
        "null": (None, []),
        "text": ("contract", ["select.user_id: cannot be computed"]),
        "zero": ("contract", ["select.value: cannot be computed"]),
        "both": (
            "contract",
            ["select.user_id: cannot be computed", "select.value: cannot be computed"],
        ),
    }


def test_bytes_that_are_not_utf_8_become_no_text(spark: SparkSession, tmp_path: Path) -> None:
    names = ("text", "number", "none")
    rows = bronze(spark, [{"record_id": name, "payload": json.dumps(GOOD)} for name in names])
    keys = "CASE record_id WHEN 'text' THEN X'C3BC' WHEN 'number' THEN X'00C8' END"
    rows = rows.withColumn("key", F.expr(keys))
    select = {"user_id": "CAST(key AS STRING)", "value": "key", "action": "length(key)"}
    judging = Judging(shop(tmp_path, event={"select": select, "id": "coalesce(key, 'none')"}))
    found = classify(rows, judging).select("record_id", "event_id", REASONS).collect()
    assert {name: (event_id, reasons) for name, event_id, reasons in found} == {
        "text": ("ü", []),
        "number": (
            None,
            [
                "event.id: cannot be computed",
                "select.user_id: cannot be computed",
                "event_id: missing",
            ],
        ),
        "none": ("none", []),
    }


def test_an_id_or_a_time_that_cannot_be_computed_is_missing_as_well(
    spark: SparkSession, tmp_path: Path
) -> None:
    found = judged(
        spark,
        tmp_path,
        {"good": {}, "no id": {"user_id": "x"}, "null": {"user_id": None}, "no time": {"value": 0}},
        id="CAST(user_id AS INT)",
        time="if(value = 0, user_id || 'x', '2024-01-01 12:00:00Z')",
    )
    assert found == {
        "good": (None, []),
        "no id": ("contract", ["event.id: cannot be computed", "event_id: missing"]),
        "null": ("contract", ["event_id: missing"]),
        "no time": ("contract", ["event.time: cannot be computed", "event_time: missing"]),
    }


def test_columns_that_share_a_part_that_raises_keep_the_batch(
    spark: SparkSession, tmp_path: Path
) -> None:
    pipeline = shop(
        tmp_path,
        event={
            "where": "CAST(user_id AS INT) <> 0",
            "select": {
                "user_id": "CAST(user_id AS INT)",
                "value": "CAST(user_id AS INT) + 1",
                "double": "CAST(user_id AS INT) * 2",
            },
        },
    )
    rows: DataFrame = bronze(
        spark,
        [
            {"record_id": "good", "payload": json.dumps(GOOD)},
            {"record_id": "bad", "payload": json.dumps({**GOOD, "user_id": "x"})},
        ],
    )
    found = (
        classify(rows, Judging(pipeline))
        .select("record_id", STAGE, REASONS, f"{SELECTED}.*")
        .collect()
    )
    assert {row["record_id"]: (row[STAGE], row["value"], row["double"]) for row in found} == {
        "good": (None, 2, 2),
        "bad": ("contract", None, None),
    }
    assert [len(row[REASONS]) for row in found if row["record_id"] == "bad"] == [4]


def test_a_text_too_long_for_a_pattern_that_may_exhaust_the_stack_fails_by_its_length(
    spark: SparkSession,
) -> None:
    rows = spark.createDataFrame(
        [("short", 500), ("long", 501), ("endless", 500_000)], "row string, n int"
    )
    texts = rows.select("row", F.repeat(F.lit("a"), F.col("n")).alias("s"))
    tried = texts.select(
        "row",
        try_eval("s RLIKE '^(a|b)*$'").alias("repeated"),
        try_eval("regexp_count(lower(s), '(a|b){2,}') + 1").alias("counted"),
        try_eval("s RLIKE concat('^(a|b)', '*$')").alias("computed"),
        try_eval("s RLIKE '^[ab]*$' AND s RLIKE '^(?:a|b)*+$'").alias("loops"),
    )
    found = {row["row"]: [one and one[VALUE] for one in row[1:]] for row in tried.collect()}
    assert found == {
        "short": [True, 2, True, True],
        "long": [None, None, None, True],
        "endless": [None, None, None, True],
    }


@pytest.mark.parametrize("year", [1, 999, 1000, 1582, 1900, 2024, 9999])
def test_an_instant_is_the_same_whatever_calendar_java_had(spark: SparkSession, year: int) -> None:
    moment = datetime(year, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    micros, text = (
        spark.range(1)
        .select(F.unix_micros(instant(moment)), F.expr(f"unix_micros({literal(moment)})"))
        .collect()[0]
    )
    assert (
        micros == text == (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    )


def test_texts_and_other_types_are_compared_without_a_cast_that_raises(spark: SparkSession) -> None:
    rows = spark.createDataFrame(
        [(1, "7", 7), (2, "x", 7), (3, None, 7), (4, "8", 7)], "row int, s string, n int"
    )
    kinds = {field.name: field.dataType for field in rows.schema.fields}
    for one, other in (("s", "n"), ("n", "s")):
        same = equal(F.col(one), kinds[one], F.col(other), kinds[other])
        assert [row["row"] for row in rows.where(same).collect()] == [1]


def test_a_text_without_a_date_equals_no_timestamp(spark: SparkSession) -> None:
    """A cast would make a time of today of it."""
    rows = spark.sql(
        "SELECT n, s, CAST('12:30' AS TIMESTAMP) AS t FROM VALUES "
        "(1, '12:30'), (2, 'T12:30'), (3, date_format(CAST('12:30' AS TIMESTAMP), "
        "'yyyy-MM-dd HH:mm')), (4, 'noon'), (5, NULL) AS v(n, s)"
    )
    kinds = {field.name: field.dataType for field in rows.schema.fields}
    for one, other in (("s", "t"), ("t", "s")):
        same = equal(F.col(one), kinds[one], F.col(other), kinds[other])
        assert [row["n"] for row in rows.where(same).collect()] == [3]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("1.50 AS DECIMAL(38,2)", "1.501 AS DECIMAL(38,18)", False),
        ("1.50 AS DECIMAL(38,2)", "1.5 AS DECIMAL(38,18)", True),
        ("7 AS BIGINT", "7.0000000001 AS DECIMAL(38,37)", False),
        ("7 AS BIGINT", "7 AS DECIMAL(38,37)", True),
        ("7 AS INT", "7 AS DECIMAL(9,2)", True),
        ("99999999999999999999 AS DECIMAL(38,0)", "1 AS DECIMAL(38,37)", False),
        ("array('abc') AS ARRAY<STRING>", "array(1) AS ARRAY<INT>", False),
        ("array('1') AS ARRAY<STRING>", "array(1) AS ARRAY<INT>", True),
        ("array(1) AS ARRAY<INT>", "array(1L) AS ARRAY<BIGINT>", True),
        ("array(1) AS ARRAY<INT>", "array(2L) AS ARRAY<BIGINT>", False),
        (
            "named_struct('x', 'abc') AS STRUCT<x: STRING>",
            "named_struct('x', 1) AS STRUCT<x: INT>",
            False,
        ),
    ],
)
def test_values_that_the_common_type_cannot_hold_are_not_equal(
    spark: SparkSession, one: str, other: str, same: bool
) -> None:
    rows = spark.sql(f"SELECT CAST({one}) AS a, CAST({other}) AS b")
    kinds = {field.name: field.dataType for field in rows.schema.fields}
    for left, right in (("a", "b"), ("b", "a")):
        same_value = equal(F.col(left), kinds[left], F.col(right), kinds[right])
        # As joins and enrichments do: a join refuses what is not deterministic.
        assert rows.select(left).join(rows.select(right), on=same_value).count() == same


@pytest.mark.parametrize(
    ("kind", "number", "same", "others"),
    [
        (
            "DECIMAL(10,2)",
            "1.50",
            [
                "1.5", "1.50", "1.5000", "+01.5", " 1.5\t\n", "15e-1", "1500E-3", "1.5e0",
                "150.0e-2", "0.00150E+3", f"0.{'0' * 47}15e48",
            ],
            [
                "1.501", "1.499", "1.5010", " 1.501 ", "1.501e0", "1501e-3", "1.50100E0",
                "15.01E-1", "0.15001e1", "1.5000000000000000000000000000000000000000000000001",
                "1.4999999999999999999999999999999999999999999999999", "1.5000000000000000000001e0",
                "\u0661.\u0665\u0660\u0661", "x", "", ".", "1.5e", "1.5d", "0.15e10000",
                "1.5e2147483647", "1.5e2147483648", "1.5e-2147483648",
            ],
        ),
        (
            "DECIMAL(38,18)",
            "0",
            ["0", "-0.0", ".0", "0e-50", "0E-9999", "000e5", "0." + "0" * 50],
            ["1e-19", "1e-400", "0.0000000000000000001", "-4e-9999", "0e-2147483647", "\u0661e-30"],
        ),
        ("DECIMAL(38,0)", "12000000", ["1.2E7", "1.2000000E7", "120000000e-1"], ["1.20000001E7"]),
        ("DECIMAL(38,38)", "0.5", ["0.5", "5e-1"], [f"0.5{'0' * 37}1", f"0.4{'9' * 38}"]),
    ],
)  # fmt: skip
def test_a_text_with_more_digits_than_a_decimal_holds_equals_none(
    spark: SparkSession, kind: str, number: str, same: list[str], others: list[str]
) -> None:
    rows = spark.createDataFrame([(one,) for one in (*same, *others, None)], "s string")
    numbers = spark.sql(f"SELECT CAST('{number}' AS {kind}) AS d")
    of_text, of_number = rows.schema["s"].dataType, numbers.schema["d"].dataType
    for condition in (
        equal(F.col("s"), of_text, F.col("d"), of_number),
        equal(F.col("d"), of_number, F.col("s"), of_text),
    ):
        found = [row["s"] for row in rows.join(numbers, on=condition).collect()]
        assert sorted(found) == sorted(same)


@settings(max_examples=20)
@given(st.integers(0, 6), st.lists(_NUMBERS, min_size=1, max_size=30))
def test_a_text_becomes_the_decimal_of_its_very_value_or_none(
    spark: SparkSession, scale: int, texts: list[str]
) -> None:
    kind = DecimalType(30, scale)
    rows = spark.createDataFrame([(one,) for one in texts], "s string")
    taken = in_type_of(F.col("s"), StringType(), kind).alias("d")
    exact = Context(prec=100)
    for text, number in rows.select("s", taken).collect():
        value = exact.create_decimal(text)
        holds = value == value.quantize(Decimal(1).scaleb(-scale), context=exact)
        assert number == (value if holds else None), text


def _as_text(tried: Column) -> list[Column]:
    """Give the value as text, and whether the expression failed."""
    return [tried.getField(VALUE).cast("string").alias("text"), tried.isNull().alias("failed")]


@pytest.mark.parametrize(
    ("sample", "converted", "others"),
    [
        (
            ["12,50", "1.234,00"],
            {
                "-0,5": "-0.500000",
                "1.234.567,891": "1234567.891000",
                "1.234": "1234.000000",
                "99.999.999.999.999,999999": "99999999999999.999999",
            },
            "0.123|12,3456789|1e3|1,5e3|+1,5| 1,5|1,5 |1,5\n|,5|5,|1,2,3|12.5|1.23,5|"
            "1.234567|\u0663,\u0665||100000000000000|999.999.999.999.999",
        ),
        (["12,50", ""], {"": None, "7": "7.000000"}, "1e3| "),
        (
            ["31.12.2026 10:00"],
            {"05.01.2026 10:00": "2026-01-05 10:00:00"},
            "31.02.2026 10:00|5.1.2026 10:00|05.01.2026 10:00:30|05.01.2026| |2026-01-05 10:00:00",
        ),
        (
            ["31.12.2026"],
            {"05.01.2026": "2026-01-05"},
            "31.02.2026|5.1.2026|05.01.2026 10:00|05.01.26| |2026-01-05",
        ),
        (["01/20/2026"], {"02/01/2026": "2026-02-01"}, "20/01/2026|02/01/2026x|1/20/2026|"),
        (
            ["1767607200000"],
            {"1767607200123": "2026-01-05 10:00:00.123"},
            "1767607200123.5|1e12|99999999999999999999|",
        ),
        (
            ["2026-01-05T10:00:00.123456789Z"],
            {
                "2026-01-05T10:00:00.123456789Z": "2026-01-05 10:00:00.123456",
                "2026-01-05T11:00:00.1+01:00": "2026-01-05 10:00:00.1",
            },
            "10:00:00Z|2026-01-05T10:00:00|2026-01-05|",
        ),
    ],
)
def test_the_sql_that_init_writes_for_texts_converts_exactly_or_fails(
    spark: SparkSession, sample: list[str], converted: dict[str, str | None], others: str
) -> None:
    (column,) = payload_of([{"at": text} for text in sample]).columns
    expected = {None: None, **converted, **dict.fromkeys(others.split("|"), RAISED)}
    texts = spark.createDataFrame([(text,) for text in expected], "at string")
    tried = try_eval(column.sql, types={"at": "STRING"})
    found = {
        row["at"]: RAISED if row["failed"] else row["text"]
        for row in texts.select("at", *_as_text(tried)).collect()
    }
    assert found == expected


def test_the_sql_that_init_writes_for_seconds_in_a_struct_rounds_no_digits(
    spark: SparkSession,
) -> None:
    (column,) = payload_of([{"s": {"ts": Decimal("1767607200.123456")}}]).columns
    numbers = [1767607200.123456, 1767607200.1234567, None]
    rows = spark.createDataFrame([((number,),) for number in numbers], "s struct<ts: double>")
    found = [tuple(row) for row in rows.select(*_as_text(try_eval(column.sql))).collect()]
    assert found == [("2026-01-05 10:00:00.123456", False), (None, True), (None, False)]
