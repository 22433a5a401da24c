"""What only a Databricks runtime has: the sign that we run on one, and its secrets."""

from __future__ import annotations

import os

from tidelake.errors import UsageError

# Set wherever a Databricks runtime runs us, serverless too.
_RUNTIME = "DATABRICKS_RUNTIME_VERSION"


def on_databricks() -> bool:
    """Tell whether a Databricks runtime runs this process."""
    return _RUNTIME in os.environ


def secret_of(option: str, scope: str, key: str) -> str:
    """Ask the workspace for a secret.

    Args:
        option: What it is for, for the message.
        scope: The scope's name.
        key: The secret's name in it.

    Raises:
        UsageError: This is no Databricks runtime, or there is no such secret for the job.
    """
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
