"""Run Spark's Thrift server with read-only access to the lake's tables for JDBC clients.

Spark has no read-only setting. But each statement goes through the session's parser, which may be
replaced, also in Python. The parser here analyses the statement, and refuses it unless all nodes
and relations of the analysed plan are allowed. Spark then runs that plan.

Three things must be prevented before analysis, which already acts on them: the settings in
``_LOCKED``, the functions in :data:`~tidelake.ledger.statements.SPARK_REFUSED`, and the settings
that a client sends when it connects. The Thrift server sets those in the session, Hive and the JVM
before it parses any statement, so :class:`_Requests` filters the requests first.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pyspark.errors import PySparkException
from pyspark.errors.exceptions.captured import AnalysisException, CapturedException
from pyspark.sql import SparkSession
from sqlglot import transpile

from tidelake.config import Environment
from tidelake.delta.commit_metadata import Final
from tidelake.delta.log import LogFile, entries_since, last_commit, newest_version
from tidelake.delta.store import sql_text
from tidelake.delta.tables import Lake, Table
from tidelake.errors import MachineError, NotBuiltError, UsageError
from tidelake.ledger.statements import DUCKDB, SPARK, SPARK_REFUSED
from tidelake.names import LAYERS
from tidelake.spark import internals
from tidelake.spark.java import ensure_jars, jars_for
from tidelake.spark.session import build_session, kept_log, spark_log
from tidelake.typed import runnable
from tidelake.visible import first_line

# Settings that a client may read and change: numbers, flags, or values that Spark validates. Any
# other key also becomes a Hadoop setting, and those can name classes, hosts and folders.
_SETTINGS = frozenset(
    f"spark.sql.{name}"
    for name in (
        *("adaptive.enabled", "ansi.doubleQuotedIdentifiers", "ansi.enabled"),
        *("autoBroadcastJoinThreshold", "caseSensitive", "crossJoin.enabled"),
        *("legacy.timeParserPolicy", "session.timeZone", "shuffle.partitions"),
    )
)
# JDBC drivers read the Hive version to decide what to send.
_READABLE = _SETTINGS | {"spark.sql.hive.version"}
# Analysis acts on these before there is a plan to check: files as tables, ``${env:…}`` in
# statements, Hadoop settings among the options of a relation (``WITH (…)``); and settings and
# temporary views shared by all clients.
_LOCKED = {
    "spark.databricks.delta.loadFileSystemConfigsFromDataFrameOptions": "false",
    "spark.sql.runSQLOnFiles": "false",
    "spark.sql.variable.substitute": "false",
    "spark.sql.hive.thriftServer.singleSession": "false",
}
_AUTHENTICATION = "spark.hadoop.hive.server2.authentication"
# Hive's methods that ask for no password.
OPEN = frozenset({"NONE", "NOSASL"})
# Refuse every login: no password provider class is set, or, where one is, no service of PAM.
_CLOSED, _CLOSED_TOO = "CUSTOM", "PAM"
# Hive's driver always sends these: the initial database, and the fetch size.
_ALWAYS = frozenset(
    {"use:database", "set:hiveconf:hive.server2.thrift.resultset.default.fetch.size"}
)
# Nodes of queries, of commands that change at most the client's own session, and of names.
_NODES = """
    Aggregate AsOfJoin CTERelationDef CTERelationRef Deduplicate Distinct DomainJoin EmptyRelation
    Except Expand Filter Generate GlobalLimit Intersect Join LateralJoin LocalLimit LocalRelation
    LogicalRelation NearestByJoin Offset OneRowRelation PipeOperator Pivot Project Range
    RebalancePartitions RelationTimeTravel Repartition RepartitionByExpression ResolvedHint
    ResolvedInlineTable Sample Sort Subquery SubqueryAlias Tail Transpose Union UnionLoop
    UnionLoopRef Unpivot UnresolvedHaving UnresolvedHint UnresolvedInlineTable UnresolvedQualify
    UnresolvedRelation UnresolvedSubqueryColumnAliases UnresolvedTVFAliases
    UnresolvedTableValuedFunction UnresolvedTranspose UnresolvedWith View Window WithCTE
    WithWindowDefinition

    DescribeColumn DescribeColumnCommand DescribeDatabaseCommand DescribeDeltaDetailCommand
    DescribeDeltaHistory DescribeDeltaHistoryCommand DescribeFunction DescribeFunctionCommand
    DescribeNamespace DescribeQueryCommand DescribeRelation DescribeRelationJsonCommand
    DescribeTableCommand DescribeTablePartition ExplainCommand ResetCommand SetCatalogAndNamespace
    SetCatalogCommand SetCommand SetNamespaceCommand ShowCatalogsCommand ShowCollationsCommand
    ShowColumns ShowColumnsCommand ShowCreateTable ShowCreateTableCommand
    ShowCurrentNamespaceCommand ShowDeltaTableColumnsCommand ShowFunctions ShowFunctionsCommand
    ShowNamespaces ShowNamespacesCommand ShowPartitions ShowPartitionsCommand ShowTableExtended
    ShowTablePartition ShowTableProperties ShowTablePropertiesCommand ShowTables ShowTablesCommand
    ShowTablesExtended ShowViews ShowViewsCommand

    CurrentNamespace ResolvedIdentifier ResolvedNamespace ResolvedNonPersistentFunc
    ResolvedPersistentView ResolvedTable ResolvedTempView UnresolvedFunctionName
    UnresolvedIdentifier UnresolvedNamespace UnresolvedTable UnresolvedTableOrView UnresolvedView
