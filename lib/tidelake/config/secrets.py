"""Resolve references to secrets at the moment of use; the values are kept nowhere."""

from __future__ import annotations

import os
from collections.abc import Mapping

from tidelake.config.databricks import secret_of
from tidelake.config.source import REFERENCE
from tidelake.errors import UsageError


def resolved(options: Mapping[str, str]) -> dict[str, str]:
    """Put values in the place of references.

    Args:
        options: Settings, among them references: ``env:NAME``, and ``secret:SCOPE/KEY`` into a
            Databricks workspace's secrets.

    Raises:
        UsageError: A variable is not set, or a secret cannot be had; the message names it and the
            option.
    """
    return {name: _value(name, text) for name, text in options.items()}


def _value(option: str, text: str) -> str:
    if not REFERENCE.fullmatch(text):
        return text
    kind, _, name = text.partition(":")
    if kind == "secret":
        scope, _, key = name.partition("/")
        return secret_of(option, scope, key)
    value = os.environ.get(name)
    if value is None:
        raise UsageError(f"option {option} stands for the variable {name}, which is not set.")
    return value
