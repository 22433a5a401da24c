"""Resolve references to secrets at the time of use; the values are not stored."""

from __future__ import annotations

import os
from collections.abc import Mapping

from tidelake.config.source import REFERENCE
from tidelake.errors import UsageError


def on_databricks() -> bool:
    """Return whether this process runs in a Databricks runtime, including serverless."""
    return "DATABRICKS_RUNTIME_VERSION" in os.environ


def resolved(options: Mapping[str, str]) -> dict[str, str]:
    """Return settings with references replaced by their values.

    Args:
        options: Settings; a value may be ``env:NAME``, or ``secret:SCOPE/KEY`` of a Databricks
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
            raise UsageError(f"option {option} refers to the variable {secret}, which is not set.")
        return value
    name = f"option {option}: {reference}"
    if not on_databricks():
        raise UsageError(f"{name} is available on Databricks only. Write env:NAME here.")
    try:
        from databricks.sdk.runtime import dbutils  # noqa: PLC0415  the runtime has it
    except ImportError as error:
        raise UsageError(f"{name}: this runtime has no databricks-sdk. Write env:NAME.") from error
    scope, _, key = secret.partition("/")
    try:
        return str(dbutils.secrets.get(scope, key))
    except Exception as error:  # The exception differs by compute and has no common base.
        raise UsageError(
            f"{name} does not exist, or the job's user may not read it "
            f"({type(error).__name__}). See: databricks secrets list-secrets {scope}"
        ) from error
