"""One writer a hop on a store: the lock object, its holder, and holders that are gone."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from threading import Thread
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.stores import Store
from tidelake.delta import holders
from tidelake.delta import locks as module
from tidelake.delta.holders import Waiting
from tidelake.delta.locks import LEASE_SECONDS, hold, writer
from tidelake.delta.tables import Lake
from tidelake.errors import LeaseLostError, LockedError, MachineError
from tidelake.folders import Folder, folder
from tidelake.object_store import LONGEST_SECONDS, client


@pytest.fixture
def place(s3: Store) -> Folder:
    return folder(s3.prefix())


def owner(s3: Store, place: Folder) -> dict[str, Any]:
    return dict(json.loads(s3.get(f"{place}/.lock")))


def test_a_second_holder_is_refused_with_the_first_ones_process(place: Folder) -> None:
    with (
        hold(place, "shop, hop gold,"),
        pytest.raises(
            LockedError, match=f"^shop, hop gold, is being written by process {os.getpid()} on "
        ) as refused,
        hold(place, "shop, hop gold,"),
    ):
        pass

    assert refused.value.exit_code == 3


def test_the_lock_is_free_again_afterwards_even_after_an_error(place: Folder) -> None:
    with pytest.raises(ZeroDivisionError), hold(place, "shop"):
        raise ZeroDivisionError

    with hold(place, "shop"):
        pass


def test_whoever_waits_comes_next(place: Folder) -> None:
    order: list[str] = []

    def second() -> None:
        with hold(place, "books", waits=Waiting(order.append)):
            order.append("second")

    with hold(place, "books"):
        waiting = Thread(target=second)
        waiting.start()
        time.sleep(0.3)
        order.append("first")
    waiting.join()

    assert order == ["first", "second"]


def test_a_lease_that_is_not_released_in_time_is_refused_and_its_holder_named(
    place: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holders, "_SILENT_SECONDS", 0.2)
    said, holder = list[str](), f"process {os.getpid()} on {socket.gethostname()}"
    what = f"^ops.books is being written by {holder}, and was not released within 0.5 s"
    with (
        hold(place, "ops.books"),
        pytest.raises(LockedError, match=what),
        hold(place, "ops.books", waits=Waiting(said.append, seconds=0.5)),
    ):
        pass
    assert said == [f"waiting for {holder}, which holds the lock of ops.books"]


def test_the_process_that_writes_a_hop_is_read_off_its_lease(s3: Store) -> None:
    lake = Lake(folder(s3.prefix()))
    place = lake.checkpoints("shop", "gold")
    assert writer(lake, "shop", "gold") is None

    with hold(place, "shop, hop gold,"):
        assert writer(lake, "shop", "gold") == os.getpid()
    assert writer(lake, "shop", "gold") is None

    left_behind(s3, place)
    assert writer(lake, "shop", "gold") == os.getpid()
    for change in ({"machine": "another"}, {"process": 99999999}):
        s3.put(f"{place}/.lock", json.dumps(owner(s3, place) | change).encode())
        assert writer(lake, "shop", "gold") is None


def left_behind(s3: Store, place: Folder, **changes: object) -> None:
    """Leave the lock of a holder that did not give it back."""
    with hold(place, "shop"):
        told = owner(s3, place)
    text = json.dumps({**told, "free": False, **changes})
    s3.put(f"{place}/.lock", text.encode())


def test_the_lock_of_a_process_of_this_machine_that_was_killed_is_taken_over_at_once(
    s3: Store, place: Folder
) -> None:
    left_behind(s3, place, process=99999999)

    with hold(place, "shop"):
        assert owner(s3, place)["process"] == os.getpid()


def test_a_process_of_another_machine_is_believed_until_its_time_is_over(
    s3: Store, place: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    left_behind(s3, place, process=99999999, machine="another", host="far")

    with pytest.raises(LockedError, match=r"process 99999999 on far.*60 seconds"), hold(place, "s"):
        pass

    monkeypatch.setattr(module, "LEASE_SECONDS", -1.0)
    with hold(place, "shop"):
        assert owner(s3, place)["process"] == os.getpid()


def test_of_two_takers_of_a_dead_holders_lock_one_succeeds(s3: Store, place: Folder) -> None:
    left_behind(s3, place, process=99999999)
    first, second = (module._Lease(f"{place}/.lock", "shop") for _ in range(2))
    seen = first._look()
    assert seen is not None

    assert first._put({"IfMatch": seen.tag})
    assert not second._put({"IfMatch": seen.tag})


def test_a_holder_that_is_heard_of_is_not_passed_over(
    s3: Store, place: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_RENEWED_EVERY", 0.1)
    with hold(place, "shop"):
        writes = owner(s3, place)["write"]
        ends = time.monotonic() + 20
        while owner(s3, place)["write"] < writes + 2 and time.monotonic() < ends:
            time.sleep(0.05)

        assert owner(s3, place)["write"] >= writes + 2


def test_a_holder_whose_lock_was_taken_over_stops(
    s3: Store, place: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_RENEWED_EVERY", 0.1)
    with pytest.raises(LockedError, match="was lost"), hold(place, "shop"):
        s3.put(f"{place}/.lock", b'{"token": "of another", "free": false}')
        deadline = datetime.now(UTC) + timedelta(seconds=10)
        while datetime.now(UTC) < deadline:
            time.sleep(0.05)

    assert owner(s3, place)["token"] == "of another"


def lose(s3: Store, *places: Folder, waits: Waiting | None = None) -> None:
    """Hold leases until each has noticed that another process took it over."""
    before = threading.enumerate()
    with ExitStack() as held:
        for place in places:
            held.enter_context(hold(place, "shop", waits=waits))
            s3.put(f"{place}/.lock", b'{"token": "of another", "free": false}')
        for thread in threading.enumerate():
            if thread.name == "tidelake-lease" and thread not in before:
                thread.join(20)


@pytest.fixture
def interruptions(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record what would interrupt the main thread; leases notice their loss at once."""
    made: list[str] = []
    monkeypatch.setattr(module, "_RENEWED_EVERY", 0.1)
    monkeypatch.setattr(module._thread, "interrupt_main", lambda: made.append("interrupted"))
    return made


