"""Whose rows an erasure means, and what it says of tables that are not its own."""

from __future__ import annotations

import json
import re
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
import yaml
from delta.exceptions import ConcurrentDeleteDeleteException, ConcurrentDeleteReadException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.pipelines import bronze, shop
from tests.shops import DEFINITION, Shop
from tests.unit.handmade import write_commit
from tidelake.config import Pipeline, load_environment, load_pipeline
from tidelake.config.source import FilesSource
from tidelake.config.table_settings import FILE_RETENTION, LOG_RETENTION, Publish
from tidelake.delta.access import DELETION_VECTORS
from tidelake.delta.commit_metadata import Arrival, arrivals_in, erasure_of, pipeline_hash
from tidelake.delta.locks import hold_upkeep
from tidelake.delta.log import commits, newest_version
from tidelake.delta.positions import TopicPosition
from tidelake.delta.store import Catalog, CatalogTable
from tidelake.delta.tables import HOPS, Lake
from tidelake.errors import (
    GenerationError,
    LeaseLostError,
    LockedError,
    RefusedError,
    TidelakeError,
    UsageError,
)
from tidelake.folders import write_whole
from tidelake.replay import backfill_state, erase, erase_remains
from tidelake.replay.backfill_state import State, read_state, write_state
from tidelake.replay.erase_records import Erasure, find_all, mentions, read_begun, stored_ids
from tidelake.replay.erase_remains import others
from tidelake.replay.subject import Subject, parse_subject
from tidelake.runtime.checkpointed_frames import CheckpointedFrames
from tidelake.runtime.hop import Run
from tidelake.runtime.progress import Progress


@pytest.mark.parametrize(
    ("value", "text", "found"),
    [
        ("u1", '{"user_id": "u1"', True),
        ("u1", "u1", True),
        ("u1", "user=u1;", True),
        ("u1", '{"user_id":u1}', True),
        ("u1", '{"user_id": "u10"', False),
        ("u1", '{"user_id": "xu1"', False),
        ("u1", '{"user_id": "my_u1"', False),
        ("u1", '{"user_id": "u1-b"', False),
        ("u1", '{"user_id": "U1"', False),
        ("a.b", '"axb"', False),
        ("a.b", '"a.b"', True),
        ("(x", '"(x"', True),
        ("Zoë", '{"name": "Zoë"', True),
        ("Zoë", '{"name": "Zo\\u00eb"', True),
        ("Zoë", '{"name": "Zo\\u00EB"', True),
        ("Zoë", '{"name": "\\u005ao\\u00EB"', True),
        ("\U0001f30a", '{"name": "\\uD83C\\uDF0A"', True),
        ("a/b", '{"name": "a\\/b"', True),
        ("O'Neil", '{"name": "O\\u0027Neil"', True),
        ('a"b', 'e1,"a""b"', True),
        ('a"b', '{"name": "ab"', False),
        ('a"b', '{"name": "a\\"b"', True),
        ("-5", '{"n": -5}', True),
        ("-5", '{"n": 3-5}', False),
    ],
)
def test_a_value_is_found_in_a_broken_payload_as_a_whole_word(
    value: str, text: str, found: bool
) -> None:
    assert bool(re.search(Subject("user_id", value).pattern, text)) is found


