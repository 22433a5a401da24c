"""Build the Spark session from the environment and the locked jars; no other module builds one.

It is started in this process, opened on a Spark Connect server, or taken from a managed runtime.
"""

from __future__ import annotations

import atexit
import codecs
import contextlib
import functools
import locale
import logging
import os
import re
import shutil
import socket
import sys
import tempfile
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from tidelake.config import DeltaSource, Environment, FilesSource, Pipeline, load_environment
from tidelake.config.environment import (
    REMOTE_VARIABLE,
    RESULT_SETTINGS,
    has_result_setting,
    on_databricks,
)
from tidelake.errors import MachineError
from tidelake.folders import is_stored
from tidelake.object_store import spark_settings
from tidelake.spark.java import (
    EXECUTOR_OPTIONS,
    SessionUse,
    class_settings,
    driver_options,
    ensure_jars,
    jars_for,
)
from tidelake.spark.quiet import output_to
from tidelake.spark.tuning import BRIEF_DRIVER, SESSION_SETTINGS
from tidelake.typed import runnable
from tidelake.without_pandas import show_pandas, worker_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# One file per partition, of any size, so that a row's position in its partition is its position in
# the file; and each file of the folder, whole.
_WHOLE_FILES = {
    "spark.sql.files.maxPartitionBytes": str(1 << 40),
    "spark.sql.files.openCostInBytes": str(1 << 40),
    # With more files than an environment's limit, Spark would pack several into a partition.
    "spark.sql.files.maxPartitionNum": str((1 << 31) - 1),
    # Of a damaged or missing file, Spark would keep what it had read, and not fail.
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    # Of a folder that a streaming sink once wrote, Spark would read only the files in its log.
    "spark.sql.streaming.fileStreamSink.ignoreMetadata": "true",
}

# Log folders named by an error, which are not removed.
_KEPT: set[Path] = set()

_REMOTE = re.compile(r"sc://(?P<host>\[[^]]+\]|[^:/;]+)(:(?P<port>[0-9]+))?")
# Spark Connect's default port.
_REMOTE_PORT = 15002
_REMOTE_SECONDS = 5.0

_OF_A_CLUSTER = "Set {} {} in the cluster's Spark config"

# A checkpoint file on a store becomes visible when it is closed, and never if the write is aborted.
_CHECKPOINT_FILES = "spark.sql.streaming.checkpointFileManagerClass"
_ABORTABLE = "org.apache.spark.internal.io.cloud.AbortableStreamBasedCheckpointFileManager"
# A folder of a store is listed in one request per thousand objects, not in one or more per
# subfolder. Spark does so by itself for the scheme s3a only.
_FLAT_LISTING = {"spark.sql.sources.useListFilesFileSystemList": "s3,s3a"}


def reads_of(pipeline: Pipeline) -> list[str]:
    """Return the paths that a pipeline and its dimensions read files from."""
    sources = [item.source for item in (pipeline, *pipeline.dimensions.values())]
    found = (one.paths for one in sources if isinstance(one, FilesSource | DeltaSource))
    return [path for paths in found for path in paths]


