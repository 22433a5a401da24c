"""The events of ``stateful.py``, the silver table made of them, and the exact contents of gold."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from pyspark.sql import SparkSession

from tidelake.config import Environment, Limits, Pipeline, load_environment, load_pipeline
from tidelake.delta.tables import Lake
from tidelake.folders import Folder
from tidelake.ledger.query import ask
from tidelake.runtime.hop import Run
from tidelake.runtime.progress import Progress
from tidelake.runtime.runner import run_hops
from tidelake.runtime.triggers import AVAILABLE_NOW, parse_trigger

NAME, MINUTES, SESSIONS = "visits", "user_minutes", "user_sessions"
GAP = "30 minutes"
SMALL_ROWS = 1_000

_BASE = {"events": {"count": "*"}, "total": {"sum": "value"}}
_DEFINITION: dict[str, Any] = {
    "name": NAME,
    # One file gives one commit of bronze, and that one commit of silver.
    "source": {"kind": "files", "path": "landing", "max_files_per_trigger": 1},
    "event": {
        "schema": "event_id STRING, user_id STRING, event_time TIMESTAMP, action STRING, "
        "value DECIMAL(18,2)",
        "id": "event_id",
        "time": "event_time",
    },
    "watermark": {"delay": "10 minutes", "allowed_lateness": "1 day"},
    "dedup": {"ttl": "1 hour", "beyond_ttl": "ignore"},
    "gold": [
        {
            "name": MINUTES,
            "window": {"kind": "tumbling", "size": "1 minute"},
            "keys": ["user_id"],
            "measures": _BASE,
        },
        {
            "name": SESSIONS,
            "window": {"kind": "session", "gap": GAP},
            "keys": ["user_id"],
            "measures": {**_BASE, "last_action": {"last": "action"}},
        },
    ],
}

# 200 events a minute; 100 of 2,000 users are active in each ten minutes.
_START, _STEP = datetime(2026, 1, 5, tzinfo=UTC), timedelta(milliseconds=300)
_BLOCK, _ACTIVE, _USERS = 2_000, 100, 2_000
_LATE, _LATE_SECONDS, _TWINS = 0.01, (600.0, 6 * 3600.0), 0.05
_ACTIONS = ("view", "click", "basket", "purchase")


def draw(events: int, seed: int = 1) -> list[bytes]:
    """Generate events as JSON lines, in order of arrival.

    One in a hundred arrives ten minutes to six hours after its event time, and one in twenty has
    the user and the event time of the event before it.
    """
    rng = random.Random(seed)
    end = _START + events * _STEP
    arrivals: list[tuple[datetime, bytes]] = []
    user, at = "", _START
    for number in range(events):
        if rng.random() >= _TWINS or not number:
            user = f"u{(number // _BLOCK * _ACTIVE + rng.randrange(_ACTIVE)) % _USERS}"
            at = _START + number * _STEP
        waits = timedelta(seconds=rng.uniform(*_LATE_SECONDS))
        if rng.random() >= _LATE or at + waits > end:
            waits = timedelta(seconds=rng.uniform(0, 5))
        event = {
            # Not in time order, so that ties are broken in both directions.
            "event_id": f"{rng.getrandbits(64):016x}",
            "user_id": user,
            "event_time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "action": rng.choice(_ACTIONS),
            "value": rng.randrange(1, 10_000) / 100,
        }
        arrivals.append((at + waits, json.dumps(event).encode()))
    return [line for _, line in sorted(arrivals, key=lambda arrival: arrival[0])]


def land(landing: Path, prefix: str, parts: Iterator[Sequence[bytes]]) -> None:
    """Write files, each with a later modification time than the one before."""
    landing.mkdir(parents=True, exist_ok=True)
    for lines in parts:
        number = len(list(landing.iterdir()))
        file = landing / f"{number:05d}-{prefix}.jsonl"
        file.write_bytes(b"\n".join(lines) + b"\n")
        os.utime(file, (1_700_000_000 + number, 1_700_000_000 + number))


def cut(lines: Sequence[bytes], size: int) -> Iterator[Sequence[bytes]]:
    """Split lines into parts of a size."""
    return (lines[first : first + size] for first in range(0, len(lines), size))


def context(spark: SparkSession, root: Folder, landing: Folder, gold_bytes: str) -> Run:
    """Return the context of a hop."""
    root.mkdir(parents=True, exist_ok=True)
    file = root / f"{NAME}.yml"
    file.write_text(yaml.safe_dump(_DEFINITION, sort_keys=False), encoding="utf-8")
    environment: Environment = load_environment("local", root=str(root)).model_copy(
        update={"limits": Limits(silver_bytes="1k", gold_bytes=gold_bytes)}
    )
    pipeline: Pipeline = load_pipeline(str(file), environment, source=str(landing))
    return Run(spark, pipeline, Lake(root), environment, Progress(lambda line: None))


def fill_silver(spark: SparkSession, root: Path, landing: Path) -> None:
    """Run bronze and silver on the landed files."""
    run = context(spark, root, landing, "1k")
    run_hops(run, ["bronze", "silver"], parse_trigger(AVAILABLE_NOW))


class Difference(NamedTuple):
    """Differences of gold from an exact recomputation.

    Attributes:
        lost: Events missing in the minutes.
        minutes: Expected rows of minutes.
        minutes_wrong: Rows of minutes that are missing or have other values.
        sessions: Expected sessions.
        open: Sessions not shown because the watermark has not passed them.
        sessions_wrong: Other sessions that are missing or have other values.
        pieces: Rows that are not an expected session.
    """

    lost: int
    minutes: int
    minutes_wrong: int
    sessions: int
    open: int
    sessions_wrong: int
    pieces: int


_EXACT_MINUTES = f"""
SELECT date_trunc('minute', event_time) AS window_start, user_id,
    count(*) AS events, sum(value) AS total
