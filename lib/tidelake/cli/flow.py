"""The commands ``run`` and ``fast``: which pipelines in which order, and Spark's start and stop."""

from __future__ import annotations

import contextlib
import gc
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from graphlib import CycleError, TopologicalSorter
from types import FrameType
from typing import TYPE_CHECKING, Literal

import click

from tidelake.cli.exits import message_of, say
from tidelake.cli.options import Place, as_json, located, source_option
from tidelake.cli.render import print_table
from tidelake.config import (
    DeltaSource,
    Detection,
    Environment,
    FilesSource,
    KafkaSource,
    Pipeline,
)
from tidelake.config.environment import refuse_external, refuse_service_credential
from tidelake.config.gold_definitions import FastLane
from tidelake.config.locations import known_pipelines, only_pipeline, pipeline_names
from tidelake.config.table_settings import refuse_unset
from tidelake.delta.locks import hold, hold_hops, unfinished
from tidelake.delta.log import commits
from tidelake.delta.tables import HOPS, Hop, Lake, reads
from tidelake.errors import NotBuiltError, SourceError, UsageError
from tidelake.runtime.landed_files import check_landing, taken_files
from tidelake.runtime.triggers import AVAILABLE_NOW, Trigger, parse_trigger
from tidelake.without_pandas import leave_out_of_workers, show_pandas

if TYPE_CHECKING:
    from tidelake.runtime.hop import Run
    from tidelake.spark.java import SessionUse


@dataclass(frozen=True)
class Result:
    """The outcome of one pipeline of a run; ``exit_code`` is that of a run of it alone."""

    pipeline: str
    outcome: Literal["done", "failed", "skipped"]
    seconds: float = 0.0
    reason: str = ""
    exit_code: int = 0


def chosen_names(names: Sequence[str], select: str | None, all_: bool) -> list[str]:
    """Return the pipelines that a command names, each once; the only one there is if it names none.

    Args:
        names: Names or paths.
        select: Names and patterns (``*``, ``?``, ``[…]``), separated by commas.
        all_: Whether to take all pipelines of the conf folder.

    Raises:
        UsageError: More than one of these is given, a pattern matches no pipeline, or none is named
            and there are several.
    """
    if sum((bool(names), select is not None, all_)) > 1:
        raise UsageError("give either names, --select or --all")
    if names:
        return list(dict.fromkeys(names))
    if select is None and not all_:
        return [only_pipeline()]
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
        raise UsageError(
            f"{other.file} and {pipeline.file} define pipeline {pipeline.name}; rename one"
        )


def in_order(selected: Iterable[Pipeline], lake: Lake) -> list[Pipeline]:
    """Order pipelines so that each comes after its inputs, and dimensions as early as possible.

    The dimensions of the selected pipelines are added: silver records a dimension's version with
    the batch, so a row that was looked up too early stays without its columns. A pipeline on the
    right side of a join is not added, because a late right side updates the join.

    Raises:
        UsageError: Inputs form a cycle, or two files define one name.
    """
    by_name: dict[str, Pipeline] = {}
    for pipeline in selected:
        for one in (*pipeline.dimensions.values(), pipeline):
            refuse_namesake(by_name, one)
    names = sorted(by_name, key=lambda name: (by_name[name].kind != "dimension", name))
    known = sorted(names)
    # A dimension may be made of the events that look it up: it is a run behind them then.
    for place in (lake, None):
        graph = {a: [b for b in known if reads(by_name[a], by_name[b], place)] for a in names}
        try:
            return [by_name[name] for name in TopologicalSorter(graph).static_order()]
        except CycleError as error:
            cycle = " -> ".join(error.args[1])
    raise UsageError(
        f"the inputs of these pipelines form a cycle: {cycle}; run each with tidelake run NAME"
    )


def run_each(
    pipelines: Sequence[Pipeline],
    run: Callable[[Pipeline], None],
    stop: threading.Event,
    lake: Lake,
) -> list[Result]:
    """Run pipelines in sequence; a failure skips those that read the failed one, and no other.

    Errors that no message explains, and interrupts, end the sequence.
    """
    results: dict[str, Result] = {}
    for at, pipeline in enumerate(pipelines):
        name, began = pipeline.name, time.monotonic()
        inputs = [results[one.name] for one in pipelines[:at] if reads(pipeline, one, lake)]
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


# One Ctrl-C may arrive twice, for the process and for its group: the second is ignored so long.
_IMPATIENCE_SECONDS = 2.0
# In real-time mode each topic partition occupies a task slot for the whole query.
_SLOTS = 16


