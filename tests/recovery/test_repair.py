"""A table and its checkpoint that do not fit: refused, and mended by the command it names."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, get_args

import deltalake
import pytest
from delta.tables import DeltaTable
from pyspark.sql import SparkSession

from tests.comparing import assert_gold_equals_oracle, distinct_events
from tests.crashes import after_merges, before_silver_closes, forgotten_batch
from tests.recovery.failpoints import DiedError, armed, die
from tests.running import click, place_of, read, versions
from tests.worlds import TO_SILVER, World, reference_gold, world
from tidelake.delta.locks import HopLocks
from tidelake.delta.tables import HOPS, Hop, Lake, Table
from tidelake.errors import (
    GenerationError,
    NotBuiltError,
    RefusedError,
    SchemaChangedError,
    TidelakeError,
    UsageError,
)
from tidelake.ledger.terms import read_ledger
from tidelake.replay.backfill import build
from tidelake.replay.backfill_promotion import promote
from tidelake.replay.compatibility import judge_tables
from tidelake.replay.generations import rebuild_silver
from tidelake.replay.repairing import repair, reset, why_rebuilt
from tidelake.runtime.runner import refusals

pytestmark = pytest.mark.usefixtures("interpreted")

_COMMAND = re.compile(r"tidelake repair clickstream --hop (\w+)")
_BACK_TO = 1
Fault = Callable[[World, Hop], None]


def _lines(part: int) -> list[bytes]:
    """Write a file: new events, a copy and a conflict of older ones, and one broken line."""
    first = 30 * part
    lines = [click(n, minute=n / 3) for n in range(first, first + 30)]
    again = [click(3, minute=1), click(4, minute=4 / 3, product_id="other")] if part else []
    return [*lines, *again, b"{broken %d" % part]


@pytest.fixture(scope="module")
def filled(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> World:
    """Run two files, each a batch."""
    made = world(spark, tmp_path_factory.mktemp("filled"))
    # A name that Java and Python would write differently in a URI.
    made.land("part 0 (a+b) é.jsonl", _lines(0))
    made.land("part 1.jsonl", _lines(1))
    made.run()
    return made


@pytest.fixture
def broken(filled: World, tmp_path: Path) -> Iterator[World]:
    """Give a copy of the tables, whose files stay where they arrived."""
    copy = filled.copied(tmp_path / "copy")
    yield copy
    for file in copy.landing.glob("part [23].jsonl"):
        file.unlink()


def gone(broken: World, hop: Hop) -> None:
    """Delete the checkpoint."""
    shutil.rmtree(broken.lake.checkpoints("clickstream", hop) / "g1")


def older(broken: World, hop: Hop) -> None:
    """Put an older copy of the checkpoint back."""
    forgotten_batch(Path(broken.lake.checkpoints("clickstream", hop) / "g1"))


def restored(broken: World, hop: Hop) -> None:
    """Take the table back to an older version."""
    names = {"bronze": "bronze.clickstream", "silver": "silver.clickstream"}
    table = broken.lake.table(names.get(hop, "gold.product_totals"))
    DeltaTable.forPath(broken.spark, str(table.path)).restoreToVersion(_BACK_TO)


def cut(broken: World, hop: Hop) -> None:
    """Put an older copy of the table back: its newest commits are gone."""
    names = {"bronze": "bronze.clickstream", "silver": "silver.clickstream"}
    log = broken.lake.table(names.get(hop, "gold.product_totals")).path / "_delta_log"
    for file in Path(log).glob("[0-9]*"):
        if int(file.name[:20]) > _BACK_TO:
            file.unlink()


def lost(broken: World, hop: Hop) -> None:
    """Delete silver, or all gold tables: if some are left, a run fills the others."""
    names = {"silver": ["silver.clickstream"], "gold": broken.pipeline.gold_names}
    for name in names[hop]:
        shutil.rmtree(broken.lake.table(name).path)


def recreated(broken: World, hop: Hop) -> None:
    """Delete silver's input with its checkpoint, so that it is read anew from the source."""
    shutil.rmtree(broken.lake.bronze("clickstream").path)
    shutil.rmtree(broken.lake.checkpoints("clickstream", "bronze"))


def undone(broken: World, hop: Hop) -> None:
    """Take silver back to before a reset, which replaced its side tables too."""
    table = broken.lake.silver("clickstream")
    before = versions(broken.lake)[table.name]
    reset(broken.context, "silver")
    DeltaTable.forPath(broken.spark, str(table.path)).restoreToVersion(before)


