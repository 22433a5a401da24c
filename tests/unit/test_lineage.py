"""OpenLineage: what a hop reads and writes, as the client's own models have it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from openlineage.client.serde import Serde
from py4j.protocol import Py4JError

from tests.listening import Listening, listening
from tests.pipelines import shop
from tests.unit.handmade import write_commit
from tidelake.config import Environment, Lineage, load_pipeline
from tidelake.delta.tables import Lake
from tidelake.errors import RefusedError, UsageError
from tidelake.instants import now
from tidelake.ops.lineage import Job, LineageReporter, client_of, event_of, flow_of
from tidelake.runtime.hop import Run
from tidelake.runtime.progress import Progress


@pytest.fixture
def server() -> Iterator[Listening]:
    with listening() as found:
        yield found


@pytest.fixture
def lineage(server: Listening, monkeypatch: pytest.MonkeyPatch) -> Lineage:
    monkeypatch.setenv("LINEAGE", server.address)
    monkeypatch.setenv("KEY", "k1")
    return Lineage(url="env:LINEAGE", api_key="env:KEY", namespace="shops")


def gone() -> Any:
    """Stand for a session whose JVM has ended: schemas are left out then."""

    def read() -> None:
        raise Py4JError("gone")

    class Session:
        read = property(lambda self: read())

    return Session()


def a_run(root: Path, said: list[str]) -> Run:
    environment = Environment(name="local", root=root)
    return Run(gone(), shop(root), Lake(root), environment, Progress(said.append))


def places(found: Any) -> list[tuple[str, str]]:
    return [(one.namespace, one.name) for one in found]


def test_a_hop_reads_and_writes_what_the_picture_shows(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    pipeline = load_pipeline("clickstream", Environment(name="local", root=tmp_path))
    root = tmp_path.as_uri()
    bronze, silver, gold = (flow_of(lake, pipeline, hop) for hop in ("bronze", "silver", "gold"))
    assert places(bronze.inputs) == [("file", str(tmp_path / "landing" / "clickstream"))]
    assert places(bronze.outputs) == [(root, "bronze.clickstream")]
    assert places(silver.inputs) == [
        (root, "bronze.clickstream"),
        (root, "bronze.clickstream__requeue"),
        (root, "dim.products__history"),
    ]
    assert places(silver.outputs) == [
        (root, "silver.clickstream"),
        (root, "silver.clickstream__quarantine"),
        (root, "silver.clickstream__late"),
    ]
    assert places(gold.inputs) == [(root, "silver.clickstream")]
    assert (root, "gold.click_to_purchase") in places(gold.outputs)


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ({"bootstrap": "one:9092,two:9092", "topic": "clicks"}, [("one:9092", "clicks")]),
        ({"bootstrap": "one:9092", "topic": ["a", "b"]}, [("one:9092", "a"), ("one:9092", "b")]),
        ({"bootstrap": "one:9092", "topic": "a, b"}, [("one:9092", "a"), ("one:9092", "b")]),
        ({"bootstrap": "one:9092", "pattern": "a{1,2}"}, [("one:9092", "a{1,2}")]),
        # No message and no event holds the value of a reference.
        ({"bootstrap": "env:BROKERS", "topic": "clicks"}, [("env:BROKERS", "clicks")]),
    ],
)
def test_each_topic_is_named_by_its_broker(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    source: dict[str, Any],
    found: list[tuple[str, str]],
) -> None:
    monkeypatch.setenv("BROKERS", "secret:9092")
    pipeline = shop(tmp_path, source={"kind": "kafka", **source})
    read = flow_of(Lake(tmp_path), pipeline, "bronze").inputs
    assert places(read) == [(f"kafka://{broker}", topic) for broker, topic in found]


def test_a_folder_on_a_store_is_named_by_its_bucket(tmp_path: Path) -> None:
    pipeline = shop(tmp_path, source={"kind": "files", "path": "s3://drop/shop/clicks"})
    found = flow_of(Lake(tmp_path), pipeline, "bronze")
    assert places(found.inputs) == [("s3://drop", "shop/clicks")]


def test_a_table_of_a_catalog_is_named_as_those_that_a_run_writes_there(tmp_path: Path) -> None:
    pipeline = shop(tmp_path, source={"kind": "delta", "table": "main.raw.clicks"})
    found = flow_of(Lake(tmp_path), pipeline, "bronze")
    assert places(found.inputs) == [("catalog:main", "raw.clicks")]


def test_an_event_has_the_facets_that_backends_read(tmp_path: Path, lineage: Lineage) -> None:
    flow = flow_of(Lake(tmp_path), shop(tmp_path), "bronze")
    parent = Job("shop", streams=False, run="01890000-0000-7000-8000-000000000000")
    job = Job("shop.bronze", False, parent, run="01890000-0000-7000-8000-000000000001")
    event = event_of(
        lineage,
        job,
        "FAIL",
        now(),
        flow,
        schemas={"bronze.shop": [("record_id", "string")]},
        written={"bronze.shop": (5, 3)},
        error="LostError: gone",
    )
    found = json.loads(Serde.to_json(event))
    assert found["eventType"] == "FAIL"
    assert found["job"]["namespace"] == "shops" and found["job"]["name"] == "shop.bronze"
    facets = found["run"]["facets"]
    assert facets["parent"]["run"]["runId"] == parent.run
    assert facets["parent"]["job"]["namespace"] == "shops"
    assert facets["parent"]["job"]["name"] == "shop"
    assert facets["errorMessage"]["message"] == "LostError: gone"
    output = found["outputs"][0]
    assert output["outputFacets"]["outputStatistics"]["rowCount"] == 5
    assert output["facets"]["version"]["datasetVersion"] == "3"
    columns = output["facets"]["schema"]["fields"]
    assert [(one["name"], one["type"]) for one in columns] == [("record_id", "string")]


def test_a_run_and_its_hops_start_and_end(
    tmp_path: Path, lineage: Lineage, server: Listening
) -> None:
    said: list[str] = []
    run = a_run(tmp_path, said)
    bronze = run.lake.bronze("shop")
    write_commit(bronze, 0, note={"generation": "g1", "batch": 0}, rows=3)
    reporter = LineageReporter(run, lineage, client_of(lineage), streams=False)
    reporter.starts("bronze")
    write_commit(bronze, 1, note={"generation": "g1", "batch": 1}, rows=5)
    reporter.starts("bronze")
    reporter.ends("bronze")
    # One that had nothing to do.
    reporter.ends("silver")
    reporter.close()
    told = [(one["eventType"], one["job"]["name"]) for one in server.heard]
    assert told == [
        ("START", "shop"),
        ("START", "shop.bronze"),
        ("COMPLETE", "shop.bronze"),
        ("COMPLETE", "shop"),
    ]
    start, end = server.heard[1:3]
    assert start["run"]["runId"] == end["run"]["runId"]
    assert end["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"] == 5
    assert end["outputs"][0]["facets"]["version"]["datasetVersion"] == "1"
    assert start["run"]["facets"]["parent"]["run"]["runId"] == server.heard[0]["run"]["runId"]
    assert server.headers[0]["authorization"] == "Bearer k1"
    assert said == []


def test_a_hop_that_fails_ends_the_others(
    tmp_path: Path, lineage: Lineage, server: Listening
) -> None:
    reporter = LineageReporter(a_run(tmp_path, []), lineage, client_of(lineage), streams=True)
    reporter.starts("bronze")
    reporter.failed("silver", UsageError("no table"))
    reporter.close()
    told = [(one["eventType"], one["job"]["name"]) for one in server.heard]
    assert told[2:] == [
        ("START", "shop.silver"),
        ("FAIL", "shop.silver"),
        ("ABORT", "shop.bronze"),
        ("FAIL", "shop"),
    ]
    assert server.heard[0]["job"]["facets"]["jobType"]["processingType"] == "STREAMING"


@pytest.mark.parametrize(
    ("raised", "streams", "is_stopped", "ends"),
    [
        # Of no hop: a definition, a lock, a topic.
        (RefusedError("a topic is taken"), False, False, ("ABORT", "FAIL", "a topic is taken")),
        (KeyboardInterrupt(), False, True, ("ABORT", "ABORT", None)),
        # What Spark raises because the run is being stopped.
        (Py4JError("gone"), False, True, ("ABORT", "ABORT", None)),
        # A run that streams has no other end.
        (KeyboardInterrupt(), True, True, ("COMPLETE", "COMPLETE", None)),
        (RefusedError("a topic is taken"), True, False, ("ABORT", "FAIL", "a topic is taken")),
    ],
)
def test_a_run_that_an_error_ends_is_not_complete(
    tmp_path: Path,
    lineage: Lineage,
    server: Listening,
    raised: BaseException,
    streams: bool,
    is_stopped: bool,
    ends: tuple[str, str, str | None],
) -> None:
    run = a_run(tmp_path, [])
    # As `observing` does.
    with pytest.raises(type(raised)), ExitStack() as closing:
        reporter = LineageReporter(run, lineage, client_of(lineage), streams=streams)
        closing.callback(reporter.close)
        reporter.starts("bronze")
        if is_stopped:
            run.stop.set()
        raise raised
    (hop, of_hop), (whole, of_run) = [
        (one["job"]["name"], one["eventType"]) for one in server.heard[2:]
    ]
    facets = server.heard[-1]["run"]["facets"]
    assert (hop, whole) == ("shop.bronze", "shop")
    told = facets.get("errorMessage", {}).get("message")
    assert (of_hop, of_run) == ends[:2]
    assert told is ends[2] or ends[2] in told


def test_a_backend_that_is_away_is_told_once_and_without_its_address(
    tmp_path: Path, lineage: Lineage, server: Listening
) -> None:
    server.answers = [500]
    said: list[str] = []
    reporter = LineageReporter(a_run(tmp_path, said), lineage, client_of(lineage), streams=False)
    reporter.starts("bronze")
    reporter.close()
    assert len(said) == 1
    assert (
        re_told(said[0])
        == "lineage: cannot send events to the backend. The run continues without lineage."
    )
    assert "s3cret" not in said[0]


def re_told(line: str) -> str:
    """Leave out the kind of the error, which is the client's."""
    return line[: line.index(" (")] + line[line.index(")") + 1 :]


def test_events_go_into_a_file_a_line_each(tmp_path: Path) -> None:
    lineage = Lineage(file=tmp_path / "events" / "lineage.jsonl")
    reporter = LineageReporter(a_run(tmp_path, []), lineage, client_of(lineage), streams=False)
    reporter.close()
    lines = (tmp_path / "events" / "lineage.jsonl").read_text().splitlines()
    assert [json.loads(line)["eventType"] for line in lines] == ["START", "COMPLETE"]


def test_an_address_that_is_none_is_told_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LINEAGE", "s3cret")
    with pytest.raises(UsageError, match="env:LINEAGE, which is not an http") as caught:
        client_of(Lineage(url="env:LINEAGE"))
    assert "s3cret" not in str(caught.value)
