"""A line's place in its file, however Spark cuts and packs files."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import pytest
from pyspark.errors import SparkRuntimeException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tidelake.bronze.records import BLOCK, Block, shifts
from tidelake.errors import TidelakeError
from tidelake.folders import listed, place_of
from tidelake.runtime.bronze_hop import with_positions
from tidelake.runtime.failures import FOREIGN
from tidelake.spark import session


def _read(spark: SparkSession, folder: Path, most: int) -> DataFrame:
    cut = spark.newSession()
    cut.conf.set("spark.sql.files.maxPartitionBytes", str(most))
    cut.conf.set("spark.sql.files.openCostInBytes", "0")
    return (
        cut.read.option("lineSep", "\n")
        .text(str(folder))
        .select(
            F.col("value").alias("payload"),
            F.col("_metadata.file_path").alias("source"),
            F.col("_metadata.file_block_start").alias(BLOCK),
        )
    )


@pytest.mark.parametrize("most", [7, 64, 1 << 30])
def test_a_line_has_its_place_in_the_file_whatever_a_task_reads(
    spark: SparkSession, tmp_path: Path, most: int
) -> None:
    chance = random.Random(5)
    written = {}
    for name in ("a b.jsonl", "ü.jsonl", "empty.jsonl", "lines.jsonl"):
        lines = [str(chance.random())[: chance.choice([0, 1, 5, 18])] for _ in range(60)]
        written[name] = {"empty.jsonl": [], "lines.jsonl": [""] * 5}.get(name, lines)
        text = "".join(line + "\n" for line in written[name])
        # The last line of one has no line feed.
        (tmp_path / name).write_text(text.removesuffix("\n") if name[0] == "a" else text)
    written["a b.jsonl"] = (tmp_path / "a b.jsonl").read_text().split("\n")
    if not written["a b.jsonl"][-1]:
        written["a b.jsonl"].pop()
    rows = (
        with_positions(_read(spark, tmp_path, most))
        .select("source", "_position", "payload")
        .collect()
    )
    found: dict[str, list[tuple[int, str]]] = {}
    for row in rows:
        place = Path(place_of(row["source"])).name
        found.setdefault(place, []).append((int(row["_position"]), row["payload"]))
    expected = {name: list(enumerate(lines)) for name, lines in written.items() if lines}
    assert {name: sorted(lines) for name, lines in found.items()} == expected


def _set_beforehand(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, key: str, value: str
) -> None:
    """Let the session that reads files begin with a setting, as an environment may have it."""
    sibling = spark.newSession()
    sibling.conf.set(key, value)
    monkeypatch.setattr(session, "sibling_of", lambda _: sibling)


def test_each_file_is_a_partition_whatever_the_session_s_limit(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row's position is its number in its partition."""
    _set_beforehand(spark, monkeypatch, "spark.sql.files.maxPartitionNum", "1")
    for name in "abc":
        (tmp_path / f"{name}.jsonl").write_text("1\n2\n")
    rows = session.whole_file_session(spark).read.text(str(tmp_path))
    places = rows.select(F.spark_partition_id(), "_metadata.file_path").distinct().collect()
    assert sorted(partition for partition, _ in places) == [0, 1, 2]


def test_a_damaged_file_is_an_error_whatever_the_session_s_settings(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark would keep the rows before the damage."""
    _set_beforehand(spark, monkeypatch, "spark.sql.files.ignoreCorruptFiles", "true")
    lines = "".join(f"{number}\n" for number in range(100_000))
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(lines.encode())[:-1000])
    rows = session.whole_file_session(spark).read.text(str(tmp_path))
    with pytest.raises(FOREIGN, match=r"a\.jsonl\.gz"):
        rows.count()


def test_a_file_that_grew_since_its_rows_were_counted_is_not_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "a.jsonl").write_text("1\n22\n")
    for text in ("333\n", "4"):
        rows = with_positions(_read(spark, tmp_path, 1 << 30))
        assert len(rows.collect()) == len((tmp_path / "a.jsonl").read_text().splitlines())
        with (tmp_path / "a.jsonl").open("a") as written:
            written.write(text)
        with pytest.raises(SparkRuntimeException, match="grew between two reads"):
            rows.collect()


def test_blocks_of_a_file_follow_each_other() -> None:
    found = shifts([Block("b", 0, 5, 6, 2), Block("a", 90, 0, 2, 3), Block("a", 0, 7, 9, 3)])
    assert found == [("a", 0, -7), ("a", 90, 3), ("b", 0, -5)]


def test_a_block_that_several_tasks_read_is_refused_by_name() -> None:
    with pytest.raises(TidelakeError, match="file:/a: several tasks read the rows from byte 90"):
        shifts([Block("file:/a", 90, 0, 8, 3)])


def test_a_path_is_listed_as_spark_lists_it(spark: SparkSession) -> None:
    path = "/" + "".join(map(chr, range(33, 127))).replace("/", "") + " %20 ü\u00a0\u2003文é\u0085"
    jvm = spark._jvm
    assert jvm is not None
    assert listed(path) == jvm.org.apache.hadoop.fs.Path(f"file://{path}").toUri().toString()
    assert place_of(listed(path)) == path