def _mend(broken: World) -> list[str]:
    """Do what the refusals say until the pipeline runs; give the hops that were repaired."""
    mended: list[str] = []
    while len(mended) <= len(HOPS):
        before = versions(broken.lake)
        try:
            broken.run()
            return mended
        except GenerationError as error:
            found = _COMMAND.search(str(error))
            assert found, error
            hops: tuple[Hop, ...] = get_args(Hop)
            hop = next(name for name in hops if name == found[1])
            touched = {name for name in before if name.startswith(hop)}
            after = versions(broken.lake)
            assert {n: after[n] for n in touched} == {n: before[n] for n in touched}
            repair(broken.context, hop)
            mended.append(hop)
    raise AssertionError(f"still refused after {mended}")


def _assert_whole(broken: World, lines: list[bytes]) -> None:
    books = read_ledger(broken.lake, broken.pipeline)
    assert books.problems == ()
    assert books.bronze == books.records == len(lines)
    expected = distinct_events(lines)
    silver = [row[0] for row in read(broken.lake, "silver.clickstream", "event_id")]
    assert silver == sorted(event["event_id"] for event in expected)
    assert_gold_equals_oracle(broken.lake, expected)


_LONG = pytest.mark.long
# In each change an older bronze is mended in test_corrupt_checkpoints.py.
_FAULTS = [
    pytest.param("bronze", gone, marks=_LONG),
    pytest.param("bronze", older, marks=_LONG),
    pytest.param("bronze", restored, marks=_LONG),
    # With an open batch, below.
    pytest.param("silver", gone, marks=_LONG),
    pytest.param("silver", older, marks=_LONG),
    pytest.param("silver", restored, marks=_LONG),
    pytest.param("gold", gone, marks=_LONG),
    pytest.param("gold", older, marks=_LONG),
    pytest.param("gold", restored, marks=_LONG),
    pytest.param("bronze", cut, marks=_LONG),
    pytest.param("silver", cut, marks=_LONG),
    pytest.param("gold", cut, marks=_LONG),
    pytest.param("silver", lost, marks=_LONG),
    pytest.param("silver", recreated, marks=_LONG),
    pytest.param("silver", undone, marks=_LONG),
    pytest.param("gold", lost, marks=_LONG),
]


