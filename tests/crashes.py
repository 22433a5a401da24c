"""End a run at a certain step, as if the process had died there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tidelake.delta import locks
from tidelake.delta.tables import Table
from tidelake.errors import LeaseLostError
from tidelake.folders import Folder
from tidelake.runtime import gold, session_pool, silver
from tidelake.runtime.gold import GoldHop


def forgotten_batch(checkpoint: Path) -> None:
    """Lose what the second batch wrote, as when an older copy of the checkpoint is put back."""
    written = set(checkpoint.rglob("1"))
    assert {file.parent.name for file in written} >= {"offsets", "commits"}
    for file in written:
        file.unlink()


@contextmanager
def before_silver_closes() -> Iterator[None]:
    """Fail once, when the side tables hold the batch and silver does not."""
    real = silver.append

    def append(rows: DataFrame, table: Table, *rest: Any, **options: Any) -> None:
        if table.name.startswith("silver.") and "__" not in table.name:
            raise RuntimeError("cut off")
        real(rows, table, *rest, **options)

    with _dying() as patch:
        patch.setattr(silver, "append", append)
        yield


@contextmanager
def after_merges(count: int, *, slots: int = 1) -> Iterator[None]:
    """Fail after ``count`` merges of gold tables, in the order of the file.

    Args:
        count: Number of merges that begin before the one that fails.
        slots: With several, merges that began earlier may end after the failure.
    """
    real, begun = GoldHop._merge, []

    def merge(hop: GoldHop, *rest: Any) -> None:
        if len(begun) >= count:
            raise RuntimeError("cut off")
        begun.append(1)
        real(hop, *rest)

    with _dying() as patch:
        patch.setattr(GoldHop, "_merge", merge)
        patch.setattr(session_pool, "slots_of", lambda session: slots)
        yield


@contextmanager
def lease_lost_once(is_due: Callable[[], bool]) -> Iterator[None]:
    """Replace the hops' locks by leases that are lost once ``is_due`` returns true.

    Args:
        is_due: Called at each check of the locks.
    """
    real = locks.hold

    @contextmanager
    def hold(folder: Folder, what: str, **options: Any) -> Iterator[Callable[[], None]]:
        def check() -> None:
            if is_due():
                raise LeaseLostError(what, str(folder))

        with real(folder, what, **options):
            yield check

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(locks, "hold", hold)
        yield


@contextmanager
def before_a_batch_closes(seen: set[str]) -> Iterator[None]:
    """Fail between a merge without metadata and the commit that completes it, once per table.

    Args:
        seen: Names of the tables where that happened; gets at least one more.
    """
    real = gold.append_nothing

    def close(spark: SparkSession, table: Table, note: dict[str, Any]) -> None:
        if table.name not in seen:
            seen.add(table.name)
            raise RuntimeError("cut off")
        real(spark, table, note)

    with _dying() as patch:
        patch.setattr(gold, "append_nothing", close)
        yield


@contextmanager
def _dying() -> Iterator[pytest.MonkeyPatch]:
    # A run reports an error that is not its own by its kind alone.
    how = "cut off|RuntimeError"
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Exception, match=how):
        yield patch
