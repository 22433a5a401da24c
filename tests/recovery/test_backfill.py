"""A backfill: green beside live, compared, swapped, interrupted anywhere, taken back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from tests.running import START, click, read, versions
from tests.worlds import TO_SILVER, World, world
from tidelake.delta import append as appending
from tidelake.delta.log import last_commit
from tidelake.delta.tables import Table
from tidelake.errors import GenerationError, RefusedError, UsageError
from tidelake.instants import Range
from tidelake.ledger.terms import read_ledger
from tidelake.replay import generations
from tidelake.replay.backfill import build, green_run, plan
from tidelake.replay.backfill_promotion import promote, rollback
from tidelake.replay.backfill_state import need_state
from tidelake.replay.compatibility import other_definitions
from tidelake.replay.differences import differences
from tidelake.replay.repairing import reset
from tidelake.replay.requeue import apply_late
from tidelake.replay.verify import verify

pytestmark = pytest.mark.usefixtures("interpreted")

_DAY = 24 * 60
_GOLD: list[dict[str, Any]] = [
    {
        "name": "by_hours",
        "window": {"kind": "tumbling", "size": "1 hour"},
        "keys": ["user_id"],
        "measures": {"events": {"count": "*"}, "total": {"sum": "value"}},
    },
    {
        "name": "visits",
        "window": {"kind": "session", "gap": "30 minutes"},
        "keys": ["user_id"],
        "measures": {"events": {"count": "*"}},
    },
]
# Another rule for silver, another measure for gold.
_OTHER_GOLD = [{**_GOLD[0], "measures": {**_GOLD[0]["measures"], "most": {"max": "value"}}}]
_CHANGED: dict[str, Any] = {
    "event": {"where": "action IS NOT NULL AND action <> 'bot'"},
    "gold": [*_OTHER_GOLD, _GOLD[1]],
}
_ARRIVALS = [START + timedelta(days=3, minutes=n) for n in range(3)]


def _lines(part: int) -> list[bytes]:
    """Write events with copies, a broken line and, from the second file on, late ones."""
    own = [click(n, minute=3 * _DAY - 7 * n) for n in range(part * 20, part * 20 + 20)]
    late = [click(900 + 10 * part + n, minute=n) for n in range(3 * min(part, 1))]
    return [*own, own[0], b"garbage", *late]


@pytest.fixture(scope="module")
def filled(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> World:
    """Run two files, send one late row again, and leave a third for bronze.

    Bronze's first files are gone: they were put together, and vacuumed. Gold reads all that silver
    has in one batch.
    """
    made = world(spark, tmp_path_factory.mktemp("backfill"), gold=_GOLD, quality=None)
    made = made.with_limits(silver_bytes="1k")
    for part in range(2):
        made.land(f"{part}.jsonl", _lines(part))
    made.run(*_ARRIVALS[:2], hops=TO_SILVER)
    assert apply_late(made.context, Range(end=START + timedelta(days=1))) == 3
    bronze = DeltaTable(str(made.lake.bronze("clickstream").path))
    bronze.optimize.compact()
    made.run()
    deleted = bronze.vacuum(0, dry_run=False, enforce_retention_duration=False)
    assert len(bronze.file_uris()) == 1 and len(deleted) >= 2
    made.land("2.jsonl", _lines(2))
    return made


@pytest.fixture(scope="module")
def built(filled: World, tmp_path_factory: pytest.TempPathFactory) -> World:
    """Fill green tables under another definition; then a file arrives in bronze."""
    copy = filled.copied(tmp_path_factory.mktemp("built") / "copy")
    changed = copy.redefined(**_CHANGED)
    before = versions(copy.lake)
    build(changed.context, "bronze")
    assert versions(copy.lake) == before
    changed.run(_ARRIVALS[2], hops=["bronze"])
    return changed


@contextmanager
def _dying_at(commit: int) -> Iterator[None]:
    """Die before a swap's commit of this number."""
    real, made = generations.append, []

    def append(rows: DataFrame, table: Table, *rest: Any, **options: Any) -> None:
        if len(made) == commit:
            raise RuntimeError("cut off")
        made.append(table.name)
        real(rows, table, *rest, **options)

    with pytest.MonkeyPatch.context() as patch:
        # A swap calls it, also to commit nothing.
        for module in (generations, appending):
            patch.setattr(module, "append", append)
        with pytest.raises(RuntimeError, match="cut off"):
            yield


def _events(played: World) -> list[str]:
    return [row[0] for row in read(played.lake, "silver.clickstream", "event_id")]


