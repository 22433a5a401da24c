"""What a notebook asks for is held to what the command line holds it to."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tidelake.config import load_environment, load_pipeline
from tidelake.config.environment import RESULT_SETTINGS
from tidelake.delta.tables import Lake
from tidelake.errors import UsageError
from tidelake.workbench import Workbench

DAY, NEXT = datetime(2026, 1, 5, tzinfo=UTC), datetime(2026, 1, 6, tzinfo=UTC)


class Session:
    """A session as PySpark's: its context has no properties once it is stopped."""

    active: Session | None = None

    def __init__(self) -> None:
        self.settings = dict(RESULT_SETTINGS)
        self.conf = SimpleNamespace(get=self.settings.get, set=self.settings.__setitem__)
        self.sparkContext = SimpleNamespace(startTime=1)
        Session.active = self

    def stop(self) -> None:
        del self.sparkContext.startTime
        Session.active = None


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Start no Spark, fill no tables; note what each was asked for."""
    noted: list[Any] = []
    monkeypatch.setattr(Session, "active", None)
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: Session.active)

    def start(_: object, *, reads: list[str]) -> Session:
        noted.append(reads)
        return Session()

    monkeypatch.setattr("tidelake.workbench.build_session", start)
    monkeypatch.setattr("tidelake.workbench.build", lambda _, start, span: noted.append(span))
    return noted


def bench(source: str) -> Workbench:
    environment = load_environment("local", root="lake")
    pipeline = load_pipeline("clickstream", environment, source=source)
    assert environment.root is not None
    return Workbench.of(environment, Lake(environment.root), pipeline)


def test_a_session_knows_which_places_the_pipeline_and_its_dimensions_read(
    asked: list[Any],
) -> None:
    bench("s3://landing/clicks")
    (reads,) = asked
    assert "s3://landing/clicks" in reads
    assert any(place.endswith("/products") for place in reads)


@pytest.mark.parametrize(("first", "last"), [(DAY, None), (None, DAY), (NEXT, DAY), (DAY, DAY)])
def test_half_a_range_is_refused(
    asked: list[Any], first: datetime | None, last: datetime | None
) -> None:
    work = bench("landing")
    with pytest.raises(UsageError, match="a range needs first and a later last"):
        work.build("silver", first=first, last=last)
    work.build("silver", first=DAY, last=NEXT)
    work.build("silver")
    assert asked[1:] == [(DAY, NEXT), None]


def test_a_cell_that_runs_again_still_closes_the_session_that_it_started(asked: list[Any]) -> None:
    bench("landing")
    again = bench("landing")

    again.close()

    assert len(asked) == 1
    assert Session.active is None


def test_the_notebooks_own_session_is_left_to_it(asked: list[Any]) -> None:
    own = Session()

    bench("landing").close()

    assert Session.active is own
    assert asked == []


def test_the_session_of_a_managed_runtime_is_left_to_it(
    asked: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelake.workbench.starts_spark", lambda _: False)

    bench("landing").close()

    assert Session.active is not None


@pytest.mark.parametrize("name", ["run", "verify", "build", "compare", "promote", "rollback"])
def test_a_closed_workbench_says_how_to_open_another(asked: list[Any], name: str) -> None:
    first, second = bench("landing"), bench("landing")
    second.close()

    for work in (first, second):
        with pytest.raises(UsageError, match=r'closed.*: lake\.workbench\("clickstream"\)'):
            getattr(work, name)()


@pytest.mark.parametrize("name", ["build", "plan"])
def test_a_rebuild_starts_from_bronze_or_silver(asked: list[Any], name: str) -> None:
    with pytest.raises(UsageError, match=r'from "gold".*start="bronze".*start="silver"'):
        getattr(bench("landing"), name)("gold")
