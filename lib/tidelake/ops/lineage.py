"""Report a run's hops to an OpenLineage backend, in a background thread.

The client is an optional dependency, imported on use.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from importlib import import_module
from queue import SimpleQueue
from typing import Any, Literal, NamedTuple

from tidelake import __version__
from tidelake.config import DeltaSource, FilesSource, KafkaSource, Lineage, Pipeline
from tidelake.config.secrets import resolved
from tidelake.delta.access import load
from tidelake.delta.log import commits, newest_version
from tidelake.delta.tables import Hop, Lake, Table
from tidelake.errors import MachineError, UsageError
from tidelake.folders import absolute, namespace_of
from tidelake.instants import now
from tidelake.runtime.failures import FOREIGN
from tidelake.runtime.hop import Run
from tidelake.visible import first_line

State = Literal["START", "COMPLETE", "FAIL", "ABORT"]
_TIMEOUT_SECONDS, _CLOSE_SECONDS = 5.0, 20.0
# A single retry, in the background thread.
_RETRY = {"total": 1, "connect": 1, "read": 1, "backoff_factor": 0.5}


@dataclass(frozen=True)
class LineagePlace:
    """A dataset by its OpenLineage namespace and name, and its table if it is one of the lake.

    The namespace is the root of the tables, a file system or a broker; the name is the logical
    table name, the path or the topic.
    """

    namespace: str
    name: str
    table: Table | None = None


class LineageFlow(NamedTuple):
    """The inputs and outputs of a hop."""

    inputs: tuple[LineagePlace, ...] = ()
    outputs: tuple[LineagePlace, ...] = ()


class Written(NamedTuple):
    """Rows that a hop wrote to a table, and the table's version afterwards."""

    rows: int
    version: int


@dataclass(frozen=True)
class Job:
    """The run of a hop such as ``clickstream.silver``, or its parent, the run of all hops.

    ``streams`` is whether it runs until it is stopped; run ids sort by time.
    """

    name: str
    streams: bool
    parent: Job | None = None
    run: str = field(default_factory=lambda: str(_loaded("uuid").generate_new_uuid()))


def flow_of(lake: Lake, pipeline: Pipeline, hop: Hop) -> LineageFlow:
    """List the inputs and outputs of a hop, including dimensions and side tables."""
    name = pipeline.name
    if hop == "bronze":
        return LineageFlow(_sources(pipeline), (_dataset(lake, lake.bronze(name)),))
    if hop == "silver":
        # With `as_of` the dimension's history table is read.
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
    return LineageFlow(
        tuple(_dataset(lake, table) for table in dict.fromkeys(reads)),
        tuple(_dataset(lake, table) for table in writes),
    )


def _dataset(lake: Lake, table: Table) -> LineagePlace:
    namespace = lake.root.as_uri() if lake.catalog is None else f"catalog:{lake.catalog.name}"
    return LineagePlace(namespace, table.name, table)


def _sources(pipeline: Pipeline) -> tuple[LineagePlace, ...]:
    source = pipeline.source
    if isinstance(source, KafkaSource):
        topic = source.topic or source.pattern or ""
        # The first broker names the cluster.
        return (LineagePlace(f"kafka://{source.bootstrap.split(',')[0]}", topic),)
    if isinstance(source, FilesSource | DeltaSource):
        return (LineagePlace(*namespace_of(absolute(source.path))),)
    return ()