def build_session(
    env: str | Environment = "local", *, reads: Iterable[str] = (), use: SessionUse = "lasting"
) -> SparkSession:
    """Start Spark with Delta for an environment, connect to its server, or join its runtime.

    The JVM's own messages go to :func:`spark_log`.

    Args:
        env: The environment or its name.
        reads: Paths of sources; one on an object store adds the jars that read it.
        use: ``brief`` for a few small batches: the JVM uses only its fast compiler, so that a cold
            run takes half the CPU time. ``bulk`` for other work that ends: its optimizing compiler
            leaves planning out, and its garbage collector favours throughput over short pauses.
            ``lasting`` for continuous work.

    Raises:
        MachineError: Java or Spark is missing or does not start, or there is no runtime.
        JarError: A jar's hash differs from the lock.
    """
    # PySpark uses it, and so may functions of users.
    show_pandas()
    environment = load_environment(env) if isinstance(env, str) else env
    if environment.remote is not None:
        return _connected(environment.remote)
    if not starts_spark(environment):
        return _joined(environment)
    try:
        from pyspark.errors import PySparkRuntimeError  # noqa: PLC0415  heavy, and optional
        from pyspark.sql import SparkSession  # noqa: PLC0415

        from tidelake.spark.internals import (  # noqa: PLC0415
            JavaError,
            cache_java_classes,
            forget_services,
            local_files,
        )
    except ImportError as error:
        raise MachineError(
            "PySpark is not installed. Install it with: pip install 'tidelake[local]'"
        ) from error

    # Python functions run in this interpreter, not in the first python3 on the path.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    _ensure_utf8_names()
    # Options of the JVM in which Spark's scripts build the driver's command.
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", BRIEF_DRIVER)
    log = spark_log()
    # These loggers print full stack traces; the user gets a TidelakeError instead.
    for logger in ("py4j", "SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logging.getLogger(logger).setLevel(logging.CRITICAL + 1)
    master = environment.master or "local[*]"
    builder = SparkSession.builder.master(master).appName("tidelake")
    places = [place for place in (environment.root, *reads) if place]
    settings = _settings(environment, ensure_jars(jars_for(*places)), use)
    on_store = any(map(is_stored, places))
    if on_store:
        settings |= _store_settings(environment)
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        with output_to(log):
            session = builder.getOrCreate()
            cache_java_classes(session)
            # The process may have had a session, with another master.
            if _is_one_process(str(session.sparkContext.master)):
                forget_services(session, on_store=on_store)
            # Beside each file, `.NAME.crc` is another one to create, open and list, in Delta's log
            # above all. Files that have one are still compared; an overwritten file loses it.
            local_files(session).setWriteChecksum(False)
    except (JavaError, PySparkRuntimeError, OSError) as error:
        why = str(error.java_exception.toString() if isinstance(error, JavaError) else error)
        raise MachineError(
            f"Spark did not start: {why.splitlines()[0][:400]}\n"
            f"Spark's log is {kept_log(error)}. Check with: {runnable('tidelake doctor')}"
        ) from error
    session.sparkContext.setLogLevel("ERROR")
    return session


def _ensure_utf8_names() -> None:
    """Let Java, which inherits the locale, read names of files as UTF-8, as Python does.

    With ``LC_ALL=C`` it would not find files with other letters than ASCII in their names.
    """
    if codecs.lookup(locale.getencoding()).name == "ascii":
        os.environ["LC_ALL"] = "C.UTF-8"


def starts_spark(environment: Environment) -> bool:
    """Return whether Tidelake starts and stops the session, rather than a managed runtime."""
    return environment.root is not None or environment.remote is not None


def _joined(environment: Environment) -> SparkSession:
    """Return the session of the managed runtime, with the settings that it accepts."""
    remedy = (
        f"environment {environment.name} uses catalog {environment.catalog}, which only a "
        "Databricks runtime can access. Run it there, as a job or in a notebook; here, give --root "
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
    for key, value in environment.spark.items():
        # The compute may refuse a setting; those that results depend on are checked below.
        with contextlib.suppress(PySparkException):
            session.conf.set(key, value)
    _set_results(session, _OF_A_CLUSTER)
    return session


def sibling_of(session: SparkSession) -> SparkSession:
    """Return a new session of the same context, with the settings that results depend on.

    Spark gives it those that the compute starts with.
    """
    sibling = session.newSession()
    _set_results(sibling, _OF_A_CLUSTER)
    return sibling


def active_session() -> SparkSession | None:
    """Return the session that this process already has; None without one.

    Raises:
        MachineError: A setting that results depend on has another value and cannot be set.
    """
    from pyspark.sql import SparkSession  # noqa: PLC0415  heavy, and optional

    show_pandas()
    session = SparkSession.getActiveSession()
    if session is not None:
        _set_results(session, "Set {} to {} where the session is built")
    return session


def _set_results(session: SparkSession, remedy: str) -> None:
    """Set what results depend on; serverless compute allows the time zone and ANSI mode.

    Raises:
        MachineError: A setting has another value and cannot be set; gives the ``remedy``, with the
            setting and its value in place of ``{}``.
    """
    from pyspark.errors import PySparkException  # noqa: PLC0415  heavy, and optional

    for key, value in RESULT_SETTINGS.items():
        if _differing(session, key) is None:
            continue
        with contextlib.suppress(PySparkException):
            session.conf.set(key, value)
        found = _differing(session, key)
        if found is not None:
            raise MachineError(
                f"the session's {key} is {found} and cannot be set. {remedy.format(key, value)}"
            )


def _differing(session: SparkSession, key: str) -> str | None:
    """Return a session's value of a setting that results depend on; None if it is right."""
    from pyspark.errors import PySparkException  # noqa: PLC0415  heavy, and optional

    try:
        found = str(session.conf.get(key))
    except PySparkException:
        # Serverless compute does not show settings that nobody can change there.
        return None
    return None if has_result_setting(key, found) else found


def _connected(remote: str) -> SparkSession:
    """Open a session on the Spark Connect server at ``sc://host:port``.

    ``SPARK_REMOTE`` may add a token and other parameters.
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
        _set_results(spark, "Start the server with: --conf {}={}")
    except PySparkException as error:
        first_line = str(error).strip().splitlines()[0][:300]
        raise MachineError(
            f"the Spark Connect server at {remote} refused the session: {first_line}"
        ) from error
    return spark


def _refuse_silent(remote: str) -> None:
    """Fail at once if no server listens; the client would retry for minutes."""
    found = _REMOTE.match(remote)
    if found is None:
        raise MachineError(f"{REMOTE_VARIABLE} must look like sc://host:port")
    host, port = found["host"].strip("[]"), int(found["port"] or _REMOTE_PORT)
    try:
        with socket.create_connection((host, port), timeout=_REMOTE_SECONDS):
            return
    except (OSError, ValueError) as error:
        # Of a name with an empty or a long label the error is a ValueError.
        why = error.strerror if isinstance(error, OSError) else None
        raise MachineError(
            f"no Spark Connect server answers at {remote}: {why or error}. "
            "Start it, or correct remote in the environment."
        ) from error


def _executor_settings(environment: Environment, jars: list[Path]) -> dict[str, str]:
    """Return the settings of executors, which may be separate processes.

    The jars must be on the class path that executors start with. Otherwise each task loads Delta's
    classes, by another class loader than the Spark classes that refer to them.
    """
    master = environment.master or "local"
    # Only executors on other machines reach the driver through the network.
    loopback = {"spark.driver.host": "localhost", "spark.driver.bindAddress": "127.0.0.1"}
    if not master.startswith(("local-cluster[", "spark://")):
        return loopback
    import pyspark  # noqa: PLC0415  heavy, and optional

    # The processes that Spark starts find Spark by this variable.
    os.environ.setdefault("SPARK_HOME", str(Path(pyspark.__file__).parent))
    class_path = {"spark.executor.extraClassPath": os.pathsep.join(str(jar) for jar in jars)}
    return class_path | (loopback if master.startswith("local-cluster[") else {})


def spark_log() -> Path:
    """Return the log file of this process's JVM.

    It contains values of rows: its folder is readable only by this user, and is removed when the
    process ends unless an error names it (:func:`kept_log`).
    """
    return _log_folder(os.getpid()) / "spark.log"


@functools.cache
def _log_folder(process: int) -> Path:
    """Create the log folder of a process; a forked process gets its own."""
    folder = Path(tempfile.mkdtemp(prefix=f"tidelake-spark-{process}-"))
    (folder / "spark.log").touch(mode=0o600)

    def remove() -> None:
        if os.getpid() == process and folder not in _KEPT:
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder


def kept_log(error: BaseException) -> Path:
    """Append an error's traceback to Spark's log, and keep the log after the process ends."""
    log = spark_log()
    with contextlib.suppress(OSError), log.open("a", encoding="utf-8", errors="replace") as file:
        file.writelines(traceback.format_exception(error))
    _KEPT.add(log.parent)
    return log


def whole_file_session(spark: SparkSession) -> SparkSession:
    """Return a sibling session that reads each file of a folder into its own partition.

    Returns the session itself where the engine may refuse these settings.
    """
    from tidelake.spark.engine import runs_in_process  # noqa: PLC0415

    if not runs_in_process():
        return spark
    sibling = sibling_of(spark)
    for key, value in _WHOLE_FILES.items():
        sibling.conf.set(key, value)
    return sibling


def _is_one_process(master: str) -> bool:
    return master == "local" or master.startswith("local[")


def _settings(
    environment: Environment, jars: list[Path], use: SessionUse = "lasting"
) -> dict[str, str]:
    """Merge the defaults for one machine with the environment's settings."""
    slots, master = str(os.cpu_count() or 2), environment.master or "local"
    # Separate executors have no archive of classes.
    classes, archive_option = class_settings(jars) if _is_one_process(master) else ({}, "")
    options = [EXECUTOR_OPTIONS, archive_option, driver_options(use)]
    return {
        **_executor_settings(environment, jars),
        **classes,
        "spark.jars": ",".join(str(jar) for jar in jars),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.driver.extraJavaOptions": " ".join(filter(None, options)),
        "spark.executor.extraJavaOptions": EXECUTOR_OPTIONS,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.warehouse.dir": str(Path(tempfile.gettempdir()) / "tidelake-warehouse"),
        "spark.sql.shuffle.partitions": slots,
        **SESSION_SETTINGS,
        **worker_settings(),
        **environment.spark,
        **RESULT_SETTINGS,
    }


def _store_settings(environment: Environment) -> dict[str, str]:
    """Return the settings for reading a store, and for checkpoints if the root is on one."""
    settings = spark_settings() | _FLAT_LISTING
    if environment.root is not None and is_stored(environment.root):
        # The default manager writes objects in place, and readers would see partial files.
        settings[_CHECKPOINT_FILES] = _ABORTABLE
    return settings