@click.command()
@click.argument("pipelines", metavar="[PIPELINE]...", nargs=-1)
@click.option("--select", metavar="PATTERN", help="Pipelines by name: 'orders_*,payments'.")
@click.option("--all", "all_", is_flag=True, help="All pipelines of the conf folder.")
@source_option(metavar="PATH|s3://…|kafka://HOST:PORT/TOPIC")
@click.option(
    "--hop",
    type=click.Choice([*HOPS, "all", "dimensions"]),
    default="all",
    show_default=True,
    help="Hop to run; dimensions: run the pipeline's dimensions.",
)
@click.option(
    "--trigger",
    show_default="the environment's, else available-now",
    metavar="WHEN",
    help="available-now, continuous or interval ('10 seconds').",
)
@click.option("--dry-run", is_flag=True, help="Show what waits to be read; run nothing.")
@as_json
@located
def run(
    pipelines: tuple[str, ...],
    select: str | None,
    all_: bool,
    hop: str,
    trigger: str | None,
    dry_run: bool,
    where: Place,
) -> int:
    """Run pipelines' hops; by default all, to the source's end."""
    is_selection = select is not None or all_ or len(pipelines) > 1
    of_dimensions = hop == "dimensions"
    names = chosen_names(pipelines, select, all_)
    if is_selection and (where.source is not None or of_dimensions):
        raise UsageError("--source and --hop dimensions take one pipeline, not several")
    if of_dimensions and where.source is not None:
        raise UsageError(
            "--source replaces the pipeline's source; each dimension has its own. Leave it out"
        )
    chosen = [where.load(name) for name in names]
    if is_selection:
        chosen = in_order(chosen, where.lake)
    elif of_dimensions:
        chosen = [*chosen[0].dimensions.values()]
        if not chosen:
            say(f"{names[0]} has no dimensions: nothing to run.")
    else:
        where = replace(where, typed=replace(where.typed, called=names[0]))
    if where.called:
        when = parse_trigger(trigger or getattr(where.environment.triggers, hop))
    elif not (when := parse_trigger(trigger or AVAILABLE_NOW)).ends:
        raise UsageError(
            "dimensions run in sequence, each to the end of its source. Leave --trigger out"
            if of_dimensions
            else "several pipelines run in sequence, each to its end: omit --trigger"
        )
    hops = HOPS if of_dimensions else tuple(one for one in HOPS if hop in (one, "all"))
    if dry_run:
        _show_waiting(where, chosen, hops)
        return 0
    results = run_pipelines(where, chosen, hops, when) if chosen else []
    if not where.printed({"pipelines": results}) and is_selection:
        rows = [[one.pipeline, one.outcome, one.seconds, one.reason] for one in results]
        print_table(["pipeline", "outcome", "seconds", "reason"], rows)
    code = exit_code_of(results)
    if chosen and not (code or is_selection):
        then, command = "See the ledger", "tidelake ledger"
        if of_dimensions:
            then, command = "Run the pipeline", "tidelake run"
        say(f"Done. {then} with: {where.typed(command, names[0])}")
    return code


def _show_waiting(place: Place, pipelines: Sequence[Pipeline], hops: Sequence[Hop]) -> None:
    """Print what a run would read, after the checks that need no Spark."""
    from tidelake.ops.status import tables_to_fill, waiting_input  # noqa: PLC0415

    refuse_unready(place.environment)
    found: list[dict[str, str | int | None]] = []
    to_fill: list[str] = []
    begun: list[str] = []
    for pipeline in pipelines:
        if "bronze" in hops:
            _check_source(place, pipeline)
        begun += unfinished(place.lake, pipeline.name).values()
        for one, waiting in waiting_input(place.lake, pipeline).items():
            if one in hops:
                found.append({"pipeline": pipeline.name, "hop": one, "waiting": waiting})
        to_fill += tables_to_fill(place.lake, pipeline) if "gold" in hops else ()
    if not place.printed({"waiting": found, "to_fill": to_fill, "unfinished": begun}):
        rows = [["unknown" if value is None else value for value in one.values()] for one in found]
        print_table(["pipeline", "hop", "waiting"], rows, title="Waiting input")
        for table in to_fill:
            say(f"{table} is not filled yet: it is filled from silver first.")
        for what in begun:
            say(f"{what}. Until then a run is refused.")
        say(
            "Files or records for bronze, else rows; what a hop adds, the next one reads in the "
            "same run. Nothing was run."
        )


