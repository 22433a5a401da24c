"""Create tables and append to them, each commit with its metadata; keep a catalog's final views."""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType
from pyspark.sql.utils import is_remote

from tidelake.config.meanings import Meaning, standard_meaning
from tidelake.delta.access import FEED_PROPERTY, create, load
from tidelake.delta.evolution import (
    Freedom,
    commented,
    describe,
    described_as,
    evolve,
    keeping_words,
)
from tidelake.delta.log import USER_METADATA, encode, last_commit
from tidelake.delta.tables import Lake, Table
from tidelake.spark.engine import with_settings
from tidelake.spark.tuning import LOG_CHECKPOINT_COMMITS

_SKIPPED = {
    "bronze": ("source_timestamp", "ingested_at", "ingest_date"),
    "silver": ("event_time", "ingested_at", "event_date", "_batch"),
}
# Pipelines that run at once in one session make tables with notes of their own.
_ONE_AT_A_TIME = threading.Lock()


def append(
    rows: DataFrame,
    table: Table,
    note: dict[str, Any],
    *,
    surely_filled: bool = True,
    may_add_columns: bool = False,
    replaces: bool = False,
    replaces_where: str = "",
) -> None:
    """Append rows in one commit that carries the note.

    Delta leaves out a commit without any action, and the note with it. A transaction id is such
    an action; it costs a rebuild of the snapshot, so only what may be empty gets one. In a catalog,
    on a store and where the environment does without locks each batch gets one: there a lock may
    be missing, or lost while its holder stands still, and Delta then skips or refuses the second
    append of a batch.

    Args:
        rows: What to append.
        table: Where to.
        note: The commit's note.
        surely_filled: Whether there is at least one row.
        may_add_columns: Whether columns that the table lacks come into it, in the same commit.
        replaces: Whether the rows, and their columns, take the place of those that the table has.
        replaces_where: SQL; the rows take the place of those for which it holds. It may be done
            again, so it gets no transaction id: Delta would pass over the second commit of a
            batch. Empty: they take no place.
    """
    options = {"userMetadata": encode(note)}
    if replaces:
        options["overwriteSchema"] = "true"
    elif may_add_columns:
        options["mergeSchema"] = "true"
    of_a_batch = note.get("hop") in ("bronze", "silver") and note["batch"] >= 0
    is_guarded = of_a_batch and table.store.needs_transaction_ids
    if not replaces_where and (not surely_filled or is_guarded):
        # Delta's numbers begin at 0, and 0 is the first batch's.
        made = "/made" if note["batch"] < 0 else ""
        options["txnAppId"] = f"{table.name}/{note['generation']}{made}"
        options["txnVersion"] = str(max(note["batch"], 0))
    if replaces and table.store.is_created_first and not table.exists:
        create(rows.limit(0), table, _properties(table, rows.columns))
    if replaces:
        table.store.save(keeping_words(rows, table), options, "overwrite", "")
    elif replaces_where:
        table.store.save(rows, options, "overwrite", replaces_where)
    else:
        table.store.save(rows, options, "append", "")


def ensure_table(
    spark: SparkSession,
    table: Table,
    schema: StructType,
    note: dict[str, Any],
    *,
    meaning: Meaning | None = None,
    freedom: Freedom = "none",
) -> None:
    """Create a table, or bring the stored one to what today's definition says.

    Args:
        spark: The session.
        table: Which table.
        schema: Its columns.
        note: Of the commit that makes it.
        meaning: What it holds; None for a table that is the same for every pipeline.
        freedom: How far a stored one may follow the definition.

    Raises:
        SchemaChangedError: The stored table differs by more than ``freedom`` allows.
    """
    words = meaning or standard_meaning(table.name)
    if table.exists:
        stored = evolve(spark, table, schema, freedom)
        # Where a table was made and its first note was not written any more.
        if table.store.is_created_first and last_commit(table) is None:
            append(_no_rows(spark, schema), table, note, surely_filled=False)
        describe(spark, table, stored, words)
    else:
        _create(spark, table, commented(schema, words), words.description, note)


