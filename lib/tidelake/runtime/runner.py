"""Run a pipeline's hops: until the source is exhausted, or until the run is stopped."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tidelake.bronze.records import BRONZE_DDL
from tidelake.config.environment import refuse_external
from tidelake.delta.append import ensure_table
from tidelake.delta.holders import BRIEF_WAIT_SECONDS, WAIT_SECONDS
from tidelake.delta.locks import hold_hops
from tidelake.delta.store import FolderTable
from tidelake.delta.tables import Hop, hops_in
from tidelake.errors import (
    DamagedError,
    LeaseLostError,
    LockedError,
    MachineError,
    RefusedError,
    TidelakeError,
    UsageError,
)
from tidelake.runtime.bronze_hop import BronzeHop
from tidelake.runtime.checkpoints import have_consumed
from tidelake.runtime.epochs import close_epoch, copy_books
from tidelake.runtime.failures import naming
from tidelake.runtime.gold import GoldHop
from tidelake.runtime.gold_settings import report_unmasked
from tidelake.runtime.hop import POLL_SECONDS, HopQuery, Run, begin_stop
from tidelake.runtime.progress import InputGrewError, LimitChangedError
from tidelake.runtime.publish import Publishing, publish_gold
from tidelake.runtime.schemas import check_definition, from_ddl
from tidelake.runtime.session_pool import run_concurrently
from tidelake.runtime.silver import SilverHop
from tidelake.runtime.triggers import CONTINUOUS, Pace, Trigger, parse_trigger
from tidelake.spark.engine import runs_in_process
from tidelake.spark.internals import clone_of
from tidelake.visible import first_line

# How often a continuous run copies commit metadata; Delta logs keep commits for days.
_COPY_SECONDS = 600
# How often it closes epochs; shorter, since analysts wait for them.
_EPOCH_SECONDS = 5
# The longest wait of a hop of a continuous run for later hops, which may be compacting tables or
# restarting.
_LONGEST_TURN_SECONDS = 10
# How often a run that ends looks whether a hop has ended, or a later one can start.
_LOOK_SECONDS = 0.05
# The trigger of a hop that starts while the one before is running.
_UNTIL_STOPPED = parse_trigger(CONTINUOUS)
# How often a continuous run replaces the views of the last epoch: a statement per table.
_VIEWS_SECONDS = 60
_HOPS: dict[Hop, type[HopQuery]] = {"bronze": BronzeHop, "silver": SilverHop, "gold": GoldHop}


def run_hops(
    run: Run,
    hops: Sequence[Hop],
    trigger: Trigger,
    *,
    held: bool = False,
    cold: bool = False,
    publishes: bool = False,
) -> None:
    """Run hops in the order of the flow; copy their commit metadata, then close an epoch.

    With ``held`` the caller holds the hops' locks already. With ``cold`` Spark has just started and
    the batches are small: idle cores then load what later hops need. With ``publishes`` the changes
    of gold go to their topics; if that fails, everything else is done.
    """
    if not (trigger.ends or runs_in_process()):
        raise UsageError(
            "through Spark Connect a run ends when its source is exhausted: give "
            "--trigger available-now, and schedule it. Nothing was written."
        )
    if "bronze" in hops:
        refuse_external(run.pipeline.source, run.environment)
    is_first = cold and runs_in_process() and not run.lake.bronze(run.pipeline.name).exists
    with ThreadPoolExecutor(1, thread_name_prefix="load-delta") as loading:
        if is_first:
            # An error is bronze's too, when it creates its tables.
            loading.submit(_load_delta, run.spark)
        check_definition(run)
    with naming(run, "reading the rights on its tables,"):
        report_unmasked(run)
    wanted = [hop for hop in hops_in(run.pipeline) if hop in hops]
    if not wanted:
        run.progress.say(f"{run.pipeline.name} defines no gold table; there is nothing to fill")
        return
    with nullcontext() if held else hold_hops(run.lake, run.pipeline.name, wanted):
        try:
            if run.lake.bronze(run.pipeline.name).exists:
                # What a run that was killed has not copied, before Delta removes it from a log.
                # Errors are ignored: the hop reports them in more detail.
                with suppress(DamagedError, RefusedError):
                    _copy_books(run, wanted, seconds=BRIEF_WAIT_SECONDS)
            if trigger.ends:
                _run_to_the_end(run, wanted, trigger, cold=cold)
            else:
                _run_together(run, wanted, trigger, publishes=publishes)
        except TidelakeError as error:
            # A hop that fails in every run would leave the others' metadata to expire. There is
            # no point without the locks, the store or Spark.
            if not isinstance(error, LockedError | MachineError):
                with suppress(Exception, KeyboardInterrupt):
                    copy_books(run, wanted, seconds=BRIEF_WAIT_SECONDS)
            raise
        unpublished = None
        # Before the epoch, whose versions then include the positions of the topics.
        if publishes and "gold" in wanted:
            try:
                publish_gold(run)
            except TidelakeError as error:
                unpublished = error
        # Two short commits to different tables, which mostly wait. Both may compact their table,
        # under settings of the session.
        other = replace(run, spark=clone_of(run.spark)) if runs_in_process() else run
        endings = (partial(_copy_books, other, wanted), partial(_close_epoch, run))
        run_concurrently(run.spark, endings)
        if unpublished is not None:
            raise unpublished


def refusals(run: Run) -> dict[Hop, str]:
    """Return why hops could not resume from their tables, by hop; nothing is written."""
    found: dict[Hop, str] = {}
    for hop in hops_in(run.pipeline):
        try:
            _HOPS[hop](run, creates=False)
        except RefusedError as error:
            found[hop] = str(error)
    return found


def _copy_books(run: Run, hops: Sequence[Hop], *, seconds: float = WAIT_SECONDS) -> None:
    with naming(run, "copying commit metadata to ops.books,"):
        copy_books(run, hops, seconds=seconds)


def _close_epoch(run: Run, *, shows: bool = True, seconds: float = WAIT_SECONDS) -> None:
    with naming(run, "closing an epoch,"):
        close_epoch(run, shows=shows, seconds=seconds)


@contextmanager
def _postponing(run: Run, what: str) -> Iterator[None]:
    """Report that another process holds the lock of work that a continuous run repeats anyway."""
    try:
        yield
    except LeaseLostError:
        raise
    except LockedError as error:
        reason = first_line(error)
        run.progress.say_once(f"{what} failed: {reason}. The run continues, and tries again.")


def _run_to_the_end(run: Run, hops: Sequence[Hop], trigger: Trigger, *, cold: bool) -> None:
    """Run each hop until its input is exhausted, and open the later ones meanwhile.

    Opening reads logs and creates tables, which takes seconds on one core while the JVM is cold.
    """
    opener = ThreadPoolExecutor(1, thread_name_prefix="open-hops")
    try:
        with run.progress.blaming(hops[0]):
            first = _open(run, hops[0])
        opened = [opener.submit(_open, run, later) for later in hops[1:]]
        if cold:
            threading.Thread(target=_warm_up, args=(opened,), daemon=True).start()
        CatchUp(run, hops, [_opened(first), *opened]).run(trigger)
    finally:
        opener.shutdown(cancel_futures=True)


def _opened(query: HopQuery) -> Future[HopQuery]:
    done: Future[HopQuery] = Future()
    done.set_result(query)
    return done


def _load_delta(spark: SparkSession) -> None:
    """Create a table that nobody reads: then Delta is loaded when bronze creates its tables."""
    with TemporaryDirectory(ignore_cleanup_errors=True) as place:
        table = FolderTable("bronze.none", Path(place) / "none")
        ensure_table(spark, table, from_ddl(spark, BRONZE_DDL), {})


def _warm_up(opened: Sequence[Future[HopQuery]]) -> None:
    """Warm hops up once all are open, in a thread for which no run waits: it may have no rows."""
    # The run, or the batch, raises the same error.
    with suppress(Exception):
        for query in [one.result() for one in opened]:
            query.warm_up()


class CatchUp:
    """Runs hops until the source is exhausted, later hops while earlier ones are still running.

    A later hop begins a batch only when no further row could get into it: its unread input reaches
    the limit of a batch, or the hop before has ended. So its batches are the same as if the hops
    ran one after another; and while one hop plans or commits, another uses the cores.
    """

    def __init__(self, run: Run, hops: Sequence[Hop], opened: Sequence[Future[HopQuery]]) -> None:
        """Take the hops of the run, in the order of the flow, with what opens them."""
        self._run, self._opened = run, dict(zip(hops, opened, strict=True))
        # The hops that have not ended.
        self._hops = list(hops)
        self._running: dict[Hop, StreamingQuery] = {}
        # Hops that were started before the hop before had ended, with a query that does not end.
        self._early: set[Hop] = set()
        # Hops whose input may have grown since it was last looked at.
        self._news = set(hops)
        self._overlaps = runs_in_process() and _reads_logs(run)
        self._changed = threading.Condition()

    def run(self, trigger: Trigger) -> None:
        """Run the hops to their ends.

        If one fails, it and the later ones stop, the earlier ones run to their ends, and its error
        is raised.

        An error of those is reported, not raised; and a request to stop then ends the run with
        the first error.
        """
        failure: Exception | None = None
        try:
            while self._hops:
                for number, hop in enumerate(self._hops):
                    try:
                        with self._run.progress.blaming(hop):
                            has_ended = self._advance(hop, trigger)
                    except Exception as error:
                        if failure is not None:
                            self._run.progress.say(f"{hop:<7} failed too: {first_line(error)}")
                        failure = failure or error
                        self._stop(self._hops[number:])
                        if self._hops:
                            # The error itself is raised when they have ended.
                            self._run.progress.say(
                                f"{hop:<7} stopped, {' and '.join(self._hops)} will run to the end "
                                f"first: {first_line(error)}"
                            )
                        break
                    if has_ended:
                        self._end([hop])
                        self._run.progress.observer.ends(hop)
                        break
        except KeyboardInterrupt:
            # Why a run failed is not hidden by its being stopped.
            if failure is None:
                raise
        finally:
            self._stop(self._hops)
        if failure is not None:
            raise failure

    def _advance(self, hop: Hop, trigger: Trigger) -> bool:
        """Start a hop if it may, or look after its query; return whether it has ended."""
        is_first, streaming = hop == self._hops[0], self._running.get(hop)
        if streaming is None:
            if is_first or self._has_full_batch(hop):
                return self._start(hop, trigger if is_first else _UNTIL_STOPPED)
            return False
        query = self._opened[hop].result()
        # Before the check, which raises what ended a query.
        has_ended = not streaming.isActive
        try:
            query.check(streaming, _LOOK_SECONDS if self._overlaps else POLL_SECONDS)
            if hop not in self._early:
                return has_ended
            if not has_ended and not (is_first and query.has_caught_up):
                return False
            streaming.stop()
            if is_first and have_consumed(query.closing, query.inputs):
                return True
        except InputGrewError:
            pass
        # A new query reads the rest. What the old one filled at its start is not filled again.
        del self._running[hop]
        self._early.discard(hop)
        self._opened[hop] = _opened(_open(self._run, hop))
        self._news.add(hop)
        return False

    def _start(self, hop: Hop, trigger: Trigger) -> bool:
        """Start a hop's query; return whether there is nothing to read, and the hop has ended."""
        query = self._opened[hop].result()
        query.fill_new_tables()
        # Otherwise a mere compaction of an input would close an empty batch in every table.
        if trigger.ends and have_consumed(query.closing, query.inputs):
            return True
        if self._overlaps:
            query.give_way = partial(self._wait, hop)
        if not trigger.ends:
            self._early.add(hop)
        self._running[hop] = _start_query(query, trigger)
        return False

    def _has_full_batch(self, hop: Hop) -> bool:
        if not self._overlaps or hop not in self._news or not self._opened[hop].done():
            return False
        self._news.discard(hop)
        return self._opened[hop].result().has_full_batch

    def _wait(self, hop: Hop, is_light: bool) -> None:
        """Report that a hop has closed a batch, and wait until its next one may begin."""
        with self._changed:
            self._news.update(self._hops)
            self._changed.notify_all()
            self._changed.wait_for(
                lambda: hop not in self._hops[1:] or self._opened[hop].result().has_full_batch
            )

    def _end(self, hops: Sequence[Hop]) -> None:
        """Let the hops wait no longer, and the one after them run to its end."""
        with self._changed:
            self._hops = [one for one in self._hops if one not in hops]
            self._changed.notify_all()
        for hop in hops:
            # The hop refers to this object, and Spark's query to the hop.
            self._running.pop(hop, None)

    def _stop(self, hops: Sequence[Hop]) -> None:
        """Stop the hops' queries; a hop that waits begins no other batch."""
        queries = [self._running[hop] for hop in hops if hop in self._running]
        try:
            stopping = [begin_stop(query) for query in queries]
        finally:
            self._end(hops)
        for one in stopping:
            one.join()