def test_what_remains_remains_as_long_as_the_file_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline, lake = shop(tmp_path), Lake(tmp_path)
    kept = {FILE_RETENTION: "interval 60 days", LOG_RETENTION: "interval 90 days"}
    table = pipeline.gold[0].model_copy(update={"properties": kept})
    tables = [lake.gold(table.name), lake.silver("shop")]
    left: list[int | None] = [2]
    monkeypatch.setattr(erase_remains, "filled_tables", lambda _: tables)
    monkeypatch.setattr(erase_remains, "_files_left", lambda *_: left[-1])
    stored = {LOG_RETENTION: "interval 30 days"}
    monkeypatch.setattr(erase_remains, "properties", lambda *_: stored)
    given = [True]
    monkeypatch.setattr(erase_remains, "vacuum_uses_hours", lambda _: given[-1])
    environment, now = load_environment("local", root=str(tmp_path)), datetime.now(UTC)

    def days(pipeline: Pipeline, *, purged: bool = False) -> list[int]:
        run = Run(cast(Any, None), pipeline, lake, environment, Progress(lambda _: None))
        found = erase_remains.old_files(run, purged=purged)
        return [(one.until - now).days for one in found if one.until]

    assert days(pipeline) == [7, 7, 30]
    assert days(pipeline.model_copy(update={"gold": (table,)})) == [60, 7, 90]
    assert days(pipeline.model_copy(update={"gold": ()})) == [7, 7, 30]
    # After --now: files that are still there for a reader, but none that cannot be counted.
    assert days(pipeline, purged=True) == [7, 7, 30]
    left.append(None)
    assert days(pipeline) == [7, 7, 30]
    assert days(pipeline, purged=True) == [30]
    # Where VACUUM goes by the table's property, of a week at least.
    environment = environment.model_copy(update={"recovery_horizon": timedelta(days=2)})
    assert days(pipeline) == [2, 2, 30]
    given.append(False)
    assert days(pipeline) == [7, 7, 30]
    # As somebody set on the tables; maintenance deletes nothing where it cannot read that.
    stored[FILE_RETENTION], stored[LOG_RETENTION] = "45 days", "INTERVAL 365 DAYS"
    assert days(pipeline) == [45, 45, 365]
    run = Run(cast(Any, None), pipeline, lake, environment, Progress(lambda _: None))
    assert "'45 days' keeps them; " in next(erase_remains.old_files(run, purged=False)).remedy


def test_what_bronze_lost_is_recorded_once_in_a_commit_of_the_last_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(tmp_path)
    table, gone = lake.bronze("shop"), Arrival(datetime(2026, 1, 5, tzinfo=UTC), 2, 3, 4, 5, 6)
    note = {"pipeline": "shop", "hop": "bronze", "generation": "g2", "batch": 7, "records": 9}
    write_commit(table, 0, note=note)
    # The delete, which has no metadata.
    write_commit(table, 1, operation="MERGE")

    def append(_: object, own: object, note: dict[str, Any], **options: bool) -> None:
        # Delta would skip an empty commit without an id, and one with the id of the batch.
        assert (own, options) == (table, {"even_empty": True, "may_repeat": True})
        write_commit(table, newest_version(table) + 1, note=note)

    monkeypatch.setattr("tidelake.delta.append.append", append)
    monkeypatch.setattr(
        "tidelake.delta.append.load", lambda *_: SimpleNamespace(limit=lambda _: None)
    )
    environment = load_environment("local", root=str(tmp_path))
    run = Run(cast(Any, None), shop(tmp_path), lake, environment, Progress(lambda _: None))
    begun = Erasure("2026-01-06", "", "", {table.name: 2}, (gone,), (), ())
    # As often as it is continued after an interruption.
    for _ in range(2):
        erase._record_arrivals(run, begun)
        assert [commit.version for commit in commits(table)] == [2, 0]
    newest = next(commits(table))
    assert newest.note.items() >= {**note, "records": 0}.items()
    assert (erasure_of(newest), arrivals_in([newest])) == ("2026-01-06", [gone])


def test_records_to_erase_are_read_under_a_root_that_looks_like_a_pattern(
    spark: SparkSession, tmp_path: Path
) -> None:
    for name, record in (("lake1", "other"), ("lake[12]", "own")):
        lake = Lake(tmp_path / name)
        found = bronze(spark, [{"record_id": record, "payload": b"{}"}])
        folder = lake.erasure("shop").parent / "records"
        found.select("record_id", "ingested_at").coalesce(1).write.parquet(str(folder))
    environment = load_environment("local", root=str(tmp_path))
    run = Run(spark, shop(tmp_path), lake, environment, Progress(lambda _: None))
    assert [row["record_id"] for row in stored_ids(run, "records").collect()] == ["own"]


