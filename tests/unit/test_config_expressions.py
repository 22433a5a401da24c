"""SQL expressions are checked before Spark sees them."""

from __future__ import annotations

import logging
from string import ascii_letters
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tidelake.config import expressions as functions
from tidelake.config.expressions import (
    columns_in,
    condition_problems,
    expression_problems,
    type_of,
)
from tidelake.config.row_guards import (
    never_fails,
    texts_as_timestamps,
    texts_beside,
    texts_to_bound,
)

COLUMNS = ("user_id", "action", "value", "xs", "payload", "headers")
TYPES = {"status": "STRING", "at": "TIMESTAMP", "day": "DATE", "xs": "ARRAY<STRING>", "n": "INT"}


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
        ("user_id AS id", "has an alias (AS"),
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
        ("explode(xs)", "a record is one row of silver: use filter, transform or array_max, or"),
        ("posexplode(xs)", "several rows"),
        ("*", "contains *"),
        ("headers.*", "contains *"),
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


@pytest.mark.parametrize(
    "sql", ["value > 0) OR (true", "value) + (1", "lower(action)) || (user_id"]
)
def test_an_expression_is_one_without_the_parentheses_around_it(sql: str) -> None:
    (problem,) = expression_problems(sql, COLUMNS)
    assert problem == "is not valid SQL: a parenthesis is closed before it is opened"


@pytest.mark.parametrize(
    "sql", ["')'", "value -- :)", "concat('(', `xs`[0], ')')", "value /* ) */"]
)
def test_a_parenthesis_in_a_text_or_a_comment_closes_nothing(sql: str) -> None:
    assert expression_problems(sql, COLUMNS) == []


def test_a_second_statement_is_a_problem_and_writes_nothing(
    capfd: pytest.CaptureFixture[str],
) -> None:
    log, handlers = logging.getLogger("sqlglot"), logging.root.handlers[:]
    level = log.level
    # As in a process without pytest's handlers, and without the level that other modules set.
    logging.root.handlers.clear()
    log.setLevel(logging.WARNING)
    try:
        assert "a semicolon" in expression_problems("1; DROP", COLUMNS)[0]
        assert type_of("1; DROP", TYPES) is None
    finally:
        log.setLevel(level)
        logging.root.handlers[:] = handlers
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("sql", "problem"),
    [
        ("n", "is INT; write a condition, which is true, false or null"),
        ("n + 1", "is INT; write a condition, which is true, false or null"),
        ("day", "is DATE; write a condition, which is true, false or null"),
    ],
)
def test_a_condition_is_true_false_or_null(sql: str, problem: str) -> None:
    assert condition_problems(sql, TYPES) == [problem]
    # Where the columns' types are not known, Spark judges them.
    assert condition_problems(sql, tuple(TYPES)) == []
    assert condition_problems(sql, dict.fromkeys(TYPES)) == []


@pytest.mark.parametrize("sql", ["n > 0", "CAST(n AS BOOLEAN)", "luhn_check(status)", "NULL"])
def test_a_condition_may_be_of_a_type_that_only_spark_knows(sql: str) -> None:
    assert condition_problems(sql, TYPES, ["BOOLEAN"]) == []


def test_a_text_is_a_condition_except_in_a_rule() -> None:
    assert condition_problems("status", TYPES) == []
    assert "is STRING; write a condition" in condition_problems("status", TYPES, ["BOOLEAN"])[0]


def test_every_problem_of_an_expression_is_listed() -> None:
    problems = expression_problems("sum(valeu) + rand() + actoin", COLUMNS)
    assert len(problems) == 4


def test_a_comment_at_the_end_hides_nothing() -> None:
    assert columns_in("n + m -- of both") == {"n", "m"}
    assert type_of("n -- as it came", {"n": "INT"}) == "INT"
    assert texts_as_timestamps("CAST(s AS TIMESTAMP) -- local") == ("s",)
    assert texts_to_bound("regexp_like(s, '(a|b)*') -- slow") == ("s",)
    assert texts_beside("s > at -- later") == (("s", "at"), ("at", "s"))


