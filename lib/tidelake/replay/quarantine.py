"""Replay and discard quarantined rows."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidelake.delta.append import append, ensure_table
from tidelake.delta.log import CREATION, FIRST_GENERATION, last_commit
from tidelake.delta.notes import SilverNote
from tidelake.fingerprints import fingerprint
from tidelake.ops.side import closed_batch
from tidelake.replay.requeue import as_requeued, holding_silver, send, waiting
from tidelake.runtime.accepted_rows import AcceptedRows
from tidelake.runtime.held import Held
from tidelake.runtime.hop import Run
from tidelake.runtime.schemas import from_ddl, schemas_for
from tidelake.runtime.silver import decide_fates
from tidelake.silver.classify import STAGE
from tidelake.silver.route import FATE, QUARANTINED

_DISCARDED_DDL = (
    "record_id string, stage string, reasons array<string>, why string, discarded_at timestamp"
)


@dataclass(frozen=True)
class Choice:
    """Which quarantined rows a command means; all criteria must hold.

    Attributes:
        stage: Where they failed.
        rule: A text within one of their reasons.
    """

    stage: str | None = None
    rule: str | None = None

    def of(self, rows: DataFrame) -> DataFrame:
        """Cut quarantine's rows to the chosen."""
        if self.stage is not None:
            rows = rows.where(F.col("stage") == self.stage)
        if self.rule is not None:
            wanted = F.lit(self.rule)
            rows = rows.where(F.exists("reasons", lambda reason: F.contains(reason, wanted)))
        return rows


@dataclass(frozen=True)
class Outcome:
    """What would become of some quarantined rows today.

    Attributes:
        stage: Where they failed.
        fate: Which fate they would have now.
        now: The stage at which they would fail again; None where they would not.
        rows: How many.
    """

    stage: str
    fate: str
    now: str | None
    rows: int


@dataclass(frozen=True)
class Replay:
    """A replay, shown before it is done.

    Attributes:
        outcomes: What would become of the chosen rows.
        requeued: Rows that were sent again; 0 for a look only.
    """

    outcomes: tuple[Outcome, ...]
    requeued: int

    @property
    def released(self) -> int:
        """Rows that today's definition would not quarantine."""
        return sum(one.rows for one in self.outcomes if one.fate != QUARANTINED)


def replay_quarantine(run: Run, choice: Choice, *, look_only: bool = False) -> Replay:
    """Send the rows into silver again that today's definition would not quarantine.

    The others stay as they are: to send them would only bring them back.

    Args:
        run: What the command works with.
        choice: Which rows.
        look_only: Judge them and write nothing.

    Raises:
        UsageError: The pipeline has not run under this root.
        LockedError: A run of silver holds the hop.
    """
    with holding_silver(run, "quarantine replay") as locked, Held() as keep:
        lake, name = run.lake, run.pipeline.name
        chosen = choice.of(waiting(run, lake.quarantine(name)))
        failed = keep(chosen.select("record_id", "ingested_at", F.col("stage").alias("failed")))
        rows = keep(as_requeued(run, failed, "quarantine"))
        mark = SilverNote.of(last_commit(lake.silver(name))).watermark
        batch = closed_batch(lake, name).batch + 1
        accepted = AcceptedRows(run.spark, run.pipeline, lake, batch)
        # Only looked at: the run that takes the rows asks for itself.
        schemas = schemas_for(run, rows, keeps=False)
        judged = run.plan.judge(rows, schemas)
        decision = decide_fates(judged, run.plan, accepted, mark, keep)
        decided = keep(decision.rows.select("record_id", FATE, STAGE))
        told = (
            decided.join(failed.dropDuplicates(["record_id"]), on="record_id", how="inner")
            .groupBy("failed", FATE, STAGE)
            .count()
            .orderBy("failed", FATE, STAGE)
            .collect()
        )
        outcomes = tuple(
            Outcome(row["failed"], row[FATE], row[STAGE], row["count"])
            if row[FATE] == QUARANTINED
            else Outcome(row["failed"], row[FATE], None, row["count"])
            for row in told
        )
        shown = Replay(outcomes, 0)
        if look_only or not shown.released:
            return shown
        freed = decided.where(F.col(FATE) != QUARANTINED).select("record_id")
        sent = keep(rows.join(freed, on="record_id", how="left_semi"))
        return Replay(outcomes, send(locked, sent, expected=shown.released))


def discard_quarantine(run: Run, choice: Choice, *, why: str) -> int:
    """Give up quarantined rows: they stay in the table and in the books, but no longer wait.

    Args:
        run: What the command works with.
        choice: Which rows.
        why: Written down with each.

    Returns:
        How many rows.

    Raises:
        UsageError: The pipeline has not run under this root.
        LockedError: A run of silver holds the hop.
    """
    with holding_silver(run, "quarantine discard") as locked, Held() as keep:
        name = run.pipeline.name
        discarded = run.lake.discarded(name)
        rows = keep(
            choice.of(waiting(run, run.lake.quarantine(name))).select(
                "record_id",
                "stage",
                "reasons",
                F.lit(why).alias("why"),
                F.lit(datetime.now(UTC)).alias("discarded_at"),
            )
        )
        found = rows.agg(F.count("*").alias("rows"), fingerprint().alias("fingerprint"))
        told = found.collect()[0]
        if told["rows"]:
            stamp = {"pipeline": name, "hop": "discard", "generation": FIRST_GENERATION}
            schema = from_ddl(run.spark, _DISCARDED_DDL)
            ensure_table(run.spark, discarded, schema, {**stamp, "batch": CREATION})
            last = last_commit(discarded)
            batch = last.batch + 1 if last else 0
            xor, total = told["fingerprint"]
            note = {**stamp, "batch": batch, "why": why, "fingerprint": xor, "id_sum": total}
            locked.locks.step(f"append {told['rows']:,} rows to {discarded.name}")
            append(rows, discarded, note)
        return int(told["rows"])
