"""Build the Spark session: the only place that does, from the environment and the locked jars."""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import os
import shutil
import sys
import tempfile
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from tidelake import java
from tidelake.classes import class_settings
from tidelake.config import DeltaSource, Environment, FilesSource, Pipeline, load_environment
from tidelake.config.databricks import on_databricks
from tidelake.errors import MachineError, UsageError
from tidelake.jars import ensure_jars, read_lock, store_lock
from tidelake.quiet import output_to
from tidelake.remote import connect
from tidelake.store.access import spark_settings
from tidelake.store.folders import is_stored
from tidelake.tables import Catalog, Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A partition may hold any file whole and no second one: a row's position in its partition is
# then its position in the file.
_WHOLE_FILES = {
    "spark.sql.files.maxPartitionBytes": str(1 << 40),
    "spark.sql.files.openCostInBytes": str(1 << 40),
}

# Folders of logs that an error named.
_KEPT: set[Path] = set()

# A store's file appears when it is closed, and never when that was given up.
_CHECKPOINT_FILES = "spark.sql.streaming.checkpointFileManagerClass"
_ABORTABLE = "org.apache.spark.internal.io.cloud.AbortableStreamBasedCheckpointFileManager"


def reads_of(pipeline: Pipeline) -> list[str]:
    """Name the places that a pipeline and its dimensions read files from."""
    sources = [one.source for one in (pipeline, *pipeline.dimensions.values())]
    return [one.path for one in sources if isinstance(one, FilesSource | DeltaSource)]