def test_whoever_loses_several_leases_is_interrupted_once(
    s3: Store, place: Folder, interruptions: list[str]
) -> None:
    for run in ("first", "second"):
        with pytest.raises(LeaseLostError, match="was lost"):
            lose(s3, place / run / "silver", place / run / "gold")
    # Once a run: the next one in the same process is told again.
    assert interruptions == ["interrupted"] * 2


def test_a_lease_that_another_thread_loses_does_not_stop_the_run(
    s3: Store, place: Folder, interruptions: list[str]
) -> None:
    with hold(place / "gold", "shop"), ThreadPoolExecutor(1) as metrics:
        error = metrics.submit(lose, s3, place / "ops", waits=Waiting(print)).exception(20)
        assert isinstance(error, LeaseLostError)
        assert interruptions == []
        # A run in another thread has nobody else to stop it.
        error = metrics.submit(lose, s3, place / "silver").exception(20)
    assert isinstance(error, LeaseLostError)
    assert interruptions == ["interrupted"]


def test_a_lease_that_is_lost_while_it_is_given_back_interrupts_nobody(
    s3: Store, place: Folder, interruptions: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    renewing, ends = threading.Event(), threading.Event()
    renewed = module._Lease._renewed

    def slowly(lease: Any) -> bool:
        renewing.set()
        ends.wait(20)
        return renewed(lease)

    monkeypatch.setattr(module._Lease, "_renewed", slowly)
    with pytest.raises(LeaseLostError, match="was lost"), hold(place, "shop"):
        assert renewing.wait(20)
        s3.put(f"{place}/.lock", b'{"token": "of another", "free": false}')
        threading.Timer(0.3, ends.set).start()
    assert interruptions == []


@pytest.mark.parametrize("changes", [None, {"process": 99999999}])
def test_a_first_write_whose_answer_is_lost_has_locked(
    s3: Store, place: Folder, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any] | None
) -> None:
    """Botocore then writes again, and the store refuses that: somebody holds the lock."""
    if changes:
        left_behind(s3, place, **changes)
    request, conditions = module._Lease._request, list[str]()

    def twice(lease: Any, operation: str, **more: Any) -> Any:
        condition = "IfMatch" if changes else "IfNoneMatch"
        if condition in more and not conditions:
            conditions.append(condition)
            request(lease, operation, **more)
        return request(lease, operation, **more)

    monkeypatch.setattr(module._Lease, "_request", twice)
    with hold(place, "shop") as check:
        check()
        assert owner(s3, place)["process"] == os.getpid()
    assert conditions
    assert owner(s3, place)["free"]


