"""Resolve references to secrets when they are used; the values are not kept."""

from __future__ import annotations

import os
from collections.abc import Mapping

from tidelake.config.source import REFERENCE
from tidelake.errors import UsageError


def on_databricks() -> bool:
    """Return whether a Databricks runtime, serverless included, runs this process."""
    return "DATABRICKS_RUNTIME_VERSION" in os.environ


def resolved(options: Mapping[str, str]) -> dict[str, str]:
    """Replace references in settings by their values.

    Args:
        options: Settings, among them ``env:NAME``, or ``secret:SCOPE/KEY`` of a Databricks
            workspace.

    Raises:
        UsageError: A variable is not set, or a secret cannot be read; names it and the option.
    """
    return {
        name: _value(name, text) if REFERENCE.fullmatch(text) else text
        for name, text in options.items()
    }


def _value(option: str, reference: str) -> str:
    kind, _, secret = reference.partition(":")
    if kind == "env":
        value = os.environ.get(secret)
        if value is None:
            raise UsageError(f"option {option} stands for the variable {secret}, which is not set.")
        return value
    name = f"option {option}: {reference}"
    if not on_databricks():
        raise UsageError(f"{name} can be had on Databricks only. Write env:NAME here.")
    try:
        from databricks.sdk.runtime import dbutils  # noqa: PLC0415  the runtime has it
    except ImportError as error:
        raise UsageError(f"{name}: this runtime has no databricks-sdk. Write env:NAME.") from error
    scope, _, key = secret.partition("/")
    try:
        return str(dbutils.secrets.get(scope, key))
    except Exception as error:  # What it raises differs by compute and has no base of its own.
        raise UsageError(
            f"{name} is not there, or whom the job runs as may not read it "
            f"({type(error).__name__}). See: databricks secrets list-secrets {scope}"
        ) from error
