"""Pipeline files: what loads, and that every violation comes at once with its place."""

from __future__ import annotations

import copy
import re
import time
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from tidelake.config import (
    DeltaSource,
    Environment,
    FilesSource,
    KafkaSource,
    Measure,
    SessionWindow,
    load_pipeline,
)
from tidelake.config.expectations import load_suite
from tidelake.config.pipeline import Event, payload_types, silver_types
from tidelake.config.row_guards import never_fails
from tidelake.config.source import described
from tidelake.delta.commit_metadata import changed_parts, hash_of, silver_note
from tidelake.errors import ConfigError, UsageError, Violation

LAPTOP = Environment(name="local", root=Path("/lake"))
CLOUD = Environment(name="prod", catalog="tidelake")
GOOD: dict[str, Any] = {
    "name": "shop",
    "source": {"kind": "files", "path": "${root}/landing"},
    "event": {
        "schema": "event_id STRING, event_time TIMESTAMP, user_id STRING, action STRING, n INT",
        "id": "event_id",
        "time": "event_time",
    },
    "gold": [
        {
            "name": "per_minute",
            "window": {"kind": "tumbling", "size": "1 minute"},
            "keys": ["user_id"],
            "measures": {"events": {"count": "*"}},
        }
    ],
}
JOIN = {
    "name": "pairs",
    "left": {"columns": {"at": "event_time"}},
    "right": {"pipeline": "shop", "columns": {"then_at": "event_time"}},
    "on": ["user_id"],
    "within": "30 minutes",
}
# The hash of its gold table in commits of versions without `derive`.
PLAIN_HASH = "c1dea95a2d25eb0172d4e7f093a05ca3"
TOPIC: dict[str, Any] = {"kind": "kafka", "bootstrap": "h:1", "topic": "clicks"}
ENRICH = {"dimension": "products", "on": {"action": "product_id"}, "columns": ["category"]}


def changed(**values: Any) -> dict[str, Any]:
    """Change GOOD at places such as ``gold__0__window``; None removes the key."""
    raw = copy.deepcopy(GOOD)
    for place, value in values.items():
        *parents, last = [int(part) if part.isdigit() else part for part in place.split("__")]
        node: Any = raw
        for parent in parents:
            node = node[parent]
        if value is None:
            del node[last]
        else:
            node[last] = value
    return raw


def write(folder: Path, raw: dict[str, Any] | str) -> str:
    file = folder / "shop.yml"
    file.write_text(raw if isinstance(raw, str) else yaml.safe_dump(raw, sort_keys=False))
    return str(file)


def violations(folder: Path, raw: dict[str, Any] | str) -> tuple[Violation, ...]:
    with pytest.raises(ConfigError) as caught:
        load_pipeline(write(folder, raw), LAPTOP)
    return caught.value.violations


@pytest.mark.parametrize(
    "name", ["clickstream", "flights", "products", "airlines", "planes", "payments"]
)
def test_the_pipelines_of_the_repository_load_and_can_run(name: str) -> None:
    pipeline = load_pipeline(name, LAPTOP)
    assert pipeline.name == name
    assert pipeline.file.endswith(f"{name}.yml")
    assert isinstance(pipeline.source, FilesSource)
    assert pipeline.source.path == f"/lake/landing/{name}"


def test_defaults_are_those_of_the_contract(tmp_path: Path) -> None:
    pipeline = load_pipeline(write(tmp_path, GOOD), LAPTOP)
    assert pipeline.kind == "events"
    assert pipeline.watermark.delay == timedelta(minutes=10)
    assert pipeline.watermark.allowed_lateness == timedelta(days=1)
    assert pipeline.watermark.max_future_skew == timedelta(minutes=5)
    assert pipeline.watermark.idle_after == timedelta(minutes=5)
    assert pipeline.dedup.ttl == timedelta(hours=1)
    assert (pipeline.dedup.beyond_ttl, pipeline.dedup.prefilter) == ("merge", "none")
    assert pipeline.event.evolution == "additive"
    assert pipeline.gold[0].measures == (Measure(name="events", aggregate="count", expression="*"),)


def test_without_select_silver_has_the_payload_but_for_its_own_names(tmp_path: Path) -> None:
    pipeline = load_pipeline(write(tmp_path, GOOD), LAPTOP)
    assert pipeline.silver_columns == ("user_id", "action", "n")
    assert pipeline.selected["n"] == "`n`"


def test_select_names_silvers_columns_in_order(tmp_path: Path) -> None:
    raw = changed(event__select={"n": "n + 1", "user_id": "lower(user_id)", "raw_key": "key"})
    pipeline = load_pipeline(write(tmp_path, raw), LAPTOP)
    assert pipeline.silver_columns == ("n", "user_id", "raw_key")


def test_a_pipeline_cannot_be_changed(tmp_path: Path) -> None:
    pipeline = load_pipeline(write(tmp_path, GOOD), LAPTOP)
    with pytest.raises(ValidationError, match="frozen"):
        pipeline.name = "other"


@pytest.mark.parametrize(
    "body",
    [{"approx_percentile": "n", "p": 0.95}, {"approx_percentile": {"expression": "n", "p": 0.95}}],
)
def test_a_percentile_takes_p_in_either_place(tmp_path: Path, body: dict[str, Any]) -> None:
    raw = changed(gold__0__measures={"p95": body})
    (measure,) = load_pipeline(write(tmp_path, raw), LAPTOP).gold[0].measures
    assert (measure.aggregate, measure.expression, measure.p) == ("approx_percentile", "n", 0.95)


def test_a_session_and_a_global_table_load(tmp_path: Path) -> None:
    raw = changed(gold__0__window={"kind": "session", "gap": "30 minutes"})
    raw["gold"].append({**raw["gold"][0], "name": "all_time", "window": {"kind": "global"}})
    session, total = load_pipeline(write(tmp_path, raw), LAPTOP).gold
    assert session.window == SessionWindow(kind="session", gap=timedelta(minutes=30))
    assert total.window.kind == "global"


def test_a_kafka_source_takes_its_keys_directly(tmp_path: Path) -> None:
    source = {
        "kind": "kafka",
        "bootstrap": "localhost:9092",
        "topic": "clicks",
        "options": {"kafka.ssl.keystore.password": "env:STORE", "kafka.check.crcs": False},
    }
    pipeline = load_pipeline(write(tmp_path, changed(source=source)), LAPTOP)
    assert isinstance(pipeline.source, KafkaSource)
    assert pipeline.source.options["kafka.check.crcs"] == "false"


def test_an_address_makes_a_topic_the_source(tmp_path: Path) -> None:
    file = write(tmp_path, changed())
    source = load_pipeline(file, LAPTOP, source="kafka://h:1/clicks").source
    assert source == KafkaSource(kind="kafka", bootstrap="h:1", topic="clicks")


@pytest.mark.parametrize(
    ("given", "path", "message"),
    [
        ({"pattern": "c.*"}, "source.topic", "either topic or pattern"),
        ({"topic": None}, "source.topic", "either topic or pattern"),
        ({"starting": "yesterday"}, "source.starting", "earliest, latest or an instant"),
        ({"starting": "2026-01-05T00:00:00"}, "source.starting", "an instant such as"),
        ({"options": {"failOnDataLoss": "false"}}, "source.options", "always stop a run"),
        ({"options": {"subscribe": "x"}}, "source.options", "write topic"),
        ({"options": {"acks": "all"}}, "source.options", "begin with kafka."),
        *(
            ({"options": {f"kafka.{name}": "x"}}, "source.options", "is set by Tidelake")
            for name in (
                *("key.deserializer", "value.deserializer", "auto.offset.reset"),
                *("enable.auto.commit", "interceptor.classes"),
            )
        ),
        ({"topic": None, "pattern": "clicks("}, "source.pattern", "not a valid regular expression"),
        ({"topic": None, "pattern": r"\Qa"}, "source.pattern", "contains .Q, which Java's"),
    ],
)
def test_what_a_kafka_source_cannot_be_is_named(
    tmp_path: Path, given: dict[str, Any], path: str, message: str
) -> None:
    source = {"kind": "kafka", "bootstrap": "h:1", "topic": "clicks", **given}
    with pytest.raises(ConfigError, match=message) as refused:
        load_pipeline(write(tmp_path, changed(source=source)), LAPTOP)
    assert path in {one.path for one in refused.value.violations}


@pytest.mark.parametrize(
    ("text", "path", "message"),
    [
        ("source: {kind: kafka, bootstrap: 'h:1', topic: }", "source.topic", "either topic or"),
        ("source: {kind: delta, path: }", "source.path", "write either path"),
        (
            "source: {kind: kafka, bootstrap: 'h:1', topic: t, format: avro, registry: }",
            "source.format",
            "write either registry",
        ),
        (
            "source: {kind: kafka, bootstrap: 'h:1', topic: t, format: avro, schema: }",
            "source.format",
            "or schema: FILE",
        ),
        ("quality: {suite: }", "quality.suite", "required key is missing"),
    ],
)
def test_a_key_without_a_value_is_missing(
    tmp_path: Path, text: str, path: str, message: str
) -> None:
    (violation,) = violations(tmp_path, GOOD | yaml.safe_load(text))
    assert violation.path == path
    assert message in violation.message


