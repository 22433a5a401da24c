"""A run that ends opens the later hops while the first one runs."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from tidelake.errors import RefusedError, SourceError
from tidelake.runtime import runner
from tidelake.runtime.progress import InputGrewError, Progress
from tidelake.runtime.triggers import AVAILABLE_NOW, parse_trigger

SECONDS = 20


@dataclass
class Hops:
    """Stands in for the hops: records what happens to each, in order.

    Attributes:
        events: ``open``, ``run`` and ``warm up``, with the hop.
        filled: The hops whose new tables were filled, each with the event before that.
        opened: Set when the last hop has been opened.
        refused: Hops that cannot be opened.
        grown: Hops whose input grows during their first query.
        broken: Whether bronze fails, once silver is being opened.
        failed: Set when bronze fails.
        cold_failure: Raised by each warm-up.
        stuck: What a warm-up waits for.
    """

    events: list[str] = field(default_factory=list)
    filled: list[tuple[str, str]] = field(default_factory=list)
    opened: threading.Event = field(default_factory=threading.Event)
    warmed: threading.Event = field(default_factory=threading.Event)
    refused: set[str] = field(default_factory=set)
    grown: set[str] = field(default_factory=set)
    broken: bool = False
    failed: threading.Event = field(default_factory=threading.Event)
    cold_failure: Exception | None = None
    stuck: threading.Event | None = None

    def open(self, hop: str) -> Any:
        if hop in self.refused:
            raise RefusedError(f"{hop} is refused")
        if hop == "silver" and self.broken:
            # Opening takes longer than bronze does to fail.
            assert self.failed.wait(SECONDS)
            time.sleep(0.3)
        self.events.append(f"open {hop}")
        if hop == "gold":
            self.opened.set()
        return SimpleNamespace(
            hop=hop,
            closing=[],
            inputs={},
            fill_new_tables=lambda: self.fill(hop),
            finish=lambda _: self.finish(hop),
            warm_up=lambda: self.warm_up(hop),
        )

    def fill(self, hop: str) -> None:
        self.filled.append((hop, self.events[-1]))

    def finish(self, hop: str) -> None:
        if hop == "bronze" and self.broken:
            self.failed.set()
            raise SourceError("the source is gone")
        if hop == "bronze":
            # Bronze does not end before gold is open.
            assert self.refused or self.opened.wait(SECONDS)
        self.events.append(f"run {hop}")
        if hop in self.grown:
            self.grown.remove(hop)
            raise InputGrewError(hop)

    def warm_up(self, hop: str) -> None:
        self.events.append(f"warm up {hop}")
        if hop == "gold":
            self.warmed.set()
        if self.cold_failure is not None:
            raise self.cold_failure
        if self.stuck is not None:
            self.stuck.wait(SECONDS)
            self.events.append(f"warm {hop}")


@pytest.fixture
def hops(monkeypatch: pytest.MonkeyPatch) -> Hops:
    made = Hops()
    for hop in ("bronze", "silver", "gold"):
        monkeypatch.setitem(runner._HOPS, hop, lambda run, hop=hop: made.open(hop))
    monkeypatch.setattr(runner, "_start_query", lambda query, trigger: query)
    return made


def play(*, cold: bool = False) -> None:
    run: Any = SimpleNamespace(pipeline=SimpleNamespace(name="a"), progress=Progress(print))
    wanted = ("bronze", "silver", "gold")
    runner._run_in_sequence(run, wanted, parse_trigger(AVAILABLE_NOW), cold=cold)


def test_later_hops_are_opened_while_the_first_runs_and_run_after_it(hops: Hops) -> None:
    play()
    assert hops.events == [
        *("open bronze", "open silver", "open gold"),
        *("run bronze", "run silver", "run gold"),
    ]
    # Not while it is opened: then silver still changes.
    assert hops.filled[1:] == [("silver", "run bronze"), ("gold", "run silver")]


def test_a_later_hop_that_cannot_be_opened_stops_the_run_at_its_turn(hops: Hops) -> None:
    hops.refused.add("silver")
    with pytest.raises(RefusedError, match="silver is refused"):
        play()
    assert "run bronze" in hops.events
    assert "run gold" not in hops.events


def test_a_first_hop_that_cannot_be_opened_opens_none(hops: Hops) -> None:
    hops.refused.add("bronze")
    with pytest.raises(RefusedError, match="bronze is refused"):
        play()
    assert hops.events == []


def test_after_a_failure_no_other_hop_is_opened(hops: Hops) -> None:
    hops.broken = True
    with pytest.raises(SourceError, match="the source is gone"):
        play()
    assert hops.events == ["open bronze", "open silver"]


def test_a_hop_whose_input_grew_is_opened_anew(hops: Hops) -> None:
    hops.grown.add("silver")
    play()
    ran = [event for event in hops.events if "silver" in event]
    assert ran == ["open silver", "run silver", "open silver", "run silver"]
    assert hops.events[-1] == "run gold"


def test_only_a_cold_run_warms_up_its_later_hops(hops: Hops) -> None:
    play(cold=True)
    assert hops.warmed.wait(SECONDS)
    assert [event for event in hops.events if event.startswith("warm")] == [
        "warm up silver",
        "warm up gold",
    ]
    hops.events.clear()
    play()
    assert not [event for event in hops.events if event.startswith("warm")]


def test_a_warm_up_that_fails_leaves_the_failure_to_the_batch(hops: Hops) -> None:
    hops.cold_failure = RuntimeError("no registry")
    play(cold=True)
    # The warm-up may come after the run, which does not wait for it.
    assert "run gold" in hops.events


def test_a_run_does_not_wait_for_a_warm_up(hops: Hops) -> None:
    hops.stuck = threading.Event()
    try:
        play(cold=True)
        assert "run gold" in hops.events
        assert "warm silver" not in hops.events
    finally:
        hops.stuck.set()
