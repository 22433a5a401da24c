"""Resolve references to secrets at the moment of use; the values are kept nowhere."""

from __future__ import annotations

import os
from collections.abc import Mapping

from tidelake.config.source import REFERENCE
from tidelake.errors import UsageError


def on_databricks() -> bool:
    """Tell whether a Databricks runtime, serverless too, runs this process."""
    return "DATABRICKS_RUNTIME_VERSION" in os.environ


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
        return _secret_of(option, *name.split("/"))
    value = os.environ.get(name)
    if value is None:
        raise UsageError(f"option {option} stands for the variable {name}, which is not set.")
    return value


def _secret_of(option: str, scope: str, key: str) -> str:
    """Ask the Databricks workspace for a secret."""
    name = f"option {option}: secret:{scope}/{key}"
    if not on_databricks():
        raise UsageError(f"{name} can be had on Databricks only. Write env:NAME here.")
    try:
        from databricks.sdk.runtime import dbutils  # noqa: PLC0415  the runtime has it
    except ImportError as error:
        raise UsageError(f"{name}: this runtime has no databricks-sdk. Write env:NAME.") from error
    try:
        value = dbutils.secrets.get(scope, key)
    except Exception as error:  # What it raises differs by compute and has no base of its own.
        raise UsageError(
            f"{name} is not there, or whom the job runs as may not read it "
            f"({type(error).__name__}). See: databricks secrets list-secrets {scope}"
        ) from error
    return str(value)
