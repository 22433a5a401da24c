"""Write the streams of the reference pipelines as files in a landing folder.

The same call writes the same bytes, so a second call changes nothing, and the oracles of the tests
can recompute what a pipeline should have made of them.
"""

from __future__ import annotations

from collections.abc import Callable

from tidelake.errors import UsageError
from tidelake.folders import Folder
from tidelake.generators.clickstream import generate_clickstream
from tidelake.generators.flights import generate_flights
from tidelake.generators.output import Generated
from tidelake.generators.payments import generate_payments
from tidelake.generators.reference import DIMENSIONS, generate_dimension

__all__ = ["GENERATED", "Generated", "generate", "generate_flights"]

_SEEDED = {"clickstream": generate_clickstream, "payments": generate_payments}
GENERATED = ("clickstream", "flights", *DIMENSIONS, "payments")


def generate(
    pipeline_name: str,
    to: Folder,
    *,
    events: int,
    seed: int,
    progress: Callable[[str], None] | None = None,
) -> Generated:
    """Write the stream of a reference pipeline into a folder.

    Args:
        pipeline_name: One of :data:`GENERATED`.
        to: The folder, made if it is missing.
        events: Number of records. For flights and dimensions at most this many; 0 for all, of
            flights for all of January.
        seed: Chooses one clickstream or stream of payments among many. The others are the same
            for every seed.
        progress: Called with a line of text now and then.

    Raises:
        UsageError: No generator of that name, an impossible number, or a file of the stream is
            already there with other bytes.
        MachineError: The package that holds the flights is not installed.
    """
    if pipeline_name in _SEEDED:
        return _SEEDED[pipeline_name](to, events=events, seed=seed, progress=progress)
    if pipeline_name == "flights":
        return generate_flights(to, months=(1,), events=events, progress=progress)
    if pipeline_name in DIMENSIONS:
        return generate_dimension(pipeline_name, to, changes=events, progress=progress)
    raise UsageError(
        f"no generator for the pipeline {pipeline_name!r}; there are: {', '.join(GENERATED)}"
    )
