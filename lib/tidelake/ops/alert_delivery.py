"""Report each alert once when it opens and once when it closes, across runs of a pipeline.

Messages go to the run's output and to a webhook: Slack's, or any that accepts the same JSON.
"""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from functools import partial
from http.client import HTTPException
from queue import Empty, SimpleQueue
from typing import Any, Literal
from urllib.parse import urlsplit

from tidelake.config import Environment
from tidelake.config.environment import resolved
from tidelake.delta.holders import Waiting
from tidelake.delta.locks import hold
from tidelake.delta.log import last_commit
from tidelake.delta.tables import Lake
from tidelake.errors import LockedError, MachineError, UsageError
from tidelake.folders import write_whole
from tidelake.instants import BEGINNING, from_json
from tidelake.ledger.history import Backlog
from tidelake.ops.alerts import MEASURED, RUNNING, Alert, AlertContext, Severity, judge
from tidelake.ops.metrics import Measured
from tidelake.ops.status import SourceLag
from tidelake.runtime.progress import Progress, Say
from tidelake.visible import first_line

# Sends a body; returns why it was not accepted, or "".
Deliver = Callable[[Mapping[str, Any]], str]
# A change of an alert: what happens, the alert's key, and its severity.
_Change = tuple[Literal["opens", "closes"], str, Severity]

_TIMEOUT_SECONDS = 5.0
# Pauses before the second and the third attempt.
_PAUSES = (1.0, 2.0)
_EVERY_SECONDS = 15.0
# At most 1/20 of the time is spent on evaluation, however long one evaluation takes.
_SHARE = 20
_CLOSE_SECONDS = 10.0
# How long the first batch of a new pipeline may take before its input counts as waiting.
_FIRST_BATCH = timedelta(minutes=5)
# How long another process may hold the lock; longer than a webhook takes in all attempts.
_LOCK_SECONDS = 30.0


def sender_of(environment: Environment) -> Deliver | None:
    """Return a function that posts to the environment's webhook; None if it has none.

    Raises:
        UsageError: The variable is not set, or is not an address; the message omits its value.
    """
    reference = environment.alerts.webhook
    if not reference:
        return None
    address = resolved({"alerts.webhook": reference})["alerts.webhook"]
    if not _is_address(address):
        raise UsageError(
            f"alerts.webhook refers to {reference}, which is not an http:// or https:// address "
            "in ASCII with a host, without a user, blanks or line breaks, whose port, if any, is a "
            "number. Correct it, or remove alerts.webhook from the environment's file."
        )
    return partial(deliver, address)


