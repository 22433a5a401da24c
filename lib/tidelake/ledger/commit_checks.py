"""Compare the metadata of commits with each other and with the tables' rows.

For topics, the offsets that bronze's batches read are compared with bronze's rows. There are more
offsets than records: transaction markers and records that were aborted or compacted away have
offsets too. So a missing offset alone is not a loss; commits also record how many records their
batch read from each partition, with start and end offset.

The ledger itself is in :mod:`.terms`; one file would exceed 500 lines.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from tidelake.delta import commit_metadata as metadata
from tidelake.delta.log import ERASED, Commit, repeated
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
from tidelake.instants import from_micros
from tidelake.ledger.query import ask

# Rows that another writer inserted may have neither.
_Key = tuple[str | None, int | None]
_COUNTED = f"count(*), {DUCKDB_XOR}, {DUCKDB_SUM}"


@dataclass(frozen=True)
class Mark:
    """The number of rows in a set, and the fingerprints of their record ids and whole records.

    ``contents`` is None if a commit of an earlier version lacks it.
    """

    rows: int = 0
    fingerprint: Fingerprint = EMPTY
    contents: Fingerprint | None = EMPTY

    @staticmethod
    def of(parts: Iterable[tuple[int, Fingerprint]]) -> Mark:
        """Add up disjoint sets of rows."""
        marks = list(parts)
        return Mark(sum(rows for rows, _ in marks), combined(ids for _, ids in marks))

    def plus(self, other: Mark, *, sign: int = 1) -> Mark:
        """Add the other's rows; with a ``sign`` of -1, subtract them."""
        contents = None
        if self.contents and other.contents:
            contents = self.contents.plus(other.contents, sign=sign)
        ids = self.fingerprint.plus(other.fingerprint, sign=sign)
        return Mark(self.rows + sign * other.rows, ids, contents)

    def minus(self, other: Mark) -> Mark:
        """Subtract the other's rows."""
        return self.plus(other, sign=-1)

    def agrees(self, other: Mark) -> bool:
        """Return whether both can be of the same rows."""
        if self.rows != other.rows or not self.fingerprint.agrees(other.fingerprint):
            return False
        return not (self.contents and other.contents) or self.contents.agrees(other.contents)


@dataclass(frozen=True)
class Tally:
    """A table's rows, counted in the table by generation and batch; bronze has one entry.

    ``records`` is the number of distinct record ids of bronze, None for other tables.
    """

    batches: Mapping[_Key, Mark]
    records: int | None = None

    @property
    def total(self) -> Mark:
        """The rows of all batches."""
        return Mark.of((mark.rows, mark.fingerprint) for mark in self.batches.values())


@dataclass(frozen=True)
class Batch:
    """One committed batch of silver.

    By Delta's statistics it read ``taken`` rows of bronze and ``returned`` rows of the requeue. In
    the first batch of a generation, ``erased`` lists what an erasure removed from earlier batches.
    """

    number: int
    generation: str
    closed_at: datetime
    taken: int
    returned: int
    counts: tuple[metadata.FateCount, ...]
    erased: tuple[metadata.Deduction, ...] = ()

    @staticmethod
    def of(commit: Commit) -> Batch:
        """Build a batch from silver's commit."""
        note = metadata.SilverNote.of(commit)
        return Batch(
            number=commit.batch,
            generation=commit.generation,
            closed_at=commit.written_at,
            taken=note.taken.get("bronze", 0),
            returned=note.taken.get("requeue", 0),
            counts=note.counts,
            erased=metadata.deductions_in([commit]),
        )


def tally_bronze(lake: Lake, bronze: Table, versions: Mapping[str, int]) -> Tally:
    """Count all rows of bronze, which have no batch number; ``versions`` by table name."""
    counted = f"SELECT {_COUNTED}, {DUCKDB_DISTINCT} FROM {bronze.name}"
    rows, xor, total, records = ask(lake, counted, versions).rows[0]
    return Tally({("", 0): Mark(int(rows), Fingerprint.of(xor, total))}, int(records))


