"""Draw a report: seconds of the sides as bars, goals as dots, series as lines, histograms."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks import svg

_LEFT, _RIGHT = 24, 24
_WHOLE = svg.WIDTH - _LEFT - _RIGHT
# Left edge, top and height of a plot with two axes.
_AXIS, _TOP, _HEIGHT = 84, 70, 300
# Up to this many points of a line get a dot.
_FEW = 24
# Scores beyond this factor are drawn at the edge.
_FURTHEST = 16.0


@dataclass(frozen=True)
class Score:
    """A figure relative to its goal: 1 is the goal, 2 is twice as good.

    Attributes:
        label: Row and goal.
        figure: The figure with its unit.
        value: Score of the median.
        low: Least score of the rounds.
        high: Largest score of the rounds.
    """

    label: str
    figure: str
    value: float
    low: float
    high: float


def bars(title: str, sides: Mapping[str, Sequence[float]], unit: str = "s") -> str:
    """Draw each side's median as a bar, with a dot for each round."""
    top = max((max(values) for values in sides.values() if values), default=0.0)
    marks = svg.ticks(top)
    # Leaves room at the right for the figure after the longest bar.
    scale = (_WHOLE - 110) / marks[-1]
    bottom = _TOP - 12 + 52 * len(sides)
    parts = _grid(marks, scale, _TOP - 20, bottom)
    for number, (name, values) in enumerate(sides.items()):
        if not values:
            continue
        y, colour = _TOP - 12 + 52 * number, svg.COLOURS[number % len(svg.COLOURS)]
        median = statistics.median(values)
        parts.append(svg.text(_LEFT, y + 10, name, colour=svg.SOFT, size=13))
        parts.append(svg.box(_LEFT, y + 16, median * scale, 20, colour))
        if len(values) > 1:
            parts.append(_whisker(min(values), max(values), scale, y + 26))
            parts += [svg.dot(_LEFT + v * scale, y + 26, 3, svg.INK) for v in values]
        end = _LEFT + max(values) * scale + 10
        parts.append(svg.text(end, y + 31, f"{svg.short(median)} {unit}", weight=600))
    return svg.card(bottom + 34, title, parts)


def scores(title: str, found: Sequence[Score]) -> str:
    """Draw each figure relative to its goal, on a logarithmic scale."""
    reach = max(
        [2.0, *(max(score.high, 1 / max(score.low, 1e-9)) for score in found)],
    )
    reach = min(_FURTHEST, reach)
    middle, half = _LEFT + _WHOLE / 2, (_WHOLE - 20) / 2

    def position(value: float) -> float:
        inside = min(max(value, 1 / reach), reach)
        return middle + math.log(inside) / math.log(reach) * half

    bottom = _TOP + 16 + 46 * len(found)
    parts = []
    for power in range(-4, 5):
        factor = 2.0**power
        if 1 / reach <= factor <= reach:
            x = position(factor)
            label = "the goal" if power == 0 else _factor(factor)
            weight = 600 if power == 0 else 400
            parts.append(
                svg.line(x, _TOP + 4, x, bottom, svg.SOFT if power == 0 else svg.GRID, wide=1.5)
            )
            parts.append(
                svg.text(
                    x, _TOP - 4, label, colour=svg.SOFT, size=12, weight=weight, anchor="middle"
                )
            )
    for number, score in enumerate(found):
        y, colour = _TOP + 30 + 46 * number, svg.GOOD if score.value >= 1 else svg.BAD
        parts.append(svg.box(_LEFT, y - 10, _WHOLE, 1, svg.GRID))
        parts.append(svg.text(_LEFT, y + 4, score.label, size=13))
        parts.append(
            svg.text(
                _LEFT + _WHOLE,
                y + 4,
                score.figure,
                size=13,
                weight=600,
                colour=colour,
                anchor="end",
            )
        )
        parts.append(
            svg.line(position(score.low), y + 19, position(score.high), y + 19, colour, wide=3)
        )
        parts.append(svg.dot(position(score.value), y + 19, 6, colour, tooltip=score.figure))
    return svg.card(bottom + 14, title, parts)


def drawn(plot: Mapping[str, Any]) -> str:
    """Draw an entry of ``plots`` in a report's details; see :mod:`benchmarks.measuring`."""
    if plot["kind"] == "spread":
        return _spread(plot)
    return _lines(plot)