def _assert_right(played: World, *, events: int) -> None:
    """Want the tables to be what follows from bronze, and the books to balance."""
    assert read_ledger(played.lake, played.pipeline).problems == ()
    assert verify(played.context).equal
    assert len(_events(played)) == len(set(_events(played))) == events
    # Computed without any of the pipeline's code, too.
    hours = read(
        played.lake,
        "(SELECT user_id, date_trunc('hour', event_time) AS hour, count(*) AS n, "
        "sum(value) AS total FROM silver.clickstream GROUP BY ALL)",
        "user_id, hour, n, total",
    )
    assert read(played.lake, "gold.by_hours", "user_id, window_start, events, total") == hours


def test_a_plan_says_what_would_be_read_and_writes_nothing(filled: World) -> None:
    before = versions(filled.lake)
    steps = plan(filled.lake, filled.pipeline, "bronze")
    assert [(step.hop, step.reads, step.rows) for step in steps] == [
        ("silver", "bronze.clickstream", 47),
        ("gold", "silver.clickstream", 43),
    ]
    assert steps[0].rate is not None
    assert versions(filled.lake) == before
    assert not (filled.lake.root / "backfill").exists()


@pytest.mark.long
def test_a_comparison_names_the_causes(built: World) -> None:
    context = built.context
    state = build(context, "bronze")
    found = differences(context, state)
    told = {(one.was, one.becomes, one.cause): one.rows for one in found.silver}
    # Of the third file nothing is in the live tables yet; a quarter of the events are bots.
    silver = "silver.clickstream"
    assert told[silver, None, "definition"] == 11
    # Live silver has not read them, whatever the definition says of them.
    read_later = {key: rows for key, rows in told.items() if key[0] is None}
    assert {cause for _, _, cause in read_later} == {"pending"}
    assert read_later[None, silver, "pending"] == 18
    assert not found.equal
    assert found.redefined == {"gold.by_hours"}
    assert found.gold["gold.visits"].differing > 0


@pytest.mark.long
def test_promoted_tables_follow_from_bronze_and_go_on_and_a_rollback_puts_back(
    built: World, filled: World, tmp_path: Path
) -> None:
    played = built.copied(tmp_path / "copy")
    old = played.redefined()
    generations = last_commit(played.lake.silver("clickstream"))
    with pytest.raises(GenerationError, match="by_hours was filled under another definition"):
        played.run(hops=["gold"])
    # As after a week: Delta restores no older version by itself.
    for table in (table for table in old.lake.existing() if table.name.startswith(("s", "g"))):
        kept = "'delta.deletedFileRetentionDuration' = 'interval 0 seconds'"
        old.spark.sql(f"ALTER TABLE {table.sql} SET TBLPROPERTIES ({kept})")
    promote(played.context)
    _assert_right(played, events=50)
    now = last_commit(played.lake.silver("clickstream"))
    assert generations and now and now.generation != generations.generation
    assert played.run() == []
    with pytest.raises(UsageError, match="is promoted"):
        promote(played.context)

    rollback(played.context)
    assert len(_events(old)) == 43
    old.run()
    _assert_right(old, events=63)
    with pytest.raises(UsageError, match="is rolled back"):
        rollback(played.context)


@pytest.mark.long
@pytest.mark.parametrize(
    ("commit", "then"),
    [
        (0, "promote"),
        (1, "rollback"),
        (2, "promote"),
        (3, "rollback"),
        (4, "promote"),
        (5, "rollback"),
        (5, "promote"),
    ],
)
def test_a_swap_that_is_cut_off_goes_on_or_is_taken_back(
    built: World, tmp_path: Path, commit: int, then: str
) -> None:
    played = built.copied(tmp_path / "copy")
    with _dying_at(commit):
        promote(played.context)
    with pytest.raises(RefusedError, match="backfill promote clickstream, or roll it back"):
        played.run(hops=["silver"])
    if then == "promote":
        promote(played.context)
        _assert_right(played, events=50)
        return
    rollback(played.context)
    old = played.redefined()
    old.run()
    _assert_right(old, events=63)


def test_gold_alone_is_filled_from_silver(filled: World, tmp_path: Path) -> None:
    played = filled.copied(tmp_path / "copy").redefined(gold=_CHANGED["gold"])
    silver = last_commit(played.lake.silver("clickstream"))
    build(played.context, "silver")
    assert (
        not green_run(played.context, "silver")
        .lake.silver("clickstream")
        .path.is_relative_to(played.lake.root / "backfill")
    )
    # A file of a green checkpoint is lost: live gold needs no repair for it.
    checkpoint = green_run(played.context, "silver").lake.checkpoints("clickstream", "gold")
    offsets = list(checkpoint.glob("g*/offsets/[0-9]*"))
    for file in offsets:
        file.write_text("")
    promote(played.context)
    assert offsets and last_commit(played.lake.silver("clickstream")) == silver
    _assert_right(played, events=43)
    largest = read(played.lake, "gold.by_hours", "max(most)")
    assert largest == read(played.lake, "silver.clickstream", "max(value)")


