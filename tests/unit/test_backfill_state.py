"""What a backfill keeps between two commands, and what another definition makes of it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pytest
import yaml
from delta.exceptions.base import ConcurrentWriteException
from pyspark.errors import IllegalArgumentException, PySparkException

from tests.shops import DEFINITION, Shop
from tests.unit.handmade import NEW_YEAR, write_commit
from tidelake.cli import app
from tidelake.cli.exits import run_command
from tidelake.config import Pipeline, load_environment
from tidelake.delta.commit_metadata import hash_of, pipeline_hash
from tidelake.delta.locks import hold_hops
from tidelake.delta.log import last_commit
from tidelake.delta.store import Catalog
from tidelake.delta.tables import Lake
from tidelake.errors import (
    GenerationError,
    LockedError,
    RefusedError,
    TidelakeError,
    UsageError,
)
from tidelake.folders import write_whole
from tidelake.instants import ahead
from tidelake.replay import backfill, backfill_promotion, backfill_state, erase, repairing
from tidelake.replay.backfill import build, fill, plan, recomputes_gold
from tidelake.replay.backfill_promotion import need_promotable
from tidelake.replay.backfill_state import (
    Stage,
    State,
    backfill_again,
    clear,
    folder_of,
    green_lake,
    hold_backfill,
    read_state,
    what_next,
    write_state,
)
from tidelake.replay.subject import Subject
from tidelake.runtime.checkpoints import delta_offset, prepare
from tidelake.runtime.hop import Run
from tidelake.runtime.progress import Progress


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    """Give two batches in all tables, and a suite."""
    made = Shop(tmp_path)
    made.definition = made.definition | {"quality": {"suite": "expectations/shop.yml"}}
    made.write_definition()
    _expect(made, most=64)
    return made.run(2)


def _expect(shop: Shop, *, most: int) -> None:
    """Write the suite, whose one rule limits the length of a user's id."""
    bounds = {"column": "user_id", "max_value": most}
    rule = {"type": "expect_column_value_lengths_to_be_between", "kwargs": bounds}
    file = shop.root / "expectations" / "shop.yml"
    file.parent.mkdir(exist_ok=True)
    file.write_text(yaml.safe_dump({"name": "shop", "expectations": [rule]}), encoding="utf-8")


def _run(shop: Shop) -> Run:
    environment = load_environment("local", root=str(shop.root))
    said = Progress(lambda _: None)
    return Run(cast(Any, None), shop.pipeline, shop.lake, environment, said)


def test_after_a_rule_of_the_suite_has_changed_nothing_is_promoted_and_all_is_filled_anew(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backfill, "fill", lambda *_: None)
    monkeypatch.setattr(backfill, "check_definition", lambda _: None)
    build(_run(shop), "bronze")
    green = folder_of(shop.lake, shop.pipeline) / "silver" / "shop"
    green.mkdir(parents=True)
    assert build(_run(shop), "bronze") == need_promotable(shop.lake, shop.pipeline)
    assert green.exists()

    _expect(shop, most=3)
    with pytest.raises(UsageError, match=r"changed after its backfill was filled\. Fill it again"):
        need_promotable(shop.lake, shop.pipeline)
    build(_run(shop), "bronze")
    assert not green.exists()
    promoting = replace(need_promotable(shop.lake, shop.pipeline), stage="promoting")
    write_state(shop.lake, shop.pipeline, promoting)
    _expect(shop, most=64)
    with pytest.raises(UsageError, match=r"Restore the definition, then promote; or .* rollback"):
        need_promotable(shop.lake, shop.pipeline)


@pytest.mark.parametrize(
    ("state", "options"),
    [
        (State("bronze", ""), ""),
        (
            State("bronze", "", since="2026-01-05T00:00:00+00:00"),
            "--start 2026-01-05T00:00:00+00:00",
        ),
        (State("silver", ""), "--from silver"),
        (
            State("silver", "", span=["2026-01-05", "2026-01-06"]),
            "--from silver --start 2026-01-05 --end 2026-01-06",
        ),
        (State("silver", "", table="gold.totals"), "--table gold.totals"),
    ],
)
def test_a_backfill_is_continued_with_its_own_options(
    shop: Shop, state: State, options: str
) -> None:
    # Without them its tables would be dropped, and others filled.
    for told in (what_next(shop.pipeline, state), backfill_again(shop.pipeline, state)):
        assert told.endswith(f"tidelake backfill run shop {options}".strip())


