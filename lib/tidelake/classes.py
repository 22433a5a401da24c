"""An archive of Spark's classes, which a JVM maps instead of reading and checking them in jars.

Java keeps one for itself; with one for Spark, Delta and what a run of all hops loads, a process
starts and plans its first batches with fewer seconds of a core. It holds for the same Java and the
same jars in the same places: where anything differs Java passes over it.
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
from tidelake.jars import cache_dir

# Names the file that a process is to write when its JVM ends.
MAKING = "TIDELAKE_MAKES_CLASSES"
_SECONDS = 600.0


def archive_of(jars: Sequence[Path], cache: Path | None = None) -> Path:
    """Name the archive of these jars and of the installed Spark; it need not exist."""
    from importlib.metadata import version  # noqa: PLC0415

    told = "\n".join([version("pyspark"), sys.prefix, *(str(jar) for jar in jars)])
    name = hashlib.sha256(told.encode()).hexdigest()[:16]
    return (cache or cache_dir()) / f"classes-{name}.jsa"


def class_settings(jars: Sequence[Path]) -> tuple[dict[str, str], str]:
    """Give what a session takes for it: settings, and options of the JVM; nothing without one.

    The jars have to be on the class path that Java begins with: it archives no others.
    """
    made, archive = os.environ.get(MAKING), archive_of(jars)
    if made:
        option = f"-XX:ArchiveClassesAtExit={made}"
    elif archive.is_file():
        # Java says nothing where the archive is of other jars: it reads those then.
        option = f"-XX:SharedArchiveFile={archive} -Xshare:auto -Xlog:disable"
    else:
        return {}, ""
    return {"spark.driver.extraClassPath": os.pathsep.join(str(jar) for jar in jars)}, option


def make_archive(jars: Sequence[Path]) -> Path:
    """Let a process run a small demo, and keep the classes that it loaded.

    Takes a minute and 200 MB; the archive appears when it is whole.

    Raises:
        JarError: The demo did not run, or Java wrote no archive.
    """
    archive = archive_of(jars)
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent, prefix=".classes-") as scratch:
        made = Path(scratch) / archive.name
        command = [sys.executable, "-m", "tidelake.cli.archiving", scratch]
        done = subprocess.run(
            command,
            env=os.environ | {MAKING: str(made)},
            capture_output=True,
            text=True,
            check=False,
            timeout=_SECONDS,
        )
        if done.returncode or not made.is_file():
            raise JarError(
                "the archive of classes was not made; runs go on without it. "
                f"The demo said: {done.stderr.strip()[-300:]}"
            )
        made.replace(archive)
    return archive
