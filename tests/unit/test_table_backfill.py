"""What recomputing and rolling back a single gold table refuses, and what a dry run says of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml
from pyspark.sql.types import IntegerType, LongType, StructType

from tests.shops import DEFINITION, Shop
from tests.unit.handmade import write_commit
from tidelake.cli import app
from tidelake.cli.exits import run_command
from tidelake.delta.commit_metadata import hash_of
from tidelake.delta.log import last_commit
from tidelake.delta.tables import Table
from tidelake.errors import RefusedError, UsageError
from tidelake.replay import backfill, backfill_promotion, compatibility, generations, repairing
from tidelake.replay.backfill import plan_rollback
from tidelake.replay.backfill_state import State, read_state, write_state
from tidelake.replay.repairing import can_restore, gold_table
from tidelake.runtime.gold_tables import targets_of
from tidelake.runtime.hop import Run

_PAID = {
    "name": "paid",
    "left": {"columns": {"at": "event_time", "user_id": "user_id"}},
    "right": {"pipeline": "shop", "columns": {"paid_at": "event_time"}},
    "on": ["user_id"],
    "within": "1 hour",
}
_PAID_ELSEWHERE = {**_PAID, "right": {**cast(dict[str, Any], _PAID["right"]), "pipeline": "orders"}}


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    """Give three batches in all tables, where nothing may start Spark."""
    monkeypatch.setattr("tidelake.cli.rebuilding.started", None)
    (tmp_path / "orders.yml").write_text(yaml.safe_dump(DEFINITION | {"name": "orders"}))
    return Shop(tmp_path).run(3)


def _redefine(shop: Shop, **changes: Any) -> None:
    shop.definition |= changes
    shop.write_definition()


def _write_batch(shop: Shop, table: str, version: int, **more: Any) -> None:
    note = {"pipeline": "shop", "hop": "gold", "generation": "g1", "batch": version}
    until = {"silver": [version + 1, -1]}
    note |= {"until": until, **more}
    # After the shop's batches.
    write_commit(shop.lake.gold(table), version, note=note, second=10**8 + version)


@pytest.mark.parametrize("table", ["visits", "paid"])
def test_beside_a_new_input_no_table_is_recomputed_alone(
    shop: Shop, table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The join itself was filled before, from the pipeline's own silver."""
    for version in range(3):
        _write_batch(shop, "paid", version)
    _redefine(shop, joins=[_PAID])
    assert gold_table(shop.lake, shop.pipeline, table).closed.batch == 2
    _redefine(shop, joins=[_PAID_ELSEWHERE])
    words = ["backfill", "run", str(shop.file), "--root", str(shop.root), "--table", table]
    assert run_command(app, words) == 3
    told = capsys.readouterr().err
    assert f"gold.{table} cannot be recomputed alone: silver.orders is a new input" in told
    assert f"backfill run {shop.file} --from silver --root {shop.root}, then promote" in told
    assert f"repair {shop.file} --hop gold --root {shop.root}" in told


