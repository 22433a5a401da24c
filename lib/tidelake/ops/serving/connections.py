"""Take from a connection the settings that it may not bring along.

The Thrift server puts what a client sends with its connection into the session's settings, Hive's
and the JVM's, before any statement is parsed. So the requests of clients go through
:class:`_Requests` first, which is written in Python and stands in for the service that answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pyspark.sql import SparkSession

from tidelake.ops.serving.guard import SETTINGS
from tidelake.spark.internals import jvm_of

AUTHENTICATION = "spark.hadoop.hive.server2.authentication"
# With it nobody gets in: there is no class that could check a password.
CLOSED = "CUSTOM"
# What Hive's driver always sends: the database to begin in, and how many rows a fetch takes.
_ALWAYS = frozenset(
    {"use:database", "set:hiveconf:hive.server2.thrift.resultset.default.fetch.size"}
)


def open_for_clients(spark: SparkSession, server: Any, *, anybody: bool) -> None:
    """Let clients of a server connect, with no other settings than the allowed ones.

    The server listens from its start on, before its requests can be put through anything. Until
    this function is called, :data:`CLOSED` keeps everybody out.

    Args:
        spark: The server's session.
        server: Spark's ``HiveThriftServer2``.
        anybody: Whether it was started with :data:`CLOSED` and now asks for no password. Else the
            environment has an authentication of its own, which stays.
    """
    jvm = jvm_of(spark)
    assert jvm is not None
    services = list(server.getServices())
    service = next(one for one in services if one.getName() == "ThriftBinaryCLIService")
    listener = _field(service.getClass(), "server").get(service)
    kind = listener.getClass().getSuperclass()
    auth = jvm.org.apache.hive.service.auth
    processor = auth.TSetIpAddressProcessor(_Requests(jvm, service))
    _field(kind, "processorFactory_").set(
        listener, jvm.org.apache.thrift.TProcessorFactory(processor)
    )
    if anybody:
        unasked = auth.PlainSaslHelper.getPlainTransportFactory("NONE")
        for direction in ("inputTransportFactory_", "outputTransportFactory_"):
            _field(kind, direction).set(listener, unasked)


def allowed_settings(brought: Mapping[str, str]) -> dict[str, str]:
    """Choose what a session may begin with.

    Hive's driver puts the settings of an address under ``set:hiveconf:`` and ``set:hivevar:``: they
    become the session's. Under other prefixes Hive keeps properties of the JVM and
    settings of a metastore, which all sessions share.

    Args:
        brought: What the client sent with its connection.
    """
    return {
        key: value
        for key, value in brought.items()
        # Hive would replace a reference to the server's environment by what it refers to.
        if (key in _ALWAYS or _setting(key) in SETTINGS) and "${" not in value
    }


def _field(kind: Any, name: str) -> Any:
    """Find a field of a class that has no method to set it."""
    found = kind.getDeclaredField(name)
    found.setAccessible(True)
    return found


class _Requests:
    """Answers clients' requests as the Thrift server does, without the settings in them."""

    def __init__(self, jvm: Any, service: Any) -> None:
        self._jvm = jvm
        self._service = service

    def __getattr__(self, name: str) -> Any:
        """Hand every other request to the service."""
        return getattr(self._service, name)

    def OpenSession(self, request: Any) -> Any:
        kept = self._jvm.java.util.HashMap()
        for key, value in allowed_settings(request.getConfiguration() or {}).items():
            kept.put(key, value)
        request.setConfiguration(kept)
        return self._service.OpenSession(request)

    def ExecuteStatement(self, request: Any) -> Any:
        request.unsetConfOverlay()
        return self._service.ExecuteStatement(request)

    def toString(self) -> str:
        return "requests without settings"

    class Java:
        implements: ClassVar[list[str]] = ["org.apache.hive.service.rpc.thrift.TCLIService$Iface"]


def _setting(key: str) -> str:
    """Name the setting behind a key of a connection; empty for a key of another kind."""
    for prefix in ("set:hiveconf:", "set:hivevar:"):
        if key.startswith(prefix):
            return key.removeprefix(prefix)
    return ""
