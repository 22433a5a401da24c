"""The tables that gold's batches close: aggregates, joins, dimensions."""

from __future__ import annotations

from tidelake.config import Detection, Pipeline
from tidelake.config.pipeline import selected_columns
from tidelake.delta.tables import Lake
from tidelake.runtime.targets.aggregated import Aggregated
from tidelake.runtime.targets.detected import Detected
from tidelake.runtime.targets.dimension import Latest, Versions
from tidelake.runtime.targets.joined import Joined
from tidelake.runtime.targets.target import (
    OWN,
    Counted,
    Inputs,
    Target,
    contributions,
    count_contributions,
    stamped,
)

__all__ = [
    "OWN",
    "Counted",
    "Inputs",
    "Target",
    "contributions",
    "count_contributions",
    "stamped",
    "targets_of",
]


def targets_of(lake: Lake, pipeline: Pipeline) -> list[Target]:
    """List the tables that a pipeline's gold hop fills, in the file's order."""
    if pipeline.dimension is not None:
        latest, *history = (lake.table(name) for name in pipeline.gold_names)
        key = pipeline.dimension.key
        columns = tuple(name for name in selected_columns(pipeline.event) if name not in key)
        return [
            Latest(latest, "dimension", pipeline.dimension, columns),
            *[Versions(table, "dimension", pipeline.dimension, columns) for table in history],
        ]
    return [
        *[
            Aggregated(lake.gold(gold.name), f"gold[{number}]", gold)
            for number, gold in enumerate(pipeline.gold)
        ],
        *[
            Joined(lake.gold(join.name), f"joins[{number}]", join, pipeline.name)
            for number, join in enumerate(pipeline.joins)
        ],
        *[
            target
            for number, detection in enumerate(pipeline.detections)
            for target in _detecting(lake, detection, f"detections[{number}]")
        ],
    ]


def _detecting(lake: Lake, detection: Detection, place: str) -> list[Target]:
    """List the features and, after them, the alerts that look back at them."""
    features = lake.gold(detection.features)
    return [
        Aggregated(features, f"{place}.features", detection.hours),
        Detected(lake.gold(detection.name), place, detection, features),
    ]