@pytest.mark.parametrize(
    "text",
    [
        "source: {kind: files, path: /a, max_files_per_trigger: , max_bytes_per_trigger: 1m}",
        "source: {kind: files, path: 'gs://one/a', clean_source: }",
        "source: {kind: files, path: /a, format: csv, envelope: }",
        "source: {kind: kafka, bootstrap: 'h:1', topic: , pattern: 't.*'}",
        "source: {kind: kafka, bootstrap: 'h:1', topic: t, registry: , schema: }",
        "source: {kind: delta, path: , table: a.b.c}",
        "dimension: ",
        "event: {sequence: , delete_when: }",
    ],
)
def test_null_undoes_a_default_of_the_folder(tmp_path: Path, text: str) -> None:
    """As if the key were not there, also beside keys with which it cannot stand."""
    raw = GOOD | yaml.safe_load(text)
    raw["event"] = GOOD["event"] | raw["event"]
    assert load_pipeline(write(tmp_path, raw), LAPTOP).name == "shop"


@pytest.mark.parametrize("protocol", [None, "PLAINTEXT", "SASL_PLAINTEXT", "SSL"])
def test_in_production_nothing_goes_in_plain_text(tmp_path: Path, protocol: str | None) -> None:
    options = {"kafka.security.protocol": protocol} if protocol else {}
    source = {"kind": "kafka", "bootstrap": "h:1", "topic": "clicks", "options": options}
    file, prod = write(tmp_path, changed(source=source)), LAPTOP.model_copy(update={"name": "prod"})
    if protocol == "SSL":
        load_pipeline(file, prod)
        return
    with pytest.raises(ConfigError, match="must be SSL or SASL_SSL in prod"):
        load_pipeline(file, prod)
    load_pipeline(file, LAPTOP)


def test_in_production_a_protocol_is_no_reference(tmp_path: Path) -> None:
    options = {"kafka.security.protocol": "env:PROTOCOL"}
    source = {"kind": "kafka", "bootstrap": "h:1", "topic": "clicks", "options": options}
    file, prod = write(tmp_path, changed(source=source)), LAPTOP.model_copy(update={"name": "prod"})
    with pytest.raises(ConfigError, match="is a reference; write the protocol itself"):
        load_pipeline(file, prod)


@pytest.mark.parametrize(
    ("values", "path", "message"),
    [
        ({"name": None}, "name", "required"),
        ({"name": "a__b"}, "name", "side tables"),
        ({"name": "Shop"}, "name", "lower-case"),
        ({"name": "s" * 64}, "name", "at most"),
        ({"source": None}, "source", "required"),
        ({"event__id": None}, "event.id", "required"),
        ({"event__time": None}, "event.time", "required"),
        ({"event__schema": None}, "event.schema", "required"),
        ({"file": "x"}, "file", "unknown key"),
        ({"watermrak": {}}, "watermrak", "did you mean watermark?"),
        ({"foreach": []}, "foreach", "did you mean for_each?"),
        ({"kind": "event"}, "kind", "did you mean events?"),
        ({"source__kind": "file"}, "source.kind", "did you mean files?"),
        ({"source__kind": None}, "source.kind", "required"),
        ({"source__format": "orc"}, "source.format", "json, csv, parquet, avro"),
        ({"source__path": None}, "source.path", "required"),
        ({"source__path": " "}, "source.path", "empty"),
        ({"source__path": "${home}/x"}, "source.path", "only ${root}, ${landing} are"),
        ({"source__path": 5}, "source.path", "a path in quotes, or a list of paths"),
        ({"source__path": []}, "source.path", "a path in quotes, or a list of paths"),
        ({"source__path": ["/a", 5]}, "source.path", "a path in quotes, or a list of paths"),
        ({"source__path": ["/a", " "]}, "source.path", "empty"),
        ({"source__path": ["/a", "/b,c"]}, "source.path", "contains ,"),
        ({"source__path": ["/a", "/b/*"]}, "source.path", "contains *"),
        ({"source__path": ["/b/c", "/b/../b"]}, "source.path", "/b/../b and /b/c overlap"),
        ({"source__path": ["/b", "/"]}, "source.path", "/ and /b overlap"),
        ({"source__path": ["/b", "/b/c/d"]}, "source.path", "/b/c/d and /b overlap"),
        ({"source__path": ["s3://one/a/", "s3://one/a"]}, "source.path", "overlap"),
        ({"source__path": ["/a", "s3://one/a"]}, "source.path", "or in one bucket"),
        ({"source__path": ["s3://one/a", "s3://two/a"]}, "source.path", "or in one bucket"),
        ({"source__path": ["/a", "gs://one/a"]}, "source.path", "or in one bucket"),
        ({"source__path": ["gs://one/a", "gs://two/a"]}, "source.path", "or in one bucket"),
        ({"source__path": ["gs://one/a", "gs://one/a/b"]}, "source.path", "overlap"),
        ({"source__path": "wasbs://c@a.host/x"}, "source.path", "make an external volume"),
        ({"source__path": "gs://one"}, "source.path", "write gs://bucket/prefix"),
        ({"source__path": "abfss://a.host/x"}, "source.path", "abfss://container@account.dfs"),
        ({"source__path": ["gs://one/a*", "gs://one/b"]}, "source.path", "would be misread"),
        (
            {"source__path": "gs://one/a", "source__clean_source": "delete"},
            "source.clean_source",
            "not possible on gs://one/a. On Databricks make an external volume",
        ),
        (
            {"source__path": ["gs://one/a", "gs://one/b"], "source__clean_source": "archive"},
            "source.clean_source",
            "not possible on gs://one/a",
        ),
        ({"source": {"kind": "delta", "path": "gs://one/a"}}, "source.path", "external volume"),
        ({"source": {"kind": "delta"}}, "source.path", "write either path, the table's folder"),
        (
            {"source": {"kind": "delta", "path": "/a", "table": "a.b.c"}},
            "source.path",
            "or table, its name in a catalog",
        ),
        ({"source": {"kind": "delta", "table": "b.c"}}, "source.table", "catalog.schema.table"),
        ({"source": {"kind": "delta", "table": "a.b.c.d"}}, "source.table", "catalog.schema.table"),
        ({"source": {"kind": "delta", "table": "a.b.`c`"}}, "source.table", "letters, digits"),
        ({"source": {"kind": "delta", "table": "a..c"}}, "source.table", "catalog.schema.table"),
        ({"source__table": "a.b.c"}, "source.table", "unknown key"),
        ({"source": {"kind": "delta", "path": ["/a", "/b"]}}, "source.path", "must be text"),
        ({"source__max_files_per_trigger": 0}, "source.max_files_per_trigger", "greater than 0"),
        ({"source__max_files_per_trigger": True}, "source.max_files_per_trigger", "whole number"),
        ({"source__max_files_per_trigger": 2**31}, "source.max_files_per_trigger", "2147483647"),
        ({"source__max_bytes_per_trigger": "8388608t"}, "source.max_bytes_per_trigger", "2^63"),
        ({"source": TOPIC | {"min_partitions": 2**31}}, "source.min_partitions", "2147483647"),
        (
            {"source": TOPIC | {"max_offsets_per_trigger": 2**63}},
            "source.max_offsets_per_trigger",
            "at most 9223372036854775807",
        ),
        (
            {"source": {"kind": "rate", "rows_per_second": 2**31}},
            "source.rows_per_second",
            "at most 2147483647",
        ),
        (
            {"source__registry": {"url": "http://u", "subject": "s"}},
            "source.registry",
            "unknown key",
        ),
        ({"source__max_bytes_per_trigger": "lots"}, "source.max_bytes_per_trigger", "256m"),
        ({"source__clean_source": "off"}, "source.clean_source", "'off' is not one of: archive,"),
        ({"source__clean_source": "archive"}, "source.archive_dir", "required key is missing"),
        ({"source__archive_dir": "old"}, "source.archive_dir", "clean_source: archive only"),
        (
            {
                "source__path": ["a", "b"],
                "source__clean_source": "archive",
                "source__archive_dir": "old",
            },
            "source.archive_dir",
            "needs one path",
        ),
        ({"source__max_bytes_per_trigger": 5}, "source.max_bytes_per_trigger", "quotes"),
        (
            {"source__max_files_per_trigger": 5, "source__max_bytes_per_trigger": "1m"},
            "source.max_bytes_per_trigger",
            "cannot be combined with max_files_per_trigger; a folder takes one of them",
        ),
        ({"source__max_offsets_per_trigger": 5}, "source.max_offsets_per_trigger", "unknown key"),
        ({"event__schema": "event_id STRNG"}, "event.schema", "did you mean STRING"),
        ({"event__evolution": "open"}, "event.evolution", "strict, additive, rescue"),
        ({"event__id": "evnt_id"}, "event.id", "did you mean event_id?"),
        ({"event__time": "now()"}, "event.time", "from run to run"),
        ({"event__time": 5}, "event.time", "quotes"),
        ({"event__where": "is_late"}, "event.where", "unknown column is_late"),
        ({"event__sequence": "n"}, "event.sequence", "kind: dimension only"),
        ({"event__keys": ["n"]}, "event.keys", "unknown key"),
        ({"event__delete_when": "n = 1"}, "event.delete_when", "kind: dimension only"),
        ({"dimension": {"key": ["n"]}}, "dimension", "kind: dimension only"),
        ({"watermark": {"delay": "10 mins"}}, "watermark.delay", "not a duration"),
        ({"watermark": {"idle_after": "0 seconds"}}, "watermark.idle_after", "longer than 0"),
        (
            {"watermark": {"allowed_lateness": "36526 days"}},
            "watermark.allowed_lateness",
            "must not be longer than 36525 days",
        ),
        ({"dedup": {"ttl": 60}}, "dedup.ttl", "not a duration"),
        ({"dedup": {"beyond_ttl": "drop"}}, "dedup.beyond_ttl", "merge, ignore"),
        ({"quality": {}}, "quality.suite", "required"),
        ({"quality": {"rules": {}}}, "quality.suite", "required"),
        ({"quality": {"rules": {"a": "gone > 0"}}}, "quality.rules.a", "unknown column gone"),
        ({"quality": {"rules": {"a": "n"}}}, "quality.rules.a", "write a condition"),
        ({"quality": {"rules": {"a": "rand() > 0"}}}, "quality.rules.a", "rand"),
        ({"quality": {"rules": {"a-b": "n > 0"}}}, "quality.rules.a-b", ""),
        (
            {"quality": {"rules": {"a": {"sql": "n > 0", "severity": "info"}}}},
            "quality.rules.a.severity",
            "write warning",
        ),
        ({"quality": {"rules": {"a": {"severity": "warning"}}}}, "quality.rules.a.sql", "required"),
        ({"alerts": {"quarantine_rate": 2}}, "alerts.quarantine_rate", "at most"),
        ({"transform": "m:f"}, "transform", ""),
        (
            {"transform": {"function": "module", "columns": "a INT"}},
            "transform.function",
            "package.module:function",
        ),
        (
            {"transform": {"function": "m:f", "columns": "a NUMBER"}},
            "transform.columns",
            "unknown type NUMBER",
        ),
        (
            {"transform": {"function": "m:f", "columns": "event_time TIMESTAMP"}},
            "transform.columns",
            "event_time is a reserved column",
        ),
        (
            {"transform": {"function": "m:f", "columns": "lateness_seconds DOUBLE"}},
            "transform.columns",
            "lateness_seconds is a reserved column",
        ),
        (
            {"transform": {"function": "m:f", "columns": "`a b` INT"}},
            "transform.columns",
            "'a b' is not a valid column name",
        ),
        (
            {"transform": {"function": "m:f", "columns": "Action STRING"}},
            "transform.columns",
            "write it as there",
        ),
        ({"gold__0__window": "1 minute"}, "gold[0].window", "mapping"),
        ({"gold__0__window__kind": "sliding"}, "gold[0].window.kind", "not one of"),
        ({"gold__0__window__size": "0 minutes"}, "gold[0].window.size", "longer than 0"),
        ({"gold__0__window__gap": "1 minute"}, "gold[0].window.gap", "unknown key"),
        ({"gold__0__window__offset": "1 minute"}, "gold[0].window.offset", "shorter"),
        ({"gold__0__where": "actoin = 'x'"}, "gold[0].where", "did you mean action?"),
        ({"gold__0__keys": "user_id"}, "gold[0].keys", "list"),
        ({"gold__0__keys": ["usr_id"]}, "gold[0].keys[0]", "did you mean user_id?"),
        ({"gold__0__keys": ["n", "n"]}, "gold[0].keys[1]", "already"),
        ({"gold__0__measures": {}}, "gold[0].measures", "at least one"),
        ({"gold__0__measures": None}, "gold[0].measures", "required"),
        ({"gold__0__measures": ["count"]}, "gold[0].measures", "mapping"),
    ],
)
def test_a_broken_key_is_named_with_its_place(
    tmp_path: Path, values: dict[str, Any], path: str, message: str
) -> None:
    (violation,) = violations(tmp_path, changed(**values))
    assert violation.path == path
    assert message in violation.message
    assert violation.line is not None


