"""Alerts are told once when they open and once when they close, by whatever run looks."""

from __future__ import annotations

import errno
import json
import os
import re
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.listening import Listening, listening
from tidelake.config import Environment
from tidelake.config.environment import AlertTargets
from tidelake.delta import holders
from tidelake.delta.locks import hold
from tidelake.delta.tables import Lake
from tidelake.errors import MachineError, UsageError
from tidelake.ops import alert_delivery
from tidelake.ops.alert_delivery import AlertReporter, Deliver, deliver, sender_of
from tidelake.ops.alerts import Alert

NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)
LAG = Alert("lag_growing", "shop", "silver", "warning", "9 rows wait", NOON, "tidelake status shop")
STALE = Alert("stale", "shop", None, "warning", "no batch", None, "tidelake status shop")
RULES = ("lag_growing", "stale")
OPENS = "alert opens: warning lag_growing: shop, hop silver: 9 rows wait. See: tidelake status shop"


@pytest.fixture
def server() -> Iterator[Listening]:
    with listening() as found:
        yield found


def reporter(root: Path, said: list[str], send: Deliver | None = None) -> AlertReporter:
    return AlertReporter(Lake(root), "shop", said.append, send)


def test_an_alert_is_told_once_when_it_opens_and_once_when_it_closes(tmp_path: Path) -> None:
    said: list[str] = []
    one = reporter(tmp_path, said)
    one.report([LAG], rules=RULES)
    one.report([replace(LAG, message="99 rows wait")], rules=RULES)
    assert said == [OPENS]
    one.report([], rules=RULES)
    one.report([], rules=RULES)
    assert said == [OPENS, "alert closes: shop, hop silver: lag_growing"]


def test_the_next_run_knows_what_was_told(tmp_path: Path) -> None:
    reporter(tmp_path, []).report([LAG, STALE], rules=RULES)
    said: list[str] = []
    reporter(tmp_path, said).report([LAG], rules=RULES)
    assert said == ["alert closes: shop: stale"]


def test_of_a_rule_that_was_not_judged_nothing_closes(tmp_path: Path) -> None:
    said: list[str] = []
    reporter(tmp_path, []).report([LAG, STALE], rules=RULES)
    reporter(tmp_path, said).report([LAG], rules=["lag_growing"])
    assert said == []


def test_an_alert_that_becomes_critical_is_told_again(tmp_path: Path) -> None:
    said: list[str] = []
    one = reporter(tmp_path, said)
    one.report([STALE], rules=RULES)
    one.report([replace(STALE, severity="critical")], rules=RULES)
    assert [line.split()[2] for line in said] == ["warning", "critical"]


