"""Settings of gold tables that do not define their rows: properties, masks, filters, topics."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import timedelta
from fnmatch import fnmatchcase
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from tidelake.config.document import Finding, dotted, mappings_in
from tidelake.config.environment import Environment, refuse_service_credential, resolved
from tidelake.config.model import Documented, Model, Text, free_of, match_whole, matching
from tidelake.config.source import (
    KafkaSource,
    Setting,
    TopicName,
    encryption_finding,
    option_problems,
)
from tidelake.names import ColumnName

# Properties with Delta's default retention of the log and of removed files, below which no table
# goes; maintain lengthens them where a reader needs it. Delta refuses to read a version older than
# the second, even if its files exist.
LOG_RETENTION, FILE_RETENTION = "delta.logRetentionDuration", "delta.deletedFileRetentionDuration"
LEAST = {LOG_RETENTION: timedelta(days=30), FILE_RETENTION: timedelta(days=7)}
_INTERVAL = re.compile(r"interval ([1-9][0-9]{0,4}) (hour|day|week)s?")
# Properties that Tidelake depends on, in lower case, with the reason; * stands for any ending.
_REFUSED = {
    "delta.appendonly": "gold is written by MERGE",
    "delta.checkpointinterval": "Tidelake sets it",
    "delta.dataskippingnumindexedcols": "Tidelake sets the columns with statistics",
    "delta.dataskippingstatscolumns": "Tidelake sets the columns with statistics",
    "delta.enablechangedatafeed": "Tidelake sets it where a hop reads the table's changes",
    "delta.enabledeletionvectors": "Tidelake sets it by the table's size",
    "delta.enableexpiredlogcleanup": "the log would grow without limit",
    "delta.enabletypewidening": "Tidelake sets it when a type is widened",
    "delta.isolationlevel": "merges and compactions run side by side",
    "delta.settransactionretentionduration": "appends are identified by their transactions",
    **dict.fromkeys(
        (
            *("delta.checkpointpolicy", "delta.columnmapping.*", "delta.enableicebergcompat*"),
            *("delta.enableincommittimestamps", "delta.enablerowtracking", "delta.feature.*"),
            *("delta.incommittimestamp*", "delta.minreaderversion", "delta.minwriterversion"),
            *("delta.rowtracking.*", "delta.universalformat.*"),
        ),
        "it changes what readers and writers of the table must support",
    ),
    "tidelake.*": "Tidelake keeps its metadata there",
    "comment": "write description instead",
    **dict.fromkeys(
        ("external", "is_managed_location", "location", "option.*", "owner", "path", "provider"),
        "Spark reserves it",
    ),
}
_LONGEST_VALUE = 1000
_MOST_TAGS = 50


def interval_of(text: str) -> timedelta | None:
    """Return the length of a property such as ``interval 30 days``; None if it is no interval."""
    found = _INTERVAL.fullmatch(text)
    return timedelta(**{f"{found[2]}s": int(found[1])}) if found else None


def _property_key(key: str) -> str:
    for known, reason in _REFUSED.items():
        if fnmatchcase(key.lower(), known):
            raise ValueError(f"'{key}' cannot be set: {reason}")
    return match_whole(
        r"[A-Za-z][A-Za-z0-9_.-]{0,127}",
        "'{0}' is not a valid property: start with a letter, then letters, digits, dots, dashes "
        "and underscores",
        key,
    )


def _unprintable(found: dict[str, str]) -> Iterator[str]:
    for key, value in found.items():
        if len(value) > _LONGEST_VALUE or not value.isprintable():
            yield f"{key} must be one line of at most {_LONGEST_VALUE:,} characters"


def _property_problems(found: dict[str, str]) -> Iterator[str]:
    yield from _unprintable(found)
    known: dict[str, str] = {}
    for key in found:
        # Delta's own properties have one spelling, whatever the case in which they are set.
        if known.setdefault(key.lower(), key) != key:
            yield f"{key} and {known[key.lower()]} differ only in case"
    for key, least in LEAST.items():
        if key.lower() not in known:
            continue
        length = interval_of(found[known[key.lower()]])
        if length is None:
            yield f"{key} must look like 'interval 30 days'"
        elif length < least:
            yield f"{key} must be at least 'interval {least.days} days'"


def _tag_problems(found: dict[str, str]) -> Iterator[str]:
    yield from _unprintable(found)
    if len(found) > _MOST_TAGS:
        yield f"are {len(found)}; a table can have {_MOST_TAGS}"


_PropertyKey = Annotated[str, AfterValidator(_property_key)]
_TagName = Annotated[
    str,
    matching(
        r"[A-Za-z0-9_]([A-Za-z0-9_ ]{0,253}[A-Za-z0-9_])?",
        "'{0}' is not a valid tag: use letters, digits, underscores, and spaces in between",
    ),
]
FunctionName = Annotated[
    str,
    matching(
        r"([A-Za-z_][A-Za-z0-9_-]*\.)?[A-Za-z_][A-Za-z0-9_]*\.[A-Za-z_][A-Za-z0-9_]*",
        "'{0}' is not a function's name: write catalog.schema.function, or schema.function for one "
        "in the environment's catalog",
    ),
]


class RowFilter(Model):
    """A function that says of each row whether the reader may see it.

    Attributes:
        function: ``catalog.schema.function``, or ``schema.function``; returns a BOOLEAN.
        columns: The columns of the table that are passed to it, in order.
    """

    function: FunctionName
    columns: Annotated[tuple[ColumnName, ...], Field(min_length=1)]


class TableSettings(Model):
    """Settings of a gold table.

    They are excluded from dumps, because a changed setting does not redefine a stored table.

    Attributes:
        properties: Delta table properties; those that Tidelake depends on are refused.
        tags: Tags in Unity Catalog; no effect under a root.
        masks: Column to the function through which the views for analysts show it.
        row_filter: Which rows the views for analysts show.
    """

    properties: Annotated[dict[_PropertyKey, Setting], free_of(_property_problems)] = Field(
        default_factory=dict, exclude=True
    )
    tags: Annotated[dict[_TagName, Setting], free_of(_tag_problems)] = Field(
        default_factory=dict, exclude=True
    )
    masks: dict[ColumnName, FunctionName] = Field(default_factory=dict, exclude=True)
    row_filter: RowFilter | None = Field(default=None, exclude=True)

    @property
    def hides(self) -> bool:
        """Whether analysts may not see every value."""
        return bool(self.masks or self.row_filter)

    @property
    def retentions(self) -> dict[str, timedelta]:
        """The properties that are a length of time, of :data:`LEAST`."""
        lower = {key.lower(): value for key, value in self.properties.items()}
        found = {key: interval_of(lower.get(key.lower(), "")) for key in LEAST}
        return {key: length for key, length in found.items() if length is not None}


# Other values would lose records, change the order of a key's records, or spread them over
# partitions. Spark takes names of options in any case.
_FIXED = (
    "kafka.acks",
    "kafka.enable.idempotence",
    "kafka.key.serializer",
    "kafka.value.serializer",
    "kafka.max.in.flight.requests.per.connection",
    "kafka.partitioner.class",
    "kafka.partitioner.ignore.keys",
    "kafka.transactional.id",
)
_TABLES = ("gold", "joins", "detections", "queries")


def _producer_problems(options: dict[str, str]) -> Iterator[str]:
    yield from option_problems(options)
    yield from (f"option {name} is set by Tidelake" for name in options if name.lower() in _FIXED)


class Publish(Model):
    """The topic to which each change of a gold table goes.

    Attributes:
        topic: The topic, which no other table is published to.
        bootstrap: ``host:port``, several separated by commas, or a reference such as ``env:NAME``,
            whose value is in no message.
        options: Settings of the client, as those of a Kafka source.
    """

    topic: TopicName
    bootstrap: Text
    options: Annotated[dict[str, Setting], free_of(_producer_problems)] = Field(
        default_factory=dict
    )

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


def refuse_unset(published: Mapping[str, Publish], environment: Environment) -> None:
    """Resolve the references of tables' topics, before Spark starts.

    Raises:
        UsageError: A reference has no value, or the environment no service credentials.
    """
    for to in published.values():
        refuse_service_credential("publish.options", to.options, environment)
        resolved({"publish.bootstrap": to.bootstrap, **to.options})


def publish_findings(raw: Mapping[str, Any], *, in_prod: bool) -> Iterator[Finding]:
    """Find topics that two tables share, or that the pipeline reads; require encryption in prod."""
    taken = dict(_other_topics(raw))
    # Valid or not.
    written = [
        ((*path, "publish"), table["publish"])
        for key in _TABLES
        for path, table in mappings_in(raw.get(key), (key,))
        if isinstance(table.get("publish"), dict)
    ]
    for path, publish in written:
        topic = publish.get("bootstrap"), publish.get("topic")
        # Values of other types are reported by the model.
        if all(isinstance(part, str) for part in topic):
            if topic in taken:
                message = f"{topic[1]} is already the topic of {taken[topic]}"
                yield Finding((*path, "topic"), message)
            taken.setdefault(topic, dotted(path[:2]))
        if in_prod:
            yield from encryption_finding((*path, "options"), publish.get("options"))


def _other_topics(raw: Mapping[str, Any]) -> Iterator[tuple[tuple[Any, Any], str]]:
    """List the topics of the source and of fast lanes, by broker and name."""
    source = raw.get("source")
    if not isinstance(source, dict) or source.get("kind") != "kafka":
        return
    bootstrap, topics = source.get("bootstrap"), source.get("topic")
    if not isinstance(bootstrap, str):
        return
    topics = topics.split(",") if isinstance(topics, str) else topics
    for topic in topics if isinstance(topics, list) else ():
        if isinstance(topic, str):
            yield (bootstrap, topic.strip()), "source"
    for path, detection in mappings_in(raw.get("detections"), ("detections",)):
        fast = detection.get("fast")
        if isinstance(fast, dict) and isinstance(fast.get("topic"), str):
            yield (bootstrap, fast["topic"]), dotted((*path, "fast"))
