"""Ask a broker where its topics end without Spark, whose JVM takes seconds to start."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from tidelake.config import KafkaSource
from tidelake.config.secrets import resolved
from tidelake.errors import SourceError
from tidelake.kafka.lag import Offsets
from tidelake.kafka.produce import library
from tidelake.kafka.reach import refuse_unreachable

_SECONDS = 10
_JAAS = "sasl.jaas.config"
_LOGIN = re.compile(r"\b(username|password)\s*=\s*\"([^\"]*)\"")


def ends_of(source: KafkaSource, reached: Offsets) -> Offsets:
    """Give the offset after the last record of each partition that bronze has reached.

    Raises:
        SourceError: No broker answers, or the client does not take the source's options.
        MachineError: The client is not installed.
        UsageError: An option refers to a variable that is not set.
    """
    refuse_unreachable(source.bootstrap)
    kafka, administration = library(), import_module("confluent_kafka.admin")
    settings = {"bootstrap.servers": source.bootstrap, "log_level": 0}
    latest = administration.OffsetSpec.latest()
    asked = {
        kafka.TopicPartition(name, int(partition)): latest
        for name, partitions in reached.items()
        for partition in partitions
    }
    ends: Offsets = {}
    try:
        admin: Any = administration.AdminClient(settings | client_options(resolved(source.options)))
        for place, told in admin.list_offsets(asked, request_timeout=_SECONDS).items():
            ends.setdefault(place.topic, {})[str(place.partition)] = told.result(_SECONDS).offset
    except kafka.KafkaException as error:
        raise SourceError(f"{source.bootstrap} does not tell: {error.args[0].str()}") from error
    return ends


def client_options(options: Mapping[str, str]) -> dict[str, str]:
    """Say to a client that is not Java's what the source's options say to Spark's.

    Most names are the same. A login stands in a text of Java's; stores of certificates in Java's
    formats have no counterpart, and the client refuses them by name.
    """
    told = {name.removeprefix("kafka."): value for name, value in options.items()}
    login = dict(_LOGIN.findall(told.pop(_JAAS, "")))
    return told | {f"sasl.{name}": value for name, value in login.items()}
