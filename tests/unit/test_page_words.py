"""What people read: numbers, instants, payloads and commands."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import pytest

from tidelake.ops.page import server as words


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (None, "-"),
        (0, "0"),
        (1234567, "1,234,567"),
        (12.34, "12.3"),
        (0.8, "0.80"),
        (5.0, "5"),
        (0.01, "0.01"),
        (0.004126, "0.00413"),
        (-0.00000055, "-5.5e-07"),
        (4200358023456.0, "4,200,358,023,456"),
        (-1.23456e30, "-1.23e+30"),
    ],
)
def test_numbers_are_as_exact_as_they_can_be_read(value: float | None, told: str) -> None:
    assert words.number(value) == told


@pytest.mark.parametrize(
    ("value", "told"),
    [(1060.2, "1,060"), (12345, "12.3k"), (2_500_000, "2.5M"), (7.25, "7.25"), (None, "-")],
)
def test_brief_numbers_take_little_room(value: float | None, told: str) -> None:
    assert words.brief(value) == told


@pytest.mark.parametrize(
    ("step", "told"),
    [
        (timedelta(minutes=1), "minute"),
        (timedelta(minutes=90), "90 minutes"),
        (timedelta(days=2), "2 days"),
        (timedelta(milliseconds=500), "0.5 seconds"),
    ],
)
def test_steps_are_told_in_their_largest_whole_unit(step: timedelta, told: str) -> None:
    assert words.per(step) == told


def test_instants_are_of_utc_and_dates_have_no_time() -> None:
    assert (
        words.shown_instant(datetime(2026, 3, 1, 4, 5, 6, 789, tzinfo=UTC))
        == "2026-03-01 04:05:06Z"
    )
    assert words.shown_instant(date(2026, 3, 1)) == "2026-03-01"


def test_bytes_that_are_no_text_are_shown_as_what_they_are() -> None:
    assert words.plain(b"\xff\x00ok") == "\\xff\x00ok"


def test_a_long_payload_is_cut_and_says_so() -> None:
    assert words.plain("x" * 5000).endswith("x… (5,000 characters)")
    assert words.excerpt("a\n  b" + "x" * 200) == f"a b{'x' * 157}…"
