"""Decode a topic's Avro records by a registry's schemas, into records of JSON and field types.

A module of its own because only ``--registry`` needs it, and it imports fastavro.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from io import BytesIO
from typing import Any

from tidelake.bronze.avro_files import datum_reader
from tidelake.bronze.file_format import BrokenFileError
from tidelake.cli.init.file_schema import common_types, fields_of_avro
from tidelake.cli.init.sample import Record, Sample, sample_of
from tidelake.config import Registry
from tidelake.config.types import FieldType
from tidelake.errors import SourceError
from tidelake.kafka.client import versions_of
from tidelake.silver.avro_schema import logical_types

# A zero byte and the id of the schema come before the datum.
_HEAD_BYTES = 5


def sample_avro(records: Iterable[Record], registry: Registry) -> Sample:
    """Sample records in Confluent's wire format.

    A change event becomes JSON with its schema, as ``run`` reads it. Records that cannot be decoded
    stay as they are, and are counted as broken.

    Raises:
        SourceError: The registry does not answer, has no such subject, or its schemas fit no
            record.
    """
    schemas = _schemas(registry)
    decode = _decoder(schemas)
    try:
        subject = registry.subject.removesuffix("-value") + "-key"
        decode_key = _decoder(_schemas(registry.model_copy(update={"subject": subject})))
    except SourceError:
        # Only keys of change events are used, if there are any.
        decode_key = None
    used: set[int] = set()
    decoded: list[Record] = []
    for record in records:
        text = decode(record.payload)
        if text is None:
            decoded.append(record)
            continue
        used.add(_id_of(record.payload))
        key = decode_key(record.key or b"") if decode_key else None
        decoded.append(replace(record, payload=text, key=key))
    if decoded and not used:
        first = decoded[0]
        known = ", ".join(map(str, sorted(schemas)))
        raise SourceError(
            f"{first.place} cannot be read by the schemas of {registry.subject} at {registry.url} "
            f"(ids {known}). Check --registry and --subject; a record begins with a zero byte and "
            "the id of its schema."
        )
    sample = sample_of(decoded, types=common_types(_types(schemas[number]) for number in used))
    return replace(sample, registry=registry)


def _schemas(registry: Registry) -> dict[int, Any]:
    versions = versions_of(registry)
    return {
        one.schema_id: json.loads(one.schema)
        for one in versions
        if one.kind == "AVRO" and one.is_whole
    }


def _id_of(payload: bytes) -> int:
    is_framed = payload[:1] == b"\0" and len(payload) >= _HEAD_BYTES
    return int.from_bytes(payload[1:_HEAD_BYTES], "big") if is_framed else -1


def _decoder(schemas: dict[int, Any]) -> Callable[[bytes], bytes | None]:
    """Return a function from a record's bytes to JSON; None if they are not one datum."""

    @cache
    def reader(number: int) -> tuple[Callable[[BytesIO], bytes], bytes]:
        schema = schemas[number]
        of_change = logical_types(json.dumps(schema)).encode() if _row_of(schema) else b""
        try:
            return datum_reader(schema), of_change
        except BrokenFileError as error:
            raise SourceError(f"the Avro schema with id {number}: {error}") from error

    def decode(payload: bytes) -> bytes | None:
        number = _id_of(payload)
        if number not in schemas:
            return None
        read, schema = reader(number)
        datum = BytesIO(payload[_HEAD_BYTES:])
        try:
            text = read(datum)
        # Given other bytes, fastavro raises errors of many kinds.
        except Exception:
            return None
        if datum.read(1):
            return None
        return b'{"schema":%b,"payload":%b}' % (schema, text) if schema else text

    return decode


def _row_of(schema: Any) -> Any:
    """Return the schema of the row in a change event's schema; None for other schemas."""
    fields = schema.get("fields", []) if isinstance(schema, dict) else []
    kinds = {field["name"]: field["type"] for field in fields}
    # The first image defines the type, the second refers to it.
    images = [kinds[name] for name in ("before", "after") if name in kinds]
    branches = [part for kind in images for part in (kind if isinstance(kind, list) else [kind])]
    rows = [part for part in branches if isinstance(part, dict) and part.get("type") == "record"]
    return rows[0] if rows and {"op", "source"} <= kinds.keys() else None


def _types(schema: Any) -> dict[str, FieldType]:
    """Return the types of a record's fields; those that the envelope converts are left out."""
    row = _row_of(schema)
    types = fields_of_avro(row or schema)
    if row is None:
        return types
    converted = json.loads(logical_types(json.dumps(row)))["fields"]
    return types | {field["field"]: FieldType("string") for field in converted if "name" in field}
