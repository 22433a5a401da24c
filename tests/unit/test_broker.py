"""Starting a local broker: of several starts one begins it, and each waits until it answers.

A program stands in for Java: it formats a folder once, and answers a moment after it was started.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tidelake.errors import MachineError, UsageError
from tidelake.kafka import broker
from tidelake.kafka.broker import Broker, down, find, up

_PROGRAM = """
import re, signal, socket, sys, time
from pathlib import Path

# One that no note names ends too.
signal.alarm(120)
time.sleep(0.3)
if "format" in sys.argv:
    Path("topics").mkdir()
    Path("topics/meta.properties").touch()
    sys.exit()
port = int(re.search("^listeners=.*?:([0-9]+),", Path(sys.argv[-1]).read_text(), re.M)[1])
with socket.create_server(("127.0.0.1", port)) as server:
    while True:
        link, _ = server.accept()
        link.sendall(bytes(8))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give a new folder for a broker, which is stopped in the end."""
    program = tmp_path / "program.py"
    program.write_text(_PROGRAM)
    monkeypatch.setattr(broker, "_java_command", lambda: [sys.executable, str(program)])
    made = tmp_path / "kafka"
    yield made
    if (running := find(made)) is not None:
        broker.kill(running)


def _interrupted_start(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Broker:
    """Start a broker as a command does that Ctrl-C ends while it waits."""

    def interrupt(*_: object) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(broker, "_wait_for_answer", interrupt)
        up(folder, 0)
    started = find(folder)
    assert started is not None and started.runs
    return started


def test_a_broker_that_is_still_starting_is_waited_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = _interrupted_start(folder, monkeypatch)
    assert up(folder, 0) == started
    assert started.answers


def test_a_broker_that_runs_and_never_answers_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = _interrupted_start(folder, monkeypatch)
    os.kill(started.process, signal.SIGSTOP)
    monkeypatch.setattr(broker, "_START_SECONDS", 0.2)
    with pytest.raises(MachineError, match=r"has not answered on port .*kafka down --dir") as error:
        up(folder, 0)
    assert f"process {started.process}," in str(error.value)
    # It is another call's: it is left alone.
    assert started.runs


def test_a_broker_that_ends_while_it_is_waited_for_did_not_start(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _interrupted_start(folder, monkeypatch)
    # The first look kills it.
    dying = property(lambda one: os.kill(one.process, signal.SIGKILL))
    monkeypatch.setattr(Broker, "answers", dying)
    with pytest.raises(MachineError, match="the broker did not start"):
        up(folder, 0)


def test_of_two_starts_at_once_one_starts_the_broker_and_the_other_finds_it(folder: Path) -> None:
    with ThreadPoolExecutor() as pool:
        first, second = pool.map(lambda _: up(folder, 0), range(2))
    assert first == second == find(folder)
    assert first.answers
    assert down(folder)


def test_a_start_that_does_not_end_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker, "_LOCK_SECONDS", 0.2)
    with (
        broker._start_lock(folder, 1),
        pytest.raises(UsageError, match=f"another process has been starting a broker in {folder}"),
    ):
        up(folder, 0)


def test_a_broker_that_another_call_is_starting_is_stopped_once_it_has_started(
    folder: Path,
) -> None:
    with ThreadPoolExecutor() as pool:
        starting, until = pool.submit(up, folder, 0), time.monotonic() + 20
        while find(folder) is None and time.monotonic() < until:
            time.sleep(0.01)
        assert down(folder)
        assert not starting.result().runs


def test_a_broker_whose_start_does_not_end_is_not_stopped(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = up(folder, 0)
    monkeypatch.setattr(broker, "_LOCK_SECONDS", 0.2)
    with (
        broker._start_lock(folder, 1),
        pytest.raises(UsageError, match=r"has been starting a broker in .* for 0\.2 s"),
    ):
        down(folder)
    assert started.runs


def test_where_no_broker_was_started_nothing_is_written(folder: Path) -> None:
    folder.mkdir()
    assert not down(folder)
    assert list(folder.iterdir()) == []


def test_a_start_that_failed_releases_the_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, pytest.raises(MachineError, match="did not start"):
        patch.setattr(broker, "_java_command", lambda: ["false"])
        up(folder, 0)
    assert up(folder, 0).answers
