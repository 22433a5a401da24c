"""Number the rows of files where Spark cuts and packs files as it likes.

A micro-batch's rows are read block by block: the rows of a block follow each other in one
partition. So a row's place in its file is its place in the block, and what the file's earlier
blocks hold.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidelake.errors import TidelakeError
from tidelake.sources import BLOCK, NUMBER, last_row, numbered, refuse_more

_SHIFTS = "array<struct<source: string, _start: bigint, _shift: bigint>>"


@dataclass(frozen=True)
class Block:
    """Rows of a file that one task read.

    Attributes:
        source: The file, as its rows name it.
        start: The block's first byte in it.
        first: The number of its first row in the micro-batch.
        last: The number of its last.
        records: How many rows it has.
    """

    source: str
    start: int
    first: int
    last: int
    records: int


def placed(rows: DataFrame) -> DataFrame:
    """Add each row's place in its file, from 0, as ``_position``.

    It reads the micro-batch once more, and holds only on the frame that the stream handed over.
    A later read that finds more rows fails.

    Args:
        rows: A micro-batch of files as it was read.

    Raises:
        TidelakeError: A block did not come whole from one task.
    """
    counted = numbered(rows)
    found = counted.groupBy("source", BLOCK).agg(F.min(NUMBER), last_row(), F.count("*")).collect()
    moved = shifts([Block(name, at, first, last[0], n) for name, at, first, last, n in found])
    counted = refuse_more(counted, [last for *_, last, _ in found])
    if len(moved) < 2:
        shift = F.lit(moved[0][2] if moved else 0)
        return counted.withColumn("_position", (F.col(NUMBER) + shift).cast("string"))
    # As text, which Spark parses: a list of Python rows would go through a Python worker.
    told = [{"source": source, "_start": start, "_shift": by} for source, start, by in moved]
    text = F.lit(json.dumps(told))
    places = rows.sparkSession.range(1).select(F.inline(F.from_json(text, _SHIFTS)))
    together = counted.withColumn("_start", F.col(BLOCK)).join(
        F.broadcast(places), on=["source", "_start"], how="left"
    )
    position = (F.col(NUMBER) + F.col("_shift")).cast("string")
    return together.withColumn("_position", position)


def shifts(blocks: Sequence[Block]) -> list[tuple[str, int, int]]:
    """Tell by how much a row's number in the micro-batch differs from its place in its file.

    Returns:
        A block's file, its first byte, and the difference.

    Raises:
        TidelakeError: A block did not come whole from one task.
    """
    before: dict[str, int] = defaultdict(int)
    found = []
    for block in sorted(blocks, key=lambda one: (one.source, one.start)):
        if block.last - block.first + 1 != block.records:
            raise TidelakeError(
                f"{block.source}: the rows from byte {block.start:,} on came from several tasks, "
                "so that their places in the file are not known. Nothing was written."
            )
        found.append((block.source, block.start, before[block.source] - block.first))
        before[block.source] += block.records
    return found
