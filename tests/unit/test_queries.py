"""Queries: how their SQL is cut into parts, and what is refused before Spark starts."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.test_config_loading import JOIN, LAPTOP, changed, violations, write
from tidelake.config import HoppingWindow, Pipeline, TumblingWindow, load_pipeline
from tidelake.config.descriptions import entries_of, meaning_of
from tidelake.config.model import Problems
from tidelake.config.query_parts import parse_query
from tidelake.delta.commit_metadata import hash_of
from tidelake.runtime.gold_tables import _kinds

_MEASURES = {
    "events": {"count": "*"},
    "total": {"sum": "CAST(n AS DECIMAL(18,2))"},
    "mean": {"avg": "n"},
    "heat": {"sum": "CAST(n AS DOUBLE)"},
    "words": {"sum": "action"},
    "people": {"approx_count_distinct": "action"},
}
_VISITS = {"keys": ["user_id"], "measures": {"events": {"count": "*"}}}
_HOURS = (
    "SELECT date_trunc('hour', window_start) AS hour, user_id, sum(total) AS money\n"
    "FROM gold.per_minute GROUP BY hour, user_id"
)


def _shop(sql: str = _HOURS, **changes: Any) -> dict[str, Any]:
    derive = {"warm": "heat * 2", "each": "total / events"}
    return changed(
        gold__0__measures=_MEASURES,
        gold__0__derive=derive,
        queries=[{"name": "by_hour", "sql": sql}],
        **changes,
    )


def _load(folder: Path, raw: dict[str, Any]) -> Pipeline:
    return load_pipeline(write(folder, raw), LAPTOP)


def test_a_query_is_cut_into_texts_of_the_file() -> None:
    parts = parse_query(
        """
        SELECT date_trunc('HOUR', window_start) AS hour, -- of UTC
               `Category` kind, upper(Category) AS shout,
               sum(total) / nullif(count(DISTINCT who), 0) AS each,
               count(*) AS n, SUM( total ) - sum(total) AS nothing,
               date_trunc('HOUR', window_start) + INTERVAL 1 HOUR AS until
        FROM Gold.Minutes
        WHERE total IS DISTINCT FROM 3
        GROUP BY 1, category HAVING sum(total) > 3;
        """
    )
    assert (parts.source, parts.start) == ("gold.minutes", "window_start")
    assert parts.where == "total IS DISTINCT FROM 3"
    assert [(key.name, key.sql, key.internal, key.unit) for key in parts.keys] == [
        ("hour", "date_trunc('HOUR', window_start)", "_key_0", "hour"),
        ("kind", "`Category`", "category", None),
    ]
    assert [(one.function, one.argument, one.distinct) for one in parts.calls] == [
        ("sum", "total", False),
        ("count", "who", True),
        ("count", "*", False),
    ]
    assert {one.name: one.computed for one in parts.columns} == {
        "hour": "_key_0",
        "kind": "category",
        "shout": "upper(Category)",
        "each": "_agg_0 / nullif(_agg_1, 0)",
        "n": "_agg_2",
        "nothing": "_agg_0 - _agg_0",
        "until": "_key_0 + INTERVAL 1 HOUR",
    }
    assert parts.having == "_agg_0 > 3"


def test_group_by_all_takes_the_columns_without_aggregates() -> None:
    parts = parse_query(
        "SELECT date_trunc('day', window_start) AS day, window_start, who, max(n) AS n "
        "FROM minutes GROUP BY ALL"
    )
    assert [key.name for key in parts.keys] == ["day", "window_start", "who"]
    # The shortest of two.
    assert parts.window.name == "window_start"


@pytest.mark.parametrize(
    ("cut", "window", "lasts"),
    [
        ("window_start", {"size": "1 minute"}, "0:01:00"),
        ("window_start", {"size": "1 hour", "slide": "20 minutes"}, "1:00:00"),
        ("date_trunc('hour', window_start)", {"size": "1 minute"}, "1:00:00"),
        ("date_trunc('hour', window_start)", {"size": "15 minutes", "offset": "5 minutes"}, "1:05"),
        # The last one begins at 40 past and ends 20 minutes into the next hour.
        ("date_trunc('hour', window_start)", {"size": "40 minutes", "slide": "20 minutes"}, "1:20"),
        ("date_trunc('hour', window_start)", {"size": "7 minutes"}, "1:07"),
        ("date_trunc('minute', window_start)", {"size": "1 hour"}, "1:01"),
        ("date_trunc('week', window_start)", {"size": "1 day"}, "7 days"),
        ("date_trunc('week', window_start)", {"size": "7 days"}, "14 days"),
        ("date_trunc('month', window_start)", {"size": "1 day"}, "31 days"),
        ("date_trunc('month', window_start)", {"size": "5 days"}, "36 days"),
    ],
)
def test_a_row_lasts_until_the_last_window_in_it_ends(
    cut: str, window: dict[str, str], lasts: str
) -> None:
    kind = HoppingWindow if "slide" in window else TumblingWindow
    made = kind.model_validate({"kind": "hopping" if "slide" in window else "tumbling", **window})
    sql = f"SELECT {cut} AS at, count(*) AS n FROM t GROUP BY at"
    days, _, time = lasts.rpartition(" days")
    hours, minutes = (time.split(":") if ":" in time else ("0", "0"))[:2]
    expected = timedelta(days=int(days or 0), hours=int(hours), minutes=int(minutes))
    assert parse_query(sql).lasts(made) == expected


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("", "is not one SELECT"),
        ("SELECT (", "is not valid SQL"),
        ("SELECT date_trunc()", "an argument of a function is missing"),
        ("SELECT 1", "is not one SELECT"),
        ("DELETE FROM t", "is not one SELECT"),
        ("SELECT window_start FROM t GROUP BY 1; SELECT 2", "is not one SELECT"),
        ("SELECT window_start FROM t GROUP BY 1 UNION SELECT 2", "is not one SELECT"),
        ("FROM t SELECT window_start GROUP BY window_start", "in the order SELECT, FROM"),
        ("SELECT window_start FROM t", "has no GROUP BY"),
        ("SELECT who FROM t GROUP BY who", "groups by no window"),
        ("SELECT window_end FROM t GROUP BY 1", "groups by no window"),
        ("SELECT date_trunc('decade', window_start) AS d FROM t GROUP BY 1", "groups by no window"),
        ("SELECT count(*) AS n FROM t GROUP BY window_start", "none of its columns; select it"),
        ("SELECT window_start FROM t GROUP BY 3", "none of its columns"),
        ("SELECT window_start, sum(n) AS s FROM t GROUP BY 1, s", "which is an aggregate"),
        ("SELECT window_start FROM t GROUP BY window_start WITH ROLLUP", "sets of keys"),
        ("SELECT window_start FROM t GROUP BY CUBE (window_start)", "sets of keys"),
        ("SELECT window_start FROM t GROUP BY 1 ORDER BY 1", "contains ORDER BY"),
        ("SELECT window_start FROM t GROUP BY 1 LIMIT 3", "contains LIMIT"),
        ("SELECT DISTINCT window_start FROM t GROUP BY 1", "contains SELECT DISTINCT"),
        ("WITH u AS (SELECT 1) SELECT window_start FROM u GROUP BY 1", "contains WITH"),
        ("SELECT window_start FROM t, u GROUP BY 1", "a second table"),
        ("SELECT window_start FROM t JOIN u USING (a) GROUP BY 1", "a second table"),
        ("SELECT window_start FROM t LATERAL VIEW explode(a) b GROUP BY 1", "contains LATERAL"),
        ("SELECT window_start FROM (SELECT * FROM t) GROUP BY 1", "other than a table"),
        ("SELECT window_start FROM range(3) GROUP BY 1", "other than a table"),
        ("SELECT window_start FROM t u GROUP BY 1", "a second name, u"),
        ("SELECT window_start FROM bronze.t GROUP BY 1", "reads bronze.t; a query reads gold or"),
        ("SELECT event_time FROM silver.t GROUP BY 1", "group by date_trunc('hour', event_time)"),
        ("SELECT window_start FROM silver.t GROUP BY 1", "groups by no window"),
        ("SELECT window_start FROM main.gold.t GROUP BY 1", "reads main.gold.t"),
        ("SELECT window_start FROM t VERSION AS OF 3 GROUP BY 1", "a version, a sample"),
        ("SELECT window_start, (SELECT 1) AS a FROM t GROUP BY 1", "contains a subquery"),
        ("SELECT window_start FROM t WHERE a IN (SELECT 1) GROUP BY 1", "contains a subquery"),
        ("SELECT window_start, rank() OVER (ORDER BY 1) AS r FROM t GROUP BY 1", "window function"),
        ("SELECT window_start, sum(n) FILTER (WHERE a) AS s FROM t GROUP BY 1", "contains FILTER"),
        ("SELECT window_start, sum(n) FROM t GROUP BY 1", "sum(n) has no name"),
        ("SELECT window_start AS _w FROM t GROUP BY 1", "'_w' is not a valid column name"),
        ("SELECT window_start, sum(n) AS WINDOW_START FROM t GROUP BY 1", "has two columns"),
        ("SELECT window_start, n FROM t GROUP BY 1", "n uses n outside of an aggregate"),
        ("SELECT window_start, sum(n) + m AS s FROM t GROUP BY 1", "s uses m outside"),
        ("SELECT window_start FROM t GROUP BY 1 HAVING m > 1", "HAVING uses m outside"),
        ("SELECT window_start, first(n) AS f FROM t GROUP BY 1", "calls first, which"),
        ("SELECT window_start, collect_list(n) AS f FROM t GROUP BY 1", "known are avg, count"),
        ("SELECT window_start, sum(DISTINCT n) AS s FROM t GROUP BY 1", "only count has DISTINCT"),
        ("SELECT window_start, count(a, b) AS c FROM t GROUP BY 1", "other than one argument"),
    ],
)
def test_what_cannot_be_computed_per_window_is_named(sql: str, message: str) -> None:
    with pytest.raises(Problems) as refused:
        parse_query(sql)
    assert any(message in problem for problem in refused.value.problems), refused.value.problems


def _assert_judged(tmp_path: Path, raw: dict[str, Any], message: str | None) -> None:
    """Want a query with a column x to be refused with a message, or to be valid without one."""
    if message is None:
        assert _load(tmp_path, raw).queries[0].columns == ("window_start", "x")
        return
    (violation,) = violations(tmp_path, raw)
    assert violation.path == "queries[0].sql" and violation.line is not None
    assert message in violation.message


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("max(total)", None),
        ("max(each)", None),
        ("sum(events) / count(DISTINCT user_id)", None),
        ("sum(CAST(mean AS DECIMAL(9,2)))", "mean is not exact; write its sum divided by"),
        ("max(heat)", "heat is not exact; let the measure sum a DECIMAL"),
        ("max(people)", "people is not exact; with the key"),
        ("max(warm)", "warm is not exact; it is derived from heat"),
        ("sum(CAST(events AS DOUBLE))", "a sum of DOUBLE or FLOAT depends on the order"),
        ("max(words)", "words is not exact; let the measure sum a DECIMAL, by CAST(action AS DEC"),
        ("sum(user_id)", "is STRING, which is summed as DOUBLE; a sum of DOUBLE or FLOAT depends"),
        ("avg(CAST(events AS FLOAT))", "a sum of DOUBLE or FLOAT depends on the order"),
        ("sum(CAST(events AS DOUBLE) * total)", "a sum of DOUBLE or FLOAT depends on the order"),
        # In Spark 0.5 is a DECIMAL.
        ("sum(round(total, 1)) + sum(events * 0.5) + sum(events + 0.5)", None),
        ("sum(if(events > 1, 1.5, 0))", None),
        ("sum(CASE WHEN events > 1 THEN 0.5 ELSE 0 END)", None),
        ("sum(action)", "unknown column action"),
        ("sum(max(events))", "calls max, an aggregate"),
        ("max(now())", "calls now, whose result changes"),
        ("count(*) + rand()", "calls rand, whose result changes"),
        ("sum(levenstein(user_id, 'a'))", "did you mean levenshtein?"),
        ("sum(events) > unknown(3)", "not known to be deterministic"),
    ],
)
def test_columns_and_functions_are_checked_against_the_table(
    tmp_path: Path, sql: str, message: str | None
) -> None:
    raw = _shop(f"SELECT window_start, {sql} AS x FROM per_minute GROUP BY 1")
    _assert_judged(tmp_path, raw, message)


@pytest.mark.parametrize(
    ("x", "clauses", "message"),
    [
        ("count(*)", "WHERE events GROUP BY 1", "WHERE: is BIGINT; write a condition"),
        ("count_if(window_end)", "GROUP BY 1", "count_if(window_end): is TIMESTAMP; write a"),
        ("count_if(array(events))", "GROUP BY 1", "count_if(array(events)): is ARRAY<BIGINT>;"),
        # Its argument is cast, which numbers can be.
        ("count_if(events) + count_if(total)", "GROUP BY 1", None),
        ("count_if(CAST(events AS DOUBLE))", "GROUP BY 1", None),
        # Only the condition is one, whatever else has its text.
        ("sum(events) + count_if(events)", "GROUP BY 1", None),
        ("count(*)", "GROUP BY 1 HAVING 1", "HAVING: is INT; write a condition"),
        ("count_if(events > 1)", "WHERE total > 0 GROUP BY 1 HAVING count(*) > 1", None),
        ("count(*)", "WHERE user_id GROUP BY 1 HAVING count(*)", None),
    ],
)
def test_a_condition_of_a_query_is_one(
    tmp_path: Path, x: str, clauses: str, message: str | None
) -> None:
    raw = _shop(f"SELECT window_start, {x} AS x FROM per_minute {clauses}")
    _assert_judged(tmp_path, raw, message)


def test_a_column_with_the_text_of_a_condition_is_none(tmp_path: Path) -> None:
    start, of = "SELECT window_start, count(*) AS n", "FROM per_minute"
    for sql, message in (
        (f"{start}, max(window_end) AS x {of} WHERE window_end GROUP BY 1", "WHERE: is TIMESTAMP"),
        (f"{start}, count_if(window_end) + min(window_end) AS x {of} GROUP BY 1", "count_if(wind"),
        (f"{start}, 1 AS x {of} GROUP BY 1 HAVING 1", "HAVING: is INT; write a condition"),
    ):
        (violation,) = violations(tmp_path, _shop(sql))
        assert violation.message.startswith(message)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("visits", "whose window is session"),
        ("ever", "whose window is global"),
        ("pairs", "which is joins[0]; read a table of gold, or silver"),
        ("odd", "which is detections[0]"),
        ("by_hour", "which is queries[0]"),
        ("per_minit", "reads an unknown table gold.per_minit; did you mean gold.per_minute?"),
        ("silver.shops", "reads an unknown table silver.shops; did you mean silver.shop?"),
        # The hourly history of a detection is a table of windows.
        ("hours", None),
        ("silver.shop", None),
    ],
)
def test_a_query_reads_a_windowed_table_of_its_pipeline_or_its_silver(
    tmp_path: Path, table: str, message: str | None
) -> None:
    start = "event_time" if table.startswith("silver.") else "window_start"
    raw = _shop(f"SELECT date_trunc('day', {start}) AS d FROM {table} GROUP BY 1", joins=[JOIN])
    raw["gold"] += [
        {"name": "visits", "window": {"kind": "session", "gap": "1 minute"}, **_VISITS},
        {"name": "ever", "window": {"kind": "global"}, **_VISITS},
    ]
    raw["detections"] = [{"name": "odd", "features": "hours", "keys": ["user_id"], "burst": {}}]
    if message is None:
        assert _load(tmp_path, raw).gold_names[-1] == "gold.by_hour"
        return
    (violation,) = violations(tmp_path, raw)
    assert (violation.path, message in violation.message) == ("queries[0].sql", True)


@pytest.mark.parametrize(("table", "kind"), [("pairs", "joins[0]"), ("visits", "session")])
def test_of_a_table_that_no_query_reads_no_other_problem_is_told(
    tmp_path: Path, table: str, kind: str
) -> None:
    """Its windows would be named, which the table does not have."""
    raw = _shop(f"SELECT user_id, first(at) AS a FROM gold.{table} GROUP BY user_id;", joins=[JOIN])
    window = {"kind": "session", "gap": "1 minute"}
    raw["gold"] += [{"name": "visits", "window": window, **_VISITS}]
    (violation,) = violations(tmp_path, raw)
    assert violation.path == "queries[0].sql"
    assert kind in violation.message


def test_problems_of_the_table_that_is_read_make_none_in_the_query(tmp_path: Path) -> None:
    raw = _shop(_HOURS)
    raw["gold"][0]["measures"] = {"total": {"summ": "n"}}
    assert {one.path for one in violations(tmp_path, raw)} == {"gold[0].measures.total"}
    for broken, message in {"'": "a quote", f"{'(' * 3000}1{')' * 3000}": "too deeply"}.items():
        raw = _shop(_HOURS)
        raw["gold"][0]["derive"] = {"warm": broken}
        (violation,) = violations(tmp_path, raw)
        assert violation.path == "gold[0].derive.warm"
        assert message in violation.message


def test_a_name_that_group_by_could_mean_twice_is_refused(tmp_path: Path) -> None:
    cut = "date_trunc('hour', window_start) AS window_start"
    raw = _shop(f"SELECT {cut} FROM per_minute GROUP BY window_start")
    (violation,) = violations(tmp_path, raw)
    assert "window_start is a column of gold.per_minute too" in violation.message
    raw = _shop(f"SELECT {cut}, count(*) AS n FROM per_minute GROUP BY 1")
    assert _load(tmp_path, raw).queries[0].columns == ("window_start", "n")


def test_keys_of_other_tables_name_the_sql(tmp_path: Path) -> None:
    raw = _shop(_HOURS)
    raw["queries"][0] |= {"keys": ["user_id"], "comments": {"monney": "How much."}}
    told = {one.path: one.message for one in violations(tmp_path, raw)}
    assert told == {"queries[0].keys": "is for tables of gold; write it into sql"}
    del raw["queries"][0]["keys"]
    (violation,) = violations(tmp_path, raw)
    assert violation.path == "queries[0].comments.monney"
    assert "did you mean money?" in violation.message


def test_what_the_table_hides_a_query_hides_too(tmp_path: Path) -> None:
    sql = (
        "SELECT window_start, upper(user_id) AS who, count(DISTINCT user_id) AS n, "
        "max(user_id) AS last FROM per_minute GROUP BY ALL"
    )
    raw = _shop(sql)
    raw["gold"][0] |= {
        "masks": {"user_id": "security.mask"},
        "row_filter": {"function": "security.own", "columns": ["user_id"]},
    }
    assert {one.message for one in violations(tmp_path, raw)} == {
        "last shows user_id, which gold.per_minute masks; mask this column too",
        "who shows user_id, which gold.per_minute masks; mask this column too",
        "needs a row_filter, because gold.per_minute has one, whose rows it sums up",
    }
    raw["queries"][0] |= {
        "masks": {"who": "security.mask", "last": "security.mask"},
        "row_filter": {"function": "security.own", "columns": ["who"]},
    }
    assert _load(tmp_path, raw).queries[0].hides


def test_a_query_is_published_and_judged_by_a_suite_as_other_tables(tmp_path: Path) -> None:
    topic = {"topic": "hours", "bootstrap": "h:1"}
    raw = _shop(_HOURS)
    raw["queries"][0]["publish"] = topic
    assert list(_load(tmp_path, raw).published) == ["gold.by_hour"]
    raw["gold"][0]["publish"] = topic
    (violation,) = violations(tmp_path, raw)
    assert violation.path == "queries[0].publish.topic"
    del raw["gold"][0]["publish"]
    rule = {"type": "expect_column_values_to_be_between", "kwargs": {"column": "mony"}}
    rule["kwargs"]["min_value"] = 0  # type: ignore[index]
    suite = {"name": "s", "expectations": [], "gold": {"by_hour": [rule]}}
    (tmp_path / "suite.yml").write_text(yaml.safe_dump(suite))
    found = violations(tmp_path, raw | {"quality": {"suite": "suite.yml"}})
    assert any("did you mean money?" in one.message for one in found), found


def test_a_query_is_redefined_by_its_sql_and_by_the_table_that_it_reads(tmp_path: Path) -> None:
    where = _shop(_HOURS, gold__0__where="n > 1")
    spaced = "-- By the hour\n" + _HOURS.replace("\n", "\n   ")
    hashes = [
        hash_of(_kinds(_load(tmp_path, raw))[-1].definition)
        for raw in (_shop(_HOURS), _shop(spaced), _shop(_HOURS.replace("hour'", "day'")), where)
    ]
    assert hashes[0] == hashes[1] and len(set(hashes)) == 3


def test_a_query_says_when_its_rows_are_final_and_how_far_an_event_reaches(tmp_path: Path) -> None:
    kind = _kinds(_load(tmp_path, _shop(_HOURS)))[-1]
    assert (kind.name, kind.place, kind.identity) == (
        "gold.by_hour",
        "queries[0]",
        ("hour", "user_id"),
    )
    assert kind.ends is not None and kind.ends == ("hour", timedelta(hours=1))
    assert (kind.moment, kind.reach) == ("hour", timedelta(hours=1))
    assert kind.reads == ("gold.per_minute",)


def test_a_query_over_silver_is_checked_against_its_columns(tmp_path: Path) -> None:
    sql = (
        "SELECT date_trunc('day', event_time) AS day, count(DISTINCT user_id) AS users, "
        "avg(n) AS n, max(is_late) AS late FROM silver.shop WHERE action = 'today' GROUP BY day"
    )
    pipeline = _load(tmp_path, _shop(sql))
    kind = _kinds(pipeline)[-1]
    assert (kind.reach, kind.reads) == (timedelta(days=1), ())
    assert {one.sql for one in kind.expressions().values()} == {
        "date_trunc('day', event_time)",
        *("user_id", "n", "is_late", "action = 'today'"),
    }
    (entry,) = [one for one in entries_of(pipeline) if one.table == "gold.by_hour"]
    assert entry.description == "One row for each day, computed from silver.shop."
    assert [one.type for one in entry.columns] == ["TIMESTAMP", "BIGINT", "DOUBLE", "BOOLEAN"]
    (violation,) = violations(tmp_path, _shop(sql.replace("avg(n)", "avg(total)")))
    assert "avg(total): unknown column total" in violation.message


def test_the_dictionary_describes_a_query(tmp_path: Path) -> None:
    raw = _shop(
        "SELECT date_trunc('hour', window_start) AS hour, user_id AS who, sum(total) AS money,\n"
        "  sum(total) / sum(events) AS each, count(*) AS minutes, count(DISTINCT user_id) AS n\n"
        "FROM per_minute GROUP BY 1, 2",
        comments={"user_id": "The visitor."},
    )
    pipeline = _load(tmp_path, raw)
    (entry,) = [one for one in entries_of(pipeline) if one.table == "gold.by_hour"]
    assert entry.description == "One row for each hour and who, computed from gold.per_minute."
    assert entry.keys == ("hour", "who")
    assert [(one.name, one.type, one.meaning) for one in entry.columns] == [
        ("hour", "TIMESTAMP", "Where the hour begins (UTC); included."),
        ("who", "STRING", "The visitor."),
        ("money", "DECIMAL(38,2)", "Computed: sum(total)."),
        ("each", None, "Computed: sum(total) / sum(events)."),
        ("minutes", "BIGINT", "Computed: count(*)."),
        ("n", "BIGINT", "Computed: count(DISTINCT user_id)."),
    ]
    raw["queries"][0] |= {"description": "Hours.", "comments": {"money": "What came in."}}
    meaning = meaning_of(_load(tmp_path, raw), "gold.by_hour")
    assert (meaning.description, meaning.of("money")) == ("Hours.", "What came in.")
