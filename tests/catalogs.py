"""A catalog in Spark's own, whose tables' files nobody but Spark may touch."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tidelake.config import Environment
from tidelake.delta import store
from tidelake.delta.store import CatalogTable
from tidelake.names import LAYERS

# An audit hook stays until the process ends; these are what it watches now.
_forbidden: set[str] = set()
# Whether a thread may look nevertheless.
_thread = threading.local()
_WATCHED = frozenset(
    {"open", "os.listdir", "os.scandir", "os.remove", "os.rename", "os.mkdir", "shutil.rmtree"}
)


@contextmanager
def looking() -> Iterator[None]:
    """Let a test itself look at the tables' files, in its own thread."""
    before = getattr(_thread, "looks", False)
    _thread.looks = True
    try:
        yield
    finally:
        _thread.looks = before


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
        with closed(warehouse), _told_once(warehouse):
            yield Environment(name="prod", catalog="spark_catalog", volume=folder / "volume")
    finally:
        for layer in LAYERS:
            spark.sql(f"DROP SCHEMA IF EXISTS {layer} CASCADE")


@contextmanager
def _told_once(warehouse: Path) -> Iterator[None]:
    """Ask Spark for the history and the id of a table again only when its log has changed.

    A run asks for those of each table many times; each takes a fifth of a second.
    """
    known: dict[tuple[Any, ...], Any] = {}

    def once(real: Callable[..., Any]) -> Callable[..., Any]:
        def told(table: CatalogTable, *rest: Any) -> Any:
            log = warehouse / table.schema / table.table / "_delta_log"
            with looking():
                found = sorted(log.glob("*.json"))
                files = tuple((file.name, file.stat().st_mtime_ns) for file in found)
            asked = real, table.sql, rest, files
            if not files:
                return real(table, *rest)
            if asked not in known:
                known[asked] = real(table, *rest)
            return known[asked]

        return told

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "_history", once(store._history))
        patch.setattr(CatalogTable, "id", property(once(vars(CatalogTable)["id"].fget)))
        yield


def _watch() -> None:
    if not _installed:
        sys.addaudithook(_refuse)
        _installed.append(True)


_installed: list[bool] = []


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if event not in _WATCHED or not _forbidden or not arguments:
        return
    if getattr(_thread, "looks", False):
        return
    touched = arguments[0]
    if not isinstance(touched, str | bytes | os.PathLike):
        return
    path = os.fsdecode(touched)
    if any(path.startswith(folder) for folder in _forbidden):
        raise AssertionError(f"{event} of a file that only Spark may touch: {path}")
