"""Frozen models of the files in ``conf/``, and loaders that report all errors at once.

Nothing here needs Spark.
"""

from __future__ import annotations

from tidelake.config.environment import Environment, Limits, Lineage, load_environment
from tidelake.config.gold_definitions import (
    Detection,
    GlobalWindow,
    GoldTable,
    HoppingWindow,
    Join,
    Measure,
    SessionWindow,
    TumblingWindow,
)
from tidelake.config.loading import load_pipeline
from tidelake.config.locations import conf_file
from tidelake.config.model import parse_duration
from tidelake.config.pipeline import (
    Alerts,
    DimensionSpec,
    Enrich,
    Pipeline,
)
from tidelake.config.source import (
    CsvFormat,
    DeltaSource,
    FilesSource,
    KafkaSource,
    RateSource,
    Registry,
    Source,
)
from tidelake.config.types import Field, FieldType

__all__ = [
    "Alerts",
    "CsvFormat",
    "DeltaSource",
    "Detection",
    "DimensionSpec",
    "Enrich",
    "Environment",
    "Field",
    "FieldType",
    "FilesSource",
    "GlobalWindow",
    "GoldTable",
    "HoppingWindow",
    "Join",
    "KafkaSource",
    "Limits",
    "Lineage",
    "Measure",
    "Pipeline",
    "RateSource",
    "Registry",
    "SessionWindow",
    "Source",
    "TumblingWindow",
    "conf_file",
    "load_environment",
    "load_pipeline",
    "parse_duration",
]
