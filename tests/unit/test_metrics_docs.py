"""What is written about metrics and alerts, and the dashboard, against what there is."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.typed import problem_of
from tidelake.config import Alerts
from tidelake.config.environment import Metrics
from tidelake.config.standard_tables import PROGRESS_COLUMNS
from tidelake.ops.alerts import RULES
from tidelake.ops.metrics import EXPORTED

PROJECT = Path(__file__).parents[2]
METRICS = (PROJECT / "docs" / "metrics.md").read_text(encoding="utf-8")
ALERTS = (PROJECT / "docs" / "alerts.md").read_text(encoding="utf-8")
DASHBOARD = json.loads((PROJECT / "resources" / "grafana" / "tidelake.json").read_text())
RULE_FILE = yaml.safe_load((PROJECT / "resources" / "prometheus" / "rules.yml").read_text())
RULE_CASES = yaml.safe_load((PROJECT / "resources" / "prometheus" / "rules_test.yml").read_text())
_METRIC = re.compile(r"\btidelake_\w+")


def series() -> set[str]:
    """Give the names that a query may use."""
    found = set(EXPORTED)
    for name, one in EXPORTED.items():
        if one.kind == "histogram":
            found |= {f"{name}_{part}" for part in ("bucket", "sum", "count")}
    return found


def queries() -> Iterator[str]:
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            yield target["expr"]
    for variable in DASHBOARD["templating"]["list"]:
        yield variable.get("definition", "")


def test_the_table_of_metrics_is_what_is_exported() -> None:
    written = [line for line in METRICS.splitlines() if line.startswith("| `tidelake_")]
    assert written == [
        f"| `{name}` | {one.kind} | {', '.join(one.labels)} | {one.meaning} |"
        for name, one in EXPORTED.items()
    ]


def test_metrics_are_named_as_prometheus_wants_them() -> None:
    for name, one in EXPORTED.items():
        assert name.endswith("_total") == (one.kind == "counter"), name
        assert not re.search(r"(millis|_ms|_minutes)", name)


def test_each_column_of_the_table_is_explained_or_names_itself() -> None:
    plain = {"pipeline", "hop", "generation", "batch"}
    told = set(re.findall(r"`(\w+)`", METRICS))
    assert set(PROGRESS_COLUMNS) - plain - told == set()


def test_each_key_of_the_environment_is_explained() -> None:
    assert {f"metrics.{key}" for key in Metrics.model_fields} <= set(
        re.findall(r"^\| `(metrics\.\w+)` \|", METRICS, re.MULTILINE)
    )


def test_the_dashboard_asks_for_what_is_exported_and_for_all_of_it() -> None:
    asked = {name for query in queries() for name in _METRIC.findall(query)}
    assert asked - series() == set()
    shown = {re.sub(r"_(bucket|sum|count)$", "", name) for name in asked}
    assert set(EXPORTED) - shown == set()


def test_the_dashboard_groups_by_labels_that_there_are() -> None:
    labels = {label for one in EXPORTED.values() for label in one.labels} | {"le"}
    for query in queries():
        for group in re.findall(r"by \(([^)]*)\)", query):
            assert {label.strip() for label in group.split(",")} <= labels
        for label in re.findall(r"[{,](\w+)(?:=~|!=|=)", query):
            assert label in labels, query


def test_grafana_takes_the_dashboard() -> None:
    assert DASHBOARD["schemaVersion"] >= 36 and DASHBOARD["uid"] == "tidelake"
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        assert panel["description"] and panel["targets"]
        # Whoever imports it chooses the data source.
        assert {one["datasource"]["uid"] for one in panel["targets"]} == {"${source}"}
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken and max(x for x, _ in cells) < 24
        taken |= cells


def test_the_example_rules_ask_for_what_is_exported() -> None:
    rules = [rule for group in RULE_FILE["groups"] for rule in group["rules"]]
    for rule in rules:
        assert set(_METRIC.findall(rule["expr"])) <= series()
        typed = re.sub(r"\{\{.*?\}\}", "PIPELINE", rule["annotations"]["command"])
        assert problem_of(typed) == ""


def test_each_example_rule_has_a_case_where_it_speaks_and_one_where_it_is_silent() -> None:
    cases = [case for group in RULE_CASES["tests"] for case in group["alert_rule_test"]]
    for rule in (rule for group in RULE_FILE["groups"] for rule in group["rules"]):
        told = {bool(case["exp_alerts"]) for case in cases if case["alertname"] == rule["alert"]}
        assert told == {True, False}, rule["alert"]


def test_failures_are_not_asked_for_by_their_increase() -> None:
    # A run's first failure ends it: the series appears at 1 and never grows.
    exprs = [rule["expr"] for group in RULE_FILE["groups"] for rule in group["rules"]]
    for query in (*queries(), *exprs):
        assert not re.search(r"(increase|rate)\(tidelake_hop_failures_total", query)


def test_each_rule_has_a_row_and_a_paragraph_for_the_night() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (critical|warning)", ALERTS, re.MULTILINE)
    assert [rule for rule, _ in rows] == list(RULES)
    assert re.findall(r"^\*\*`(\w+)`\*\*", ALERTS, re.MULTILINE) == list(RULES)


def test_the_limits_are_those_of_the_model() -> None:
    found = dict(re.findall(r"\| `(\w+)`, ([^|]+) \|", ALERTS))
    told: dict[str, Any] = {name: text for name, text in found.items()}
    assert set(told) == set(Alerts.model_fields)
    defaults = Alerts()
    assert told["latency_seconds"] == "off" and defaults.latency_seconds is None
    assert float(told["lag_seconds"]) == defaults.lag_seconds
    for name in ("quarantine_rate", "late_rate"):
        assert float(told[name]) == getattr(defaults, name)
    for name in ("watermark_stuck", "batch_over_interval", "stale", "checkpoint_failing"):
        assert Alerts.model_validate({name: told[name]}) == defaults
