"""Start the Thrift server and end it."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException

from tidelake.config import Environment
from tidelake.delta.tables import Lake
from tidelake.errors import MachineError, NotBuiltError, UsageError
from tidelake.ops.serving.connections import AUTHENTICATION, CLOSED, open_for_clients
from tidelake.ops.serving.guard import LOCKED, only_reading
from tidelake.ops.serving.registered import Registered
from tidelake.spark.internals import BridgeError, start_thrift_server
from tidelake.spark.session import build_session, kept_log, session_jars, spark_log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def serving(environment: Environment, lake: Lake, *, host: str, port: int) -> Iterator[Registered]:
    """Serve a lake's tables as long as the context lasts.

    Args:
        environment: Its Spark settings hold for the server.
        lake: Where the tables are.
        host: The address to listen at.
        port: The port.

    Yields:
        The tables that clients see; whoever holds them is to bring them up to date.

    Raises:
        UsageError: Nobody can listen there.
        NotBuiltError: The tables are in a catalog, or Spark is another's.
        MachineError: Spark, or its Thrift server, does not start.
    """
    if lake.catalog is not None or environment.remote is not None:
        raise NotBuiltError(
            f"Serving the tables of environment {environment.name}",
            "Connect to the SQL warehouse, or the server, that is there.",
        )
    refuse_taken(host, port)
    with _started(environment, host, port) as spark:
        registered = Registered(spark, lake)
        registered.refresh()
        only_reading(spark)
        with _listening(spark, port, anybody=AUTHENTICATION not in environment.spark):
            yield registered


def refuse_taken(host: str, port: int) -> None:
    """Find out now, and not after Spark's start, that nobody can listen there.

    Raises:
        UsageError: Says why.
    """
    try:
        with socket.create_server((host, port)):
            pass
    except OSError as error:
        raise UsageError(
            f"cannot listen at {host}:{port}: {error.strerror}. Take another with --port."
        ) from error


@contextmanager
def _started(environment: Environment, host: str, port: int) -> Iterator[SparkSession]:
    settings = {
        AUTHENTICATION: CLOSED,
        **{key: value for key, value in environment.spark.items() if not _names_catalog(key)},
        **LOCKED,
        "spark.hadoop.hive.server2.transport.mode": "binary",
        # Clients' threads see the jars of the JVM's start alone.
        "spark.driver.extraClassPath": os.pathsep.join(
            str(jar) for jar in session_jars(environment)
        ),
        "spark.hadoop.hive.server2.thrift.bind.host": host,
        "spark.hadoop.hive.server2.thrift.port": str(port),
    }
    spark = build_session(environment.model_copy(update={"spark": settings}))
    try:
        yield spark
    finally:
        # Told to stop together with us, the JVM may be gone already.
        with suppress(BridgeError, OSError):
            spark.stop()


def _names_catalog(key: str) -> bool:
    """Tell whether a setting gives the session a catalog beside the lake's."""
    return key.startswith("spark.sql.catalog.") or key == "spark.sql.defaultCatalog"


@contextmanager
def _listening(spark: SparkSession, port: int, *, anybody: bool) -> Iterator[None]:
    try:
        server = start_thrift_server(spark, spark_log())
    except (BridgeError, PySparkException) as error:
        raise MachineError(
            f"the Thrift server did not start at port {port}: {str(error).splitlines()[0]}\n"
            f"Its own words are in {kept_log(error)}."
        ) from error
    try:
        open_for_clients(spark, server, anybody=anybody)
        yield
    finally:
        with suppress(BridgeError, OSError):
            server.stop()
