"""Run a pipeline's hops: one after the other until the source is exhausted, or all at once."""

from __future__ import annotations

import time
from collections.abc import Sequence

from pyspark.sql.streaming.query import StreamingQuery

from tidelake.errors import RefusedError
from tidelake.runtime.books import copy_books
from tidelake.runtime.bronze_hop import BronzeHop
from tidelake.runtime.epochs import close_epoch
from tidelake.runtime.gold_hop import GoldHop
from tidelake.runtime.hop import HopQuery, InputGrewError, Run
from tidelake.runtime.lock import hold_hops
from tidelake.runtime.schemas import check_definition
from tidelake.runtime.silver_hop import SilverHop
from tidelake.runtime.triggers import AVAILABLE_NOW, Trigger, parse_trigger
from tidelake.tables import HOPS, Hop

# A run that goes on copies its books now and then: the log keeps commits for days, not minutes.
_COPY_SECONDS = 600
# Analysts wait for an epoch, not for a copy.
_EPOCH_SECONDS = 5
_HOPS: dict[Hop, type[HopQuery]] = {"bronze": BronzeHop, "silver": SilverHop, "gold": GoldHop}


def run_hops(run: Run, hops: Sequence[Hop], trigger: Trigger) -> None:
    """Run hops in the order of the flow; copy their books and close an epoch when they end.

    Raises:
        ConfigError: Spark does not understand an expression; nothing was written.
        LockedError: Another process runs one of them.
        TidelakeError: Whatever stopped a batch.
    """
    check_definition(run)
    wanted = [hop for hop in HOPS if hop in hops]
    with hold_hops(run.lake, run.pipeline.name, wanted):
        if trigger.ends:
            run_held(run, wanted)
        else:
            _run_together(run, wanted, trigger)
            _close(run, wanted)


def run_held(run: Run, hops: Sequence[Hop]) -> None:
    """Run hops whose locks the caller holds to the end of what they follow.

    Args:
        run: What the command works with.
        hops: In the order of the flow.

    Raises:
        TidelakeError: Whatever stopped a batch.
    """
    for hop in hops:
        _run_to_the_end(run, hop, parse_trigger(AVAILABLE_NOW))
    _close(run, hops)


def _close(run: Run, hops: Sequence[Hop]) -> None:
    copy_books(run, hops)
    close_epoch(run)


def refusals(run: Run) -> dict[Hop, str]:
    """Say why hops would not go on after what their tables hold; nothing is written."""
    found: dict[Hop, str] = {}
    for hop in HOPS:
        try:
            _HOPS[hop](run, creates=False)
        except RefusedError as error:
            found[hop] = str(error)
    return found


def _run_to_the_end(run: Run, hop: Hop, trigger: Trigger) -> None:
    while True:
        query = _HOPS[hop](run)
        try:
            query.finish(query.start(trigger.options))
        except InputGrewError:
            continue
        return


def _run_together(run: Run, hops: Sequence[Hop], trigger: Trigger) -> None:
    """Keep all hops running until one fails or the user interrupts."""
    started: dict[Hop, tuple[HopQuery, StreamingQuery]] = {}
    copied_at = closed_at = time.monotonic()
    try:
        for hop in hops:
            started[hop] = _start(run, hop, trigger)
        while True:
            for hop, (query, streaming) in started.items():
                try:
                    query.check(streaming)
                except InputGrewError:
                    started[hop] = _start(run, hop, trigger)
            if time.monotonic() - copied_at > _COPY_SECONDS:
                copy_books(run, hops)
                copied_at = time.monotonic()
            if time.monotonic() - closed_at > _EPOCH_SECONDS:
                close_epoch(run)
                closed_at = time.monotonic()
            time.sleep(0.1)
    finally:
        for _, streaming in started.values():
            streaming.stop()


def _start(run: Run, hop: Hop, trigger: Trigger) -> tuple[HopQuery, StreamingQuery]:
    query = _HOPS[hop](run)
    return query, query.start(trigger.options)
