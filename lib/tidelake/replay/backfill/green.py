"""Where the tables of a backfill lie, and what is written down about it.

A backfill's tables are green, those that everybody reads are live. Green tables and their
checkpoints lie under a root of their own; whatever a backfill does not fill, bronze above all, is
read where it is. So a backfill goes on by the ordinary hops.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Literal

from tidelake.config import Pipeline
from tidelake.delta.tables import BESIDE, Lake, Table
from tidelake.errors import UsageError
from tidelake.folders import Folder, remove_tree, write_whole
from tidelake.runtime.hop import Run

Start = Literal["bronze", "silver"]
Stage = Literal["building", "built", "promoting", "promoted", "rolling back", "rolled back"]
_STATE = "backfill.json"


@dataclass(frozen=True)
class GreenLake(Lake):
    """The tables of a backfill, and the live ones that it reads.

    Attributes:
        live: Where the others are.
        own: Logical names of the tables that the backfill fills.
    """

    live: Lake
    own: frozenset[str]

    @property
    def suffix(self) -> str:
        """In a catalog green tables stand beside the live ones."""
        return f"{BESIDE}{self.root.name}"

    def table(self, name: str) -> Table:
        """Resolve a logical name."""
        mine = super().table(name)
        return mine if name in self.own or name.startswith("ops.") else self.live.table(name)

    def erasure(self, pipeline: str) -> Folder:
        """Give the file of the live tables' erasure: green ones are filled from those."""
        return self.live.erasure(pipeline)


@dataclass(frozen=True)
class State:
    """What is known of a backfill between commands.

    Attributes:
        start: The layer that it reads.
        definition: A hash of the definition that it is filled by.
        stage: How far it has come.
        before: Versions of the live tables before they were swapped, by logical name.
        gold_followed: Whether live gold held all that live silver did then.
        span: The first instant of its range and the first after it (ISO 8601); None for all.
        since: When what it decides anew began to arrive (ISO 8601); None for all.
        requeue: Version of the live requeue when a rollback began; None before that.
    """

    start: Start
    definition: str
    stage: Stage = "building"
    before: Mapping[str, int] = field(default_factory=dict)
    gold_followed: bool = True
    span: tuple[str, str] | None = None
    since: str | None = None
    requeue: int | None = None


def folder_of(lake: Lake, pipeline: Pipeline) -> Folder:
    """Give the root of a pipeline's green tables."""
    return lake.root / "backfill" / lake.bronze(pipeline.name).bare


def green_lake(lake: Lake, pipeline: Pipeline, start: Start) -> GreenLake:
    """Give the tables of a backfill that starts from a layer."""
    name = pipeline.name
    own = set(pipeline.gold_names)
    if start == "bronze":
        tables = (lake.silver(name), lake.quarantine(name), lake.late(name), lake.requeue(name))
        own |= {table.name for table in tables}
    return GreenLake(
        folder_of(lake, pipeline),
        lake,
        frozenset(own),
        catalog=lake.catalog,
        needs_locks=lake.needs_locks,
    )


def clear(run: Run) -> None:
    """Remove what there is of a backfill: its tables, its checkpoints, and what is known of it."""
    lake, pipeline = run.lake, run.pipeline
    green = green_lake(lake, pipeline, "bronze")
    if lake.catalog is not None:
        for name in (*sorted(green.own), green.books().name, green.epochs().name):
            run.spark.sql(f"DROP TABLE IF EXISTS {green.table(name).sql}")
    remove_tree(green.root)


def green_run(run: Run, start: Start) -> Run:
    """Let the hops of a run fill green tables."""
    return replace(run, lake=green_lake(run.lake, run.pipeline, start), replays=True)


def read_state(lake: Lake, pipeline: Pipeline) -> State | None:
    """Read what is known of a backfill; None where none was begun."""
    file = folder_of(lake, pipeline) / _STATE
    return State(**json.loads(file.read_text(encoding="utf-8"))) if file.exists() else None


def need_state(lake: Lake, pipeline: Pipeline, *stages: Stage) -> State:
    """Read the state of a backfill that must have come so far.

    Raises:
        UsageError: There is none, or it is at another stage; the message says which command is
            next.
    """
    state = read_state(lake, pipeline)
    if state is None:
        raise UsageError(
            f"{pipeline.name} has no backfill. Begin one with: "
            f"tidelake backfill run {pipeline.name}"
        )
    if state.stage not in stages:
        raise UsageError(what_next(pipeline, state))
    return state


def what_next(pipeline: Pipeline, state: State) -> str:
    """Say at which stage a backfill is, and which command is next."""
    return f"the backfill of {pipeline.name} is {state.stage}. " + _NEXT[state.stage].format(
        pipeline.name
    )


_NEXT: dict[Stage, str] = {
    "building": "Go on with: tidelake backfill run {0}",
    "built": "Compare and swap it with: tidelake backfill compare {0}, then promote",
    "promoting": "It was interrupted. Go on with: tidelake backfill promote {0}, or rollback",
    "promoted": "Take it back with: tidelake backfill rollback {0}; begin another with: run",
    "rolling back": "It was interrupted. Go on with: tidelake backfill rollback {0}",
    "rolled back": "Begin another with: tidelake backfill run {0}",
}


def write_state(lake: Lake, pipeline: Pipeline, state: State) -> None:
    """Write the state, whole or not at all; while it is that of a swap, nobody else may write."""
    folder, swap = folder_of(lake, pipeline), lake.swap(pipeline.name)
    if state.stage in ("promoting", "rolling back"):
        write_whole(swap, state.stage)
    write_whole(folder / _STATE, json.dumps(asdict(state), indent=1))
    if state.stage not in ("promoting", "rolling back"):
        swap.unlink(missing_ok=True)
