"""Versions of a table: which of them a reader holds, and what our commits said up to one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.handmade import write_batches, write_commit
from tidelake.delta.log import last_commit
from tidelake.delta.positions import BEGINNING, Position, version_at
from tidelake.delta.tables import Lake

END_OF_COMMIT = 9223372036854775707


def test_a_table_is_looked_at_up_to_one_version(tmp_path: Path) -> None:
    table = Lake(tmp_path).gold("a")
    write_batches(table, 1)
    write_commit(table, 3, operation="RESTORE", parameters={"version": "0"})

    batches = [last_commit(table, up_to=version) for version in range(4)]
    assert [commit.batch for commit in batches if commit] == [-1, 0, 1, -1]


@pytest.mark.parametrize(
    ("position", "version"),
    [
        ((0, -1), 0),
        ((1, -1), 0),
        ((1, 0), None),
        ((1, 1), 2),
        ((2, -1), 2),
        ((3, -1), 2),
        ((3, 0), 3),
        ((3, END_OF_COMMIT), 3),
        ((4, -1), 3),
    ],
)
def test_a_position_is_a_version_only_at_the_end_of_a_commit(
    tmp_path: Path, position: Position, version: int | None
) -> None:
    table = Lake(tmp_path).table("bronze.shop")
    write_commit(table, 0)
    write_commit(table, 1, adds=[(1, True), (1, True)])
    write_commit(table, 2, adds=[(2, False)], operation="OPTIMIZE")
    write_commit(table, 3, adds=[(1, True)])

    assert version_at(table, position) == version


def test_a_commit_that_the_log_has_forgotten_gives_no_version(tmp_path: Path) -> None:
    table = Lake(tmp_path).table("bronze.shop")
    write_commit(table, 3)
    write_commit(table, 4, adds=[(1, True)])

    assert version_at(table, (2, 0)) is None
    # Whether versions 1 and 2 brought rows, nobody knows.
    assert version_at(table, (1, -1)) == 0
    assert version_at(table, (4, -1)) == 3


def test_a_table_that_began_with_rows_has_no_version_before_them(tmp_path: Path) -> None:
    table = Lake(tmp_path).table("silver.shop")
    write_commit(table, 0, adds=[(1, True)])

    assert version_at(table, BEGINNING) is None
