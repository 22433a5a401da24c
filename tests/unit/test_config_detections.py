"""What may be written under ``detections``, and what is refused before Spark starts."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from tidelake.config import load_environment, load_pipeline
from tidelake.config.locations import find_file
from tidelake.errors import ConfigError

_LAPTOP = load_environment("local", root="/lake")
_PAYMENTS = yaml.safe_load(find_file("payments", "pipeline").read_text())


def _written(folder: Path, **changes: Any) -> str:
    """Write the payments with one detection changed; None takes a key away."""
    raw = copy.deepcopy(_PAYMENTS)
    del raw["quality"]
    for key, value in changes.items():
        if value is None:
            del raw["detections"][0][key]
        else:
            raw["detections"][0][key] = value
    file = folder / "payments.yml"
    file.write_text(yaml.safe_dump(raw))
    return str(file)


def test_a_detection_gives_two_gold_tables_and_hours_of_what_its_rules_need(tmp_path: Path) -> None:
    pipeline = load_pipeline(_written(tmp_path), _LAPTOP)
    assert pipeline.gold_names[1:] == ("gold.card_hours", "gold.payment_alerts")
    hours = pipeline.aggregates[-1]
    assert hours.columns[2:] == ("card_id", "events", "valued", "total", "last_place")
    alone = load_pipeline(
        _written(tmp_path, unusual_amount=None, impossible_travel=None, features="others"), _LAPTOP
    )
    assert alone.aggregates[-1].columns[2:] == ("card_id", "events")


@pytest.mark.parametrize(
    ("changes", "path", "message"),
    [
        ({"keys": ["card"]}, "keys[0]", "did you mean card_id?"),
        ({"keys": ["card_id", "card_id"]}, "keys[1]", "already a key of this table"),
        ({"columns": {"rule": "city"}}, "columns.rule", "reserved column of alerts"),
        ({"columns": {"a": "city", "A": "city"}}, "columns.a", "is twice in this table"),
        ({"columns": {"a": "citty"}}, "columns.a", "unknown column citty"),
        ({"unusual_amount": {"value": "amont"}}, "unusual_amount.value", "unknown column amont"),
        ({"unusual_amount": {"value": "amount", "times": 1}}, "unusual_amount.times", "than 1"),
        (
            {"unusual_amount": {"value": "amount", "times": "*"}},
            "unusual_amount.times",
            "must be a number",
        ),
        (
            {"unusual_amount": {"value": "amount", "times": 1.2345}},
            "unusual_amount.times",
            "must have at most 3 decimal places",
        ),
        (
            {
                "impossible_travel": {
                    "latitude": "latitude",
                    "longitude": "longitude",
                    "at_least_km": "*",
                }
            },
            "impossible_travel.at_least_km",
            "must be a number",
        ),
        *[
            (
                {"impossible_travel": {"latitude": "latitude", "longitude": "longitude", **limit}},
                f"impossible_travel.{next(iter(limit))}",
                message,
            )
            for limit, message in (
                ({"kmh": True}, "must be a number"),
                ({"kmh": float("inf")}, "must be a finite number"),
                ({"kmh": float("nan")}, "must be"),
                ({"at_least_km": True}, "must be a number"),
                ({"at_least_km": float("inf")}, "must be a finite number"),
            )
        ],
        ({"burst": {"events": 1}}, "burst.events", "at least 2"),
        ({"burst": {"within": "0 s"}}, "burst.within", "not a duration"),
        (
            {"impossible_travel": {"latitude": "lat", "longitude": "longitude"}},
            "impossible_travel.latitude",
            "unknown column lat",
        ),
        ({"features": "merchant_takings_1h"}, "features", "is already the name of gold[0]"),
        ({"features": "payment_alerts"}, "features", "is already the name of detections[0]"),
        ({"fast": {"topic": "a b", "pipeline": "p"}}, "fast.topic", "not a valid topic name"),
        (
            {"fast": {"topic": "a", "pipeline": "p", "refresh": "4999 milliseconds"}},
            "fast.refresh",
            "must be at least 5 seconds",
        ),
        (
            {"unusual_amount": None, "burst": None, "impossible_travel": None},
            "",
            "needs one of unusual_amount, burst, impossible_travel",
        ),
    ],
)
def test_a_broken_detection_is_named(
    tmp_path: Path, changes: dict[str, Any], path: str, message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_pipeline(_written(tmp_path, **changes), _LAPTOP)
    (violation,) = caught.value.violations
    assert violation.path == f"detections[0]{path and '.'}{path}"
    assert message in violation.message


@pytest.mark.parametrize(
    ("name", "what"),
    [
        *[(name, "features") for name in ("events", "Total", "last_place", "window_start")],
        *[(name, "alerts") for name in ("rule", "evidence", "event_time")],
    ],
)
def test_a_key_is_not_named_like_a_column_of_its_tables(
    tmp_path: Path, name: str, what: str
) -> None:
    file = Path(_written(tmp_path, keys=[name]))
    raw = yaml.safe_load(file.read_text())
    if name != "event_time":
        raw["event"]["select"][name] = "city"
    file.write_text(yaml.safe_dump(raw))
    with pytest.raises(ConfigError) as caught:
        load_pipeline(str(file), _LAPTOP)
    (violation,) = caught.value.violations
    assert violation.path == "detections[0].keys[0]"
    assert violation.message.startswith(f"{name} is a reserved column of {what}")


def test_a_dimension_detects_nothing(tmp_path: Path) -> None:
    raw = yaml.safe_load(find_file("products", "pipeline").read_text())
    raw["detections"] = _PAYMENTS["detections"]
    file = tmp_path / "products.yml"
    file.write_text(yaml.safe_dump(raw))
    with pytest.raises(ConfigError, match=r"detections.*allowed with kind: events only"):
        load_pipeline(str(file), _LAPTOP)
