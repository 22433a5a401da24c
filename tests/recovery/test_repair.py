"""A table and its checkpoint that do not fit: refused, and mended by the command it names."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from delta.tables import DeltaTable
from pyspark.sql import SparkSession

from tests.comparing import assert_gold_equals_oracle, distinct_events
from tests.crashes import before_silver_closes
from tests.running import click, place_of, read, versions
from tests.worlds import World, world
from tidelake.delta.tables import HOPS, Hop
from tidelake.errors import GenerationError, NotBuiltError, UsageError
from tidelake.ledger.terms import read_ledger
from tidelake.replay.compatibility import judge_tables
from tidelake.replay.generations import repair
from tidelake.runtime.runner import refusals

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
    """Run three files, and keep the checkpoints as they were before the third."""
    made = world(spark, tmp_path_factory.mktemp("filled"))
    for part in range(2):
        # Names that Java and Python would write differently in a URI.
        made.land(f"part {part} (a+b) é.jsonl", _lines(part))
    made.run()
    shutil.copytree(made.lake.root / "checkpoints", made.folder / "older")
    made.land("part 2.jsonl", _lines(2))
    made.run()
    return made


@pytest.fixture
def broken(filled: World, tmp_path: Path) -> Iterator[World]:
    """Give a copy of the tables, whose files stay where they arrived."""
    copy = filled.copied(tmp_path / "copy")
    yield copy
    (copy.landing / "part 3.jsonl").unlink(missing_ok=True)


def gone(broken: World, hop: Hop) -> None:
    """Delete the checkpoint."""
    shutil.rmtree(broken.lake.checkpoints("clickstream", hop) / "g1")


def older(broken: World, hop: Hop) -> None:
    """Put an older copy of the checkpoint back."""
    gone(broken, hop)
    kept = broken.folder / "older" / "clickstream" / hop / "g1"
    shutil.copytree(kept, broken.lake.checkpoints("clickstream", hop) / "g1")


def restored(broken: World, hop: Hop) -> None:
    """Take the table back to an older version."""
    names = {"bronze": "bronze.clickstream", "silver": "silver.clickstream"}
    table = broken.lake.table(names.get(hop, "gold.product_totals"))
    DeltaTable.forPath(broken.spark, str(table.path)).restoreToVersion(_BACK_TO)


def lost(broken: World, hop: Hop) -> None:
    """Delete a table that the hop fills."""
    names = {"silver": "silver.clickstream", "gold": "gold.product_totals"}
    shutil.rmtree(broken.lake.table(names[hop]).path)


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
_FAULTS = [
    pytest.param("bronze", gone, marks=_LONG),
    pytest.param("bronze", older),
    pytest.param("bronze", restored, marks=_LONG),
    pytest.param("silver", gone),
    pytest.param("silver", older, marks=_LONG),
    pytest.param("silver", restored, marks=_LONG),
    pytest.param("gold", gone, marks=_LONG),
    pytest.param("gold", older, marks=_LONG),
    pytest.param("gold", restored, marks=_LONG),
    pytest.param("silver", lost, marks=_LONG),
    pytest.param("gold", lost, marks=_LONG),
]


@pytest.mark.parametrize(("hop", "fault"), _FAULTS)
def test_what_is_refused_is_mended_by_the_command_it_names(
    broken: World, hop: Hop, fault: Fault
) -> None:
    fault(broken, hop)
    mended = _mend(broken)
    assert mended[0] == hop
    # Whatever a table lost, those that were filled from it follow.
    loses = fault in (restored, lost)
    assert mended == (list(HOPS[HOPS.index(hop) :]) if loses else [hop])
    delivered = [line for part in range(3) for line in _lines(part)]
    _assert_whole(broken, delivered)

    broken.land("part 3.jsonl", _lines(3))
    broken.run()
    _assert_whole(broken, delivered + _lines(3))
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


def test_the_rows_of_a_batch_that_was_open_come_once(broken: World) -> None:
    broken.land("part 3.jsonl", _lines(3))
    with before_silver_closes():
        broken.run()
    gone(broken, "silver")
    assert _mend(broken) == ["silver"]
    _assert_whole(broken, [line for part in range(4) for line in _lines(part)])
    # Four broken lines and four conflicts, less the first file, which has none.
    assert len(read(broken.lake, "silver.clickstream__quarantine", "payload")) == 7


_COUNTED = {"events": {"count": "*"}}
_CHANGES = [
    pytest.param({"measures": {**_COUNTED, "largest": {"min": "value"}}}, id="changed measure"),
    pytest.param(
        {"measures": {**_COUNTED, "users": {"approx_count_distinct": "user_id"}}},
        id="added measure",
        marks=_LONG,
    ),
    pytest.param({"where": "action = 'click'"}, id="where", marks=_LONG),
    pytest.param({"keys": ["user_id"]}, id="keys", marks=_LONG),
    pytest.param({"name": "another"}, id="new table"),
]


@pytest.mark.parametrize("change", _CHANGES)
def test_another_definition_of_gold_is_refused_until_gold_is_rebuilt(
    broken: World, change: dict[str, Any]
) -> None:
    table = {
        "name": "product_totals",
        "window": {"kind": "global"},
        "keys": ["product_id"],
        "measures": {**_COUNTED, "largest": {"max": "value"}},
    }
    # The suite names gold tables that these definitions lack.
    first = broken.redefined(gold=[table], quality=None)
    repair(first.context, "gold")
    before = versions(first.lake)
    changed = {**table, **change}
    gold = [changed] if "name" not in change else [table, changed]
    other = broken.redefined(gold=gold, quality=None)
    why = "is new, but other tables" if "name" in change else "was filled under another definition"
    with pytest.raises(GenerationError, match=f"{why}.* tidelake repair clickstream --hop gold"):
        other.run()
    assert versions(other.lake) == before
    name = f"gold.{changed['name']}"
    told = {verdict.table: verdict for verdict in judge_tables(other.context)}
    assert told[name].standing == ("new" if "name" in change else "redefined")
    assert not told[name].may_continue
    assert told["gold.user_sessions"].standing == "no longer filled"
    assert told["gold.user_sessions"].may_continue
    assert repair(other.context, "gold").why
    told = {verdict.table: verdict for verdict in judge_tables(other.context)}
    assert told[name].standing == "continues"
    assert all(verdict.may_continue for verdict in told.values())
    # The first plan after a rebuild may find nothing in it.
    assert other.run() == []
    keys, where = changed.get("keys", ["product_id"])[0], changed.get("where", "true")
    found = read(other.lake, f"gold.{changed['name']}", f"{keys}, events")
    assert found == read(
        other.lake,
        f"(SELECT {keys}, count(*) AS events FROM silver.clickstream WHERE {where} GROUP BY 1)",
        f"{keys}, events",
    )


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


def test_another_rule_holds_from_now_on_and_check_says_so(broken: World) -> None:
    other = broken.redefined(event={"where": "action <> 'bot'"})
    told = {verdict.table: verdict for verdict in judge_tables(other.context)}
    assert told["silver.clickstream"].may_continue
    assert told["silver.clickstream"].changed == ("event.where",)
    assert refusals(other.context) == {}
    gone(broken, "gold")
    assert "but its checkpoint is gone" in refusals(other.context)["gold"]


def test_a_batch_that_comes_again_with_other_rows_is_refused(broken: World) -> None:
    checkpoint = broken.lake.checkpoints("clickstream", "gold") / "g1"
    last = max(int(file.name) for file in (checkpoint / "commits").glob("[0-9]*"))
    (checkpoint / "commits" / str(last)).unlink()
    (checkpoint / "commits" / f".{last}.crc").unlink()
    offsets = checkpoint / "offsets" / str(last)
    *head, end = offsets.read_text().splitlines()
    reached = json.loads(end)
    earlier = {**reached, "reservoirVersion": reached["reservoirVersion"] - 1, "index": 0}
    (checkpoint / "offsets" / f".{last}.crc").unlink()
    offsets.write_text("\n".join([*head, json.dumps(earlier)]))
    before = versions(broken.lake)
    with pytest.raises(GenerationError, match=rf"its checkpoint is at .* batch {last} ended at"):
        broken.run(hops=["gold"])
    assert versions(broken.lake) == before


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
    assert files == {"part 0 (a+b) é.jsonl", "part 1 (a+b) é.jsonl", "part 2.jsonl"}
