"""What the pipeline file says of its tables stands in the tables, and follows the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.running import click, read
from tests.worlds import World, world
from tidelake.delta.append import append
from tidelake.delta.log import newest_version
from tidelake.delta.tables import Table
from tidelake.ledger.terms import read_ledger

_GOLD = {
    "name": "totals",
    "description": "What each visitor did; it's all of it.",
    "window": {"kind": "global"},
    "keys": ["user_id"],
    "measures": {"events": {"count": "*"}, "spent": {"sum": "value"}},
    "comments": {"events": "Actions of the visitor."},
}


@pytest.fixture(scope="module")
def commented(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> World:
    """Give a world that has run once with words of its own."""
    made = world(
        spark,
        tmp_path_factory.mktemp("comments"),
        gold=[_GOLD],
        comments={"user_id": "The visitor."},
        quality=None,
    )
    made.land("a.jsonl", [click(n, minute=n) for n in range(4)])
    made.run()
    return made


def words_of(table: Table) -> tuple[str | None, dict[str, str | None]]:
    """Read a table's description and its columns' comments from its log, newest first."""
    for file in sorted((table.path / "_delta_log").glob("*.json"), reverse=True):
        for line in file.read_text(encoding="utf-8").splitlines():
            found: dict[str, Any] | None = json.loads(line).get("metaData")
            if found:
                fields = json.loads(found["schemaString"])["fields"]
                words = {field["name"]: field["metadata"].get("comment") for field in fields}
                return found.get("description"), words
    raise AssertionError(f"{table.name} has no metadata")


def test_a_new_table_bears_the_files_words_and_the_standard_ones(commented: World) -> None:
    gold, silver = commented.lake.gold("totals"), commented.lake.silver("clickstream")

    described, words = words_of(gold)
    assert described == "What each visitor did; it's all of it."
    assert words["user_id"] == "The visitor."
    assert words["events"] == "Actions of the visitor."
    assert words["spent"] == "Sum of value."
    assert words["_batch"] == "The micro-batch that wrote the row."
    _, words = words_of(silver)
    assert words["user_id"] == "The visitor."
    assert words["event_time"] == "When the event happened (UTC)."
    assert words["action"] is None
    for table in commented.lake.existing():
        described, words = words_of(table)
        assert described, table.name
        assert {name for name, said in words.items() if not said} <= {
            *commented.pipeline.silver_columns
        }


def test_words_come_with_the_commit_that_makes_the_table(commented: World) -> None:
    first = commented.lake.gold("totals").path / "_delta_log" / f"{0:020}.json"

    assert "Actions of the visitor." in first.read_text(encoding="utf-8")
    assert "it's all of it" in first.read_text(encoding="utf-8")


@pytest.mark.long
def test_a_changed_word_is_one_commit_that_no_stream_stumbles_over(
    commented: World, tmp_path: Path
) -> None:
    copied = commented.copied(tmp_path / "copy")
    names = [table.name for table in copied.lake.existing()]
    copied.run()
    before = {name: newest_version(copied.lake.table(name)) for name in names}
    copied.run()
    assert {name: newest_version(copied.lake.table(name)) for name in names} == before

    words = {"user_id": "Who was \\ it?", "action": "What was 'done'."}
    reworded = copied.redefined(comments=words, gold=[_GOLD | {"description": "Other words."}])
    reworded.run()

    described, told = words_of(copied.lake.gold("totals"))
    assert (described, told["user_id"]) == ("Other words.", "Who was \\ it?")
    assert words_of(copied.lake.silver("clickstream"))[1]["action"] == "What was 'done'."
    assert newest_version(copied.lake.silver("clickstream")) == before["silver.clickstream"] + 1
    assert newest_version(copied.lake.bronze("clickstream")) == before["bronze.clickstream"]
    reworded.land("b.jsonl", [click(n, minute=n) for n in range(4, 9)])
    reworded.run()
    assert read(copied.lake, "gold.totals", "sum(events)") == [(9,)]
    assert read_ledger(copied.lake, reworded.pipeline).balanced


def test_rows_that_replace_a_tables_keep_its_words(commented: World, tmp_path: Path) -> None:
    copied = commented.copied(tmp_path / "copy")
    table = copied.lake.gold("totals")
    before = words_of(table)
    stored = copied.spark.read.format("delta").load(str(table.path))
    plain = stored.select(*[(F.col(name)).alias(name, metadata={}) for name in stored.columns])
    append(plain, table, {"generation": "g1", "batch": 1}, replaces=True)

    assert words_of(table) == before
