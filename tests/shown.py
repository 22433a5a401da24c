"""Write values that a decoder gave as texts, which show every digit."""

from __future__ import annotations

import json
from typing import Any

from tidelake.config import FieldType


def shown(value: Any, kind: FieldType) -> str:
    """Write a value as its type is usually written; what is nested as JSON, nulls in it too."""
    if kind.kind in ("array", "map", "struct"):
        return _json(value, kind)
    if kind.kind == "boolean":
        return "true" if value else "false"
    if kind.kind in ("timestamp", "timestamp_ntz"):
        return str(value.replace(tzinfo=None).isoformat(sep=" "))
    return value.decode() if isinstance(value, bytes) else str(value)


def _json(value: Any, kind: FieldType) -> str:
    if value is None:
        return "null"
    if kind.element is not None:
        return "[" + ",".join(_json(item, kind.element) for item in value) + "]"
    if kind.value is not None:
        entries = [f"{json.dumps(name)}:{_json(item, kind.value)}" for name, item in value]
        return "{" + ",".join(entries) + "}"
    if kind.kind == "struct":
        entries = [
            f"{json.dumps(field.name)}:{_json(value[field.name], field.type)}"
            for field in kind.fields
            if value[field.name] is not None
        ]
        return "{" + ",".join(entries) + "}"
    quoted = kind.kind in ("string", "date", "timestamp", "timestamp_ntz", "binary")
    text = shown(value, kind)
    return json.dumps(text) if quoted else text
