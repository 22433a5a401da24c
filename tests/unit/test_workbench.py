"""What a notebook asks for is held to what the command line holds it to."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tidelake.config import load_environment, load_pipeline
from tidelake.delta.tables import Lake
from tidelake.errors import UsageError
from tidelake.workbench import Workbench

DAY, NEXT = datetime(2026, 1, 5, tzinfo=UTC), datetime(2026, 1, 6, tzinfo=UTC)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Start no Spark, fill no tables; note what each was asked for."""
    noted: list[Any] = []
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)

    def start(_: object, *, reads: list[str]) -> object:
        noted.append(reads)
        return SimpleNamespace()

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