def tally(lake: Lake, table: Table, versions: Mapping[str, int], where: str = "true") -> Tally:
    """Count the rows ``q`` of a table that satisfy a condition, by batch."""
    if not table.exists:
        return Tally({})
    counted = f"SELECT _generation, _batch, {_COUNTED} FROM {table.name} q"
    rows = ask(lake, f"{counted} WHERE {where} GROUP BY 1, 2", versions).rows
    return Tally({(g, b): Mark(int(count), Fingerprint.of(*marks)) for g, b, count, *marks in rows})


def repetitions(
    lake: Lake,
    bronze: Table,
    versions: Mapping[str, int],
    tallied: Tally,
    closing: Mapping[str, Sequence[Commit]],
) -> Iterator[str]:
    """Describe batches that were committed twice, and records that bronze holds twice."""
    for layer, commits in closing.items():
        for (generation, batch), found in repeated(commits).items():
            yield (
                f"{layer}, batch {batch} of generation {generation} was committed "
                f"{len(found)} times, by versions {', '.join(map(str, found))}"
            )
    if tallied.records in (None, tallied.total.rows):
        return
    twice = f"SELECT record_id FROM {bronze.name} GROUP BY record_id HAVING count(*) > 1"
    counted = f"SELECT count(*), min(record_id) FROM ({twice}) AS t"
    count, first = ask(lake, counted, versions).rows[0]
    if count:
        yield f"bronze holds {count:,} records more than once, {first} for example"


def altered_batches(
    lake: Lake,
    bronze: Table,
    versions: Mapping[str, int],
    tallied: Tally,
    taken: Sequence[Commit],
) -> Iterator[str]:
    """Describe the batches of which bronze does not hold the rows that their commits wrote.

    Its rows have no batch number, but each batch has an instant of arrival. If the clock was set
    back, several have the same one and are compared together. Nothing is read if the totals agree.
    """
    filled = [commit for commit in reversed(taken) if commit.batch >= 0]
    arrivals = metadata.arrivals_in(filled)
    if _kept(filled, arrivals).agrees(tallied.total):
        return
    written: dict[datetime, list[Commit]] = defaultdict(list)
    for commit in filled:
        if ERASED not in commit.note:
            written[datetime.fromisoformat(commit.note["ingested_at"])].append(commit)
    erased: dict[datetime, list[metadata.Arrival]] = defaultdict(list)
    for one in arrivals:
        erased[one.ingested_at].append(one)
    asked = f"SELECT epoch_us(ingested_at) AS at, {_COUNTED} FROM {bronze.name} GROUP BY 1"
    held: dict[datetime | None, Mark] = {
        from_micros(at): Mark(int(rows), Fingerprint.of(*marks))
        for at, rows, *marks in ask(lake, f"{asked} ORDER BY 1", versions).rows
    }
    for arrived, commits in written.items():
        kept, found = _kept(commits, erased[arrived]), held.pop(arrived, Mark())
        place = f"bronze, batch {' and '.join(str(commit.batch) for commit in commits)}"
        yield from _different(place, kept, found, f"wrote {kept.rows:,} rows that were not erased")
    for at, found in held.items():
        when = "without an instant of arrival" if at is None else f"that arrived at {at}"
        yield f"bronze holds {found.rows:,} rows {when}, which no batch wrote"


def _kept(filled: Iterable[Commit], erased: Iterable[metadata.Arrival]) -> Mark:
    """Return the rows that bronze's commits wrote, less those that were erased."""
    added = Mark.of((commit.added_rows, ids_in(commit.note)) for commit in filled)
    return added.minus(Mark.of((one.rows, one.ids) for one in erased))


def _different(place: str, kept: Mark, held: Mark, booked: str, suffix: str = "") -> Iterator[str]:
    """Describe a batch of which a table holds other rows than its commit counts."""
    if kept.rows != held.rows:
        yield f"{place}: its commit {booked}, the table has {held.rows:,}"
    elif not kept.fingerprint.agrees(held.fingerprint):
        yield f"{place}: its commit and the table have different rows{suffix}"


