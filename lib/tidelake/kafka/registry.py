"""Read the versions of a subject from a schema registry, and check their compatibility."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from tidelake.config import Registry
from tidelake.config.secrets import resolved
from tidelake.config.source import Compatibility
from tidelake.errors import SourceError
from tidelake.kafka import imported

_SECONDS = 10
_NOT_FOUND, _DENIED = 404, (401, 403)
_SHOWN = 300


class Version(NamedTuple):
    """One version of a subject; records refer to it by ``schema_id``.

    ``kind`` is ``AVRO``, ``JSON`` or ``PROTOBUF``; ``is_whole``: it refers to no other schema.
    """

    number: int
    schema_id: int
    schema: str
    kind: str
    is_whole: bool


def versions_of(registry: Registry) -> list[Version]:
    """List the versions of the subject, oldest first.

    Not looked up by the ids in records, because corrupt records may have any number of them.

    Raises:
        SourceError: The registry does not answer, has no such subject, or refuses access.
        UsageError: The credentials refer to a variable that is not set.
        MachineError: The client is not installed.
    """
    (library,) = imported("the client of schema registries", "confluent_kafka.schema_registry")
    settings: dict[str, Any] = {"url": registry.url, "timeout": _SECONDS, "max.retries": 1}
    if registry.credentials is not None:
        name = "source.registry.credentials"
        settings["basic.auth.user.info"] = resolved({name: registry.credentials})[name]
    client = library.SchemaRegistryClient.new_client(settings)
    subject = registry.subject
    with _requesting(registry):
        numbers = sorted(client.get_versions(subject))
        found = [client.get_version(subject, number) for number in numbers]
    return [
        Version(
            int(version.version),
            int(version.schema_id),
            version.schema.schema_str,
            version.schema.schema_type or "AVRO",
            not version.schema.references,
        )
        for version in found
    ]


@contextmanager
def _requesting(registry: Registry) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # The client passes on whatever its transport raises.
        status = getattr(error, "http_status_code", None)
        if status == _NOT_FOUND:
            problem = f"the schema registry at {registry.url} has no subject {registry.subject}"
            remedy = "Check source.registry.subject"
        elif status is not None:
            problem = f"the schema registry at {registry.url} answered {status}"
            what = "source.registry.credentials" if status in _DENIED else "the registry"
            remedy = f"Check {what}, then run again"
        else:
            kind = type(error).__name__
            problem = f"the schema registry at {registry.url} cannot be reached ({kind})"
            remedy = "Check source.registry.url, then run again"
        raise SourceError(f"{problem}. No row was processed. {remedy}.") from error


def incompatibility(new: str, old: str, rule: Compatibility) -> str:
    """Return why a schema is incompatible with the previous version, or "".

    ``backward``: the new schema can read records of the old one; ``forward``: the old schema can
    read records of the new one; ``full``: both.
    """
    if rule == "none":
        return ""
    modules = "avro.schema", "avro.compatibility", "avro.errors"
    schemas, checks, errors = imported("the library for Avro's rules", *modules)
    try:
        newer, older = schemas.parse(new), schemas.parse(old)
    except errors.AvroException as error:
        return f"a schema cannot be parsed: {str(error)[:_SHOWN]}"
    pairs = [(newer, older)] if rule in ("backward", "full") else []
    pairs += [(older, newer)] if rule in ("forward", "full") else []
    for reader, writer in pairs:
        result = checks.ReaderWriterCompatibilityChecker().get_compatibility(reader, writer)
        if result.compatibility is not checks.SchemaCompatibilityType.compatible:
            # Sorted because the library returns sets.
            kinds = sorted(str(kind.value).replace("_", " ") for kind in result.incompatibilities)
            reason = f"{', '.join(dict.fromkeys(kinds))}: {'; '.join(sorted(result.messages))}"
            return reason[:_SHOWN]
    return ""
