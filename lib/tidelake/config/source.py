"""Where a pipeline's payloads come from."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from tidelake.config.model import Model, PositiveInt, Problems
from tidelake.config.sizes import ByteSize

Format = Literal["json", "avro"]
# Databricks bounds the names of scopes and keys so.
_NAMED = "[A-Za-z0-9_.@-]{1,128}"
REFERENCE = re.compile(f"(env:[A-Za-z_][A-Za-z0-9_]*|secret:{_NAMED}/{_NAMED})")
_OURS = frozenset(
    {
        "kafka.bootstrap.servers",
        "kafka.isolation.level",
        "assign",
        "subscribe",
        "subscribePattern",
        "startingOffsets",
        "startingTimestamp",
        "startingOffsetsByTimestamp",
        "maxOffsetsPerTrigger",
        "minPartitions",
        "includeHeaders",
        "failOnDataLoss",
    }
)
_INSTEAD = {
    "kafka.bootstrap.servers": ": write bootstrap",
    "subscribe": ": write topic",
    "subscribePattern": ": write pattern",
    "startingOffsets": ": write starting",
    "startingTimestamp": ": write starting",
    "maxOffsetsPerTrigger": ": write max_offsets_per_trigger",
    "minPartitions": ": write min_partitions",
    "failOnDataLoss": ": records that are gone always stop a run",
}
_SENSITIVE = re.compile(
    r"password|passphrase|secret|jaas|token|credential|api\.?key", re.IGNORECASE
)


def text_of(value: object) -> object:
    """Give a setting as Spark takes it: YAML's ``true`` and ``8`` are texts there."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


def _only_references(options: dict[str, str]) -> dict[str, str]:
    # The value itself is kept out of the message: it may be the secret.
    problems = [
        f"option {name} holds a secret: write a reference such as env:NAME or "
        "secret:SCOPE/KEY, never the value"
        for name, value in options.items()
        if (_SENSITIVE.search(name) or value.startswith("secret:"))
        and not REFERENCE.fullmatch(value)
    ]
    if problems:
        raise Problems(problems)
    return options


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be empty")
    return text


Text = Annotated[str, AfterValidator(_not_blank)]
Setting = Annotated[str, BeforeValidator(text_of)]
Options = Annotated[dict[str, Setting], AfterValidator(_only_references)]


def _a_reference(text: str) -> str:
    # The text itself is kept out of the message: it may be the secret.
    if not REFERENCE.fullmatch(text):
        raise ValueError(
            "must be a reference such as env:NAME or secret:SCOPE/KEY, never the value"
        )
    return text


Compatibility = Literal["backward", "forward", "full", "none"]


class Registry(Model):
    """A schema registry, for Avro.

    Attributes:
        url: Where it answers.
        subject: Whose versions are the writers' schemas.
        compatibility: What a version must be to the one before it.
        credentials: A reference to ``user:password``.
    """

    url: Text
    subject: Text
    compatibility: Compatibility = "backward"
    credentials: Annotated[str, AfterValidator(_a_reference)] | None = None


class FilesSource(Model):
    """A folder of files, read recursively; JSON holds one record a line.

    Spark takes one of the limits, not both; without either a batch takes 1000 files at most.

    Attributes:
        kind: ``files``.
        format: ``json``: one object a line.
        path: The folder, or one file; ``${root}`` is the environment's root.
        max_files_per_trigger: Files of a batch, at most.
        max_bytes_per_trigger: Bytes of a batch, at most; a file is always taken whole.
        registry: Not for files.
    """

    kind: Literal["files"]
    format: Format = "json"
    path: Text
    max_files_per_trigger: PositiveInt | None = None
    max_bytes_per_trigger: ByteSize | None = None
    registry: Registry | None = None


def _not_ours(options: dict[str, str]) -> dict[str, str]:
    problems = [
        f"option {name} is set by Tidelake{_INSTEAD.get(name, '')}"
        for name in options
        if name in _OURS
    ]
    problems += [
        f"option {name} is no setting of a Kafka client: those begin with kafka."
        for name in options
        if name not in _OURS and not name.startswith("kafka.")
    ]
    if problems:
        raise Problems(problems)
    return options


def _beginning(text: str) -> str:
    if text in ("earliest", "latest"):
        return text
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        instant = None
    if instant is None or instant.tzinfo is None:
        raise ValueError("write earliest, latest or an instant such as 2026-01-05T00:00:00Z")
    return text


class KafkaSource(Model):
    """Kafka topics: one by its name, or all that match a pattern, new ones included.

    Attributes:
        kind: ``kafka``.
        bootstrap: ``host:port``, several with commas.
        topic: One topic; or ``pattern``.
        pattern: A regular expression of topics' names.
        starting: ``earliest``, ``latest`` or an instant: where the first run begins.
        options: Settings of the client, ``kafka.`` before each; a secret by reference.
        format: ``json`` or ``avro``.
        registry: Where writers' schemas of Avro are.
        schema_file: A file with the writers' Avro schema, where there is no registry.
        max_offsets_per_trigger: Records of a batch, at most.
        min_partitions: Cuts partitions into at least so many tasks.
    """

    kind: Literal["kafka"]
    bootstrap: Text
    topic: Text | None = None
    pattern: Text | None = None
    starting: Annotated[str, AfterValidator(_beginning)] = "earliest"
    options: Annotated[Options, AfterValidator(_not_ours)] = Field(default_factory=dict)
    format: Format = "json"
    registry: Registry | None = None
    schema_file: Text | None = Field(default=None, alias="schema")
    max_offsets_per_trigger: PositiveInt | None = None
    min_partitions: PositiveInt | None = None


class DeltaSource(Model):
    """An append-only Delta table; of two limits the one that is reached first ends a batch.

    Attributes:
        kind: ``delta``.
        path: The table's folder.
        max_files_per_trigger: Files of a batch, at most.
        max_bytes_per_trigger: Bytes of a batch, at most.
    """

    kind: Literal["delta"]
    path: Text
    max_files_per_trigger: PositiveInt | None = None
    max_bytes_per_trigger: ByteSize | None = None


class RateSource(Model):
    """Spark's generator of rows, for trials.

    Attributes:
        kind: ``rate``.
        rows_per_second: How fast.
    """

    kind: Literal["rate"]
    rows_per_second: PositiveInt = 10


Source = Annotated[
    FilesSource | KafkaSource | DeltaSource | RateSource, Field(discriminator="kind")
]
