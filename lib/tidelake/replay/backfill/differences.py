"""Explain what a backfill would change: row by row in silver, table by table in gold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidelake.config.names import ID_HASH
from tidelake.delta.access import load
from tidelake.delta.log import last_commit
from tidelake.delta.notes import changed_definition
from tidelake.errors import UsageError
from tidelake.replay.backfill.green import State, green_run
from tidelake.replay.verify.contents import Comparison, compare
from tidelake.replay.verify.gold import shape_of
from tidelake.replay.verify.inputs import ORIGIN, read_inputs
from tidelake.runtime.hop import Run
from tidelake.runtime.targets import targets_of

Cause = Literal["late rows", "dimension", "definition", "arrived since"]

# Differ by when a batch was cut, not by what is in the event.
_OF_THE_BATCH = ("is_late", "_requeued_at", ID_HASH)
_PLACE, _WHOLE, _OWN = "_place", "_whole", "_own"


@dataclass(frozen=True)
class Change:
    """Rows of bronze that a backfill gives another fate, or other values.

    Attributes:
        was: The live table that holds them; None for none.
        becomes: The green one.
        cause: Why.
        rows: How many.
        example: The record id of one of them.
    """

    was: str | None
    becomes: str | None
    cause: Cause
    rows: int
    example: str


@dataclass(frozen=True)
class Differences:
    """What a swap would change.

    Attributes:
        silver: By cause.
        gold: Each table against its green one.
        redefined: Gold tables whose definition is another one.
    """

    silver: tuple[Change, ...]
    gold: dict[str, Comparison]
    redefined: frozenset[str]

    @property
    def equal(self) -> bool:
        """Tell whether nothing would change."""
        return not self.silver and all(one.equal for one in self.gold.values())


def differences(run: Run, state: State) -> Differences:
    """Hold live tables against green ones; nothing is written.

    Raises:
        UsageError: There is no live silver to compare with.
    """
    name = run.pipeline.name
    if state.start == "bronze" and not run.lake.silver(name).exists:
        raise UsageError(
            f"silver.{name} does not exist yet: there is nothing to compare. "
            f"Swap with: tidelake backfill promote {name}"
        )
    green = green_run(run, state.start)
    silver = tuple(_silver_changes(run, green)) if state.start == "bronze" else ()
    gold, redefined = {}, set()
    for live, target in zip(
        targets_of(run.lake, run.pipeline), targets_of(green.lake, run.pipeline), strict=True
    ):
        if not live.table.exists:
            redefined.add(live.table.name)
            continue
        if changed_definition(last_commit(live.table), live.definition):
            redefined.add(live.table.name)
        made = load(run.spark, target.table).drop(*ORIGIN)
        stored = load(run.spark, live.table).drop(*ORIGIN)
        both = [name for name in made.columns if name in stored.columns]
        gold[live.table.name] = compare(made.select(*both), stored, shape_of(target, stored))
    return Differences(silver, gold, frozenset(redefined))


def _silver_changes(run: Run, green: Run) -> list[Change]:
    own = [name for one in run.pipeline.enrich for name in one.columns]
    was, becomes = _fates(run, own), _fates(green, own)
    reached = becomes.agg(F.max(F.unix_micros("ingested_at"))).collect()[0][0]
    same = F.col("l.record_id") == F.col("g.record_id")
    joined = was.alias("l").join(becomes.alias("g"), on=same, how="full_outer")
    moved = ~F.col(f"l.{_PLACE}").eqNullSafe(F.col(f"g.{_PLACE}"))
    altered = ~F.col(f"l.{_WHOLE}").eqNullSafe(F.col(f"g.{_WHOLE}"))
    cause = (
        F.when(F.unix_micros("l.ingested_at") > F.lit(reached), "arrived since")
        .when(F.col(f"l.{_PLACE}").endswith("__late"), "late rows")
        .when(F.col(f"g.{_PLACE}").endswith("__late"), "late rows")
        .when(~moved & (F.col(f"l.{_OWN}") == F.col(f"g.{_OWN}")), "dimension")
        .otherwise("definition")
    )
    found = (
        joined.where(moved | altered)
        .groupBy(
            F.col(f"l.{_PLACE}").alias("was"),
            F.col(f"g.{_PLACE}").alias("becomes"),
            cause.alias("cause"),
        )
        .agg(F.count("*").alias("rows"), F.min(F.coalesce("l.record_id", "g.record_id")).alias("e"))
        .orderBy(F.desc("rows"), "was", "becomes")
        .collect()
    )
    return [Change(r["was"], r["becomes"], r["cause"], int(r["rows"]), r["e"]) for r in found]


def _fates(run: Run, enriched: Sequence[str]) -> DataFrame:
    """Give each record that a table of silver's holds: where, and hashes of its values."""
    lake, name, inputs = run.lake, run.pipeline.name, read_inputs(run)
    tables = {
        lake.silver(name).name: inputs.silver,
        lake.quarantine(name).name: inputs.quarantine,
        lake.late(name).name: inputs.late,
    }
    return reduce(
        DataFrame.unionByName,
        [
            rows.select(
                "record_id",
                "ingested_at",
                F.lit(place).alias(_PLACE),
                _hashed(rows, ()).alias(_WHOLE),
                _hashed(rows, enriched).alias(_OWN),
            )
            for place, rows in tables.items()
        ],
    )


def _hashed(rows: DataFrame, but: Sequence[str]) -> Column:
    left_out = {*ORIGIN, *_OF_THE_BATCH, *but}
    names = sorted(name for name in rows.columns if name not in left_out)
    columns = [F.to_json(F.struct(name)) for name in names]
    return F.xxhash64(*columns)
