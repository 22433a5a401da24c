"""All calls into private API of Spark, Delta and Py4J.

Check this module when Spark is upgraded. Each function either has a fallback for engines whose JVM
this process cannot access, such as Spark Connect, or documents that it needs a local session.
"""

from __future__ import annotations

import contextlib
import functools
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from py4j.java_gateway import JavaClass, JavaMember
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
from tidelake.typed import runnable

# Re-exported: any failure of the bridge to the JVM, and an exception of the JVM.
__all__ = ["BridgeError", "JavaError"]

# What calls raise in a managed runtime whose Spark has other classes or methods: Py4J takes a class
# that is not there for a package, which cannot be called.
_OTHER_SPARK = (BridgeError, TypeError)
_EXIT_SECONDS = 30
# The name under which `collected` observes its measures.
_MEASURES = "tidelake_measures"
_SERVICES = (
    r"^(yarn|ha|hadoop\.(http|registry|zk))\..*"
    # The others apply to the files of any job.
    r"|^mapreduce\.(?!input|output|fileoutputcommitter).*"
)
_CACHED_CLASSES = ("functions", "org.apache.spark.sql.functions", "PythonUtils")


def jvm_of(spark: SparkSession) -> Any | None:
    """Return the Py4J view of Spark's JVM; None where this process cannot access it."""
    return None if is_remote() else spark._jvm


def jvm_with(spark: SparkSession, name: str) -> Any | None:
    """Return the Py4J view of Spark's JVM if it has the class ``name``.

    None where this process cannot access the JVM or the class: managed runtimes move libraries into
    packages of other names, and Py4J takes a class that is not there for a package.
    """
    jvm = jvm_of(spark)
    try:
        found = functools.reduce(getattr, name.split("."), jvm)
    except (AttributeError, BridgeError):
        return None
    return jvm if isinstance(found, JavaClass) else None


class _JavaStatics:
    """A JVM class whose static methods are looked up once."""

    def __init__(self, found: Any) -> None:
        self._found = found

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._found, name)
        if isinstance(member, JavaMember):
            # Python looks here before it calls __getattr__ again.
            setattr(self, name, member)
        return member


def cache_java_classes(spark: SparkSession) -> None:
    """Cache the JVM classes whose static methods PySpark calls for each function and column.

    PySpark asks the JVM for the class and for the method before each call, and for a short name the
    JVM searches all jars in vain: a tenth of the time of a small batch.
    """
    jvm: Any = spark.sparkContext._jvm
    for name in _CACHED_CLASSES:
        found = getattr(jvm, name)
        if isinstance(found, JavaClass):
            setattr(jvm, name, _JavaStatics(found))


def forget_services(spark: SparkSession, *, on_store: bool) -> None:
    """Remove Hadoop's settings of services that a session in one process does not use.

    Spark copies Hadoop's settings for each plan and file, and sends them to the tasks of each scan
    and each write. Most of the 1,100 are defaults of YARN and of MapReduce jobs.
    """
    context: Any = spark.sparkContext
    jvm, conf, gateway = context._jvm, context._jsc.hadoopConfiguration(), context._gateway
    if on_store:
        # Hadoop reads all defaults again when this class is loaded.
        with contextlib.suppress(JavaError):
            jvm.org.apache.hadoop.fs.FileSystem.getFileSystemClass("s3a", conf)
    unused = conf.getValByRegex(_SERVICES)
    # One by one, in public calls, takes a tenth of a second.
    with contextlib.suppress(JavaError):
        properties = conf.getClass().getDeclaredMethod(
            "getProps", gateway.new_array(jvm.java.lang.Class, 0)
        )
        properties.setAccessible(True)
        found = properties.invoke(conf, gateway.new_array(jvm.java.lang.Object, 0))
        found.keySet().removeAll(unused.keySet())


def local_files(spark: SparkSession) -> Any:
    """Return Hadoop's local file system (Java), the one that Spark uses; needs a local session."""
    context: Any = spark.sparkContext
    files = context._jvm.org.apache.hadoop.fs.FileSystem
    return files.getLocal(context._jsc.hadoopConfiguration())


def stack_trace(error: BaseException) -> str:
    """Return an error's text; for a JVM exception its stack trace, which includes the causes."""
    return str(error._stackTrace if isinstance(error, CapturedException) else error)


_TRIED = "tried"


