"""Files at abfss:// and gs://, which Spark alone may list, look at and read."""

from __future__ import annotations

import gzip
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.catalogs import a_catalog, closed, looking
from tests.locations import at, mount
from tests.running import START, click, place_of
from tests.worlds import World, define, reference_gold, world
from tests.written_files import to_parquet, typed_events
from tidelake import external, folders
from tidelake.config import Environment
from tidelake.delta.access import load
from tidelake.delta.tables import HOPS, Hop
from tidelake.errors import SourceChangedError, SourceError, UsageError
from tidelake.external import files_at
from tidelake.folders import LISTING_SECONDS
from tidelake.ledger.history import BacklogReader
from tidelake.ledger.terms import read_ledger
from tidelake.replay.repairing import repair
from tidelake.replay.verify import verify
from tidelake.runtime import bronze_hop
from tidelake.runtime.landed_files import list_files
from tidelake.spark.engine import with_settings

_LATER = START + timedelta(days=1)


@pytest.fixture(autouse=True)
def _mounted(spark: SparkSession) -> None:
    mount(spark)


@pytest.fixture
def environment(spark: SparkSession, tmp_path: Path) -> Iterator[Environment]:
    """Make a catalog that is empty."""
    with a_catalog(spark, tmp_path) as environment:
        yield environment


def _away(
    spark: SparkSession, folder: Path, environment: Environment, scheme: str = "gs", **changes: Any
) -> World:
    """Make a pipeline whose landing folder only Spark may read; what a test lands it may write."""
    changes = {"gold": [], "quality": None, **changes}
    made = world(spark, folder, environment=environment, **changes)
    source: Any = at(made.landing, scheme)
    return replace(made, pipeline=define(folder, made.environment, source))


def _lines(part: int) -> list[bytes]:
    numbers = range(part * 15, part * 15 + 20)
    return [*[click(n, minute=n * 1.5) for n in numbers], b"{broken"]


def _run(made: World, part: int = 0, hops: Sequence[Hop] = ("bronze",)) -> None:
    """Run; Python may not touch what landed."""
    with closed(made.landing):
        made.run(*[_LATER + timedelta(minutes=10 * part + n) for n in range(4)], hops=hops)


def _records(made: World) -> list[tuple[str, int]]:
    """Give the file and the line of each row in bronze."""
    rows = load(made.spark, made.lake.bronze("clickstream")).select("record_id").collect()
    return sorted(place_of(row[0]) for row in rows)


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["gs", "abfss"])
def test_files_that_arrive_are_taken_once_and_all_are_counted(
    spark: SparkSession, tmp_path: Path, environment: Environment, scheme: str
) -> None:
    made = _away(spark, tmp_path / "w", environment, scheme, source={"max_files_per_trigger": 9})
    os.utime(made.land("0.jsonl", _lines(0)), (START.timestamp() + 0.75,) * 2)
    made.land("_hidden.jsonl", _lines(9))
    made.land("empty.jsonl", [])
    _run(made, hops=HOPS)
    more = made.land("more [1], 50% of it.jsonl", _lines(1))
    made.land("empty too.jsonl", [])
    # A report may be a minute old.
    folders._listings.clear()
    with closed(made.landing):
        waiting = BacklogReader(made.lake, made.pipeline).backlog(
            "bronze", None, now=_LATER, lately=timedelta(days=1)
        )
    assert waiting is not None
    # An empty file waits without an age.
    assert (waiting.waiting, waiting.seconds(_LATER)) == (
        2,
        _LATER.timestamp() - more.stat().st_mtime,
    )
    _run(made, 1, hops=HOPS)

    with closed(made.landing):
        books = read_ledger(made.lake, made.pipeline)
        assert books.balanced, books.problems
        assert verify(made.context).equal
    sizes = [file.stat().st_size for file in made.landing.iterdir() if file.name[0] not in "._"]
    assert (books.source.offered, books.source.taken) == (4, 4)
    assert books.source.bytes_offered == books.source.bytes_taken == sum(sizes)
    names = ("0.jsonl", "more [1], 50% of it.jsonl")
    assert _records(made) == [(name, n) for name in names for n in range(21)]


