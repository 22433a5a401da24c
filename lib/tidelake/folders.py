"""Folders and files, on a disk or an object store (``s3://…``)."""

from __future__ import annotations

import os
import re
import shutil
import threading
import unicodedata
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

from tidelake.errors import MachineError, UsageError
from tidelake.object_store import filesystem_options, refuse_unreachable

if TYPE_CHECKING:
    from typing import TypeAlias

    from upath import UPath

    # With the methods of pathlib wherever it lies, but for those that rename.
    Folder: TypeAlias = Path | UPath
else:
    # The class for stores is an extra, and takes time to load.
    Folder = Any

SCHEME = "s3://"
_SCHEMED = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
# What means something in an address, or in a pattern of Spark's.
_MISREAD = re.compile(r"[\x00-\x1f\\^`?#%*\[\]{}]")
_KEPT_BYTES = 64 << 20
_LOOKS_AT_ONCE = 16
_VOLUMES = "/Volumes/"
# In a path of java.net.URI, besides letters and digits.
_STAYS = frozenset("-_.!~*'():@&=+$,;/")


def is_stored(place: Folder | str) -> bool:
    """Return whether a place lies on an object store."""
    return str(place).startswith(SCHEME)


def folder(text: str) -> Folder:
    """Return the folder that a text names; a relative one lies under the working directory.

    Raises:
        UsageError: It has a scheme that is not ``s3://``, or names no bucket or prefix.
        MachineError: What reads a store is not installed.
    """
    if not _SCHEMED.match(text):
        return Path(os.path.abspath(Path(text).expanduser()))
    problem = problem_of(text)
    if problem:
        raise UsageError(f"{text} {problem}")
    return stored(text.rstrip("/"))


def stored(place: str) -> UPath:
    """Return the path of an address on a store, whatever its name.

    Raises:
        MachineError: What reads a store is not installed.
    """
    try:
        from upath import UPath  # noqa: PLC0415  an extra
    except ImportError as error:
        raise MachineError(
            f"{place} lies on an object store, and what reads one is not installed. "
            "Install it with: pip install 'tidelake[s3]'"
        ) from error
    found: UPath = UPath(place, **filesystem_options())
    return found


def problem_of(text: str) -> str:
    """Return why a text names no folder, or "" where it does."""
    if not _SCHEMED.match(text):
        return ""
    if not text.startswith(SCHEME):
        scheme = text.partition("://")[0]
        return f"cannot be used: {scheme} is not read here. Write a path, or s3://bucket/prefix"
    bucket, _, prefix = text.removeprefix(SCHEME).rstrip("/").partition("/")
    if not _BUCKET.fullmatch(bucket):
        return "names no bucket: write s3://bucket/prefix, the bucket in lower case"
    if not prefix:
        return "names a whole bucket: write a prefix too, s3://bucket/prefix"
    if _MISREAD.search(prefix) or {"", ".", ".."} & set(prefix.split("/")):
        return "has a prefix that would be misread: use letters, digits and . _ - = between slashes"
    return ""


def absolute(text: str) -> str:
    """Return a path from the root on, or an address as it is."""
    return text.rstrip("/") if is_stored(text) else os.path.abspath(text)


def place_of(uri: str) -> str:
    """Turn a file's address, as Spark lists it, into the text of its path.

    ``file:///a%20b`` becomes ``/a b``, ``s3://bucket/a%20b`` becomes ``s3://bucket/a b``.
    """
    parts = urlsplit(uri)
    path = unquote(parts.path)
    return f"{SCHEME}{parts.netloc}{path}" if parts.scheme == "s3" else str(Path(path))


def listed(path: str) -> str:
    """Write a path as Spark's file source lists it, which is Java's way to write a URI.

    A volume's have a scheme of their own.
    """
    scheme = "dbfs:" if path.startswith(_VOLUMES) else "file://"
    return ("" if is_stored(path) else scheme) + "".join(map(_in_a_uri, path))


def _in_a_uri(letter: str) -> str:
    # Letters of other scripts stay as they are; controls and spaces of any script do not.
    stays = letter in _STAYS or (letter > "\x9f" and unicodedata.category(letter)[0] != "Z")
    return letter if letter.isalnum() or stays else quote(letter)


@dataclass(frozen=True)
class Listed:
    """A file of a listing.

    Attributes:
        path: Where it is.
        tag: Changes with its content; empty on a disk, where reading it costs little.
    """

    path: Folder
    tag: str = ""

    @property
    def name(self) -> str:
        """Its last part."""
        return str(self.path.name)

    @property
    def stem(self) -> str:
        """The same without the suffix."""
        return str(self.path.stem)

    def text(self) -> str:
        """Read it; a store's file is fetched once a tag."""
        if not self.tag:
            return self.path.read_text(encoding="utf-8")
        return _memory.text(self)


