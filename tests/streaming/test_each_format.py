"""What holds for files of each format: fates, gold, books, a backfill, an erasure, deaths.

The same events, in files of a format and split as drawn below, must give the tables that DuckDB
computes from what another library reads in those files.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.batches import closed
from tests.following import assert_gold_follows
from tests.oracles.files import records_of
from tests.oracles.gold import Recomputation
from tests.recovery.failpoints import DiedError, armed, die
from tests.recovery.processes import started
from tests.recovery.script import TABLES
from tests.running import START, place_of, read
from tests.worlds import World, without_prefilter, world
from tests.written_files import (
    Event,
    to_archive,
    to_avro,
    to_changes,
    to_csv,
    to_lines,
    to_parquet,
    typed_events,
)
from tidelake.errors import TidelakeError
from tidelake.ledger.terms import read_ledger
from tidelake.replay.backfill import build
from tidelake.replay.backfill_promotion import promote
from tidelake.replay.compatibility import payload_drift
from tidelake.replay.erase import erase
from tidelake.replay.requeue import apply_late
from tidelake.replay.subject import Subject
from tidelake.replay.verify import verify
from tidelake.runtime import bronze_hop, hop
from tidelake.silver import payloads

_NOW = START + timedelta(hours=1)
_COLUMNS = "event_id, event_time, user_id, action, product_id, value"
# Too late once another batch was there; and late, but allowed.
_TOO_LATE, _LATE = 60, 61
_MINUTES = {_TOO_LATE: -4320, _LATE: -300}


def _events(numbers: Sequence[int], **more: Any) -> list[Event]:
    """Make events; a comma, quotes and a line feed are in the field of each third action."""
    found = typed_events(numbers, **more)
    for number, one in zip(numbers, found, strict=True):
        minute = _MINUTES.get(number, number % 60)
        one["event_time"] = START + timedelta(minutes=minute)
        if number % 3 == 0:
            one["action"] = 'buy, or\n"look"'
    return found


@dataclass(frozen=True)
class Format:
    """How events are written, and what of it is broken.

    Attributes:
        source: Of the definition.
        write: Gives a file of events; the last one holds what is broken as well.
        suffix: Of the files' names.
        stage: At which a broken record fails.
        broken: Each broken record as quarantine must hold it, with its reason.
    """

    source: dict[str, Any]
    write: Callable[[Sequence[Event], int, bool], bytes]
    suffix: Callable[[int], str]
    stage: str
    broken: dict[bytes, str]


# Each is one record; the last one, an unclosed quote, must end its file.
_BROKEN_CSV = {
    b"x1,u1": "payload: 2 fields, its file has 6 columns",
    b'x2,"u1"u,2026-01-05T00:00:00Z,view,p1,': "payload: text after the closing quote of field 2",
    b"x3,u\xff,2026-01-05T00:00:00Z,view,p1,": "payload: not utf-8 text",
    b'x4,"u1,2026-01-05T00:00:00Z,view,p1,\nx5,u1,2026-01-05T00:00:00Z,view,p1,\n': (
        "payload: the quote of field 2 is not closed"
    ),
}
_BROKEN_LINES = {b'{"event_id": "half': "payload: not one JSON object"}
_BROKEN_CHANGES = {
    b'{"event_id": "e1"}': "payload: not one change event (before, after, source, op)"
}
# Their values are as the page on files has them.
_BROKEN_ROW = (
    b'{"event_id":null,"user_id":"u1","event_time":"2026-01-05T00:01:00.000000Z",'
    b'"action":"Click","product_id":"p1","value":10.25}'
)


def _typed(write: Callable[[Sequence[Event]], bytes]) -> Callable[..., bytes]:
    """Write the broken row among the others."""
    nameless = _events([1], event_id=None)
    return lambda events, _, last: write([*events[:1], *nameless, *events[1:]] if last else events)


def _as_csv(events: Sequence[Event], number: int, last: bool) -> bytes:
    dialect = "marked" if number == 0 else "plain"
    # With its columns in another order, a copy is a conflict: 5 has none.
    if [one["event_id"] for one in events] == ["e5"]:
        dialect = "turned"
    return to_csv(events, list(_BROKEN_CSV) if last else (), dialect=dialect)


def _archived(number: int) -> str:
    return (".gz", ".bz2", ".zst")[number % 3]


FORMATS = {
    "json": Format(
        {"format": "json"},
        lambda events, _, last: to_lines(events, list(_BROKEN_LINES) if last else ()),
        lambda _: ".jsonl",
        "parse",
        _BROKEN_LINES,
    ),
    "archive": Format(
        {"format": "json"},
        lambda events, number, last: to_archive(
            _archived(number)[1:], events, list(_BROKEN_LINES) if last else ()
        ),
        _archived,
        "parse",
        _BROKEN_LINES,
    ),
    "debezium": Format(
        {"format": "json", "envelope": "debezium"},
        lambda events, _, last: to_changes(events, list(_BROKEN_CHANGES) if last else ()),
        lambda _: ".jsonl",
        "parse",
        _BROKEN_CHANGES,
    ),
    "csv": Format(
        {"format": "csv"},
        _as_csv,
        lambda _: ".csv",
        "parse",
        _BROKEN_CSV,
    ),
    "parquet": Format(
        {"format": "parquet"},
        _typed(to_parquet),
        lambda _: ".parquet",
        "contract",
        {_BROKEN_ROW: "event_id: missing"},
    ),
    "avro": Format(
        {"format": "avro"},
        _typed(to_avro),
        lambda _: ".avro",
        "contract",
        {_BROKEN_ROW: "event_id: missing"},
    ),
}


# By run the files, by file the numbers of its events; the last file holds what is broken.
Split = Sequence[Sequence[Sequence[int]]]
_WEB = [6, 7, 8, 9, 10, 11]
_SPLIT: Split = [[[0, 1, 2, 3, 4], [], [5]], [_WEB, [3, _TOO_LATE, 4, _LATE]]]


def _drawn(seed: int) -> Split:
    """Draw a split of the same events and many more into five runs of three files."""
    chance = random.Random(seed)
    numbers = [*range(12), 3, 4, _TOO_LATE, _LATE, *range(100, 200)]
    chance.shuffle(numbers)
    files: list[list[int]] = [[] for _ in range(15)]
    for number in numbers:
        chance.choice(files).append(number)
    return [files[at : at + 3] for at in range(0, 15, 3)]


def _world(spark: SparkSession, folder: Path, format_: Format) -> World:
    return world(spark, folder, small=False, source=format_.source, gold=TABLES, quality=None)


def _land(played: World, format_: Format, split: Split, run: int) -> None:
    """Land the files of a run; that of the web has one more column."""
    first = sum(map(len, split[:run]))
    last = sum(map(len, split)) - 1
    for number, numbers in enumerate(split[run], first):
        more = {"channel": "web"} if numbers is _WEB else {}
        content = format_.write(_events(numbers, **more), number, number == last)
        played.land_bytes(f"{number} ä{format_.suffix(number)}", content)


def _die(played: World, points: Sequence[str]) -> None:
    """Run until the first point, again until the next, and so on."""
    for point in points:
        with armed(point, die) as passes:
            with pytest.raises((TidelakeError, DiedError)):
                played.run(_NOW)
            assert passes.reached, point


def _arrived(
    spark: SparkSession, folder: Path, format_: Format, split: Split, dies_at: Sequence[str] = ()
) -> World:
    """Land and run a split, and apply what is late; the second run dies before."""
    played = _world(spark, folder, format_)
    for run in range(len(split)):
        _land(played, format_, split, run)
        _die(played, dies_at if run == 1 else ())
        played.run(_NOW)
    apply_late(played.context)
    played.run(_NOW)
    return played


def _decoded(played: World, format_: Format) -> list[Event]:
    """Give the events of the landed files as another library reads them, each once."""
    source = format_.source
    reads = partial(records_of, format_=source["format"], envelope="envelope" in source)
    found: dict[str, Event] = {}
    for file in sorted(played.landing.iterdir()):
        for record in reads(file):
            # What is broken in its form alone has another id, or none.
            if str(record["event_id"]).startswith("e"):
                found.setdefault(record["event_id"], record)
    return list(found.values())


def _assert_computed_from(played: World, events: Sequence[Event]) -> None:
    """Want silver and gold to be what DuckDB makes of the events."""
    silver = Recomputation(played.folder, "clickstream", {})
    names = _COLUMNS.split(", ")
    table = pa.table({name: [str(one[name] or "") for one in events] for name in names})
    silver.take(
        "clickstream",
        "SELECT event_id, event_time::TIMESTAMPTZ AS event_time, user_id, lower(action) AS action, "
        "product_id, nullif(value, '')::DECIMAL(18,2) AS value, event_id AS record_id FROM given",
        table,
    )
    assert read(played.lake, "silver.clickstream", _COLUMNS) == sorted(
        silver.rows("clickstream", names), key=repr
    )
    assert_gold_follows(played, TABLES, silver)


def _assert_ledger(played: World, **terms: int) -> None:
    ledger = read_ledger(played.lake, played.pipeline).to_json()
    assert ledger["problems"] == []
    assert ledger["balanced"]
    assert {name: ledger[name] for name in terms} == terms


@pytest.fixture
def packed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pack several files into a partition, as on a server of Spark Connect."""
    monkeypatch.setattr(bronze_hop, "runs_in_process", lambda: False)
    monkeypatch.setattr(hop, "whole_file_session", lambda session: session)


