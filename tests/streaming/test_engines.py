"""The same pipeline on every engine: one process, executors of their own, Spark Connect."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.brokers import Kafka, assert_applied
from tests.engines.plays import (
    BY_HOUR,
    TABLES,
    Played,
    Shop,
    a_shop,
    contents,
    lines_of_shop,
    played_by_one_process,
)
from tests.engines.servers import a_server, python_path
from tests.locations import at
from tests.running import run
from tests.worlds import world
from tests.written_files import to_parquet, typed_events
from tidelake.delta.tables import Lake
from tidelake.ledger.query import ask

Contents = dict[str, list[tuple[Any, ...]]]


@pytest.fixture(scope="module", params=[False, True])
def shop(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Shop:
    """Give the pipeline, and what it reads; also with more kinds of gold."""
    return a_shop(spark, tmp_path_factory.mktemp("shop"), whole=request.param)


@pytest.fixture(scope="module")
def expected(shop: Shop) -> Contents:
    """Give what the session of this process makes of it."""
    lake = shop.events.lake
    for one in shop.worlds:
        environment = one.environment.model_copy(update={"root": lake.root})
        run(one.spark, environment, one.pipeline)
    found = contents(lake)
    assert all(found[name] for name in ("silver.clickstream__quarantine", "gold.by_minutes"))
    return found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Give a server of Spark Connect on which sessions may set and keep nothing."""
    with a_server(tmp_path_factory.mktemp("server")) as address:
        yield address


def _assert_same(found: Contents, expected: Contents) -> None:
    assert found.keys() == expected.keys()
    for name, rows in expected.items():
        assert found[name] == rows, name


