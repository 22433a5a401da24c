"""What a table's log has after a position."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.handmade import write_commit
from tidelake.delta.positions import BEGINNING, Position, has_bytes
from tidelake.delta.tables import Lake


@pytest.mark.parametrize(
    ("after", "size", "has"),
    [
        (BEGINNING, 600, True),
        (BEGINNING, 601, False),
        ((1, 0), 500, True),
        ((1, 0), 501, False),
        ((2, -1), 300, True),
        ((2, -1), 301, False),
        ((3, -1), 1, False),
    ],
)
def test_files_after_a_position_reach_a_size(
    tmp_path: Path, after: Position, size: int, has: bool
) -> None:
    table = Lake(tmp_path).bronze("shop")
    write_commit(table, 0, table_id="x")
    # A hundred bytes a row; a compaction adds no row.
    write_commit(table, 1, adds=[(1, True), (2, True)])
    write_commit(table, 2, adds=[(3, True)])
    write_commit(table, 3, adds=[(6, False)], operation="OPTIMIZE")
    assert has_bytes(table, size, after=after) is has