def client_of(lineage: Lineage) -> Any:
    """Create the OpenLineage client for an environment's lineage file or server.

    Raises:
        MachineError: The client is not installed.
        UsageError: A variable is not set, or is not an address.
    """
    client = _loaded("client")
    if lineage.file is not None:
        files = _loaded("transport.file")
        lineage.file.parent.mkdir(parents=True, exist_ok=True)
        config = files.FileConfig(log_file_path=str(lineage.file), append=True)
        return client.OpenLineageClient(transport=files.FileTransport(config))
    http = _loaded("transport.http")
    references = {"lineage.url": lineage.url or ""}
    if lineage.api_key:
        references["lineage.api_key"] = lineage.api_key
    found = resolved(references)
    key = found.get("lineage.api_key")
    auth = http.ApiKeyTokenProvider({"api_key": key}) if key else http.TokenProvider({})
    config = http.HttpConfig(
        url=found["lineage.url"], timeout=_TIMEOUT_SECONDS, auth=auth, retry=_RETRY
    )
    try:
        return client.OpenLineageClient(transport=http.HttpTransport(config))
    except ValueError as error:
        raise UsageError(
            f"lineage.url refers to {lineage.url}, which is not an http:// or https:// address."
        ) from error


def event_of(
    lineage: Lineage,
    job: Job,
    state: State,
    at: datetime,
    flow: LineageFlow | None = None,
    *,
    schemas: Mapping[str, Sequence[tuple[str, str]]] | None = None,
    written: Mapping[str, Written] | None = None,
    error: str = "",
) -> Any:
    """Build a run event with the client's models.

    ``schemas`` has the name and type of each column and ``written`` the rows written, both by
    logical table name; ``error`` is the message of the error that stopped the job.
    """
    model, facets = _loaded("event_v2"), _loaded("facet_v2")
    flow, schemas, written = flow or LineageFlow(), schemas or {}, written or {}
    run_facets: dict[str, Any] = {
        "processing_engine": facets.processing_engine_run.ProcessingEngineRunFacet(
            version=__version__, name="tidelake"
        )
    }
    if job.parent is not None:
        parent = facets.parent_run
        run_facets["parent"] = parent.ParentRunFacet(
            run=parent.Run(runId=job.parent.run),
            job=parent.Job(namespace=lineage.namespace, name=job.parent.name),
        )
    if error:
        run_facets["errorMessage"] = facets.error_message_run.ErrorMessageRunFacet(
            message=error, programmingLanguage="PYTHON"
        )
    kind = facets.job_type_job.JobTypeJobFacet(
        processingType="STREAMING" if job.streams else "BATCH",
        integration="TIDELAKE",
        jobType="HOP" if job.parent else "PIPELINE",
    )

    def described(place: LineagePlace) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if place.name in schemas:
            schema = facets.schema_dataset
            column = schema.SchemaDatasetFacetFields
            fields = [column(name=name, type=kind) for name, kind in schemas[place.name]]
            found["schema"] = schema.SchemaDatasetFacet(fields=fields)
        if place.name in written:
            version = facets.dataset_version_dataset.DatasetVersionDatasetFacet
            found["version"] = version(datasetVersion=str(written[place.name].version))
        return found

    def counted(place: LineagePlace) -> dict[str, Any]:
        if place.name not in written:
            return {}
        statistics = facets.output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet
        return {"outputStatistics": statistics(rowCount=written[place.name].rows)}

    return model.RunEvent(
        eventType=model.RunState[state],
        eventTime=at.isoformat(),
        run=model.Run(runId=job.run, facets=run_facets),
        job=model.Job(namespace=lineage.namespace, name=job.name, facets={"jobType": kind}),
        producer=f"urn:tidelake:{__version__}",
        inputs=[
            model.InputDataset(one.namespace, one.name, facets=described(one))
            for one in flow.inputs
        ],
        outputs=[
            model.OutputDataset(
                one.namespace, one.name, facets=described(one), outputFacets=counted(one)
            )
            for one in flow.outputs
        ],
    )


def _loaded(module: str) -> Any:
    try:
        return import_module(f"openlineage.client.{module}")
    except ImportError as error:
        raise MachineError(
            "lineage needs openlineage-python. Install it with: pip install 'tidelake[lineage]'"
        ) from error