@pytest.mark.parametrize(
    ("name", "body", "message"),
    [
        ("m", {"summ": "n"}, "did you mean sum?"),
        ("m", {"median": "n"}, "write {approx_percentile: n, p: 0.5} (known: count,"),
        ("m", {"sum": "n", "max": "n"}, "exactly one"),
        ("m", {}, "exactly one"),
        ("m", "n", "one aggregate"),
        ("m", {"sum": 1}, "quotes"),
        ("m", {"sum": "*"}, "contains *"),
        ("m", {"sum": "sum(n)"}, "an aggregate"),
        ("m", {"sum": "nn + 1"}, "unknown column nn"),
        ("m", {"sum": "n", "p": 0.5}, "approx_percentile only"),
        ("m", {"approx_percentile": "n"}, "needs p"),
        ("m", {"approx_percentile": "n", "p": 95}, "0 to 1"),
        ("m", {"approx_percentile": {"expression": "n", "q": 1}}, "write {approx_percentile"),
        ("user_id", {"sum": "n"}, "a key of this table"),
        ("User_Id", {"sum": "n"}, "a key of this table"),
        ("window_start", {"sum": "n"}, "reserved column of gold"),
        ("SESSION_END", {"sum": "n"}, "reserved column of gold"),
        ("_m", {"sum": "n"}, "not a valid column name"),
    ],
)
def test_a_broken_measure_is_named(tmp_path: Path, name: str, body: Any, message: str) -> None:
    (violation,) = violations(tmp_path, changed(gold__0__measures={name: body}))
    assert violation.path == f"gold[0].measures.{name}"
    assert message in violation.message


@pytest.mark.parametrize(
    ("name", "sql", "message"),
    [
        ("rate", "clics / events", "did you mean clicks?"),
        ("rate", "clicks / n", "unknown column n"),
        ("rate", "_mean_sum / events", "unknown column _mean_sum"),
        ("rate", "session_start", "unknown column session_start"),
        ("rate", "sum(clicks)", "an aggregate"),
        ("rate", "clicks / (SELECT 1)", "a subquery"),
        ("rate", "clicks + rand()", "from run to run"),
        ("rate", "clicks AS c", "has an alias"),
        ("rate", "clicks > 'today'", "time of the query"),
        ("rate", "hour(timestamp '12:30')", "write the date too"),
        ("rate", "CAST('T12' AS TIMESTAMP)", "write the date too"),
        ("rate", " ", "is empty"),
        ("rate", 1, "quotes"),
        ("rate", "Share * 2", "uses share, which is derived too"),
        ("rate", "rate + 1", "uses rate, which is derived too"),
        ("Clicks", "events", "already a column of this table"),
        ("USER_ID", "events", "already a column of this table"),
        ("window_start", "events", "a reserved column of gold"),
        ("session_end", "events", "a reserved column of gold"),
        ("SHARE", "events", "already a derived column"),
        ("_rate", "events", "not a valid column name"),
    ],
)
def test_a_broken_derived_column_is_named(
    tmp_path: Path, name: str, sql: object, message: str
) -> None:
    raw = changed(
        gold__0__measures={
            "events": {"count": "*"},
            "clicks": {"count_if": "action = 'click'"},
            "mean": {"avg": "n"},
        },
        gold__0__derive={"share": "clicks / 10", name: sql},
    )
    (violation,) = violations(tmp_path, raw)
    assert violation.path == f"gold[0].derive.{name}"
    assert message in violation.message
    assert violation.line is not None


def test_a_derived_column_reads_bounds_keys_and_measures_in_any_case(tmp_path: Path) -> None:
    derive = {"rate": "EVENTS / 2", "who": "upper(user_id)", "day": "date(window_start)"}
    gold = load_pipeline(write(tmp_path, changed(gold__0__derive=derive)), LAPTOP).gold[0]
    assert gold.derive == derive
    assert gold.columns[-4:] == ("events", "rate", "who", "day")
    of_sessions = changed(
        gold__0__window={"kind": "session", "gap": "1 minute"},
        gold__0__derive={"seconds": "timestampdiff(SECOND, session_start, session_end)"},
    )
    assert load_pipeline(write(tmp_path, of_sessions), LAPTOP).gold[0].derive


