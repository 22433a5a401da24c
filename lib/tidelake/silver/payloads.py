"""Decode JSON, CSV and Avro payloads into typed fields, error reasons and unknown fields.

One decoder reads JSON, another CSV. An Avro datum is first converted to equivalent JSON, so that
types, unknown fields and rules behave as for JSON. A record in Confluent's wire format begins with
a zero byte and the id of its writer's schema, and is read with that schema.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import and_, attrgetter
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructType

from tidelake.columns import EXACT_TIMES, in_pairs
from tidelake.config import Field, FieldType, Pipeline
from tidelake.config.source import CHANGE_COLUMNS
from tidelake.csv_records import LAYOUT_HEADER
from tidelake.names import quoted
from tidelake.silver.avro_schema import DATUM, END, framed, logical_types
from tidelake.silver.csv_decode import CsvDecoder
from tidelake.silver.decode import DecodedField, Decoder
from tidelake.silver.envelope import ChangeDecoder
from tidelake.spark.workers import prepare_worker

arrow_udf: Any
try:
    from pyspark.sql.pandas.functions import arrow_udf
except ImportError:
    arrow_udf = None

PARSED, VALUES, BROKEN, UNKNOWN = "_parsed", "_values", "_broken", "_unknown"
# The reason a payload could not be decoded.
REFUSAL = "_refusal"
# Whether the record has no event, such as a tombstone; only with an envelope.
SKIPPED = "_skipped"

# The JSON equivalent of an Avro payload.
_TEXT = "_text"
_DECODED = "_decoded"

_HEAD_BYTES = 5
_LONGEST = (1 << 31) - 1
_READING = {"mode": "PERMISSIVE", "enableStableIdentifiersForUnionType": "true"}
# Spark omits null fields by default.
_WRITING = {"ignoreNullFields": "false", **EXACT_TIMES}
_REPLACED = "\ufffd"


class Refusal(NamedTuple):
    """Why rows of a writer schema are quarantined instead of decoded.

    ``through`` is the last arrival that it applies to, in microseconds since the epoch.
    """

    schema_id: int
    reason: str
    through: int


@dataclass(frozen=True)
class WriterSchemas:
    """The writer schemas of a registry's subject: accepted ones by id, and refusals.

    A refused schema may have been accepted later. ``still_refused`` is the condition of the rows to
    which the refusal then still applies; None for all that arrived up to ``through``.
    """

    subject: str
    accepted: Mapping[int, str]
    refusals: Sequence[Refusal] = ()
    still_refused: Column | None = None

    def texts_overruled(self) -> list[str]:
        """Return the refusal reasons of schemas that were accepted later."""
        return sorted(
            {refusal.reason for refusal in self.refusals if refusal.schema_id in self.accepted}
        )

    def of(self, ids: Iterable[int]) -> WriterSchemas:
        """Return only the schemas with the given ids."""
        wanted = set(ids)
        return replace(
            self,
            accepted={key: text for key, text in self.accepted.items() if key in wanted},
            refusals=[refusal for refusal in self.refusals if refusal.schema_id in wanted],
        )


def read_payloads(
    rows: DataFrame, pipeline: Pipeline, schemas: WriterSchemas | None = None, *, decode: Any = None
) -> DataFrame:
    """Decode each payload's fields, in the pipeline's format.

    ``rows`` have bronze's columns plus ``requeued_at``; ``schemas`` is needed for rows of a
    pipeline with a registry; ``decode`` is from :func:`decoding`, or created here.

    Returns:
        ``rows`` plus ``_parsed`` (boolean), ``_refusal`` (why the payload could not be decoded,
        else null), ``_values`` (struct of typed fields, null if missing or refused), ``_broken``
        (array of reasons, one per refused value) and ``_unknown`` (fields not in the schema, null
        if none: a map to strings, or one JSON object with ``rescue``). With an envelope also
        ``_skipped`` (boolean), and its columns among the values.
    """
    payload = F.col("payload")
    if pipeline.csv:
        return _decoded(rows, payload, None, pipeline, decode)
    if not pipeline.reads_avro:
        return _decoded(rows, payload, F.lit("payload: not one JSON object"), pipeline, decode)
    if pipeline.registry is None:
        refusal = F.lit("payload: not one Avro datum of source.schema")
        readers = [(F.lit(True), pipeline.avro_schema or "")]
        read = _as_json(rows, payload, readers, refusal, typed=pipeline.envelope is not None)
    else:
        of_subject = schemas or WriterSchemas(pipeline.registry.subject, {})
        read = _decode_framed(rows, of_subject, typed=pipeline.envelope is not None)
    return _decoded(read, F.col(_TEXT).cast("binary"), F.col(REFUSAL), pipeline, decode)


def _decoded(
    rows: DataFrame, text: Column, refusal: Column | None, pipeline: Pipeline, decode: Any
) -> DataFrame:
    """Decode JSON or CSV; ``refusal`` is the reason where it does not parse, else the decoder's."""
    kept = [name for name in rows.columns if name not in (_TEXT, REFUSAL)]
    decode = decode or decoding(pipeline)
    inputs, own = [text], []
    if pipeline.csv:
        # Bronze writes no header but that of the layout. Searching all takes twice as long.
        first = F.get("headers", F.lit(0))
        inputs.append(F.when(first["key"] == LAYOUT_HEADER, first["value"]))
    elif pipeline.envelope:
        # What could not become JSON has a reason already.
        refusal = F.when(text.isNull(), refusal).otherwise(F.col(_DECODED)["refusal"])
        is_tombstone = F.col("payload").isNull() & F.col("key").isNotNull()
        inputs = [F.when(is_tombstone, F.lit(b"null")).otherwise(text), F.col("key")]
        own.append(F.col(_DECODED)["skipped"].alias(SKIPPED))
    # An Arrow UDF sends only these columns to Python; the others stay in the JVM.
    read = rows.withColumn(_DECODED, decode(*inputs)) if decode else _mapped(rows, inputs, pipeline)
    parsed, broken = F.col(_DECODED)["parsed"], F.col(_DECODED)["broken"]
    return read.select(
        *kept,
        parsed.alias(PARSED),
        F.when(~parsed, F.get(broken, F.lit(0)) if refusal is None else refusal).alias(REFUSAL),
        F.col(_DECODED)["values"].alias(VALUES),
        broken.alias(BROKEN),
        F.col(_DECODED)["unknown"].alias(UNKNOWN),
        *own,
    )


