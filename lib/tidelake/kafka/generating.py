"""Write the stream of a reference pipeline into a topic."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from tidelake.config.source import Address
from tidelake.generators import Summary, generate
from tidelake.kafka.produce import produce


def generate_into(
    pipeline: str,
    to: Address,
    *,
    events: int,
    seed: int,
    progress: Callable[[str], None] | None = None,
) -> Summary:
    """Write the records that the files would hold, in their order, without the line feeds.

    Unlike files, which are written once, each call adds its records to the topic.

    Args:
        pipeline: A reference pipeline.
        to: The broker and the topic.
        events: Number of records, as for files.
        seed: Chooses one stream among many.
        progress: Called with a line of text now and then.
    """
    with tempfile.TemporaryDirectory(prefix="tidelake-") as folder:
        summary = generate(pipeline, Path(folder), events=events, seed=seed)
        produce(to, _lines(Path(folder)), progress=progress)
    return summary


def _lines(folder: Path) -> Iterator[bytes]:
    for file in sorted(folder.iterdir()):
        with file.open("rb") as lines:
            for line in lines:
                yield line.removesuffix(b"\n")
