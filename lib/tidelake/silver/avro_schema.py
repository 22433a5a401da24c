"""Compare Avro schemas, and adapt them to Spark's reader, which changes some values silently.

Four differences are corrected. A decimal beyond its declared precision may be read as another
number, so the reader gets the widest precision. Times of day differ between Spark versions, so they
are read as plain numbers. Text that the schema declares as Java's strings loses bytes that are not
UTF-8, so the declaration is removed. The reader ignores bytes after a datum, so each datum is
followed by a digest that the adapted schema reads as the next field.
"""

from __future__ import annotations

import json
import math
import warnings
from typing import Any

from tidelake.config.source import Compatibility
from tidelake.errors import imported

DATUM, END = "datum", "end"
DIGEST_BYTES = 16

_FRAME = "TidelakeFrame"
_SHOWN = 300
_WIDEST = 38
# Up to this size the reader reads a decimal as a long and checks its precision.
_CHECKED_BYTES = 8
_JAVA_STRING = "avro.java.string"
_TIMES_OF_DAY = ("time-millis", "time-micros")
_PLAIN = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})


def framed(schema: str) -> str:
    """Return the schema of a datum followed by a digest."""
    fields = [
        {"name": DATUM, "type": _adapted(json.loads(schema))},
        {"name": END, "type": {"type": "fixed", "name": f"{_FRAME}End", "size": DIGEST_BYTES}},
    ]
    return json.dumps({"type": "record", "name": _FRAME, "fields": fields})


def logical_types(schema: str) -> str:
    """Return the names that Kafka Connect gave to types, as a schema of Connect's in JSON.

    It has only what is needed to convert values: fields, items and names. Types that Spark's
    reader converts already have no name there.
    """
    return json.dumps(_connect(json.loads(schema), "", {}))


def _connect(schema: Any, namespace: str, named: dict[str, dict[str, Any]]) -> dict[str, Any]:
    if isinstance(schema, list):
        # Each defines the types with a name that later fields refer to.
        branches = [_connect(branch, namespace, named) for branch in schema if branch != "null"]
        # A union of several types becomes an object with one field for each.
        return branches[0] if len(branches) == 1 else {}
    if isinstance(schema, str):
        return named.get(_full_name(schema, namespace), {}) if schema not in _PLAIN else {}
    kind = schema["type"]
    if isinstance(kind, dict | list):
        return _connect(kind, namespace, named)
    found: dict[str, Any] = {}
    if schema.get("logicalType") in (None, *_TIMES_OF_DAY) and "connect.name" in schema:
        found["name"] = schema["connect.name"]
    if kind == "record":
        full_name = _full_name(schema["name"], schema.get("namespace", namespace))
        named[full_name] = found
        inside = full_name.rpartition(".")[0]
        fields = schema["fields"]
        found["type"] = "struct"
        found["fields"] = [
            {"field": field["name"], **_connect(field["type"], inside, named)} for field in fields
        ]
    elif kind in ("array", "map"):
        inner = "items" if kind == "array" else "values"
        found |= {"type": kind, inner: _connect(schema[inner], namespace, named)}
    elif kind not in _PLAIN and kind not in ("enum", "fixed"):
        return named.get(_full_name(kind, namespace), {})
    return found


def schema_problem(schema: str) -> str:
    """Return why data of a schema cannot be converted to JSON objects, or an empty string."""
    try:
        content = json.loads(schema)
    except ValueError as error:
        return f"is no JSON: {error}"
    except RecursionError:
        return "is nested too deeply"
    if not isinstance(content, dict) or content.get("type") != "record":
        return "is not a record"
    return _problem(content, "", ())


def incompatibility(new: str, old: str, rule: Compatibility) -> str:
    """Return why a schema is incompatible with the previous version, or "".

    ``backward``: the new schema can read records of the old one; ``forward``: the old schema can
    read records of the new one; ``full``: both.
    """
    if rule == "none":
        return ""
    modules = "avro.schema", "avro.compatibility", "avro.errors"
    schemas, checks, errors = imported("the library for Avro's rules", *modules, extra="kafka")
    try:
        # The library warns of each logical type that it does not know.
        with warnings.catch_warnings(action="ignore"):
            newer, older = schemas.parse(new), schemas.parse(old)
    except errors.AvroException as error:
        return f"a schema cannot be parsed: {str(error)[:_SHOWN]}"
    pairs = [(newer, older)] if rule in ("backward", "full") else []
    pairs += [(older, newer)] if rule in ("forward", "full") else []
    for reader, writer in pairs:
        result = checks.ReaderWriterCompatibilityChecker().get_compatibility(reader, writer)
        if result.compatibility is not checks.SchemaCompatibilityType.compatible:
            # Sorted because the library returns sets.
            kinds = sorted(str(kind.value).replace("_", " ") for kind in result.incompatibilities)
            reason = f"{', '.join(dict.fromkeys(kinds))}: {'; '.join(sorted(result.messages))}"
            return reason[:_SHOWN]
    return ""


def _adapted(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_adapted(branch) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    fitted = {
        key: _adapted(value) if key in ("type", "items", "values") else value
        for key, value in schema.items()
        if key != _JAVA_STRING
    }
    if isinstance(schema.get("fields"), list):
        fitted["fields"] = [_adapted(field) for field in schema["fields"]]
    if schema.get("logicalType") in _TIMES_OF_DAY:
        del fitted["logicalType"]
    if schema.get("logicalType") == "decimal":
        fitted["precision"] = _widest(schema)
    return fitted


def _widest(schema: dict[str, Any]) -> Any:
    """Return a precision that holds every value of a decimal."""
    declared = schema.get("precision")
    if not isinstance(declared, int):
        return declared
    if schema.get("type") == "bytes":
        return _WIDEST
    size = schema.get("size", 0)
    most = math.floor((8 * size - 1) * math.log10(2))
    # Avro ignores the decimal type if the precision exceeds the size.
    return min(_WIDEST, most) if size > _CHECKED_BYTES and declared <= most else declared


def _problem(schema: Any, namespace: str, enclosing: tuple[str, ...]) -> str:
    """Return what Spark cannot read: recursive records, or names that differ only by case."""
    if isinstance(schema, str):
        name = _full_name(schema, namespace)
        return f"is recursive: {name} holds itself" if name in enclosing else ""
    if not isinstance(schema, dict | list):
        return f"is no Avro schema: {schema!r:.40}"
    if isinstance(schema, list):
        inner = schema
    elif schema.get("type") == "record":
        name = _full_name(str(schema.get("name")), str(schema.get("namespace", namespace)))
        namespace, enclosing = name.rpartition(".")[0], (*enclosing, name)
        fields = [field for field in schema.get("fields") or () if isinstance(field, dict)]
        names = [str(field.get("name")).lower() for field in fields]
        repeated = next((lowered for lowered in names if names.count(lowered) > 1), "")
        if repeated:
            return f"has fields of {name} that differ by case alone: {repeated}"
        inner = [field.get("type") for field in fields]
    else:
        inner = [schema[key] for key in ("items", "values", "type") if key in schema]
    problems = (_problem(child, namespace, enclosing) for child in inner)
    return next((problem for problem in problems if problem), "")


def _full_name(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"
