"""What maintenance does to a table: how long files are kept, and whom it lets write meanwhile."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pyarrow as pa
import pytest
import yaml
from delta.exceptions import MetadataChangedException
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from tests.shops import Shop
from tests.stores import Store
from tests.unit.handmade import SHOP, write_commit
from tidelake.cli import app
from tidelake.cli.exits import run_command
from tidelake.config import Pipeline, load_environment, load_pipeline
from tidelake.config.table_settings import FILE_RETENTION, LOG_RETENTION
from tidelake.delta.commit_metadata import pipeline_hash
from tidelake.delta.locks import HopLocks, hold, hold_hops, hold_upkeep
from tidelake.delta.log import Commit, newest_version
from tidelake.delta.merge import vacuum
from tidelake.delta.properties import RETENTIONS, stored_properties
from tidelake.delta.store import Catalog
from tidelake.delta.tables import HOPS, Lake, Table
from tidelake.errors import LeaseLostError, LockedError, RefusedError
from tidelake.folders import Folder, folder
from tidelake.ledger.history import Need
from tidelake.ops import maintenance
from tidelake.ops.maintenance import Plan, plan_upkeep, upkeep
from tidelake.replay import backfill_promotion
from tidelake.replay.backfill_state import State, read_state, write_state
from tidelake.runtime.hop import Run
from tidelake.runtime.progress import Progress

_HOUR, _DAY = timedelta(hours=1), timedelta(days=1)
# Commits are written from the new year on, a second apart.
_TEN = datetime(2024, 1, 1, 10, tzinfo=UTC)


@pytest.fixture
def pipeline(lake: Lake, tmp_path: Path) -> Pipeline:
    """Give silver four commits, of which gold has read two."""
    for version in range(4):
        write_commit(lake.silver("shop"), version, adds=[(1, True)])
    _read_up_to(lake, 0, 2)
    file = tmp_path / "shop.yml"
    file.write_text(yaml.safe_dump(SHOP))
    return load_pipeline(str(file), load_environment("local", root=str(lake.root)))


def _read_up_to(lake: Lake, batch: int, version: int) -> None:
    note = {"pipeline": "shop", "hop": "gold", "generation": "g1", "batch": batch}
    write_commit(lake.gold("totals"), batch, note={**note, "until": {"silver": [version, -1]}})


def _set_on(table: Table, version: int, **stored: str) -> None:
    """Let somebody set a table's properties, under their names without ``delta.``, in a commit."""
    write_commit(table, version, operation="SET TBLPROPERTIES")
    of_delta = {key if "." in key else f"delta.{key}": text for key, text in stored.items()}
    with (table.path / "_delta_log" / f"{version:020}.json").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"metaData": {"id": "x", "configuration": of_delta}}) + "\n")


def _kept(lake: Lake, pipeline: Pipeline, keep: timedelta | None = None) -> Mapping[str, timedelta]:
    plans = plan_upkeep(lake, pipeline, horizon=_HOUR, keep=keep, now=_TEN)
    return {plan.table.name: plan.keep for plan in plans}


def test_files_within_the_recovery_horizon_are_never_deleted(
    lake: Lake, pipeline: Pipeline
) -> None:
    _read_up_to(lake, 1, 4)
    assert _kept(lake, pipeline) == {"silver.shop": _HOUR, "gold.totals": _HOUR}
    with pytest.raises(RefusedError, match=r"for 0\.5 hours is less than the recovery horizon"):
        _kept(lake, pipeline, _HOUR / 2)
    assert set(_kept(lake, pipeline, _HOUR).values()) == {_HOUR}


def test_files_that_a_reader_needs_are_kept_and_the_reader_is_named(
    lake: Lake, pipeline: Pipeline
) -> None:
    # Gold is at the version that was written in the first second.
    needed = 11 * _HOUR - timedelta(seconds=1)
    assert _kept(lake, pipeline) == {"silver.shop": needed, "gold.totals": _HOUR}
    why = "files of silver.shop since 2024-01-01 00:00Z are still needed: gold.totals has not read"
    with pytest.raises(RefusedError, match=f"{why}.*tidelake run shop --hop gold"):
        _kept(lake, pipeline, 5 * _HOUR)
    _read_up_to(lake, 1, 4)
    assert set(_kept(lake, pipeline, 5 * _HOUR).values()) == {5 * _HOUR}


