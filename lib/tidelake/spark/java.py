"""JVM options for Spark, and the class archive (class data sharing) that a JVM maps at startup.

The archive holds Java's, Spark's and Delta's classes that a run of all hops loads. With it, startup
and the planning of the first batches take less CPU time. It is valid for the same Java and the same
jars at the same paths; otherwise Java ignores it.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from tidelake.errors import JarError
from tidelake.spark.jars import cache_dir
from tidelake.spark.tuning import BRIEF_DRIVER, BULK_COLLECTOR, BULK_DRIVER, LASTING_DRIVER

# What a session is started for: a few small batches; any work that ends; work that goes on.
SessionUse = Literal["brief", "bulk", "lasting"]

# Limits on the lengths in a corrupt Avro record: the reader allocates memory before it reads.
AVRO_LIMITS = (
    "-Dorg.apache.avro.limits.string.maxLength",
    "-Dorg.apache.avro.limits.bytes.maxLength",
    "-Dorg.apache.avro.limits.collectionItems.maxLength",
)
AVRO_OPTIONS = " ".join(f"{limit}={1 << 26}" for limit in AVRO_LIMITS)
EXECUTOR_OPTIONS = f"-Duser.timezone=UTC {AVRO_OPTIONS}"
# The environment variable with the path of the archive that a JVM writes when it ends.
ARCHIVE_VARIABLE = "TIDELAKE_MAKES_CLASSES"
_ARCHIVE_SECONDS = 600.0
_COMPILED_ONCE = Path(__file__).with_name("compiled_once.json")
# Where a user may choose a garbage collector; Java does not start with two.
_JAVA_VARIABLES = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")
_COLLECTOR = re.compile(r"-XX:\+Use\w+GC\b")


def java_path() -> str | None:
    """Return Java's path in ``JAVA_HOME``, or on the path as Spark finds it; None without one."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin" / "java") if home else shutil.which("java")


def driver_options(use: SessionUse) -> str:
    """Return the options of a driver's JVM for its compilers and its garbage collector."""
    if use != "bulk":
        return BRIEF_DRIVER if use == "brief" else LASTING_DRIVER
    options = BULK_DRIVER.format(f'"{_COMPILED_ONCE}"')
    chosen = any(_COLLECTOR.search(os.environ.get(name, "")) for name in _JAVA_VARIABLES)
    return options if chosen else f"{options} {BULK_COLLECTOR}"


def archive_of(jars: Sequence[Path], cache: Path | None = None) -> Path:
    """Return the archive path for these jars and the installed Spark; it may not exist."""
    from importlib.metadata import version  # noqa: PLC0415

    inputs = "\n".join([version("pyspark"), sys.prefix, *(str(jar) for jar in jars)])
    name = hashlib.sha256(inputs.encode()).hexdigest()[:16]
    return (cache or cache_dir()) / f"classes-{name}.jsa"


def class_settings(jars: Sequence[Path]) -> tuple[dict[str, str], str]:
    """Return the session settings and the JVM option that use the archive; empty without one.

    The jars must be on the class path that Java starts with: Java archives no other classes.
    """
    target, archive = os.environ.get(ARCHIVE_VARIABLE), archive_of(jars)
    if target:
        option = f"-XX:ArchiveClassesAtExit={target}"
    elif archive.is_file():
        # Java ignores an archive of other jars, without a message.
        option = f"-XX:SharedArchiveFile={archive} -Xshare:auto -Xlog:disable"
    else:
        return {}, ""
    return {"spark.driver.extraClassPath": os.pathsep.join(str(jar) for jar in jars)}, option


def make_archive(jars: Sequence[Path]) -> Path:
    """Create the archive by running a small demo in a separate process.

    Takes a minute and 200 MB; the archive is moved into place when it is complete.

    Raises:
        JarError: The demo failed, or Java wrote no archive.
    """
    archive = archive_of(jars)
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent, prefix=".classes-") as scratch:
        made = Path(scratch) / archive.name
        done = subprocess.run(
            [sys.executable, "-m", "tidelake.cli.archiving", scratch],
            env=os.environ | {ARCHIVE_VARIABLE: str(made)},
            capture_output=True,
            text=True,
            check=False,
            timeout=_ARCHIVE_SECONDS,
        )
        if done.returncode or not made.is_file():
            raise JarError(
                "the class archive was not created; runs work without it. "
                f"The demo's error output: {done.stderr.strip()[-300:]}"
            )
        made.replace(archive)
    return archive