def build_session(
    env: str | Environment = "local", *, reads: Iterable[str] = (), brief: bool = False
) -> SparkSession:
    """Start Spark with Delta for an environment, connect to its server, or join its runtime.

    The JVM's own messages go to :func:`spark_log`.

    Args:
        env: Its name, or itself.
        reads: Where sources lie; one on an object store takes the jars that read it.
        brief: Whether it will live for some small batches. Its JVM then compiles quickly instead
            of well: a cold run takes half of the cores' seconds, rows in bulk take longer.

    Raises:
        MachineError: Java or Spark is missing or does not start, or there is no runtime.
        JarError: A jar's hash differs from the lock.
    """
    environment = load_environment(env) if isinstance(env, str) else env
    if environment.remote is not None:
        return connect(environment.remote)
    if not starts_spark(environment):
        return _joined(environment)
    try:
        from py4j.protocol import Py4JJavaError  # noqa: PLC0415  heavy, and optional
        from pyspark.errors import PySparkRuntimeError  # noqa: PLC0415
        from pyspark.sql import SparkSession  # noqa: PLC0415
    except ImportError as error:
        raise MachineError(
            "PySpark is not installed. Install it with: pip install 'tidelake[local]'"
        ) from error

    # Functions of ours run in this interpreter, and not in the first python3 on the path.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    log = spark_log()
    # They print whole stack traces; what matters of them reaches the user as our own error.
    for chatter in ("py4j", "SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logging.getLogger(chatter).setLevel(logging.CRITICAL + 1)
    master = environment.master or "local[*]"
    builder = SparkSession.builder.master(master).appName("tidelake")
    on_store = _on_store(environment, reads)
    jars = session_jars(environment, reads)
    settings = _settings(environment, jars, brief=brief) | (
        _store_settings(environment) if on_store else {}
    )
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        with output_to(log):
            session = builder.getOrCreate()
    except Py4JJavaError as error:
        raise _not_started(str(error.java_exception.toString()), error) from error
    except (PySparkRuntimeError, OSError) as error:
        raise _not_started(str(error), error) from error
    session.sparkContext.setLogLevel("ERROR")
    return session


def session_jars(environment: Environment, reads: Iterable[str] = ()) -> list[Path]:
    """Give the jars that an environment's session takes; arguments as :func:`build_session`'s.

    Raises:
        JarError: A jar is missing, or its hash differs from the lock.
    """
    of_store = ensure_jars(read_lock(store_lock())) if _on_store(environment, reads) else []
    return [*ensure_jars(), *of_store]


def _on_store(environment: Environment, reads: Iterable[str]) -> bool:
    return any(is_stored(place) for place in (environment.root, *reads) if place)


def starts_spark(environment: Environment) -> bool:
    """Tell whether the session is ours to start and to stop, and not the runtime's own."""
    return environment.root is not None or environment.remote is not None


def lake_of(environment: Environment) -> Lake:
    """Give an environment's tables; in a catalog Spark is asked for only when one is looked at."""
    if environment.files is None:
        raise UsageError(f"environment {environment.name} has neither a root nor a volume.")
    if environment.catalog is None:
        return Lake(environment.files, needs_locks=environment.locks == "required")
    session = functools.cache(lambda: build_session(environment))
    catalog = Catalog(environment.catalog, session)
    return Lake(environment.files, catalog=catalog, needs_locks=False)


def _joined(environment: Environment) -> SparkSession:
    """Take the session that the runtime has, and set in it what it lets us set."""
    remedy = (
        f"environment {environment.name} lies in catalog {environment.catalog}, which only a "
        "Databricks runtime reaches. Run it there, as a job or in a notebook; here, give --root "
        "DIR, or --env local"
    )
    try:
        from pyspark.errors import PySparkException  # noqa: PLC0415  heavy, and optional
        from pyspark.sql import SparkSession  # noqa: PLC0415
    except ImportError as error:
        raise MachineError(remedy) from error
    if not on_databricks() and SparkSession.getActiveSession() is None:
        raise MachineError(remedy)
    session = SparkSession.builder.getOrCreate()
    for key, value in {"spark.sql.session.timeZone": "UTC", **environment.spark}.items():
        # The compute decides what may be set, and nothing rests on a setting but the time zone.
        with contextlib.suppress(PySparkException):
            session.conf.set(key, value)
    zone = session.conf.get("spark.sql.session.timeZone")
    if zone not in ("UTC", "Etc/UTC"):
        raise MachineError(
            f"the session's time zone is {zone} and cannot be set. Set "
            "spark.sql.session.timeZone UTC in the cluster's Spark config"
        )
    return session


def _not_started(why: str, error: Exception) -> MachineError:
    return MachineError(
        f"Spark did not start: {why.splitlines()[0][:400]}\n"
        f"Its own words are in {kept_log(error)}. Check with: tidelake doctor"
    )


def _of_executors(environment: Environment, jars: list[Path]) -> dict[str, str]:
    """Give what executors need, which may be processes of their own.

    Without the jars on the class path that they begin with, Delta's classes come to them with each
    task, and do not fit those of Spark's that wait for them.
    """
    master = environment.master or "local"
    # On this machine nobody else is to reach the driver; others have to.
    alone = {"spark.driver.host": "localhost", "spark.driver.bindAddress": "127.0.0.1"}
    if not master.startswith(("local-cluster[", "spark://")):
        return alone
    import pyspark  # noqa: PLC0415  heavy, and optional

    # Where Spark itself is, for the processes that it starts.
    os.environ.setdefault("SPARK_HOME", str(Path(pyspark.__file__).parent))
    found = {"spark.executor.extraClassPath": os.pathsep.join(str(jar) for jar in jars)}
    return found | (alone if master.startswith("local-cluster[") else {})


def _of_classes(environment: Environment, jars: list[Path]) -> tuple[dict[str, str], str]:
    """Give what the archive of classes wants, where this machine alone does the work."""
    master = environment.master or "local"
    if master != "local" and not master.startswith("local["):
        return {}, ""
    return class_settings(jars)


def spark_log() -> Path:
    """Give the file that takes what Spark's JVM says in this process.

    It holds values of rows: it lies in a folder that only this user can look into, and goes when
    the process ends, but for one whose error names it (:func:`kept_log`).
    """
    return _log_folder(os.getpid()) / "spark.log"


@functools.cache
def _log_folder(process: int) -> Path:
    """Make the folder of a process; one that is forked has its own."""
    folder = Path(tempfile.mkdtemp(prefix=f"tidelake-spark-{process}-"))
    (folder / "spark.log").touch(mode=0o600)
    atexit.register(_remove, folder, process)
    return folder


def _remove(folder: Path, process: int) -> None:
    if os.getpid() == process and folder not in _KEPT:
        shutil.rmtree(folder, ignore_errors=True)


def kept_log(error: BaseException) -> Path:
    """Write all that an error says into Spark's log, and keep that after the process ended."""
    log = spark_log()
    with contextlib.suppress(OSError), log.open("a", encoding="utf-8", errors="replace") as file:
        file.writelines(traceback.format_exception(error))
    _KEPT.add(log.parent)
    return log


def whole_file_session(spark: SparkSession) -> SparkSession:
    """Give a sibling session whose text scans put each file, whole, in its own partition."""
    sibling = spark.newSession()
    for key, value in _WHOLE_FILES.items():
        sibling.conf.set(key, value)
    return sibling


def _settings(environment: Environment, jars: list[Path], *, brief: bool = False) -> dict[str, str]:
    """Merge the defaults for one machine with the environment's own settings."""
    slots = str(os.cpu_count() or 2)
    classes, archived = _of_classes(environment, jars)
    return {
        **_of_executors(environment, jars),
        **classes,
        "spark.jars": ",".join(str(jar) for jar in jars),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.extraJavaOptions": java.driver_options(archived, brief=brief),
        "spark.executor.extraJavaOptions": java.EXECUTOR_OPTIONS,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.warehouse.dir": str(Path(tempfile.gettempdir()) / "tidelake-warehouse"),
        "spark.sql.shuffle.partitions": slots,
        "spark.sql.adaptive.enabled": "false",
        # A large batch of silver takes 180 generated classes, and Spark keeps 100 by default: each
        # batch would compile all of them anew, and the JVM after it.
        "spark.sql.codegen.cache.maxEntries": "1000",
        # Without its pages only benchmarks read what Spark keeps of past executions, plans
        # included: as many as their longest turn has, where Spark's default is a thousand.
        "spark.sql.ui.retainedExecutions": "400",
        "spark.ui.retainedJobs": "400",
        "spark.ui.retainedStages": "400",
        # A plan is written down for those pages too; its long form is a twentieth of a small batch.
        "spark.sql.ui.explainMode": "simple",
        # Spark would note each file that a plan names, up to 250 MB, for that plan alone.
        "spark.sql.hive.filesourcePartitionFileCacheSize": "0",
        "spark.databricks.delta.snapshotPartitions": "2",
        # Otherwise each call on a column is a dozen into the JVM, to note from which line it came.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        **environment.spark,
    }


def _store_settings(environment: Environment) -> dict[str, str]:
    """Let Spark read a store; where the root is on one, its own files of checkpoints too."""
    settings = spark_settings()
    if environment.root is not None and is_stored(environment.root):
        # What is made for disks would write an object in place, and readers would see half of it.
        settings[_CHECKPOINT_FILES] = _ABORTABLE
    return settings