def test_old_files_of_a_gold_table_that_left_the_definition_are_deleted_too(
    lake: Lake, pipeline: Pipeline
) -> None:
    """Rows that were erased since may be in them."""
    for name, owner in (("visits", "shop"), ("totals_of_till", "till")):
        note = {"pipeline": owner, "hop": "gold", "generation": "g1", "batch": 0}
        write_commit(lake.gold(name), 0, note={**note, "until": {"silver": [0, -1]}})
    _read_up_to(lake, 1, 4)
    plans = {one.table.name: one for one in plan_upkeep(lake, pipeline, horizon=_HOUR, now=_TEN)}
    assert plans.keys() == {"silver.shop", "gold.totals", "gold.visits"}
    assert plans["gold.visits"].keep == _HOUR
    # Which rows its files have in which order is not known any more.
    assert {name for name, one in plans.items() if one.is_former} == {"gold.visits"}


def test_files_are_kept_as_long_as_somebody_set_on_the_table(
    lake: Lake, pipeline: Pipeline
) -> None:
    silver, gold = lake.silver("shop"), lake.gold("totals")
    _set_on(silver, 4, deletedFileRetentionDuration="30 DAYS", logRetentionDuration="365 days")
    write_commit(silver, 5)
    _set_on(gold, 1, deletedFileRetentionDuration="interval 6 hours")
    assert _kept(lake, pipeline) == {"silver.shop": 30 * _DAY, "gold.totals": 6 * _HOUR}
    # The newest value counts, a reader may need more, and no property is the reason then.
    _set_on(silver, 6, deletedFileRetentionDuration="interval 8 hours")
    _set_on(gold, 2)
    needed = 11 * _HOUR - timedelta(seconds=1)
    assert _kept(lake, pipeline) == {"silver.shop": needed, "gold.totals": _HOUR}


def test_a_preview_says_which_property_keeps_files_and_less_is_refused_by_its_name(
    lake: Lake, pipeline: Pipeline
) -> None:
    silver = lake.silver("shop")
    _set_on(silver, 4, deletedFileRetentionDuration="interval 1 week 2 days")
    plan, of_gold = plan_upkeep(lake, pipeline, horizon=_HOUR, now=_TEN)
    assert plan.reason == (None, f"its {FILE_RETENTION} of 'interval 1 week 2 days'")
    assert of_gold.reason == (None, None)
    remedy = rf"ALTER TABLE delta\.`.*silver/shop` UNSET TBLPROPERTIES \('{FILE_RETENTION}'\)"
    with pytest.raises(RefusedError, match=rf"silver\.shop .* of 9\.0 days.*{remedy}"):
        _kept(lake, pipeline, 8 * _DAY)
    assert _kept(lake, pipeline, 9 * _DAY)["silver.shop"] == 9 * _DAY
    # Nothing is deleted if it cannot be read.
    _set_on(silver, 5, deletedFileRetentionDuration="for ever")
    plan, _ = plan_upkeep(lake, pipeline, horizon=_HOUR, now=_TEN)
    assert plan.reason == (None, f"its {FILE_RETENTION} of 'for ever'")
    assert plan.keep > 90_000 * _DAY


