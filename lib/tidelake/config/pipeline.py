"""The model of a pipeline file, and the types of silver's and gold's columns."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from decimal import Decimal
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, ValidationError
from sqlglot import exp

from tidelake.config import types
from tidelake.config.document import KeyPath
from tidelake.config.expectations import Expectation, RuleBody, Suite
from tidelake.config.expressions import DIALECT, Types, as_operand, type_of
from tidelake.config.gold_definitions import Detection, GoldTable, Join, Measure
from tidelake.config.model import (
    LONGEST,
    Documented,
    Duration,
    Model,
    PositiveDuration,
    Text,
    matching,
    parsed_by,
    written,
)
from tidelake.config.queries import Query
from tidelake.config.source import (
    CHANGE_COLUMNS,
    CsvFormat,
    Envelope,
    FilesSource,
    KafkaSource,
    Registry,
    Source,
)
from tidelake.config.standard_tables import STANDARD, standard_types
from tidelake.config.table_settings import Publish, TableSettings
from tidelake.names import (
    BRONZE_COLUMNS,
    IS_DELETE,
    SEQUENCE,
    SILVER_RESERVED,
    ColumnName,
    TableName,
    is_column_name,
    logical_name,
    quoted,
)

_INTEGERS = frozenset(["TINYINT", "SMALLINT", "INT", "BIGINT"])
_MAX_PRECISION = 38
_FIXED_TYPES = {
    **dict.fromkeys(("count", "count_if", "approx_count_distinct"), "BIGINT"),
    "approx_percentile": "DOUBLE",
}

Seconds = Annotated[float, Field(strict=True, gt=0, le=LONGEST.total_seconds())]
Rate = Annotated[float, Field(strict=True, ge=0, le=1)]
_FunctionPath = Annotated[
    str,
    matching(
        r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", "must look like package.module:function"
    ),
]


_Ddl = Annotated[str, parsed_by(types.parse_schema)]


class Event(Model):
    """The schema and the expressions of an event.

    Attributes:
        schema_ddl: The payload's fields; ``schema`` in YAML.
        where: SQL condition; other rows are filtered.
        select: Silver's columns, name to SQL; None for every payload field.
        id: SQL for the event's id.
        time: SQL for the event time.
        evolution: What happens to fields that are not in the schema.
        sequence: Dimensions only: SQL that orders the versions of a key.
        delete_when: Dimensions only: SQL condition for deletions.
    """

    schema_ddl: _Ddl = Field(alias="schema")
    where: str | None = None
    select: Annotated[dict[ColumnName, str], Field(min_length=1)] | None = None
    id: str
    time: str
    evolution: Literal["strict", "additive", "rescue"] = "additive"
    sequence: str | None = None
    delete_when: str | None = None

    @property
    def fields(self) -> tuple[types.Field, ...]:
        """The payload's fields, in order."""
        return types.parse_schema(self.schema_ddl)


class Transform(Model):
    """A function of the user's, between ``event.select`` and the rules.

    Attributes:
        function: ``package.module:function``, from a frame to a frame with the same rows.
        columns_ddl: The columns that it adds or replaces; ``columns`` in YAML.
    """

    function: _FunctionPath
    columns_ddl: _Ddl = Field(alias="columns")

    @property
    def types(self) -> dict[str, str]:
        """The types of the columns, in order."""
        return {field.name: field.type.sql for field in types.parse_schema(self.columns_ddl)}


class Watermark(Model):
    """The watermark and the limits of event time.

    Attributes:
        delay: How far the watermark trails the largest event time.
        allowed_lateness: How far behind the watermark an event still changes gold.
        max_future_skew: How far an event time may lie after the arrival of its record.
        idle_after: A source partition without rows for this long does not hold the watermark back.
    """

    delay: Duration = timedelta(minutes=10)
    allowed_lateness: Duration = timedelta(days=1)
    max_future_skew: Duration = timedelta(minutes=5)
    idle_after: PositiveDuration = timedelta(minutes=5)


class Dedup(Model):
    """How long the ids of events are kept to find duplicates.

    Attributes:
        ttl: How long after its arrival an id is kept.
        beyond_ttl: With ``merge``, ids are compared with all of the same event date.
        prefilter: ``operator`` runs Spark's deduplication first; it changes no result.
    """

    ttl: PositiveDuration = timedelta(hours=1)
    beyond_ttl: Literal["merge", "ignore"] = "merge"
    prefilter: Literal["none", "operator"] = "none"

    @property
    def widened(self) -> bool:
        """Whether ids are compared beyond the TTL."""
        return self.beyond_ttl == "merge"


