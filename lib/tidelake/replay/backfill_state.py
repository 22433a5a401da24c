"""The tables and the state of a backfill between its commands.

Green tables are those that a backfill fills; live tables are those that users read. Green tables
and their checkpoints are under a root of their own. Tables that a backfill does not fill, such as
bronze, resolve to the live ones, so the ordinary hops can continue a backfill.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field
from typing import Literal

from tidelake.config import Pipeline
from tidelake.delta.commit_metadata import position
from tidelake.delta.locks import hold, rolls_back
from tidelake.delta.log import last_commit, newest_version
from tidelake.delta.positions import Position, files_between
from tidelake.delta.tables import Hop, Lake, Table
from tidelake.errors import GenerationError, UsageError
from tidelake.folders import Folder, remove_tree, write_whole
from tidelake.names import BACKFILL_INFIX, LAYERS, quoted
from tidelake.runtime.hop import Run
from tidelake.typed import runnable

Start = Literal["bronze", "silver"]
Stage = Literal["building", "built", "promoting", "promoted", "rolling back", "rolled back"]
SWAPS = ("promoting", "rolling back")
_STATE = "backfill.json"

# What to do at each stage: text, the command of a backfill, text.
_NEXT: dict[Stage, tuple[str, str, str]] = {
    "building": ("Continue with: ", "run", ""),
    "built": ("Compare and swap it with: ", "compare", ", then promote"),
    "promoting": ("It was interrupted. Continue with: ", "promote", ", or rollback"),
    "promoted": ("Roll it back with: ", "rollback", "; begin another with: run"),
    "rolling back": ("It was interrupted. Continue with: ", "rollback", ""),
    "rolled back": ("Begin another with: ", "run", ""),
}


@dataclass(frozen=True)
class GreenLake(Lake):
    """A lake whose ``own`` tables (logical names) are green; all others are those of ``live``."""

    live: Lake
    own: frozenset[str]

    @property
    def suffix(self) -> str:
        """The suffix of green tables in a catalog, where live and green ones share a schema."""
        return f"{BACKFILL_INFIX}{self.root.name}"

    def table(self, name: str) -> Table:
        """Resolve a logical name to the green table if there is one, else to the live table."""
        green = super().table(name)
        return green if name in self.own or name.startswith("ops.") else self.live.table(name)

    def erasure(self, pipeline: str) -> Folder:
        """Return the erasure file of the live tables, from which green tables are filled."""
        return self.live.erasure(pipeline)


@dataclass(frozen=True)
class State:
    """The state of a backfill between commands.

    Attributes:
        start: The layer from which it is filled.
        definition: A hash of the definition with which it is filled.
        stage: The last stage begun or completed.
        table: The only gold table that it fills (logical name); None for all.
        before: Versions of the live tables before the swap, by logical name.
        gold_followed: Whether live gold had consumed all of live silver before the swap.
        span: Start (inclusive) and end (exclusive) of its event times, ISO 8601; None for all.
        since: Earliest arrival that is recomputed (ISO 8601); None for all.
        requeue: Version of the live requeue when a rollback began; None before that.
    """

    start: Start
    definition: str
    stage: Stage = "building"
    table: str | None = None
    before: Mapping[str, int] = field(default_factory=dict)
    gold_followed: bool = True
    span: Sequence[str] | None = None
    since: str | None = None
    requeue: int | None = None

    @property
    def is_promoted(self) -> bool:
        """Whether a new backfill would give up its rollback."""
        return self.stage == "promoted"


def folder_of(lake: Lake, pipeline: Pipeline) -> Folder:
    """Return the root of a pipeline's green tables."""
    return lake.root / "backfill" / lake.bronze(pipeline.name).bare


def green_lake(lake: Lake, pipeline: Pipeline, start: Start, table: str | None = None) -> GreenLake:
    """Return the tables of a backfill that starts from a layer, or of one gold table."""
    name = pipeline.name
    own = set(pipeline.gold_names) if table is None else {table}
    if start == "bronze":
        filled = (lake.silver, lake.quarantine, lake.late, lake.requeue)
        own |= {one(name).name for one in filled}
    return GreenLake(
        folder_of(lake, pipeline),
        lake,
        frozenset(own),
        catalog=lake.catalog,
        needs_locks=lake.needs_locks,
        newest=lake.newest,
    )


def hold_backfill(lake: Lake, pipeline: Pipeline) -> AbstractContextManager[Callable[[], None]]:
    """Hold the lock of a backfill, like :func:`~tidelake.delta.locks.hold`.

    Whoever changes its tables or its state needs it, from the state that it reads to the one that
    it writes; the locks of the green hops are held for one hop at a time. It is outside the
    backfill's folder, which is removed under it.
    """
    folder = lake.root / "checkpoints" / lake.bronze(pipeline.name).bare / "backfill"
    return hold(folder, f"{pipeline.name}, backfill,", optional=not lake.needs_locks)


def read_state(lake: Lake, pipeline: Pipeline) -> State | None:
    """Read the state of a backfill; None if there is no backfill."""
    file = folder_of(lake, pipeline) / _STATE
    return State(**json.loads(file.read_text(encoding="utf-8"))) if file.exists() else None


