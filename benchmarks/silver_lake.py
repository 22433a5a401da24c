"""Lakes for the silver benchmarks, and the hop that runs on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.silver_data import Cut, accepted, bronze, mark, silver
from tidelake.bronze.records import BRONZE_DDL, REQUEUE_DDL
from tidelake.config import Limits, Pipeline, load_environment, load_pipeline
from tidelake.config.locations import conf_dir, find_file
from tidelake.delta.append import append, ensure_table
from tidelake.delta.commit_metadata import SilverNote
from tidelake.delta.log import Commit, commits, last_commit
from tidelake.delta.positions import BEGINNING, added_between
from tidelake.delta.tables import Lake
from tidelake.runtime.hop import Run
from tidelake.runtime.progress import Progress
from tidelake.runtime.schemas import from_ddl
from tidelake.runtime.silver import SilverHop
from tidelake.runtime.triggers import AVAILABLE_NOW, parse_trigger

NAME = "clickstream"
NOW = parse_trigger(AVAILABLE_NOW).options
ALL = 1 << 40


def defined(root: Path, *, ttl: str) -> Pipeline:
    """Load the clickstream without its dimension: the silver benchmarks have no lookup."""
    content = yaml.safe_load(find_file(NAME, "pipeline").read_text(encoding="utf-8"))
    content["dedup"]["ttl"] = ttl
    content["quality"]["suite"] = str(conf_dir() / "expectations" / f"{NAME}.yml")
    content["gold"] = [table for table in content["gold"] if table["keys"] != ["category"]]
    content.pop("enrich")
    landing = root / "landing"
    landing.mkdir(parents=True, exist_ok=True)
    file = root / f"{NAME}.yml"
    file.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    environment = load_environment("local", root=str(root))
    return load_pipeline(str(file), environment, source=str(landing))


def context(spark: SparkSession, root: Path, *, batch_bytes: int, ttl: str) -> Run:
    """Return the context of a hop."""
    environment = load_environment("local", root=str(root)).model_copy(
        update={"limits": Limits(silver_bytes=f"{batch_bytes}b")}
    )
    pipeline = defined(root, ttl=ttl)
    return Run(spark, pipeline, Lake(root), environment, Progress(lambda line: None))


def create_bronze(run: Run) -> None:
    """Create the tables that silver reads."""
    for table, ddl in (
        (run.lake.bronze(NAME), BRONZE_DDL),
        (run.lake.requeue(NAME), REQUEUE_DDL),
    ):
        ensure_table(run.spark, table, from_ddl(run.spark, ddl), _note(-1))


def land(run: Run, number: int, cut: Cut, *, files: int = 2) -> None:
    """Append a cut of the stream to bronze in one commit, as the bronze hop would."""
    append(bronze(run.spark, cut, files), run.lake.bronze(NAME), _note(number))


def play(run: Run) -> StreamingQuery:
    """Run the silver hop until it has read all of bronze."""
    hop = SilverHop(run)
    query = hop.start(NOW)
    while query.isActive:
        hop.check(query)
    hop.check(query)
    return query


def append_history(run: Run, cut: Cut, *, files: int) -> None:
    """Append rows to silver as if the hop's last batch had written and searched them."""
    last = last_commit(run.lake.silver(NAME))
    assert last is not None
    note = {**last.note, "dedup": {"searched": cut.rows, "seconds": 0.0}}
    append(silver(run.spark, cut, files), run.lake.silver(NAME), note)


def batch_limit(run: Run, files: int = 2) -> int:
    """Return the byte limit at which a batch reads ``files`` files of bronze of about equal size.

    Delta adds files until the limit is exceeded: half a file below the total includes the last.
    """
    table = run.lake.bronze(NAME)
    total, count = added_between(table, BEGINNING).size, len(_bronze_files(run))
    return int(total / count * (files - 0.5))


def silver_batches(run: Run, after: int) -> list[Commit]:
    """List silver's commits after a batch, oldest first."""
    return [commit for commit in commits(run.lake.silver(NAME)) if commit.batch > after][::-1]


def check_silver(run: Run, cuts: list[Cut], after: int) -> list[SilverNote]:
    """Assert that batches added the expected events; return their commit metadata."""
    notes = [SilverNote.of(commit) for commit in silver_batches(run, after)]
    assert len(notes) == len(cuts), f"{len(notes)} batches, expected {len(cuts)}"
    for note, cut in zip(notes, cuts, strict=True):
        fates = dict(note.total())
        assert sum(fates.values()) == sum(note.taken.values()) == cut.rows, fates
    rows = run.spark.read.format("delta").load(str(run.lake.silver(NAME).path))
    found = mark(rows.where(F.col("_batch") > after))
    expected = mark(accepted(run.spark, cuts))
    assert found == expected, f"silver holds {found}, expected {expected}"
    return notes


def durations(query: StreamingQuery) -> list[dict[str, Any]]:
    """Return Spark's progress of the batches with rows: rows, and milliseconds by phase."""
    return [
        {"rows": progress.numInputRows, "durationMs": dict(progress.durationMs)}
        for progress in query.recentProgress
        if progress.durationMs.get("addBatch")
    ]


def seconds_a_batch(query: StreamingQuery) -> list[float]:
    """Return the seconds of each batch with rows."""
    return [batch["durationMs"]["triggerExecution"] / 1_000 for batch in durations(query)]


def _bronze_files(run: Run) -> list[str]:
    return list(run.spark.read.format("delta").load(str(run.lake.bronze(NAME).path)).inputFiles())


def _note(batch: int) -> dict[str, Any]:
    return {"pipeline": NAME, "hop": "bronze", "generation": "g1", "batch": batch}