class Turns:
    """Lets the hops of a continuous run without an interval take turns while batches are light.

    When hops run concurrently, small batches compete for the cores, and a row waits at each hop for
    the batch that is running there. In turns, a batch passes through all hops before the next one
    starts.
    """

    def __init__(self, run: Run, hops: Sequence[Hop]) -> None:
        """Take the hops of the run, in the order of the flow."""
        self._run, self._hops = run, hops
        self._changed = threading.Condition()
        self._is_over = False

    def give_way(self, hop: Hop, is_light: bool) -> None:
        """Report that a hop has committed a batch; if it was light, wait for the later hops.

        Returns when they have read its rows, or after ten seconds. A batch that is not light does
        not wait, because concurrent hops use more of the cores.
        """
        later = self._hops[self._hops.index(hop) + 1 :]
        with self._changed:
            self._changed.notify_all()
            if is_light:
                self._changed.wait_for(
                    lambda: self._is_over or all(self._has_consumed(one) for one in later),
                    _LONGEST_TURN_SECONDS,
                )

    def end(self) -> None:
        """Let no hop wait any longer."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def _has_consumed(self, hop: Hop) -> bool:
        lake, pipeline = self._run.lake, self._run.pipeline
        return have_consumed(lake.closing_tables(pipeline, hop), lake.own_inputs(pipeline, hop))


def turns_of(run: Run, hops: Sequence[Hop], trigger: Trigger) -> Turns | None:
    """Return the turns of a run, or None if its hops run concurrently.

    With an interval the hops start at the same instants. Without direct access to logs, it takes
    queries or requests to see how far later hops have come.
    """
    return Turns(run, hops) if _reads_logs(run) and not trigger.has_interval else None


def _reads_logs(run: Run) -> bool:
    return run.lake.bronze(run.pipeline.name).reads_files_directly


def _run_together(run: Run, hops: Sequence[Hop], trigger: Trigger, *, publishes: bool) -> None:
    """Keep all hops running until one fails or the user interrupts."""
    started: dict[Hop, tuple[HopQuery, StreamingQuery]] = {}
    copied_at = closed_at = shown_at = time.monotonic()
    publishing = _publishing(run) if publishes and "gold" in hops else None
    turns = turns_of(run, hops, trigger)
    try:
        for hop in hops:
            started[hop] = _start_hop(run, hop, trigger, turns)
        while True:
            for hop, (query, streaming) in started.items():
                try:
                    with run.progress.blaming(hop):
                        query.check(streaming)
                except (InputGrewError, LimitChangedError):
                    started[hop] = _start_hop(run, hop, trigger, turns, query.pace)
            if time.monotonic() - copied_at > _COPY_SECONDS:
                with _postponing(run, "copying commit metadata to ops.books"):
                    _copy_books(run, hops, seconds=BRIEF_WAIT_SECONDS)
                copied_at = time.monotonic()
            if time.monotonic() - closed_at > _EPOCH_SECONDS:
                if publishing is not None:
                    publishing.begin_step()
                shows = time.monotonic() - shown_at > _VIEWS_SECONDS
                with _postponing(run, "closing an epoch"):
                    _close_epoch(run, shows=shows, seconds=BRIEF_WAIT_SECONDS)
                    shown_at = time.monotonic() if shows else shown_at
                closed_at = time.monotonic()
            time.sleep(0.1)
    finally:
        if turns is not None:
            turns.end()
        for _, streaming in started.values():
            streaming.stop()
        if publishing is not None:
            publishing.end()


def _publishing(run: Run) -> Publishing:
    # Queries that start meanwhile copy the settings of the run's session.
    return Publishing(replace(run, spark=clone_of(run.spark), stop=threading.Event()))


def _start_hop(
    run: Run, hop: Hop, trigger: Trigger, turns: Turns | None, pace: Pace | None = None
) -> tuple[HopQuery, StreamingQuery]:
    """Start a hop of a continuous run; ``pace`` keeps the measurements of its last query."""
    with run.progress.blaming(hop):
        query = _open(run, hop)
        query.fill_new_tables()
        if trigger.seconds is not None:
            query.pace = pace or Pace(trigger.seconds, query.most, query.unit)
        if turns is not None:
            query.give_way = partial(turns.give_way, hop)
        return query, _start_query(query, trigger)


def _open(run: Run, hop: Hop) -> HopQuery:
    # Tables are created before the first batch.
    with naming(run, f"hop {hop}"):
        return _HOPS[hop](run)


def _start_query(query: HopQuery, trigger: Trigger) -> StreamingQuery:
    observer = query.run.progress.observer
    observer.starts(query.hop, query.fence.generation, query.limit)
    with naming(query.run, f"hop {query.hop}"):
        return query.start(trigger.options)