def list_folder(folder: Folder) -> list[Listed]:
    """List the files right in a folder, in one request; none where it does not exist."""
    if isinstance(folder, Path):
        return [Listed(file) for file in folder.glob("*")]
    try:
        entries = folder.fs.ls(folder.path, detail=True)
    except (FileNotFoundError, NotADirectoryError):
        return []
    # The size goes with the tag: parts of other lengths may come to the same one.
    return [
        Listed(folder / entry["name"].rsplit("/", 1)[-1], f"{entry['ETag']} {entry['size']}")
        for entry in entries
        if entry["type"] == "file" and not entry["name"].endswith("/")
    ]


def matching(folder: Folder, pattern: str) -> list[Folder]:
    """List what a pattern matches below a folder, in the order of the names."""
    found: list[Folder] = list(folder.glob(pattern))
    return sorted(found, key=str)


def remove_tree(folder: Folder) -> None:
    """Remove a folder and all that is in it; nothing where it does not exist."""
    if isinstance(folder, Path):
        shutil.rmtree(folder, ignore_errors=True)
        return
    found = folder.fs.find(folder.path)
    if found:
        folder.fs.rm(found)


def write_whole(file: Folder, text: str) -> None:
    """Write a file whole or not at all; readers see the old one until then."""
    file.parent.mkdir(parents=True, exist_ok=True)
    if not isinstance(file, Path):
        # A store shows an object when all of it is there.
        file.write_text(text, encoding="utf-8")
        return
    written = file.with_name(f".{file.name}")
    written.write_text(text, encoding="utf-8")
    written.rename(file)


class _Memory:
    """Keeps texts that were fetched, the ones used last, up to a number of bytes."""

    def __init__(self) -> None:
        self._texts: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def text(self, file: Listed) -> str:
        place = (str(file.path), file.tag)
        with self._lock:
            if place in self._texts:
                self._texts.move_to_end(place)
                return self._texts[place]
        # Not through the file's own method, which asks for its size first.
        data: bytes = file.path.fs.cat_file(file.path.path)  # type: ignore[union-attr]
        text = data.decode("utf-8")
        with self._lock:
            if place not in self._texts:
                self._texts[place] = text
                self._bytes += len(data)
            while self._bytes > _KEPT_BYTES and len(self._texts) > 1:
                _, gone = self._texts.popitem(last=False)
                self._bytes -= len(gone.encode("utf-8"))
        return text


_memory = _Memory()


def states_of(paths: Sequence[str]) -> list[tuple[int, int]]:
    """Return the size in bytes and the last change in milliseconds of each file."""
    if not any(map(is_stored, paths)):
        return [_state(path) for path in paths]
    # Each is a round trip.
    with ThreadPoolExecutor(_LOOKS_AT_ONCE) as looking:
        return list(looking.map(_state, paths))


def state_of(entry: Mapping[str, Any]) -> tuple[int, int]:
    """Return the same of an entry of a store's listing."""
    # One request tells the fraction of a second, another does not.
    return entry["size"], int(entry["LastModified"].timestamp()) * 1000


def has_one_time(path: str) -> bool:
    """Return whether Spark and Python see the same modification time; not on volumes or stores."""
    return not (is_stored(path) or path.startswith(_VOLUMES))


def _state(path: str) -> tuple[int, int]:
    if is_stored(path):
        place = stored(path)
        return state_of(place.fs.info(place.path))
    found = Path(path).stat()
    return found.st_size, found.st_mtime_ns // 1_000_000


def refuse_unusable(root: Folder) -> None:
    """Check that a root can be used, without Spark; nothing is created.

    Raises:
        UsageError: It is no folder, or cannot be read; there is no such bucket.
        MachineError: The object store does not answer, or refuses access.
    """
    if is_stored(root):
        bucket, _, prefix = str(root).removeprefix(SCHEME).partition("/")
        refuse_unreachable(bucket, f"{prefix}/", what=f"the root {root}")
        return
    for place in (root, *root.parents):
        try:
            if place.is_dir():
                next(place.iterdir(), None)
                return
            found = place.exists()
        except OSError as error:
            raise UsageError(f"the root {root} cannot be read: {error.strerror}") from error
        if found:
            raise UsageError(f"the root {root} cannot be used: {place} is a file, not a folder.")


def namespace_of(place: str) -> tuple[str, str]:
    """Split a path as OpenLineage names it: a store's bucket is the namespace."""
    if not is_stored(place):
        return "file", place
    address = urlsplit(place)
    return f"{address.scheme}://{address.netloc}", address.path.lstrip("/")
