"""Check the requirements on a machine or a catalog; each failing check has a remedy.

Privileges in a catalog are tested by creating and dropping a table instead of being read: they may
be granted, inherited or come with ownership. What file systems and volumes support is tested by
doing what runs do there, with the same functions.
"""

from __future__ import annotations

import errno
import os
import platform
import re
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tidelake
from tidelake.config.types import parse_schema
from tidelake.delta.holders import Waiting
from tidelake.delta.locks import hold, lease
from tidelake.delta.store import Catalog, CatalogTable
from tidelake.delta.tables import Lake
from tidelake.errors import JarError, MachineError, NoLocksError, TidelakeError
from tidelake.folders import Folder, is_url, remove_tree, write_whole
from tidelake.names import LAYERS
from tidelake.spark.java import cache_dir, jars_for, java_path, sha256_of
from tidelake.typed import runnable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_LEAST_JAVA, _LEAST_MEMORY_GIB, _LEAST_DISK_GIB = 17, 4, 2
_GIB = 1 << 30
# A server may have to start workers, and serverless compute to install the wheel in them.
_WORKER_SECONDS = 600
_FINDING = "what STRING, found STRING, remedy STRING"


@dataclass(frozen=True)
class DoctorFinding:
    """What was checked, what was found, and the remedy; empty if none is needed."""

    what: str
    found: str
    remedy: str = ""

    @property
    def well(self) -> bool:
        """Whether nothing needs to be done."""
        return not self.remedy


def examine_lake(lake: Lake, *, landing: str | None = None) -> list[DoctorFinding]:
    """Check the machine; with a catalog the catalog, its runtime and the volumes.

    ``landing`` is the folder of the input files. It is checked only on a volume: on a machine it
    may be made later, and an external location is read by Spark alone.
    """
    # An older Python than Tidelake needs could not have imported it.
    python = DoctorFinding("Python", platform.python_version())
    if lake.catalog is not None:
        is_checked = landing is not None and not is_url(landing)
        volume = check_volume(Path(str(lake.root)))
        return [
            python,
            *_check_catalog(lake.catalog),
            volume,
            *(check_workers(lake.catalog, lake.root) if volume.well else []),
            *([check_landing(Path(str(landing)))] if is_checked else []),
        ]
    machine_checks = [python, check_java(), check_spark(), check_memory()]
    root_check = check_root(lake.root, needs_locks=lake.needs_locks)
    return [*machine_checks, check_disk(lake.root), check_jars(lake.root), root_check]


def check_java() -> DoctorFinding:
    """Require Java 17 or newer in JAVA_HOME or PATH, as Spark does."""
    remedy = (
        f"install a JDK {_LEAST_JAVA} or newer (Debian: apt-get install openjdk-17-jre-headless) "
        "and set JAVA_HOME or PATH to it"
    )
    java = java_path()
    if java is None:
        return DoctorFinding("Java", "not found", remedy)
    try:
        completed = subprocess.run(
            [java, "-version"], capture_output=True, text=True, check=False, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired):
        return DoctorFinding("Java", f"{java} does not run", remedy)
    match = re.search(r'version "(\d+)([^"]*)"', completed.stderr + completed.stdout)
    if match is None:
        return DoctorFinding("Java", "unknown version", remedy)
    found = match[1] + match[2]
    return DoctorFinding("Java", found, "" if int(match[1]) >= _LEAST_JAVA else remedy)


def check_spark() -> DoctorFinding:
    """Require PySpark and Delta."""
    try:
        found = f"pyspark {version('pyspark')}, delta-spark {version('delta-spark')}"
    except PackageNotFoundError:
        return DoctorFinding("Spark", "not installed", "pip install 'tidelake[local]'")
    return DoctorFinding("Spark", found)


