"""SVG elements of the plots: a white card, text, ticks; readable on light and dark pages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

WIDTH = 860
INK, SOFT, GRID = "#1f2933", "#52606d", "#e4e7eb"
COLOURS = ("#2a6f97", "#c26a1b", "#4c8c4a", "#8a4f9e", "#b23a48", "#6b705c")
GOOD, BAD = "#2f855a", "#c05621"
_FONTS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"


def card(height: float, title: str, parts: Sequence[str]) -> str:
    """Return a self-contained SVG: a card with a title and the parts."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" '
            f'role="img" aria-labelledby="t" font-family="{_FONTS}" font-size="14">',
            f'<title id="t">{escape(title)}</title>',
            f'<rect width="{WIDTH}" height="{height:.0f}" rx="12" fill="#ffffff"/>',
            text(24, 34, title, size=17, weight=600),
            *parts,
            "</svg>\n",
        ]
    )


def text(
    x: float,
    y: float,
    words: str,
    *,
    colour: str = INK,
    size: int = 14,
    weight: int = 400,
    anchor: str = "start",
) -> str:
    """Return a line of text; ``y`` is its baseline."""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" font-size="{size}" '
        f'font-weight="{weight}" text-anchor="{anchor}">{escape(words)}</text>'
    )


def line(
    x1: float, y1: float, x2: float, y2: float, colour: str, *, wide: float = 1, dash: str = ""
) -> str:
    """Return a line."""
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" '
        f'stroke="{colour}" stroke-width="{wide:g}"{dashed}/>'
    )


def box(x: float, y: float, wide: float, tall: float, colour: str, *, tooltip: str = "") -> str:
    """Return a filled rectangle with an optional tooltip."""
    inner = f"<title>{escape(tooltip)}</title>" if tooltip else ""
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(wide, 0.5):.1f}" height="{tall:.1f}" rx="2" '
        f'fill="{colour}">{inner}</rect>'
    )


def dot(x: float, y: float, radius: float, colour: str, *, tooltip: str = "") -> str:
    """Return a point with an optional tooltip."""
    inner = f"<title>{escape(tooltip)}</title>" if tooltip else ""
    return (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" fill="{colour}" stroke="#ffffff">'
        f"{inner}</circle>"
    )


def ticks(top: float, count: int = 5) -> list[float]:
    """Return round steps from 0 to the first at or above ``top``."""
    if top <= 0:
        return [0.0, 1.0]
    raw = top / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999)
    return [number * step for number in range(math.ceil(top / step - 1e-9) + 1)]


def short(value: float) -> str:
    """Format a figure with three significant digits and thousands separators."""
    if value == 0 or abs(value) >= 1000:
        return f"{value:,.0f}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    figure = f"{value:.{digits}f}"
    return figure.rstrip("0").rstrip(".") if "." in figure else figure
