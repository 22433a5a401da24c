"""Errors after which a hop restarts its query, because the columns of its input have changed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.errors import StreamingQueryException

from tests.unit.handmade import write_batches, write_commit
from tidelake.delta.tables import Lake
from tidelake.errors import RefusedError
from tidelake.runtime import hop as hops
from tidelake.runtime.fence import Fence
from tidelake.runtime.hop import Run, has_grown
from tidelake.runtime.progress import InputGrewError
from tidelake.runtime.silver import SilverHop
from tidelake.spark.tuning import COMPACTION_BATCHES


@pytest.mark.parametrize(
    "told",
    [
        "[DELTA_SCHEMA_CHANGED_WITH_STARTING_OPTIONS] Detected schema change in version 3",
        "[STREAM_FAILED] Query [id = d4] terminated with exception: assertion failed: "
        "Invalid batch: event_id#5916,_batch#5926L != event_id#5961,product_id#5971",
    ],
)
def test_columns_that_came_while_a_query_ran_or_started_are_told_from_failures(told: str) -> None:
    assert has_grown(told)
    assert not has_grown("[STREAM_FAILED] terminated with exception: No space left on device")


class _Grown:
    """A query that ends because Delta wants another one with the new schema."""

    def awaitTermination(self, seconds: float) -> None:
        raise StreamingQueryException("[DELTA_SCHEMA_CHANGED_WITH_VERSION] in version 3", {})


class _Barred:
    """A query that ends because Delta wants a log of schemas."""

    def __init__(self, condition: str) -> None:
        self.condition = condition

    def awaitTermination(self, seconds: float) -> None:
        raise StreamingQueryException(f"[{self.condition}] Streaming read is not supported", {})


def _check(lake: Lake, run: Run, closed: int, query: Any = None) -> None:
    """Open a hop whose tables hold a batch, and let its query end."""
    hop = object.__new__(SilverHop)
    hop.run, hop.closing = run, [lake.silver("shop")]
    hop.fence = Fence("shop", "silver", "g1", closed=closed)
    hop.checkpoint, hop.inputs = Path("/checkpoint"), {"bronze": lake.bronze("shop")}
    hop._stopping = hop._closings = hop._failure = None
    hop._ran_batch = False
    hop.check(cast(Any, query or _Grown()))


def test_a_query_is_not_restarted_for_ever_after_a_change_that_none_can_follow(
    tmp_path: Path,
) -> None:
    lake = Lake(tmp_path)
    write_batches(lake.silver("shop"), 4)
    run = Run(*cast(Any, [None, SimpleNamespace(name="shop"), lake, None, None]))
    for _ in range(3):
        with pytest.raises(InputGrewError):
            _check(lake, run, 4)
    # It closed a batch, and its input grew again.
    write_commit(lake.silver("shop"), 6, note={"generation": "g1", "batch": 5})
    with pytest.raises(InputGrewError):
        _check(lake, run, 4)
    for _ in range(2):
        with pytest.raises(InputGrewError):
            _check(lake, run, 5)
    why = "shop, hop silver: the schema of a table that it reads changed .* tidelake backfill run"
    with pytest.raises(RefusedError, match=why):
        _check(lake, run, 5)
    # A run that is started again tries it anew.
    with pytest.raises(InputGrewError):
        _check(lake, run, 5)


@pytest.mark.parametrize(
    "condition",
    [
        "DELTA_STREAMING_INCOMPATIBLE_SCHEMA_CHANGE_USE_SCHEMA_LOG",
        "DELTA_STREAMING_INCOMPATIBLE_SCHEMA_CHANGE",
        "DELTA_STREAMING_CANNOT_CONTINUE_PROCESSING_TYPE_WIDENING",
    ],
)
def test_where_a_stream_cannot_pass_a_wider_type_the_runtime_that_can_is_named(
    tmp_path: Path, condition: str
) -> None:
    """No later run would get further, so it is not said to try again."""
    lake = Lake(tmp_path)
    write_batches(lake.silver("shop"), 4)
    run = Run(*cast(Any, [None, SimpleNamespace(name="shop"), lake, None, None]))
    with pytest.raises(RefusedError) as told:
        _check(lake, run, 4, _Barred(condition))
    assert "or got another type. No row after that was read. If a type" in str(told.value)
    # A column may have been dropped or renamed instead, also without Databricks.
    assert "became wider, Databricks Runtime 18.1 or newer goes on. Otherwise: Rebuild" in str(
        told.value
    )
    assert "tidelake backfill run shop, then: tidelake backfill promote" in str(told.value)
    assert run.restarts == {}


def test_a_batch_that_compacts_silver_compacts_its_side_tables_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside a run, maintenance does not."""
    lake, done = Lake(tmp_path), list[str]()
    monkeypatch.setattr(hops, "compact", lambda _, table: done.append(table.name))
    hop: Any = object.__new__(SilverHop)
    hop.run = Run(*cast(Any, [None, SimpleNamespace(name="shop"), lake, None, None]))
    hop.closing, hop.write = [lake.silver("shop")], lambda *_: None
    for batch in range(COMPACTION_BATCHES):
        hop.take(SimpleNamespace(sparkSession=None), batch)
    assert done == ["silver.shop", "silver.shop__quarantine", "silver.shop__late"]
