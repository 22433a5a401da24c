"""A catalog in Spark's own, whose tables' files nobody but Spark may touch."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tidelake.config import Environment
from tidelake.names import LAYERS

# An audit hook stays until the process ends; these are what it watches now.
_forbidden: set[str] = set()
_WATCHED = frozenset(
    {"open", "os.listdir", "os.scandir", "os.remove", "os.rename", "os.mkdir", "shutil.rmtree"}
)


@contextmanager
def looking() -> Iterator[None]:
    """Let a test itself look at the tables' files."""
    watched = set(_forbidden)
    _forbidden.clear()
    try:
        yield
    finally:
        _forbidden.update(watched)


@contextmanager
def closed(folder: Path) -> Iterator[None]:
    """Let Python neither open, list nor change a file under a folder."""
    _watch()
    _forbidden.add(str(folder))
    try:
        yield
    finally:
        _forbidden.discard(str(folder))


@contextmanager
def a_catalog(spark: SparkSession, folder: Path) -> Iterator[Environment]:
    """Make the layers' schemas, empty, and an environment for them.

    While it lasts, Python may not open, list or change a file under the tables' folder.
    """
    warehouse = folder / "warehouse"
    for layer in LAYERS:
        spark.sql(f"CREATE SCHEMA {layer} LOCATION '{warehouse / layer}'")
    try:
        with closed(warehouse):
            yield Environment(name="prod", catalog="spark_catalog", volume=folder / "volume")
    finally:
        for layer in LAYERS:
            spark.sql(f"DROP SCHEMA IF EXISTS {layer} CASCADE")


def _watch() -> None:
    if not _installed:
        sys.addaudithook(_refuse)
        _installed.append(True)


_installed: list[bool] = []


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if event not in _WATCHED or not _forbidden or not arguments:
        return
    touched = arguments[0]
    if not isinstance(touched, str | bytes | os.PathLike):
        return
    path = os.fsdecode(touched)
    if any(path.startswith(folder) for folder in _forbidden):
        raise AssertionError(f"{event} of a file that only Spark may touch: {path}")
