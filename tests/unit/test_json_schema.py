"""The schemas accept what loads, and refuse what an editor can know to be wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from pydantic import BeforeValidator

from tests.samples import land, order
from tests.unit.test_config_loading import ENRICH, GOOD, JOIN, LAPTOP, changed, write
from tests.unit.test_many_pipelines import ITEMS, ORDERS
from tidelake.cli import app
from tidelake.cli.exits import run_command
from tidelake.config import load_pipeline
from tidelake.config.document import read_document
from tidelake.config.expectations import SIGNATURES, load_suite
from tidelake.config.json_schema import FILE_KINDS, FileKind, _of, schema_of
from tidelake.errors import ConfigError

CONF = Path(__file__).parents[2] / "conf"
FOLDERS: dict[FileKind, str] = {
    "pipeline": "pipelines",
    "suite": "expectations",
    "environment": "environments",
}
FILES = [(kind, file) for kind, name in FOLDERS.items() for file in sorted((CONF / name).iterdir())]
_KAFKA = {"kind": "kafka", "bootstrap": "h:1", "topic": ["a", "b"]}
_REGISTRY = {"url": "https://r", "subject": "s", "credentials": "secret:scope/key"}
_BETWEEN = "expect_column_values_to_be_between"


def problems(kind: FileKind, content: object) -> list[str]:
    """Return the places of what is wrong, such as ``gold.0.name``."""
    found = Draft202012Validator(schema_of(kind)).iter_errors(content)
    return sorted({".".join(map(str, one.absolute_path)) for one in found})


def _window(**keys: Any) -> dict[str, Any]:
    return {"gold__0__window": keys}


def _measure(**body: Any) -> dict[str, Any]:
    return {"gold__0__measures": {"m": body}}


def _suite(*expectations: dict[str, Any], **keys: Any) -> dict[str, Any]:
    return {"name": "x", "expectations": list(expectations), **keys}


@pytest.mark.parametrize("kind", FILE_KINDS)
def test_each_schema_is_one_of_draft_2020_12(kind: FileKind) -> None:
    Draft202012Validator.check_schema(schema_of(kind))


@pytest.mark.parametrize(("kind", "file"), FILES, ids=lambda one: getattr(one, "stem", one))
def test_the_files_of_the_repository_are_valid(kind: FileKind, file: Path) -> None:
    assert problems(kind, read_document(file).content) == []


@pytest.mark.usefixtures("empty_folder")
def test_what_init_writes_is_valid() -> None:
    land(Path("events/a.jsonl"), [order(n) for n in range(60)])
    assert run_command(app, ["init", "shop", "--source", "events", "--yes"]) == 0
    assert problems("pipeline", read_document(Path("conf/pipelines/shop.yml")).content) == []
    assert problems("suite", read_document(Path("conf/expectations/shop.yml")).content) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"source": {"kind": "files", "path": ["/l/a", "/l/b"], "max_bytes_per_trigger": "1M"}},
        {"source": {"kind": "files", "path": "/l", "format": "csv", "csv": {"quote": None}}},
        {"source": {**_KAFKA, "options": {"kafka.check.crcs": False, "kafka.retries": 3}}},
        {"source": {**_KAFKA, "topic": "a", "format": "avro", "registry": _REGISTRY}},
        {"source": {"kind": "rate", "rows_per_second": 5}},
        {"watermark": {"delay": "90  SECONDS", "idle_after": "1 Minute"}},
        {"alerts": {"lag_seconds": 5, "late_rate": 0, "stale": None}},
        {"transform": {"function": "a.b:größe", "columns": "more INT"}},
        {"joins": [JOIN], "enrich": [ENRICH], "description": "Who", "comments": {"n": "How many"}},
        _window(kind="hopping", size="2 hours", slide="1 hour", offset="5 minutes"),
        _measure(approx_percentile="n", p=0.5),
        _measure(approx_percentile={"expression": "n", "p": 1}),
        _measure(approx_percentile={"expression": "n"}, p=0),
        {"gold__0__derive": {"rate": "events / 2"}},
        {"queries": [{"name": "q", "sql": "SELECT window_start FROM per_minute GROUP BY 1"}]},
        {
            "detections": [
                {
                    "name": "odd",
                    "features": "hours",
                    "keys": ["user_id"],
                    "unusual_amount": {"value": "n", "times": "2.5"},
                    "impossible_travel": {"latitude": "n", "longitude": "n", "kmh": "900"},
                }
            ]
        },
    ],
    ids=str,
)
def test_each_spelling_that_loads_is_valid(tmp_path: Path, changes: dict[str, Any]) -> None:
    content = changed(**changes)
    load_pipeline(write(tmp_path, content), LAPTOP)
    assert problems("pipeline", content) == []


def test_a_file_is_valid_without_what_its_folders_defaults_hold(tmp_path: Path) -> None:
    own = {"name": "shop", "source": {"path": "/l"}, "event": {"time": "event_time"}}
    defaults = {"source": {"kind": "files"}, "event": GOOD["event"], "gold": GOOD["gold"]}
    # A folder's defaults may not hold tables.
    own |= {"gold": defaults.pop("gold"), "quality": None}
    (tmp_path / "_defaults.yml").write_text(yaml.safe_dump(defaults))
    load_pipeline(write(tmp_path, own), LAPTOP)
    assert problems("pipeline", own) == problems("pipeline", defaults) == []


def test_a_file_for_many_pipelines_may_hold_parameters_wherever_it_has_texts(
    tmp_path: Path,
) -> None:
    items = [{"country": "de", "n": "1", "mode": "merge", "kind": "global"}]
    content = {
        **ORDERS,
        "for_each": items,
        "watermark": {"delay": "${n} hours"},
        "dedup": {"beyond_ttl": "${mode}"},
        "source": {"kind": "files", "path": "/l", "max_bytes_per_trigger": "${n}m"},
        "gold": [{**ORDERS["gold"][0], "window": {"kind": "${kind}"}}],
    }
    file = tmp_path / "orders.yml"
    file.write_text(yaml.safe_dump(content))
    load_pipeline(str(tmp_path / "orders_de.yml"), LAPTOP)
    assert problems("pipeline", content) == []
    assert problems("pipeline", ITEMS) == []


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"souce": {}}, ""),
        ({"name": "Shop"}, "name"),
        ({"name": "a__b"}, "name"),
        ({"kind": "event"}, "kind"),
        ({"source": {"kind": "kafka", "path": "/l"}}, "source"),
        ({"source": {"kind": "topic"}}, "source"),
        ({"source__max_files_per_trigger": "5"}, "source"),
        ({"event__evolution": "loose"}, "event.evolution"),
        ({"event__id": 1}, "event.id"),
        ({"event__select": {}}, "event.select"),
        ({"event__select": {"a-b": "n"}}, "event.select"),
        ({"watermark": {"delay": "10 mins"}}, "watermark.delay"),
        ({"watermark": {"delay": 10}}, "watermark.delay"),
        ({"dedup": {"beyond_ttl": "Merge"}}, "dedup.beyond_ttl"),
        ({"alerts": {"late_rate": 2}}, "alerts.late_rate"),
        ({"alerts": {"lag_seconds": "5"}}, "alerts.lag_seconds"),
        ({"gold": {}}, "gold"),
        ({"gold__0__name": None}, "gold.0"),
        ({"gold__0__key": ["n"]}, "gold.0"),
        ({"gold__0__keys": "n"}, "gold.0.keys"),
        (_window(kind="tumbling", sise="1 hour"), "gold.0.window"),
        (_window(kind="tumbling"), "gold.0.window"),
        ({"gold__0__measures": {}}, "gold.0.measures"),
        (_measure(summ="n"), "gold.0.measures.m"),
        ({"gold__0__derive": {"rate": 1}}, "gold.0.derive.rate"),
        ({"queries": [{"name": "q"}]}, "queries.0"),
        ({"queries": [{"name": "q", "sql": "SELECT 1", "keys": ["n"]}]}, "queries.0"),
        ({"gold__0__derive": {"_r": "n"}}, "gold.0.derive"),
        (_measure(sum="n", max="n"), "gold.0.measures.m"),
        (_measure(sum="n", p=0.5), "gold.0.measures.m"),
        (_measure(count=1), "gold.0.measures.m.count"),
        (_measure(approx_percentile="n", p=95), "gold.0.measures.m.p"),
        ({"joins": [{**JOIN, "type": "outer"}]}, "joins.0.type"),
        ({"enrich": [{**ENRICH, "columns": []}]}, "enrich.0.columns"),
        ({"transform": {"function": "a.b", "columns": "n INT"}}, "transform"),
        ({"for_each": [{"country": 1}]}, "for_each.0.country"),
    ],
    ids=str,
)
def test_what_is_wrong_is_refused_by_the_schema_and_by_the_loader(
    tmp_path: Path, changes: dict[str, Any], place: str
) -> None:
    content = changed(**changes)
    assert problems("pipeline", content) == [place]
    with pytest.raises(ConfigError):
        load_pipeline(write(tmp_path, content), LAPTOP)


@pytest.mark.parametrize(
    ("expectation", "place"),
    [
        ({"type": "expect_column_to_exit", "kwargs": {"column": "n"}}, "expectations.0.type"),
        ({"type": "expect_column_to_exist"}, "expectations.0"),
        ({"type": _BETWEEN, "kwargs": {"column": "n"}}, "expectations.0.kwargs"),
        ({"type": _BETWEEN, "kwargs": {"column": "n", "min": 1}}, "expectations.0.kwargs"),
        (
            {"type": _BETWEEN, "kwargs": {"column": "n", "min_value": 1, "mostly": 95}},
            "expectations.0.kwargs.mostly",
        ),
        (
            {"type": "expect_column_to_exist", "kwargs": {"column": "n"}, "severity": "info"},
            "expectations.0.severity",
        ),
    ],
    ids=str,
)
def test_what_is_wrong_in_a_suite_is_refused(
    tmp_path: Path, expectation: dict[str, Any], place: str
) -> None:
    content = _suite(expectation)
    assert set(problems("suite", content)) == {place}
    of_gold = _suite({"type": _BETWEEN, "kwargs": {"column": "n", "min_value": 1}})
    of_gold["gold"] = {"per_minute": [expectation]}
    assert problems("suite", of_gold) == [place.replace("expectations", "gold.per_minute")]
    with pytest.raises(ConfigError):
        load_suite(Path(write(tmp_path, content)), columns=None, gold=None)


def test_bounds_of_a_suite_may_be_dates_or_follow_the_time(tmp_path: Path) -> None:
    newest = {"column": "at", "min_value": {"$PARAMETER": "now - 1 day"}, "max_value": "2030-01-01"}
    table = {"type": "expect_column_max_to_be_between", "kwargs": newest}
    pairs = {"column_A": "a", "column_B": "b", "value_pairs_set": [["x", None]]}
    content = _suite(
        table,
        {"type": "expect_column_pair_values_to_be_in_set", "kwargs": pairs, "meta": {"why": 1}},
    )
    load_suite(Path(write(tmp_path, content)), columns=None, gold=None)
    assert problems("suite", content) == []


def test_every_expectation_is_known() -> None:
    known = schema_of("suite")["$defs"]["expectation"]["properties"]["type"]["enum"]
    assert known == list(SIGNATURES)


@pytest.mark.parametrize(
    ("content", "places"),
    [
        ({"name": "local", "root": "lake", "spark": {"a": 1, "b": True}}, []),
        ({"catalog": "main", "volume": None, "lineage": {"file": "x.jsonl"}}, []),
        ({"catalogue": "main"}, [""]),
        ({"root": 1, "locks": "never"}, ["locks", "root"]),
        ({"triggers": {"all": "10 seconds", "gold": "hourly"}}, ["triggers.gold"]),
        ({"limits": {"gold_bytes": 5}}, ["limits.gold_bytes"]),
        ({"metrics": {"table": "yes"}}, ["metrics.table"]),
    ],
    ids=str,
)
def test_environments_are_checked(content: dict[str, Any], places: list[str]) -> None:
    assert problems("environment", content) == places


def _inside(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        yield schema
    for one in schema.values() if isinstance(schema, dict) else schema:
        if isinstance(one, dict | list):
            yield from _inside(one)


@pytest.mark.parametrize("kind", FILE_KINDS)
def test_each_key_of_a_model_is_described(kind: FileKind) -> None:
    own = schema_of(kind)
    assert all(key["description"] for key in own["properties"].values())
    assert "``" not in json.dumps(own)


@pytest.mark.parametrize("kind", FILE_KINDS)
def test_patterns_are_those_of_editors_too(kind: FileKind) -> None:
    patterns = [one["pattern"] for one in _inside(schema_of(kind)) if "pattern" in one]
    for pattern in patterns:
        if isinstance(pattern, str):
            # Without flags, named groups, and the anchors of Python.
            assert re.search(r"\(\?[a-zA-Z<]|\\[AZ]", pattern) is None, pattern


def test_a_validator_that_accepts_other_forms_must_be_known() -> None:
    with pytest.raises(LookupError, match="does not know what str accepts"):
        _of(Annotated[str, BeforeValidator(str)], in_list=False)


@pytest.mark.parametrize("kind", FILE_KINDS)
def test_the_command_prints_a_schema(kind: FileKind, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(app, ["schema", kind]) == 0
    assert json.loads(capsys.readouterr().out) == schema_of(kind)
