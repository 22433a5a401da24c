"""Folders and files, on a disk or an object store (``s3://…``)."""

from __future__ import annotations

import errno
import io
import os
import re
import shutil
import threading
import time
import unicodedata
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, unquote, urlsplit

from tidelake.errors import UsageError, imported
from tidelake.external import (
    MOUNTED,
    address_problem,
    content_of,
    files_at,
    is_external,
    translating_spark_errors,
)
from tidelake.object_store import client, filesystem_options

if TYPE_CHECKING:
    from typing import TypeAlias

    from upath import UPath

    # Both have pathlib's methods; paths of a store cannot rename.
    Folder: TypeAlias = Path | UPath
else:
    # UPath is an optional dependency and slow to import.
    Folder = Any

_T = TypeVar("_T")
SCHEME = "s3://"
_SCHEMED = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_REMEDIES = {
    **dict.fromkeys(("s3a", "s3n"), "Write s3://bucket/prefix"),
    **dict.fromkeys(("abfss", "abfs", "adl", "gs", "wasb", "wasbs"), MOUNTED),
}
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
# Characters with a meaning in URLs or in Spark's path patterns.
_MISREAD = re.compile(r"[\x00-\x1f\\^`?#%*\[\]{}]")
# Characters with a meaning in Hadoop's patterns.
_WITH_A_MEANING = re.compile(r"[{}\[\]*?\\]")
_CACHE_BYTES, _COMPARED_BYTES, _CONCURRENT_REQUESTS = 64 << 20, 1 << 20, 16
# Minimum interval between listings of a source in a continuous run. A listing also takes at most
# 1/_LISTING_SHARE of the time: 100,000 files on a disk take about a second.
LISTING_SECONDS, _LISTING_SHARE = 60.0, 20
# Listings of external paths, each with the time from which another may be made.
_listings: dict[str, tuple[float, dict[str, tuple[int, int]]]] = {}
VOLUMES = "/Volumes/"
# Errors of a rename on a volume, which may not support it, and between mounts.
_NO_RENAME = {errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EPERM, errno.EXDEV}
# Punctuation that java.net.URI does not escape in paths.
_UNESCAPED = frozenset("-_.!~*'():@&=+$,;/")


def is_stored(place: Folder | str) -> bool:
    """Return whether a path is on an object store."""
    return str(place).startswith(SCHEME)


def is_url(place: Folder | str) -> bool:
    """Return whether a path is on a store, and neither on a disk nor on a volume."""
    return is_stored(place) or is_external(place)


def folder(text: str) -> Folder:
    """Return the folder of a path, absolute or in the working directory, or of an ``s3://`` URL.

    Raises:
        UsageError: The URL has another scheme, or no bucket or prefix; or as for :func:`expanded`.
        MachineError: The extra for stores is not installed.
    """
    if not _SCHEMED.match(text):
        return Path(os.path.abspath(expanded(text)))
    if problem := problem_of(text):
        raise UsageError(f"{text} {problem}")
    return stored(text.rstrip("/"))


def as_pattern(path: Folder | str) -> str:
    """Return the pattern that matches only this path, for readers of Spark that take a pattern."""
    return _WITH_A_MEANING.sub(r"\\\g<0>", str(path))


def expanded(text: str) -> Path:
    """Return a path with ``~`` or ``~user`` replaced; a UsageError if that folder is unknown."""
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise UsageError(
            f"{text} begins with ~, and there is no such home folder. Write the path in full."
        ) from error


def stored(place: str) -> UPath:
    """Return the path of an ``s3://`` URL, whose prefix is not checked.

    Raises:
        MachineError: The extra for stores is not installed.
    """
    (upath,) = imported(f"universal-pathlib, which {place} needs,", "upath", extra="s3")
    found: UPath = upath.UPath(place, **filesystem_options())
    return found


