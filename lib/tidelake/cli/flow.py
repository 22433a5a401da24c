"""Run hops for the command line: sources looked at first, Spark started last and stopped always."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING

from tidelake.cli.failures import say
from tidelake.cli.options import Place
from tidelake.config import FilesSource, Pipeline, unbuilt_features
from tidelake.delta.tables import HOPS, Hop
from tidelake.errors import NotBuiltError, UsageError

if TYPE_CHECKING:
    from tidelake.runtime.hop import Run
    from tidelake.runtime.triggers import Trigger

# The same request may come twice at once: to the process and to its group.
_IMPATIENCE_SECONDS = 2.0


def run_pipeline(
    place: Place,
    pipeline: Pipeline,
    hops: Sequence[Hop],
    trigger: str,
    *,
    called: str = "",
    first: Sequence[Pipeline] = (),
) -> None:
    """Run hops of a pipeline with progress on stderr.

    Args:
        place: Where.
        pipeline: Which.
        hops: Which of its hops.
        trigger: When batches begin.
        called: What the pipeline was called by; by default its name.
        first: Dimensions to run before it, whole.

    Raises:
        TidelakeError: What stopped it; a mistake of the user's before Spark starts.
    """
    # Spark takes seconds to load and to start: what can fail without it fails first.
    from tidelake.delta.locks import hold_hops  # noqa: PLC0415
    from tidelake.ops.observing import refuse_unready  # noqa: PLC0415
    from tidelake.ops.status import little_waits  # noqa: PLC0415
    from tidelake.runtime.triggers import parse_trigger  # noqa: PLC0415

    when = parse_trigger(trigger)
    for one in (*first, pipeline) if "bronze" in hops else ():
        _check_source(place, one)
    refuse_unbuilt(pipeline)
    refuse_unready(place.environment)
    # Held before Spark starts, so that a second run hears of the first at once.
    brief = when.ends and not first and little_waits(place.lake, pipeline)
    with hold_hops(place.lake, pipeline.name, hops), started(place, pipeline, brief=brief) as run:
        from tidelake.ops.observing import observing  # noqa: PLC0415
        from tidelake.runtime.pipeline import run_hops  # noqa: PLC0415

        _run_whole(run, first, when)
        if first:
            say(f"{pipeline.name}:")
        typed = replace(place.typed, called=called)
        with observing(run, hops, when, typed) as observed:
            run_hops(observed, hops, when, held=True)


def run_dimensions(place: Place, pipeline: Pipeline, trigger: str, *, called: str) -> None:
    """Run the dimensions that a pipeline looks up, each until its source is exhausted.

    Args:
        place: Where.
        pipeline: Which.
        trigger: When batches begin; one that ends.
        called: What the pipeline was called by.

    Raises:
        UsageError: The trigger would let the first of them run for ever.
        TidelakeError: What stopped one; a mistake of the user's before Spark starts.
    """
    from tidelake.runtime.triggers import parse_trigger  # noqa: PLC0415

    dimensions = tuple(pipeline.dimensions.values())
    if not dimensions:
        say(f"{pipeline.name} looks nothing up: it has no dimensions to run.")
        return
    when = parse_trigger(trigger)
    if not when.ends:
        raise UsageError("dimensions run one after the other, each to its end. Leave --trigger out")
    for one in dimensions:
        _check_source(place, one)
    with started(place, pipeline) as run:
        _run_whole(run, dimensions, when)
    say(f"Done. Run the pipeline with: {place.typed('tidelake run', called)}")


def _run_whole(run: Run, dimensions: Sequence[Pipeline], when: Trigger) -> None:
    from tidelake.runtime.pipeline import run_hops  # noqa: PLC0415

    for dimension in dimensions:
        say(f"{dimension.name}:")
        run_hops(replace(run, pipeline=dimension), HOPS, when)


def _check_source(place: Place, pipeline: Pipeline) -> None:
    from tidelake.delta.log import commits  # noqa: PLC0415
    from tidelake.runtime.landing import check_landing, taken_files  # noqa: PLC0415

    if isinstance(pipeline.source, FilesSource):
        refuse_unbuilt(pipeline)
        # Early, before Spark starts: the run itself looks further back than the log.
        taken = taken_files(commits(place.lake.bronze(pipeline.name)))
        check_landing(pipeline.source.path, taken)


def refuse_unbuilt(pipeline: Pipeline) -> None:
    """Stop where a pipeline uses what this version cannot do.

    Raises:
        NotBuiltError: Names all of it.
    """
    missing = unbuilt_features(pipeline)
    if missing:
        raise NotBuiltError(f"{pipeline.file}: {', '.join(missing)}")


@contextlib.contextmanager
def started(place: Place, pipeline: Pipeline, *, brief: bool = False) -> Iterator[Run]:
    """Start Spark for a pipeline, and stop it whatever happens.

    Args:
        place: Where.
        pipeline: Which.
        brief: Whether it will have little to do.

    Raises:
        TidelakeError: Spark does not start, or the pipeline is more than this version can do.
    """
    refuse_unbuilt(pipeline)

    from tidelake.runtime.hop import Run  # noqa: PLC0415
    from tidelake.runtime.progress import Progress  # noqa: PLC0415
    from tidelake.spark.internals import BridgeError  # noqa: PLC0415
    from tidelake.spark.session import build_session, reads_of, starts_spark  # noqa: PLC0415

    asked = threading.Event()
    ours = starts_spark(place.environment)
    if ours:
        say(f"Starting Spark for {pipeline.name} {place.lake.place} …")
    catalog, reads = place.lake.catalog, reads_of(pipeline)
    spark = (
        catalog.session() if catalog else build_session(place.environment, reads=reads, brief=brief)
    )
    try:
        stop_when_asked(asked)
        yield Run(spark, pipeline, place.lake, place.environment, Progress(say), asked)
    except (BridgeError, OSError):
        if not asked.is_set():
            raise
        raise KeyboardInterrupt from None
    finally:
        # Told to stop together with us, the JVM may be gone already.
        with contextlib.suppress(*((BridgeError, OSError) if asked.is_set() else ())):
            # The runtime's own session serves others, and the notebook's next cell.
            if ours:
                spark.stop()


def stop_when_asked(stop: threading.Event) -> None:
    """Turn Ctrl-C and SIGTERM into a request.

    PySpark's own handler calls into the JVM from within a call and breaks the connection. Asked
    again later, the process ends at once, which costs no more than a kill: nothing.
    """
    first: list[float] = []

    def ask(number: int, frame: FrameType | None) -> None:
        if first and time.monotonic() - first[0] > _IMPATIENCE_SECONDS:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        if not first:
            first.append(time.monotonic())
            say("Stopping …")
            # Calls that are cut short now are no news.
            logging.disable(logging.CRITICAL)
            stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, ask)