def test_a_constant_beside_a_timestamp_needs_a_date() -> None:
    types = {"at": "TIMESTAMP", "s": "STRING"}
    for sql in ("at > '12:30'", "coalesce(at, 'T12')", "'9:00' = at", "at IN ('1:05')"):
        (problem,) = expression_problems(sql, types)
        assert "write the date too" in problem
    for sql in ("s > '12:30'", "at > '2024-01-01 12:30'", "s IN ('9:00')", "concat(s, '12:30')"):
        assert expression_problems(sql, types) == []


def test_the_type_time_which_spark_refuses_is_refused() -> None:
    for sql in ("CAST(status AS TIME) > status", "status::time(3)", "time '12:30' = status"):
        (problem,) = expression_problems(sql, TYPES)
        assert "uses the type TIME, which Spark does not support" in problem
    assert expression_problems("CAST(struct(at AS time) AS struct<time: TIMESTAMP>)", TYPES) == []


def test_a_pattern_in_a_lambda_may_repeat_no_group() -> None:
    """The guard of a text's length knows no variables of lambdas, but columns of their names."""
    for pattern in ("'^[a-z]+(-[a-z]+)*$'", "r'(a|b)+'", "status"):
        for sql in (f"forall(xs, x -> x RLIKE {pattern})", f"exists(xs, n -> rlike(n, {pattern}))"):
            assert texts_to_bound(sql) == ()
            (problem,) = expression_problems(sql, TYPES)
            assert "matches a pattern in a lambda function" in problem
    for pattern in ("'^[a-z]*$'", "'(a|b)*+'", r"r'^\d+$'"):
        assert expression_problems(f"forall(xs, x -> x RLIKE {pattern})", TYPES) == []
    assert texts_to_bound("array_join(filter(xs, x -> x > ''), '') RLIKE '(a|b)*'") == (
        "ARRAY_JOIN(FILTER(xs, x -> x > ''), '')",
    )


def test_a_call_that_lacks_arguments_is_a_problem_and_no_crash() -> None:
    (problem,) = expression_problems("date_trunc() > at", TYPES)
    assert problem == "is not valid SQL: an argument of a function is missing"
    assert type_of("date_trunc()", TYPES) is None
    # Spark reports the number of arguments.
    for sql in ("year() > 3", "month()", "day()", "datediff()"):
        assert expression_problems(sql, TYPES) == []


def test_what_no_guard_can_write_is_a_problem() -> None:
    (problem,) = expression_problems("get_json_object(status, '$..b') = status", TYPES)
    assert problem.startswith("cannot be analysed (")
    assert expression_problems("get_json_object(status, '$.a[0].b') = status", TYPES) == []


def test_columns_are_left_alone_when_they_cannot_be_known() -> None:
    assert expression_problems("anything + 1", None) == []
    assert expression_problems("sum(anything)", None) != []


def test_an_expression_nested_without_end_is_a_problem_and_no_crash() -> None:
    assert expression_problems("(" * 5000 + "value" + ")" * 5000, COLUMNS) != []


