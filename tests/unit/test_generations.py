"""The fence between a table and its checkpoint: what goes on, and what is refused by name."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.pipelines import shop
from tests.unit.handmade import write_batches, write_checkpoint, write_commit
from tidelake.config import Environment
from tidelake.delta.access import load
from tidelake.delta.log import last_commit
from tidelake.delta.positions import slowest_of
from tidelake.delta.tables import Lake, Table
from tidelake.errors import GenerationError, RefusedError
from tidelake.replay.generations import _delete_uncommitted
from tidelake.runtime.checkpoints import open_generation, replaced_sides
from tidelake.runtime.fence import Fence
from tidelake.runtime.hop import Run
from tidelake.runtime.progress import Progress

REPAIR = r"tidelake repair shop --hop gold$"
FENCE = Fence("shop", "gold", "g1")


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


@pytest.fixture
def totals(lake: Lake) -> Table:
    return lake.gold("totals")


def opened(lake: Lake, *tables: Table) -> Fence:
    return open_generation("shop", "gold", tables, lake.checkpoints("shop", "gold"))


def checkpoint(lake: Lake, *, planned: int, committed: int, generation: str = "g1") -> Path:
    folder = lake.checkpoints("shop", "gold") / generation
    write_checkpoint(folder, planned=planned, committed=committed)
    return folder


def refused(lake: Lake, *tables: Table) -> str:
    before = sorted(lake.root.rglob("*"))
    with pytest.raises(GenerationError, match=REPAIR) as error:
        opened(lake, *tables)
    assert error.value.exit_code == 3
    assert sorted(lake.root.rglob("*")) == before
    return str(error.value)


def test_a_fresh_start_opens_the_first_generation_and_makes_nothing(
    lake: Lake, totals: Table
) -> None:
    assert opened(lake, totals) == FENCE
    assert list(lake.root.iterdir()) == []


def test_tables_that_were_made_and_never_filled_start_afresh(lake: Lake, totals: Table) -> None:
    write_batches(totals, -1)

    assert opened(lake, totals) == FENCE


def test_a_restart_goes_on_where_table_and_checkpoint_agree(lake: Lake, totals: Table) -> None:
    write_batches(totals, 3)
    checkpoint(lake, planned=3, committed=3)

    assert opened(lake, totals) == FENCE


def test_a_commit_of_an_older_generation_after_a_newer_one_is_refused(
    lake: Lake, totals: Table
) -> None:
    """As by a writer that compared generations before the newer one began."""
    write_batches(totals, 3)
    checkpoint(lake, planned=5, committed=5)
    write_commit(totals, 5, note={"generation": "g2", "batch": 1})
    write_commit(totals, 6, note={"generation": "g1", "batch": 5})
    # Without the checkpoint of a newer generation the log is not searched.
    assert opened(lake, totals).generation == "g1"

    checkpoint(lake, planned=1, committed=1, generation="g2")
    assert "batch 5 of generation g1 was written after generation g2 had begun" in refused(
        lake, totals
    )
    # A generation that is only prepared is none yet.
    other = lake.gold("visits")
    write_batches(other, 5)
    assert opened(lake, other).generation == "g1"


def test_a_planned_batch_that_reached_no_table_is_repeated(lake: Lake, totals: Table) -> None:
    write_batches(totals, 3)
    checkpoint(lake, planned=4, committed=3)

    assert opened(lake, totals) == FENCE


def test_a_crash_between_table_and_checkpoint_goes_on(lake: Lake, totals: Table) -> None:
    write_batches(totals, 4)
    checkpoint(lake, planned=4, committed=3)

    assert opened(lake, totals) == FENCE


def test_a_crash_between_two_tables_of_one_batch_goes_on(lake: Lake, totals: Table) -> None:
    other = lake.gold("other")
    write_batches(totals, 4)
    write_batches(other, 3)
    checkpoint(lake, planned=4, committed=3)

    assert opened(lake, totals, other) == FENCE


def test_a_later_generation_goes_on_with_its_own_checkpoint(lake: Lake, totals: Table) -> None:
    write_batches(totals, 1, generation="g2")
    checkpoint(lake, planned=9, committed=9)
    checkpoint(lake, planned=1, committed=1, generation="g2")

    assert opened(lake, totals).generation == "g2"


def test_a_deleted_checkpoint_is_refused(lake: Lake, totals: Table) -> None:
    write_batches(totals, 3)
    shutil.rmtree(checkpoint(lake, planned=3, committed=3))

    assert "gold.totals holds batch 3, but its checkpoint is gone" in refused(lake, totals)


def test_a_checkpoint_of_another_generation_does_not_count(lake: Lake, totals: Table) -> None:
    write_batches(totals, 3, generation="g2")
    checkpoint(lake, planned=3, committed=3)

    assert "checkpoint is gone" in refused(lake, totals)


def test_an_older_checkpoint_is_refused(lake: Lake, totals: Table) -> None:
    write_batches(totals, 5)
    checkpoint(lake, planned=3, committed=3)

    assert "is at batch 5, its checkpoint at 3" in refused(lake, totals)


def test_an_emptied_checkpoint_is_refused(lake: Lake, totals: Table) -> None:
    write_batches(totals, 5)
    checkpoint(lake, planned=-1, committed=-1)

    assert "is at batch 5, its checkpoint at -1" in refused(lake, totals)


def test_a_table_behind_its_checkpoint_is_refused(lake: Lake, totals: Table) -> None:
    write_batches(totals, 2)
    checkpoint(lake, planned=5, committed=5)

    assert "is at batch 2, its checkpoint at 5" in refused(lake, totals)


def test_a_table_two_batches_behind_the_planned_one_is_refused(lake: Lake, totals: Table) -> None:
    write_batches(totals, 3)
    checkpoint(lake, planned=5, committed=4)

    assert "is at batch 3" in refused(lake, totals)


def test_a_deleted_table_beside_its_checkpoint_is_refused(lake: Lake, totals: Table) -> None:
    checkpoint(lake, planned=5, committed=5)

    assert "is at batch -1, its checkpoint at 5" in refused(lake, totals)


def test_a_table_that_is_new_beside_filled_ones_is_to_be_filled(lake: Lake, totals: Table) -> None:
    write_batches(totals, 3, generation="g2")
    checkpoint(lake, planned=3, committed=3, generation="g2")
    begun = lake.gold("begun")
    # Of a run that died before it filled the table, in an earlier generation.
    write_batches(begun, -1)

    fence = opened(lake, lake.gold("other"), begun, totals)
    assert fence == Fence("shop", "gold", "g2")
    assert (fence.unfilled, fence.closed) == (("gold.other", "gold.begun"), 3)


@pytest.mark.parametrize("batch", [0, -1])
def test_a_table_that_is_new_in_an_open_first_batch_joins_it(
    lake: Lake, totals: Table, batch: int
) -> None:
    write_batches(totals, batch)
    checkpoint(lake, planned=0, committed=-1)

    assert opened(lake, totals, lake.gold("other")).unfilled == ()


def test_a_table_that_is_new_does_not_hide_that_a_checkpoint_is_gone(
    lake: Lake, totals: Table
) -> None:
    write_batches(totals, 3)
    told = refused(lake, lake.gold("other"), totals)

    assert "gold.totals holds batch 3, but its checkpoint is gone" in told


@pytest.mark.parametrize("note", [{"generation": "g1", "batch": -1}, None])
def test_a_table_with_rows_and_no_batch_is_not_filled(
    lake: Lake, totals: Table, note: dict[str, Any] | None
) -> None:
    """It was RESTOREd to its creation, or its metadata is gone."""
    write_batches(totals, 3)
    checkpoint(lake, planned=3, committed=3)
    write_commit(lake.gold("other"), 0, note=note)
    write_commit(lake.gold("other"), 1, adds=[(9, True)])

    assert "gold.other is at batch -1" in refused(lake, totals, lake.gold("other"))


def test_a_table_that_a_rollback_emptied_is_filled_unless_rows_were_added_since(
    lake: Lake, totals: Table
) -> None:
    write_batches(totals, 3)
    checkpoint(lake, planned=3, committed=3)
    other = lake.gold("other")
    write_commit(other, 0, note={"generation": "g1", "batch": -1})
    write_commit(other, 1, note={"generation": "g1", "batch": 2}, adds=[(9, True)])
    emptied = {"generation": "g1", "batch": -1, "rebuilt": True}
    write_commit(other, 2, note=emptied)
    assert opened(lake, totals, other).unfilled == ("gold.other",)

    write_commit(other, 3, note={"generation": "g1", "batch": 3}, adds=[(9, True)])
    assert opened(lake, totals, other).unfilled == ()
    write_commit(other, 4, operation="RESTORE", parameters={"version": "2"})
    assert "gold.other is at batch -1" in refused(lake, totals, other)


def _write_batch(table: Table, batch: int, *filled: Table) -> None:
    """Write a batch's commit, which names the tables that the batch fills."""
    note = {"generation": "g1", "batch": batch, "tables": [one.name for one in filled]}
    write_commit(table, batch + 1, note=note)


