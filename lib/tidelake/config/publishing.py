"""The topics to which gold tables are published: their model, and checks across a pipeline file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from tidelake.config.document import Finding, KeyPath, dotted
from tidelake.config.model import Documented, Model, Problems, Text
from tidelake.config.secrets import resolved
from tidelake.config.source import (
    ClientOptions,
    KafkaSource,
    TopicName,
    encryption_finding,
)

# Other values would lose records, or change the order of a key's records.
_FIXED = (
    "kafka.acks",
    "kafka.enable.idempotence",
    "kafka.max.in.flight.requests.per.connection",
    "kafka.transactional.id",
)
_TABLES = ("gold", "joins", "detections", "queries")


def _without_fixed(options: dict[str, str]) -> dict[str, str]:
    problems = [f"option {name} is set by Tidelake" for name in options if name in _FIXED]
    if problems:
        raise Problems(problems)
    return options


class Publish(Model):
    """The topic to which each change of a gold table goes.

    Attributes:
        topic: The topic, which no other table is published to.
        bootstrap: ``host:port``, several separated by commas, or a reference such as ``env:NAME``,
            whose value is in no message.
        options: Settings of the client, prefixed with ``kafka.``; secrets by reference.
    """

    topic: TopicName
    bootstrap: Text
    options: Annotated[ClientOptions, AfterValidator(_without_fixed)] = Field(default_factory=dict)

    @property
    def client(self) -> KafkaSource:
        """The topic with its brokers, as the Kafka client takes them; references are kept."""
        return KafkaSource(
            kind="kafka", bootstrap=self.bootstrap, topic=self.topic, options=self.options
        )


class Publishable(Documented):
    """A table that can be published.

    The key is excluded from dumps, because a topic does not redefine a stored table.

    Attributes:
        publish: The topic to which each change of the table goes; None to publish none.
    """

    publish: Publish | None = Field(default=None, exclude=True)


def refuse_unset(published: Mapping[str, Publish]) -> None:
    """Resolve the references of tables' topics, before Spark starts.

    Raises:
        UsageError: A reference has no value; the message names it.
    """
    for to in published.values():
        resolved({"publish.bootstrap": to.bootstrap, **to.options})


def publish_findings(raw: Mapping[str, Any], *, in_prod: bool) -> Iterator[Finding]:
    """Find topics that two tables share, or that the pipeline reads; require encryption in prod."""
    taken = dict(_other_topics(raw))
    for path, publish in _written(raw):
        topic = publish.get("bootstrap"), publish.get("topic")
        # Values of other types are reported by the model.
        if all(isinstance(part, str) for part in topic):
            if topic in taken:
                message = f"{topic[1]} is already the topic of {taken[topic]}"
                yield Finding((*path, "topic"), message)
            taken.setdefault(topic, dotted(path[:2]))
        if in_prod:
            yield from encryption_finding((*path, "options"), publish.get("options"))


def _written(raw: Mapping[str, Any]) -> Iterator[tuple[KeyPath, Mapping[str, Any]]]:
    """List the file's ``publish`` sections, valid or not, with their paths."""
    for key in _TABLES:
        tables = raw.get(key)
        for at, table in enumerate(tables if isinstance(tables, list) else []):
            publish = table.get("publish") if isinstance(table, dict) else None
            if isinstance(publish, dict):
                yield (key, at, "publish"), publish


def _other_topics(raw: Mapping[str, Any]) -> Iterator[tuple[tuple[Any, Any], str]]:
    """List the topics of the source and of fast lanes, by broker and name."""
    source = raw.get("source")
    if not isinstance(source, dict) or source.get("kind") != "kafka":
        return
    bootstrap, topics = source.get("bootstrap"), source.get("topic")
    if not isinstance(bootstrap, str):
        return
    for topic in topics if isinstance(topics, list) else [topics]:
        if isinstance(topic, str):
            yield (bootstrap, topic), "source"
    detections = raw.get("detections")
    for at, detection in enumerate(detections if isinstance(detections, list) else []):
        fast = detection.get("fast") if isinstance(detection, dict) else None
        if isinstance(fast, dict) and isinstance(fast.get("topic"), str):
            yield (bootstrap, fast["topic"]), dotted(("detections", at, "fast"))
