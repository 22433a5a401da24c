"""Compute the rows of a user's function, and refuse a batch of which it changed the rows."""

from __future__ import annotations

import re

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidelake.config import Pipeline
from tidelake.errors import RowsChangedError, TidelakeError
from tidelake.runtime.checkpointed_frames import CheckpointedFrames
from tidelake.runtime.failures import FOREIGN, error_text
from tidelake.silver.stages import ROW, row_id
from tidelake.spark.session import kept_log
from tidelake.visible import visible

_LINE = re.compile(r'File "([^"\n]+)", line (\d+)')
# The last line of a traceback in Python; what follows the class may be a row's value.
_CLASS = re.compile(r"^((?:[A-Za-z_]\w*\.)*[A-Z]\w*)(?::|$)", re.MULTILINE)


def same_rows(
    rows: DataFrame,
    judged: DataFrame,
    pipeline: Pipeline,
    frames: CheckpointedFrames | None,
    place: str,
) -> DataFrame:
    """Check that a pipeline's ``transform`` kept the rows; return ``judged``, computed once.

    ``rows`` are a batch's rows as read, ``judged`` the same rows transformed and classified. Their
    keys are compared, each as often as it occurs. Without a transform ``judged`` is returned as it
    is, and nothing is computed. ``place``, pipeline and batch, begins the messages. Without
    ``frames`` they are compared, but not stored: whoever reads them computes them again.

    Raises:
        RowsChangedError: The function added or removed rows.
        TidelakeError: The function failed on a row.
    """
    if pipeline.transform is None:
        return judged
    function = f"transform {pipeline.transform.function}"
    given = rows.select(row_id("requeued_at").alias(ROW))
    try:
        kept = frames.checkpoint_now(judged)[0] if frames else judged
        changed = _changes(given, kept.select(ROW))
    except FOREIGN as error:
        text = error_text(error)
        if "PythonException" not in text and "Traceback (most recent call last)" not in text:
            raise
        raise TidelakeError(
            f"{place}: {function} failed{_where(text)}. Nothing was written. The full message, "
            f"which may contain values: {kept_log(error)}"
        ) from error
    if changed is not None:
        appeared, vanished = changed
        raise RowsChangedError(
            f"{place}: {function} changed the rows: {vanished:,} vanished, {appeared:,} appeared. "
            "Nothing was written. It may add and replace columns only; filter with event.where"
        )
    return kept


def _changes(given: DataFrame, kept: DataFrame) -> tuple[int, int] | None:
    """Return how many rows appeared and vanished; None if the rows are the same."""
    both = given.withColumn("_side", F.lit(-1)).unionByName(kept.withColumn("_side", F.lit(1)))
    # A hash differs for null too. Of sums a driver compares two numbers, whatever the batch's size.
    hashed = F.xxhash64(F.col(ROW).isNull(), ROW).cast("decimal(38,0)")
    rows, total = both.agg(F.sum("_side"), F.sum(hashed * F.col("_side"))).collect()[0]
    if not rows and not total:
        return None
    more = F.sum("_side").alias("_more")
    counted = (
        both.groupBy(ROW)
        .agg(more)
        .agg(F.sum(F.greatest("_more", F.lit(0))), F.sum(F.greatest(-F.col("_more"), F.lit(0))))
    )
    appeared, vanished = counted.collect()[0]
    return int(appeared), int(vanished)


def _where(text: str) -> str:
    """Return class and line of the error in a worker's traceback."""
    # The JVM's own stack trace follows the worker's.
    worker = text[text.rfind("Traceback (most recent call last)") :].partition("\n\tat ")[0]
    lines = [one for one in _LINE.findall(worker) if "pyspark" not in one[0]]
    kinds = _CLASS.findall(worker)
    kind = f" with {visible(kinds[-1])}" if kinds else ""
    return kind + (f" ({visible(lines[-1][0])}, line {lines[-1][1]})" if lines else "")
