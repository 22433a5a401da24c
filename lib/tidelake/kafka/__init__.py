"""Kafka: topics as sources, offsets, schema registries, and a local broker for trials."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from tidelake.errors import MachineError


def imported(what: str, *modules: str, extra: str = "kafka") -> list[Any]:
    """Import modules of an extra; raise a MachineError if ``what`` is not installed."""
    try:
        return [import_module(module) for module in modules]
    except ImportError as error:
        raise MachineError(
            f"{what} is not installed. Install it with: pip install 'tidelake[{extra}]'"
        ) from error