UNSTEADY_CALLS = [
    *(f"{name}()" for name in sorted(functions.NONDETERMINISTIC)),
    *(f"`{name.upper()}` ()" for name in sorted(functions.NONDETERMINISTIC)),
    *(f"coalesce(status, {name}(1, 'x'))" for name in sorted(functions.NONDETERMINISTIC)),
    *(f"system.builtin.{name}()" for name in sorted(functions.NONDETERMINISTIC)),
    *sorted(functions.NO_PARENTHESES),
    *(f"cast({name} AS string)" for name in sorted(functions.NO_PARENTHESES)),
    *(f"transform(xs, x -> `{name}`)" for name in sorted(functions.NO_PARENTHESES)),
    *("unix_timestamp()", "unix_timestamp ( /* now */ )", "identifier('rand')()", "builtin.uuid()"),
    *("raise_error('x')", "assert_true(n > 0)", "session.f(n)", "main.default.f(n)", "ai_query(n)"),
    "java_method('java.util.UUID', 'randomUUID')",
    "hex(aes_encrypt(status, '0000111122223333'))",
    "try_reflect('java.lang.System', 'nanoTime')",
]
TIMES_OF_THE_QUERY = [
    *(
        written.format(word)
        for word in ("now", "today", "yesterday", "tomorrow", " NOW ", "now UTC", "today+01:00")
        for written in (
            "timestamp '{}'",
            "date'{}'",
            "timestamp_ltz '{}'",
            'timestamp_ntz "{}"',
            "cast('{}' AS timestamp)",
            "try_cast(r'{}' AS date)",
            "'{}'::timestamp_ntz",
            "to_timestamp('{}')",
            "to_date('{}')",
            "timestamp('{}')",
            "try_to_timestamp('{}')",
            "at > '{}'",
            "at BETWEEN '{}' AND '2020-01-01'",
            "day = '{}'",
            "day IN ('2020-01-01', '{}')",
            "coalesce(day, '{}')",
            "CASE WHEN n > 1 THEN at ELSE '{}' END",
            "CASE day WHEN '{}' THEN 1 END",
            "if(n > 1, day, '{}')",
            "datediff(day, '{}')",
            "greatest(at, '{}')",
            "cast(lower('{}') AS date)",
            "'{}'",
        )
    ),
    *("cast('no' || 'w' AS timestamp)", "to_date(concat('to', 'day'))", "date('to' 'day')"),
    *("cast(cast(x'6e6f77' AS string) AS timestamp)", "timestamp '\\u006eow'"),
    "timestamp 'now Europe/Berlin'",
]
STEADY_TEXTS = [
    "status = 'today'",
    "status <> 'now' AND n > 1",
    "status IN ('now', 'later')",
    "status LIKE 'today'",
    "status RLIKE 'now'",
    "lower(status) = 'tomorrow'",
    "CASE status WHEN 'today' THEN 1 ELSE 2 END",
    "CASE WHEN n > 1 THEN 'now' ELSE 'later' END",
    "if(n > 1, status, 'now')",
    "coalesce(status, 'now')",
    "concat(status, ' today')",
    "status = 'nowhere'",
    "nowhere = 'x'",
    "user = 'x'",
    "transform(xs, user -> lower(user))",
    "date '2020-01-01' < day",
    "timestamp 'epoch' < at",
    "cast('2020-01-01' AS date)",
    "to_timestamp('2020-01-01 10:00', 'yyyy-MM-dd HH:mm')",
    "status LIKE ANY ('now', 'x%') OR status LIKE ALL ('a%', 'b%')",
    "cast(n AS decimal(10, 2)) BETWEEN (1) AND (2)",
    "CASE (n) WHEN (1) THEN (2) ELSE (3) END IS NOT NULL",
    "extract(DAY FROM (at)) + date_add(day, 1) DIV (2)",
    "trim(BOTH 'x' FROM (status)) || substring(status FROM (1) FOR (2))",
    "dateadd(DAY, n, day) + timestampdiff(HOUR, at, at)",
    "named_struct('a', struct(n AS b)).a.b + xs[0]",
    "unix_timestamp(at) + try_divide(n, 2) + `abs`(n)",
]


@pytest.mark.parametrize("columns", [TYPES, tuple(TYPES), None], ids=["types", "names", "unknown"])
def test_what_answers_otherwise_from_run_to_run_is_refused(columns: dict[str, str] | None) -> None:
    taken = [
        sql
        for sql in (*UNSTEADY_CALLS, *TIMES_OF_THE_QUERY)
        if not expression_problems(sql, columns)
    ]
    # Of columns that are not known any may be called user.
    assert [sql for sql in taken if columns is not None or "user" not in sql] == []
    assert len(UNSTEADY_CALLS) + len(TIMES_OF_THE_QUERY) >= 200


@pytest.mark.parametrize(
    "name",
    [
        *("xpath", "xpath_boolean", "xpath_double", "xpath_float", "xpath_int", "xpath_long"),
        *("xpath_number", "xpath_short", "xpath_string"),
    ],
)
def test_a_function_that_reads_what_its_xml_names_is_refused(name: str) -> None:
    assert expression_problems(f"{name.upper()}(status, 'a') IS NULL", TYPES) == [
        f"calls {name}, which reads files and URLs that the XML names; use from_xml"
    ]


def test_what_only_looks_like_it_is_taken() -> None:
    columns = TYPES | {"nowhere": "STRING", "user": "STRING"}
    assert {sql: expression_problems(sql, columns) for sql in STEADY_TEXTS} == {
        sql: [] for sql in STEADY_TEXTS
    }


