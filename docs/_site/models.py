"""What the models of the config say of themselves: their keys, types, defaults and meanings."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from tidelake.config.json_schema import meanings

_UNITS = ((86_400, "day"), (3_600, "hour"), (60, "minute"), (1, "second"))
_PLAIN_TYPES = {
    str: "text",
    int: "whole number",
    float: "number",
    bool: "true or false",
    timedelta: "duration",
}


@dataclass(frozen=True)
class Key:
    """One key of a model, in words."""

    name: str
    type: str
    default: str
    meaning: str
    models: tuple[type[BaseModel], ...]


def keys_of(model: type[BaseModel]) -> list[Key]:
    """Describe each key.

    Raises:
        LookupError: The model's docstring says nothing of one.
    """
    said = meanings(model)
    hints = typing.get_type_hints(model, include_extras=True)
    found = []
    for name, field in model.model_fields.items():
        if name not in said:
            raise LookupError(f"{model.__name__} does not say what its key {name} means")
        hint = hints[name]
        found.append(
            Key(
                name=field.alias or name,
                type=words_of(hint),
                default=_default(field),
                meaning=said[name],
                models=tuple(dict.fromkeys(models_in(hint))),
            )
        )
    return found


def models_in(hint: Any) -> Iterator[type[BaseModel]]:
    """List the models that a type is made of."""
    if isinstance(hint, type) and issubclass(hint, BaseModel):
        yield hint
    for inner in typing.get_args(hint):
        yield from models_in(inner)


def words_of(hint: Any) -> str:
    """Say a type in words."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        checks = [getattr(getattr(one, "func", None), "__name__", "") for one in inner[1:]]
        return next((_SPECIAL[name] for name in checks if name in _SPECIAL), words_of(inner[0]))
    if origin in _TOGETHER:
        return _TOGETHER[origin](inner)
    if isinstance(hint, type) and issubclass(hint, BaseModel):
        return f"[{title(hint)}](#{title(hint).lower().replace(' ', '-')})"
    return _PLAIN_TYPES.get(hint, getattr(hint, "__name__", str(hint)).lower())


def _one_of(inner: tuple[Any, ...]) -> str:
    return " or ".join(dict.fromkeys(words_of(one) for one in inner if one is not type(None)))


_TOGETHER: dict[Any, Callable[[tuple[Any, ...]], str]] = {
    typing.Literal: lambda inner: " or ".join(f"`{value}`" for value in inner),
    typing.Union: _one_of,
    types.UnionType: _one_of,
    dict: lambda inner: f"map of {words_of(inner[1])}",
    tuple: lambda inner: f"list of {words_of(inner[0])}",
}
# By the name of the function that checks it: types that YAML writes as text.
_SPECIAL = {
    "_a_size": "size, such as `256m`",
    "table_name": "name",
    "_column_name": "column",
    "_measures": "map of measures",
    "_readable": "fields in Spark's DDL",
    "_a_reference": "reference to a secret",
}


def title(model: type[BaseModel]) -> str:
    """Give a model's name as words: ``FilesSource`` is *Files source*."""
    words = re.findall(r"[A-Z][a-z]*", model.__name__)
    return " ".join([words[0], *(word.lower() for word in words[1:])])


def _default(field: Any) -> str:
    if field.is_required():
        return "required"
    value = field.default
    if field.default_factory is not None:
        value = field.default_factory()
    if value is None or value in ({}, (), [], PydanticUndefined):
        return "none"
    if isinstance(value, BaseModel):
        return "see there"
    return f"`{_written(value)}`"


def _written(value: Any) -> str:
    if isinstance(value, timedelta):
        seconds = int(value.total_seconds())
        for size, unit in _UNITS:
            if seconds and seconds % size == 0:
                number = seconds // size
                return f"{number} {unit}{'' if number == 1 else 's'}"
        return "0 seconds"
    return str(value).lower() if isinstance(value, bool) else str(value)
