"""The pipeline as a loop in Polars and deltalake: each round takes a batch of files.

Parse, keep one row of each id, anti-join with the silver table, append to silver, sum by minute,
merge into gold. Runs in the environment that `make peers` creates for it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.peers.rounds import Pipeline, drive


def start() -> Pipeline:
    """Load the libraries; there is nothing else to start."""
    import deltalake  # noqa: F401, PLC0415
    import polars  # noqa: F401, PLC0415

    return _run


def _run(files: list[Path], out: Path) -> Mapping[str, Any]:
    import polars as pl  # noqa: PLC0415
    from deltalake import write_deltalake  # noqa: PLC0415

    spent: dict[str, float] = {}
    mark = time.monotonic()

    def record(what: str) -> None:
        nonlocal mark
        now = time.monotonic()
        spent[what] = now - mark
        mark = now

    silver, gold = out / "silver", out / "gold"
    schema = dict.fromkeys(
        ["event_id", "user_id", "event_time", "action", "product_id"], pl.String
    ) | {"value": pl.Float64}
    events = (
        pl.read_ndjson(files, schema=schema)
        .with_columns(
            pl.col("event_time").str.to_datetime(
                "%Y-%m-%dT%H:%M:%S%.3fZ", time_unit="us", time_zone="UTC"
            ),
            pl.col("action").str.to_lowercase(),
            pl.col("value").cast(pl.Decimal(18, 2)),
        )
        .unique("event_id", keep="any")
    )
    record("parse")
    if (silver / "_delta_log").is_dir():
        # Semi-join first: the batch is the hash table, and the 50 million ids are streamed.
        known = (
            pl.scan_delta(str(silver))
            .select("event_id")
            .join(events.lazy().select("event_id"), on="event_id", how="semi")
            .collect(engine="streaming")
        )
        events = events.join(known, on="event_id", how="anti")
    record("anti-join")
    write_deltalake(silver, events, mode="append")
    record("silver")
    minutes = minutes_of(events)
    record("minutes")
    merge(minutes, gold)
    record("gold")
    return {"rows": events.height, "minutes": minutes.height, "spent": spent}


def minutes_of(events: Any) -> Any:
    """Sum events by minute and user; a sum of nothing but nulls is null, as in SQL."""
    import polars as pl  # noqa: PLC0415

    value = pl.col("value")
    total = pl.when(value.count() > 0).then(value.sum())
    return events.group_by(
        pl.col("event_time").dt.truncate("1m").alias("window_start"), "user_id"
    ).agg(pl.len().cast(pl.Int64).alias("events"), total.alias("total"))


def merge(minutes: Any, gold: Path, *, bounded: bool = True) -> Mapping[str, Any]:
    """Merge minutes into gold, and return the metrics of the merge.

    Args:
        minutes: The batch's sums.
        gold: The table's folder.
        bounded: Whether to add the batch's time span as literals and materialize the source, so
            that delta-rs reads only files whose statistics overlap the span.
    """
    import polars as pl  # noqa: PLC0415
    from deltalake import DeltaTable, write_deltalake  # noqa: PLC0415

    if not DeltaTable.is_deltatable(str(gold)):
        write_deltalake(gold, minutes)
        return {}
    on = "t.window_start = s.window_start AND t.user_id = s.user_id"
    if bounded:
        start = pl.col("window_start")
        low, high = minutes.select(start.min().alias("low"), start.max().alias("high")).row(0)
        on += "".join(
            f" AND t.window_start {sign} arrow_cast('{at:%Y-%m-%dT%H:%M:%SZ}', "
            "'Timestamp(Microsecond, Some(\"UTC\"))')"
            for sign, at in ((">=", low), ("<=", high))
        )
    merger = DeltaTable(gold).merge(
        minutes, on, source_alias="s", target_alias="t", streamed_exec=not bounded
    )
    added = {
        "events": "t.events + s.events",
        "total": "coalesce(t.total + s.total, t.total, s.total)",
    }
    return merger.when_matched_update(added).when_not_matched_insert_all().execute()


if __name__ == "__main__":
    drive(__doc__, start)