def test_every_function_of_spark_is_known_to_be_steady_or_not(spark: SparkSession) -> None:
    registry = spark._jvm.org.apache.spark.sql.catalyst.analysis.FunctionRegistry  # type: ignore[union-attr]
    names = registry.builtin().listFunction().mkString(" ").split()
    groups = [
        *(
            functions.DETERMINISTIC,
            functions.NONDETERMINISTIC,
            functions.AGGREGATES,
            functions.WINDOW,
        ),
        *(functions.GENERATORS, functions.FAILING, functions.XPATH),
    ]
    known = frozenset().union(*groups)
    assert sum(map(len, groups)) == len(known), "a function is in two lists"
    written = {name for name in names if name.isidentifier()} - functions.SYNTAX
    assert written - known == set()


@pytest.mark.parametrize(
    ("sql", "kind"),
    [
        ("status", "STRING"),
        ("`STATUS`", "STRING"),
        ("n", "INT"),
        ("lower(trim(status))", "STRING"),
        ("status = 'x' AND NOT (n IS NULL)", "BOOLEAN"),
        ("at IS NOT NULL OR status <> upper('x')", "BOOLEAN"),
        # Each of these casts something, or may fail by itself.
        ("n = 'x'", None),
        ("n = 1", None),
        ("lower(n)", None),
        ("trim(BOTH n FROM status)", None),
        ("status AND status = 'x'", None),
        ("cast(status AS int)", None),
        ("1 / n", None),
        ("xs[0]", None),
        ("other", None),
        ("status.length", None),
        ("at = '2026-01-01'", None),
        ("status IN ('x', 'y')", None),
        ("status IS TRUE", None),
    ],
)
def test_only_an_expression_that_cannot_fail_is_evaluated_without_a_guard(
    sql: str, kind: str | None
) -> None:
    assert never_fails(sql, TYPES) == kind


NESTED = {
    "http": "STRUCT<method: STRING, duration_ms: INT, `a b`: STRUCT<x: INT>>",
    "items": "ARRAY<STRUCT<sku: STRUCT<x: INT>, n: INT>>",
    **{"tags": "MAP<STRING, STRUCT<x: INT>>", "rows": "ARRAY<ARRAY<INT>>", "level": "STRING"},
    **{"looked_up": None, "v": "VARIANT"},
}


@pytest.mark.parametrize(
    ("sql", "problem"),
    [
        ("http.durationms", "http: unknown field durationms; did you mean duration_ms?"),
        ("lower(`http`.methd)", "http: unknown field methd; did you mean method?"),
        ("http.`a b`.y", "http.a b: unknown field y (known: x)"),
        ("(http).bogus", "(http): unknown field bogus (known: method, duration_ms, a b)"),
        ("items.sku.y", "items.sku: unknown field y (known: x)"),
        ("items[0].sky", "items[0]: unknown field sky; did you mean sku?"),
        ("tags['k'].y", "tags['k']: unknown field y (known: x)"),
        ("tags.k.y", "tags.k: unknown field y (known: x)"),
        ("level.x", "level is STRING, which has no field x"),
        ("http.method.a.b.c.d", "http.method is STRING, which has no field a"),
        (
            "transform(items, i -> http.x)",
            "http: unknown field x (known: method, duration_ms, a b)",
        ),
    ],
)
def test_a_field_that_its_column_s_type_lacks_is_found(sql: str, problem: str) -> None:
    assert expression_problems(sql, NESTED) == [problem]
    # Where the types are not known, Spark judges them.
    assert expression_problems(sql, tuple(NESTED)) == []


@pytest.mark.parametrize(
    "sql",
    [
        *("HTTP.Duration_MS", "`http`.`duration_ms`", "http.`a b`.x", "items.sku.x", "items[0].n"),
        *("items['sku'].x", "tags.k.x", "tags['k'].x", "rows.x", "looked_up.x.y", "v.x"),
        *("transform(items, http -> http.bogus)", "transform(rows, r -> exists(r, i -> i.x))"),
        *("from_json(level, 'x INT').y", "struct(level AS x).y"),
        # Spark calls the field k, and col1; a name may be computed.
        *("struct(tags['k']).k.x", "struct(level = level).col1"),
        "named_struct(replace('a-b', '-', '_'), level).a_b",
        "transform(rows, HTTP -> http.bogus)",
    ],
)
def test_a_field_of_what_only_spark_knows_is_not_judged(sql: str) -> None:
    assert expression_problems(sql, NESTED) == []


