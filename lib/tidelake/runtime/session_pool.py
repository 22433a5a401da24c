"""Write several tables concurrently, each merge in its own session.

Planning a merge, and much of what Delta does around it, runs in a single thread: merges that run
sequentially leave slots idle. The commit metadata of a merge is a session setting, so concurrent
merges cannot share a session; an append takes its metadata as an option.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from threading import Event
from typing import TypeVar

from pyspark import InheritableThread
from pyspark.sql import SparkSession

from tidelake.spark.engine import runs_in_process, slots_of
from tidelake.spark.internals import clone_of

T = TypeVar("T")


class SessionPool:
    """Clones of a query's session, with its settings, for concurrent work."""

    def __init__(self, session: SparkSession, pieces: int) -> None:
        """Open one session per slot or per piece of work, whichever are fewer.

        Opens none if only one piece can run at a time, or through Spark Connect, where sessions
        cannot be cloned: all work then runs in the batch's own session.
        """
        possible = runs_in_process() and pieces > 1
        count = min(pieces, slots_of(session)) if possible else 0
        self.sessions = [clone_of(session) for _ in range(count if count > 1 else 0)]

    def run_all(
        self, session: SparkSession, pieces: Sequence[T], work: Callable[[SparkSession, T], None]
    ) -> None:
        """Run the pieces of work, started in order, one at a time per session of the pool.

        After a failure no further piece starts; the first failure is raised when all running pieces
        have ended.
        """
        if not self.sessions:
            for piece in pieces:
                work(session, piece)
            return
        # Each piece goes to one thread: a step of an iterator over a list is not interrupted.
        waiting, failed = iter(list(pieces)), Event()

        def run_pieces(clone: SparkSession) -> None:
            try:
                for piece in waiting:
                    if failed.is_set():
                        return
                    work(clone, piece)
            except BaseException:
                failed.set()
                raise

        run_concurrently(session, [partial(run_pieces, clone) for clone in self.sessions])


def run_concurrently(session: SparkSession, works: Sequence[Callable[[], None]]) -> None:
    """Run functions concurrently; raise the first failure when all have ended.

    Sequential with one slot and through Spark Connect. No function may depend on a session setting
    that another one changes.
    """
    if len(works) < 2 or not runs_in_process() or slots_of(session) < 2:
        for work in works:
            work()
        return
    failures: list[BaseException] = []

    def attempt(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    # An InheritableThread keeps Spark's local properties, such as the query and batch of a job.
    threads = [InheritableThread(attempt, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