def test_a_run_says_what_keeps_files_longer_than_the_horizon_and_a_preview_the_same(
    lake: Lake,
    pipeline: Pipeline,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("tidelake.cli.operating._kept_up", lambda *_: ())
    _set_on(lake.gold("totals"), 1, deletedFileRetentionDuration="30 days")
    words = ["maintain", str(pipeline.file), "--root", str(lake.root)]
    assert run_command(app, words) == 0
    of_gold = f"its {FILE_RETENTION} of '30 days'"
    said = capsys.readouterr().err
    assert f"gold.totals: old files are kept for 720 hours: {of_gold}\n" in said
    assert re.search(r"silver\.shop: .* hours: gold\.totals has not read further\n", said)
    assert run_command(app, [*words, "--dry-run", "--json"]) == 0
    rows = {row["table"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["gold.totals"] == {
        "table": "gold.totals",
        "keeps hours": 720,
        "needed since": None,
        "by": of_gold,
    }
    assert rows["silver.shop"]["by"] == "gold.totals has not read further"
    # Whoever says how long has said it.
    assert run_command(app, [*words, "--keep", "90000 days"]) == 0
    assert "old files are kept" not in capsys.readouterr().err


def test_what_maintenance_set_keeps_no_files(lake: Lake, pipeline: Pipeline) -> None:
    """Delta's default without a record, of earlier releases; nothing else."""
    _set_on(lake.silver("shop"), 4, deletedFileRetentionDuration="interval 8 days")
    _set_on(lake.gold("totals"), 1, deletedFileRetentionDuration="interval 7 days")
    assert _kept(lake, pipeline) == {"silver.shop": 8 * _DAY, "gold.totals": _HOUR}
    own = {FILE_RETENTION: {"set": "interval 8 days"}}
    recorded = {"deletedFileRetentionDuration": "interval 8 days"}
    _set_on(lake.silver("shop"), 5, **recorded, **{RETENTIONS: json.dumps(own)})
    assert _kept(lake, pipeline)["silver.shop"] == 11 * _HOUR - timedelta(seconds=1)
    # Set by others since there is a record.
    _set_on(lake.gold("totals"), 2, deletedFileRetentionDuration="7 days", **{RETENTIONS: "{}"})
    assert _kept(lake, pipeline)["gold.totals"] == 7 * _DAY


def test_properties_are_read_from_the_checkpoint_of_a_log_and_what_was_set_since(
    lake: Lake,
) -> None:
    table = lake.silver("shop")
    assert stored_properties(table) == {}
    month = {FILE_RETENTION: "interval 30 days"}
    write_deltalake(str(table.path), pa.table({"n": [1]}), configuration=month)
    write_deltalake(str(table.path), pa.table({"n": [1]}), mode="append")
    assert stored_properties(table) == month
    DeltaTable(str(table.path)).create_checkpoint()
    log = table.path / "_delta_log"
    (log / f"{0:020}.json").unlink()
    assert stored_properties(table) == month
    write_deltalake(str(table.path), pa.table({"n": [1]}), mode="append")
    assert stored_properties(table) == month
    _set_on(table, 3, deletedFileRetentionDuration="40 days")
    assert stored_properties(table) == {FILE_RETENTION: "40 days"}


class _Kept:
    """Stands in for Spark: records what is done to which table, and whose locks are held then."""

    def __init__(self, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lake, self.done, self.said = lake, list[str](), list[str]()
        for name in ("compact", "cluster", "vacuum", "_keep_log"):
            monkeypatch.setattr(maintenance, name, self._recorder(name))
        self.hours, self.stored = list[int](), dict[str, str]()
        self.stop = Event()
        monkeypatch.setattr(maintenance, "properties", lambda *_: self.stored)
        monkeypatch.setattr(maintenance, "has_vectors", lambda *_: True)
        self.locks = HopLocks()
        monkeypatch.setattr(maintenance, "detail", lambda *_: {"numFiles": 1})

    def _recorder(self, name: str) -> Any:
        def record(_: Any, about: Table | Plan, *rest: Any, **more: Any) -> None:
            table = about.table if isinstance(about, Plan) else about
            places = {hop: self.lake.checkpoints("shop", hop) for hop in HOPS}
            places["ops"] = self.lake.lock_of(table)
            locked = [name for name, place in places.items() if _is_held(place)]
            self.done.append(" ".join([name, table.name, *locked]))
            self.hours += [more["hours"]] if "hours" in more else []

        return record

    @property
    def run(self) -> Run:
        pipeline, progress = SimpleNamespace(name="shop"), Progress(self.said.append)
        run = SimpleNamespace(spark=MagicMock(), lake=self.lake, pipeline=pipeline)
        run.progress, run.stop, run.locks = progress, self.stop, self.locks
        return cast(Any, run)

    def up(self, *plans: Plan) -> list[str]:
        self.done.clear()
        list(upkeep(self.run, plans))
        return self.done


def _is_held(place: Folder) -> bool:
    try:
        with hold(place, "asked,"):
            return False
    except LockedError:
        return True


@pytest.mark.parametrize("is_stored", [False, True])
def test_a_table_is_only_written_under_the_locks_of_its_writers(
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    is_stored: bool,
) -> None:
    """On a disk too, two processes that commit one version overwrite each other."""
    lake = Lake(folder(request.getfixturevalue("s3").prefix()) if is_stored else tmp_path)
    kept = _Kept(lake, monkeypatch)
    bronze, gold = Plan(lake.bronze("shop"), _HOUR), Plan(lake.gold("a"), _HOUR, (), ("at",))
    in_gold = [f"{name} gold.a gold" for name in ("cluster", "compact", "_keep_log")]
    in_bronze = [f"{name} bronze.shop bronze silver" for name in ("compact", "_keep_log")]
    assert kept.up(bronze, gold) == [
        *(*in_bronze, "vacuum bronze.shop"),
        *(*in_gold, "vacuum gold.a"),
    ]
    assert kept.said == []
    # A run writes gold, alone.
    with hold_hops(lake, "shop", ["gold"]):
        assert kept.up(gold, bronze) == [
            "vacuum gold.a gold",
            *(f"{line} gold" for line in in_bronze),
            "vacuum bronze.shop gold",
        ]
    (said,) = kept.said
    assert said.startswith(
        "gold.a is not compacted, only its old files are deleted: shop, hop gold, "
    )
    assert "is being written by process" in said
    # A dimension's tables are filled by the hop gold.
    dimension = Plan(lake.table("dim.shop"), _HOUR)
    with hold_hops(lake, "shop", ["gold"]):
        assert kept.up(dimension) == [f"vacuum {dimension.table.name} gold"]
    # All pipelines append to it.
    in_ops = [f"{name} ops.books ops" for name in ("compact", "_keep_log")]
    assert kept.up(Plan(lake.books(), _HOUR)) == [*in_ops, "vacuum ops.books"]
    # No hop writes it.
    judged = lake.table("gold.a__reconciled")
    assert kept.up(Plan(judged, _HOUR))[:2] == [
        line.replace("ops.books", judged.name) for line in in_ops
    ]


def test_maintenance_that_is_stopped_begins_no_other_table(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = _Kept(lake, monkeypatch)
    plans = [Plan(lake.books(), _HOUR), Plan(lake.epochs(), _HOUR)]
    monkeypatch.setattr(maintenance, "vacuum", lambda *_, **__: kept.stop.set())
    with pytest.raises(KeyboardInterrupt):
        kept.up(*plans)
    assert kept.done == [f"{name} ops.books ops" for name in ("compact", "_keep_log")]


def test_a_catalog_needs_no_locks_and_a_former_table_is_not_compacted(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = Catalog("c", session=lambda: pytest.fail("Spark was asked"))
    kept = _Kept(replace(lake, catalog=catalog), monkeypatch)
    bronze, gold = (kept.lake.table(name) for name in ("bronze.shop", "gold.a"))
    tidied = ["compact gold.a", "_keep_log gold.a", "vacuum gold.a"]
    assert kept.up(Plan(gold, _HOUR, (), ("at",))) == ["cluster gold.a", *tidied]
    # Of a table that no hop fills any more, only old files are deleted.
    assert kept.up(Plan(gold, _HOUR, is_former=True)) == tidied[1:]
    with hold_hops(lake, "shop", HOPS):
        assert len(kept.up(Plan(bronze, _HOUR), Plan(gold, _HOUR, (), ("at",)))) == 7
    assert kept.said == []


def test_deleted_files_are_counted_although_a_run_adds_others(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, table = _Kept(lake, monkeypatch), lake.silver("shop")
    (table.path / "_delta_log").mkdir(parents=True)
    for name in ("1.parquet", "2.parquet", "3.bin", "_delta_log/0.crc"):
        (table.path / name).touch()

    def vacuum(*_: object, **__: object) -> None:
        for name in ("1.parquet", "3.bin", "_delta_log/0.crc"):
            (table.path / name).unlink()
        (table.path / "4.parquet").touch()

    monkeypatch.setattr(maintenance, "vacuum", vacuum)
    [done] = upkeep(kept.run, [Plan(table, _HOUR)])
    assert done.deleted == 2


@pytest.mark.parametrize("is_stored", [False, True])
def test_a_second_maintenance_an_erasure_or_a_rollback_is_refused_before_it_plans(
    tmp_path: Path, request: pytest.FixtureRequest, is_stored: bool
) -> None:
    root = folder(request.getfixturevalue("s3").prefix()) if is_stored else tmp_path
    lake, process = Lake(root), rf"process {os.getpid()}\b"
    with hold_upkeep(lake, "shop"):
        # A run may go on beside it, and another pipeline's maintenance.
        with hold_hops(lake, "shop", HOPS), hold_upkeep(lake, "till"):
            pass
        what = rf"^shop, upkeep \(maintain, erase or rollback\), is being written by {process}"
        with pytest.raises(LockedError, match=what) as refused, hold_upkeep(lake, "shop"):
            pass
        assert refused.value.exit_code == 3
    # As that of a process that was killed.
    with hold_upkeep(lake, "shop"):
        pass


def test_beside_an_erasure_maintenance_is_refused_and_only_shown(
    lake: Lake,
    pipeline: Pipeline,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    done = list[str]()
    plan, place = maintenance.plan_upkeep, lake.root / "checkpoints" / "shop" / "maintain"

    def planned(*about: Any, **how: Any) -> list[Plan]:
        done.append("planned under its lock" if _is_held(place) else "planned")
        return plan(*about, **how)

    def kept_up(_: object, plans: object, locks: HopLocks) -> tuple[()]:
        done.append("worked under its lock" if _is_held(place) and locks.checks else "worked")
        return ()

    monkeypatch.setattr(maintenance, "plan_upkeep", planned)
    monkeypatch.setattr("tidelake.cli.operating._kept_up", kept_up)
    words = ["maintain", str(pipeline.file), "--root", str(lake.root)]
    assert run_command(app, [*words, "--dry-run"]) == 0
    assert done == ["planned"]
    done.clear()
    with hold_upkeep(lake, "shop"):
        assert run_command(app, words) == 3
        assert "Wait for it to end, or stop it, then run again." in capsys.readouterr().err
        assert done == []
        assert run_command(app, [*words, "--dry-run"]) == 0
    done.clear()
    assert run_command(app, words) == 0
    assert done == ["planned under its lock", "worked under its lock"]


def test_beside_maintenance_nothing_is_rolled_back_and_none_begins_until_all_is_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It brings back files that a VACUUM has listed as removed, and would delete."""
    played, done = Shop(tmp_path).run(1), list[str]()
    state = State("silver", pipeline_hash(played.pipeline), "promoted", before={"gold.totals": 0})
    write_state(played.lake, played.pipeline, state)
    environment = load_environment("local", root=str(tmp_path))
    run = Run(cast(Any, None), played.pipeline, played.lake, environment, Progress(lambda _: None))
    place = played.lake.root / "checkpoints" / "shop" / "maintain"

    def restore(held: Run) -> State:
        held.locks.step("restore gold.totals")
        done.append("restored under its lock" if _is_held(place) else "restored")
        return replace(state, stage="rolling back")

    monkeypatch.setattr(backfill_promotion, "_restore_tables", restore)
    with (
        hold_upkeep(played.lake, "shop"),
        pytest.raises(LockedError, match=r"^shop, upkeep .*is being written by process"),
    ):
        backfill_promotion.rollback(run)
    assert (done, read_state(played.lake, played.pipeline)) == ([], state)
    assert backfill_promotion.rollback(run).stage == "rolled back"
    assert done == ["restored under its lock"]


def test_maintenance_without_tables_makes_no_lock(tmp_path: Path) -> None:
    file, root = tmp_path / "shop.yml", tmp_path / "lake"
    file.write_text(yaml.safe_dump(SHOP))
    # Such as one that is misspelt.
    assert run_command(app, ["maintain", str(file), "--root", str(root)]) == 0
    assert not root.exists()
    root.mkdir()
    assert run_command(app, ["maintain", str(file), "--root", str(root)]) == 0
    assert list(root.iterdir()) == []


def test_maintenance_that_lost_its_lock_begins_no_other_table(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = _Kept(lake, monkeypatch)

    def check() -> None:
        if any(line.startswith("vacuum") for line in kept.done):
            raise LeaseLostError("shop, upkeep,", "s3://lake/.lock")

    kept.locks.checks.append(check)
    with pytest.raises(LeaseLostError):
        kept.up(Plan(lake.books(), _HOUR), Plan(lake.epochs(), _HOUR))
    in_books = [f"{name} ops.books ops" for name in ("compact", "_keep_log")]
    assert kept.done == [*in_books, "vacuum ops.books"]


def test_maintenance_that_lost_the_lock_of_a_table_says_so_and_ends(
    s3: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss also asks the run to stop, which alone would not say why."""
    kept = _Kept(Lake(folder(s3.prefix())), monkeypatch)

    @contextmanager
    def writing(*_: object) -> Iterator[None]:
        yield
        kept.stop.set()
        raise LeaseLostError("ops.books", "s3://lake/.lock")

    monkeypatch.setattr(maintenance, "_writing", writing)
    # An interrupt that no test expects would end pytest.
    with pytest.raises((LeaseLostError, KeyboardInterrupt)) as ended:
        kept.up(Plan(kept.lake.books(), _HOUR), Plan(kept.lake.epochs(), _HOUR))
    assert isinstance(ended.value, LeaseLostError)
    assert kept.said == []
    assert kept.done == [f"{name} ops.books" for name in ("compact", "_keep_log")]


def test_files_younger_than_the_given_hours_are_kept_whatever_the_table_says(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Delta would go by the table's property, of seven days by default."""
    ten_days, month = 240, {FILE_RETENTION: "interval 30 days"}

    def left(hours: int) -> int:
        table = Lake(tmp_path / str(hours)).silver("shop")
        for number in range(2):
            of_table = month if hours < ten_days else None
            rows = pa.table({"n": [number]})
            write_deltalake(str(table.path), rows, mode="overwrite", configuration=of_table)
        then = (datetime.now(UTC) - ten_days * _HOUR).timestamp()
        removing = table.path / "_delta_log" / f"{1:020}.json"
        actions = [json.loads(line) for line in removing.read_text().splitlines()]
        for action in actions:
            if "remove" in action:
                action["remove"]["deletionTimestamp"] = int(then * 1000)
        removing.write_text("".join(json.dumps(action) + "\n" for action in actions))
        for file in table.path.glob("*.parquet"):
            os.utime(file, (then, then))
        vacuum(spark, table, hours=hours)
        # A commit of its own could overwrite that of a run.
        assert newest_version(table) == 1
        return len(list(table.path.glob("*.parquet")))

    assert left(ten_days + 24) == 2
    assert left(48) == 1


def test_compute_that_goes_by_the_property_deletes_nothing_if_that_is_shorter(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = _Kept(lake, monkeypatch)
    monkeypatch.setattr(maintenance, "vacuum_uses_hours", lambda _: False)
    plan = Plan(lake.gold("a"), 8 * _DAY)
    assert kept.up(plan) == ["compact gold.a gold", "_keep_log gold.a gold"]
    (said,) = kept.said
    assert said.startswith("old files of gold.a are not deleted: this compute supports no session")
    assert "'interval 7 days'; they are needed for 8.0 days" in said
    kept.stored[FILE_RETENTION] = "interval 20 days"
    assert kept.up(plan)[-1] == "vacuum gold.a"
    # It may refuse less than the property.
    assert kept.hours == [20 * 24]


def test_files_that_were_removed_after_the_plan_was_made_are_kept_as_long(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = _Kept(lake, monkeypatch)
    monkeypatch.setattr(maintenance, "vacuum_uses_hours", lambda _: True)
    kept.up(Plan(lake.gold("a"), 8 * _DAY, made_at=datetime.now(UTC) - 5.5 * _HOUR))
    assert kept.hours == [8 * 24 + 6]


def test_files_that_somebody_wants_kept_longer_are_not_deleted(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = _Kept(lake, monkeypatch)
    monkeypatch.setattr(maintenance, "vacuum_uses_hours", lambda _: True)
    plan = Plan(lake.gold("a"), 7 * _DAY)
    # Set since the plan was made, or where the log was not enough.
    kept.stored[FILE_RETENTION] = "30 days"
    kept.up(plan)
    assert kept.hours == [30 * 24]
    assert kept.said == []


class _Retentions:
    """The properties of a table whose last commit, and oldest need, are so many days old."""

    def __init__(self, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
        self.table, self.stored, self.set = lake.silver("shop"), dict[str, str](), 0
        self.last, self.conflicts = timedelta(0), 0
        monkeypatch.setattr(maintenance, "properties", lambda *_: self.stored)
        monkeypatch.setattr(
            maintenance, "last_commit", lambda _: Commit(0, datetime.now(UTC) - self.last, 0, {})
        )

    def sql(self, statement: str) -> None:
        if self.conflicts:
            self.conflicts -= 1
            raise MetadataChangedException("by a run")
        pairs = statement.partition("TBLPROPERTIES (")[2].removesuffix(")")
        self.stored |= dict(re.findall(r"'([^']+)' = '([^']*)'", pairs))
        self.set += 1

    def texts(self, *, idle: float = 0, needed: float = 0, keep: float = 7) -> tuple[str, str]:
        """Maintain it; return how long files and log are kept."""
        self.last, need = idle * _DAY, Need(self.table, datetime.now(UTC) - needed * _DAY, "", "")
        maintenance._keep_log(cast(Any, self), Plan(self.table, keep * _DAY, (need,)))
        return self.stored[FILE_RETENTION], self.stored[LOG_RETENTION]

    def after(self, *, idle: float, needed: float, keep: float = 7) -> tuple[int, int]:
        """Maintain it; return for how many days files and log are kept."""
        files, log = (
            int(text.split()[1]) for text in self.texts(idle=idle, needed=needed, keep=keep)
        )
        return files, log


def test_the_properties_of_an_idle_table_do_not_change_at_each_maintenance(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = _Retentions(lake, monkeypatch)
    assert kept.after(idle=0, needed=0) == (7, 30)
    for day in range(60):
        # What is needed until the next day is kept, by the file's readers too.
        files, log = kept.after(idle=day, needed=day, keep=max(7, day + 1 / 24))
        assert files >= max(7, day + 1) and log >= max(files, day + 1)
        assert log <= max(30, 2 * day + 1, files) and files <= max(7, day + 8)
    assert kept.set <= 12
    assert kept.after(idle=0, needed=0) == (7, 30)
    assert kept.after(idle=0, needed=0, keep=40) == (40, 40)


def test_versions_that_are_needed_longer_than_usual_can_be_read_until_the_next_maintenance(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = _Retentions(lake, monkeypatch)
    assert kept.after(idle=0, needed=5) == (7, 30)
    assert kept.after(idle=0, needed=6.5) == (14, 30)
    assert kept.after(idle=0, needed=12, keep=12.1) == (14, 30)


def test_a_retention_that_somebody_set_is_a_minimum(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = _Retentions(lake, monkeypatch)
    theirs = {FILE_RETENTION: "interval 30 days", LOG_RETENTION: "INTERVAL 52 weeks"}
    kept.stored |= theirs
    assert kept.texts() == tuple(theirs.values())
    assert kept.texts(needed=28) == ("interval 30 days", "INTERVAL 52 weeks")
    # A reader needs more, for a time.
    assert kept.texts(needed=40, keep=40) == ("interval 48 days", "INTERVAL 52 weeks")
    assert kept.texts() == ("interval 30 days", "INTERVAL 52 weeks")
    changes = kept.set
    assert kept.texts() == ("interval 30 days", "INTERVAL 52 weeks")
    assert kept.set == changes
    # Changed, or unset, it counts as such.
    kept.stored[FILE_RETENTION] = "20 days"
    assert kept.texts() == ("20 days", "INTERVAL 52 weeks")
    kept.stored[FILE_RETENTION] = "interval 1 day"
    del kept.stored[LOG_RETENTION]
    assert kept.texts() == ("interval 7 days", "interval 30 days")
    kept.stored[FILE_RETENTION] = "interval 40 days"
    assert kept.texts() == ("interval 40 days", "interval 40 days")
    del kept.stored[FILE_RETENTION]
    assert kept.texts() == ("interval 7 days", "interval 30 days")


def test_a_retention_that_was_set_before_the_first_maintenance_stays(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = _Retentions(lake, monkeypatch)
    # In maintenance's own spelling, and no longer than it could have set.
    theirs = {FILE_RETENTION: "interval 14 days", LOG_RETENTION: "interval 30 days"}
    kept.stored |= theirs
    assert kept.texts(needed=7, keep=7.05) == tuple(theirs.values())
    assert kept.texts() == tuple(theirs.values())
    # Nor is one replaced that cannot be read.
    kept.stored[FILE_RETENTION] = "for ever"
    assert kept.texts(needed=40, keep=40)[0] == "for ever"


def test_what_earlier_releases_set_without_a_record_is_adapted_if_it_is_the_usual(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = _Retentions(lake, monkeypatch)
    kept.stored |= {FILE_RETENTION: "interval 7 days", LOG_RETENTION: "interval 81 days"}
    assert kept.texts(needed=8, keep=8) == ("interval 16 days", "interval 81 days")
    assert json.loads(kept.stored[RETENTIONS]) == {FILE_RETENTION: {"set": "interval 16 days"}}
    assert kept.texts() == ("interval 7 days", "interval 81 days")


def test_properties_are_set_again_if_a_run_changed_the_table_meanwhile(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = _Retentions(lake, monkeypatch)
    kept.conflicts = 1
    assert kept.texts() == ("interval 7 days", "interval 30 days")
