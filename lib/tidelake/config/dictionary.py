"""Describe every table of a pipeline for those who ask: from its definition, without any table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta

from tidelake.config.detections import Detection
from tidelake.config.expressions import Types, type_of
from tidelake.config.gold import GoldTable, HoppingWindow, SessionWindow, TumblingWindow
from tidelake.config.joins import Join
from tidelake.config.meanings import meaning_of, standard_meaning
from tidelake.config.names import BRONZE_COLUMNS
from tidelake.config.ops_tables import OPS_TABLES
from tidelake.config.pipeline import Pipeline
from tidelake.config.result_types import STANDARD, gold_types, silver_types

_LATE = ("payload", "watermark", "lateness_seconds")
# What tells rows apart in the tables that all pipelines share, and a query to begin with.
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
_QUARANTINE = ("record_id", "payload", "event_id", "reasons", "stage", "ingested_at")


@dataclass(frozen=True)
class ColumnEntry:
    """A column: its name, its type (None where only Spark knows it) and what it means."""

    name: str
    type: str | None
    meaning: str


@dataclass(frozen=True)
class TableEntry:
    """A table, as its readers need it.

    Attributes:
        table: The logical name.
        description: What a row is.
        keys: The columns that tell rows apart; none where the description says what a row is.
        window: How time is cut; empty where it is not.
        columns: Those that analysts read; the system's own, which begin with ``_``, are left out.
        example: A query to begin with.
    """

    table: str
    description: str
    keys: tuple[str, ...]
    window: str
    columns: tuple[ColumnEntry, ...]
    example: str


def entries_of(pipeline: Pipeline) -> list[TableEntry]:
    """Describe a pipeline's tables, gold first: most readers need no other."""
    silver = silver_types(pipeline)
    return [*_gold(pipeline, silver), *_layers(pipeline, silver)]


def shared_entries() -> list[TableEntry]:
    """Describe the tables that all pipelines share."""
    entries = []
    for table, columns in OPS_TABLES.items():
        keys, example = _SHARED[table]
        meaning = standard_meaning(table)
        shown = tuple(
            # Of a nested type the names within keep their case.
            ColumnEntry(name, kind if "struct" in kind else kind.upper(), meaning.of(name) or "")
            for name, kind in columns.items()
        )
        entries.append(TableEntry(table, meaning.description, keys, "", shown, example))
    return entries


def _gold(pipeline: Pipeline, silver: Types) -> Iterator[TableEntry]:
    if pipeline.dimension is not None:
        yield from _dimension(pipeline, silver)
    for gold in pipeline.gold:
        yield _windowed(pipeline, gold, silver)
    for join in pipeline.joins:
        yield _joined(pipeline, join, silver)
    for detection in pipeline.detections:
        yield _windowed(pipeline, detection.hours, silver)
        yield _detected(pipeline, detection, silver)


def _windowed(pipeline: Pipeline, gold: GoldTable, silver: Types) -> TableEntry:
    name, first = f"gold.{gold.name}", gold.measures[0].name
    begins = next((c for c in ("window_start", "session_start") if c in gold.columns), None)
    order = f"{begins} DESC, {first} DESC" if begins else f"{first} DESC"
    shown = [column for column in gold.columns if column != "session_id"]
    bounds = {"session": ("session_id",), "global": ()}
    return _entry(
        pipeline,
        name,
        gold_types(gold, silver),
        keys=(*bounds.get(gold.window.kind, ("window_start",)), *gold.keys),
        window=_spoken(gold),
        example=f"SELECT {', '.join(shown)} FROM {name} ORDER BY {order} LIMIT 10",
    )


def _joined(pipeline: Pipeline, join: Join, silver: Types) -> TableEntry:
    own = join.right.pipeline == pipeline.name
    types = {name: type_of(sql, silver) for name, sql in join.left.columns.items()}
    types |= {
        name: type_of(sql, silver) if own else None for name, sql in join.right.columns.items()
    }
    right = next(iter(join.right.columns))
    name = f"gold.{join.name}"
    return _entry(
        pipeline,
        name,
        types,
        keys=(),
        window=f"a match up to {_length(join.within)} after",
        example=f"SELECT count(*) AS events, count({right}) AS matched FROM {name}",
    )