@pytest.mark.long
@pytest.mark.usefixtures("packed")
@pytest.mark.parametrize(
    ("name", "dies_at", "more"),
    [
        ("csv", ("bronze/batch/after", "silver/late/after"), True),
        ("parquet", ("gold/merge/before",), False),
        ("avro", (), False),
        *[(name, (), True) for name in FORMATS if name != "csv"],
    ],
)
def test_files_of_each_format_give_the_tables_of_their_events(
    spark: SparkSession, tmp_path: Path, name: str, dies_at: Sequence[str], more: bool
) -> None:
    format_ = FORMATS[name]
    played = _arrived(spark, tmp_path, format_, _SPLIT, dies_at)
    events = _decoded(played, format_)
    assert len(events) == 14
    _assert_computed_from(played, events)
    kept = read(played.lake, "silver.clickstream__quarantine", "payload, reasons, stage")
    assert sorted((bytes(payload), *rest) for payload, *rest in kept) == sorted(
        (payload, [reason], format_.stage) for payload, reason in format_.broken.items()
    )
    assert read(played.lake, "silver.clickstream__late", "event_id") == [(f"e{_TOO_LATE}",)]
    ids = [place_of(row[0]) for row in read(played.lake, "bronze.clickstream", "record_id")]
    sizes = [5, 0, 1, 6, 4 + len(format_.broken)]
    assert sorted(ids) == [
        (f"{file} ä{format_.suffix(file)}", at)
        for file, size in enumerate(sizes)
        for at in range(size)
    ]
    channels = [channel for (channel,) in read(played.lake, "silver.clickstream", "channel")]
    assert (channels.count("web"), channels.count(None)) == (6, 8)
    taken = sum(sizes)
    drift = payload_drift(played.context)
    # Of the second run's files. What is no JSON object has no fields; a record of CSV has columns,
    # however many.
    has_no_fields = name != "csv" and format_.stage == "parse"
    sampled = sum(sizes[3:]) - len(format_.broken) * has_no_fields
    assert [(one.field, one.rows, one.sampled) for one in drift] == [("channel", 6, sampled)]
    terms = {"source": taken, "bronze": taken, "duplicates": 2, "silver": 14}
    _assert_ledger(played, **terms, quarantined=len(format_.broken))
    if more:
        played = _rebuilt_and_erased(played, name, events)
    assert verify(played.context).equal