def null_on_error(value: Column) -> Column:
    """Return an expression that is null where the evaluation of ``value`` raises.

    Uses Catalyst's ``TryEval``, which SQL and Python do not expose. Through Spark Connect, and if
    this Spark's classes differ, ``try_to_binary``, which contains a ``TryEval``, tests whether the
    column can be evaluated; the column is evaluated twice there.

    Raises:
        RuntimeError: There is no running Spark session (not through Spark Connect).
    """
    # A subexpression common to two TryEvals would be computed once, outside of both. Spark does not
    # hoist it out of a condition's branch. This condition is always true, unknown to the optimizer.
    if is_remote():
        return _null_if_not_encoded(value)
    # The struct keeps the optimizer from moving a TryEval into the branches of a CASE, whose
    # conditions would then raise.
    guarded: Any = F.struct(F.when(F.spark_partition_id() >= 0, value).alias(_TRIED))
    context = SparkContext._active_spark_context
    if context is None or context._jvm is None:
        raise RuntimeError("an expression needs a running Spark session")
    from pyspark.sql.classic.column import Column as ClassicColumn  # noqa: PLC0415

    jvm: Any = context._jvm
    try:
        bridge = jvm.org.apache.spark.sql.classic.ExpressionUtils
        expression = bridge.expression(guarded._jc)
        tried = jvm.org.apache.spark.sql.catalyst.expressions.TryEval(expression)
        return ClassicColumn(bridge.column(tried)).getField(_TRIED)
    except _OTHER_SPARK:
        return _null_if_not_encoded(value)


def _null_if_not_encoded(value: Column) -> Column:
    """Return :func:`null_on_error` of a column, by public functions."""
    digits = F.length(value.cast("string")).cast("string")
    digits = F.when(F.spark_partition_id() >= 0, digits)
    # Digits always encode, so null means that the evaluation raised.
    return F.when(F.try_to_binary(digits, F.lit("utf-8")).isNotNull(), value)


def is_deterministic(frame: DataFrame) -> bool:
    """Return whether Spark marks no expression of a frame's plan as nondeterministic.

    True through Spark Connect, where the plan cannot be asked.
    """
    return is_remote() or bool(frame._jdf.queryExecution().analyzed().deterministic())


def release(checkpointed: DataFrame) -> None:
    """Unpersist the rows of a frame from ``localCheckpoint``."""
    plan: Any = checkpointed._jdf.queryExecution().analyzed()
    plan.rdd().unpersist(False)


def in_driver(checkpointed: DataFrame) -> DataFrame:
    """Collect the rows of a frame from ``localCheckpoint`` into a ``LocalRelation``.

    Spark then knows their size, and broadcasting them takes no job. If this Spark's constructors
    differ, the frame is returned unchanged.
    """
    query: Any = checkpointed._jdf.queryExecution()
    local = _local(checkpointed.sparkSession, query.analyzed().rdd().collect(), query)
    return checkpointed if local is None else local


def collected(frame: DataFrame, *measures: Column) -> tuple[DataFrame, dict[str, Any]] | None:
    """Compute the rows of a frame in one job, and collect them into a ``LocalRelation``.

    Args:
        frame: Few rows, without observations: no listener gets this job's events.
        measures: Aggregates over the rows, with aliases.

    Returns:
        The rows, and the measures by name; an empty input may have none. None if this Spark's
        constructors differ, or through Spark Connect.
    """
    if is_remote():
        return None
    measured = frame.observe(_MEASURES, *measures) if measures else frame
    query: Any = measured._jdf.queryExecution()
    local = _local(frame.sparkSession, query.executedPlan().executeCollect(), query)
    return None if local is None else (local, _observed(query) if measures else {})


def _observed(query: Any) -> dict[str, Any]:
    """Return the measures of an executed plan."""
    found = query.observedMetrics().get(_MEASURES)
    if not found.isDefined():
        return {}
    row = found.get()
    return {name: row.get(number) for number, name in enumerate(row.schema().fieldNames())}


@functools.lru_cache(maxsize=1)
def _relation_classes(jvm: Any) -> tuple[Any, Any, Any, Any]:
    """Look up and cache Spark's classes; each part of a class name is a call into the JVM."""
    spark = jvm.org.apache.spark.sql
    return (
        jvm.scala.collection.immutable.ArraySeq.unsafeWrapArray,
        spark.catalyst.plans.logical.LocalRelation,
        spark.classic.Dataset.ofRows,
        jvm.scala.Option.apply(None),
    )


def _local(session: SparkSession, rows: Any, query: Any) -> DataFrame | None:
    """Create a ``LocalRelation`` of rows; None if this Spark's constructors differ.

    The rows are in Spark's internal format: ``collect`` converts maps and loses the order of their
    entries.
    """
    try:
        wrap, local_relation, of_rows, none = _relation_classes(session.sparkContext._jvm)
        relation = local_relation(query.analyzed().output(), wrap(rows), False, none)
        dataset = of_rows(session._jsparkSession, relation)
    except _OTHER_SPARK:
        return None
    # One partition satisfies every distribution and ordering: nothing is shuffled.
    return DataFrame(dataset, session).coalesce(1)


