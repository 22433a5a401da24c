"""What a registry says of a schema is asked for once, and written down."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from tests.pipelines import bronze, shop
from tests.registries import Standin, registry
from tests.running import read
from tidelake.cli.checking import registry_of
from tidelake.config import Registry, load_environment
from tidelake.delta.log import last_commit
from tidelake.delta.tables import Lake
from tidelake.errors import ConfigError, RefusedError, SourceError, UsageError, Violation
from tidelake.kafka.client import versions_of
from tidelake.runtime import schemas
from tidelake.runtime.hop import Run
from tidelake.runtime.progress import Progress
from tidelake.runtime.schemas import check_definition, schemas_for, stored_schemas
from tidelake.silver.avro_schema import incompatibility

SUBJECT = "clicks-value"
NOON = 1_704_110_400_000_000
_SECOND = 1_000_000


@pytest.fixture
def standin() -> Iterator[Standin]:
    """Run a registry."""
    with registry() as found:
        yield found


def click(**types: Any) -> dict[str, Any]:
    """Make a schema of its fields' types; a list is optional, and null by default."""
    fields = [
        {"name": name, "type": kind} | ({"default": None} if isinstance(kind, list) else {})
        for name, kind in types.items()
    ]
    return {"type": "record", "name": "Click", "fields": fields}


def context(spark: SparkSession, folder: Path, standin: Standin, **keys: str) -> Run:
    """Define a pipeline that follows the registry."""
    told = {"url": standin.url, "subject": SUBJECT, **keys}
    source = {"kind": "kafka", "bootstrap": "b:1", "topic": "t", "format": "avro", "registry": told}
    environment = load_environment("local", root=str(folder / "lake"))
    pipeline = shop(folder, source=source)
    return Run(spark, pipeline, Lake(folder / "lake"), environment, Progress(lambda _: None))


def rows(spark: SparkSession, *ids: int, second: int = 0) -> DataFrame:
    """Make rows that name schemas, and arrive so many seconds after noon."""
    arrived = f"2024-01-01 12:00:{second:02}"
    payloads = [b"\x00" + number.to_bytes(4, "big") + b"\x02a" for number in ids]
    return bronze(
        spark,
        [
            {"record_id": f"t:0:{n}", "payload": payload, "ingested_at": arrived}
            for n, payload in enumerate([*payloads, None, b"{}", b"\x00\x01"])
        ],
    )


def test_a_schema_is_asked_for_once_and_remembered_without_the_registry(
    spark: SparkSession, tmp_path: Path, standin: Standin
) -> None:
    standin.register(SUBJECT, 5, click(a="string"))
    standin.register(SUBJECT, 6, click(a="string", b=["null", "int"]))
    run = context(spark, tmp_path, standin)
    found = schemas_for(run, rows(spark, 6, 5, 6))
    assert found is not None
    assert {key: json.loads(text) for key, text in found.accepted.items()} == {
        5: click(a="string"),
        6: click(a="string", b=["null", "int"]),
    }
    asked = len(standin.asked)
    again = schemas_for(run, rows(spark, 5, second=9))
    assert again is not None
    assert list(again.accepted) == [5]
    assert len(standin.asked) == asked
    told = read(run.lake, "bronze.shop__schemas", "schema_id, refusal, refused_through")
    assert told == [(5, None, None), (6, None, None)]


def test_a_refusal_is_asked_again_by_rows_that_come_later(
    spark: SparkSession, tmp_path: Path, standin: Standin
) -> None:
    standin.register(SUBJECT, 5, click(a="string"))
    run = context(spark, tmp_path, standin)
    no = "payload: schema 9 is not in subject clicks-value"
    first = schemas_for(run, rows(spark, 9, second=1))
    assert first is not None
    assert [tuple(one) for one in first.refusals] == [(9, no, NOON + _SECOND)]
    standin.register(SUBJECT, 9, click(a="string"))
    asked = len(standin.asked)
    # The same rows, tried again.
    retry = schemas_for(run, rows(spark, 9, second=1))
    assert retry == first
    assert len(standin.asked) == asked
    later = schemas_for(run, rows(spark, 9, second=2))
    assert later is not None
    assert list(later.accepted) == [9]
    assert [tuple(one) for one in later.refusals] == [(9, no, NOON + _SECOND)]
    assert later.texts_overruled() == [no]


def test_a_rule_that_changed_holds_for_what_comes_then(
    spark: SparkSession, tmp_path: Path, standin: Standin
) -> None:
    standin.register(SUBJECT, 1, click(a="string"))
    standin.register(SUBJECT, 2, click(a="string", b="int"))
    before = schemas_for(context(spark, tmp_path, standin), rows(spark, 1, 2))
    assert before is not None
    assert list(before.accepted) == [1]
    assert [one.reason for one in before.refusals] == [
        "payload: schema 2 is not backward compatible with schema 1: "
        "reader field missing default value: b"
    ]
    run = context(spark, tmp_path, standin, compatibility="forward")
    after = schemas_for(run, rows(spark, 1, 2, second=1))
    assert after is not None
    assert sorted(after.accepted) == [1, 2]


