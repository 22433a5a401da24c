"""A first gold table: how many events, by the field that sorts them, a window at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from tidelake.config.names import GOLD_RESERVED
from tidelake.scaffold.columns import Column, sql_name
from tidelake.scaffold.words import is_coordinate, is_id, is_kind, is_money, is_owner

_MOST_KINDS, _MOST_MEASURES = 50, 2
# Windows that people read, and the span of a sample up to which each is the one.
_SIZES = (
    (timedelta(hours=3), timedelta(minutes=1), "1m"),
    (timedelta(days=3), timedelta(hours=1), "1h"),
)
_DAY = (timedelta(days=1), "1d")


@dataclass(frozen=True)
class FirstTable:
    """The first gold table.

    Attributes:
        name: Its name.
        key: Silver's column that it groups by; None for none.
        size: Of its windows.
        measures: Column to aggregate and SQL, in order.
        why: For people.
    """

    name: str
    key: str | None
    size: timedelta
    measures: tuple[tuple[str, str, str], ...]
    why: str


def gold_keys(columns: Sequence[Column], left_out: Sequence[Column | None]) -> list[Column]:
    """Rank the columns that sort events into few kinds, the best first."""
    ranked = []
    for position, column in enumerate(columns):
        if any(column is other for other in left_out) or column.name.lower() in GOLD_RESERVED:
            continue
        kinds = kinds_of(column)
        if kinds is None:
            continue
        kind, text = is_kind(column.path[-1]), column.type.kind == "string"
        owner = is_owner(column.path[-1])
        ranked.append(((kind, -len(column.path), text, owner, -len(kinds), -position), column))
    ranked.sort(key=lambda one: one[0], reverse=True)
    return [column for _, column in ranked]


def kinds_of(column: Column) -> list[str] | None:
    """List the few values of a column that has few, most of them seen often."""
    if column.type.kind not in ("string", "boolean", "bigint") or column.clock is not None:
        return None
    said = [value for value in column.values if value is not None]
    if column.type.kind == "string" and not all(isinstance(value, str) for value in said):
        return None
    held = [str(value) for value in said]
    kinds = sorted(set(held))
    enough = len(held) >= max(0.8 * len(column.values), 1)
    whole = column.type.kind == "bigint" and not is_kind(column.path[-1])
    most = min(_MOST_KINDS, max(len(held) // 4, 3))
    if not enough or whole or not 1 < len(kinds) <= most:
        return None
    return kinds


def first_table(
    pipeline: str,
    columns: Sequence[Column],
    *,
    key: Column | None,
    times: Sequence[datetime | None],
    size: timedelta | None,
) -> FirstTable:
    """Define the table.

    Args:
        pipeline: The pipeline's name.
        columns: Silver's.
        key: What it groups by.
        times: Event times of the sample: their span says how long a window is.
        size: A window's length where somebody chose it.
    """
    known = [one for one in times if one is not None]
    span = max(known) - min(known) if known else timedelta(0)
    guessed, short = next(((s, w) for most, s, w in _SIZES if span <= most), _DAY)
    if size is not None and size != guessed:
        guessed, short = size, _short(size)
    taken = {*GOLD_RESERVED, *([key.name.lower()] if key else [])}
    count = next(name for name in ("events", "records") if name not in taken)
    measures = [(count, "count", "*"), *_measures(columns, key, taken | {count})]
    by = f"_by_{key.name.lower()}" if key else ""
    why = f"{len(kinds_of(key) or ())} values in the sample" if key else "no field has few values"
    return FirstTable(
        f"{pipeline}{by}"[:58].rstrip("_").replace("__", "_") + f"_{short}",
        key.name if key else None,
        guessed,
        tuple(measures),
        why,
    )


def _measures(
    columns: Sequence[Column], key: Column | None, taken: set[str]
) -> list[tuple[str, str, str]]:
    found: list[tuple[str, str, str]] = []
    numbers = [c for c in columns if c.clock is None and c is not key]
    sums = [c for c in numbers if c.type.kind == "decimal" and is_money(c.path[-1])]
    means = [c for c in numbers if c.type.kind == "double" and not is_coordinate(c.path[-1])]
    owners = [
        c for c in numbers
        if c.is_scalar and is_owner(c.path[-1]) and (is_id(c.path[-1]) or c.type.kind == "string")
    ]  # fmt: skip
    for prefix, aggregate, some in (
        ("total", "sum", sums[:_MOST_MEASURES]),
        ("mean", "avg", means[:_MOST_MEASURES]),
        ("different", "approx_count_distinct", owners[:1]),
    ):
        for column in some:
            name = f"{prefix}_{column.name.lower()}".replace("total_total", "total")[:62]
            if name not in taken:
                taken.add(name)
                found.append((name, aggregate, sql_name(column.name)))
    return found


def _short(size: timedelta) -> str:
    seconds = int(size.total_seconds())
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds % length == 0 and seconds:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"