def _is_address(address: str) -> bool:
    """Return whether a request can be sent to an address."""
    try:
        parts = urlsplit(address)
        has_host = bool(parts.hostname) and parts.username is None and parts.port != 0
    except ValueError:
        return False
    # The parser drops line breaks.
    is_clean = address.isascii() and address.isprintable() and " " not in address
    return parts.scheme in ("http", "https") and has_host and is_clean


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Makes a redirect an error: it would be followed with a GET, which has no body."""

    def redirect_request(self, *_: Any) -> None:
        """Return no request to follow."""


def deliver(
    address: str,
    body: Mapping[str, Any],
    *,
    timeout: float = _TIMEOUT_SECONDS,
    pauses: tuple[float, ...] = _PAUSES,
) -> str:
    """POST a body as JSON; retry if the server does not answer, is overloaded or fails.

    Redirects are not followed. The returned message does not contain the address.
    ``timeout`` is in seconds per attempt; ``pauses`` are the seconds before each retry.
    """
    data = json.dumps(body).encode()
    headers = {"Content-Type": "application/json", "User-Agent": "tidelake"}
    for pause in (*pauses, None):
        request = urllib.request.Request(address, data=data, headers=headers, method="POST")
        answers: SimpleQueue[tuple[str, bool]] = SimpleQueue()
        # In a thread: the socket's timeout is for each read, and an answer may come byte by byte.
        work = partial(_attempt, request, timeout, answers)
        threading.Thread(target=work, name="tidelake-webhook", daemon=True).start()
        try:
            problem, may_retry = answers.get(timeout=timeout)
        except Empty:
            problem, may_retry = "it did not respond: timed out", True
        if not problem or not may_retry:
            break
        if pause is not None:
            time.sleep(pause)
    return problem


def _attempt(
    request: urllib.request.Request, timeout: float, answers: SimpleQueue[tuple[str, bool]]
) -> None:
    """Send a request; put what was wrong with the answer, "" for nothing, and whether to retry."""
    try:
        with urllib.request.build_opener(_NoRedirects).open(request, timeout=timeout):
            answers.put(("", False))
    except urllib.error.HTTPError as error:
        error.close()
        answers.put((f"it returned HTTP {error.code}", error.code >= 500 or error.code == 429))
    except OSError as error:
        reason = getattr(error, "reason", None) or error
        answers.put((f"it did not respond: {reason}", True))
    except (HTTPException, ValueError) as error:
        # Their messages quote parts of the address, or of the answer.
        answers.put((f"it did not respond: {type(error).__name__}", True))


class AlertReporter:
    """Reports changes of alerts, and stores the reported ones in a file under the root.

    An alert that the webhook did not accept counts as not reported: the next report includes it.
    """

    def __init__(self, lake: Lake, pipeline: str, say: Say, deliver: Deliver | None) -> None:
        """Report to ``say``, and to ``deliver`` if there is a webhook."""
        self._folder = lake.alerts(pipeline)
        self._file = self._folder / "told.json"
        self._pipeline = pipeline
        self._say, self._say_once = say, Progress(say).say_once
        self._deliver = deliver
        # Changes that this process has printed and the webhook has not accepted yet. Not their
        # lines, which contain numbers that differ at each check.
        self._said: set[_Change] = set()
        # Changes that were reported and could not be stored, on a full disk for example: the open
        # alert by its key, None if it closed. And whether that was printed.
        self._unstored: dict[str, dict[str, Any] | None] = {}
        self._said_unstored = False

    def report(
        self,
        found: Sequence[Alert],
        *,
        rules: Container[str],
        measures: Sequence[Measured] | None = None,
    ) -> None:
        """Report the alerts that opened and closed since the last report of any process.

        Only alerts of ``rules``, the rules that were evaluated, can close, and that a rule on
        metrics could not be evaluated. ``measures`` are those of one run, after which an alert on
        metrics closes only if a later batch of its hop is among them; None if the metrics of all
        runs were evaluated. Where nothing can be stored, alerts are reported nevertheless: once by
        each process.
        """
        with ExitStack() as held:
            # Hops of one pipeline may run in several processes, which share the file. A full disk
            # refuses the lock, and must not suppress the alerts that it causes; nor must a process
            # that is paused while it holds it.
            what = f"the reported alerts of {self._pipeline}"
            waits = Waiting(self._say_once, seconds=_LOCK_SECONDS)
            with suppress(OSError, MachineError, LockedError):
                held.enter_context(hold(self._folder, what, waits=waits, optional=True))
            known = self._known()
            current = {one.key: one for one in found}
            # A rule on metrics that cannot be evaluated, and so is of no hop, closes none.
            unknown = {one.rule for one in found if one.rule in MEASURED and one.hop is None}
            opened = {}
            lines: dict[_Change, str] = {}
            for key, alert in current.items():
                # An alert whose severity changed is reported too.
                if known.get(key, {}).get("severity") != alert.severity:
                    opened[key] = alert.to_json()
                    lines["opens", key, alert.severity] = f"alert opens: {alert}"
            closed = {}
            for key, one in known.items():
                is_over = key not in current and one["rule"] not in unknown
                if is_over and _may_close(one, rules, measures):
                    closed[key] = one
                    hop = f", hop {one['hop']}" if one["hop"] else ""
                    line = f"alert closes: {one['pipeline']}{hop}: {one['rule']}"
                    lines["closes", key, one["severity"]] = line
            said, self._said = self._said, set(lines)
            if not lines:
                self._store()
                return
            for change, line in lines.items():
                if change not in said:
                    self._say(line)
            body = {
                "text": "\n".join(lines.values()),
                "pipeline": self._pipeline,
                "opened": list(opened.values()),
                "closed": list(closed.values()),
            }
            problem = self._deliver(body) if self._deliver else ""
            if problem:
                self._say(
                    f"alerts: the webhook did not accept them: {problem}. The next check retries."
                )
                return
            self._unstored |= dict.fromkeys(closed) | opened
            self._said = set()
            self._store()

    def _known(self) -> dict[str, dict[str, Any]]:
        """Read the open alerts that were reported, by key: the stored ones, and changes since."""
        stored: dict[str, dict[str, Any]] = {}
        # Without a readable state, open alerts are reported again. After any other error, such as
        # of a store that does not answer, the next check retries.
        with suppress(FileNotFoundError, PermissionError, ValueError, KeyError, TypeError):
            kept = json.loads(self._file.read_text(encoding="utf-8"))
            stored = {Alert(**{**one, "since": None}).key: one for one in kept["open"]}
        return {key: one for key, one in (stored | self._unstored).items() if one is not None}

    def _store(self) -> None:
        """Store the changes that are not stored yet; if that fails, print it once."""
        if not self._unstored:
            return
        try:
            write_whole(self._file, json.dumps({"open": list(self._known().values())}))
        except OSError as error:
            if not self._said_unstored:
                self._said_unstored = True
                self._say(
                    f"alerts: {self._file} cannot be written: {error.strerror or first_line(error)}"
                    ". Other processes report these alerts again."
                )
            return
        self._unstored, self._said_unstored = {}, False


def _may_close(
    alert: Mapping[str, Any], rules: Container[str], measures: Sequence[Measured] | None
) -> bool:
    """Return whether these rules and metrics can show that a reported alert is over."""
    rule = alert["rule"]
    if rule in MEASURED and alert["hop"] is None:
        # It could not be evaluated, and was just now, for whatever metrics there are.
        return True
    if rule not in rules:
        return False
    if measures is None or rule not in MEASURED:
        return True
    since = from_json(alert["since"]) or BEGINNING
    return any(
        one.hop == alert["hop"] and one.error_class is None and one.ended_at > since
        for one in measures
    )


@contextmanager
def watching(
    context: Callable[[], AlertContext],
    reporter: AlertReporter,
    on_result: Callable[[Sequence[Alert], Sequence[Backlog], SourceLag | None], None] | None,
    say: Say,
) -> Iterator[None]:
    """Evaluate alerts in a background thread during the block, and once more at its end.

    ``context`` returns the input of the rules; ``on_result`` gets the open alerts, the backlogs and
    the lag of a topic after each evaluation, ``say`` the reason if an evaluation fails.
    """
    end = threading.Event()

    def evaluate() -> None:
        found = context()
        bronze = found.lake.bronze(found.pipeline.name)
        # Before the first batch nothing but a failure can be found: old files have only to be read.
        if (last := last_commit(bronze)) is None:
            begins = not bronze.exists
        else:
            begins = last.batch < 0 and found.now - last.written_at < _FIRST_BATCH
        rules = MEASURED if begins else RUNNING
        alerts = judge(found, rules)
        reporter.report(alerts, rules=rules, measures=found.measures)
        # Last, since it may ask brokers for the lag.
        if on_result is not None:
            on_result(alerts, found.waiting, found.lag)

    def work() -> None:
        problem, pause, is_last = "", _EVERY_SECONDS, False
        while not is_last:
            is_last = end.wait(pause)
            began = time.monotonic()
            try:
                evaluate()
                problem = ""
            except Exception as error:
                # No error here may stop the run, which itself reports problems with its tables.
                if (reason := first_line(error)) != problem:
                    problem = reason
                    say(f"alerts: the rules could not be evaluated: {reason}. The run continues.")
            pause = max(_EVERY_SECONDS, _SHARE * (time.monotonic() - began))

    thread = threading.Thread(target=work, name="tidelake-alerts", daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join(_CLOSE_SECONDS)
