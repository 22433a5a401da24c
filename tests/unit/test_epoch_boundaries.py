"""Epochs are found in commit notes: which versions hold exactly what the others were made of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.handmade import write_commit
from tidelake.delta.positions import BEGINNING, Position
from tidelake.delta.tables import Lake, Table
from tidelake.runtime.epochs import Boundary, find_boundary

END_OF_COMMIT = 9223372036854775707
FIRST_MARK, SECOND_MARK = "2024-01-01T00:00:00+00:00", "2024-01-02T00:00:00+00:00"


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Give a pipeline that closed two batches in each hop, one commit of bronze a batch."""
    lake = Lake(tmp_path)
    bronze(lake, 0, files=0)
    write_commit(lake.requeue("shop"), 0, note=stamp("requeue", -1))
    for side in (lake.quarantine("shop"), lake.late("shop")):
        write_commit(side, 0, note=stamp("silver", -1))
    write_commit(lake.silver("shop"), 0, note=stamp("silver", -1))
    for name in ("a", "b"):
        write_commit(lake.gold(name), 0, note=stamp("gold", -1))
    for batch in (0, 1):
        bronze(lake, batch + 1)
        silver(lake, batch + 1, batch, bronze=(batch + 1, 1))
        for name in ("a", "b"):
            gold(lake.gold(name), batch + 1, batch, silver=(batch + 1, 1))
    return lake


def stamp(hop: str, batch: int, generation: str = "g1") -> dict[str, Any]:
    return {"pipeline": "shop", "hop": hop, "generation": generation, "batch": batch}


def bronze(lake: Lake, version: int, *, files: int = 2) -> None:
    note = stamp("bronze", version - 1)
    write_commit(lake.bronze("shop"), version, note=note, adds=[(5, True)] * files)


def silver(
    lake: Lake,
    version: int,
    batch: int,
    *,
    bronze: Position,
    requeue: Position = BEGINNING,
    files: int = 2,
    generation: str = "g1",
) -> None:
    note = stamp("silver", batch, generation) | {
        "watermark_in": None,
        "watermark": SECOND_MARK if batch else FIRST_MARK,
        "partitions": {},
        "counts": [],
        "taken": {},
        "until": {"bronze": list(bronze), "requeue": list(requeue)},
        "warnings": {},
        "dedup": {"searched": 0, "seconds": 0.0},
        "prefiltered": None,
        "columns": [],
    }
    write_commit(lake.silver("shop"), version, note=note, adds=[(5, True)] * files)


def gold(
    table: Table, version: int, batch: int, generation: str = "g1", **until: Position | list[int]
) -> None:
    positions = {name.replace("__", "."): list(place) for name, place in until.items()}
    note = stamp("gold", batch, generation) | {"until": positions}
    write_commit(table, version, note=note, adds=[(1, True)])


def closing(lake: Lake) -> list[Table]:
    return [lake.gold("a"), lake.gold("b")]


def boundary(lake: Lake) -> Boundary | None:
    return find_boundary(lake, "shop", closing(lake))


def versions(lake: Lake) -> dict[str, int]:
    found = boundary(lake)
    assert found is not None
    return dict(found.versions)


def whole(number: int, **others: int) -> dict[str, int]:
    """Give the epoch in which all tables but the side ones stand at one version."""
    names = ("bronze.shop", "silver.shop", "gold.a", "gold.b")
    beside = ("bronze.shop__requeue", "silver.shop__quarantine", "silver.shop__late")
    changed = {name.replace("__at__", "."): version for name, version in others.items()}
    return dict.fromkeys(names, number) | dict.fromkeys(beside, 0) | changed


def test_tables_at_one_boundary_are_an_epoch(lake: Lake) -> None:
    found = boundary(lake)

    assert found is not None
    assert found.versions == whole(2)
    assert (found.generation, found.batch) == ("g1", 1)
    assert found.watermark is not None
    assert found.watermark.isoformat() == SECOND_MARK


def test_what_was_written_above_gold_s_position_is_left_out(lake: Lake) -> None:
    bronze(lake, 3)
    silver(lake, 3, 2, bronze=(3, 1))
    bronze(lake, 4)

    assert versions(lake) == whole(2)


@pytest.mark.parametrize("place", [(2, 1), (2, END_OF_COMMIT), (3, -1), (3, -100)])
def test_the_end_of_a_commit_is_written_in_several_ways(lake: Lake, place: Position) -> None:
    for table in closing(lake):
        gold(table, 3, 2, silver=place)

    assert versions(lake) == whole(2, gold__at__a=3, gold__at__b=3)


