"""Check the sections of a pipeline file: SQL, names, references, and keys that exclude each other.

With :mod:`.loading`, which reads the files, the file would exceed 500 lines.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from tidelake import names
from tidelake.config.document import Finding, KeyPath, dotted, findings_of, mappings_in
from tidelake.config.environment import Environment
from tidelake.config.expressions import (
    CONDITIONS,
    Types,
    columns_in,
    condition_problems,
    expression_problems,
    type_of,
)
from tidelake.config.gold_definitions import (
    Detection,
    GoldTable,
    HoppingWindow,
    Join,
    LeftSide,
    RightSide,
    TumblingWindow,
    window_problems,
)
from tidelake.config.model import Documented, suggestion, unknown
from tidelake.config.pipeline import (
    DimensionSpec,
    Enrich,
    Event,
    PipelineFile,
    Quality,
    Transform,
    gold_types,
    payload_types,
    selected_columns,
)
from tidelake.config.queries import Query, query_problems, shown_by
from tidelake.config.query_parts import source_of
from tidelake.config.sharing import table_names
from tidelake.config.source import CHANGE_COLUMNS
from tidelake.config.standard_tables import standard_types
from tidelake.config.table_settings import TableSettings
from tidelake.names import logical_name

Columns = Collection[str] | None
_M = TypeVar("_M", bound=BaseModel)
# Catalogs without tags and without an information schema: Spark's own, also on Databricks.
NOT_UNITY = ("spark_catalog", "hive_metastore")
# The late table has silver's columns and its own.
_RESERVED = {*names.SILVER_RESERVED, *names.LATE_COLUMNS}
_KEY = "already a key of this table"
# Types of times. Spark would take a number for seconds, also one of milliseconds.
_INSTANTS = ("TIMESTAMP", "DATE", "STRING")
_DAYS = {"kind": "tumbling", "size": "1 day"}
# Substitutes for invalid keys, to validate the rest of a section. They cause no findings.
_SUBSTITUTES: dict[type[BaseModel], dict[str, dict[str, Any]]] = {
    Event: {"id": {"id": "NULL"}, "time": {"time": "NULL"}},
    GoldTable: {
        "name": {"name": "stand_in"},
        "window": {"window": _DAYS},
        # Some windows require keys; the keys are not missing here, only invalid.
        "keys": {"window": _DAYS},
        "measures": {"measures": {"stand_in": {"count": "*"}}},
    },
    Quality: {"rules": {"rules": {}}},
}


def envelope_of(raw: Mapping[str, Any]) -> object:
    """Return what the file writes as the source's envelope, valid or not; None without one."""
    source = raw.get("source")
    return source.get("envelope") if isinstance(source, dict) else None


def combination_findings(raw: dict[str, Any]) -> Iterator[Finding]:
    """Find what ``quality`` lacks, and keys that the pipeline's ``kind`` requires or excludes."""
    event = raw.get("event")
    event = event if isinstance(event, dict) else {}
    quality = raw.get("quality")
    if isinstance(quality, dict) and quality.get("suite") is None and not quality.get("rules"):
        yield Finding(("quality", "suite"), "required key is missing; name a suite, or write rules")
    kind = raw.get("kind", "events")
    if kind == "events":
        if raw.get("dimension") is not None:
            yield Finding(("dimension",), "is allowed with kind: dimension only")
        for key in ("sequence", "delete_when"):
            if event.get(key) is not None:
                yield Finding(("event", key), "is allowed with kind: dimension only")
    elif kind == "dimension":
        if raw.get("dimension") is None:
            yield Finding(("dimension",), "required key is missing (kind: dimension)")
        if event.get("sequence") is None:
            yield Finding(("event", "sequence"), "required key is missing (kind: dimension)")
        for key in ("gold", "joins", "detections", "queries", "enrich"):
            if raw.get(key):
                yield Finding((key,), "is allowed with kind: events only")


