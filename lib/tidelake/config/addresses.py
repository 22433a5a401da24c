"""Topics as the command line writes them: ``kafka://host:port/topic``."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from tidelake.errors import UsageError


@dataclass(frozen=True)
class Address:
    """A topic of a broker, written ``kafka://host:port/topic``."""

    bootstrap: str
    topic: str


def is_address(text: str) -> bool:
    """Tell whether a text names a topic rather than a folder."""
    return text.startswith("kafka://")


def address_of(text: str) -> Address:
    """Read ``kafka://host:port/topic``.

    Raises:
        UsageError: It is not of that form.
    """
    parts = urlsplit(text)
    topic = parts.path.strip("/")
    if parts.scheme != "kafka" or not parts.netloc or not topic or "/" in topic or parts.query:
        raise UsageError(f"{text} names no topic: write kafka://HOST:PORT/TOPIC")
    return Address(parts.netloc, topic)
