"""Types of expressions are Spark's, or not told; each was compared with Spark's ``typeof``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.pipelines import shop
from tidelake.config.descriptions import entries_of
from tidelake.config.expressions import expression_problems, type_of

_TYPES = {
    **{"t": "TINYINT", "i": "INT", "n": "BIGINT", "f": "DOUBLE", "small": "FLOAT"},
    **{"price": "DECIMAL(18,2)", "rate": "DECIMAL(10,4)", "id": "STRING", "b": "BOOLEAN"},
    **{"d": "DATE", "at": "TIMESTAMP", "ntz": "TIMESTAMP_NTZ", "raw": "BINARY"},
    **{"xs": "ARRAY<INT>", "tags": "MAP<STRING, STRING>", "s": "STRUCT<x: INT, y: STRING>"},
}


@pytest.mark.parametrize(
    ("kind", "expressions"),
    [
        ("STRING", ["ID", "lower(id)", "concat(id, n)", "id || n", "substring(id, 1, 2)", "s.y"]),
        ("STRING", ["tags['a']", "split(id, ',')[0]", "date_format(at, 'y')", "nullif(id, 'a')"]),
        ("STRING", ["coalesce(id, 'x')", "if(b, id, NULL)", "get_json_object(id, '$.x')"]),
        ("BOOLEAN", ["id = 'a'", "NOT b", "n IS NULL AND b", "id LIKE 'x%'", "isnan(f)"]),
        ("TINYINT", ["t", "-t", "t % t", "CAST(id AS TINYINT)"]),
        ("INT", ["1", "-1", "t + 1", "round(i)", "xs[0]", "s.x", "length(id)", "year(at)"]),
        ("BIGINT", ["n + 1", "i * n", "n DIV 2", "coalesce(n, 0)", "nvl(NULL, n)", "1L"]),
        ("BIGINT", ["CASE WHEN b THEN i ELSE n END", "round(n)", "abs(n)"]),
        ("DOUBLE", ["n / 2", "f * price", "small + n", "price / f", "coalesce(f, 0)", "1e3"]),
        ("FLOAT", ["small", "small + small", "-small"]),
        ("DECIMAL(18,2)", ["price", "-price", "abs(price)", "if(b, price, NULL)"]),
        ("DECIMAL(10,0)", ["CAST(id AS DECIMAL)", "TRY_CAST(id AS DECIMAL(10))"]),
        ("DATE", ["coalesce(id, d)", "if(b, d, '2026-01-31')", "to_date(id)", "last_day(at)"]),
        ("TIMESTAMP", ["nvl(id, at)", "date_trunc('day', d)", "timestamp_millis(n)"]),
        ("TIMESTAMP", ["coalesce(at, d, id)", "at + INTERVAL 1 HOUR", "dateadd(DAY, 1, at)"]),
        ("TIMESTAMP_NTZ", ["ntz", "CAST(id AS TIMESTAMP_NTZ)", "CASE WHEN b THEN id ELSE ntz END"]),
        ("ARRAY<BIGINT>", ["array(i, n)"]),
        ("STRUCT<`a`: INT,`id`: STRING>", ["struct(i AS a, id)"]),
        ("MAP<STRING,STRING>", ["tags"]),
    ],
)
def test_a_type_is_sparks(kind: str, expressions: list[str]) -> None:
    assert {sql: type_of(sql, _TYPES) for sql in expressions} == dict.fromkeys(expressions, kind)


@pytest.mark.parametrize(
    "sql",
    [
        *("price * i", "price / 2", "price + rate", "round(price, 1)", "0.5", "n + 0.5", "n * 0.5"),
        *("if(b, 1.5, 0)", "coalesce(price, 0)", "coalesce(price, rate)", "1.5BD * 2"),
        *("coalesce(id, n)", "nvl(id, n)", "id + 1", "coalesce(at, ntz)", "coalesce(raw, id)"),
        *("d - d", "d + 1", "at - at", "d + INTERVAL 1 HOUR", "extract(SECOND FROM at)"),
        *("trunc(d, 'MM')", "ceil(f)", "n & 1", "2147483648", "100000000000", "1_000"),
        *(
            "substring(raw, 1, 2)",
            "concat(raw, raw)",
            "concat(xs, xs)",
            "lower(id COLLATE UNICODE)",
        ),
        *("NULL", "if(b, NULL, NULL)", "CAST(id AS ARRAY<STRING>)", "s.z", "s.x.y", "tags.a"),
        *("transform(xs, x -> x + 1)", "(n, id)", "user", "id COLLATE UNICODE"),
    ],
)
def test_a_type_that_only_spark_knows_is_not_told(sql: str) -> None:
    assert type_of(sql, _TYPES) is None


def test_a_sum_of_many_terms_has_a_type_or_none() -> None:
    assert type_of("+".join(["n"] * 50), _TYPES) == "BIGINT"
    assert type_of("+".join(["n"] * 3000), _TYPES) in ("BIGINT", None)


@pytest.mark.parametrize(
    "sql",
    [
        *("coalesce(id, d) = 'today'", "nvl(id, d) = 'today'", "if(b, id, d) = 'today'"),
        *("CASE WHEN b THEN id ELSE d END = 'today'", "ifnull(id, at) = 'now'"),
        *("nvl2(id, id, at) IN ('x', 'now')", "greatest(id, d) = 'today'"),
    ],
)
def test_a_text_that_spark_compares_as_a_time_is_no_word_for_today(sql: str) -> None:
    (problem,) = expression_problems(sql, _TYPES)
    assert "which Spark casts to the time of the query" in problem


def test_a_text_without_a_date_is_no_timestamp_beside_texts_that_become_one() -> None:
    (problem,) = expression_problems("nvl(id, at) = '12:30'", _TYPES)
    assert "write the date too" in problem
    for sql in ("coalesce(id, 'today') = 'today'", "tags['a'] = 'now'", "s.y IN ('now')"):
        assert expression_problems(sql, _TYPES) == []


def test_the_dictionary_leaves_a_type_empty_that_only_spark_knows(tmp_path: Path) -> None:
    select: dict[str, Any] = {
        **{"user_id": "user_id", "value": "value", "twice": "value * 2", "half": "value / 2"},
        **{"month": "trunc(event_time, 'MM')", "large": "100000000000"},
    }
    silver = next(
        entry
        for entry in entries_of(shop(tmp_path, event={"select": select}))
        if entry.table == "silver.shop"
    )
    types = {column.name: column.type for column in silver.columns if column.name in select}
    assert [name for name, kind in types.items() if kind] == ["user_id", "value"]
