"""Checks that need more than one part of a pipeline file.

Each takes the parts that are sound, so that a broken one does not hide what is wrong elsewhere.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from tidelake.config.document import Finding, KeyPath
from tidelake.config.expressions import columns_in, expression_problems
from tidelake.config.gold import (
    Detection,
    GlobalWindow,
    GoldTable,
    HoppingWindow,
    Join,
    SessionWindow,
)
from tidelake.config.model import Documented, unknown
from tidelake.config.names import (
    BRONZE_COLUMNS,
    DETECTION_RESERVED,
    DIMENSION_RESERVED,
    GOLD_RESERVED,
    SILVER_RESERVED,
    is_column_name,
)
from tidelake.config.pipeline import (
    DimensionSpec,
    Enrich,
    Event,
    Pipeline,
    event_types,
    payload_types,
    selected_columns,
)
from tidelake.config.standard import STANDARD

Columns = Collection[str] | None
_M = TypeVar("_M", bound=BaseModel)
# What takes the place of a broken key without causing a finding of its own.
_STAND_INS: dict[type[BaseModel], dict[str, Any]] = {
    Event: {"id": "NULL", "time": "NULL"},
    GoldTable: {"name": "stand_in", "window": {"kind": "tumbling", "size": "1 day"}},
}


def check(raw: Mapping[str, Any]) -> Iterator[Finding]:
    """Find everything wrong between and inside the sound parts of a file's content.

    What is wrong with the others has been reported already.
    """
    event = _sound(Event, raw.get("event"))
    dimension = _sound(DimensionSpec, raw.get("dimension"))
    enrich, written = _sound_items(Enrich, raw.get("enrich")), raw.get("enrich", [])
    # Silver's columns with their types; None: they are not known.
    columns: dict[str, str | None] | None = None
    if event is not None:
        yield from _event_findings(event)
        yield from _enrich_findings(event, enrich)
        if dimension is not None:
            yield from _dimension_findings(event, dimension)
        if isinstance(written, list) and len(enrich) == len(written):
            columns = {**{name: STANDARD[name] for name in SILVER_RESERVED}, **event_types(event)}
            columns |= {column: None for one in enrich.values() for column in one.columns}
    for index, table in _sound_items(GoldTable, raw.get("gold")).items():
        yield from _gold_findings(table, ("gold", index), columns)
    for index, join in _sound_items(Join, raw.get("joins")).items():
        yield from _join_findings(join, ("joins", index), columns, raw.get("name"))
    for index, detection in _sound_items(Detection, raw.get("detections")).items():
        yield from _detection_findings(detection, ("detections", index), columns)


def _sound_items(model: type[_M], raw: object) -> dict[int, _M]:
    items = raw if isinstance(raw, list) else []
    sound = ((index, _sound(model, item)) for index, item in enumerate(items))
    return {index: item for index, item in sound if item is not None}


def _sound(model: type[_M], raw: object) -> _M | None:
    """Validate; or replace what is broken by stand-ins and validate again."""
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        places = [details["loc"] for details in error.errors() if details["loc"]]
    stand_ins = _STAND_INS.get(model)
    broken = {str(place[0]) for place in places}
    if not isinstance(raw, dict) or not stand_ins or broken & {"schema", "select"}:
        return None
    mended = {key: value for key, value in raw.items() if key not in broken}
    mended |= {key: value for key, value in stand_ins.items() if key in broken}
    if "keys" in broken:
        # No keys are a finding for some windows; here they are only unreadable.
        mended["window"] = stand_ins["window"]
    if "measures" in broken:
        measures = raw.get("measures")
        measures = measures if isinstance(measures, dict) else {}
        bad = {place[1] for place in places if place[0] == "measures" and place[1:]}
        sound = {name: body for at, (name, body) in enumerate(measures.items()) if at not in bad}
        mended["measures"] = sound or {"stand_in": {"count": "*"}}
    try:
        return model.model_validate(mended)
    except ValidationError:
        return None


def _sql(path: KeyPath, sql: str | None, columns: Columns) -> Iterator[Finding]:
    if sql is not None:
        yield from (Finding(path, problem) for problem in expression_problems(sql, columns))


def _named(path: KeyPath, names: Iterable[str], known: Columns) -> Iterator[Finding]:
    """Find names in a list that are no columns; none where the columns are not known."""
    for position, name in enumerate(names):
        yield from _name((*path, position), name, known)


def _name(path: KeyPath, name: str, known: Columns) -> Iterator[Finding]:
    if known is not None and name not in known:
        yield Finding(path, unknown("column", name, known))


def _event_findings(event: Event) -> Iterator[Finding]:
    known = payload_types(event)
    for key in ("id", "time", "where", "sequence", "delete_when"):
        yield from _sql(("event", key), getattr(event, key), known)
    seen: set[str] = set()
    for name, sql in (event.select or {}).items():
        path = ("event", "select", name)
        if name.lower() in SILVER_RESERVED:
            yield Finding(path, "is a name that silver fills itself; choose another")
        yield from _sql(path, sql, known)
        if name.lower() in seen:
            yield Finding(path, "is there twice (case does not count)")
        seen.add(name.lower())
    for field in event.fields if event.select is None else ():
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
            yield from _name((*path, "on", name), name, known)
        if enrich.as_of is not None:
            yield from _name((*path, "as_of"), enrich.as_of, known)
        for position, column in enumerate(enrich.columns):
            if column.lower() in taken:
                message = f"{column} is a column of silver already"
                yield Finding((*path, "columns", position), message)
            taken.add(column.lower())


def _dimension_findings(event: Event, dimension: DimensionSpec) -> Iterator[Finding]:
    columns = tuple(selected_columns(event))
    yield from _named(("dimension", "key"), dimension.key, columns)
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
    yield from _named((*path, "columns"), enrich.columns, tuple(selected_columns(dimension.event)))
    if enrich.as_of is not None and not spec.history:
        yield Finding((*path, "as_of"), f"needs dimension.history: true in {dimension.name}")


def _gold_findings(table: GoldTable, path: KeyPath, columns: Columns) -> Iterator[Finding]:
    window = table.window
    if isinstance(window, SessionWindow | GlobalWindow):
        if not table.keys:
            yield Finding((*path, "keys"), f"a {window.kind} table needs at least one key")
    else:
        if isinstance(window, HoppingWindow) and window.slide > window.size:
            message = "is longer than size, so events between two windows would be in none"
            yield Finding((*path, "window", "slide"), message)
        if window.offset >= (window.slide if isinstance(window, HoppingWindow) else window.size):
            message = "must be shorter than the distance from one window to the next"
            yield Finding((*path, "window", "offset"), message)
    yield from _sql((*path, "where"), table.where, columns)
    yield from _named((*path, "keys"), table.keys, columns)
    taken = dict.fromkeys(GOLD_RESERVED, "a name that gold fills itself")
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


def _join_findings(
    join: Join, path: KeyPath, columns: Columns, pipeline: object
) -> Iterator[Finding]:
    of_right = columns if join.right.pipeline == pipeline else None
    taken: set[str] = set()
    for key, side, known in (("left", join.left, columns), ("right", join.right, of_right)):
        yield from _sql((*path, key, "where"), side.where, known)
        for name, sql in side.columns.items():
            place = (*path, key, "columns", name)
            yield from _sql(place, sql, known)
            if name.lower() in taken:
                yield Finding(place, "is a column of this table already; choose another name")
            taken.add(name.lower())
    yield from _named((*path, "on"), join.on, columns)


def _detection_findings(detection: Detection, path: KeyPath, columns: Columns) -> Iterator[Finding]:
    yield from _named((*path, "keys"), detection.keys, columns)
    taken = dict.fromkeys(DETECTION_RESERVED, "a name that alerts fill themselves")
    for position, key in enumerate(detection.keys):
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
    for key in ("latitude", "longitude") if detection.impossible_travel else ():
        sql = getattr(detection.impossible_travel, key)
        yield from _sql((*path, "impossible_travel", key), sql, columns)


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


def comment_findings(pipeline: Pipeline) -> Iterator[Finding]:
    """Find comments on columns that are not there."""
    tables: list[tuple[Documented, KeyPath, Collection[str]]] = [
        (pipeline, (), (*pipeline.defined_columns, "event_id", "event_time")),
        *((one, ("gold", at), one.columns) for at, one in enumerate(pipeline.gold)),
        *((one, ("joins", at), one.columns) for at, one in enumerate(pipeline.joins)),
        *((one, ("detections", at), one.shown) for at, one in enumerate(pipeline.detections)),
    ]
    for table, path, known in tables:
        for name in table.comments:
            yield from _name((*path, "comments", name), name, known)
