"""JVM options for Spark, and the class archive (class data sharing) that a JVM maps at startup.

The archive holds Java's, Spark's and Delta's classes that a run of all hops loads. With it, startup
and the planning of the first batches take less CPU time. It is valid for the same Java and the same
jars at the same paths; otherwise Java ignores it.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tidelake.errors import JarError
from tidelake.spark.jars import cache_dir

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