def test_whoever_asks_hears_at_once_that_another_took_the_lock_over(
    s3: Store, place: Folder
) -> None:
    with pytest.raises(LeaseLostError, match="was lost"), hold(place, "shop") as check:
        check()
        s3.put(f"{place}/.lock", b'{"token": "of another", "free": false}')
        check()
        pytest.fail("passed")  # pragma: no cover

    assert owner(s3, place)["token"] == "of another"


def test_a_store_that_is_out_of_reach_is_believed_until_the_lease_is_over(
    place: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Client:
        """Answers no more."""

        def put_object(self, **_: object) -> None:
            raise OSError("out of reach")

    with pytest.raises(LeaseLostError, match="was lost"), hold(place, "shop") as check:
        monkeypatch.setattr(module, "client", Client)
        check()
        monkeypatch.setattr(module, "LEASE_SECONDS", -1.0)
        check()


def test_a_store_that_hangs_is_noticed_before_the_lease_is_over(
    place: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = client().meta.config
    seconds = config.connect_timeout + config.read_timeout
    assert config.retries["total_max_attempts"] * seconds < LONGEST_SECONDS
    believed = LEASE_SECONDS - 2 * module._RENEWED_EVERY
    assert believed + module._RENEWED_AGAIN + LONGEST_SECONDS < LEASE_SECONDS

    asked: list[float] = []

    class Hanging:
        def put_object(self, **_: Any) -> None:
            asked.append(time.monotonic())
            raise TimeoutError

    monkeypatch.setattr(module, "_RENEWED_EVERY", 0.3)
    monkeypatch.setattr(module, "_RENEWED_AGAIN", 0.01)
    with hold(place, "shop, hop gold,"), monkeypatch.context() as patch:
        patch.setattr(module, "client", Hanging)
        time.sleep(1)
    # Once it has failed, it is repeated soon.
    assert len(asked) > 10
    assert min(b - a for a, b in pairwise(asked)) < 0.1


def test_a_store_without_conditional_writes_is_refused(
    place: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Client:
        """Takes every write, as stores did before they knew conditions."""

        def put_object(self, **_: object) -> dict[str, str]:
            return {"ETag": "same"}

    monkeypatch.setattr(module, "client", Client)

    with pytest.raises(MachineError, match="does not support conditional writes"), hold(place, "s"):
        pass


class Ignores:
    """Honours one of the two conditions alone."""

    def __init__(self, condition: str) -> None:
        self._ignored = condition

    def put_object(self, **request: Any) -> Any:
        request.pop(self._ignored, None)
        return client().put_object(**request)

    def __getattr__(self, name: str) -> Any:
        return getattr(client(), name)


@pytest.mark.parametrize(
    ("ignored", "is_new"), [("IfNoneMatch", True), ("IfMatch", True), ("IfMatch", False)]
)
def test_a_store_that_ignores_a_condition_is_refused_and_nobody_holds_the_lock(
    s3: Store, place: Folder, monkeypatch: pytest.MonkeyPatch, ignored: str, is_new: bool
) -> None:
    if not is_new:
        left_behind(s3, place, process=99999999)
    with monkeypatch.context() as patch:
        patch.setattr(module, "client", lambda: Ignores(ignored))
        refused = pytest.raises(MachineError, match="does not support conditional writes")
        with refused, hold(place, "s"):
            pass

    (lock,) = place.iterdir() if place.is_dir() else [place]
    assert json.loads(lock.read_bytes())["free"] is True


def test_of_a_lock_that_is_there_each_condition_is_tried_once(s3: Store, place: Folder) -> None:
    with hold(place, "shop"):
        pass
    s3.asked.clear()
    with hold(place, "shop"):
        # Create it, which fails; read it, take it, and take it by another tag, which fails.
        assert [method for method, _ in s3.asked] == ["PUT", "GET", "PUT", "PUT"]


def test_a_store_that_implements_no_conditions_is_refused_as_one_that_ignores_them(
    place: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Client:
        def put_object(self, **_: object) -> None:
            raise ClientError({"Error": {"Code": "NotImplemented"}}, "PutObject")

    monkeypatch.setattr(module, "client", Client)

    with pytest.raises(MachineError, match="does not support conditional writes"), hold(place, "s"):
        pass