def problem_of(text: str, *, in_catalog: bool = False) -> str:
    """Return why :func:`folder` refuses a text, or "".

    With ``in_catalog`` that is why it cannot be a source in an environment with a catalog.
    """
    if not _SCHEMED.match(text):
        return ""
    if in_catalog and is_external(text):
        return address_problem(text) or _prefix_problem(text.rstrip("/").split("/", 3)[3])
    if not text.startswith(SCHEME):
        scheme = text.partition("://")[0]
        remedy = _REMEDIES.get(scheme.lower(), "Write a path, or s3://bucket/prefix")
        return f"cannot be used: {scheme} is not supported. {remedy}"
    bucket, _, prefix = text.removeprefix(SCHEME).rstrip("/").partition("/")
    if not _BUCKET.fullmatch(bucket):
        return "names no bucket: write s3://bucket/prefix, the bucket in lower case"
    if not prefix:
        return "names a whole bucket: write a prefix too, s3://bucket/prefix"
    return _prefix_problem(prefix)


def _prefix_problem(prefix: str) -> str:
    if _MISREAD.search(prefix) or {"", ".", ".."} & set(prefix.split("/")):
        return "has a prefix that would be misread: use letters, digits and . _ - = between slashes"
    return ""


def archive_problem(path: str, archive: str) -> str:
    """Return why files of a folder cannot be moved to another, or ""."""
    if problem := problem_of(archive):
        return problem
    if is_stored(path) != is_stored(archive):
        return "must be on a disk if path is, and on a store (s3://) if path is"
    inner, outer = f"{absolute(archive)}/", f"{absolute(path)}/"
    is_inside = inner.startswith(outer) or outer.startswith(inner)
    return "must be outside of path, and path outside of it" if is_inside else ""


def absolute(text: str) -> str:
    """Return an absolute path, or a URL without a slash at its end."""
    return text.rstrip("/") if is_url(text) else os.path.abspath(os.path.expanduser(text))


def name_problem(path: str, root: str) -> str:
    """Return what Spark cannot read in the name of a file below ``root``, or ""."""
    if ":" in path[len(root) :]:
        return "a colon"
    try:
        path.encode()
    except UnicodeEncodeError:
        # Java replaces such bytes, and Hadoop leaves out the name, which is then of no file.
        return "bytes that are not UTF-8"
    return ""


def counted_from(base: Path | None, text: str) -> str:
    """Resolve a relative path against ``base``, unless that is None; others are unchanged."""
    if base is None or not text or _SCHEMED.match(text):
        return text
    return os.path.normpath(base / expanded(text))


def place_of(uri: str) -> str:
    """Decode a file's URI from Spark: ``file:///a%20b`` to ``/a b``; schemes of stores are kept."""
    parts = urlsplit(uri)
    path = unquote(parts.path)
    return f"{parts.scheme}://{parts.netloc}{path}" if is_url(uri) else str(Path(path))


def listed(path: str) -> str:
    """Encode a path as a URI, as Spark's file source lists it; volumes have their own scheme."""
    scheme = "dbfs:" if path.startswith(VOLUMES) else "file://"
    return ("" if is_url(path) else scheme) + "".join(map(_in_a_uri, path))


def _in_a_uri(char: str) -> str:
    # As in java.net.URI: letters of all scripts are kept, controls and spaces are escaped.
    is_kept = char in _UNESCAPED or (char > "\x9f" and unicodedata.category(char)[0] != "Z")
    return char if char.isalnum() or is_kept else quote(char)


@dataclass(frozen=True)
class Listed:
    """A file in a listing; its tag changes with its content, and is empty on a disk."""

    path: Folder
    tag: str = ""

    @property
    def name(self) -> str:
        """The name of the file."""
        return str(self.path.name)

    def text(self) -> str:
        """Read the file; from a store it is fetched once for each tag."""
        return _cache.text(self) if self.tag else self.path.read_text(encoding="utf-8")


def list_folder(folder: Folder) -> list[Listed]:
    """List the files in a folder, in one request; none if it does not exist."""
    if isinstance(folder, Path):
        return [Listed(file) for file in folder.glob("*")]
    try:
        entries = folder.fs.ls(folder.path, detail=True)
    except (FileNotFoundError, NotADirectoryError):
        return []
    # The size too: multipart uploads with other part sizes may have the same ETag.
    return [
        Listed(folder / entry["name"].rsplit("/", 1)[-1], f"{entry['ETag']} {entry['size']}")
        for entry in entries
        if entry["type"] == "file" and not entry["name"].endswith("/")
    ]


