"""Begin a new generation of a hop: exactly after what its tables hold, or from nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from delta.tables import DeltaTable

from tidelake.bronze import as_never_requeued
from tidelake.config import FilesSource
from tidelake.errors import NotBuiltError, UsageError
from tidelake.ops.books import history
from tidelake.replay.rebuild_gold import FIRST, rebuild_gold, stands_alike
from tidelake.runtime.checkpoints import delta_offset, file_entry, prepare
from tidelake.runtime.gold_inputs import inputs_of
from tidelake.runtime.held import Held
from tidelake.runtime.hop import Run
from tidelake.runtime.landing import taken_files
from tidelake.runtime.lock import hold
from tidelake.runtime.prefilter import Recovered
from tidelake.runtime.silver_batch import Reached, SilverBatch
from tidelake.sinks.append import append
from tidelake.sinks.commits import (
    BEGINNING,
    REBUILT,
    Commit,
    Position,
    last_commit,
    newest_version,
    rewritten_after,
)
from tidelake.sinks.generations import CREATION
from tidelake.sinks.notes import SilverNote, positions
from tidelake.tables import Hop, Table

_GENERATION = re.compile(r"g([1-9][0-9]*)")


@dataclass(frozen=True)
class Repaired:
    """What a repair did.

    Attributes:
        hop: Which arrow.
        generation: The new one.
        rebuilt: Whether the tables were computed anew; otherwise they are as they were.
        why: What made that necessary; empty otherwise.
    """

    hop: Hop
    generation: str
    rebuilt: bool
    why: str = ""


def repair(run: Run, hop: Hop) -> Repaired:
    """Begin a new generation of a hop.

    The commit that closes the hop's table comes last, after its checkpoint and its side tables:
    interrupted before, the hop is refused as it was, and the repair can be run again.

    Raises:
        UsageError: The hop has no tables yet.
        NotBuiltError: A source whose position the table does not tell.
        LockedError: Another process writes the hop.
    """
    repairs: dict[Hop, Callable[[Run], Repaired]] = {
        "bronze": _bronze,
        "silver": _silver,
        "gold": _gold,
    }
    name = run.pipeline.name
    with hold(run.lake.checkpoints(name, hop), f"{name}, hop {hop},"):
        return repairs[hop](run)


def _bronze(run: Run) -> Repaired:
    source, table = run.pipeline.source, run.lake.bronze(run.pipeline.name)
    last = _last(run, table, "bronze")
    if not isinstance(source, FilesSource):
        raise NotBuiltError(f"Repairing bronze of a {source.kind} source")
    generation = _next_generation(run, "bronze", [table])
    files = [
        file_entry(_listed(run, file.path), file)
        for file in taken_files(history(run.lake, table)).values()
    ]
    _prepare(run, "bronze", generation, _numbered(last), ['{"logOffset":0}'], files)
    _promote(run, table, last, generation, records=0, fingerprint=0, contents=0, files=[])
    return Repaired("bronze", generation, rebuilt=False)


def _silver(run: Run) -> Repaired:
    lake, name = run.lake, run.pipeline.name
    table = lake.silver(name)
    last = _last(run, table, "silver")
    if run.pipeline.dedup.prefilter == "operator":
        raise NotBuiltError(
            "Repairing silver with dedup.prefilter: operator",
            "Set it to none, repair, and leave it so.",
        )
    before = SilverNote.of(last)
    inputs = {"bronze": lake.bronze(name), "requeue": lake.requeue(name)}
    generation = _next_generation(run, "silver", [table])
    for key, followed in inputs.items():
        version = rewritten_after(followed, before.until.get(key, BEGINNING))
        if version is not None:
            _rebuild_silver(run, generation, inputs)
            return Repaired("silver", generation, True, f"{followed.name} was rewritten")
    closing = history(lake, table)
    for side in (lake.quarantine(name), lake.late(name)):
        _drop_rows_of_no_batch(run, side, closing)
    _prepare(run, "silver", generation, _numbered(last), _offsets(run, inputs, before.until))
    idle = replace(
        before,
        watermark_in=before.watermark,
        counts=(),
        taken={},
        warnings={},
        searched=0,
        seconds=0.0,
        prefiltered=None,
        columns=(),
    )
    books = idle.to_json() if last.batch > CREATION else {}
    _promote(run, table, last, generation, **books)
    return Repaired("silver", generation, rebuilt=False)


def _rebuild_silver(run: Run, generation: str, inputs: dict[str, Table]) -> None:
    """Decide all of bronze as one batch; what was requeued is in bronze, and asks no more."""
    bronze, requeue = inputs["bronze"], inputs["requeue"]
    version = newest_version(bronze)
    rows = run.spark.read.format("delta").option("versionAsOf", version).load(str(bronze.path))
    DeltaTable.forPath(run.spark, str(requeue.path)).delete()
    until: dict[str, Position] = {
        "bronze": (version + 1, -1),
        "requeue": (newest_version(requeue) + 1, -1),
    }
    _prepare(run, "silver", generation, FIRST, _offsets(run, inputs, until))
    reached = Reached(until, {"bronze": rows.count(), "requeue": 0})
    batch = SilverBatch(run, generation, FIRST, rebuilds=True)
    with Held() as keep:
        recovered = Recovered(as_never_requeued(rows), [], None)
        batch.write(recovered, SilverNote(), reached, keep)


def _gold(run: Run) -> Repaired:
    lake, pipeline = run.lake, run.pipeline
    inputs = inputs_of(lake, pipeline)
    tables = [lake.table(name) for name in pipeline.gold_names]
    if not any(table.exists for table in tables):
        raise UsageError(_missing(pipeline.name, "gold"))
    for table in inputs.values():
        if not table.exists:
            raise UsageError(_missing(table.name.removeprefix("silver."), "silver"))
    generation = _next_generation(run, "gold", tables)
    why = stands_alike(run)
    if why:
        heads = {key: (newest_version(table) + 1, -1) for key, table in inputs.items()}
        _prepare(run, "gold", generation, FIRST, _offsets(run, inputs, heads))
        rebuild_gold(run, heads, generation)
        return Repaired("gold", generation, True, why)
    last = _last(run, tables[0], "gold")
    _prepare(run, "gold", generation, _numbered(last), _offsets(run, inputs, positions(last)))
    for table in tables:
        _promote(run, table, _last(run, table, "gold"), generation, rows=0, eligible=0)
    return Repaired("gold", generation, rebuilt=False)


def _last(run: Run, table: Table, hop: Hop) -> Commit:
    last = last_commit(table) if table.exists else None
    if last is None:
        raise UsageError(_missing(run.pipeline.name, hop))
    return last


def _missing(name: str, hop: Hop) -> str:
    return f"{name} has no tables of hop {hop} to repair. Fill them with: tidelake run {name}"


def _next_generation(run: Run, hop: Hop, tables: list[Table]) -> str:
    """Name a generation that neither a table nor a checkpoint has borne."""
    folders = run.lake.checkpoints(run.pipeline.name, hop).iterdir()
    names = [folder.name for folder in folders]
    names += [commit.generation for table in tables for commit in history(run.lake, table)]
    found = [_GENERATION.fullmatch(name) for name in names]
    return f"g{max((int(match[1]) for match in found if match), default=0) + 1}"


def _prepare(
    run: Run,
    hop: Hop,
    generation: str,
    batch: int,
    offsets: list[str],
    files: list[str] | None = None,
) -> None:
    folder = run.lake.checkpoints(run.pipeline.name, hop) / generation
    prepare(folder, batch, offsets, files=files or [])


def _numbered(last: Commit) -> int:
    """Give the number of the batch that a checkpoint is to end with."""
    return last.batch if last.batch == CREATION else max(last.batch, FIRST)


def _promote(run: Run, table: Table, last: Commit, generation: str, **books: object) -> None:
    """Write the new generation into a table, without a row."""
    note = {**last.note, **books, "generation": generation, "batch": _numbered(last)}
    note.pop(REBUILT, None)
    nothing = run.spark.read.format("delta").load(str(table.path)).limit(0)
    append(nothing, table, note, surely_filled=False)


def _offsets(run: Run, inputs: Mapping[str, Table], reached: Mapping[str, Position]) -> list[str]:
    """Write where a hop stands in each of its inputs as their streams' offsets."""
    offsets = []
    for key, table in inputs.items():
        detail = DeltaTable.forPath(run.spark, str(table.path)).detail().select("id").collect()[0]
        offsets.append(delta_offset(detail["id"], reached.get(key, BEGINNING)))
    return offsets


def _listed(run: Run, path: str) -> str:
    """Write a path as Spark's file source lists it."""
    jvm = run.spark._jvm
    assert jvm is not None
    return str(jvm.org.apache.hadoop.fs.Path(f"file://{path}").toUri().toString())


def _drop_rows_of_no_batch(run: Run, side: Table, closing: list[Commit]) -> None:
    """Delete what batches wrote into a side table that silver never closed, or closed no more."""
    newest: dict[str, int] = {}
    for commit in closing:
        newest[commit.generation] = max(newest.get(commit.generation, -1), commit.batch)
    # Generations are ours: a letter and digits.
    known = " OR ".join(
        f"(_generation = '{generation}' AND _batch <= {batch})"
        for generation, batch in newest.items()
        if _GENERATION.fullmatch(generation)
    )
    DeltaTable.forPath(run.spark, str(side.path)).delete(f"NOT ({known or 'false'})")