def test_rows_that_are_decided_anew_ask_again_whenever_they_came(
    spark: SparkSession, tmp_path: Path, standin: Standin
) -> None:
    standin.register(SUBJECT, 5, click(a="string"))
    run = context(spark, tmp_path, standin)
    schemas_for(run, rows(spark, 8, 9))
    standin.register(SUBJECT, 9, click(a="string"))
    anew = schemas_for(run, rows(spark, 8, 9), redecides=True)
    assert anew is not None
    assert list(anew.accepted) == [9]
    # What is refused again was written down already.
    told = read(run.lake, "bronze.shop__schemas", "schema_id, refusal IS NULL")
    assert told == [(8, False), (9, False), (9, True)]


def test_ids_of_another_registry_are_not_read_with_the_schemas_of_the_first(
    spark: SparkSession, tmp_path: Path, standin: Standin, monkeypatch: pytest.MonkeyPatch
) -> None:
    standin.register(SUBJECT, 5, click(a="string"))
    run = context(spark, tmp_path, standin)
    table = run.lake.schemas("shop")
    append = schemas.append_records

    def of_before(*given: Any, registry: str, **named: Any) -> None:
        append(*given, **named)

    with monkeypatch.context() as earlier:
        # Commits of earlier versions do not name the registry: the next batch does.
        earlier.setattr(schemas, "append_records", of_before)
        schemas_for(run, rows(spark, 5))
    schemas_for(run, rows(spark, 5, second=9))
    first = last_commit(table)
    assert first is not None
    assert (first.batch, first.note["registry"]) == (1, standin.url.removeprefix("http://"))
    with registry() as other:
        moved = context(spark, tmp_path, other)
        # It has no such id, then another schema under it.
        other.register(SUBJECT, 4, click(a="string"))
        words = f"schemas of the registry at {first.note['registry']}, .* another schema for id 5"
        for _ in range(2):
            with pytest.raises(RefusedError, match=f"(?s){words}.*Restore source.registry.url"):
                schemas_for(moved, rows(spark, 5, second=9))
            other.register(SUBJECT, 5, click(b="string"))
        assert last_commit(table) == first
        # A registry that only moved has the same schemas, and is asked once.
        other.register(SUBJECT, 5, click(a="string"))
        assert schemas_for(moved, rows(spark, 5, second=9)) is not None
        asked = len(other.asked)
        assert schemas_for(moved, rows(spark, 5, second=10)) is not None
        assert len(other.asked) == asked
        last = last_commit(table)
        assert last is not None
        assert last.note["registry"] == other.url.removeprefix("http://")
    with pytest.raises(RefusedError, match="Restore source"):
        standin.register(SUBJECT, 5, click(b="string"))
        schemas_for(run, rows(spark, 5, second=11))


def test_a_look_writes_nothing(spark: SparkSession, tmp_path: Path, standin: Standin) -> None:
    standin.register(SUBJECT, 5, click(a="string"))
    run = context(spark, tmp_path, standin)
    found = schemas_for(run, rows(spark, 5, 6), keeps=False)
    assert found is not None
    assert (list(found.accepted), len(found.refusals)) == ([5], 1)
    assert not run.lake.schemas("shop").exists
    known = stored_schemas(run)
    assert known is not None
    assert not known.accepted


def test_each_schema_that_cannot_be_read_is_refused_with_its_reason(
    spark: SparkSession, tmp_path: Path, standin: Standin
) -> None:
    standin.register(SUBJECT, 1, click(a="string"))
    standin.register(SUBJECT, 2, '{"type": "object"}', schemaType="JSON")
    other = {"name": "Other", "subject": "other", "version": 1}
    standin.register(SUBJECT, 3, click(a="string"), references=[other])
    standin.register(SUBJECT, 4, click(a=["null", "Click"]))
    found = schemas_for(context(spark, tmp_path, standin), rows(spark, 2, 3, 4))
    assert found is not None
    assert [one.reason for one in found.refusals] == [
        "payload: schema 2 is JSON, not Avro",
        "payload: schema 3 refers to other schemas",
        "payload: schema 4 is recursive: Click holds itself",
    ]


def test_broken_records_may_name_any_number_of_schemas(
    spark: SparkSession, tmp_path: Path, standin: Standin
) -> None:
    standin.register(SUBJECT, 1, click(a="string"))
    found = schemas_for(context(spark, tmp_path, standin), rows(spark, *range(1, 400)))
    assert found is not None
    assert (list(found.accepted), len(found.refusals)) == ([1], 398)
    assert len(standin.asked) == 2


