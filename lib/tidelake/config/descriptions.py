"""Descriptions of tables and columns, for comments of Delta tables and the data dictionary.

Descriptions and comments of the pipeline file take precedence over the standard ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

from sqlglot import ParseError, exp, parse_one

from tidelake.config.expressions import Types, type_of
from tidelake.config.gold_definitions import (
    EVENTS,
    LAST_PLACE,
    TOTAL,
    VALUES,
    GoldTable,
    HoppingWindow,
    Measure,
    SessionWindow,
    TumblingWindow,
)
from tidelake.config.model import Documented, written
from tidelake.config.pipeline import Pipeline, gold_types, measured_type, silver_types
from tidelake.config.queries import Query, measure_of
from tidelake.config.standard_tables import COLUMNS, OPS_TABLES, STANDARD, TABLES, standard_types
from tidelake.names import BRONZE_COLUMNS, LATE_COLUMNS, SILVER_RESERVED, logical_name

_STATE = "Kept to merge the next batch; not for analysis."
_UNKNOWN_FIELD = "A payload field that the schema does not know, as text."
_HOURS = {
    EVENTS: "Number of events.",
    VALUES: "Number of values.",
    TOTAL: "Sum of the values.",
    LAST_PLACE: "The last place, and when.",
}
_MEASURES = {
    "count": "Number of events with a value of {0}.",
    "count_if": "Number of events with {0}.",
    "sum": "Sum of {0}.",
    "min": "Least {0}.",
    "max": "Greatest {0}.",
    "avg": "Mean of {0}.",
    "first": "The first {0}, by event time.",
    "last": "The last {0}, by event time.",
    "approx_count_distinct": "About how many different values of {0}.",
    "approx_percentile": "About the {1:g}th percentile of {0}.",
}


@dataclass(frozen=True)
class Meaning:
    """Descriptions of a table and its columns.

    ``columns`` describes the table's own columns (empty text: no description), ``other`` any column
    that is neither in ``columns`` nor standard.
    """

    description: str
    columns: Mapping[str, str] = field(default_factory=dict)
    other: str | None = None

    def of(self, column: str) -> str | None:
        """Return a column's description: the table's own, else the standard one, else None."""
        # A pipeline's column may have the name of a standard column and another meaning.
        if column in self.columns:
            return self.columns[column] or None
        return COLUMNS.get(column, _STATE if column.startswith("_") else self.other)


def standard_meaning(table: str) -> Meaning:
    """Return the meaning of a table whose columns are the same for every pipeline."""
    layer, _, name = table.partition(".")
    _, mark, side = name.partition("__")
    return Meaning(TABLES.get(f"{layer}{mark}{side}" if layer != "ops" else table, ""))


def meaning_of(pipeline: Pipeline, table: str) -> Meaning:
    """Return the meaning of a table of a pipeline, by its logical name."""
    standard = standard_meaning(table)
    about = f"{pipeline.description} " if pipeline.description else ""
    if table in (
        logical_name("silver", pipeline.name),
        logical_name("silver", pipeline.name, "late"),
    ):
        comments = _silver_comments(pipeline)
        columns = _own(comments, pipeline.defined_columns) | comments
        return Meaning(about + standard.description, columns, _UNKNOWN_FIELD)
    if pipeline.dimension is not None and table in pipeline.gold_names:
        is_history = table.endswith("__history")
        what = "One row per version of a key." if is_history else "One row per key."
        columns = _own(pipeline.comments, pipeline.defined_columns)
        return Meaning(about + what, columns)
    return _gold_meanings(pipeline).get(table, standard)


def _gold_meanings(pipeline: Pipeline) -> dict[str, Meaning]:
    found: dict[str, Meaning] = {}
    inherited = _silver_comments(pipeline)
    for gold in pipeline.gold:
        own = _own(inherited, gold.keys)
        own |= {measure.name: _measured(measure) for measure in gold.measures}
        derived = {name: _one_line(sql) for name, sql in gold.derive.items()}
        own |= {name: f"Computed from the row: {sql}." for name, sql in derived.items()}
        found[logical_name("gold", gold.name)] = _described(gold, _row_of(gold), own)
    for join in pipeline.joins:
        standard = "One row per left event, with its first match."
        own = _own(inherited, join.columns)
        found[logical_name("gold", join.name)] = _described(join, standard, own)
    for detection in pipeline.detections:
        own = _own(inherited, (*detection.keys, *detection.columns))
        standard = "One row per event and rule that it broke."
        found[logical_name("gold", detection.name)] = _described(detection, standard, own)
        standard = f"What the rules of {detection.name} look back at: one row per key and hour."
        found[logical_name("gold", detection.features)] = Meaning(standard, own | _HOURS)
    for query in pipeline.queries:
        parts, source = query.parts, found.get(query.parts.source)
        texts = source.columns if source else inherited
        own = {name.lower(): text for name, text in texts.items()}
        columns = {one.name: f"Computed: {_one_line(one.sql)}." for one in parts.columns}
        for key in parts.keys:
            if key.unit:
                columns[key.name] = f"Where the {key.unit} begins (UTC); included."
            elif not key.internal.startswith("_"):
                columns[key.name] = own.get(key.internal, COLUMNS.get(key.internal, ""))
        by = ", ".join(key.name for key in parts.keys if key != parts.window)
        row = f"One row for each {parts.window.unit or 'window'}{f' and {by}' if by else ''}"
        standard = f"{row}, computed from {parts.source}."
        found[logical_name("gold", query.name)] = _described(query, standard, columns)
    return found


def _described(table: Documented, standard: str, columns: Mapping[str, str]) -> Meaning:
    return Meaning(table.description or standard, {**columns, **table.comments})


def _silver_comments(pipeline: Pipeline) -> dict[str, str]:
    """Return the comments on silver's columns, including those of dimensions."""
    found: dict[str, str] = {}
    for enrich in pipeline.enrich:
        comments = pipeline.dimensions[enrich.dimension].comments
        found |= {name: comments[name] for name in enrich.columns if name in comments}
    return found | pipeline.comments


