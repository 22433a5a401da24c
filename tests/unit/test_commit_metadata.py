"""Silver's notes: what is written is what is read, and sums by fate."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyspark
import pytest

import tidelake
from tests.pipelines import shop
from tests.unit.handmade import write_commit
from tidelake.config import GlobalWindow, Pipeline, SessionWindow
from tidelake.config.gold_definitions import FinalAfter
from tidelake.delta.commit_metadata import (
    FateCount,
    Final,
    SilverNote,
    add_up,
    changed_definition,
    changed_parts,
    decision_note,
    definition_note,
    final_note,
    hash_of,
    is_decided_by,
    position,
    positions,
    settled_until,
    silver_note,
    typed_as,
)
from tidelake.delta.log import Commit
from tidelake.delta.positions import BEGINNING
from tidelake.delta.tables import Lake
from tidelake.fingerprints import EMPTY, Fingerprint
from tidelake.ledger.commit_checks import Mark
from tidelake.silver.watermark import PartitionProgress

NOON = datetime(2024, 1, 1, 12, 0, 0, 123456, tzinfo=UTC)
COUNTS = (
    FateCount("silver", None, "bronze", 3, 0b1100),
    FateCount("silver", None, "late", 2, 0b1010),
    FateCount("quarantined", "parse", "bronze", 1, 0b0001),
)
NOTE = SilverNote(
    watermark_in=None,
    watermark=NOON,
    partitions={"0": PartitionProgress(None, NOON), "t:1": PartitionProgress(NOON, NOON)},
    counts=COUNTS,
    taken={"bronze": 4, "requeue": 2},
    until={"bronze": (7, -1), "requeue": (0, -1)},
    warnings={"value: rule()": 2},
    searched=9,
    seconds=1.25,
    prefiltered=3,
    columns=("colour",),
)


def commit(note: dict[str, object]) -> Commit:
    stored = json.loads(json.dumps({"generation": "g1", "batch": 0, **note}))
    return Commit(1, NOON, None, stored)


def test_a_note_is_read_as_it_was_written() -> None:
    assert SilverNote.of(commit(NOTE.to_json())) == NOTE


def test_the_commit_that_made_the_table_has_an_empty_note() -> None:
    assert SilverNote.of(commit({})) == SilverNote()
    assert SilverNote.of(None) == SilverNote()


def test_rows_are_summed_by_fate_in_their_order() -> None:
    assert list(NOTE.total().items()) == [
        ("silver", 5),
        ("duplicate", 0),
        ("quarantined", 1),
        ("late", 0),
        ("filtered", 0),
    ]
    assert add_up([]).total() == 0


def test_fingerprints_of_disjoint_counts_combine_in_any_order() -> None:
    pairs = [(count.rows, count.mark) for count in COUNTS]
    assert Mark.of(pairs) == Mark.of(reversed(pairs)) == Mark(6, Fingerprint(0b0111, None))
    summed = [(1, count._replace(id_sum=1 << 62).mark) for count in COUNTS]
    assert Mark.of(summed).fingerprint == Fingerprint(0b0111, (len(COUNTS) << 62) - (1 << 64))
    assert Mark.of(()).fingerprint == EMPTY


def test_a_commit_knows_how_far_it_went_in_each_input() -> None:
    noted = commit(NOTE.to_json())
    assert positions(noted) == {"bronze": (7, -1), "requeue": (0, -1)}
    assert (position(noted, "bronze"), position(noted, "silver")) == ((7, -1), BEGINNING)
    assert (positions(None), position(None, "bronze")) == ({}, BEGINNING)


def test_what_decided_a_batch_is_the_same_only_with_equal_definition_dimensions_and_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, pins = shop(tmp_path), {"dim.products": 3}
    note = decision_note(plain, pins)
    assert is_decided_by(commit(note), note)
    assert not is_decided_by(commit({}), note)
    # With a function of the user's nothing is: its code is in no file that Tidelake knows.
    calls = {"function": "risk:scored", "columns": "risk STRING"}
    scored = decision_note(shop(tmp_path, transform=calls), pins)
    assert not is_decided_by(commit(scored), scored)
    others = [
        decision_note(plain, {"dim.products": 4}),
        decision_note(shop(tmp_path, gold=[]), pins),
    ]
    for package in (tidelake, pyspark):
        with monkeypatch.context() as patched:
            patched.setattr(package, "__version__", "0.0.0")
            others.append(decision_note(plain, pins))
    for other in others:
        assert not is_decided_by(commit(note), other)


def test_a_definition_is_known_with_and_without_the_types_that_values_were_computed_from() -> None:
    one = GlobalWindow(kind="global")
    other = SessionWindow.model_validate({"kind": "session", "gap": "1 minute"})
    types = {"silver.price": "decimal(10,2)"}
    for given in ({}, types):
        last = commit(definition_note(one, given))
        assert typed_as(last) == given
        assert not changed_definition(last, one) and changed_definition(last, other)
    assert typed_as(None) == typed_as(commit({})) == {}
    assert not changed_definition(commit({}), one)
    # Commits of earlier versions have the hash alone.
    assert definition_note(one) == {"definition": hash_of(one)}


READ_OF_BRONZE = " (all of bronze is read by it: restore it, or use another pipeline or --root)"
TOPIC = {"kind": "kafka", "bootstrap": "b:1", "topic": "t"}
REGISTRY = {"url": "https://registry:8081", "subject": "t-value"}


@pytest.mark.parametrize(
    ("sql", "before", "after", "is_other"),
    [
        # A payload field that hides bronze's column.
        ("key", "n INT", "n INT, Key STRING", True),
        ("record_id", "n INT", "n INT, key STRING", False),
        # "007" becomes 7, and a:1.5 becomes a:1.50.
        ("n", "n STRING", "n BIGINT", True),
        ("concat('a:', n)", "n DECIMAL(18,1)", "n DECIMAL(18,2)", True),
        ("n", "n FLOAT", "n DOUBLE", True),
        ("xxhash64(n)", "n INT", "n BIGINT", True),
        # Types of which each value has the same text.
        ("concat('a:', n)", "n DECIMAL(18,2)", "n DECIMAL(20,2)", False),
        ("n", "n INT", "n BIGINT", False),
        ("n", "n BIGINT", "n DECIMAL(38,0)", False),
        ("n", "n INT, other STRING", "n INT, other BIGINT", False),
        # Members of a struct.
        ("s.n", "s STRUCT<n: INT>", "s STRUCT<n: INT, m: STRING>", False),
        ("s.n", "s STRUCT<n: STRING>", "s STRUCT<n: INT>", True),
        ("s[0].n", "s ARRAY<STRUCT<n: STRING>>", "s ARRAY<STRUCT<n: INT>>", True),
        ("to_json(s)", "s STRUCT<n: INT>", "s STRUCT<n: INT, m: STRING>", True),
    ],
)
def test_an_id_has_another_meaning_if_its_columns_have_other_texts(
    tmp_path: Path, sql: str, before: str, after: str, is_other: bool
) -> None:
    def with_fields(ddl: str) -> Pipeline:
        event = {"schema": f"event_time TIMESTAMP, user_id STRING, {ddl}", "id": sql}
        return shop(tmp_path, event=event | {"select": {"user_id": "user_id"}})

    last = commit(silver_note(with_fields(before)))
    changed = changed_parts(last, with_fields(after))
    assert changed.identity == (("type of a column in event.id",) if is_other else ())
    assert changed.rules == ("event.schema",)
    # Commits of earlier versions do not say what the columns were.
    del last.note["definition"]["type of a column in event.id"]
    assert changed_parts(last, with_fields(after)).identity == ()


def test_an_order_has_another_meaning_if_its_column_may_have_other_values(tmp_path: Path) -> None:
    def ordered(kind: str, sql: str = "n", event_id: str = "event_id") -> Pipeline:
        event = {
            "schema": f"event_id STRING, event_time TIMESTAMP, user_id STRING, n {kind}",
            "select": {"user_id": "user_id"},
            **{"id": event_id, "sequence": sql, "delete_when": "n < 0"},
        }
        keys = {"kind": "dimension", "dimension": {"key": ["user_id"]}, "gold": []}
        return shop(tmp_path, event=event, **keys)

    last = commit(silver_note(ordered("DECIMAL(10,2)")))
    assert changed_parts(last, ordered("DECIMAL(12,4)")).identity == ()
    words = "type of a column in event."
    assert changed_parts(last, ordered("STRING")).identity == (
        f"{words}sequence",
        f"{words}delete_when",
    )
    computed = commit(silver_note(ordered("DECIMAL(10,2)", "cast(n as string)")))
    found = changed_parts(computed, ordered("DECIMAL(10,3)", "cast(n as string)"))
    assert found.identity == (f"{words}sequence",)
    # What is written otherwise is not reported a second time.
    found = changed_parts(last, ordered("DECIMAL(10,2)", event_id="concat(event_id, n)"))
    assert found.identity == ("event.id",)


def test_payloads_that_are_decoded_otherwise_are_other_events(tmp_path: Path) -> None:
    (tmp_path / "c.avsc").write_text('{"type": "record", "name": "C", "fields": []}')
    files = [
        {"kind": "files", "path": "x", "format": format_}
        for format_ in ("json", "csv", "parquet", "avro")
    ]
    topics = [
        TOPIC,
        TOPIC | {"format": "avro", "registry": REGISTRY},
        TOPIC | {"format": "avro", "schema": "c.avsc"},
    ]
    json_, csv, parquet, avro = (shop(tmp_path, source=source) for source in files)
    topic, framed, of_file = (shop(tmp_path, source=source) for source in topics)
    same = [(json_, parquet), (parquet, avro), (json_, topic), (csv, csv), (of_file, of_file)]
    for before, after in same:
        assert changed_parts(commit(silver_note(before)), after).identity == ()
    for before, after in [(json_, csv), (csv, parquet), (topic, framed), (of_file, topic)]:
        last = commit(silver_note(before))
        assert changed_parts(last, after).identity == (f"source.format{READ_OF_BRONZE}",)
        del last.note["definition"]["source.format"]
        assert changed_parts(last, after).identity == ()
    changed = changed_parts(commit(silver_note(framed)), of_file)
    assert changed.identity == (f"fields of source.schema{READ_OF_BRONZE}",)


@pytest.mark.parametrize(
    ("fields", "is_other"),
    [
        ([{"name": "a", "type": "int", "doc": "How many."}], False),
        ([{"name": "a", "type": "int", "default": 0, "aliases": ["b"]}], False),
        ([{"name": "a", "type": "long"}], True),
        ([{"name": "b", "type": "int"}], True),
        ([{"name": "a", "type": "int"}, {"name": "b", "type": ["null", "int"]}], True),
    ],
)
def test_stored_payloads_are_not_read_by_another_schema_than_they_were_written_with(
    tmp_path: Path, fields: list[dict[str, object]], is_other: bool
) -> None:
    def written(fields: list[dict[str, object]]) -> Pipeline:
        schema = {"type": "record", "name": "C", "doc": str(len(fields)), "fields": fields}
        (tmp_path / "c.avsc").write_text(json.dumps(schema))
        return shop(tmp_path, source=TOPIC | {"format": "avro", "schema": "c.avsc"})

    last = commit(silver_note(written([{"name": "a", "type": "int"}])))
    found = changed_parts(last, written(fields)).identity
    assert found == ((f"fields of source.schema{READ_OF_BRONZE}",) if is_other else ())


def test_rows_are_final_once_what_may_follow_their_end_is_late() -> None:
    ends = FinalAfter("session_end", timedelta(minutes=30))
    half_an_hour_before = Final("session_end", NOON - timedelta(minutes=30))
    assert Final.of(commit(final_note(ends, NOON))) == half_an_hour_before
    assert Final.of(commit(final_note(ends, None))) == Final("session_end", None)
    assert Final.of(commit(final_note(None, NOON))) is None


def test_rows_that_an_event_at_their_end_changes_are_final_an_instant_later() -> None:
    closed, open_ended = FinalAfter.after_last("a"), FinalAfter("a")
    found = [Final.of(commit(final_note(ends, NOON))) for ends in (open_ended, closed)]
    assert found == [Final("a", NOON), Final("a", NOON - timedelta(microseconds=1))]


def test_what_is_settled_is_so_in_every_input_as_far_as_it_was_read(tmp_path: Path) -> None:
    fast, slow, missing = (Lake(tmp_path).silver(name) for name in ("fast", "slow", "missing"))
    hours = [NOON + timedelta(hours=hour) for hour in range(3)]
    for table, batches in ((fast, (hours[0], hours[2])), (slow, (hours[1],))):
        for batch, settled in enumerate(batches):
            note = {"generation": "g1", "batch": batch, **replace(NOTE, settled=settled).to_json()}
            write_commit(table, batch, note=note, adds=[(1, True), (1, True)])

    assert settled_until([(fast, (2, -1))]) == hours[2]
    assert settled_until([(fast, (2, -1)), (slow, (1, -1))]) == hours[1]
    # A batch that was read in part may bring earlier events.
    assert settled_until([(fast, (1, 0)), (slow, (1, -1))]) == hours[0]
    assert settled_until([(fast, (2, -1)), (missing, BEGINNING)]) is None
    assert settled_until([]) is None
