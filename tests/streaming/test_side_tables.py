"""Late and quarantined rows: listed, sent again once, given up, and always in the books."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import nullcontext
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from delta.tables import DeltaTable
from pyspark.sql import SparkSession

from tests.comparing import assert_gold_equals_oracle
from tests.crashes import before_silver_closes
from tests.fates import assert_books, assert_fates
from tests.running import START, click, read, versions
from tests.worlds import TO_SILVER, World, world
from tidelake.cli import app
from tidelake.cli.exits import run_command
from tidelake.delta.locks import hold_hops
from tidelake.delta.log import last_commit
from tidelake.instants import Range
from tidelake.ledger.side_tables import list_late, list_quarantine
from tidelake.ledger.terms import read_ledger
from tidelake.replay import generations
from tidelake.replay.repairing import repair, why_rebuilt
from tidelake.replay.requeue import Choice, apply_late, discard_quarantine, replay_quarantine
from tidelake.replay.verify import verify
from tidelake.replay.verify_silver import judge_silver, read_inputs
from tidelake.runtime import bronze_hop
from tidelake.runtime.checkpointed_frames import CheckpointedFrames

_DAY = 24 * 60
_ARRIVAL = START + timedelta(days=6)


# The copy is a duplicate, the row itself too late.
_ROWS_OF_E10 = {
    "bronze.clickstream": 2,
    "bronze.clickstream__requeue": 0,
    "silver.clickstream": 0,
    "silver.clickstream__late": 1,
    "silver.clickstream__quarantine": 0,
}


def _first() -> list[bytes]:
    return [click(number, minute=6 * _DAY - number) for number in range(4)]


def _second() -> list[bytes]:
    """Two dates of late rows, a copy of one, and rows that today's rules refuse."""
    late = [click(number, minute=number % 2 * _DAY + number) for number in range(10, 16)]
    return [
        *late,
        late[0],
        b"garbage",
        # Later than any accepted event.
        click(20, minute=6 * _DAY + 4, value=-1),
        click(21, minute=6 * _DAY, value="12,50"),
        click(22, minute=6 * _DAY, user_id="u" * 65),
        click(22, minute=6 * _DAY, user_id="u" * 65),
    ]