@pytest.mark.long
def test_gold_that_was_filled_before_silver_was_replaced_is_filled_anew(
    filled: World, tmp_path: Path
) -> None:
    played = filled.copied(tmp_path / "copy").redefined(gold=_CHANGED["gold"])
    for fill_again in (lambda: build(played.context, "silver"), lambda: promote(played.context)):
        build(played.context, "silver")
        reset(played.context, "silver")
        fill_again()
    _assert_right(played, events=43)
    assert played.run(hops=["silver", "gold"]) == []


@pytest.mark.long
def test_a_range_is_computed_anew_and_the_rest_stays(filled: World, tmp_path: Path) -> None:
    played = filled.copied(tmp_path / "copy")
    hours = DeltaTable(str(played.lake.table("gold.by_hours").path))
    hours.update({"events": "events + 100"})
    end = START + timedelta(days=3)
    span = (end - timedelta(hours=2), end)
    with pytest.raises(UsageError, match="a range would not change that"):
        build(played.redefined(gold=_CHANGED["gold"]).context, "silver", span)
    build(played.context, "silver", span)
    promote(played.context)
    played.run(_ARRIVALS[2])
    assert read_ledger(played.lake, played.pipeline).balanced is False
    off = "user_id, window_start, events > 100 AS wrong"
    inside = f"window_start >= '{span[0]:%F %T}+00' AND window_start < '{end:%F %T}+00'"
    rows = read(played.lake, f"(SELECT *, {inside} AS inside FROM gold.by_hours)", f"{off}, inside")
    assert {(wrong, in_range) for *_, wrong, in_range in rows} >= {(True, False), (False, True)}
    assert (True, True) not in {(wrong, in_range) for *_, wrong, in_range in rows}
    told = {one.table.name: one.comparison.equal for one in verify(played.context).tables}
    assert told["gold.visits"] is True
    assert told["gold.by_hours"] is False


@pytest.mark.long
def test_what_arrived_from_an_instant_on_is_decided_anew_and_the_rest_stays(
    filled: World, tmp_path: Path
) -> None:
    """Under another definition, which leaves bots out: those of the first file stay."""
    played = filled.copied(tmp_path / "copy")
    with pytest.raises(UsageError, match="were requeued since then"):
        build(played.context, "bronze", since=_ARRIVALS[2])
    # Silver gets a column for its field, and late has none yet.
    unknown = played.land("unknown.jsonl", [click(99, minute=3 * _DAY, coupon="x")])
    try:
        played.run(_ARRIVALS[2])
    finally:
        unknown.unlink()
    before = _fates(played)
    renamed = played.redefined(event={"id": "concat('x-', event_id)"})
    with pytest.raises(UsageError, match=r"was filled under another event\.id"):
        build(renamed.context, "bronze", since=_ARRIVALS[1])
    schema = played.pipeline.event.schema_ddl.replace("product_id STRING", "product_id TIMESTAMP")
    typed = played.redefined(event={"schema": schema})
    # A union would make '12:30' today's date.
    with pytest.raises(UsageError, match=r"type of a column \(product_id: stored string, defined"):
        build(typed.context, "bronze", since=_ARRIVALS[1])
    build(played.context, "bronze", since=_ARRIVALS[1])
    found = differences(played.context, need_state(played.lake, played.pipeline, "built"))
    assert {(one.cause, one.rows) for one in found.silver} == {("late rows", 3)}
    promote(played.context)
    _assert_right(played, events=67)
    changed = played.redefined(**_CHANGED)
    build(changed.context, "bronze", since=_ARRIVALS[1])
    promote(changed.context)
    # Kept rows are of the definition before.
    assert other_definitions(changed.lake, changed.pipeline) == {1: ("event.where",)}
    after = _fates(changed)
    assert {row for row in before if row[1] < _ARRIVALS[1]} == {
        row for row in after if row[1] < _ARRIVALS[1]
    }
    whole = changed.copied(tmp_path / "whole")
    build(whole.context, "bronze")
    promote(whole.context)
    assert other_definitions(whole.lake, whole.pipeline) == {}
    assert {row for row in after if row[1] >= _ARRIVALS[1]} == {
        row for row in _fates(whole) if row[1] >= _ARRIVALS[1]
    }
    assert read_ledger(changed.lake, changed.pipeline).problems == ()
    assert changed.run() == []


def _fates(played: World) -> set[tuple[Any, ...]]:
    return {
        (*row, table)
        for table in ("silver.clickstream", "silver.clickstream__quarantine")
        for row in read(played.lake, table, "record_id, ingested_at")
    }


@pytest.mark.long
def test_of_another_definition_nothing_is_promoted(built: World) -> None:
    with pytest.raises(UsageError, match="changed after its backfill was filled"):
        promote(built.redefined().context)
