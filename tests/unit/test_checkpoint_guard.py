"""What a closed batch took of its inputs, and what waits for the next one, in bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.handmade import write_batches, write_checkpoint, write_commit, write_offset
from tidelake.delta.log import last_commit
from tidelake.delta.positions import Position
from tidelake.delta.store import Catalog
from tidelake.delta.tables import Lake, Table
from tidelake.errors import GenerationError
from tidelake.runtime.checkpoints import CheckpointGuard, ordered_inputs
from tidelake.runtime.fence import Fence


def test_a_batch_took_the_files_up_to_its_end_and_those_behind_it_wait(tmp_path: Path) -> None:
    lake, checkpoint = Lake(tmp_path), tmp_path / "checkpoint"
    bronze, requeue, silver = lake.bronze("c"), lake.requeue("c"), lake.silver("c")
    # A file is 100 bytes a row; what a compaction wrote again is nobody's input.
    write_commit(bronze, 0, adds=[(10, True), (20, True)])
    write_commit(bronze, 1, adds=[(90, False)])
    write_commit(bronze, 2, adds=[(5, True), (7, True), (8, True)])
    write_commit(requeue, 0, adds=[(1, True)])
    ids = {"reservoirId": "x"}
    write_offset(
        checkpoint,
        4,
        {"reservoirVersion": 2, "index": 0, **ids},
        {"reservoirVersion": 1, "index": -1, **ids},
    )
    until = {"bronze": [0, 0], "requeue": [0, -1]}
    note = {"generation": "g1", "batch": 3, "until": until}
    write_commit(silver, 0, note=note)
    fence = Fence("c", "silver", "g1")
    standing = CheckpointGuard(fence, checkpoint, (silver,), {"bronze": bronze, "requeue": requeue})
    before = last_commit(silver)
    assert standing.taken(before, 4) == (2_500, 1_500)
    assert CheckpointGuard(fence, checkpoint, (silver,), {}).taken(before, 4) is None


def test_in_a_catalog_no_batch_may_end_inside_a_commit(tmp_path: Path) -> None:
    """A checkpoint of a stream that does not follow the change feed; no sum would be right."""
    catalog = Catalog("c", session=lambda: pytest.fail("Spark was asked"))
    bronze = Lake(tmp_path, catalog=catalog).bronze("c")
    write_offset(tmp_path / "checkpoint", 4, {"reservoirVersion": 2, "index": 0})
    standing = CheckpointGuard(
        Fence("c", "silver", "g1"), tmp_path / "checkpoint", (), {"bronze": bronze}
    )

    with pytest.raises(GenerationError, match="ends batch 4 inside a commit of bronze"):
        standing.planned(4, {})


@pytest.mark.parametrize(
    ("end", "is_refused"),
    [
        ((1, -1), True),
        ((1, 0), False),
        ((2, -1), False),
        ((3, -1), False),
        ((3, 0), True),
        ((4, -1), True),
    ],
)
def test_a_batch_ends_between_the_last_one_and_the_newest_commit(
    tmp_path: Path, end: Position, is_refused: bool
) -> None:
    bronze = Lake(tmp_path).bronze("c")
    for version in range(3):
        write_commit(bronze, version, adds=[(1, True)])
    write_offset(tmp_path, 4, {"reservoirVersion": end[0], "index": end[1]})
    guard = CheckpointGuard(Fence("c", "silver", "g1"), tmp_path, (), {"bronze": bronze})
    if not is_refused:
        assert guard.planned(4, {"bronze": (1, 0)}) == {"bronze": end}
        return
    with pytest.raises(GenerationError, match=f"ends batch 4 at version {end[0]} of bronze.c"):
        guard.planned(4, {"bronze": (1, 0)})


@pytest.fixture
def inputs(tmp_path: Path) -> dict[str, Table]:
    """Give gold's own silver and that of two joins, in the order of the definition."""
    lake = Lake(tmp_path)
    found = {"silver": lake.silver("s"), "silver.a": lake.silver("a"), "silver.b": lake.silver("b")}
    for key, table in found.items():
        write_commit(table, 0, table_id=f"id of {key}")
    return found


def _offsets(*keys: str | None) -> list[dict[str, Any] | None]:
    return [key and {"reservoirId": f"id of {key}", "reservoirVersion": 1} for key in keys]


@pytest.mark.parametrize(
    "of_b", ["silver.b", None], ids=["all have rows", "one has given no row yet"]
)
def test_inputs_keep_the_order_of_the_checkpoint(
    tmp_path: Path, inputs: dict[str, Table], of_b: str | None
) -> None:
    if of_b is None:
        (inputs["silver.b"].path / "_delta_log" / f"{0:020}.json").unlink()
    # An earlier batch does not count: it may be from before the last input gave a row.
    write_offset(tmp_path, 3, *_offsets("silver", None, None))
    write_offset(tmp_path, 4, *_offsets("silver", of_b, "silver.a"))
    assert list(inputs) == ["silver", "silver.a", "silver.b"]
    assert list(ordered_inputs(tmp_path, inputs)) == ["silver", "silver.b", "silver.a"]
    assert ordered_inputs(tmp_path, inputs) == inputs