def test_records_are_found_by_column_row_copy_key_and_header(
    spark: SparkSession, tmp_path: Path
) -> None:
    pipeline = shop(tmp_path)
    environment = load_environment("local", root=str(tmp_path))
    run = Run(spark, pipeline, Lake(tmp_path), environment, Progress(lambda _: None))

    def event(number: int, **values: str) -> str:
        return json.dumps({"event_id": f"e{number}", "event_time": "2026-01-05T10:00:00Z"} | values)

    payloads = {
        "column": event(1, user_id="u1"),
        "another": event(2, user_id="u2", note="u1"),
        # An earlier definition took the user from `uid`.
        "row": event(3, uid="u1"),
        "copy": event(3, uid="u1"),
        "copy of another key": event(3, uid="u1"),
        "unclear": event(4, uid="u1"),
        "unrelated": event(5, uid="u10"),
        "broken": "u1 {",
        "broken, by key": "{",
        "broken, by header": "{",
        "broken, of another": "{",
        "whole, by key": event(6, uid="u3"),
        "whole, by header": event(7),
        "of another, by key": event(8, user_id="u3"),
    }
    keys = {
        "broken, by key": "user-u1; u1",
        "broken, of another": "u10",
        "whole, by key": "u1",
        "of another, by key": "u1",
        "copy of another key": "k",
    }
    frame = bronze(spark, [{"record_id": id_, "payload": one} for id_, one in payloads.items()])
    key = F.element_at(F.create_map(*map(F.lit, sum(keys.items(), ()))), F.col("record_id"))
    header = F.array(F.struct(F.lit("by").alias("key"), F.lit(b"u1").alias("value")))
    has_header = F.col("record_id").isin("broken, by header", "whole, by header")
    frame = frame.withColumns(
        {"key": key.cast("binary"), "headers": F.when(has_header, header)}
    ).drop("reason", "requeued_at")
    frame.write.format("delta").save(str(run.lake.bronze("shop").path))
    stored = spark.createDataFrame(
        [("row", "u1"), ("another", "u2")], "record_id string, user_id string"
    )
    stored.write.format("delta").save(str(run.lake.silver("shop").path))

    with CheckpointedFrames() as frames:
        found, unclear = find_all(run, Subject("user_id", "u1"), frames)
        ids = sorted(row["record_id"] for row in found.collect())
    assert ids == sorted(["column", "row", "copy", "broken", "broken, by key", "broken, by header"])
    # Of another key, without a row, and the two whose payloads do not say whose they are.
    assert unclear == 4


def test_a_value_is_found_in_broken_avro_by_the_length_that_stands_before_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    source = {"kind": "kafka", "bootstrap": "b:1", "topic": "t", "format": "avro"}
    (tmp_path / "click.avsc").write_text("{}")
    pipeline = shop(tmp_path, source=source | {"schema": "click.avsc"})
    of_24 = "customer-0123456789-abcd"
    cases = [
        # The length of 24 letters is written as the digit 0.
        (of_24, b"\x00\x07\x30" + of_24.encode() + b"zz", True),
        (of_24, b"\x32" + of_24.encode() + b"zz", False),
        ("u1", b"\xff\x04u1next", True),
        ("u1", b"\xff\x06u10", False),
        ("Zoë", b"\x08Zo\xc3\xabx", True),
        ("x" * 100, b"\xc8\x01" + b"x" * 100 + b"x", True),
    ]
    for value, payload, found in cases:
        frame = bronze(spark, [{"record_id": "r", "payload": payload}])
        found_in = mentions(F.col("payload"), Subject("user_id", value), pipeline)
        told = frame.select(found_in.alias("found"))
        assert told.collect()[0]["found"] is found, value


def test_a_value_is_found_in_a_broken_record_of_csv_in_the_encoding_of_its_file(
    spark: SparkSession, tmp_path: Path
) -> None:
    source = {"kind": "files", "path": "in", "format": "csv", "csv": {"encoding": "cp1252"}}
    pipeline = shop(tmp_path, source=source)
    cases = [
        ("Zoë", b"e1,Zo\xeb", True),
        ("Zoë", b"e1,Zo\xebl", False),
        ("Zoę", b"e1,Zo", False),
        # Java's regular expressions, not Python's.
        ("Zoë/\U0001f30a", rb'"{""name"": ""Zo\u00EB\/\ud83C\uDF0a""', True),
        ('a"b', b'e1,"a""b"', True),
    ]
    for value, payload, found in cases:
        frame = bronze(spark, [{"record_id": "r", "payload": payload}])
        found_in = mentions(F.col("payload"), Subject("user_id", value), pipeline)
        told = frame.select(found_in.alias("found"))
        assert told.collect()[0]["found"] is found, payload


def test_a_subject_is_a_column_of_silver_and_a_value(tmp_path: Path) -> None:
    pipeline = load_pipeline("clickstream", load_environment("local", root=str(tmp_path)))
    assert parse_subject("user_id=a=b", pipeline) == Subject("user_id", "a=b")
    assert parse_subject("event_id=e1", pipeline).column == "event_id"
    for text in ("user_id", "=u1", "user_id=", ""):
        with pytest.raises(UsageError, match="COLUMN=VALUE"):
            parse_subject(text, pipeline)
    # What a dimension gives is no property of the event.
    for text in ("category=c1", "record_id=x", "USER_ID=u1"):
        with pytest.raises(UsageError, match="Its event columns: event_id, user_id") as refused:
            parse_subject(text, pipeline)
        assert "u1" not in str(refused.value)


