"""A run that ends: later hops are opened while the first one runs, and start with full batches."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tidelake.config import load_environment
from tidelake.delta.tables import Table
from tidelake.errors import RefusedError, SourceError
from tidelake.folders import folder
from tidelake.runtime import hop as hop_module
from tidelake.runtime import runner
from tidelake.runtime.fence import Fence
from tidelake.runtime.hop import Run
from tidelake.runtime.progress import InputGrewError, Observer, Progress
from tidelake.runtime.silver import SilverHop
from tidelake.runtime.triggers import AVAILABLE_NOW, Trigger, parse_trigger

SECONDS = 20
MIB = 1 << 20
WANTED = ("bronze", "silver", "gold")


class Query:
    """Stands in for a hop and its streaming query.

    Attributes:
        hop: Its name.
        give_way: Set by the run: what a closed batch calls.
        isActive: Whether its query runs.
        is_early: Whether that does not end by itself.
    """

    def __init__(self, hop: str, hops: Hops) -> None:
        self.hop, self._hops = hop, hops
        self.closing: list[str] = [hop]
        self.inputs: dict[str, str] = {}
        self.give_way: Callable[[bool], None] | None = None
        self.isActive = self.is_early = False

    @property
    def has_full_batch(self) -> bool:
        return self.hop in self._hops.full

    @property
    def has_caught_up(self) -> bool:
        return self.hop in self._hops.caught_up

    def fill_new_tables(self) -> None:
        self._hops.filled.append((self.hop, self._hops.events[-1]))

    def warm_up(self) -> None:
        self._hops.warm_up(self.hop)

    def check(self, query: Query, seconds: float) -> None:
        assert query is self
        self._hops.checks[self.hop] = self._hops.checks.get(self.hop, 0) + 1
        self._hops.check(self)

    def stop(self) -> None:
        if self.isActive:
            self._hops.events.append(f"stop {self.hop}")
        self.isActive = False


@dataclass
class Hops:
    """Stands in for the hops: records what happens to each, in order.

    Attributes:
        events: ``open``, ``run`` and ``warm up``, ``early`` for a query that does not end by
            itself, and ``stop``, with the hop.
        filled: The hops whose new tables were filled, each with the event before that.
        opened: Set when the last hop has been opened.
        refused: Hops that cannot be opened.
        grown: Hops whose input grows during their first query.
        failing: The error of a hop, by hop.
        failing_later: The error with which a hop ends right after it was looked at, by hop.
        waits: The event before which a hop does not end, by hop.
        full: Hops that have a full batch to read.
        caught_up: Hops that have read what the one before wrote.
        consumed: Hops that have read all of their inputs.
        checks: How often each hop was checked.
        cold_failure: Raised by each warm-up.
        stuck: What a warm-up waits for.
    """

    events: list[str] = field(default_factory=list)
    filled: list[tuple[str, str]] = field(default_factory=list)
    opened: threading.Event = field(default_factory=threading.Event)
    warmed: threading.Event = field(default_factory=threading.Event)
    refused: set[str] = field(default_factory=set)
    grown: set[str] = field(default_factory=set)
    failing: dict[str, Exception] = field(default_factory=dict)
    failing_later: dict[str, Exception] = field(default_factory=dict)
    waits: dict[str, str] = field(default_factory=dict)
    full: set[str] = field(default_factory=set)
    caught_up: set[str] = field(default_factory=set)
    consumed: set[str] = field(default_factory=set)
    checks: dict[str, int] = field(default_factory=dict)
    cold_failure: Exception | None = None
    stuck: threading.Event | None = None

    def open(self, hop: str) -> Query:
        if hop in self.refused:
            raise RefusedError(f"{hop} is refused")
        if hop == "silver" and "bronze" in self.failing:
            # Opening takes longer than bronze does to fail.
            time.sleep(0.3)
        self.events.append(f"open {hop}")
        if hop == "gold":
            self.opened.set()
        return Query(hop, self)

    def start(self, query: Query, trigger: Trigger) -> Query:
        query.isActive, query.is_early = True, not trigger.ends
        if query.is_early:
            self.events.append(f"early {query.hop}")
        return query

    def check(self, query: Query) -> None:
        hop = query.hop
        if not query.isActive and hop not in self.failing:
            return
        if hop in self.failing_later:
            query.isActive = False
            self.failing[hop] = self.failing_later.pop(hop)
            return
        if hop == "bronze" and not self.failing:
            # Bronze does not end before gold is open.
            assert self.refused or self.opened.wait(SECONDS)
        if self.waits.get(hop) in (None, *self.events):
            if hop in self.failing:
                query.isActive = False
                raise self.failing[hop]
            if not query.is_early:
                self.events.append(f"run {hop}")
                query.isActive = False
        if hop in self.grown:
            self.grown.remove(hop)
            query.isActive = False
            raise InputGrewError(hop)

    def have_consumed(self, closing: list[str], inputs: object) -> bool:
        return closing[0] in self.consumed

    def warm_up(self, hop: str) -> None:
        self.events.append(f"warm up {hop}")
        if hop == "gold":
            self.warmed.set()
        if self.cold_failure is not None:
            raise self.cold_failure
        if self.stuck is not None:
            self.stuck.wait(SECONDS)
            self.events.append(f"warm {hop}")

    @property
    def ran(self) -> list[str]:
        """What happened, without the openings, which run in a thread of their own."""
        return [event for event in self.events if not event.startswith("open")]

    def of(self, hop: str) -> list[str]:
        """List what happened to one hop."""
        return [event for event in self.events if event.endswith(f" {hop}")]


@pytest.fixture
def hops(monkeypatch: pytest.MonkeyPatch) -> Hops:
    made = Hops()
    for hop in WANTED:
        monkeypatch.setitem(runner._HOPS, hop, lambda run, hop=hop: made.open(hop))
    monkeypatch.setattr(runner, "_start_query", made.start)
    monkeypatch.setattr(runner, "have_consumed", made.have_consumed)
    monkeypatch.setattr(runner, "_reads_logs", lambda run: True)
    return made


def play(*, cold: bool = False, observer: Observer | None = None) -> None:
    progress = Progress(print, observer or Observer())
    run: Any = SimpleNamespace(pipeline=SimpleNamespace(name="a"), progress=progress)
    runner._run_to_the_end(run, WANTED, parse_trigger(AVAILABLE_NOW), cold=cold)


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
    hops.failing["bronze"] = SourceError("the source is gone")
    with pytest.raises(SourceError, match="the source is gone"):
        play()
    assert hops.events == ["open bronze", "open silver"]


def test_a_hop_whose_input_grew_is_opened_anew(hops: Hops) -> None:
    hops.grown.add("silver")
    play()
    assert hops.of("silver") == ["open silver", "run silver", "open silver", "run silver"]
    assert hops.events[-1] == "run gold"


def test_a_hop_without_anything_to_read_starts_no_query(hops: Hops) -> None:
    hops.consumed.add("silver")
    play()
    assert "silver" not in hops.checks
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


def test_a_hop_with_a_full_batch_starts_while_the_one_before_runs(hops: Hops) -> None:
    hops.full.add("silver")
    hops.waits["bronze"] = "early silver"
    hops.caught_up.add("silver")
    hops.consumed.add("silver")
    play()
    assert hops.ran == ["early silver", "run bronze", "stop silver", "run gold"]


def test_a_hop_that_was_started_early_goes_on_until_it_has_caught_up(hops: Hops) -> None:
    class Reading(Observer):
        def ends(self, hop: str) -> None:
            if hop == "bronze":
                threading.Timer(0.3, hops.caught_up.add, ["silver"]).start()

    hops.full.add("silver")
    hops.consumed.add("silver")
    hops.waits["bronze"] = "early silver"
    began = time.monotonic()
    play(observer=Reading())
    assert time.monotonic() - began >= 0.3
    assert hops.ran == ["early silver", "run bronze", "stop silver", "run gold"]


def test_what_others_wrote_meanwhile_is_read_by_a_query_that_ends(hops: Hops) -> None:
    hops.full.add("silver")
    hops.waits["bronze"] = "early silver"
    hops.caught_up.add("silver")
    play()
    assert hops.ran == ["early silver", "run bronze", "stop silver", "run silver", "run gold"]


def test_no_query_fills_the_new_tables_of_another_one_again(hops: Hops) -> None:
    hops.full.add("silver")
    hops.waits["bronze"] = "early silver"
    hops.caught_up.add("silver")
    play()
    assert [hop for hop, _ in hops.filled].count("silver") == hops.of("silver").count("open silver")


def test_an_early_query_that_somebody_stopped_is_started_again(hops: Hops) -> None:
    class Stopping(Observer):
        def ends(self, hop: str) -> None:
            if hop == "bronze":
                catch_up_of[0]._running["silver"].isActive = False  # type: ignore[misc]

    catch_up_of: list[runner.CatchUp] = []
    made = runner.CatchUp

    def kept(*arguments: Any) -> runner.CatchUp:
        catch_up_of.append(made(*arguments))
        return catch_up_of[0]

    hops.full.add("silver")
    hops.waits["bronze"] = "early silver"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "CatchUp", kept)
        play(observer=Stopping())
    assert hops.ran == ["early silver", "run bronze", "run silver", "run gold"]


def test_without_direct_access_to_logs_hops_run_one_after_another(
    hops: Hops, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "_reads_logs", lambda run: False)
    hops.full.update(("silver", "gold"))
    play()
    assert hops.ran == ["run bronze", "run silver", "run gold"]


def test_after_a_failure_the_hops_before_run_to_their_end(hops: Hops) -> None:
    hops.full.add("silver")
    hops.failing["silver"] = SourceError("silver is broken")
    hops.waits["bronze"] = "failed silver"

    class Failed(Observer):
        def failed(self, hop: str, error: Exception) -> None:
            hops.events.append(f"failed {hop}")

    with pytest.raises(SourceError, match="silver is broken"):
        play(observer=Failed())
    assert hops.ran == ["early silver", "failed silver", "run bronze"]


def test_a_failure_stops_the_later_hops(hops: Hops) -> None:
    hops.full.update(("silver", "gold"))
    hops.waits["bronze"] = "never"
    hops.waits["silver"] = "early gold"
    hops.failing["silver"] = SourceError("silver is broken")

    class Ending(Observer):
        def failed(self, hop: str, error: Exception) -> None:
            hops.waits["bronze"] = "early gold"

    with pytest.raises(SourceError, match="silver is broken"):
        play(observer=Ending())
    assert hops.ran == ["early silver", "early gold", "stop gold", "run bronze"]


@pytest.mark.parametrize("later", [SourceError("the source is gone"), KeyboardInterrupt()])
def test_the_first_failure_is_raised_whatever_follows(
    hops: Hops, capsys: pytest.CaptureFixture[str], later: Any
) -> None:
    class Failed(Observer):
        def failed(self, hop: str, error: Exception) -> None:
            hops.failing["bronze"] = later
            hops.events.append(f"failed {hop}")

    hops.full.add("silver")
    hops.failing["silver"] = SourceError("silver is broken")
    hops.waits["bronze"] = "failed silver"
    with pytest.raises(SourceError, match="silver is broken"):
        play(observer=Failed())
    is_reported = "bronze  failed too: SourceError: the source is gone" in capsys.readouterr().out
    assert is_reported == isinstance(later, SourceError)
    assert "run bronze" not in hops.events


def test_a_failure_right_after_a_look_is_raised_by_the_next_one(hops: Hops) -> None:
    class Late(Observer):
        def __init__(self) -> None:
            self.ended: list[str] = []

        def ends(self, hop: str) -> None:
            self.ended.append(hop)

    late = Late()
    hops.failing_later["bronze"] = SourceError("the source is gone")
    with pytest.raises(SourceError, match="the source is gone"):
        play(observer=late)
    assert late.ended == []


def caught_up(hops: Hops) -> runner.CatchUp:
    """Return a run of which every hop is open."""
    run: Any = SimpleNamespace(progress=Progress(print))
    opened = [runner._opened(Query(hop, hops)) for hop in WANTED]  # type: ignore[arg-type]
    return runner.CatchUp(run, WANTED, opened)


def closing(catch_up: runner.CatchUp, hop: str) -> threading.Thread:
    """Close a batch of a hop in a thread of its own, as Spark's query does."""
    batch = threading.Thread(target=catch_up._wait, args=(hop, False), daemon=True)
    batch.start()
    batch.join(0.05)
    return batch


