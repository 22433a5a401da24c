"""The gold tables of a pipeline, their input tables, and counts of the events that enter them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from functools import reduce
from typing import Any, NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import NumericType, StructType

from tidelake.columns import stamped
from tidelake.config import Pipeline, SessionWindow
from tidelake.config.pipeline import selected_columns
from tidelake.delta.access import follow, load, load_old, read_between
from tidelake.delta.append import Difference, is_written_alike, types_of
from tidelake.delta.commit_metadata import (
    definition_note,
    final_note,
    positions,
    settled_until,
    typed_as,
)
from tidelake.delta.log import CREATION, TABLES, Commit, last_commit, newest_version
from tidelake.delta.positions import Position, added_between, version_at
from tidelake.delta.tables import Lake, Table
from tidelake.gold.detections import Detected, Features
from tidelake.gold.dimensions import Dimension
from tidelake.gold.joins import Joined
from tidelake.gold.kinds import ALL, OWN, GoldKind, Inputs, columns_read
from tidelake.gold.queried import Queried
from tidelake.gold.sessions import Sessions
from tidelake.gold.windows import Windowed
from tidelake.names import logical_name, quoted

# Silver's internal columns.
_HIDDEN = ("_payload_hash", "_id_hash", "_generation", "_batch")


class Target(NamedTuple):
    """A gold table, and the kind that computes it."""

    table: Table
    kind: GoldKind


def targets_of(lake: Lake, pipeline: Pipeline) -> list[Target]:
    """List the tables of a pipeline's gold hop: gold, joins, detections, queries."""
    return [Target(lake.table(kind.name), kind) for kind in _kinds(pipeline)]


def _kinds(pipeline: Pipeline) -> list[GoldKind]:
    spec = pipeline.dimension
    if spec is not None:
        newest, *history = pipeline.gold_names
        columns = tuple(name for name in selected_columns(pipeline.event) if name not in spec.key)
        return [
            Dimension(newest, spec, columns),
            *[Dimension(name, spec, columns, history=True) for name in history],
        ]
    found: list[GoldKind] = []
    for number, gold in enumerate(pipeline.gold):
        kind = Sessions if isinstance(gold.window, SessionWindow) else Windowed
        found.append(kind(logical_name("gold", gold.name), f"gold[{number}]", gold))
    for number, join in enumerate(pipeline.joins):
        found.append(
            Joined(logical_name("gold", join.name), f"joins[{number}]", join, pipeline.name)
        )
    for number, detection in enumerate(pipeline.detections):
        place, features = f"detections[{number}]", logical_name("gold", detection.features)
        # Features first: the alerts read them.
        found.append(Features(features, f"{place}.features", detection.hours))
        found.append(Detected(logical_name("gold", detection.name), place, detection, features))
    windowed = {kind.name: kind for kind in found if isinstance(kind, Windowed)}
    for number, query in enumerate(pipeline.queries):
        source = windowed.get(query.parts.source)
        found.append(Queried(logical_name("gold", query.name), f"queries[{number}]", query, source))
    return found


def open_stream(
    spark: SparkSession,
    inputs: Mapping[str, Table],
    targets: Sequence[Target],
    *,
    max_bytes: int | None,
    idle: Collection[str] = (),
) -> DataFrame:
    """Stream each table from its first commit; see :func:`tidelake.delta.access.follow`.

    Returns:
        The columns that the targets read. With several tables, one struct column per table, of
        which each row fills one.
    """
    kinds, streams = [target.kind for target in targets], []
    for key, table in inputs.items():
        rows = follow(spark, table, max_bytes=max_bytes, idle=key in idle).drop(*_HIDDEN)
        # Select here: Spark does not prune the columns of a micro-batch's frame.
        streams.append(rows.select(*map(quoted, columns_read(kinds, rows.columns))))
    if len(streams) == 1:
        return streams[0]
    packed = [rows.select(F.struct("*").alias(_packed(n))) for n, rows in enumerate(streams)]
    return reduce(lambda left, right: left.unionByName(right, allowMissingColumns=True), packed)


def by_input(rows: DataFrame, inputs: Mapping[str, Table]) -> dict[str, DataFrame]:
    """Split a batch of the stream by input table."""
    if len(inputs) == 1:
        return dict.fromkeys(inputs, rows)
    return {
        key: rows.where(F.col(_packed(n)).isNotNull()).select(f"{_packed(n)}.*")
        for n, key in enumerate(inputs)
    }


