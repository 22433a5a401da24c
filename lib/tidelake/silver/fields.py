"""Deal with payload fields that the schema does not know, as ``event.evolution`` says.

``strict`` refuses their rows, ``additive`` makes text columns of them, ``rescue`` keeps them as
JSON in one column. Bronze holds them verbatim in any case.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from tidelake.config.names import SILVER_RESERVED, is_column_name

RESCUED = "_rescued_data"
# A stream of hostile names must not make a table of ten thousand columns.
MOST_COLUMNS = 100
_LATE_COLUMNS = ("payload", "watermark", "lateness_seconds")


def extra_columns(stored: Mapping[str, str], defined: Collection[str]) -> tuple[str, ...]:
    """Name the stored columns that unknown fields fill: text, and not of today's definition."""
    taken = {name.lower() for name in (*SILVER_RESERVED, *defined)}
    return tuple(
        name
        for name, kind in stored.items()
        if kind == "string" and name.lower() not in taken and not name.startswith("_")
    )


def new_columns(
    names: Iterable[str], *, defined: Collection[str], stored: Mapping[str, str]
) -> tuple[str, ...]:
    """Choose which unknown fields become columns of silver.

    Left out are those whose name cannot be a column, collides but for its case, or would exceed
    :data:`MOST_COLUMNS`; bronze still has them.
    """
    taken = {name.lower() for name in (*SILVER_RESERVED, *_LATE_COLUMNS, *defined, *stored)}
    room = MOST_COLUMNS - len(extra_columns(stored, defined))
    chosen: list[str] = []
    for name in sorted(names):
        if len(chosen) < room and is_column_name(name) and name.lower() not in taken:
            taken.add(name.lower())
            chosen.append(name)
    return tuple(chosen)