def list_matching(folder: Folder, pattern: str) -> list[Folder]:
    """List the paths below a folder that match a pattern, sorted by name."""
    return sorted(folder.glob(pattern), key=str)


def remove_tree(folder: Folder) -> None:
    """Remove a folder with its contents, if it exists."""
    if isinstance(folder, Path):
        shutil.rmtree(folder, ignore_errors=True)
    elif found := folder.fs.find(folder.path):
        folder.fs.rm(found)


def ensure_folder(folder: Folder) -> None:
    """Create a folder; on a store an object that represents it, also when it is empty."""
    if isinstance(folder, Path):
        folder.mkdir(parents=True, exist_ok=True)
        return
    bucket, _, prefix = str(folder).removeprefix(SCHEME).partition("/")
    client().put_object(Bucket=bucket, Key=f"{prefix}/", Body=b"")


def write_whole(file: Folder, text: str) -> None:
    """Write a file atomically; readers see the old content until then.

    On a volume without renames, those without locks, such as ``status``, may see a part of it.
    """
    if not isinstance(file, Path):
        # Objects become visible only when they are complete. On a store mkdir creates the bucket.
        file.write_text(text, encoding="utf-8")
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    # Not the suffix of the file, by which others find the files of a folder.
    written = file.with_name(f".{file.name}.tmp")
    try:
        written.write_text(text, encoding="utf-8")
        with suppress(OSError):  # A volume has no modes, and a new file none to keep.
            shutil.copymode(file, written)
        _rename(written, file)
    finally:
        written.unlink(missing_ok=True)


def _rename(source: Path, target: Path) -> None:
    """Rename a file over another one; where there is no rename, copy it and delete the source."""
    try:
        source.replace(target)
    except OSError as error:
        if error.errno not in _NO_RENAME:
            raise
        shutil.copyfile(source, target)
        source.unlink()


def remove_file(path: str) -> None:
    """Delete a file, which must exist on a disk."""
    if is_stored(path):
        place = stored(path)
        place.fs.rm_file(place.path)
    else:
        os.unlink(path)


def move_new(path: str, to: str) -> None:
    """Move a file to another place, both on a disk or both on a store; repeatable if interrupted.

    Raises:
        FileExistsError: Another file is there.
    """
    if is_stored(path):
        source, stored_target = stored(path), stored(to)
        if not _is_copied(source, stored_target):
            source.fs.cp_file(source.path, stored_target.path)
        remove_file(path)
        return
    target = Path(to)
    target.parent.mkdir(parents=True, exist_ok=True)
    copy = target.with_name(f".{target.name}")
    # Beside a copy the target may be a part of one, where there is no rename.
    if copy.exists() or not _is_copied(Path(path), target):
        try:
            # Renaming would replace a file that another process puts there meanwhile.
            os.link(os.path.realpath(path), target)
        except FileExistsError:
            raise
        except OSError:
            # Another disk, or one without hard links. A volume has neither times nor modes to set.
            shutil.copyfile(path, copy)
            with suppress(OSError):
                shutil.copystat(path, copy)
            _rename(copy, target)
    os.unlink(path)


def _is_copied(source: Folder, target: Folder) -> bool:
    """Return whether a file is at its target already, after an interrupted move."""
    if not target.exists():
        return False
    with source.open("rb") as one, target.open("rb") as other:
        while (part := one.read(_COMPARED_BYTES)) == other.read(_COMPARED_BYTES):
            if not part:
                return True
    raise FileExistsError(errno.EEXIST, f"another file is at {target}")