@pytest.mark.parametrize(
    "keys",
    [
        ("silver", None, None),
        ("silver", "silver.b"),
        ("silver", "silver.b", "silver.b"),
        ("silver", "silver.b", "silver.c"),
    ],
)
def test_a_checkpoint_that_does_not_name_the_inputs_leaves_their_order(
    tmp_path: Path, inputs: dict[str, Table], keys: tuple[str | None, ...]
) -> None:
    assert ordered_inputs(tmp_path, inputs) is inputs
    write_offset(tmp_path, 0, *_offsets(*keys))
    assert ordered_inputs(tmp_path, inputs) is inputs
    # Damaged: what opens the hop refuses it.
    (tmp_path / "offsets" / "1").write_text("v1\n{}\n{\n{\n{\n")
    assert ordered_inputs(tmp_path, inputs) is inputs


def test_inputs_whose_ids_are_unknown_keep_the_order_of_the_definition(
    tmp_path: Path, inputs: dict[str, Table]
) -> None:
    write_offset(tmp_path, 0, *_offsets("silver", None, None))
    for key in ("silver.a", "silver.b"):
        (inputs[key].path / "_delta_log" / f"{0:020}.json").unlink()
    assert ordered_inputs(tmp_path, inputs) is inputs


def _gold_over(lake: Lake, **inputs: Table) -> CheckpointGuard:
    """Give the guard of gold that has read each input's version 0, a second after it."""
    until = {key: [1, -1] for key in inputs}
    note = {"generation": "g1", "batch": 1, "until": until}
    write_commit(lake.gold("totals"), 0, note=note, second=1)
    fence = Fence("orders", "gold", "g1")
    return CheckpointGuard(fence, lake.root / "checkpoint", (lake.gold("totals"),), inputs)


@pytest.mark.parametrize(
    ("key", "table", "is_own", "remedy"),
    [
        ("silver", "silver.orders", True, "First see what differs: tidelake verify orders"),
        ("silver.c", "silver.c", False, "First see what differs: tidelake verify c"),
        # It has copies of bronze's rows, which a reset that was interrupted has deleted.
        ("requeue", "bronze.orders__requeue", None, "Repair it with: tidelake repair orders"),
    ],
)
def test_a_commit_that_replaced_rows_names_who_compares_them(
    tmp_path: Path, key: str, table: str, is_own: bool | None, remedy: str
) -> None:
    lake = Lake(tmp_path)
    read = lake.table(table)
    write_commit(read, 0, adds=[(9, True)], table_id="x")
    write_commit(read, 1, operation="DELETE")
    log = read.path / "_delta_log" / f"{1:020}.json"
    log.write_text(log.read_text() + '{"remove": {"path": "x", "dataChange": true}}\n')
    with pytest.raises(GenerationError, match=remedy) as refused:
        _gold_over(lake, **{key: read}).refuse_rewritten()
    assert getattr(refused.value, "is_own", None) is is_own


def test_an_input_that_was_recreated_is_no_older_copy(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    write_commit(lake.silver("orders"), 0, adds=[(9, True)], table_id="y", second=3600)
    guard = _gold_over(lake, silver=lake.silver("orders"))
    with pytest.raises(GenerationError, match=r"silver.orders was recreated: it is not the table"):
        guard.refuse_rewritten()


@pytest.mark.parametrize("damaged", ["metadata", "offsets/0"])
def test_a_damaged_file_is_named_before_the_first_batch_is_closed(
    tmp_path: Path, damaged: str
) -> None:
    """Spark would fail in each run, and name no remedy."""
    lake, checkpoint = Lake(tmp_path / "lake"), tmp_path / "checkpoint"
    silver = lake.silver("c")
    guard = CheckpointGuard(Fence("c", "silver", "g1"), checkpoint, (silver,), {})
    asked: list[object] = []

    def mismatch(closed: object) -> str:
        asked.append(closed)
        return ""

    # No query has started, or none has planned a batch.
    guard.refuse_mismatch(mismatch)
    write_batches(silver, -1)
    write_checkpoint(checkpoint, planned=-1, committed=-1)
    (checkpoint / "metadata").write_text('{"id": "x"}')
    guard.refuse_mismatch(mismatch)
    write_offset(checkpoint, 0, None)
    guard.refuse_mismatch(mismatch)
    assert asked == [None] * 3
    (checkpoint / damaged).write_bytes(b"")
    name = damaged if "/" in damaged else f"checkpoint/{damaged}"
    with pytest.raises(GenerationError, match=f"^c, hop silver: {name} of its .* cannot be read"):
        guard.refuse_mismatch(mismatch)