@pytest.mark.long
def test_a_file_that_grows_while_it_is_read_is_not_taken_and_one_that_changes_later_stops_the_run(
    spark: SparkSession,
    tmp_path: Path,
    environment: Environment,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = _away(spark, tmp_path / "w", environment)
    file, empty = made.land("0.jsonl", _lines(0)), made.land("empty.jsonl", [])
    kept, found = file.read_bytes(), file.stat()
    with monkeypatch.context() as patch:
        patch.setattr(bronze_hop.BronzeHop, "_offered", _overtaken(file))
        with pytest.raises(SourceChangedError, match="bytes when the batch was planned"):
            _run(made)
    assert _records(made) == []
    _put_back(file, kept, found)
    _run(made)
    for content, later in ((kept + b"{}\n", 0), (kept, 2)):
        file.write_bytes(content)
        os.utime(file, (found.st_atime + later, found.st_mtime + later))
        with pytest.raises(SourceChangedError, match=rf"{at(file)}: .* bytes when read"):
            _run(made, 1)
    _put_back(file, kept, found)
    _run(made, 1)
    empty.write_bytes(b"{}\n")
    with pytest.raises(SourceChangedError, match=rf"{at(empty)}: 0 bytes when read, 3 bytes now"):
        _run(made, 2)
    assert len(_records(made)) == 21


def _overtaken(file: Path) -> Callable[[Any, DataFrame], Any]:
    """Let a file grow when the rows of bronze's batch have been read."""
    real = bronze_hop.BronzeHop._offered

    def offered(hop: Any, identified: DataFrame) -> Any:
        found = real(hop, identified)
        with looking(), file.open("ab") as more:
            more.write(b"{}\n")
        return found

    return offered


def _put_back(file: Path, content: bytes, found: os.stat_result) -> None:
    file.write_bytes(content)
    os.utime(file, ns=(found.st_atime_ns, found.st_mtime_ns))


def _interrupted(made: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """End a run when bronze's batch is planned."""
    with monkeypatch.context() as patch:
        patch.setattr(bronze_hop, "append", lambda *_, **__: 1 / 0)
        with pytest.raises(Exception, match="ZeroDivisionError"):
            _run(made)


@pytest.mark.long
def test_a_planned_file_that_is_gone_is_refused_and_a_repair_goes_on(
    spark: SparkSession,
    tmp_path: Path,
    environment: Environment,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = _away(spark, tmp_path / "w", environment, source={"max_files_per_trigger": 10})
    files = [made.land(f"{part}.jsonl", _lines(part)) for part in range(3)]
    _interrupted(made, monkeypatch)
    files[1].unlink()
    with pytest.raises(SourceChangedError, match="tidelake repair") as gone:
        _run(made)
    assert gone.value.changes == (f"{at(files[1])}: does not exist",)

    with closed(made.landing):
        repair(made.context, "bronze")
    _run(made)
    with closed(made.landing):
        repair(made.context, "bronze")
    _run(made, 1)
    assert len(_records(made)) == 42


@pytest.mark.long
def test_archives_are_read_and_a_broken_one_is_named(
    spark: SparkSession, tmp_path: Path, environment: Environment
) -> None:
    made = _away(spark, tmp_path / "w", environment)
    frames = [pa.compress(b"".join(line + b"\n" for line in _lines(n)), "zstd") for n in (0, 1)]
    cut = made.land_bytes("a.jsonl.zst", *map(bytes, frames))
    whole = cut.read_bytes()
    cut.write_bytes(whole[:-9])
    made.land_bytes("b.jsonl.gz", gzip.compress(b""))
    with pytest.raises(SourceError, match=rf"{at(cut)}: it is truncated or damaged"):
        _run(made)
    cut.write_bytes(whole)
    _run(made)
    assert len(_records(made)) == 42


@pytest.mark.long
def test_formats_that_need_a_whole_file_and_several_paths(
    spark: SparkSession, tmp_path: Path, environment: Environment
) -> None:
    made = _away(spark, tmp_path / "w", environment, source={"format": "parquet"})
    for name in ("one", "two"):
        (made.landing / name).mkdir(parents=True)
        events = to_parquet(typed_events(range(10)))
        (made.landing / name / "a.parquet").write_bytes(events)
    paths = [at(made.landing / name) for name in ("one", "two")]
    source = made.pipeline.source.model_copy(update={"path": tuple(paths)})
    made = replace(made, pipeline=made.pipeline.model_copy(update={"source": source}))
    _run(made)
    _run(made, 1)
    assert len(_records(made)) == 20


def test_a_location_that_is_empty_missing_or_unreadable_is_named(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("empty", "missing"):
        place = at(tmp_path / name)
        with pytest.raises(SourceError, match=rf"{place} holds no file, or does not exist"):
            list_files(place)
        assert list_files(place, may_be_empty=True) == {}
    with (
        with_settings(spark, {"fs.gs.impl": "no.FileSystem"}),
        pytest.raises(SourceError, match=r"cannot be read: .*ClassNotFound.*\n.*needs READ FILES"),
    ):
        list_files("gs://elsewhere/landing")


def test_files_are_listed_without_a_task_for_their_content(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A file that nobody may read is listed all the same; a missing one is told from an empty."""
    for name, content in (("a", b"12"), ("b", b""), ("_x", b"1"), (".y", b"1"), ("_z=1", b"1")):
        (tmp_path / name).write_bytes(content)
        os.utime(tmp_path / name, (1, 1.5))
    expected = {"a": (2, 1000), "b": (0, 0), "_z=1": (1, 1000)}
    assert files_at([at(tmp_path)]) == {at(tmp_path / n): state for n, state in expected.items()}
    assert files_at([at(tmp_path / "b")]) == {at(tmp_path / "b"): (0, 0)}
    assert files_at([at(tmp_path / "a"), at(tmp_path / "c")]) is None


def test_a_file_that_is_removed_while_spark_lists_is_not_an_empty_one(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, content in (("a", b"12"), ("empty", b""), ("gone", b"12")):
        (tmp_path / name).write_bytes(content)

    class Removing:
        def load(self, patterns: list[str]) -> DataFrame:
            found = read().load(patterns)
            (tmp_path / "gone").unlink(missing_ok=True)
            return found

    read = external._reader
    monkeypatch.setattr(external, "_reader", Removing)
    found = files_at([at(tmp_path)])
    assert found is not None
    assert {uri.rpartition("/")[2]: size for uri, (size, _) in found.items()} == {
        "a": 2,
        "empty": 0,
    }


def test_reports_use_the_listing_of_the_last_minute(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_bytes(b"12")
    place = at(tmp_path)
    assert list(list_files(place, recent=True)) == [f"{place}/a"]
    (tmp_path / "b").write_bytes(b"12")
    assert list(list_files(place, recent=True)) == [f"{place}/a"]
    assert sorted(list_files(place)) == [f"{place}/a", f"{place}/b"]
    (tmp_path / "c").write_bytes(b"12")
    monkeypatch.setattr(time, "monotonic", lambda now=time.monotonic: now() + LISTING_SECONDS)
    assert len(list_files(place, recent=True)) == 3


def test_without_a_catalog_a_location_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    made = world(spark, tmp_path / "w", gold=reference_gold("product_totals"), quality=None)
    source: Any = at(made.landing)
    away = replace(made, pipeline=define(made.folder, made.environment, source))
    with pytest.raises(UsageError, match=r"gs is not supported.*external volume"):
        away.run()
    # Hops that do not read it go on: bronze was filled from a copy.
    made.land("a.jsonl", _lines(0))
    made.run(hops=["bronze"])
    away.run(hops=["silver", "gold"])
    assert read_ledger(away.lake, away.pipeline).balanced
