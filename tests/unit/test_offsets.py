"""A checkpoint's offsets: how far a planned batch goes in each table that its hop follows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.handmade import write_checkpoint, write_offset
from tidelake.delta.positions import BEGINNING
from tidelake.kafka.client import planned_offsets
from tidelake.runtime.checkpoints import planned_positions, unreadable


def test_each_input_has_its_own_position_in_the_order_of_the_stream(tmp_path: Path) -> None:
    write_offset(tmp_path, 0, {"reservoirVersion": 1, "index": 0})
    write_offset(
        tmp_path, 3, {"reservoirVersion": 7, "index": -1}, {"reservoirVersion": 2, "index": 4}
    )

    assert planned_positions(tmp_path, 3, 2) == [(7, -1), (2, 4)]
    assert planned_positions(tmp_path, 0, 1) == [(1, 0)]


def test_an_input_without_data_yet_stands_at_the_beginning(tmp_path: Path) -> None:
    write_offset(tmp_path, 0, {"reservoirVersion": 7, "index": -1})
    file = tmp_path / "offsets" / "0"
    file.write_text(file.read_text(encoding="utf-8") + "\n-", encoding="utf-8")

    assert planned_positions(tmp_path, 0, 2) == [(7, -1), BEGINNING]


@pytest.mark.parametrize("text", ["", "v1", "v1\n{}"])
def test_a_file_that_was_cut_off_plans_nothing_and_is_unreadable(tmp_path: Path, text: str) -> None:
    write_checkpoint(tmp_path, planned=1, committed=0)
    (tmp_path / "metadata").write_text("{}", encoding="utf-8")
    assert unreadable(tmp_path, 1) == ""
    (tmp_path / "offsets" / "1").write_text(text, encoding="utf-8")
    assert unreadable(tmp_path, 1) == "offsets/1 of its checkpoint cannot be read"
    assert planned_offsets(tmp_path, 1) == {}