@pytest.fixture(scope="module")
def begun(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> World:
    """Run the first file; the second has arrived."""
    made = world(spark, tmp_path_factory.mktemp("side"))
    made.land("a.jsonl", _first())
    made.run(_ARRIVAL)
    made.land("b.jsonl", _second())
    return made


@pytest.fixture(scope="module")
def filled(begun: World, tmp_path_factory: pytest.TempPathFactory) -> World:
    """Run both files, to be copied by each test."""
    played = begun.copied(tmp_path_factory.mktemp("filled") / "copy")
    played.run(_ARRIVAL + timedelta(minutes=1))
    return played


@pytest.fixture
def played(filled: World, tmp_path: Path) -> World:
    return filled.copied(tmp_path / "copy")


def _without_suite(played: World) -> World:
    """Give the definition under which a negative value and a long name are fine."""
    return played.redefined(quality=None)


def test_applied_late_rows_count_once_in_silver_and_in_gold(played: World) -> None:
    judge = assert_fates(played.lake)
    days = list_late(played.lake, played.pipeline)
    dates = [START.date(), START.date() + timedelta(days=1)]
    assert [(day.event_date, day.rows, day.waiting) for day in days] == [
        (date, 3, 3) for date in dates
    ]
    assert all(day.least_seconds > _DAY * 60 for day in days)
    assert list_late(played.lake, played.pipeline, Range(START + timedelta(days=1))) == days[1:]

    # As a run does meanwhile.
    with hold_hops(played.lake, "clickstream", ["silver"]):
        assert apply_late(played.context, dry_run=True) == 6
    assert apply_late(played.context, Range(START, START + timedelta(days=1))) == 3
    assert [day.waiting for day in list_late(played.lake, played.pipeline)] == [0, 3]
    told = read_ledger(played.lake, played.pipeline).to_json()
    assert (told["late"], told["requeued"], told["balanced"]) == (3, 3, True)
    assert apply_late(played.context, Range(START, START + timedelta(days=1))) == 0
    assert apply_late(played.context) == 3
    assert apply_late(played.context) == 0

    played.run()
    again = assert_fates(played.lake)
    assert_books(played.lake, played.pipeline, again)
    assert Counter(fate.verdict for fate in again.fates.values())["late"] == 0
    assert_gold_equals_oracle(played.lake, judge.accepted())
    assert [day.waiting for day in list_late(played.lake, played.pipeline)] == [0, 0]
    before = versions(played.lake)
    assert apply_late(played.context) == 0
    assert played.run() == []
    assert versions(played.lake) == before


@pytest.mark.long
def test_a_late_row_that_is_refused_when_it_is_sent_again_is_accepted_no_more(
    played: World,
) -> None:
    """What its sender corrects is no copy of it, neither in the same batch nor in the next."""
    files = [played.land("c.jsonl", [click(n, minute=60, product_id="wrong") for n in (30, 31)])]
    try:
        played.run(hops=TO_SILVER)
        stricter = played.redefined(quality={"rules": {"product": "product_id <> 'wrong'"}})
        assert apply_late(stricter.context) == 8
        for number in (30, 31):
            files.append(played.land(f"{number}.jsonl", [click(number, minute=61)]))
            stricter.run(hops=TO_SILVER)
    finally:
        for file in files:
            file.unlink()
    days = list_late(stricter.lake, stricter.pipeline)
    assert [(day.rows, day.waiting) for day in days] == [(7, 2), (3, 0)]
    told = read_ledger(stricter.lake, stricter.pipeline).to_json()
    assert (told["late"], told["conflicts"], told["problems"]) == (2, 0, [])
    assert _differing(stricter) == []


@pytest.mark.long
@pytest.mark.parametrize(
    ("command", "key", "told"),
    [
        ("late apply", "rows", 6),
        ("late apply --end 2026-01-06", "rows", 3),
        ("quarantine discard --reason x --stage parse", "rows", 1),
        ("repair --hop bronze", "generation", None),
        ("repair --hop silver", "generation", None),
        ("repair --hop gold", "generation", None),
        ("erase --subject event_id=e10", "rows", _ROWS_OF_E10),
        ("maintain", "", None),
        ("backfill run", "", None),
    ],
)
def test_a_dry_run_changes_nothing(
    filled: World,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    key: str,
    told: object,
) -> None:
    for module in ("operating", "rebuilding", "reports"):
        monkeypatch.setattr(f"tidelake.cli.{module}.started", lambda _: nullcontext(filled.context))
    file = str(filled.folder / f"{filled.pipeline.name}.yml")
    root = Path(filled.lake.root)

    def written_at() -> dict[Path, int]:
        files = (file for file in root.rglob("*") if file.is_file() and file.name != ".lock")
        return {file: file.stat().st_mtime_ns for file in files}

    before = written_at()
    words = [*command.split(), file, "--root", str(root), "--dry-run", "--json"]

    assert run_command(app, words) == 0, capsys.readouterr().err

    answer = json.loads(capsys.readouterr().out)
    assert not key or answer[key] == told
    assert written_at() == before


@pytest.mark.long
def test_a_replay_shows_what_it_would_release_and_sends_only_that(played: World) -> None:
    played = _without_suite(played)
    before = versions(played.lake)
    with hold_hops(played.lake, "clickstream", ["silver"]):
        look = replay_quarantine(played.context, Choice(), dry_run=True)
    assert {(o.stage, o.fate, o.now, o.rows) for o in look.outcomes} == {
        ("parse", "quarantined", "parse", 1),
        ("contract", "quarantined", "contract", 1),
        ("expectation", "silver", None, 2),
        ("expectation", "duplicate", None, 1),
    }
    assert (look.released, look.requeued) == (3, 0)
    assert versions(played.lake) == before

    watermark = _watermark(played)
    done = replay_quarantine(played.context, Choice())
    assert (done.outcomes, done.requeued) == (look.outcomes, 3)
    assert replay_quarantine(played.context, Choice()).released == 0
    told = read_ledger(played.lake, played.pipeline).to_json()
    assert (told["quarantined"], told["requeued"], told["balanced"]) == (2, 3, True)

    played.run()
    told = read_ledger(played.lake, played.pipeline).to_json()
    assert told["quarantined_by_stage"] == {"contract": 1, "parse": 1}
    assert (told["silver"], told["duplicates"], told["balanced"]) == (6, 2, True)
    # A replayed row makes no other row late.
    assert _watermark(played) == watermark == (_ARRIVAL - timedelta(minutes=10)).isoformat()
    assert read(played.lake, "silver.clickstream", "count(*), count(DISTINCT record_id)") == [
        (6, 6)
    ]
    counted = read(played.lake, "gold.product_totals", "events")
    assert sum(row[0] for row in counted) == 6


def _watermark(played: World) -> Any:
    """Give the watermark of silver's newest batch, as its commit has it."""
    last = last_commit(played.lake.silver("clickstream"))
    return last and last.note["watermark"]


@pytest.mark.long
def test_of_two_payloads_of_an_id_one_is_released_and_may_fail_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    played = world(spark, tmp_path)
    played.land("a.jsonl", [click(1, minute=0, value=-1), click(1, minute=0, value=-2)])
    played.run(START + timedelta(minutes=1), hops=TO_SILVER)
    changed = _without_suite(played)
    replay = replay_quarantine(changed.context, Choice(rule="value"))
    assert (replay.released, replay.requeued) == (1, 1)
    # The old definition takes it in: it fails once more, and counts once.
    played = played.redefined()
    played.run(hops=TO_SILVER)
    assert len(read(played.lake, "silver.clickstream__quarantine", "record_id")) == 3
    told = read_ledger(played.lake, played.pipeline).to_json()
    assert (told["quarantined"], told["silver"], told["balanced"]) == (2, 0, True)
    groups = list_quarantine(played.lake, played.pipeline)
    assert [(group.stage, group.rows, group.attempts) for group in groups] == [
        ("expectation", 2, 1)
    ]

    changed = _without_suite(played)
    assert replay_quarantine(changed.context, Choice()).requeued == 1
    changed.run(hops=TO_SILVER)
    assert replay_quarantine(changed.context, Choice()).released == 0
    told = read_ledger(changed.lake, changed.pipeline).to_json()
    assert (told["silver"], told["quarantined"], told["balanced"]) == (1, 1, True)
    assert told["problems"] == []


def test_discarded_rows_stay_in_the_books_and_are_not_sent_again(played: World) -> None:
    # All of them arrived with the second file.
    second = _ARRIVAL + timedelta(minutes=1)
    for within, rows in ((Range(end=second), 0), (Range(second), 5)):
        groups = list_quarantine(played.lake, played.pipeline, within=within)
        assert sum(group.rows for group in groups) == rows
    early = Choice(within=Range(end=second))
    assert discard_quarantine(played.context, early, why="a test") == 0
    with hold_hops(played.lake, "clickstream", ["silver"]):
        assert discard_quarantine(played.context, Choice(), why="a test", dry_run=True) == 5
    assert discard_quarantine(played.context, Choice(stage="expectation"), why="a test") == 3
    assert discard_quarantine(played.context, Choice(stage="expectation"), why="again") == 0
    changed = _without_suite(played)
    assert replay_quarantine(changed.context, Choice()).released == 0
    told = read_ledger(changed.lake, changed.pipeline).to_json()
    assert (told["quarantined"], told["discarded"], told["balanced"]) == (5, 3, True)
    assert told["quarantined_by_stage"] == {"expectation": 3, "contract": 1, "parse": 1}
    found = list_quarantine(played.lake, played.pipeline, stage="expectation")
    assert sum(group.discarded for group in found) == sum(group.rows for group in found) == 3


@pytest.mark.long
def test_a_choice_sends_only_the_rows_of_its_stage_and_reason(played: World) -> None:
    changed = _without_suite(played)
    groups = list_quarantine(changed.lake, changed.pipeline, stage="expectation", rule="user_id")
    assert [group.rows for group in groups] == [2]
    replay = replay_quarantine(changed.context, Choice("expectation", "user_id"))
    assert (replay.released, replay.requeued) == (2, 2)
    assert replay_quarantine(changed.context, Choice("contract")).requeued == 0


@pytest.mark.long
def test_replayed_rows_are_verified_in_the_turn_of_the_batch_that_took_them(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it left rows that had arrived before, or rows were taken before that came later."""
    played = world(spark, tmp_path)
    played.land("a.jsonl", [click(n, minute=0, value=-1) for n in (1, 2)])
    refused = click(3, minute=0, value=-1), click(5, minute=0, user_id="u" * 65)
    played.land("b.jsonl", refused)
    at = START + timedelta(minutes=1)
    played.run(at, at + timedelta(minutes=1), hops=TO_SILVER)
    assert read(played.lake, "silver.clickstream", "event_id") == []

    # Corrections arrive in one commit of two files, of which silver takes one at a time.
    monkeypatch.setattr(bronze_hop, "BRONZE_BYTES_A_FILE", 1)
    eased = played.redefined(quality=None, source={"max_files_per_trigger": 2})
    eased.land("c.jsonl", [click(1, minute=0), b"garbage" * 10])
    eased.land("d.jsonl", [click(2, minute=0)])
    eased.run(at + timedelta(minutes=2), hops=["bronze"])
    early = Choice(within=Range(end=at + timedelta(minutes=1)))
    assert replay_quarantine(eased.context, early).requeued == 2
    eased.run(hops=["silver"])
    assert read(eased.lake, "silver.clickstream", "event_id, value, _batch") == [
        ("e1", Decimal("10.25"), 2),
        ("e2", Decimal("-1.00"), 2),
    ]

    # Of two replays silver takes one at a time too, and with the first what came after both.
    assert replay_quarantine(eased.context, Choice(rule="user_id")).requeued == 1
    assert replay_quarantine(eased.context, Choice(rule="value")).requeued == 1
    eased.land("e.jsonl", [click(3, minute=0)])
    eased.run(hops=TO_SILVER)
    found = read(eased.lake, "silver.clickstream WHERE _batch > 2", "event_id, value, _batch")
    assert found == [("e3", Decimal("30.75"), 4), ("e5", Decimal("10.25"), 4)]
    assert read_ledger(eased.lake, eased.pipeline).to_json()["conflicts"] == 3
    assert _differing(eased) == []


def _differing(played: World) -> list[str]:
    """Name the tables of silver that differ from what bronze implies."""
    context = played.context
    with CheckpointedFrames() as frames:
        found = judge_silver(context, read_inputs(context), None, frames)
    return [name for name, comparison in found.items() if not comparison.equal]


@pytest.fixture(scope="module")
def cut_off(begun: World, tmp_path_factory: pytest.TempPathFactory) -> World:
    """Interrupt a batch that has filled its side tables and not silver."""
    played = begun.copied(tmp_path_factory.mktemp("cut-off") / "copy")
    with before_silver_closes():
        played.run(_ARRIVAL + timedelta(minutes=1), hops=TO_SILVER)
    assert len(read(played.lake, "silver.clickstream__late", "record_id")) == 6
    return played


def test_rows_of_a_batch_that_is_not_closed_are_not_listed(cut_off: World) -> None:
    assert list_quarantine(cut_off.lake, cut_off.pipeline) == []
    assert list_late(cut_off.lake, cut_off.pipeline) == []


@pytest.mark.long
def test_rows_of_a_batch_that_is_not_closed_are_not_sent(cut_off: World, tmp_path: Path) -> None:
    played = cut_off.copied(tmp_path / "copy")
    assert apply_late(played.context) == 0
    assert replay_quarantine(_without_suite(played).context, Choice()).requeued == 0
    assert discard_quarantine(played.context, Choice(), why="a test") == 0

    played.run(hops=["silver"])
    assert_books(played.lake, played.pipeline, assert_fates(played.lake))
    assert apply_late(played.context) == 6


@pytest.mark.long
def test_a_batch_that_is_retried_under_another_definition_is_decided_by_that_one_alone(
    cut_off: World, tmp_path: Path
) -> None:
    """Also where the retry dies at the same step, and where the file is changed back."""
    played = cut_off.copied(tmp_path / "copy")
    other: dict[str, Any] = {"quality": None, "watermark": {"allowed_lateness": "30 days"}}

    def in_side_tables() -> list[int]:
        tables = ("silver.clickstream__quarantine", "silver.clickstream__late")
        return [len(read(played.lake, table, "record_id")) for table in tables]

    assert in_side_tables() == [5, 6]
    for definition, rows in ((other, [2, 0]), ({}, [5, 6])):
        with before_silver_closes():
            played.redefined(**definition).run(hops=["silver"])
        assert in_side_tables() == rows

    changed = played.redefined(**other)
    changed.run(hops=["silver"])
    assert in_side_tables() == [2, 0]
    assert read(changed.lake, "silver.clickstream__quarantine", "stage") == [
        ("contract",),
        ("parse",),
    ]
    ids = {row[0] for row in read(changed.lake, "silver.clickstream", "event_id")}
    assert ids == {f"e{n}" for n in (*range(4), *range(10, 16), 20, 22)}
    told = read_ledger(changed.lake, changed.pipeline).to_json()
    assert told["problems"] == []
    assert (told["silver"], told["duplicates"], told["quarantined"]) == (12, 2, 2)


@pytest.mark.long
def test_a_batch_that_is_retried_after_an_interrupted_repair_has_its_side_rows(
    cut_off: World, tmp_path: Path
) -> None:
    """The repair deleted what silver had not committed, and ended before it began a generation."""
    played = cut_off.copied(tmp_path / "copy")
    generations._delete_uncommitted(played.context)
    assert not read(played.lake, "silver.clickstream__quarantine", "record_id")
    played.run(hops=["silver"])
    tables = ("silver.clickstream__quarantine", "silver.clickstream__late")
    assert [len(read(played.lake, table, "record_id")) for table in tables] == [5, 6]
    assert_books(played.lake, played.pipeline, assert_fates(played.lake))


@pytest.mark.long
def test_a_silver_restored_to_before_a_late_row_that_was_applied_is_rebuilt(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Continued, it would read the record from bronze and its copy from the requeue."""
    played = world(spark, tmp_path)
    silver = played.lake.silver("clickstream")
    played.land("a.jsonl", _first())
    played.run(_ARRIVAL, hops=TO_SILVER)
    before = versions(played.lake)[silver.name]
    played.land("b.jsonl", [click(30, minute=60)])
    played.run(_ARRIVAL + timedelta(hours=1), hops=TO_SILVER)
    assert why_rebuilt(played.context, "silver") == ""
    assert apply_late(played.context) == 1
    assert why_rebuilt(played.context, "silver") == ""
    DeltaTable.forPath(spark, str(silver.path)).restoreToVersion(before)
    what = "bronze.clickstream__requeue holds copies of records that silver has yet to read"
    assert why_rebuilt(played.context, "silver") == what
    repair(played.context, "silver")
    played.run(hops=TO_SILVER)
    judge = assert_fates(played.lake)
    assert Counter(fate.verdict for fate in judge.fates.values()) == {"silver": 5}
    assert_books(played.lake, played.pipeline, judge)


@pytest.mark.long
def test_a_late_row_is_applied_although_its_id_came_again_as_another_event(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The id comes back past the TTL on another date: both are events, and both must count."""
    played = world(spark, tmp_path)
    played.land("a.jsonl", _first())
    played.land("b.jsonl", [click(30, minute=60)])
    played.land("c.jsonl", [click(30, minute=6 * _DAY + 180)])
    hours = (0, 1, 3.5)
    played.run(*[_ARRIVAL + timedelta(hours=hour) for hour in hours], hops=TO_SILVER)
    judge = assert_fates(played.lake)
    assert Counter(fate.verdict for fate in judge.fates.values()) == {"silver": 5, "late": 1}
    found = verify(played.context).to_json()["repeated_ids"]
    assert found == {"count": 1, "first": ["e30"]}
    assert apply_late(played.context) == 1
    played.run(hops=TO_SILVER)
    again = assert_fates(played.lake)
    assert Counter(fate.verdict for fate in again.fates.values()) == {"silver": 6}
    assert_books(played.lake, played.pipeline, again)
    assert found == verify(played.context).to_json()["repeated_ids"]
