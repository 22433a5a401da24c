"""SQL expressions are checked before Spark sees them."""

from __future__ import annotations

import pytest

from tidelake.config.expressions import expression_problems

COLUMNS = ("user_id", "action", "value", "xs", "payload", "headers")


@pytest.mark.parametrize(
    "sql",
    [
        "user_id",
        "USER_ID",
        "`user_id`",
        "lower(action)",
        "CASE WHEN action = 'purchase' THEN value END",
        "headers.trace.id",
        "headers['trace']",
        "xs[0].price",
        "transform(xs, x -> transform(x.ys, y -> y + value))",
        "aggregate(xs, 0, (total, x) -> total + x)",
        "exists(xs, x -> x = 1)",
        "get_json_object(cast(payload as string), '$.id')",
        "value - interval 10 minutes",
        "timestampdiff(MINUTE, value, value)",
        "unix_timestamp(value)",
        "struct(value AS amount)",
        "concat(user_id, ';')",
        "value -- in cents",
        "array_max(xs)",
        "1",
    ],
)
def test_an_expression_over_known_columns_is_accepted(sql: str) -> None:
    assert expression_problems(sql, COLUMNS) == []


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("", "is empty"),
        ("  ", "is empty"),
        ("lower(", "not valid SQL"),
        ("action = 'x", "left open"),
        ("user_id; action", "semicolon"),
        ("user_id, action", "more than one expression"),
        ("user_id) FROM t (", "more than one expression"),
        ("user_id), (action", "more than one expression"),
        ("user_id AS id", "leave AS out"),
        ("(SELECT 1)", "subquery"),
        ("user_id IN (SELECT id FROM t)", "subquery"),
        ("sum(value) OVER (PARTITION BY user_id)", "window function"),
        ("row_number()", "window function"),
        ("window(value, '1 minute')", "window function"),
        ("sum(value)", "calls sum, an aggregate"),
        ("collect_set(value)", "calls collect_set, an aggregate"),
        ("first(value)", "an aggregate"),
        ("bool_or(value)", "an aggregate"),
        ("max_by(value, user_id)", "an aggregate"),
        ("1 + std(value)", "an aggregate"),
        ("explode(xs)", "several rows"),
        ("*", "holds *"),
        ("headers.*", "holds *"),
        (":id", "parameter"),
        ("rand()", "from run to run"),
        ("uuid()", "from run to run"),
        ("now()", "from run to run"),
        ("current_timestamp", "from run to run"),
        ("current_date()", "from run to run"),
        ("unix_timestamp()", "from run to run"),
        ("localtimestamp", "from run to run"),
        ("coalesce(value, monotonically_increasing_id())", "from run to run"),
        ("actoin = 'click'", "unknown column actoin; did you mean action?"),
        ("nothing.like.it", "unknown column nothing (known: user_id"),
        ("transform(xs, x -> x + y)", "unknown column y"),
    ],
)
def test_what_one_row_cannot_answer_is_refused(sql: str, message: str) -> None:
    problems = expression_problems(sql, COLUMNS)
    assert any(message in problem for problem in problems), problems


def test_every_problem_of_an_expression_is_listed() -> None:
    problems = expression_problems("sum(valeu) + rand() + actoin", COLUMNS)
    assert len(problems) == 4


def test_columns_are_left_alone_when_they_cannot_be_known() -> None:
    assert expression_problems("anything + 1", None) == []
    assert expression_problems("sum(anything)", None) != []


def test_an_expression_nested_without_end_is_a_problem_and_no_crash() -> None:
    assert expression_problems("(" * 5000 + "value" + ")" * 5000, COLUMNS) != []