def problems_of(
    batches: Sequence[Batch],
    taken: Sequence[Commit],
    tables: Mapping[str, Tally],
    fates: Counter[str],
    *,
    pending: int,
    requeued: int,
) -> Iterator[str]:
    """Describe the imbalances, the earliest first."""
    bronze = tables["bronze"].total
    yield from _bronze_problems(taken, bronze)
    erased = [one for batch in batches for one in batch.erased]
    removed: dict[tuple[_Key, str], list[tuple[int, Fingerprint]]] = defaultdict(list)
    for one in erased:
        removed[(one.generation, one.batch), one.fate].append((one.rows, one.ids))
    for batch in batches:
        yield from _batch_problems(batch, tables, removed)
    yield from _rows_of_no_batch(batches, tables)
    fated = sum(fates.values()) + pending + requeued
    if fated != bronze.rows:
        yield f"bronze holds {bronze.rows:,} rows, {fated:,} have a fate or wait for one"
    fresh = Mark.of(
        (c.rows, c.mark) for b in batches for c in b.counts if c.origin == metadata.FRESH
    )
    gone = Mark.of((one.rows, one.ids) for one in erased if one.fate == metadata.RECORDS)
    kept = fresh.minus(gone)
    if kept.rows + pending != bronze.rows:
        less = f", less {gone.rows:,} that were erased," if gone.rows else ""
        held = f"bronze holds {bronze.rows:,} rows, silver took {fresh.rows:,}"
        yield f"{held}{less} and {pending:,} wait"
    elif not pending and not kept.fingerprint.agrees(bronze.fingerprint):
        yield "silver took as many rows as bronze holds, but not the same ones"


def _bronze_problems(taken: Sequence[Commit], bronze: Mark) -> Iterator[str]:
    filled = [commit for commit in reversed(taken) if commit.batch >= 0]
    for commit in filled:
        offered, written = int(commit.note["records"]), commit.added_rows
        if offered != written:
            yield (
                f"bronze, batch {commit.batch}: the source held {offered:,} records, "
                f"{written:,} rows were written"
            )
    arrivals = metadata.arrivals_in(filled)
    kept, gone = _kept(filled, arrivals), sum(one.rows for one in arrivals)
    if kept.rows != bronze.rows:
        less = f" and {gone:,} were erased" if gone else ""
        yield f"bronze: its commits wrote {kept.rows + gone:,} rows{less}, it holds {bronze.rows:,}"
    elif not kept.fingerprint.agrees(bronze.fingerprint):
        yield "bronze: it holds as many rows as its commits wrote, but not the same ones"


def _batch_problems(
    batch: Batch,
    tables: Mapping[str, Tally],
    removed: Mapping[tuple[_Key, str], Sequence[tuple[int, Fingerprint]]],
) -> Iterator[str]:
    place, key = f"silver, batch {batch.number}", (batch.generation, batch.number)
    for source, rows in (("bronze", batch.taken), ("the requeue", batch.returned)):
        is_fresh = source == metadata.FRESH
        given = sum(c.rows for c in batch.counts if (c.origin == metadata.FRESH) is is_fresh)
        if rows != given:
            yield f"{place}: it took {rows:,} rows from {source} and gave {given:,} fates"
    for fate in ("silver", "quarantined", "late"):
        counted = Mark.of((count.rows, count.mark) for count in batch.counts if count.fate == fate)
        kept = counted.minus(Mark.of(removed.get((key, fate), ())))
        held = tables[fate].batches.get(key, Mark())
        booked = f"counts {kept.rows:,} rows as {fate}"
        yield from _different(place, kept, held, booked, f" as {fate}")