@pytest.mark.parametrize(
    ("sql", "kind"),
    [
        ("struct(level)", "STRUCT<`level`: STRING>"),
        ("struct(level AS x, http.method)", "STRUCT<`x`: STRING,`method`: STRING>"),
        # Spark names these k, k and col1, and may compute a name.
        ("struct(tags['k'])", None),
        ("struct((tags).k)", None),
        ("struct(level = level)", None),
        ("named_struct(replace('a-b', '-', '_'), level)", None),
    ],
)
def test_the_type_of_a_struct_is_known_where_its_names_are(sql: str, kind: str | None) -> None:
    columns = {**NESTED, "tags": "MAP<STRING, STRING>"}
    assert type_of(sql, columns) == kind


@pytest.mark.parametrize(
    ("sql", "problem"),
    [
        ("date_format(at, 'YYYY-MM-DD')", "in which Spark refuses Y; write a year as y"),
        ("to_timestamp(status, 'DD.MM.YYYY')", "in which Spark refuses Y; write a year as y"),
        ("try_to_timestamp(status, 'YYYY-MM-dd')", "'YYYY-MM-dd', in which Spark refuses Y"),
        ('coalesce(TO_DATE(status, "YYYY"), day)', "calls to_date with the pattern 'YYYY'"),
        ("to_timestamp(status, 'yyyy-MM-ddTHH:mm')", "refuses T; put text between single quotes"),
        ("to_date(concat(status, '('), 'EEE')", "in which Spark refuses E"),
        (
            "to_utc_timestamp(coalesce(at, day), 'Europe/Berln')",
            "the time zone 'Europe/Berln', which does not exist; did you mean Europe/Berlin?",
        ),
    ],
)
def test_a_literal_that_spark_refuses_on_every_row_is_found(sql: str, problem: str) -> None:
    (found,) = expression_problems(sql, TYPES)
    assert problem in found


@pytest.mark.parametrize(
    "sql",
    [
        *("date_format(at, 'EEE')", "to_date(status)", "to_date(status, status)"),
        *(
            "to_timestamp(status, \"yyyy-MM-dd'T'HH:mm:ss[.SSS]XXX\")",
            "date_format(at, 'Y' || 'y')",
        ),
        *("to_utc_timestamp(at, 'EST')", "from_utc_timestamp(at, 'US/Pacific')"),
        *("to_utc_timestamp(at, '+02:00')", "to_utc_timestamp(at, 'Etc/GMT+5')"),
        *("to_utc_timestamp(at, status)", "concat(to_date(status), 'Y')"),
        # Of what is no text, Spark reads no pattern.
        *("to_date(at, 'YYYY')", "to_timestamp(day, 'e')", "to_date(coalesce(at, day), 'EEE')"),
    ],
)
def test_a_literal_that_spark_may_accept_is_accepted(sql: str) -> None:
    assert expression_problems(sql, TYPES) == []


def test_the_letters_of_patterns_are_sparks(spark: SparkSession) -> None:
    """A letter that is refused without need would stop a pipeline that works."""
    jvm: Any = spark._jvm
    formatters = getattr(jvm.org.apache.spark.sql.catalyst.util, "TimestampFormatter$")
    create = getattr(formatters, "MODULE$").apply
    for function, reads in (("date_format", False), ("to_timestamp", True)):
        calls = {letter: f"{function}(status, '{letter}')" for letter in ascii_letters}
        refused = {letter for letter, sql in calls.items() if expression_problems(sql, TYPES)}
        of_spark = set()
        for letter in ascii_letters:
            try:
                create(letter, jvm.java.time.ZoneId.of("UTC"), reads).validatePatternString(False)
            except PySparkException:
                of_spark.add(letter)
        # V needs two letters.
        assert refused == of_spark - {"V"}