def _own(inherited: Mapping[str, str], columns: Sequence[str]) -> dict[str, str]:
    return {name: inherited.get(name, "") for name in columns if not name.startswith("_")}


def _measured(measure: Measure) -> str:
    sql = _one_line(measure.expression)
    if sql == "*":
        return "Number of events."
    return _MEASURES[measure.aggregate].format(sql, (measure.p or 0) * 100)


def _one_line(sql: str) -> str:
    return " ".join(sql.split())


def _row_of(gold: GoldTable) -> str:
    by = f" and {', '.join(gold.keys)}" if gold.keys else ""
    what = "session" if isinstance(gold.window, SessionWindow) else "window"
    return f"One row per {what}{by}." if gold.window.kind != "global" else f"One row per {by[5:]}."


# No pipeline can have this name.
SHARED = "All pipelines"
_QUARANTINE = ("record_id", "payload", "event_id", "reasons", "stage", "ingested_at")
# Tables that all pipelines share: the columns that identify a row, and an example query.
_SHARED = {
    "ops.books": (
        ("table_name", "generation", "version"),
        "SELECT table_name, max(committed_at) AS newest FROM ops.books GROUP BY table_name",
    ),
    "ops.epochs": (
        ("pipeline", "epoch"),
        "SELECT pipeline, max(closed_at) AS newest FROM ops.epochs GROUP BY pipeline",
    ),
    "ops.progress": (
        ("run", "hop", "batch", "ended_at"),
        "SELECT hop, batch, rows, seconds FROM ops.progress ORDER BY started_at DESC LIMIT 20",
    ),
}


@dataclass(frozen=True)
class ColumnEntry:
    """A column in the data dictionary; its type is None where only Spark can infer it."""

    name: str
    type: str | None
    meaning: str


@dataclass(frozen=True)
class TableEntry:
    """A table in the data dictionary, without internal columns, which begin with ``_``.

    ``keys`` identify a row; they are empty where the description says what a row is.
    """

    table: str
    description: str
    keys: tuple[str, ...]
    window: str
    columns: tuple[ColumnEntry, ...]
    example: str


