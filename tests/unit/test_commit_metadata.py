"""Silver's notes: what is written is what is read, and sums by fate."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import tidelake
from tests.pipelines import shop
from tests.unit.handmade import write_commit
from tidelake.config import GlobalWindow, SessionWindow
from tidelake.config.gold_definitions import FinalAfter
from tidelake.delta.commit_metadata import (
    FateCount,
    Final,
    SilverNote,
    add_up,
    changed_definition,
    decision_note,
    definition_note,
    final_note,
    hash_of,
    is_decided_by,
    position,
    positions,
    settled_until,
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
    monkeypatch.setattr(tidelake, "__version__", "0.0.0")
    for other in (*others, decision_note(plain, pins)):
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
