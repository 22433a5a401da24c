"""Check what Tidelake needs of a machine; each failing line says the remedy."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tidelake.delta.locks import lease
from tidelake.delta.tables import Lake
from tidelake.errors import JarError, TidelakeError
from tidelake.folders import Folder
from tidelake.spark.jars import cache_dir, jars_for, sha256_of

_LEAST_JAVA = 17
_LEAST_MEMORY_GIB = 4
_LEAST_DISK_GIB = 2
_GIB = 1 << 30


@dataclass(frozen=True)
class Finding:
    """What one check found.

    Attributes:
        what: What was checked.
        found: What is there.
        remedy: What to do; empty when all is well.
    """

    what: str
    found: str
    remedy: str = ""

    @property
    def well(self) -> bool:
        """Tell whether nothing needs to be done."""
        return not self.remedy


def examine_lake(lake: Lake) -> list[Finding]:
    """Check the machine, or in a catalog what only the catalog can lack."""
    if lake.catalog is None:
        return examine(lake.root)
    from tidelake.ops.doctor_catalog import examine_catalog  # noqa: PLC0415  imports Spark

    return examine_catalog(lake, lake.catalog)


def examine(root: Folder) -> list[Finding]:
    """Run every check of a machine.

    Args:
        root: Where its tables are.
    """
    checks: list[Callable[[], Finding]] = [
        check_python,
        check_java,
        check_spark,
        check_memory,
        lambda: check_disk(root),
        lambda: check_jars(root),
        lambda: check_root(root),
    ]
    return [check() for check in checks]


def check_python() -> Finding:
    """Want Python 3.11 or newer."""
    found = ".".join(str(part) for part in sys.version_info[:3])
    return Finding("Python", found, "" if sys.version_info >= (3, 11) else "install Python 3.11")


def check_java() -> Finding:
    """Want Java 17 or newer, where Spark will look for it."""
    remedy = (
        f"install a JDK {_LEAST_JAVA} or newer (Debian: apt-get install openjdk-17-jre-headless) "
        "and set JAVA_HOME or PATH to it"
    )
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None:
        return Finding("Java", "not found", remedy)
    try:
        told = subprocess.run(
            [java, "-version"], capture_output=True, text=True, check=False, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired):
        return Finding("Java", f"{java} does not run", remedy)
    match = re.search(r'version "(\d+)([^"]*)"', told.stderr + told.stdout)
    if match is None:
        return Finding("Java", "a version that cannot be read", remedy)
    found = match[1] + match[2]
    return Finding("Java", found, "" if int(match[1]) >= _LEAST_JAVA else remedy)


def check_spark() -> Finding:
    """Want PySpark and Delta."""
    try:
        found = f"pyspark {version('pyspark')}, delta-spark {version('delta-spark')}"
    except PackageNotFoundError:
        return Finding("Spark", "not installed", "pip install 'tidelake[local]'")
    return Finding("Spark", found)


def check_memory() -> Finding:
    """Want room for the driver."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / _GIB
    remedy = f"at least {_LEAST_MEMORY_GIB} GiB; lower spark.driver.memory in the environment file"
    return Finding("Memory", f"{total:.1f} GiB", "" if total >= _LEAST_MEMORY_GIB else remedy)


def check_disk(root: Folder) -> Finding:
    """Want room for tables and shuffles."""
    # Shuffles go to this machine's disk wherever the tables lie.
    folder = root if isinstance(root, Path) else Path(tempfile.gettempdir())
    place = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(place).free / _GIB
    remedy = f"free at least {_LEAST_DISK_GIB} GiB, or choose another --root"
    return Finding("Disk", f"{free:.1f} GiB free", "" if free >= _LEAST_DISK_GIB else remedy)


def check_jars(root: Folder | None = None) -> Finding:
    """Want every jar of the lock in the cache, with its hash; on a store those that read it too."""
    try:
        jars = jars_for(root)
    except JarError as error:
        return Finding("Jars", "no lock", str(error))
    folder = cache_dir()
    missing = [jar for jar in jars if not (folder / jar.file_name).is_file()]
    if missing:
        found = f"{len(jars) - len(missing)} of {len(jars)} fetched"
        return Finding("Jars", found, "run `tidelake doctor --fetch`")
    wrong = [jar for jar in jars if sha256_of(folder / jar.file_name) != jar.sha256]
    if wrong:
        names = ", ".join(jar.file_name for jar in wrong)
        return Finding(
            "Jars",
            f"wrong hash: {names}",
            f"delete them from {folder}, run `tidelake doctor --fetch`",
        )
    return Finding("Jars", f"{len(jars)} verified in {folder}")


def check_root(root: Folder) -> Finding:
    """Want to write under the root."""
    if not isinstance(root, Path):
        return _check_store(root)
    place = next(path for path in (root, *root.parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        return Finding("Root", f"{root}: {error.strerror}", "choose a --root that you may write")
    return Finding("Root", f"{root} is writable")


def _check_store(root: Folder) -> Finding:
    """Want to write there, under the conditions that keep a second writer out."""
    try:
        with lease(root / "checkpoints" / ".doctor.lock", "doctor", waits=True):
            pass
    except TidelakeError as error:
        return Finding("Root", str(root), str(error))
    return Finding("Root", f"{root} is writable, and keeps conditional writes")
