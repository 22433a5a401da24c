"""Name what each hop reads and writes, the way OpenLineage names datasets."""

from __future__ import annotations

from dataclasses import dataclass

from tidelake.config import DeltaSource, FilesSource, KafkaSource, Pipeline
from tidelake.delta.tables import Hop, Lake, Table
from tidelake.folders import absolute, namespace_of


@dataclass(frozen=True)
class Place:
    """A dataset: where it is, and what it is called there.

    Attributes:
        namespace: The root of the tables, the folder of files, the broker.
        name: The logical name, the path, the topic.
        table: The table, where it is one of ours.
    """

    namespace: str
    name: str
    table: Table | None = None


@dataclass(frozen=True)
class Flow:
    """What a hop reads and what it writes."""

    inputs: tuple[Place, ...]
    outputs: tuple[Place, ...]


def flow_of(lake: Lake, pipeline: Pipeline, hop: Hop) -> Flow:
    """Tell what a hop of a pipeline reads and writes, dimensions and side tables included."""
    name = pipeline.name
    if hop == "bronze":
        return Flow(_sources(pipeline), (_ours(lake, lake.bronze(name)),))
    if hop == "silver":
        # Looked up as of a time, a dimension is read in its history.
        dimensions = [
            lake.table(f"dim.{one.dimension}__history" if one.as_of else f"dim.{one.dimension}")
            for one in pipeline.enrich
        ]
        reads = [lake.bronze(name), lake.requeue(name), *dimensions]
        writes = [lake.silver(name), lake.quarantine(name), lake.late(name)]
    else:
        others = {join.right.pipeline for join in pipeline.joins} - {name}
        reads = [lake.silver(name), *(lake.silver(other) for other in sorted(others))]
        writes = [lake.table(one) for one in pipeline.gold_names]
    return Flow(
        tuple(_ours(lake, table) for table in dict.fromkeys(reads)),
        tuple(_ours(lake, table) for table in writes),
    )


def _ours(lake: Lake, table: Table) -> Place:
    namespace = lake.root.as_uri() if lake.catalog is None else f"catalog:{lake.catalog.name}"
    return Place(namespace, table.name, table)


def _sources(pipeline: Pipeline) -> tuple[Place, ...]:
    source = pipeline.source
    if isinstance(source, KafkaSource):
        topic = source.topic or source.pattern or ""
        # Of several brokers the first stands for the cluster.
        return (Place(f"kafka://{source.bootstrap.split(',')[0]}", topic),)
    if isinstance(source, FilesSource | DeltaSource):
        return (Place(*namespace_of(absolute(source.path))),)
    return ()
