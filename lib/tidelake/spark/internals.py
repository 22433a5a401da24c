"""The only calls into private API of Spark, of Delta and of Py4J.

An upgrade of Spark is checked here. Each function either has a fallback where Spark's JVM is out
of reach of this process, as through Spark Connect, or says that it needs a session of this process.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError as BridgeError
from py4j.protocol import Py4JJavaError as JavaError
from pyspark import SparkConf, SparkContext
from pyspark.errors.exceptions.captured import CapturedException
from pyspark.java_gateway import ensure_callback_server_started, launch_gateway
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.utils import is_remote

from tidelake.errors import JarError
from tidelake.spark.quiet import output_to

__all__ = [
    # The bridge to the JVM failed, in any way, and the JVM threw an exception.
    "BridgeError",
    "JavaError",
    "clone_of",
    "clones_sessions",
    "collected",
    "end_jvm",
    "in_driver",
    "inject_parser",
    "java_cause",
    "jvm_of",
    "moved",
    "null_on_error",
    "release",
    "resolve_jars",
    "stack_trace",
    "start_thrift_server",
]

_EXIT_SECONDS = 30


def jvm_of(spark: SparkSession) -> Any | None:
    """Return the view of Spark's JVM, by which Java classes are called; None where out of reach."""
    return None if is_remote() else spark._jvm


def stack_trace(error: BaseException) -> str:
    """Return what an error says; of the JVM's exceptions the stack trace, which names causes."""
    return str(error._stackTrace if isinstance(error, CapturedException) else error)


def null_on_error(value: Column) -> Column:
    """Evaluate a column, null where that raises.

    Catalyst's ``TryEval`` does this, but has no name in SQL or Python. Through Spark Connect
    ``try_to_binary``, which holds a ``TryEval``, finds out whether the column can be evaluated; it
    is evaluated twice there.

    Raises:
        RuntimeError: There is no running Spark session.
    """
    # Common subexpressions of two attempts would be computed once, before and outside of both; the
    # branches of a condition are not. This one is always true, which the optimizer cannot know.
    if is_remote():
        shown = F.length(value.cast("string")).cast("string")
        shown = F.when(F.spark_partition_id() >= 0, shown)
        # Null where anything beneath it raises; a text of digits it always takes.
        return F.when(F.try_to_binary(shown, F.lit("utf-8")).isNotNull(), value)
    guarded: Any = F.when(F.spark_partition_id() >= 0, value)
    context = SparkContext._active_spark_context
    if context is None or context._jvm is None:
        raise RuntimeError("an expression needs a running Spark session")
    from pyspark.sql.classic.column import Column as ClassicColumn  # noqa: PLC0415

    jvm: Any = context._jvm
    bridge = jvm.org.apache.spark.sql.classic.ExpressionUtils
    expression = bridge.expression(guarded._jc)
    tried = jvm.org.apache.spark.sql.catalyst.expressions.TryEval(expression)
    return ClassicColumn(bridge.column(tried))


def release(checkpointed: DataFrame) -> None:
    """Free the rows of a frame from ``localCheckpoint``."""
    _rows_of(checkpointed).unpersist(False)


def in_driver(checkpointed: DataFrame) -> DataFrame:
    """Bring the rows of a frame from ``localCheckpoint`` to the driver, into the plan itself.

    Spark then knows how few they are, and broadcasting them takes no job. Where this Spark's
    classes have other constructors, the frame is returned as it is.
    """
    query: Any = checkpointed._jdf.queryExecution()
    rows = _rows_of(checkpointed).collect()
    try:
        return _local(checkpointed.sparkSession, rows, query)
    except BridgeError:
        return checkpointed


def collected(frame: DataFrame) -> DataFrame | None:
    """Compute the rows of a frame and bring them to the driver, into a plan of their own.

    Returns:
        None where this Spark's classes have other constructors, or none are at hand.
    """
    if is_remote():
        return None
    query: Any = frame._jdf.queryExecution()
    # Outside of the attempt: rows that cannot be computed are not computed a second time.
    rows = query.executedPlan().executeCollect()
    try:
        return _local(frame.sparkSession, rows, query)
    except BridgeError:
        return None


def _rows_of(checkpointed: DataFrame) -> Any:
    plan: Any = checkpointed._jdf.queryExecution().analyzed()
    return plan.rdd()


@functools.lru_cache(maxsize=1)
def _relation_classes(jvm: Any) -> tuple[Any, Any, Any, Any]:
    """Look up Spark's classes; each part of a class's name is a call into the JVM."""
    spark = jvm.org.apache.spark.sql
    return (
        jvm.scala.collection.immutable.ArraySeq.unsafeWrapArray,
        spark.catalyst.plans.logical.LocalRelation,
        spark.classic.Dataset.ofRows,
        jvm.scala.Option.apply(None),
    )


