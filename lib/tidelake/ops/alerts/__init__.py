"""Judge a pipeline by its tables: what is open that somebody should look at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from tidelake.config import Pipeline
from tidelake.delta.tables import Lake
from tidelake.ops.alerts.alert import RULES, Alert, Severity
from tidelake.ops.alerts.costs import batch_over_interval, hop_failed
from tidelake.ops.alerts.flow import backlogs, lag_growing, latency_over_sla, stale
from tidelake.ops.alerts.rates import expressions_failed, rates, watermark_stuck
from tidelake.ops.alerts.sight import Sight
from tidelake.ops.alerts.standing import checkpoint_failing, hop_refused
from tidelake.ops.backlogs import Backlog, TakenFiles
from tidelake.ops.books import require_tables
from tidelake.ops.ledger import read_ledger
from tidelake.ops.metrics.kept import kept_since
from tidelake.ops.metrics.measured import Measured
from tidelake.typed import PLAIN, Typed

__all__ = ["RULES", "RUNNING", "Alert", "Severity", "alerts_beside", "alerts_of"]

# What a run judges of itself: the others count tables, or ask what the run itself would say.
RUNNING = tuple(rule for rule in RULES if rule not in ("books_unbalanced", "hop_refused"))
# How far back batches are read, beyond the time that the rule on them asks for.
_REACH = timedelta(hours=1)
# For so long a hop that failed and closed nothing since is told about.
_FAILED = timedelta(days=7)


def alerts_of(
    lake: Lake,
    pipeline: Pipeline,
    *,
    now: datetime,
    measures: Sequence[Measured] | None = None,
    counts: bool = True,
    typed: Typed = PLAIN,
) -> tuple[Alert, ...]:
    """Judge a pipeline, without Spark and without a lock; safe beside a run.

    Args:
        lake: Where the tables are.
        pipeline: The definition; its ``alerts`` has the limits.
        now: The moment, in UTC.
        measures: What a run measured lately; by default what ``ops.progress`` keeps.
        counts: Whether to count the tables for the books, which takes as long as the ledger.
        typed: Completes the commands that alerts name.

    Returns:
        What is open, in the order of :data:`RULES`: what is critical comes first.

    Raises:
        UsageError: The pipeline has not run under this root.
    """
    require_tables(lake, pipeline.name)
    if measures is None:
        since = now - _REACH - (pipeline.alerts.batch_over_interval or timedelta(0))
        measures = kept_since(lake, pipeline.name, since, failed_since=now - _FAILED)
    seen = Sight(lake, pipeline, now, measures, TakenFiles(lake, pipeline), typed)
    unbalanced = _unbalanced(seen) if counts else ()
    return _in_order([*unbalanced, *hop_refused(seen), *_running(seen, backlogs(seen))])


def alerts_beside(
    lake: Lake,
    pipeline: Pipeline,
    taken: TakenFiles,
    *,
    now: datetime,
    measures: Sequence[Measured],
    typed: Typed = PLAIN,
) -> tuple[tuple[Alert, ...], tuple[Backlog, ...]]:
    """Judge a pipeline from within its own run, by the rules of :data:`RUNNING` alone.

    Args as for :func:`alerts_of`; ``taken`` is kept by the caller, so that it reads only news.

    Returns:
        What is open, and what waits for each hop.
    """
    seen = Sight(lake, pipeline, now, measures, taken, typed)
    waiting = backlogs(seen)
    return _in_order(list(_running(seen, waiting))), waiting


def _running(seen: Sight, waiting: tuple[Backlog, ...]) -> Iterator[Alert]:
    yield from hop_failed(seen)
    yield from checkpoint_failing(seen)
    yield from latency_over_sla(seen, waiting)
    yield from stale(seen, waiting)
    yield from lag_growing(seen, waiting)
    yield from batch_over_interval(seen)
    yield from watermark_stuck(seen)
    yield from rates(seen)
    yield from expressions_failed(seen)


def _unbalanced(seen: Sight) -> Iterator[Alert]:
    problems = read_ledger(seen.lake, seen.pipeline).problems
    if problems:
        more = f"; and {len(problems) - 1} more" if len(problems) > 1 else ""
        yield seen.alert("books_unbalanced", "critical", f"{problems[0]}{more}", "ledger")


def _in_order(found: list[Alert]) -> tuple[Alert, ...]:
    order = list(RULES)
    return tuple(sorted(found, key=lambda one: order.index(one.rule)))
