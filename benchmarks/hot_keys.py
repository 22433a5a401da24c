"""Sessions of a batch dominated by one key: with and without salting, in alternating rounds.

Usage: python benchmarks/hot_keys.py [EVENTS] [REPEATS]
"""

from __future__ import annotations

import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from statistics import median

import yaml
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tidelake.config import GoldTable, load_environment
from tidelake.gold.measures import GoldPlan
from tidelake.gold.sessions import to_sessions
from tidelake.spark.session import build_session

_TABLE = {
    "name": "visits",
    "window": {"kind": "session", "gap": "30 minutes"},
    "keys": ["user_id"],
    "measures": {"events": {"count": "*"}, "total": {"sum": "value"}, "last": {"last": "value"}},
}
_STRETCH = timedelta(minutes=90)


def main(events: int = 2_000_000, repeats: int = 5) -> None:
    """Time both, and print medians and the ratio for several shares of the hot key."""
    table = GoldTable.model_validate(yaml.safe_load(yaml.safe_dump(_TABLE)))
    with tempfile.TemporaryDirectory() as folder:
        spark = build_session(load_environment("local", root=folder))
        try:
            print("share of the hottest key   plain s   salted s   plain / salted")
            for share in (0.0, 0.1, 0.3, 0.5, 0.9):
                path = str(Path(folder) / f"events-{share}")
                _events(spark, events, share).write.parquet(path)
                rows = spark.read.parquet(path)
                times: dict[timedelta | None, list[float]] = {None: [], _STRETCH: []}
                for turn in range(repeats + 1):
                    for salt, found in times.items():
                        began = time.monotonic()
                        sessions = to_sessions(rows, GoldPlan(table), salt=salt)
                        sessions.write.format("noop").mode("overwrite").save()
                        if turn:
                            found.append(time.monotonic() - began)
                plain, salted = median(times[None]), median(times[_STRETCH])
                print(f"{share:>24.0%} {plain:>9.2f} {salted:>10.2f} {plain / salted:>16.2f}")
        finally:
            spark.stop()


def _events(spark: SparkSession, count: int, share: float) -> DataFrame:
    """Generate events of 20,000 users over a day, a share of them by one user."""
    rows = spark.range(count)
    hot = F.rand(1) < share
    user = F.when(hot, F.lit("hot")).otherwise(F.concat(F.lit("u"), F.col("id") % 20_000))
    at = F.timestamp_micros((F.lit(1_767_571_200) + F.rand(2) * 86_400).cast("bigint") * 1_000_000)
    return rows.select(
        F.col("id").cast("string").alias("event_id"),
        user.alias("user_id"),
        at.alias("event_time"),
        F.lit(1).cast("decimal(18,2)").alias("value"),
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