def decoder_of(fields: Sequence[Field], evolution: str) -> Decoder:
    """Return the decoder of JSON payloads with these fields, which Spark's Python workers call.

    ``evolution`` decides what it does with other fields: see `event.evolution`.
    """
    return Decoder(_typed(fields), evolution)


def _typed(fields: Sequence[Field]) -> list[DecodedField]:
    return [DecodedField(field.name, arrow_type(field.type), field.type.sql) for field in fields]


def _decoder(pipeline: Pipeline) -> Any:
    event = pipeline.event
    if pipeline.csv:
        return CsvDecoder(_typed(event.fields), event.evolution, pipeline.csv.nulls)
    rows = decoder_of(event.fields, event.evolution)
    return ChangeDecoder(rows) if pipeline.envelope else rows


def decoding(pipeline: Pipeline) -> Any:
    """Return an Arrow UDF that decodes payloads; None in Spark 4.0, which has none.

    It takes the payload; for CSV also the layout of its file, with an envelope the record's key.
    """
    if arrow_udf is None:
        return None
    decoder = _decoder(pipeline)

    def decode(*columns: pa.Array) -> pa.Array:
        prepare_worker()
        return decoder.decode(*columns)

    # Spark would call a deterministic UDF once for each field extracted from its result.
    return arrow_udf(decode, _decoded_ddl(pipeline)).asNondeterministic()


