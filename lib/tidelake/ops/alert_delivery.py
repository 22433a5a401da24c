"""Report each alert once when it opens and once when it closes, across runs of a pipeline.

Messages go to the run and to a webhook: Slack's, or any that takes JSON of that shape.
"""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Container, Mapping, Sequence
from functools import partial
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

from tidelake.config import Environment
from tidelake.config.secrets import resolved
from tidelake.delta.locks import hold
from tidelake.delta.tables import Lake
from tidelake.errors import UsageError
from tidelake.folders import write_whole
from tidelake.ledger.history import Backlog
from tidelake.ops.alerts import RUNNING, Alert, AlertContext, judge
from tidelake.runtime.progress import Say
from tidelake.visible import first_line

# Sends a body; returns why it was not accepted, or an empty text.
Deliver = Callable[[Mapping[str, Any]], str]

_TIMEOUT_SECONDS = 5.0
# Pauses before the second and the third try of a webhook.
_PAUSES = (1.0, 2.0)
_EVERY_SECONDS = 15.0
# At most one part in so many of the time is spent judging, however long that takes.
_SHARE = 20
_CLOSE_SECONDS = 10.0


def sender_of(environment: Environment) -> Deliver | None:
    """Return what posts to the environment's webhook; None where it has none.

    Raises:
        UsageError: The variable is not set, or holds no address; its value is not in the message.
    """
    reference = environment.alerts.webhook
    if not reference:
        return None
    address = resolved({"alerts.webhook": reference})["alerts.webhook"]
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(
            f"alerts.webhook stands for {reference}, which holds no http:// or https:// address."
        )
    return partial(deliver, address)


def deliver(
    address: str,
    body: Mapping[str, Any],
    *,
    timeout: float = _TIMEOUT_SECONDS,
    pauses: tuple[float, ...] = _PAUSES,
) -> str:
    """POST a body as JSON; retry where the server does not answer, is overloaded or fails.

    ``timeout`` is in seconds for each try, ``pauses`` in seconds before each further one.
    """
    data = json.dumps(body).encode()
    headers = {"Content-Type": "application/json", "User-Agent": "tidelake"}
    for pause in (*pauses, None):
        request = urllib.request.Request(address, data=data, headers=headers, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=timeout):
                return ""
        except urllib.error.HTTPError as error:
            error.close()
            problem = f"it answers {error.code}"
            if error.code < 500 and error.code != 429:
                break
        except (OSError, HTTPException, ValueError) as error:
            problem = f"it does not answer: {getattr(error, 'reason', None) or error}"
        if pause is not None:
            time.sleep(pause)
    return problem


class AlertReporter:
    """Keeps in a file under the root which alerts were reported, for this run and the next.

    An alert that the webhook did not accept counts as not reported: it is sent with the next ones.
    """

    def __init__(self, lake: Lake, pipeline: str, say: Say, deliver: Deliver | None) -> None:
        """Report to ``say``, and to ``deliver`` where there is a webhook."""
        self._folder = lake.alerts(pipeline)
        self._file = self._folder / "told.json"
        self._pipeline = pipeline
        self._say = say
        self._deliver = deliver
        # Lines that this process has said, and the webhook has not accepted yet.
        self._said: set[str] = set()

    def report(self, found: Sequence[Alert], *, rules: Container[str]) -> None:
        """Report the alerts that opened and closed since the last report of any process.

        Only alerts of ``rules``, those that were judged, can close.
        """
        # Hops of one pipeline may run in several processes, which share the file.
        with hold(self._folder, f"what was told of {self._pipeline}", waits=True, optional=True):
            known = self._known()
            now_open = {one.key: one for one in found}
            # An alert whose severity changed is reported too.
            opened = [
                one
                for key, one in now_open.items()
                if known.get(key, {}).get("severity") != one.severity
            ]
            closed = {
                key: one
                for key, one in known.items()
                if one["rule"] in rules and key not in now_open
            }
            if not opened and not closed:
                return
            lines = [f"alert opens: {one}" for one in opened]
            for one in closed.values():
                hop = f", hop {one['hop']}" if one["hop"] else ""
                lines.append(f"alert closes: {one['pipeline']}{hop}: {one['rule']}")
            for line in lines:
                if line not in self._said:
                    self._say(line)
            self._said = set(lines)
            news = {one.key: one.to_json() for one in opened}
            body = {
                "text": "\n".join(lines),
                "pipeline": self._pipeline,
                "opened": list(news.values()),
                "closed": list(closed.values()),
            }
            problem = self._deliver(body) if self._deliver else ""
            if problem:
                self._say(
                    f"alerts: the webhook did not take them: {problem}. The next look tries again."
                )
                return
            kept = {key: one for key, one in known.items() if key not in closed} | news
            write_whole(self._file, json.dumps({"open": list(kept.values())}))
            self._said = set()

    def _known(self) -> dict[str, dict[str, Any]]:
        try:
            kept = json.loads(self._file.read_text(encoding="utf-8"))
            return {Alert(**{**one, "since": None}).key: one for one in kept["open"]}
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            # Without a readable state, open alerts are reported once more.
            return {}


class Watch:
    """Judges a pipeline while it runs, and once more when the run ends, in a thread of its own."""

    def __init__(
        self,
        context: Callable[[], AlertContext],
        reporter: AlertReporter,
        shows: Callable[[Sequence[Alert], Sequence[Backlog]], None] | None,
        say: Say,
    ) -> None:
        """Start the thread.

        ``context`` returns what the rules read; ``shows`` gets the open alerts and the backlogs
        after each judgement, ``say`` the reason where the tables cannot be judged.
        """
        self._context = context
        self._reporter = reporter
        self._shows = shows
        self._say = say
        self._problem = ""
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._work, name="tidelake-alerts", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Judge once more and end the thread."""
        self._end.set()
        self._thread.join(_CLOSE_SECONDS)

    def _work(self) -> None:
        pause = _EVERY_SECONDS
        while not self._end.wait(pause):
            began = time.monotonic()
            self._look()
            pause = max(_EVERY_SECONDS, _SHARE * (time.monotonic() - began))
        self._look()

    def _look(self) -> None:
        context = self._context()
        if not context.lake.bronze(context.pipeline.name).exists:
            return
        try:
            found = judge(context, RUNNING)
            if self._shows is not None:
                self._shows(found, context.waiting)
            self._reporter.report(found, rules=RUNNING)
        except Exception as error:
            # The run goes on, and reports by itself what is wrong with its tables.
            told = first_line(error)
            if told != self._problem:
                self._problem = told
                self._say(f"alerts: the tables could not be judged: {told}. The run goes on.")
