"""Read back what earlier runs kept in ``ops.progress``."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from tidelake.config.standard import PROGRESS_COLUMNS
from tidelake.delta.tables import Lake
from tidelake.errors import UsageError
from tidelake.ops.metrics.measured import Measured
from tidelake.ops.query import ask

_COLUMNS = ", ".join(f'"{name}"' for name in PROGRESS_COLUMNS)


def kept_since(
    lake: Lake, pipeline: str, since: datetime, *, failed_since: datetime | None = None
) -> tuple[Measured, ...]:
    """Read a pipeline's batches, oldest first; none where no run kept any.

    Args:
        lake: Where the tables are.
        pipeline: Whose.
        since: The instant from which on (UTC).
        failed_since: An earlier one, from which on failures are read too.
    """
    progress = lake.progress()
    if not progress.exists:
        return ()
    # A name that a table may have holds nothing that would have to be quoted.
    name = lake.bronze(pipeline).bare
    try:
        found = ask(
            lake,
            f"SELECT {_COLUMNS} FROM {progress.name} WHERE pipeline = '{name}' "
            f"AND (ended_at >= {_instant(since)} OR error_class IS NOT NULL "
            f"AND ended_at >= {_instant(failed_since or since)}) ORDER BY ended_at, batch",
        )
    except UsageError:
        # A table that cannot be read takes the measures away, not what the logs tell.
        return ()
    return tuple(_measured(row) for row in found.as_dicts())


def _instant(at: datetime) -> str:
    return f"TIMESTAMPTZ '{at.isoformat()}'"


def _measured(row: dict[str, Any]) -> Measured:
    maps = {name: row[name] or {} for name in ("phases", "fates")}
    return Measured(**{**row, **maps})
