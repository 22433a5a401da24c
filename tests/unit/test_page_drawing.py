"""Coordinates: everything stays inside of the drawing, and what is there is to be seen."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tidelake.ops.page.server import HEIGHT, WIDTH, columns, lengths, line, shares


def test_the_largest_column_fills_the_height_and_the_newest_ends_at_the_right_edge() -> None:
    boxes = columns([1.0, 4.0, 2.0])

    assert [box.height for box in boxes] == [25, 100, 50]
    assert [box.y for box in boxes] == [75, 0, 50]
    assert boxes[-1].x + boxes[-1].width == pytest.approx(WIDTH, abs=10)


def test_a_column_of_little_is_seen_and_one_of_nothing_is_not() -> None:
    little, nothing, most = columns([1, 0, 1_000_000])

    assert (little.height, nothing.height, most.height) == (2, 0, 100)


def test_columns_of_nothing_at_all_divide_by_nothing() -> None:
    assert columns([]) == ()
    assert [box.height for box in columns([0, 0])] == [0, 0]


def test_two_drawings_share_a_scale_where_they_are_given_one() -> None:
    assert columns([5], top=10)[0].height == 50


def test_nothing_is_drawn_on_a_scale_that_ends_at_zero() -> None:
    assert [box.height for box in columns([5, 0], top=0)] == [0, 0]


def test_shares_fill_the_width_without_a_gap_and_hide_none() -> None:
    boxes = shares([1_000_000, 1, 0, 999_999])

    assert boxes[0].x == 0
    for left, right in pairwise(boxes):
        assert right.x == pytest.approx(left.x + left.width, abs=0.2)
    assert boxes[-1].x + boxes[-1].width == pytest.approx(WIDTH, abs=0.2)
    assert boxes[1].width > 3
    assert boxes[2].width == 0


def test_shares_of_nothing_are_empty() -> None:
    assert [box.width for box in shares([0, 0])] == [0, 0]


def test_bars_are_as_long_as_their_values_and_unknown_ones_have_none() -> None:
    assert lengths([10, 5, None, 0]) == (1000, 500, 0, 0)
    assert lengths([]) == ()


def test_a_line_has_zero_in_sight_and_breaks_where_nothing_is_known() -> None:
    drawn = line([10.0, 5.0, None, 10.0, 10.0])

    assert (drawn.bottom, drawn.top) == (0, 10)
    assert drawn.stroke == "M0 2 L250 51 M750 2 L1000 2"
    assert drawn.area.startswith(f"M0 2 L250 51 L250 {HEIGHT:g} L0 {HEIGHT:g} Z")


def test_a_line_below_zero_is_filled_up_to_zero() -> None:
    drawn = line([-10.0, 10.0])

    assert (drawn.bottom, drawn.top) == (-10, 10)
    assert drawn.area == "M0 100 L1000 2 L1000 51 L0 51 Z"


def test_a_single_value_is_a_dash_and_none_is_nothing() -> None:
    assert line([3.0]).stroke == "M0 2 L4 2"
    assert line([]).stroke == line([None]).stroke == ""
