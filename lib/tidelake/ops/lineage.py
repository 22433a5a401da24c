"""Report a run's hops to an OpenLineage backend, in a background thread.

The client is an optional dependency, imported on use; with :mod:`.observers` the file would exceed
500 lines.
"""

from __future__ import annotations

import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from queue import SimpleQueue
from typing import Any, Literal, NamedTuple

from tidelake import __version__
from tidelake.config import DeltaSource, FilesSource, KafkaSource, Lineage, Pipeline
from tidelake.config.environment import resolved
from tidelake.delta.access import load
from tidelake.delta.log import commits, newest_version
from tidelake.delta.tables import Hop, Lake, Table
from tidelake.errors import UsageError, imported
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
    name, source = pipeline.name, pipeline.source
    namespace = lake.root.as_uri() if lake.catalog is None else f"catalog:{lake.catalog.name}"
    sources: list[LineagePlace] = []
    reads: list[Table] = []
    if hop == "bronze":
        writes = [lake.bronze(name)]
        if isinstance(source, KafkaSource):
            # The first broker names the cluster; the value of a reference is shown nowhere.
            broker = source.bootstrap.split(",")[0]
            topics = source.topic.split(",") if source.topic else [source.pattern or ""]
            sources = [LineagePlace(f"kafka://{broker}", topic.strip()) for topic in topics]
        elif isinstance(source, DeltaSource) and source.table is not None:
            catalog, _, name_in_it = source.table.partition(".")
            sources = [LineagePlace(f"catalog:{catalog}", name_in_it)]
        elif isinstance(source, FilesSource | DeltaSource):
            sources = [LineagePlace(*namespace_of(absolute(path))) for path in source.paths]
    elif hop == "silver":
        dimensions = [lake.table(one.table) for one in pipeline.enrich]
        reads = [*lake.silver_inputs(name).values(), *dimensions]
        writes = [lake.silver(name), lake.quarantine(name), lake.late(name)]
    else:
        reads = list(lake.hop_inputs(pipeline, hop).values())
        writes = lake.closing_tables(pipeline, "gold")
    inputs = sources + [LineagePlace(namespace, one.name, one) for one in dict.fromkeys(reads)]
    outputs = [LineagePlace(namespace, one.name, one) for one in writes]
    return LineageFlow(tuple(inputs), tuple(outputs))


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
    references = {"lineage.url": lineage.url, "lineage.api_key": lineage.api_key}
    found = resolved({name: one for name, one in references.items() if one})
    key = found.get("lineage.api_key")
    auth = http.ApiKeyTokenProvider({"api_key": key}) if key else http.TokenProvider({})
    config = http.HttpConfig(
        url=found["lineage.url"], timeout=_TIMEOUT_SECONDS, auth=auth, retry=_RETRY
    )
    try:
        return client.OpenLineageClient(transport=http.HttpTransport(config))
    except ValueError as error:
        raise UsageError(
            f"lineage.url refers to {lineage.url}, which is not an http:// or https:// address. "
            "Correct it, or remove lineage from the environment's file."
        ) from error


def event_of(
    lineage: Lineage,
    job: Job,
    state: State,
    at: datetime,
    flow: LineageFlow | None = None,
    *,
    schemas: Mapping[str, Sequence[tuple[str, str]]] | None = None,
    written: Mapping[str, tuple[int, int]] | None = None,
    error: str = "",
) -> Any:
    """Build a run event with the client's models.

    By logical table name, ``schemas`` has the name and type of each column, and ``written`` the
    rows written and the table's version afterwards; ``error`` is the message of the error that
    stopped the job.
    """
    model, facets = _loaded("event_v2"), _loaded("facet_v2")
    flow = flow or LineageFlow()
    engine = facets.processing_engine_run.ProcessingEngineRunFacet(
        version=__version__, name="tidelake"
    )
    of_run: dict[str, Any] = {"processing_engine": engine}
    if job.parent is not None:
        parent = facets.parent_run
        of_run["parent"] = parent.ParentRunFacet(
            run=parent.Run(runId=job.parent.run),
            job=parent.Job(namespace=lineage.namespace, name=job.parent.name),
        )
    if error:
        of_run["errorMessage"] = facets.error_message_run.ErrorMessageRunFacet(
            message=error, programmingLanguage="PYTHON"
        )
    of_job = facets.job_type_job.JobTypeJobFacet(
        processingType="STREAMING" if job.streams else "BATCH",
        integration="TIDELAKE",
        jobType="HOP" if job.parent else "PIPELINE",
    )
    of_dataset: defaultdict[str, dict[str, Any]] = defaultdict(dict)
    of_output: defaultdict[str, dict[str, Any]] = defaultdict(dict)
    for name, columns in (schemas or {}).items():
        schema = facets.schema_dataset
        fields = [schema.SchemaDatasetFacetFields(name=one, type=kind) for one, kind in columns]
        of_dataset[name]["schema"] = schema.SchemaDatasetFacet(fields=fields)
    for name, (rows, version) in (written or {}).items():
        version_facet = facets.dataset_version_dataset.DatasetVersionDatasetFacet
        of_dataset[name]["version"] = version_facet(datasetVersion=str(version))
        counted = facets.output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet
        of_output[name]["outputStatistics"] = counted(rowCount=rows)
    return model.RunEvent(
        eventType=model.RunState[state],
        eventTime=at.isoformat(),
        run=model.Run(runId=job.run, facets=of_run),
        job=model.Job(namespace=lineage.namespace, name=job.name, facets={"jobType": of_job}),
        producer=f"urn:tidelake:{__version__}",
        inputs=[
            model.InputDataset(one.namespace, one.name, facets=of_dataset[one.name])
            for one in flow.inputs
        ],
        outputs=[
            model.OutputDataset(
                one.namespace,
                one.name,
                facets=of_dataset[one.name],
                outputFacets=of_output[one.name],
            )
            for one in flow.outputs
        ],
    )