def _rows_of_no_batch(batches: Sequence[Batch], tables: Mapping[str, Tally]) -> Iterator[str]:
    """Describe rows without a batch number, or in silver with one after the last batch."""
    last = batches[-1] if batches else None
    for fate in ("silver", "quarantined", "late"):
        rows = sum(
            mark.rows
            for (generation, batch), mark in tables[fate].batches.items()
            if generation is None
            or batch is None
            or (last and generation == last.generation and batch > last.number)
        )
        if rows:
            yield f"{rows:,} rows as {fate} are of no batch: another writer inserted them"


@dataclass
class _Partition:
    """A partition's offsets by bronze's commits; None if commits of earlier versions lack them."""

    name: str
    first: int | None
    end: int
    read: int | None = 0
    problems: list[str] = field(default_factory=list)

    def add(self, batch: int, begins: int | None, end: int, read: int | None) -> None:
        what = f"bronze, batch {batch}: it read partition {self.name} from offset {begins} on, and"
        if begins is not None and begins > self.end:
            self.problems.append(f"{what} {_span(self.end, begins)} before that were never read")
        elif begins is not None and begins < self.end:
            self.problems.append(f"{what} {_span(begins, self.end)} had been read before")
        self.end = max(self.end, end)
        self.read = None if read is None or self.read is None else self.read + read


def topic_offsets(
    lake: Lake, bronze: Table, versions: Mapping[str, int], taken: Sequence[Commit]
) -> tuple[dict[str, int], list[str]]:
    """Add up the topic offsets that bronze's batches read; ``taken`` are its commits, newest first.

    Returns:
        Counts: ``offered``, the offsets between the start and the end of the batches, and
        ``taken``, bronze's rows of them; empty if bronze was not filled from Kafka. Then the
        imbalances, by partition.
    """
    partitions = _partitions(taken)
    if not partitions:
        return {}, []
    # Erased rows are recorded by their arrival, not by their partition.
    erased = any(ERASED in commit.note for commit in taken)
    topic, number, offset = (f"split_part(record_id, ':', {part})" for part in (1, 2, 3))
    at = f"CAST({offset} AS BIGINT)"
    columns = f"{topic}, {number}, count(*), min({at}), max({at})"
    found = ask(lake, f"SELECT {columns} FROM {bronze.name} GROUP BY 1, 2", versions).rows
    held = {(name, part): tuple(map(int, numbers)) for name, part, *numbers in found}
    problems: list[str] = []
    offered = 0
    for key, one in partitions.items():
        rows, least, most = held.get(key, (0, 0, -1))
        first = one.first if one.first is not None else least if rows else one.end
        offered += one.end - first
        problems += one.problems
        counted = f"bronze holds {rows:,} rows of partition {one.name}"
        if one.read is not None and rows != one.read and not erased:
            problems.append(f"{counted}, {one.read:,} records were read")
        if rows and (least < first or most >= one.end):
            held_span = f"bronze holds offsets {_span(least, most + 1)} of partition {one.name}"
            problems.append(f"{held_span}, its batches read {_span(first, one.end)}")
        if rows > one.end - first:
            problems.append(f"{counted}, its batches read {one.end - first:,} offsets")
    return {"offered": offered, "taken": sum(rows for rows, *_ in held.values())}, problems


def _partitions(taken: Sequence[Commit]) -> dict[tuple[str, str], _Partition]:
    found: dict[tuple[str, str], _Partition] = {}
    for commit in reversed(taken):
        # An erasure's commit repeats the metadata of the last batch: do not count it twice.
        if commit.batch < 0 or ERASED in commit.note:
            continue
        begins, read = commit.note.get("from"), commit.note.get("read")
        for topic, ends in commit.note.get("offsets", {}).items():
            for number, end in ends.items():
                # A new partition begins at offset 0.
                start = None if begins is None else begins.get(topic, {}).get(number, 0)
                records = None if read is None else read.get(topic, {}).get(number, 0)
                name = f"{number} of {topic}"
                before = start if start is not None else end
                one = found.setdefault((topic, number), _Partition(name, start, before))
                one.add(commit.batch, start, end, records)
    return found


def _span(first: int, end: int) -> str:
    return str(first) if end - first == 1 else f"{first} to {end - 1}"
