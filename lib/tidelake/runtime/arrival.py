"""Write a batch's files into bronze in the order in which they arrived."""

from __future__ import annotations

import json
from collections.abc import Sequence

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from tidelake.folders import place_of
from tidelake.runtime.landing import LandedFile

_PLACES = "array<struct<source: string, _part: int>>"


def in_order(
    records: DataFrame, files: Sequence[tuple[LandedFile, int]], offered: Sequence[Row], parts: int
) -> DataFrame:
    """Cut a batch into parts of equal size, older files in earlier parts.

    Spark reads the largest file first. Silver may take a commit of bronze in several batches, part
    by part: were they in Spark's order, newer events would move the watermark past older ones.

    Args:
        records: Rows of bronze.
        files: The batch's files in the order of their arrival, each with its rows.
        offered: What was read of them; ``source`` names each as the records do.
        parts: How many; each becomes one file of bronze.
    """
    if parts == 1 or len(files) < 2:
        return records.coalesce(parts)
    parts_of = _parts([file for file, _ in files], parts)
    places = [
        {"source": row["source"], "_part": parts_of[place_of(row["source"])]} for row in offered
    ]
    # As text, which Spark parses: a list of Python rows would go through a Python worker.
    text = F.lit(json.dumps(places))
    placed = records.sparkSession.range(1).select(F.inline(F.from_json(text, _PLACES)))
    together = records.join(F.broadcast(placed), on="source", how="left")
    # No row is lost for want of a place.
    place = F.coalesce("_part", F.lit(parts - 1))
    return together.repartitionById(parts, place).select(*records.columns)


def _parts(files: Sequence[LandedFile], parts: int) -> dict[str, int]:
    """Place each file by the bytes that come before it."""
    total = max(1, sum(file.size for file in files))
    found, before = {}, 0
    for file in files:
        found[file.path] = min(parts - 1, before * parts // total)
        before += file.size
    return found
