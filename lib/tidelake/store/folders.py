"""Turn text into a folder: on a disk, or on an object store as ``s3://bucket/prefix``."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

from tidelake.errors import MachineError, UsageError
from tidelake.store.access import filesystem_options

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


def is_stored(place: Folder | str) -> bool:
    """Tell whether a place lies on an object store."""
    return str(place).startswith(SCHEME)


def folder(text: str) -> Folder:
    """Give the folder that a text names; a relative one lies under the working directory.

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
    """Give what lies at an address on a store, whatever its name.

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
    """Say why a text names no folder; empty where it does."""
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
    """Write a place whole: a path from the root on, an address as it is."""
    return text.rstrip("/") if is_stored(text) else os.path.abspath(text)


def place_of(uri: str) -> str:
    """Turn a file's address, as Spark lists it, into the text of its path.

    ``file:///a%20b`` becomes ``/a b``, ``s3://bucket/a%20b`` becomes ``s3://bucket/a b``.
    """
    parts = urlsplit(uri)
    path = unquote(parts.path)
    return f"{SCHEME}{parts.netloc}{path}" if parts.scheme == "s3" else str(Path(path))


def address_of(place: str) -> str:
    """Write a file's path as an address; :func:`place_of` is the way back."""
    if is_stored(place):
        return SCHEME + quote(place.removeprefix(SCHEME), safe="/!$&'()*+,;=:@~-._")
    return place
