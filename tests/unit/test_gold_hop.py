"""What the gold hop refuses when it is opened, without Spark."""

from __future__ import annotations

import json
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml
from delta.exceptions import ConcurrentDeleteReadException, MetadataChangedException

from tests.unit.handmade import SHOP, write_checkpoint, write_commit, write_offset
from tidelake.config import load_environment, load_pipeline
from tidelake.delta.append import Difference
from tidelake.delta.commit_metadata import Final, SilverNote, definition_note
from tidelake.delta.log import Added, Commit, last_commit
from tidelake.delta.tables import Lake, Table
from tidelake.errors import GenerationError, RefusedError, RewrittenError
from tidelake.gold.kinds import OWN
from tidelake.runtime import gold, gold_tables
from tidelake.runtime.checkpoints import CheckpointGuard
from tidelake.runtime.fence import Fence
from tidelake.runtime.gold import GoldHop
from tidelake.runtime.gold_tables import Target, recomputed, targets_of
from tidelake.runtime.hop import Run
from tidelake.runtime.progress import Progress

_ADDED = {**SHOP["gold"][0], "name": "added"}
_JOIN = {
    "name": "paid",
    "left": {"columns": {"at": "event_time", "user_id": "user_id"}},
    "right": {"pipeline": "orders", "columns": {"paid_at": "event_time"}},
    "on": ["user_id"],
    "within": "1 hour",
}


def opened(folder: Path, *others: str, **more: Any) -> tuple[GoldHop, Lake]:
    """Open the hop where one table holds batch 3, which ended after version 4 of silver.

    ``others`` are further inputs that it has read, in the order of the checkpoint.
    """
    environment = load_environment("local", root=str(folder))
    lake = Lake(folder)
    for name in ("shop", "orders", "refunds"):
        (folder / f"{name}.yml").write_text(yaml.safe_dump(SHOP | {"name": name} | more))
        more = {}
    note = {"generation": "g1", "hop": "gold", "pipeline": "shop"}
    write_commit(lake.gold("totals"), 0, note={**note, "batch": -1})
    until = {key: [5, -1] for key in ("silver", *others)}
    write_commit(lake.gold("totals"), 1, note={**note, "batch": 3, "until": until})
    checkpoint = lake.checkpoints("shop", "gold") / "g1"
    write_checkpoint(checkpoint, planned=3, committed=3)
    end = {"reservoirVersion": 5, "index": -1, "isStartingVersion": False}
    offsets = [{**end, "reservoirId": key} for key in until]
    for batch in range(4):
        write_offset(checkpoint, batch, *offsets)
    (checkpoint / "metadata").write_text("{}")
    pipeline = load_pipeline(str(folder / "shop.yml"), environment)
    run = Run(cast(Any, None), pipeline, lake, environment, Progress(lambda _: None))
    return GoldHop(run, creates=False), lake


def write_silver(lake: Lake, first: int, *, compacts: bool = False) -> None:
    """Write silver's commits from a version on, of which the last is not read yet."""
    for version in range(first, 6):
        write_commit(lake.silver("shop"), version, adds=[(9, not compacts)])


def test_a_table_that_was_added_is_to_be_filled(tmp_path: Path) -> None:
    write_silver(Lake(tmp_path), 0)
    hop, _ = opened(tmp_path, gold=[_ADDED, *SHOP["gold"]])
    assert hop.fence.unfilled == ("gold.added",)
    assert [table.name for table in hop.guard.closing] == ["gold.totals"]


def test_settings_of_a_table_wait_until_it_has_the_columns_of_its_definition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = {"generation": "g1", "hop": "gold", "pipeline": "shop", "batch": -1}
    write_silver(Lake(tmp_path), 0)
    write_commit(Lake(tmp_path).gold("added"), 0, note={**note, "definition": "of before"})
    hop, _ = opened(tmp_path, gold=[_ADDED, *SHOP["gold"]])
    done: list[str] = []
    for name in ("ensure_table", "ensure_views", "append", "apply_gold_settings"):
        monkeypatch.setattr(gold, name, lambda *_, name=name, **__: done.append(name) or {})
    for name in ("target_schema", "load"):
        monkeypatch.setattr(gold, name, lambda *_: None)
    monkeypatch.setattr(GoldHop, "_refuse_missing_columns", lambda *_: None)
    hop.create_tables()
    assert done == ["ensure_table"]
    added = next(one for one in hop._targets if one.table.bare == "added")
    hop._fill(added, cast(Any, None), {"batch": 3})
    assert done == ["ensure_table", "append", "apply_gold_settings"]
    # The next batch's changes are published in the same run.
    monkeypatch.setattr(Run, "published", {"gold.added": None})
    monkeypatch.setattr(gold, "ensure_change_feed", lambda *_: done.append("ensure_change_feed"))
    hop._fill(added, cast(Any, None), {"batch": 3})
    assert done[3:] == ["append", "ensure_change_feed", "apply_gold_settings"]


