"""Waiting for a lock whose holder is paused: who is named, how long it takes, and what ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from threading import Event, Timer
from types import SimpleNamespace
from typing import Any

import pytest

from tidelake.config import Environment
from tidelake.delta import holders
from tidelake.delta.holders import BRIEF_WAIT_SECONDS, WAIT_SECONDS, Waiting
from tidelake.delta.locks import hold
from tidelake.delta.tables import lake_of
from tidelake.errors import LeaseLostError, LockedError
from tidelake.runtime import runner, session_pool
from tidelake.runtime.epochs import close_epoch, copy_books
from tidelake.runtime.progress import Progress
from tidelake.runtime.triggers import AVAILABLE_NOW, CONTINUOUS, parse_trigger

_PROGRAM = """
import fcntl, os, signal, sys
file = open(sys.argv[1], "w")
fcntl.flock(file, fcntl.LOCK_EX)
print(os.getpid(), file=file, flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
"""
# A wait that nothing else ends is ended by the end of the holder.
_LONGEST = 10.0


@pytest.fixture
def paused(tmp_path: Path) -> Iterator[int]:
    """Give the id of a process that is paused while it holds the lock of the test's folder."""
    with subprocess.Popen([sys.executable, "-c", _PROGRAM, str(tmp_path / ".lock")]) as holder:
        ends = Timer(_LONGEST, holder.kill)
        ends.start()
        os.waitid(os.P_PID, holder.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        yield holder.pid
        ends.cancel()
        holder.kill()


def _run(root: Path, said: list[str]) -> Any:
    """Give a run whose Spark no test needs."""
    lake = lake_of(Environment(name="local", root=root))
    pipeline = SimpleNamespace(name="shop", gold=(), source=None)
    run = SimpleNamespace(spark=None, lake=lake, pipeline=pipeline, progress=Progress(said.append))
    run.stop = Event()
    return run


def test_a_holder_that_is_paused_is_named_once_and_the_wait_ends_in_time(
    tmp_path: Path, paused: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holders, "_SILENT_SECONDS", 0.2)
    said, began = list[str](), time.monotonic()
    told = f"^ops.books is being written by process {paused}, and was not released within 1 s"
    with (
        pytest.raises(LockedError, match=told) as refused,
        hold(tmp_path, "ops.books", waits=Waiting(said.append, seconds=1)),
    ):
        pass
    assert refused.value.exit_code == 3
    assert said == [f"waiting for process {paused}, which holds the lock of ops.books"]
    assert 1 <= time.monotonic() - began < _LONGEST


def test_a_lock_that_others_take_in_turn_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only one holder that does not release it ends the wait."""
    monkeypatch.setattr(holders, "_SILENT_SECONDS", 0.05)
    monkeypatch.setattr(holders, "_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(holders, "WAIT_SECONDS", 0.3)
    said, until = list[str](), time.monotonic() + 1
    waits, turn = Waiting(said.append, seconds=0.3), iter(range(1000))
    while time.monotonic() < until:
        waits.pause("ops.books", lambda: f"process {next(turn)}")
    assert said == ["waiting for process 0, which holds the lock of ops.books"]
    with pytest.raises(LockedError, match=r"by process 7, and was not released within 0\.3 s"):
        for _ in range(1000):
            waits.pause("ops.books", lambda: "process 7")


def test_a_request_to_stop_ends_the_wait(tmp_path: Path, paused: int) -> None:
    stop, began = Event(), time.monotonic()
    Timer(0.3, stop.set).start()
    with (
        pytest.raises(KeyboardInterrupt),
        hold(tmp_path, "ops.books", waits=Waiting(print, stop)),
    ):
        pass
    assert time.monotonic() - began < _LONGEST / 2


def test_ctrl_c_ends_the_wait(tmp_path: Path, paused: int) -> None:
    began = time.monotonic()
    Timer(0.3, os.kill, [os.getpid(), signal.SIGINT]).start()
    with (
        pytest.raises(KeyboardInterrupt),
        hold(tmp_path, "ops.books", waits=Waiting(print)),
    ):
        pass
    assert time.monotonic() - began < _LONGEST / 2


def test_a_holder_that_goes_on_is_followed_and_not_mentioned(tmp_path: Path) -> None:
    said, began = list[str](), list[str]()
    first = hold(tmp_path, "ops.books")
    first.__enter__()
    Timer(0.3, first.__exit__, [None, None, None]).start()
    with hold(tmp_path, "ops.books", waits=Waiting(said.append, seconds=_LONGEST)):
        began.append("work")
    assert (began, said) == (["work"], [])


def test_a_lock_that_is_free_is_taken_also_after_a_request_to_stop(tmp_path: Path) -> None:
    stop, began = Event(), list[str]()
    stop.set()
    with hold(tmp_path, "ops.books", waits=Waiting(print, stop)):
        began.append("work")
    assert began == ["work"]


@pytest.mark.parametrize("work", ["copy", "close"])
def test_books_and_epochs_are_waited_for_only_for_so_long(tmp_path: Path, work: str) -> None:
    run = _run(tmp_path, said := [])
    table = run.lake.books() if work == "copy" else run.lake.epochs()
    act: Callable[..., None] = copy_books if work == "copy" else close_epoch
    arguments = (run, ["gold"]) if work == "copy" else (run,)
    with hold(run.lake.lock_of(table), "another process"):
        with pytest.raises(LockedError, match=f"^{table.name} is being written by process"):
            act(*arguments, seconds=0.3)
        run.stop.set()
        with pytest.raises(KeyboardInterrupt):
            act(*arguments, seconds=5)
    assert said == []


def _run_together(run: Any, monkeypatch: pytest.MonkeyPatch, error: Exception) -> list[str]:
    """Run continuously, for four looks at the query, while neither lock can be taken."""
    seen: list[str] = []

    def check(_: object) -> None:
        seen.append("check")
        if len(seen) > 9:
            raise KeyboardInterrupt

    def refuse(*_: object, seconds: float, **__: object) -> None:
        seen.append(f"{seconds:g} s")
        raise error

    query, streaming = SimpleNamespace(check=check), SimpleNamespace(stop=lambda: None)
    monkeypatch.setattr(runner, "turns_of", lambda *_: None)
    monkeypatch.setattr(runner, "_start_hop", lambda *_: (query, streaming))
    for name in ("copy_books", "close_epoch"):
        monkeypatch.setattr(runner, name, refuse)
    for name in ("_COPY_SECONDS", "_EPOCH_SECONDS"):
        monkeypatch.setattr(runner, name, -1)
    with suppress(KeyboardInterrupt):
        runner._run_together(run, ["gold"], parse_trigger(CONTINUOUS), publishes=False)
    return seen


def test_a_continuous_run_goes_on_beside_a_lock_that_is_not_released_and_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = LockedError("ops.books is being written by process 12.\nThen run again.")
    run = _run(tmp_path, said := [])
    seen = _run_together(run, monkeypatch, error)
    assert seen == ["check", *[f"{BRIEF_WAIT_SECONDS:g} s"] * 2] * 3 + ["check"]
    after = "LockedError: ops.books is being written by process 12. The run continues, and tries"
    assert said == [
        f"copying commit metadata to ops.books failed: {after} again.",
        f"closing an epoch failed: {after} again.",
    ]


def test_a_continuous_run_that_loses_a_lock_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = _run(tmp_path, said := [])
    with pytest.raises(LeaseLostError):
        _run_together(run, monkeypatch, LeaseLostError("ops.books", "s3://lake/.lock"))
    assert said == []


def test_a_run_that_ends_fails_if_its_commits_cannot_be_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[float] = []

    def refuse(*_: object, seconds: float) -> None:
        tried.append(seconds)
        raise LockedError("ops.books is being written by process 12.")

    for module in (runner, session_pool):
        monkeypatch.setattr(module, "runs_in_process", lambda: False)
    for name in ("check_definition", "report_unmasked", "_run_to_the_end", "_close_epoch"):
        monkeypatch.setattr(runner, name, lambda *_, **__: None)
    monkeypatch.setattr(runner, "hops_in", lambda _: ["silver"])
    monkeypatch.setattr(runner, "copy_books", refuse)
    with pytest.raises(LockedError) as refused:
        runner.run_hops(_run(tmp_path, []), ["silver"], parse_trigger(AVAILABLE_NOW), held=True)
    assert (refused.value.exit_code, tried) == (3, [WAIT_SECONDS])
