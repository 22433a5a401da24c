"""One pipeline, whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, PrivateAttr

from tidelake.config.alerts import Alerts
from tidelake.config.described import Described
from tidelake.config.detections import Detection
from tidelake.config.event import Dedup, Event, Watermark
from tidelake.config.expectations import Expectation, Suite
from tidelake.config.gold import GoldTable
from tidelake.config.joins import Enrich, Join
from tidelake.config.model import Model
from tidelake.config.names import IS_DELETE, SEQUENCE, SILVER_RESERVED, ColumnName, TableName
from tidelake.config.source import KafkaSource, Registry, Source, Text
from tidelake.config.types import quoted


class Quality(Model):
    """A suite of expectations that silver's rows are held against.

    Attributes:
        suite: A file of the conf folder.
    """

    suite: Text


class DimensionSpec(Model):
    """The key of a dimension, and whether its past is kept.

    Attributes:
        key: Columns that tell its members apart.
        history: Whether ``dim.<name>__history`` is filled.
    """

    key: Annotated[tuple[ColumnName, ...], Field(min_length=1)]
    history: Annotated[bool, Field(strict=True)] = True


class Pipeline(Described):
    """A pipeline file, read and checked.

    Attributes:
        name: Names the tables too; the file's name.
        kind: ``dimension`` for a changelog that other pipelines look things up in.
        source: Where records come from.
        event: What a payload holds, and what silver makes of it.
        watermark: How event time advances.
        dedup: How far back copies are looked for.
        quality: What is expected of rows.
        enrich: Columns of dimensions, added in silver.
        gold: Tables of windows and measures.
        joins: Tables with one row a left event.
        detections: Tables of alerts.
        alerts: When somebody should be told.
        transform: A function of yours, ``package.module:function``; not built yet.
        dimension: Of ``kind: dimension``: its key.
    """

    name: TableName
    kind: Literal["events", "dimension"] = "events"
    source: Source
    event: Event
    watermark: Watermark = Watermark()
    dedup: Dedup = Dedup()
    quality: Quality | None = None
    enrich: tuple[Enrich, ...] = ()
    gold: tuple[GoldTable, ...] = ()
    joins: tuple[Join, ...] = ()
    detections: tuple[Detection, ...] = ()
    alerts: Alerts = Alerts()
    transform: (
        Annotated[str, Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$")] | None
    ) = None
    dimension: DimensionSpec | None = None

    _file: str = PrivateAttr(default="")
    _expectations: Suite | None = PrivateAttr(default=None)
    _dimensions: dict[str, Pipeline] = PrivateAttr(default_factory=dict)
    _avro_schema: str | None = PrivateAttr(default=None)

    def model_post_init(self, context: Any, /) -> None:
        """Take the file's path from the loader; it is no key of the file."""
        if isinstance(context, dict):
            self._file = str(context.get("file", ""))

    def with_suite(self, suite: Suite) -> Pipeline:
        """Give the pipeline the content of the suite that it names."""
        pipeline = self.model_copy()
        pipeline._expectations = suite
        return pipeline

    def with_avro_schema(self, text: str) -> Pipeline:
        """Give the pipeline the content of the Avro schema that its source names."""
        pipeline = self.model_copy()
        pipeline._avro_schema = text
        return pipeline

    def with_dimensions(self, dimensions: Mapping[str, Pipeline]) -> Pipeline:
        """Give the pipeline the definitions of the dimensions that it names."""
        pipeline = self.model_copy()
        pipeline._dimensions = dict(dimensions)
        return pipeline

    @property
    def dimensions(self) -> Mapping[str, Pipeline]:
        """The definitions of the dimensions in ``enrich``, by name."""
        return self._dimensions

    @property
    def reads_avro(self) -> bool:
        """Whether payloads are Avro, not JSON."""
        return isinstance(self.source, KafkaSource) and self.source.format == "avro"

    @property
    def registry(self) -> Registry | None:
        """Where the writers' schemas of Avro payloads are; None where there is no such place."""
        return self.source.registry if isinstance(self.source, KafkaSource) else None

    @property
    def avro_schema(self) -> str | None:
        """The content of ``source.schema``."""
        return self._avro_schema

    @property
    def suite(self) -> Suite | None:
        """The content of ``quality.suite``."""
        return self._expectations

    @property
    def rules(self) -> tuple[Expectation, ...]:
        """The suite's expectations that judge each row by itself."""
        return self._expectations.row_level if self._expectations else ()

    @property
    def file(self) -> str:
        """Path of the file that this came from."""
        return self._file

    @property
    def selected(self) -> dict[str, str]:
        """Silver's selected columns, in order: name to SQL over the payload.

        A dimension's have what orders its changes among them, and which of them delete.
        """
        found = selected_columns(self.event)
        if self.dimension is not None and self.event.sequence is not None:
            gone = (
                f"coalesce({self.event.delete_when}, false)" if self.event.delete_when else "false"
            )
            found |= {SEQUENCE: self.event.sequence, IS_DELETE: gone}
        return found

    @property
    def gold_names(self) -> tuple[str, ...]:
        """Logical names of the tables that the gold hop fills, in the file's order."""
        if self.dimension is not None:
            history = (f"dim.{self.name}__history",) if self.dimension.history else ()
            return (f"dim.{self.name}", *history)
        names = [table.name for table in self.gold] + [join.name for join in self.joins]
        for detection in self.detections:
            names += [detection.features, detection.name]
        return tuple(f"gold.{name}" for name in names)

    @property
    def aggregates(self) -> tuple[GoldTable, ...]:
        """The gold tables of windows and measures, those that detections look back at included."""
        return (*self.gold, *(detection.hours for detection in self.detections))

    @property
    def silver_columns(self) -> tuple[str, ...]:
        """Names of silver's selected columns, in order."""
        return tuple(self.selected)

    @property
    def defined_columns(self) -> tuple[str, ...]:
        """Those, and the columns that come from dimensions."""
        return (*self.selected, *(name for one in self.enrich for name in one.columns))


def selected_columns(event: Event) -> dict[str, str]:
    """Give the columns that an event selects: name to SQL.

    Without ``select`` they are the payload's fields, but for the names that silver fills itself.
    """
    if event.select is not None:
        return dict(event.select)
    return {f.name: quoted(f.name) for f in event.fields if f.name.lower() not in SILVER_RESERVED}


def unbuilt_features(pipeline: Pipeline) -> list[str]:
    """Name what a pipeline uses and this version cannot run."""
    present = {
        "source.format: avro with kind: files": (
            pipeline.source.kind == "files" and pipeline.source.format == "avro"
        ),
        "transform": pipeline.transform is not None,
    }
    return [name for name, is_present in present.items() if is_present]
