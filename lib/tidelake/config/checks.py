"""Checks that need more than one part of a pipeline file.

Each takes the parts that are sound, so that a broken one does not hide what is wrong elsewhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator

from tidelake.config.detections import Detection
from tidelake.config.document import Finding, KeyPath
from tidelake.config.event import Event
from tidelake.config.expressions import columns_in, expression_problems
from tidelake.config.gold import GlobalWindow, GoldTable, HoppingWindow, SessionWindow
from tidelake.config.joins import Enrich, Join
from tidelake.config.model import suggestion
from tidelake.config.names import (
    BRONZE_COLUMNS,
    DETECTION_RESERVED,
    DIMENSION_RESERVED,
    GOLD_RESERVED,
    SILVER_RESERVED,
    is_column_name,
)
from tidelake.config.parts import Parts
from tidelake.config.pipeline import DimensionSpec, Pipeline, selected_columns
from tidelake.config.result_types import payload_types


def check(parts: Parts) -> Iterator[Finding]:
    """Find everything wrong between and inside the sound parts."""
    columns = parts.columns()
    if parts.event is not None:
        yield from _event_findings(parts.event)
        yield from _enrich_findings(parts.event, parts.enrich)
        if parts.dimension is not None:
            yield from _dimension_findings(parts.event, parts.dimension)
    for index, table in parts.gold.items():
        yield from _gold_findings(table, ("gold", index), columns)
    for index, join in parts.joins.items():
        yield from _join_findings(join, ("joins", index), columns, parts.name)
    for index, detection in parts.detections.items():
        yield from _detection_findings(detection, ("detections", index), columns)


def prefilter_findings(pipeline: Pipeline) -> Iterator[Finding]:
    """Find what a prefilter, which knows payloads alone, would mistake for a copy."""
    if pipeline.dedup.prefilter == "none":
        return
    event = pipeline.event
    payload = {field.name.lower() for field in event.fields}
    expressions = {"id": event.id, "time": event.time, "where": event.where}
    expressions |= {f"select.{name}": sql for name, sql in pipeline.selected.items()}
    for key, sql in expressions.items():
        used = (columns_in(sql) if sql else set()) & set(BRONZE_COLUMNS) - payload
        if used:
            message = f"operator goes with payload fields only; event.{key} uses {', '.join(used)}"
            yield Finding(("dedup", "prefilter"), message)


def _sql(path: KeyPath, sql: str | None, columns: Collection[str] | None) -> Iterator[Finding]:
    if sql is not None:
        yield from (Finding(path, problem) for problem in expression_problems(sql, columns))


def _event_findings(event: Event) -> Iterator[Finding]:
    known = payload_types(event)
    for key in ("id", "time", "where", "sequence", "delete_when"):
        yield from _sql(("event", key), getattr(event, key), known)
    for name, sql in (event.select or {}).items():
        path = ("event", "select", name)
        if name.lower() in SILVER_RESERVED:
            yield Finding(path, "is a name that silver fills itself; choose another")
        yield from _sql(path, sql, known)
    for name in _repeated(event.select or ()):
        yield Finding(("event", "select", name), "is there twice (case does not count)")
    if event.select is None:
        for field in event.fields:
            if not is_column_name(field.name):
                yield Finding(
                    ("event", "schema"),
                    f"field '{field.name}' cannot be a column of silver as it is; name it with "
                    f"event.select: {{a_name: '`{field.name}`'}}",
                )


def _enrich_findings(event: Event, enrichments: dict[int, Enrich]) -> Iterator[Finding]:
    known = [*SILVER_RESERVED, *selected_columns(event)]
    taken = {name.lower() for name in known}
    for index, enrich in enrichments.items():
        path: KeyPath = ("enrich", index)
        for name in enrich.on:
            yield from _name_findings((*path, "on", name), name, known)
        if enrich.as_of is not None:
            yield from _name_findings((*path, "as_of"), enrich.as_of, known)
        for position, column in enumerate(enrich.columns):
            if column.lower() in taken:
                message = f"{column} is a column of silver already"
                yield Finding((*path, "columns", position), message)
            taken.add(column.lower())


def _dimension_findings(event: Event, dimension: DimensionSpec) -> Iterator[Finding]:
    columns = tuple(selected_columns(event))
    for position, key in enumerate(dimension.key):
        yield from _name_findings(("dimension", "key", position), key, columns)
    for name in columns:
        if name.lower() in DIMENSION_RESERVED:
            path = ("event", "select", name) if event.select else ("event", "schema")
            yield Finding(path, f"{name} is a name that a dimension fills itself; choose another")


def dimension_findings(enrich: Enrich, dimension: Pipeline, index: int) -> Iterator[Finding]:
    """Hold an enrichment against the definition of its dimension."""
    path: KeyPath = ("enrich", index)
    spec = dimension.dimension
    if spec is None:
        yield Finding((*path, "dimension"), f"{dimension.name} is a pipeline of kind events")
        return
    if sorted(enrich.on.values()) != sorted(spec.key):
        message = f"must name the whole key of {dimension.name}: {', '.join(spec.key)}"
        yield Finding((*path, "on"), message)
    known = tuple(selected_columns(dimension.event))
    for position, column in enumerate(enrich.columns):
        yield from _name_findings((*path, "columns", position), column, known)
    if enrich.as_of is not None and not spec.history:
        yield Finding((*path, "as_of"), f"needs dimension.history: true in {dimension.name}")


def _gold_findings(
    table: GoldTable, path: KeyPath, columns: Collection[str] | None
) -> Iterator[Finding]:
    yield from _window_findings(table, path)
    yield from _sql((*path, "where"), table.where, columns)
    for position, key in enumerate(table.keys):
        if columns is not None:
            yield from _name_findings((*path, "keys", position), key, columns)
    taken = {name: "a name that gold fills itself" for name in GOLD_RESERVED}
    for position, key in enumerate(table.keys):
        if key.lower() in taken:
            yield Finding((*path, "keys", position), f"{key} is {taken[key.lower()]}")
        taken.setdefault(key.lower(), "a key of this table already")
    for measure in table.measures:
        place = (*path, "measures", measure.name)
        if measure.name.lower() in taken:
            yield Finding(place, f"is {taken[measure.name.lower()]}; choose another name")
        taken.setdefault(measure.name.lower(), "a measure of this table already")
        if not (measure.aggregate == "count" and measure.expression.strip() == "*"):
            yield from _sql(place, measure.expression, columns)


def _window_findings(table: GoldTable, path: KeyPath) -> Iterator[Finding]:
    window = table.window
    if isinstance(window, SessionWindow | GlobalWindow):
        if not table.keys:
            yield Finding((*path, "keys"), f"a {window.kind} table needs at least one key")
        return
    if isinstance(window, HoppingWindow) and window.slide > window.size:
        message = "is longer than size, so events between two windows would be in none"
        yield Finding((*path, "window", "slide"), message)
    step = window.slide if isinstance(window, HoppingWindow) else window.size
    if window.offset >= step:
        message = "must be shorter than the distance from one window to the next"
        yield Finding((*path, "window", "offset"), message)


def _join_findings(
    join: Join, path: KeyPath, columns: Collection[str] | None, pipeline: str | None
) -> Iterator[Finding]:
    of_right = columns if join.right.pipeline == pipeline else None
    yield from _sql((*path, "left", "where"), join.left.where, columns)
    yield from _sql((*path, "right", "where"), join.right.where, of_right)
    taken: set[str] = set()
    for side, known in (("left", columns), ("right", of_right)):
        for name, sql in getattr(join, side).columns.items():
            place = (*path, side, "columns", name)
            yield from _sql(place, sql, known)
            if name.lower() in taken:
                yield Finding(place, "is a column of this table already; choose another name")
            taken.add(name.lower())
    for position, name in enumerate(join.on):
        if columns is not None:
            yield from _name_findings((*path, "on", position), name, columns)


def _detection_findings(
    detection: Detection, path: KeyPath, columns: Collection[str] | None
) -> Iterator[Finding]:
    taken = {name: "a name that alerts fill themselves" for name in DETECTION_RESERVED}
    for position, key in enumerate(detection.keys):
        if columns is not None:
            yield from _name_findings((*path, "keys", position), key, columns)
        if key.lower() in {*taken, *detection.hours.columns} - set(detection.keys):
            yield Finding((*path, "keys", position), f"{key} is a name that the table fills itself")
        taken.setdefault(key.lower(), "a key of this table already")
    for name, sql in detection.columns.items():
        if name.lower() in taken:
            message = f"is {taken[name.lower()]}; choose another name"
            yield Finding((*path, "columns", name), message)
        yield from _sql((*path, "columns", name), sql, columns)
    if detection.unusual_amount:
        yield from _sql((*path, "unusual_amount", "value"), detection.unusual_amount.value, columns)
    if detection.impossible_travel:
        travel = detection.impossible_travel
        yield from _sql((*path, "impossible_travel", "latitude"), travel.latitude, columns)
        yield from _sql((*path, "impossible_travel", "longitude"), travel.longitude, columns)


def _name_findings(path: KeyPath, name: str, known: Collection[str]) -> Iterator[Finding]:
    if name not in known:
        hint = suggestion(name, known) or f" (known: {', '.join(known)})"
        yield Finding(path, f"unknown column {name}{hint}")


def _repeated(names: Iterable[str]) -> list[str]:
    seen: Counter[str] = Counter()
    again = []
    for name in names:
        seen[name.lower()] += 1
        if seen[name.lower()] > 1:
            again.append(name)
    return again
