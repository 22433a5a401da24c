"""Merge a batch's aggregates into a gold table, in one commit, so that a retry changes nothing.

Merges are SQL statements, the one way that a session of any kind understands: Delta's Python
classes need a plugin in a server of Spark Connect. The ON clause holds literal bounds of the batch:
in a MERGE only conditions on the target alone let Delta skip files.

The metadata is set in the session. Where that is refused, the merge's commit has none, and whoever
merges closes the batch by a commit of its own. Until then the batch counts as open: merged once
more, its rows are there already, and the fence leaves them alone.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from tidelake.config import GoldTable
from tidelake.config.types import quoted
from tidelake.delta.log import USER_METADATA, encode
from tidelake.delta.tables import Table
from tidelake.gold import GONE
from tidelake.gold.measures import shown_of, states_of
from tidelake.spark.engine import with_settings
from tidelake.spark.tuning import MERGE_SETTINGS


@contextmanager
def viewed(rows: DataFrame) -> Iterator[str]:
    """Let a statement name a frame, under a name that no other has."""
    name = f"tidelake_{uuid.uuid4().hex}"
    rows.createOrReplaceTempView(name)
    try:
        yield name
    finally:
        rows.sparkSession.catalog.dropTempView(name)


def merge(rows: DataFrame, target: Table, *, on: str, clauses: str) -> None:
    """Merge rows, ``s``, into a table, ``t``.

    Args:
        rows: The source.
        target: The stored table.
        on: SQL over ``t`` and ``s``.
        clauses: What becomes of rows that match and of those that do not.
    """
    with viewed(rows) as source:
        text = f"MERGE INTO {target.sql} AS t USING {source} AS s ON {on} {clauses}"
        rows.sparkSession.sql(text)


def assignments(values: Mapping[str, str]) -> str:
    """Write what an UPDATE sets, SQL by column."""
    return ", ".join(f"{quoted(name)} = {value}" for name, value in values.items())


# Changes a row only for a batch that the row has not seen.
_FENCE = "t._batch < s._batch"


def merge_partials(
    partials: DataFrame, target: Table, gold: GoldTable, *, within: str, note: dict[str, Any]
) -> None:
    """Add a batch's partial aggregates to the windows that the table holds.

    Args:
        partials: Kept rows, one per window and key, with ``_generation`` and ``_batch``.
        target: The stored table.
        gold: Its definition.
        within: SQL over ``t`` that bounds the windows of the batch by literals; empty: none.
        note: The commit's note.
    """
    spark = partials.sparkSession
    bounds = [name for name in ("window_start", "window_end") if name in partials.columns]
    same = [f"t.{name} <=> s.{name}" for name in (*bounds, *gold.keys)]
    merged = {state.name: state.merge for state in states_of(gold)}
    # Delta casts what is assigned to the type of the stored column.
    changed = merged | {shown.name: shown.over(merged) for shown in shown_of(gold)}
    changed |= {"_generation": "s._generation", "_batch": "s._batch"}
    clauses = (
        f"WHEN MATCHED AND {_FENCE} THEN UPDATE SET {assignments(changed)} "
        "WHEN NOT MATCHED THEN INSERT *"
    )
    with _noted(spark, note):
        merge(partials, target, on=" AND ".join(filter(None, [*same, within])), clauses=clauses)


def merge_rows(
    rows: DataFrame, target: Table, *, on: str, note: dict[str, Any], changed: str = "true"
) -> None:
    """Replace the rows that a batch changed, delete those that are gone, insert the new ones.

    Args:
        rows: Kept whole rows, with ``_generation`` and ``_batch``; where rows can be gone, with
            ``_gone``.
        target: The stored table.
        on: SQL over ``t`` and ``s`` that finds a row's earlier state, bounded by literals over
            ``t`` where rows have a time.
        note: The commit's note.
        changed: SQL over ``t`` and ``s``; a row for which it is false stays as it is.
    """
    spark = rows.sparkSession
    written = {name: f"s.{quoted(name)}" for name in rows.columns if name != GONE}
    there, deleted = "true", ""
    if GONE in rows.columns:
        there = f"NOT s.{GONE}"
        deleted = f"WHEN MATCHED AND s.{GONE} AND {_FENCE} THEN DELETE "
    clauses = (
        f"{deleted}WHEN MATCHED AND {there} AND {_FENCE} AND ({changed}) "
        f"THEN UPDATE SET {assignments(written)} "
        f"WHEN NOT MATCHED AND {there} THEN INSERT ({', '.join(map(quoted, written))}) "
        f"VALUES ({', '.join(written.values())})"
    )
    with _noted(spark, note):
        merge(rows, target, on=on, clauses=clauses)


def delete_records(
    records: DataFrame, target: Table, *, within: str = "", note: dict[str, Any] | None = None
) -> None:
    """Delete rows by their record id, in one commit; none where the table holds none of them.

    Args:
        records: Kept rows with ``record_id``, each once.
        target: The stored table.
        within: SQL over ``t`` that bounds the rows by literals; empty: none.
        note: The commit's note; None for none.
    """
    spark = records.sparkSession
    same = " AND ".join(filter(None, ["t.record_id = s.record_id", within]))
    ids = records.select("record_id")
    with _noted(spark, note) if note else with_settings(spark, MERGE_SETTINGS):
        merge(ids, target, on=same, clauses="WHEN MATCHED THEN DELETE")


def notes_can_ride(spark: SparkSession) -> bool:
    """Tell whether the compute lets a session carry the note of a merge."""
    wanted = encode({})
    with with_settings(spark, {USER_METADATA: wanted}):
        return spark.conf.get(USER_METADATA, None) == wanted


def _noted(spark: SparkSession, note: dict[str, Any]) -> AbstractContextManager[None]:
    """Attach a note to the session's next commits; MERGE takes it from nowhere else."""
    return with_settings(spark, {USER_METADATA: encode(note), **MERGE_SETTINGS})
