"""A lake that earlier code wrote is read, checked and filled on by today's.

Commit 958509e made it, with its command line: ``python -m tests.earlier_lake 958509e``. Four files
of every fate; a replayed quarantine row, late rows sent again, a promoted backfill; at the end some
rows wait in quarantine, in late and in the requeue.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyspark.sql import SparkSession

from tests.earlier_lake import LONG_NAME, PARTS, line, lines, own, unpack
from tests.running import read, small_batches, versions
from tests.worlds import World, define
from tidelake.config import Limits, load_environment
from tidelake.delta.tables import Hop
from tidelake.errors import GenerationError
from tidelake.ledger.terms import read_ledger
from tidelake.replay.backfill import build
from tidelake.replay.backfill_promotion import promote, rollback
from tidelake.replay.repairing import repair
from tidelake.replay.verify import verify

_SILVER = "silver.clickstream"
_QUARANTINE = f"{_SILVER}__quarantine"
# Terms of the ledger that it was packed with, and once it took in what waited and a new file.
_BEFORE = {"silver": 247, "duplicates": 17, "quarantined": 14, "late": 4, "requeued": 4}
_AFTER = {"silver": 261, "duplicates": 23, "quarantined": 17, "late": 5, "requeued": 0}


@pytest.fixture(scope="module")
def unpacked(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> World:
    """Give the lake as it was written, in another folder than then."""
    folder = tmp_path_factory.mktemp("earlier")
    unpack(folder)
    (folder / "clickstream.yml").rename(folder / "clickstream.base.yml")
    environment = small_batches(load_environment("local", root=str(folder / "lake")))
    landing = folder / "landing"
    landing.mkdir()
    pipeline = define(folder, environment, landing)
    return World(spark, environment, pipeline, folder, landing)


@pytest.fixture(scope="module")
def gone_on(unpacked: World, tmp_path_factory: pytest.TempPathFactory) -> World:
    """Give a copy that took in what waited, and a new file."""
    made = unpacked.copied(tmp_path_factory.mktemp("gone_on") / "copy")
    made.land("new.jsonl", _new_lines())
    made.run()
    return made


def _new_lines() -> list[bytes]:
    """Write new events, copies of stored ones, stored ids with other payloads, and a broken line.

    Of the copies, the first were promoted, the next came later; then one whose first copy was
    replayed from quarantine, one that was late and sent again before the promotion, and one that
    waits in the requeue. ``e990`` is late by the watermark that stood in the last note.
    """
    return [
        *(own(number) for number in range(240, 250)),
        *(own(number) for number in (0, 70, 239)),
        own(821, user_id=LONG_NAME),
        line(910, minute=0),
        line(920, minute=0),
        line(990, minute=0),
        own(2, product_id="other"),
        own(200, value=3),
        b"garbage, new",
    ]


def _ledger(played: World) -> dict[str, Any]:
    told = read_ledger(played.lake, played.pipeline).to_json()
    assert told["problems"] == []
    assert told["balanced"] is True
    return told


def _assert_verified(played: World) -> None:
    wrong = [one.table.name for one in verify(played.context).tables if not one.comparison.equal]
    assert wrong == []


def test_its_ledger_balances_and_verify_finds_no_difference(unpacked: World) -> None:
    before = versions(unpacked.lake)
    told = _ledger(unpacked)
    records = sum(len(lines(part)) for part in range(PARTS))
    assert told["source"] == told["bronze"] == records
    assert {name: told[name] for name in _BEFORE} == _BEFORE
    _assert_verified(unpacked)
    assert versions(unpacked.lake) == before


@pytest.mark.long
def test_new_rows_are_decided_against_those_that_earlier_code_stored(gone_on: World) -> None:
    told = _ledger(gone_on)
    assert {name: told[name] for name in _AFTER} == _AFTER
    quarantined = read(gone_on.lake, _QUARANTINE, "event_id, stage")
    assert {event for event, stage in quarantined if stage == "conflicting_duplicate"} == {
        *("e1", "e51", "e111", "e171"),
        *("e2", "e200"),
    }
    names = read(gone_on.lake, f"{_SILVER} WHERE event_id IN ('e0', 'e2', 'e821')", "user_id")
    assert names == [("u0",), ("u2",), (LONG_NAME,)]
    _assert_verified(gone_on)


@pytest.mark.long
@pytest.mark.parametrize("hop", ["silver", "gold"])
def test_after_a_repair_it_goes_on_and_counts_each_row_once(
    gone_on: World, tmp_path: Path, hop: Hop
) -> None:
    played = gone_on.copied(tmp_path / "copy")
    repair(played.context, hop)
    assert {name: _ledger(played)[name] for name in _AFTER} == _AFTER
    file = played.land(f"after {hop}.jsonl", [own(0), own(240), own(250)])
    try:
        played.run()
    finally:
        file.unlink()
    told = _ledger(played)
    assert (told["silver"], told["duplicates"]) == (_AFTER["silver"] + 1, _AFTER["duplicates"] + 2)


@pytest.mark.long
def test_a_backfill_is_promoted_and_taken_back(gone_on: World, tmp_path: Path) -> None:
    # With batches of the usual size, a few commits are one batch.
    copy = gone_on.copied(tmp_path / "copy")
    played = replace(copy, environment=copy.environment.model_copy(update={"limits": Limits()}))
    events = read(played.lake, _SILVER, "event_id, record_id")
    build(played.context, "bronze")
    promote(played.context)
    # What was in late was decided when nothing had come before it.
    promoted = {**_AFTER, "silver": _AFTER["silver"] + _AFTER["late"], "late": 0}
    assert {name: _ledger(played)[name] for name in _AFTER} == promoted
    _assert_verified(played)
    rollback(played.context)
    assert {name: _ledger(played)[name] for name in _AFTER} == _AFTER
    assert read(played.lake, _SILVER, "event_id, record_id") == events


@pytest.mark.long
def test_definitions_that_its_notes_do_not_fit_are_refused(unpacked: World, tmp_path: Path) -> None:
    """With the messages that a lake of today's code gives."""
    played = unpacked.copied(tmp_path / "copy")
    # A run that is refused copies commit metadata.
    copied = {"ops.books": 0}
    before = versions(played.lake) | copied
    event_id = {"id": "concat('x-', event_id)"}
    with pytest.raises(GenerationError, match=r"was filled under another event\.id"):
        played.redefined(event=event_id).run(hops=["silver"])
    gold = yaml.safe_load((played.folder / "clickstream.base.yml").read_text())["gold"]
    others = [{**gold[0], "keys": ["action"]}, *gold[1:]]
    with pytest.raises(GenerationError, match=r"activity_1m was filled under another definition"):
        played.redefined(gold=others).run(hops=["gold"])
    assert versions(played.lake) | copied == before
    checkpoint = played.lake.checkpoints("clickstream", "silver")
    for generation in checkpoint.glob("g*"):
        generation.rename(checkpoint / f"aside {generation.name}")
    with pytest.raises(GenerationError, match="tidelake repair clickstream --hop silver"):
        played.redefined().run(hops=["silver"])
    assert versions(played.lake) | copied == before