"""
_ALLOWED = frozenset(_NODES.split())


class _Refused(Exception):
    """A statement is not allowed; the message says why."""


class _Unresolved(Exception):
    """Spark cannot analyse a plan, for example because a table does not exist."""


def _drop_functions(registry: Any) -> None:
    for function in _items(registry.listFunction()):
        if function.funcName() in SPARK_REFUSED:
            registry.dropFunction(function)


class _Guards:
    """Factory of the guarding parser of a session; called by the JVM."""

    def __init__(self, jvm: Any) -> None:
        self._jvm = jvm

    def apply(self, session: Any, parser: Any) -> _Guard:
        return _Guard(self._jvm, session, parser)

    class Java:
        implements: ClassVar[list[str]] = ["scala.Function2"]


class _Guard:
    """Parser that returns the analysed plan of a read-only statement and refuses any other."""

    def __init__(self, jvm: Any, session: Any, parser: Any) -> None:
        self._jvm = jvm
        self._session = session
        self._parser = parser
        # Collects every node of a tree in one call.
        identity = getattr(jvm.scala.Predef, "$conforms")()
        self._every = jvm.scala.PartialFunction.fromFunction(identity)
        self._analyses = threading.local()
        self._has_begun = False

    def __getattr__(self, name: str) -> Any:
        """Forward the other methods of a parser to Spark's own."""
        if not name.startswith("parse"):
            raise AttributeError(name)
        parse = getattr(self._parser, name)
        return lambda *arguments: self._reported(parse, *arguments)

    def parsePlan(self, sql: str) -> Any:
        return self._reported(self._judged_once, self._reported(self._parser.parsePlan, sql))

    def parsePlanWithParameters(self, sql: str, parameters: Any) -> Any:
        parse = self._parser.parsePlanWithParameters
        return self._reported(self._judged_once, self._reported(parse, sql, parameters))

    def toString(self) -> str:
        return "a read-only parser"

    def _reported(self, call: Any, *arguments: Any) -> Any:
        """Call a function; convert its errors to Java exceptions that the client sees."""
        try:
            return call(*arguments)
        except CapturedException as error:
            raise internals.java_cause(error) from error
        except _Refused as error:
            refusal = self._jvm.UnsupportedOperationException(str(error))
            raise internals.JavaError("", refusal) from error

    def _judged_once(self, plan: Any) -> Any:
        # Analysis parses the SQL of views on this thread. Only the server creates views, and the
        # checked plan includes their plans.
        if getattr(self._analyses, "running", False):
            return plan
        self._analyses.running = True
        try:
            if not self._has_begun:
                # Delta registers its functions in each session only.
                _drop_functions(self._session.sessionState().tableFunctionRegistry())
                self._has_begun = True
            return self._judged(plan)
        except _Unresolved as error:
            # A parser must not throw analysis errors. This command analyses the plan again and
            # fails as the statement would; it never runs the plan.
            commands = self._jvm.org.apache.spark.sql.execution.command
            return commands.DescribeQueryCommand("", *error.args)
        finally:
            self._analyses.running = False

    def _judged(self, plan: Any) -> Any:
        """Return the analysed plan; raise _Refused or _Unresolved."""
        kind = _kind(plan)
        # Check before analysis, which already runs some commands (EXECUTE IMMEDIATE, CALL).
        _refuse_unless(kind in _ALLOWED, kind)
        # Spark analyses the plans inside these commands only when they run.
        if kind == "ExplainCommand":
            self._judged(plan.logicalPlan())
        elif kind == "DescribeQueryCommand":
            self._judged(plan.plan())
        skip = self._jvm.org.apache.spark.sql.execution.CommandExecutionMode.SKIP()
        try:
            analysed = self._session.sessionState().executePlan(plan, skip).analyzed()
        except AnalysisException as error:
            raise _Unresolved(plan) from error
        for node in _items(analysed.collectWithSubqueries(self._every)):
            _judge(node)
        return analysed

    class Java:
        implements: ClassVar[list[str]] = ["org.apache.spark.sql.catalyst.parser.ParserInterface"]