def _local(session: SparkSession, rows: Any, query: Any) -> DataFrame:
    """Make a ``LocalRelation`` of rows in Spark's internal form.

    ``collect`` would not do: it converts maps, and loses the order of their entries.
    """
    wrap, local_relation, frame_of, none = _relation_classes(session.sparkContext._jvm)
    relation = local_relation(query.analyzed().output(), wrap(rows), False, none)
    made = frame_of(session._jsparkSession, relation)
    # One partition satisfies every distribution and ordering: nothing is shuffled.
    return DataFrame(made, session).coalesce(1)


def moved(frame: DataFrame, session: SparkSession) -> DataFrame:
    """Attach a frame to another session of the same context."""
    if frame.sparkSession is session:
        return frame
    jvm: Any = session._jvm
    plan = frame._jdf.queryExecution().analyzed()
    made = jvm.org.apache.spark.sql.classic.Dataset.ofRows(session._jsparkSession, plan)
    return DataFrame(made, session)


def clones_sessions() -> bool:
    """Return whether :func:`clone_of` is possible; through Spark Connect it is not."""
    return not is_remote()


def clone_of(session: SparkSession) -> SparkSession:
    """Return a new session of the same context, with the settings that this one has now."""
    java: Any = session._jsparkSession
    return SparkSession(session.sparkContext, java.cloneSession())


def inject_parser(spark: SparkSession, factory: Callable[[Any], Any]) -> Any:
    """Put a parser written in Python in front of Spark's, in each session that begins from now on.

    Args:
        spark: The session that others are made from; it keeps its own parser.
        factory: Takes the JVM; returns a ``scala.Function2`` from session and parser to parser.
    """
    gateway, jvm = spark.sparkContext._gateway, spark.sparkContext._jvm
    assert gateway is not None and jvm is not None
    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
    # So that a client reads Spark's message, and no stack trace of Python's.
    gateway.python_parameters.propagate_java_exceptions = True
    # Creates this session's own parser before the injection, so that it stays as it is.
    spark._jsparkSession.sessionState().sqlParser()
    spark._jsparkSession.extensions().injectParser(factory(jvm))
    return jvm


def java_cause(error: CapturedException) -> JavaError:
    """Return an error that lets Java code see the exception that PySpark captured."""
    return JavaError("", error._origin)


def start_thrift_server(spark: SparkSession, log: Path) -> Any:
    """Start Spark's ``HiveThriftServer2`` in this session, and return it."""
    jvm: Any = spark.sparkContext._jvm
    # Hive's classes bring Derby along, which would write a log into the working directory.
    jvm.System.setProperty("derby.stream.error.file", f"{log}.derby")
    starter = jvm.org.apache.spark.sql.hive.thriftserver.HiveThriftServer2
    with output_to(log):
        return starter.startWithSparkSession(spark._jsparkSession, False)


def resolve_jars(coordinates: str, cache: str) -> None:
    """Fetch jars by their Maven coordinates into a folder, with Spark's own resolver.

    Args:
        coordinates: Separated by commas.
        cache: The resolver puts them into ``jars`` below it.

    Raises:
        JarError: One cannot be fetched.
    """
    with _jvm_without_context() as jvm:
        none = jvm.scala.Option.apply(None)
        nil = getattr(getattr(jvm.scala.collection.immutable, "Nil$"), "MODULE$")
        silent = jvm.java.io.PrintStream(jvm.java.io.OutputStream.nullOutputStream())
        maven = jvm.org.apache.spark.util.MavenUtils
        settings = maven.buildIvySettings(none, jvm.scala.Option.apply(cache), False, silent)
        try:
            maven.resolveMavenCoordinates(coordinates, settings, none, False, nil, False, silent)
        except JavaError as error:
            reason = str(error.java_exception.getMessage())
            raise JarError(f"the jars could not be fetched: {reason}") from error


@contextmanager
def _jvm_without_context() -> Iterator[Any]:
    with output_to(Path(os.devnull)):
        gateway = launch_gateway(SparkConf(loadDefaults=False))  # type: ignore[no-untyped-call]  # py4j
    try:
        yield gateway.jvm
    finally:
        _end(gateway, _EXIT_SECONDS)


def end_jvm() -> None:
    """End the JVM of this process, if there is one, and wait until it has written its archive."""
    gateway = SparkContext._gateway
    if gateway is not None:
        _end(gateway, None)


def _end(gateway: Any, seconds: float | None) -> None:
    gateway.shutdown()
    process = getattr(gateway, "proc", None)
    if process is not None:
        # The JVM ends when nobody holds its standard input any more.
        process.stdin.close()
        process.wait(timeout=seconds)