FROM silver.{NAME} GROUP BY ALL"""
_IN_ORDER = "PARTITION BY user_id ORDER BY event_time, event_id"
_EXACT_SESSIONS = f"""
SELECT user_id, min(event_time) AS session_start, max(event_time) AS session_end,
    count(*) AS events, sum(value) AS total,
    last(action ORDER BY event_time, event_id) AS last_action
FROM (
    SELECT *, sum(begins) OVER ({_IN_ORDER} ROWS UNBOUNDED PRECEDING) AS number
    FROM (
        SELECT *, CASE WHEN event_time - lag(event_time) OVER ({_IN_ORDER}) <= INTERVAL {GAP}
            THEN 0 ELSE 1 END AS begins
        FROM silver.{NAME}))
GROUP BY user_id, number"""


def compare(
    lake: Lake, minutes: str, sessions: str, *, watermark: str | None, last: bool
) -> Difference:
    """Compare two gold tables with a recomputation from silver by DuckDB.

    Args:
        lake: The lake with all tables.
        minutes: The table of one-minute windows.
        sessions: The table of sessions.
        watermark: Sessions that it has not passed may be missing; None: none may.
        last: Whether to compare the last action.
    """
    held, exact, wrong = ask(
        lake,
        f"""WITH exact AS ({_EXACT_MINUTES}),
        held AS (SELECT window_start, user_id, events, total FROM gold.{minutes})
        SELECT (SELECT sum(events) FROM held), (SELECT count(*) FROM exact),
            (SELECT count(*) FROM exact FULL JOIN held USING (window_start, user_id)
             WHERE exact.events IS DISTINCT FROM held.events
                OR exact.total IS DISTINCT FROM held.total)""",
    ).rows[0]
    columns = "user_id, session_start, session_end, events, total" + ", last_action" * last
    is_open = (
        "false"
        if watermark is None
        else (f"session_end + INTERVAL {GAP} > TIMESTAMPTZ '{watermark}'")
    )
    total, still_open, missing, pieces = ask(
        lake,
        f"""WITH exact AS (SELECT {columns} FROM ({_EXACT_SESSIONS})),
        held AS (SELECT {columns} FROM gold.{sessions}),
        missing AS (SELECT * FROM exact EXCEPT ALL SELECT * FROM held)
        SELECT (SELECT count(*) FROM exact),
            (SELECT count(*) FROM missing WHERE {is_open}),
            (SELECT count(*) FROM missing WHERE NOT {is_open}),
            (SELECT count(*) FROM (SELECT * FROM held EXCEPT ALL SELECT * FROM exact))""",
    ).rows[0]
    events = ask(lake, f"SELECT count(*) FROM silver.{NAME}").rows[0][0]
    return Difference(events - int(held), exact, wrong, total, still_open, missing, pieces)
