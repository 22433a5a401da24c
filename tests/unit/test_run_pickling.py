"""A run can be pickled, sent to another process, and continued there on the same tables."""

from __future__ import annotations

import pickle
import threading
from pathlib import Path
from typing import Any, cast

import pytest

from tests.pipelines import shop
from tidelake.config import Environment
from tidelake.delta.store import Catalog, CatalogTable
from tidelake.delta.tables import Lake
from tidelake.runtime.hop import Run, description
from tidelake.runtime.progress import Progress


def _run(lake: Lake, folder: Path, **changes: Any) -> Run:
    environment = Environment(name="x", root=folder)
    return Run(cast(Any, None), shop(folder), lake, environment, Progress(print), **changes)


def _sent(lake: Lake, folder: Path, **changes: Any) -> Run:
    run = _run(lake, folder, **changes)
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
    place = _sent(Lake(tmp_path, catalog=catalog), tmp_path).lake.silver("shop")
    assert isinstance(place, CatalogTable)
    assert cast(Any, place.catalog.session()) == "another session"


def test_what_a_batch_learned_of_the_tables_the_next_one_knows(tmp_path: Path) -> None:
    """A worker builds the run anew with each batch."""
    catalog = Catalog("shop", lambda: cast(Any, threading.Lock()))
    for lake in (Lake(tmp_path), Lake(tmp_path, catalog=catalog)):
        described = pickle.loads(pickle.dumps(description(_run(lake, tmp_path))))
        one, next_one = (described(cast(Any, session)).lake for session in ("one", "next"))
        assert one.newest is next_one.newest
        if one.catalog is not None and next_one.catalog is not None:
            assert one.catalog.histories is next_one.catalog.histories
            assert cast(Any, next_one.catalog.session()) == "next"
