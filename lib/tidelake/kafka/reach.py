"""Find out at once whether a broker can be reached: Kafka's own clients try for minutes."""

from __future__ import annotations

import socket

from tidelake.errors import SourceError

_SECONDS = 3.0


def refuse_unreachable(bootstrap: str) -> None:
    """Want one of the listed brokers to take a connection.

    Args:
        bootstrap: ``host:port``, several with commas.

    Raises:
        SourceError: None of them does.
    """
    reasons = []
    for address in bootstrap.split(","):
        host, _, port = address.strip().rpartition(":")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=_SECONDS):
                return
        except (OSError, ValueError) as error:
            reasons.append(f"{address.strip()}: {error}")
    raise SourceError(
        f"no Kafka broker can be reached ({'; '.join(reasons)}). Check source.bootstrap, "
        "or start one on this machine: tidelake kafka up"
    )