def test_a_registry_that_cannot_be_asked_is_named_and_no_secret_is(
    standin: Standin, monkeypatch: pytest.MonkeyPatch
) -> None:
    standin.register(SUBJECT, 1, click(a="string"))
    monkeypatch.setenv("REGISTRY_USER", "clicks:s3cret")
    standin.users = "clicks:s3cret"
    told: dict[str, Any] = {"url": standin.url, "subject": SUBJECT}
    mine = Registry(**told, credentials="env:REGISTRY_USER")
    assert [version.schema_id for version in versions_of(mine)] == [1]
    cases = [
        (Registry(**told), f"the schema registry at {standin.url} answered 401"),
        (
            mine.model_copy(update={"subject": "clocks"}),
            f"the schema registry at {standin.url} has no subject clocks",
        ),
        (
            mine.model_copy(update={"url": "http://127.0.0.1:1"}),
            "the schema registry at http://127.0.0.1:1 cannot be reached",
        ),
    ]
    for asked, message in cases:
        with pytest.raises(SourceError) as refused:
            versions_of(asked)
        assert str(refused.value).startswith(message)
        assert "s3cret" not in str(refused.value)
    monkeypatch.delenv("REGISTRY_USER")
    with pytest.raises(UsageError, match="the variable REGISTRY_USER, which is not set"):
        versions_of(mine)


def test_check_says_whether_the_registry_answers(
    spark: SparkSession, tmp_path: Path, standin: Standin
) -> None:
    run = context(spark, tmp_path, standin)
    assert "has no subject clicks-value" in registry_of(run.pipeline)
    standin.register(SUBJECT, 1, click(a="string"))
    told = "schema registry reachable: clicks-value has 1 version"
    assert registry_of(run.pipeline) == told
    assert registry_of(shop(tmp_path)) == ""


def test_a_schema_of_the_file_that_cannot_be_read_is_an_error_of_the_file(
    spark: SparkSession, tmp_path: Path, standin: Standin
) -> None:
    (tmp_path / "click.avsc").write_text(json.dumps(click(a=["null", "Click"])))
    source = {"kind": "kafka", "bootstrap": "b:1", "topic": "t", "format": "avro"}
    run = context(spark, tmp_path, standin)
    plain = replace(run, pipeline=shop(tmp_path, source=source | {"schema": "click.avsc"}))
    check_definition(run)
    with pytest.raises(ConfigError, match=r"source\.schema: is recursive: Click holds itself"):
        check_definition(plain)


OLD = json.dumps(click(a="string"))


@pytest.mark.parametrize(
    ("new", "refusing"),
    [
        (click(a="string", b=["null", "int"]), set()),
        (click(a="string", b="int"), {"backward", "full"}),
        (click(), {"forward", "full"}),
        (click(a="bytes"), set()),
        (click(a="int"), {"backward", "forward", "full"}),
    ],
)
def test_each_rule_looks_its_own_way(new: dict[str, Any], refusing: set[str]) -> None:
    rules = ("backward", "forward", "full", "none")
    found = {rule for rule in rules if incompatibility(json.dumps(new), OLD, rule)}  # type: ignore[arg-type]
    assert found == refusing


def test_of_a_logical_type_that_avro_s_library_does_not_know_nothing_is_written() -> None:
    """Pytest makes an error of a warning."""
    nanos = json.dumps(click(a={"type": "long", "logicalType": "timestamp-nanos"}))
    assert incompatibility(nanos, nanos, "full") == ""


class _Unanalysed:
    """A frame of Spark Connect: what is refused is so when its schema is asked for."""

    def select(self, *_: object) -> _Unanalysed:
        return self

    @property
    def schema(self) -> object:
        raise AnalysisException("no such column")


def test_what_spark_refuses_is_found_where_frames_are_analysed_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    frame: Any = _Unanalysed()
    monkeypatch.setattr(schemas.payloads, "trial", lambda _: None)
    spark: Any = SimpleNamespace(range=lambda _: frame)
    problem = schemas.reading_problem(spark, json.dumps(click(event_id="string")))
    assert problem == "cannot be read by Spark: no such column"
    assert schemas._refused(frame, [("event.id", cast(Any, None))]) == [
        Violation("event.id", "no such column")
    ]


def test_compute_that_does_not_show_its_options_is_told_what_avro_needs() -> None:
    def get(*_: object) -> str:
        raise AnalysisException("CONFIG_NOT_AVAILABLE")

    spark: Any = SimpleNamespace(conf=SimpleNamespace(get=get))
    with pytest.raises(UsageError, match=r"spark\.driver\.extraJavaOptions"):
        schemas.refuse_unlimited(spark)