def clear(run: Run) -> list[str]:
    """Remove a backfill: its tables, its checkpoints, and its state.

    Returns:
        The tables that were dropped from a catalog, which may keep their files for a while.
    """
    green, dropped = green_lake(run.lake, run.pipeline, "bronze"), list[str]()
    # First, so that a removal that is cut off leaves no backfill to promote.
    (green.root / _STATE).unlink(missing_ok=True)
    if (catalog := run.lake.catalog) is not None:
        for layer in LAYERS:
            # As listed: gold tables among them may have left the pipeline file.
            for name in catalog.tables_in(layer):
                if name.endswith(green.suffix):
                    run.spark.sql(f"DROP TABLE IF EXISTS {catalog.schema(layer)}.{quoted(name)}")
                    dropped.append(f"{layer}.{name}")
    remove_tree(green.root)
    return dropped


def need_state(lake: Lake, pipeline: Pipeline, *stages: Stage) -> State:
    """Read the state of a backfill that must be at one of some stages.

    Raises:
        UsageError: There is no backfill, or it is at another stage; the message names the next
            command.
    """
    state = read_state(lake, pipeline)
    if state is None:
        raise UsageError(
            f"{pipeline.name} has no backfill. Begin one with: {backfill_again(pipeline)}"
        )
    if state.stage not in stages:
        raise UsageError(what_next(pipeline, state))
    return state


def what_next(pipeline: Pipeline, state: State) -> str:
    """Describe the stage of a backfill and the next command."""
    before, command, after = _NEXT[state.stage]
    options = _options_of(state) if state.stage == "building" else ""
    following = runnable(f"tidelake backfill {command}", pipeline.name, options)
    return f"the backfill of {pipeline.name} is {state.stage}. {before}{following}{after}"


def backfill_again(pipeline: Pipeline, state: State | None = None) -> str:
    """Return the command that fills the tables of a backfill again, or all tables from bronze."""
    return runnable("tidelake backfill run", pipeline.name, _options_of(state) if state else "")


@contextmanager
def computed_again(green: Run, hop: Hop, state: State) -> Iterator[None]:
    """Name the backfill's command in a GenerationError, not the repair of the live hop.

    The green hop's checkpoints are removed, so that the command computes its tables again.
    """
    pipeline = green.pipeline
    try:
        yield
    except GenerationError as error:
        checkpoints = green.lake.checkpoints(pipeline.name, hop)
        for generation in [one.name for one in checkpoints.glob("g*")]:
            remove_tree(checkpoints / generation)
        command = backfill_again(pipeline, state)
        if state.stage == "promoting":
            command = runnable("tidelake backfill promote", pipeline.name)
        what = error.what.removeprefix(f"{pipeline.name}, hop {hop}: ")
        raise GenerationError(
            f"{pipeline.name}, backfill, hop {hop}: {what}",
            f"Compute its tables again with: {command}",
        ) from error


def _options_of(state: State) -> str:
    first, last = state.span or (state.since, None)
    return run_options(state.start, state.table, first, last)


def run_options(start: Start, table: str | None, first: str | None, last: str | None) -> str:
    """Return the options to print after ``backfill run``, such as ``--from silver``.

    ``first`` is an arrival, or with silver as the start an event time as ``last`` (ISO 8601).
    """
    if table:
        return f"--table {table}"
    layer = start if start == "silver" else None
    given = (("--from", layer), ("--start", first), ("--end", last))
    return " ".join(f"{option} {value}" for option, value in given if value)


def ended_swap(
    lake: Lake, pipeline: Pipeline, end: Literal["promoted", "rolled back"]
) -> State | None:
    """Return the state of a swap that was interrupted at its end; None if there is none.

    It has reached the stage ``end``, and only the swap file is left: :func:`write_state` removes
    it. A rollback that was given up is ``promoted`` too, but is not the end of a promotion.
    """
    state = read_state(lake, pipeline)
    if state is None or state.stage != end or not lake.swap(pipeline.name).exists():
        return None
    return state if end == "rolled back" or not rolls_back(lake, pipeline.name) else None


def begun_swap(lake: Lake, pipeline: Pipeline) -> State | None:
    """Return the state of a promotion that was interrupted before it began to swap, or None.

    The swap file was written, and the state was not: no table has changed.
    """
    state = read_state(lake, pipeline)
    is_begun = state is not None and state.stage == "built" and lake.swap(pipeline.name).exists()
    return state if is_begun else None


def requeue_position(lake: Lake, pipeline: Pipeline, state: State) -> Position:
    """Return up to where silver had read the requeue before the promotion."""
    silver = lake.silver(pipeline.name)
    return position(last_commit(silver, up_to=state.before.get(silver.name, -1)), "requeue")


def lacks_requeued(lake: Lake, pipeline: Pipeline, state: State) -> bool:
    """Return whether files are gone of the rows that a rollback requeues again.

    They are those in which the rows were appended, although the requeue may have been compacted
    since. False in a catalog, where files cannot be listed.
    """
    requeue = lake.requeue(pipeline.name)
    if lake.catalog is not None or requeue.name not in state.before:
        return False
    end = newest_version(requeue) + 1, -1
    files = files_between(requeue, requeue_position(lake, pipeline, state), end)
    return not all(file.exists() for file in files)


def write_state(lake: Lake, pipeline: Pipeline, state: State) -> None:
    """Write the state atomically.

    During a promotion or rollback the swap file blocks all other writers. If interrupted before the
    file is removed, see :func:`ended_swap`.
    """
    swap = lake.swap(pipeline.name)
    if state.stage in SWAPS:
        write_whole(swap, state.stage)
    write_whole(folder_of(lake, pipeline) / _STATE, json.dumps(asdict(state), indent=1))
    if state.stage not in SWAPS:
        swap.unlink(missing_ok=True)