@pytest.mark.parametrize("table", [None, "gold.none"])
def test_a_backfill_that_is_refused_does_not_give_up_a_rollback(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, table: str | None
) -> None:
    def check_definition(_: Run) -> None:
        if table is None:
            raise UsageError("no such function")

    monkeypatch.setattr(backfill, "check_definition", check_definition)
    state = State("bronze", "of another definition", "promoted", before={"silver.shop": 1})
    write_state(shop.lake, shop.pipeline, state)
    with pytest.raises(UsageError):
        build(_run(shop), "silver", table=table)
    assert read_state(shop.lake, shop.pipeline) == state


def test_beside_an_interrupted_erasure_no_backfill_begins_and_none_is_given_up(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backfill, "fill", lambda *_: None)
    monkeypatch.setattr(backfill, "check_definition", lambda _: None)
    begun = shop.lake.erasure("shop")
    begun.parent.mkdir(parents=True)
    begun.write_text("{}")
    with pytest.raises(RefusedError, match="an erasure of shop has not finished"):
        build(_run(shop), "bronze")
    assert read_state(shop.lake, shop.pipeline) is None
    state = _promoted(shop)
    with pytest.raises(RefusedError, match="tidelake erase shop"):
        build(_run(shop), "bronze")
    assert read_state(shop.lake, shop.pipeline) == state


def test_beside_a_command_of_a_backfill_every_other_one_is_refused(shop: Shop) -> None:
    run, built = _run(shop), State("bronze", pipeline_hash(shop.pipeline), stage="built")
    asked: dict[Stage, Callable[[], object]] = {
        "building": lambda: build(run, "bronze"),
        "built": lambda: backfill_promotion.promote(run),
        "promoted": lambda: backfill_promotion.rollback(run),
        "rolled back": lambda: erase.erase(run, Subject("user_id", "u1")),
    }
    for stage, ask in asked.items():
        write_state(shop.lake, shop.pipeline, replace(built, stage=stage))
        with (
            hold_backfill(shop.lake, shop.pipeline),
            pytest.raises(LockedError, match=f"^shop, backfill, .* by process {os.getpid()}"),
        ):
            ask()
        assert read_state(shop.lake, shop.pipeline) == replace(built, stage=stage)