class Alerts(Model):
    """The limits of the alert rules; ``null`` turns a rule off.

    Attributes:
        lag_seconds: How long input may wait for a hop while the backlog does not shrink.
        latency_seconds: How long a record may take from bronze into gold; without gold into silver.
        watermark_stuck: How long batches may have rows without the watermark advancing.
        batch_over_interval: How long the batches of a hop may keep exceeding their interval.
        quarantine_rate: The share of rows that may be quarantined.
        late_rate: The share of rows that may be too late.
        stale: How long a pipeline may go without a committed batch.
        checkpoint_failing: How long a batch may be in the tables but not in the hop's checkpoint.
    """

    lag_seconds: Seconds | None = 300.0
    latency_seconds: Seconds | None = None
    watermark_stuck: PositiveDuration | None = timedelta(minutes=10)
    batch_over_interval: PositiveDuration | None = timedelta(minutes=5)
    quarantine_rate: Rate | None = 0.02
    late_rate: Rate | None = 0.05
    stale: PositiveDuration | None = timedelta(days=1)
    checkpoint_failing: PositiveDuration | None = timedelta(minutes=5)


class Enrich(Model):
    """Columns of a dimension that are added to silver.

    Attributes:
        dimension: The dimension's name.
        on: Silver's column to the dimension's column; ``"on"`` in YAML, with its quotes.
        columns: The dimension's columns to add.
        as_of: Silver's column with the time as of which to look up; None for the latest version.
    """

    dimension: TableName
    on: Annotated[dict[ColumnName, ColumnName], Field(min_length=1)]
    columns: Annotated[tuple[ColumnName, ...], Field(min_length=1)]
    as_of: str | None = None

    @property
    def table(self) -> str:
        """The logical name of the table to look up in: the history with ``as_of``."""
        return logical_name("dim", self.dimension, "history" if self.as_of else "")


class Quality(Model):
    """The expectations of a pipeline.

    Attributes:
        suite: Path of a suite file, relative to the conf folder.
        rules: Rules on single rows, name to SQL, beside those of the suite.
    """

    suite: Text | None = None
    rules: dict[ColumnName, RuleBody] = Field(default_factory=dict)


class DimensionSpec(TableSettings):
    """The key of a dimension, and whether it has a history.

    Attributes:
        key: Columns that identify a member.
        history: Whether ``dim.<name>__history`` is filled.
    """

    key: Annotated[tuple[ColumnName, ...], Field(min_length=1)]
    history: Annotated[bool, Field(strict=True)] = True


