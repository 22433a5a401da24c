"""When tables are read: as somebody looks, where something changed, and not too often."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from tests.shops import Shop
from tests.unit.handmade import write_measures
from tidelake.config import Pipeline
from tidelake.delta.locks import hold_hops
from tidelake.delta.tables import HOPS
from tidelake.errors import UsageError
from tidelake.instants import now
from tidelake.ledger.history import BacklogReader
from tidelake.ops import alerts
from tidelake.ops.metrics import Measured
from tidelake.ops.page import facts, facts_cache
from tidelake.ops.page.facts_cache import FactsCache
from tidelake.ops.page.server import Renderer, verdict_of
from tidelake.typed import Typed


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

    for name in (
        "change_fingerprint",
        "read_flow",
        "alerts_of",
        "read_sides",
        "read_plots",
        "read_ledger",
    ):
        monkeypatch.setattr(facts_cache, name, counting(name, getattr(facts_cache, name)))
    return counted


def a_cache(shop: Shop, clock: Clock) -> FactsCache:
    return FactsCache(shop.lake, {"shop": "shop"}, lambda _: shop.pipeline, clock=clock)


def test_the_first_look_reads_every_part(shop: Shop, clock: Clock) -> None:
    cache = a_cache(shop, clock)

    cache.bring_up_to_date("shop")

    (facts,) = cache.get(["shop"], patience=0)
    assert facts.whole
    assert facts.books is not None and facts.books.balanced
    assert facts.plots is not None and len(facts.plots) == 3


def test_of_unchanged_tables_only_the_fingerprint_is_computed(
    shop: Shop, clock: Clock, reads: Counter[str]
) -> None:
    cache = a_cache(shop, clock)
    cache.bring_up_to_date("shop")
    (before,) = cache.get(["shop"], patience=0)
    reads.clear()

    clock.now += 5
    cache.bring_up_to_date("shop")

    assert reads == {"change_fingerprint": 1}
    assert cache.get(["shop"], patience=0)[0].serial == before.serial


def test_a_commit_lets_every_part_be_read_again(
    shop: Shop, clock: Clock, reads: Counter[str]
) -> None:
    cache = a_cache(shop, clock)
    cache.bring_up_to_date("shop")
    reads.clear()

    shop.run(1)
    clock.now += 5
    cache.bring_up_to_date("shop")

    assert {name for name, count in reads.items() if count} == {
        "change_fingerprint",
        "read_flow",
        "alerts_of",
        "read_sides",
        "read_plots",
        "read_ledger",
    }
    facts = cache.get(["shop"], patience=0)[0]
    assert facts.books is not None and facts.books.bronze == 30


def test_a_file_that_lands_changes_what_waits_and_reads_no_table(
    shop: Shop, clock: Clock, reads: Counter[str]
) -> None:
    cache = a_cache(shop, clock)
    cache.bring_up_to_date("shop")
    reads.clear()

    shop.land("more.json")
    clock.now += 5
    cache.bring_up_to_date("shop")

    assert reads == {"change_fingerprint": 1, "read_flow": 1, "alerts_of": 1}
    flow = cache.get(["shop"], patience=0)[0].flow
    assert flow is not None and flow.hops[0].status.waiting == 1


def test_an_alert_names_what_the_pipeline_was_called_by(shop: Shop, clock: Clock) -> None:
    shop.lake.erasure("shop").mkdir(parents=True)
    cache = FactsCache(shop.lake, {"shop": "other/shop.yml"}, lambda _: shop.pipeline, clock=clock)
    cache.bring_up_to_date("shop")
    alerts = cache.get(["shop"], patience=0)[0].open
    commands = [one.command for one in alerts if one.rule == "hop_refused"]
    assert "tidelake erase other/shop.yml --subject COLUMN=VALUE" in commands


def test_the_alerts_are_those_of_an_environment_that_publishes_or_not(
    shop: Shop, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[bool] = []

    def alerts_of(*_: object, publishes: bool, **__: object) -> tuple[()]:
        given.append(publishes)
        return ()

    monkeypatch.setattr(facts_cache, "alerts_of", alerts_of)
    for publishes in (True, False):
        cache = FactsCache(
            shop.lake, {"shop": "shop"}, lambda _: shop.pipeline, publishes=publishes, clock=clock
        )
        cache.bring_up_to_date("shop")
    assert given == [True, False]


def test_a_pipeline_whose_file_has_another_name_is_read(shop: Shop, clock: Clock) -> None:
    cache = FactsCache(shop.lake, {"till": "till"}, lambda _: shop.pipeline, clock=clock)
    cache.bring_up_to_date("till")
    facts = cache.get(["till"], patience=0)[0]
    assert facts.broken == ()
    assert facts.whole

    # While its tables disagree, its ledger is not read.
    shop.lake.erasure("shop").mkdir(parents=True)
    cache = FactsCache(shop.lake, {"till": "till"}, lambda _: shop.pipeline, clock=clock)
    with hold_hops(shop.lake, "shop", HOPS, resumes="erasure"):
        cache.bring_up_to_date("till")
    facts = cache.get(["till"], patience=0)[0]
    assert facts.flow is not None and facts.books is None
    assert {one.command for one in facts.alerts or ()} == {"tidelake status till"}


def test_a_pipeline_whose_bronze_was_deleted_has_run_and_is_told(shop: Shop, clock: Clock) -> None:
    shutil.rmtree(shop.lake.bronze("shop").path)
    cache = a_cache(shop, clock)
    cache.bring_up_to_date("shop")

    facts = cache.get(["shop"], patience=0)[0]

    assert facts.has_run
    assert verdict_of([facts]).state == "critical"
    (alert,) = [one for one in facts.open if one.rule == "hop_refused"]
    assert alert.message.startswith("bronze.shop was deleted")


def test_the_flow_and_the_alerts_read_the_history_of_bronze_once(
    shop: Shop, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = MagicMock(side_effect=BacklogReader)
    for module in (facts_cache, facts, alerts):
        monkeypatch.setattr(module, "BacklogReader", made)
    a_cache(shop, clock).bring_up_to_date("shop")
    made.assert_called_once_with(shop.lake, shop.pipeline)


def test_a_pipeline_of_which_only_checkpoints_are_left_is_not_called_new(
    shop: Shop, clock: Clock
) -> None:
    for layer in ("bronze", "silver", "gold"):
        shutil.rmtree(shop.lake.root / layer)
    cache = a_cache(shop, clock)
    cache.bring_up_to_date("shop")

    verdict = verdict_of(cache.get(["shop"], patience=0))

    assert verdict.state == "critical"
    assert "hop_refused" in {one.rule for one in verdict.alerts}


def test_the_ledger_is_not_read_while_an_erasure_is_running(shop: Shop, clock: Clock) -> None:
    shop.lake.erasure("shop").mkdir(parents=True)
    cache = a_cache(shop, clock)
    with hold_hops(shop.lake, "shop", HOPS, resumes="erasure"):
        cache.bring_up_to_date("shop")
        facts = cache.get(["shop"], patience=0)[0]
        assert [one.severity for one in facts.open] == ["warning"]
        assert facts.books is None and facts.flow is not None

    clock.now += 31
    cache.bring_up_to_date("shop")
    rules = {one.rule for one in cache.get(["shop"], patience=0)[0].open}
    assert rules > {"books_unbalanced", "hop_refused"}


def test_time_alone_lets_alerts_be_judged_again(
    shop: Shop, clock: Clock, reads: Counter[str]
) -> None:
    cache = a_cache(shop, clock)
    cache.bring_up_to_date("shop")
    reads.clear()

    clock.now += 31
    cache.bring_up_to_date("shop")

    assert reads == {"change_fingerprint": 1, "read_flow": 1, "alerts_of": 1}


def test_looks_rest_for_two_seconds_and_for_longer_where_they_are_dear(
    shop: Shop, clock: Clock, reads: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = a_cache(shop, clock)
    cache.bring_up_to_date("shop")
    reads.clear()
    clock.now += 1.9
    cache.bring_up_to_date("shop")
    assert not reads

    compute = facts_cache.change_fingerprint

    def slowly(*arguments: Any) -> Any:
        clock.now += 1
        return compute(*arguments)

    monkeypatch.setattr(facts_cache, "change_fingerprint", slowly)
    clock.now += 1
    cache.bring_up_to_date("shop")
    clock.now += 48
    cache.bring_up_to_date("shop")
    assert reads["change_fingerprint"] == 1
    clock.now += 2
    cache.bring_up_to_date("shop")
    assert reads["change_fingerprint"] == 2


def test_a_part_that_is_dear_rests_while_tables_change(
    shop: Shop, clock: Clock, reads: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    read = facts_cache.read_ledger

    def slowly(*arguments: Any) -> Any:
        clock.now += 10
        return read(*arguments)

    monkeypatch.setattr(facts_cache, "read_ledger", slowly)
    cache = a_cache(shop, clock)
    cache.bring_up_to_date("shop")
    reads.clear()

    shop.run(1)
    clock.now += 45
    cache.bring_up_to_date("shop")
    assert (reads["read_flow"], reads["read_ledger"]) == (1, 0)
    clock.now += 10
    cache.bring_up_to_date("shop")
    assert reads["read_ledger"] == 1


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (UsageError("shop.yml: 1 error"), "shop.yml: 1 error"),
        (FileNotFoundError(2, "No such file", "shop.yml"), "No such file: shop.yml"),
        (RecursionError("too deep"), "RecursionError"),
    ],
)
def test_a_definition_that_breaks_shows_and_mends_itself(
    shop: Shop, clock: Clock, error: Exception, told: str
) -> None:
    broken = [error]

    def load(_: str) -> Pipeline:
        if broken:
            raise broken[0]
        return shop.pipeline

    cache = FactsCache(shop.lake, {"shop": "shop"}, load, clock=clock)
    cache.bring_up_to_date("shop")
    assert cache.get(["shop"], patience=0)[0].broken == (("definition", told),)

    broken.clear()
    clock.now += 5
    cache.bring_up_to_date("shop")
    facts = cache.get(["shop"], patience=0)[0]
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

    cache = FactsCache(shop.lake, {"shop": "shop"}, load, clock=clock)
    for _ in range(2):
        cache.bring_up_to_date("shop")
        clock.now += 5
    assert len(loads) == 1
    file.with_name("_defaults.yml").touch()
    cache.bring_up_to_date("shop")
    assert len(loads) == 2


def test_a_part_that_cannot_be_read_leaves_the_others(
    shop: Shop, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise UsageError("a file is gone")

    monkeypatch.setattr(facts_cache, "read_ledger", fail)
    cache = a_cache(shop, clock)
    cache.bring_up_to_date("shop")

    facts = cache.get(["shop"], patience=0)[0]
    assert facts.broken == (("books", "the ledger cannot be read: a file is gone"),)
    assert facts.sides is not None


def test_a_ledger_that_was_read_is_not_shown_once_it_cannot_be(
    shop: Shop, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise UsageError("a file is gone")

    cache = a_cache(shop, clock)
    cache.bring_up_to_date("shop")
    monkeypatch.setattr(facts_cache, "read_ledger", fail)
    shop.run(1)
    clock.now += 60
    cache.bring_up_to_date("shop")
    assert cache.get(["shop"], patience=0)[0].books is None


def test_a_gold_table_that_cannot_be_read_is_a_problem_until_its_file_is_restored(
    shop: Shop, clock: Clock
) -> None:
    file = shop.lake.gold("visits").path / "part-1.parquet"
    content = file.read_bytes()
    file.unlink()
    cache = a_cache(shop, clock)
    cache.bring_up_to_date("shop")

    facts = cache.get(["shop"], patience=0)[0]
    (alert,) = [one for one in facts.open if one.rule == "unreadable"]
    assert (alert.hop, alert.severity) == ("gold", "critical")
    assert "part-1.parquet" in alert.message
    assert alert.command == 'tidelake sql "SELECT count(*) FROM gold.visits"'
    page = Renderer(("shop",), shop.root, Typed()).pipeline(facts).body.decode()
    assert ", 0 rows" not in page

    # No commit says so.
    file.write_bytes(content)
    clock.now += 60
    cache.bring_up_to_date("shop")
    assert "unreadable" not in {one.rule for one in cache.get(["shop"], patience=0)[0].open}


def test_a_sound_table_that_an_edited_definition_does_not_fit_is_no_damage(
    shop: Shop, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unfit(*_: Any) -> Any:
        raise UsageError("Binder Error: Referenced column not found")

    monkeypatch.setattr("tidelake.ops.page.facts.ask", unfit)
    cache = a_cache(shop, clock)
    cache.bring_up_to_date("shop")
    facts = cache.get(["shop"], patience=0)[0]
    assert "unreadable" not in {one.rule for one in facts.open}
    assert {one.missing for one in facts.plots or ()} == {
        "Binder Error: Referenced column not found"
    }


def test_of_tables_that_were_deleted_no_problem_stays(shop: Shop, clock: Clock) -> None:
    (shop.lake.gold("visits").path / "part-1.parquet").unlink()
    cache = a_cache(shop, clock)
    cache.bring_up_to_date("shop")
    assert "unreadable" in {one.rule for one in cache.get(["shop"], patience=0)[0].open}
    for layer in ("bronze", "silver", "gold", "checkpoints"):
        shutil.rmtree(Path(str(shop.lake.root)) / layer, ignore_errors=True)
    clock.now += 60
    cache.bring_up_to_date("shop")
    facts = cache.get(["shop"], patience=0)[0]
    assert (facts.has_run, facts.plots, facts.flow) == (False, None, None)
    assert "unreadable" not in {one.rule for one in facts.open}


def test_a_first_run_that_failed_before_any_table_is_told(tmp_path: Path, clock: Clock) -> None:
    shop = Shop(tmp_path)
    cache = a_cache(shop, clock)
    cache.bring_up_to_date("shop")
    new = cache.get(["shop"], patience=0)
    assert verdict_of(new).text == "Nothing has run here yet"

    at = now()
    error = {"error_class": "SourceError", "error": "the source is empty"}
    write_measures(shop.lake, [Measured("shop", "bronze", "g1", -1, "r", at, at, **error)])
    clock.now += 60
    cache.bring_up_to_date("shop")
    failed = cache.get(["shop"], patience=0)
    assert [one.rule for one in failed[0].open] == ["hop_failed"]
    assert not failed[0].has_run
    renderer = Renderer(("shop",), shop.root, Typed())
    page = renderer.pipeline(failed[0]).body.decode()
    assert "SourceError: the source is empty" in page
    assert "There are no tables" not in page
    overview = renderer.overview(failed).body.decode()
    assert 'id="card-shop"' in overview
    assert "Not run here" not in overview


@pytest.mark.parametrize("broken", ["change_fingerprint", "read_flow", "erases_or_swaps"])
def test_a_fault_without_a_name_shows_and_the_next_look_goes_on(
    shop: Shop, clock: Clock, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("a bug")

    cache = a_cache(shop, clock)
    with monkeypatch.context() as patched:
        patched.setattr(facts_cache, broken, fail)
        cache.bring_up_to_date("shop")
    ((_, told),) = cache.get(["shop"], patience=0)[0].broken
    assert told.endswith("RuntimeError")

    clock.now += 31
    cache.bring_up_to_date("shop")
    facts = cache.get(["shop"], patience=0)[0]
    assert facts.broken == ()
    assert facts.whole


def test_nothing_is_asked_while_nobody_looks(
    shop: Shop, reads: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facts_cache, "_CHECK_SECONDS", 0.01)
    monkeypatch.setattr(facts_cache, "_CHECK_PAUSE", 0)
    cache = FactsCache(shop.lake, {"shop": "shop"}, lambda _: shop.pipeline)
    cache.start()
    try:
        until = time.monotonic() + 30
        while not cache.get(["shop"], patience=1)[0].whole and time.monotonic() < until:
            time.sleep(0.05)
        time.sleep(0.3)
        reads.clear()
        time.sleep(0.3)
        assert not reads
        cache.get(["shop"], patience=0)
        time.sleep(0.5)
        assert reads["change_fingerprint"] == 1
    finally:
        cache.stop()
