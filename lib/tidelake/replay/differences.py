"""Compare a backfill's green tables with the live ones, and name the cause of each difference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DoubleType, FloatType, NumericType

from tidelake.columns import EXACT_TIMES
from tidelake.config.expressions import columns_in
from tidelake.delta.access import load
from tidelake.delta.commit_metadata import changed_definition, position
from tidelake.delta.log import last_commit
from tidelake.delta.tables import Table
from tidelake.errors import UsageError
from tidelake.instants import from_json, to_micros
from tidelake.ledger.history import history, version_read
from tidelake.names import ID_HASH, quoted
from tidelake.replay.backfill import green_run
from tidelake.replay.backfill_state import State
from tidelake.replay.compare import COLUMN, TableComparison, TableShape, common_types, compare
from tidelake.replay.verify import shape_of
from tidelake.replay.verify_silver import BATCH_COLUMNS, SilverInputs, read_inputs
from tidelake.runtime.gold_tables import targets_of
from tidelake.runtime.hop import Run
from tidelake.typed import runnable

# Pending rows are not read yet by live silver; others have arrived since green silver was filled.
Cause = Literal["late rows", "dimension", "definition", "pending", "arrived since"]

# Columns that depend on batch boundaries, not on the event.
_OF_THE_BATCH = ("is_late", "_requeued_at", ID_HASH)
_TABLE, _WHOLE, _OWN = "_table", "_whole", "_own"


@dataclass(frozen=True)
class Change:
    """Rows of bronze whose fate or values a backfill changes.

    ``was`` is the live table and ``becomes`` the green table that holds them, None for no table;
    ``example`` is the record id of one of them.
    """

    was: str | None
    becomes: str | None
    cause: Cause
    rows: int
    example: str


@dataclass(frozen=True)
class Differences:
    """What a promotion would change; ``redefined`` are gold tables whose definition changed."""

    silver: tuple[Change, ...]
    gold: dict[str, TableComparison]
    redefined: frozenset[str]

    @property
    def equal(self) -> bool:
        """Return whether nothing would change."""
        return not self.silver and all(one.equal for one in self.gold.values())


def differences(run: Run, state: State) -> Differences:
    """Compare live tables with green ones; nothing is written.

    Raises:
        UsageError: Live silver does not exist.
    """
    name = run.pipeline.name
    live_silver = run.lake.silver(name)
    if state.start == "bronze" and not live_silver.exists:
        raise UsageError(
            f"{live_silver.name} does not exist yet: there is nothing to compare. "
            f"Swap with: {runnable('tidelake backfill promote', name)}"
        )
    green = green_run(run, state.start, state.table)
    silver = tuple(_silver_changes(run, green)) if state.start == "bronze" else ()
    gold, redefined = {}, set()
    for live, kind in targets_of(run.lake, run.pipeline):
        if state.table not in (None, live.name):
            continue
        exists = live.exists
        if not exists or changed_definition(last_commit(live), kind.definition):
            redefined.add(live.name)
        if exists:
            made = load(run.spark, green.lake.table(live.name)).drop(*BATCH_COLUMNS)
            stored = load(run.spark, live).drop(*BATCH_COLUMNS)
            both = [name for name in made.columns if name in stored.columns]
            made, stored, shape = _comparable(made.select(*both), stored, shape_of(kind, stored))
            if set(shape.key) <= set(both):
                found = compare(made, stored, shape)
            else:
                # Under another key no row is the same.
                rows = stored.count()
                found = TableComparison(rows, {}, {}, rows + made.count())
            gold[live.name] = found
    return Differences(silver, gold, frozenset(redefined))


def _comparable(
    made: DataFrame, stored: DataFrame, shape: TableShape
) -> tuple[DataFrame, DataFrame, TableShape]:
    """Return rows of two definitions, and a shape, that can be compared.

    A column whose type the other definition changes, and does not only widen, is compared as text,
    exactly; numbers are compared as DOUBLE if one of the types is a floating-point type.
    """
    texts = set()
    for name in common_types(made, stored)[1]:
        both = [rows.schema[name].dataType for rows in (stored, made)]
        if all(isinstance(side, NumericType) for side in both) and any(
            isinstance(side, FloatType | DoubleType) for side in both
        ):
            kind = "double"
        else:
            kind = "string"
            texts.add(name)
        made, stored = (
            rows.withColumn(name, F.col(quoted(name)).cast(kind)) for rows in (made, stored)
        )
    if not texts:
        return made, stored, shape
    near = {
        name: sql
        for name, sql in shape.near.items()
        if texts.isdisjoint({name, *(column for _, column in COLUMN.findall(sql))})
    }
    lowered = {name.lower() for name in texts}
    derived = {
        name: sql
        for name, sql in shape.derived.items()
        if lowered.isdisjoint({name.lower(), *columns_in(sql)})
    }
    shape = replace(
        shape,
        near=near,
        derived=derived,
        unhashed=shape.unhashed - texts,
        moment=None if shape.moment in texts else shape.moment,
    )
    return made, stored, shape


def _silver_changes(run: Run, green: Run) -> list[Change]:
    looked_up = [name for one in run.pipeline.enrich for name in one.columns]
    live = read_inputs(run)
    was = _fates(live.decided, looked_up)
    becomes = _fates(read_inputs(green).decided, looked_up)
    read = _read_whole(run, live)
    (reached,) = becomes.agg(F.max(F.unix_micros("ingested_at"))).collect()[0]
    same = F.col("l.record_id") == F.col("g.record_id")
    joined = was.alias("l").join(becomes.alias("g"), on=same, how="full_outer")
    moved = ~F.col(f"l.{_TABLE}").eqNullSafe(F.col(f"g.{_TABLE}"))
    altered = ~F.col(f"l.{_WHOLE}").eqNullSafe(F.col(f"g.{_WHOLE}"))
    cause = (
        F.when(F.unix_micros("l.ingested_at") > F.lit(reached), "arrived since")
        .when(F.isnull(f"l.{_TABLE}") & (F.unix_micros("g.ingested_at") > read), "pending")
        .when(F.col(f"l.{_TABLE}").endswith("__late"), "late rows")
        .when(F.col(f"g.{_TABLE}").endswith("__late"), "late rows")
        .when(~moved & (F.col(f"l.{_OWN}") == F.col(f"g.{_OWN}")), "dimension")
        .otherwise("definition")
    )
    found = (
        joined.where(moved | altered)
        .groupBy(F.col(f"l.{_TABLE}").alias("was"), F.col(f"g.{_TABLE}").alias("becomes"), cause)
        .agg(F.count("*").alias("rows"), F.min(F.coalesce("l.record_id", "g.record_id")))
        .orderBy(F.desc("rows"), "was", "becomes")
        .collect()
    )
    return [Change(*row) for row in found]


def _read_whole(run: Run, live: SilverInputs) -> int:
    """Return the arrival, in microseconds, of bronze's newest commit that silver has read whole.

    All rows of a commit have the same arrival: of one that is read in part, any may be unread.
    """
    bronze = run.lake.bronze(run.pipeline.name)
    version = version_read(bronze, position(live.closing[0], "bronze"))
    arrived = (
        from_json(commit.note.get("ingested_at"))
        for commit in history(run.lake, bronze)
        if commit.version <= version
    )
    return max((to_micros(at) for at in arrived if at is not None), default=-1)


def _fates(decided: Mapping[Table, DataFrame], enriched: Sequence[str]) -> DataFrame:
    """Select the records of silver's tables with their table and hashes.

    ``_whole`` hashes all values, ``_own`` those that were not looked up in a dimension.
    """
    return reduce(
        DataFrame.unionByName,
        [
            rows.select(
                "record_id",
                "ingested_at",
                F.lit(table.name).alias(_TABLE),
                _hashed(rows, ()).alias(_WHOLE),
                _hashed(rows, enriched).alias(_OWN),
            )
            for table, rows in decided.items()
        ],
    )


def _hashed(rows: DataFrame, but: Sequence[str]) -> Column:
    left_out = {*BATCH_COLUMNS, *_OF_THE_BATCH, *but}
    names = sorted(name for name in rows.columns if name not in left_out)
    # The hash skips nulls: a null is the same as a column that the other table lacks.
    return F.xxhash64(
        *[F.when(F.col(name).isNotNull(), F.to_json(F.struct(name), EXACT_TIMES)) for name in names]
    )
