"""Queries: whatever fills them, they hold what their SQL says of the other table."""

from __future__ import annotations

import json
import shutil
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pytest
from delta.tables import DeltaTable
from pyspark.sql import SparkSession

from tests.crashes import after_merges
from tests.pipelines import VISITORS
from tests.running import START, read, versions
from tests.worlds import TO_SILVER, World, world
from tidelake.cli.reports import tops_of
from tidelake.delta.commit_metadata import Final
from tidelake.delta.log import last_commit, newest_version
from tidelake.errors import ConfigError, GenerationError
from tidelake.ledger.query import ask
from tidelake.ledger.terms import read_ledger
from tidelake.ops.page.facts import read_plots
from tidelake.ops.status import read_status
from tidelake.replay.backfill import build
from tidelake.replay.backfill_promotion import promote, rollback
from tidelake.replay.differences import differences
from tidelake.replay.erase import erase
from tidelake.replay.fate import fates_of
from tidelake.replay.generations import rebuild_gold
from tidelake.replay.subject import Subject
from tidelake.replay.verify import judge_target, verify
from tidelake.runtime import gold
from tidelake.runtime.gold_tables import Target, targets_of
from tidelake.runtime.schemas import check_definition

_PARTS = 2
_MINUTES: dict[str, Any] = {
    "name": "by_minute",
    "window": {"kind": "tumbling", "size": "1 minute"},
    "where": "action <> 'bot'",
    "keys": ["who"],
    "measures": {
        "events": {"count": "*"},
        "clicks": {"count_if": "action = 'click'"},
        "money": {"sum": "money"},
        "least": {"min": "nanvl(CAST(n AS DOUBLE), 0D)"},
    },
}
_SLIDING: dict[str, Any] = {
    "name": "sliding",
    "window": {"kind": "hopping", "size": "10 minutes", "slide": "5 minutes"},
    "keys": ["action"],
    "measures": {"events": {"count": "*"}, "most": {"max": "n"}},
    "derive": {"each": "most / (events - 2)"},
}
_BY_HOUR = {
    "name": "by_hour",
    "sql": """
        SELECT date_trunc('hour', window_start) AS hour, who, sum(money) AS money,
               sum(money) / sum(events) AS each, avg(events) AS usual, count(*) AS minutes
        FROM gold.by_minute
        GROUP BY hour, who
    """,
}
# Rows leave it when a minute gets a second event, or a third person.
_QUIET = {
    "name": "quiet",
    "sql": """
        SELECT window_start, count(DISTINCT who) AS people, sum(clicks) AS clicks,
               min(window_end) AS until, count_if(who IS NULL) AS unknown
        FROM gold.by_minute WHERE events < 2
        GROUP BY window_start HAVING count(*) < 3
    """,
}
_BY_WEEK = {
    "name": "by_week",
    "sql": """
        SELECT date_trunc('week', window_start) AS week, minute(window_start) AS minute,
               upper(action) AS what, max(most) AS most, sum(events) AS events
        FROM gold.sliding GROUP BY ALL
    """,
}
_EVENTS = {
    "name": "of_events",
    "sql": """
        SELECT date_trunc('hour', event_time) AS hour, action, count(DISTINCT who) AS people,
               sum(money) AS money, min(n) AS least
        FROM silver.shop WHERE action <> 'bot' OR n > 100
        GROUP BY ALL HAVING count(DISTINCT who) < 3
    """,
}
# Not the same SQL in DuckDB.
_BEST = {
    "name": "best",
    "sql": """
        SELECT window_start, max(struct(events, action)).action AS action,
               10 / (max(events) - 3) AS odd, max(each) AS each
        FROM sliding GROUP BY 1
    """,
}
_SAME_IN_DUCKDB = (_BY_HOUR, _QUIET, _BY_WEEK, _EVENTS)
_QUERIES = [*_SAME_IN_DUCKDB, _BEST]
_BASE: dict[str, Any] = {
    **VISITORS,
    "gold": [_MINUTES, _SLIDING],
    "queries": _QUERIES,
}


# What the first batch's merges did, in their order.
_ORDER: list[str] = []


def _events(part: int) -> list[dict[str, Any]]:
    """Make events of two hours and a half that lie among those of the parts before."""
    chance = Random(part)
    return [
        {
            "id": f"{part}-{n}",
            "at": START + timedelta(minutes=chance.randrange(10, 150, 4), seconds=part),
            "who": chance.choice((None, "a", "b", "c")),
            "action": chance.choice(("click", "view", "view", "bot", "buy")),
            "n": n * n + part,
            "money": Decimal(n * 37 + part) / 10,
        }
        for n in range(30)
    ]


def _lines(part: int) -> list[bytes]:
    return [json.dumps(one, default=str).encode() for one in _events(part)]