def _packed(number: int) -> str:
    return f"_input_{number}"


def up_to(
    spark: SparkSession, inputs: Mapping[str, Table], until: Mapping[str, Position]
) -> Callable[[str], DataFrame]:
    """Return a reader of each table up to a batch's end, which may be inside a commit.

    Its columns are those of the table's newest version, as in a stream: columns that were added
    after the batch are null, and types are widened.
    """

    def read(key: str) -> DataFrame:
        table, version = inputs[key], until[key][0]
        # The files of the version that the batch read are gone once a compaction is vacuumed.
        whole = version_at(table, until[key])
        at = version - 1 if whole is None else whole
        rows = load_old(spark, table, at) if at >= 0 else load(spark, table).limit(0)
        if at < newest_version(table):
            rows = _evolved(rows, load(spark, table).schema)
        begun = read_between(spark, table, (version, -1), until[key]) if whole is None else None
        if begun is not None:
            rows = rows.unionByName(begun)
        return rows.drop(*_HIDDEN)

    return read


def _evolved(rows: DataFrame, schema: StructType) -> DataFrame:
    """Select the columns of a later version of the rows' table, in its types."""
    if types_of(rows.schema) == types_of(schema):
        return rows
    added = {field.name: F.lit(None) for field in schema if field.name not in rows.columns}
    return in_types_of(rows.withColumns(added) if added else rows, schema)


def in_types_of(rows: DataFrame, schema: StructType) -> DataFrame:
    """Select the columns of a schema, all of which the rows have, in its order and types."""
    return rows.select(
        *[F.col(quoted(one.name)).cast(one.dataType).alias(one.name) for one in schema]
    )


def whole(target: Target, inputs: Inputs) -> DataFrame:
    """Compute all rows of a table."""
    return target.kind.of_all(inputs)


def recomputed(
    spark: SparkSession,
    inputs: Mapping[str, Table],
    targets: Sequence[Target],
    until: Mapping[str, Position],
    rows_of: Callable[[Target, Inputs], DataFrame] = whole,
) -> Iterator[tuple[Target, DataFrame, dict[str, Any]]]:
    """Compute tables from all rows of their inputs up to positions.

    ``rows_of`` computes a table's rows.

    Yields:
        Each table, its rows, and the metadata of the commit that writes them.
    """
    read = up_to(spark, inputs, until)
    settled = settled_by_sources(inputs, targets, until)
    counted = count_contributions({key: read(key) for key in inputs}, targets)
    for target, counts in zip(targets, counted, strict=True):
        rows = rows_of(target, Inputs({}, read))
        note = gold_note(
            target, until, settled[target.kind.sources], input_types(target.kind, read)
        )
        yield target, rows, {**counts, **note}


def settled_by_sources(
    inputs: Mapping[str, Table], targets: Sequence[Target], until: Mapping[str, Position]
) -> dict[tuple[str, ...], datetime | None]:
    """Return the time before which all events are too late, by the inputs that a table reads.

    A table does not wait for an input that only other tables read. See :func:`settled_until`.
    """
    return {
        sources: settled_until((inputs[key], until[key]) for key in sources)
        for sources in {target.kind.sources for target in targets}
    }


def last_closed(tables: Sequence[Table], *, except_for: Collection[Table] = ()) -> Commit | None:
    """Return the commit of the newest batch that all gold tables hold; None if none holds a batch.

    Ignores tables without a batch, and ``except_for``, the tables to be filled, unless no other
    table has one.
    """
    heads = {table: last_commit(table) for table in tables}
    filled = {table: last for table, last in heads.items() if last and last.batch > CREATION}
    others = [last for table, last in filled.items() if table not in except_for]
    return min(others or filled.values(), key=lambda last: last.batch, default=None)


def filled_as_of(
    spark: SparkSession,
    inputs: Mapping[str, Table],
    targets: Sequence[Target],
    closed: Commit,
) -> Iterator[tuple[Target, DataFrame, dict[str, Any]]]:
    """Compute tables from silver as of the end of a batch that other tables hold.

    Yields:
        Each table, its rows with the batch's number, and the metadata of the commit that writes
        them: after it the table is at that batch, as the others are.
    """
    batch = {key: closed.note[key] for key in ("pipeline", "hop", "generation", "batch")}
    for target, rows, counts in recomputed(spark, inputs, targets, positions(closed)):
        made = stamped(rows, generation=closed.generation, batch=closed.batch)
        yield target, made, {**batch, **counts}


