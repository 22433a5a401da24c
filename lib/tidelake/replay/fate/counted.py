"""Find the rows of gold in which an event of silver counts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import sqlglot
from sqlglot.errors import SqlglotError

from tidelake.config import GoldTable, Pipeline
from tidelake.delta.log import Commit, commits, last_commit
from tidelake.delta.notes import positions
from tidelake.delta.tables import Lake, Table
from tidelake.errors import UsageError
from tidelake.ops.query import ask
from tidelake.replay.fate.texts import text

# Whether it counts; is outside the table's where; is not taken yet; has no row; or who knows.
Verdict = Literal["counts", "outside", "waiting", "no row", "unknown"]


@dataclass(frozen=True)
class Counted:
    """What a gold table makes of an event.

    Attributes:
        table: The logical name.
        verdict: ``counts``, ``outside`` (its ``where`` is not met), ``waiting`` (gold has not
            taken the event's batch), ``no row`` (a join without a match, a change that was
            overtaken) or ``unknown`` (its ``where`` is SQL that only Spark understands).
        rows: The rows, as analysts read them.
    """

    table: str
    verdict: Verdict
    rows: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True)
class _Reach:
    """How the rows of one table are found.

    Attributes:
        columns: Those that analysts read.
        condition: SQL over ``g``, gold's row, and ``s``, the event.
        where: Spark SQL over the event that lets it in; None for every event.
    """

    columns: Sequence[str]
    condition: str
    where: str | None = None


def counted_in(lake: Lake, pipeline: Pipeline, record_id: str) -> tuple[Counted, ...]:
    """Find where an accepted event counts.

    Args:
        lake: Where the tables are.
        pipeline: The definition.
        record_id: Of a row of its silver.
    """
    event = f"(SELECT * FROM silver.{pipeline.name} WHERE record_id = {text(record_id)})"
    (origin,) = ask(lake, f"SELECT _generation, _batch FROM {event}").rows
    return tuple(
        _counted(lake, pipeline, lake.table(name), reach, event, origin)
        for name, reach in _reaches(pipeline)
        if lake.table(name).exists
    )


def _counted(
    lake: Lake, pipeline: Pipeline, table: Table, reach: _Reach, event: str, origin: tuple[Any, ...]
) -> Counted:
    try:
        admitted = _admitted(lake, reach, event)
    except (SqlglotError, UsageError):
        admitted = None
    if admitted is False:
        return Counted(table.name, "outside")
    if _waits(lake.silver(pipeline.name), table, origin):
        return Counted(table.name, "waiting")
    if admitted is None:
        return Counted(table.name, "unknown")
    shown = ", ".join(f'g."{column}"' for column in reach.columns)
    found = ask(
        lake,
        f"SELECT {shown} FROM {table.name} g, {event} s WHERE {reach.condition} ORDER BY ALL",
    )
    rows = tuple(found.as_dicts())
    return Counted(table.name, "counts" if rows else "no row", rows)


def _admitted(lake: Lake, reach: _Reach, event: str) -> bool:
    if reach.where is None:
        return True
    (where,) = sqlglot.transpile(reach.where, read="databricks", write="duckdb")
    ((admitted,),) = ask(lake, f"SELECT coalesce({where}, false) FROM {event}").rows
    return bool(admitted)


def _waits(silver: Table, table: Table, origin: tuple[Any, ...]) -> bool:
    """Tell whether gold has not taken the batch of silver that brought an event."""
    taken = positions(last_commit(table)).get("silver", (0, -1))
    brought = next((c.version for c in commits(silver) if _is_of(c, origin)), None)
    # A commit that the log has no more is older than anything that gold may still wait for.
    return brought is not None and brought >= taken[0] + (taken[1] >= 0)


def _is_of(commit: Commit, origin: tuple[Any, ...]) -> bool:
    return (commit.generation, commit.batch) == tuple(origin)


def _reaches(pipeline: Pipeline) -> Iterator[tuple[str, _Reach]]:
    """Say how each table's rows are found, in the file's order."""
    if pipeline.dimension is not None:
        own = list(pipeline.defined_columns)
        extra = {True: ["valid_from", "valid_to", "is_current"], False: []}
        for name in pipeline.gold_names:
            yield name, _Reach([*own, *extra["__" in name]], "g._change = s.record_id")
    for gold in pipeline.gold:
        yield f"gold.{gold.name}", _Reach(gold.columns, _same_row(gold), gold.where)
    for join in pipeline.joins:
        mine = "g._left = s.record_id"
        if join.right.pipeline == pipeline.name:
            mine = f"({mine} OR g._right = s.record_id)"
        sides = [join.left.where, join.right.where]
        either = " OR ".join(f"({where})" for where in sides if where)
        where = either if all(sides) else None
        if join.right.pipeline != pipeline.name:
            where = join.left.where
        yield f"gold.{join.name}", _Reach(join.columns, mine, where)
    for detection in pipeline.detections:
        keyed = " AND ".join(f"{key} IS NOT NULL" for key in detection.keys)
        features = detection.hours
        yield f"gold.{features.name}", _Reach(features.columns, _same_row(features))
        columns = [name for name in detection.shown if name != "event_id"]
        yield f"gold.{detection.name}", _Reach(columns, "g._record = s.record_id", keyed)


def _same_row(gold: GoldTable) -> str:
    """Say which rows of a table of windows an event falls into."""
    same = [f'g."{key}" IS NOT DISTINCT FROM s."{key}"' for key in gold.keys]
    between = {
        "tumbling": ["g.window_start <= s.event_time", "s.event_time < g.window_end"],
        "hopping": ["g.window_start <= s.event_time", "s.event_time < g.window_end"],
        "session": ["s.event_time BETWEEN g.session_start AND g.session_end"],
        "global": [],
    }[gold.window.kind]
    return " AND ".join([*same, *between]) or "true"