def _lines(plot: Mapping[str, Any]) -> str:
    named: Mapping[str, Sequence[Sequence[float]]] = plot["lines"]
    points = [point for line in named.values() for point in line]
    first, last = min(x for x, _ in points), max(x for x, _ in points)
    marks = svg.ticks(max(y for _, y in points))
    bottom = _TOP + _HEIGHT
    # Sizes that grow by factors get a logarithmic axis.
    logarithmic = first > 0 and last / first >= 50 and len({x for x, _ in points}) <= _FEW
    parts = _left_axis(marks, bottom, plot["y"])

    def across(value: float) -> float:
        if logarithmic:
            share = math.log(value / first) / math.log(last / first)
        else:
            share = (value - first) / ((last - first) or 1.0)
        return _AXIS + share * (svg.WIDTH - _AXIS - _RIGHT - 10)

    for mark in sorted({x for x, _ in points}) if logarithmic else _inside(first, last):
        x = across(mark)
        parts.append(svg.line(x, bottom, x, bottom + 5, svg.SOFT))
        parts.append(
            svg.text(x, bottom + 20, svg.short(mark), colour=svg.SOFT, size=12, anchor="middle")
        )
    parts.append(
        svg.text(_AXIS + 350, bottom + 40, plot["x"], colour=svg.SOFT, size=13, anchor="middle")
    )
    for mark in plot.get("marks", ()):
        if first <= mark <= last:
            x = across(mark)
            parts.append(svg.line(x, _TOP, x, bottom, svg.SOFT, dash="3 4"))
    for number, (name, line) in enumerate(named.items()):
        colour = svg.COLOURS[number % len(svg.COLOURS)]
        places = [(across(x), bottom - y / marks[-1] * _HEIGHT) for x, y in line]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2" '
            'stroke-linejoin="round"/>'
        )
        if len(places) <= _FEW:
            parts += [svg.dot(x, y, 3.5, colour) for x, y in places]
        y = bottom + 64 + 22 * (number // 2)
        x = _AXIS + 370 * (number % 2)
        parts.append(svg.box(x, y - 10, 22, 10, colour))
        parts.append(svg.text(x + 30, y, name, size=13))
    return svg.card(bottom + 80 + 22 * ((len(named) - 1) // 2), plot["title"], parts)


def _spread(plot: Mapping[str, Any]) -> str:
    """Draw a histogram with logarithmic buckets and logarithmic heights."""
    buckets: Sequence[Sequence[float]] = plot["buckets"]
    low, high = buckets[0][0], buckets[-1][1]
    top = math.log10(max(count for *_, count in buckets)) + 0.3
    bottom = _TOP + _HEIGHT
    wide = (svg.WIDTH - _AXIS - _RIGHT) / math.log(high / low)
    parts = []
    for power in range(int(top) + 1):
        y = bottom - _HEIGHT * (power + 0.3) / (top + 0.3)
        parts.append(svg.line(_AXIS, y, svg.WIDTH - _RIGHT, y, svg.GRID))
        parts.append(
            svg.text(_AXIS - 8, y + 5, f"{10**power:,}", colour=svg.SOFT, size=12, anchor="end")
        )
    for least, most, count in buckets:
        if count:
            tall = _HEIGHT * (math.log10(count) + 0.3) / (top + 0.3)
            x, end = (_AXIS + math.log(edge / low) * wide for edge in (least, most))
            tooltip = f"{count:,.0f} between {svg.short(least)} and {svg.short(most)}"
            parts.append(
                svg.box(x + 0.5, bottom - tall, end - x - 1, tall, svg.COLOURS[0], tooltip=tooltip)
            )
    for edge in _round_between(low, high):
        x = _AXIS + math.log(edge / low) * wide
        parts.append(svg.line(x, bottom, x, bottom + 5, svg.SOFT))
        parts.append(
            svg.text(x, bottom + 20, svg.short(edge), colour=svg.SOFT, size=12, anchor="middle")
        )
    parts.append(
        svg.text(_AXIS + 350, bottom + 42, plot["x"], colour=svg.SOFT, size=13, anchor="middle")
    )
    return svg.card(bottom + 58, plot["title"], parts)


def _grid(marks: Sequence[float], scale: float, top: float, bottom: float) -> list[str]:
    parts = []
    for mark in marks:
        x = _LEFT + mark * scale
        parts.append(svg.line(x, top, x, bottom, svg.GRID))
        parts.append(
            svg.text(x, bottom + 18, svg.short(mark), colour=svg.SOFT, size=12, anchor="middle")
        )
    return parts


def _left_axis(marks: Sequence[float], bottom: float, label: str) -> list[str]:
    parts = [svg.text(24, _TOP - 16, label, colour=svg.SOFT, size=13)]
    for mark in marks:
        y = bottom - mark / marks[-1] * _HEIGHT
        parts.append(svg.line(_AXIS, y, svg.WIDTH - _RIGHT, y, svg.GRID))
        parts.append(
            svg.text(_AXIS - 8, y + 5, svg.short(mark), colour=svg.SOFT, size=12, anchor="end")
        )
    return parts


def _whisker(low: float, high: float, scale: float, y: float) -> str:
    return svg.line(_LEFT + low * scale, y, _LEFT + high * scale, y, svg.INK, wide=1.5)


def _factor(factor: float) -> str:
    if factor == 1:
        return "the goal"
    return f"{factor:g} x better" if factor > 1 else f"{1 / factor:g} x worse"


def _inside(first: float, last: float) -> list[float]:
    """Return round marks between two values."""
    steps = svg.ticks((last - first) or 1.0)
    step = steps[1]
    begin = math.ceil(first / step - 1e-9) * step
    count = math.floor((last - begin) / step + 1e-9)
    return [begin + number * step for number in range(count + 1)]


def _round_between(low: float, high: float) -> list[float]:
    """Return 1, 2 and 5 times powers of ten between two values; only powers if there are many."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1, 2, 5) if len(powers) <= 5 else (1,)
    marks = [factor * 10.0**power for power in powers for factor in factors]
    return [mark for mark in marks if low * 0.999 <= mark <= high * 1.001]
