"""Read Kafka topics as a stream: what Spark is told, and where each batch begins and ends."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime

from pyspark.sql import DataFrame, SparkSession

from tidelake.config import KafkaSource
from tidelake.config.secrets import resolved
from tidelake.folders import Folder
from tidelake.kafka.lag import Offsets

_FIRST_INPUT = 2
# As long as Kafka's own clients wait for a broker; Spark's source would wait twice as long.
_POLL_MILLISECONDS = 60_000


def read_topics(spark: SparkSession, source: KafkaSource) -> DataFrame:
    """Open topics as a stream of Kafka's own columns.

    Raises:
        UsageError: An option refers to a variable that is not set.
    """
    return spark.readStream.format("kafka").options(**options_of(source)).load()


def options_of(source: KafkaSource) -> dict[str, str]:
    """Say to Spark what to read and from where.

    Aborted transactions are not read, and records that are gone stop the stream.
    """
    told = {"subscribe": source.topic} if source.topic else {"subscribePattern": source.pattern}
    if source.starting in ("earliest", "latest"):
        told["startingOffsets"] = source.starting
    else:
        instant = datetime.fromisoformat(source.starting)
        told["startingTimestamp"] = str(int(instant.timestamp() * 1000))
        # A partition without a record since then begins with the next one.
        told["startingOffsetsByTimestampStrategy"] = "latest"
    if source.max_offsets_per_trigger:
        told["maxOffsetsPerTrigger"] = str(source.max_offsets_per_trigger)
    if source.min_partitions:
        told["minPartitions"] = str(source.min_partitions)
    ours = {
        "kafka.isolation.level": "read_committed",
        "kafkaConsumer.pollTimeoutMs": str(_POLL_MILLISECONDS),
        "includeHeaders": "true",
        "failOnDataLoss": "true",
    }
    return {name: value for name, value in told.items() if value} | ours | client_options(source)


def client_options(source: KafkaSource) -> dict[str, str]:
    """Say to a client of Kafka's which broker to ask, and how to be let in.

    Raises:
        UsageError: An option refers to a variable that is not set.
    """
    return {"kafka.bootstrap.servers": source.bootstrap, **resolved(source.options)}


def planned_offsets(checkpoint: Folder, batch: int) -> Offsets:
    """Read up to where a planned micro-batch goes; empty before the first."""
    file = checkpoint / "offsets" / str(batch)
    if not file.exists():
        return {}
    return dict(json.loads(file.read_text(encoding="utf-8").splitlines()[_FIRST_INPUT]))


def begun_offsets(checkpoint: Folder, batch: int) -> Offsets | None:
    """Read where a planned micro-batch begins; None where the checkpoint does not tell.

    A partition that is left out begins with its first offset.
    """
    before = planned_offsets(checkpoint, batch - 1)
    if before:
        return before
    first = checkpoint / "sources" / "0" / "0"
    if not first.exists():
        return None
    # A byte of zero comes first, for the sake of Spark 2.1.
    return dict(json.loads(first.read_text(encoding="utf-8").splitlines()[-1]))


def differs(reached: Offsets, known: Mapping[str, Mapping[str, int]]) -> str:
    """Say where two lists of offsets differ; empty where they are the same."""
    for topic in sorted(reached.keys() | known.keys()):
        ours, theirs = reached.get(topic, {}), known.get(topic, {})
        for partition in sorted(ours.keys() | theirs.keys(), key=int):
            if ours.get(partition) != theirs.get(partition):
                return (
                    f"{topic} partition {partition} at offset {ours.get(partition)}, "
                    f"bronze at {theirs.get(partition)}"
                )
    return ""
