"""Let a stored table follow today's definition: its columns, their types and their comments."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from tidelake.config.meanings import Meaning
from tidelake.config.names import ID_HASH
from tidelake.config.types import quoted
from tidelake.delta.access import load
from tidelake.delta.tables import Table
from tidelake.errors import SchemaChangedError

# What may change without a rebuild: nothing; types that grow; columns as well.
Freedom = Literal["none", "types", "columns"]
Verdict = Literal["added", "kept", "widened", "refused"]

_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
_WIDER = {
    "tinyint": ("smallint", "int", "bigint"),
    "smallint": ("int", "bigint"),
    "int": ("bigint",),
    "bigint": ("decimal(38,0)",),
    "float": ("double",),
}


@dataclass(frozen=True)
class Difference:
    """A column in which the stored table and the definition differ.

    Attributes:
        column: Its name.
        stored: Its type in the table; None where the table lacks it.
        defined: Its type by the definition; None where the definition lacks it.
        verdict: ``added`` (older rows are null), ``kept`` (newer rows are null), ``widened`` (no
            value changes) or ``refused`` (only a new generation can hold it).
    """

    column: str
    stored: str | None
    defined: str | None
    verdict: Verdict

    def __str__(self) -> str:
        """Give one line for a person."""
        return (
            f"{self.column}: stored {self.stored or 'nothing'}, defined {self.defined or 'nothing'}"
        )


def differences(stored: StructType, wanted: StructType, freedom: Freedom) -> list[Difference]:
    """Compare a stored table with what the definition gives; the order of columns is no matter.

    Args:
        stored: The table's schema.
        wanted: The definition's.
        freedom: What may change without a rebuild.
    """
    before, after = types_of(stored), types_of(wanted)
    found = []
    for name in sorted({*before, *after}):
        old, new = before.get(name), after.get(name)
        if old != new:
            # Not part of any definition: tables of earlier versions get it, strict ones too.
            may = "columns" if name == ID_HASH else freedom
            found.append(Difference(name, old, new, _verdict(old, new, may)))
    return found


def evolve(spark: SparkSession, table: Table, wanted: StructType, freedom: Freedom) -> StructType:
    """Bring a stored table to the definition, or refuse and change nothing.

    Returns:
        The schema with which it was stored.

    Raises:
        SchemaChangedError: At least one difference needs a new generation.
    """
    stored = load(spark, table).schema
    found = differences(stored, wanted, freedom)
    refuse(table, found)
    place = table.sql
    widened = [one for one in found if one.verdict == "widened"]
    if widened:
        spark.sql(f"ALTER TABLE {place} SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')")
    for one in widened:
        spark.sql(f"ALTER TABLE {place} ALTER COLUMN {quoted(one.column)} TYPE {one.defined}")
    added = [f"{quoted(one.column)} {one.defined}" for one in found if one.verdict == "added"]
    if added:
        spark.sql(f"ALTER TABLE {place} ADD COLUMNS ({', '.join(added)})")
    return stored


def refuse(table: Table, found: Sequence[Difference]) -> None:
    """Stop where a difference cannot be bridged.

    Raises:
        SchemaChangedError: Names each.
    """
    lines = [f"  - {one}" for one in found if one.verdict == "refused"]
    if lines:
        raise SchemaChangedError(
            f"{table.name} was written under another definition:\n" + "\n".join(lines) + "\n"
            "Restore the definition, or let the tables follow from bronze under the new one with: "
            "tidelake backfill run, then promote"
        )


def _verdict(old: str | None, new: str | None, freedom: Freedom) -> Verdict:
    if old is None or new is None:
        if freedom != "columns":
            return "refused"
        return "added" if old is None else "kept"
    return "widened" if freedom != "none" and _grows(old, new) else "refused"


def _grows(old: str, new: str) -> bool:
    """Tell whether every value of a type is one of the other, digit for digit."""
    before, after = _DECIMAL.fullmatch(old), _DECIMAL.fullmatch(new)
    if before and after:
        precision, scale = int(before[1]), int(before[2])
        wider, finer = int(after[1]), int(after[2])
        return finer >= scale and wider - finer >= precision - scale
    return new in _WIDER.get(old, ())


def types_of(schema: StructType) -> dict[str, str]:
    """Name each column's type as Spark's simple string."""
    return {field.name: field.dataType.simpleString() for field in schema.fields}


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
