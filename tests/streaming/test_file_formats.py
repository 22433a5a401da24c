"""Files that cannot be read, and what `tidelake init` writes for files with types."""

from __future__ import annotations

import re
import runpy
from collections.abc import Iterator
from datetime import timedelta
from io import BytesIO
from pathlib import Path

import fastavro
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.running import START, click, place_of, read, run, versions
from tests.worlds import TO_SILVER, world
from tests.written_files import to_archive, to_avro, to_lines, to_parquet, typed_events
from tidelake.bronze import records
from tidelake.bronze.file_format import Chunk
from tidelake.cli import app
from tidelake.cli.exits import run_command
from tidelake.config import load_environment, load_pipeline
from tidelake.delta.tables import lake_of
from tidelake.errors import SourceChangedError, SourceError
from tidelake.ledger.terms import read_ledger
from tidelake.replay.repairing import repair
from tidelake.runtime import bronze_hop, landed_files
from tidelake.testing import playing


def _recursive_avro(levels: int) -> bytes:
    """Write one record that holds others to some depth."""
    node = {"type": "record", "name": "Node", "fields": [{"name": "n", "type": ["null", "Node"]}]}
    out, marker = BytesIO(), b"m" * 16
    fastavro.writer(out, node, [], sync_marker=marker)
    datum = b"\x02" * levels + b"\x00"
    for number in (1, len(datum)):
        fastavro.schemaless_writer(out, "long", number)
    return out.getvalue() + datum + marker


_NOW = START + timedelta(hours=1)
_TEXT = b"".join(click(number, minute=number) + b"\n" for number in range(5))
_WHOLE: dict[str, dict[str, bytes]] = {
    "parquet": {"b.parquet": to_parquet(typed_events([7]))},
    "avro": {"b.avro": to_avro(typed_events([7])), "c.avro": to_avro(typed_events([8]))},
    "json": {
        "b.gz": to_archive("gz", typed_events(range(5))),
        "c.bz2": to_archive("bz2", typed_events(range(5, 10))),
        "d.bz2": to_archive("bz2", typed_events(range(10, 15))),
        "e.zst": to_archive("zst", typed_events(range(30, 35))),
    },
}
_BROKEN = {
    "parquet": {"b.parquet": (_WHOLE["parquet"]["b.parquet"][:-9], "truncated")},
    "avro": {
        "b.avro": (_WHOLE["avro"]["b.avro"][:-9], "block 1: truncated"),
        # Its values would end the process that reads them.
        "c.avro": (_recursive_avro(levels=9000), "its schema is recursive: Node holds itself"),
    },
    "json": {
        "b.gz": (_WHOLE["json"]["b.gz"][:-9], "truncated or damaged"),
        # Spark reads these without an error, and loses the second half.
        "c.bz2": (_WHOLE["json"]["c.bz2"] + b"BZh9", "truncated"),
        "d.bz2": (_TEXT, "truncated or damaged"),
        "e.zst": (_WHOLE["json"]["e.zst"] + _WHOLE["json"]["e.zst"][:40], "truncated"),
    },
}


@pytest.mark.parametrize(
    "format_",
    [
        "parquet",
        *[pytest.param(name, marks=pytest.mark.long) for name in _WHOLE if name != "parquet"],
    ],
)
def test_broken_files_stop_bronze_by_name_until_they_are_replaced(
    spark: SparkSession, tmp_path: Path, format_: str
) -> None:
    played = world(spark, tmp_path, small=False, source={"format": format_})
    write = {"parquet": to_parquet, "avro": to_avro, "json": to_lines}[format_]
    played.land_bytes("a.first", write(typed_events([20, 21])))
    # Other programs write it beside their Parquet files.
    played.land_bytes("_metadata", b"PAR1")
    played.run(_NOW, hops=TO_SILVER)
    before = versions(played.lake)
    played.land_bytes(f"e.{format_}", write(typed_events([22])))
    for name, (content, _) in _BROKEN[format_].items():
        played.land_bytes(name, content)
    broken = dict(_BROKEN[format_])
    while broken:
        with pytest.raises(SourceError, match=r"(?s)Replace each") as caught:
            played.run(_NOW, hops=TO_SILVER)
        told = str(caught.value)
        assert "Exception" not in told
        assert versions(played.lake) == before
        named = [name for name in broken if re.search(f"/{re.escape(name)}: ", told)]
        assert named, told
        for name in named:
            _, reason = broken.pop(name)
            assert re.search(f"/{re.escape(name)}: .*{reason}", told), told
            played.land_bytes(name, _WHOLE[format_][name])
    played.run(_NOW, hops=TO_SILVER)
    ledger = read_ledger(played.lake, played.pipeline).to_json()
    assert ledger["balanced"]
    assert ledger["bronze"] == 3 + {"parquet": 1, "avro": 2, "json": 20}[format_]


def test_what_cannot_be_read_is_refused_at_the_start_and_when_it_lands(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = world(spark, tmp_path, small=False)
    played.land_bytes("a.jsonl", _TEXT)
    played.land_bytes("b.xz", b"xz")
    with pytest.raises(SourceError, match=r"b\.xz: is an archive"):
        played.run(_NOW, hops=TO_SILVER)
    assert versions(played.lake) == {}
    # It landed after the start.
    with monkeypatch.context() as patch:
        patch.setattr(landed_files.LandingGuard, "check", lambda *_: None)
        with pytest.raises(
            SourceError, match=r"(?s)b\.xz: is an archive.* repair clickstream --hop"
        ):
            played.run(_NOW, hops=TO_SILVER)
    assert read(played.lake, "bronze.clickstream", "record_id") == []
    # Spark reads a batch as if it had no missing file.
    (played.landing / "b.xz").unlink()
    with monkeypatch.context() as patch:
        for _ in range(2):
            with pytest.raises(SourceChangedError) as gone:
                played.run(_NOW, hops=["bronze"])
            assert gone.value.changes == (f"{played.landing}/b.xz: does not exist",)
            assert "tidelake repair clickstream --hop bronze; then run again" in str(gone.value)
            patch.setattr(landed_files, "refuse_unreadable", lambda *_, **__: None)
    repair(played.context, "bronze")
    played.run(_NOW, hops=TO_SILVER)
    assert len(read(played.lake, "bronze.clickstream", "record_id")) == 5
    assert read_ledger(played.lake, played.pipeline).balanced


@pytest.mark.parametrize(("kept_bytes", "reads"), [(bronze_hop.KEPT_FILE_BYTES, 1), (0, 2)])
def test_files_of_a_batch_are_converted_once_unless_they_are_many_bytes(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kept_bytes: int,
    reads: int,
) -> None:
    marks = tmp_path / "marks"

    def read_and_mark(content: bytes) -> Iterator[Chunk]:
        with marks.open("ab") as file:
            file.write(b"x")
        yield pa.array(content.split(), pa.binary()), {}

    monkeypatch.setattr(records, "reader_of", lambda _: read_and_mark)
    monkeypatch.setattr(bronze_hop, "KEPT_FILE_BYTES", kept_bytes)
    played = world(spark, tmp_path, small=False, source={"format": "parquet"})
    played.land_bytes("a.parquet", b"one two")
    played.run(_NOW, hops=["bronze"])
    stored = read(played.lake, "bronze.clickstream", "record_id, payload")
    assert [(place_of(record), bytes(payload)) for record, payload in sorted(stored)] == [
        (("a.parquet", 0), b"one"),
        (("a.parquet", 1), b"two"),
    ]
    assert marks.read_bytes() == b"x" * reads


@pytest.mark.long
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
