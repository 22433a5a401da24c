"""Locations of a cloud that are on this disk: Spark finds /tmp/x at ``gs://tests/tmp/x``."""

from __future__ import annotations

import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

_AUTHORITIES = {"gs": "tests", "abfss": "landing@account.dfs.core.windows.net"}
_VIEW = "org.apache.hadoop.fs.viewfs.ViewFileSystemOverloadScheme"
# The folder that has those of all tests in it.
_TOP = Path(tempfile.gettempdir()).parts[1]
_DISK = "org.apache.hadoop.fs.LocalFileSystem"
SETTINGS = {
    "fs.viewfs.overload.scheme.target.file.impl": _DISK,
    **{f"fs.{scheme}.impl": _VIEW for scheme in _AUTHORITIES},
    **{f"fs.viewfs.overload.scheme.target.{scheme}.impl": _DISK for scheme in _AUTHORITIES},
    **{
        f"fs.viewfs.mounttable.{authority.rpartition('@')[2]}.link./{_TOP}": f"file:///{_TOP}"
        for authority in _AUTHORITIES.values()
    },
}


def at(folder: Path, scheme: str = "gs") -> str:
    """Give the address of a folder or a file."""
    return f"{scheme}://{_AUTHORITIES[scheme]}{folder}"


def mount(spark: SparkSession) -> None:
    """Let a session's Spark find the locations."""
    settings = spark.sparkContext._jsc.hadoopConfiguration()  # type: ignore[union-attr]
    for key, value in SETTINGS.items():
        settings.set(key, value)