def _loaded(module: str) -> Any:
    what = "openlineage-python, which lineage needs,"
    return imported(what, f"openlineage.client.{module}", extra="lineage")[0]


class LineageReporter:
    """Reports when a run and its hops start, end or fail; stops reporting after an error."""

    def __init__(self, run: Run, lineage: Lineage, client: Any, *, streams: bool) -> None:
        """Report the start of the run; ``client`` is from :func:`client_of`."""
        self._run = run
        self._lineage = lineage
        self._client = client
        self._job = Job(run.pipeline.name, streams)
        # Hops that have started and not ended, with the versions of their tables at the start;
        # accessed only by the run's thread.
        self._open: dict[Hop, tuple[Job, Mapping[str, int]]] = {}
        self._error = ""
        self._queue: SimpleQueue[Callable[[], Any] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="tidelake-lineage", daemon=True)
        self._thread.start()
        self._queue.put(partial(event_of, lineage, self._job, "START", now()))

    def starts(self, hop: Hop) -> None:
        """Report the start of a hop; a restart with another batch limit is not reported."""
        if hop not in self._open:
            self._change("START", hop)

    def ends(self, hop: Hop) -> None:
        """Report the end of a hop, unless it never started for lack of input."""
        if hop in self._open:
            self._change("COMPLETE", hop)

    def failed(self, hop: Hop, error: Exception) -> None:
        """Report that a hop failed, even if it failed before its start."""
        self.starts(hop)
        self._error = first_line(error)
        self._change("FAIL", hop, self._error)

    def close(self) -> None:
        """Report the end of open hops and of the run, and wait briefly for the backend.

        If an exception ends the run, this is called while it is raised. It may be of no hop: a
        definition that is refused, a lock that is held, a topic that does not take its records. A
        run that streams ends by being stopped.
        """
        raised = sys.exception()
        # Whatever breaks because the run is being stopped is no failure.
        if isinstance(raised, Exception) and not self._run.stop.is_set():
            self._error = self._error or first_line(raised)
        is_cut_off = raised is not None and not self._job.streams
        state: State = "FAIL" if self._error else "ABORT" if is_cut_off else "COMPLETE"
        for hop in list(self._open):
            self._change("COMPLETE" if state == "COMPLETE" else "ABORT", hop)
        event = partial(event_of, self._lineage, self._job, state, now(), error=self._error)
        self._queue.put(event)
        self._queue.put(None)
        self._thread.join(_CLOSE_SECONDS)

    def _change(self, state: State, hop: Hop, error: str = "") -> None:
        begun = self._open.pop(hop, None)
        # Read versions now: tables may change before the thread handles the event.
        flow, at = flow_of(self._run.lake, self._run.pipeline, hop), now()
        versions = {table.name: newest_version(table) for table in _tables(flow.outputs)}
        if begun is None:
            begun = Job(f"{self._job.name}.{hop}", self._job.streams, self._job), versions
            self._open[hop] = begun
        job, before = begun

        def event() -> Any:
            written = {} if state == "START" else _written(flow, before, versions)
            tables = _tables((*flow.inputs, *flow.outputs))
            columns: dict[str, list[tuple[str, str]]] = {}
            # The session may have ended.
            with suppress(*FOREIGN):
                columns = {
                    one.name: load(self._run.spark, one).dtypes for one in tables if one.exists
                }
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


def _tables(places: Sequence[LineagePlace]) -> list[Table]:
    return [one.table for one in places if one.table is not None]


def _written(
    flow: LineageFlow, before: Mapping[str, int], versions: Mapping[str, int]
) -> dict[str, tuple[int, int]]:
    """Count the rows written to each table between versions, not those that merges copied."""
    written = {}
    for table in _tables(flow.outputs):
        first, last = before[table.name], versions[table.name]
        rows = 0
        for one in commits(table, up_to=last):
            if one.version <= first:
                break
            rows += one.added_rows - one.copied if one.batch >= 0 else 0
        if last >= 0:
            written[table.name] = rows, last
    return written