def run_pipelines(
    place: Place, pipelines: Sequence[Pipeline], hops: Sequence[Hop], when: Trigger
) -> list[Result]:
    """Run pipelines in one session, in order.

    Of a single one, the source is checked and the hops are locked before Spark, which takes seconds
    to start, so that it is refused at once.
    """
    from tidelake.ops.status import little_waits  # noqa: PLC0415

    first, is_alone = pipelines[0], len(pipelines) == 1
    if is_alone and "bronze" in hops:
        _check_source(place, first)
    refuse_unready(place.environment)
    for pipeline in pipelines if "gold" in hops and place.environment.publish else ():
        refuse_unset(pipeline.published, place.environment)
    brief = when.ends and all(little_waits(place.lake, pipeline) for pipeline in pipelines)
    use: SessionUse = "brief" if brief else "bulk" if when.ends else "lasting"
    locks = hold_hops(place.lake, first.name, hops) if is_alone else contextlib.nullcontext()
    with locks, started(place, use, pipelines) as run:
        from tidelake.ops.observers import observing  # noqa: PLC0415
        from tidelake.runtime.runner import run_hops  # noqa: PLC0415

        def run_one(pipeline: Pipeline) -> None:
            if not is_alone:
                say(f"{pipeline.name}:")
            if not is_alone and "bronze" in hops:
                _check_source(place, pipeline)
            with observing(replace(run, pipeline=pipeline), when, place.typed) as observed:
                cold = is_alone and brief
                run_hops(observed, hops, when, held=is_alone, cold=cold, publishes=True)

        return run_each(pipelines, run_one, run.stop, place.lake)


def refuse_unready(environment: Environment) -> None:
    """Check that the environment's metrics, webhook and lineage can be used.

    Loads only what the environment uses: Spark starts after it.

    Raises:
        MachineError: A client is not installed.
        UsageError: A variable that is referred to is not set.
    """
    if environment.metrics.prometheus:
        from tidelake.ops.metrics import library  # noqa: PLC0415

        library()
    if environment.alerts.webhook:
        from tidelake.ops.alert_delivery import sender_of  # noqa: PLC0415

        sender_of(environment)
    if environment.lineage:
        from tidelake.ops.lineage import client_of  # noqa: PLC0415

        client_of(environment.lineage)


def exit_code_of(results: Iterable[Result]) -> int:
    """Return the exit code of the first failure; 0 without one."""
    return next((one.exit_code for one in results if one.outcome == "failed"), 0)


def _check_source(place: Place, pipeline: Pipeline) -> None:
    source = pipeline.source
    named = source.table if isinstance(source, DeltaSource) else None
    if named is not None and place.environment.catalog is None:
        raise SourceError(
            f"{pipeline.file}: source.table is {named}, a name in a catalog, and environment "
            f"{place.environment.name} has none. Choose one that has with --env NAME, or a folder "
            "with --source"
        )
    if isinstance(source, KafkaSource):
        refuse_service_credential("source.options", source.options, place.environment)
    refuse_external(source, place.environment)
    if isinstance(source, FilesSource):
        # Fail before Spark starts; the run itself also checks files older than the log.
        taken = taken_files(commits(place.lake.bronze(pipeline.name)))
        check_landing(source.paths, taken, source.format, is_cleaned=source.is_cleaned)


@contextlib.contextmanager
def started(
    place: Place, use: SessionUse = "bulk", pipelines: Sequence[Pipeline] = ()
) -> Iterator[Run]:
    """Start Spark and always stop it.

    It is for ``pipelines``, by default the place's; the run is of the first.
    """
    pipelines = pipelines or [place.pipeline]

    from tidelake.spark.internals import BridgeError  # noqa: PLC0415
    from tidelake.spark.session import build_session, reads_of, starts_spark  # noqa: PLC0415

    stop = threading.Event()
    owns_session = starts_spark(place.environment)
    # Not a daemon: a process that ends while it loads libraries may crash.
    loading = threading.Thread(target=_load_ahead, name="tidelake-loading")
    if owns_session:
        loading.start()
        leave_out_of_workers(of_users=any(pipeline.transform for pipeline in pipelines))
        say(f"Starting Spark for {', '.join(one.name for one in pipelines)} {place.lake.place} …")
    catalog = place.lake.catalog
    reads = [path for pipeline in pipelines for path in reads_of(pipeline)]
    spark = catalog.session() if catalog else build_session(place.environment, reads=reads, use=use)
    try:
        from tidelake.runtime.hop import Run  # noqa: PLC0415
        from tidelake.runtime.progress import Progress  # noqa: PLC0415

        if owns_session:
            loading.join()
        stop_on_signal(stop)
        # A hop collects garbage after each batch, and would look at all that is loaded by now.
        gc.freeze()
        yield Run(spark, pipelines[0], place.lake, place.environment, Progress(say), stop)
    except (BridgeError, OSError):
        if not stop.is_set():
            raise
        raise KeyboardInterrupt from None
    finally:
        # The signal may have stopped the JVM already.
        with contextlib.suppress(*((BridgeError, OSError) if stop.is_set() else ())):
            # A managed runtime's session is shared, so it must not be stopped.
            if owns_session:
                spark.stop()


