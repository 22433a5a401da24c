"""Choose silver's columns for payload fields that are not in the schema (``event.evolution``).

``strict`` quarantines their rows, ``additive`` adds a string column for each field, ``rescue``
stores them as JSON in one column. Bronze keeps them verbatim in any case.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from tidelake.names import SILVER_RESERVED, is_column_name

RESCUED = "_rescued_data"
# Limits the columns that a stream of hostile field names can create.
MOST_COLUMNS = 100
_LATE_COLUMNS = ("payload", "watermark", "lateness_seconds")


def extra_columns(stored: Mapping[str, str], defined: Collection[str]) -> tuple[str, ...]:
    """Return the stored columns for unknown fields: strings that are not in the definition."""
    taken = {name.lower() for name in (*SILVER_RESERVED, *defined)}
    return tuple(
        name
        for name, kind in stored.items()
        if kind == "string" and name.lower() not in taken and not name.startswith("_")
    )


def new_columns(
    names: Iterable[str], *, defined: Collection[str], stored: Mapping[str, str]
) -> tuple[str, ...]:
    """Return the unknown fields that become new columns of silver.

    Omits names that are not valid column names, names that match an existing column ignoring case,
    and those beyond :data:`MOST_COLUMNS`; bronze still has the values.
    """
    taken = {name.lower() for name in (*SILVER_RESERVED, *_LATE_COLUMNS, *defined, *stored)}
    room = MOST_COLUMNS - len(extra_columns(stored, defined))
    chosen: list[str] = []
    for name in sorted(names):
        if len(chosen) < room and is_column_name(name) and name.lower() not in taken:
            taken.add(name.lower())
            chosen.append(name)
    return tuple(chosen)
