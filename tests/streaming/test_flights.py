"""Real flights through the pipeline, against a recomputation from the package's own tables."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from tests.oracles import flights as oracle
from tests.running import read, run
from tidelake.config import load_environment, load_pipeline
from tidelake.generators import generate_flights
from tidelake.ops.ledger import read_ledger
from tidelake.tables import Lake

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
    """Run the first days of January 2013."""
    base = tmp_path_factory.mktemp("flights")
    generate_flights(base / "landing", months=(1,), events=_RECORDS)
    environment = load_environment("local", root=str(base / "lake"))
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