def test_of_a_dimension_s_key_all_changes_are_erased_or_none(tmp_path: Path) -> None:
    """Without the newest, the change before it would be current again."""
    dimension = {"key": ["user_id"], "history": False}
    pipeline = shop(
        tmp_path, kind="dimension", event={"sequence": "value"}, dimension=dimension, gold=[]
    )
    run = cast(Run, SimpleNamespace(pipeline=pipeline, lake=Lake(tmp_path)))
    refused = pytest.raises(
        UsageError, match=r"^value is not in the key of .* by the key: --subject user_id=VALUE\."
    )
    with refused as error:
        read_begun(run, Subject("value", "12.5"))
    assert "12.5" not in str(error.value)
    with refused:
        find_all(run, Subject("value", "12.5"), cast(Any, None))
    for column in ("user_id", "event_id"):
        assert read_begun(run, Subject(column, "u1")) is None
    # One that an earlier version began must be finished.
    subject = Subject("value", "12.5")
    begun = Erasure("2026", subject.hashed, pipeline_hash(pipeline), {}, (), (), ())
    write_whole(run.lake.erasure("shop"), msgspec.json.encode(begun).decode())
    assert read_begun(run, subject) == begun


def test_a_dimension_that_was_replaced_does_not_keep_an_erasure_from_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backfill is the way on then, and an unfinished erasure refuses it."""

    def refuse(*_: object) -> None:
        raise GenerationError("rows were looked up in version 3 of dim.goods", "Restore it")

    said, ran = list[str](), list[Any]()
    run: Any = SimpleNamespace(lake=Lake(tmp_path), pipeline=None, progress=Progress(said.append))
    monkeypatch.setattr(erase, "run_hops", lambda _, hops, *__, **___: ran.append(hops))
    monkeypatch.setattr(erase, "refuse_replaced", lambda *_: None)
    erase._process(run)
    assert (ran, said) == ([["silver", "gold"]], [])
    monkeypatch.setattr(erase, "refuse_replaced", refuse)
    erase._process(run)
    assert len(ran) == 1
    assert said[0].startswith("The requeued rows wait for a backfill: rows were looked up")


def test_a_hash_of_a_subject_tells_it_from_others_and_does_not_hold_it() -> None:
    assert Subject("a", "zoe").hashed != Subject("b", "zoe").hashed != Subject("b", "zoey").hashed
    assert "zoe" not in Subject("a", "zoe").hashed


def test_tables_that_hold_what_came_from_the_pipeline_are_named_with_their_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(tmp_path)
    use = {"dimensions": [["dim.users", 3, 0]], "counts": [], "taken": {}, "partitions": {}}
    books = {**use, "watermark_in": None, "watermark": None, "until": {}, "warnings": {}}
    silver = {**books, "dedup": {"searched": 0, "seconds": 0}, "prefiltered": None, "columns": []}
    notes: dict[str, dict[str, Any]] = {
        "gold.mine": {"pipeline": "users", "hop": "gold"},
        "gold.dropped": {"pipeline": "users", "hop": "gold"},
        "gold.joined": {"pipeline": "shop", "hop": "gold", "until": {"silver.users": [1, -1]}},
        "gold.apart": {"pipeline": "alone", "hop": "gold", "until": {"silver": [1, -1]}},
        "silver.shop": {"pipeline": "shop", "hop": "silver", **silver},
        "silver.users": {"pipeline": "users", "hop": "silver", **silver},
        "bronze.sent": {"pipeline": "sent", "hop": "bronze"},
        "silver.sent": {"pipeline": "sent", "hop": "silver", **silver, "dimensions": []},
        "gold.sent_1h": {"pipeline": "sent", "hop": "gold"},
    }
    for name, note in notes.items():
        write_commit(lake.table(name), 0, note={"generation": "g1", "batch": 1, **note})
    # The definition has no lookup any more, the table has its columns.
    later = {**notes["silver.shop"], "dimensions": []}
    write_commit(lake.silver("shop"), 1, note={"generation": "g1", "batch": 2, **later})
    write_commit(lake.gold("odd__reconciled"), 0, note={"reconciled": "odd"})
    (tmp_path / "backfill" / "shop").mkdir(parents=True)
    mine: Any = SimpleNamespace(pipeline=SimpleNamespace(name="users", gold_names=("dim.users",)))
    mine.pipeline.gold_names = ("dim.users", "gold.mine")
    mine.pipeline.source = SimpleNamespace(kind="files")
    mine.pipeline.dimension = SimpleNamespace(key=["id"])
    fast = SimpleNamespace(topic="odd-alerts", pipeline="sent")
    mine.pipeline.detections = (
        SimpleNamespace(name="odd", fast=fast),
        SimpleNamespace(name="none", fast=SimpleNamespace(topic="none", pipeline="none")),
        SimpleNamespace(name="slow", fast=None),
    )
    mine.pipeline.published = {"gold.mine": Publish(topic="mine", bootstrap="h:1")}

    mine.spark = None
    lane = lake.fast("odd")
    (lane / "checkpoint-0").mkdir(parents=True)
    (lane / "known").mkdir()
    monkeypatch.setattr(erase_remains, "asks_brokers", lambda *_: True)
    told = {one.where: one.remedy for one in others(lake, mine)}
    of_sent = "tidelake erase sent --subject COLUMN=VALUE"

    assert told == {
        "gold.dropped": "remove the table's folder",
        "bronze.sent, silver.sent, gold.sent_1h": of_sent,
        "topic odd-alerts": "not managed by Tidelake: it keeps its records until its retention "
        "time ends",
        str(lane / "known"): "stop the lane, which deletes it, and start it again: tidelake fast "
        "run users",
        # Reconciling first would write the alerts back.
        "gold.odd__reconciled": f"first {of_sent}; then tidelake fast reconcile users; tidelake "
        "maintain users deletes the old files",
        "silver.shop": "tidelake erase shop --subject COLUMN=VALUE",
        "topic mine": "delete the topic: with the table's next change all rows are published to "
        "a new one",
        "gold of shop": "tidelake repair shop --hop gold",
        "backfill/shop": "tidelake backfill run shop from the start, or remove the folder",
    }
    # A topic of the same name would be taken for the old one there.
    monkeypatch.setattr(erase_remains, "asks_brokers", lambda *_: False)
    (lane / "alerts").mkdir()
    told = {one.where: one.remedy for one in others(lake, mine)}
    assert told["topic mine"].startswith("write another topic in the pipeline file, then delete")
    # A lane over files writes its alerts to files.
    assert "topic odd-alerts" not in told
    assert "delete or archive whole files" in told[str(lane / "alerts")]


def test_topics_that_the_definition_no_longer_names_and_those_of_other_pipelines_are_named(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes: dict[str, dict[str, Any]] = {
        "gold.mine": {"pipeline": "users", "hop": "gold"},
        "gold.kept": {"pipeline": "users", "hop": "gold"},
        "gold.dropped": {"pipeline": "users", "hop": "gold"},
        "gold.joined": {"pipeline": "shop", "hop": "gold", "until": {"silver.users": [1, -1]}},
        "gold.apart": {"pipeline": "alone", "hop": "gold", "until": {"silver": [1, -1]}},
    }
    for name, note in notes.items():
        table, bare = lake.table(name), name.partition(".")[2]
        write_commit(table, 0, note={"generation": "g1", "batch": 1, **note})
        for version, topic in enumerate([f"{bare}-old", bare], start=1):
            reached = TopicPosition(topic, "", ("user_id",), 0)
            write_commit(table, version, metadata=reached.options(table)["userMetadata"])
    mine: Any = SimpleNamespace(pipeline=SimpleNamespace(name="users", detections=()), spark=None)
    mine.pipeline.gold_names = ("gold.mine", "gold.kept")
    # The other table's topic was removed from the file.
    mine.pipeline.published = {"gold.mine": Publish(topic="mine", bootstrap="h:1")}
    monkeypatch.setattr(erase_remains, "asks_brokers", lambda *_: True)
    told = {one.where: one.remedy for one in others(lake, mine) if one.where.startswith("topic")}
    own = ("mine-old", "kept", "kept-old", "dropped", "dropped-old")
    of_own = "delete the topic: the pipeline no longer publishes to it"
    of_shop = (
        "tidelake repair shop --hop gold; then, if shop still publishes to it, write another topic "
        "in its pipeline file; then delete this one"
    )
    assert told.pop("topic mine").startswith("delete the topic: with the table's next change")
    assert told == {
        **dict.fromkeys([f"topic {one}" for one in own], of_own),
        "topic joined": of_shop,
        "topic joined-old": of_shop,
    }


def test_a_pipeline_that_reads_a_table_as_its_source_is_named_before_and_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = Shop(tmp_path / "lake").run(1)
    folder = tmp_path / "project" / "conf" / "pipelines"
    folder.mkdir(parents=True)
    sources = {
        "shop": "${root}/bronze/shop",
        "reader": "${root}/silver/shop",
        "stranger": "${root}/silver/another",
        "invalid": 1,
    }
    for name, path in sources.items():
        source = {"kind": "delta", "path": path}
        content = {**DEFINITION, "name": name, "source": source, "gold": []}
        (folder / f"{name}.yml").write_text(yaml.safe_dump(content))
    monkeypatch.chdir(tmp_path / "project")
    environment = load_environment("local", root=str(played.root))
    said = list[str]()
    run = Run(cast(Any, None), played.pipeline, played.lake, environment, Progress(said.append))
    found = [(name, one.where, one.what) for name, one in erase_remains.readers(run)]
    refused = "once rows of it are deleted, its next run of hop bronze is refused"
    assert found == [("reader", "silver.shop", f"read by reader as its source; {refused}")]

    def begin(*_: object) -> tuple[None, int]:
        # It is warned of before anything is done.
        assert "First erase the subject there: tidelake erase reader --subject" in said[0]
        return None, 0

    monkeypatch.setattr(erase, "_drain", lambda _: None)
    monkeypatch.setattr(erase.generations, "fitted_to_bronze", lambda _: nullcontext())
    monkeypatch.setattr(erase.erase_records, "begin", begin)
    report = erase.erase(run, Subject("user_id", "u1"))
    assert found[0][2] in [one.what for one in report.remains]
    monkeypatch.setattr(erase.erase_records, "find_all", lambda *_: (None, 0))
    monkeypatch.setattr(erase.erase_records, "count_rows", lambda *_: {})
    said.clear()
    erase.look(run, Subject("user_id", "u1"))
    assert len(said) == 1 and said[0].startswith("warning: silver.shop is read by reader")


def _erasing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Shop, Run, list[str]]:
    """Give a run without Spark, whose erasure finds nobody, and what it does, in order."""
    played, done = Shop(tmp_path).run(1), list[str]()
    note = {"pipeline": "shop", "hop": "bronze", "generation": "g1", "batch": 1}
    erased = {"by": "an earlier one", "arrivals": []}
    write_commit(played.lake.bronze("shop"), 1, note={**note, "erased": erased})
    monkeypatch.setattr(erase, "vacuum_uses_hours", lambda _: True)
    monkeypatch.setattr(erase, "_drain", lambda _: done.append("drained"))
    monkeypatch.setattr(erase.generations, "fitted_to_bronze", lambda _: nullcontext())
    monkeypatch.setattr(erase.erase_records, "begin", lambda *_: (None, 0))
    monkeypatch.setattr(erase, "purge", lambda _: done.append("purged") or [])
    monkeypatch.setattr(erase, "old_files", lambda _, *, purged: ())
    environment = load_environment("local", root=str(tmp_path))
    run = Run(cast(Any, None), played.pipeline, played.lake, environment, Progress(lambda _: None))
    return played, run, done


def test_beside_maintenance_nothing_is_erased_and_none_begins_until_the_files_are_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a compaction is about to commit would be deleted, or keep the subject's rows."""
    played, run, done = _erasing(tmp_path, monkeypatch)
    with (
        hold_upkeep(played.lake, "shop"),
        pytest.raises(
            LockedError, match=r"^shop, upkeep \(maintain, erase or rollback\), is being"
        ),
    ):
        erase.erase(run, Subject("user_id", "u1"), now=True)
    assert done == []

    def refused(name: str) -> None:
        with pytest.raises(LockedError, match="shop, upkeep"), hold_upkeep(played.lake, "shop"):
            pass
        done.append(name)

    monkeypatch.setattr(erase, "_drain", lambda _: refused("drained"))
    monkeypatch.setattr(erase, "purge", lambda _: refused("purged") or [])
    erase.erase(run, Subject("user_id", "u1"), now=True)
    assert done == ["drained", "purged"]
    # And of one that was cut off the lock is free.
    monkeypatch.setattr(erase, "purge", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        erase.erase(run, Subject("user_id", "u1"), now=True)
    with hold_upkeep(played.lake, "shop"):
        pass


def test_an_erasure_checks_the_lock_of_maintenance_before_each_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, run, done = _erasing(tmp_path, monkeypatch)

    def check() -> None:
        if done:
            raise LeaseLostError("shop, upkeep,", "s3://lake/.lock")

    monkeypatch.setattr(erase, "hold_upkeep", lambda *_: nullcontext(check))
    with pytest.raises(LeaseLostError, match=r"Done: process what .* Not begun: delete old files"):
        erase.erase(run, Subject("user_id", "u1"), now=True)
    assert done == ["drained"]


@pytest.mark.parametrize(
    ("stated", "on_databricks", "is_refused"),
    [
        ("ENABLE (inherited from METASTORE m)", False, True),
        ("INHERIT", True, True),
        ("DISABLE", True, False),
        ("DISABLE (inherited from SCHEMA c.silver)", True, False),
        # A catalog that is not Unity Catalog has no such row.
        (None, False, False),
        (None, True, True),
    ],
)
def test_beside_predictive_optimization_files_are_not_deleted_at_once_and_nothing_is_erased(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stated: str | None,
    on_databricks: bool,
    is_refused: bool,
) -> None:
    """Its OPTIMIZE takes no lock, and its files are not committed yet."""
    _, run, done = _erasing(tmp_path, monkeypatch)
    monkeypatch.delenv("DATABRICKS_RUNTIME_VERSION", raising=False)
    if on_databricks:
        monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "17.3")
    catalog = Catalog("c", lambda: cast(Any, None))
    tables = [CatalogTable(f"{layer}.shop", catalog, layer, "shop") for layer in ("silver", "gold")]
    monkeypatch.setattr(erase, "filled_tables", lambda _: [run.lake.bronze("shop"), *tables])

    def sql(statement: str) -> Any:
        assert statement.startswith("DESCRIBE TABLE EXTENDED `c`.")
        rows = [{"col_name": "Provider", "data_type": "delta"}]
        # Of gold it is off.
        own = stated if "`silver`" in statement or stated is None else "DISABLE"
        if own is not None:
            rows.append({"col_name": "Predictive Optimization", "data_type": own})
        return SimpleNamespace(collect=lambda: rows)

    run = replace(run, spark=cast(Any, SimpleNamespace(sql=sql)))
    if not is_refused:
        erase.erase(run, Subject("user_id", "u1"), now=True)
        assert done == ["drained", "purged"]
        return
    with pytest.raises(RefusedError) as told:
        erase.erase(run, Subject("user_id", "u1"), now=True)
    assert done == []
    assert "ALTER SCHEMA `c`.`silver` DISABLE PREDICTIVE OPTIMIZATION" in str(told.value)
    assert ("`gold`" in str(told.value)) is (stated is None)
    assert "Erase without --now, and let tidelake maintain shop" in str(told.value)
    erase.erase(run, Subject("user_id", "u1"), now=False)
    assert done == ["drained"]


