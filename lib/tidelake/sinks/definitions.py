"""Write into a table under which definition it was filled, and tell when that changed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from tidelake.config import Pipeline
from tidelake.sinks.commits import Commit

_KEY = "definition"
_DECIDED_BY = "decided_by"
# What an id, a time and a change of a key are: rows that are stored cannot follow another.
_IDENTITY = frozenset({"event.id", "event.time", "event.sequence", "event.delete_when"})


def definition_note(definition: BaseModel) -> dict[str, Any]:
    """Write the part of a gold commit's note that names its definition."""
    return {_KEY: hash_of(definition)}


def hash_of(definition: BaseModel) -> str:
    """Tell two definitions apart."""
    return _digest(definition.model_dump_json())


def changed_definition(last: Commit | None, definition: BaseModel) -> bool:
    """Tell whether a table was filled under another definition than today's."""
    told = last.note.get(_KEY) if last else None
    return told is not None and {_KEY: told} != definition_note(definition)


def silver_note(pipeline: Pipeline) -> dict[str, Any]:
    """Write the part of silver's note that names its definition, part by part."""
    return {_KEY: {name: _short(value) for name, value in _parts(pipeline).items()}}


def decision_note(pipeline: Pipeline, dimensions: Mapping[str, int]) -> dict[str, Any]:
    """Write the part of a side table's note that names what decided the batch.

    The whole file counts, gold included: a batch that is retried under any other one is decided
    again, which costs one batch.

    Args:
        pipeline: The definition.
        dimensions: The version of each dimension table that the batch reads.
    """
    parts = [pipeline.model_dump(mode="json", by_alias=True), _parts(pipeline), dict(dimensions)]
    return {_DECIDED_BY: _short(parts)}


def is_decided_by(commit: Commit, note: Mapping[str, Any]) -> bool:
    """Tell whether a side table's commit names the same decision as :func:`decision_note` gave.

    Commits of earlier releases name none: nobody knows what decided them.
    """
    return bool(commit.note.get(_DECIDED_BY) == note[_DECIDED_BY])


@dataclass(frozen=True)
class Changed:
    """Parts of silver's definition that are not what its last batch was decided by.

    Attributes:
        identity: Those that stored rows cannot follow: they are to be decided anew.
        rules: Those that hold for rows from now on.
    """

    identity: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()


def changed_parts(last: Commit | None, pipeline: Pipeline) -> Changed:
    """Compare the definition with the one that silver's last batch was decided by."""
    told = last.note.get(_KEY) if last else None
    if told is None:
        return Changed()
    parts = _parts(pipeline)
    changed = [name for name, value in parts.items() if told.get(name) != _short(value)]
    return Changed(
        tuple(name for name in changed if name in _IDENTITY),
        tuple(name for name in changed if name not in _IDENTITY),
    )


def _parts(pipeline: Pipeline) -> dict[str, Any]:
    event = pipeline.event.model_dump(mode="json", by_alias=True)
    whole = pipeline.model_dump(mode="json", include={"watermark", "dedup", "enrich", "transform"})
    rules = [rule.model_dump(mode="json") for rule in pipeline.rules]
    parts = {f"event.{name}": value for name, value in event.items()} | whole | {"quality": rules}
    # Not there for others, or their stored notes would say that something changed.
    return parts | ({"source.schema": pipeline.avro_schema} if pipeline.avro_schema else {})


def _short(value: object) -> str:
    return _digest(json.dumps(value, sort_keys=True))[:12]


def _digest(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
