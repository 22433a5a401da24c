"""Which rows each batch of silver took, read from bronze's files and the logs alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import accumulate
from pathlib import Path

import duckdb

from tests.oracles import silver as oracle
from tests.oracles.gold import files_until
from tests.running import read
from tidelake.delta.log import Commit, commits
from tidelake.delta.tables import Lake, Table

_BEGINNING = (0, -1)


def closed(table: Table) -> list[Commit]:
    """Give a table's batches, oldest first."""
    return [commit for commit in commits(table) if commit.batch >= 0][::-1]


def silver_batches(lake: Lake, name: str = "clickstream") -> list[list[oracle.Row]]:
    """Give, as plain data, the rows that each batch of silver took, from bronze and the requeue."""
    bronze = lake.bronze(name)
    by_file = _rows_by_file(bronze.path)
    again = _sent_again(lake, name, [row for rows in by_file.values() for row in rows])
    batches, before = [], _BEGINNING
    for commit in closed(lake.silver(name)):
        version, index = commit.note["until"]["bronze"]
        # A batch may end inside a commit of bronze, between two of its files.
        files = files_until(bronze.path, (version, index))[len(files_until(bronze.path, before)) :]
        fresh = [row for file in files for row in by_file[file]]
        taken = commit.note["taken"]
        assert len(fresh) == taken.get("bronze", 0), commit.batch
        batches.append([*fresh, *again(taken.get("requeue", 0))])
        before = (version, index)
    return batches


def _rows_by_file(table: Path) -> dict[str, list[oracle.Row]]:
    """Read the rows of each file that ever brought some; one that was compacted is still there."""
    files = files_until(table, (1 << 62, -1))
    found: dict[str, list[oracle.Row]] = defaultdict(list)
    if not files:
        return found
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        told = connection.execute(
            "SELECT filename, record_id, payload, CAST(ingested_at AS TIMESTAMPTZ), source "
            "FROM read_parquet($1, filename = true)",
            [files],
        )
        while rows := told.fetchmany(100_000):
            for file, record_id, payload, at, source in rows:
                place, _, _ = record_id.rpartition(":")
                partition = "" if place == source else place
                found[file].append(
                    oracle.Row(
                        record_id,
                        bytes(payload),
                        at,
                        source,
                        oracle.place(record_id),
                        partition=partition,
                    )
                )
    return found


def _sent_again(
    lake: Lake, name: str, rows: Sequence[oracle.Row]
) -> Callable[[int], list[oracle.Row]]:
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


def _in_commits(table: Table, groups: list[list[oracle.Row]]) -> Callable[[int], list[oracle.Row]]:
    """Return a function that takes the next ``count`` rows; they must be whole commits."""
    left = list(groups)

    def take(count: int) -> list[oracle.Row]:
        sizes = list(accumulate(map(len, left), initial=0))
        assert count in sizes, f"a batch took a part of a commit of {table.name}"
        number = sizes.index(count)
        taken = [row for group in left[:number] for row in group]
        del left[:number]
        return taken

    return take
