"""Find keys of a source that are each right but do not go together, or not in this place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from tidelake.config.document import Finding
from tidelake.config.environment import Environment

_PROTOCOL = "kafka.security.protocol"
_ENCRYPTED = ("SSL", "SASL_SSL")
_FILES, _BYTES = "max_files_per_trigger", "max_bytes_per_trigger"


def source_findings(source: Any, environment: Environment) -> Iterator[Finding]:
    """Find what is wrong with a source as it was written.

    Args:
        source: The raw section; anything but a mapping is somebody else's finding.
        environment: In ``prod`` nothing goes over the network in plain text.
    """
    if not isinstance(source, dict):
        return
    for key in ("registry", "schema"):
        if key in source and source.get("format") != "avro":
            yield Finding(("source", key), "goes with format: avro only")
    yield from _registry_findings(source.get("registry"), environment)
    if source.get("kind") == "files" and {_FILES, _BYTES} <= source.keys():
        yield Finding(("source", _BYTES), f"stands beside {_FILES}; a folder takes one of them")
    if source.get("kind") != "kafka":
        return
    if ("topic" in source) == ("pattern" in source):
        yield Finding(("source", "topic"), "write either topic or pattern")
    if source.get("format") == "avro" and ("registry" in source) == ("schema" in source):
        yield Finding(
            ("source", "format"),
            "avro: write either registry, where records name their schema, or schema: FILE",
        )
    options = source.get("options")
    options = options if isinstance(options, dict) else {}
    protocol = str(options.get(_PROTOCOL, "PLAINTEXT")).upper()
    if environment.name == "prod" and protocol not in _ENCRYPTED:
        yield Finding(
            ("source", "options"),
            f"{_PROTOCOL} must be {' or '.join(_ENCRYPTED)} in prod, and is {protocol}",
        )


def _registry_findings(registry: Any, environment: Environment) -> Iterator[Finding]:
    url = registry.get("url") if isinstance(registry, Mapping) else None
    if not isinstance(url, str):
        return
    place = ("source", "registry", "url")
    address = urlsplit(url)
    if address.scheme not in ("http", "https") or not address.hostname:
        # It may hold a password.
        yield Finding(place, "is no address: write https://HOST:PORT")
    elif "@" in address.netloc:
        yield Finding(place, "holds a user: write credentials: env:NAME instead")
    elif environment.name == "prod" and address.scheme != "https":
        yield Finding(place, "must begin with https:// in prod")
