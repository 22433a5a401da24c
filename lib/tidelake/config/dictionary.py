"""The data dictionary: every table of a pipeline from its definition alone, as data or a page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from jinja2 import Environment, PackageLoader

from tidelake.config.expressions import Types, type_of
from tidelake.config.gold import GoldTable, HoppingWindow, SessionWindow, TumblingWindow
from tidelake.config.meanings import Meaning, meaning_of, standard_meaning
from tidelake.config.model import written
from tidelake.config.names import BRONZE_COLUMNS, SILVER_RESERVED
from tidelake.config.pipeline import Pipeline, gold_types, silver_types
from tidelake.config.standard import OPS_TABLES, STANDARD

# No pipeline can have this name.
SHARED = "All pipelines"
_LATE = ("payload", "watermark", "lateness_seconds")
_QUARANTINE = ("record_id", "payload", "event_id", "reasons", "stage", "ingested_at")
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
    return [
        _entry(table, meaning_of(pipeline, table), types, keys, example, window)
        for table, types, keys, example, window in (
            *_gold(pipeline, silver),
            *_layers(pipeline, silver),
        )
    ]


def shared_entries() -> list[TableEntry]:
    """Describe the tables that all pipelines share."""
    return [
        _entry(
            table,
            standard_meaning(table),
            # Of a nested type the names within keep their case.
            {name: kind if "struct" in kind else kind.upper() for name, kind in columns.items()},
            *_SHARED[table],
        )
        for table, columns in OPS_TABLES.items()
    ]


def _entry(
    table: str, meaning: Meaning, types: Types, keys: Sequence[str], example: str, window: str = ""
) -> TableEntry:
    columns = tuple(ColumnEntry(name, kind, meaning.of(name) or "") for name, kind in types.items())
    return TableEntry(table, meaning.description, tuple(keys), window, columns, example)


# A table's name, types, keys, example and window.
_Told = tuple[str, Types, Sequence[str], str, str]


def _gold(pipeline: Pipeline, silver: Types) -> Iterator[_Told]:
    if pipeline.dimension is not None:
        yield from _dimension(pipeline, pipeline.dimension.key, silver)
    for gold in pipeline.gold:
        yield _windowed(gold, silver)
    for join in pipeline.joins:
        name = f"gold.{join.name}"
        of_right = silver if join.right.pipeline == pipeline.name else {}
        types = {one: type_of(sql, silver) for one, sql in join.left.columns.items()}
        types |= {one: type_of(sql, of_right) for one, sql in join.right.columns.items()}
        right = next(iter(join.right.columns))
        example = f"SELECT count(*) AS events, count({right}) AS matched FROM {name}"
        yield name, types, (), example, f"a match up to {written(join.within)} after"
    for detection in pipeline.detections:
        yield _windowed(detection.hours, silver)
        name = f"gold.{detection.name}"
        types = {
            one: silver.get(one) if one in detection.keys else STANDARD.get(one)
            for one in detection.shown
        }
        types |= {one: type_of(sql, silver) for one, sql in detection.columns.items()}
        example = f"SELECT rule, count(*) AS alerts FROM {name} GROUP BY rule ORDER BY rule"
        yield name, types, ("event_id", "rule"), example, ""


def _dimension(pipeline: Pipeline, key: Sequence[str], silver: Types) -> Iterator[_Told]:
    own = {name: silver[name] for name in pipeline.defined_columns if not name.startswith("_")}
    for table in pipeline.gold_names:
        is_history = table.endswith("__history")
        bounds = ("valid_from", "valid_to", "is_current") if is_history else ()
        some = " WHERE NOT is_current" if is_history else ""
        example = f"SELECT * FROM {table}{some} LIMIT 10"
        yield table, own | _standard(bounds), (*key, *bounds[:1]), example, ""


def _windowed(gold: GoldTable, silver: Types) -> _Told:
    name, window = f"gold.{gold.name}", gold.window
    order = f"{gold.measures[0].name} DESC"
    bounds: tuple[str, ...] = ("window_start",)
    begins, cut = "window_start", "all time"
    if isinstance(window, TumblingWindow):
        cut = f"{written(window.size)} each"
    elif isinstance(window, HoppingWindow):
        cut = f"{written(window.size)} each, a new one every {written(window.slide)}"
    elif isinstance(window, SessionWindow):
        cut = f"until nothing happens for {written(window.gap)}"
        bounds, begins = ("session_id",), "session_start"
    else:
        bounds, begins = (), ""
    order = f"{begins} DESC, {order}" if begins else order
    shown = ", ".join(column for column in gold.columns if column != "session_id")
    example = f"SELECT {shown} FROM {name} ORDER BY {order} LIMIT 10"
    return name, gold_types(gold, silver), (*bounds, *gold.keys), example, cut


def _layers(pipeline: Pipeline, silver: Types) -> Iterator[_Told]:
    # In the table's order.
    names = (*SILVER_RESERVED[:2], *pipeline.defined_columns, *SILVER_RESERVED[2:])
    own = {name: silver.get(name) for name in names if not name.startswith("_")}
    by_day = "SELECT event_date, count(*) AS events FROM {} GROUP BY event_date ORDER BY event_date"
    by_stage = "SELECT stage, reasons, count(*) AS records FROM {} GROUP BY ALL"
    arrived = (
        "SELECT ingest_date, count(*) AS records FROM {} GROUP BY ingest_date ORDER BY ingest_date"
    )
    for table, types, key, example in (
        ("silver.{}", own, "event_id", by_day),
        ("silver.{}__late", own | _standard(_LATE), "record_id", by_day),
        ("silver.{}__quarantine", _standard(_QUARANTINE), "record_id", by_stage),
        ("bronze.{}", _standard(BRONZE_COLUMNS), "record_id", arrived),
    ):
        name = table.format(pipeline.name)
        yield name, types, (key,), example.format(name), ""


def _standard(names: Iterable[str]) -> dict[str, str | None]:
    return {name: STANDARD[name] for name in names}


def to_markdown(pipelines: Iterable[Pipeline], *, with_shared: bool) -> str:
    """Write a page: a section a pipeline, a part a table; last, where wanted, the shared tables."""
    sections = [(one.name, one.description, entries_of(one)) for one in pipelines]
    if with_shared:
        sections.append((SHARED, "Tables that all pipelines write to.", shared_entries()))
    templates = Environment(
        loader=PackageLoader("tidelake.config"), trim_blocks=True, keep_trailing_newline=True
    )
    return templates.get_template("dictionary.md.j2").render(sections=sections).rstrip() + "\n"
