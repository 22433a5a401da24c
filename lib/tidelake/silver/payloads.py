"""Read payloads of either format into typed fields, reasons and unknown fields.

JSON goes to the decoder as it is. An Avro datum is first written as the JSON that says the same, so
that types, unknown fields and rules mean what they mean for JSON. A record in Confluent's framing
begins with a zero byte and the id of its writer's schema; each is read with that schema.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro

from tidelake.config import Event, Field, FieldType, Pipeline
from tidelake.config.types import quoted
from tidelake.silver.avro_schema import DATUM, END, framed
from tidelake.silver.decode import DecodedField, Decoder

arrow_udf: Any
try:
    from pyspark.sql.pandas.functions import arrow_udf
except ImportError:
    arrow_udf = None

PARSED = "_parsed"
BROKEN = "_broken"
VALUES = "_values"
UNKNOWN = "_unknown"
# Why a payload was not read.
REFUSAL = "_refusal"

_NO_JSON = "payload: not one JSON object"
# Of a payload that is not JSON itself: the JSON that says the same.
_TEXT = "_text"
_DECODED = "_decoded"

_HEAD_BYTES = 5
_LONGEST = (1 << 31) - 1
_READING = {"mode": "PERMISSIVE", "enableStableIdentifiersForUnionType": "true"}
# The defaults cut microseconds and leave out what is null.
_WRITING = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "dateFormat": "yyyy-MM-dd",
    "timeZone": "UTC",
}
_REPLACED = "\ufffd"


class Refusal(NamedTuple):
    """Why rows of a schema are not read.

    Attributes:
        schema_id: The schema's.
        reason: In the words of quarantine.
        through: It holds for rows that arrived up to then, in microseconds since the epoch.
    """

    schema_id: int
    reason: str
    through: int


@dataclass(frozen=True)
class WriterSchemas:
    """What is known of the schemas that payloads were written with.

    Attributes:
        subject: Where the schemas are registered.
        accepted: Schemas by id.
        refusals: Of ids, some of which may have been accepted later.
        stands: For which rows a refusal holds although its schema was accepted later; None: for
            all that arrived up to ``through``.
    """

    subject: str
    accepted: Mapping[int, str]
    refusals: Sequence[Refusal] = ()
    stands: Column | None = None

    def texts_overruled(self) -> list[str]:
        """List the refusals of schemas that were accepted later."""
        return sorted({one.reason for one in self.refusals if one.schema_id in self.accepted})

    def of(self, ids: Iterable[int]) -> WriterSchemas:
        """Cut to some ids."""
        wanted = set(ids)
        return replace(
            self,
            accepted={key: text for key, text in self.accepted.items() if key in wanted},
            refusals=[one for one in self.refusals if one.schema_id in wanted],
        )


def read_payloads(
    rows: DataFrame,
    pipeline: Pipeline,
    schemas: WriterSchemas | None = None,
    *,
    decode: Any = None,
) -> DataFrame:
    """Read each payload's fields, whatever its format.

    Args:
        rows: Bronze's columns plus ``requeued_at``.
        pipeline: The definition.
        schemas: Of a pipeline with a registry; None where there are no rows.
        decode: From :func:`decoding`; None: made here.

    Returns:
        ``rows`` plus ``_parsed`` (boolean), ``_refusal`` (why the payload was not read; null where
        it was), ``_values`` (struct of typed fields, null where missing or refused), ``_broken``
        (array of reasons, one for each value that is refused) and ``_unknown`` (the fields that the
        schema does not name, null for none: a map to texts, or under ``rescue`` one JSON object).
    """
    if not pipeline.reads_avro:
        return decoded(rows, pipeline.event, decode)
    if pipeline.registry is None:
        read = _decode_plain(rows, pipeline.avro_schema or "")
    else:
        known = schemas or WriterSchemas(pipeline.registry.subject, {})
        read = _decode_framed(rows, known)
    return decoded(read, pipeline.event, decode, is_json=False)


def decoded(
    rows: DataFrame, event: Event, decode: Any = None, *, is_json: bool = True
) -> DataFrame:
    """Decode JSON, given as ``payload``, or as ``_text`` beside a ``_refusal`` for its absence."""
    kept = [name for name in rows.columns if name not in (_TEXT, REFUSAL)]
    json = F.col("payload") if is_json else F.col(_TEXT).cast("binary")
    decode = decode or decoding(event)
    # The other columns wait in the JVM, where one column alone can be decoded.
    read = rows.withColumn(_DECODED, decode(json)) if decode else _mapped(rows, json, event)
    parsed = F.col(_DECODED)["parsed"]
    why = F.lit(_NO_JSON) if is_json else F.col(REFUSAL)
    return read.select(
        *kept,
        parsed.alias(PARSED),
        F.when(~parsed, why).alias(REFUSAL),
        F.col(_DECODED)["values"].alias(VALUES),
        F.col(_DECODED)["broken"].alias(BROKEN),
        F.col(_DECODED)["unknown"].alias(UNKNOWN),
    )


def decoder_of(fields: Sequence[Field], evolution: str) -> Decoder:
    """Compile a payload's schema; see :class:`tidelake.silver.decode.Decoder`."""
    typed = [DecodedField(one.name, arrow_type(one.type), one.type.sql) for one in fields]
    return Decoder(typed, evolution)


