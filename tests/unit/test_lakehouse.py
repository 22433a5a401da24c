"""What a notebook gets without Spark."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from tests.unit.handmade import SHOP, write_commit
from tests.unit.test_config_loading import write
from tidelake.lakehouse import open_lakehouse
from tidelake.ledger.side_tables import LateDay, ReasonGroup


def test_a_frame_without_rows_has_its_columns(tmp_path: Path) -> None:
    house = open_lakehouse(str(tmp_path / "lake"))
    write_commit(house.lake.bronze("shop"), 0, note={"generation": "g1", "batch": 0})
    shop = write(tmp_path, SHOP)
    for frame, kind in ((house.quarantine(shop), ReasonGroup), (house.late(shop), LateDay)):
        assert list(frame.columns) == [one.name for one in fields(kind)]
        assert frame["rows"].sum() == 0
