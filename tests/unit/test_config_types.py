"""Durations and payload types."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tidelake.config import Field, FieldType, parse_duration
from tidelake.config.model import Problems
from tidelake.config.types import parse_schema


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1 second", timedelta(seconds=1)),
        ("90 seconds", timedelta(seconds=90)),
        ("10 minutes", timedelta(minutes=10)),
        ("1 hour", timedelta(hours=1)),
        ("2 days", timedelta(days=2)),
        ("1 WEEK", timedelta(weeks=1)),
        ("250 milliseconds", timedelta(milliseconds=250)),
        ("0 seconds", timedelta(0)),
    ],
)
def test_a_duration_is_a_number_and_a_unit(text: str, expected: timedelta) -> None:
    assert parse_duration(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "10",
        "minutes",
        "10 mins",
        "1.5 hours",
        "-1 day",
        "1 month",
        "2 Quarters",
        "10minutes",
        "9999999999 weeks",
    ],
)
def test_anything_else_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="duration"):
        parse_duration(text)


def test_a_month_has_no_length_but_a_query_has_months() -> None:
    why = r"^'1 Months' .* since months differ in length; .* date_trunc\('month', window_start\)$"
    with pytest.raises(ValueError, match=why):
        parse_duration("1 Months")


@pytest.mark.parametrize(
    ("ddl", "sql"),
    [
        ("a STRING", "STRING"),
        ("a boolean", "BOOLEAN"),
        ("a BYTE", "TINYINT"),
        ("a short", "SMALLINT"),
        ("a INTEGER", "INT"),
        ("a LONG", "BIGINT"),
        ("a REAL", "FLOAT"),
        ("a DOUBLE", "DOUBLE"),
        ("a DECIMAL", "DECIMAL(10,0)"),
        ("a DECIMAL(18)", "DECIMAL(18,0)"),
        ("a NUMERIC(18, 2)", "DECIMAL(18,2)"),
        ("a DECIMAL(38,38)", "DECIMAL(38,38)"),
        ("a DATE", "DATE"),
        ("a TIMESTAMP", "TIMESTAMP"),
        ("a TIMESTAMP_NTZ", "TIMESTAMP_NTZ"),
        ("a BINARY", "BINARY"),
        ("a: ARRAY<STRUCT<a: INT>>", "ARRAY<STRUCT<a: INT>>"),
        ("a MAP<STRING, DECIMAL(9,1)>", "MAP<STRING, DECIMAL(9,1)>"),
        ("a STRUCT<`x-y` INT, _id: STRING>", "STRUCT<`x-y`: INT, `_id`: STRING>"),
        ("a STRUCT<`x``y`: INT>", "STRUCT<`x``y`: INT>"),
        ("a INT COMMENT 'how many'", "INT"),
    ],
)
def test_a_type_is_read_and_written_as_spark_does(ddl: str, sql: str) -> None:
    (field,) = parse_schema(ddl)
    assert field.name == "a"
    assert field.type.sql == sql
    assert parse_schema(f"a {sql}") == (field,)


def test_a_nested_type_keeps_its_parts() -> None:
    (field,) = parse_schema("lines ARRAY<STRUCT<price: DECIMAL(9,2)>>")
    price = Field("price", FieldType("decimal", precision=9, scale=2))
    struct = FieldType("struct", fields=(price,))
    assert field == Field("lines", FieldType("array", element=struct))


@pytest.mark.parametrize(
    ("ddl", "message"),
    [
        ("", "expected"),
        ("a", "expected"),
        ("a INT,", "expected"),
        ("a INT b INT", "expected"),
        ("a INT;", "cannot read"),
        ("1a INT", "expected"),
        ("a ARRAY<INT", "expected"),
        ("a ARRAY", "expected"),
        ("a STRUCT<>", "expected"),
        ("a DECIMAL(x)", "not a whole number"),
        ("a DECIMAL(39,2)", "precision"),
        ("a DECIMAL(0,0)", "precision"),
        ("a DECIMAL(5,6)", "scale"),
        ("a INT, A STRING", "twice"),
        ("a STRUCT<b: INT, B: INT>", "'a.B' appears twice"),
        ("a VARCHAR(10)", "use STRING"),
        ("a STRNG", "did you mean STRING"),
        ("a MAP<INT, STRING>", "keys must be STRING"),
        ("_Broken INT", "CAST\\(payload AS STRING\\), '\\$._Broken'"),
        ("`_in_a b` INT", "has the name of an internal column"),
        ("a INT NOT NULL", "NOT NULL"),
        ("a " + "ARRAY<" * 60 + "INT" + ">" * 60, "too deeply"),
    ],
)
def test_a_schema_that_cannot_be_kept_is_refused(ddl: str, message: str) -> None:
    with pytest.raises(Problems, match=message):
        parse_schema(ddl)


def test_every_problem_of_a_schema_is_listed() -> None:
    with pytest.raises(Problems) as caught:
        parse_schema("a DECIMAL(39,2), _own_b INT, c VARCHAR(3), A INT, m MAP<INT, INT>")
    assert len(caught.value.problems) == 5