def test_a_table_that_is_added_again_is_filled_and_an_older_copy_is_not(
    lake: Lake, totals: Table
) -> None:
    other, third = lake.gold("other"), lake.gold("third")
    tables = (other, totals, third)
    for table in tables:
        write_batches(table, 1)
    for batch in (2, 3):
        _write_batch(totals, batch, totals, other)
    checkpoint(lake, planned=3, committed=3)
    _write_batch(other, 2, totals, other)
    # The newest batch filled the other table, and not the third.
    assert "gold.other is at batch 2, its checkpoint at 3" in refused(lake, *tables)

    _write_batch(other, 3, totals, other)
    found = opened(lake, *tables)
    assert (found.unfilled, found.closed) == (("gold.third",), 3)
    assert slowest_of([third, totals]) == totals
    # The one that is filled first says nothing of the others.
    note = {"generation": "g1", "batch": 3, "rebuilt": True}
    write_commit(other, 5, note=note)
    assert opened(lake, *tables).unfilled == ("gold.third",)


def test_a_table_of_another_pipeline_is_refused_without_a_repair(lake: Lake, totals: Table) -> None:
    """A repair would replace what the other one filled."""
    write_batches(totals, 1)
    checkpoint(lake, planned=1, committed=1)
    mine = {"generation": "g1", "batch": 1, "pipeline": "shop", "tables": ["gold.totals"]}
    write_commit(totals, 3, note=mine)
    other = lake.gold("other")
    theirs = {"generation": "g7", "batch": 1, "pipeline": "till", "tables": ["gold.other"]}
    for second in (2, 4):
        write_commit(other, 0, note=theirs, second=second)
        before = sorted(lake.root.rglob("*"))
        with pytest.raises(RefusedError, match=r"gold\.other is filled by the pipeline") as why:
            opened(lake, totals, other)
        assert "the pipeline till;" in str(why.value)
        assert why.value.exit_code == 3
        assert "tidelake repair" not in str(why.value)
        assert sorted(lake.root.rglob("*")) == before