@pytest.mark.long
def test_executors_in_processes_of_their_own_make_the_same_tables(
    shop: Shop, expected: Contents, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    words = ["--verify"] if len(shop.worlds) > 1 else []
    played = shop.play(lake, "--master", "local-cluster[2,1,1024]", *words)
    assert played.code == 0, played.words
    _assert_same(contents(Lake(lake)), expected)
    assert played.answer["clickstream"]["balanced"]
    assert not words or played.answer["clickstream"]["verified"]["equal"], played.answer
    assert played.answer["clickstream"]["slots"] == 2


@dataclass(frozen=True)
class Connected:
    """What one client of a server of Spark Connect made of several runs.

    Attributes:
        lakes: Where each wrote, by its name.
        played: What came of each.
    """

    lakes: dict[str, Path]
    played: dict[str, Played]


def _connected(
    folder: Path, server: str, plays: Mapping[str, tuple[Shop, Sequence[str]]]
) -> Connected:
    """Run several in one client, because each Python that starts takes seconds."""
    lakes = {name: folder / "lakes" / name for name in plays}
    words = [played.words(lakes[name], *more) for name, (played, more) in plays.items()]
    found = played_by_one_process(words, remote=server)
    return Connected(lakes, dict(zip(plays, found, strict=True)))


@pytest.fixture(scope="module")
def connected(
    spark: SparkSession, shop: Shop, server: str, tmp_path_factory: pytest.TempPathFactory
) -> Connected:
    """Run the pipeline, and one whose file changes while it is read."""
    folder = tmp_path_factory.mktemp("connected")
    overtaken = world(spark, folder / "overtaken", gold=[], quality=None)
    overtaken.land("0.jsonl", [b"{}"] * 5)
    plays = {"all": (shop, ()), "overtaken": (Shop((overtaken,)), ("--fails", "overtaken"))}
    return _connected(folder, server, plays)


@pytest.mark.long
def test_spark_connect_makes_the_same_tables(connected: Connected, expected: Contents) -> None:
    played = connected.played["all"]
    assert played.code == 0, played.words
    _assert_same(contents(Lake(connected.lakes["all"])), expected)
    assert played.answer["clickstream"]["balanced"]
    for told in ("bronze  batch    1", "silver  batch    1", "gold    batch    1"):
        assert played.words.count(told) == 1, played.words


_DOCTOR = """
import json, sys
from pathlib import Path
from tidelake.config import Environment
from tidelake.delta.store import Catalog
from tidelake.names import LAYERS
from tidelake.ops import doctor
from tidelake.spark.session import build_session

folder, remote = Path(sys.argv[1]), sys.argv[2]
place = {"catalog": "spark_catalog", "volume": folder / "volume"}
spark = build_session(Environment(name="prod", remote=remote, **place))
spark.sql(f"CREATE SCHEMA ops LOCATION '{folder}/warehouse'")
catalog = Catalog("spark_catalog", lambda: spark)
found = [doctor.check_workers(catalog, folder / "volume")]
doctor.tidelake.__version__ = "0.0.9"
found.append(doctor.check_workers(catalog, folder / "volume"))
left = [*spark.sql("SHOW TABLES IN ops").collect(), *(folder / "volume").iterdir()]
spark.sql("DROP SCHEMA ops")
print(json.dumps([len(left), *([[one.what, one.remedy] for one in part] for part in found)]))
"""


@pytest.mark.long
def test_doctor_lets_a_worker_of_the_server_run_a_batch(server: str, tmp_path: Path) -> None:
    (tmp_path / "volume").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", _DOCTOR, str(tmp_path), server],
        env={**os.environ, "SPARK_REMOTE": server, "PYTHONPATH": python_path()},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    left, well, older = json.loads(done.stdout.splitlines()[-1])
    whats = ["Worker: Tidelake", "Worker: casts", "Worker: decoder", "Worker: files"]
    assert well == [[what, ""] for what in whats]
    assert [what for what, remedy in older if remedy] == ["Worker: Tidelake"]
    assert left == 0


@pytest.mark.long
def test_spark_connect_looks_at_files_that_only_spark_may_touch(
    shop: Shop, server: str, tmp_path: Path
) -> None:
    landing = tmp_path / "landing"
    landing.mkdir()
    (landing / "empty.jsonl").touch()
    for part in range(2):
        (landing / f"{part}.jsonl").write_bytes(b"\n".join(lines_of_shop(part)))
    source: Any = at(landing)
    away = Shop((*shop.worlds[:-1], replace(shop.events, landing=source)))
    lake = tmp_path / "lake"
    words = away.words(lake, "--catalog", "spark_catalog")
    played = played_by_one_process([words, words], remote=server)
    assert [one.code for one in played] == [0, 0], played
    assert played[1].answer["clickstream"]["balanced"]
    (records,) = ask(Lake(lake), "SELECT count(*) FROM bronze.clickstream").rows[0]
    assert records == sum(len(lines_of_shop(part)) for part in range(2))

    (landing / "0.jsonl").write_bytes(b"{}")
    (landing / "1.jsonl").unlink()
    (changed,) = played_by_one_process([words], remote=server)
    assert f"{source}/0.jsonl: " in changed.words
    assert "2 bytes now" in changed.words


@pytest.mark.long
def test_spark_connect_reads_whole_files(spark: SparkSession, server: str, tmp_path: Path) -> None:
    parquet = world(spark, tmp_path / "parquet", small=False, source={"format": "parquet"})
    for number in range(3):
        parquet.land(f"{number}.parquet", []).write_bytes(to_parquet(typed_events([number, 9])))
    parquet.run()
    broken = tmp_path / "broken"
    shutil.copytree(parquet.landing, broken)
    (broken / "broken.parquet").write_bytes(b"PAR")
    plays = {
        "whole": (Shop((parquet,)), ()),
        "broken": (Shop((replace(parquet, landing=broken),)), ()),
    }
    connected = _connected(tmp_path, server, plays)
    done = connected.played["whole"]
    assert done.code == 0, done.words
    expected = contents(parquet.lake)
    assert expected["silver.clickstream"]
    _assert_same(contents(Lake(connected.lakes["whole"])), expected)
    refused = connected.played["broken"]
    assert refused.code == 2, refused.words
    assert "SourceError: files of the source are broken" in refused.words
    assert "broken.parquet: it is not a Parquet file, or is truncated" in refused.words


@pytest.mark.long
def test_spark_connect_publishes_tables_and_queries(
    spark: SparkSession, server: str, tmp_path: Path, kafka: Kafka
) -> None:
    def to_topic(table: dict[str, Any]) -> dict[str, Any]:
        topic = f"{tmp_path.name}-{table['name']}"
        return table | {"publish": {"topic": topic, "bootstrap": kafka.bootstrap}}

    made = world(
        spark,
        tmp_path / "events",
        gold=[to_topic(table) for table in TABLES],
        queries=[to_topic(BY_HOUR)],
        quality=None,
    )
    lake = Lake(tmp_path / "lake")
    for part in range(2):
        made.land(f"{part}.jsonl", lines_of_shop(part))
        made.run()
        played = Shop((made,)).play(tmp_path / "lake", remote=server)
        assert played.code == 0, played.words
        found = contents(lake)
        _assert_same(found, contents(made.lake))
        # DuckDB runs the query over the table that it reads.
        assert set(found["gold.by_hour"]) == set(ask(lake, BY_HOUR["sql"]).rows) != set()
        for name, to in made.pipeline.published.items():
            assert_applied(kafka, to.topic, lake, name)


@pytest.mark.long
def test_spark_connect_makes_the_same_tables_after_a_batch_that_died(
    shop: Shop, expected: Contents, server: str, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    died = shop.play(lake, "--fails", "dying", remote=server)
    assert died.code == 1, died.words
    # The text of an error that is not Tidelake's may contain values.
    assert "RuntimeError" in died.words and "the lights went out" not in died.words
    done = shop.play(lake, "--verify", remote=server)
    assert done.code == 0, done.words
    _assert_same(contents(Lake(lake)), expected)
    assert done.answer["clickstream"]["balanced"]
    assert done.answer["clickstream"]["verified"]["equal"], done.answer


@pytest.mark.long
def test_an_error_of_a_batch_comes_back_through_spark_connect_as_itself(
    connected: Connected,
) -> None:
    played = connected.played["overtaken"]
    assert played.code == 3, played.words
    assert "SourceChangedError: files changed while they were read" in played.words
    assert "tidelake-error" not in played.words


@pytest.mark.long
def test_a_run_that_goes_on_is_refused_through_spark_connect(
    shop: Shop, server: str, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    played = shop.play(lake, "--trigger", "10 seconds", remote=server)
    assert played.code == 2, played.words
    assert "--trigger available-now" in played.words
    assert not Lake(lake).existing()