class PipelineFile(Documented):
    """A pipeline file.

    Attributes:
        name: The pipeline's name, also used in the names of its tables; unique in a folder.
        kind: ``events``, or ``dimension`` for a changelog that other pipelines join.
        source: Where records come from.
        event: The payload's schema, and silver's columns.
        watermark: The watermark and the limits of event time.
        dedup: How long ids are kept to find duplicates.
        quality: The expectations of rows and tables.
        enrich: Columns of dimensions that are added to silver.
        gold: Tables of windows and measures.
        joins: Tables with one row per left event.
        detections: Tables of alerts.
        queries: Tables computed from tables of ``gold`` by SQL.
        alerts: The limits of the alert rules.
        transform: A function of the user's that adds or replaces columns.
        dimension: Dimensions only: the key.
    """

    # Keys of a file that are resolved before validation.
    keys_of_loader: ClassVar[tuple[str, ...]] = ("for_each",)

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
    queries: tuple[Query, ...] = ()
    alerts: Alerts = Alerts()
    transform: Transform | None = None
    dimension: DimensionSpec | None = None

    @property
    def reads_avro(self) -> bool:
        """Whether payloads are Avro, not JSON."""
        return isinstance(self.source, KafkaSource) and self.source.format == "avro"

    @property
    def csv(self) -> CsvFormat | None:
        """How the source's CSV files are written; None if payloads are not CSV."""
        source = self.source
        return source.csv if isinstance(source, FilesSource) and source.format == "csv" else None

    @property
    def envelope(self) -> Envelope | None:
        """The envelope in which the payload's fields are; None if they are the payload."""
        return getattr(self.source, "envelope", None)

    @property
    def payload_columns(self) -> tuple[str, ...]:
        """Names of the columns that a payload gives to expressions: fields, then the envelope's."""
        own = CHANGE_COLUMNS if self.envelope else ()
        return (*(field.name for field in self.event.fields), *own)

    @property
    def registry(self) -> Registry | None:
        """The schema registry of Avro payloads, if there is one."""
        return self.source.registry if isinstance(self.source, KafkaSource) else None

    @property
    def selected(self) -> dict[str, str]:
        """Silver's selected columns in order, name to SQL; with the two of a dimension."""
        event, found = self.event, selected_columns(self.event)
        if self.dimension is not None and event.sequence is not None:
            when = event.delete_when
            is_delete = f"coalesce({as_operand(when)}, false)" if when else "false"
            found |= {SEQUENCE: event.sequence, IS_DELETE: is_delete}
        return found

    @property
    def gold_names(self) -> tuple[str, ...]:
        """Logical names of the gold hop's tables: gold, joins, detections, queries."""
        if self.dimension is not None:
            sides = ("", "history") if self.dimension.history else ("",)
            return tuple(logical_name("dim", self.name, side) for side in sides)
        names = [table.name for table in self.gold] + [join.name for join in self.joins]
        for detection in self.detections:
            names += [detection.features, detection.name]
        # Last: a batch computes them from the other tables.
        names += [query.name for query in self.queries]
        return tuple(logical_name("gold", name) for name in names)

    @property
    def tables(self) -> dict[KeyPath, GoldTable | Join | Detection | Query]:
        """The gold tables that the file defines, by their place in it; without a dimension's."""
        sections = ("gold", "joins", "detections", "queries")
        return {(key, at): one for key in sections for at, one in enumerate(getattr(self, key))}

    @property
    def published(self) -> dict[str, Publish]:
        """The topics of the gold tables that are published, by logical name."""
        tables = self.tables.values()
        return {logical_name("gold", one.name): one.publish for one in tables if one.publish}

    @property
    def aggregates(self) -> tuple[GoldTable, ...]:
        """The gold tables of windows and measures, the features of detections included."""
        return (*self.gold, *(detection.hours for detection in self.detections))

    @property
    def silver_columns(self) -> tuple[str, ...]:
        """Names of silver's selected columns, in order; those that ``transform`` adds come last."""
        return tuple(dict.fromkeys([*self.selected, *self.transformed]))

    @property
    def transformed(self) -> dict[str, str]:
        """The types of the columns that ``transform`` adds or replaces."""
        return self.transform.types if self.transform else {}

    @property
    def defined_columns(self) -> tuple[str, ...]:
        """Silver's selected columns, those of ``transform``, and those of dimensions."""
        return (*self.silver_columns, *(name for enrich in self.enrich for name in enrich.columns))


class Pipeline(PipelineFile):
    """A loaded pipeline: the content of its file, and of the files to which that refers.

    None of these is part of a dump.

    Attributes:
        file: The path of the pipeline's file.
        dimensions: The definitions of the dimensions in ``enrich``, by name.
        suite: The content of ``quality.suite``.
        avro_schema: The content of ``source.schema``.
    """

    file: str = Field(exclude=True)
    dimensions: dict[str, Pipeline] = Field(exclude=True)
    suite: Suite | None = Field(exclude=True)
    avro_schema: str | None = Field(exclude=True)

    @property
    def rules(self) -> tuple[Expectation, ...]:
        """The expectations on single rows: the suite's, then the file's own rules."""
        return (*(self.suite.row_level if self.suite else ()), *self.inline_rules)

    @property
    def inline_rules(self) -> tuple[Expectation, ...]:
        """The file's own rules, in its order."""
        rules = self.quality.rules if self.quality else {}
        return tuple(rule.named(name) for name, rule in rules.items())


def selected_columns(event: Event) -> dict[str, str]:
    """Return an event's columns, name to SQL: ``select``, or all fields without a reserved name."""
    if event.select is not None:
        return dict(event.select)
    return {f.name: quoted(f.name) for f in event.fields if f.name.lower() not in SILVER_RESERVED}


def written_out(section: Model) -> dict[str, Any]:
    """Return a pipeline, or a section of it, as the mapping that ``validate --resolved`` prints.

    It has all values, the defaults included, and loads as an equal model. Empty keys whose default
    is empty are left out, because some keys exclude each other.
    """
    found: dict[str, Any] = {}
    model = PipelineFile if isinstance(section, PipelineFile) else type(section)
    for name, field in sorted(model.model_fields.items(), key=lambda one: one[0] != "name"):
        value = getattr(section, name)
        is_empty = value is None or value in ((), {})
        if not is_empty or value != field.get_default(call_default_factory=True):
            found[field.alias or name] = _in_file(value)
    if isinstance(section, FilesSource) and section.format != "csv":
        del found["csv"]
    if isinstance(section, CsvFormat) and section.columns and section.header:
        del found["header"]
    return found