def section_findings(raw: Mapping[str, Any]) -> Iterator[Finding]:
    """Check SQL, names and references of valid sections; the model reports invalid ones."""
    event = validated_section(Event, raw.get("event"))
    dimension = validated_section(DimensionSpec, raw.get("dimension"))
    transform = validated_section(Transform, raw.get("transform"))
    quality = validated_section(Quality, raw.get("quality"))
    added = transform.types if transform else {}
    is_known = transform is not None or raw.get("transform") is None
    enrich, written = _validated_items(Enrich, raw, "enrich"), raw.get("enrich", [])
    # Silver's columns with their types; None if a section that defines them is invalid.
    columns: Types | None = None
    if event is not None:
        yield from _event_findings(event, envelope_of(raw))
        yield from _transform_findings(event, added, dimension)
        if dimension is not None:
            yield from _dimension_findings(event, dimension)
        payload = payload_types(event, envelope_of(raw))
        own = {name: type_of(sql, payload) for name, sql in selected_columns(event).items()} | added
        if is_known:
            yield from _enrich_findings(own, enrich)
            yield from _rule_findings(quality, own)
        if is_known and isinstance(written, list) and len(enrich) == len(written):
            looked_up = (column for entry in enrich.values() for column in entry.columns)
            columns = standard_types(names.SILVER_RESERVED) | own | dict.fromkeys(looked_up)
    for path, table in _validated_items(GoldTable, raw, "gold").items():
        yield from _gold_findings(table, path, columns)
        # Substitutes have other columns.
        is_whole = _valid(GoldTable, raw["gold"][path[1]]) is not None
        yield from _derive_findings(table, path, columns, is_whole=is_whole)
    for path, join in _validated_items(Join, raw, "joins").items():
        yield from _join_findings(join, path, columns, raw.get("name"))
    for path, detection in _validated_items(Detection, raw, "detections").items():
        yield from _detection_findings(detection, path, columns)
    yield from _query_findings(raw, columns)


def _validated_items(model: type[_M], raw: Mapping[str, Any], key: str) -> dict[KeyPath, _M]:
    """Return the valid items of a list of the file, by their paths."""
    items = mappings_in(raw.get(key), (key,))
    valid = ((path, validated_section(model, item)) for path, item in items)
    return {path: item for path, item in valid if item is not None}


def _valid(model: type[_M], raw: object) -> _M | None:
    with suppress(ValidationError):
        return model.model_validate(raw)
    return None


def validated_section(model: type[_M], raw: object) -> _M | None:
    """Validate a section, with substitutes for its invalid keys; None if it stays invalid."""
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        paths = {finding.path for finding in findings_of(error, model, raw)}
    broken = {str(path[0]) for path in paths if path}
    keys = [field.alias or name for name, field in model.model_fields.items()]
    # An event without its `select`, which may be misspelt, would have other columns.
    misspelt = {suggestion(key, keys) for key in broken - {*keys}}
    lacks_columns = broken & {"schema", "select"} or "; did you mean select?" in misspelt
    if not isinstance(raw, dict) or model not in _SUBSTITUTES or lacks_columns:
        return None
    repaired = {key: value for key, value in raw.items() if key not in broken}
    for key, substitute in _SUBSTITUTES[model].items():
        repaired |= substitute if key in broken else {}
    for key in broken & _SUBSTITUTES[model].keys() & {"measures", "rules"}:
        if isinstance(items := raw.get(key), dict):
            wrong = {path[:2] for path in paths}
            valid = {name: body for name, body in items.items() if (key, name) not in wrong}
            repaired[key] = valid or repaired[key]
    return _valid(model, repaired)


def _sql_findings(
    path: KeyPath, sql: str | None, columns: Columns, *, kinds: Collection[str] = ()
) -> Iterator[Finding]:
    """Check an expression; ``kinds`` are the types of a condition, none for another expression."""
    if sql is not None:
        find = partial(condition_problems, kinds=kinds) if kinds else expression_problems
        yield from (Finding(path, problem) for problem in find(sql, columns))


def name_findings(path: KeyPath, used: Iterable[str], known: Columns) -> Iterator[Finding]:
    """Find names in a list that are none of the known columns."""
    for position, name in enumerate(used):
        yield from _name_finding((*path, position), name, known)


def _name_finding(path: KeyPath, name: str, known: Columns) -> Iterator[Finding]:
    if known is not None and name not in known:
        yield Finding(path, unknown("column", name, known))


def _key_findings(path: KeyPath, used: tuple[str, ...], known: Columns) -> Iterator[Finding]:
    yield from name_findings(path, used, known)
    if len(set(used)) < len(used):
        yield Finding(path, "names a column twice")


def _taken_finding(path: KeyPath, name: str, taken: dict[str, str], what: str) -> Iterator[Finding]:
    """Find a name that is taken, in any case; a free one is ``what`` to the names after it."""
    if name.lower() in taken:
        subject = f"{name} is" if isinstance(path[-1], int) else "is"
        yield Finding(path, f"{subject} {taken[name.lower()]}; choose another name")
    taken.setdefault(name.lower(), what)