def _detected(pipeline: Pipeline, detection: Detection, silver: Types) -> TableEntry:
    name = f"gold.{detection.name}"
    types: dict[str, str | None] = {
        column: silver.get(column) if column in detection.keys else STANDARD.get(column)
        for column in detection.shown
    }
    types |= {column: type_of(sql, silver) for column, sql in detection.columns.items()}
    return _entry(
        pipeline,
        name,
        types,
        keys=("event_id", "rule"),
        example=f"SELECT rule, count(*) AS alerts FROM {name} GROUP BY rule ORDER BY rule",
    )


def _dimension(pipeline: Pipeline, silver: Types) -> Iterator[TableEntry]:
    assert pipeline.dimension is not None
    spec, columns = pipeline.dimension, pipeline.defined_columns
    own = {name: silver[name] for name in columns if not name.startswith("_")}
    for name in pipeline.gold_names:
        history = name.endswith("__history")
        more = ("valid_from", "valid_to", "is_current") if history else ()
        some = " WHERE NOT is_current" if history else ""
        yield _entry(
            pipeline,
            name,
            own | {column: STANDARD[column] for column in more},
            keys=(*spec.key, *more[:1]),
            example=f"SELECT * FROM {name}{some} LIMIT 10",
        )


def _layers(pipeline: Pipeline, silver: Types) -> Iterator[TableEntry]:
    name = pipeline.name
    shown = {
        column: kind
        for column, kind in _in_order(pipeline, silver).items()
        if not column.startswith("_")
    }
    by_day = "SELECT event_date, count(*) AS events FROM {} GROUP BY event_date ORDER BY event_date"
    yield _entry(
        pipeline,
        f"silver.{name}",
        shown,
        keys=("event_id",),
        example=by_day.format(f"silver.{name}"),
    )
    late = f"silver.{name}__late"
    yield _entry(
        pipeline,
        late,
        shown | {column: STANDARD[column] for column in _LATE},
        keys=("record_id",),
        example=by_day.format(late),
    )
    quarantine = f"silver.{name}__quarantine"
    yield _entry(
        pipeline,
        quarantine,
        {column: STANDARD[column] for column in _QUARANTINE},
        keys=("record_id",),
        example=f"SELECT stage, reasons, count(*) AS records FROM {quarantine} GROUP BY ALL",
    )
    yield _entry(
        pipeline,
        f"bronze.{name}",
        {column: STANDARD[column] for column in BRONZE_COLUMNS},
        keys=("record_id",),
        example=(
            f"SELECT ingest_date, count(*) AS records FROM bronze.{name} "
            "GROUP BY ingest_date ORDER BY ingest_date"
        ),
    )


def _in_order(pipeline: Pipeline, silver: Types) -> Types:
    """Put silver's columns as the table has them."""
    first, last = ("event_id", "event_time"), ("is_late", "record_id", "ingested_at", "event_date")
    return {name: silver.get(name) for name in (*first, *pipeline.defined_columns, *last)}


def _entry(
    pipeline: Pipeline,
    table: str,
    types: Types,
    *,
    keys: Sequence[str],
    example: str,
    window: str = "",
) -> TableEntry:
    meaning = meaning_of(pipeline, table)
    columns = tuple(ColumnEntry(name, kind, meaning.of(name) or "") for name, kind in types.items())
    return TableEntry(table, meaning.description, tuple(keys), window, columns, example)


def _spoken(gold: GoldTable) -> str:
    window = gold.window
    if isinstance(window, TumblingWindow):
        return f"{_length(window.size)} each"
    if isinstance(window, HoppingWindow):
        return f"{_length(window.size)} each, a new one every {_length(window.slide)}"
    if isinstance(window, SessionWindow):
        return f"until nothing happens for {_length(window.gap)}"
    return "all time"


def _length(span: timedelta) -> str:
    seconds = span.total_seconds()
    for size, unit in ((86400, "day"), (3600, "hour"), (60, "minute"), (1, "second")):
        if seconds >= size and seconds % size == 0:
            count = int(seconds // size)
            return f"{count:,} {unit}" if count == 1 else f"{count:,} {unit}s"
    return f"{seconds * 1000:,.0f} milliseconds"
