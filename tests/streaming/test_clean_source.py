"""Files that are deleted or archived once their batch is closed, never before, and none unseen."""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.recovery.failpoints import DiedError, armed, die
from tests.running import START, click, read
from tests.stores import Store
from tests.worlds import World, world
from tidelake.config import FilesSource
from tidelake.errors import SourceChangedError, TidelakeError
from tidelake.ledger.terms import read_ledger
from tidelake.ops.status import read_status
from tidelake.replay.repairing import repair
from tidelake.replay.verify import verify
from tidelake.runtime import landed_files

_NOW = START + timedelta(hours=1)


def _cleaning(played: World, **keys: str) -> World:
    assert isinstance(played.pipeline.source, FilesSource)
    source = played.pipeline.source.model_copy(update=keys)
    return replace(played, pipeline=played.pipeline.model_copy(update={"source": source}))


def _files(folder: Path) -> dict[str, bytes]:
    found = sorted(folder.rglob("*"))
    return {str(file.relative_to(folder)): file.read_bytes() for file in found if file.is_file()}


def _payloads(played: World) -> list[str]:
    payloads = read(played.lake, "bronze.clickstream", "payload")
    return sorted(bytes(payload).decode() for (payload,) in payloads)


def _lines(numbers: Iterable[int]) -> list[str]:
    return sorted(click(number, minute=number).decode() for number in numbers)


@pytest.mark.long
def test_an_archived_folder_is_counted_verified_repaired_and_read_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    archive = tmp_path / "archive"
    keys = {"clean_source": "archive", "archive_dir": str(archive)}
    played = _cleaning(world(spark, tmp_path / "world"), **keys)
    played.land("a.jsonl", [click(number, minute=number) for number in range(5)])
    zipped = gzip.compress(click(5, minute=5) + b"\n")
    (played.landing / "deep").mkdir()
    (played.landing / "deep" / "b.jsonl.gz").write_bytes(zipped)
    landed = _files(played.landing)

    played.run(_NOW)
    assert _files(played.landing) == {}
    assert _files(archive) == landed

    # An empty folder is no error, and the tables are as complete as with the files.
    assert played.run(_NOW, hops=["bronze"]) == []
    ledger = read_ledger(played.lake, played.pipeline).to_json()
    assert ledger["balanced"]
    assert ledger["source_files"]["offered"] == ledger["source_files"]["taken"] == 2
    assert verify(played.context).equal
    waiting = {hop.hop: hop.waiting for hop in read_status(played.lake, played.pipeline).hops}
    assert waiting["bronze"] == 0

    repair(played.context, "bronze")
    played.land("c.jsonl", [click(6, minute=6)])
    played.run(_NOW, hops=["bronze"])
    assert _payloads(played) == _lines(range(7))
    assert _files(played.landing) == {}
    assert set(_files(archive)) == {*landed, "c.jsonl"}
    ledger = read_ledger(played.lake, played.pipeline).to_json()
    assert ledger["source_files"]["offered"] == ledger["source_files"]["taken"] == 3

    # Spark would never read a file under a name that it has read.
    played.land("a.jsonl", [click(7, minute=7)])
    with pytest.raises(SourceChangedError, match=r"a\.jsonl"):
        played.run(_NOW, hops=["bronze"])
    assert set(_files(played.landing)) == {"a.jsonl"}


def test_a_file_is_deleted_after_its_batch_is_closed_wherever_a_run_ends(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = _cleaning(world(spark, tmp_path), clean_source="delete")
    played.land("a.jsonl", [click(0, minute=0)])

    # Bronze has the batch, Spark has not: nothing may go.
    with armed("bronze/batch/after", die) as passes, pytest.raises(TidelakeError):
        played.run(_NOW, hops=["bronze"])
    assert passes.reached
    assert set(_files(played.landing)) == {"a.jsonl"}

    # Both have it, and the run ends before the file is deleted.
    def cut_off(*_: Any) -> None:
        die()

    with monkeypatch.context() as patch, pytest.raises((DiedError, TidelakeError)):
        patch.setattr(landed_files, "remove_file", cut_off)
        played.run(_NOW, hops=["bronze"])
    assert set(_files(played.landing)) == {"a.jsonl"}

    played.land("b.jsonl", [click(1, minute=1)])
    played.run(_NOW, hops=["bronze"])
    assert _files(played.landing) == {}
    assert _payloads(played) == _lines(range(2))


def test_a_file_that_changes_after_its_batch_is_left_and_stops_the_run(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = _cleaning(world(spark, tmp_path), clean_source="delete")
    for number, name in enumerate(("a.jsonl", "b.jsonl")):
        played.land(name, [click(number, minute=number)])
    real = landed_files.clean_landing

    def grown(*arguments: Any) -> list[str]:
        with (played.landing / "b.jsonl").open("ab") as file:
            file.write(b"more")
        return real(*arguments)

    monkeypatch.setattr(landed_files, "clean_landing", grown)
    with pytest.raises(SourceChangedError, match=r"b\.jsonl"):
        # The first cleaning finds nothing taken, so the file grows when it is taken.
        played.run(_NOW, hops=["bronze"])
    assert _files(played.landing)["b.jsonl"].endswith(b"more")


@pytest.mark.long
def test_a_prefix_of_a_store_is_emptied_and_read_on(
    spark: SparkSession, s3: Store, tmp_path: Path
) -> None:
    place = f"{s3.prefix()}/landing"
    played = _cleaning(world(spark, tmp_path), path=place, clean_source="delete")
    for number, name in enumerate(("a.jsonl", "deep/b.jsonl")):
        s3.put(f"{place}/{name}", click(number, minute=number) + b"\n")
        played.run(_NOW, hops=["bronze"])
        # What is left represents the folder: for Spark a prefix without objects does not exist.
        assert [key.split("/landing/")[1] for key in s3.keys(place)] == [""]
        assert played.run(_NOW, hops=["bronze"]) == []
    assert _payloads(played) == _lines(range(2))
