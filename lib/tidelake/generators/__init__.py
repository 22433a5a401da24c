"""Write the streams of the reference pipelines as files in a landing folder.

The same call writes the same bytes, so a second call changes nothing, and the oracles of the tests
can recompute what a pipeline should have made of them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tidelake.errors import UsageError
from tidelake.generators.clickstream import generate_clickstream
from tidelake.generators.flights import generate_flights
from tidelake.generators.landing import Summary

__all__ = ["Summary", "generate", "generate_clickstream", "generate_flights"]


def generate(
    pipeline_name: str,
    to: Path,
    *,
    events: int,
    seed: int,
    progress: Callable[[str], None] | None = None,
) -> Summary:
    """Write the stream of a reference pipeline into a folder.

    Args:
        pipeline_name: ``clickstream`` or ``flights``.
        to: The folder, made if it is missing.
        events: Number of records. For flights at most this many, and 0 for all of January.
        seed: Chooses one clickstream among many. Flights are real data and take no notice of it.
        progress: Called with a line of text now and then.

    Returns:
        What the folder now holds of this stream.

    Raises:
        UsageError: No generator of that name, an impossible number, or a file of the stream is
            already there with other bytes.
        MachineError: The package that holds the flights is not installed.
    """
    if pipeline_name == "clickstream":
        return generate_clickstream(to, events=events, seed=seed, progress=progress)
    if pipeline_name == "flights":
        return generate_flights(to, months=(1,), events=events, progress=progress)
    raise UsageError(
        f"no generator for the pipeline {pipeline_name!r}; there are two: clickstream and flights"
    )