@pytest.mark.parametrize(("hop", "fault"), _FAULTS)
def test_what_is_refused_is_mended_by_the_command_it_names(
    broken: World, hop: Hop, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The batches of a test are less than seconds old.
    monkeypatch.setattr("tidelake.delta.positions._CLOCKS_DIFFER", timedelta(0))
    fault(broken, hop)
    mended = _mend(broken)
    assert mended[0] == hop
    # Whatever a table lost, those that were filled from it follow.
    loses = fault not in (gone, older)
    assert mended == (list(HOPS[HOPS.index(hop) :]) if loses else [hop])
    delivered = [line for part in range(2) for line in _lines(part)]
    _assert_whole(broken, delivered)

    broken.land("part 2.jsonl", _lines(2))
    broken.run()
    _assert_whole(broken, delivered + _lines(2))
    assert broken.run() == []


def test_a_deleted_checkpoint_is_refused_and_no_table_changes(broken: World) -> None:
    before = versions(broken.lake)
    for hop in HOPS:
        checkpoint = broken.lake.checkpoints("clickstream", hop) / "g1"
        aside = checkpoint.rename(checkpoint.with_name("aside"))
        with pytest.raises(GenerationError, match=f"tidelake repair clickstream --hop {hop}"):
            broken.run()
        aside.rename(checkpoint)
    assert versions(broken.lake) == before


@pytest.mark.long
def test_the_rows_of_a_batch_that_was_open_come_once(broken: World) -> None:
    broken.land("part 2.jsonl", _lines(2))
    with before_silver_closes():
        broken.run()
    gone(broken, "silver")
    assert _mend(broken) == ["silver"]
    _assert_whole(broken, [line for part in range(3) for line in _lines(part)])
    # Three broken lines and three conflicts, less the first file, which has none.
    assert len(read(broken.lake, "silver.clickstream__quarantine", "payload")) == 5
    assert broken.run() == []


@pytest.mark.long
def test_the_first_batch_after_a_repair_may_be_cut_off(broken: World) -> None:
    for hop in HOPS:
        repair(broken.context, hop)
    broken.land("part 2.jsonl", _lines(2))
    for hop in HOPS:
        with armed(f"{hop}/batch/after", die), pytest.raises((DiedError, TidelakeError)):
            broken.run(hops=[hop])
        broken.run(hops=[hop])
    _assert_whole(broken, [line for part in range(3) for line in _lines(part)])


@pytest.mark.long
@pytest.mark.parametrize("hop", ["silver", pytest.param("gold", marks=_LONG)])
def test_commits_that_expired_unread_are_refused_until_all_rows_are_read_again(
    broken: World, hop: Hop
) -> None:
    """As where a hop has not run for longer than Delta keeps its log."""
    table = {"silver": "bronze.clickstream", "gold": "silver.clickstream"}[hop]
    for part in (2, 3):
        broken.land(f"part {part}.jsonl", _lines(part))
        broken.run(hops=HOPS[: HOPS.index(hop)])
    path = broken.lake.table(table).path
    deltalake.DeltaTable(str(path)).create_checkpoint()
    newest = versions(broken.lake)[table]
    for version in range(newest):
        (path / "_delta_log" / f"{version:020}.json").unlink()
    with pytest.raises(GenerationError, match=f"commits of {table} that hop {hop} has not read"):
        broken.run()
    why = f"commits of {table} that hop {hop} has not read are gone"
    assert why_rebuilt(broken.context, hop) == why
    assert _mend(broken) == list(HOPS[HOPS.index(hop) :])
    _assert_whole(broken, [line for part in range(4) for line in _lines(part)])
    assert broken.run() == []


@pytest.mark.long
@pytest.mark.parametrize(
    "step",
    [
        "prepare the checkpoint of silver, generation g2",
        pytest.param("create silver.clickstream", marks=_LONG),
        "write silver.clickstream__quarantine and silver.clickstream__late",
        pytest.param("write silver.clickstream", marks=_LONG),
    ],
)
def test_a_rebuild_of_a_deleted_silver_may_be_cut_off(broken: World, step: str) -> None:
    lost(broken, "silver")
    context = replace(broken.context, locks=_Cut(step))
    with pytest.raises(DiedError):
        rebuild_silver(context)
    assert _mend(broken) == ["silver", "gold"]
    _assert_whole(broken, [line for part in range(2) for line in _lines(part)])


def test_a_rebuild_under_a_definition_that_does_not_fit_changes_nothing(broken: World) -> None:
    before = versions(broken.lake)
    names = (
        "event_id STRING, user_id STRING, event_time TIMESTAMP, action STRING, product_id STRING"
    )
    other = broken.redefined(event={"schema": f"{names}, value DECIMAL(8,1)"})
    with pytest.raises(SchemaChangedError, match=r"silver\.clickstream"):
        reset(other.context, "silver")
    assert versions(broken.lake) == before


class _Cut(HopLocks):
    """Dies after the step before the named one, and so when that one begins."""

    def __init__(self, step: str) -> None:
        super().__init__()
        self._at = step

    def step(self, what: str) -> None:
        if what == self._at:
            raise DiedError(what)


(_TOTALS,) = reference_gold("product_totals")
_MEASURES = _TOTALS["measures"]
_CHANGES: dict[str, dict[str, Any]] = {
    "changed measure": {"measures": {**_MEASURES, "cheapest": {"max": "value"}}},
    "added measure": {"measures": {**_MEASURES, "users": {"approx_count_distinct": "user_id"}}},
    "where": {"where": "action = 'click'"},
    "keys": {"keys": ["user_id"]},
}


def _assert_refused(other: World) -> None:
    """Want gold to be refused by name, and `check` to say so of the right table alone."""
    why = "was filled under another definition.* tidelake repair clickstream --hop gold"
    with pytest.raises(GenerationError, match=why):
        other.run(hops=["gold"])
    told = {verdict.table: verdict for verdict in judge_tables(other.context)}
    assert told["gold.product_totals"].standing == "redefined"
    assert not told["gold.product_totals"].may_continue
    assert told["gold.user_sessions"].standing == "no longer filled"
    assert told["gold.user_sessions"].may_continue


def _assert_counts_follow(other: World, table: dict[str, Any]) -> None:
    keys, where = table["keys"][0], table.get("where", "true")
    counted = f"SELECT {keys}, count(*) AS events FROM silver.clickstream WHERE {where} GROUP BY 1"
    found = read(other.lake, f"gold.{table['name']}", f"{keys}, events")
    assert found == read(other.lake, f"({counted})", f"{keys}, events") != []


def test_another_definition_of_gold_is_refused(broken: World) -> None:
    before = versions(broken.lake)
    for change in _CHANGES.values():
        _assert_refused(broken.redefined(gold=[{**_TOTALS, **change}], quality=None))
    assert versions(broken.lake) == before


@pytest.mark.long
@pytest.mark.parametrize("change", _CHANGES.values(), ids=_CHANGES)
def test_after_another_definition_gold_is_rebuilt(broken: World, change: dict[str, Any]) -> None:
    before = versions(broken.lake)
    changed = {**_TOTALS, **change}
    other = broken.redefined(gold=[changed], quality=None)
    with pytest.raises(GenerationError, match=r"tidelake repair clickstream --hop gold"):
        other.run()
    assert versions(other.lake) == before
    assert repair(other.context, "gold").why
    told = {verdict.table: verdict for verdict in judge_tables(other.context)}
    assert told["gold.product_totals"].standing == "continues"
    assert all(verdict.may_continue for verdict in told.values())
    # The first plan after a rebuild may find nothing in it.
    assert other.run() == []
    _assert_counts_follow(other, changed)


@pytest.mark.long
def test_an_open_batch_of_bronze_and_of_gold_is_of_one_definition(broken: World) -> None:
    """Bronze knows nothing of rules; gold is refused, and mended by the command that is named."""
    broken.land("part 2.jsonl", _lines(2))
    with armed("bronze/append/before", die), pytest.raises(TidelakeError, match="DiedError"):
        broken.run(hops=["bronze"])
    no_bots = {"where": "action <> 'bot'"}
    other = broken.redefined(event=no_bots)
    other.run(hops=TO_SILVER)
    told = read_ledger(other.lake, other.pipeline)
    bots = sum(b'"bot"' in line for line in _lines(2))
    assert (told.bronze, told.fates["filtered"], told.problems) == (97, bots, ())

    # The first table holds the batch, under the definition that is changed then.
    with after_merges(1):
        other.run(hops=["gold"])
    gold = [
        {
            "name": "user_sessions",
            "window": {"kind": "session", "gap": "30 minutes"},
            "where": "value > 20",
            "keys": ["user_id"],
            "measures": {"events": {"count": "*"}},
        },
        {**_TOTALS, **_CHANGES["changed measure"]},
        {**_TOTALS, "name": "another", "keys": ["user_id"], "where": "action = 'click'"},
    ]
    changed = other.redefined(event=no_bots, gold=gold, quality=None)
    before = versions(changed.lake)
    why = "was filled under another definition.* tidelake repair clickstream --hop gold"
    with pytest.raises(GenerationError, match=why):
        changed.run(hops=["gold"])
    assert versions(changed.lake) == before
    assert repair(changed.context, "gold").why
    told = {verdict.table: verdict for verdict in judge_tables(changed.context)}
    for name in changed.pipeline.gold_names:
        assert told[name].standing == "continues"
    assert all(verdict.may_continue for verdict in told.values())
    # The first plan after a rebuild may find nothing in it.
    assert changed.run() == []
    assert read_ledger(changed.lake, changed.pipeline).problems == ()
    large = read(changed.lake, "(SELECT * FROM silver.clickstream WHERE value > 20)", "event_id")
    in_sessions = read(changed.lake, "gold.user_sessions", "events")
    assert sum(row[0] for row in in_sessions) == len(large) > 0
    for table in gold[1:]:
        _assert_counts_follow(changed, table)


@pytest.mark.long
def test_another_id_is_refused_until_silver_is_decided_anew(broken: World) -> None:
    other = broken.redefined(event={"id": "concat('x-', event_id)"})
    before = versions(other.lake)
    with pytest.raises(GenerationError, match=r"was filled under another event\.id"):
        other.run(hops=["silver"])
    assert versions(other.lake) == before
    told = {verdict.table: verdict for verdict in judge_tables(other.context)}
    assert told["silver.clickstream"].standing == "redefined"
    assert told["silver.clickstream"].changed == ("event.id",)
    assert _mend(other) == ["silver", "gold"]
    assert read_ledger(other.lake, other.pipeline).problems == ()
    ids = [row[0] for row in read(other.lake, "silver.clickstream", "event_id")]
    assert len(ids) == len(set(ids)) > 0
    assert all(one.startswith("x-") for one in ids)


@pytest.mark.long
def test_another_rule_holds_from_now_on_and_after_a_reset_for_all(
    broken: World, tmp_path: Path
) -> None:
    other = broken.redefined(event={"where": "action <> 'bot'"})
    told = {verdict.table: verdict for verdict in judge_tables(other.context)}
    assert told["silver.clickstream"].may_continue
    assert told["silver.clickstream"].changed == ("event.where",)
    assert refusals(other.context) == {}
    gone(broken, "gold")
    assert "but its checkpoint is gone" in refusals(other.context)["gold"]

    with pytest.raises(UsageError, match="tidelake run clickstream"):
        reset(replace(other.context, lake=Lake(tmp_path)), "silver")
    assert read_ledger(other.lake, other.pipeline).fates["filtered"] == 0
    made = reset(other.context, "silver")
    assert list(made) == ["silver", "gold"]
    told = read_ledger(other.lake, other.pipeline)
    payloads = read(other.lake, "bronze.clickstream", "payload")
    bots = sum(b'"bot"' in payload for (payload,) in payloads)
    assert (told.fates["filtered"], told.problems) == (bots, ())
    assert reset(other.context, "gold").keys() == {"gold"}
    assert refusals(other.context) == {}


def test_a_batch_that_comes_again_with_other_rows_is_refused(broken: World) -> None:
    checkpoint = broken.lake.checkpoints("clickstream", "gold") / "g1"
    last = max(int(file.name) for file in (checkpoint / "commits").glob("[0-9]*"))
    (checkpoint / "commits" / str(last)).unlink()
    offsets = checkpoint / "offsets" / str(last)
    *head, end = offsets.read_text().splitlines()
    reached = json.loads(end)
    earlier = {**reached, "reservoirVersion": reached["reservoirVersion"] - 1, "index": 0}
    offsets.write_text("\n".join([*head, json.dumps(earlier)]))
    before = versions(broken.lake)
    with pytest.raises(GenerationError, match=rf"its checkpoint is at .* batch {last} ended at"):
        broken.run(hops=["gold"])
    assert versions(broken.lake) == before


def _lose_files(table: Table) -> None:
    """Delete the data files of a table, as somebody does by hand."""
    for file in Path(str(table.path)).rglob("*.parquet"):
        if "_delta_log" not in file.parts:
            file.unlink()


@pytest.mark.long
def test_a_table_that_lost_files_is_named_and_mended_by_what_the_message_says(
    broken: World,
) -> None:
    silver, sessions = broken.lake.silver("clickstream"), broken.lake.gold("user_sessions")
    broken.land("part 2.jsonl", _lines(2))
    broken.run(hops=TO_SILVER)
    _lose_files(silver)
    why = r"silver\.clickstream is damaged: .*tidelake backfill run clickstream, then: "
    with pytest.raises(RefusedError, match=f"^clickstream, hop gold: {why}"):
        broken.run()
    with pytest.raises(RefusedError, match=f"^clickstream, backfill: {why}"):
        build(broken.context, "silver")
    build(broken.context, "bronze")
    promote(broken.context)
    broken.run()
    _assert_whole(broken, [line for part in range(3) for line in _lines(part)])

    broken.land("part 3.jsonl", _lines(3))
    _lose_files(sessions)
    why = (
        r"gold\.user_sessions is damaged: .*or delete (\S+) and fill it .*tidelake run clickstream"
    )
    with pytest.raises(RefusedError, match=f"^clickstream, hop gold: {why}") as refused:
        broken.run()
    found = re.search(why, str(refused.value))
    assert found
    shutil.rmtree(found[1])
    broken.run()
    _assert_whole(broken, [line for part in range(4) for line in _lines(part)])


def test_a_repair_of_what_never_ran_says_what_to_run(spark: SparkSession, tmp_path: Path) -> None:
    empty = world(spark, tmp_path / "empty")
    for hop in HOPS:
        with pytest.raises(UsageError, match="tidelake run clickstream"):
            repair(empty.context, hop)


def test_a_prefilter_cannot_be_repaired_yet(broken: World) -> None:
    other = broken.redefined(dedup={"prefilter": "operator"})
    with pytest.raises(NotBuiltError, match="prefilter"):
        repair(other.context, "silver")


def test_the_files_are_told_apart_by_their_whole_paths(broken: World) -> None:
    files = {place_of(row[0])[0] for row in read(broken.lake, "bronze.clickstream", "record_id")}
    assert files == {"part 0 (a+b) é.jsonl", "part 1.jsonl"}
