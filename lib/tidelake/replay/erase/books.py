"""Count what an erasure takes out of each table, so that the books can say it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidelake.delta.notes import RECORDS, Arrival, Deduction
from tidelake.delta.tables import Lake, Table
from tidelake.fingerprints import contents, fingerprint
from tidelake.instants import from_micros
from tidelake.replay.erase.records import WAS_FILTERED, read
from tidelake.replay.requeue import kept_in
from tidelake.runtime.gold_target import literal, span
from tidelake.runtime.hop import Run


@dataclass(frozen=True)
class Loss:
    """What tables lose.

    Attributes:
        rows: How many, by the table's logical name.
        arrivals: What bronze loses, by arrival.
        deductions: What silver's batches lose, by fate; with fates that leave no row, and with
            the records themselves.
        sources: Where the records came from.
    """

    rows: dict[str, int]
    arrivals: tuple[Arrival, ...]
    deductions: tuple[Deduction, ...]
    sources: tuple[str, ...]

    @property
    def records(self) -> int:
        """How many records bronze loses."""
        return sum(one.rows for one in self.arrivals)


def held_tables(lake: Lake, name: str) -> list[Table]:
    """List the tables that hold records by their id and exist, bronze last."""
    known = [
        lake.requeue(name),
        lake.quarantine(name),
        lake.late(name),
        lake.discarded(name),
        lake.silver(name),
        lake.bronze(name),
    ]
    return [table for table in known if table.exists]


def count_rows(run: Run, records: DataFrame) -> dict[str, int]:
    """Count the rows of some records in each table that holds records."""
    tables = held_tables(run.lake, run.pipeline.name)
    return {table.name: _of(run, table, records).count() for table in reversed(tables)}


def count_loss(run: Run, records: DataFrame) -> Loss:
    """Count what tables lose with some records.

    Args:
        run: What the command works with; silver has taken all of bronze.
        records: Kept, from :func:`~tidelake.replay.erase.records.find_records`.
    """
    lake, name = run.lake, run.pipeline.name
    rows = count_rows(run, records)
    arrivals = (
        _of(run, lake.bronze(name), records)
        .groupBy(F.unix_micros("ingested_at").alias("at"))
        .agg(F.count("*").alias("rows"), fingerprint().alias("ids"), contents().alias("contents"))
        .orderBy("at")
        .collect()
    )
    fates = {
        "silver": lake.silver(name),
        "quarantined": lake.quarantine(name),
        "late": lake.late(name),
    }
    deductions = [
        Deduction(row["_generation"], row["_batch"], fate, row["rows"], *row["ids"])
        for fate, table in fates.items()
        if rows[table.name]
        for row in _of(run, table, records)
        .groupBy("_generation", "_batch")
        .agg(F.count("*").alias("rows"), fingerprint().alias("ids"))
        .orderBy("_generation", "_batch")
        .collect()
    ]
    told = records.agg(F.count("*").alias("rows"), fingerprint().alias("ids")).collect()[0]
    deductions.append(Deduction("", -1, RECORDS, told["rows"], *told["ids"]))
    sources = records.select("source").distinct().orderBy("source").collect()
    return Loss(
        rows=rows,
        arrivals=tuple(
            Arrival(
                at,
                row["rows"],
                row["ids"]["xor"],
                row["contents"]["xor"],
                row["ids"]["total"],
                row["contents"]["total"],
            )
            for row in arrivals
            if (at := from_micros(row["at"])) is not None
        ),
        deductions=(*deductions, *_without_row(run, records)),
        sources=tuple(row["source"] for row in sources),
    )


def bounds(records: DataFrame) -> str:
    """Write the condition on ``ingested_at`` that lets Delta skip files; over ``t``."""
    reach = span(records, "ingested_at", "ingested_at")
    if reach is None:
        return ""
    return f"t.ingested_at BETWEEN {literal(reach[0])} AND {literal(reach[1])}"


def _without_row(run: Run, records: DataFrame) -> list[Deduction]:
    """Count the records whose fate left no row: filtered ones, and copies."""
    lake, name = run.lake, run.pipeline.name
    somewhere = reduce(
        DataFrame.unionByName,
        [
            one.select("record_id")
            for one in (
                read(run, lake.silver(name)),
                kept_in(run, lake.quarantine(name)),
                kept_in(run, lake.late(name)),
            )
        ],
    )
    fate: Column = F.when(F.col(WAS_FILTERED), "filtered").otherwise("duplicate")
    found = (
        records.join(somewhere, on="record_id", how="left_anti")
        .groupBy(fate.alias("fate"))
        .count()
        .orderBy("fate")
        .collect()
    )
    return [Deduction("", -1, row["fate"], row["count"], 0, 0) for row in found]


def _of(run: Run, table: Table, records: DataFrame) -> DataFrame:
    ids = records.select("record_id")
    return read(run, table).join(ids, on="record_id", how="left_semi")