def test_a_broken_measure_hides_no_problem_of_a_derived_column_and_makes_none(
    tmp_path: Path,
) -> None:
    raw = changed(
        gold__0__measures={"events": {"count": "*"}, "total": {"summ": "n"}},
        gold__0__derive={"mean": "total / events", "most": "max(events)"},
    )
    found = [one.path for one in violations(tmp_path, raw)]
    assert found == ["gold[0].measures.total", "gold[0].derive.most"]


def test_only_tables_of_measures_have_derived_columns(tmp_path: Path) -> None:
    detection = {"name": "odd", "features": "hours", "keys": ["user_id"], "burst": {}}
    raw = changed(
        joins=[JOIN | {"derive": {"a": "at"}}], detections=[detection | {"derive": {"a": "1"}}]
    )
    found = {one.path: one.message for one in violations(tmp_path, raw)}
    assert found == {
        "joins[0].derive": (
            "is for tables of gold; write the expression under left.columns or right.columns"
        ),
        "detections[0].derive": "is for tables of gold; write the expression under columns",
    }


def test_a_derived_column_redefines_its_table_and_no_other_does(tmp_path: Path) -> None:
    derive: list[dict[str, str] | None] = [None, {}, {"rate": "events / 2"}, {"rate": "events / 3"}]
    tables = [
        load_pipeline(write(tmp_path, changed(**given)), LAPTOP).gold[0]
        for given in ({} if one is None else {"gold__0__derive": one} for one in derive)
    ]
    # As versions without the key wrote it.
    assert hash_of(tables[0]) == PLAIN_HASH
    assert hash_of(tables[1]) == PLAIN_HASH
    assert len({hash_of(table) for table in tables}) == 3


@pytest.mark.parametrize(
    ("window", "keys", "path", "message"),
    [
        (
            {"kind": "hopping", "size": "1 minute", "slide": "2 minutes"},
            ["n"],
            "window.slide",
            "longer",
        ),
        ({"kind": "hopping", "size": "1 minute"}, ["n"], "window.slide", "required"),
        (
            {"kind": "hopping", "size": "36525 days", "slide": "1 millisecond"},
            ["n"],
            "window.slide",
            "more than 10,000 windows",
        ),
        ({"kind": "session", "gap": "1 minute"}, [], "keys", "at least one key"),
        ({"kind": "session", "gap": "0 minutes"}, ["n"], "window.gap", "longer than 0"),
        ({"kind": "global"}, [], "keys", "at least one key"),
    ],
)
def test_an_impossible_window_is_named(
    tmp_path: Path, window: dict[str, Any], keys: list[str], path: str, message: str
) -> None:
    (violation,) = violations(tmp_path, changed(gold__0__window=window, gold__0__keys=keys))
    assert violation.path == f"gold[0].{path}"
    assert message in violation.message


def test_a_field_with_the_name_of_a_column_of_the_late_table_is_refused(tmp_path: Path) -> None:
    schema = f"{GOOD['event']['schema']}, payload STRING"
    (violation,) = violations(tmp_path, changed(event__schema=schema))
    assert violation.path == "event.schema"
    assert "'payload' is a reserved column name in silver; rename it with" in violation.message


def test_what_delta_cannot_store_or_compare_is_refused(tmp_path: Path) -> None:
    schema = f"{GOOD['event']['schema']}, m MAP<STRING, INT>, xs ARRAY<STRUCT<`unit price`: INT>>"
    raw = changed(event__schema=schema, gold__0__keys=["user_id", "m"])
    found = {one.path: one.message for one in violations(tmp_path, raw)}
    assert found.keys() == {"gold[0].keys[1]", "event.schema"}
    assert "m is MAP<STRING,INT>, whose values cannot be compared" in found["gold[0].keys[1]"]
    assert "xs has the nested field 'unit price'" in found["event.schema"]
    select = {"user_id": "user_id", "m": "to_json(m)", "xs": "to_json(xs)"}
    load_pipeline(write(tmp_path, raw | {"event": raw["event"] | {"select": select}}), LAPTOP)


@pytest.mark.parametrize(
    ("select", "path", "message"),
    [
        ({"event_id": "n"}, "event.select.event_id", "reserved column of silver"),
        ({"Is_Late": "n"}, "event.select.Is_Late", "reserved column of silver"),
        ({"a-b": "n"}, "event.select.a-b", "not a valid column name"),
        ({"Payload": "n"}, "event.select.Payload", "reserved column of silver"),
        ({"watermark": "n"}, "event.select.watermark", "reserved column of silver"),
        ({"a": "m"}, "event.select.a", "unknown column m"),
        ({}, "event.select", "at least one"),
    ],
)
def test_a_broken_select_is_named(
    tmp_path: Path, select: dict[str, str], path: str, message: str
) -> None:
    raw = changed(event__select=select, gold__0__keys=[])
    found = {v.path: v.message for v in violations(tmp_path, raw)}
    assert message in found[path]


def test_select_names_that_differ_in_case_alone_are_one_name(tmp_path: Path) -> None:
    raw = changed(event__select={"user_id": "user_id", "USER_ID": "action"})
    assert [v.path for v in violations(tmp_path, raw)] == ["event.select.USER_ID"]


def test_a_field_that_cannot_be_a_column_has_to_be_renamed(tmp_path: Path) -> None:
    schema = "event_id STRING, event_time TIMESTAMP, user_id STRING, `a-b` INT"
    (violation,) = violations(tmp_path, changed(event__schema=schema))
    assert "event.select" in violation.message
    renamed = changed(event__schema=schema, event__select={"user_id": "user_id", "ab": "`a-b`"})
    assert load_pipeline(write(tmp_path, renamed), LAPTOP).silver_columns == ("user_id", "ab")


def test_every_violation_comes_at_once_and_in_order(tmp_path: Path) -> None:
    raw = changed(knd="x", event__where="actoin = 1", event__evolution="open")
    raw["gold"].insert(0, {**raw["gold"][0], "name": "first", "window": {"kind": "none"}})
    raw["gold"][0]["measures"] = {"a": {"summ": "n"}, "b": {"sum": "nn"}}
    raw["gold"][1] = {**raw["gold"][1], "keys": ["usr_id"]}
    found = violations(tmp_path, raw)
    assert {violation.path for violation in found} == {
        "event.where",
        "event.evolution",
        "gold[0].window.kind",
        "gold[0].measures.a",
        "gold[0].measures.b",
        "gold[1].keys[0]",
        "knd",
    }
    lines = [violation.line or 0 for violation in found]
    assert lines == sorted(lines)


def test_a_violation_carries_its_line(tmp_path: Path) -> None:
    text = write(tmp_path, GOOD)
    lines = Path(text).read_text().splitlines()
    lines.append("kidn: events")
    (violation,) = violations(tmp_path, "\n".join(lines))
    assert violation.line == len(lines)


def test_what_is_no_condition_is_refused_wherever_one_stands(tmp_path: Path) -> None:
    sql = "n + 1"
    raw = changed(
        event__where=sql,
        gold__0__where=sql,
        gold__0__measures={"m": {"count_if": sql}, "n": {"count_if": "n > 0"}},
        joins=[
            {
                **JOIN,
                "left": {**JOIN["left"], "where": sql},
                "right": {**JOIN["right"], "where": sql},
            }
        ],
        quality={"rules": {"odd": sql}},
    )
    found = {one.path: one.message for one in violations(tmp_path, raw)}
    assert set(found) == {
        *("event.where", "gold[0].where", "gold[0].measures.m", "quality.rules.odd"),
        *("joins[0].left.where", "joins[0].right.where"),
    }
    assert set(found.values()) == {"is INT; write a condition, which is true, false or null"}
    dimension = {"kind": "dimension", "gold": None, "dimension": {"key": ["n"]}}
    event = {"event__sequence": "n", "event__delete_when": sql}
    (violation,) = violations(tmp_path, changed(**dimension, **event))
    assert (violation.path, violation.message) == ("event.delete_when", found["event.where"])


def test_the_columns_of_another_pipeline_make_no_condition_wrong(tmp_path: Path) -> None:
    right = {**JOIN["right"], "pipeline": "other", "where": "n"}
    pipeline = load_pipeline(write(tmp_path, changed(joins=[{**JOIN, "right": right}])), LAPTOP)
    assert pipeline.joins[0].right.where == "n"


