"""Fit a writer's Avro schema for Spark's reader, which changes some values and tells nobody.

A decimal that exceeds its declared precision may come out as another number: the reader gets the
widest precision, so that each value is what its bytes say. Times of day differ between versions
of Spark: they stay the numbers that they are written as. And the reader stops where a datum ends:
each datum is followed by a digest, which the schema given here wants right after it.
"""

from __future__ import annotations

import json
import math
from typing import Any

DATUM, END = "datum", "end"
DIGEST_BYTES = 16

_FRAME = "TidelakeFrame"
_WIDEST = 38
# Up to this size the reader checks a decimal against its precision, and takes it as a number.
_CHECKED_BYTES = 8
_TIMES_OF_DAY = ("time-millis", "time-micros")


def framed(schema: str) -> str:
    """Give the schema of a datum that is followed by a digest."""
    fields = [
        {"name": DATUM, "type": _fitted(json.loads(schema))},
        {"name": END, "type": {"type": "fixed", "name": f"{_FRAME}End", "size": DIGEST_BYTES}},
    ]
    return json.dumps({"type": "record", "name": _FRAME, "fields": fields})


def problem_of(schema: str) -> str:
    """Say why a schema's data cannot become JSON objects; empty where they can."""
    try:
        content = json.loads(schema)
    except ValueError as error:
        return f"is no JSON: {error}"
    except RecursionError:
        return "is nested too deeply"
    if not isinstance(content, dict) or content.get("type") != "record":
        return "is not a record"
    return _problem(content, "", ())


def _fitted(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_fitted(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    fitted = {
        key: _fitted(value) if key in ("type", "items", "values") else value
        for key, value in schema.items()
    }
    if isinstance(schema.get("fields"), list):
        fitted["fields"] = [_fitted(field) for field in schema["fields"]]
    if schema.get("logicalType") in _TIMES_OF_DAY:
        del fitted["logicalType"]
    if schema.get("logicalType") == "decimal":
        fitted["precision"] = _widest(schema)
    return fitted


def _widest(schema: dict[str, Any]) -> Any:
    """Give the precision under which no value of a decimal is cut."""
    declared = schema.get("precision")
    if not isinstance(declared, int):
        return declared
    if schema.get("type") == "bytes":
        return _WIDEST
    size = schema.get("size", 0)
    most = math.floor((8 * size - 1) * math.log10(2))
    # A precision beyond the size makes it no decimal, by Avro's own rules.
    return min(_WIDEST, most) if size > _CHECKED_BYTES and declared <= most else declared


def _problem(schema: Any, namespace: str, around: tuple[str, ...]) -> str:
    """Look for what Spark cannot read: a record within itself, names that differ by case."""
    if isinstance(schema, str):
        name = _full_name(schema, namespace)
        return f"is recursive: {name} holds itself" if name in around else ""
    if isinstance(schema, list):
        return _first(_problem(one, namespace, around) for one in schema)
    if not isinstance(schema, dict):
        return f"is no Avro schema: {schema!r:.40}"
    inner = [schema[key] for key in ("items", "values") if key in schema]
    if isinstance(schema.get("type"), dict | list):
        inner.append(schema["type"])
    if schema.get("type") == "record":
        name = _full_name(str(schema.get("name")), str(schema.get("namespace", namespace)))
        namespace, around = name.rpartition(".")[0], (*around, name)
        fields = schema.get("fields")
        fields = [one for one in fields if isinstance(one, dict)] if fields else []
        names = [str(field.get("name")).lower() for field in fields]
        twice = next((one for one in names if names.count(one) > 1), "")
        if twice:
            return f"has fields of {name} that differ by case alone: {twice}"
        inner += [field.get("type") for field in fields]
    elif isinstance(schema.get("type"), str):
        inner.append(schema["type"])
    return _first(_problem(one, namespace, around) for one in inner)


def _full_name(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _first(problems: Any) -> str:
    return next((problem for problem in problems if problem), "")
