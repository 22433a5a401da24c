"""Write into a gold table under which definition it was filled, and tell when that changed."""

from __future__ import annotations

import hashlib
from typing import Any

from pydantic import BaseModel

from tidelake.sinks.commits import Commit

_KEY = "definition"


def definition_note(definition: BaseModel) -> dict[str, Any]:
    """Write the part of a gold commit's note that names its definition."""
    return {_KEY: hash_of(definition)}


def hash_of(definition: BaseModel) -> str:
    """Tell two definitions apart."""
    return hashlib.md5(definition.model_dump_json().encode(), usedforsecurity=False).hexdigest()


def changed_definition(last: Commit | None, definition: BaseModel) -> bool:
    """Tell whether a table was filled under another definition than today's."""
    told = last.note.get(_KEY) if last else None
    return told is not None and {_KEY: told} != definition_note(definition)
