"""Valid names of tables and columns, and reserved names."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator

BRONZE_COLUMNS = (
    *("record_id", "key", "payload", "headers", "source", "source_timestamp"),
    *("ingested_at", "ingest_date"),
)
SILVER_RESERVED = ("event_id", "event_time", "is_late", "record_id", "ingested_at", "event_date")
# Columns of a table of alerts.
DETECTION_RESERVED = ("rule", "event_id", "event_time", "evidence", "sent_at")
GOLD_RESERVED = ("window_start", "window_end", "session_id", "session_start", "session_end")

# A hash of the event's id in silver and late; missing in tables of earlier versions.
ID_HASH = "_id_hash"
# Columns of a dimension's silver: the order of changes, and whether a change deletes its key.
SEQUENCE, IS_DELETE = "_sequence", "_is_delete"
# Columns of a dimension's tables.
DIMENSION_RESERVED = ("valid_from", "valid_to", "is_current")

_TABLE = re.compile(r"[a-z][a-z0-9_]{0,62}")
_COLUMN = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,62}")


def is_column_name(name: str) -> bool:
    """Return whether a name is valid for a column of silver or gold."""
    return _COLUMN.fullmatch(name) is not None


def _table_name(name: str) -> str:
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


TableName = Annotated[str, AfterValidator(_table_name)]
ColumnName = Annotated[str, AfterValidator(_column_name)]
