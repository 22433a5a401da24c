"""Names of tables and columns: the layers, what is valid, what is reserved, identifiers in SQL.

All names are validated here, so nothing from a config file reaches a path or a statement unchecked.
"""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator

from tidelake.errors import UsageError

LAYERS = ("bronze", "silver", "gold", "dim", "ops")
# In a catalog, separates a table's name from the pipeline whose backfill fills its copy.
BACKFILL_INFIX = "__green_"

BRONZE_COLUMNS = (
    *("record_id", "key", "payload", "headers", "source", "source_timestamp"),
    *("ingested_at", "ingest_date"),
)
SILVER_RESERVED = ("event_id", "event_time", "is_late", "record_id", "ingested_at", "event_date")
# Columns that late has in addition to those of silver.
LATE_COLUMNS = ("payload", "watermark", "lateness_seconds")
# Columns of a table of alerts.
DETECTION_RESERVED = ("rule", "event_id", "event_time", "evidence", "sent_at")
GOLD_RESERVED = ("window_start", "window_end", "session_id", "session_start", "session_end")

# A hash of the event's id in silver and late; missing in tables of earlier versions.
ID_HASH = "_id_hash"
# Columns of a dimension's silver: the order of changes, and whether a change deletes its key.
SEQUENCE, IS_DELETE = "_sequence", "_is_delete"
# Columns of a dimension's tables.
DIMENSION_RESERVED = ("valid_from", "valid_to", "is_current")

_LOGICAL = re.compile(rf"({'|'.join(LAYERS)})\.[a-z][a-z0-9_]*")
_TABLE = re.compile(r"[a-z][a-z0-9_]{0,62}")
_COLUMN = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,62}")


def is_logical_name(name: str) -> bool:
    """Return whether a name is that of a table in a layer, such as ``gold.user_sessions``."""
    return _LOGICAL.fullmatch(name) is not None


def logical_name(layer: str, name: str, side: str = "") -> str:
    """Return the logical name of a table, or of the ``side`` table of one.

    ``name`` is valid (:func:`table_name`), or stands for one in a message.
    """
    return f"{layer}.{name}__{side}" if side else f"{layer}.{name}"


def split_name(name: str) -> tuple[str, str]:
    """Split a table's logical name into its layer and the rest."""
    if not is_logical_name(name):
        raise UsageError(
            f"{name!r} is no table name: write layer.table in lower case; "
            f"layer is one of {', '.join(LAYERS)}."
        )
    layer, _, bare = name.partition(".")
    return layer, bare


def quoted(name: str) -> str:
    """Quote a name with backquotes."""
    return "`" + name.replace("`", "``") + "`"


def is_column_name(name: str) -> bool:
    """Return whether a name is valid for a column of silver or gold."""
    return _COLUMN.fullmatch(name) is not None


def table_name(name: str) -> str:
    """Return a name that is valid for a pipeline or a table; else raise a ValueError."""
    if not _TABLE.fullmatch(name):
        raise ValueError(
            f"'{name}' is not a valid table name: start with a lower-case letter, then at most 62 "
            "lower-case letters, digits and underscores"
        )
    if "__" in name:
        raise ValueError(f"'{name}' contains '__', which is reserved for side tables")
    return name


def _column_name(name: str) -> str:
    if not is_column_name(name):
        raise ValueError(
            f"'{name}' is not a valid column name: start with a letter, then at most 62 letters, "
            "digits and underscores"
        )
    return name


TableName = Annotated[str, AfterValidator(table_name)]
ColumnName = Annotated[str, AfterValidator(_column_name)]