@pytest.fixture(scope="module")
def filled(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> World:
    """Run two files: as a large batch, and as one that dies before the queries that read gold."""
    made = world(spark, tmp_path_factory.mktemp("queries"), base=_BASE, small=False)
    made.land("0.jsonl", _lines(0))
    real = gold.GoldHop._merge

    def merge(hop: gold.GoldHop, target: Target, *rest: Any) -> None:
        _ORDER.append(f"begin {target.table.name}")
        real(hop, target, *rest)
        _ORDER.append(f"end {target.table.name}")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gold, "is_small", lambda *_: False)
        patch.setattr(gold.GoldHop, "_merge", merge)
        made.run()
    made.land("1.jsonl", _lines(1))
    made.run(hops=TO_SILVER)
    with after_merges(3):
        made.run(hops=["gold"])
    made.run(hops=["gold"])
    return made


def _rounded(rows: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Compare numbers of two engines, whose decimals differ in scale."""
    return sorted(
        (
            tuple(round(float(v), 4) if isinstance(v, float | Decimal | int) else v for v in row)
            for row in rows
        ),
        key=repr,
    )


def _assert_follows(played: World, *queries: dict[str, Any]) -> None:
    """Hold each table against DuckDB, which runs the same statement over the other table."""
    for query in queries or _SAME_IN_DUCKDB:
        name = query["name"]
        columns = ", ".join(next(q for q in played.pipeline.queries if q.name == name).columns)
        stored = ask(played.lake, f"SELECT {columns} FROM gold.{name}").rows
        expected = ask(played.lake, query["sql"]).rows
        assert expected and _rounded(stored) == _rounded(expected), name
    judged = verify(played.context)
    assert judged.equal, json.dumps(judged.to_json(), indent=1, default=str)
    assert read_ledger(played.lake, played.pipeline).problems == ()


@pytest.mark.long
def test_each_table_is_what_its_sql_says_of_the_other_one(filled: World) -> None:
    _assert_follows(filled)
    hours: dict[tuple[datetime, str | None], list[dict[str, Any]]] = defaultdict(list)
    for one in (one for part in range(_PARTS) for one in _events(part)):
        if one["action"] != "bot":
            hours[one["at"].replace(minute=0, second=0), one["who"]].append(one)
    expected = [
        (*key, sum(one["money"] for one in found), len({one["at"].minute for one in found}))
        for key, found in hours.items()
    ]
    assert read(filled.lake, "gold.by_hour", "hour, who, money, minutes") == sorted(
        expected, key=repr
    )


@pytest.mark.long
def test_queries_wait_for_the_tables_that_they_read(filled: World) -> None:
    read_first = {f"end gold.{name}" for name in ("by_minute", "sliding")}
    queries = [_BY_HOUR, _QUIET, _BY_WEEK, _BEST]
    begun = min(_ORDER.index(f"begin gold.{query['name']}") for query in queries)
    assert read_first <= set(_ORDER[:begun])


@pytest.mark.long
def test_rows_that_a_condition_no_longer_keeps_are_deleted(filled: World) -> None:
    for table in ("quiet", "of_events"):
        stored = DeltaTable.forPath(filled.spark, str(filled.lake.gold(table).path))
        merges = stored.history().where("operation = 'MERGE'").select("operationMetrics").collect()
        assert sum(int(one[0]["numTargetRowsDeleted"]) for one in merges) > 0, table


@pytest.mark.long
def test_all_tables_are_at_one_batch_and_say_what_is_final(filled: World) -> None:
    found = {
        target.table.name: last_commit(target.table)
        for target in targets_of(filled.lake, filled.pipeline)
    }
    assert {one.batch for one in found.values() if one} == {_PARTS - 1}
    until = {name: Final.of(one).until for name, one in found.items()}  # type: ignore[union-attr]
    # Of a minute its start, of an hour the end of the last minute in it.
    settled = until["gold.by_minute"]
    assert settled is not None
    assert until["gold.by_hour"] == settled - timedelta(hours=1)
    assert until["gold.of_events"] == settled - timedelta(hours=1)
    assert until["gold.quiet"] == settled - timedelta(minutes=1)
    # The last of the sliding windows begins five minutes before the week's end.
    assert until["gold.by_week"] == settled - timedelta(days=7, minutes=5)
    (epoch,) = ask(filled.lake, "SELECT versions FROM ops.epochs ORDER BY epoch DESC LIMIT 1").rows
    assert {f"gold.{query['name']}" for query in _QUERIES} < set(epoch[0])


@pytest.mark.long
def test_rows_on_which_a_column_fails_are_null_and_counted(filled: World) -> None:
    rows = read(filled.lake, "gold.best", "odd, each")
    tops = ask(filled.lake, "SELECT max(events) FROM gold.sliding GROUP BY window_start").rows
    assert sum(odd is None for odd, _ in rows) == sum(top == 3 for (top,) in tops) > 0
    failed = read_status(filled.lake, filled.pipeline).failed
    assert failed["gold.best"] >= sum(odd is None for odd, _ in rows)
    assert not any(failed.get(f"gold.{query['name']}") for query in _SAME_IN_DUCKDB)


@pytest.mark.long
def test_a_batch_writes_only_rows_that_differ(filled: World, tmp_path: Path) -> None:
    played = filled.copied(tmp_path / "copy")
    before = read(played.lake, "gold.by_hour", "hour, who, _batch")
    after = START + timedelta(minutes=65, seconds=50)
    one = _events(0)[0] | {"id": "late", "at": after, "who": "a", "action": "view"}
    ignored = one | {"id": "ignored", "at": START, "action": "bot"}
    landed = played.land("4.jsonl", [json.dumps(e, default=str).encode() for e in (one, ignored)])
    try:
        played.run()
    finally:
        landed.unlink()
    now = read(played.lake, "gold.by_hour", "hour, who, _batch")
    changed = {row[:2] for row in set(now) - set(before)}
    assert changed == {(START + timedelta(hours=1), "a")}
    assert last_commit(played.lake.gold("quiet")).batch == _PARTS  # type: ignore[union-attr]
    _assert_follows(played)


@pytest.mark.long
def test_the_fate_of_an_event_names_the_row_of_a_query(filled: World) -> None:
    event = _events(1)[0]
    (fate,) = fates_of(filled.lake, filled.pipeline, event_id=event["id"])
    counted = {one.table: one for one in fate.counted}
    is_bot = event["action"] == "bot"
    assert counted["gold.by_hour"].verdict == ("outside" if is_bot else "counts")
    (row,) = counted["gold.by_hour"].rows or ({},)
    assert is_bot or row["hour"] == event["at"].replace(minute=0, second=0)
    assert counted["gold.by_week"].verdict == "counts"
    assert counted["gold.of_events"].verdict in ("counts", "no row")


@pytest.mark.long
def test_reports_and_the_live_page_show_the_newest_windows(filled: World) -> None:
    top = tops_of(filled.lake, filled.pipeline)["gold.by_hour"]
    assert top.columns == ("hour", "who", "money", "each", "usual", "minutes")
    assert top.rows[0][0] == START + timedelta(hours=2)
    plots = {plot.table: plot for plot in read_plots(filled.lake, filled.pipeline)}
    for name in ("gold.by_hour", "gold.of_events"):
        shown, rows = plots[name], read(filled.lake, name, "count(*)")[0][0]
        assert (shown.kind, shown.title, shown.rows, shown.missing) == ("query", "rows", rows, "")
        assert sum(bar.value or 0 for bar in shown.bars) == rows


@pytest.mark.long
def test_verify_finds_a_row_that_differs_from_the_query_over_silver(
    filled: World, tmp_path: Path
) -> None:
    played = filled.copied(tmp_path / "copy")
    stored = DeltaTable.forPath(played.spark, str(played.lake.gold("by_hour").path))
    stored.update("who = 'a'", {"money": "money + 0.01"})
    stored.delete("who = 'b'")
    found = {}
    for target in targets_of(played.lake, played.pipeline):
        judged = judge_target(played.context, target, newest_version(target.table), None)
        found[target.table.name] = {(one.kind, tuple(one.columns)) for one in judged.differences}
    expected = {("altered", ("money",)), ("missing", ())}
    assert found.pop("gold.by_hour") == expected
    assert not any(found.values())
    since = verify(played.context, since=START)
    assert not since.equal


@pytest.mark.long
def test_what_only_spark_can_tell_is_refused_with_its_place(filled: World) -> None:
    columns = {
        "a": "sum(least)",
        "b": "array(who) + sum(events)",
        "c": "map('a', sum(events))",
        "d": "max(window_end - window_start)",
        "e": "sum(who = 'a')",
        "f": "avg(window_end - window_start)",
        "g": "max(map(who, events))",
    }
    queries = [
        {
            "name": f"q{name}",
            "sql": f"SELECT window_start, who, {sql} AS x FROM by_minute GROUP BY ALL",
        }
        for name, sql in columns.items()
    ]
    changed = filled.redefined(queries=queries)
    with pytest.raises(ConfigError) as refused:
        check_definition(changed.context)
    filled.redefined(queries=_QUERIES)
    told = {one.path: one.message for one in refused.value.violations}
    assert list(told) == [f"queries[{n}].sql" for n in range(7)]
    assert "sum(least): a sum of DOUBLE or FLOAT depends on the order" in told["queries[0].sql"]
    assert "DATATYPE_MISMATCH" in told["queries[1].sql"]
    assert "map<string,decimal(38,0)>, whose values cannot be compared" in told["queries[2].sql"]
    assert "interval day to second, which a Delta table cannot store" in told["queries[3].sql"]
    assert "sum(who = 'a'): sum takes no BOOLEAN; cast it" in told["queries[4].sql"]
    assert "avg takes no INTERVAL DAY TO SECOND; cast it" in told["queries[5].sql"]
    assert "max takes no MAP<STRING,BIGINT>; cast it" in told["queries[6].sql"]


@pytest.mark.long
def test_a_changed_table_redefines_its_queries(filled: World) -> None:
    where = _MINUTES | {"where": "action <> 'robot'"}
    changed = filled.redefined(gold=[where, _SLIDING])
    with pytest.raises(GenerationError, match="by_minute was filled under another definition"):
        changed.run(hops=["gold"])
    spaced = [_BY_HOUR | {"sql": " ".join(_BY_HOUR["sql"].split())}, *_QUERIES[1:]]
    changed = filled.redefined(queries=spaced)
    assert changed.run(hops=["gold"]) is not None
    sql = _BY_HOUR["sql"].replace("'hour'", "'day'")
    changed = filled.redefined(queries=[_BY_HOUR | {"sql": sql}, *_QUERIES[1:]])
    with pytest.raises(GenerationError, match=r"by_hour was filled .* --table by_hour"):
        changed.run(hops=["gold"])
    filled.redefined(queries=_QUERIES)


@pytest.mark.long
def test_an_added_query_is_filled_and_follows(filled: World, tmp_path: Path) -> None:
    played = filled.copied(tmp_path / "copy")
    by_day = {
        "name": "by_day",
        "sql": (
            "SELECT date_trunc('day', window_start) AS day, count(DISTINCT who) AS people, "
            "sum(events) AS events FROM gold.by_minute GROUP BY 1"
        ),
    }
    before = versions(played.lake)
    grown = played.redefined(queries=[by_day, *_QUERIES])
    told = [line for line in grown.run() if "filled from silver" in line]
    assert len(told) == 1 and told[0].startswith("gold    gold.by_day filled")
    after = versions(grown.lake)
    assert {name: after[name] for name in before if name[:4] == "gold"} == {
        name: version for name, version in before.items() if name[:4] == "gold"
    }
    landed = grown.land("4.jsonl", _lines(4))
    try:
        # With the other one gone, both are filled, and a batch follows.
        shutil.rmtree(str(grown.lake.gold("by_minute").path))
        grown.run()
    finally:
        landed.unlink()
    _assert_follows(grown, by_day, *_SAME_IN_DUCKDB)


@pytest.mark.long
def test_a_query_comes_by_a_backfill_which_can_be_rolled_back(
    filled: World, tmp_path: Path
) -> None:
    played = filled.copied(tmp_path / "copy")
    sql = _BY_HOUR["sql"].replace("sum(money) AS money", "max(money) AS money")
    queries = [_BY_HOUR | {"sql": sql}, *_QUERIES[1:]]
    changed = played.redefined(queries=queries)
    before = read(played.lake, "gold.by_hour", "hour, who, money")

    build(changed.context, "silver", table="gold.by_hour")
    promote(changed.context)
    assert read(played.lake, "gold.by_hour", "hour, who, money") != before
    _assert_follows(changed, queries[0], *_SAME_IN_DUCKDB[1:])
    rollback(changed.context)
    assert read(played.lake, "gold.by_hour", "hour, who, money") == before
    played = played.redefined(queries=_QUERIES)
    landed = played.land("4.jsonl", _lines(4))
    try:
        played.run()
        _assert_follows(played)

        for start in ("silver", "bronze"):
            found = differences(played.context, build(played.context, start))
            assert all(one.equal for one in found.gold.values()), start
            promote(played.context)
            _assert_follows(played)
        span = (START + timedelta(hours=1), START + timedelta(hours=2))
        found = differences(played.context, build(played.context, "silver", span))
        assert all(one.equal for one in found.gold.values())
    finally:
        landed.unlink()


@pytest.mark.long
def test_erased_and_rebuilt_rows_leave_queries_too(filled: World, tmp_path: Path) -> None:
    played = filled.copied(tmp_path / "copy")
    erase(played.context, Subject("who", "a"))
    assert read(played.lake, "gold.by_hour WHERE who = 'a'", "hour") == []
    _assert_follows(played)
    rebuild_gold(played.context)
    landed = played.land("4.jsonl", _lines(4))
    try:
        played.run()
    finally:
        landed.unlink()
    _assert_follows(played)
