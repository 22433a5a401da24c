"""Frozen models of ``conf/``, and loading that reports every error at once.

Knows the whole contract of a pipeline file, with what is not built yet; imports no Spark.
"""

from __future__ import annotations

from tidelake.config.environment import Environment, Limits, load_environment
from tidelake.config.gold import (
    Burst,
    Detection,
    GlobalWindow,
    GoldTable,
    HoppingWindow,
    ImpossibleTravel,
    Join,
    LeftSide,
    Measure,
    RightSide,
    SessionWindow,
    TumblingWindow,
    UnusualAmount,
    Window,
)
from tidelake.config.loading import load_pipeline
from tidelake.config.model import parse_duration
from tidelake.config.observing import AlertTargets, Lineage, Metrics
from tidelake.config.pipeline import (
    Alerts,
    Dedup,
    DimensionSpec,
    Enrich,
    Event,
    Pipeline,
    Watermark,
    unbuilt_features,
)
from tidelake.config.places import conf_dir, conf_file, pipeline_names
from tidelake.config.source import (
    DeltaSource,
    FilesSource,
    KafkaSource,
    RateSource,
    Registry,
    Source,
)
from tidelake.config.types import Field, FieldType

__all__ = [
    "AlertTargets",
    "Alerts",
    "Burst",
    "Dedup",
    "DeltaSource",
    "Detection",
    "DimensionSpec",
    "Enrich",
    "Environment",
    "Event",
    "Field",
    "FieldType",
    "FilesSource",
    "GlobalWindow",
    "GoldTable",
    "HoppingWindow",
    "ImpossibleTravel",
    "Join",
    "KafkaSource",
    "LeftSide",
    "Limits",
    "Lineage",
    "Measure",
    "Metrics",
    "Pipeline",
    "RateSource",
    "Registry",
    "RightSide",
    "SessionWindow",
    "Source",
    "TumblingWindow",
    "UnusualAmount",
    "Watermark",
    "Window",
    "conf_dir",
    "conf_file",
    "load_environment",
    "load_pipeline",
    "parse_duration",
    "pipeline_names",
    "unbuilt_features",
]
