"""Let a session of the Thrift server read, and nothing else.

Spark has no switch for that. But each statement of a client goes through its session's parser, and
a parser can be put in front of it, even one in Python: what that passes on, Spark runs.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar

from py4j.protocol import Py4JJavaError
from pyspark.errors.exceptions.captured import CapturedException
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import SparkSession

# Commands that change nothing but the client's own session, by the names of their plans.
_READING = re.compile(
    r"(Show|Describe|Desc)\w*|SetCatalogAndNamespace|SetNamespaceCommand|SetCommand|ExplainCommand"
)
# Plans that are no command and write all the same, or run what the client brings along. A query
# whose texts hold such a word is refused as well.
_WRITING = re.compile(
    r"InsertInto|ScriptTransformation|PlanWithUnresolvedIdentifier|ExecuteImmediate|CompoundBody"
)
# They call any method of any class.
_UNSAFE = ("reflect", "try_reflect", "java_method")
# With it a client could read any file as a table.
_FILES = "spark.sql.runSQLOnFiles"
_COMMAND = "org.apache.spark.sql.catalyst.plans.logical.Command"


def only_reading(spark: SparkSession) -> None:
    """Put a guard in front of each session that begins from now on; ``spark`` itself may write.

    Args:
        spark: The session that clients' sessions are made from; it belongs to nobody else.
    """
    context = spark.sparkContext
    gateway, jvm = context._gateway, context._jvm
    assert gateway is not None and jvm is not None
    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
    # So that a client hears what Spark says, and no stack trace of ours.
    gateway.python_parameters.propagate_java_exceptions = True
    # Made before the guard is there: this session's own parser stays as it is.
    spark._jsparkSession.sessionState().sqlParser()
    spark._jsparkSession.extensions().injectParser(_Guards(jvm))
    registry = jvm.org.apache.spark.sql.catalyst.analysis.FunctionRegistry.builtin()
    for name in _UNSAFE:
        registry.dropFunction(jvm.org.apache.spark.sql.catalyst.FunctionIdentifier(name))


class _Guards:
    """Makes the guard of a session; called by the JVM."""

    def __init__(self, jvm: Any) -> None:
        self._jvm = jvm

    def apply(self, session: Any, parser: Any) -> _Guard:
        return _Guard(self._jvm, session, parser)

    class Java:
        implements: ClassVar[list[str]] = ["scala.Function2"]


class _Guard:
    """A parser that passes on what another one made of a statement, if it only reads."""

    def __init__(self, jvm: Any, session: Any, parser: Any) -> None:
        self._jvm = jvm
        self._session = session
        self._parser = parser
        self._command = jvm.java.lang.Class.forName(
            _COMMAND, False, jvm.Thread.currentThread().getContextClassLoader()
        )

    def __getattr__(self, name: str) -> Any:
        """Hand everything else that a parser does to the other one."""
        if not name.startswith("parse"):
            raise AttributeError(name)
        parse = getattr(self._parser, name)
        return lambda *arguments: self._told(parse, *arguments)

    def parsePlan(self, sql: str) -> Any:
        return self._passed(self._told(self._parser.parsePlan, sql))

    def parsePlanWithParameters(self, sql: str, parameters: Any) -> Any:
        return self._passed(self._told(self._parser.parsePlanWithParameters, sql, parameters))

    def toString(self) -> str:
        return "a parser that lets nobody write"

    def _told(self, parse: Any, *arguments: Any) -> Any:
        try:
            return parse(*arguments)
        except CapturedException as error:
            raise Py4JJavaError("", error._origin) from error

    def _passed(self, plan: Any) -> Any:
        self._session.conf().set(_FILES, "false")
        kind = plan.getClass()
        name, whole = kind.getSimpleName(), kind.getName()
        # Delta's own, and a few of Spark's, are no commands until they are analysed.
        acts = self._command.isInstance(plan) or name.endswith("Statement") or ".delta." in whole
        if (acts and not _READING.fullmatch(name)) or _WRITING.search(plan.treeString()):
            raise Py4JJavaError("", self._refusal())
        return plan

    def _refusal(self) -> Any:
        return self._jvm.UnsupportedOperationException(
            "this server only reads; tables change through tidelake run"
        )

    class Java:
        implements: ClassVar[list[str]] = ["org.apache.spark.sql.catalyst.parser.ParserInterface"]
