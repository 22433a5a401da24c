"""Build OpenLineage events with the client's own models; the client is loaded here alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from importlib import import_module
from typing import Any, Literal

from tidelake import __version__
from tidelake.config import Lineage
from tidelake.config.secrets import resolved
from tidelake.errors import MachineError, UsageError
from tidelake.ops.lineage.datasets import Flow, Place

State = Literal["START", "COMPLETE", "FAIL", "ABORT"]
_TIMEOUT_SECONDS = 5.0
# A backend that is away is asked twice, and the run does not wait for it.
_RETRY = {"total": 1, "connect": 1, "read": 1, "backoff_factor": 0.5}


@dataclass(frozen=True)
class Written:
    """What a hop wrote into a table.

    Attributes:
        rows: How many rows.
        version: The table's version afterwards.
    """

    rows: int
    version: int


@dataclass(frozen=True)
class Job:
    """A hop, or the run of all hops.

    Attributes:
        name: ``clickstream.silver``; ``clickstream`` for all of it.
        run: The run's id.
        streams: Whether it goes on until it is stopped.
        parent: The job of all hops; None for that itself.
    """

    name: str
    run: str
    streams: bool
    parent: Job | None = None


@dataclass(frozen=True)
class Told:
    """What is known when an event is made.

    Attributes:
        flow: What is read and written.
        schemas: Columns by a table's logical name: name and type.
        written: By a table's logical name.
        error: What stopped it; empty where nothing did.
    """

    flow: Flow = field(default_factory=lambda: Flow((), ()))
    schemas: Mapping[str, Sequence[tuple[str, str]]] = field(default_factory=dict)
    written: Mapping[str, Written] = field(default_factory=dict)
    error: str = ""


def new_run_id() -> str:
    """Make the id of a run; such ids are ordered by time."""
    return str(_loaded("uuid").generate_new_uuid())


def client_of(lineage: Lineage) -> Any:
    """Make the client for where events go.

    Raises:
        MachineError: The client is not installed.
        UsageError: A variable is not set, or holds no address.
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
            f"lineage.url stands for {lineage.url}, which holds no http:// or https:// address."
        ) from error


def event_of(lineage: Lineage, job: Job, state: State, at: datetime, told: Told) -> Any:
    """Build an event.

    Args:
        lineage: With the namespace of the jobs.
        job: Whose.
        state: What happened to it.
        at: When (UTC).
        told: What is known.
    """
    model, facets = _loaded("event_v2"), _loaded("facet_v2")
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
    if told.error:
        run_facets["errorMessage"] = facets.error_message_run.ErrorMessageRunFacet(
            message=told.error, programmingLanguage="PYTHON"
        )
    kind = facets.job_type_job.JobTypeJobFacet(
        processingType="STREAMING" if job.streams else "BATCH",
        integration="TIDELAKE",
        jobType="HOP" if job.parent else "PIPELINE",
    )
    return model.RunEvent(
        eventType=model.RunState[state],
        eventTime=at.isoformat(),
        run=model.Run(runId=job.run, facets=run_facets),
        job=model.Job(namespace=lineage.namespace, name=job.name, facets={"jobType": kind}),
        producer=f"urn:tidelake:{__version__}",
        inputs=[
            model.InputDataset(one.namespace, one.name, facets=_facets(one, told))
            for one in told.flow.inputs
        ],
        outputs=[
            model.OutputDataset(
                one.namespace,
                one.name,
                facets=_facets(one, told),
                outputFacets=_output_facets(one, told),
            )
            for one in told.flow.outputs
        ],
    )


def _facets(place: Place, told: Told) -> dict[str, Any]:
    facets = _loaded("facet_v2")
    columns = told.schemas.get(place.name)
    written = told.written.get(place.name)
    found: dict[str, Any] = {}
    if columns:
        schema = facets.schema_dataset
        found["schema"] = schema.SchemaDatasetFacet(
            fields=[schema.SchemaDatasetFacetFields(name=name, type=kind) for name, kind in columns]
        )
    if written is not None:
        version = facets.dataset_version_dataset.DatasetVersionDatasetFacet
        found["version"] = version(datasetVersion=str(written.version))
    return found


def _output_facets(place: Place, told: Told) -> dict[str, Any]:
    written = told.written.get(place.name)
    if written is None:
        return {}
    statistics = _loaded("facet_v2").output_statistics_output_dataset
    return {
        "outputStatistics": statistics.OutputStatisticsOutputDatasetFacet(rowCount=written.rows)
    }


def _loaded(module: str) -> Any:
    try:
        return import_module(f"openlineage.client.{module}")
    except ImportError as error:
        raise MachineError(
            "lineage needs openlineage-python. Install it with: pip install 'tidelake[lineage]'"
        ) from error