def _event_findings(event: Event, envelope: object) -> Iterator[Finding]:
    known = payload_types(event, envelope)
    for field in event.fields if envelope else ():
        if field.name.lower() in CHANGE_COLUMNS:
            yield Finding(
                ("event", "schema"),
                f"field '{field.name}' has the name of a column of the envelope; leave it out",
            )
    for key in ("id", "time", "where", "sequence", "delete_when"):
        kinds = CONDITIONS if key in ("where", "delete_when") else ()
        yield from _sql_findings(("event", key), getattr(event, key), known, kinds=kinds)
    seen: set[str] = set()
    for name, sql in (event.select or {}).items():
        path = ("event", "select", name)
        if name.lower() in _RESERVED:
            yield Finding(path, "is a reserved column of silver; choose another name")
        yield from _sql_findings(path, sql, known)
        if name.lower() in seen:
            yield Finding(path, "appears twice (names are case-insensitive)")
        seen.add(name.lower())
    for field in event.fields if event.select is None else ():
        is_column = names.is_column_name(field.name)
        if not is_column or field.name.lower() in names.LATE_COLUMNS:
            what = "a reserved" if is_column else "not a valid"
            message = (
                f"field '{field.name}' is {what} column name in silver; rename it with "
                f"event.select: {{a_name: '`{field.name}`'}}"
            )
            yield Finding(("event", "schema"), message)


def _transform_findings(
    event: Event, added: Collection[str], dimension: DimensionSpec | None
) -> Iterator[Finding]:
    path: KeyPath = ("transform", "columns")
    selected = {name.lower(): name for name in selected_columns(event)}
    reserved = {*_RESERVED, *(names.DIMENSION_RESERVED if dimension else ())}
    for name in added:
        written = selected.get(name.lower(), name)
        if name.lower() in reserved:
            yield Finding(path, f"{name} is a reserved column; choose another name")
        elif not names.is_column_name(name):
            message = (
                f"'{name}' is not a valid column name in silver: start with a letter, then at "
                "most 62 letters, digits and underscores"
            )
            yield Finding(path, message)
        elif written != name:
            yield Finding(path, f"to replace the column {written}, write it as there, not {name}")
        elif dimension is not None and name in dimension.key:
            message = f"{name} is a key of the dimension and cannot be replaced; use another name"
            yield Finding(path, message)


def _enrich_findings(columns: Types, enrichments: dict[KeyPath, Enrich]) -> Iterator[Finding]:
    known = [*names.SILVER_RESERVED, *columns]
    taken = {name.lower() for name in (*known, *names.LATE_COLUMNS)}
    # Lateness is decided after the lookup.
    readable = [name for name in known if name != "is_late"]
    for path, enrich in enrichments.items():
        for name in enrich.on:
            yield from _name_finding((*path, "on", name), name, readable)
        if enrich.as_of is not None:
            yield from _name_finding((*path, "as_of"), enrich.as_of, readable)
            kind = columns.get(enrich.as_of)
            if kind is not None and not kind.startswith(_INSTANTS):
                message = (
                    f"{enrich.as_of} is {kind}, no time; name a column of event.select that is "
                    f"one, such as timestamp_millis({enrich.as_of})"
                )
                yield Finding((*path, "as_of"), message)
        for position, column in enumerate(enrich.columns):
            if column.lower() in taken:
                place: KeyPath = (*path, "columns", position)
                yield Finding(place, f"{column} is already a column of silver")
            taken.add(column.lower())


def _rule_findings(quality: Quality | None, own: Types) -> Iterator[Finding]:
    """Check the rules, which are evaluated before dimensions are joined."""
    known = {**standard_types(("event_id", "event_time")), **own}
    for name, rule in (quality.rules if quality else {}).items():
        yield from _sql_findings(("quality", "rules", name), rule.sql, known, kinds=["BOOLEAN"])


def _dimension_findings(event: Event, dimension: DimensionSpec) -> Iterator[Finding]:
    columns = tuple(selected_columns(event))
    yield from _key_findings(("dimension", "key"), dimension.key, columns)
    for name in columns:
        if name.lower() in names.DIMENSION_RESERVED:
            path = ("event", "select", name) if event.select else ("event", "schema")
            yield Finding(path, f"{name} is a reserved column of dimensions; choose another name")


