"""Sources of change events: five lines, what they stand for, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.pipelines import shop
from tidelake.config import Environment, Pipeline, load_pipeline
from tidelake.config.pipeline import silver_types
from tidelake.delta.commit_metadata import changed_parts, silver_note
from tidelake.delta.log import Commit
from tidelake.errors import ConfigError

FILES = {"kind": "files", "path": "${root}/landing", "envelope": "debezium"}
TOPIC = {"kind": "kafka", "bootstrap": "b:1", "topic": "shop.public.customers"}
SCHEMA = "id BIGINT, email STRING, event_date DATE"


def loaded(folder: Path, given: str | None = None, **changes: Any) -> Pipeline:
    """Load a pipeline of change events; its event has a schema alone."""
    content: dict[str, Any] = {
        "name": "customers",
        "source": FILES,
        "event": {"schema": SCHEMA},
        "gold": [
            {"name": "per_day", "window": {"kind": "tumbling", "size": "1 day"}}
            | {"measures": {"deletes": {"count_if": "op = 'd'"}}}
        ],
    }
    file = folder / "customers.yml"
    file.write_text(yaml.safe_dump(content | changes))
    return load_pipeline(str(file), Environment(name="local", root=folder), source=given)


def dimension(folder: Path, **event: Any) -> Pipeline:
    return loaded(
        folder,
        kind="dimension",
        event={"schema": "id BIGINT, email STRING", **event},
        dimension={"key": ["id"]},
        gold=[],
    )


def test_what_an_events_pipeline_leaves_out_is_completed(tmp_path: Path) -> None:
    pipeline = loaded(tmp_path)
    event = pipeline.event
    assert (event.id, event.time) == ("record_id", "source_time")
    # A column of silver's own name stays out, as without an envelope.
    selected = ["id", "email", "op", "source_time", "source_position"]
    assert list(event.select or {}) == selected
    types = silver_types(pipeline)
    assert [types[name] for name in selected[2:]] == ["STRING", "TIMESTAMP", "STRING"]


def test_what_a_dimension_leaves_out_is_completed(tmp_path: Path) -> None:
    event = dimension(tmp_path).event
    assert (event.id, event.time, event.select) == ("record_id", "source_time", None)
    assert (event.sequence, event.delete_when) == ("source_position", "op = 'd'")
    own = dimension(tmp_path, sequence="unix_micros(source_time)", delete_when="false").event
    assert (own.sequence, own.delete_when) == ("unix_micros(source_time)", "false")


def test_nothing_is_completed_without_an_envelope(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, source={"kind": "files", "path": "x"})
    paths = [violation.path for violation in caught.value.violations]
    assert {"event.id", "event.time"} <= set(paths)


@pytest.mark.parametrize(
    ("changes", "path", "message"),
    [
        ({"source": FILES | {"envelope": "maxwell"}}, "source.envelope", "debezium"),
        (
            {"source": {"kind": "delta", "path": "x", "envelope": "debezium"}},
            "source.envelope",
            "unknown key",
        ),
        (
            {"event": {"schema": "id BIGINT, OP STRING", "select": {"id": "id"}}},
            "event.schema",
            "field 'OP' has the name of a column of the envelope",
        ),
        ({"event": {"schema": "id BIGINT", "time": "source_tim"}}, "event.time", "source_time"),
        ({"dedup": {"prefilter": "operator"}}, "dedup.prefilter", "source.envelope"),
        ({"event": {"schema": "id NONSENSE"}}, "event.schema", "NONSENSE"),
        ({"event": {"schema": "`a b` BIGINT"}}, "event.schema", "rename it with"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(
    tmp_path: Path, changes: dict[str, Any], path: str, message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, **changes)
    found = [one for one in caught.value.violations if one.path == path]
    assert found, caught.value.violations
    assert message in found[0].message


def test_another_format_than_json_and_avro_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, source=FILES | {"format": "csv"})
    paths = {one.path: one.message for one in caught.value.violations}
    assert paths["source.envelope"] == "is allowed with format: json or avro only"


def test_a_source_given_for_a_run_keeps_the_envelope(tmp_path: Path) -> None:
    assert loaded(tmp_path, given="elsewhere").envelope == "debezium"
    assert loaded(tmp_path, given="kafka://h:1/changes").envelope == "debezium"
    file = tmp_path / "customers.yml"
    content = yaml.safe_load(file.read_text()) | {"source": TOPIC | {"envelope": "debezium"}}
    file.write_text(yaml.safe_dump(content))
    there = Environment(name="local", root=tmp_path)
    assert load_pipeline(str(file), there, source="folder").envelope == "debezium"


def test_a_changed_envelope_redefines_silver_and_other_pipelines_keep_their_definition(
    tmp_path: Path,
) -> None:
    def committed(pipeline: Pipeline) -> Commit:
        return Commit(0, "", 0, silver_note(pipeline))

    plain = shop(tmp_path)
    wrapped = shop(tmp_path, source=FILES)
    assert "source.envelope" not in silver_note(plain)["definition"]
    assert changed_parts(committed(plain), wrapped).identity == ("source.envelope",)
    assert changed_parts(committed(wrapped), plain).identity == ("source.envelope",)
    assert changed_parts(committed(wrapped), wrapped).identity == ()
    assert changed_parts(committed(plain), plain).identity == ()
