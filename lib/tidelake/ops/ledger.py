"""Add up the books: what the source offered, what bronze holds, and the fate of each row.

Every term is counted by itself: by the commit that wrote it, by Delta's statistics, and in the
tables; none is derived from another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tidelake.config import Pipeline
from tidelake.delta.log import newest_version
from tidelake.delta.notes import add_up, arrivals_in, erased_rows, position
from tidelake.delta.positions import rows_between
from tidelake.delta.tables import Lake
from tidelake.ops.balance import (
    Batch,
    Tally,
    batch_of,
    problems_of,
    repetitions,
    tally,
)
from tidelake.ops.books import history, require_tables
from tidelake.ops.side import closed_batch
from tidelake.ops.terms import (
    GoldBooks,
    SourceBooks,
    gold_books,
    quarantined_by,
    side_rows,
    source_books,
)
from tidelake.ops.topic_books import TopicBooks, topic_books

_TRIES = 3


@dataclass(frozen=True)
class Ledger:
    """The books of one pipeline.

    Attributes:
        pipeline: Its name.
        records: Records that the source held, counted in a read of its own.
        source: Its files.
        bronze: Rows of bronze.
        erased: Rows that an erasure took out of it.
        fates: Rows by their fate as it now is.
        stages: Rows of quarantine by stage.
        reasons: The same by reason; a row may have several.
        discarded: Rows of quarantine that somebody gave up; they stay there.
        requeued: Rows sent again that silver has not taken yet.
        pending: Rows of bronze that silver has not taken yet.
        gold: By table.
        batches: Silver's batches, oldest first.
        problems: What does not add up; the first is the earliest.
        topics: What was read of topics; None where the source is another.
    """

    pipeline: str
    records: int
    source: SourceBooks
    bronze: int
    erased: int
    fates: Counter[str]
    stages: Mapping[str, int]
    reasons: Mapping[str, int]
    discarded: int
    requeued: int
    pending: int
    gold: Mapping[str, GoldBooks]
    batches: tuple[Batch, ...]
    problems: tuple[str, ...]
    topics: TopicBooks | None = None

    @property
    def balanced(self) -> bool:
        """Tell whether nothing was lost or doubled."""
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        """Give the contract's terms, with what they rest on beside them."""
        source, topics = self.source, self.topics
        offsets = (
            {
                "offered": topics.offered,
                "taken": topics.taken,
                "without_record": topics.offered - self.records,
            }
            if topics
            else {}
        )
        return {
            "pipeline": self.pipeline,
            "source": self.records,
            "bronze": self.bronze,
            "erased": self.erased,
            "silver": self.fates["silver"],
            "duplicates": self.fates["duplicate"],
            "quarantined": self.fates["quarantined"],
            "late": self.fates["late"],
            "filtered": self.fates["filtered"],
            "pending": self.pending,
            "requeued": self.requeued,
            "balanced": self.balanced,
            "problems": list(self.problems),
            "gold": {
                name: {"expected": books.expected, "counted": books.counted}
                for name, books in self.gold.items()
            },
            "conflicts": self.stages.get("conflicting_duplicate", 0),
            "discarded": self.discarded,
            "quarantined_by_stage": dict(self.stages),
            "quarantined_by_reason": dict(self.reasons),
            "source_files": {
                "offered": source.files_offered,
                "taken": source.files_taken,
                "bytes_offered": source.bytes_offered,
                "bytes_taken": source.bytes_taken,
            },
            **({"source_offsets": offsets} if offsets else {}),
        }


def read_ledger(lake: Lake, pipeline: Pipeline) -> Ledger:
    """Read a pipeline's books and hold them against its tables.

    Raises:
        UsageError: The pipeline has not run under this root.
    """
    require_tables(lake, pipeline.name)
    for _ in range(_TRIES):
        before = _versions(lake, pipeline)
        ledger = _read(lake, pipeline)
        # Books that were read while a run was writing may disagree by what came in between.
        if ledger.balanced or _versions(lake, pipeline) == before:
            break
    return ledger


def _read(lake: Lake, pipeline: Pipeline) -> Ledger:
    name = pipeline.name
    # Silver's notes before bronze's: what comes into bronze meanwhile is pending.
    closing = history(lake, lake.silver(name))
    batches = tuple(batch_of(commit) for commit in reversed(closing) if commit.batch >= 0)
    taken = history(lake, lake.bronze(name))
    last = closing[0] if closing else None
    pending = rows_between(lake.bronze(name), position(last, "bronze"))
    requeued = (
        rows_between(lake.requeue(name), position(last, "requeue"))
        if lake.requeue(name).exists
        else 0
    )
    tables = _tallies(lake, name)
    sides = side_rows(lake, name)
    booked = add_up(count for batch in batches for count in batch.counts)
    erased = [one for batch in batches for one in batch.erased]
    fates = Counter(
        silver=tables["silver"].rows,
        duplicate=booked["duplicate"] - erased_rows(erased, "duplicate"),
        quarantined=sides["quarantined"],
        late=sides["late"],
        filtered=booked["filtered"] - erased_rows(erased, "filtered"),
    )
    gold = gold_books(lake, pipeline)
    topics = topic_books(lake, lake.bronze(name), taken)
    return Ledger(
        pipeline=name,
        records=sum(int(commit.note.get("records", 0)) for commit in taken),
        source=source_books(taken, pipeline),
        bronze=tables["bronze"].rows,
        erased=sum(one.rows for one in arrivals_in(taken)),
        fates=fates,
        stages=quarantined_by(lake, name, "stage"),
        reasons=quarantined_by(lake, name, "unnest(reasons)"),
        discarded=sides["discarded"],
        requeued=requeued,
        pending=pending,
        gold=gold,
        batches=batches,
        problems=(
            *_open_erasure(lake, name),
            *repetitions(
                lake, lake.bronze(name), tables["bronze"], {"bronze": taken, "silver": closing}
            ),
            *(topics.problems if topics else ()),
            *problems_of(batches, taken, tables, fates, pending=pending, requeued=requeued),
            *(
                f"gold.{table}: {books.expected:,} events were merged, it counts {books.counted:,}"
                for table, books in gold.items()
                if books.expected != books.counted
            ),
        ),
        topics=topics,
    )


def _open_erasure(lake: Lake, name: str) -> Iterator[str]:
    """Say why the books may not add up: an erasure has begun and not ended."""
    if lake.erasure(name).exists():
        yield (
            "an erasure was interrupted; go on with it: "
            f"tidelake erase {name} --subject COLUMN=VALUE"
        )


def _versions(lake: Lake, pipeline: Pipeline) -> list[int]:
    name = pipeline.name
    tables = [lake.bronze(name), lake.requeue(name), lake.silver(name)]
    return [newest_version(t) for t in [*tables, *map(lake.table, pipeline.gold_names)]]


def _tallies(lake: Lake, name: str) -> dict[str, Tally]:
    closed = closed_batch(lake, name)
    return {
        "bronze": tally(lake, lake.bronze(name), None),
        "silver": tally(lake, lake.silver(name), closed),
        "quarantined": tally(lake, lake.quarantine(name), closed),
        "late": tally(lake, lake.late(name), closed),
    }