class LineageReporter:
    """Reports when a run and its hops start, end or fail; stops reporting after an error."""

    def __init__(self, run: Run, lineage: Lineage, client: Any, *, streams: bool) -> None:
        """Report the start of the run; ``client`` is from :func:`client_of`."""
        self._run = run
        self._lineage = lineage
        self._client = client
        self._job = Job(run.pipeline.name, streams)
        self._jobs: dict[Hop, Job] = {}
        self._before: dict[Hop, Mapping[str, int]] = {}
        # Hops that have started and not ended; accessed only by the run's thread.
        self._open: list[Hop] = []
        self._error = ""
        self._queue: SimpleQueue[Callable[[], Any] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="tidelake-lineage", daemon=True)
        self._thread.start()
        self._queue.put(partial(event_of, lineage, self._job, "START", now()))

    def starts(self, hop: Hop) -> None:
        """Report the start of a hop; a restart with another batch limit is not reported."""
        if hop not in self._open:
            self._open.append(hop)
            self._change("START", hop)

    def ends(self, hop: Hop) -> None:
        """Report the end of a hop, unless it never started for lack of input."""
        if hop in self._open:
            self._open.remove(hop)
            self._change("COMPLETE", hop)

    def failed(self, hop: Hop, error: Exception) -> None:
        """Report that a hop failed, even if it failed before its start."""
        self.starts(hop)
        self._open.remove(hop)
        self._error = first_line(error)
        self._change("FAIL", hop, self._error)

    def close(self) -> None:
        """Report the end of open hops and of the run, and wait briefly for the backend."""
        for hop in self._open:
            self._change("ABORT" if self._error else "COMPLETE", hop)
        state: State = "FAIL" if self._error else "COMPLETE"
        event = partial(event_of, self._lineage, self._job, state, now(), error=self._error)
        self._queue.put(event)
        self._queue.put(None)
        self._thread.join(_CLOSE_SECONDS)

    def _change(self, state: State, hop: Hop, error: str = "") -> None:
        # Read versions now: tables may change before the thread handles the event.
        flow, at = flow_of(self._run.lake, self._run.pipeline, hop), now()
        versions = {table.name: newest_version(table) for table in _tables(flow.outputs)}
        if state == "START":
            self._jobs[hop] = Job(f"{self._job.name}.{hop}", self._job.streams, self._job)
            self._before[hop] = versions
        job, before = self._jobs[hop], self._before[hop]

        def event() -> Any:
            written = {} if state == "START" else _written(flow, before, versions)
            columns = self._schemas(flow)
            return event_of(
                self._lineage, job, state, at, flow, schemas=columns, written=written, error=error
            )

        self._queue.put(event)

    def _work(self) -> None:
        try:
            while (event := self._queue.get()) is not None:
                self._client.emit(event())
        except Exception as error:
            # No error here may stop the run. Its message may contain the backend's address, which
            # is a secret, so only the class is reported.
            self._run.progress.say(
                f"lineage: cannot send events to the backend ({type(error).__name__}). "
                "The run continues without lineage."
            )
        self._client.close(0)

    def _schemas(self, flow: LineageFlow) -> dict[str, list[tuple[str, str]]]:
        """Read the columns of existing tables; empty if the session has ended."""
        try:
            return {
                table.name: [
                    (column.name, column.dataType.simpleString())
                    for column in load(self._run.spark, table).schema.fields
                ]
                for table in _tables((*flow.inputs, *flow.outputs))
                if table.exists
            }
        except FOREIGN:
            return {}


def _tables(places: Sequence[LineagePlace]) -> list[Table]:
    return [one.table for one in places if one.table is not None]


def _written(
    flow: LineageFlow, before: Mapping[str, int], versions: Mapping[str, int]
) -> dict[str, Written]:
    """Count the rows written to each table between versions, not those that merges copied."""
    return {
        table.name: Written(
            sum(
                commit.added_rows - commit.copied
                for commit in commits(table, up_to=versions[table.name])
                if commit.version > before[table.name] and commit.batch >= 0
            ),
            versions[table.name],
        )
        for table in _tables(flow.outputs)
        if versions[table.name] >= 0
    }