def test_a_table_that_is_added_again_after_a_repair_is_filled(lake: Lake, totals: Table) -> None:
    write_batches(totals, 1)
    note = {"generation": "g2", "batch": 1, "tables": ["gold.totals"]}
    write_commit(totals, 3, note=note)
    write_batches(lake.gold("other"), 1)
    checkpoint(lake, planned=1, committed=1, generation="g2")

    found = opened(lake, lake.gold("other"), totals)
    assert (found.generation, found.unfilled) == ("g2", ("gold.other",))


def test_a_table_that_was_restored_by_a_delta_command_is_refused(lake: Lake, totals: Table) -> None:
    write_batches(totals, 3)
    checkpoint(lake, planned=3, committed=3)
    write_commit(totals, 5, operation="RESTORE", parameters={"version": "2", "timestamp": None})

    assert "is at batch 1, its checkpoint at 3" in refused(lake, totals)


def test_tables_of_two_generations_are_refused(lake: Lake, totals: Table) -> None:
    other = lake.gold("other")
    write_batches(totals, 3)
    write_batches(other, 3, generation="g2")
    checkpoint(lake, planned=3, committed=3)

    refused(lake, totals, other)


def test_the_next_batch_is_admitted_and_one_that_the_table_holds_is_not(totals: Table) -> None:
    write_batches(totals, 3)

    assert FENCE.admits(totals, last_commit(totals), 4)
    assert not FENCE.admits(totals, last_commit(totals), 3)


def test_the_first_batch_is_admitted_to_a_table_that_was_just_made(totals: Table) -> None:
    write_batches(totals, -1)

    assert FENCE.admits(totals, last_commit(totals), 0)


def test_a_compaction_in_between_changes_nothing(totals: Table) -> None:
    write_batches(totals, 3)
    write_commit(totals, 5, operation="OPTIMIZE", adds=[(9, False)])

    assert FENCE.admits(totals, last_commit(totals), 4)