def test_an_unsteady_expression_is_refused_wherever_one_may_stand(tmp_path: Path) -> None:
    sql = "event_time < timestamp 'now'"
    raw = changed(
        event__id=sql,
        event__time=sql,
        event__where=sql,
        event__select={"user_id": "user_id", "event_time_": sql},
        gold__0__where=sql,
        gold__0__measures={"n": {"count_if": sql}, "m": {"max": f"if({sql}, 1, 2)"}},
        joins=[
            {
                **JOIN,
                "left": {"where": sql, "columns": {"a": sql}},
                "right": {"pipeline": "other", "where": sql, "columns": {"b": sql}},
            }
        ],
        detections=[
            {
                "name": "odd",
                "features": "odd_hours",
                "keys": ["user_id"],
                "columns": {"c": sql},
                "unusual_amount": {"value": sql},
                "impossible_travel": {"latitude": sql, "longitude": sql},
            }
        ],
    )
    found = {
        one.path for one in violations(tmp_path, raw) if "the time of the query" in one.message
    }
    assert found == {
        *("event.id", "event.time", "event.where", "event.select.event_time_"),
        *("gold[0].where", "gold[0].measures.n", "gold[0].measures.m"),
        *("joins[0].left.where", "joins[0].left.columns.a"),
        *("joins[0].right.where", "joins[0].right.columns.b"),
        *("detections[0].columns.c", "detections[0].unusual_amount.value"),
        "detections[0].impossible_travel.latitude",
        "detections[0].impossible_travel.longitude",
    }
    dimension = changed(
        kind="dimension",
        event__sequence=sql,
        event__delete_when=sql,
        dimension={"key": ["user_id"]},
        gold=None,
    )
    found = {one.path for one in violations(tmp_path, dimension)}
    assert found == {"event.sequence", "event.delete_when"}
    condition = {"row_condition": "day = current_date", "condition_parser": "spark"}
    rule = {
        "type": "expect_column_values_to_not_be_null",
        "kwargs": {"column": "day", **condition},
    }
    (tmp_path / "suite.yml").write_text(yaml.safe_dump({"name": "s", "expectations": [rule]}))
    with pytest.raises(ConfigError, match=r"expectations\[0\].kwargs.row_condition.*current_date"):
        load_suite(tmp_path / "suite.yml", columns=None, gold=None)


@pytest.mark.parametrize("part", ["gold", "joins"])
def test_two_tables_of_one_name_are_refused(tmp_path: Path, part: str) -> None:
    raw = changed()
    other = raw["gold"][0] if part == "gold" else {**JOIN, "name": "per_minute"}
    raw.setdefault(part, [])
    raw[part] = [*raw[part], other]
    (violation,) = violations(tmp_path, yaml.dump(raw, Dumper=yaml.SafeDumper))
    assert "per_minute is already the name of gold[0]" in violation.message


@pytest.mark.parametrize(
    ("change", "path", "message"),
    [
        ({"within": "0 minutes"}, "joins[0].within", "longer than 0"),
        ({"type": "outer"}, "joins[0].type", "left, inner"),
        ({"on": []}, "joins[0].on", "at least one"),
        ({"on": ["usr_id"]}, "joins[0].on[0]", "did you mean user_id?"),
        ({"on": ["user_id", "user_id"]}, "joins[0].on", "a column twice"),
        ({"left": {"columns": {"then_at": "n"}}}, "joins[0].right.columns.then_at", "already"),
        ({"left": {"columns": {"a": "m"}}}, "joins[0].left.columns.a", "unknown column m"),
        ({"left": {"where": "m", "columns": {"a": "n"}}}, "joins[0].left.where", "unknown column"),
    ],
)
def test_a_broken_join_is_named(
    tmp_path: Path, change: dict[str, Any], path: str, message: str
) -> None:
    (violation,) = violations(tmp_path, changed(gold=None, joins=[{**JOIN, **change}]))
    assert violation.path == path
    assert message in violation.message


def test_another_pipelines_columns_are_not_judged_here(tmp_path: Path) -> None:
    right = {"pipeline": "other", "columns": {"b": "theirs"}}
    raw = changed(gold=None, joins=[{**JOIN, "right": right}])
    assert load_pipeline(write(tmp_path, raw), LAPTOP).joins[0].right.pipeline == "other"


@pytest.mark.parametrize(
    ("right", "on", "path", "message"),
    [
        ({"where": "n > 0"}, ["code"], "joins[0].right.where", "unknown column n (known: "),
        ({"where": "code"}, ["code"], "joins[0].right.where", "is BIGINT; write a condition"),
        (
            {"columns": {"b": "colur"}},
            ["code"],
            "joins[0].right.columns.b",
            "did you mean colour?",
        ),
        ({}, ["n"], "joins[0].on[0]", "other has no column n, and on names columns of both sides"),
        ({}, ["flag"], "joins[0].on[0]", "flag is BOOLEAN, other's flag is TIMESTAMP; cast one"),
        # Its columns of a dimension have types that are not read here.
        ({"columns": {"b": "category"}, "where": "category"}, ["code"], None, None),
        ({"columns": {"b": "is_late", "c": "colour"}}, ["code"], None, None),
    ],
)
def test_a_join_with_another_pipeline_is_checked_against_its_silver(
    tmp_path: Path, right: dict[str, Any], on: list[str], path: str | None, message: str | None
) -> None:
    select = {"code": "CAST(n AS BIGINT)", "colour": "action", "flag": "event_time"}
    # Two pipelines may join each other.
    back = {"pipeline": "shop", "columns": {"c": "event_id"}}
    theirs = {
        **changed(name="other", gold=None, event__select=select),
        "enrich": [ENRICH | {"on": {"colour": "product_id"}}],
        "joins": [{**JOIN, "name": "back", "on": ["code"], "right": back}],
    }
    (tmp_path / "other.yml").write_text(yaml.safe_dump(theirs, sort_keys=False))
    own = {"code": "n", "n": "n", "flag": "n > 0"}
    joined = {**JOIN, "on": on, "right": {"columns": {"b": "colour"}, "pipeline": "other"} | right}
    raw = changed(gold=None, event__select=own, joins=[joined])
    if path is None or message is None:
        assert load_pipeline(write(tmp_path, raw), LAPTOP).joins[0].right.pipeline == "other"
        return
    (violation,) = violations(tmp_path, raw)
    assert violation.path == path
    assert message in violation.message


def test_the_other_pipeline_of_a_join_is_in_the_folder_and_valid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "conf" / "pipelines"
    folder.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)

    def named(pipeline: str) -> str:
        right = {"pipeline": pipeline, "columns": {"b": "user_id"}}
        (violation,) = violations(folder, changed(gold=None, joins=[{**JOIN, "right": right}]))
        assert violation.path == "joins[0].right.pipeline"
        return violation.message

    (folder / "orders.yml").write_text(yaml.safe_dump(changed(name="sales")))
    assert "there is no pipeline 'ordrs'; did you mean orders?" in named("ordrs")
    assert "sales is not the file's name, orders; rename the file" in named("orders")
    (folder / "orders.yml").write_text(yaml.safe_dump(changed(name="orders", event__id="gone")))
    assert "unknown column gone" in named("orders")
    # What leaves the columns that a join reads does not stop the pipeline that reads them.
    right = {"pipeline": "orders", "columns": {"b": "user_id"}}
    joined = changed(gold=None, joins=[{**JOIN, "right": right}])
    for broken in ({"quality": {"suite": "expectations/gone.yml"}}, {"source": {"kind": "gone"}}):
        (folder / "orders.yml").write_text(yaml.safe_dump(changed(name="orders", **broken)))
        assert load_pipeline(write(folder, joined), LAPTOP).joins


def test_a_misspelt_select_makes_no_column_unknown(tmp_path: Path) -> None:
    raw = changed(
        event__selekt={"who": "user_id"},
        gold__0__keys=["who"],
        gold__0__where="who > 'a'",
        quality={"rules": {"known": "who IS NOT NULL"}},
    )
    (violation,) = violations(tmp_path, raw)
    assert violation.path == "event.selekt"
    assert "unknown key; did you mean select?" in violation.message
    # Another unknown key hides nothing.
    raw["event"]["evoltion"] = raw["event"].pop("selekt")
    found = {one.path for one in violations(tmp_path, raw)}
    assert found == {"event.evoltion", "gold[0].keys[0]", "gold[0].where", "quality.rules.known"}


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (
            "coalesce(user_id, action)",
            "a key is a column: add it to event.select, such as "
            "`a_name: coalesce(user_id, action)`",
        ),
        ("usr_id", "unknown column usr_id; did you mean user_id?"),
        ("user_id)", "unknown column user_id)"),
    ],
)
def test_a_key_that_is_an_expression_is_to_become_a_column(
    tmp_path: Path, key: str, message: str
) -> None:
    (violation,) = violations(tmp_path, changed(gold__0__keys=[key]))
    assert violation.path == "gold[0].keys[0]"
    assert message in violation.message


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("in/*.gz", 1),
        ("in/day=?", 1),
        ("in/{a,b}", 1),
        ("${root}/in/*", 1),
        # The names of a folder and of a file.
        ("in/{b,c}", 0),
        ("in/c*", 0),
        # A folder that is yet to be made.
        ("in/a [1] {b}", 0),
        ("in", 0),
        ("in/[ab]", 0),
        (["in/*.gz"], 1),
        (["in/c*"], 0),
        # A store's own message names the characters.
        ("s3://logs/access/year=*", 1),
    ],
)
def test_a_path_that_is_a_pattern_is_refused_unless_something_has_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str | list[str], found: int
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in" / "{b,c}").mkdir(parents=True)
    (tmp_path / "in" / "c*").touch()
    raw = changed(source__path=path)
    if not found:
        assert load_pipeline(write(tmp_path, raw), LAPTOP).name == "shop"
        return
    told = violations(tmp_path, raw)
    assert [one.path for one in told] == ["source.path"] * found
    message = "patterns are not expanded; name the folder, it is read whole"
    if path == "s3://logs/access/year=*":
        message = "use letters, digits and . _ - = between slashes"
    assert message in told[0].message
    # The path of the file is not used.
    assert load_pipeline(write(tmp_path, raw), LAPTOP, source="elsewhere").name == "shop"


