"""Hold a version of an Avro schema against the one before it, by Avro's own rules of resolution."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from tidelake.config.source import Compatibility
from tidelake.errors import MachineError

_SHOWN = 300


def incompatibility(new: str, old: str, rule: Compatibility) -> str:
    """Say why a version does not follow the rule; empty where it does.

    Args:
        new: The version's schema.
        old: The schema of the version before.
        rule: ``backward``: the new one can read what the old one wrote; ``forward``: the reverse;
            ``full``: both.

    Raises:
        MachineError: The library is not installed.
    """
    if rule == "none":
        return ""
    try:
        schemas: Any = import_module("avro.schema")
        checks: Any = import_module("avro.compatibility")
        errors: Any = import_module("avro.errors")
    except ImportError as error:
        raise MachineError(
            "the library for Avro's rules is not installed. "
            "Install it with: pip install 'tidelake[kafka]'"
        ) from error
    try:
        newer, older = schemas.parse(new), schemas.parse(old)
    except errors.AvroException as error:
        return f"one of them cannot be read: {str(error)[:_SHOWN]}"
    pairs = [(newer, older)] if rule in ("backward", "full") else []
    pairs += [(older, newer)] if rule in ("forward", "full") else []
    for reader, writer in pairs:
        found = checks.ReaderWriterCompatibilityChecker().get_compatibility(reader, writer)
        if found.compatibility is not checks.SchemaCompatibilityType.compatible:
            return _told(found)[:_SHOWN]
    return ""


def _told(found: Any) -> str:
    """Write a result of the library, whose sets have no order."""
    kinds = sorted({str(kind.value).replace("_", " ") for kind in found.incompatibilities})
    return f"{', '.join(kinds)}: {'; '.join(sorted(found.messages))}"