def test_a_swap_that_began_before_the_lock_was_taken_is_not_overwritten(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tables of the backfill stay, and so do the versions that a rollback restores."""
    begun = State("bronze", pipeline_hash(shop.pipeline), "promoting", before={"silver.shop": 1})
    run, hold = _run(shop), backfill.hold_backfill
    write_state(shop.lake, shop.pipeline, replace(begun, stage="built"))

    def held(lake: Lake, pipeline: Pipeline) -> Any:
        write_state(lake, pipeline, begun)
        return hold(lake, pipeline)

    monkeypatch.setattr(backfill, "hold_backfill", held)
    with pytest.raises(UsageError, match="the backfill of shop is promoting"):
        build(run, "bronze")
    assert read_state(shop.lake, shop.pipeline) == begun
    assert shop.lake.swap("shop").exists()


def test_a_promotion_that_ended_meanwhile_is_not_given_up_unasked(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command asks before Spark has started, by the state of then."""
    monkeypatch.setattr(backfill, "fill", lambda *_: None)
    monkeypatch.setattr(backfill, "check_definition", lambda _: None)
    monkeypatch.setattr("tidelake.replay.backfill.refuse_narrow", lambda _: None)
    words = ["backfill", "run", str(shop.file), "--root", str(shop.root), "--from", "silver"]

    @contextmanager
    def started(_: Any) -> Iterator[Run]:
        _promoted(shop)
        yield _run(shop)

    monkeypatch.setattr("tidelake.cli.rebuilding.started", started)
    assert run_command(app, words) == 2
    assert read_state(shop.lake, shop.pipeline) == _promoted(shop)
    assert run_command(app, [*words, "--yes"]) == 0
    found = read_state(shop.lake, shop.pipeline)
    assert found is not None and found.stage == "built"


def _promoted(shop: Shop) -> State:
    before = dict.fromkeys(shop.pipeline.gold_names, 0)
    state = State("silver", pipeline_hash(shop.pipeline), "promoted", before=before)
    write_state(shop.lake, shop.pipeline, state)
    return state


def _rolled_back(
    shop: Shop,
    monkeypatch: pytest.MonkeyPatch,
    restore: Callable[[str], None],
    gone: Collection[str] = (),
) -> State:
    """Roll back with this in place of Spark's statements, and without the rest.

    Of the tables that are ``gone``, files are.
    """
    monkeypatch.setattr(backfill_promotion, "fitted_to_bronze", lambda _: nullcontext())
    monkeypatch.setattr(backfill_promotion, "_continue_restored_gold", lambda *_: None)
    monkeypatch.setattr(
        backfill_promotion, "has_files", lambda _, table, __: table.name not in gone
    )
    spark = cast(Any, SimpleNamespace(sql=restore, conf=MagicMock()))
    return backfill_promotion.rollback(replace(_run(shop), spark=spark))


def test_a_rollback_that_met_another_commit_can_be_continued(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    _promoted(shop)
    met: list[str] = []

    def restore(statement: str) -> None:
        met.append(statement)
        if len(met) == 2:
            raise ConcurrentWriteException("[DELTA_CONCURRENT_WRITE] A concurrent transaction")

    with pytest.raises(
        TidelakeError,
        match=r"(?s)^shop, restoring gold\.totals to version 0, .*with: tidelake backfill rollback",
    ):
        _rolled_back(shop, monkeypatch, restore)
    assert shop.lake.swap("shop").read_text() == "rolling back"
    assert _rolled_back(shop, monkeypatch, restore).stage == "rolled back"
    assert not shop.lake.swap("shop").exists()
    assert len(met) == 5


def test_a_rollback_whose_files_are_gone_is_given_up(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    promoted = _promoted(shop)

    first, second, *_ = sorted(promoted.before)

    def restore(statement: str) -> None:
        if second.partition(".")[2] in statement:
            raise IllegalArgumentException("Not all files from version 0 are available")

    what = rf"^{second} cannot be restored to version 0, .*\. Already restored, .*: {first}\."
    with pytest.raises(RefusedError, match=what):
        _rolled_back(shop, monkeypatch, restore)
    found = read_state(shop.lake, shop.pipeline)
    assert found is not None and found.stage == promoted.stage
    assert not shop.lake.swap("shop").exists()


def test_a_rollback_to_a_version_whose_files_are_gone_restores_no_table(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    promoted, restored = _promoted(shop), list[str]()
    *_, last = sorted(promoted.before)
    why = rf"^{last} cannot be restored to version 0, .* files of that version are gone\. No table "
    with pytest.raises(RefusedError, match=why + "(?s:.*)with: tidelake backfill run shop"):
        _rolled_back(shop, monkeypatch, restored.append, [last])
    assert read_state(shop.lake, shop.pipeline) == promoted
    assert restored == []
    # A rollback was given up, and cut off before its file was removed.
    write_whole(shop.lake.swap("shop"), "rolling back")
    with pytest.raises(RefusedError, match=why):
        _rolled_back(shop, monkeypatch, restored.append, [last])
    assert restored == [] and not shop.lake.swap("shop").exists()
    # Of an interrupted promotion, tables have changed already: what can be restored is.
    write_state(shop.lake, shop.pipeline, replace(promoted, stage="promoting"))
    assert _rolled_back(shop, monkeypatch, restored.append, [last]).stage == "rolled back"
    assert len(restored) == len(promoted.before)


def test_a_rollback_without_the_files_of_rows_that_it_requeues_restores_no_table(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They waited in the requeue, which was put together and cleaned up since."""
    requeue, restored = shop.lake.requeue("shop"), list[str]()
    note = {"pipeline": "shop", "hop": "requeue", "generation": "g1", "batch": 1}
    write_commit(requeue, 1, note=note, adds=[(3, True)])
    before = {"silver.shop": 1, "silver.shop__late": 1, requeue.name: 1}
    promoted = State("bronze", pipeline_hash(shop.pipeline), "promoted", before=before)
    write_state(shop.lake, shop.pipeline, promoted)
    why = rf"^{requeue.name} cannot be restored to version 1, .*files of rows that it would requeue"
    with pytest.raises(RefusedError, match=why + r"(?s:.*)No table was changed"):
        _rolled_back(shop, monkeypatch, restored.append)
    assert restored == []
    assert read_state(shop.lake, shop.pipeline) == promoted
    assert not shop.lake.swap("shop").exists()
    # An earlier release had begun it: it is given up, and another backfill may begin.
    write_state(shop.lake, shop.pipeline, replace(promoted, stage="rolling back", requeue=1))
    with pytest.raises(RefusedError, match=why + r"(?s:.*Already restored.*)backfill run shop"):
        _rolled_back(shop, monkeypatch, restored.append)
    found = read_state(shop.lake, shop.pipeline)
    assert found is not None and found.stage == "promoted"
    assert not shop.lake.swap("shop").exists()
    # Of the rows that silver has read, none is needed.
    (requeue.path / "part-1-0.parquet").write_bytes(b"")
    monkeypatch.setattr(backfill_promotion, "_continue_restored_silver", lambda *_: None)
    monkeypatch.setattr(backfill_promotion, "_check_ledger", lambda *_: None)
    write_state(shop.lake, shop.pipeline, promoted)
    assert _rolled_back(shop, monkeypatch, restored.append).stage == "rolled back"


def test_a_promotion_whose_new_files_are_gone_names_the_rollback(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = State("silver", pipeline_hash(shop.pipeline), "built")
    write_state(shop.lake, shop.pipeline, built)
    for name in ("fill", "copy_books"):
        monkeypatch.setattr(backfill_promotion, name, lambda *_: None)
    monkeypatch.setattr(backfill_promotion, "fitted_to_bronze", lambda _: nullcontext())

    def install(*_: Any, **__: Any) -> None:
        raise PySparkException("[FAILED_READ_FILE.FILE_NOT_EXIST] file:/lake/backfill/part-0")

    monkeypatch.setattr(backfill_promotion, "_install_gold", install)
    with pytest.raises(RefusedError, match=r"^shop, promotion: a file .* backfill rollback shop"):
        backfill_promotion.promote(_run(shop))


def test_an_unfinished_swap_is_named_by_status_and_by_a_dry_run(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    write_whole(shop.lake.swap("shop"), "promoting")
    place = [str(shop.file), "--root", str(shop.root)]
    what = (
        "a swap of shop's tables has not finished; if none is running, continue it: "
        f"tidelake backfill promote {shop.file} --root {shop.root}, or roll it back: "
        f"tidelake backfill rollback {shop.file} --root {shop.root}"
    )

    def said(*words: str) -> str:
        capsys.readouterr()
        assert run_command(app, [*words, *place]) == 0
        return " ".join("".join(capsys.readouterr()).split())

    assert what in said("status")
    assert json.loads(said("status", "--json"))["unfinished"] == [what]
    assert f"{what}. Until then a run is refused." in said("run", "--dry-run")
    assert json.loads(said("run", "--dry-run", "--json"))["unfinished"] == [what]
    shop.lake.swap("shop").unlink()
    assert "has not finished" not in said("status") + said("run", "--dry-run")


@pytest.mark.parametrize(
    ("stage", "swap", "command"),
    [
        ("promoted", "promoting", backfill_promotion.promote),
        ("rolled back", "rolling back", backfill_promotion.rollback),
        # Of one table that was recomputed instead, after its promotion was interrupted.
        ("rolled back", "promoting", backfill_promotion.rollback),
    ],
)
def test_a_swap_that_was_interrupted_at_its_end_is_ended_by_the_same_command(
    shop: Shop, stage: Stage, swap: str, command: Callable[[Run], State]
) -> None:
    """Its state is written, and the file that refuses all others is still there."""
    state = State("silver", pipeline_hash(shop.pipeline), stage)
    write_state(shop.lake, shop.pipeline, state)
    write_whole(shop.lake.swap("shop"), swap)
    with (
        pytest.raises(RefusedError, match="a swap of shop's tables has not finished"),
        hold_hops(shop.lake, "shop", ["gold"]),
    ):
        pass
    assert command(_run(shop)) == state == read_state(shop.lake, shop.pipeline)
    with hold_hops(shop.lake, "shop", ["gold"]):
        pass


def test_a_promotion_that_was_interrupted_before_its_first_swap_is_given_up_by_a_rollback(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file that refuses all others names a rollback, and the state is still the earlier one."""
    state = State("silver", pipeline_hash(shop.pipeline), "built")
    write_state(shop.lake, shop.pipeline, state)
    words = ["backfill", "rollback", str(shop.file), "--root", str(shop.root)]
    monkeypatch.setattr("tidelake.cli.rebuilding.started", lambda _: nullcontext(_run(shop)))
    # Nothing was promoted.
    assert run_command(app, words) == 2
    write_whole(shop.lake.swap("shop"), "promoting")
    assert run_command(app, [*words, "--dry-run"]) == 0
    assert shop.lake.swap("shop").exists()
    capsys.readouterr()
    assert run_command(app, words) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "No table had been swapped, and none has changed: the backfill of shop is built." in said
    assert read_state(shop.lake, shop.pipeline) == state
    with hold_hops(shop.lake, "shop", ["silver", "gold"]):
        pass


def test_a_rollback_that_was_given_up_is_not_ended_by_a_promotion(shop: Shop) -> None:
    _promoted(shop)
    write_whole(shop.lake.swap("shop"), "rolling back")
    with pytest.raises(UsageError, match="the backfill of shop is promoted"):
        backfill_promotion.promote(_run(shop))
    assert shop.lake.swap("shop").exists()


def test_a_backfill_whose_removal_was_cut_off_is_none(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_state(shop.lake, shop.pipeline, State("bronze", "as it was", "built"))

    def cut_off(_: object) -> None:
        raise OSError("cut off")

    monkeypatch.setattr(backfill_state, "remove_tree", cut_off)
    with pytest.raises(OSError, match="cut off"):
        clear(_run(shop))
    assert read_state(shop.lake, shop.pipeline) is None


def test_nothing_is_compared_under_another_definition(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would recommend a promotion that is refused, and read green tables that are not there."""
    monkeypatch.setattr("tidelake.cli.rebuilding.started", None)
    built = State("bronze", pipeline_hash(shop.pipeline), stage="built")
    write_state(shop.lake, shop.pipeline, built)
    _expect(shop, most=3)
    words = ["backfill", "compare", str(shop.file), "--root", str(shop.root)]
    assert run_command(app, words) == 2
    assert "changed after its backfill was filled. Fill it again" in capsys.readouterr().err


def test_green_tables_that_left_the_file_are_removed_from_a_catalog_too(tmp_path: Path) -> None:
    shop, said = Shop(tmp_path), list[str]()
    tables = {
        "silver": ["shop", "shop__green_shop", "my_shop__green_my_shop"],
        "gold": ["totals", "totals__green_shop", "left__green_shop", "totals__green_my_shop"],
        "ops": ["books__green_shop"],
    }

    def sql(statement: str) -> Any:
        said.append(statement)
        layer = statement.rpartition("`.`")[2].rstrip("`")
        rows: list[Any] = []
        if statement.startswith("SHOW SCHEMAS"):
            rows = [(one,) for one in tables]
        elif statement.startswith("SHOW TABLES"):
            rows = [{"tableName": one, "isTemporary": False} for one in tables[layer]]
        return SimpleNamespace(collect=lambda: rows)

    spark = cast(Any, SimpleNamespace(sql=sql))
    lake = Lake(tmp_path, catalog=Catalog("c", lambda: spark), needs_locks=False)
    clear(replace(_run(shop), spark=spark, lake=lake))
    assert [one.partition("EXISTS ")[2] for one in said if one.startswith("DROP")] == [
        "`c`.`silver`.`shop__green_shop`",
        "`c`.`gold`.`left__green_shop`",
        "`c`.`gold`.`totals__green_shop`",
        "`c`.`ops`.`books__green_shop`",
    ]


def test_gold_that_cannot_continue_is_repaired_before_a_table_is_promoted(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backfill_promotion, "fill", lambda *_: None)
    built = State("silver", pipeline_hash(shop.pipeline), "built", table="gold.visits")
    write_state(shop.lake, shop.pipeline, built)
    shutil.rmtree(shop.lake.checkpoints("shop", "gold") / "g1")
    with pytest.raises(GenerationError, match=r"its checkpoint is gone.* repair shop --hop gold"):
        backfill_promotion.promote(_run(shop))
    assert read_state(shop.lake, shop.pipeline) == built
    with hold_hops(shop.lake, "shop", ["gold"]):
        pass


def test_nothing_is_promoted_without_the_requeue_whose_rows_the_swap_decides(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backfill_promotion, "fill", lambda *_: None)
    built = State("bronze", pipeline_hash(shop.pipeline), "built")
    write_state(shop.lake, shop.pipeline, built)
    shutil.rmtree(shop.lake.requeue("shop").path, ignore_errors=True)
    with pytest.raises(UsageError, match=r"shop__requeue does not exist yet.*tidelake run shop"):
        backfill_promotion.promote(_run(shop))
    assert read_state(shop.lake, shop.pipeline) == built


def test_a_gold_table_of_another_pipeline_is_not_replaced(shop: Shop) -> None:
    theirs = {"pipeline": "till", "hop": "gold", "generation": "g7", "batch": 3}
    write_commit(shop.lake.gold("visits"), 2, note=theirs)
    run, built = _run(shop), State("silver", pipeline_hash(shop.pipeline), "built")
    write_state(shop.lake, shop.pipeline, built)
    asked: list[Callable[[], object]] = [
        lambda: plan(shop.lake, shop.pipeline, "silver"),
        lambda: build(run, "silver"),
        lambda: backfill_promotion.promote(run),
        lambda: repairing.reset(run, "gold"),
        lambda: repairing.reset(run, "silver"),
    ]
    for ask in asked:
        with pytest.raises(RefusedError, match=r"^gold\.visits is filled by the pipeline till;"):
            ask()
    assert read_state(shop.lake, shop.pipeline) == built
    # Its tables are no longer what they were: it is finished or rolled back.
    promoting = replace(built, stage="promoting")
    write_state(shop.lake, shop.pipeline, promoting)
    assert need_promotable(shop.lake, shop.pipeline) == promoting


def test_a_range_may_end_with_the_calendar() -> None:
    day, last = timedelta(days=1), datetime.max.replace(tzinfo=UTC)
    assert ahead(last - 2 * day, day) == last - day
    assert ahead(last - day / 2, day) == ahead(last, day) == last


def _rewrite(shop: Shop) -> None:
    """Replace silver's rows, as a reset does."""
    log = shop.lake.silver("shop").path / "_delta_log"
    removed = {"remove": {"path": "part-0.parquet", "dataChange": True}}
    (log / f"{2:020}.json").write_text(json.dumps(removed), encoding="utf-8")


def _vacuum(shop: Shop, batch: int = 1) -> None:
    (shop.lake.silver("shop").path / f"part-{batch}.parquet").unlink()


def _forget(shop: Shop) -> None:
    (shop.lake.silver("shop").path / "_delta_log" / f"{0:020}.json").unlink()


def _cut_off(shop: Shop) -> None:
    """Remove commits from silver's log that nobody may have read."""
    write_commit(shop.lake.silver("shop"), 3, adds=[(1, True)])
    (shop.lake.silver("shop").path / "_delta_log" / f"{1:020}.json").unlink()
    _forget(shop)


def _recreate(shop: Shop) -> None:
    write_commit(shop.lake.silver("shop"), 0, second=10**9)


@pytest.mark.parametrize("happens", [_rewrite, _cut_off, _recreate])
def test_a_rollback_recomputes_gold_unless_it_restores_the_silver_that_was_replaced_since(
    shop: Shop, happens: Callable[[Shop], None]
) -> None:
    """A stream could not continue after the position of the restored tables."""
    before = dict.fromkeys(shop.pipeline.gold_names, 1)
    of_gold = State("silver", pipeline_hash(shop.pipeline), "promoted", before=before)
    of_all = replace(of_gold, start="bronze", gold_followed=True)
    states = (of_gold, of_all)
    found = [recomputes_gold(shop.lake, shop.pipeline, one) for one in states]
    happens(shop)
    found += [recomputes_gold(shop.lake, shop.pipeline, one) for one in states]
    assert found == [False, False, True, False]


@pytest.mark.parametrize(
    ("read", "happens", "is_rebuilt"),
    [
        (1, lambda _: None, False),
        (1, _rewrite, True),
        (2, _rewrite, True),
        (1, _vacuum, True),
        # What was read may be gone.
        (1, lambda shop: _vacuum(shop, 0), False),
        (2, _vacuum, False),
        (1, _forget, False),
        (0, _forget, True),
    ],
)
def test_green_gold_whose_input_is_lost_is_computed_anew(
    shop: Shop,
    monkeypatch: pytest.MonkeyPatch,
    read: int,
    happens: Callable[[Shop], None],
    is_rebuilt: bool,
) -> None:
    """It has read so many of silver's two versions; files and log are as they were after that."""
    rebuilt: list[str] = []
    monkeypatch.setattr(backfill, "check_definition", lambda _: None)
    monkeypatch.setattr(backfill, "refuse_narrow", lambda _: None)
    monkeypatch.setattr(backfill, "run_hops", lambda *_: None)
    monkeypatch.setattr(backfill, "rebuild_gold", lambda green: rebuilt.append(green.lake.suffix))
    run, state = _run(shop), State("silver", pipeline_hash(shop.pipeline))
    green = green_lake(shop.lake, shop.pipeline, "silver")
    note = {"pipeline": "shop", "hop": "gold", "generation": "g1", "batch": 1}
    for name in shop.pipeline.gold_names:
        read_up_to = {**note, "until": {"silver": [read, -1]}}
        write_commit(green.table(name), 0, note=read_up_to, second=10**9)
    offset = delta_offset("silver.shop", (read, -1))
    prepare(green.checkpoints("shop", "gold") / "g1", 1, [offset])
    happens(shop)
    fill(run, state)
    assert bool(rebuilt) is is_rebuilt


@pytest.mark.parametrize("stage", ["building", "promoting"])
def test_green_tables_whose_checkpoint_is_refused_are_computed_anew(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, stage: Stage
) -> None:
    """A repair would begin a generation of the live tables, and these would be refused again."""
    rebuilt: list[str] = []
    for name in ("check_definition", "refuse_narrow", "run_hops"):
        monkeypatch.setattr(backfill, name, lambda *_: None)
    monkeypatch.setattr(backfill, "rebuild_gold", lambda green: rebuilt.append(green.lake.suffix))
    state = State("silver", pipeline_hash(shop.pipeline), stage)
    green = green_lake(shop.lake, shop.pipeline, "silver")
    note = {"pipeline": "shop", "hop": "gold", "generation": "g1", "batch": 1}
    for name in shop.pipeline.gold_names:
        read_all = {**note, "until": {"silver": [2, -1]}}
        write_commit(green.table(name), 0, note=read_all, second=10**9)
    checkpoint = green.checkpoints("shop", "gold") / "g1"
    prepare(checkpoint, 1, [delta_offset("silver.shop", (2, -1))])
    (checkpoint / "offsets" / "1").write_text("")
    fill(_run(shop), state)
    assert len(rebuilt) == 1

    # Of what is found only when the query runs.
    def run_hops(*_: object) -> None:
        raise GenerationError("shop, hop gold: a file was altered", "Repair it")

    prepare(checkpoint, 1, [delta_offset("silver.shop", (2, -1))])
    monkeypatch.setattr(backfill, "run_hops", run_hops)
    command = {
        "building": "tidelake backfill run shop --from silver",
        "promoting": "tidelake backfill promote shop",
    }[stage]
    with pytest.raises(GenerationError) as refused:
        fill(_run(shop), state)
    assert str(refused.value) == (
        "shop, backfill, hop gold: a file was altered. Nothing was written. "
        f"Compute its tables again with: {command}"
    )
    assert len(rebuilt) == 1
    monkeypatch.setattr(backfill, "run_hops", lambda *_: None)
    fill(_run(shop), state)
    assert len(rebuilt) == 2


@pytest.mark.parametrize(
    ("file", "told"),
    [
        (
            "silver/shop/part-1.parquet",
            "silver.shop is damaged: a file of its newest version is gone",
        ),
        ("silver/shop/part-8.parquet", "a file of a table that it reads is gone. Restore that"),
    ],
)
def test_a_file_that_a_backfill_misses_is_told_with_its_table(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, file: str, told: str
) -> None:
    monkeypatch.setattr(backfill, "check_definition", lambda _: None)
    monkeypatch.setattr(backfill, "refuse_narrow", lambda _: None)

    def rebuild_gold(_: Run) -> None:
        said = f"File file:{shop.root}/{file} does not exist"
        raise OSError(f"java.io.FileNotFoundException: {said}")

    monkeypatch.setattr(backfill, "rebuild_gold", rebuild_gold)
    with pytest.raises(RefusedError) as refused:
        fill(_run(shop), State("silver", pipeline_hash(shop.pipeline)))
    assert str(refused.value).startswith(f"shop, backfill: {told}")
    assert str(refused.value).endswith(file)
    # As are a reset and a repair that rebuild.
    for name in ("refuse_unresettable", "refuse_narrow"):
        monkeypatch.setattr(repairing, name, lambda *_: None)
    monkeypatch.setattr(repairing, "rebuild_gold", rebuild_gold)
    monkeypatch.setattr(repairing, "why_rebuilt", lambda *_: "a column changed")
    with pytest.raises(RefusedError, match=rf"^shop, reset: {told}"):
        repairing.reset(_run(shop), "gold")
    with pytest.raises(RefusedError, match=rf"^shop, repair: {told}"):
        repairing.repair(_run(shop), "gold")


def test_a_backfill_that_an_earlier_release_filled_is_promoted(shop: Shop) -> None:
    """Its hash is that of the pipeline's file alone."""
    filled = State("bronze", hash_of(shop.pipeline), stage="built")
    write_state(shop.lake, shop.pipeline, filled)
    assert need_promotable(shop.lake, shop.pipeline) == read_state(shop.lake, shop.pipeline)


def test_all_files_to_which_a_pipeline_refers_are_in_its_hash(shop: Shop) -> None:
    one = shop.pipeline
    of_users = one.model_copy(update={"dimensions": {"users": one}})
    stricter = one.model_copy(update={"suite": None})
    others = [
        stricter,
        one.model_copy(update={"avro_schema": "{}"}),
        of_users,
        of_users.model_copy(update={"dimensions": {"users": stricter}}),
    ]
    assert len({pipeline_hash(other) for other in [one, *others]}) == 5
    assert {hash_of(other) for other in others} == {hash_of(one)}


def test_pipelines_whose_source_is_replaced_are_named_before_and_in_dry_runs(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "project" / "conf" / "pipelines"
    folder.mkdir(parents=True)
    for name, table in (("reader", "silver/shop"), ("other", "gold/visits")):
        source = {"kind": "delta", "path": f"${{root}}/{table}"}
        content = {**DEFINITION, "name": name, "source": source, "gold": []}
        (folder / f"{name}.yml").write_text(yaml.safe_dump(content))
    monkeypatch.chdir(folder.parent.parent)
    run = _run(shop)
    monkeypatch.setattr("tidelake.cli.rebuilding.started", lambda _: nullcontext(run))
    monkeypatch.setattr("tidelake.replay.repairing.why_rebuilt", lambda *_: "silver was rewritten")
    monkeypatch.setattr("tidelake.replay.backfill.plan", lambda *_: [])

    def named(*words: str) -> list[str]:
        place = [str(shop.file), "--root", str(shop.root)]
        capsys.readouterr()
        run_command(app, [*words, *place])
        said = " ".join(capsys.readouterr().err.split())
        return [word for word in ("other", "reader") if f"read by {word} as its source" in said]

    both, gold = ["other", "reader"], ["other"]
    assert named("reset", "--hop", "silver", "--dry-run") == both
    assert named("reset", "--hop", "gold", "--dry-run") == gold
    # Refused, as nobody confirms it.
    assert named("reset", "--hop", "gold") == gold
    for hop, found in (("bronze", []), ("silver", both), ("gold", gold)):
        monkeypatch.setattr(
            "tidelake.replay.repairing.why_rebuilt", lambda _, hop: "" if hop == "bronze" else "it"
        )
        assert named("repair", "--hop", hop, "--dry-run") == found
    assert named("repair", "--hop", "silver") == both
    for start, table, found in (
        ("bronze", None, both),
        ("silver", None, gold),
        ("silver", "gold.totals", []),
    ):
        state = State(cast(Any, start), pipeline_hash(shop.pipeline), "built", table=table)
        write_state(shop.lake, shop.pipeline, state)
        assert named("backfill", "promote", "--dry-run") == found
        before = dict.fromkeys(shop.pipeline.gold_names, 1)
        write_state(shop.lake, shop.pipeline, replace(state, stage="promoted", before=before))
        assert named("backfill", "rollback", "--dry-run") == found


@pytest.mark.parametrize(
    ("used", "days", "is_rebuilt"),
    [(1, 20, False), (0, 20, True), (0, 3, False), (-1, 20, False)],
    ids=["the newest", "old", "not so old", "no table yet"],
)
def test_green_silver_that_was_looked_up_in_a_version_that_may_be_gone_is_computed_anew(
    shop: Shop, used: int, days: int, is_rebuilt: bool
) -> None:
    """Commits without rows make a dimension's version an old one, too."""
    lake, table = shop.lake, shop.lake.table("dim.users")
    ago = timedelta(days=days).total_seconds()
    seconds = datetime.now(UTC).timestamp() - NEW_YEAR / 1000 - ago
    for version in range(2):
        write_commit(table, version, second=seconds + version, operation="VACUUM END")
    last = last_commit(lake.silver("shop"))
    assert last is not None
    # One of bronze's two batches is unread.
    note = {**last.note, "until": {"bronze": [1, -1]}, "dimensions": [["dim.users", used, 0]]}
    assert backfill._is_looked_up_twice(_run(shop), replace(last, note=note)) is is_rebuilt
