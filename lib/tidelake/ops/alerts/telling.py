"""Report once that an alert opens, and once that it closes, over all runs of a pipeline.

Messages go to the run and to a webhook: Slack's, or whatever takes JSON of its shape.
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
from tidelake.ops.alerts.alert import Alert, AlertContext
from tidelake.ops.alerts.rules import RUNNING, judge
from tidelake.ops.backlogs import Backlog
from tidelake.ops.metrics.recorder import first_line
from tidelake.runtime.progress import Say

# Takes what is to be sent; gives why it was not taken, or an empty text.
Deliver = Callable[[Mapping[str, Any]], str]

_TIMEOUT_SECONDS = 5.0
# Pauses before the second and the third try of a webhook.
_PAUSES = (1.0, 2.0)
_EVERY_SECONDS = 15.0
# Of the time at most a part in so many goes into looking, however long a look takes.
_SHARE = 20
_CLOSE_SECONDS = 10.0


def sender_of(environment: Environment) -> Deliver | None:
    """Give what sends to the environment's webhook; None where it has none.

    Raises:
        UsageError: Its variable is not set, or holds no address.
    """
    reference = environment.alerts.webhook
    return partial(deliver, address_of(reference)) if reference else None


def address_of(reference: str) -> str:
    """Find the webhook's address that a reference stands for.

    Raises:
        UsageError: The variable is not set, or holds no address; the message has not its value.
    """
    found = resolved({"alerts.webhook": reference})["alerts.webhook"]
    parts = urlsplit(found)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(
            f"alerts.webhook stands for {reference}, which holds no http:// or https:// address."
        )
    return found


def deliver(
    address: str,
    body: Mapping[str, Any],
    *,
    timeout: float = _TIMEOUT_SECONDS,
    pauses: tuple[float, ...] = _PAUSES,
) -> str:
    """POST a body as JSON; retry where the server is away or says that it is to blame.

    ``timeout`` is in seconds for each try, ``pauses`` before each further one.
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


class Teller:
    """Remembers in a file under the root which alerts were reported, for this run and the next.

    What a webhook did not take counts as not reported: the next look tries again.
    """

    def __init__(self, lake: Lake, pipeline: str, say: Say, deliver: Deliver | None) -> None:
        """Keep where to report; ``deliver`` is None where there is no webhook."""
        self._folder = lake.alerts(pipeline)
        self._file = self._folder / "told.json"
        self._pipeline = pipeline
        self._say = say
        self._deliver = deliver
        # What was said aloud in this process, though no webhook took it yet.
        self._said: set[str] = set()

    def tell(self, found: Sequence[Alert], *, rules: Container[str]) -> None:
        """Report what opened and what closed since the last look, whoever looked.

        Of rules that were not judged nothing closes.
        """
        # Runs of single hops look at the same pipeline, each in a process of its own.
        with hold(self._folder, f"what was told of {self._pipeline}", waits=True, optional=True):
            known = self._known()
            now_open = {one.key: one for one in found}
            # One that became critical, or no longer is, is news too.
            opened = [
                one
                for key, one in now_open.items()
                if key not in known or known[key]["severity"] != one.severity
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
            # Unreadable is as good as none: what is open is told once more.
            return {}


class Watch:
    """Judges a pipeline while its run goes on, and once more when it ends, in its own thread."""

    def __init__(
        self,
        context: Callable[[], AlertContext],
        teller: Teller,
        shows: Callable[[Sequence[Alert], Sequence[Backlog]], None] | None,
        say: Say,
    ) -> None:
        """Begin to look.

        Args:
            context: Gives what the rules read, as of now.
            teller: Reports what changed.
            shows: Takes each time what is open and what waits; None for nobody.
            say: Hears when the tables cannot be judged.
        """
        self._context = context
        self._teller = teller
        self._shows = shows
        self._say = say
        self._problem = ""
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._work, name="tidelake-alerts", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Look once more and end."""
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
        if not context.lake.bronze(context.name).exists:
            return
        try:
            found = judge(context, RUNNING)
            if self._shows is not None:
                self._shows(found, context.waiting)
            self._teller.tell(found, rules=RUNNING)
        except Exception as error:
            # Judging is a service to the run; what is wrong with its tables it says by itself.
            told = first_line(error)
            if told != self._problem:
                self._problem = told
                self._say(f"alerts: the tables could not be judged: {told}. The run goes on.")
