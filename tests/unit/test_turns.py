"""The hops of a continuous run without an interval take turns while batches are light."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from tidelake.config import load_environment, load_pipeline
from tidelake.delta.store import Catalog
from tidelake.delta.tables import HOPS, Hop, Lake, Table
from tidelake.runtime import runner
from tidelake.runtime.hop import Run
from tidelake.runtime.progress import Progress
from tidelake.runtime.runner import Turns, turns_of
from tidelake.runtime.triggers import Load, parse_trigger

_A_WHILE, _LONG = 0.05, 20


@dataclass
class Played:
    """Hops that close batches in threads of their own, as Spark's queries do.

    Attributes:
        consumed: The hops that have taken in what the one before wrote.
        asked: The inputs of which that was asked, by hop.
    """

    turns: Turns
    pool: ThreadPoolExecutor
    consumed: set[str] = field(default_factory=set)
    asked: dict[str, list[str]] = field(default_factory=dict)

    def close(self, hop: Hop, *, is_light: bool = True) -> Future[None]:
        """Close a batch, with which the hop has taken in its input; give when it may go on."""
        self.consumed.add(hop)
        closing = self.pool.submit(self.turns.give_way, hop, is_light)
        time.sleep(_A_WHILE)
        return closing

    def have_consumed(self, closing: Sequence[Table], inputs: Mapping[str, Table]) -> bool:
        """Answer for the tables of a hop."""
        hop = closing[0].name.partition(".")[0]
        self.asked[hop] = [table.name for table in inputs.values()]
        return hop in self.consumed


def _run_on(lake: Lake) -> Run:
    pipeline = load_pipeline("clickstream", load_environment("local", root=str(lake.root)))
    progress = Progress(lambda _: None)
    return cast("Run", SimpleNamespace(lake=lake, pipeline=pipeline, progress=progress))


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Played]:
    run = _run_on(Lake(tmp_path))
    with ThreadPoolExecutor(len(HOPS)) as pool:
        made = Played(Turns(run, HOPS), pool)
        monkeypatch.setattr(runner, "have_consumed", made.have_consumed)
        try:
            yield made
        finally:
            made.turns.end()


def test_a_batch_goes_through_all_hops_before_the_next_one_begins(played: Played) -> None:
    bronze = played.close("bronze")
    silver = played.close("silver")
    assert not bronze.done() and not silver.done()
    assert played.close("gold").done()
    silver.result(_LONG)
    bronze.result(_LONG)
    # Not the requeue, to which others append.
    assert played.asked == {"silver": ["bronze.clickstream"], "gold": ["silver.clickstream"]}


def test_after_a_batch_that_is_not_light_no_hop_waits(played: Played) -> None:
    assert played.close("bronze", is_light=False).done()
    # The one behind it waits for its own next hop alone.
    assert not played.close("silver").done()


def test_no_hop_waits_once_the_run_ends(played: Played) -> None:
    bronze = played.close("bronze")
    assert not bronze.done()
    played.turns.end()
    bronze.result(_LONG)


def test_a_hop_waits_for_so_long_only(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "_LONGEST_TURN_SECONDS", _A_WHILE)
    played.close("bronze").result(_LONG)


def test_hops_take_turns_on_a_disk_and_without_an_interval(tmp_path: Path) -> None:
    on_disk = _run_on(Lake(tmp_path))
    catalog = Catalog("c", session=lambda: pytest.fail("Spark was asked"))
    in_catalog = _run_on(Lake(tmp_path, catalog=catalog))
    continuous = parse_trigger("continuous")
    assert turns_of(on_disk, HOPS, continuous) is not None
    assert turns_of(on_disk, HOPS, parse_trigger("10 seconds")) is None
    assert turns_of(in_catalog, HOPS, continuous) is None


@pytest.mark.parametrize(
    ("seconds", "waiting", "is_light"), [(3, 100, True), (3.1, 0, False), (0.1, 101, False)]
)
def test_a_batch_is_light_while_its_hop_keeps_up_and_is_quick(
    seconds: float, waiting: int, is_light: bool
) -> None:
    assert Load(size=100, seconds=seconds, waiting=waiting, ended=0).is_light is is_light