def _create(
    spark: SparkSession, table: Table, schema: StructType, description: str, note: dict[str, Any]
) -> None:
    if table.store.is_created_first:
        create(_no_rows(spark, schema), table, _properties(table, schema.names))
        append(_no_rows(spark, schema), table, note, surely_filled=False)
        return
    told = encode(note)
    # What is left of a creation that was cut off is a table to Spark's catalog, not to a writer.
    was_begun = (table.path / "_delta_log").exists()
    if not (was_begun or is_remote()):
        properties = ", ".join(
            f"'{key}' = '{v}'" for key, v in _properties(table, schema.names).items()
        )
        apart = _apart(spark)
        with _ONE_AT_A_TIME, with_settings(apart, {USER_METADATA: told}):
            if apart.conf.get(USER_METADATA, None) == told:
                apart.sql(
                    f"CREATE TABLE {table.sql} ({schema.toDDL()}) USING delta "
                    f"{described_as(description)} TBLPROPERTIES ({properties})"
                )
                return
    # Nor may a session take settings. A writer carries the note, and the next run describes.
    options = {"userMetadata": told, **_properties(table, schema.names)}
    table.store.save(_no_rows(spark, schema), options, "error", "")


@functools.lru_cache(maxsize=4)
def _apart(spark: SparkSession) -> SparkSession:
    """Keep a sibling of a session for tables that are made: nobody else commits under its note."""
    return spark.newSession()


def _properties(table: Table, columns: Sequence[str]) -> dict[str, str]:
    """Give the properties that a table is made with."""
    found = {"delta.checkpointInterval": str(LOG_CHECKPOINT_COMMITS)}
    of_a_layer, side = table.name.startswith(("bronze.", "silver.")), table.bare.partition("__")[2]
    followed = of_a_layer and side in ("", "requeue")
    if followed and not side:
        # By these files are skipped. Of ids, payloads and paths Delta would compare each value.
        skipped = [name for name in _SKIPPED[table.name.partition(".")[0]] if name in columns]
        if skipped:
            found["delta.dataSkippingStatsColumns"] = ",".join(skipped)
    if table.store.takes_whole_commits and followed:
        # Costs nothing while a table only grows.
        found[FEED_PROPERTY] = "true"
    return found


def _no_rows(spark: SparkSession, schema: StructType) -> DataFrame:
    """Make a frame of no row."""
    if is_remote():
        # A type that a client names says the collation of each text, and with that in a table's
        # schema other readers of Delta give up.
        return spark.createDataFrame([], schema)
    # Not from a Python list, which would start a Python worker here.
    return spark.range(0).select(
        *[
            F.lit(None).cast(field.dataType).alias(field.name, metadata=field.metadata)
            for field in schema.fields
        ]
    )


def ensure_final_view(
    spark: SparkSession, lake: Lake, table: Table, *, column: str, pipeline: str
) -> None:
    """Create ``<table>__final``, or bring it to the columns that the table has now.

    Args:
        spark: The session.
        lake: A catalog's; ``ops.epochs`` exists.
        table: A gold table.
        column: Where a row's time ends.
        pipeline: Whose epochs say which rows are final; a checked name.
    """
    view = lake.table(f"{table.name}__final")
    columns = load(spark, table).columns
    if view.exists and spark.table(view.sql).columns == columns:
        return
    boundary = (
        f"SELECT max_by(final['{table.name}'], epoch) FROM {lake.epochs().sql} "
        f"WHERE pipeline = '{pipeline}'"
    )
    spark.sql(
        f"CREATE OR REPLACE VIEW {view.sql} AS "
        f"SELECT * FROM {table.sql} WHERE `{column}` <= ({boundary})"
    )
