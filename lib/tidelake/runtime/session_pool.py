"""Work on several tables side by side, merges each in a session of its own.

To plan a merge keeps one thread busy, and so does much of what Delta does around it: one after the
other, tables leave slots idle. What the commit of a merge says of itself is a setting of its
session, so that no two may share one; an append carries it as an option.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from threading import Event
from typing import TypeVar

from pyspark import InheritableThread
from pyspark.sql import SparkSession

from tidelake.spark.engine import slots_of
from tidelake.spark.internals import clone_of, clones_sessions

T = TypeVar("T")


class SessionPool:
    """Sessions beside a query's, with its settings, for work that goes on at the same time.

    Attributes:
        beside: Those sessions; none where all is done in the batch's own.
    """

    def __init__(self, session: SparkSession, pieces: int) -> None:
        """Open a session for each slot, or for each piece of work if those are fewer.

        None where one piece can go on at a time, and through Spark Connect, where none can be had.
        """
        possible = clones_sessions() and pieces > 1
        lanes = min(pieces, slots_of(session)) if possible else 0
        self.beside = [clone_of(session) for _ in range(lanes if lanes > 1 else 0)]

    def each(
        self, session: SparkSession, pieces: Sequence[T], work: Callable[[SparkSession, T], None]
    ) -> None:
        """Do pieces of work in order, as many at a time as there are sessions beside this one.

        After a failure no other piece is begun; the first failure is raised when those that were
        have ended.
        """
        if not self.beside:
            for piece in pieces:
                work(session, piece)
            return
        waiting: SimpleQueue[T] = SimpleQueue()
        for piece in pieces:
            waiting.put(piece)
        failed = Event()

        def go_on(lane: SparkSession) -> None:
            try:
                while not failed.is_set():
                    work(lane, waiting.get_nowait())
            except Empty:
                return
            except BaseException:
                failed.set()
                raise

        side_by_side(session, [partial(go_on, lane) for lane in self.beside])


def side_by_side(session: SparkSession, works: Sequence[Callable[[], None]]) -> None:
    """Do several things at a time; the first failure is raised when all have ended.

    With one slot, and through Spark Connect, one after the other. None may need a setting of the
    session that another one changes.
    """
    if len(works) < 2 or not clones_sessions() or slots_of(session) < 2:
        for work in works:
            work()
        return
    failures: list[BaseException] = []

    def attempt(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    # What Spark is to know of a thread's work, the query and batch, goes with it.
    threads = [InheritableThread(attempt, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
