"""Compute that lets nobody set anything in a session, and keeps no frames."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.classic.dataframe import DataFrame
from pyspark.sql.conf import RuntimeConfig

from tests.crashes import before_a_batch_closes
from tests.following import GOLD, JOINS, assert_gold_follows
from tests.running import click
from tests.worlds import World, world
from tidelake.delta.log import commits
from tidelake.errors import GenerationError, UsageError
from tidelake.ledger.terms import read_ledger
from tidelake.replay.repairing import repair
from tidelake.replay.verify import verify


def _lines(part: int) -> list[bytes]:
    """Write events of which some come twice, and some lie among those of the file before."""
    own = [
        click(n, minute=n * 1.5 - (60 if n % 3 == 0 else 0), action=("click", "purchase")[n % 2])
        for n in range(part * 30, part * 30 + 30)
    ]
    return [*own, *own[:5]]


# Windows, sessions and a join: each way to merge.
_TABLES = [GOLD[0], GOLD[2], JOINS[0]]
# Each change plays the like through Spark Connect.
pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def landed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> World:
    """Give a world whose bronze holds two files."""
    made = world(
        spark, tmp_path_factory.mktemp("refused"), gold=_TABLES[:2], joins=_TABLES[2:], quality=None
    )
    for part in range(2):
        made.land(f"{part}.jsonl", _lines(part))
    made.run(hops=["bronze"])
    return made


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Refuse what serverless compute refuses."""

    def refuse(*_: Any, **__: Any) -> None:
        raise AnalysisException("[CONFIG_NOT_AVAILABLE] not here")

    with monkeypatch.context() as patch:
        for name in ("set", "unset"):
            patch.setattr(RuntimeConfig, name, refuse)
        for name in ("cache", "persist", "checkpoint", "localCheckpoint"):
            patch.setattr(DataFrame, name, refuse)
        yield


def _with_open_batches(landed: World, folder: Path, *, tables: int) -> World:
    """Copy the world, and cut gold off until as many tables have merged a batch and not closed it.

    Tables that are merged side by side may fail in the same run.
    """
    played = landed.copied(folder / "copy")
    played.run(hops=["silver"])
    seen: set[str] = set()
    while len(seen) < tables:
        with before_a_batch_closes(seen):
            played.run(hops=["gold"])
    return played


@pytest.mark.usefixtures("refusing")
def test_a_merge_without_its_note_is_merged_again_without_harm(
    landed: World, tmp_path: Path
) -> None:
    played = _with_open_batches(landed, tmp_path, tables=len(_TABLES))
    # Rows of the open batch are no difference.
    assert read_ledger(played.lake, played.pipeline).balanced
    assert verify(played.context).equal
    played.run(hops=["gold"])
    assert_gold_follows(played, _TABLES)
    assert read_ledger(played.lake, played.pipeline).balanced
    closed = [commit.batch for commit in commits(played.lake.gold("visits"))]
    assert closed == sorted(set(closed), reverse=True)


@pytest.mark.usefixtures("refusing")
def test_gold_with_rows_of_an_open_batch_is_repaired_from_silver(
    landed: World, tmp_path: Path
) -> None:
    played = _with_open_batches(landed, tmp_path, tables=1)
    assert "has rows of a batch that is not closed" in repair(played.context, "gold").why
    assert played.run(hops=["gold"]) == []
    assert_gold_follows(played, _TABLES)
    assert read_ledger(played.lake, played.pipeline).balanced


@pytest.mark.usefixtures("refusing")
def test_rows_of_a_merge_without_its_note_are_not_mixed_with_those_of_another_definition(
    landed: World, tmp_path: Path
) -> None:
    """In the first batch no commit before it names a definition either."""
    played = landed.copied(tmp_path / "copy")
    played.run(hops=["silver"])
    with before_a_batch_closes(set()):
        played.run(hops=["gold"])
    tables = [{**_TABLES[0], "where": "action = 'click'"}, *_TABLES[1:]]
    changed = played.redefined(gold=tables[:2])
    with pytest.raises(GenerationError, match="tidelake repair clickstream --hop gold"):
        changed.run(hops=["gold"])
    assert repair(changed.context, "gold").why
    assert changed.run(hops=["gold"]) == []
    assert_gold_follows(changed, tables)


@pytest.mark.usefixtures("refusing")
def test_the_prefilter_asks_for_settings_by_name(landed: World, tmp_path: Path) -> None:
    played = landed.copied(tmp_path / "copy").redefined(dedup={"prefilter": "operator"})
    with pytest.raises(UsageError, match="Set it to none"):
        played.run(hops=["silver"])