def _judge(node: Any) -> None:
    """Refuse a plan node that is not allowed, or a relation that is not a catalog table."""
    kind = _kind(node)
    _refuse_unless(kind in _ALLOWED, kind)
    if kind == "LogicalRelation":
        _refuse_unless(node.catalogTable().isDefined(), "a relation that is not a table")
    elif kind in ("ResolvedTable", "DescribeDeltaHistoryCommand"):
        table = node.table()
        is_named = _kind(table) == "V1Table" or table.catalogTable().isDefined()
        _refuse_unless(is_named, "a path as a table")
    elif kind == "SetCommand":
        pair = node.kv()
        key, value = (pair.get()._1(), pair.get()._2()) if pair.isDefined() else ("", pair)
        _judge_setting(key, _SETTINGS if value.isDefined() else _READABLE)
    elif kind == "ResetCommand":
        _judge_setting(node.config().get() if node.config().isDefined() else "", _SETTINGS)


def _judge_setting(key: str, allowed: frozenset[str]) -> None:
    if key not in allowed:
        raise _Refused(
            f"this server only reads the lake's tables: {key or 'all settings'} cannot be set or "
            f"shown. These can: {', '.join(sorted(allowed))}."
        )


def _refuse_unless(is_allowed: bool, what: str) -> None:
    if not is_allowed:
        raise _Refused(
            f"this server only reads the lake's tables: {what} is refused. "
            "Tables change through tidelake run."
        )


def _kind(found: Any) -> str:
    return str(found.getClass().getSimpleName())


def _items(sequence: Any) -> Iterator[Any]:
    each = sequence.iterator()
    while each.hasNext():
        yield each.next()


def login_method(environment: Environment) -> str:
    """Return Hive's method by which clients log in, such as ``LDAP``."""
    return environment.spark.get(_AUTHENTICATION, "NONE").upper()


