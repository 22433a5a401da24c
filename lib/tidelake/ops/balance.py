"""Hold the books against themselves and against the tables, batch by batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from tidelake.delta.log import Commit, repeated
from tidelake.delta.notes import (
    FRESH,
    RECORDS,
    Deduction,
    FateCount,
    SilverNote,
    add_up,
    arrivals_in,
    deductions_in,
    fingerprint_of,
)
from tidelake.delta.tables import Lake, Table
from tidelake.fingerprints import (
    DUCKDB_DISTINCT,
    DUCKDB_SUM,
    DUCKDB_XOR,
    EMPTY,
    Fingerprint,
    combined,
    ids_in,
)
from tidelake.ops.query import ask
from tidelake.ops.side import Closed, in_closed_batch

_Key = tuple[str, int]
_COUNTED = f"count(*), {DUCKDB_XOR}, {DUCKDB_SUM}"


@dataclass(frozen=True)
class Mark:
    """How many rows, and which: marks that agree mean the same record ids."""

    rows: int = 0
    fingerprint: Fingerprint = EMPTY


@dataclass(frozen=True)
class Tally:
    """A table's rows, counted in the table itself.

    Attributes:
        batches: By generation and batch; bronze has one entry for all.
        records: How many different record ids bronze has; None for other tables.
    """

    batches: Mapping[_Key, Mark]
    records: int | None = None

    @property
    def rows(self) -> int:
        """All rows."""
        return sum(mark.rows for mark in self.batches.values())

    @property
    def fingerprint(self) -> Fingerprint:
        """Of all record ids."""
        return combined(mark.fingerprint for mark in self.batches.values())


@dataclass(frozen=True)
class Batch:
    """One closed batch of silver.

    Attributes:
        number: Its number.
        generation: Its generation.
        closed_at: When (UTC).
        taken: Rows taken from bronze, by Delta's statistics.
        returned: Rows taken from the requeue.
        counts: Its rows by fate, stage and origin.
        watermark: After it.
        erased: What an erasure took out of earlier batches, where it began a generation.
    """

    number: int
    generation: str
    closed_at: datetime
    taken: int
    returned: int
    counts: tuple[FateCount, ...]
    watermark: datetime | None
    erased: tuple[Deduction, ...] = ()

    @property
    def fates(self) -> Counter[str]:
        """Rows by fate."""
        return add_up(self.counts)

    @property
    def conflicts(self) -> int:
        """Rows in quarantine because another payload had their id."""
        return sum(c.rows for c in self.counts if c.stage == "conflicting_duplicate")

    @property
    def key(self) -> _Key:
        """What tells it apart."""
        return self.generation, self.number

    def of(self, *, fresh: bool) -> int:
        """Count the rows that came straight from bronze, or those that came back."""
        return sum(c.rows for c in self.counts if (c.origin == FRESH) is fresh)


def batch_of(commit: Commit) -> Batch:
    """Read a batch from silver's commit."""
    note = SilverNote.of(commit)
    return Batch(
        number=commit.batch,
        generation=commit.generation,
        closed_at=commit.written_at,
        taken=note.taken.get("bronze", 0),
        returned=note.taken.get("requeue", 0),
        counts=note.counts,
        watermark=note.watermark,
        erased=deductions_in([commit]),
    )


def tally(lake: Lake, table: Table, closed: Closed | None) -> Tally:
    """Count a table's rows by the batch that wrote them.

    Args:
        lake: Where the tables are.
        table: Silver or a side table; bronze, which does not know its batches, without ``closed``.
        closed: Rows of later batches are left out.
    """
    if not table.exists:
        return Tally({})
    if closed is None:
        found = ask(lake, f"SELECT {_COUNTED}, {DUCKDB_DISTINCT} FROM {table.name}").rows[0]
        rows, xor, total, records = found
        return Tally({("", 0): Mark(int(rows), Fingerprint.of(xor, total))}, int(records))
    counted = ask(
        lake,
        f"SELECT _generation, _batch, {_COUNTED} FROM {table.name} q "
        f"WHERE {in_closed_batch(closed)} GROUP BY 1, 2",
    ).rows
    return Tally(
        {(g, int(b)): Mark(int(rows), Fingerprint.of(*marks)) for g, b, rows, *marks in counted}
    )