def test_after_a_batch_a_hop_waits_until_the_next_one_is_full(hops: Hops) -> None:
    catch_up = caught_up(hops)
    waiting = closing(catch_up, "silver")
    assert waiting.is_alive()
    closing(catch_up, "bronze")
    assert waiting.is_alive()
    hops.full.add("silver")
    # The first hop does not wait, and each batch that it closes may fill the next one's.
    assert not closing(catch_up, "bronze").is_alive()
    waiting.join(SECONDS)
    assert not waiting.is_alive()


def test_after_a_batch_a_hop_waits_until_the_one_before_has_ended(hops: Hops) -> None:
    catch_up = caught_up(hops)
    waiting = {hop: closing(catch_up, hop) for hop in ("silver", "gold")}
    catch_up._end(["bronze"])
    waiting["silver"].join(SECONDS)
    assert not waiting["silver"].is_alive()
    assert waiting["gold"].is_alive()
    catch_up._stop(["silver", "gold"])
    waiting["gold"].join(SECONDS)
    assert not waiting["gold"].is_alive()


def test_a_hop_that_is_stopped_while_it_waits_begins_no_other_batch(hops: Hops) -> None:
    class Stopped(Query):
        def stop(self) -> None:
            # As Spark does: not active at once, and over with its open batch.
            time.sleep(0.1)
            assert waiting.is_alive()
            self.isActive = False
            waiting.join(SECONDS)

    catch_up = caught_up(hops)
    waiting, query = closing(catch_up, "silver"), Stopped("silver", hops)
    query.isActive = True
    catch_up._running["silver"] = query  # type: ignore[assignment]
    catch_up._stop(["bronze", "silver", "gold"])
    assert not waiting.is_alive()
    assert not query.isActive


