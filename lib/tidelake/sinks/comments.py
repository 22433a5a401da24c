"""Write into a stored table what it means, and bring that up to date; nothing where it is."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from tidelake.access import load
from tidelake.config.meanings import Meaning
from tidelake.config.types import quoted
from tidelake.tables import Table

_COMMENT = "comment"


def commented(schema: StructType, meaning: Meaning) -> StructType:
    """Give a schema the comments of its columns."""
    return StructType(
        [
            StructField(field.name, field.dataType, field.nullable, _metadata(field, meaning))
            for field in schema.fields
        ]
    )


def keeping_words(rows: DataFrame, table: Table) -> DataFrame:
    """Give rows that are to replace a table's the comments of its columns, or they would go."""
    if not table.exists:
        return rows
    stored = load(rows.sparkSession, table).schema
    words = {field.name: field.metadata for field in stored.fields}
    return rows.select(
        *[
            F.col(quoted(field.name)).alias(
                field.name, metadata=words.get(field.name, field.metadata)
            )
            for field in rows.schema.fields
        ]
    )


def describe(spark: SparkSession, table: Table, stored: StructType, meaning: Meaning) -> None:
    """Bring the comments of a stored table to today's words.

    A commit of its own, without a note and without rows, and only where a word differs: readers
    of notes pass over it, streams get an empty batch. What the pipeline file no longer says stays.

    Args:
        spark: The session.
        table: The table.
        stored: Its schema.
        meaning: Today's words.
    """
    place = table.sql
    changed = {
        field.name: words
        for field in stored.fields
        if (words := meaning.of(field.name)) and field.metadata.get(_COMMENT) != words
    }
    if changed:
        columns = ", ".join(f"{quoted(name)} COMMENT {_text(w)}" for name, w in changed.items())
        spark.sql(f"ALTER TABLE {place} ALTER COLUMN {columns}")
    if meaning.description and _described(spark, place).get("Comment") != meaning.description:
        spark.sql(f"COMMENT ON TABLE {place} IS {_text(meaning.description)}")


def described_as(description: str) -> str:
    """Write the clause of a statement that makes a table; nothing where there are no words."""
    return f"COMMENT {_text(description)}" if description else ""


def _described(spark: SparkSession, place: str) -> Mapping[str, str]:
    """Ask for what is known of a table beside its columns; costs no job."""
    rows = spark.sql(f"DESCRIBE TABLE EXTENDED {place}").collect()
    return {row["col_name"]: row["data_type"] for row in rows}


def _metadata(field: StructField, meaning: Meaning) -> dict[str, str]:
    words = meaning.of(field.name)
    return {_COMMENT: words} if words else {}


def _text(words: str) -> str:
    """Write a text in Spark SQL."""
    return "'" + words.replace("\\", "\\\\").replace("'", "\\'") + "'"