def test_expressions_that_were_computed_from_narrower_types_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_silver(Lake(tmp_path), 0)
    hop, _ = opened(tmp_path)
    found = [Difference("silver.price", "decimal(10,2)", "decimal(12,4)", "refused")]
    monkeypatch.setattr(gold, "changed_types", lambda *_: found)
    with pytest.raises(GenerationError) as refused:
        hop.create_tables()
    assert str(refused.value) == (
        "the expressions of gold.totals were computed from silver.price as decimal(10,2); it is "
        "decimal(12,4) now. Nothing was written. Repair it with: tidelake repair shop --hop gold; "
        "or that table alone with: tidelake backfill run shop --table totals, then promote"
    )
    # Of several, none alone: the next run would be refused because of another one.
    with pytest.raises(GenerationError) as refused:
        hop._refuse_redefined([(target, None) for target in [*hop._targets, *hop._targets]])
    assert str(refused.value).endswith("Repair it with: tidelake repair shop --hop gold")


def test_a_batch_repeats_the_types_of_the_oldest_rows(tmp_path: Path) -> None:
    write_silver(Lake(tmp_path), 0)
    hop, lake = opened(tmp_path)
    target, note = targets_of(lake, hop.run.pipeline)[0], {"generation": "g1", "batch": 3}
    types = {"silver.price": "int"}
    write_commit(target.table, 1, note=note | definition_note(target.kind.definition, types))
    last = last_commit(target.table)
    assert hop._types(target, cast(Any, last), {}) == types


def test_a_table_that_never_held_a_batch_takes_another_definition_in_one_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_silver(Lake(tmp_path), 0)
    hop, lake = opened(tmp_path)
    totals, kind = lake.gold("totals"), targets_of(lake, hop.run.pipeline)[0].kind
    note = {"generation": "g1", "hop": "gold", "pipeline": "shop", "batch": -1}
    differs: list[str] = []
    for name in ("target_schema", "load", "no_rows", "commented", "ensure_views"):
        monkeypatch.setattr(gold, name, lambda *_, **__: SimpleNamespace(schema=None))
    monkeypatch.setattr(gold, "schema_differences", lambda *_: differs)
    monkeypatch.setattr(gold, "ensure_table", lambda *_, **__: {})
    monkeypatch.setattr(gold, "may_differ", lambda *_: False)

    def done() -> list[dict[str, Any]]:
        made: list[dict[str, Any]] = []

        def append(_: Any, table: Table, note: dict[str, Any], **options: bool) -> None:
            assert table == totals
            assert options == {"even_empty": True, "replaces": True, "may_repeat": True}
            made.append(note)

        monkeypatch.setattr(gold, "append", append)
        hop.create_tables()
        return made

    write_commit(totals, 1, note=note | {"definition": "of before"})
    assert done() == [note | definition_note(kind.definition)]
    write_commit(totals, 1, note=note | definition_note(kind.definition))
    assert done() == []
    # A type may change without the definition.
    differs.append("user_id")
    assert done() == [note | definition_note(kind.definition)]
    # Rows of an open batch, which has no metadata yet.
    write_commit(totals, 1, note=note | {"definition": "of before"})
    write_commit(totals, 2, adds=[(9, True)])
    with pytest.raises(GenerationError, match=r"gold\.totals was filled under another definition"):
        hop.create_tables()
    (totals.path / "_delta_log" / f"{2:020}.json").unlink()
    write_commit(totals, 1, note=note | {"batch": 0, "definition": "of before"})
    with pytest.raises(GenerationError, match=r"gold\.totals was filled under another definition"):
        hop.create_tables()


