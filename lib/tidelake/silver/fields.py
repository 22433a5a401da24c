"""Deal with payload fields that the schema does not know, as ``event.evolution`` says.

``strict`` refuses their rows, ``additive`` makes text columns of them, ``rescue`` keeps them as
JSON in one column. Bronze holds them verbatim in any case.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from pyspark.sql import Column
from pyspark.sql import functions as F

from tidelake.config import Field, FieldType
from tidelake.config.names import SILVER_RESERVED, is_column_name
from tidelake.silver.values import variant_text

RESCUED = "_rescued_data"
# A stream of hostile names must not make a table of ten thousand columns.
MOST_COLUMNS = 100
_LATE_COLUMNS = ("payload", "watermark", "lateness_seconds")
_SHOWN_FIELDS, _SHOWN_LETTERS = 20, 100


def unknown_names(text: Column, fields: Sequence[Field]) -> Column:
    """List a payload's keys that the schema does not hold; null where there are none."""
    known = F.array(*[F.lit(field.name) for field in fields])
    found = F.array_except(F.json_object_keys(text), known)
    return F.when(F.size(found) > 0, found)


def refusals(unknown: Column) -> Column:
    """Write a reason for each unknown field, the first of them, for ``strict``."""
    shown = F.slice(unknown, 1, _SHOWN_FIELDS)
    return F.transform(
        shown, lambda name: F.concat(F.left(name, F.lit(_SHOWN_LETTERS)), F.lit(": not in schema"))
    )


def unknown_values(variant: Column, unknown: Column) -> Column:
    """Take the unknown fields' values as ``map<string, variant>``."""
    entries = F.try_variant_get(variant, "$", "map<string,variant>")
    return F.when(
        unknown.isNotNull(), F.map_filter(entries, lambda name, _: F.array_contains(unknown, name))
    )


def as_texts(values: Column) -> Column:
    """Write each unknown value as text, numbers by their digits, nested ones as JSON."""
    return F.transform_values(values, lambda _, value: variant_text(value, FieldType("string")))


def as_json(values: Column) -> Column:
    """Write the unknown fields as one JSON object."""
    return F.to_json(values)


def extra_columns(stored: Mapping[str, str], defined: Collection[str]) -> tuple[str, ...]:
    """Name the stored columns that unknown fields fill: text, and not of today's definition.

    Args:
        stored: Silver's columns and their types.
        defined: Silver's selected columns.
    """
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

    Args:
        names: The fields that accepted rows carry.
        defined: Silver's selected columns.
        stored: The stored table's columns and their types.
    """
    taken = {name.lower() for name in (*SILVER_RESERVED, *_LATE_COLUMNS, *defined, *stored)}
    room = MOST_COLUMNS - len(extra_columns(stored, defined))
    chosen: list[str] = []
    for name in sorted(names):
        if len(chosen) < room and is_column_name(name) and name.lower() not in taken:
            taken.add(name.lower())
            chosen.append(name)
    return tuple(chosen)
