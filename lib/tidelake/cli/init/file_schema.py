"""Read field types from schemas: of Parquet, of Avro, and of Kafka Connect's messages.

Integers become BIGINT and floating-point numbers DOUBLE, so that a later file with a wider type
fits too. Text is left to :mod:`tidelake.cli.init.payload`, which finds times in it; but where a
schema allows what no type of a column holds, no type is guessed from the sample.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tidelake.cli.init.field_names import is_nameable
from tidelake.config.types import Field, FieldType, Kind

Types = Mapping[str, FieldType]

_STRING = FieldType("string")
# Text too, of a union or of too many digits; told apart by identity, as the types are equal.
UNTYPED = FieldType("string")
_MOST_DIGITS = 38
# The kind for each test of pyarrow's types.
_OF_ARROW: dict[str, Kind] = {
    "is_boolean": "boolean",
    "is_integer": "bigint",
    "is_floating": "double",
    "is_date": "date",
    "is_binary": "binary",
    "is_large_binary": "binary",
    "is_fixed_size_binary": "binary",
    "is_binary_view": "binary",
}
# By Avro type and logical type.
_OF_AVRO: dict[tuple[str, str], FieldType] = {
    ("boolean", ""): FieldType("boolean"),
    ("int", ""): FieldType("bigint"),
    ("long", ""): FieldType("bigint"),
    ("float", ""): FieldType("double"),
    ("double", ""): FieldType("double"),
    ("bytes", ""): FieldType("binary"),
    ("fixed", ""): FieldType("binary"),
    ("int", "date"): FieldType("date"),
    **{("long", f"timestamp-{unit}"): FieldType("timestamp") for unit in ("millis", "micros")},
    **{
        ("long", f"local-timestamp-{unit}"): FieldType("timestamp_ntz")
        for unit in ("millis", "micros")
    },
}
# By the type of Kafka Connect.
_OF_CONNECT: dict[str, FieldType] = {
    "boolean": FieldType("boolean"),
    "bytes": FieldType("binary"),
    **dict.fromkeys(("int8", "int16", "int32", "int64"), FieldType("bigint")),
    **dict.fromkeys(("float", "float32", "double", "float64"), FieldType("double")),
}
# Their values are converted to text, in which types are found, or stay numbers.
_CONVERTED = ("io.debezium.time.", "org.apache.kafka.connect.data.", "io.debezium.data.Variable")


def types_in(format_: str, content: bytes) -> dict[str, FieldType]:
    """Return the types of a file's fields.

    Raises:
        BrokenFileError: The file is broken.
    """
    # fastavro and pyarrow are slow to import, and a sample of JSON does not need them.
    from tidelake.bronze.avro_files import avro_schema_of  # noqa: PLC0415
    from tidelake.bronze.parquet_files import parquet_schema  # noqa: PLC0415

    if format_ == "avro":
        return fields_of_avro(avro_schema_of(content))
    schema, instants = parquet_schema(content)
    return {field.name: of_arrow(field.type, is_instant=field.name in instants) for field in schema}


def common_types(schemas: Iterable[Types]) -> dict[str, FieldType]:
    """Return the types on which all files that have a field agree, without text.

    A field to which one of the files gives no type has none, and is text.
    """
    found: dict[str, FieldType | None] = {}
    for schema in schemas:
        for name, kind in schema.items():
            found[name] = _common(found.get(name, kind), kind)
    return {
        name: kind
        for name, kind in found.items()
        if kind is not None and (kind is UNTYPED or kind != _STRING)
    }


def _common(first: FieldType | None, second: FieldType) -> FieldType | None:
    """Return the type on which two files agree, None without one; no type wins."""
    if first is UNTYPED or second is UNTYPED:
        return UNTYPED
    if first is None or first != second:
        return None
    pairs = zip(first.fields, second.fields, strict=True)
    # Text and no type are equal, so that the fields of equal structs may differ in it.
    fields = tuple(Field(a.name, _common(a.type, b.type) or a.type) for a, b in pairs)
    return replace(first, fields=fields) if fields else first


def of_arrow(kind: Any, *, is_instant: bool = False) -> FieldType:
    """Return the type of a Parquet column; ``is_instant``: its times are INT96."""
    import pyarrow as pa  # noqa: PLC0415

    types = pa.types

    def inner(part: Any) -> FieldType:
        return of_arrow(part, is_instant=is_instant)

    found = _STRING
    if types.is_dictionary(kind):
        found = inner(kind.value_type)
    elif types.is_timestamp(kind):
        found = FieldType("timestamp" if is_instant or kind.tz is not None else "timestamp_ntz")
    elif types.is_decimal(kind):
        found = _decimal(kind.precision, kind.scale)
    elif types.is_uint64(kind):
        found = _decimal(20, 0)
    elif types.is_struct(kind):
        found = _struct([Field(field.name, inner(field.type)) for field in kind])
    elif types.is_map(kind):
        found = FieldType("map", key=_STRING, value=inner(kind.item_type))
    elif types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        found = FieldType("array", element=inner(kind.value_type))
    else:
        plain = next((name for fits, name in _OF_ARROW.items() if getattr(types, fits)(kind)), None)
        found = FieldType(plain) if plain else _STRING
    return found


def fields_of_avro(schema: Any) -> dict[str, FieldType]:
    """Return the types of the fields of an Avro record; none of another schema."""
    named: dict[str, FieldType] = {}
    fields = schema.get("fields", []) if isinstance(schema, dict) else []
    return {field["name"]: of_avro(field["type"], named) for field in fields}


def of_avro(schema: Any, named: dict[str, FieldType]) -> FieldType:
    """Return the type of an Avro schema; ``named`` collects the types that it defines by name."""
    if isinstance(schema, list):
        branches = [of_avro(branch, named) for branch in schema if branch != "null"] or [_STRING]
        # Branches of one type are no choice, such as two of text.
        is_choice = any(one is UNTYPED or one != branches[0] for one in branches)
        return UNTYPED if is_choice else branches[0]
    if isinstance(schema, str):
        # A name that is still being defined is that of a recursive type.
        return named.get(schema, _OF_AVRO.get((schema, ""), _STRING))
    kind = schema["type"]
    if isinstance(kind, dict | list):
        return of_avro(kind, named)
    if kind == "array":
        return FieldType("array", element=of_avro(schema["items"], named))
    if kind == "map":
        return FieldType("map", key=_STRING, value=of_avro(schema["values"], named))
    found = _OF_AVRO.get((kind, schema.get("logicalType", "")), _STRING)
    if schema.get("logicalType") == "decimal":
        found = _decimal(schema.get("precision", 0), schema.get("scale", 0))
    elif kind == "record":
        found = _struct([Field(f["name"], of_avro(f["type"], named)) for f in schema["fields"]])
    if "name" in schema:
        named[schema["name"]] = found
        named[f"{schema.get('namespace', '')}.{schema['name']}"] = found
    return found


def of_connect(schema: Mapping[str, Any]) -> FieldType:
    """Return the type of a value of Kafka Connect as the envelope's reader converts it."""
    name, kind = str(schema.get("name")), schema.get("type")
    if name == "org.apache.kafka.connect.data.Decimal":
        given = schema.get("parameters") or {}
        digits = given.get("connect.decimal.precision", _MOST_DIGITS)
        return _decimal(int(digits), int(given["scale"]))
    if name.startswith(_CONVERTED):
        return _STRING
    if kind == "struct":
        return _struct([Field(field["field"], of_connect(field)) for field in schema["fields"]])
    if kind == "array":
        return FieldType("array", element=of_connect(schema["items"]))
    if kind == "map":
        return FieldType("map", key=_STRING, value=of_connect(schema["values"]))
    return _OF_CONNECT.get(str(kind), _STRING)


def _struct(fields: Sequence[Field]) -> FieldType:
    """Return text, which is JSON, for fields that no table has: none, or two of one name."""
    names = {field.name.lower() for field in fields}
    is_storable = 0 < len(fields) == len(names) and all(map(is_nameable, names))
    return FieldType("struct", fields=tuple(fields)) if is_storable else _STRING


def _decimal(precision: int, scale: int) -> FieldType:
    if 0 <= scale <= precision <= _MOST_DIGITS and precision:
        return FieldType("decimal", precision=precision, scale=scale)
    return UNTYPED