def test_a_position_within_a_commit_of_silver_is_no_boundary(lake: Lake) -> None:
    silver(lake, 3, 2, bronze=(2, 1))
    for table in closing(lake):
        gold(table, 3, 2, silver=(3, 0))

    assert boundary(lake) is None


def test_a_position_within_a_commit_of_bronze_is_no_boundary(lake: Lake) -> None:
    bronze(lake, 3)
    silver(lake, 3, 2, bronze=(3, 0))
    for table in closing(lake):
        gold(table, 3, 2, silver=(3, 1))

    assert boundary(lake) is None


def test_a_batch_that_is_open_in_one_gold_table_is_not_seen(lake: Lake) -> None:
    silver(lake, 3, 2, bronze=(2, 1))
    before = versions(lake)
    gold(lake.gold("a"), 3, 2, silver=(3, 1))
    assert versions(lake) == before == whole(2)

    gold(lake.gold("b"), 3, 2, silver=(3, 1))
    assert versions(lake) == whole(3, bronze__at__shop=2)


def test_rows_of_a_batch_whose_commit_metadata_is_still_to_come_are_not_seen(lake: Lake) -> None:
    # Where compute refuses metadata in a merge, a commit without rows brings it.
    silver(lake, 3, 2, bronze=(2, 1))
    write_commit(lake.gold("a"), 3, adds=[(1, False)], operation="OPTIMIZE")
    write_commit(lake.gold("a"), 4, adds=[(2, True)], operation="MERGE")
    assert versions(lake) == whole(2, gold__at__a=3)

    note = stamp("gold", 2) | {"until": {"silver": [3, 1]}}
    write_commit(lake.gold("a"), 5, note=note)
    assert versions(lake) == whole(2, gold__at__a=3)

    write_commit(lake.gold("b"), 3, adds=[(2, True)], operation="MERGE")
    write_commit(lake.gold("b"), 4, note=note)
    assert versions(lake) == whole(3, bronze__at__shop=2, gold__at__a=5, gold__at__b=4)


@pytest.mark.parametrize("other", [{"generation": "g2"}, {"silver": (1, 1)}])
def test_gold_tables_of_another_generation_or_position_are_no_boundary(
    lake: Lake, other: dict[str, Any]
) -> None:
    gold(lake.gold("a"), 3, **{"batch": 1, "silver": (2, 1), **other})

    assert boundary(lake) is None


def test_a_pipeline_whose_gold_has_not_run_has_no_boundary(lake: Lake) -> None:
    assert find_boundary(lake, "shop", [*closing(lake), lake.gold("c")]) is None
    assert find_boundary(lake, "other", [lake.gold("d")]) is None


@pytest.mark.parametrize("is_added_again", [False, True])
def test_a_gold_table_that_the_next_run_fills_takes_no_epoch_back_in_time(
    lake: Lake, is_added_again: bool
) -> None:
    """It was created and not filled, or the newest batch of the others did not fill it."""
    if is_added_again:
        gold(lake.gold("c"), 0, 0, silver=(1, 1))
    else:
        write_commit(lake.gold("c"), 0, note=stamp("gold", -1))
    filled = {"until": {"silver": [2, 1]}, "tables": ["gold.a", "gold.b"]}
    for table in closing(lake):
        write_commit(table, 3, note=stamp("gold", 2) | filled)
    assert versions(lake) == whole(2, gold__at__a=3, gold__at__b=3)
    tables = [*closing(lake), lake.gold("c")]
    assert find_boundary(lake, "shop", tables) is None

    write_commit(lake.gold("c"), 1, note=stamp("gold", 2) | filled, adds=[(1, True)])
    found = find_boundary(lake, "shop", tables)
    assert found is not None
    assert found.versions == whole(2, gold__at__a=3, gold__at__b=3, gold__at__c=1)


def test_without_gold_the_boundary_is_at_silver_s_newest_batch(lake: Lake) -> None:
    bronze(lake, 3)
    silver(lake, 3, 2, bronze=(3, 1))
    found = find_boundary(lake, "shop", [])
    assert found is not None
    assert (found.batch, found.versions["silver.shop"], found.versions["bronze.shop"]) == (2, 3, 3)
    assert find_boundary(lake, "other", []) is None