def silver_hop(monkeypatch: pytest.MonkeyPatch, *, unread: int, logged: int) -> SilverHop:
    """Return a hop whose last batch is 4, with a limit of 16 MB, without its tables."""
    silver = object.__new__(SilverHop)
    silver.run = cast("Run", SimpleNamespace(environment=load_environment("local")))
    silver.checkpoint = folder("/checkpoint")
    silver.closing, silver.own_inputs = [cast("Table", "silver")], {"bronze": cast("Table", "b")}
    silver.fence = cast("Fence", SimpleNamespace(unfilled=()))
    last = SimpleNamespace(batch=4, note={"positions": {}})
    monkeypatch.setattr(hop_module, "slowest_of", lambda tables: tables[0])
    monkeypatch.setattr(hop_module, "last_commit", lambda table: last)
    monkeypatch.setattr(hop_module, "positions", lambda commit: {"bronze": (7, -1)})
    monkeypatch.setattr(
        hop_module, "has_bytes", lambda table, size, after: unread >= size and after[0] == 7
    )
    monkeypatch.setattr(hop_module, "have_consumed", lambda closing, inputs: unread == 0)
    monkeypatch.setattr(hop_module, "newest_logged", lambda commits: logged)
    return silver


@pytest.mark.parametrize(
    ("unread", "is_full"), [(0, False), (16 * MIB - 1, False), (16 * MIB, True)]
)
def test_a_batch_is_full_once_no_later_row_gets_into_it(
    monkeypatch: pytest.MonkeyPatch, unread: int, is_full: bool
) -> None:
    assert silver_hop(monkeypatch, unread=unread, logged=4).has_full_batch is is_full


def test_tables_that_are_to_be_filled_are_not_filled_while_the_hop_before_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hop = silver_hop(monkeypatch, unread=16 * MIB, logged=4)
    hop.fence = cast("Fence", SimpleNamespace(unfilled=("gold.new",)))
    assert not hop.has_full_batch


@pytest.mark.parametrize(("unread", "logged", "has"), [(0, 4, True), (0, 3, False), (1, 4, False)])
def test_a_hop_has_caught_up_once_its_last_batch_is_in_the_checkpoint(
    monkeypatch: pytest.MonkeyPatch, unread: int, logged: int, has: bool
) -> None:
    assert silver_hop(monkeypatch, unread=unread, logged=logged).has_caught_up is has
