"""Connect to Spark where it is somewhere else: a server of Spark Connect."""

from __future__ import annotations

import os
import re
import socket
from typing import TYPE_CHECKING

from tidelake.config.environment import REMOTE_VARIABLE
from tidelake.errors import MachineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ADDRESS = re.compile(r"sc://(?P<host>\[[^]]+\]|[^:/;]+)(:(?P<port>[0-9]+))?")
# Spark's own.
_PORT = 15002
_SECONDS = 5.0
_ZONE = "spark.sql.session.timeZone"


def connect(remote: str) -> SparkSession:
    """Open a session on a server.

    Args:
        remote: ``sc://host:port``; what a client is told beside it comes from ``SPARK_REMOTE``.

    Raises:
        MachineError: The client's packages are missing, nothing answers, or the server's sessions
            are not what Tidelake needs.
    """
    try:
        import pyspark.sql.connect.session  # noqa: F401, PLC0415
    except ImportError as error:
        raise MachineError(
            "Spark Connect needs packages that are not installed. "
            "Install them with: pip install 'tidelake[connect]'"
        ) from error
    from pyspark.errors import PySparkException  # noqa: PLC0415
    from pyspark.sql import SparkSession  # noqa: PLC0415

    _refuse_silent(remote)
    try:
        builder = SparkSession.builder.remote(os.environ.get(REMOTE_VARIABLE) or remote)
        spark = builder.getOrCreate()
        _ensure_utc(spark, remote)
    except PySparkException as error:
        raise MachineError(
            f"the Spark Connect server at {remote} does not let us in: {_first_line(error)}"
        ) from error
    return spark


def _refuse_silent(remote: str) -> None:
    """Find out at once whether anything listens: the client tries for minutes."""
    found = _ADDRESS.match(remote)
    if found is None:
        raise MachineError(f"{REMOTE_VARIABLE} must look like sc://host:port")
    host, port = found["host"].strip("[]"), int(found["port"] or _PORT)
    try:
        with socket.create_connection((host, port), timeout=_SECONDS):
            return
    except OSError as error:
        raise MachineError(
            f"no Spark Connect server answers at {remote}: {error.strerror or error}. "
            "Start it, or correct remote in the environment."
        ) from error


def _ensure_utc(spark: SparkSession, remote: str) -> None:
    """Have times read as UTC; of all settings, serverless compute allows this one."""
    from tidelake.settings import REFUSED  # noqa: PLC0415

    if spark.conf.get(_ZONE) in ("UTC", "Etc/UTC"):
        return
    try:
        spark.conf.set(_ZONE, "UTC")
    except REFUSED as error:
        raise MachineError(
            f"sessions on {remote} are not in UTC and cannot be set to it. "
            f"Start the server with: --conf {_ZONE}=UTC"
        ) from error


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0][:300]
