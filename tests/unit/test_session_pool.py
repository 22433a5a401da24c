"""Work on several tables goes on side by side, each piece in a session of its own."""

from __future__ import annotations

import threading

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tidelake.runtime import session_pool
from tidelake.runtime.session_pool import SessionPool, run_concurrently
from tidelake.spark.internals import moved

_KEY = "spark.tidelake.of_a_lane"


@pytest.fixture
def two(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> SessionPool:
    monkeypatch.setattr(session_pool, "slots_of", lambda session: 2)
    return SessionPool(spark, 3)


def test_two_pieces_wait_for_each_other_only_where_they_go_on_at_once(
    spark: SparkSession, two: SessionPool
) -> None:
    both = threading.Barrier(2, timeout=30)
    two.run_all(spark, [1, 2], lambda session, piece: both.wait() and None)


def test_what_a_piece_sets_no_other_sees(spark: SparkSession, two: SessionPool) -> None:
    both = threading.Barrier(2, timeout=30)
    seen = {}

    def work(session: SparkSession, piece: int) -> None:
        session.conf.set(_KEY, str(piece))
        both.wait()
        seen[piece] = session.conf.get(_KEY)

    two.run_all(spark, [1, 2], work)
    assert seen == {1: "1", 2: "2"}
    assert spark.conf.get(_KEY, None) is None


def test_a_lane_begins_with_the_settings_and_names_of_the_work_beside_it(
    spark: SparkSession, two: SessionPool
) -> None:
    name = spark.conf.get("spark.sql.shuffle.partitions")
    context = spark.sparkContext
    context.setLocalProperty(_KEY, "a batch")
    seen = []
    try:
        two.run_all(
            spark,
            [1, 2],
            lambda session, piece: seen.append(
                (
                    session.conf.get("spark.sql.shuffle.partitions"),
                    session.sparkContext.getLocalProperty(_KEY),
                )
            ),
        )
    finally:
        context.setLocalProperty(_KEY, None)  # type: ignore[arg-type]  # None takes it away
    assert seen == [(name, "a batch")] * 2


def test_once_a_piece_failed_no_other_begins_and_those_that_began_end(
    spark: SparkSession, two: SessionPool
) -> None:
    begun, failed, ended = threading.Event(), threading.Event(), []

    def work(session: SparkSession, piece: int) -> None:
        if piece == 1:
            begun.wait(30)
            failed.set()
            raise ValueError("one")
        begun.set()
        failed.wait(30)
        threading.Event().wait(0.2)
        ended.append(piece)

    with pytest.raises(ValueError, match="one"):
        two.run_all(spark, [1, 2, 3], work)
    assert ended == [2]


def test_kept_rows_are_read_in_another_session(spark: SparkSession, two: SessionPool) -> None:
    kept = spark.range(3).select((F.col("id") * 2).alias("double")).localCheckpoint()
    found = []

    def work(session: SparkSession, piece: int) -> None:
        mine = moved(kept, session)
        assert mine.sparkSession is session
        mine.createOrReplaceTempView("doubles")
        found.append(session.sql("SELECT sum(double) AS all FROM doubles").collect()[0]["all"])

    two.run_all(spark, [1, 2], work)
    assert found == [6, 6]
    assert not spark.catalog.tableExists("doubles")
    assert moved(kept, spark) is kept


@pytest.mark.parametrize(("pieces", "slots"), [(1, 4), (3, 1)])
def test_what_cannot_go_on_at_once_is_done_in_the_batch_s_own_session(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, pieces: int, slots: int
) -> None:
    monkeypatch.setattr(session_pool, "slots_of", lambda session: slots)
    done = []
    SessionPool(spark, pieces).run_all(
        spark, range(pieces), lambda session, piece: done.append((session is spark, piece))
    )
    assert done == [(True, piece) for piece in range(pieces)]


def test_what_needs_no_session_of_its_own_goes_on_side_by_side(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_pool, "slots_of", lambda session: 2)
    both = threading.Barrier(2, timeout=30)
    ended = []

    def fails() -> None:
        both.wait()
        raise ValueError("one")

    def ends() -> None:
        both.wait()
        threading.Event().wait(0.2)
        ended.append("other")

    with pytest.raises(ValueError, match="one"):
        run_concurrently(spark, [fails, ends])
    assert ended == ["other"]
