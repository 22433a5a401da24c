"""Tell once that an alert opens, and once that it closes, over all runs of a pipeline."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from tidelake.config import Environment
from tidelake.delta.locks import hold
from tidelake.delta.tables import Lake
from tidelake.folders import Folder, write_whole
from tidelake.ops.alerts.alert import Alert
from tidelake.ops.alerts.webhook import address_of, deliver
from tidelake.runtime.progress import Say

# Takes what is to be sent; gives why it was not taken, or an empty text.
Deliver = Callable[[Mapping[str, Any]], str]


def sender_of(environment: Environment) -> Deliver | None:
    """Give what sends to the environment's webhook; None where it has none.

    Raises:
        UsageError: Its variable is not set, or holds no address.
    """
    reference = environment.alerts.webhook
    return partial(deliver, address_of(reference)) if reference else None


class Teller:
    """Remembers in a file under the root which alerts were told, for this run and the next.

    What a webhook did not take counts as not told: the next look tries again.
    """

    def __init__(self, lake: Lake, pipeline: str, say: Say, deliver: Deliver | None) -> None:
        """Keep where to tell; ``deliver`` is None where there is no webhook."""
        self._folder = lake.alerts(pipeline)
        self._pipeline = pipeline
        self._say = say
        self._deliver = deliver
        # What was said aloud in this process, though no webhook took it yet.
        self._said: set[str] = set()

    def tell(self, found: Sequence[Alert], *, rules: Iterable[str]) -> None:
        """Tell what opened and what closed since the last look, whoever looked.

        Args:
            found: What is open.
            rules: Those that were judged: of the others nothing closes.
        """
        judged = set(rules)
        # Runs of single hops look at the same pipeline, each in a process of its own.
        with hold(self._folder, f"what was told of {self._pipeline}", waits=True, optional=True):
            known = self._known()
            now_open = {one.key: one for one in found}
            opened = [one for key, one in now_open.items() if _is_news(one, known.get(key))]
            closed = [
                one for key, one in known.items() if one["rule"] in judged and key not in now_open
            ]
            if not opened and not closed:
                return
            lines = [f"alert opens: {one}" for one in opened]
            lines += [f"alert closes: {_place(one)} {one['rule']}" for one in closed]
            for line in lines:
                if line not in self._said:
                    self._say(line)
            self._said = set(lines)
            if self._sent(lines, opened, closed):
                for one in closed:
                    del known[_key(one)]
                self._remember(known | {one.key: one.to_json() for one in opened})
                self._said = set()

    def _sent(
        self, lines: Sequence[str], opened: Sequence[Alert], closed: Sequence[Mapping[str, Any]]
    ) -> bool:
        if self._deliver is None:
            return True
        problem = self._deliver(
            {
                "text": "\n".join(lines),
                "pipeline": self._pipeline,
                "opened": [one.to_json() for one in opened],
                "closed": list(closed),
            }
        )
        if problem:
            self._say(
                f"alerts: the webhook did not take them: {problem}. The next look tries again."
            )
        return not problem

    def _known(self) -> dict[str, dict[str, Any]]:
        try:
            kept = json.loads(self._file.read_text(encoding="utf-8"))
            return {_key(one): one for one in kept["open"]}
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            # Unreadable is as good as none: what is open is told once more.
            return {}

    def _remember(self, known: Mapping[str, Mapping[str, Any]]) -> None:
        write_whole(self._file, json.dumps({"open": list(known.values())}))

    @property
    def _file(self) -> Folder:
        return self._folder / "told.json"


def _key(told: Mapping[str, Any]) -> str:
    return Alert(**{**told, "since": None}).key


def _is_news(alert: Alert, known: Mapping[str, Any] | None) -> bool:
    """Tell whether nobody heard of it, or of it as a lesser one."""
    return known is None or known["severity"] != alert.severity


def _place(told: Mapping[str, Any]) -> str:
    return f"{told['pipeline']}, hop {told['hop']}:" if told["hop"] else f"{told['pipeline']}:"
