"""Hold the comments of a pipeline file against the columns that its tables have."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from tidelake.config.described import Described
from tidelake.config.document import Finding, KeyPath
from tidelake.config.model import suggestion
from tidelake.config.pipeline import Pipeline


def comment_findings(pipeline: Pipeline) -> Iterator[Finding]:
    """Find comments on columns that are not there."""
    of_silver = (*pipeline.defined_columns, "event_id", "event_time")
    yield from _unknown(pipeline, (), of_silver)
    for index, gold in enumerate(pipeline.gold):
        yield from _unknown(gold, ("gold", index), gold.columns)
    for index, join in enumerate(pipeline.joins):
        yield from _unknown(join, ("joins", index), join.columns)
    for index, detection in enumerate(pipeline.detections):
        yield from _unknown(detection, ("detections", index), detection.shown)


def _unknown(table: Described, path: KeyPath, known: Collection[str]) -> Iterator[Finding]:
    for name in table.comments:
        if name not in known:
            hint = suggestion(name, known) or f" (known: {', '.join(known)})"
            yield Finding((*path, "comments", name), f"unknown column {name}{hint}")
