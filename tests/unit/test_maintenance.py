"""How long removed files are kept: for the recovery horizon, and for whoever still reads them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml

from tests.unit.handmade import SHOP, write_commit
from tidelake.config import Pipeline, load_environment, load_pipeline
from tidelake.delta.tables import Lake
from tidelake.errors import RefusedError
from tidelake.ops.maintenance import plan_upkeep

_HOUR = timedelta(hours=1)
# Commits are written from the new year on, a second apart.
_TEN = datetime(2024, 1, 1, 10, tzinfo=UTC)


@pytest.fixture
def pipeline(lake: Lake, tmp_path: Path) -> Pipeline:
    """Give silver four commits, of which gold has read two."""
    for version in range(4):
        write_commit(lake.silver("shop"), version, adds=[(1, True)])
    _read_up_to(lake, 0, 2)
    file = tmp_path / "shop.yml"
    file.write_text(yaml.safe_dump(SHOP))
    return load_pipeline(str(file), load_environment("local", root=str(lake.root)))


def _read_up_to(lake: Lake, batch: int, version: int) -> None:
    note = {"pipeline": "shop", "hop": "gold", "generation": "g1", "batch": batch}
    write_commit(lake.gold("totals"), batch, note={**note, "until": {"silver": [version, -1]}})


def _kept(lake: Lake, pipeline: Pipeline, keep: timedelta | None = None) -> Mapping[str, timedelta]:
    plans = plan_upkeep(lake, pipeline, horizon=_HOUR, keep=keep, now=_TEN)
    return {plan.table.name: plan.keep for plan in plans}


def test_files_within_the_recovery_horizon_are_never_deleted(
    lake: Lake, pipeline: Pipeline
) -> None:
    _read_up_to(lake, 1, 4)
    assert _kept(lake, pipeline) == {"silver.shop": _HOUR, "gold.totals": _HOUR}
    with pytest.raises(RefusedError, match=r"for 0\.5 hours is less than the recovery horizon"):
        _kept(lake, pipeline, _HOUR / 2)
    assert set(_kept(lake, pipeline, _HOUR).values()) == {_HOUR}


def test_files_that_a_reader_needs_are_kept_and_the_reader_is_named(
    lake: Lake, pipeline: Pipeline
) -> None:
    # Gold is at the version that was written in the first second.
    needed = 11 * _HOUR - timedelta(seconds=1)
    assert _kept(lake, pipeline) == {"silver.shop": needed, "gold.totals": _HOUR}
    why = "files of silver.shop since 2024-01-01 00:00Z are still needed: gold.totals has not read"
    with pytest.raises(RefusedError, match=f"{why}.*tidelake run shop --hop gold"):
        _kept(lake, pipeline, 5 * _HOUR)
    _read_up_to(lake, 1, 4)
    assert set(_kept(lake, pipeline, 5 * _HOUR).values()) == {5 * _HOUR}
