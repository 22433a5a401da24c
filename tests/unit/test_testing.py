"""What a test run is given, and what its dimensions are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from pyspark.sql import SparkSession

from tests.unit.handmade import SHOP
from tests.unit.test_config_loading import write
from tidelake.errors import UsageError
from tidelake.runtime.hop import Run
from tidelake.testing import Play, playing

# What is to be looked up is in the repository's own pipelines.
ENRICHED = "clickstream"
GOODS: dict[str, Any] = {
    "name": "goods",
    "kind": "dimension",
    "source": {"kind": "files", "path": "${root}/goods"},
    "event": {
        "schema": "change_id STRING, good STRING, revision BIGINT, at TIMESTAMP, category STRING",
        "select": {"good": "good", "category": "category"},
        "id": "change_id",
        "time": "at",
        "sequence": "revision",
    },
    "dimension": {"key": ["good"]},
}
SOLD: dict[str, Any] = {
    "name": "sold",
    "source": {"kind": "files", "path": "${root}/sold"},
    "event": {"schema": "id STRING, at TIMESTAMP, good STRING", "id": "id", "time": "at"},
    "enrich": [{"dimension": "goods", "on": {"good": "good"}, "columns": ["category"]}],
    "gold": [],
}


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[Run]:
    """Run no hops; note which would have."""
    noted: list[Run] = []
    monkeypatch.setattr("tidelake.spark.session.active_session", SimpleNamespace)
    monkeypatch.setattr("tidelake.runtime.runner.run_hops", lambda run, *_: noted.append(run))
    nothing = SimpleNamespace(fates={}, reasons={}, problems=())
    monkeypatch.setattr("tidelake.testing.read_ledger", lambda *_: nothing)
    return noted


@pytest.fixture
def play(ran: list[Run]) -> Iterator[Play]:
    with playing() as found:
        yield found


def test_lines_are_texts_or_bytes(play: Play, ran: list[Run], tmp_path: Path) -> None:
    shop = write(tmp_path, SHOP)

    play(shop, ['{"user_id": "ü"}', b"{"], tmp_path / "played")

    (run,) = ran
    (file,) = Path(run.pipeline.source.path).iterdir()  # type: ignore[union-attr]
    assert file.read_bytes() == '{"user_id": "ü"}\n{\n'.encode()


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ("{}", "one text. Give a list of lines"),
        (b"{}", "one text. Give a list of lines"),
        ([b"{}", {"user_id": "u1"}], r"lines\[1\] is of type dict"),
    ],
)
def test_other_lines_are_refused_and_leave_the_folder_as_it_is(
    play: Play, tmp_path: Path, lines: Any, why: str
) -> None:
    shop, folder = write(tmp_path, SHOP), tmp_path / "played"

    with pytest.raises(UsageError, match=why):
        play(shop, lines, folder)

    assert not folder.exists()


def test_a_dimension_without_lines_is_warned_of(play: Play, ran: list[Run], tmp_path: Path) -> None:
    with pytest.warns(
        UserWarning, match=r"dim\.products has no rows.*category will be null"
    ) as all_:
        play(ENRICHED, [], tmp_path / "played")

    (warning,) = all_
    assert warning.filename == __file__
    assert [run.pipeline.name for run in ran] == [ENRICHED]


def test_dimensions_with_lines_run_first(play: Play, ran: list[Run], tmp_path: Path) -> None:
    play(ENRICHED, [], tmp_path / "played", dimensions={"products": ["{}"]})

    assert [run.pipeline.name for run in ran] == ["products", ENRICHED]


def test_lines_of_a_dimension_that_is_not_looked_up_are_refused(play: Play, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"unknown dimension product.*did you mean products"):
        play(ENRICHED, [], tmp_path / "played", dimensions={"product": []})

    assert not (tmp_path / "played").exists()


@pytest.mark.long
def test_a_play_looks_up_the_lines_of_its_dimensions(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipelines = tmp_path / "conf/pipelines"
    pipelines.mkdir(parents=True)
    for one in (GOODS, SOLD):
        (pipelines / f"{one['name']}.yml").write_text(yaml.safe_dump(one))
    monkeypatch.chdir(tmp_path)
    time = '"at": "2026-01-05T10:00:00Z", "good": "g1"'
    goods = [f'{{"change_id": "c1", "revision": 1, "category": "books", {time}}}']

    with playing() as play:
        played = play(
            "sold", [f'{{"id": "s1", {time}}}'], tmp_path / "a", dimensions={"goods": goods}
        )

    assert played.ask("SELECT event_id, category FROM silver.sold") == [("s1", "books")]
    assert played.problems == ()
