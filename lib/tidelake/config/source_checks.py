"""Find keys of a source that are each right but do not go together, or not in this place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

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
    if "registry" in source and source.get("format") != "avro":
        yield Finding(("source", "registry"), "goes with format: avro only")
    if source.get("kind") == "files" and {_FILES, _BYTES} <= source.keys():
        yield Finding(("source", _BYTES), f"stands beside {_FILES}; a folder takes one of them")
    if source.get("kind") != "kafka":
        return
    if ("topic" in source) == ("pattern" in source):
        yield Finding(("source", "topic"), "write either topic or pattern")
    options = source.get("options")
    options = options if isinstance(options, dict) else {}
    protocol = str(options.get(_PROTOCOL, "PLAINTEXT")).upper()
    if environment.name == "prod" and protocol not in _ENCRYPTED:
        yield Finding(
            ("source", "options"),
            f"{_PROTOCOL} must be {' or '.join(_ENCRYPTED)} in prod, and is {protocol}",
        )