def _load_ahead() -> None:
    """Load what a run needs while the JVM starts, for which Python only waits."""
    show_pandas()
    # Whatever cannot be loaded fails where it is needed.
    with contextlib.suppress(Exception):
        # PySpark imports pandas with its first call of the JVM.
        import pandas  # noqa: F401, PLC0415  the slowest

        import tidelake.ops.observers  # noqa: PLC0415
        import tidelake.runtime.runner  # noqa: F401, PLC0415


def stop_on_signal(stop: threading.Event) -> None:
    """Set an event on Ctrl-C or SIGTERM; a second signal ends the process at once.

    PySpark's own handler would call the JVM during another call, which breaks the connection.
    """
    first_at: list[float] = []

    def handle(number: int, frame: FrameType | None) -> None:
        if first_at and time.monotonic() - first_at[0] > _IMPATIENCE_SECONDS:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        if not first_at:
            first_at.append(time.monotonic())
            say("Stopping …")
            # Errors of interrupted calls are expected.
            logging.disable(logging.CRITICAL)
            stop.set()

    # In another thread, such as of a server that calls a command, Python allows no handler.
    is_main = threading.current_thread() is threading.main_thread()
    for number in (signal.SIGINT, signal.SIGTERM) if is_main else ():
        signal.signal(number, handle)


@click.group()
def fast() -> None:
    """Send alerts within milliseconds and reconcile them later."""


@fast.command("run")
@click.argument("pipeline")
@source_option(metavar="PATH|kafka://HOST:PORT/TOPIC")
@located
def fast_run(where: Place) -> None:
    """Send alerts on the newest records until stopped."""
    detection, lane = _lane_of(where)
    _check_source(where, where.pipeline)
    environment = where.environment
    if environment.master == "local[*]":
        environment = environment.model_copy(update={"master": f"local[{_SLOTS}]"})
    writer = f"{where.pipeline.name}, fast lane of {detection.name},"
    lane_folder, optional = where.lake.fast(detection.name), not where.lake.needs_locks
    try:
        with (
            hold(lane_folder, writer, optional=optional),
            started(replace(where, environment=environment), "lasting") as context,
        ):
            from tidelake.runtime.fast_lane import Lane  # noqa: PLC0415

            Lane(context, detection, lane).go()
    except KeyboardInterrupt:
        if isinstance(where.pipeline.source, KafkaSource):
            then = "The next start begins with the newest records of the topic."
            raise KeyboardInterrupt(then) from None
        raise


@fast.command()
@click.argument("pipeline")
@as_json
@located
def reconcile(where: Place) -> None:
    """Confirm or retract fast alerts, and list missed ones."""
    detection, lane = _lane_of(where)
    with started(where) as context:
        from tidelake.runtime.fast_lane import VERDICTS  # noqa: PLC0415
        from tidelake.runtime.fast_lane import reconcile as judge  # noqa: PLC0415

        found = judge(context, detection, lane)
    if where.printed({"detection": detection.name, "table": found.table, "rules": found.counts}):
        return
    rows = [[rule, *counts.values()] for rule, counts in found.counts.items()]
    print_table(["rule", *VERDICTS], rows, title=f"Fast alerts of {detection.name}")
    query = f"SELECT * FROM {found.table} WHERE verdict = 'missed'"
    say("See missed alerts with: " + where.typed(f'tidelake sql "{query}"'))


def _lane_of(where: Place) -> tuple[Detection, FastLane]:
    if where.lake.catalog is not None:
        # The fast lane copies tables as folders, which a catalog does not have.
        raise NotBuiltError("The fast lane on a catalog", "Give --root DIR to run it on paths.")
    return fast_lane(where.pipeline)


def fast_lane(pipeline: Pipeline) -> tuple[Detection, FastLane]:
    """Return the detection that has a fast lane; raise a UsageError unless exactly one has."""
    found = [(detection, detection.fast) for detection in pipeline.detections if detection.fast]
    if len(found) != 1:
        raise UsageError(
            f"{pipeline.file}: {len(found)} detections have a fast lane; exactly one must: write "
            "fast: {topic: …} under it"
        )
    return found[0]
