"""Run hops for the command line: sources looked at first, Spark started last and stopped always."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from tidelake.cli.failures import say
from tidelake.cli.options import Place
from tidelake.config import FilesSource, Pipeline, unbuilt_features
from tidelake.errors import NotBuiltError
from tidelake.tables import Hop


def run_pipeline(place: Place, pipeline: Pipeline, hops: Sequence[Hop], trigger: str) -> None:
    """Run hops of a pipeline with progress on stderr.

    Raises:
        TidelakeError: What stopped it; a mistake of the user's before Spark starts.
    """
    # Spark takes seconds to load and to start: what can fail without it fails first.
    from tidelake.runtime.landing import list_files, refuse_changed, taken_files  # noqa: PLC0415
    from tidelake.runtime.triggers import parse_trigger  # noqa: PLC0415

    when = parse_trigger(trigger)
    missing = unbuilt_features(pipeline)
    if missing:
        raise NotBuiltError(f"{pipeline.file}: {', '.join(missing)}")
    if "bronze" in hops and isinstance(pipeline.source, FilesSource):
        offered = list_files(pipeline.source.path)
        refuse_changed(offered, taken_files(place.lake.bronze(pipeline.name)))

    from tidelake.runtime.hop import Run  # noqa: PLC0415
    from tidelake.runtime.pipeline import run_hops  # noqa: PLC0415
    from tidelake.runtime.progress import Progress  # noqa: PLC0415
    from tidelake.session import build_session  # noqa: PLC0415

    say(f"Starting Spark for {pipeline.name} under {place.lake.root} …")
    spark = build_session(place.environment)
    try:
        run = Run(spark, pipeline, place.lake, place.environment, Progress(say))
        run_hops(run, hops, when)
    finally:
        # An interrupt may have cut the JVM off already.
        with contextlib.suppress(Exception):
            spark.stop()
