"""A run can be sent to another process, and goes on there on the same tables."""

from __future__ import annotations

import pickle
import threading
from pathlib import Path
from typing import Any, cast

import pytest

from tests.pipelines import shop
from tidelake.config import Environment
from tidelake.delta.store import Catalog, CatalogStore
from tidelake.delta.tables import Lake
from tidelake.runtime.hop import Run, description
from tidelake.runtime.progress import Progress


def _sent(lake: Lake, folder: Path, **changes: Any) -> Run:
    environment = Environment(name="x", root=folder)
    nothing = cast(Any, None)
    run = Run(nothing, shop(folder), lake, environment, Progress(print), **changes)
    described = pickle.loads(pickle.dumps(description(run)))
    found = described(cast(Any, "another session"))
    assert isinstance(found, Run)
    assert (found.pipeline, found.environment) == (run.pipeline, run.environment)
    return found


@pytest.mark.parametrize("replays", [False, True])
def test_a_run_on_folders_goes_on_in_them(tmp_path: Path, replays: bool) -> None:
    found = _sent(Lake(tmp_path), tmp_path, replays=replays)
    assert found.lake == Lake(tmp_path)
    assert found.replays is replays
    assert cast(Any, found.spark) == "another session"


def test_a_run_in_a_catalog_asks_the_session_that_it_finds(tmp_path: Path) -> None:
    catalog = Catalog("shop", lambda: cast(Any, threading.Lock()))
    place = _sent(Lake(tmp_path, catalog=catalog), tmp_path).lake.silver("shop").store
    assert isinstance(place, CatalogStore)
    assert cast(Any, place.catalog.session()) == "another session"
