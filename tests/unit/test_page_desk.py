"""When tables are read: as somebody looks, where something changed, and not too often."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.shops import Shop
from tidelake.config import Pipeline
from tidelake.errors import UsageError
from tidelake.ops.page import desk as desk_module
from tidelake.ops.page.desk import Desk


class Clock:
    """Seconds that pass when they are told to."""

    def __init__(self) -> None:
        """Begin well after zero."""
        self.now = 1000.0

    def __call__(self) -> float:
        """Give the time."""
        return self.now


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    """Give a lake of two batches."""
    return Shop(tmp_path).run(2)


@pytest.fixture
def clock() -> Clock:
    """Give a clock that stands still."""
    return Clock()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count what is read, by the reader's name."""
    counted: Counter[str] = Counter()

    def counting(name: str, read: Callable[..., Any]) -> Callable[..., Any]:
        def counted_read(*arguments: Any, **options: Any) -> Any:
            counted[name] += 1
            return read(*arguments, **options)

        return counted_read

    for name in ("pulse_of", "read_flow", "alerts_of", "read_sides", "read_plots", "read_ledger"):
        monkeypatch.setattr(desk_module, name, counting(name, getattr(desk_module, name)))
    return counted


def a_desk(shop: Shop, clock: Clock) -> Desk:
    return Desk(shop.lake, {"shop": "shop"}, lambda _: shop.pipeline, clock=clock)


def test_the_first_look_reads_every_part(shop: Shop, clock: Clock) -> None:
    desk = a_desk(shop, clock)

    desk.bring_up_to_date("shop")

    (facts,) = desk.look(["shop"], patience=0)
    assert facts.whole
    assert facts.books is not None and facts.books.balanced
    assert facts.plots is not None and len(facts.plots) == 3


def test_a_look_at_unchanged_tables_feels_the_pulse_and_reads_nothing(
    shop: Shop, clock: Clock, reads: Counter[str]
) -> None:
    desk = a_desk(shop, clock)
    desk.bring_up_to_date("shop")
    (before,) = desk.look(["shop"], patience=0)
    reads.clear()

    clock.now += 5
    desk.bring_up_to_date("shop")

    assert reads == {"pulse_of": 1}
    assert desk.look(["shop"], patience=0)[0].serial == before.serial


def test_a_commit_lets_every_part_be_read_again(
    shop: Shop, clock: Clock, reads: Counter[str]
) -> None:
    desk = a_desk(shop, clock)
    desk.bring_up_to_date("shop")
    reads.clear()

    shop.run(1)
    clock.now += 5
    desk.bring_up_to_date("shop")

    assert {name for name, count in reads.items() if count} == {
        "pulse_of",
        "read_flow",
        "alerts_of",
        "read_sides",
        "read_plots",
        "read_ledger",
    }
    facts = desk.look(["shop"], patience=0)[0]
    assert facts.books is not None and facts.books.bronze == 30


def test_a_file_that_lands_changes_what_waits_and_reads_no_table(
    shop: Shop, clock: Clock, reads: Counter[str]
) -> None:
    desk = a_desk(shop, clock)
    desk.bring_up_to_date("shop")
    reads.clear()

    shop.land("more.json")
    clock.now += 5
    desk.bring_up_to_date("shop")

    assert reads == {"pulse_of": 1, "read_flow": 1, "alerts_of": 1}
    flow = desk.look(["shop"], patience=0)[0].flow
    assert flow is not None and flow.hops[0].status.waiting == 1


def test_an_alert_names_what_the_pipeline_was_called_by(shop: Shop, clock: Clock) -> None:
    shop.lake.erasure("shop").mkdir(parents=True)
    desk = Desk(shop.lake, {"shop": "other/shop.yml"}, lambda _: shop.pipeline, clock=clock)
    desk.bring_up_to_date("shop")
    alerts = desk.look(["shop"], patience=0)[0].open
    commands = [one.command for one in alerts if one.rule == "hop_refused"]
    assert "tidelake erase other/shop.yml --subject COLUMN=VALUE" in commands


def test_time_alone_lets_alerts_be_judged_again(
    shop: Shop, clock: Clock, reads: Counter[str]
) -> None:
    desk = a_desk(shop, clock)
    desk.bring_up_to_date("shop")
    reads.clear()

    clock.now += 31
    desk.bring_up_to_date("shop")

    assert reads == {"pulse_of": 1, "read_flow": 1, "alerts_of": 1}