def _in_file(value: object) -> object:
    match value:
        case Model():
            value = written_out(value)
        case timedelta():
            value = written(value)
        case Decimal():
            value = int(value) if value == int(value) else float(value)
        case dict():
            value = {key: _in_file(one) for key, one in value.items()}
        case tuple():
            measures = {one.name: one for one in value if isinstance(one, Measure)}
            bodies = {
                name: {one.aggregate: one.expression} | ({} if one.p is None else {"p": one.p})
                for name, one in measures.items()
            }
            value = bodies or [_in_file(one) for one in value]
    return value


def completed_changes(event: dict[str, Any], *, is_dimension: bool) -> dict[str, Any]:
    """Add the expressions that the ``event`` of an envelope leaves out.

    An events pipeline without ``select`` gets the envelope's columns in silver too; a dimension
    does not. An invalid event is completed as far as possible.
    """
    defaults: dict[str, Any] = {"id": "record_id", "time": "source_time"}
    if is_dimension:
        return defaults | {"sequence": "source_position", "delete_when": "op = 'd'"} | event
    with suppress(ValidationError):
        fields = selected_columns(Event.model_validate(defaults | event))
        if all(map(is_column_name, fields)):
            defaults["select"] = fields | {name: name for name in CHANGE_COLUMNS}
    return defaults | event


def payload_types(event: Event, envelope: object = None) -> dict[str, str | None]:
    """Return the types of the columns that an event's expressions may use: payload and bronze."""
    payload: dict[str, str | None] = {field.name: field.type.sql for field in event.fields}
    payload |= CHANGE_COLUMNS if envelope else {}
    # Names are case-insensitive: a field Key hides bronze's column key.
    taken = {name.lower() for name in payload}
    return payload | standard_types(name for name in BRONZE_COLUMNS if name not in taken)


def silver_types(pipeline: Pipeline) -> dict[str, str | None]:
    """Return the types of silver's columns; None where only Spark can infer it."""
    scope = payload_types(pipeline.event, pipeline.envelope)
    found = standard_types(SILVER_RESERVED)
    found |= {name: type_of(sql, scope) for name, sql in pipeline.selected.items()}
    found |= pipeline.transformed
    for enrich in pipeline.enrich:
        of_dimension = silver_types(pipeline.dimensions[enrich.dimension])
        found |= {name: of_dimension.get(name) for name in enrich.columns}
    return found


def gold_types(gold: GoldTable, silver: Types) -> dict[str, str | None]:
    """Return the types of a gold table's columns; None where only Spark can infer it."""
    found: dict[str, str | None] = {
        name: silver.get(name) if name in gold.keys else STANDARD.get(name) for name in gold.columns
    }
    found |= {measure.name: measured_type(measure, silver) for measure in gold.measures}
    return found | {name: type_of(sql, found) for name, sql in gold.derive.items()}


def measured_type(measure: Measure, silver: Types) -> str | None:
    """Return the type of a measure: Spark's, except that a sum of BIGINT is a DECIMAL(38,0)."""
    aggregate = measure.aggregate
    if aggregate in _FIXED_TYPES:
        return _FIXED_TYPES[aggregate]
    sql_type = type_of(measure.expression, silver)
    if sql_type is None or aggregate not in ("sum", "avg"):
        return sql_type
    if aggregate == "sum" and sql_type == "BIGINT":
        return f"DECIMAL({_MAX_PRECISION},0)"
    if sql_type in _INTEGERS or sql_type in ("FLOAT", "DOUBLE", "STRING"):
        return "BIGINT" if sql_type in _INTEGERS and aggregate == "sum" else "DOUBLE"
    digits = exp.DataType.build(sql_type, dialect=DIALECT).expressions
    if not sql_type.startswith("DECIMAL") or len(digits) != 2:
        return None
    precision, scale = (int(digit.name) for digit in digits)
    extra_digits, extra_scale = (10, 0) if aggregate == "sum" else (4, 4)
    return f"DECIMAL({min(precision + extra_digits, _MAX_PRECISION)},{scale + extra_scale})"
