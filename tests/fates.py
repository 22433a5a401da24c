"""Compare the fate of every row, batch by batch, with silver's oracle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import pytest

from tests.batches import closed, silver_batches
from tests.oracles import silver as oracle
from tests.running import read
from tidelake import instants
from tidelake.config import Pipeline
from tidelake.delta.log import Commit
from tidelake.delta.tables import Lake
from tidelake.ledger.terms import read_ledger
from tidelake.runtime import bronze_hop

_SHOWN = 200
_STAGES = ("parse", "contract", "expectation", "future_event_time", "conflicting_duplicate")


@contextmanager
def arriving_at(*moments: datetime) -> Iterator[None]:
    """Set the clock of bronze's next batches, in order; the last instant is repeated.

    A batch that does not arrive after the one before gets the next microsecond.
    """
    left, real = list(moments), bronze_hop.now_after

    def now() -> datetime:
        return left.pop(0) if len(left) > 1 else left[0]

    def now_after(before: str | None) -> datetime:
        with pytest.MonkeyPatch.context() as clock:
            clock.setattr(instants, "now", now)
            return real(before)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bronze_hop, "now_after", now_after)
        yield


def assert_fates(
    lake: Lake, rules: oracle.Rules | None = None, name: str = "clickstream"
) -> oracle.Silver:
    """Compare every row's table, batch, lateness and watermark with the oracle's.

    Returns:
        What the oracle knows after all batches.
    """
    judge = oracle.Silver(rules or oracle.Rules())
    notes = closed(lake.silver(name))
    expected: list[tuple[Any, ...]] = []
    lines: dict[str, bytes] = {}
    for commit, rows in zip(notes, silver_batches(lake, name), strict=True):
        before = judge.watermark
        decided = judge.take(rows)
        lines |= {row.key: row.line for row in rows}
        for key, fate in decided.items():
            if fate.verdict == oracle.SILVER:
                expected.append((key, commit.batch, fate.verdict, fate.is_late, None))
            elif fate.verdict == oracle.LATE:
                expected.append((key, commit.batch, fate.verdict, True, fate.watermark))
            elif fate.quarantined:
                expected.append((key, commit.batch, fate.verdict, None, None))
        stamps = [before, judge.watermark]
        booked = [commit.note["watermark_in"], commit.note["watermark"]]
        assert booked == [stamp and stamp.isoformat() for stamp in stamps], commit.batch
    found = [
        *read(lake, f"silver.{name}", "record_id, _batch, 'silver', is_late, NULL"),
        *read(lake, f"silver.{name}__late", "record_id, _batch, 'late', is_late, watermark"),
        *read(lake, f"silver.{name}__quarantine", "record_id, _batch, stage, NULL, NULL"),
    ]
    wrong = {
        "unexpected": Counter(found) - Counter(expected),
        "missing": Counter(expected) - Counter(found),
    }
    told = [
        (kind, *row, judge.fates[row[0]].verdict, lines[row[0]][:_SHOWN])
        for kind, rows in wrong.items()
        for row in rows
    ]
    assert not told, f"{len(told)} rows: {told[:10]}"
    # The rest is in no table: in the books only.
    assert [counted(commit) for commit in notes] == judge.batches
    return judge


def counted(commit: Commit) -> Counter[str]:
    """Read a batch's rows by verdict from its commit."""
    found: Counter[str] = Counter()
    for fate, stage, _, rows, *_ in commit.note["counts"]:
        found[stage if fate == "quarantined" else fate] += rows
    return found


def assert_books(lake: Lake, pipeline: Pipeline, judge: oracle.Silver) -> None:
    """Compare the ledger's terms with the oracle's, each row counted once."""
    fates = Counter(fate.verdict for fate in judge.fates.values())
    told = read_ledger(lake, pipeline).to_json()
    assert told["problems"] == []
    assert told["balanced"]
    assert {name: told[name] for name in ("silver", "duplicates", "late", "filtered")} == {
        "silver": fates["silver"],
        "duplicates": fates["duplicate"],
        "late": fates["late"],
        "filtered": fates["filtered"],
    }
    assert told["quarantined_by_stage"] == {s: fates[s] for s in _STAGES if fates[s]}
    assert told["quarantined"] == sum(fates[stage] for stage in _STAGES)
    assert told["source"] == told["bronze"] == len(judge.fates)
    assert (told["pending"], told["requeued"]) == (0, 0)
