"""JSON Schemas (draft 2020-12) of pipeline, suite and environment files, made from the models.

They are for editors. A schema accepts each file that loads, and refuses what one value shows alone:
an unknown key, a wrong type, an unknown word. What depends on other keys is left to the loader.
"""

from __future__ import annotations

import re
import types
import typing
from datetime import timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pydantic import AfterValidator, BaseModel
from pydantic.fields import FieldInfo

from tidelake.config.arguments import CHOICES, LISTS, PARAMETER
from tidelake.config.environment import Environment, Root
from tidelake.config.expectations import (
    SIGNATURES,
    Expectation,
    Expectations,
    RuleBody,
    Severity,
    Signature,
    Suite,
)
from tidelake.config.gold_definitions import AGGREGATES, Measures
from tidelake.config.model import (
    UNITS,
    Duration,
    PositiveDuration,
    match_whole,
    written,
)
from tidelake.config.pipeline import PipelineFile
from tidelake.config.source import Paths, Setting, Topics
from tidelake.names import ColumnName, TableName

Json = dict[str, Any]
FileKind = Literal["pipeline", "suite", "environment"]
FILE_KINDS: tuple[FileKind, ...] = typing.get_args(FileKind)
# Of a conf folder.
FOLDERS: dict[str, FileKind] = {
    "pipelines": "pipeline",
    "expectations": "suite",
    "environments": "environment",
}
_DRAFT = "https://json-schema.org/draft/2020-12/schema"
_ATTRIBUTE = re.compile(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", re.MULTILINE)


def _object(properties: Json, required: list[str]) -> Json:
    """Return the schema of a mapping with no other keys than these."""
    own = {"type": "object", "properties": properties, "additionalProperties": False}
    return own | {"required": required}


_TEXT: Json = {"type": "string"}
_TEXTS: Json = {"type": "array", "items": _TEXT, "minItems": 1}
# A number that may also be written as text, which pydantic converts.
_NUMBER: Json = {"type": ["number", "string"]}
_TYPES: dict[Any, Json] = {
    str: _TEXT,
    Path: _TEXT,
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: _NUMBER,
    Decimal: _NUMBER,
    type(None): {"type": "null"},
    Any: {},
}
_LIMITS = {
    "gt": "exclusiveMinimum",
    "ge": "minimum",
    "lt": "exclusiveMaximum",
    "le": "maximum",
}


def _any_case(word: str) -> str:
    """Return a pattern for a word in any case: the patterns of JSON Schema have no flags."""
    return "".join(f"[{letter}{letter.upper()}]" for letter in word)


_DURATION: Json = {
    "type": "string",
    "pattern": rf"^\s*\d+\s+({'|'.join(map(_any_case, UNITS))})[sS]?\s*$",
    "patternErrorMessage": f"Write a number and a unit of {', '.join(UNITS)}: 10 minutes",
}
_NAME: Json = {
    "type": "string",
    "pattern": "^(?!.*__)[a-z][a-z0-9_]{0,62}$",
    "patternErrorMessage": "Write lower-case letters, digits and single _, a letter first",
}
_COLUMN: Json = {
    "type": "string",
    "pattern": "^[A-Za-z][A-Za-z0-9_]{0,62}$",
    "patternErrorMessage": "Write letters, digits and _, a letter first",
}
_PERCENTILE: Json = {"type": "number", "minimum": 0, "maximum": 1, "description": "0 to 1."}
_OVER_SILVER: Json = {"description": "SQL over silver."}
_MEASURE: Json = {
    "type": "object",
    "properties": dict.fromkeys(AGGREGATES, _TEXT | _OVER_SILVER)
    | {
        "approx_percentile": {
            "anyOf": [_TEXT, _object({"expression": _TEXT, "p": _PERCENTILE}, ["expression"])],
            **_OVER_SILVER,
        },
        "p": _PERCENTILE,
    },
    "additionalProperties": False,
    # One aggregate, which takes no p unless it is the percentile.
    "minProperties": 1,
    "anyOf": [{"maxProperties": 1}, {"required": ["p"], "maxProperties": 2}],
    "dependentRequired": {"p": ["approx_percentile"]},
}
_SEVERITY: Json = {"enum": ["critical", "warning"]}
_RULE = _object({"sql": _TEXT, "severity": _SEVERITY}, ["sql"])
# Types whose validators accept another form than the type's own.
_WRITTEN: tuple[tuple[Any, Json], ...] = (
    (Duration, _DURATION),
    (PositiveDuration, _DURATION),
    (TableName, _NAME),
    (ColumnName, _COLUMN),
    (Setting, {"type": ["string", "number", "boolean"]}),
    (RuleBody, {"anyOf": [_TEXT, _RULE]}),
    (Severity, _SEVERITY),
    (Paths, {"anyOf": [_TEXT, _TEXTS]}),
    (Topics, {"anyOf": [_TEXT, _TEXTS, _TYPES[type(None)]]}),
    (Root, {"type": ["string", "null"]}),
    (Expectations, {"type": "array", "items": {"$ref": "#/$defs/expectation"}, "minItems": 1}),
    (
        Measures,
        {
            "type": "object",
            "propertyNames": _COLUMN,
            "additionalProperties": _MEASURE,
            "minProperties": 1,
        },
    ),
)
# Arguments of expectations, by their kind.
_BOUND: Json = {"type": ["number", "string"]}
_FROM_NOW = _object({PARAMETER: _TEXT | {"description": "now, or now - 1 day"}}, [PARAMETER])
_ARGUMENTS: dict[str, Json] = {
    "bound": _BOUND,
    "column": _TEXT,
    "condition": _TEXT,
    "flag": {"type": "boolean"},
    "member": {"type": ["string", "number", "boolean"]},
    "moment": {"anyOf": [_BOUND, _FROM_NOW]},
    "number": {"type": "number"},
    "pair": {"type": "array", "minItems": 2, "maxItems": 2},
    "parser": {"enum": ["spark"]},
    "regex": _TEXT,
    "share": {"type": "number", "minimum": 0, "maximum": 1},
    "whole": {"type": "integer", "minimum": 0},
} | {kind: {"enum": list(words)} for kind, words in CHOICES.items()}
_ARGUMENTS |= {
    kind: {"type": "array", "items": _ARGUMENTS[item], "minItems": least}
    for kind, (item, least, _) in LISTS.items()
}
_REFERENCE: Json = {"type": "string", "pattern": r"\$\{"}
_FOR_EACH: Json = {
    "description": "One pipeline for each item: its parameters, used as `${parameter}`.",
    "type": "array",
    "minItems": 1,
    "items": {
        "type": "object",
        "propertyNames": {"pattern": "^[a-z][a-z0-9_]*$"},
        "additionalProperties": _TEXT,
        "minProperties": 1,
    },
}


def schema_of(kind: FileKind) -> Json:
    """Return the JSON Schema of ``pipeline``, ``suite`` or ``environment`` files.

    No key of a pipeline file is required outside of lists, because it may be in the folder's
    ``_defaults.yml``, for which the schema is too. Texts of a pipeline file may hold ``${name}``.
    """
    if kind == "pipeline":
        own = _of_model(PipelineFile, in_list=False)
        name = own["properties"].pop("name")
        own["properties"] = {"name": name, "for_each": _FOR_EACH, **own["properties"]}
        own = _with_references(own)
    elif kind == "suite":
        own = _of_model(Suite, in_list=True)
        own["$defs"] = {"expectation": _expectation()}
    else:
        # Root or catalog may be left out for --root; the name is that of the file.
        own = _of_model(Environment, in_list=False)
    return {"$schema": _DRAFT, **own}


def meanings(model: type[BaseModel]) -> dict[str, str]:
    """Return the meaning of each field, from the attributes in the model's docstring."""
    found: dict[str, str] = {}
    # A model's own docstring does not repeat what its bases say.
    for part in reversed(model.__mro__):
        text = (part.__doc__ or "").partition("Attributes:\n")[2]
        body = "\n".join(line[4:] for line in text.splitlines())
        found |= {name: _plain(said) for name, said in _ATTRIBUTE.findall(body)}
    return found


def about(model: type[BaseModel]) -> str:
    """Return what a model's docstring says before the attributes."""
    return _plain((model.__doc__ or "").partition("Attributes:")[0])


def _plain(text: str) -> str:
    named = re.sub(r":class:`(\w+)`", r"`\1`", text)
    return re.sub(r"\bNone\b", "none", " ".join(named.split()).replace("``", "`"))


def _of_model(model: type[BaseModel], *, in_list: bool) -> Json:
    said, hints = meanings(model), typing.get_type_hints(model, include_extras=True)
    # As `validate --resolved` orders them.
    fields = sorted(model.model_fields.items(), key=lambda one: one[0] != "name")
    properties = {
        field.alias or name: _of(hints[name], in_list=in_list)
        | {"description": said[name]}
        | _default_of(field)
        for name, field in fields
    }
    required = [field.alias or name for name, field in fields if field.is_required()]
    own = {"type": "object", "properties": properties, "additionalProperties": False}
    return own | ({"required": required} if in_list and required else {})


def _of(hint: Any, *, in_list: bool) -> Json:
    found = next((form for known, form in _WRITTEN if hint == known), None)
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if found is not None:
        found = dict(found)
    elif origin is typing.Annotated:
        found = _constrained(_of(inner[0], in_list=in_list), inner[1:])
    elif origin is Literal:
        found = {"enum": list(inner)}
    elif origin in (typing.Union, types.UnionType):
        found = {"anyOf": [_of(one, in_list=in_list) for one in inner]}
    elif origin is tuple:
        # Items of a list are never merged with defaults, so that their keys can be required.
        found = {"type": "array", "items": _of(inner[0], in_list=True)}
    elif origin is dict:
        keys, values = (_of(one, in_list=in_list) for one in inner)
        found = {"type": "object", "propertyNames": keys, "additionalProperties": values}
    elif isinstance(hint, type) and issubclass(hint, BaseModel):
        found = _of_model(hint, in_list=in_list)
    else:
        found = dict(_TYPES[hint])
    return found


def _constrained(base: Json, metadata: tuple[Any, ...]) -> Json:
    """Add what the metadata of a type demand.

    Raises:
        LookupError: A validator may accept another form than the type: add it to ``_WRITTEN``.
    """
    parts = [
        part for one in metadata for part in (one.metadata if isinstance(one, FieldInfo) else [one])
    ]
    found = dict(base)
    for part in parts:
        check = getattr(part, "func", None)
        if isinstance(check, partial) and check.func is match_whole:
            pattern, message = check.args
            # In JavaScript \w is ASCII only.
            found["pattern"] = f"^(?:{pattern})$".replace(r"\w", r"[\w\u0080-\uffff]")
            found["patternErrorMessage"] = message.replace("{0}", "this")
        elif check is not None and not isinstance(part, AfterValidator):
            raise LookupError(f"the schema does not know what {check.__name__} accepts")
        elif getattr(part, "strict", False) and found == _NUMBER:
            found["type"] = "number"
        elif getattr(part, "min_length", 0):
            size = {"array": "minItems", "object": "minProperties"}[found["type"]]
            found[size] = part.min_length
        found |= {key: getattr(part, name) for name, key in _LIMITS.items() if hasattr(part, name)}
    return found


def _default_of(field: FieldInfo) -> Json:
    value = field.default
    if isinstance(value, timedelta):
        return {"default": written(value)}
    return {"default": value} if isinstance(value, str | bool | int | float) else {}


def _expectation() -> Json:
    """Return the schema of an expectation, whose arguments depend on its type."""
    own = _of_model(Expectation, in_list=True)
    own["properties"]["type"] |= {"enum": list(SIGNATURES)}
    own["allOf"] = [
        {
            "if": {"properties": {"type": {"const": name}}, "required": ["type"]},
            "then": {
                "properties": {"kwargs": _arguments(signature)},
                "required": ["kwargs"] if signature.required or signature.needs_bound else [],
            },
        }
        for name, signature in SIGNATURES.items()
    ]
    return own


def _arguments(signature: Signature) -> Json:
    properties = {name: _ARGUMENTS[kind] for name, kind in signature.arguments.items()}
    own = _object(properties, list(signature.required))
    bounds = [{"required": [name]} for name in ("min_value", "max_value")]
    return own | ({"anyOf": bounds} if signature.needs_bound else {})


def _with_references(schema: Any) -> Any:
    """Let each text with a pattern, and each word of several, hold a reference instead."""
    if isinstance(schema, list):
        return [_with_references(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {
        # Keys are never replaced.
        key: value if key in ("propertyNames", "enum") else _with_references(value)
        for key, value in schema.items()
        if key != "properties"
    }
    if "properties" in schema:
        own = schema["properties"].items()
        found["properties"] = {key: _with_references(value) for key, value in own}
    if "pattern" in found:
        found["pattern"] += rf"|{_REFERENCE['pattern']}"
    if "enum" in found:
        words = {"enum": found.pop("enum")}
        found["anyOf"] = [words, _REFERENCE]
    return found