@pytest.mark.parametrize("call", ["write", "replace", "both"])
def test_on_a_full_disk_an_alert_is_told_once_by_each_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """The lock cannot be written, or what was told cannot be stored, or neither."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    said: list[str] = []
    sent: list[str] = []
    one = reporter(tmp_path, said, lambda body: sent.append(body["text"]) or "")
    one.report([LAG], rules=RULES)
    with monkeypatch.context() as full:
        if call != "replace":
            full.setattr(os, "write", refuse)
        if call != "write":
            full.setattr(alert_delivery, "write_whole", refuse)
        for _ in range(3):
            one.report([LAG, STALE], rules=RULES)
        for _ in range(3):
            one.report([STALE], rules=RULES)
    opens = "alert opens: warning stale: shop: no batch. See: tidelake status shop"
    closes = "alert closes: shop, hop silver: lag_growing"
    assert sent == [OPENS, opens, closes]
    unstored = (
        f"alerts: {tmp_path}/alerts/shop/told.json cannot be written: No space left on device. "
        "Other processes report these alerts again."
    )
    assert said == [OPENS, opens, *([] if call == "write" else [unstored]), closes]
    # Once there is room, it is stored, also if nothing changes; then others know it.
    one.report([STALE], rules=RULES)
    reporter(tmp_path, said, lambda body: sent.append(body["text"]) or "").report([], rules=RULES)
    assert sent[3:] == ["alert closes: shop: stale"]


def test_a_store_that_refuses_the_lock_does_not_suppress_an_alert(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def refuse(*_: object, **__: object) -> Iterator[None]:
        raise MachineError("the object store denied access")
        yield

    said: list[str] = []
    monkeypatch.setattr(alert_delivery, "hold", refuse)
    reporter(tmp_path, said).report([LAG], rules=RULES)
    assert said == [OPENS]


def test_a_process_that_does_not_release_the_lock_does_not_suppress_an_alert(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alert_delivery, "_LOCK_SECONDS", 0.5)
    monkeypatch.setattr(holders, "_SILENT_SECONDS", 0.2)
    said: list[str] = []
    one = reporter(tmp_path, said)
    with hold(tmp_path / "alerts" / "shop", "the alerts"):
        one.report([LAG], rules=RULES)
        one.report([LAG, STALE], rules=RULES)
    opens = "alert opens: warning stale: shop: no batch. See: tidelake status shop"
    holder = f"process {os.getpid()}, which holds the lock of the reported alerts of shop"
    assert said == [f"waiting for {holder}", OPENS, opens]


def test_a_state_that_cannot_be_read_is_told_anew(tmp_path: Path) -> None:
    said: list[str] = []
    reporter(tmp_path, []).report([LAG], rules=RULES)
    (tmp_path / "alerts" / "shop" / "told.json").write_text('{"open": [{"rule"')
    reporter(tmp_path, said).report([LAG], rules=RULES)
    assert said == [OPENS]


def test_a_webhook_gets_what_slack_shows_and_what_machines_read(
    tmp_path: Path, server: Listening
) -> None:
    one = reporter(tmp_path, [], lambda body: deliver(server.address, body))
    one.report([LAG], rules=RULES)
    one.report([], rules=RULES)
    opened, closed = server.heard
    assert opened["text"] == OPENS
    assert opened["pipeline"] == "shop"
    assert opened["opened"] == [LAG.to_json()]
    assert opened["opened"][0]["since"] == "2026-01-05T12:00:00+00:00"
    assert closed["closed"] == [LAG.to_json()]
    assert server.headers[0]["content-type"] == "application/json"


def test_what_the_webhook_did_not_take_is_sent_again_and_said_once(tmp_path: Path) -> None:
    said: list[str] = []
    sent: list[Mapping[str, Any]] = []
    answers = ["it is away", "", "never asked"]

    def send(body: Mapping[str, Any]) -> str:
        sent.append(body)
        return answers.pop(0)

    one = reporter(tmp_path, said, send)
    for _ in range(3):
        one.report([LAG], rules=RULES)
    assert [body["text"] for body in sent] == [OPENS, OPENS]
    assert said == [
        OPENS,
        "alerts: the webhook did not accept them: it is away. The next check retries.",
    ]
    # Another run finds nothing new.
    reporter(tmp_path, said).report([LAG], rules=RULES)
    assert len(said) == 2


def test_while_the_webhook_is_away_each_change_is_said_once_whatever_its_numbers(
    tmp_path: Path,
) -> None:
    said: list[str] = []
    one = reporter(tmp_path, said, lambda _: "it is away")

    def changes(*found: Alert) -> list[str]:
        """Report once more; return what is said besides the webhook's trouble."""
        said.clear()
        one.report(found, rules=RULES)
        return [line for line in said if "webhook" not in line]

    assert changes(LAG) == [OPENS]
    assert changes(replace(LAG, message="99 rows wait")) == []
    critical = replace(LAG, message="999 rows wait", severity="critical")
    assert [line.split(". See:")[0] for line in changes(critical, STALE)] == [
        "alert opens: critical lag_growing: shop, hop silver: 999 rows wait",
        "alert opens: warning stale: shop: no batch",
    ]
    # What is over before the webhook learnt of it, and comes again, is new.
    assert changes() == []
    assert len(changes(critical)) == 1


def test_a_server_that_is_to_blame_is_asked_again(server: Listening) -> None:
    server.answers = [500, 503, 200]
    assert deliver(server.address, {"text": "a"}, pauses=(0, 0)) == ""
    assert server.heard == [{"text": "a"}]
    server.answers = [500]
    assert deliver(server.address, {}, pauses=(0, 0)) == "it returned HTTP 500"
    assert server.tries == 6


