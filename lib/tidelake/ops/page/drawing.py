"""Turn numbers into coordinates; the templates write them as SVG.

Every drawing is 1000 wide and 100 high, whatever room it gets: the page stretches it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 1000.0, 100.0
# What is there must be seen, however small it is beside the others.
_LEAST = 2.0
# Of a column's room: what lies between two of them.
_GAP = 0.2
# Fewer values are drawn at the end of the room: two blocks would look like more than they are.
_SLOTS = 12


@dataclass(frozen=True)
class Box:
    """A rectangle; ``y`` grows downwards."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class Line:
    """A line over time, and the area under it.

    Attributes:
        stroke: The path of the line, with a gap where no value is known.
        area: The closed path of what lies under it.
        bottom: The value at the lower edge.
        top: The value at the upper edge.
    """

    stroke: str
    area: str
    bottom: float
    top: float


def columns(values: Sequence[float], *, top: float | None = None) -> tuple[Box, ...]:
    """Draw a column a value, side by side, the newest at the right edge; none below zero.

    Args:
        values: The oldest first.
        top: What is as high as the drawing; by default the largest value.
    """
    slots = max(len(values), _SLOTS)
    room, top = WIDTH / slots, max([*values, 0.0]) if top is None else top
    boxes = []
    for number, value in enumerate(values, start=slots - len(values)):
        height = max(HEIGHT * value / top, _LEAST) if value > 0 else 0.0
        x, y = room * (number + _GAP / 2), HEIGHT - height
        boxes.append(Box(_round(x), _round(y), _round(room * (1 - _GAP)), _round(height)))
    return tuple(boxes)


def shares(values: Sequence[float]) -> tuple[Box, ...]:
    """Draw parts of a whole, end to end; each part that is more than nothing is to be seen."""
    total = sum(values)
    widths = [max(WIDTH * value / total, 2 * _LEAST) if value > 0 else 0.0 for value in values]
    scale = WIDTH / sum(widths) if any(widths) else 0.0
    boxes, x = [], 0.0
    for width in widths:
        boxes.append(Box(_round(x), 0.0, _round(width * scale), HEIGHT))
        x += width * scale
    return tuple(boxes)


def lengths(values: Sequence[float | None]) -> tuple[float, ...]:
    """Give the length of a bar a value, the longest as wide as the drawing."""
    top = max((abs(value) for value in values if value is not None), default=0.0)
    return tuple(
        _round(max(WIDTH * abs(value) / top, 2 * _LEAST)) if value and top else 0.0
        for value in values
    )


def line(values: Sequence[float | None]) -> Line:
    """Draw a line through values that lie equally far apart; zero is always in sight."""
    known = [value for value in values if value is not None]
    top, bottom = max([*known, 0.0]), min([*known, 0.0])
    scale = (HEIGHT - _LEAST) / (top - bottom) if top > bottom else 0.0
    step = WIDTH / max(len(values) - 1, 1)
    runs: list[list[tuple[float, float]]] = [[]]
    for number, value in enumerate(values):
        if value is None:
            runs.append([])
        else:
            runs[-1].append((_round(number * step), _round(HEIGHT - (value - bottom) * scale)))
    # A value that stands alone would be a line without length.
    drawn = [run if len(run) > 1 else [*run, (run[0][0] + 4, run[0][1])] for run in runs if run]
    zero = _round(HEIGHT + bottom * scale)
    return Line(
        " ".join(_path(run) for run in drawn),
        " ".join(
            f"{_path(run)} L{run[-1][0]:g} {zero:g} L{run[0][0]:g} {zero:g} Z" for run in drawn
        ),
        bottom,
        top,
    )


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + " L".join(f"{x:g} {y:g}" for x, y in points)


def _round(number: float) -> float:
    return round(number, 1)
