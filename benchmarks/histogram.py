"""Draw how values are spread, as an SVG that stands alone."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from html import escape

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 760, 320, 60, 50, 40
# Buckets to a factor of ten.
_FINE = 8


def plotted(values: Sequence[float], title: str) -> str:
    """Draw a histogram with both axes logarithmic.

    Args:
        values: Above 0.
        title: What they are, with their unit.
    """
    counts = Counter(math.floor(math.log10(max(value, 1e-6)) * _FINE) for value in values)
    low, high = min(counts), max(counts) + 1
    top = math.log10(max(counts.values())) + 0.3
    wide, tall = (_WIDTH - _LEFT - 20) / (high - low), _HEIGHT - _BOTTOM - _TOP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="22" font-size="14">{escape(title)}</text>',
    ]
    for power in range(int(top) + 1):
        y = _HEIGHT - _BOTTOM - tall * (power + 0.3) / (top + 0.3)
        parts.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH - 20}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>'
        )
        parts.append(
            f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{10**power:,}</text>'
        )
    for bucket, count in sorted(counts.items()):
        height = tall * (math.log10(count) + 0.3) / (top + 0.3)
        x, y = _LEFT + (bucket - low) * wide, _HEIGHT - _BOTTOM - height
        parts.append(
            f'<rect x="{x + 1:.1f}" y="{y:.1f}" width="{wide - 2:.1f}" height="{height:.1f}" '
            f'fill="#2a6f97"><title>{count:,}</title></rect>'
        )
    for edge in range(math.ceil(low / _FINE), math.floor(high / _FINE) + 1):
        x = _LEFT + (edge * _FINE - low) * wide
        parts.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_HEIGHT - _BOTTOM}" '
            f'y2="{_HEIGHT - _BOTTOM + 6}" stroke="black"/>'
        )
        parts.append(
            f'<text x="{x:.1f}" y="{_HEIGHT - _BOTTOM + 20}" text-anchor="middle">'
            f"{10.0**edge:g}</text>"
        )
    ordered = sorted(values)
    told = ", ".join(
        f"{name} {ordered[min(len(ordered) - 1, int(len(ordered) * share))]:.1f}"
        for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("max", 1.0))
    )
    parts.append(f'<text x="{_LEFT}" y="{_HEIGHT - 12}">{len(values):,} values: {told}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"
