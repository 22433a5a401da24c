"""What a table's log has after a position."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.unit.handmade import write_commit
from tidelake.delta.positions import BEGINNING, Position, has_bytes, is_recreated, lacks_read
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


def test_a_table_is_recreated_if_its_first_version_is_newer(tmp_path: Path) -> None:
    table = Lake(tmp_path).bronze("shop")
    write_commit(table, 0, table_id="x", second=10)
    write_commit(table, 1, second=20)
    moments = [datetime(2024, 1, 1, 0, 0, second, tzinfo=UTC) for second in (9, 10, 15)]
    assert [is_recreated(table, one) for one in moments] == [True, False, False]
    # When it was created is not known once the log begins later.
    (table.path / "_delta_log" / f"{0:020}.json").unlink()
    assert not is_recreated(table, moments[0])


@pytest.mark.parametrize(
    ("position", "second", "lacks"),
    [
        # Two commits are read whole, or the second in part.
        ((2, -1), 20, False),
        ((1, 0), 20, False),
        # It was written 70 seconds after the reader had read it: not the commit that was read.
        ((2, -1), -50, True),
        ((1, 0), -50, True),
        # Clocks differ.
        ((2, -1), -30, False),
        # The table ends before that.
        ((3, -1), 20, True),
        ((2, 0), 20, True),
        (BEGINNING, 0, False),
    ],
)
def test_a_copy_lacks_what_was_read_before(
    tmp_path: Path, position: Position, second: int, lacks: bool
) -> None:
    table = Lake(tmp_path).bronze("shop")
    since = datetime(2024, 1, 1, tzinfo=UTC) + timedelta(seconds=second)
    assert not lacks_read(table, position, since)
    write_commit(table, 0, table_id="x", second=10)
    write_commit(table, 1, second=20)
    assert lacks_read(table, position, since) is lacks
    # What is no longer in the log cannot be compared.
    (table.path / "_delta_log" / f"{1:020}.json").unlink()
    write_commit(table, 7, second=90)
    assert not lacks_read(table, position, since)
