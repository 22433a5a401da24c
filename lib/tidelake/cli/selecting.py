"""Which pipelines one ``run`` takes, in which order, and what a failure stops."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from graphlib import CycleError, TopologicalSorter
from typing import Literal

from tidelake.cli.exits import message_of, say
from tidelake.config import Pipeline
from tidelake.config.places import known_pipelines, pipeline_names
from tidelake.errors import UsageError


@dataclass(frozen=True)
class Result:
    """What became of one pipeline of a run; ``exit_code`` is that of a run of it alone."""

    pipeline: str
    outcome: Literal["done", "failed", "skipped"]
    seconds: float = 0.0
    reason: str = ""
    exit_code: int = 0


def chosen_names(names: Sequence[str], select: str | None, all_: bool) -> list[str]:
    """Return the pipelines that a command names, each once.

    Args:
        names: Names or paths.
        select: Names and patterns (``*``, ``?``, ``[…]``), separated by commas.
        all_: Whether to take all pipelines of the conf folder.

    Raises:
        UsageError: More than one of these is given, or a pattern matches no pipeline.
    """
    if sum((bool(names), select is not None, all_)) > 1:
        raise UsageError("give either names, --select or --all")
    if names:
        return list(dict.fromkeys(names))
    known = pipeline_names()
    patterns = ["*"] if select is None else [part.strip() for part in select.split(",")]
    chosen: dict[str, None] = {}
    for pattern in patterns:
        found = [name for name in known if fnmatchcase(name, pattern)]
        if not found:
            raise UsageError(f"'{pattern}' matches no pipeline ({known_pipelines()})")
        chosen.update(dict.fromkeys(found))
    return list(chosen)


def refuse_namesake(known: dict[str, Pipeline], pipeline: Pipeline) -> None:
    """Add a pipeline to the known ones by name; raise a UsageError if another file has its name."""
    other = known.setdefault(pipeline.name, pipeline)
    if other.file != pipeline.file:
        raise UsageError(f"{other.file} and {pipeline.file} both name {pipeline.name}")


def in_order(selected: Iterable[Pipeline]) -> list[Pipeline]:
    """Order pipelines so that each comes after its inputs, and dimensions as early as possible.

    The dimensions of the selected pipelines are added: silver records a dimension's version with
    the batch, so a row that was looked up too early stays without its columns. A pipeline on the
    right side of a join is not added, because a late right side updates the join.

    Raises:
        UsageError: Joins form a circle, or two files define one name.
    """
    by_name: dict[str, Pipeline] = {}
    for pipeline in selected:
        for one in (*pipeline.dimensions.values(), pipeline):
            refuse_namesake(by_name, one)
    names = sorted(by_name, key=lambda name: (by_name[name].kind != "dimension", name))
    graph = {name: sorted(_inputs(by_name[name]) & by_name.keys()) for name in names}
    try:
        return [by_name[name] for name in TopologicalSorter(graph).static_order()]
    except CycleError as error:
        circle = " -> ".join(error.args[1])
        raise UsageError(
            f"these pipelines join each other in a circle: {circle}. Run them one by one"
        ) from error


def run_each(
    pipelines: Iterable[Pipeline], run: Callable[[Pipeline], None], stop: threading.Event
) -> list[Result]:
    """Run pipelines in sequence; a failure skips those that read the failed one, and no other.

    Errors that no message explains, and interrupts, end the sequence.
    """
    results: dict[str, Result] = {}
    for pipeline in pipelines:
        name, began = pipeline.name, time.monotonic()
        inputs = [results[one] for one in sorted(_inputs(pipeline)) if one in results]
        lost = next((one for one in inputs if one.outcome != "done"), None)
        if lost is not None:
            reason = f"{lost.pipeline} {'failed' if lost.outcome == 'failed' else 'was skipped'}"
            results[name] = Result(name, "skipped", reason=reason)
            say(f"{name}: skipped, because {reason}")
            continue
        try:
            run(pipeline)
            results[name] = Result(name, "done", round(time.monotonic() - began, 1))
        except Exception as error:
            if stop.is_set():
                raise
            message, code = message_of(error)
            say(message)
            seconds, reason = round(time.monotonic() - began, 1), message.splitlines()[0]
            results[name] = Result(name, "failed", seconds, reason, code)
    return list(results.values())


def _inputs(pipeline: Pipeline) -> set[str]:
    rights = {join.right.pipeline for join in pipeline.joins}
    return {*pipeline.dimensions, *rights} - {pipeline.name}
