"""Values: what survives its type exactly, and what is called broken."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tidelake.config.ddl import parse_schema
from tidelake.silver.values import read_exactly

BROKEN = "broken"
_SHOWN = ("array", "map", "struct")


def outcomes(spark: SparkSession, kind: str, texts: list[str | None]) -> list[str | None]:
    """Read texts as a type, all in one frame: each as text again, or broken."""
    type_ = parse_schema(f"v {kind}")[0].type
    value = read_exactly(F.col("text"), type_)
    nested = type_.kind in _SHOWN
    shown = F.to_json(value.typed) if nested else value.typed.cast("string")
    frame = spark.createDataFrame(list(enumerate(texts)), "n int, text string").coalesce(1)
    rows = frame.select("n", value.broken.alias("broken"), shown.alias("shown")).collect()
    assert all(row["shown"] is None for row in rows if row["broken"])
    assert all(row["broken"] is not None for row in rows)
    return [BROKEN if row["broken"] else row["shown"] for row in sorted(rows)]


CASES: dict[str, dict[str | None, str | None]] = {
    "STRING": {"": "", " a ": " a ", "12,50": "12,50", None: None},
    "BOOLEAN": {
        "true": "true",
        "false": "false",
        "TRUE": BROKEN,
        "1": BROKEN,
        "yes": BROKEN,
        "": BROKEN,
        None: None,
    },
    "TINYINT": {
        "127": "127",
        "-128": "-128",
        "128": BROKEN,
        "1e2": "100",
        "1e3": BROKEN,
        None: None,
    },
    "SMALLINT": {"32767": "32767", "32768": BROKEN, "-32769": BROKEN, "3.2e4": "32000"},
    "INT": {
        "12": "12",
        "-0": "0",
        "1.0": "1",
        "1.2345678E7": "12345678",
        "1.23456785E7": BROKEN,
        "2147483647": "2147483647",
        "2147483648": BROKEN,
        "1e10": BROKEN,
        "1.5": BROKEN,
        "0.9": BROKEN,
        "1,000": BROKEN,
        "1_000": BROKEN,
        " 1": BROKEN,
        "+1": BROKEN,
        "1L": BROKEN,
        "0x1F": BROKEN,
        "\u0661": BROKEN,
        "~1": BROKEN,
        "true": BROKEN,
        "NaN": BROKEN,
        "": BROKEN,
        None: None,
    },
    "BIGINT": {
        "9223372036854775807": "9223372036854775807",
        "-9223372036854775808": "-9223372036854775808",
        "9223372036854775808": BROKEN,
        "9.223372036854775807E18": "9223372036854775807",
        "9.223372036854775808E18": BROKEN,
    },
    "FLOAT": {"0.5": "0.5", "1e39": BROKEN, "~0.5": "0.5", "NaN": BROKEN, None: None},
    "DOUBLE": {
        "0.1": "0.1",
        "-1.5e3": "-1500.0",
        "~0.1": "0.1",
        "1e400": BROKEN,
        "-1e400": BROKEN,
        "NaN": BROKEN,
        "Infinity": BROKEN,
        "-inf": BROKEN,
        "1,5": BROKEN,
        "1.5d": BROKEN,
        "": BROKEN,
        None: None,
    },
    "DECIMAL(18,2)": {
        "12": "12.00",
        "12.5": "12.50",
        "12.5000": "12.50",
        "-0.01": "-0.01",
        "1.23456785E7": "12345678.50",
        "1.234567891E7": "12345678.91",
        "1.2345678912E7": BROKEN,
        "15E-1": "1.50",
        "15E-3": BROKEN,
        "12,50": BROKEN,
        "1,234.50": BROKEN,
        "12.999": BROKEN,
        "0.001": BROKEN,
        "9999999999999999.99": "9999999999999999.99",
        "10000000000000000.00": BROKEN,
        "1e400": BROKEN,
        "~12.50": BROKEN,
        ".5": BROKEN,
        "5.": BROKEN,
        "+5": BROKEN,
        " 5": BROKEN,
        "$5": BROKEN,
        "NaN": BROKEN,
        "": BROKEN,
        None: None,
    },
    "DECIMAL(38,20)": {"0.12345678901234567890": "0.12345678901234567890"},
    "DATE": {
        "2024-02-29": "2024-02-29",
        "2023-02-29": BROKEN,
        "2024-2-9": BROKEN,
        "2024-02": BROKEN,
        "20240229": BROKEN,
        "2024-02-29T10:00:00": BROKEN,
        "today": BROKEN,
        None: None,
    },
    "TIMESTAMP": {
        "2024-01-01T10:15:00Z": "2024-01-01 10:15:00",
        "2024-01-01 10:15:00": "2024-01-01 10:15:00",
        "2024-01-01T10:15:00+05:30": "2024-01-01 04:45:00",
        "2024-01-01T10:15:00-0500": "2024-01-01 15:15:00",
        "2024-01-01T10:15:00.123456Z": "2024-01-01 10:15:00.123456",
        "2024-01-01T10:15:00.123456000Z": "2024-01-01 10:15:00.123456",
        "2024-01-01T10:15:00.1234567Z": BROKEN,
        "2024-01-01": "2024-01-01 00:00:00",
        "10:15": BROKEN,
        "T10:15:00Z": BROKEN,
        "2024-01": BROKEN,
        "2024-02-30T10:15:00Z": BROKEN,
        "2024-01-01T25:00:00Z": BROKEN,
        "2024-01-01T10:15:00+25:00": BROKEN,
        "2024-01-01T10:15:00 UTC": BROKEN,
        "1704103200": BROKEN,
        "now": BROKEN,
        "": BROKEN,
        None: None,
    },
    "TIMESTAMP_NTZ": {
        "2024-01-01T10:15:00": "2024-01-01 10:15:00",
        "2024-01-01T10:15:00Z": BROKEN,
        "10:15": BROKEN,
        None: None,
    },
    "BINARY": {"aGk=": "hi", "a-b!": BROKEN, None: None},
    "ARRAY<INT>": {
        "[1, 2, null]": "[1,2,null]",
        "[]": "[]",
        "[1, 1.5]": BROKEN,
        '["1"]': "[1]",
        "[1] [2]": BROKEN,
        "[1],[2]": BROKEN,
        '{"a": 1}': BROKEN,
        "1": BROKEN,
        "": BROKEN,
        None: None,
    },
    "ARRAY<DECIMAL(18,2)>": {"[1.5]": "[1.50]", "[1.5, 12.999]": BROKEN, '["12,50"]': BROKEN},
    "MAP<STRING, DECIMAL(18,2)>": {
        '{"a": 1.5, "b": null}': '{"a":1.50,"b":null}',
        "{}": "{}",
        '{"a": 1.555}': BROKEN,
        "[1]": BROKEN,
        '{"a": NaN}': BROKEN,
        None: None,
    },
    "STRUCT<a: INT, b: ARRAY<DATE>>": {
        '{"a": 1, "b": ["2024-01-01"]}': '{"a":1,"b":["2024-01-01"]}',
        '{"a": 1, "c": 2}': '{"a":1}',
        "{}": "{}",
        '{"a": 1.5}': BROKEN,
        '{"a": 1, "b": ["10:15"]}': BROKEN,
        '{"a": 1} {"a": 2}': BROKEN,
        "[]": BROKEN,
        "x": BROKEN,
        None: None,
    },
    "ARRAY<STRUCT<m: MAP<STRING, BIGINT>>>": {
        '[{"m": {"k": 9223372036854775807}}]': '[{"m":{"k":9223372036854775807}}]',
        '[{"m": {"k": 9223372036854775808}}]': BROKEN,
    },
}


@pytest.mark.parametrize("kind", CASES)
def test_a_value_survives_exactly_or_is_broken(spark: SparkSession, kind: str) -> None:
    cases = CASES[kind]
    assert dict(zip(cases, outcomes(spark, kind, list(cases)), strict=True)) == cases


def test_a_stamp_may_leave_out_its_seconds(spark: SparkSession) -> None:
    texts: list[str | None] = ["2024-01-01T10:15Z", "2024-01-01T10:15", "2024-01-01 10:15+00:00"]
    assert outcomes(spark, "TIMESTAMP", texts) == ["2024-01-01 10:15:00"] * len(texts)


def test_a_text_that_closes_the_wrapping_array_is_broken(spark: SparkSession) -> None:
    assert outcomes(spark, "ARRAY<INT>", ["[1]]", "[1]] [[2]", "[1]],x"]) == [BROKEN] * 3


def test_an_exponent_without_bound_is_broken_and_stops_nothing(spark: SparkSession) -> None:
    texts: list[str | None] = ["1e-999999999", "1E-2147483648", "1e999999999", "1e-00000", "1e-400"]
    for kind in ("DECIMAL(18,2)", "DECIMAL(38,0)", "BIGINT", "DOUBLE", "ARRAY<DECIMAL(18,2)>"):
        written = [f'["{text}"]' for text in texts] if kind.startswith("ARRAY") else texts
        assert outcomes(spark, kind, [*written]) == [BROKEN] * len(texts), kind


def test_zeros_before_a_negative_exponent_are_no_digits_beyond_the_scale(
    spark: SparkSession,
) -> None:
    assert outcomes(spark, "DECIMAL(18,2)", ["1000E-3", "1230E-3"]) == ["1.00", "1.23"]


def test_a_stamp_without_a_zone_is_utc_whatever_the_session_zone(spark: SparkSession) -> None:
    value = read_exactly(F.col("text"), parse_schema("v TIMESTAMP")[0].type)
    sibling = spark.newSession()
    sibling.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
    frame = sibling.createDataFrame([("1970-01-02",), ("1970-01-02T00:00:00",)], "text string")
    micros = [row[0] for row in frame.select(F.unix_micros(value.typed)).collect()]
    assert micros == [86_400_000_000] * 2