def _mapped(rows: DataFrame, inputs: Sequence[Column], pipeline: Pipeline) -> DataFrame:
    """Decode in Spark 4.0, which has no Arrow UDFs: whole rows go to Python and back."""
    decoder = _decoder(pipeline)
    wanted = rows.withColumn(_DECODED, F.lit(None).cast(_decoded_ddl(pipeline))).schema
    kept = len(rows.columns)

    def decode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        prepare_worker()
        for batch in batches:
            decoded = decoder.decode(*batch.columns[kept:])
            yield pa.RecordBatch.from_arrays([*batch.columns[:kept], decoded], wanted.names)

    named = {f"{_DECODED}_{number}": column for number, column in enumerate(inputs)}
    return rows.withColumns(named).mapInArrow(decode, wanted)


def _decoded_ddl(pipeline: Pipeline) -> str:
    event, envelope = pipeline.event, pipeline.envelope
    types = {quoted(field.name): field.type.sql for field in event.fields}
    types |= CHANGE_COLUMNS if envelope else {}
    fields = ", ".join(f"{name}: {kind}" for name, kind in types.items())
    unknown = "map<string, string>" if event.evolution == "additive" else "string"
    own = ", skipped: boolean, refusal: string" if envelope else ""
    return (
        f"struct<parsed: boolean, values: struct<{fields}>, broken: array<string>, "
        f"unknown: {unknown}{own}>"
    )


_ARROW_TYPES = {
    "string": pa.string(),
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "binary": pa.binary(),
}


def arrow_type(kind: FieldType) -> pa.DataType:
    """Return the Arrow type that Spark uses for a field type."""
    if kind.kind == "decimal":
        return pa.decimal128(kind.precision or 10, kind.scale or 0)
    if kind.element is not None:
        return pa.list_(pa.field("element", arrow_type(kind.element)))
    if kind.value is not None:
        return pa.map_(pa.string(), arrow_type(kind.value))
    if kind.kind == "struct":
        return pa.struct([(field.name, arrow_type(field.type)) for field in kind.fields])
    return _ARROW_TYPES[kind.kind]


def schema_id() -> Column:
    """Return the payload's schema id; null if it is not in Confluent's wire format."""
    is_framed = (F.substring("payload", 1, 1) == F.lit(b"\x00")) & (
        F.octet_length("payload") >= _HEAD_BYTES
    )
    number = F.conv(F.hex(F.substring("payload", 2, 4)), 16, 10)
    return F.when(is_framed, number.cast("bigint"))


def arrival() -> Column:
    """Return when a row arrived in silver: its requeue time, else its ingestion time."""
    return F.coalesce("requeued_at", "ingested_at")


def not_registered(schema: object, subject: str) -> str:
    """Return the quarantine reason for rows whose schema is not in the subject."""
    return f"payload: schema {schema} is not in subject {subject}"


def trial(schema: str) -> Column:
    """Return the expression that Spark must be able to analyze to read a schema's data."""
    return F.to_json(from_avro(F.lit(b""), framed(schema), _READING).getField(DATUM), _WRITING)


def _decode_framed(rows: DataFrame, schemas: WriterSchemas, *, typed: bool) -> DataFrame:
    named = rows.withColumn("_schema_id", schema_id()).withColumn("_unread", _refused(schemas))
    body = F.substring("payload", _HEAD_BYTES + 1, _LONGEST)
    readers = [
        (F.col("_unread").isNull() & (F.col("_schema_id") == key), schema)
        for key, schema in sorted(schemas.accepted.items())
    ]
    number = F.col("_schema_id").cast("string")
    broken = F.concat(F.lit("payload: not one Avro datum of schema "), number)
    read = _as_json(named, body, readers, F.coalesce("_unread", broken), typed=typed)
    return read.drop("_schema_id", "_unread")


