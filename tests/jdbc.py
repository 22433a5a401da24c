"""A JDBC client in a JVM of its own: Hive's driver, and what lies under it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors.exceptions import captured
from pyspark.java_gateway import launch_gateway

_PROTOCOL = "org.apache.hive.service.rpc.thrift"


class Refused(Exception):
    """What the server said no with."""


@dataclass
class Session:
    """A connection to a server."""

    connection: Any

    def rows(self, statement: str) -> list[list[Any]]:
        """Run a statement; give the rows of its answer, as texts.

        Raises:
            Refused: The server did not run it.
        """
        with _refusals():
            asked = self.connection.createStatement()
            try:
                if not asked.execute(statement):
                    return []
                found, rows = asked.getResultSet(), []
                width = found.getMetaData().getColumnCount()
                while found.next():
                    rows.append([found.getString(number + 1) for number in range(width)])
                return rows
            finally:
                asked.close()


@dataclass
class Clients:
    """Makes connections."""

    gateway: Any
    port: int

    @contextmanager
    def session(self, settings: str = "") -> Iterator[Session]:
        """Connect; ``settings`` follow the database in the address."""
        properties = self.gateway.jvm.java.util.Properties()
        address = f"jdbc:hive2://127.0.0.1:{self.port}/gold{settings}"
        with _refusals():
            connection = self.gateway.jvm.org.apache.hive.jdbc.HiveConnection(address, properties)
        try:
            yield Session(connection)
        finally:
            connection.close()

    def tables(self, session: Session) -> list[str]:
        """Ask for the tables as tools do, without a statement."""
        found = session.connection.getMetaData().getTables(None, "%", "%", None)
        names = []
        while found.next():
            names.append(f"{found.getString(2)}.{found.getString(3)}")
        return names

    def columns(self, session: Session, table: str) -> list[tuple[str, str]]:
        """Ask for a table's columns and types as tools do, without a statement."""
        found = session.connection.getMetaData().getColumns(None, "%", table, "%")
        columns = []
        while found.next():
            columns.append((found.getString(4), found.getString(6)))
        return columns

    def open_raw(self, configuration: Mapping[str, str], statement: str) -> str:
        """Speak the protocol itself, whose sessions may be configured with more than an address.

        Returns:
            The status of opening and of the statement.
        """
        jvm = self.gateway.jvm
        rpc = getattr(jvm, _PROTOCOL)
        socket = jvm.org.apache.thrift.transport.TSocket("127.0.0.1", self.port)
        transport = jvm.org.apache.hive.service.auth.PlainSaslHelper.getPlainTransport(
            "anybody", "anything", socket
        )
        transport.open()
        try:
            protocol = jvm.org.apache.thrift.protocol.TBinaryProtocol(transport)
            client = rpc.TCLIService.Client(protocol)
            settings = jvm.java.util.HashMap()
            for name, value in configuration.items():
                settings.put(name, value)
            wanted = rpc.TOpenSessionReq()
            wanted.setConfiguration(settings)
            opened = client.OpenSession(wanted)
            if opened.getSessionHandle() is None:
                return str(opened.getStatus().toString())
            asked = rpc.TExecuteStatementReq(opened.getSessionHandle(), statement)
            asked.setConfOverlay(settings)
            done = client.ExecuteStatement(asked)
            return f"{opened.getStatus().toString()} {done.getStatus().toString()}"
        finally:
            transport.close()


@contextmanager
def clients(port: int) -> Iterator[Clients]:
    """Start the JVM of the clients of a server."""
    gateway = launch_gateway()
    try:
        with _errors_of(gateway):
            yield Clients(gateway, port)
    finally:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait()


@contextmanager
def _errors_of(gateway: Any) -> Iterator[None]:
    """Keep PySpark from looking up the errors of this JVM in Spark's own.

    It converts the error of every Py4J gateway, and asks Spark's JVM about it by a number that is
    another object there, or none.
    """
    convert = captured.convert_exception

    def converted(error: Any) -> Any:
        if error._gateway_client is gateway._gateway_client:
            return captured.UnknownException("", "", None)
        return convert(error)

    captured.convert_exception = converted
    try:
        yield
    finally:
        captured.convert_exception = convert


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except Py4JJavaError as error:
        raise Refused(str(error.java_exception.getMessage())) from None
