"""Access to locations that only Spark can read, with the rights of its compute.

Those are external locations of Unity Catalog: no key for them is in this process, so Spark lists
their files and reads their content. Spark is imported inside the functions: commands without it
import this module.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tidelake.errors import SourceError
from tidelake.visible import is_of_spark, kind_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrameReader

# A file's name that begins with _ needs a =, as a folder's does. Spark would plan Parquet's files
# _metadata and _common_metadata too, of which its readers then read nothing.
FILE_NAMES = "{[^_]*,*=*}"
# How a path begins, and what stands between the scheme and the prefix.
_SCHEMES = {
    "abfss": ("container@account.dfs.core.windows.net", re.compile(r"[^/@:]+@[^/@:]+")),
    "gs": ("bucket", re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")),
}
# Python, which lists, compares and moves files elsewhere, has a client for S3 only.
MOUNTED = (
    "On Databricks make an external volume of that location and write its path, "
    "/Volumes/CATALOG/SCHEMA/VOLUME; elsewhere mount it and write the folder"
)
_OPTIONS: Mapping[str, bool | str] = {
    "recursiveFileLookup": True,
    "pathGlobFilter": FILE_NAMES,
    # A file that is deleted while files are listed is none; one that cannot be read is an error.
    "ignoreMissingFiles": True,
    "ignoreCorruptFiles": False,
}
_NO_PATH = "PATH_NOT_FOUND"
_TASKS = 16


def is_external(place: object) -> bool:
    """Return whether only Spark can read a path."""
    return str(place).partition("://")[0] in _SCHEMES


def address_problem(path: str) -> str:
    """Return why an external path names no prefix of a location, or ""."""
    scheme, _, rest = path.rstrip("/").partition("://")
    form, authority = _SCHEMES[scheme]
    place, _, prefix = rest.partition("/")
    is_whole = bool(authority.fullmatch(place) and prefix)
    return "" if is_whole else f"names no location: write {scheme}://{form}/prefix"


def _reader() -> DataFrameReader:
    from pyspark.sql import SparkSession  # noqa: PLC0415

    return SparkSession.active().read.format("binaryFile").options(**_OPTIONS)


@contextmanager
def translating_spark_errors(what: str) -> Iterator[None]:
    """Translate Spark's errors raised in the block into a SourceError that names ``what``."""
    try:
        yield
    except Exception as error:
        if not (is_of_spark(error) or isinstance(error, ImportError)):
            raise
        raise SourceError(
            f"{what} cannot be read: {kind_of(error)}\nIt must be in an external location of the "
            "catalog, and the identity that runs this needs READ FILES on that."
        ) from error


def files_at(patterns: Sequence[str]) -> dict[str, tuple[int, int]] | None:
    """List the files at some paths, or below them, without reading them.

    Args:
        patterns: Paths in which characters with a meaning in Spark's patterns are escaped.

    Returns:
        By URI the size in bytes and the modification time in milliseconds, of whole seconds: not
        every kind of request returns fractions. An empty file has none, and 0 stands for it. None
        if one of the paths does not exist.
    """
    from pyspark.errors import AnalysisException  # noqa: PLC0415
    from pyspark.sql import functions as F  # noqa: PLC0415

    reader = _reader()
    modified = F.unix_millis("_metadata.file_modification_time")
    columns = "_metadata.file_path", "_metadata.file_size", modified
    try:
        # Each file would be a task in a session that reads whole files.
        files = reader.load(list(patterns)).select(*columns).coalesce(_TASKS)
        rows, uris = files.collect(), files.inputFiles()
        found = {uri: (size, at // 1000 * 1000) for uri, size, at in rows if size}
        # Spark plans no reads of empty files, so those have no row. Nor have files that are removed
        # meanwhile: they are not listed again.
        if len(found) < len(uris):
            again = set(reader.load(list(patterns)).inputFiles())
            uris = [uri for uri in uris if uri in again]
    except AnalysisException as error:
        if error.getCondition() != _NO_PATH:
            raise
        return None
    return dict.fromkeys(uris, (0, 0)) | found


def content_of(pattern: str) -> bytes | None:
    """Read a file whole; None if it does not exist. The pattern is as for :func:`files_at`."""
    from pyspark.errors import AnalysisException  # noqa: PLC0415

    try:
        rows = _reader().load(pattern).select("content").collect()
    except AnalysisException as error:
        if error.getCondition() != _NO_PATH:
            raise
        return None
    return bytes(rows[0][0]) if rows else b""