def test_a_projects_and_a_roots_folder_may_have_the_name_of_a_pattern(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither has a landing folder before the first file arrives."""
    project = tmp_path / "what now?"
    (project / "conf").mkdir(parents=True)
    (project / "tidelake.yml").write_text("conf: conf\n")
    monkeypatch.chdir(project)
    environment = Environment(name="local", root=project / "{a,b}*")
    for path in ("${landing}/orders", "${root}/in", "in"):
        raw = write(project, changed(source__path=path))
        assert load_pipeline(raw, environment).name == "shop"


def test_a_dimension_a_prefilter_and_an_unknown_column_are_named_at_once(tmp_path: Path) -> None:
    raw = changed(
        event__id="record_id",
        dedup={"prefilter": "operator"},
        enrich=[{**ENRICH, "dimension": "product"}],
        gold__0__where="no_column = 1",
    )
    paths = {one.path for one in violations(tmp_path, raw)}
    assert paths == {"dedup.prefilter", "enrich[0].dimension", "gold[0].where"}


@pytest.mark.parametrize(
    ("change", "path", "message"),
    [
        ({"on": {"actoin": "product_id"}}, "enrich[0].on.actoin", "did you mean action?"),
        ({"as_of": "tomorrow"}, "enrich[0].as_of", "unknown column"),
        ({"as_of": "n"}, "enrich[0].as_of", "n is INT, no time; name a column of event.select"),
        ({"columns": ["user_id"]}, "enrich[0].columns[0]", "already"),
        ({"columns": ["catgory"]}, "enrich[0].columns[0]", "did you mean category?"),
        ({"on": {"action": "category"}}, "enrich[0].on", "key column of products: product_id"),
        ({"dimension": "product"}, "enrich[0].dimension", "did you mean products?"),
        ({"dimension": "flights"}, "enrich[0].dimension", "of kind events"),
        (
            {
                "dimension": "airlines",
                "on": {"action": "carrier"},
                "columns": ["airline"],
                "as_of": "event_time",
            },
            "enrich[0].as_of",
            "history: true in airlines",
        ),
    ],
)
def test_a_broken_enrichment_is_named(
    tmp_path: Path, change: dict[str, Any], path: str, message: str
) -> None:
    (violation,) = violations(tmp_path, changed(enrich=[{**ENRICH, **change}]))
    assert violation.path == path
    assert message in violation.message


@pytest.mark.parametrize("sql", ["event_time", "action", "CAST(n AS DATE)", "n + 0.5"])
def test_a_lookup_is_as_of_a_time_or_what_only_spark_knows(tmp_path: Path, sql: str) -> None:
    select = {"action": "action", "moment": sql}
    raw = changed(event__select=select, gold=None, enrich=[{**ENRICH, "as_of": "moment"}])
    assert load_pipeline(write(tmp_path, raw), LAPTOP).enrich[0].as_of == "moment"


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("shop", "events", "shop is a pipeline of kind events; name one of kind dimension"),
        ("other", "events", "other is a pipeline of kind events; name one of kind dimension"),
        ("other", "dimension", "enrich (line 1): is allowed with kind: events only"),
    ],
)
def test_an_enrichment_that_leads_back_to_its_file_is_named(
    tmp_path: Path, name: str, kind: str, message: str
) -> None:
    back = {"dimension": "shop", "on": {"action": "n"}, "columns": ["colour"]}
    of_kind = {"kind": kind, "dimension": {"key": ["n"]}} if kind == "dimension" else {}
    event = GOOD["event"] | ({"sequence": "n"} if of_kind else {})
    other = {"enrich": [back], **changed(name="other", gold=None), **of_kind, "event": event}
    (tmp_path / "other.yml").write_text(yaml.safe_dump(other, sort_keys=False))
    (violation,) = violations(tmp_path, changed(enrich=[back | {"dimension": name}]))
    assert violation.path == "enrich[0].dimension"
    assert message in violation.message


def test_gold_may_use_enriched_columns(tmp_path: Path) -> None:
    raw = changed(enrich=[ENRICH], gold__0__keys=["category"])
    assert load_pipeline(write(tmp_path, raw), LAPTOP).gold[0].keys == ("category",)


def test_a_dimension_needs_a_key_and_an_order_and_no_gold(tmp_path: Path) -> None:
    found = violations(tmp_path, changed(kind="dimension"))
    assert {violation.path for violation in found} == {"dimension", "event.sequence", "gold"}
    good = changed(kind="dimension", gold=None, dimension={"key": ["n"]}, event__sequence="n")
    pipeline = load_pipeline(write(tmp_path, good), LAPTOP)
    assert pipeline.dimension is not None
    assert pipeline.dimension.history
    assert pipeline.gold_names == ("dim.shop", "dim.shop__history")


@pytest.mark.parametrize(
    ("change", "path", "message"),
    [
        ({"dimension": {"key": ["m"]}}, "dimension.key[0]", "unknown column m"),
        ({"dimension": {"key": ["n", "n"]}}, "dimension.key", "names a column twice"),
        ({"event__select": {"valid_to": "n", "n": "n"}}, "event.select.valid_to", "reserved"),
        ({"enrich": [ENRICH]}, "enrich", "kind: events only"),
    ],
)
def test_a_broken_dimension_is_named(
    tmp_path: Path, change: dict[str, Any], path: str, message: str
) -> None:
    good = {"kind": "dimension", "gold": None, "dimension": {"key": ["n"]}, "event__sequence": "n"}
    (violation,) = violations(tmp_path, changed(**good | change))
    assert violation.path == path
    assert message in violation.message


def test_a_dimension_has_the_name_by_which_it_is_looked_up(tmp_path: Path) -> None:
    event = {**GOOD["event"], "select": {"colour": "action", "n": "n"}, "sequence": "n"}
    goods = changed(name="goods", kind="dimension", gold=None, dimension={"key": ["n"]})
    (tmp_path / "products.yml").write_text(yaml.safe_dump(goods | {"event": event}))
    looked_up = {"dimension": "products", "on": {"n": "n"}, "columns": ["colour"]}
    (violation,) = violations(tmp_path, changed(enrich=[looked_up]))
    assert violation.path == "enrich[0].dimension"
    assert "products.yml: goods is not the file's name, products; rename" in violation.message
    # By its path, as a version of it, the file is a pipeline as any other.
    assert load_pipeline(str(tmp_path / "products.yml"), LAPTOP).name == "goods"


def test_a_dimension_beside_the_pipeline_comes_before_the_reference(tmp_path: Path) -> None:
    event = {**GOOD["event"], "select": {"colour": "action", "n": "n"}, "sequence": "n"}
    mine = changed(name="products", kind="dimension", gold=None, dimension={"key": ["n"]})
    (tmp_path / "products.yml").write_text(yaml.safe_dump(mine | {"event": event}))
    looked_up = {"dimension": "products", "on": {"n": "n"}, "columns": ["colour"]}
    pipeline = load_pipeline(write(tmp_path, changed(enrich=[looked_up])), LAPTOP)
    assert pipeline.defined_columns == ("user_id", "action", "n", "colour")
    assert pipeline.dimensions["products"].selected["_is_delete"] == "false"


@pytest.mark.parametrize(
    ("key", "is_refused"),
    [
        ("CAST(n AS DECIMAL(9,2))", False),
        ("CAST(n AS STRING)", False),
        ("CAST(action AS DATE)", True),
        ("n > 0", True),
    ],
)
def test_a_lookup_by_a_value_of_another_kind_of_type_is_refused(
    tmp_path: Path, key: str, is_refused: bool
) -> None:
    event = {**GOOD["event"], "select": {"colour": "action", "k": key}, "sequence": "n"}
    mine = changed(name="products", kind="dimension", gold=None, dimension={"key": ["k"]})
    (tmp_path / "products.yml").write_text(yaml.safe_dump(mine | {"event": event}))
    raw = changed(enrich=[{"dimension": "products", "on": {"n": "k"}, "columns": ["colour"]}])
    if not is_refused:
        assert load_pipeline(write(tmp_path, raw), LAPTOP).enrich
        return
    (violation,) = violations(tmp_path, raw)
    assert violation.path == "enrich[0].on.n"
    assert re.search(r"n is \w+, products's k is \w+; cast one of them", violation.message)


def test_a_workspaces_secret_without_its_key_is_refused(tmp_path: Path) -> None:
    options = {"kafka.client.rack": "secret:shop"}
    source = {"kind": "kafka", "bootstrap": "h:1", "topic": "t", "options": options}
    (violation,) = violations(tmp_path, changed(source=source))
    assert "secret:SCOPE/KEY" in violation.message


@pytest.mark.parametrize("name", ["kafka.sasl.jaas.config", "kafka.ssl.keystore.key"])
def test_a_secret_among_kafkas_options_is_refused_and_not_shown(tmp_path: Path, name: str) -> None:
    options = {name: "password=hunter2"}
    source = {"kind": "kafka", "bootstrap": "h:1", "topic": "t", "options": options}
    (violation,) = violations(tmp_path, changed(source=source))
    assert violation.path == "source.options"
    assert "env:NAME" in violation.message
    assert "hunter2" not in str(violation)


def test_the_address_of_tokens_is_no_secret(tmp_path: Path) -> None:
    options = {"kafka.sasl.oauthbearer.token.endpoint.url": "https://login.example/token"}
    source = {"kind": "kafka", "bootstrap": "h:1", "topic": "t", "options": options}
    assert load_pipeline(write(tmp_path, changed(source=source)), LAPTOP).source == KafkaSource(
        kind="kafka", bootstrap="h:1", topic="t", options=options
    )


def test_each_option_that_is_refused_is_named_at_once(tmp_path: Path) -> None:
    options = {"kafka.ssl.key.password": "x", "acks": "all", "subscribe": "x"}
    source = {"kind": "kafka", "bootstrap": "h:1", "topic": "t", "options": options}
    found = [one.message for one in violations(tmp_path, changed(source=source))]
    assert [message.split(maxsplit=2)[1] for message in found] == list(options)


def test_a_key_of_another_section_hides_no_problem(tmp_path: Path) -> None:
    gold = {
        "name": "a",
        "window": {"kind": "global"},
        "keys": ["nope"],
        "measures": {"n": {"count": "*"}},
    }
    found = violations(
        tmp_path, changed(gold=[gold | {"rules": {}}], event__rules={"a": "n > 0"}, event__time="x")
    )
    told = {one.path for one in found}
    assert {"gold[0].rules", "gold[0].keys[0]", "event.rules", "event.time"} <= told


def test_a_rule_of_another_form_hides_no_problem_of_the_others(tmp_path: Path) -> None:
    rules = {"a": "n >", "b": "n + 1", "c": {"sql": "n > 0", "severity": "info"}}
    found = violations(tmp_path, changed(quality={"rules": rules}))
    assert {one.path for one in found} == {
        "quality.rules.a",
        "quality.rules.b",
        "quality.rules.c.severity",
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("# nothing\n", "is empty"),
        ("- a\n", "not a mapping"),
        ("name\n", "not a mapping"),
        ("name: [a\n", "is not YAML"),
        ("name:\n\tfirst: a\n", "write blanks, not tabs"),
        ("name: *nobody\n", "is not YAML"),
        ("a: 1\n---\nb: 2\n", "is not YAML"),
        ("name: !!python/object:os.system x\n", "is not YAML"),
        ("name: a\x00b\n", "is not YAML"),
        ("name: !!int ''\n", "is not YAML"),
        ("name: &a [*a]\n", "refers to itself"),
    ],
)
def test_a_file_that_is_no_mapping_is_refused_without_a_trace(
    tmp_path: Path, text: str, message: str
) -> None:
    (violation,) = violations(tmp_path, text)
    assert message in violation.message


def nested_aliases(levels: int, *, merged: bool = False) -> str:
    """Write a list of which each level repeats the one before nine times."""
    first = "a0: &a0 {x: 1}\n" if merged else "a0: &a0 [x, x, x]\n"
    once = "{<<: [%s]}" if merged else "[%s]"
    return first + "".join(
        f"a{level}: &a{level} {once % ', '.join([f'*a{level - 1}'] * 9)}\n"
        for level in range(1, levels)
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(nested_aliases(7), "more than 1 MiB of text by aliases", id="lists"),
        pytest.param(nested_aliases(30), "more than 1 MiB of text by aliases", id="many lists"),
        pytest.param(
            nested_aliases(30, merged=True), "more than 1 MiB of text by aliases", id="merged keys"
        ),
        pytest.param(
            f"a: &a {'x' * 200_000}\nb: [{', '.join(['*a'] * 1000)}]\n",
            "more than 1 MiB of text by aliases",
            id="a long text",
        ),
        pytest.param("a: " + "[" * 200_000, "nested more than 50 levels", id="flow lists"),
        pytest.param("a: " + "[" * 60 + "]" * 60, "nested more than 50 levels", id="60 levels"),
        pytest.param(
            "".join(f"{' ' * level}a:\n" for level in range(500)),
            "nested more than 50 levels",
            id="block mappings",
        ),
        pytest.param("a: " + "x" * (1 << 20), "larger than 1 MiB", id="a huge file"),
        pytest.param("a: 1" + ":10" * 100_000, "number of 300001 characters", id="base 60"),
        pytest.param("a: 1" + ":10" * 400 + ".5", "number of 1203 characters", id="base 60 float"),
        pytest.param("a: " + "9" * 5000, "number of 5000 characters", id="digits"),
    ],
)
def test_a_small_file_cannot_grow_without_bound(tmp_path: Path, text: str, message: str) -> None:
    begun = time.process_time()
    (violation, *_) = violations(tmp_path, text)
    assert message in violation.message
    assert time.process_time() - begun < 5
    # Suites and environments are read by the same reader.
    (tmp_path / "suite.yml").write_text(text)
    with pytest.raises(ConfigError, match=re.escape(message)):
        load_suite(tmp_path / "suite.yml", columns=None, gold=None)


def test_an_alias_repeats_what_it_names(tmp_path: Path) -> None:
    text = Path(write(tmp_path, GOOD)).read_text()
    text = text.replace("keys:\n  - user_id", "keys: &keys [user_id]")
    gold = yaml.safe_load(text)["gold"][0]
    again = (
        text
        + "joins:\n- {name: pairs, 'on': *keys, within: 30 minutes,\n"
        + (
            "   left: {columns: {at: event_time}},\n"
            "   right: {pipeline: shop, columns: {then_at: event_time}}}\n"
        )
    )
    assert gold["keys"] == ["user_id"]
    assert load_pipeline(write(tmp_path, again), LAPTOP).joins[0].on == ("user_id",)


def test_an_endless_file_is_refused() -> None:
    with pytest.raises(ConfigError, match="larger than 1 MiB"):
        load_suite(Path("/dev/zero"), columns=None, gold=None)


def test_a_key_given_twice_is_refused(tmp_path: Path) -> None:
    text = Path(write(tmp_path, GOOD)).read_text() + "name: other\n"
    (violation,) = violations(tmp_path, text)
    assert violation.path == "name"
    assert "appears twice (lines 1 and" in violation.message


def test_an_unquoted_on_is_told_to_be_quoted(tmp_path: Path) -> None:
    text = Path(write(tmp_path, changed(joins=[JOIN]))).read_text()
    assert "'on':" in text
    (violation,) = violations(tmp_path, text.replace("'on':", "on:"))
    assert violation.path == "joins[0].on"
    assert 'write "on"' in violation.message


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read .*none\.yml"):
        load_pipeline(str(tmp_path / "none.yml"), LAPTOP)
    (tmp_path / "latin.yml").write_bytes("name: é".encode("latin-1"))
    with pytest.raises(ConfigError, match="UTF-8"):
        load_pipeline(str(tmp_path / "latin.yml"), LAPTOP)


def test_an_unknown_pipeline_names_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"did you mean clickstream\?.*clickstream, flights"):
        load_pipeline("clikstream", LAPTOP)


def test_in_a_catalog_the_volume_stands_for_the_root(tmp_path: Path) -> None:
    cloud = CLOUD.model_copy(update={"volume": Path("/Volumes/a/b/c")})
    source = load_pipeline(write(tmp_path, GOOD), cloud).source
    assert isinstance(source, FilesSource)
    assert source.paths[0].startswith("/Volumes/a/b/c/")
    with pytest.raises(ConfigError, match="catalog tidelake"):
        load_pipeline(write(tmp_path, GOOD), CLOUD)
    pipeline = load_pipeline(write(tmp_path, GOOD), CLOUD, source="/Volumes/landing")
    assert isinstance(pipeline.source, FilesSource)
    assert pipeline.source.path == "/Volumes/landing"


def test_the_folder_of_input_files_stands_for_landing(tmp_path: Path) -> None:
    file = write(tmp_path, changed(source__path="${landing}/clicks"))
    for environment, path in (
        (LAPTOP, "/lake/landing/clicks"),
        (CLOUD, "/Volumes/tidelake/bronze/landing/clicks"),
        (CLOUD.model_copy(update={"landing": "/in"}), "/in/clicks"),
    ):
        source = load_pipeline(file, environment).source
        assert isinstance(source, FilesSource)
        assert source.path == path


def test_a_source_may_be_a_list_of_paths(tmp_path: Path) -> None:
    for given, paths in (
        (["${root}/de", "/l/at", "/l/at-2"], ("/lake/de", "/l/at", "/l/at-2")),
        (["s3://one/a", "s3://one/ab/"], ("s3://one/a", "s3://one/ab/")),
        (["/l/de"], ("/l/de",)),
    ):
        source = load_pipeline(write(tmp_path, changed(source__path=given)), LAPTOP).source
        assert isinstance(source, FilesSource)
        assert source.paths == paths
    file = write(tmp_path, changed(source__path=["/a", "/b"]))
    source = load_pipeline(file, LAPTOP, source="/c").source
    assert isinstance(source, FilesSource)
    assert source.path == "/c"


def test_a_folder_may_stand_in_for_a_topic(tmp_path: Path) -> None:
    kafka = {"kind": "kafka", "bootstrap": "h:1", "topic": "clicks", "min_partitions": 2}
    source = load_pipeline(write(tmp_path, changed(source=kafka)), LAPTOP, source="/x").source
    assert isinstance(source, FilesSource)
    assert source.path == "/x"


def test_a_source_without_a_path_cannot_be_overridden(tmp_path: Path) -> None:
    file = write(tmp_path, changed(source={"kind": "rate"}))
    with pytest.raises(UsageError, match="source of kind rate"):
        load_pipeline(file, LAPTOP, source="/x")


@pytest.mark.parametrize("evolution", ["strict", "additive", "rescue"])
def test_each_evolution_is_built(tmp_path: Path, evolution: str) -> None:
    pipeline = load_pipeline(write(tmp_path, changed(event__evolution=evolution)), LAPTOP)
    assert pipeline.event.evolution == evolution


def test_the_columns_of_a_transform_are_columns_of_silver(tmp_path: Path) -> None:
    transform = {"function": "not.there:yet", "columns": "risk STRING, n DOUBLE"}
    raw = changed(
        transform=transform,
        gold__0__keys=["risk"],
        gold__0__measures={"total": {"sum": "n"}},
        comments={"risk": "How sure we are."},
    )
    pipeline = load_pipeline(write(tmp_path, raw), LAPTOP)
    assert pipeline.defined_columns == ("user_id", "action", "n", "risk")
    types = silver_types(pipeline)
    assert (types["risk"], types["n"], types["action"]) == ("STRING", "DOUBLE", "STRING")
    bare = load_pipeline(write(tmp_path, changed()), LAPTOP)
    commit = SimpleNamespace(note=silver_note(bare))
    assert changed_parts(commit, pipeline).rules == ("transform",)  # type: ignore[arg-type]


def test_a_key_of_a_dimension_cannot_be_replaced(tmp_path: Path) -> None:
    raw = changed(
        kind="dimension",
        gold=None,
        event__sequence="n",
        dimension={"key": ["user_id"]},
        transform={"function": "m:f", "columns": "user_id STRING"},
    )
    (found,) = violations(tmp_path, raw)
    assert (found.path, "cannot be replaced" in found.message) == ("transform.columns", True)


def test_the_prefilter_is_built(tmp_path: Path) -> None:
    raw = changed(dedup={"prefilter": "operator"})
    assert load_pipeline(write(tmp_path, raw), LAPTOP).dedup.prefilter == "operator"


def test_a_suite_may_judge_the_table_of_a_join(tmp_path: Path) -> None:
    def with_column(column: str) -> Path:
        known, rule = (
            {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": name}}
            for name in ("event_id", column)
        )
        suite = {"name": "s", "expectations": [known], "gold": {"pairs": [rule]}}
        (tmp_path / "s.yml").write_text(yaml.safe_dump(suite))
        return write(tmp_path, changed(joins=[JOIN], quality={"suite": "s.yml"}))

    found = load_pipeline(with_column("then_at"), LAPTOP)
    assert found.suite is not None and list(found.suite.gold) == ["pairs"]
    with pytest.raises(ConfigError, match="unknown column then; did you mean then_at"):
        load_pipeline(with_column("then"), LAPTOP)


def test_a_suite_that_is_not_there_is_named_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"quality\.suite \(line \d+\): there is no file s\.yml"):
        load_pipeline(write(tmp_path, changed(quality={"suite": "s.yml"})), LAPTOP)


def test_files_beside_the_pipelines_are_found_from_within_their_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "conf" / "pipelines"
    folder.mkdir(parents=True)
    (tmp_path / "conf" / "schema.avsc").write_text('"string"')
    source = {"kind": "kafka", "bootstrap": "h:1", "topic": "t", "format": "avro"}
    write(folder, changed(source=source | {"schema": "schema.avsc"}))
    monkeypatch.chdir(folder)
    for path in ("shop.yml", "./shop.yml", "../pipelines/shop.yml"):
        assert load_pipeline(path, LAPTOP).avro_schema == '"string"'


def test_a_field_hides_a_column_of_bronze_in_any_case() -> None:
    fields = {"schema": "Key BIGINT, Source INT", "id": "key", "time": "ingested_at"}
    types = payload_types(Event.model_validate(fields))
    assert {name: types[name] for name in ("Key", "Source")} == {"Key": "BIGINT", "Source": "INT"}
    assert not {"key", "source"} & types.keys()
    # A comparison of a text with a number may fail, and keeps its guard.
    assert never_fails("key = 'x'", types) is None
    assert never_fails("record_id = 'x'", types) == "BOOLEAN"


def test_a_gold_table_names_its_columns_in_order(tmp_path: Path) -> None:
    windows = {
        "tumbling": {"kind": "tumbling", "size": "1 minute"},
        "hopping": {"kind": "hopping", "size": "5 minutes", "slide": "1 minute"},
        "session": {"kind": "session", "gap": "1 minute"},
        "global": {"kind": "global"},
    }
    found = {
        kind: load_pipeline(write(tmp_path, changed(gold__0__window=window)), LAPTOP)
        .gold[0]
        .columns
        for kind, window in windows.items()
    }
    assert found == {
        "tumbling": ("window_start", "window_end", "user_id", "events"),
        "hopping": ("window_start", "window_end", "user_id", "events"),
        "session": ("session_id", "session_start", "session_end", "user_id", "events"),
        "global": ("user_id", "events"),
    }


def test_alerts_are_taken_without_a_word(tmp_path: Path) -> None:
    alerts = {"lag_seconds": 300, "quarantine_rate": 0.02, "watermark_stuck": "10 minutes"}
    found = load_pipeline(write(tmp_path, changed(alerts=alerts)), LAPTOP).alerts
    assert (found.lag_seconds, found.quarantine_rate) == (300, 0.02)


@pytest.mark.parametrize(
    ("path", "archive", "message"),
    [
        ("in", "in/old", "outside of path"),
        ("in/new", "in/", "outside of path"),
        ("in", "in", "outside of path"),
        ("in", "s3://bucket/old", "on a disk if path is"),
        ("s3://bucket/in", "old", "on a store"),
        ("s3://bucket/in", "s3://bucket/in/old/", "outside of path"),
        ("s3://bucket/in", "s3://bucket", "write a prefix too"),
        ("in", "gs://bucket/old", "is not supported"),
        ("in", "inner", None),
        ("s3://bucket/in", "s3://bucket/old", None),
    ],
)
def test_an_archive_is_outside_of_the_source_and_on_the_same_kind_of_disk(
    tmp_path: Path, path: str, archive: str, message: str | None
) -> None:
    source = {"kind": "files", "path": path, "clean_source": "archive", "archive_dir": archive}
    found = violations(tmp_path, changed(source=source)) if message else ()
    if message:
        ((place, text),) = [(one.path, one.message) for one in found]
        assert place == "source.archive_dir"
        assert message in text
    else:
        load_pipeline(write(tmp_path, changed(source=source)), LAPTOP)


def test_another_folder_than_the_files_own_is_never_cleaned(tmp_path: Path) -> None:
    source = {"kind": "files", "path": "in", "clean_source": "archive", "archive_dir": "old"}
    file = write(tmp_path, changed(source=source))

    overridden = load_pipeline(file, LAPTOP, source="other").source

    assert overridden == FilesSource.model_validate({"kind": "files", "path": "other"})


def test_a_table_of_a_catalog_is_named_quoted_and_replaced_by_a_folder(tmp_path: Path) -> None:
    file = write(tmp_path, changed(source={"kind": "delta", "table": "my-lake.raw.orders"}))
    named = load_pipeline(file, LAPTOP).source
    assert isinstance(named, DeltaSource)
    assert (named.sql, described(named)) == ("`my-lake`.`raw`.`orders`", "my-lake.raw.orders")
    assert named.paths == ()
    replaced = load_pipeline(file, LAPTOP, source="/in").source
    assert isinstance(replaced, DeltaSource)
    assert (replaced.table, replaced.paths) == (None, ("/in",))