def test_looks_rest_for_two_seconds_and_for_longer_where_they_are_dear(
    shop: Shop, clock: Clock, reads: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = a_desk(shop, clock)
    desk.bring_up_to_date("shop")
    reads.clear()
    clock.now += 1.9
    desk.bring_up_to_date("shop")
    assert not reads

    feel = desk_module.pulse_of

    def slowly(*arguments: Any) -> Any:
        clock.now += 1
        return feel(*arguments)

    monkeypatch.setattr(desk_module, "pulse_of", slowly)
    clock.now += 1
    desk.bring_up_to_date("shop")
    clock.now += 48
    desk.bring_up_to_date("shop")
    assert reads["pulse_of"] == 1
    clock.now += 2
    desk.bring_up_to_date("shop")
    assert reads["pulse_of"] == 2


def test_a_part_that_is_dear_rests_while_tables_change(
    shop: Shop, clock: Clock, reads: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    read = desk_module.read_ledger

    def slowly(*arguments: Any) -> Any:
        clock.now += 10
        return read(*arguments)

    monkeypatch.setattr(desk_module, "read_ledger", slowly)
    desk = a_desk(shop, clock)
    desk.bring_up_to_date("shop")
    reads.clear()

    shop.run(1)
    clock.now += 45
    desk.bring_up_to_date("shop")
    assert (reads["read_flow"], reads["read_ledger"]) == (1, 0)
    clock.now += 10
    desk.bring_up_to_date("shop")
    assert reads["read_ledger"] == 1


def test_a_definition_that_breaks_shows_and_mends_itself(shop: Shop, clock: Clock) -> None:
    broken = [UsageError("shop.yml: 1 error")]

    def load(_: str) -> Pipeline:
        if broken:
            raise broken[0]
        return shop.pipeline

    desk = Desk(shop.lake, {"shop": "shop"}, load, clock=clock)
    desk.bring_up_to_date("shop")
    assert desk.look(["shop"], patience=0)[0].broken == (("definition", "shop.yml: 1 error"),)

    broken.clear()
    clock.now += 5
    desk.bring_up_to_date("shop")
    facts = desk.look(["shop"], patience=0)[0]
    assert facts.broken == ()
    assert facts.whole


def test_a_definition_is_read_again_when_its_defaults_change(
    shop: Shop, clock: Clock, tmp_path: Path
) -> None:
    loads: list[str] = []
    file = tmp_path / "shop.yml"
    file.touch()

    def load(name: str) -> Pipeline:
        loads.append(name)
        return shop.pipeline.model_copy(update={"file": str(file)})

    desk = Desk(shop.lake, {"shop": "shop"}, load, clock=clock)
    for _ in range(2):
        desk.bring_up_to_date("shop")
        clock.now += 5
    assert len(loads) == 1
    file.with_name("_defaults.yml").touch()
    desk.bring_up_to_date("shop")
    assert len(loads) == 2


def test_a_part_that_cannot_be_read_leaves_the_others(
    shop: Shop, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise UsageError("a file is gone")

    monkeypatch.setattr(desk_module, "read_ledger", fail)
    desk = a_desk(shop, clock)
    desk.bring_up_to_date("shop")

    facts = desk.look(["shop"], patience=0)[0]
    assert facts.broken == (("books", "books cannot be read: a file is gone"),)
    assert facts.sides is not None


@pytest.mark.parametrize("broken", ["pulse_of", "read_flow"])
def test_a_fault_without_a_name_shows_and_the_next_look_goes_on(
    shop: Shop, clock: Clock, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("a bug")

    desk = a_desk(shop, clock)
    with monkeypatch.context() as patched:
        patched.setattr(desk_module, broken, fail)
        desk.bring_up_to_date("shop")
    ((_, told),) = desk.look(["shop"], patience=0)[0].broken
    assert told.endswith("RuntimeError")

    clock.now += 31
    desk.bring_up_to_date("shop")
    facts = desk.look(["shop"], patience=0)[0]
    assert facts.broken == ()
    assert facts.whole


def test_nothing_is_asked_while_nobody_looks(
    shop: Shop, reads: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(desk_module, "_CHECK_SECONDS", 0.01)
    monkeypatch.setattr(desk_module, "_CHECK_PAUSE", 0)
    desk = Desk(shop.lake, {"shop": "shop"}, lambda _: shop.pipeline)
    desk.start()
    try:
        until = time.monotonic() + 30
        while not desk.look(["shop"], patience=1)[0].whole and time.monotonic() < until:
            time.sleep(0.05)
        time.sleep(0.3)
        reads.clear()
        time.sleep(0.3)
        assert not reads
        desk.look(["shop"], patience=0)
        time.sleep(0.5)
        assert reads["pulse_of"] == 1
    finally:
        desk.stop()
