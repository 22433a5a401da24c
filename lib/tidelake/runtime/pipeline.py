"""Run a pipeline's hops: one after the other until the source is exhausted, or all at once."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack

from tidelake.runtime.bronze_hop import BronzeHop
from tidelake.runtime.gold_hop import GoldHop
from tidelake.runtime.hop import HopQuery, Run
from tidelake.runtime.lock import hold
from tidelake.runtime.schemas import check_definition
from tidelake.runtime.silver_hop import SilverHop
from tidelake.runtime.triggers import Trigger
from tidelake.tables import HOPS, Hop

_HOPS: dict[Hop, type[HopQuery]] = {"bronze": BronzeHop, "silver": SilverHop, "gold": GoldHop}


def run_hops(run: Run, hops: Sequence[Hop], trigger: Trigger) -> None:
    """Run hops in the order of the flow.

    Raises:
        ConfigError: Spark does not understand an expression; nothing was written.
        LockedError: Another process runs one of them.
        TidelakeError: Whatever stopped a batch.
    """
    check_definition(run.spark, run.pipeline)
    wanted = [hop for hop in HOPS if hop in hops]
    with ExitStack() as locks:
        for hop in wanted:
            folder = run.lake.checkpoints(run.pipeline.name, hop)
            locks.enter_context(hold(folder, f"{run.pipeline.name}, hop {hop},"))
        if trigger.ends:
            for hop in wanted:
                query = _HOPS[hop](run)
                query.finish(query.start(trigger.options))
        else:
            _run_together(run, wanted, trigger)


def _run_together(run: Run, hops: Sequence[Hop], trigger: Trigger) -> None:
    """Keep all hops running until one fails or the user interrupts."""
    started = []
    try:
        for hop in hops:
            query = _HOPS[hop](run)
            started.append((query, query.start(trigger.options)))
        while True:
            for query, streaming in started:
                query.check(streaming)
            time.sleep(0.1)
    finally:
        for _, streaming in started:
            streaming.stop()
