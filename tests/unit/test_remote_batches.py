"""Batches that another process committed are reported once, from their commit metadata."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.unit.handmade import write_commit
from tidelake.delta.tables import Lake
from tidelake.runtime.progress import Closings, Progress


def _note(batch: int, **more: Any) -> dict[str, Any]:
    return {"generation": "g1", "batch": batch, **more}


def test_each_batch_is_told_once_with_what_its_hop_wrote_down(tmp_path: Path) -> None:
    lake, lines = Lake(tmp_path), []
    say = Progress(lines.append)
    silver, gold = lake.silver("shop"), lake.gold("minutes")
    write_commit(silver, 0, note=_note(-1))
    write_commit(silver, 1, note=_note(0, counts=[["silver", None, "fresh", 9, 1]]))
    write_commit(gold, 0, note=_note(-1))
    of_silver = Closings("silver", silver, say)
    of_gold = Closings("gold", gold, say)
    of_silver.look()
    assert lines == []

    counts = [["silver", None, "fresh", 1200, 1], ["late", None, "fresh", 34, 2]]
    told = _note(1, counts=counts, watermark="2026-01-05T10:00:00+00:00")
    write_commit(silver, 2, note=told)
    write_commit(silver, 3, metadata="somebody else's", operation="OPTIMIZE")
    write_commit(silver, 4, note=_note(2, counts=[], watermark=None))
    write_commit(gold, 1, note=_note(0, rows=77))
    for one in (of_silver, of_gold) * 2:
        one.look()
    assert [" ".join(line.split()[:5]) for line in lines] == [
        "silver batch 1 1,234 rows",
        "silver batch 2 0 rows",
        "gold batch 0 77 rows",
    ]
    assert "watermark 2026-01-05 10:00:00Z" in lines[0]


def test_a_batch_of_bronze_is_told_by_its_records(tmp_path: Path) -> None:
    bronze, lines = Lake(tmp_path).bronze("shop"), []
    closings = Closings("bronze", bronze, Progress(lines.append))
    write_commit(bronze, 0, note=_note(-1))
    write_commit(bronze, 1, note=_note(0, records=500))
    closings.look()
    assert lines[0].split()[:5] == ["bronze", "batch", "0", "500", "rows"]
