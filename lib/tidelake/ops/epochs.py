"""Read tables as an epoch had them, so that the parts of a statement agree."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

import duckdb

from tidelake.delta.log import last_commit
from tidelake.delta.tables import Lake
from tidelake.errors import UsageError
from tidelake.ops.query import Answer, ask, ask_for_user, write_for_user
from tidelake.ops.statements import dialect_of, tables_in
from tidelake.ops.target import Target

_T = TypeVar("_T")


@dataclass(frozen=True)
class Epoch:
    """Versions that belong together.

    Attributes:
        pipeline: Whose boundary it is.
        number: Counts up, a pipeline for itself.
        closed_at: When it was found (UTC).
        versions: By the table's logical name.
    """

    pipeline: str
    number: int
    closed_at: datetime
    versions: dict[str, int]

    def __str__(self) -> str:
        """Name it for people."""
        return f"epoch {self.number} of {self.pipeline}, closed {self.closed_at:%Y-%m-%d %H:%M:%S}Z"


def ask_at_epoch(lake: Lake, sql: str) -> tuple[Answer, Epoch | None]:
    """Run one SELECT of the user's on the newest epoch that holds all tables that it names.

    Returns:
        The answer, and the epoch; None where the statement names no table.

    Raises:
        UsageError: No epoch holds them together, or its versions are gone; and what
            :func:`~tidelake.ops.query.ask_for_user` refuses.
    """
    return _at_epoch(lake, sql, lambda versions: ask_for_user(lake, sql, versions))


def write_at_epoch(lake: Lake, sql: str, target: Target) -> tuple[int, Epoch | None]:
    """Write the answer on that epoch into a file.

    Returns:
        How many rows, and the epoch.

    Raises:
        UsageError: As :func:`ask_at_epoch`.
        TidelakeError: The file cannot be written.
    """
    return _at_epoch(lake, sql, lambda versions: write_for_user(lake, sql, target, versions))


def _at_epoch(
    lake: Lake, sql: str, read: Callable[[Mapping[str, int]], _T]
) -> tuple[_T, Epoch | None]:
    names = {table.name for table in tables_in(sql, lake, dialect=dialect_of(lake)).values()}
    if not names:
        return read({}), None
    epoch = newest_epoch(lake, names)
    try:
        return read(epoch.versions), epoch
    except UsageError as error:
        # The statement itself reaches no other file.
        if not isinstance(error.__cause__, duckdb.IOException):
            raise
        pinned = ", ".join(f"version {epoch.versions[name]} of {name}" for name in sorted(names))
        raise UsageError(
            f"{epoch} can no longer be read ({pinned}): a file is gone, by VACUUM for example. "
            f"Close a new epoch with: tidelake run {epoch.pipeline}\n"
            f"DuckDB says: {str(error).splitlines()[0]}"
        ) from error


def newest_epoch(lake: Lake, names: Collection[str]) -> Epoch:
    """Find the newest epoch that holds tables together.

    Args:
        lake: Where the tables are.
        names: Logical names of tables that exist.

    Raises:
        UsageError: There is none.
    """
    # Theirs is the history of the others; they stand at no boundary.
    unpinned = sorted(name for name in names if name.startswith("ops."))
    if unpinned:
        raise UsageError(
            f"{', '.join(unpinned)} belongs to no epoch; ask for it without --consistent."
        )
    found = _newest(lake, names)
    if found is not None:
        return found
    alone = [name for name in sorted(names) if _newest(lake, [name]) is None]
    if alone:
        raise UsageError(
            f"no epoch holds {', '.join(alone)} yet. "
            f"Close one with: {' and '.join(_runs(lake, alone))}"
        )
    raise UsageError(
        f"{', '.join(sorted(names))} never stood together: an epoch holds the tables of one "
        "pipeline and what they were made of. Ask for them apart, or without --consistent; "
        f"tables of one pipeline stand together after: {' and '.join(_runs(lake, names))}"
    )


def _newest(lake: Lake, names: Collection[str]) -> Epoch | None:
    if not lake.epochs().exists:
        return None
    # The names are checked ones, of tables that exist.
    wanted = " AND ".join(f"versions['{name}'] IS NOT NULL" for name in names)
    found = ask(
        lake,
        f"SELECT pipeline, epoch, closed_at, versions FROM {lake.epochs().name} "
        f"WHERE {wanted} "
        f"ORDER BY closed_at DESC LIMIT 1",
    )
    return next((Epoch(*row) for row in found.rows), None)


def _runs(lake: Lake, names: Collection[str]) -> list[str]:
    """Write the commands that bring tables to a boundary."""
    notes = [last_commit(lake.table(name)) for name in names]
    pipelines = {str(note.note.get("pipeline", "NAME")) if note else "NAME" for note in notes}
    return [f"tidelake run {pipeline}" for pipeline in sorted(pipelines)]
