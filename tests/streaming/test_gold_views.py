"""What analysts read of gold: sketches as numbers, and the rows that no ordinary event changes."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.running import START, click, read
from tests.worlds import World, world
from tidelake.errors import UsageError
from tidelake.ledger.query import ask

GOLD: list[dict[str, Any]] = [
    {
        "name": "by_action_10m",
        "window": {"kind": "tumbling", "size": "10 minutes"},
        "keys": ["action"],
        "measures": {
            "events": {"count": "*"},
            "users": {"approx_count_distinct": "user_id"},
            "usual_value": {"approx_percentile": "value", "p": 0.5},
        },
    },
    {
        "name": "visits",
        "window": {"kind": "session", "gap": "2 minutes"},
        "keys": ["user_id"],
        "measures": {"events": {"count": "*"}, "actions": {"approx_count_distinct": "action"}},
    },
    {
        "name": "totals",
        "window": {"kind": "global"},
        "keys": ["action"],
        "measures": {"users": {"approx_count_distinct": "user_id"}},
    },
]
# The watermark trails the newest event by ten minutes, and a minute later nothing is allowed.
FINAL_BEHIND = timedelta(minutes=11)
NEWEST = 59.5


@pytest.fixture(scope="module")
def played(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> World:
    """Give two batches of clicks, a half minute apart, over an hour."""
    times = {"delay": "10 minutes", "allowed_lateness": "1 minute"}
    made = world(spark, tmp_path_factory.mktemp("views"), gold=GOLD, watermark=times, quality=None)
    for part in (0, 1):
        made.land(
            f"{part}.jsonl",
            [click(n, minute=n / 2) for n in range(120) if (n * 7 % 10 < 5) == (part == 0)][::-1],
        )
    made.run()
    return made


@pytest.mark.long
def test_sketches_are_shown_as_numbers_that_are_near(played: World) -> None:
    exact = {
        (row[0], row[1]): (row[2], row[3], row[4])
        for row in ask(
            played.lake,
            "SELECT time_bucket(INTERVAL '10 minutes', event_time), action, count(*), "
            "count(DISTINCT user_id), quantile_disc(value, 0.5) "
            "FROM silver.clickstream GROUP BY 1, 2",
        ).rows
    }
    found = read(
        played.lake, "gold.by_action_10m", "window_start, action, events, users, usual_value"
    )
    assert len(found) == len(exact) == 24
    for start, action, events, users, usual in found:
        # So few values fit into a sketch whole; two values may both be the middle.
        count, distinct, middle = exact[start, action]
        assert (events, users) == (count, distinct)
        assert usual is None if middle is None else abs(usual - float(middle)) <= 0.01
    totals = read(played.lake, "gold.totals", "action, users")
    assert totals == [("bot", 5), ("click", 5), ("purchase", 5), ("view", 5)]


@pytest.mark.long
@pytest.mark.parametrize(
    ("table", "end"),
    [
        ("gold.by_action_10m", timedelta(0)),
        ("gold.visits", timedelta(minutes=2)),
    ],
)
def test_final_rows_end_before_the_watermark_less_the_lateness(
    played: World, table: str, end: timedelta
) -> None:
    column = "session_end" if end else "window_end"
    # Gold has consumed both batches of silver; each row of silver's last batch counts.
    bound = START + timedelta(minutes=NEWEST) - FINAL_BEHIND
    ends: list[datetime] = [row[0] for row in read(played.lake, table, column)]
    final = [row[0] for row in read(played.lake, f"{table}__final", column)]
    # An event at the bound is accepted: it is in no window that ends there, but within the gap.
    last = bound - timedelta(microseconds=1) if end else bound
    assert sorted(final) == sorted(at for at in ends if at + end <= last)
    assert 0 < len(final) < len(ends)


@pytest.mark.long
def test_rows_without_an_end_are_never_final(played: World) -> None:
    with pytest.raises(UsageError, match=r"rows of gold\.totals never become final"):
        ask(played.lake, "SELECT * FROM gold.totals__final")


@pytest.mark.long
def test_only_gold_has_final_rows(played: World) -> None:
    with pytest.raises(UsageError, match="there is no table"):
        ask(played.lake, "SELECT * FROM silver.clickstream__final")
