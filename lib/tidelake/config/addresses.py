"""What is typed in place of a pipeline's source: a path, or the address of a topic."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from tidelake.config.document import Document
from tidelake.errors import UsageError

# The keys of a source that describe its payloads, whatever it is read from.
_PAYLOAD_KEYS = ("format", "envelope", "registry", "schema")


@dataclass(frozen=True)
class Address:
    """A topic and its broker, written ``kafka://host:port/topic``."""

    bootstrap: str
    topic: str


def is_address(text: str) -> bool:
    """Return whether text is the address of a topic rather than a path."""
    return text.startswith("kafka://")


def address_of(text: str) -> Address:
    """Parse ``kafka://host:port/topic``, or raise a UsageError."""
    parts = urlsplit(text)
    topic = parts.path.strip("/")
    if parts.scheme != "kafka" or not parts.netloc or not topic or "/" in topic or parts.query:
        raise UsageError(f"{text} is not the address of a topic: write kafka://HOST:PORT/TOPIC")
    return Address(parts.netloc, topic)


def override_source(document: Document, path: str) -> None:
    """Override the source of a pipeline file with a path or a topic.

    Raises:
        UsageError: The source generates its own records.
    """
    source = document.content.get("source")
    if not isinstance(source, dict):
        return
    kind = source.get("kind")
    if is_address(path):
        to = address_of(path)
        keys = source.keys() - {"topic", "pattern"} if kind == "kafka" else _PAYLOAD_KEYS
        kept = {key: value for key, value in source.items() if key in keys}
        topic_source = {"kind": "kafka", "bootstrap": to.bootstrap, "topic": to.topic}
        document.content["source"] = kept | topic_source
    elif kind == "kafka":
        kept = {key: source[key] for key in ("format", "envelope") if key in source}
        document.content["source"] = {**kept, "kind": "files", "path": path}
    elif kind == "rate":
        raise UsageError(
            f"{document.file}: --source cannot replace a source of kind rate, which generates its "
            "own records"
        )
    else:
        source.pop("table", None)
        source["path"] = path
        # Files are deleted only where the pipeline file itself says so.
        for key in ("clean_source", "archive_dir"):
            source.pop(key, None)