def _open_for_clients(spark: SparkSession, server: Any, environment: Environment) -> None:
    """Let clients of Spark's ``HiveThriftServer2`` log in, with only the allowed settings.

    The server listens as soon as it starts, before its requests can be filtered; until this
    function is called, :data:`_CLOSED` refuses every login.
    """
    jvm = internals.jvm_of(spark)
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
    # As the service itself does when it starts, with the environment's method in Hive's settings.
    settings, method = service.getHiveConf(), login_method(environment)
    settings.set(_AUTHENTICATION.removeprefix("spark.hadoop."), method)
    try:
        logins = auth.HiveAuthFactory(settings)
        transports = logins.getAuthTransFactory()
    except internals.JavaError as error:
        reason = error.java_exception.getMessage()
        raise UsageError(
            f"clients cannot log in by {method}: {reason}. Correct {_AUTHENTICATION} of "
            f"environment {environment.name}, and the settings that it needs."
        ) from error
    _field(service.getClass().getSuperclass(), "hiveAuthFactory").set(None, logins)
    for direction in ("inputTransportFactory_", "outputTransportFactory_"):
        _field(kind, direction).set(listener, transports)


def allowed_settings(requested: Mapping[str, str]) -> dict[str, str]:
    """Filter the settings that a client sent when it connected.

    Hive's driver sends the settings of a JDBC address as ``set:hiveconf:`` and ``set:hivevar:``,
    which become session settings. Other prefixes set properties of the JVM and of the metastore,
    which all sessions share.
    """
    of_session = {
        f"set:{kind}:{setting}" for kind in ("hiveconf", "hivevar") for setting in _SETTINGS
    }
    return {
        key: value
        for key, value in requested.items()
        # Hive would resolve a reference to the server's environment.
        if key in _ALWAYS | of_session and "${" not in value
    }


def _field(kind: Any, name: str) -> Any:
    """Return a private field of a class, made accessible."""
    found = kind.getDeclaredField(name)
    found.setAccessible(True)
    return found


class _Requests:
    """Forwards clients' requests to the Thrift service, without forbidden settings."""

    def __init__(self, jvm: Any, service: Any) -> None:
        self._jvm = jvm
        self._service = service

    def __getattr__(self, name: str) -> Any:
        """Forward every other request."""
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
        return "filtered requests"

    class Java:
        implements: ClassVar[list[str]] = ["org.apache.hive.service.rpc.thrift.TCLIService$Iface"]