def test_gold_tables_that_took_nothing_stand_before_silver_s_first_row(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    bronze(lake, 0, files=0)
    write_commit(lake.silver("shop"), 0, note=stamp("silver", -1))
    write_commit(lake.gold("a"), 0, note=stamp("gold", -1))
    bronze(lake, 1)
    silver(lake, 1, 0, bronze=(1, 1))

    found = find_boundary(lake, "shop", [lake.gold("a")])
    assert found is not None
    assert found.versions == {"bronze.shop": 0, "silver.shop": 0, "gold.a": 0}
    assert found.watermark is None


def test_a_batch_of_silver_without_rows_is_behind_gold_as_well(lake: Lake) -> None:
    bronze(lake, 3)
    silver(lake, 3, 2, bronze=(3, 1), files=0)

    assert versions(lake) == whole(2, bronze__at__shop=3, silver__at__shop=3)


def test_compacted_tables_are_read_as_the_compaction_left_them(lake: Lake) -> None:
    for table in (lake.bronze("shop"), lake.silver("shop"), *closing(lake)):
        write_commit(table, 3, adds=[(10, False)], operation="OPTIMIZE")

    assert versions(lake) == whole(3)


def test_rows_that_were_taken_out_of_silver_are_not_in_the_epoch_of_a_gold_that_counts_them(
    lake: Lake,
) -> None:
    write_commit(lake.silver("shop"), 3, operation="DELETE")
    log = lake.silver("shop").path / "_delta_log" / f"{3:020}.json"
    log.write_text(log.read_text() + '{"remove": {"path": "x", "dataChange": true}}\n')

    assert versions(lake) == whole(2)


def test_a_restored_gold_table_stands_where_it_was_restored_to(lake: Lake) -> None:
    write_commit(lake.gold("a"), 3, operation="RESTORE", parameters={"version": "1"})
    assert versions(lake) == whole(1, gold__at__a=3)

    write_commit(lake.gold("b"), 3, operation="RESTORE", parameters={"version": "1"})
    assert versions(lake) == whole(1, gold__at__a=3, gold__at__b=3)


def test_rows_of_a_later_batch_in_a_side_table_are_left_out(lake: Lake) -> None:
    side = lake.quarantine("shop")
    write_commit(side, 1, note=stamp("silver", 1), adds=[(1, True)])
    write_commit(side, 2, note=stamp("silver", 2), adds=[(1, True)])
    write_commit(side, 3, operation="OPTIMIZE")
    write_commit(side, 4, note=stamp("silver", 3), adds=[(1, True)])

    assert versions(lake)["silver.shop__quarantine"] == 1


def test_side_tables_follow_silver_s_generation_by_number(lake: Lake) -> None:
    side = lake.late("shop")
    write_commit(side, 1, note=stamp("silver", 7, "g9"), adds=[(1, True)])
    assert versions(lake)["silver.shop__late"] == 0

    silver(lake, 3, 1, bronze=(2, 1), files=0, generation="g10")
    assert versions(lake)["silver.shop__late"] == 1


def test_rows_that_wait_in_the_requeue_are_left_out(lake: Lake) -> None:
    requeue = lake.requeue("shop")
    write_commit(requeue, 1, note=stamp("requeue", 0), adds=[(1, True)])
    assert versions(lake)["bronze.shop__requeue"] == 0

    silver(lake, 3, 2, bronze=(2, 1), requeue=(1, 0), files=0)
    assert versions(lake)["bronze.shop__requeue"] == 1


def test_given_up_rows_belong_to_the_epoch_as_they_are(lake: Lake) -> None:
    write_commit(lake.discarded("shop"), 0, note=stamp("silver", 40), adds=[(1, True)])

    assert versions(lake)["silver.shop__discarded"] == 0


def test_another_table_that_gold_follows_belongs_to_the_epoch(lake: Lake) -> None:
    other = lake.silver("stock")
    for version in range(4):
        write_commit(other, version, adds=[(1, True)])
    for table in closing(lake):
        gold(table, 3, 2, silver=(2, 1), silver__stock=(1, 0))
    assert versions(lake) == whole(2, silver__at__stock=1, gold__at__a=3, gold__at__b=3)

    write_commit(other, 4, adds=[(1, True), (1, True)])
    for table in closing(lake):
        gold(table, 4, 3, silver=(2, 1), silver__stock=(4, 0))
    assert boundary(lake) is None