def test_a_server_that_refuses_is_not_asked_again(server: Listening) -> None:
    server.answers = [404]
    assert deliver(server.address, {}, pauses=(0, 0)) == "it returned HTTP 404"
    assert server.tries == 1


def test_an_answer_byte_by_byte_takes_no_longer_than_a_try() -> None:
    def trickle(listening: socket.socket) -> None:
        with suppress(OSError), listening.accept()[0] as one:
            for letter in b"HTTP/1.1 200 OK":
                one.send(bytes([letter]))
                time.sleep(0.1)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        slow = threading.Thread(target=trickle, args=(listening,))
        slow.start()
        address = f"http://127.0.0.1:{listening.getsockname()[1]}/"
        began = time.monotonic()
        assert "timed out" in deliver(address, {}, timeout=0.3, pauses=())
        assert time.monotonic() - began < 1
    slow.join()


@pytest.mark.parametrize("code", [301, 302, 303, 307])
def test_a_redirect_to_a_page_is_no_delivery(server: Listening, code: int) -> None:
    server.answers = [code]
    assert deliver(server.address, {}, pauses=(0,)) == f"it returned HTTP {code}"
    assert server.tries == 1


def test_a_server_that_is_slow_or_away_costs_no_more_than_the_tries(server: Listening) -> None:
    server.seconds = 5
    began = time.monotonic()
    told = deliver(server.address, {}, timeout=0.1, pauses=(0.1,))
    assert time.monotonic() - began < 2
    assert told.startswith("it did not respond: ") and "timed out" in told
    # Nobody listens on that port; the path, which is the secret, is not in the message.
    told = deliver("http://127.0.0.1:1/hook/s3cret", {}, pauses=())
    assert "refused" in told and "s3cret" not in told


def test_a_webhook_is_a_reference_that_holds_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = Environment(
        name="local", root=Path("/lake"), alerts=AlertTargets(webhook="env:HOOK")
    )
    with pytest.raises(UsageError, match="refers to the variable HOOK, which is not set"):
        sender_of(environment)
    monkeypatch.setenv("HOOK", "file:///etc/passwd")
    with pytest.raises(UsageError, match="env:HOOK, which is not an http") as caught:
        sender_of(environment)
    assert "passwd" not in str(caught.value)
    monkeypatch.setenv("HOOK", "https://example.com/a")
    sender = sender_of(environment)
    assert isinstance(sender, partial)
    assert (sender.func, sender.args) == (deliver, ("https://example.com/a",))


@pytest.mark.parametrize(
    "address",
    [
        *("https://hooks.example.com/s3 cret", "https://hooks.example.com/s3\ncret"),
        *("https://hooks.example.com/s3cret\n", "https://hooks.example.com:s3cret/a"),
        *("https://hooks.example.com:99999/s3cret", "https://me:s3cret@hooks.example.com/a"),
        *("https://[s3cret]/a", "https:///s3cret", "https://hooks.example.com/s3-\u00e4-cret"),
    ],
)
def test_an_address_that_no_request_can_be_sent_to_is_refused_and_never_shown(
    monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setenv("HOOK", address)
    environment = Environment(
        name="local", root=Path("/lake"), alerts=AlertTargets(webhook="env:HOOK")
    )
    with pytest.raises(UsageError, match="env:HOOK, which is not an http") as caught:
        sender_of(environment)
    assert not {"s3", "cret", "99999"} & set(re.split(r"[^a-z0-9]", str(caught.value)))


@pytest.mark.parametrize("tail", ["/s3 cret", "/s3\ncret", ":s3cret/a"])
def test_an_address_that_the_client_refuses_is_not_in_its_message(tail: str) -> None:
    told = deliver(f"http://127.0.0.1{tail}", {}, pauses=())
    assert told == "it did not respond: InvalidURL"


def test_the_state_is_json_that_people_can_read(tmp_path: Path) -> None:
    reporter(tmp_path, []).report([LAG], rules=RULES)
    kept = json.loads((tmp_path / "alerts" / "shop" / "told.json").read_text())
    assert kept == {"open": [LAG.to_json()]}
