"""A status is not computed from a log that lacks a commit."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest
import yaml

from tests.unit.handmade import SHOP, write_commit
from tidelake.config import load_environment, load_pipeline
from tidelake.delta.tables import Lake
from tidelake.errors import DamagedError
from tidelake.ops.status import read_status


def test_the_status_of_a_table_with_a_damaged_log_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "shop.yml"
    file.write_text(yaml.safe_dump(SHOP), encoding="utf-8")
    environment = load_environment("local", root=str(tmp_path / "lake"))
    lake, pipeline = Lake(tmp_path / "lake"), load_pipeline(str(file), environment)
    for table in (lake.bronze("shop"), lake.silver("shop"), lake.gold("totals")):
        for batch in range(-1, 4):
            write_commit(table, batch + 1, note={"generation": "g1", "batch": batch})
    assert [hop.batch for hop in read_status(lake, pipeline).hops] == [3, 3, 3]

    for version, is_gap in ((0, False), (2, True)):
        (lake.silver("shop").path / "_delta_log" / f"{version:020}.json").unlink()
        damaged = pytest.raises(
            DamagedError, match=r"^the log of silver\.shop lacks a commit\. Restore the table's"
        )
        with damaged if is_gap else nullcontext():
            # The oldest commits are cleaned up.
            assert read_status(lake, pipeline).hops[1].batch == 3