@dataclass
class Registered:
    """The tables in the server's catalog, and their views of final rows.

    A query reads a table's rows and columns from Delta's log. The columns that the catalog lists,
    and a view's columns and bound, are those that :meth:`refresh` last saw.
    """

    spark: SparkSession
    lake: Lake
    tables: set[str] = field(default_factory=set)
    # The newest version seen of each table, and the final rows of each that has a view.
    _seen: dict[str, int] = field(default_factory=dict)
    _finals: dict[str, Final] = field(default_factory=dict)
    # By what cannot be read: why, "" once that was reported.
    _problems: dict[str, str] = field(default_factory=dict)

    def refresh(self) -> list[str]:
        """Register new tables and views, and return their names; pass over unreadable tables."""
        if not self.tables:
            for layer in LAYERS:
                self.spark.sql(f"CREATE SCHEMA IF NOT EXISTS {layer}")
        found: list[str] = []
        with self._reading(f"the list of tables {self.lake.place}"):
            for table in self.lake.existing():
                with self._reading(table.name):
                    self._follow(table, found)
        return found

    def problems(self) -> list[str]:
        """Return what could not be read since the last call; again only once it could."""
        found = [problem for problem in self._problems.values() if problem]
        self._problems = dict.fromkeys(self._problems, "")
        return found

    @contextmanager
    def _reading(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            # Fails if Spark has ended, when nothing is served any more.
            str(self.spark.version)
            problem = f"{what} cannot be read: {first_line(error)}. Others are; it is tried again."
            self._problems.setdefault(what, problem)
        else:
            self._problems.pop(what, None)

    def _follow(self, table: Table, found: list[str]) -> None:
        """Update a table, its columns and its view of final rows; add new names to ``found``."""
        name, seen = table.name, self._seen.get(table.name, -1)
        # Read before the columns and the bound: the next call sees what is committed in between.
        version = newest_version(table)
        if name not in self.tables:
            self.spark.sql(f"CREATE TABLE {name} USING DELTA LOCATION {sql_text(str(table.path))}")
            self.tables.add(name)
            found.append(name)
        # A table that was created again has fewer versions.
        is_changed = not 0 <= seen <= version or any(
            isinstance(one, LogFile) and one.redefines() for one in entries_since(table, seen + 1)
        )
        if is_changed:
            internals.list_columns(self.spark, name)
        before = self._finals.get(name)
        final = Final.of(last_commit(table)) if name.startswith("gold.") else None
        if final is not None and (final != before or is_changed):
            rows = f"SELECT * FROM {name} WHERE {transpile(final.condition(), DUCKDB, SPARK)[0]}"
            self.spark.sql(f"CREATE OR REPLACE VIEW {name}__final AS {rows}")
            self._finals[name] = final
            if before is None:
                found.append(f"{name}__final")
        elif final is None and before is not None:
            self.spark.sql(f"DROP VIEW IF EXISTS {name}__final")
            del self._finals[name]
        self._seen[name] = version


@contextmanager
def serving(environment: Environment, lake: Lake, *, host: str, port: int) -> Iterator[Registered]:
    """Serve a lake's tables at an address, with an environment's Spark settings.

    Yields:
        The tables that clients see; the caller must refresh them.

    Raises:
        UsageError: The address cannot be bound, or nobody could log in.
        NotBuiltError: The tables are in a catalog, or Spark is remote.
        MachineError: Spark, or its Thrift server, does not start.
    """
    if lake.catalog is not None or environment.remote is not None:
        raise NotBuiltError(
            f"Serving the tables of environment {environment.name}",
            "Connect to the SQL warehouse, or the server, that is there.",
        )
    # Check now, since Spark takes long to start.
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.create_server((host, port), family=family):
            pass
    except OSError as error:
        raise UsageError(
            f"cannot listen at {host}:{port}: {error.strerror}. "
            "Choose another address with --host and --port."
        ) from error
    settings = _settings(environment, host, port)
    spark = build_session(environment.model_copy(update={"spark": settings}))
    try:
        registered = Registered(spark, lake)
        registered.refresh()
        # Each new session gets the guarding parser; this one may still write. Clients' sessions are
        # made from it, with its settings.
        analysis = internals.inject_parser(spark, _Guards).org.apache.spark.sql.catalyst.analysis
        _drop_functions(analysis.FunctionRegistry.builtin())
        _drop_functions(analysis.TableFunctionRegistry.builtin())
        try:
            server = internals.start_thrift_server(spark, spark_log())
        except (internals.BridgeError, PySparkException) as error:
            raise MachineError(
                f"the Thrift server did not start on port {port}: {str(error).splitlines()[0]}\n"
                f"Its log is in {kept_log(error)}. Choose another port with --port, or check the "
                f"machine with: {runnable('tidelake doctor')}"
            ) from error
        try:
            _open_for_clients(spark, server, environment)
            yield registered
        finally:
            # The same signal may have ended the JVM already.
            with suppress(internals.BridgeError, OSError):
                server.stop()
    finally:
        with suppress(internals.BridgeError, OSError):
            spark.stop()


def _settings(environment: Environment, host: str, port: int) -> dict[str, str]:
    return {
        # Leave out settings that add another catalog to the session.
        **{
            key: value
            for key, value in environment.spark.items()
            if not key.startswith("spark.sql.catalog.") and key != "spark.sql.defaultCatalog"
        },
        **_LOCKED,
        # The environment's own method is set once requests are filtered.
        _AUTHENTICATION: _CLOSED_TOO if login_method(environment) == _CLOSED else _CLOSED,
        "spark.hadoop.hive.server2.transport.mode": "binary",
        # Threads of clients see only the jars on the JVM's initial class path.
        "spark.driver.extraClassPath": os.pathsep.join(
            str(jar) for jar in ensure_jars(jars_for(environment.root))
        ),
        "spark.hadoop.hive.server2.thrift.bind.host": host,
        "spark.hadoop.hive.server2.thrift.port": str(port),
    }
