"""Whatever arrives, in whatever order and split, each row has the fate that the oracle gives it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, Phase, event, given, seed, settings
from pyspark.sql import SparkSession

from tests.comparing import assert_gold_equals_oracle
from tests.fates import assert_books, assert_fates
from tests.oracles.silver import LATE, Rules, Silver
from tests.running import START, click, read
from tests.streams import MINUTE, Stream, streams
from tests.worlds import TO_SILVER, World, without_prefilter, world
from tidelake.ledger.terms import read_ledger
from tidelake.replay.requeue import apply_late
from tidelake.replay.verify import verify

_EXAMPLES = int(os.environ.get("TIDELAKE_EXAMPLES", "1"))
_FEW = max(1, _EXAMPLES // 5)
_SEED = int(os.environ.get("TIDELAKE_SEED", str(time.time_ns() % 1_000_000)))


def _play(spark: SparkSession, folder: Path, stream: Stream, *, prefilter: str = "none") -> World:
    """Let a stream arrive, run by run, up to silver."""
    dedup = {"beyond_ttl": "merge" if stream.merges else "ignore", "prefilter": prefilter}
    source = {"max_files_per_trigger": len(stream.commits[0].files)}
    played = world(spark, folder, small=stream.small, source=source, dedup=dedup)
    waiting: list[datetime] = []
    for number, commit in enumerate(stream.commits):
        for part, lines in enumerate(commit.files):
            played.land(f"{number}-{part}.jsonl", lines)
        waiting.append(commit.at)
        if commit.ends_run or commit is stream.commits[-1]:
            played.run(*waiting, hops=TO_SILVER)
            waiting = []
    return played


def _assert_decided_as_by_the_oracle(played: World, stream: Stream) -> Silver:
    payloads = [bytes(row[0]) for row in read(played.lake, "bronze.clickstream", "payload")]
    assert sorted(payloads) == sorted(stream.lines)
    stamps = {row[0] for row in read(played.lake, "bronze.clickstream", "ingested_at")}
    # A commit that does not arrive after the one before is a microsecond younger than that.
    most = timedelta(microseconds=len(stream.commits))
    assert all(any(timedelta() <= at - c.at < most for c in stream.commits) for at in stamps)
    judge = assert_fates(played.lake, Rules(merges=stream.merges))
    columns = ("event_id", "event_time", "user_id", "action", "product_id", "value")
    together = [
        row
        for table in ("silver.clickstream", "silver.clickstream__late")
        for row in read(played.lake, table, ", ".join(columns))
    ]
    accepted = [tuple(found[name] for name in columns) for found in judge.accepted()]
    assert sorted(together, key=repr) == sorted(accepted, key=repr)
    assert_books(played.lake, played.pipeline, judge)
    for verdict in {fate.verdict for fate in judge.fates.values()}:
        event(verdict)
    return judge


_SETTINGS = settings(
    print_blob=True,
    database=None,
    # A stream takes seconds: to shrink one takes many minutes.
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.fixture(scope="module", autouse=True)
def seeded() -> Iterator[None]:
    print(f"seed {_SEED}; repeat with TIDELAKE_SEED={_SEED} TIDELAKE_EXAMPLES={_EXAMPLES}")
    yield


@seed(_SEED)
@settings(_SETTINGS, max_examples=_EXAMPLES)
@given(stream=streams(mixed=True))
def test_every_row_meets_the_fate_that_the_oracle_gives_it(
    spark: SparkSession, stream: Stream
) -> None:
    """Once late rows are applied, gold knows every accepted event."""
    with TemporaryDirectory() as folder:
        played = _play(spark, Path(folder), stream)
        judge = _assert_decided_as_by_the_oracle(played, stream)
        accepted = judge.accepted()
        played.run(hops=["gold"])
        late = sum(fate.verdict == LATE for fate in judge.fates.values())
        assert apply_late(played.context) == late
        assert apply_late(played.context) == 0
        played.run()
        assert read_ledger(played.lake, played.pipeline).to_json()["late"] == 0
        assert_books(
            played.lake, played.pipeline, assert_fates(played.lake, Rules(merges=stream.merges))
        )
        assert_gold_equals_oracle(played.lake, accepted)


def test_a_copy_after_a_changed_rule_is_decided_by_that_rule_also_with_the_prefilter(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A copy past the TTL, which the operator drops in a batch with earlier rows, is an event."""
    dedup = {"prefilter": "operator", "beyond_ttl": "ignore"}
    with without_prefilter(spark):
        # Silver takes all of bronze's commits in one batch.
        one_file = {"max_files_per_trigger": 1}
        played = world(spark, tmp_path, small=False, source=one_file, dedup=dedup)
        accepted = click(1, minute=1, action="click")
        kept = click(3, minute=3, action="purchase")
        played.land("0.jsonl", [accepted, click(2, minute=2, action="purchase")])
        played.run(START, hops=TO_SILVER)
        stricter = played.redefined(
            dedup=dedup, quality={"rules": {"no_click": "action <> 'click'"}}
        )
        stricter.land("1.jsonl", [accepted, kept])
        stricter.run(START + MINUTE, hops=TO_SILVER)
        # Now the last batch was decided by the same rules, but its twin was not.
        stricter.land("2.jsonl", [accepted, kept])
        stricter.land("3.jsonl", [kept])
        stricter.run(START + 30 * MINUTE, START + 62 * MINUTE, hops=TO_SILVER)
        books = read_ledger(stricter.lake, stricter.pipeline).to_json()
        assert (books["silver"], books["quarantined"], books["duplicates"]) == (4, 2, 1), books
        found = read(stricter.lake, "silver.clickstream WHERE event_id = 'e3'", "_batch")
        assert found == [(1,), (2,)]


@pytest.mark.long
@seed(_SEED)
@settings(_SETTINGS, max_examples=_FEW)
@given(stream=streams(mixed=True).filter(lambda stream: _FEW > 1 or len(stream.commits) == 1))
def test_the_prefilter_changes_no_row_s_fate(spark: SparkSession, stream: Stream) -> None:
    """A single stream has one commit, as each takes seconds."""
    with TemporaryDirectory() as folder, without_prefilter(spark):
        played = _play(spark, Path(folder), stream, prefilter="operator")
        _assert_decided_as_by_the_oracle(played, stream)
        found = verify(played.context)
        assert {one.table.name for one in found.tables if not one.comparison.equal} == set()
