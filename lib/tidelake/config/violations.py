"""Pydantic's errors, as findings that name a place in the file and say what to write."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from tidelake.config.document import Finding, KeyPath
from tidelake.config.model import Problems, suggestion

_WORDS = {
    "missing": "required key is missing",
    "string_type": "must be text; put it in quotes",
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "dict_type": "must be a mapping of keys to values",
    "model_type": "must be a mapping of keys to values",
    "model_attributes_type": "must be a mapping of keys to values",
    "tuple_type": "must be a list",
    "too_short": "needs at least one",
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "string_pattern_mismatch": "must look like package.module:function",
}


def findings_of(error: ValidationError, model: type[BaseModel], raw: object) -> Iterator[Finding]:
    """Turn a validation error into findings.

    Args:
        error: What pydantic raised.
        model: The model that was validated against.
        raw: The content that was validated, to tell keys of the file from tags of unions.
    """
    for details in error.errors():
        kind, context = details["type"], details.get("ctx", {})
        path = place_of(details["loc"], raw, is_missing=kind == "missing")
        cause = context.get("error")
        if isinstance(cause, Problems):
            yield from (Finding(path, problem) for problem in cause.problems)
        elif isinstance(cause, ValueError):
            yield Finding(path, str(cause))
        elif kind == "extra_forbidden":
            yield Finding(path, _unknown_key(details["loc"], model))
        elif kind in {"union_tag_invalid", "literal_error"}:
            path = (*path, "kind") if kind == "union_tag_invalid" else path
            yield Finding(path, _not_one_of(details))
        elif kind == "union_tag_not_found":
            yield Finding((*path, "kind"), "required key is missing")
        else:
            message = _WORDS.get(kind, details["msg"])
            yield Finding(path, message.format(**context) if kind in _WORDS else message)


def place_of(loc: tuple[str | int, ...], raw: object, *, is_missing: bool) -> KeyPath:
    """Drop from pydantic's place what is no key of the file, such as the tag of a union."""
    path: list[str | int] = []
    node = raw
    for position, part in enumerate(loc):
        if part == "[key]":
            break
        if isinstance(node, Mapping):
            # Measures are a mapping in the file and a tuple in the model.
            key = list(node)[part] if isinstance(part, int) and part < len(node) else part
            if key not in node and not (is_missing and position == len(loc) - 1):
                continue
            path.append(key)
            node = node.get(key)
        elif isinstance(node, list) and isinstance(part, int):
            path.append(part)
            node = node[part] if part < len(node) else None
        elif isinstance(part, int):
            path.append(part)
    return tuple(path)


def _not_one_of(details: ErrorDetails) -> str:
    context = details.get("ctx", {})
    if details["type"] == "union_tag_invalid":
        written = str(context["tag"])
        known = [tag.strip(" '") for tag in str(context["expected_tags"]).split(",")]
    else:
        written = str(details["input"])
        expected = str(context["expected"]).replace(" or ", ",")
        known = [tag.strip(" '") for tag in expected.split(",")]
    hint = suggestion(written, known)
    return f"'{written}' is not one of: {', '.join(known)}{hint}"


def _unknown_key(loc: tuple[str | int, ...], model: type[BaseModel]) -> str:
    owner = _model_at(model, loc[:-1])
    if owner is None:
        return "unknown key"
    known = [field.alias or name for name, field in owner.model_fields.items()]
    return f"unknown key{suggestion(str(loc[-1]), known)} (known: {', '.join(known)})"


def _model_at(model: type[BaseModel], loc: tuple[str | int, ...]) -> type[BaseModel] | None:
    """Follow a place through the types, to the model whose keys stand there."""
    current: Any = model
    for part in loc:
        current = _step(current, part)
    current = _bare(current)
    return current if isinstance(current, type) and issubclass(current, BaseModel) else None


def _bare(annotation: Any) -> Any:
    """Take ``Annotated`` and ``| None`` off a type."""
    while True:
        if get_origin(annotation) is Annotated:
            annotation = get_args(annotation)[0]
            continue
        if get_origin(annotation) in {Union, types.UnionType}:
            members = [arg for arg in get_args(annotation) if arg is not type(None)]
            if len(members) == 1:
                annotation = members[0]
                continue
        return annotation


def _step(annotation: Any, part: str | int) -> Any:
    annotation = _bare(annotation)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        for name, field in annotation.model_fields.items():
            if part in {name, field.alias}:
                return field.annotation
        return None
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin in {Union, types.UnionType}:
        return next((member for member in inner if _tag(member) == part), None)
    if origin in {tuple, dict}:
        return inner[0] if origin is tuple else inner[1]
    return None


def _tag(member: Any) -> str | None:
    kind = getattr(member, "model_fields", {}).get("kind")
    return None if kind is None else str(get_args(kind.annotation)[0])