def in_sql(names: Iterable[str], dialect: str) -> str:
    """List columns for a SELECT; a name that is a keyword to DuckDB or sqlglot is quoted."""

    def is_plain(name: str) -> bool:
        try:
            parse_one(f"SELECT {name}, 1", dialect=dialect)
        except ParseError:
            return False
        return name.lower() not in _keywords()

    return ", ".join(
        name if is_plain(name) else exp.to_identifier(name, quoted=True).sql(dialect)
        for name in names
    )


@cache
def _keywords() -> frozenset[str]:
    import duckdb  # noqa: PLC0415  not needed for comments

    reserved = (
        "SELECT keyword_name FROM duckdb_keywords() "
        "WHERE keyword_category IN ('reserved', 'type_function')"
    )
    with duckdb.connect() as connection:
        return frozenset(keyword for (keyword,) in connection.execute(reserved).fetchall())


def entries_of(pipeline: Pipeline, dialect: str = "duckdb") -> list[TableEntry]:
    """Return the entries of a pipeline's tables, gold first, with examples in a dialect of SQL."""
    silver = silver_types(pipeline)
    return [*_gold_entries(pipeline, silver, dialect), *_layer_entries(pipeline, silver)]


def shared_entries() -> Iterator[TableEntry]:
    """Return the entries of the tables that all pipelines share."""
    for table, (keys, example) in _SHARED.items():
        kinds = OPS_TABLES[table].items()
        # Names in a nested type keep their case.
        types = {name: kind if "struct" in kind else kind.upper() for name, kind in kinds}
        yield _entry(table, standard_meaning(table), types, keys, example)


def _entry(
    table: str, meaning: Meaning, types: Types, keys: Sequence[str], example: str, window: str = ""
) -> TableEntry:
    columns = tuple(ColumnEntry(name, kind, meaning.of(name) or "") for name, kind in types.items())
    return TableEntry(table, meaning.description, tuple(keys), window, columns, example)


def _gold_entries(pipeline: Pipeline, silver: Types, dialect: str) -> Iterator[TableEntry]:
    if pipeline.dimension is not None:
        own = {name: silver[name] for name in pipeline.defined_columns if name[0] != "_"}
        for name in pipeline.gold_names:
            is_history = name.endswith("__history")
            bounds = ("valid_from", "valid_to", "is_current") if is_history else ()
            keys = (*pipeline.dimension.key, *bounds[:1])
            where = " WHERE NOT is_current" if is_history else ""
            example = f"SELECT * FROM {name}{where} LIMIT 10"
            types = own | standard_types(bounds)
            yield _entry(name, meaning_of(pipeline, name), types, keys, example)
    for gold in pipeline.gold:
        yield _window_entry(pipeline, gold, silver, dialect)
    for join in pipeline.joins:
        name = logical_name("gold", join.name)
        right_types = silver if join.right.pipeline == pipeline.name else {}
        types = {column: type_of(sql, silver) for column, sql in join.left.columns.items()}
        types |= {column: type_of(sql, right_types) for column, sql in join.right.columns.items()}
        right = in_sql([next(iter(join.right.columns))], dialect)
        example = f"SELECT count(*) AS events, count({right}) AS matched FROM {name}"
        window = f"a match up to {written(join.within)} after"
        yield _entry(name, meaning_of(pipeline, name), types, (), example, window)
    for detection in pipeline.detections:
        yield _window_entry(pipeline, detection.hours, silver, dialect)
        name = logical_name("gold", detection.name)
        types = {
            column: silver.get(column) if column in detection.keys else STANDARD.get(column)
            for column in detection.shown
        }
        types |= {column: type_of(sql, silver) for column, sql in detection.columns.items()}
        example = f"SELECT rule, count(*) AS alerts FROM {name} GROUP BY rule ORDER BY rule"
        yield _entry(name, meaning_of(pipeline, name), types, ("event_id", "rule"), example)
    for query in pipeline.queries:
        name, parts = logical_name("gold", query.name), query.parts
        types = query_types(pipeline, query, silver)
        names, begins = [key.name for key in parts.keys], in_sql([parts.window.name], dialect)
        example = f"SELECT {in_sql(types, dialect)} FROM {name} ORDER BY {begins} DESC LIMIT 10"
        window = f"each {parts.window.unit}" if parts.window.unit else f"as {parts.source}"
        yield _entry(name, meaning_of(pipeline, name), types, names, example, window)