def check_memory() -> DoctorFinding:
    """Require memory for the driver."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / _GIB
    remedy = f"at least {_LEAST_MEMORY_GIB} GiB; lower spark.driver.memory in the environment file"
    return DoctorFinding("Memory", f"{total:.1f} GiB", "" if total >= _LEAST_MEMORY_GIB else remedy)


def check_disk(root: Folder) -> DoctorFinding:
    """Require space for tables and shuffles."""
    # Shuffle files are on the local disk even if the tables are in an object store.
    folder = root if isinstance(root, Path) else Path(tempfile.gettempdir())
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(existing).free / _GIB
    remedy = f"free at least {_LEAST_DISK_GIB} GiB, or choose another --root"
    return DoctorFinding("Disk", f"{free:.1f} GiB free", "" if free >= _LEAST_DISK_GIB else remedy)


def check_jars(root: Folder | None = None) -> DoctorFinding:
    """Require each locked jar in the cache, with its hash; on S3 those of the connector too."""
    try:
        jars = jars_for(root)
    except JarError as error:
        return DoctorFinding("Jars", "no lock", str(error))
    folder, fetch = cache_dir(), runnable("tidelake doctor --fetch")
    missing = [jar for jar in jars if not (folder / jar.file_name).is_file()]
    if missing:
        found = f"{len(jars) - len(missing)} of {len(jars)} fetched"
        return DoctorFinding("Jars", found, f"run `{fetch}`")
    wrong = [jar for jar in jars if sha256_of(folder / jar.file_name) != jar.sha256]
    if wrong:
        found = f"wrong hash: {', '.join(jar.file_name for jar in wrong)}"
        return DoctorFinding("Jars", found, f"delete them from {folder}, run `{fetch}`")
    return DoctorFinding("Jars", f"{len(jars)} verified in {folder}")


def check_root(root: Folder, *, needs_locks: bool = True) -> DoctorFinding:
    """Require a writable root with locks; on an object store conditional writes, for its locks."""
    if not isinstance(root, Path):
        try:
            waits = Waiting(lambda _: None)
            with lease(root / "checkpoints" / ".doctor.lock", "doctor", waits=waits):
                pass
        except TidelakeError as error:
            return DoctorFinding("Root", str(root), str(error))
        return DoctorFinding("Root", f"{root} is writable and supports conditional writes")
    existing = next(path for path in (root, *root.parents) if path.exists())
    remedy = "choose a --root that you may write"
    return _check_writable("Root", root, existing, remedy, needs_locks=needs_locks)


def check_volume(folder: Path) -> DoctorFinding:
    """Require a writable volume, with or without locks."""
    remedy = (
        "create the volume, or name another under `volume` of the environment, and grant READ "
        "VOLUME and WRITE VOLUME on it"
    )
    if not folder.is_dir():
        return DoctorFinding("Volume", f"{folder} does not exist", remedy)
    return _check_writable("Volume", folder, folder, remedy, needs_locks=False)


def check_landing(folder: Path) -> DoctorFinding:
    """Require a folder of input files that can be listed."""
    try:
        with os.scandir(folder) as entries:
            next(entries, None)
    except OSError as error:
        remedy = (
            "create the volume, or name another folder under `landing` of the environment, and "
            "grant READ VOLUME on it"
        )
        return DoctorFinding("Landing", f"{folder}: {error.strerror}", remedy)
    return DoctorFinding("Landing", f"{folder} can be listed")


def _check_writable(
    what: str, named: Path, folder: Path, remedy: str, *, needs_locks: bool
) -> DoctorFinding:
    """Take a lock twice, write over a file and delete it, as runs do; nothing of it stays."""
    probe = folder / f".tidelake_doctor_{uuid.uuid4().hex[:12]}"
    try:
        # A volume may allow creating a file but not writing to it, or not a second time.
        for text in ("first", "second"):
            with hold(probe, str(named), optional=not needs_locks):
                write_whole(probe / "state", text)
        if (probe / "state").read_text(encoding="utf-8") != text:
            raise OSError(errno.EIO, "a file that was written again has its old content")
        remove_tree(probe)
        if probe.exists():
            raise OSError(errno.ENOTEMPTY, "files cannot be deleted")
    except NoLocksError as error:
        return DoctorFinding(what, f"{named} has no locks", str(error))
    except OSError as error:
        return DoctorFinding(what, f"{named}: {error.strerror or error}", remedy)
    finally:
        remove_tree(probe)
    return DoctorFinding(what, f"{named} is writable")


def _check_catalog(catalog: Catalog) -> Iterator[DoctorFinding]:
    from tidelake.delta.append import append_nothing  # noqa: PLC0415  imports Spark
    from tidelake.delta.log import last_commit  # noqa: PLC0415
    from tidelake.runtime.failures import FOREIGN  # noqa: PLC0415

    try:
        session = catalog.session()
    except MachineError as error:
        yield DoctorFinding("Spark", "no session", str(error))
        return
    yield DoctorFinding("Spark", f"version {session.version}")
    try:
        existing = catalog.layers()
    except FOREIGN as error:
        remedy = f"create catalog {catalog.name} or name another, and grant USE CATALOG on it"
        yield DoctorFinding("Catalog", _first_line(error), remedy)
        return
    yield DoctorFinding("Catalog", f"{catalog.name} exists")
    for layer in LAYERS:
        what, name = f"Schema {layer}", catalog.schema(layer)
        if layer not in existing:
            yield DoctorFinding(what, "does not exist", f"CREATE SCHEMA {name}")
            continue
        probe = CatalogTable(
            f"{layer}.doctor", catalog, layer, f"tidelake_doctor_{uuid.uuid4().hex[:12]}"
        )
        try:
            session.sql(f"CREATE TABLE {probe.sql} (probe INT) USING DELTA")
            try:
                # As a batch without a row is closed.
                append_nothing(session, probe, {"hop": "silver", "generation": "g1", "batch": 0})
                is_recorded = last_commit(probe) is not None
            finally:
                session.sql(f"DROP TABLE {probe.sql}")
        except FOREIGN as error:
            remedy = f"grant USE SCHEMA, CREATE TABLE, SELECT and MODIFY on schema {name}"
            yield DoctorFinding(what, _first_line(error), remedy)
        else:
            found = "is writable" if is_recorded else "loses the metadata of a commit without rows"
            remedy = "use a runtime whose DESCRIBE HISTORY has userMetadata: the ledger is in it"
            yield DoctorFinding(what, found, "" if is_recorded else remedy)


def check_workers(catalog: Catalog, volume: Folder) -> list[DoctorFinding]:
    """Through Spark Connect, let a worker of the server run a batch, as the hops do.

    Its findings are rows of a table in the schema ``ops``, since nothing else of a batch comes
    back. Empty where batches run in this process, or where that schema, a check of its own, fails.
    """
    from tidelake.runtime.failures import FOREIGN, error_text  # noqa: PLC0415  imports Spark
    from tidelake.spark.engine import runs_in_process  # noqa: PLC0415

    if runs_in_process():
        return []
    name = f"tidelake_doctor_{uuid.uuid4().hex[:12]}"
    answers, folder = CatalogTable("ops.doctor", catalog, "ops", name), volume / f".{name}"
    try:
        session = catalog.session()
        session.sql(f"CREATE TABLE {answers.sql} ({_FINDING}) USING DELTA")
    except (*FOREIGN, MachineError):
        return []
    try:
        _run_batch(session, folder, answers.sql)
        rows = session.table(answers.sql).collect()
    except FOREIGN as error:
        # The last line that names an error is of the worker.
        lines = re.findall(
            r"^\s*(?:[\w.]+\.)?(\w+(?:Error|Exception): .+)", error_text(error), re.M
        )
        remedy = "install the same wheel for all tasks, and let compute see the volume by its path"
        return [DoctorFinding("Worker", [_first_line(error), *lines][-1][:200], remedy)]
    finally:
        with suppress(*FOREIGN):
            session.sql(f"DROP TABLE {answers.sql}")
        remove_tree(folder)
    return [DoctorFinding(*row) for row in sorted(rows)]


def _run_batch(session: SparkSession, folder: Folder, answers: str) -> None:
    """Stream a file of one line to :func:`probe_worker`."""
    from tidelake.spark.engine import started  # noqa: PLC0415  imports Spark

    write_whole(folder / "input" / "line.json", '{"n": 7}')
    checkpoint = str(folder / "checkpoint")
    lines = session.readStream.schema("value STRING").text(str(folder / "input"))
    probe = partial(probe_worker, tidelake.__version__, checkpoint, answers)
    writer = lines.writeStream.option("checkpointLocation", checkpoint).foreachBatch(probe)
    query = started(writer.trigger(availableNow=True), lambda _: None)
    if not query.awaitTermination(_WORKER_SECONDS):
        query.stop()
        raise TimeoutError(f"a batch of one line did not end in {_WORKER_SECONDS} seconds")


def probe_worker(sent_by: str, checkpoint: str, answers: str, rows: DataFrame, batch: int) -> None:
    """Do in a batch what the hops do there; append what was found to the table ``answers``.

    Args:
        sent_by: The version of Tidelake of the process that started the query.
        checkpoint: The query's, by its path.
        answers: The table, in SQL.
        rows: One line, ``{"n": 7}``.
        batch: The batch's number.
    """
    from pyspark.sql import functions as F  # noqa: PLC0415  slow to import

    from tidelake.runtime.checkpoints import newest_logged  # noqa: PLC0415
    from tidelake.silver.payloads import decoder_of  # noqa: PLC0415
    from tidelake.spark.internals import null_on_error  # noqa: PLC0415

    def decoded() -> Any:
        decoder = decoder_of(parse_schema("n INT"), "strict")

        def decode(batches: Iterator[Any]) -> Iterator[Any]:
            for part in batches:
                values = decoder.decode(part.column(0)).field("values")
                yield type(part).from_arrays([values.field("n")], ["n"])

        payloads = rows.select(F.col("value").cast("binary"))
        return payloads.mapInArrow(decode, "n INT").collect()[0][0]

    def cast() -> Any:
        return rows.select(null_on_error(F.col("value").cast("int"))).collect()[0][0]

    wheel = "install the same wheel for all tasks: in their environment, or on the cluster"
    tests: list[tuple[str, Callable[[], Any], Any, str, str]] = [
        ("Tidelake", lambda: tidelake.__version__, sent_by, f"version {sent_by}", wheel),
        (
            "files",
            lambda: newest_logged(Path(checkpoint) / "offsets"),
            batch,
            "the checkpoint can be listed",
            "use compute on which Python sees the volume by its path, such as with Unity Catalog",
        ),
        ("decoder", decoded, 7, "payloads are decoded", wheel),
        (
            "casts",
            cast,
            None,
            "a value that cannot be cast is null",
            "use another runtime: on this one such a value would stop a batch",
        ),
    ]
    found = []
    for what, test, wanted, well, remedy in tests:
        try:
            value = test()
        except Exception as error:
            told = _first_line(error)
        else:
            told = well if value == wanted else f"{value}, expected {wanted}"
        found.append((f"Worker: {what}", told, "" if told == well else remedy))
    frame = rows.sparkSession.createDataFrame(found, _FINDING)
    frame.write.format("delta").mode("append").saveAsTable(answers)


def _first_line(error: Exception) -> str:
    """Return the first line of an error's message, skipping Py4J's prefix line."""
    lines = str(error).strip().splitlines()
    own = [line for line in lines if not line.startswith("An error occurred while calling")]
    return (own or lines)[0].removeprefix(": ")[:200]