def _gold_findings(table: GoldTable, path: KeyPath, columns: Columns) -> Iterator[Finding]:
    window = table.window
    if isinstance(window, TumblingWindow | HoppingWindow):
        for key, message in window_problems(window):
            yield Finding((*path, "window", key), message)
    elif not table.keys:
        yield Finding((*path, "keys"), f"a {window.kind} table needs at least one key")
    yield from _sql_findings((*path, "where"), table.where, columns, kinds=CONDITIONS)
    taken = dict.fromkeys(names.GOLD_RESERVED, "a reserved column of gold")
    for position, key in enumerate(table.keys):
        place = (*path, "keys", position)
        if names.is_column_name(key) or expression_problems(key, None):
            yield from _name_finding(place, key, columns)
        else:
            message = f"a key is a column: add it to event.select, such as `a_name: {key}`"
            yield Finding(place, message)
        yield from _taken_finding(place, key, taken, _KEY)
    for measure in table.measures:
        place = (*path, "measures", measure.name)
        yield from _taken_finding(place, measure.name, taken, "already a measure of this table")
        sql, kinds = measure.expression, CONDITIONS if measure.aggregate == "count_if" else ()
        if not (measure.aggregate == "count" and sql.strip() == "*"):
            yield from _sql_findings(place, sql, columns, kinds=kinds)


def _derive_findings(
    table: GoldTable, path: KeyPath, columns: Types | None, *, is_whole: bool
) -> Iterator[Finding]:
    own = table.model_copy(update={"derive": {}})
    known = gold_types(own, columns or {}) | dict.fromkeys(table.derive)
    taken = dict.fromkeys(map(str.lower, own.columns), "already a column of this table")
    others = {name.lower(): name for name in table.derive if name.lower() not in taken}
    taken |= dict.fromkeys(names.GOLD_RESERVED, "a reserved column of gold")
    for name, sql in table.derive.items():
        place = (*path, "derive", name)
        yield from _taken_finding(place, name, taken, "already a derived column of this table")
        problems = expression_problems(sql, known if is_whole else None)
        yield from (Finding(place, problem) for problem in problems)
        for used in sorted(columns_in(sql) & others.keys()) if not problems else ():
            message = f"uses {others[used]}, which is derived too; write its expression instead"
            yield Finding(place, message)


def _join_findings(
    join: Join, path: KeyPath, columns: Columns, pipeline: object
) -> Iterator[Finding]:
    right_columns = columns if join.right.pipeline == pipeline else None
    taken: dict[str, str] = {}
    for key, side, known in (("left", join.left, columns), ("right", join.right, right_columns)):
        yield from side_findings(side, (*path, key), known)
        for name in side.columns:
            place = (*path, key, "columns", name)
            yield from _taken_finding(place, name, taken, "already a column of this table")
    yield from _key_findings((*path, "on"), join.on, columns)


def side_findings(side: LeftSide | RightSide, path: KeyPath, known: Columns) -> Iterator[Finding]:
    """Check the SQL of a join's side over the silver that has the known columns."""
    yield from _sql_findings((*path, "where"), side.where, known, kinds=CONDITIONS)
    for name, sql in side.columns.items():
        yield from _sql_findings((*path, "columns", name), sql, known)


def _detection_findings(detection: Detection, path: KeyPath, columns: Columns) -> Iterator[Finding]:
    yield from name_findings((*path, "keys"), detection.keys, columns)
    taken = dict.fromkeys(names.DETECTION_RESERVED, "a reserved column of alerts")
    measured = detection.hours.model_copy(update={"keys": ()}).columns
    of_keys = dict.fromkeys(measured, "a reserved column of features") | taken
    for position, key in enumerate(detection.keys):
        yield from _taken_finding((*path, "keys", position), key, of_keys, _KEY)
        taken.setdefault(key.lower(), _KEY)
    for name in detection.columns:
        what = "twice in this table (names are case-insensitive)"
        yield from _taken_finding((*path, "columns", name), name, taken, what)
    for place, sql in detection.expressions.items():
        yield from _sql_findings((*path, *place), sql, columns)


