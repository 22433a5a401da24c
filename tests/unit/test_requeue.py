"""Side tables are read by a query that carries the frames of its own lake's tables."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.pipelines import shop
from tests.unit.handmade import write_commit
from tidelake.config import Environment
from tidelake.delta.log import last_commit
from tidelake.delta.tables import Lake, Table
from tidelake.errors import UsageError
from tidelake.ledger.side_tables import not_requeued
from tidelake.replay import requeue
from tidelake.replay.requeue import read_side
from tidelake.runtime.hop import Run
from tidelake.runtime.progress import Progress


def test_live_and_green_side_tables_of_one_name_are_read_apart(
    tmp_path: Path, environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, dict[str, Table]]] = []
    # A frame is what it was loaded from; through Spark Connect it is looked at when rows are read.
    session = SimpleNamespace(sql=lambda query, **frames: asked.append((query, frames)))
    monkeypatch.setattr(requeue, "load", lambda _, table: table)
    lakes = [Lake(tmp_path / "live"), Lake(tmp_path / "green")]
    for lake in lakes:
        tables = (lake.silver("shop"), lake.quarantine("shop"), lake.requeue("shop"))
        for table in (*tables, lake.discarded("shop")):
            write_commit(table, 0, note={"generation": "g1", "batch": 0})
        run = Run(cast(Any, session), shop(tmp_path), lake, environment, Progress(lambda _: None))
        read_side(run, lake.quarantine("shop"), exclude_discarded=True)

    assert len({query for query, _ in asked}) == 1
    for lake, (query, frames) in zip(lakes, asked, strict=True):
        assert {table.path for table in frames.values()} == {
            lake.quarantine("shop").path,
            lake.requeue("shop").path,
            lake.discarded("shop").path,
        }
        written = query.format(**{name: f"<{table.name}>" for name, table in frames.items()})
        for table in frames.values():
            assert f"FROM <{table.name}> " in written


@pytest.mark.parametrize("gone", ["silver.shop__late", "bronze.shop__requeue"])
def test_a_deleted_table_is_named_with_what_creates_it(tmp_path: Path, gone: str) -> None:
    lake = Lake(tmp_path)
    for table in (lake.silver("shop"), lake.late("shop"), lake.requeue("shop")):
        if table.name != gone:
            write_commit(table, 0, note={"generation": "g1", "batch": 0})
    # Silver is refused beside another requeue than it has read.
    remedy = r"run shop\b.* held rows.* tidelake backfill run" if "late" in gone else "repair"
    with pytest.raises(UsageError, match=rf"^{gone} is gone.* tidelake {remedy} shop"):
        not_requeued(lake.late("shop"), lake.requeue("shop"), last_commit(lake.silver("shop")))
