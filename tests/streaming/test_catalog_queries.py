"""Queries, and tables that are published, in a catalog: they follow, also through a backfill."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyspark.sql import SparkSession

from tests.brokers import Kafka, assert_applied
from tests.catalogs import a_catalog
from tests.fates import arriving_at
from tests.running import START, click, read
from tests.worlds import World, world
from tidelake.config import Environment, load_pipeline
from tidelake.delta.log import last_commit
from tidelake.delta.tables import HOPS
from tidelake.ledger.terms import read_ledger
from tidelake.replay.backfill import build
from tidelake.replay.backfill_promotion import promote, rollback
from tidelake.replay.differences import differences
from tidelake.replay.verify import verify
from tidelake.runtime.runner import run_hops
from tidelake.runtime.triggers import AVAILABLE_NOW, parse_trigger

pytestmark = pytest.mark.long
_MINUTES: dict[str, Any] = {
    "name": "by_minutes",
    "window": {"kind": "tumbling", "size": "10 minutes"},
    "keys": ["user_id"],
    "measures": {"events": {"count": "*"}, "total": {"sum": "value"}},
}
_HOURS: dict[str, Any] = {
    "name": "by_hour",
    "sql": """
        SELECT date_trunc('hour', window_start) AS hour, user_id, sum(events) AS events,
               sum(total) AS total, count(*) AS windows
        FROM gold.by_minutes GROUP BY ALL
    """,
}
# Rows leave it when a user gets another event.
_RARE: dict[str, Any] = {
    "name": "rare",
    "sql": """
        SELECT date_trunc('hour', event_time) AS hour, user_id, max(value) AS most
        FROM silver.clickstream WHERE action <> 'bot' GROUP BY ALL HAVING count(*) < 3
    """,
}
Events = list[dict[str, Any]]


@pytest.fixture
def environment(spark: SparkSession, tmp_path: Path) -> Iterator[Environment]:
    """Make a catalog that is empty, and where a broker needs no encryption."""
    with a_catalog(spark, tmp_path) as environment:
        yield environment.model_copy(update={"name": "dev"})


def _lines(part: int) -> list[bytes]:
    """Write events, those of the second part among those of the first; some are there twice."""
    own = [click(part * 40 + n, minute=part * 18 + n * 7) for n in range(20 - 6 * part)]
    return [*own, *own[:3], b"{broken"]


def _events(parts: Iterable[int], keeps: Callable[[dict[str, Any]], bool]) -> Events:
    """Give each event of parts once, as silver must have it."""
    found = {}
    for line in (line for part in parts for line in _lines(part) if line != b"{broken"):
        one = json.loads(line)
        one["at"] = datetime.fromisoformat(one["event_time"])
        one["action"] = one["action"].lower()
        found[one["event_id"]] = one
    return [one for one in found.values() if keeps(one)]


def _grouped(events: Events) -> dict[tuple[datetime, str], Events]:
    groups: dict[tuple[datetime, str], Events] = {}
    for one in events:
        groups.setdefault((one["at"].replace(minute=0, second=0), one["user_id"]), []).append(one)
    return groups


def _of_hours(events: Events) -> set[tuple[Any, ...]]:
    def windows(found: Events) -> int:
        return len({one["at"].minute // 10 for one in found})

    return {
        (*key, len(found), _sum(found), windows(found)) for key, found in _grouped(events).items()
    }


def _rare(events: Events) -> set[tuple[Any, ...]]:
    groups = _grouped([one for one in events if one["action"] != "bot"])
    few = {key: found for key, found in groups.items() if len(found) < 3}
    return {(*key, max(_values(found), default=None)) for key, found in few.items()}


def _values(events: Events) -> list[float]:
    return [one["value"] for one in events if one["value"] is not None]


def _sum(events: Events) -> float | None:
    values = _values(events)
    return sum(values) if values else None


def _assert_follow(
    made: World,
    parts: Iterable[int],
    *,
    keeps: Callable[[dict[str, Any]], bool] = lambda _: True,
) -> None:
    """Hold the tables of the queries against a computation in Python."""
    events = _events(parts, keeps)
    # Quarters are exact in a double.
    hours = read(made.lake, "gold.by_hour", "hour, user_id, events, total, windows")
    assert _plain(hours) == _of_hours(events)
    assert _plain(read(made.lake, "gold.rare", "hour, user_id, most")) == _rare(events) != set()
    books = read_ledger(made.lake, made.pipeline)
    assert books.balanced, books.problems
    judged = verify(made.context)
    assert judged.equal, json.dumps(judged.to_json(), indent=1, default=str)


def _plain(rows: Iterable[tuple[Any, ...]]) -> set[tuple[Any, ...]]:
    return {
        tuple(v if v is None or isinstance(v, str | datetime) else float(v) for v in row)
        for row in rows
    }


def _run(made: World, *arrivals: datetime) -> None:
    """Run all hops and publish, as the command does."""
    with arriving_at(*arrivals):
        run_hops(made.context, HOPS, parse_trigger(AVAILABLE_NOW), publishes=True)


def test_queries_follow_by_name_and_through_a_backfill(
    spark: SparkSession, tmp_path: Path, environment: Environment
) -> None:
    made = world(
        spark,
        tmp_path / "w",
        environment=environment,
        quality=None,
        gold=[_MINUTES],
        queries=[_HOURS, _RARE],
    )
    for part in range(2):
        made.land(f"{part}.jsonl", _lines(part))
        _run(made, START + timedelta(hours=12 + part))
        _assert_follow(made, range(part + 1))
    changed = made.redefined(event={"where": "action <> 'purchase'"})
    state = build(changed.context, "bronze")
    found = differences(changed.context, state).gold
    assert not any(found[name].equal for name in ("gold.by_hour", "gold.rare"))
    promote(changed.context)
    _assert_follow(changed, range(2), keeps=lambda one: one["action"] != "purchase")
    rollback(changed.context)
    _assert_follow(made, range(2))


def test_tables_are_published_by_name_with_a_service_credential(
    spark: SparkSession, tmp_path: Path, environment: Environment, kafka: Kafka
) -> None:
    """Spark itself ignores the credential; no broker is asked beside it."""
    to = {"bootstrap": kafka.bootstrap, "options": {"databricks.serviceCredential": "one"}}

    def published(table: dict[str, Any]) -> dict[str, Any]:
        return table | {"publish": {"topic": f"{tmp_path.name}-{table['name']}", **to}}

    topic, file = kafka.topic(), tmp_path / "clickstream.yml"
    gold, queries = [published(_MINUTES)], [published(_HOURS), published(_RARE)]
    made = world(
        spark, tmp_path / "w", environment=environment, quality=None, gold=gold, queries=queries
    )
    content = yaml.safe_load((made.folder / "clickstream.base.yml").read_text())
    file.write_text(yaml.safe_dump(content | {"source": {"kind": "kafka", "topic": topic, **to}}))
    made = replace(made, pipeline=load_pipeline(str(file), made.environment))
    for part in range(2):
        kafka.send(topic, _lines(part))
        _run(made, START + timedelta(hours=12 + part))
        _assert_follow(made, range(part + 1))
        for table, one in made.pipeline.published.items():
            assert_applied(kafka, one.topic, made.lake, table)
    last = last_commit(made.lake.bronze("clickstream"))
    assert last is not None
    assert (last.note["topics"], last.note["behind"]) == ({}, {})
