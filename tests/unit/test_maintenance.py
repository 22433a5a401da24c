"""What maintenance does to a table: how long files are kept, and whom it lets write meanwhile."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pyarrow as pa
import pytest
import yaml
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from tests.stores import Store
from tests.unit.handmade import SHOP, write_commit
from tidelake.config import Pipeline, load_environment, load_pipeline
from tidelake.config.table_settings import FILE_RETENTION, LOG_RETENTION
from tidelake.delta.locks import hold, hold_hops
from tidelake.delta.log import Commit
from tidelake.delta.merge import vacuum
from tidelake.delta.tables import HOPS, Lake, Table
from tidelake.errors import LockedError, RefusedError
from tidelake.folders import Folder, folder
from tidelake.ledger.history import Need
from tidelake.ops import maintenance
from tidelake.ops.maintenance import Plan, plan_upkeep, upkeep
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


class _Kept:
    """Stands in for Spark: records what is done to which table, and whose locks are held then."""

    def __init__(self, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lake, self.done, self.said = lake, list[str](), list[str]()
        for name in ("compact", "cluster", "vacuum", "_keep_log"):
            monkeypatch.setattr(maintenance, name, self._recorder(name))
        self.hours, self.stored = list[int](), dict[str, str]()
        monkeypatch.setattr(maintenance, "properties", lambda *_: self.stored)
        monkeypatch.setattr(maintenance, "has_vectors", lambda *_: True)
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

    def up(self, *plans: Plan) -> list[str]:
        self.done.clear()
        pipeline, progress = SimpleNamespace(name="shop"), Progress(self.said.append)
        run = SimpleNamespace(spark=MagicMock(), lake=self.lake, pipeline=pipeline)
        run.progress = progress
        list(upkeep(cast(Any, run), plans))
        return self.done


def _is_held(place: Folder) -> bool:
    try:
        with hold(place, "asked,"):
            return False
    except LockedError:
        return True


def test_on_a_store_a_table_is_only_written_under_the_locks_of_its_writers(
    s3: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(folder(s3.prefix()))
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


def test_on_a_disk_a_table_is_compacted_beside_a_run_and_only_not_clustered(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = _Kept(lake, monkeypatch)
    bronze, gold = Plan(lake.bronze("shop"), _HOUR), Plan(lake.gold("a"), _HOUR, (), ("at",))
    tidied = ["compact gold.a", "_keep_log gold.a", "vacuum gold.a"]
    assert kept.up(gold) == ["cluster gold.a gold", *tidied]
    with hold_hops(lake, "shop", HOPS):
        assert [line.rsplit(" bronze", 1)[0] for line in kept.up(gold)] == tidied
        assert len(kept.up(bronze)) == 3
    assert kept.said == []


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
        return len(list(table.path.glob("*.parquet")))

    assert left(ten_days + 24) == 2
    assert left(48) == 1


def test_compute_that_goes_by_the_property_deletes_nothing_if_that_is_shorter(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = _Kept(lake, monkeypatch)
    monkeypatch.setattr(maintenance, "vacuum_uses_hours", lambda _: False)
    plan = Plan(lake.gold("a"), 8 * _DAY)
    assert kept.up(plan) == ["compact gold.a", "_keep_log gold.a"]
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


class _Retentions:
    """The properties of a table whose last commit, and oldest need, are so many days old."""

    def __init__(self, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
        self.table, self.stored, self.set = lake.silver("shop"), dict[str, str](), 0
        self.last = timedelta(0)
        monkeypatch.setattr(maintenance, "properties", lambda *_: self.stored)
        monkeypatch.setattr(
            maintenance, "last_commit", lambda _: Commit(0, datetime.now(UTC) - self.last, 0, {})
        )

    def sql(self, statement: str) -> None:
        pairs = statement.partition("TBLPROPERTIES (")[2].removesuffix(")")
        self.stored |= dict(
            [text.strip("' ") for text in pair.split("=")] for pair in pairs.split(",")
        )
        self.set += 1

    def after(self, *, idle: float, needed: float, keep: float = 7) -> tuple[int, int]:
        """Maintain it; return for how many days files and log are kept."""
        self.last, need = idle * _DAY, Need(self.table, datetime.now(UTC) - needed * _DAY, "", "")
        maintenance._keep_log(cast(Any, self), Plan(self.table, keep * _DAY, (need,)))
        files, log = (int(self.stored[key].split()[1]) for key in (FILE_RETENTION, LOG_RETENTION))
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
