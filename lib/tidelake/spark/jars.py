"""Fetch the jars that Spark needs and verify their hashes against the lock.

They are fetched once, by Spark's resolver, so no repository is named here. The lock lists every
jar, so nothing is resolved transitively.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tidelake.config import conf_file
from tidelake.errors import JarError
from tidelake.folders import Folder, is_stored
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