def _as_json(
    rows: DataFrame,
    body: Column,
    readers: Sequence[tuple[Column, str]],
    refusal: Column,
    *,
    typed: bool,
) -> DataFrame:
    """Convert Avro data to JSON in ``_text``, null where it is not one datum.

    ``readers`` are the schemas, each with the condition of its rows. A digest follows each datum,
    so that trailing bytes and truncation are detected. With ``typed`` the JSON is that of Kafka
    Connect with its schema, which names the logical types that Avro has no name for.
    """
    read = rows.withColumn("_digest", F.unhex(F.md5(body)))
    read = read.withColumn("_datum", F.concat(body, F.col("_digest")))
    text = F.lit(None).cast("string")
    columns = [f"_read_{number}" for number in range(len(readers))]
    for name, (concerns, schema) in zip(columns, readers, strict=True):
        datum = from_avro(F.col("_datum"), framed(schema), _READING)
        # A separate column: used in two expressions, the datum would be decoded twice.
        read = read.withColumn(name, F.when(concerns, datum))
        is_whole = F.col(name).getField(END) == F.col("_digest")
        json = F.to_json(F.col(name).getField(DATUM), _WRITING)
        if typed:
            head = f'{{"schema":{logical_types(schema)},"payload":'
            json = F.concat(F.lit(head), json, F.lit("}"))
        text = F.when(is_whole, json).otherwise(text)
    types, valid = read.select(*columns).schema, F.lit(True)
    for name in columns:
        checks = _text_checks(F.col(name), types[name].dataType)
        are_valid = F.coalesce(in_pairs(and_, checks or [F.lit(True)]), F.lit(True))
        valid = F.when(F.col(name).isNotNull(), are_valid).otherwise(valid)
    read = read.withColumn("_json", text)
    # Only where a character may stand for other bytes, each text is checked.
    valid = ~F.contains("_json", F.lit(_REPLACED)) | valid
    converted = read.withColumn(_TEXT, F.when(valid, F.col("_json"))).withColumn(REFUSAL, refusal)
    return converted.drop("_json", "_datum", "_digest", *columns)


def _text_checks(value: Column, kind: DataType) -> list[Column]:
    """Return conditions under which the texts in a value are UTF-8; null where there is no text.

    Of others, JSON has U+FFFD in place of the bytes.
    """
    # Arrays of numbers are not looked through.
    if "string" not in kind.simpleString():
        return []
    if isinstance(kind, StringType):
        return [F.is_valid_utf8(value)]
    if isinstance(kind, StructType):
        fields = [(value.getField(field.name), field.dataType) for field in kind]
        return [check for field in fields for check in _text_checks(*field)]
    if isinstance(kind, ArrayType):
        of = kind.elementType
        return [
            F.forall(value, lambda item: in_pairs(and_, _text_checks(item, of) or [F.lit(True)]))
        ]
    if isinstance(kind, MapType):
        parts = [(F.map_keys(value), kind.keyType), (F.map_values(value), kind.valueType)]
        return [check for part, of in parts for check in _text_checks(part, ArrayType(of))]
    return []


def _refused(schemas: WriterSchemas) -> Column:
    """Return why a row must not be decoded; null if it may be."""
    number, subject = F.col("_schema_id"), schemas.subject
    before, after = not_registered("\n", subject).split("\n")
    reason = F.concat(F.lit(before), number.cast("string"), F.lit(after))
    for key in schemas.accepted:
        reason = F.when(number == key, F.lit(None).cast("string")).otherwise(reason)
    still = schemas.still_refused
    still_refused = F.lit(True) if still is None else F.coalesce(still, F.lit(False))
    by_id: defaultdict[int, list[Refusal]] = defaultdict(list)
    for refusal in sorted(schemas.refusals, key=attrgetter("through")):
        by_id[refusal.schema_id].append(refusal)
    for key, lines in by_id.items():
        accepted = key in schemas.accepted
        if not accepted and {line.reason for line in lines} == {not_registered(key, subject)}:
            continue
        # No lookup was made after the last refusal: its reason still applies.
        refused = F.lit(None if accepted else lines[-1].reason)
        for line in reversed(lines):
            arrived = F.unix_micros(arrival()) <= F.lit(line.through)
            applies = arrived & still_refused if accepted else arrived
            refused = F.when(applies, F.lit(line.reason)).otherwise(refused)
        reason = F.when(number == key, refused).otherwise(reason)
    unframed = F.lit("payload: not framed as Avro: a zero byte, a schema's id")
    framing = F.when(F.col("payload").isNull(), F.lit("payload: missing"))
    return framing.when(number.isNull(), unframed).otherwise(reason)