def repetitions(
    lake: Lake, bronze: Table, tallied: Tally, closing: Mapping[str, Sequence[Commit]]
) -> Iterator[str]:
    """Say which batches were committed more than once, and how many records bronze has twice.

    Args:
        lake: Where the tables are.
        bronze: The table.
        tallied: Its rows.
        closing: The commits of bronze and silver, by layer.
    """
    for layer, commits in closing.items():
        for (generation, batch), versions in repeated(commits).items():
            yield (
                f"{layer}, batch {batch} of generation {generation} was committed "
                f"{len(versions)} times, by versions {', '.join(map(str, versions))}"
            )
    if tallied.records in (None, tallied.rows):
        return
    twice = f"SELECT record_id FROM {bronze.name} GROUP BY record_id HAVING count(*) > 1"
    count, first = ask(lake, f"SELECT count(*), min(record_id) FROM ({twice}) AS t").rows[0]
    if count:
        yield f"bronze holds {count:,} records more than once, {first} for example"


def problems_of(
    batches: Sequence[Batch],
    taken: Sequence[Commit],
    tables: Mapping[str, Tally],
    fates: Counter[str],
    *,
    pending: int,
    requeued: int,
) -> Iterator[str]:
    """Say what does not add up, the earliest first.

    Args:
        batches: Silver's batches, oldest first.
        taken: Bronze's commits, newest first.
        tables: Rows counted in the tables, by fate, and bronze.
        fates: Each row's fate as it now is.
        pending: Rows of bronze that silver has not taken yet.
        requeued: Rows sent again that silver has not taken yet.
    """
    yield from _bronze_problems(taken, tables["bronze"])
    erased = [one for batch in batches for one in batch.erased]
    lost = _by_batch(erased)
    for batch in batches:
        yield from _batch_problems(batch, tables, lost)
    bronze = tables["bronze"]
    fated = sum(fates.values()) + pending + requeued
    if fated != bronze.rows:
        yield f"bronze holds {bronze.rows:,} rows, {fated:,} have a fate or wait for one"
    fresh = [c for batch in batches for c in batch.counts if c.origin == FRESH]
    seen = sum(count.rows for count in fresh)
    gone = [one for one in erased if one.fate == RECORDS]
    left = seen - sum(one.rows for one in gone)
    kept = fingerprint_of(fresh).minus(combined(one.ids for one in gone))
    if left + pending != bronze.rows:
        less = f", less {seen - left:,} that were erased," if gone else ""
        yield f"bronze holds {bronze.rows:,} rows, silver took {seen:,}{less} and {pending:,} wait"
    elif not pending and not kept.agrees(bronze.fingerprint):
        yield "silver took as many rows as bronze holds, but not the same ones"


def _bronze_problems(taken: Sequence[Commit], bronze: Tally) -> Iterator[str]:
    filled = [commit for commit in reversed(taken) if commit.batch >= 0]
    for commit in filled:
        offered, written = int(commit.note["records"]), commit.brought
        if offered != written:
            yield (
                f"bronze, batch {commit.batch}: the source held {offered:,} records, "
                f"{written:,} rows were written"
            )
    written = sum(commit.brought for commit in filled)
    gone = arrivals_in(filled)
    erased = sum(one.rows for one in gone)
    kept = combined(ids_in(commit.note) for commit in filled).minus(
        combined(one.ids for one in gone)
    )
    if written - erased != bronze.rows:
        less = f" and {erased:,} were erased" if gone else ""
        yield f"bronze: its commits wrote {written:,} rows{less}, it holds {bronze.rows:,}"
    elif not kept.agrees(bronze.fingerprint):
        yield "bronze: it holds as many rows as its commits wrote, but not the same ones"


def _by_batch(erased: Sequence[Deduction]) -> dict[tuple[_Key, str], Mark]:
    """Add up what erasures took out of each batch, by its fate."""
    found: dict[tuple[_Key, str], Mark] = {}
    for one in erased:
        key = (one.generation, one.batch), one.fate
        before = found.get(key, Mark())
        found[key] = Mark(before.rows + one.rows, before.fingerprint.plus(one.ids))
    return found


def _batch_problems(
    batch: Batch, tables: Mapping[str, Tally], lost: Mapping[tuple[_Key, str], Mark]
) -> Iterator[str]:
    place = f"silver, batch {batch.number}"
    for source, rows, given in (
        ("bronze", batch.taken, batch.of(fresh=True)),
        ("the requeue", batch.returned, batch.of(fresh=False)),
    ):
        if rows != given:
            yield f"{place}: it took {rows:,} rows from {source} and gave {given:,} fates"
    for fate in ("silver", "quarantined", "late"):
        counts = [count for count in batch.counts if count.fate == fate]
        gone = lost.get((batch.key, fate), Mark())
        booked = Mark(
            sum(count.rows for count in counts) - gone.rows,
            fingerprint_of(counts).minus(gone.fingerprint),
        )
        held = tables[fate].batches.get(batch.key, Mark())
        if booked.rows != held.rows:
            yield f"{place}: {booked.rows:,} rows are booked as {fate}, {held.rows:,} are there"
        elif not booked.fingerprint.agrees(held.fingerprint):
            yield f"{place}: its rows booked as {fate} are not those that are there"