@pytest.mark.parametrize("batch", [0, 2, 5, 9])
def test_a_batch_that_is_neither_the_last_nor_the_next_is_refused(
    totals: Table, batch: int
) -> None:
    write_batches(totals, 3)

    with pytest.raises(GenerationError, match=f"expected batch 4, got {batch}.*{REPAIR}"):
        FENCE.admits(totals, last_commit(totals), batch)


def test_a_writer_of_another_generation_is_refused(totals: Table) -> None:
    write_batches(totals, 3, generation="g2")

    with pytest.raises(GenerationError, match=f"generation g2, this writer has g1.*{REPAIR}"):
        FENCE.admits(totals, last_commit(totals), 4)


def test_a_table_without_any_note_is_refused(totals: Table) -> None:
    write_commit(totals, 0)

    with pytest.raises(GenerationError, match=f"lost its commit metadata.*{REPAIR}"):
        FENCE.admits(totals, last_commit(totals), 0)


def test_a_retried_batch_with_another_end_is_refused(totals: Table) -> None:
    note = {"generation": "g1", "batch": 3, "until": {"silver": [5, -1]}}
    write_commit(totals, 0, note=note)
    last = last_commit(totals)

    assert FENCE.admits(totals, last, 3, {"silver": (5, -1)}) is None
    with pytest.raises(GenerationError, match=f"holds batch 3 with other rows.*{REPAIR}"):
        FENCE.admits(totals, last, 3, {"silver": (4, -1)})


@pytest.mark.parametrize(
    ("note", "silver", "is_refused"),
    [
        ({"generation": "g2", "batch": 1, "rebuilt": True}, "g1", True),
        ({"generation": "g10", "batch": 1, "rebuilt": True}, "g9", True),
        # A rebuild that silver is of, or that was followed by a repair.
        ({"generation": "g2", "batch": 1, "rebuilt": True}, "g2", False),
        ({"generation": "g2", "batch": 1, "rebuilt": True}, "g10", False),
        # An open batch, whose rows are replaced when it comes again.
        ({"generation": "g1", "batch": 9}, "g1", False),
    ],
)
def test_side_tables_that_were_rebuilt_after_silver_are_refused(
    lake: Lake, note: dict[str, Any], silver: str, is_refused: bool
) -> None:
    write_commit(lake.silver("shop"), 0, note={"generation": silver, "batch": 8})
    write_commit(lake.late("shop"), 0, note=note)
    closed = last_commit(lake.silver("shop"))
    assert closed is not None
    problem = replaced_sides(lake, "shop", closed)
    # A later batch of the same generation.
    write_commit(lake.late("shop"), 1, note={"generation": note["generation"], "batch": 10})
    assert bool(replaced_sides(lake, "shop", closed)) is is_refused
    expected = f"silver.shop__late was rebuilt in generation {note['generation']}"
    assert problem.startswith(expected) if is_refused else problem == ""


def test_a_bronze_that_is_gone_is_not_said_to_be_an_older_copy(lake: Lake) -> None:
    folder = lake.checkpoints("shop", "bronze")
    write_checkpoint(folder / "g1", planned=2, committed=2)
    with pytest.raises(RefusedError, match=r"bronze\.shop was deleted.* under another --root$"):
        open_generation("shop", "bronze", [lake.bronze("shop")], folder)


def test_rows_of_an_open_batch_are_deleted_and_those_of_any_earlier_generation_stay(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    """Also where neither silver's log nor ``ops.books`` have the earlier generation any more."""
    write_batches(lake.silver("shop"), 4, generation="g2")
    sides = (lake.quarantine("shop"), lake.late("shop"))
    stored = [("g1", 7), ("g2", 4), ("g2", 5), (None, None)]
    for side in sides:
        rows = spark.createDataFrame(stored, "_generation string, _batch long")
        rows.write.format("delta").save(str(side.path))
    said = Progress(lambda _: None)
    environment = Environment(name="local", root=tmp_path)
    _delete_uncommitted(Run(spark, shop(tmp_path), lake, environment, said))
    for side in sides:
        left = [tuple(row) for row in load(spark, side).collect()]
        assert sorted(left, key=str) == [("g1", 7), ("g2", 4), (None, None)]