def _rebuilt_and_erased(played: World, name: str, events: Sequence[Event]) -> World:
    """Backfill under another definition, erase a subject, and check the tables after each."""
    taken = read_ledger(played.lake, played.pipeline).to_json()["source"]
    # Stored records are read in their own dialect.
    another = {"csv": {"delimiter": ";"}} if name == "csv" else {}
    fewer = played.redefined(source=another, event={"where": "action <> 'purchase'"})
    build(fewer.context, "bronze")
    promote(fewer.context)
    events = [one for one in events if one["action"] != "purchase"]
    _assert_computed_from(fewer, events)
    _assert_ledger(fewer, source=taken, filtered=2, silver=len(events))
    erase(fewer.context, Subject("user_id", "u0"))
    events = [one for one in events if one["user_id"] != "u0"]
    _assert_computed_from(fewer, events)
    _assert_ledger(fewer, source=taken, erased=4, bronze=taken - 4, silver=len(events))
    return fewer


@pytest.mark.long
@pytest.mark.usefixtures("packed")
@pytest.mark.parametrize("name", FORMATS)
def test_splits_that_are_drawn_give_the_same_tables(
    spark: SparkSession, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(3):
        if seed == 2:
            # As with Spark 4.0, which has no Arrow functions.
            monkeypatch.setattr(payloads, "arrow_udf", None)
        split = _drawn(seed)
        played = _arrived(spark, tmp_path / str(seed), FORMATS[name], split)
        events = _decoded(played, FORMATS[name])
        assert len(events) == 114
        _assert_computed_from(played, events)
        _assert_ledger(played, silver=114, duplicates=2)
        assert verify(played.context).equal


@pytest.mark.long
@pytest.mark.parametrize("name", ["csv", "parquet"])
def test_kills_of_the_process_group_change_nothing(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    format_ = FORMATS[name]
    played = _world(spark, tmp_path, format_)
    run = ["run", str(played.folder / "clickstream.yml")]
    run += ["--root", str(played.lake.root), "--source", str(played.landing)]
    for number in range(2):
        _land(played, format_, _SPLIT, number)
        for point in ("bronze/append/after", "silver/append/before", "gold/merge/after"):
            with started(tmp_path, run, name="run", fail=f"{point}:1:hang") as running:
                assert not running.ends_within(600), running.words
                running.kill()
        with started(tmp_path, run, name="last") as running:
            assert running.process.wait() == 0, running.words
    assert apply_late(played.context) == 1
    played.run()
    _assert_computed_from(played, _decoded(played, format_))
    _assert_ledger(played, silver=14, duplicates=2)
    assert verify(played.context).equal


@pytest.mark.long
def test_the_prefilter_drops_copies_of_csv_records(spark: SparkSession, tmp_path: Path) -> None:
    dedup = {"prefilter": "operator"}
    played = world(
        spark, tmp_path, source={"format": "csv"}, dedup=dedup, gold=TABLES[:1], quality=None
    )
    for number, numbers in enumerate([[0, 1, 2, 1], [2, 3, 0]]):
        played.land_bytes(f"{number}.csv", to_csv(_events(numbers)))
    with without_prefilter(spark):
        played.run(_NOW)
    assert read(played.lake, "silver.clickstream", "event_id") == [(f"e{n}",) for n in range(4)]
    told = [commit.note["prefiltered"] for commit in closed(played.lake.silver("clickstream"))]
    assert told == [1, 2]
    _assert_ledger(played, silver=4, duplicates=3)
    assert verify(played.context).equal
