"""CSV files: the same tables as from JSON lines, and what is broken verbatim in quarantine."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.running import START, click, event, place_of, read
from tests.worlds import TO_SILVER, World, world
from tidelake.errors import SourceError
from tidelake.ledger.terms import read_ledger
from tidelake.replay.backfill import build
from tidelake.replay.backfill_promotion import differences, promote
from tidelake.replay.compatibility import payload_drift
from tidelake.replay.requeue import Choice, replay_quarantine
from tidelake.replay.verify import verify
from tidelake.silver import payloads

_NOW = START + timedelta(hours=1)
_NAMES = ("event_id", "user_id", "event_time", "action", "product_id", "value")
_SILVER = "event_id, event_time, user_id, action, product_id, value"
_NUMBERS = [*range(12), 3, 4]
# Each is one record; the last one, an unclosed quote, must end its file.
_BROKEN = [
    b"x1,u1",
    b'x2,"u1"u,2026-01-05T00:00:00Z,view,p1,',
    b"x3,u\xff,2026-01-05T00:00:00Z,view,p1,",
    b'x4,"u1,2026-01-05T00:00:00Z,view,p1,\nx5,u1,2026-01-05T00:00:00Z,view,p1,\n',
]
_REASONS = [
    "payload: 2 fields, its file has 6 columns",
    "payload: text after the closing quote of field 2",
    "payload: not utf-8 text",
    "payload: the quote of field 2 is not closed",
]


def _records(numbers: Sequence[int], names: Sequence[str] = _NAMES, **more: Any) -> bytes:
    """Write events as records; a comma and a line feed are in the field of each third action."""
    written = io.StringIO()
    rows = csv.DictWriter(written, names, lineterminator="\n", extrasaction="ignore")
    for number in numbers:
        rows.writerow(event(number, START + timedelta(minutes=number), **_action(number)) | more)
    return written.getvalue().encode()


def _action(number: int) -> dict[str, str]:
    return {} if number % 3 else {"action": 'buy, or\n"look"'}


def _header(names: Sequence[str] = _NAMES) -> bytes:
    return ",".join(names).encode() + b"\n"


def _put(played: World, name: str, *parts: bytes) -> Path:
    """Land a file of these bytes."""
    file = played.land(name, [])
    file.write_bytes(b"".join(parts))
    return file


@pytest.fixture(scope="module")
def lines(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> World:
    """Run the events as JSON lines, in one file."""
    played = world(spark, tmp_path_factory.mktemp("lines"), small=False)
    played.land("a.jsonl", [click(number, minute=number, **_action(number)) for number in _NUMBERS])
    played.run(_NOW)
    return played


@pytest.mark.parametrize(
    "mapped", [False, pytest.param(True, marks=pytest.mark.long)], ids=["arrow_udf", "spark_4_0"]
)
def test_any_split_into_files_and_runs_gives_the_tables_of_json_lines(
    spark: SparkSession,
    tmp_path: Path,
    lines: World,
    mapped: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if mapped:
        monkeypatch.setattr(payloads, "arrow_udf", None)
    played = world(spark, tmp_path, small=False, source={"format": "csv"})
    turned = _NAMES[::-1]
    wider = ("channel", *_NAMES)
    _put(played, "a ä.csv", b"\xef\xbb\xbf", _header(), _records(_NUMBERS[:5]))
    _put(played, "b.csv", _header())
    _put(played, "c.csv", _header(turned), _records(_NUMBERS[5:6], turned).replace(b"\n", b"\r\n"))
    _put(played, "d.csv")
    played.run(_NOW)
    _put(played, "e.csv", _header(wider), _records(_NUMBERS[6:12], wider, channel="web"))
    _put(played, "f.csv", _header(), _records(_NUMBERS[12:]), b"\n", b"\n".join(_BROKEN))
    played.run(_NOW)

    together = read(played.lake, "silver.clickstream", _SILVER)
    assert together == read(lines.lake, "silver.clickstream", _SILVER)
    gold = "user_id, session_start, session_end, events, total_value"
    assert read(played.lake, "gold.user_sessions", gold) == read(
        lines.lake, "gold.user_sessions", gold
    )
    ids = [place_of(row[0]) for row in read(played.lake, "bronze.clickstream", "record_id")]
    assert sorted(ids) == [
        *(("a ä.csv", at) for at in range(5)),
        ("c.csv", 0),
        *(("e.csv", at) for at in range(6)),
        *(("f.csv", at) for at in range(6)),
    ]
    channels = [channel for (channel,) in read(played.lake, "silver.clickstream", "channel")]
    assert (channels.count("web"), channels.count(None)) == (6, 6)
    kept = read(played.lake, "silver.clickstream__quarantine", "payload, reasons, stage")
    assert [(bytes(payload), reasons, stage) for payload, reasons, stage in kept] == [
        (payload, [reason], "parse") for payload, reason in zip(_BROKEN, _REASONS, strict=True)
    ]
    ledger = read_ledger(played.lake, played.pipeline).to_json()
    assert ledger["balanced"]
    assert (ledger["source"], ledger["bronze"], ledger["duplicates"]) == (18, 18, 2)
    assert verify(played.context).equal
    drift = payload_drift(played.lake, played.pipeline)
    assert [(one.field, one.rows, one.sampled) for one in drift] == [("channel", 6, 18)]


def test_quarantined_records_are_replayed_and_backfilled_in_their_own_dialect(
    spark: SparkSession, tmp_path: Path
) -> None:
    played = world(spark, tmp_path, small=False, source={"format": "csv"})
    late_nulls = _records([1, 2, 3]).replace(b",10.25", b",NA")
    _put(played, "a.csv", _header(), late_nulls)
    played.run(_NOW)
    kept = read(played.lake, "silver.clickstream__quarantine", "payload, reasons")
    assert [(bytes(payload)[:2], reasons) for payload, reasons in kept] == [
        (b"e1", ["value: not exactly DECIMAL(18,2)"])
    ]
    # From now on files have another dialect, and other texts of null; stored records do not.
    written = {"columns": [*_NAMES], "delimiter": ";", "nulls": ["NA"]}
    source = {"format": "csv", "csv": written}
    changed = played.redefined(source=source)
    assert replay_quarantine(changed.context, Choice()).requeued == 1
    _put(changed, "b.csv", _records([4]).replace(b",", b";"))
    changed.run(_NOW)
    ids = read(changed.lake, "silver.clickstream", "event_id")
    assert ids == [("e1",), ("e2",), ("e3",), ("e4",)]
    ledger = read_ledger(changed.lake, changed.pipeline).to_json()
    assert (ledger["balanced"], ledger["quarantined"], ledger["bronze"]) == (True, 0, 4)
    assert verify(changed.context).equal

    fewer = changed.redefined(source=source, event={"where": "action <> 'purchase'"})
    state = build(fewer.context, "bronze")
    assert differences(fewer.context, state).silver
    promote(fewer.context)
    assert read(fewer.lake, "silver.clickstream", "event_id") == [("e1",), ("e3",), ("e4",)]
    assert verify(fewer.context).equal


def test_a_file_whose_header_is_broken_stops_bronze_by_name(
    spark: SparkSession, tmp_path: Path
) -> None:
    played = world(spark, tmp_path, small=False, source={"format": "csv"})
    _put(played, "a.csv", _header(), _records([1]))
    _put(played, "b.csv", b"event_id,,event_id\n1,2,3\n")
    with pytest.raises(
        SourceError, match=r"(?s)b\.csv: its header has no name in column 2, the name event_id 2"
    ):
        played.run(_NOW, hops=TO_SILVER)
    assert read(played.lake, "bronze.clickstream", "record_id") == []
    _put(played, "b.csv", _header(), _records([2]))
    played.run(_NOW, hops=TO_SILVER)
    assert len(read(played.lake, "silver.clickstream", "event_id")) == 2