class _TextCache:
    """An LRU cache of fetched texts, limited by bytes."""

    def __init__(self) -> None:
        self._texts: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def text(self, file: Listed) -> str:
        key = (str(file.path), file.tag)
        with self._lock:
            if key in self._texts:
                self._texts.move_to_end(key)
                return self._texts[key]
        # UPath.read_text would request the size first.
        data: bytes = file.path.fs.cat_file(file.path.path)  # type: ignore[union-attr]
        text = data.decode("utf-8")
        with self._lock:
            if key not in self._texts:
                self._texts[key] = text
                self._bytes += len(data)
            while self._bytes > _CACHE_BYTES and len(self._texts) > 1:
                _, evicted = self._texts.popitem(last=False)
                self._bytes -= len(evicted.encode("utf-8"))
        return text


_cache = _TextCache()


def for_each(work: Callable[[str], _T], paths: Sequence[str]) -> list[_T]:
    """Return the results of work on each path, on a store concurrently."""
    if not any(map(is_stored, paths)):
        return [work(path) for path in paths]
    with ThreadPoolExecutor(_CONCURRENT_REQUESTS) as pool:
        return list(pool.map(work, paths))


def file_states(paths: Sequence[str]) -> list[tuple[int, int] | None]:
    """Return each file's size in bytes and modification time in milliseconds; None if missing."""
    if any(map(is_external, paths)):
        found = _external_states(paths)
        return [found.get(path) for path in paths]
    return for_each(_state_if_present, paths)


def _state_if_present(path: str) -> tuple[int, int] | None:
    with suppress(FileNotFoundError):
        return file_state(path)
    return None


def _external_states(paths: Sequence[str]) -> dict[str, tuple[int, int]]:
    found = files_at([as_pattern(path) for path in paths])
    if found is not None:
        return {place_of(uri): state for uri, state in found.items()}
    # Spark refuses paths of which one is missing.
    if len(paths) == 1:
        return {}
    half = len(paths) // 2
    return _external_states(paths[:half]) | _external_states(paths[half:])


def list_external(path: str, *, recent: bool = False) -> dict[str, tuple[int, int]]:
    """List the files below a path that only Spark reads, with their states; maybe none.

    Each listing takes a request for each file. With ``recent`` the last listing is returned if it
    is younger than a minute, or than twenty times its duration.

    Raises:
        SourceError: Spark cannot read it.
    """
    began = time.monotonic()
    due, found = _listings.get(path, (began, {}))
    if recent and began < due:
        return found
    with translating_spark_errors(f"the source {path}"):
        found = _external_states([path])
    _listings[path] = next_listing(began), found
    return found


def next_listing(began: float) -> float:
    """Return when a source may be listed again after a listing from ``began`` until now.

    Times are those of ``time.monotonic``. The pause is a minute, or twenty times as long as the
    listing took if that is more.
    """
    ended = time.monotonic()
    return ended + max(LISTING_SECONDS, _LISTING_SHARE * (ended - began))


def opened(path: str) -> IO[bytes]:
    """Open a source's file for reading bytes; what only Spark reads is fetched whole."""
    if not is_external(path):
        stream: IO[bytes] = folder(path).open("rb")
        return stream
    content = content_of(as_pattern(path))
    if content is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    return io.BytesIO(content)


def state_of(entry: Mapping[str, Any]) -> tuple[int, int]:
    """Return the size and modification time in an entry of a store's listing."""
    # Not every kind of request returns fractions of a second.
    return entry["size"], int(entry["LastModified"].timestamp()) * 1000


def planned_time(path: str, planned: int, present: int) -> int:
    """Return a planned time (ms) as :func:`file_state` has it; ``present`` if they may differ."""
    if is_external(path):
        return planned // 1000 * 1000
    return present if is_stored(path) or path.startswith(VOLUMES) else planned


def file_state(path: str) -> tuple[int, int]:
    """Return the size in bytes and the modification time in milliseconds of a file."""
    if is_stored(path):
        place = stored(path)
        return state_of(place.fs.info(place.path))
    found = Path(path).stat()
    return found.st_size, found.st_mtime_ns // 1_000_000


def namespace_of(place: str) -> tuple[str, str]:
    """Return OpenLineage's namespace and name of a path: a bucket is a namespace."""
    if not is_url(place):
        return "file", place
    address = urlsplit(place)
    return f"{address.scheme}://{address.netloc}", address.path.lstrip("/")
