"""Ask a schema registry for the versions of a subject."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

from tidelake.config import Registry
from tidelake.config.secrets import resolved
from tidelake.errors import MachineError, SourceError

_SECONDS = 10
_NOT_FOUND, _WHO = 404, (401, 403)


class Version(NamedTuple):
    """One version of a subject.

    Attributes:
        number: Its place among the versions.
        schema_id: Under which id records name its schema.
        schema: The schema's text.
        kind: What it is a schema of: ``AVRO``, ``JSON`` or ``PROTOBUF``.
        is_whole: Whether it refers to no other schema.
    """

    number: int
    schema_id: int
    schema: str
    kind: str
    is_whole: bool


def versions_of(registry: Registry) -> list[Version]:
    """List the versions of the subject, oldest first.

    The subject is asked, and not id by id: broken records may name any number of ids.

    Raises:
        SourceError: The registry does not answer, has no such subject, or refuses us.
        UsageError: The credentials stand for a variable that is not set.
        MachineError: The client is not installed.
    """
    client = _client(registry)
    subject = registry.subject
    numbers = sorted(_asked(registry, partial(client.get_versions, subject)))
    return [
        _version(_asked(registry, partial(client.get_version, subject, number)))
        for number in numbers
    ]


def _version(found: Any) -> Version:
    schema = found.schema
    kind = schema.schema_type or "AVRO"
    return Version(
        int(found.version), int(found.schema_id), schema.schema_str, kind, not schema.references
    )


def _client(registry: Registry) -> Any:
    try:
        library = import_module("confluent_kafka.schema_registry")
    except ImportError as error:
        raise MachineError(
            "the client of schema registries is not installed. "
            "Install it with: pip install 'tidelake[kafka]'"
        ) from error
    told: dict[str, Any] = {"url": registry.url, "timeout": _SECONDS, "max.retries": 1}
    if registry.credentials is not None:
        name = "source.registry.credentials"
        told["basic.auth.user.info"] = resolved({name: registry.credentials})[name]
    return library.SchemaRegistryClient.new_client(told)


def _asked(registry: Registry, ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except Exception as error:  # The client lets through whatever its transport raises.
        status = getattr(error, "http_status_code", None)
        if status == _NOT_FOUND:
            raise SourceError(
                f"the schema registry at {registry.url} has no subject {registry.subject}. "
                "No row was decided. Check source.registry.subject."
            ) from error
        if status is not None:
            remedy = "Check source.registry.credentials" if status in _WHO else "Look at it"
            raise SourceError(
                f"the schema registry at {registry.url} answered {status}. "
                f"No row was decided. {remedy}, then run again."
            ) from error
        raise SourceError(
            f"the schema registry at {registry.url} cannot be reached ({type(error).__name__}). "
            "No row was decided. Check source.registry.url, then run again."
        ) from error
