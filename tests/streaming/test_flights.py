"""Real flights through the pipeline, against a recomputation from the package's own tables."""

from __future__ import annotations

import pandas as pd
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.oracles import flights as oracle
from tests.running import read, run
from tidelake.config import load_environment, load_pipeline
from tidelake.delta.tables import Lake
from tidelake.examples import generate, generate_flights
from tidelake.ledger.terms import read_ledger

pytestmark = pytest.mark.long
_RECORDS = 12_000
_COLUMNS = {
    "departures_by_origin_1h": "origin, window_start, departures, delayed",
    "delay_by_carrier_1d": (
        "carrier, window_start, departures, total_delay, mean_delay, worst_delay"
    ),
    "aircraft_duty": "tailnum, session_start, session_end, events, miles, first_origin, last_kind",
}


@pytest.fixture(scope="module")
def flights(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """Run the first days of January 2013, airlines and aircraft before."""
    base = tmp_path_factory.mktemp("flights")
    generate_flights(base / "landing", months=(1,), events=_RECORDS)
    environment = load_environment("local", root=str(base / "lake"))
    for dimension in ("airlines", "planes"):
        generate(dimension, base / dimension, events=0, seed=1)
        source = str(base / dimension)
        run(spark, environment, load_pipeline(dimension, environment, source=source))
    pipeline = load_pipeline("flights", environment, source=str(base / "landing"))
    run(spark, environment, pipeline)
    lake = Lake(base / "lake")
    told = read_ledger(lake, pipeline).to_json()
    assert told["balanced"]
    assert (told["bronze"], told["late"], told["quarantined"]) == (_RECORDS, 0, 0)
    return lake


@pytest.mark.parametrize("table", _COLUMNS)
def test_gold_of_flights_equals_a_recomputation_of_the_package_itself(
    flights: Lake, table: str
) -> None:
    known = oracle.events(months=(1,)).head(_RECORDS)
    expected = [
        (*key, *[pytest.approx(v) if isinstance(v, float) else v for v in values.values()])
        for key, values in oracle.gold(known)[table].items()
    ]
    found = read(flights, f"gold.{table}", _COLUMNS[table])
    assert len(found) == len(expected)
    by_key = {row[:2]: row for row in found}
    assert len(by_key) == len(found)
    assert all(by_key[row[:2]] == row for row in expected)


def test_each_departure_stands_beside_its_arrival(flights: Lake) -> None:
    known = oracle.events(months=(1,)).head(_RECORDS)
    departed = known[known["kind"] == "departed"]
    arrived = known[known["kind"] == "arrived"].set_index("flight_id")
    assert arrived.index.is_unique
    names = oracle.airlines()
    expected = []
    for row in departed.itertuples():
        came = arrived.loc[row.flight_id] if row.flight_id in arrived.index else None
        expected.append(
            (
                row.flight_id,
                row.event_time,
                names[row.carrier],
                None if came is None else came["event_time"],
                None if came is None or pd.isna(came["delay_minutes"]) else came["delay_minutes"],
            )
        )
    columns = "flight_id, departed_at, airline, arrived_at, arrival_delay"
    found = read(flights, "gold.departure_to_arrival", columns)
    assert found == sorted(expected, key=repr) or found == sorted(expected)


def test_the_join_finds_what_spark_s_stream_stream_join_finds(
    spark: SparkSession, flights: Lake
) -> None:
    stream = spark.readStream.format("delta").load(str(flights.silver("flights").path))
    left = (
        stream.where("kind = 'departed'")
        .selectExpr("flight_id AS left_id", "event_time AS departed_at")
        .withWatermark("departed_at", "400 days")
    )
    right = (
        stream.where("kind = 'arrived'")
        .selectExpr("flight_id AS right_id", "event_time AS arrived_at")
        .withWatermark("arrived_at", "400 days")
    )
    within = "arrived_at BETWEEN departed_at AND departed_at + INTERVAL 24 HOURS"
    joined = left.join(right, F.expr(f"left_id = right_id AND {within}"), "inner")
    query = joined.writeStream.format("memory").queryName("pairs").trigger(availableNow=True)
    started = query.start()
    try:
        started.awaitTermination()
        rows = spark.table("pairs").selectExpr(
            "left_id", "unix_micros(departed_at)", "unix_micros(arrived_at)"
        )
        theirs = sorted(tuple(row) for row in rows.collect())
    finally:
        started.stop()
    ours = read(
        flights,
        "(SELECT * FROM gold.departure_to_arrival WHERE arrived_at IS NOT NULL)",
        "flight_id, epoch_us(departed_at), epoch_us(arrived_at)",
    )
    assert len(ours) > 1_000
    assert ours == theirs