@pytest.mark.parametrize("first", [4, 5])
def test_silver_must_be_readable_as_of_the_last_batch(tmp_path: Path, first: int) -> None:
    write_silver(Lake(tmp_path), first)
    if first == 4:
        assert opened(tmp_path, gold=[_ADDED, *SHOP["gold"]])
        return
    why = "gold.added cannot be filled as of batch 3: the log of silver.shop no longer has version"
    with pytest.raises(GenerationError, match=rf"{why} 4\..*tidelake repair shop"):
        opened(tmp_path, gold=[_ADDED, *SHOP["gold"]])
    # Without a table to fill nothing reads that version.
    assert opened(tmp_path)


def test_a_log_that_begins_with_a_compaction_of_the_same_rows_is_enough(tmp_path: Path) -> None:
    write_silver(Lake(tmp_path), 5, compacts=True)
    assert opened(tmp_path, gold=[_ADDED, *SHOP["gold"]])


def test_a_table_that_reads_a_new_input_is_refused(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    write_silver(lake, 0)
    write_commit(lake.silver("orders"), 0, adds=[(9, True)])
    why = "silver.orders is a new input, of which no batch has read a row"
    with pytest.raises(GenerationError, match=f"{why}.*tidelake repair shop --hop gold"):
        opened(tmp_path, joins=[_JOIN])


def test_a_table_that_gold_no_longer_reads_is_refused_until_a_repair(tmp_path: Path) -> None:
    """Spark resumes from an offset only with as many sources."""
    lake, read = Lake(tmp_path), ("silver", "silver.orders")
    write_silver(lake, 0)
    why = "hop gold: silver.orders is no longer an input .2 in offsets/3 .* 1 in the definition"
    with pytest.raises(GenerationError, match=f"{why}.*tidelake repair shop --hop gold"):
        opened(tmp_path, "silver.orders")
    hop, _ = opened(tmp_path)
    # The commit of a repair keeps the positions of the last batch.
    note = {"generation": "g1", "hop": "gold", "pipeline": "shop", "batch": 3}
    write_commit(lake.gold("totals"), 1, note=note | {"until": {key: [5, -1] for key in read}})
    assert GoldHop(hop.run, creates=False)


@pytest.mark.parametrize(
    ("read", "now", "why"),
    [(2, 1, "a table is no longer an input"), (1, 2, "a table is a new input")],
)
def test_other_inputs_are_refused_while_the_first_batch_is_open(
    tmp_path: Path, read: int, now: int, why: str
) -> None:
    lake = Lake(tmp_path)
    silver, orders, totals = lake.silver("shop"), lake.silver("orders"), lake.gold("totals")
    for table in (silver, orders):
        write_commit(table, 0, adds=[(9, True)])
    write_commit(totals, 0, note={"generation": "g1", "batch": -1})
    end = {"reservoirVersion": 1, "index": -1, "isStartingVersion": False}
    write_offset(tmp_path, 0, *[end, None][:read])
    inputs = dict(list({"silver": silver, "silver.orders": orders}.items())[:now])
    guard = CheckpointGuard(Fence("shop", "gold", "g1"), tmp_path, (totals,), inputs)
    with pytest.raises(GenerationError, match=f"{why} .{read} in offsets/0 .*{now} in the"):
        guard.refuse_mismatch(guard.offset_mismatch)
    (tmp_path / "offsets" / "0").write_text("v1\n{\n")
    with pytest.raises(GenerationError, match="offsets/0 of its checkpoint cannot be read"):
        guard.refuse_mismatch(guard.offset_mismatch)


def test_a_checkpoint_at_another_position_than_the_table_is_refused(tmp_path: Path) -> None:
    write_silver(Lake(tmp_path), 0)
    hop, lake = opened(tmp_path)
    earlier = {"reservoirVersion": 4, "index": -1, "reservoirId": "silver"}
    write_offset(lake.checkpoints("shop", "gold") / "g1", 3, earlier)
    why = "its checkpoint is at version 4 of silver.shop, but batch 3 ended at version 5"
    with pytest.raises(GenerationError, match=f"{why}.*tidelake repair shop --hop gold"):
        GoldHop(hop.run, creates=False)


def test_a_silver_that_was_written_on_from_an_older_copy_refuses_the_hop(tmp_path: Path) -> None:
    write_silver(Lake(tmp_path), 0)
    hop, lake = opened(tmp_path)
    for version in (4, 5):
        (lake.silver("shop").path / "_delta_log" / f"{version:020}.json").unlink()
    why = "silver.shop lacks commits that hop gold has read.*tidelake repair shop --hop gold"
    with pytest.raises(GenerationError, match=why):
        GoldHop(hop.run, creates=False)
    # The same version, long after gold has read the one before.
    write_commit(lake.silver("shop"), 4, adds=[(9, True)], second=3600)
    with pytest.raises(GenerationError, match=why):
        GoldHop(hop.run, creates=False)


def test_rows_that_were_taken_out_of_silver_refuse_the_hop(tmp_path: Path) -> None:
    write_silver(Lake(tmp_path), 0)
    hop, lake = opened(tmp_path)
    silver = lake.silver("shop")
    write_commit(silver, 6, operation="DELETE")
    log = silver.path / "_delta_log" / f"{6:020}.json"
    log.write_text(log.read_text() + '{"remove": {"path": "x", "dataChange": true}}\n')
    why = "version 6 of silver.shop deleted or replaced rows that hop gold may have read"
    verify = "another writer's DELETE.*First see what differs: tidelake verify shop"
    with pytest.raises(RewrittenError, match=f"{why}: {verify}.*tidelake repair shop --hop gold"):
        GoldHop(hop.run, creates=False)
    # A RESTORE by an operator, and what a command of Tidelake replaced, are repaired.
    for change in ({"operation": "RESTORE"}, {"note": {"pipeline": "shop", "batch": 4}}):
        write_commit(silver, 6, **{"operation": "DELETE"} | change)
        log.write_text(log.read_text() + '{"remove": {"path": "x", "dataChange": true}}\n')
        with pytest.raises(GenerationError, match=f"{why}. Nothing was written. Repair it with"):
            GoldHop(hop.run, creates=False)


def test_a_join_that_is_written_above_others_continues(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    write_silver(lake, 0)
    for name in ("orders", "refunds"):
        write_commit(lake.silver(name), 0, table_id=f"silver.{name}")
        for version in range(1, 6):
            write_commit(lake.silver(name), version, adds=[(9, True)])
    of_refunds = {**_JOIN, "name": "back", "right": {**_JOIN["right"], "pipeline": "refunds"}}
    write_commit(lake.silver("shop"), 0, adds=[(9, True)], table_id="silver")
    read = ("silver.orders", "silver.refunds")
    hop, _ = opened(tmp_path, *read, joins=[of_refunds, _JOIN])
    assert list(lake.hop_inputs(hop.run.pipeline, "gold")) == ["silver", *reversed(read)]
    assert list(hop.inputs) == ["silver", *read]


@pytest.mark.parametrize(
    ("batch", "written", "calls"),
    [(4, False, 2), (4, True, 1), (5, False, 1)],
    ids=["Delta knows the batch", "the batch is new", "it cannot be a retry"],
)
def test_a_retried_batch_is_closed_though_the_table_held_it_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch: int, written: bool, calls: int
) -> None:
    """Without an id of its own Delta takes the commit for the one before the replacement."""
    write_silver(Lake(tmp_path), 0)
    hop, lake = opened(tmp_path)
    table, seen = lake.gold("totals"), []

    def close(_: Any, own: Table, note: dict[str, Any], **options: bool) -> None:
        seen.append(options)
        if written:
            write_commit(own, 2, note=note)

    note = {"generation": "g1", "batch": batch}
    monkeypatch.setattr(gold, "append_nothing", close)
    monkeypatch.setattr(hop, "_merge_once", lambda *_: note)
    before = last_commit(table)
    if batch == 5:
        write_commit(table, 2, note={"generation": "g1", "batch": 4})
    inputs: Any = SimpleNamespace(taken={OWN: SimpleNamespace(sparkSession=None)})
    hop._merge(targets_of(lake, hop.run.pipeline)[0], before, note, inputs, {}, True)
    assert seen == [{}, {"may_repeat": True}][:calls]


def test_a_batch_that_the_first_table_holds_already_is_as_large_for_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taken for empty, a large batch would be collected in the driver, at every restart."""
    lake, sizes = Lake(tmp_path), []
    for version in range(6):
        write_commit(lake.silver("shop"), version, adds=[(9, True)])
    note = {"generation": "g1", "hop": "gold", "pipeline": "shop"}
    write_commit(lake.gold("added"), 0, note={**note, "batch": -1})
    write_commit(lake.gold("added"), 1, note={**note, "batch": 3, "until": {"silver": [5, -1]}})
    hop, _ = opened(tmp_path, gold=[*SHOP["gold"], _ADDED])
    end = {"reservoirVersion": 6, "index": -1, "reservoirId": "silver"}
    write_offset(lake.checkpoints("shop", "gold") / "g1", 4, end)
    # The run ended between the two tables.
    write_commit(lake.gold("totals"), 2, note={**note, "batch": 4, "until": {"silver": [6, -1]}})

    class SizedError(Exception):
        pass

    def is_small(*size: int) -> bool:
        sizes.append(size)
        raise SizedError

    monkeypatch.setattr(gold, "is_small", is_small)
    with pytest.raises(SizedError):
        hop.write(cast(Any, None), 4, [last_commit(table) for table in hop.closing])
    assert sizes == [(9, 900)]


@pytest.mark.parametrize("conflict", [ConcurrentDeleteReadException, MetadataChangedException])
def test_a_merge_is_done_again_that_a_compaction_or_a_new_property_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, conflict: type[Exception]
) -> None:
    write_silver(Lake(tmp_path), 0)
    hop, lake = opened(tmp_path)
    table, tried = lake.gold("totals"), []
    note = {"generation": "g1", "batch": 4, "until": {"silver": [6, -1]}}

    def merge_once(*_: Any) -> dict[str, Any]:
        tried.append(1)
        if len(tried) == 1:
            raise conflict("")
        write_commit(table, 2, note=note)
        return note

    monkeypatch.setattr(hop, "_merge_once", merge_once)
    monkeypatch.setattr(gold, "enable_deletion_vectors", lambda *_: None)
    inputs = cast(Any, SimpleNamespace(taken={"silver": SimpleNamespace(sparkSession=None)}))
    target, last = targets_of(lake, hop.run.pipeline)[0], last_commit(table)
    hop._merge(target, cast(Any, last), note, inputs, {"silver": (6, -1)}, True)
    assert len(tried) == 2


@pytest.mark.parametrize(
    ("is_live", "told"),
    [
        (True, "silver.shop is damaged: a file of its newest version is gone"),
        (False, "a file of a table that it reads is gone: VACUUM ran with too short a retention"),
    ],
)
def test_a_missing_file_of_the_newest_version_is_not_blamed_on_a_vacuum(
    tmp_path: Path, is_live: bool, told: str
) -> None:
    write_silver(Lake(tmp_path), 0)
    hop, lake = opened(tmp_path)
    if not is_live:
        compacted = {"remove": {"path": "part-5-0.parquet", "dataChange": False}}
        log = lake.silver("shop").path / "_delta_log" / f"{6:020}.json"
        log.write_text(json.dumps(compacted))
    file = lake.silver("shop").path / "part-5-0.parquet"
    error = hop.named(OSError(f"java.io.FileNotFoundException: File file:{file} does not exist"))
    assert isinstance(error, RefusedError)
    assert str(error).startswith(f"shop, hop gold: {told}")
    # A backfill from silver would read the same file.
    assert ("--from silver" in str(error)) is not is_live


def test_counts_that_are_not_reported_are_taken_again(monkeypatch: pytest.MonkeyPatch) -> None:
    hop: Any = GoldHop.__new__(GoldHop)
    hop.inputs = {OWN: None}
    monkeypatch.setattr(gold, "contributions", lambda *_: {})
    monkeypatch.setattr(gold, "by_input", lambda rows, _: {OWN: rows})
    monkeypatch.setattr(gold, "count_contributions", lambda *_: [{"rows": 3}])
    frames = SimpleNamespace(materialize=lambda rows, *_: (rows, {}))
    assert hop._taken("rows", [], frames) == ({OWN: "rows"}, [{"rows": 3}])


_NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)
_WINDOWS = {
    "minutes": {"kind": "tumbling", "size": "1 minute"},
    "sliding": {"kind": "hopping", "size": "5 minutes", "slide": "2 minutes"},
}


def joined(folder: Path) -> tuple[Lake, Any, list[Target]]:
    """Define tables of windows beside a join with orders, whose silver has no watermark yet."""
    tables = [SHOP["gold"][0] | {"name": name, "window": of} for name, of in _WINDOWS.items()]
    query = {"name": "asked", "sql": "SELECT window_start, max(events) n FROM sliding GROUP BY 1"}
    own = {"gold": tables, "joins": [_JOIN], "queries": [query]}
    for name, more in {"orders": {}, "shop": own}.items():
        (folder / f"{name}.yml").write_text(yaml.safe_dump(SHOP | {"name": name} | more))
    environment, lake = load_environment("local", root=str(folder)), Lake(folder)
    pipeline = load_pipeline(str(folder / "shop.yml"), environment)
    note = {"generation": "g1", "batch": 0, **SilverNote(settled=_NOON).to_json()}
    write_commit(lake.silver("shop"), 0, note=note, adds=[(9, True)])
    write_commit(lake.silver("orders"), 0, note={"generation": "g1", "batch": -1})
    return lake, pipeline, targets_of(lake, pipeline)


def finals(notes: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Give until when the rows of each table are final, once the join has no such time."""
    found = {name: Final.of(Commit(1, _NOON, None, note)) for name, note in notes.items()}
    until = {name: one.until for name, one in found.items() if one}
    assert until.pop("gold.paid") is None
    assert until.pop("gold.asked") == _NOON - timedelta(minutes=5)
    return until


@pytest.mark.parametrize(("eligible", "small"), [(6_666, True), (6_667, False)])
def test_a_batch_of_a_table_is_final_and_small_by_what_that_table_reads_and_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eligible: int, small: bool
) -> None:
    """A driver holds no 10,000 rows of each of 20,000 events."""
    lake, pipeline, targets = joined(tmp_path)
    hop: Any = GoldHop.__new__(GoldHop)
    hop.inputs = {OWN: lake.silver("shop"), "silver.orders": lake.silver("orders")}
    until = dict.fromkeys(hop.inputs, (1, -1))
    hop._targets, hop.pace = targets, None
    hop.guard = SimpleNamespace(planned=lambda *_: until, sizes=lambda *_: {OWN: Added(20_000, 9)})
    hop.fence = SimpleNamespace(admits=lambda table, head, *_: head)
    hop.run = SimpleNamespace(pipeline=pipeline, progress=Progress(lambda _: None))
    hop.note = lambda _, **note: {"generation": "g1", "batch": 4, **note}
    hop._types = lambda *_: {}
    hop._taken = lambda *_: ({}, [{"rows": 1, "eligible": eligible, "failed": 0}] * len(targets))
    hop._sessions = SimpleNamespace(
        sessions=[], run_all=lambda _, pieces, work: [work(None, piece) for piece in pieces]
    )
    monkeypatch.setattr(gold, "fitted", lambda *_: nullcontext())
    merged: dict[str, tuple[dict[str, Any], bool]] = {}

    def merge(target: Target, _: Any, note: dict[str, Any], *rest: Any) -> None:
        merged[target.table.name] = note, rest[-1]

    hop._merge = merge
    head = Commit(1, _NOON, None, {"generation": "g1", "batch": 3})
    hop.write(SimpleNamespace(sparkSession=None), 4, [head] * len(targets))
    until_when = finals({name: note for name, (note, _) in merged.items()})
    assert until_when == dict.fromkeys(("gold.minutes", "gold.sliding"), _NOON)
    sizes = {name: is_small for name, (_, is_small) in merged.items()}
    assert sizes == {
        **dict.fromkeys(("gold.minutes", "gold.paid"), True),
        **dict.fromkeys(("gold.sliding", "gold.asked"), small),
    }


def test_a_table_that_is_filled_is_final_by_what_it_reads_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, _, targets = joined(tmp_path)
    inputs = {OWN: lake.silver("shop"), "silver.orders": lake.silver("orders")}
    monkeypatch.setattr(gold_tables, "count_contributions", lambda *_: [{}] * len(targets))
    monkeypatch.setattr(gold_tables, "up_to", lambda *_: {}.get)
    monkeypatch.setattr(gold_tables, "input_types", lambda *_: {})
    made = recomputed(
        cast(Any, None), inputs, targets, dict.fromkeys(inputs, (1, -1)), cast(Any, lambda *_: None)
    )
    until = finals({target.table.name: {"generation": "g1"} | note for target, _, note in made})
    assert until == dict.fromkeys(("gold.minutes", "gold.sliding"), _NOON)
