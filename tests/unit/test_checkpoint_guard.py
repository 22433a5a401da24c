"""What a closed batch took of its inputs, and what waits for the next one, in bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.handmade import write_commit, write_offset
from tidelake.delta.log import last_commit
from tidelake.delta.store import Catalog
from tidelake.delta.tables import Lake
from tidelake.errors import GenerationError
from tidelake.runtime.checkpoints import CheckpointGuard, Fence


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