def test_check_names_a_new_input_before_a_changed_definition(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    _redefine(shop, joins=[_PAID])
    (paid,) = [one for one in targets_of(shop.lake, shop.pipeline) if one.table.bare == "paid"]
    _write_batch(shop, "paid", 2, definition=hash_of(paid.kind.definition))
    monkeypatch.setattr(compatibility, "column_changes", lambda *_: ())
    monkeypatch.setattr(
        compatibility, "known_targets", lambda run: targets_of(run.lake, run.pipeline)
    )

    def standing() -> str:
        run = Run(cast(Any, None), shop.pipeline, shop.lake, cast(Any, None), cast(Any, None))
        found = {one.table: one.standing for one in compatibility._gold_verdicts(run)}
        assert found["gold.visits"] == "continues"
        return found["gold.paid"]

    assert standing() == "continues"
    _redefine(shop, joins=[{**_PAID, "within": "2 hours"}])
    assert standing() == "redefined"
    _redefine(shop, joins=[_PAID_ELSEWHERE])
    assert standing() == "new input"
    # What `fast reconcile` writes has neither a pipeline nor a hop.
    write_commit(shop.lake.gold("alerts__reconciled"), 0, note={"reconciled": "alerts"})
    assert standing() == "new input"


def _dry_run(shop: Shop, version: int, capsys: pytest.CaptureFixture[str]) -> Any:
    before = {"gold.visits": version}
    state = State("silver", "hash", stage="promoted", table="gold.visits", before=before)
    write_state(shop.lake, shop.pipeline, state)
    words = ["backfill", "rollback", str(shop.file), "--root", str(shop.root), "--dry-run"]
    code = run_command(app, [*words, "--json"])
    out, err = capsys.readouterr()
    return json.loads(out)["tables"] if code == 0 else (code, err)


def test_a_dry_run_of_a_rollback_says_whether_the_table_is_restored_or_recomputed(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _dry_run(shop, 2, capsys) == {"gold.visits": 2}
    assert _dry_run(shop, 1, capsys) == {"gold.visits": None}
    _write_batch(shop, "visits", 1, definition="earlier")
    code, told = _dry_run(shop, 1, capsys)
    assert code == 3 and "Restore its definition in" in told


def test_a_table_that_left_the_file_must_be_put_back_before_it_is_rolled_back(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    _redefine(shop, gold=[one for one in DEFINITION["gold"] if one["name"] != "visits"])
    code, told = _dry_run(shop, 2, capsys)
    assert code == 2
    assert f"gold.visits is no longer in {shop.file}. Put its definition back, then" in told
    with pytest.raises(UsageError, match="Put its definition back"):
        can_restore(shop.lake, shop.pipeline, "gold.visits", 2)


def test_a_new_input_refuses_a_rollback_only_where_the_table_is_recomputed(shop: Shop) -> None:
    _redefine(shop, joins=[_PAID_ELSEWHERE])
    assert can_restore(shop.lake, shop.pipeline, "gold.visits", 2)
    with pytest.raises(RefusedError, match=r"silver\.orders is a new input"):
        can_restore(shop.lake, shop.pipeline, "gold.visits", 1)


def test_a_rollback_keeps_no_table_that_held_no_batch_before_the_promotion(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is emptied like one that was added since: its log has rows, so it would be refused."""
    _write_batch(shop, "takings_1m", 2, batch=-1)
    kept: list[str] = []

    def continue_gold(_: Run, tables: Sequence[Table], until: Any) -> None:
        kept.extend(table.name for table in tables)

    monkeypatch.setattr(backfill_promotion, "continue_gold", continue_gold)
    before = {f"gold.{name}": 2 for name in ("takings_1m", "visits", "totals")}
    state = State("silver", "hash", stage="rolling back", before=before)
    run = Run(cast(Any, None), shop.pipeline, shop.lake, cast(Any, None), cast(Any, None))
    backfill_promotion._continue_restored_gold(run, state)
    assert kept == ["gold.visits", "gold.totals"]


def test_a_rollback_rebuilds_gold_that_a_run_had_left_between_two_tables(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have no common position: one of them would lack the batch."""
    rebuilt, continued = list[str](), list[Any]()
    monkeypatch.setattr(
        backfill_promotion, "rebuild_gold", lambda run: rebuilt.append(run.pipeline.name)
    )
    monkeypatch.setattr(backfill_promotion, "continue_gold", lambda *all_: continued.append(all_))
    names = ("gold.takings_1m", "gold.visits", "gold.totals")
    state = State("silver", "hash", stage="rolling back", before=dict.fromkeys(names, 2))
    run = Run(cast(Any, None), shop.pipeline, shop.lake, cast(Any, None), cast(Any, None))
    backfill_promotion._continue_restored_gold(run, state)
    assert (len(continued), rebuilt) == (1, [])
    _write_batch(shop, "takings_1m", 3)
    state = replace(state, before={**state.before, "gold.takings_1m": 3})
    backfill_promotion._continue_restored_gold(run, state)
    assert (len(continued), rebuilt) == (1, ["shop"])
    versions, emptied = plan_rollback(shop.lake, shop.pipeline, state)
    assert (versions, emptied) == (dict.fromkeys(names, None), [])


def _noted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """Note each commit that begins a generation, with its table, in place of making it."""
    made: list[tuple[str, dict[str, Any]]] = []

    def append(_: Any, table: Table, note: dict[str, Any], **options: bool) -> None:
        made.append((table.name, note))

    for module in ("tidelake.delta.append", "tidelake.replay.generations"):
        monkeypatch.setattr(f"{module}.append", append)
        monkeypatch.setattr(f"{module}.load", lambda *_: SimpleNamespace(limit=lambda _: None))
    return made


def test_what_silver_s_last_batch_did_not_find_in_a_dimension_is_not_counted_again(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, silver = _noted(monkeypatch), shop.lake.silver("shop")
    last = last_commit(silver)
    assert last is not None
    note = {**last.note, "batch": 3, "dimensions": [["gold.users", 4, 7]]}
    write_commit(silver, 3, note=note)
    spark = cast(Any, SimpleNamespace(sql=lambda _: None))
    run = Run(spark, shop.pipeline, shop.lake, cast(Any, None), cast(Any, None))
    generations.continue_silver(run, {"bronze": (4, -1), "requeue": (1, -1)})
    [(_, continued)] = made
    assert [tuple(use) for use in continued["dimensions"]] == [("gold.users", 4, 0)]


def test_a_commit_that_continues_restored_rows_says_which_one_it_follows(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the books know of the RESTORE when the log has forgotten it.

    It counts nothing: the rows of its batch, also those that failed, are counted in that one.
    """
    made = _noted(monkeypatch)
    for module in ("backfill_promotion", "generations"):
        monkeypatch.setattr(f"tidelake.replay.{module}.apply_gold_settings", lambda _: None)
    visits = shop.lake.gold("visits")
    _write_batch(shop, "visits", 3, batch=2, rebuilt=True, follows=0, rows=9, eligible=9, failed=5)
    write_commit(visits, 4, operation="RESTORE", parameters={"version": "2"})
    run = Run(cast(Any, None), shop.pipeline, shop.lake, cast(Any, None), cast(Any, None))
    backfill_promotion._continue_restored_table(run, "gold.visits")
    [(name, note)] = made
    assert (name, note["generation"], note["batch"], note["follows"]) == (visits.name, "g1", 2, 2)
    assert (note["rows"], note["eligible"], note["failed"]) == (0, 0, 0)
    made.clear()
    _write_batch(shop, "totals", 3, rebuilt=True, follows=0, failed=5)
    generations.continue_gold(run, [visits, shop.lake.gold("totals")], {"silver": (3, -1)})
    [of_visits, of_totals, *_] = [note for _, note in made]
    assert [one["follows"] for one in (of_visits, of_totals)] == [2, 3]
    assert [one["failed"] for one in (of_visits, of_totals)] == [0, 0]
    assert "rebuilt" not in of_totals


def test_check_lets_a_table_that_never_held_a_batch_take_another_definition(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compatibility, "unfilled_tables", lambda _: [])
    monkeypatch.setattr(compatibility, "column_changes", lambda *_: ())
    monkeypatch.setattr(
        compatibility, "known_targets", lambda run: targets_of(run.lake, run.pipeline)
    )
    run = Run(cast(Any, None), shop.pipeline, shop.lake, cast(Any, None), cast(Any, None))

    def standing() -> str:
        found = {one.table: one.standing for one in compatibility._gold_verdicts(run)}
        return found["gold.visits"]

    _write_batch(shop, "visits", 2, definition="of before")
    assert standing() == "redefined"
    _write_batch(shop, "visits", 2, definition="of before", batch=-1)
    assert standing() == "continues"


def test_a_green_table_is_computed_again_after_a_type_was_widened(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed: list[str] = []
    changes = {"gold.visits": ("a type",), "gold.totals": ()}
    monkeypatch.setattr(repairing, "column_changes", lambda _, one: changes[one.table.name])
    monkeypatch.setattr(repairing, "recompute_table", lambda _, name, green: computed.append(name))
    silent = cast(Any, SimpleNamespace(say=lambda _: None))
    run = Run(cast(Any, None), shop.pipeline, shop.lake, cast(Any, None), silent)
    for name in changes:
        repairing.fill_table(run, name, shop.lake.table(name))
    assert computed == ["gold.visits"]


def test_a_range_is_not_computed_of_wider_types_beside_rows_of_narrower_ones(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(cast(Any, None), shop.pipeline, shop.lake, cast(Any, None), cast(Any, None))
    monkeypatch.setattr(backfill, "changed_types", lambda *_: [])
    versions, _ = backfill._pinned_gold(run)
    assert set(versions) == {target.table.name for target in targets_of(shop.lake, shop.pipeline)}
    monkeypatch.setattr(backfill, "changed_types", lambda *_: ["a wider type"])
    with pytest.raises(UsageError, match="a backfill of a range would not change that"):
        backfill._pinned_gold(run)


def test_gold_is_not_rebuilt_before_silver_is_widened(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored, wanted = StructType().add("b", IntegerType()), StructType().add("b", LongType())
    monkeypatch.setattr(repairing, "gold_mismatches", lambda _: iter(mismatches))
    monkeypatch.setattr(repairing, "load", lambda *_: SimpleNamespace(schema=stored))
    monkeypatch.setattr(repairing, "silver_schemas", lambda *_: {"silver": wanted})
    run = Run(cast(Any, None), shop.pipeline, shop.lake, cast(Any, None), cast(Any, None))
    mismatches = list[str]()
    assert repairing.why_rebuilt(run, "gold") == ""
    mismatches.append("a column changed")
    with pytest.raises(
        UsageError, match=r"silver\.shop has b as int still, which is bigint.*silver"
    ):
        repairing.why_rebuilt(run, "gold")
    monkeypatch.setattr(backfill, "check_definition", lambda _: None)
    asked: list[Callable[[], object]] = [
        lambda: repairing.reset(run, "gold"),
        lambda: backfill.fill(run, State("silver", "")),
        lambda: backfill.fill(run, State("silver", "", table="gold.visits")),
        lambda: backfill.build(run, "silver"),
    ]
    rolled_back = State("bronze", "of before", "promoted")
    write_state(shop.lake, shop.pipeline, rolled_back)
    for ask in asked:
        with pytest.raises(UsageError, match=r"Widen it first with: tidelake run shop --hop"):
            ask()
    # Before the earlier backfill is given up.
    assert read_state(shop.lake, shop.pipeline) == rolled_back
    stored = wanted
    assert repairing.why_rebuilt(run, "gold") == "a column changed"
