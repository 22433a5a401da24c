"""Find out at once whether a broker can be reached: Kafka's own clients try for minutes."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

from tidelake.errors import SourceError

_SECONDS = 3.0
_EVERY_SECONDS = 5.0


def refuse_unreachable(bootstrap: str) -> None:
    """Want one of the listed brokers to take a connection.

    Args:
        bootstrap: ``host:port``, several with commas.

    Raises:
        SourceError: None of them does.
    """
    reasons = _unreachable(bootstrap)
    if reasons:
        raise SourceError(
            f"no Kafka broker can be reached ({reasons}). Check source.bootstrap, "
            "or start one on this machine: tidelake kafka up"
        )


class Contact:
    """Tells when no broker can be reached any more, and when one can again, once each.

    A run waits for its broker, at first without a word: the clients that Spark uses say nothing
    until they give up.
    """

    def __init__(self, bootstrap: str, say: Callable[[str], None]) -> None:
        """Begin while one can be reached.

        Args:
            bootstrap: ``host:port``, several with commas.
            say: Takes a line.
        """
        self._bootstrap, self._say = bootstrap, say
        self._looked_at, self._is_lost = time.monotonic(), False

    def look(self) -> None:
        """Try a connection, unless the last one was tried a moment ago."""
        if time.monotonic() - self._looked_at < _EVERY_SECONDS:
            return
        reasons = _unreachable(self._bootstrap)
        if reasons and not self._is_lost:
            self._say(f"bronze  waits: no Kafka broker can be reached ({reasons})")
        elif self._is_lost and not reasons:
            self._say("bronze  goes on: a Kafka broker can be reached again")
        self._looked_at, self._is_lost = time.monotonic(), bool(reasons)


def _unreachable(bootstrap: str) -> str:
    """Say why none of the listed brokers takes a connection; empty where one does."""
    reasons = []
    for address in bootstrap.split(","):
        host, _, port = address.strip().rpartition(":")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=_SECONDS):
                return ""
        except (OSError, ValueError) as error:
            reasons.append(f"{address.strip()}: {error}")
    return "; ".join(reasons)
