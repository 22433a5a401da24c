"""Files that are not lines of text: the same tables, however the records are split into files."""

from __future__ import annotations

import bz2
import gzip
import json
import os
import runpy
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.running import START, click, place_of, read, run, versions
from tests.worlds import TO_SILVER, World, world
from tests.written_files import WRITERS, to_avro, to_parquet, typed_events
from tidelake.cli import app
from tidelake.cli.exits import run_command
from tidelake.config import load_environment, load_pipeline
from tidelake.delta.tables import lake_of
from tidelake.errors import SourceError, TidelakeError
from tidelake.ledger.terms import read_ledger
from tidelake.replay.verify import verify
from tidelake.runtime import bronze_hop, landed_files
from tidelake.testing import playing

_NOW = START + timedelta(hours=1)
_SILVER = "event_id, event_time, user_id, action, product_id, value"
_NUMBERS = [*range(12), 3, 5]


@pytest.fixture(scope="module")
def lines(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> World:
    """Run the events as JSON lines, in one file."""
    played = world(spark, tmp_path_factory.mktemp("lines"), small=False)
    played.land("a.jsonl", [click(number, minute=number) for number in _NUMBERS])
    played.run(_NOW)
    return played


@pytest.mark.parametrize("format_", WRITERS)
def test_any_split_into_files_and_runs_gives_the_tables_of_json_lines(
    spark: SparkSession,
    tmp_path: Path,
    lines: World,
    format_: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # As on a server of Spark Connect: several files are packed into a partition.
    monkeypatch.setattr(bronze_hop, "runs_in_process", lambda: False)
    monkeypatch.setattr(bronze_hop, "whole_file_session", lambda session: session)
    write = WRITERS[format_]
    played = world(spark, tmp_path, small=False, source={"format": format_})
    _put(played, f"a ä.{format_}", write(typed_events(_NUMBERS[:5])))
    _put(played, f"b.{format_}", write([]))
    _put(played, f"c.{format_}", write(typed_events(_NUMBERS[5:6])))
    played.run(_NOW)
    _put(played, f"d.{format_}", write(typed_events(_NUMBERS[6:12], channel="web")))
    _put(played, f"e.{format_}", write(typed_events(_NUMBERS[12:])))
    played.run(_NOW)

    assert read(played.lake, "silver.clickstream", _SILVER) == read(
        lines.lake, "silver.clickstream", _SILVER
    )
    gold = "user_id, session_start, session_end, events, total_value"
    assert read(played.lake, "gold.user_sessions", gold) == read(
        lines.lake, "gold.user_sessions", gold
    )
    ids = [place_of(row[0]) for row in read(played.lake, "bronze.clickstream", "record_id")]
    assert sorted(ids) == [
        *((f"a ä.{format_}", at) for at in range(5)),
        (f"c.{format_}", 0),
        *((f"d.{format_}", at) for at in range(6)),
        *((f"e.{format_}", at) for at in range(2)),
    ]
    channels = [channel for (channel,) in read(played.lake, "silver.clickstream", "channel")]
    assert (channels.count("web"), channels.count(None)) == (6, 6)
    ledger = read_ledger(played.lake, played.pipeline).to_json()
    assert ledger["balanced"]
    assert (ledger["source"], ledger["bronze"], ledger["duplicates"]) == (14, 14, 2)
    assert ledger["source_files"]["offered"] == ledger["source_files"]["taken"] == 5
    assert verify(played.context).equal


def _put(played: World, name: str, content: bytes) -> Path:
    """Land a file of any content, younger than those before it."""
    file = played.land(name, [])
    found = file.stat()
    file.write_bytes(content)
    os.utime(file, ns=(found.st_atime_ns, found.st_mtime_ns))
    return file


_PARQUET, _AVRO = to_parquet(typed_events([7])), to_avro(typed_events([7]))
_TEXT = b"".join(click(number, minute=number) + b"\n" for number in range(5))


@pytest.mark.parametrize(
    ("name", "format_", "whole", "broken", "reason"),
    [
        ("b.parquet", "parquet", _PARQUET, _PARQUET[:-9], "truncated"),
        ("b.avro", "avro", _AVRO, _AVRO[:-9], "block 1: truncated"),
        ("b.gz", "json", gzip.compress(_TEXT), gzip.compress(_TEXT)[:-9], "truncated or damaged"),
        # Spark reads these without an error, and loses the second half.
        ("b.bz2", "json", bz2.compress(_TEXT), bz2.compress(_TEXT) + b"BZh9", "truncated"),
        ("b.bz2", "json", bz2.compress(_TEXT), _TEXT, "truncated or damaged"),
    ],
)
def test_a_broken_file_stops_bronze_by_name_until_it_is_replaced(
    spark: SparkSession,
    tmp_path: Path,
    name: str,
    format_: str,
    whole: bytes,
    broken: bytes,
    reason: str,
) -> None:
    played = world(spark, tmp_path, small=False, source={"format": format_})
    write = WRITERS.get(format_, lambda events: b"".join(_lines(events)))
    _put(played, "a.first", write(typed_events([20, 21])))
    played.run(_NOW, hops=TO_SILVER)
    before = versions(played.lake)
    _put(played, f"c.{format_}", write(typed_events([22])))
    _put(played, name, broken)
    with pytest.raises(SourceError, match=f"(?s){name}: .*{reason}.*Replace each") as caught:
        played.run(_NOW, hops=TO_SILVER)
    assert "Exception" not in str(caught.value)
    assert versions(played.lake) == before
    _put(played, name, whole)
    played.run(_NOW, hops=TO_SILVER)
    ledger = read_ledger(played.lake, played.pipeline).to_json()
    assert ledger["balanced"]
    assert ledger["bronze"] == 3 + (1 if format_ != "json" else 5)


def _lines(events: Sequence[dict[str, Any]]) -> list[bytes]:
    return [json.dumps(one, default=str).encode() + b"\n" for one in events]


def test_what_cannot_be_read_is_refused_at_the_start_and_when_it_lands(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = world(spark, tmp_path, small=False)
    _put(played, "a.jsonl", _TEXT)
    _put(played, "b.xz", b"xz")
    with pytest.raises(SourceError, match=r"b\.xz: is an archive"):
        played.run(_NOW, hops=TO_SILVER)
    assert versions(played.lake) == {}
    # It landed after the start.
    with monkeypatch.context() as patch:
        patch.setattr(landed_files.LandingGuard, "check", lambda _: None)
        with pytest.raises(TidelakeError, match=r"b\.xz: is an archive"):
            played.run(_NOW, hops=TO_SILVER)
    assert read(played.lake, "bronze.clickstream", "record_id") == []


def test_what_init_writes_for_parquet_runs_and_passes_its_own_test(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("events").mkdir()
    events = typed_events(range(30))
    Path("events/part-0").write_bytes(to_parquet(events))
    assert run_command(app, ["init", "mine", "--source", "events", "--yes"]) == 0
    environment = load_environment("local", root=str(tmp_path / "lake"))
    run(spark, environment, load_pipeline("mine", environment))
    taken = read(lake_of(environment), "silver.mine", "event_id, value")
    assert taken == sorted(((one["event_id"], one["value"]) for one in events), key=repr)

    written = runpy.run_path("tests/test_mine.py")
    with playing() as play:
        played = play(written["PIPELINE"], written["SENT"], tmp_path / "played")
        for name, test in written.items():
            if name.startswith("test_"):
                test(played)
