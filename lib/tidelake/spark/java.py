"""The JVM that Spark runs in: its jars, its options, and its class archive.

The jars are fetched once, by Spark's resolver, so no repository is named here, and verified against
the lock. It lists every jar, so nothing is resolved transitively.

The archive (class data sharing) holds Java's, Spark's and Delta's classes that a run of all hops
loads. With it, startup and the planning of the first batches take less CPU time. It is valid for
the same Java and the same jars at the same paths; otherwise Java ignores it.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tidelake.config import conf_file
from tidelake.errors import JarError
from tidelake.folders import Folder, is_stored
from tidelake.spark.tuning import BRIEF_DRIVER, BULK_COLLECTOR, BULK_DRIVER, LASTING_DRIVER
from tidelake.typed import runnable

CACHE_VARIABLE = "TIDELAKE_JARS"


@dataclass(frozen=True)
class Jar:
    """A jar by its coordinates and the SHA-256 of its bytes."""

    coordinates: str
    sha256: str

    @property
    def file_name(self) -> str:
        """The file name in the cache."""
        return self.coordinates.replace(":", "_") + ".jar"


def cache_dir() -> Path:
    """Return the folder of fetched jars: ``$TIDELAKE_JARS`` or one in the user's cache."""
    configured = os.environ.get(CACHE_VARIABLE)
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(configured) if configured else base / "tidelake" / "jars"


def read_lock(path: Path | None = None) -> tuple[Jar, ...]:
    """Read a lock, by default ``conf/jars.lock``: one line per jar, coordinates and SHA-256.

    Raises:
        JarError: The lock is missing or a line is not of that form.
    """
    lock = path or conf_file("jars.lock")
    try:
        lines = lock.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise JarError(f"the jar lock {lock} cannot be read: {error.strerror}") from error
    jars = []
    for number, line in enumerate(lines, start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 2 or words[0].count(":") != 2 or not words[1].startswith("sha256:"):
            raise JarError(f"{lock}, line {number}: write `group:artifact:version sha256:HEX`")
        jars.append(Jar(words[0], words[1].removeprefix("sha256:")))
    return tuple(jars)


def jars_for(*places: Folder | str | None) -> tuple[Jar, ...]:
    """Read the locks of the jars that tables and files need; those for stores only if on one."""
    on_store = any(is_stored(place) for place in places if place)
    return (*read_lock(), *(read_lock(conf_file("s3.lock")) if on_store else ()))


def ensure_jars(jars: Sequence[Jar] | None = None, *, cache: Path | None = None) -> list[Path]:
    """Return the verified jar files, fetching those that the cache lacks.

    Raises:
        JarError: A jar cannot be fetched, or its hash differs from the lock.
    """
    wanted = read_lock() if jars is None else jars
    folder = cache or cache_dir()
    missing = [jar for jar in wanted if not (folder / jar.file_name).is_file()]
    if missing:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _fetch(missing, folder)
        except OSError as error:
            raise JarError(
                f"the jars cannot be saved in {folder}: {error.strerror}. "
                f"Choose another folder with {CACHE_VARIABLE}."
            ) from error
    for jar in wanted:
        _verify(jar, folder / jar.file_name)
    return [folder / jar.file_name for jar in wanted]


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _verify(jar: Jar, path: Path) -> None:
    found = sha256_of(path)
    if found != jar.sha256:
        raise JarError(
            f"{jar.coordinates}: the jar's SHA-256 is {found}, the lock says {jar.sha256}.\n"
            f"Delete {path} and run: {runnable('tidelake doctor --fetch')}; "
            "if it differs again, do not use it."
        )


def _fetch(wanted: Sequence[Jar], folder: Path) -> None:
    """Fetch jars into a temporary folder, verify each, and move it into the cache."""
    from tidelake.spark.internals import resolve_jars  # noqa: PLC0415  loads Spark

    with tempfile.TemporaryDirectory(dir=folder, prefix=".fetch-") as scratch:
        resolve_jars(",".join(jar.coordinates for jar in wanted), scratch)
        fetched = Path(scratch) / "jars"
        for jar in wanted:
            group, artifact, version = jar.coordinates.split(":")
            file = fetched / f"{group}_{artifact}-{version}.jar"
            if not file.is_file():
                raise JarError(
                    f"{jar.coordinates} could not be fetched. Check the network, "
                    f"then run: {runnable('tidelake doctor --fetch')}"
                )
            _verify(jar, file)
            shutil.move(file, folder / jar.file_name)


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


def archive_of(jars: Sequence[Path]) -> Path:
    """Return the archive path for these jars and the installed Spark; it may not exist."""
    from importlib.metadata import version  # noqa: PLC0415

    inputs = "\n".join([version("pyspark"), sys.prefix, *(str(jar) for jar in jars)])
    name = hashlib.sha256(inputs.encode()).hexdigest()[:16]
    return cache_dir() / f"classes-{name}.jsa"


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