def moved(frame: DataFrame, session: SparkSession) -> DataFrame:
    """Attach a frame to another session of the same context.

    If this Spark's constructors differ, through a view that all sessions see. Not left in its own
    session: merges that run at once would then have each other's commit metadata.
    """
    if frame.sparkSession is session:
        return frame
    try:
        _, _, of_rows, _ = _relation_classes(session.sparkContext._jvm)
        plan = frame._jdf.queryExecution().analyzed()
        return DataFrame(of_rows(session._jsparkSession, plan), session)
    except _OTHER_SPARK:
        name = f"tidelake_{uuid.uuid4().hex}"
        frame.createGlobalTempView(name)
        try:
            return session.table(f"global_temp.{name}")
        finally:
            session.catalog.dropGlobalTempView(name)


def clone_of(session: SparkSession) -> SparkSession:
    """Return a new session of the same context with a copy of the current settings."""
    java: Any = session._jsparkSession
    return SparkSession(session.sparkContext, java.cloneSession())


def inject_parser(spark: SparkSession, factory: Callable[[Any], Any]) -> Any:
    """Install a parser written in Python before Spark's, for all sessions created from now on.

    The session itself keeps its parser. ``factory`` takes the JVM, and returns a
    ``scala.Function2`` from session and parser to parser.
    """
    gateway, jvm = spark.sparkContext._gateway, spark.sparkContext._jvm
    assert gateway is not None and jvm is not None
    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
    # So that a client gets Spark's message, not a Python stack trace.
    gateway.python_parameters.propagate_java_exceptions = True
    # Creates this session's parser before the injection, so that it is unchanged.
    spark._jsparkSession.sessionState().sqlParser()
    spark._jsparkSession.extensions().injectParser(factory(jvm))
    return jvm


def list_columns(spark: SparkSession, table: str) -> None:
    """Store a Delta table's current columns in Spark's own catalog, which JDBC clients list.

    CREATE TABLE stores none for a table that exists.
    """
    layer, name = table.split(".")
    catalog: Any = spark._jsparkSession.sessionState().catalog().externalCatalog()
    catalog.alterTableSchema(layer, name, spark.table(table)._jdf.schema())


def java_cause(error: CapturedException) -> JavaError:
    """Return an error that passes the exception captured by PySpark on to Java code."""
    return JavaError("", error._origin)


def start_thrift_server(spark: SparkSession, log: Path) -> Any:
    """Start Spark's ``HiveThriftServer2`` in this session, and return it."""
    jvm: Any = spark.sparkContext._jvm
    # Hive loads Derby, which would write a log into the working directory.
    jvm.System.setProperty("derby.stream.error.file", f"{log}.derby")
    starter = jvm.org.apache.spark.sql.hive.thriftserver.HiveThriftServer2
    with output_to(log):
        return starter.startWithSparkSession(spark._jsparkSession, False)


def resolve_jars(coordinates: str, cache: str) -> None:
    """Fetch jars with Spark's resolver, by Maven coordinates separated by commas.

    They are written to ``jars`` in the folder ``cache``.

    Raises:
        JarError: A jar cannot be fetched.
    """
    with output_to(Path(os.devnull)):
        gateway = launch_gateway(SparkConf(loadDefaults=False))  # type: ignore[no-untyped-call]  # py4j
    try:
        jvm = gateway.jvm
        none = jvm.scala.Option.apply(None)
        nil = getattr(getattr(jvm.scala.collection.immutable, "Nil$"), "MODULE$")
        silent = jvm.java.io.PrintStream(jvm.java.io.OutputStream.nullOutputStream())
        maven = jvm.org.apache.spark.util.MavenUtils
        settings = maven.buildIvySettings(none, jvm.scala.Option.apply(cache), False, silent)
        maven.resolveMavenCoordinates(coordinates, settings, none, False, nil, False, silent)
    except JavaError as error:
        reason = str(error.java_exception.getMessage())
        raise JarError(
            f"the jars could not be fetched: {reason}. "
            f"Check the network, then run: {runnable('tidelake doctor --fetch')}"
        ) from error
    finally:
        _end(gateway, _EXIT_SECONDS)


def end_jvm() -> None:
    """End this process's JVM, if any, and wait until it has written its class archive."""
    gateway = SparkContext._gateway
    if gateway is not None:
        _end(gateway, None)


def _end(gateway: Any, seconds: float | None) -> None:
    gateway.shutdown()
    if process := getattr(gateway, "proc", None):
        # The JVM ends when its standard input is closed.
        process.stdin.close()
        process.wait(timeout=seconds)
