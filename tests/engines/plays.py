"""A pipeline of windows and sessions, played on several engines, and how tables are compared."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tests.engines.servers import python_path
from tests.following import GOLD, JOINS
from tests.running import START, click
from tests.worlds import World, world
from tidelake.delta.tables import Lake
from tidelake.ledger.query import ask

# Of an arrival, which no two runs share, and of a table's batches.
_OF_A_RUN = frozenset({"ingested_at", "ingest_date", "requeued_at", "_batch", "_generation"})
_REPO = Path(__file__).parents[2]
TABLES = [GOLD[0], GOLD[2]]
BY_HOUR = {
    "name": "by_hour",
    "sql": """
        SELECT date_trunc('hour', window_start) AS hour, user_id, sum(events) AS events,
               max(dearest) AS dearest, count(*) AS windows
        FROM gold.by_minutes GROUP BY ALL HAVING count(*) > 1
    """,
}
_BROKEN = [b"garbage", b"", b"\xff\xfe\x00 no text", b'{"event_id": "x", "event_time": "10:15"}']


@dataclass(frozen=True)
class Played:
    """What a run made of it.

    Attributes:
        code: With which a command would end.
        answer: What is known of the tables; None where it failed.
        words: What it said.
    """

    code: int
    answer: Any
    words: str


@dataclass(frozen=True)
class Shop:
    """Pipelines that run one after the other; what an earlier one makes, a later one reads.

    Attributes:
        worlds: The last one is of events.
    """

    worlds: tuple[World, ...]

    @property
    def events(self) -> World:
        """The clickstream, reduced."""
        return self.worlds[-1]

    def words(self, lake: Path, *words: str) -> list[str]:
        """Tell the driver to run all into tables of their own, and what else."""
        pairs = [f"{one.folder / one.pipeline.name}.yml={one.landing}" for one in self.worlds]
        return [str(lake), *pairs, *words]

    def play(self, lake: Path, *words: str, remote: str = "") -> Played:
        """Run all in a process of its own.

        Args:
            lake: Where.
            words: What the driver is told beside that.
            remote: A server of Spark Connect; empty: none.
        """
        (played,) = played_by_one_process([self.words(lake, *words)], remote=remote)
        return played


def played_by_one_process(plays: Sequence[list[str]], *, remote: str = "") -> list[Played]:
    """Run one after the other, each in a session of its own.

    Args:
        plays: What the driver is told.
        remote: A server of Spark Connect; empty: none.
    """
    environment = {**os.environ}
    environment.pop("SPARK_REMOTE", None)
    if remote:
        environment |= {"SPARK_REMOTE": remote, "PYTHONPATH": python_path()}
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "driver.py")],
        input=json.dumps(plays),
        env=environment,
        cwd=_REPO,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [Played(**played) for played in json.loads(done.stdout.splitlines()[-1])]


def a_shop(spark: SparkSession, folder: Path, *, whole: bool) -> Shop:
    """Land what is read: copies, conflicts, late, broken and bridging rows among it.

    Args:
        spark: The session of the worlds.
        folder: An empty one.
        whole: Whether events are joined and queried, and look up a dimension that another pipeline
            keeps.
    """
    worlds: tuple[World, ...] = ()
    more: dict[str, Any] = {}
    if whole:
        products = world(spark, folder / "products", base="products")
        products.land("0.jsonl", [_product(n, at) for n in range(3) for at in (0, 40)])
        worlds = (products,)
        lookup = {
            "dimension": "products",
            "on": {"product_id": "product_id"},
            "columns": ["category"],
            "as_of": "event_time",
        }
        more = {"joins": JOINS[:1], "enrich": [lookup], "queries": [BY_HOUR]}
    found = world(
        spark,
        folder / "events",
        gold=TABLES,
        quality=None,
        # A plain column, an expression that fails on some rows, and one that a cast wraps.
        event={"select": {**_SELECTED, "ratio": "1 / (length(product_id) - 2 + value)"}},
        **more,
    )
    for part in range(2):
        found.land(f"{part}.jsonl", lines_of_shop(part))
    return Shop((*worlds, found))


_SELECTED = {
    "user_id": "user_id",
    "action": "lower(action)",
    "product_id": "product_id",
    "value": "value",
}


def contents(lake: Lake) -> dict[str, list[tuple[Any, ...]]]:
    """Read all that does not depend on when, or in which batch, a row came."""
    found = {}
    for table in lake.existing():
        if table.name.startswith("ops."):
            continue
        answer = ask(lake, f"SELECT * FROM {table.name}")
        kept = [n for n, name in enumerate(answer.columns) if name not in _OF_A_RUN]
        rows = [tuple(_plain(row[n]) for n in kept) for row in answer.rows]
        found[table.name] = sorted(rows, key=repr)
    return found


def _plain(value: Any) -> Any:
    """Order what has no order."""
    return sorted(value) if isinstance(value, list) else value


def lines_of_shop(part: int) -> list[bytes]:
    own = [
        click(n, minute=n * 1.5 - (60 if n % 3 == 0 else 0), action=("click", "purchase")[n % 2])
        for n in range(part * 40, part * 40 + 40)
    ]
    conflict = click(part * 40 + 1, minute=1.5, user_id="other", action="purchase")
    ancient = click(900 + part, minute=-6000, action="click")
    future = click(950 + part, minute=60 * 24 * 36500, action="click")
    inexact = click(980 + part, minute=3, value="12,50")
    return [*own, *own[:5], conflict, ancient, future, inexact, *_BROKEN, own[7]]


def _product(number: int, at: int) -> bytes:
    fields = {
        "change_id": f"p{number}@{at}",
        "product_id": f"p{number}",
        "revision": at,
        "changed_at": f"{START:%Y-%m-%d}T00:{at:02}:00Z",
        "op": "upsert",
        "category": f"c{number + at}",
        "price": 1.5,
    }
    return json.dumps(fields).encode()