def decoding(event: Event) -> Any:
    """Make Spark's function of a schema's decoder; None in Spark 4.0."""
    if arrow_udf is None:
        return None
    decoder = decoder_of(event.fields, event.evolution)

    def decode(payloads: pa.Array) -> pa.Array:
        return decoder.decode(payloads)

    # Of a deterministic function Spark would make a call for each column that is taken from it.
    return arrow_udf(decode, _decoded_ddl(event)).asNondeterministic()


def _mapped(rows: DataFrame, json: Column, event: Event) -> DataFrame:
    """Decode in Spark 4.0, which has no Arrow functions of columns: whole rows go both ways."""
    decoder = decoder_of(event.fields, event.evolution)
    wanted = rows.withColumn(_DECODED, F.lit(None).cast(_decoded_ddl(event))).schema

    def decode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            *others, payloads = batch.columns
            yield pa.RecordBatch.from_arrays([*others, decoder.decode(payloads)], wanted.names)

    return rows.withColumn(_DECODED, json).mapInArrow(decode, wanted)


def _decoded_ddl(event: Event) -> str:
    fields = ", ".join(f"{quoted(field.name)}: {field.type.sql}" for field in event.fields)
    unknown = "map<string, string>" if event.evolution == "additive" else "string"
    return (
        f"struct<parsed: boolean, values: struct<{fields}>, broken: array<string>, "
        f"unknown: {unknown}>"
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
    """Give a type as Spark hands it over."""
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
    """Give the id of the schema that a payload names; null where it is not so framed."""
    is_framed = (F.substring("payload", 1, 1) == F.lit(b"\x00")) & (
        F.octet_length("payload") >= _HEAD_BYTES
    )
    number = F.conv(F.hex(F.substring("payload", 2, 4)), 16, 10)
    return F.when(is_framed, number.cast("bigint"))


def arrival() -> Column:
    """Give when a row came to silver: by itself, or when it was sent again."""
    return F.coalesce("requeued_at", "ingested_at")


def not_registered(schema: object, subject: str) -> str:
    """Say why rows of a schema that the subject does not have are not read."""
    return f"payload: schema {schema} is not in subject {subject}"


def trial(schema: str) -> Column:
    """Give what Spark must understand to read a schema's data."""
    return F.to_json(from_avro(F.lit(b""), framed(schema), _READING).getField(DATUM), _WRITING)


def _decode_plain(rows: DataFrame, schema: str) -> DataFrame:
    read = _sealed(rows, F.col("payload")).withColumn("_read", _read(schema))
    said = read.withColumn("_said", _said(F.col("_read"))).drop("_read")
    return _told(said, F.lit("payload: not one Avro datum of source.schema"))


def _decode_framed(rows: DataFrame, schemas: WriterSchemas) -> DataFrame:
    body = F.substring("payload", _HEAD_BYTES + 1, _LONGEST)
    read = _sealed(rows.withColumn("_schema_id", schema_id()), body)
    read = read.withColumn("_unread", _refused(schemas))
    own = {f"_read_{key}": (key, text) for key, text in sorted(schemas.accepted.items())}
    text = F.lit(None).cast("string")
    for name, (key, schema) in own.items():
        mine = F.col("_unread").isNull() & (F.col("_schema_id") == key)
        # A column of its own: as part of two expressions it would be read twice.
        read = read.withColumn(name, F.when(mine, _read(schema)))
        text = F.when(F.col("_schema_id") == key, _said(F.col(name))).otherwise(text)
    broken = F.concat(
        F.lit("payload: not one Avro datum of schema "), F.col("_schema_id").cast("string")
    )
    told = _told(read.withColumn("_said", text), F.coalesce("_unread", broken))
    return told.drop(*own, "_schema_id", "_unread")


def _sealed(rows: DataFrame, body: Column) -> DataFrame:
    """Put a digest of each datum behind it: what follows a datum can be no such digest."""
    sealed = rows.withColumn("_digest", F.unhex(F.md5(body)))
    return sealed.withColumn("_datum", F.concat(body, F.col("_digest")))


def _read(schema: str) -> Column:
    return from_avro(F.col("_datum"), framed(schema), _READING)


def _said(read: Column) -> Column:
    """Write a datum as JSON; null unless its digest followed it."""
    whole = read.getField(END) == F.col("_digest")
    return F.when(whole, F.to_json(read.getField(DATUM), _WRITING))


def _told(rows: DataFrame, broken: Column) -> DataFrame:
    text = F.when(_kept_letters(F.col("_said")), F.col("_said"))
    told = rows.withColumn(_TEXT, text).withColumn(REFUSAL, broken)
    return told.drop("_said", "_datum", "_digest")


def _kept_letters(text: Column) -> Column:
    """Tell whether no byte was replaced, because it was no UTF-8, on the way to a text."""
    as_bytes = F.decode("payload", "ISO-8859-1")
    replaced = _times(_REPLACED, text)
    written = _times(_REPLACED.encode().decode("latin-1"), as_bytes)
    return ~F.contains(text, F.lit(_REPLACED)) | (replaced <= written)


def _times(letters: str, text: Column) -> Column:
    """Count how often letters occur in a text."""
    without = F.replace(text, F.lit(letters), F.lit(""))
    return (F.length(text) - F.length(without)) / len(letters)


def _refused(schemas: WriterSchemas) -> Column:
    """Say why a row is not to be read at all; null where it is."""
    number = F.col("_schema_id")
    before, after = not_registered("\n", schemas.subject).split("\n")
    reason = F.concat(F.lit(before), number.cast("string"), F.lit(after))
    for key in schemas.accepted:
        reason = F.when(number == key, F.lit(None).cast("string")).otherwise(reason)
    stands = F.lit(True) if schemas.stands is None else F.coalesce(schemas.stands, F.lit(False))
    for key, lines in _by_id(schemas).items():
        accepted = key in schemas.accepted
        # Beyond the last one nobody asked: what was said last is said again.
        told = F.lit(None if accepted else lines[-1].reason)
        for line in reversed(lines):
            holds = F.unix_micros(arrival()) <= F.lit(line.through)
            told = F.when(holds & stands if accepted else holds, F.lit(line.reason)).otherwise(told)
        reason = F.when(number == key, told).otherwise(reason)
    return F.when(F.col("payload").isNull(), F.lit("payload: missing")).otherwise(
        F.when(
            number.isNull(), F.lit("payload: not framed as Avro: a zero byte, a schema's id")
        ).otherwise(reason)
    )


def _by_id(schemas: WriterSchemas) -> dict[int, list[Refusal]]:
    """Group refusals, those out that say what would be said anyway, each group by time."""
    grouped: dict[int, list[Refusal]] = {}
    for one in sorted(schemas.refusals, key=lambda one: one.through):
        grouped.setdefault(one.schema_id, []).append(one)
    return {
        key: lines
        for key, lines in grouped.items()
        if key in schemas.accepted
        or any(one.reason != not_registered(key, schemas.subject) for one in lines)
    }
