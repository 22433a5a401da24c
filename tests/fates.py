"""Hold the fate of every row, batch by batch, against silver's oracle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from itertools import accumulate
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from tests.oracles import silver as oracle
from tests.running import read
from tidelake.config import Pipeline
from tidelake.ops.ledger import read_ledger
from tidelake.runtime import bronze_hop
from tidelake.sinks.commits import Commit, commits
from tidelake.tables import Lake, Table

_SHOWN = 200
_STAGES = ("parse", "contract", "expectation", "future_event_time", "conflicting_duplicate")


class _Clock:
    """Stands for ``datetime`` where bronze asks what time it is."""

    fromisoformat = staticmethod(datetime.fromisoformat)

    def __init__(self, instants: Sequence[datetime]) -> None:
        self._left = list(instants)

    def now(self, _: Any) -> datetime:
        return self._left.pop(0) if len(self._left) > 1 else self._left[0]


@contextmanager
def arriving_at(*instants: datetime) -> Iterator[None]:
    """Let bronze's batches arrive at these instants, one after the other."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bronze_hop, "datetime", _Clock(instants))
        yield


def closed(table: Table) -> list[Commit]:
    """Give a table's batches, oldest first."""
    return [commit for commit in commits(table) if commit.batch >= 0][::-1]


def silver_batches(lake: Lake, name: str = "clickstream") -> list[list[oracle.Row]]:
    """Read, as plain data, which rows each batch of silver took and in which order they came."""
    rows = [
        oracle.Row(record_id, bytes(payload), at, source, oracle.place(record_id))
        for record_id, payload, at, source in read(
            lake, f"bronze.{name}", "record_id, payload, ingested_at, source"
        )
    ]
    fresh = _in_commits(lake.bronze(name), _by_commit(lake.bronze(name), rows))
    again = _sent_again(lake, name, rows)
    batches = []
    for commit in closed(lake.silver(name)):
        taken = commit.note["taken"]
        batches.append([*fresh(taken.get("bronze", 0)), *again(taken.get("requeue", 0))])
    return batches


def _by_commit(table: Table, rows: Sequence[oracle.Row]) -> list[list[oracle.Row]]:
    """Sort bronze's rows into its commits, by the files that the commits name."""
    groups = []
    for commit in closed(table):
        files = {path for path, *_ in commit.note["files"]}
        groups.append([row for row in rows if unquote(urlsplit(row.source).path) in files])
    assert sum(map(len, groups)) == len(rows)
    return groups


def _in_commits(table: Table, groups: list[list[oracle.Row]]) -> Any:
    """Give a function that takes the next so many rows; they must be whole commits."""
    left = list(groups)

    def take(count: int) -> list[oracle.Row]:
        sizes = list(accumulate(map(len, left), initial=0))
        assert count in sizes, f"a batch took a part of a commit of {table.name}"
        number = sizes.index(count)
        taken = [row for group in left[:number] for row in group]
        del left[:number]
        return taken

    return take


def _sent_again(lake: Lake, name: str, rows: Sequence[oracle.Row]) -> Any:
    table = lake.requeue(name)
    by_key = {row.key: row for row in rows}
    sent = read(lake, table.name, "requeued_at, record_id, reason")
    groups: dict[datetime, list[oracle.Row]] = {}
    for at, record_id, reason in sent:
        row = by_key[record_id]
        again = oracle.Row(
            row.key, row.line, row.ingested_at, row.source, row.position, sent_again=reason
        )
        groups.setdefault(at, []).append(again)
    return _in_commits(table, [groups[at] for at in sorted(groups)])


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
    for fate, stage, _, rows, _ in commit.note["counts"]:
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
