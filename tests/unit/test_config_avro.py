"""Sources of Avro: what goes together, and what is refused before Spark starts."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.pipelines import shop
from tidelake.config import Environment, load_pipeline
from tidelake.delta.commit_metadata import changed_parts, silver_note
from tidelake.delta.log import Commit
from tidelake.errors import ConfigError, NotBuiltError
from tidelake.runtime.fast_lane import Lane

AVRO = {"kind": "kafka", "bootstrap": "h:1", "topic": "clicks", "format": "avro"}
REGISTRY = {"url": "https://registry:8081", "subject": "clicks-value"}


@pytest.mark.parametrize(
    ("given", "path", "message"),
    [
        ({}, "source.format", "write either registry, where records name their schema, or schema:"),
        ({"registry": REGISTRY, "schema": "c.avsc"}, "source.format", "write either registry"),
        ({"schema": "x.avsc"}, "source.schema", "there is no file x.avsc"),
        ({"schema": 300 * "x"}, "source.schema", "there is no file x"),
        ({"schema": "shop.yml"}, "source.schema", "is not an Avro schema"),
        ({"registry": REGISTRY | {"url": "registry:8081"}}, "source.registry.url", "not a URL"),
        ({"registry": REGISTRY | {"url": "http://[x"}}, "source.registry.url", "not a URL"),
        ({"registry": {"url": "https://r"}}, "source.registry.subject", "required"),
        (
            {"registry": REGISTRY | {"compatibility": "backwards"}},
            "source.registry.compatibility",
            "did you mean backward?",
        ),
        (
            {"registry": REGISTRY | {"url": "https://me:hunter2@registry"}},
            "source.registry.url",
            "write credentials: env:NAME",
        ),
        (
            {"registry": REGISTRY | {"credentials": "me:hunter2"}},
            "source.registry.credentials",
            "must be a reference such as env:NAME",
        ),
        ({"format": "json", "schema": "c.avsc"}, "source.schema", "avro only"),
    ],
)
def test_what_avro_cannot_be_is_named_and_no_secret_is(
    tmp_path: Path, given: dict[str, Any], path: str, message: str
) -> None:
    (tmp_path / "c.avsc").write_text("{}")
    with pytest.raises(ConfigError) as caught:
        shop(tmp_path, source={**AVRO, **given})
    found = caught.value.violations
    assert (found[0].path, len(found)) == (path, 1)
    assert message in found[0].message
    assert "hunter2" not in found[0].message


def test_a_registry_is_reached_over_tls_alone_in_prod(tmp_path: Path) -> None:
    prod = Environment(name="prod", root=tmp_path)
    plain = AVRO | {"options": {"kafka.security.protocol": "SSL"}}
    file = shop(tmp_path, source=plain | {"registry": REGISTRY}).file
    assert load_pipeline(file, prod).registry is not None
    # A laptop may.
    shop(tmp_path, source=plain | {"registry": REGISTRY | {"url": "http://registry:8081"}})
    with pytest.raises(ConfigError, match=r"registry\.url.*must begin with https:// in prod"):
        load_pipeline(file, prod)


@pytest.mark.parametrize("format_", ["avro", "parquet"])
def test_files_of_avro_and_parquet_are_read_as_json(tmp_path: Path, format_: str) -> None:
    pipeline = shop(tmp_path, source={"kind": "files", "path": "x", "format": format_})
    assert not pipeline.reads_avro


@pytest.mark.parametrize(
    ("given", "path", "message"),
    [
        ({"registry": REGISTRY}, "source.registry", "unknown key"),
        ({"schema": "c.avsc"}, "source.schema", "unknown key"),
        ({"format": "orc"}, "source.format", "json, csv, parquet, avro"),
    ],
)
def test_a_schema_beside_files_is_an_error(
    tmp_path: Path, given: dict[str, Any], path: str, message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        shop(tmp_path, source={"kind": "files", "path": "x", "format": "avro", **given})
    (found,) = caught.value.violations
    assert found.path == path
    assert message in found.message


def test_a_topic_of_parquet_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"source\.format"):
        shop(tmp_path, source=AVRO | {"format": "parquet"})


def test_avro_is_built_for_topics(tmp_path: Path) -> None:
    pipeline = shop(tmp_path, source=AVRO | {"registry": REGISTRY})
    assert pipeline.reads_avro


def test_another_avro_schema_is_another_definition(tmp_path: Path) -> None:
    notes = []
    for text in ('{"type": "record"}', '{"type": "enum"}'):
        (tmp_path / "c.avsc").write_text(text)
        file = shop(tmp_path, source=AVRO | {"schema": "c.avsc"}).file
        laptop = Environment(name="local", root=tmp_path)
        pipeline = load_pipeline(file, laptop, source="kafka://other:1/topic")
        assert pipeline.avro_schema == text
        notes.append(silver_note(pipeline))
    changes = [
        changed_parts(Commit(0, datetime.now(UTC), None, note), pipeline).rules for note in notes
    ]
    assert changes == [("source.schema",), ()]


def test_a_fast_lane_over_files_that_are_not_lines_is_not_built(tmp_path: Path) -> None:
    source = {"kind": "files", "path": "x", "format": "parquet"}
    run: Any = SimpleNamespace(pipeline=shop(tmp_path, source=source))
    detection: Any = SimpleNamespace(features="hours", used_columns=frozenset())
    with pytest.raises(NotBuiltError, match="a fast lane over files that are not JSON"):
        Lane(run, detection, detection).go()
