"""CSV files: records of several dialects in one pipeline, and headers that are broken."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.running import START, read, versions
from tests.worlds import TO_SILVER, world
from tests.written_files import to_csv, typed_events
from tidelake.errors import GenerationError, RefusedError, SourceError
from tidelake.ledger.terms import read_ledger
from tidelake.replay.requeue import Choice, replay_quarantine
from tidelake.replay.verify import verify

_NOW = START + timedelta(hours=1)
_NAMES = ["event_id", "user_id", "event_time", "action", "product_id", "value"]


@pytest.mark.long
def test_quarantined_records_are_replayed_in_their_own_dialect(
    spark: SparkSession, tmp_path: Path
) -> None:
    played = world(spark, tmp_path, small=False, source={"format": "csv"})
    late_nulls = to_csv(typed_events([1, 2, 3])).replace(b",10.25", b",NA")
    played.land_bytes("a.csv", late_nulls)
    played.run(_NOW)
    kept = read(played.lake, "silver.clickstream__quarantine", "payload, reasons")
    assert [(bytes(payload)[:2], reasons) for payload, reasons in kept] == [
        (b"e1", ["value: not exactly DECIMAL(18,2)"])
    ]
    # From now on files have another dialect, and other texts of null; stored records do not.
    written = {"columns": _NAMES, "delimiter": ";", "nulls": ["NA"]}
    source = {"format": "csv", "csv": written}
    changed = played.redefined(source=source)
    assert replay_quarantine(changed.context, Choice()).requeued == 1
    _, record = to_csv(typed_events([4])).splitlines()
    changed.land_bytes("b.csv", record.replace(b",", b";"))
    changed.run(_NOW)
    ids = read(changed.lake, "silver.clickstream", "event_id")
    assert ids == [("e1",), ("e2",), ("e3",), ("e4",)]
    ledger = read_ledger(changed.lake, changed.pipeline).to_json()
    assert (ledger["balanced"], ledger["quarantined"], ledger["bronze"]) == (True, 0, 4)
    assert verify(changed.context).equal


def test_a_file_whose_header_is_broken_stops_bronze_by_name(
    spark: SparkSession, tmp_path: Path
) -> None:
    played = world(spark, tmp_path, small=False, source={"format": "csv"})
    played.land_bytes("a.csv", to_csv(typed_events([1])))
    played.land_bytes("b.csv", b"event_id,,event_id\n1,2,3\n")
    with pytest.raises(
        SourceError, match=r"(?s)b\.csv: its header has no name in column 2, the name event_id 2"
    ):
        played.run(_NOW, hops=TO_SILVER)
    assert read(played.lake, "bronze.clickstream", "record_id") == []
    played.land_bytes("b.csv", to_csv(typed_events([2])))
    played.run(_NOW, hops=TO_SILVER)
    assert len(read(played.lake, "silver.clickstream", "event_id")) == 2
    # Bronze and silver hold CSV, which a decoder of JSON would refuse.
    other, before = played.redefined(source={"format": "json"}), versions(played.lake)
    with pytest.raises(
        RefusedError, match=r"payloads in bronze\.clickstream are CSV, .*: restore it"
    ):
        other.run(_NOW)
    with pytest.raises(GenerationError, match=r"another source\.format \(all of bronze"):
        other.run(_NOW, hops=["silver"])
    assert versions(played.lake) == before