def contributions(events: DataFrame, key: str, targets: Sequence[Target]) -> dict[str, Column]:
    """Return conditions for the events of an input that enter each table, and that fail there.

    Empty if no table reads the input. Names use the target's number, since a table's name may be
    that of a column.
    """
    conditions = {"_rows": F.lit(True)} if key == OWN else {}
    for number, (_, kind) in enumerate(targets):
        if key == OWN:
            conditions[f"_eligible_{number}"] = kind.eligible()
        if key in kind.sources:
            conditions[f"_failed_{number}"] = kind.failed(key, events)
    return conditions


def count_contributions(
    inputs: Mapping[str, DataFrame], targets: Sequence[Target]
) -> list[dict[str, int]]:
    """Count the events of all inputs; see :func:`counted_for`."""
    found = []
    for key, events in inputs.items():
        marks = contributions(events, key, targets)
        if marks:
            # Select first: Spark allows no nondeterministic expression, such as `try_eval`, in an
            # aggregate.
            marked = events.select(*[condition.alias(name) for name, condition in marks.items()])
            counts = marked.agg(*[F.count_if(name).alias(name) for name in marks])
            found.append(counts.collect()[0].asDict())
    return counted_for(targets, found)


def counted_for(
    targets: Sequence[Target], found: Sequence[Mapping[str, Any]]
) -> list[dict[str, int]]:
    """Sum the counts of :func:`contributions` over the inputs, for each table.

    ``rows``: rows of the pipeline's own silver. ``eligible``: those that enter the table.
    ``failed``: rows of all its inputs in which an expression failed, and so is null.
    """
    total = Counter[str]()
    for counts in found:
        total.update({name: int(count or 0) for name, count in counts.items()})
    return [
        {
            "rows": total["_rows"],
            "eligible": total[f"_eligible_{number}"],
            "failed": total[f"_failed_{number}"],
        }
        for number in range(len(targets))
    ]


def tables_note(pipeline: Pipeline) -> dict[str, Any]:
    """Return the metadata of a gold commit that names all tables which its batch fills."""
    return {TABLES: pipeline.gold_names}


def gold_note(
    target: Target,
    until: Mapping[str, Position],
    settled: datetime | None,
    types: Mapping[str, str],
) -> dict[str, Any]:
    """Return a gold commit's metadata: the batch's end, the definition and what is final.

    ``types`` are from :func:`input_types`.
    """
    return {
        "until": {key: list(position) for key, position in until.items()},
        **definition_note(target.kind.definition, types),
        **final_note(target.kind.ends, settled),
    }


def input_types(kind: GoldKind, read: Callable[[str], DataFrame]) -> dict[str, str]:
    """Return the types of the input columns on which a table's values depend, by input and column.

    ``read`` returns an input's rows. Only of numbers, since other types cannot be widened.
    """
    typed = kind.typed()
    return {
        f"{key}.{one.name}": one.dataType.simpleString()
        for key in sorted({key for key, _ in typed})
        for one in read(key).schema
        if isinstance(one.dataType, NumericType)
        and not typed.keys().isdisjoint({(key, one.name.lower()), (key, ALL)})
    }


def changed_types(
    kind: GoldKind, last: Commit | None, read: Callable[[str], DataFrame]
) -> list[Difference]:
    """Return the input columns of other types than a table, by its last commit, was computed from.

    Rows that no batch changes would keep values of before; see :meth:`.GoldKind.typed`. ``read``
    returns an input's rows.
    """
    stored = typed_as(last)
    if not stored:
        return []
    now, typed = input_types(kind, read), kind.typed()
    by_text = {
        f"{key}.{name}"
        for (key, name), is_exact in typed.items()
        if not is_exact and (key, ALL) not in typed
    }
    return [
        Difference(name, old, now[name], "refused")
        for name, old in stored.items()
        if name in now and now[name] != old
        if name.lower() not in by_text or not is_written_alike(old, now[name])
    ]


def holds_nothing(table: Table, last: Commit | None) -> bool:
    """Return whether a table has only been created: it holds no batch, nor rows of an open one.

    ``last`` is its last commit.
    """
    if last is None or last.batch > CREATION:
        return False
    return not added_between(table, (last.version + 1, -1)).size
