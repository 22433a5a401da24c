"""Files that are old, many, empty, renamed, gone or no longer what they were."""

from __future__ import annotations

import gzip
import json
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tests.fates import assert_books, assert_fates
from tests.running import START, click, land, place_of, read, versions
from tests.worlds import TO_SILVER, World, world
from tidelake import folders
from tidelake.delta.log import newest_version
from tidelake.delta.tables import Table
from tidelake.errors import SourceChangedError, SourceError
from tidelake.ledger.terms import read_ledger
from tidelake.runtime import bronze_hop, landed_files
from tidelake.runtime.progress import Progress
from tidelake.runtime.runner import run_hops
from tidelake.runtime.triggers import CONTINUOUS, parse_trigger
from tidelake.spark.tuning import FILES_A_BATCH

_SMALL_FILES = 10_000 if os.environ.get("TIDELAKE_FULL") == "1" else 30
_NOW = START + timedelta(hours=1)
# Of the many files, one with rows and one without.
_WRITTEN, _EMPTY = "1.jsonl", "10.jsonl"
# The last second of 32 bits, in 2106.
_LATEST = (1 << 32) - 1


@pytest.fixture(scope="module")
def many(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> World:
    """Let many small files arrive at once: old, empty, and with names that need care."""
    source = {"max_files_per_trigger": min(_SMALL_FILES // 3, FILES_A_BATCH)}
    played = world(spark, tmp_path_factory.mktemp("many"), small=False, source=source)
    # As a pattern of Hadoop's it matches another folder.
    played = replace(played, landing=played.folder / "a [1] {b}").redefined()
    land(played.folder / "a 1 b", "never.jsonl", [click(0, minute=0)])
    for number in range(_SMALL_FILES):
        lines = [click(number, minute=number % 60), click(number // 2, minute=number // 2 % 60)]
        played.land(f"{number}.jsonl", lines if number % 10 else [])
    for name in ("ä ö%20+&=?#.jsonl", "_day=1/a;7.jsonl", "no-line-feed.jsonl"):
        (played.landing / name).parent.mkdir(parents=True, exist_ok=True)
        (played.landing / name).write_bytes(click(_SMALL_FILES + len(name), minute=1))
        os.utime(played.landing / name, (0, 0))
    os.utime(played.landing / "0.jsonl", (_LATEST, _LATEST))
    for name in ("_hidden.jsonl", ".hidden.jsonl", "_metadata", "_day=1/_metadata"):
        (played.landing / name).write_bytes(b"never")
    # A streaming sink wrote one of them, and the other files are not in its log.
    written = played.landing / _WRITTEN
    state = {"size": written.stat().st_size, "isDir": False, "modificationTime": 0}
    entry = {"path": written.as_uri(), **state, "blockReplication": 1, "blockSize": 1}
    log = played.landing / "_spark_metadata" / "0"
    log.parent.mkdir()
    log.write_text("v1\n" + json.dumps({**entry, "action": "add"}))
    played.run(_NOW, hops=TO_SILVER)
    # What landed before is a hundred years younger.
    played.land("old.jsonl", [click(1, minute=1)])
    os.utime(played.landing / "old.jsonl", (0, 0))
    played.run(_NOW, hops=TO_SILVER)
    return played


def test_each_of_many_files_is_read_once_whatever_its_age_or_name(many: World) -> None:
    expected = {
        (file.name, number): line
        for file in many.landing.rglob("*.jsonl")
        if not file.name.startswith((".", "_"))
        for number, line in enumerate(file.read_bytes().splitlines())
    }
    rows = read(many.lake, "bronze.clickstream", "record_id, payload")
    assert len(rows) == len(expected)
    assert {place_of(record): bytes(payload) for record, payload in rows} == expected
    assert_books(many.lake, many.pipeline, assert_fates(many.lake))
    files = read_ledger(many.lake, many.pipeline).to_json()["source_files"]
    assert files["offered"] == files["taken"] == _SMALL_FILES + 4


def _grown(file: Path) -> None:
    with file.open("ab") as written:
        written.write(click(9, minute=9) + b"\n")


def _replaced(file: Path) -> None:
    size = file.stat().st_size
    file.unlink()
    file.write_bytes(b"x" * (size - 1) + b"\n")


def _emptied(file: Path) -> None:
    file.write_bytes(b"")


def _filled(file: Path) -> None:
    assert not file.stat().st_size
    _grown(file)


@contextmanager
def _put_back(file: Path) -> Iterator[None]:
    """Let a file be changed, and be what it was again."""
    content, found = file.read_bytes(), file.stat()
    try:
        yield
    finally:
        file.write_bytes(content)
        os.utime(file, ns=(found.st_atime_ns, found.st_mtime_ns))


def test_a_file_that_is_no_longer_what_was_read_stops_the_run_and_changes_nothing(
    many: World, tmp_path: Path
) -> None:
    """Also an empty one that is filled."""
    played = many.copied(tmp_path / "copy")
    before = versions(played.lake)
    changes = {_grown: _WRITTEN, _replaced: _WRITTEN, _emptied: _WRITTEN, _filled: _EMPTY}
    for change, name in changes.items():
        file = played.landing / name
        with _put_back(file):
            change(file)
            with pytest.raises(SourceChangedError, match=rf"/{re.escape(name)}: "):
                played.run(_NOW, hops=TO_SILVER)
            assert versions(played.lake) == before, change
    assert played.run(_NOW, hops=TO_SILVER) == []


def _clean_log(table: Table) -> None:
    """Leave a log its newest commit and a checkpoint, as Delta does after the retention."""
    DeltaTable(str(table.path)).create_checkpoint()
    for version in range(newest_version(table)):
        (table.path / "_delta_log" / f"{version:020}.json").unlink()


def test_a_file_that_grew_after_the_log_was_cleaned_stops_the_run(
    many: World, tmp_path: Path
) -> None:
    played = many.copied(tmp_path / "copy")
    _clean_log(played.lake.bronze("clickstream"))
    assert played.run(_NOW, hops=["bronze"]) == []
    file = played.landing / _WRITTEN
    size = file.stat().st_size
    with _put_back(file):
        _grown(file)
        with pytest.raises(SourceChangedError, match=rf"/{_WRITTEN}: {size:,} bytes when"):
            played.run(_NOW, hops=["bronze"])


def test_a_file_that_grows_after_it_was_read_stops_a_run_that_goes_on(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = world(spark, tmp_path)
    file = played.land("a.jsonl", [click(1, minute=1)])
    monkeypatch.setattr(folders, "LISTING_SECONDS", 0.0)
    # A batch is closed in the table before its line is printed.
    run = replace(played.context, progress=Progress(lambda line: _grown(file)))
    threading.Timer(20, run.stop.set).start()
    with pytest.raises((SourceChangedError, KeyboardInterrupt)) as stopped:
        run_hops(run, ["bronze"], parse_trigger(CONTINUOUS))
    assert isinstance(stopped.value, SourceChangedError), "it went on until it was told to stop"
    assert "a.jsonl" in str(stopped.value)


def _add(file: Path, more: bytes) -> None:
    with file.open("ab") as written:
        written.write(more)


_LINE = click(1, minute=1)
_HALF = click(2, minute=2)[:40]


# Before which step files grow, and of each what it holds and what is added.
_GROWING: tuple[tuple[str, dict[str, tuple[bytes, bytes]]], ...] = (
    # One byte, as the line feed would be that the last line lacks.
    ("planned_files", {"byte.jsonl": (_LINE + b"\n" + click(2, minute=2)[:-1], b"}")}),
    ("planned_files", {"packed.jsonl.gz": (gzip.compress(_LINE + b"\n"), gzip.compress(_HALF))}),
    ("planned_files", {"empty.jsonl.gz": (b"", gzip.compress(_LINE + b"\n"))}),
    (
        "append",
        {
            "line.jsonl": (_LINE + b"\n", _HALF),
            "last.jsonl": (_LINE + b"\n" + _HALF, click(2, minute=2)[40:60]),
        },
    ),
)


def test_nothing_is_taken_of_a_file_that_grows_while_it_is_read(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = world(spark, tmp_path, small=False)
    played.landing.mkdir()
    files = {
        played.landing / name: more for _, growing in _GROWING for name, more in growing.items()
    }
    for file, (begun, _) in files.items():
        file.write_bytes(begun)
        os.utime(file, (0, 0))
    for step, growing in _GROWING:
        owner = bronze_hop if step == "append" else landed_files
        real: Callable[..., Any] = getattr(owner, step)

        def grow(
            *args: Any,
            real: Callable[..., Any] = real,
            growing: dict[str, tuple[bytes, bytes]] = growing,
            **kwargs: Any,
        ) -> Any:
            for name, (_, more) in growing.items():
                _add(played.landing / name, more)
            return real(*args, **kwargs)

        with monkeypatch.context() as patch:
            patch.setattr(owner, step, grow)
            with pytest.raises(SourceChangedError, match="none of them was ingested") as stopped:
                played.run(_NOW, hops=["bronze"])
        told = str(stopped.value)
        assert {file.name for file in files if file.name in told} == growing.keys(), told
        assert read(played.lake, "bronze.clickstream", "record_id") == []
    # Their writers are done: the same batch takes the files whole.
    played.run(_NOW, hops=["bronze"])
    whole = [
        gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        for file in files
    ]
    rows = read(played.lake, "bronze.clickstream", "payload")
    lines = [line for content in whole for line in content.splitlines()]
    assert sorted(bytes(payload) for (payload,) in rows) == sorted(lines)


@pytest.mark.long
def test_a_renamed_file_is_copies_and_a_deleted_one_is_no_loss(
    spark: SparkSession, tmp_path: Path
) -> None:
    played = world(spark, tmp_path)
    played.land("a.jsonl", [click(number, minute=number) for number in range(5)])
    played.land("b.jsonl", [])
    played.run(_NOW, hops=TO_SILVER)
    (played.landing / "a.jsonl").rename(played.landing / "c.jsonl")
    played.run(_NOW, hops=TO_SILVER)
    told = read_ledger(played.lake, played.pipeline).to_json()
    assert (told["bronze"], told["silver"], told["duplicates"]) == (10, 5, 5)
    (played.landing / "c.jsonl").unlink()
    played.land("d.jsonl", [click(7, minute=7)])
    played.run(_NOW, hops=TO_SILVER)
    assert_books(played.lake, played.pipeline, assert_fates(played.lake))
    told = read_ledger(played.lake, played.pipeline).to_json()
    assert (told["bronze"], told["silver"], told["duplicates"]) == (11, 6, 5)
    assert told["source_files"]["offered"] == told["source_files"]["taken"] == 4


def test_a_file_whose_name_spark_cannot_read_is_refused_by_name(
    spark: SparkSession, tmp_path: Path
) -> None:
    played = world(spark, tmp_path)
    played.land("2026-01-05T10:15:30.jsonl", [click(1, minute=1)])
    with pytest.raises((SourceError, SourceChangedError), match="2026-01-05T10:15:30"):
        played.run(_NOW, hops=TO_SILVER)
