"""Triggers: what may be written, and what Spark gets."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from tidelake.config import Environment
from tidelake.errors import UsageError
from tidelake.runtime.triggers import Trigger, parse_trigger


def test_available_now_ends_by_itself() -> None:
    assert parse_trigger("available-now") == Trigger(ends=True, options={"availableNow": True})


def test_continuous_starts_each_batch_after_the_last() -> None:
    assert parse_trigger("continuous") == Trigger(
        ends=False, options={"processingTime": "0 seconds"}, seconds=60
    )


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10 seconds", 10),
        ("1 second", 1),
        ("5 minutes", 300),
        ("2 hours", 7200),
        ("1 minute", 60),
        ("500 milliseconds", 0.5),
        ("0 seconds", 60),
    ],
)
def test_an_interval_goes_to_spark_as_it_is_and_bounds_a_batch(text: str, seconds: float) -> None:
    assert parse_trigger(text) == Trigger(
        ends=False,
        options={"processingTime": text},
        seconds=seconds,
        has_interval=text != "0 seconds",
    )


@pytest.mark.parametrize(
    "text",
    ["", "soon", "10", "seconds", "10seconds", "-1 seconds", "1.5 seconds", "10 seconds ", "once"],
)
def test_anything_else_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(UsageError, match="is not a trigger: write available-now, continuous or"):
        parse_trigger(text)


def test_an_interval_beyond_all_durations_is_refused() -> None:
    with pytest.raises(UsageError, match="is too long for a duration"):
        parse_trigger("99999999999 hours")
    with pytest.raises(ValidationError, match="is too long"):
        Environment(name="e", root=Path("/r"), triggers={"all": "99999999999 hours"})


def test_digits_of_another_script_are_refused() -> None:
    with pytest.raises(UsageError):
        parse_trigger("\N{ARABIC-INDIC DIGIT ONE} seconds")