@pytest.mark.parametrize(("now", "more"), [(True, " --now"), (False, "")])
def test_an_erasure_that_met_another_commit_names_the_command_that_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, now: bool, more: str
) -> None:
    _, run, _ = _erasing(tmp_path, monkeypatch)

    def conflict(_: object) -> None:
        raise ConcurrentDeleteReadException("[DELTA_CONCURRENT_DELETE_READ] u1")

    monkeypatch.setattr(erase, "_drain", conflict)
    command = f"tidelake erase shop --subject user_id=VALUE{more}, with the same value"
    with pytest.raises(TidelakeError) as told:
        erase.erase(run, Subject("user_id", "u1"), now=now)
    message = str(told.value)
    assert message.startswith("shop, erasure stopped: ConcurrentDeleteReadException")
    assert f"\nIt is not finished. Continue with: {command}. " in message


def test_rows_hidden_by_a_deletion_vector_are_purged_after_a_conflict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with maintenance of a release that takes no lock."""
    ran = list[str]()

    def sql(statement: str) -> None:
        ran.append(statement)
        if len(ran) == 1:
            raise ConcurrentDeleteDeleteException("[DELTA_CONCURRENT_DELETE_DELETE]")

    monkeypatch.setattr(erase, "properties", lambda *_: {DELETION_VECTORS: "true"})
    table = Lake(tmp_path).silver("shop")
    erase._purge_vectors(cast(Any, SimpleNamespace(sql=sql)), table)
    assert ran == [f"REORG TABLE {table.sql} APPLY (PURGE)"] * 2


def test_tables_of_a_backfill_that_a_catalog_keeps_for_a_week_are_named(tmp_path: Path) -> None:
    tables = {"silver": ["shop", "shop__green_shop"], "gold": ["totals__green_shop"]}

    def sql(statement: str) -> Any:
        rows: list[Any] = []
        if statement.startswith("SHOW SCHEMAS"):
            rows = [(one,) for one in tables]
        elif statement.startswith("SHOW TABLES"):
            layer = statement.rpartition("`.`")[2].rstrip("`")
            rows = [{"tableName": one, "isTemporary": False} for one in tables[layer]]
        return SimpleNamespace(collect=lambda: rows)

    spark = cast(Any, SimpleNamespace(sql=sql))
    lake = Lake(tmp_path, catalog=Catalog("c", lambda: spark), needs_locks=False)
    environment = load_environment("local", root=str(tmp_path))
    run = Run(spark, shop(tmp_path), lake, environment, Progress(lambda _: None))
    found = list(erase_remains.dropped(backfill_state.clear(run)))
    assert [one.where for one in found] == ["silver.shop__green_shop", "gold.totals__green_shop"]
    assert [(one.until - datetime.now(UTC)).days for one in found if one.until] == [6, 6]


@pytest.mark.parametrize("has_erased", [False, True])
def test_where_nobody_is_found_a_rollback_is_kept_or_its_end_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_erased: bool
) -> None:
    """With --now: files of an earlier erasure are deleted, with those that a rollback needs."""
    played = Shop(tmp_path).run(2)
    purged: list[str] = []
    monkeypatch.setattr(erase, "vacuum_uses_hours", lambda _: True)
    monkeypatch.setattr(erase, "_drain", lambda _: None)
    monkeypatch.setattr(erase.generations, "fitted_to_bronze", lambda _: nullcontext())
    # Of two records nobody can tell whose they are.
    monkeypatch.setattr(erase.erase_records, "begin", lambda *_: (None, 2))
    monkeypatch.setattr(erase, "purge", lambda run: purged.append(run.pipeline.name) or [])
    monkeypatch.setattr(erase, "old_files", lambda _, *, purged: ())
    monkeypatch.setattr(erase, "clear", lambda run: [*backfill_state.clear(run), "gold.green"])
    if has_erased:
        note = {"pipeline": "shop", "hop": "bronze", "generation": "g1", "batch": 1}
        erased = {"by": "an earlier one", "arrivals": []}
        write_commit(played.lake.bronze("shop"), 2, note={**note, "erased": erased})
    write_state(played.lake, played.pipeline, State("silver", "hash", "promoted"))
    environment, said = load_environment("local", root=str(tmp_path)), list[str]()
    run = Run(cast(Any, None), played.pipeline, played.lake, environment, Progress(said.append))
    report = erase.erase(run, Subject("user_id", "nobody"), now=True)
    assert report.rows == {}
    assert report.rollback_given_up is has_erased
    assert (read_state(played.lake, played.pipeline) is None) is has_erased
    assert purged == (["shop"] if has_erased else [])
    told = {one.where: one.what for one in report.remains}
    assert told["bronze.shop"] == "2 records that mention the value, without a user_id"
    assert ("gold.green" in told) is has_erased
    assert said == ([] if has_erased else ["no row was erased, now or before: old files are kept"])


@pytest.mark.parametrize(("name", "hops"), [("a.json", HOPS), ("a.orc", ("silver", "gold"))])
def test_a_file_that_cannot_be_read_does_not_keep_the_tables_from_being_erased(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, hops: tuple[str, ...]
) -> None:
    played = Shop(tmp_path).run(1)
    source = played.pipeline.source
    assert isinstance(source, FilesSource)
    Path(source.paths[0]).mkdir(exist_ok=True)
    (Path(source.paths[0]) / name).write_bytes(b"{}")
    ran: list[str] = []
    monkeypatch.setattr(erase, "run_hops", lambda run, hops, *_, **__: ran.extend(hops))
    environment, said = load_environment("local", root=str(tmp_path)), list[str]()
    run = Run(cast(Any, None), played.pipeline, played.lake, environment, Progress(said.append))
    erase._drain(run)
    assert tuple(ran) == hops
    assert any("a.orc" in line for line in said) is (name == "a.orc")
