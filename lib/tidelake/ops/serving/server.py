"""Run the Thrift server, and give its catalog the tables of a lake by their logical names."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tidelake.config import Environment
from tidelake.config.types import quoted
from tidelake.delta.log import last_commit
from tidelake.delta.notes import Final
from tidelake.delta.tables import Lake, Table
from tidelake.errors import MachineError, NotBuiltError, UsageError
from tidelake.ops.serving.guard import (
    AUTHENTICATION,
    CLOSED,
    LOCKED,
    only_reading,
    open_for_clients,
)
from tidelake.spark.internals import BridgeError, start_thrift_server
from tidelake.spark.session import build_session, kept_log, session_jars, spark_log

_LAYERS = ("bronze", "silver", "gold", "dim", "ops")


@dataclass
class Registered:
    """The tables that the server's catalog has, and up to when their final rows go.

    The catalog is in memory and knows where tables lie; Delta's log says the rest, so that new
    rows and new columns are seen at once. What :meth:`refresh` brings are tables that were not
    there before, and the bounds of the views of final rows.
    """

    spark: SparkSession
    lake: Lake
    tables: set[str] = field(default_factory=set)
    _bounds: dict[str, datetime | None] = field(default_factory=dict)

    def refresh(self) -> list[str]:
        """Register what came since; give the names that are new."""
        if not self.tables:
            for layer in _LAYERS:
                self.spark.sql(f"CREATE SCHEMA IF NOT EXISTS {layer}")
        found = []
        for table in self.lake.existing():
            if table.name not in self.tables:
                path = str(table.path).replace("\\", "\\\\").replace("'", "\\'")
                self.spark.sql(f"CREATE TABLE {table.name} USING DELTA LOCATION '{path}'")
                self.tables.add(table.name)
                found.append(table.name)
            if table.name.startswith("gold.") and self._follow_final(table):
                found.append(f"{table.name}__final")
        return found

    def _follow_final(self, table: Table) -> bool:
        """Cut the view of a table's final rows where its newest commit says; True for a new one."""
        final = Final.of(last_commit(table))
        known = table.name in self._bounds
        if final is None or (known and self._bounds[table.name] == final.until):
            return False
        self._bounds[table.name] = final.until
        kept = "false"
        if final.until is not None:
            kept = f"{quoted(final.column)} <= TIMESTAMP'{final.until.isoformat()}'"
        view = f"SELECT * FROM {table.name} WHERE {kept}"
        self.spark.sql(f"CREATE OR REPLACE VIEW {table.name}__final AS {view}")
        return not known


@contextmanager
def serving(environment: Environment, lake: Lake, *, host: str, port: int) -> Iterator[Registered]:
    """Serve a lake's tables at an address, with an environment's Spark settings.

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
    # Not only after Spark's start.
    try:
        with socket.create_server((host, port)):
            pass
    except OSError as error:
        raise UsageError(
            f"cannot listen at {host}:{port}: {error.strerror}. Take another with --port."
        ) from error
    settings = _settings(environment, host, port)
    spark = build_session(environment.model_copy(update={"spark": settings}))
    try:
        registered = Registered(spark, lake)
        registered.refresh()
        only_reading(spark)
        try:
            server = start_thrift_server(spark, spark_log())
        except (BridgeError, PySparkException) as error:
            raise MachineError(
                f"the Thrift server did not start at port {port}: {str(error).splitlines()[0]}\n"
                f"Its own words are in {kept_log(error)}."
            ) from error
        try:
            open_for_clients(spark, server, anybody=AUTHENTICATION not in environment.spark)
            yield registered
        finally:
            # Told to stop together with us, the JVM may be gone already.
            with suppress(BridgeError, OSError):
                server.stop()
    finally:
        with suppress(BridgeError, OSError):
            spark.stop()


def _settings(environment: Environment, host: str, port: int) -> dict[str, str]:
    return {
        AUTHENTICATION: CLOSED,
        # Not those that give the session a catalog beside the lake's.
        **{
            key: value
            for key, value in environment.spark.items()
            if not key.startswith("spark.sql.catalog.") and key != "spark.sql.defaultCatalog"
        },
        **LOCKED,
        "spark.hadoop.hive.server2.transport.mode": "binary",
        # Clients' threads see the jars of the JVM's start alone.
        "spark.driver.extraClassPath": os.pathsep.join(
            str(jar) for jar in session_jars(environment)
        ),
        "spark.hadoop.hive.server2.thrift.bind.host": host,
        "spark.hadoop.hive.server2.thrift.port": str(port),
    }