def _query_findings(raw: Mapping[str, Any], columns: Types | None) -> Iterator[Finding]:
    """Check the SQL of queries against the tables that they read."""
    read: dict[str, GoldTable | None] = {}
    for _, item in mappings_in(raw.get("gold"), ("gold",)):
        # The columns of an invalid table are not known.
        if isinstance(item.get("name"), str):
            read[logical_name("gold", item["name"])] = _valid(GoldTable, item)
    for detection in _validated_items(Detection, raw, "detections").values():
        read[logical_name("gold", detection.features)] = detection.hours
    silver = columns or {}
    own = [logical_name("silver", raw["name"])] if isinstance(raw.get("name"), str) else []
    known = {*read, *own}
    others = {logical_name("gold", name): dotted(place[:2]) for place, name in table_names(raw)}
    for place, item in mappings_in(raw.get("queries"), ("queries",)):
        path, source = (*place, "sql"), source_of(item.get("sql"))
        table, query = read.get(source), validated_section(Query, item)
        if source not in known and source in others:
            message = f"reads {source}, which is {others[source]}; read a table of gold, or silver"
            yield Finding(path, message, is_cause=True)
        elif table is not None and not isinstance(table.window, TumblingWindow | HoppingWindow):
            message = (
                f"reads {source}, whose window is {table.window.kind}; a batch changes rows of it "
                "that lie outside of its own windows. Read tumbling or hopping windows, or silver"
            )
            yield Finding(path, message, is_cause=True)
        elif query is None:
            continue
        elif source not in known:
            yield Finding(path, f"reads an {unknown('table', source, known)}")
        elif table is not None or (source not in read and silver):
            shown = gold_types(table, silver) if table else silver
            problems = query_problems(query, table, shown)
            yield from (Finding(path, problem) for problem in problems)


def settings_of(pipeline: PipelineFile) -> Iterator[tuple[str, KeyPath, TableSettings]]:
    """Yield the settings of each gold table by its logical name, with their place in the file."""
    if pipeline.dimension is not None:
        for name in pipeline.gold_names:
            yield name, ("dimension",), pipeline.dimension
    for path, table in pipeline.tables.items():
        yield logical_name("gold", table.name), path, table


def settings_findings(pipeline: PipelineFile, environment: Environment) -> Iterator[Finding]:
    """Find settings and comments of columns that their table lacks, and what cannot be applied.

    A root on a disk is not refused: whoever can read the folder can read everything in it, and its
    owner knows that.
    """
    for name in pipeline.comments:
        known = (*pipeline.defined_columns, "event_id", "event_time")
        yield from _name_finding(("comments", name), name, known)
    columns: dict[KeyPath, Collection[str]] = {
        path: table.shown if isinstance(table, Detection) else table.columns
        for path, table in pipeline.tables.items()
    }
    columns["dimension",] = selected_columns(pipeline.event) if pipeline.dimension else ()
    for path, settings in {path: one for _, path, one in settings_of(pipeline)}.items():
        comments = settings.comments if isinstance(settings, Documented) else {}
        for key, named in (("comments", comments), ("masks", settings.masks)):
            for name in named:
                yield from _name_finding((*path, key, name), name, columns[path])
        derive = settings.derive if isinstance(settings, GoldTable) else {}
        masked = {name.lower(): name for name in settings.masks}
        for name, sql in derive.items() if masked else ():
            shown = sorted(columns_in(sql) & masked.keys())
            if shown and name.lower() not in masked:
                message = f"shows what {masked[shown[0]]} masks; mask this column too"
                yield Finding((*path, "derive", name), message)
        if settings.row_filter:
            used = settings.row_filter.columns
            yield from name_findings((*path, "row_filter", "columns"), used, columns[path])
        for key in ("masks", "row_filter"):
            if getattr(settings, key) and environment.is_on_object_store:
                yield Finding(
                    (*path, key),
                    f"cannot be enforced under {environment.root}, whose readers open the files "
                    "themselves; use an environment with a catalog, or remove it",
                )
        if settings.tags and environment.catalog in NOT_UNITY:
            yield Finding(
                (*path, "tags"),
                f"need Unity Catalog; {environment.catalog} stores none. Use another catalog, or "
                "remove them",
            )
    tables = {logical_name("gold", table.name): table for table in pipeline.gold}
    for at, query in enumerate(pipeline.queries):
        if (read := tables.get(query.parts.source)) is not None:
            yield from (Finding(("queries", at), shown) for shown in shown_by(query, read))


def prefilter_findings(pipeline: PipelineFile) -> Iterator[Finding]:
    """Find expressions that use bronze columns: the prefilter compares payloads only."""
    if pipeline.dedup.prefilter == "none":
        return
    if pipeline.envelope:
        yield Finding(("dedup", "prefilter"), "operator cannot be combined with source.envelope")
        return
    event = pipeline.event
    payload = {field.name.lower() for field in event.fields}
    expressions = {"id": event.id, "time": event.time, "where": event.where}
    expressions |= {f"select.{name}": sql for name, sql in pipeline.selected.items()}
    for key, sql in expressions.items():
        used = (columns_in(sql) if sql else set()) & set(names.BRONZE_COLUMNS) - payload
        if used:
            message = f"operator supports payload fields only; event.{key} uses {', '.join(used)}"
            yield Finding(("dedup", "prefilter"), message)