def query_types(pipeline: Pipeline, query: Query, silver: Types) -> dict[str, str | None]:
    """Return the types of a query's columns; None where only Spark can infer it."""
    parts = query.parts
    tables = {logical_name("gold", one.name): one for one in pipeline.aggregates}
    source = gold_types(tables[parts.source], silver) if parts.source in tables else silver
    calls = {call.internal: call for call in parts.calls}
    keys = {key.internal: key for key in parts.keys}
    types: dict[str, str | None] = {}
    for column in parts.columns:
        key, call = keys.get(column.computed), calls.get(column.computed)
        types[column.name] = None
        if key is not None:
            types[column.name] = "TIMESTAMP" if key.unit is not None else type_of(key.sql, source)
        elif call is not None and call.argument == "*":
            types[column.name] = "BIGINT"
        elif call is not None:
            types[column.name] = measured_type(measure_of(call), source)
    return types


def _window_entry(pipeline: Pipeline, gold: GoldTable, silver: Types, dialect: str) -> TableEntry:
    name, window = logical_name("gold", gold.name), gold.window
    key, begins, cut = ("window_start",), "window_start DESC, ", "all time"
    if isinstance(window, TumblingWindow):
        cut = f"{written(window.size)} each"
    elif isinstance(window, HoppingWindow):
        cut = f"{written(window.size)} each, a new one every {written(window.slide)}"
    elif isinstance(window, SessionWindow):
        cut = f"until nothing happens for {written(window.gap)}"
        key, begins = ("session_id",), "session_start DESC, "
    keys = gold.keys if window.kind == "global" else (*key, *gold.keys)
    greatest = in_sql([gold.measures[0].name], dialect)
    order = f"{'' if window.kind == 'global' else begins}{greatest} DESC"
    shown = in_sql([column for column in gold.columns if column != "session_id"], dialect)
    example = f"SELECT {shown} FROM {name} ORDER BY {order} LIMIT 10"
    return _entry(name, meaning_of(pipeline, name), gold_types(gold, silver), keys, example, cut)


def _layer_entries(pipeline: Pipeline, silver: Types) -> Iterator[TableEntry]:
    # In the order of the table's columns.
    names = (*SILVER_RESERVED[:2], *pipeline.defined_columns, *SILVER_RESERVED[2:])
    own = {name: silver.get(name) for name in names if not name.startswith("_")}
    by_day = "SELECT event_date, count(*) AS events FROM {} GROUP BY event_date ORDER BY event_date"
    by_stage = "SELECT stage, reasons, count(*) AS records FROM {} GROUP BY ALL"
    arrived = (
        "SELECT ingest_date, count(*) AS records FROM {} GROUP BY ingest_date ORDER BY ingest_date"
    )
    for (layer, *side), types, key, example in (
        (("silver",), own, "event_id", by_day),
        (("silver", "late"), own | standard_types(LATE_COLUMNS), "record_id", by_day),
        (("silver", "quarantine"), standard_types(_QUARANTINE), "record_id", by_stage),
        (("bronze",), standard_types(BRONZE_COLUMNS), "record_id", arrived),
    ):
        name = logical_name(layer, pipeline.name, *side)
        yield _entry(name, meaning_of(pipeline, name), types, (key,), example.format(name))


def to_markdown(pipelines: Iterable[Pipeline], dialect: str, *, with_shared: bool) -> str:
    """Return the data dictionary: a section per pipeline, a part per table, shared tables last."""
    sections = [(item.name, item.description, entries_of(item, dialect)) for item in pipelines]
    if with_shared:
        sections.append((SHARED, "Tables that all pipelines write to.", [*shared_entries()]))
    from jinja2 import Environment, PackageLoader  # noqa: PLC0415  not needed for comments

    templates = Environment(loader=PackageLoader("tidelake.config"), trim_blocks=True)
    return templates.get_template("dictionary.md.j2").render(sections=sections).rstrip() + "\n"
