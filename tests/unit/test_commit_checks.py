"""What does not add up is said, by batch and in words; errors that cancel out too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.unit.handmade import fingerprint_of, sum_of, write_rows
from tidelake.delta.commit_metadata import (
    Arrival,
    Deduction,
    FateCount,
    arrivals_in,
    arrivals_note,
    deductions_note,
)
from tidelake.delta.log import ERASED, Commit
from tidelake.delta.tables import Lake
from tidelake.fingerprints import (
    DUCKDB_SUM,
    DUCKDB_XOR,
    EMPTY,
    IN_SPARK,
    Fingerprint,
    combined,
    fingerprint,
)
from tidelake.ledger.commit_checks import (
    Batch,
    Mark,
    Tally,
    altered_batches,
    problems_of,
    tally,
    tally_bronze,
)
from tidelake.ledger.side_tables import in_closed_batch
from tidelake.ledger.terms import ledger_by

NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)
A, B, C, D, E = "f:a", "f:b", "f:c", "f:d", "f:e"
STRANGE = [
    "",
    " ",
    "a b",
    "it's",
    'a"b',
    "a\\b",
    "a\nb",
    "\0",
    "ü",
    "e\u0301",
    "\U0001f600",
    "file:///a%20b/%C3%BC.json:12",
    "topic:0:9223372036854775807",
    "x" * 10_000,
]


def fated(fate: str, *ids: str, stage: str | None = None, origin: str = "bronze") -> FateCount:
    return FateCount(fate, stage, origin, len(ids), fingerprint_of(ids), sum_of(ids))


def batch(number: int, *counts: FateCount, taken: int | None = None, returned: int = 0) -> Batch:
    rows = sum(count.rows for count in counts) - returned if taken is None else taken
    return Batch(number, "g1", NOON, rows, returned, counts)


def commit(number: int, *ids: str, rows: int | None = None, **note: Any) -> Commit:
    said = {"records": len(ids), "fingerprint": fingerprint_of(ids), "id_sum": sum_of(ids), **note}
    written = len(ids) if rows is None else rows
    return Commit(number + 1, NOON, written, {"generation": "g1", "batch": number, **said})


def mark(*ids: str) -> Mark:
    return Mark(len(ids), Fingerprint(fingerprint_of(ids), sum_of(ids)))


def held(**batches: Iterable[str]) -> Tally:
    """Make a tally: ids by the batch that wrote them, as ``b0=[...]``."""
    return Tally({("g1", int(name[1:])): mark(*ids) for name, ids in batches.items()})


BATCHES = [
    batch(0, fated("silver", A, B), fated("duplicate", C)),
    batch(1, fated("quarantined", D, stage="parse"), fated("late", E)),
]
TAKEN = [commit(1, D, E), commit(0, A, B, C), Commit(0, NOON, 0, {"generation": "g1", "batch": -1})]
TABLES = {
    "bronze": held(b0=[A, B, C, D, E]),
    "silver": held(b0=[A, B]),
    "quarantined": held(b1=[D]),
    "late": held(b1=[E]),
}
FATES = Counter(silver=2, duplicate=1, quarantined=1, late=1)


def problems(
    *,
    batches: list[Batch] | None = None,
    taken: list[Commit] | None = None,
    fates: Counter[str] | None = None,
    pending: int = 0,
    requeued: int = 0,
    **tables: Tally,
) -> list[str]:
    return list(
        problems_of(
            BATCHES if batches is None else batches,
            TAKEN if taken is None else taken,
            {**TABLES, **tables},
            FATES if fates is None else fates,
            pending=pending,
            requeued=requeued,
        )
    )


def test_books_in_order_have_no_problem() -> None:
    assert problems() == []


def test_bronze_that_wrote_less_than_the_source_held_is_told_by_batch() -> None:
    more = commit(1, D, E, "f:x", rows=2)
    assert problems(taken=[more, *TAKEN[1:]])[0] == (
        "bronze, batch 1: the source held 3 records, 2 rows were written"
    )


def test_bronze_that_delta_did_not_count_holds_nothing_by_its_commits() -> None:
    uncounted = Commit(2, NOON, None, TAKEN[0].note)
    assert problems(taken=[uncounted, *TAKEN[1:]]) == [
        "bronze, batch 1: the source held 2 records, 0 rows were written",
        "bronze: its commits wrote 3 rows, it holds 5",
    ]


def test_bronze_that_lost_a_row_since_it_was_written_is_told() -> None:
    assert problems(bronze=held(b0=[A, B, C, D])) == [
        "bronze: its commits wrote 5 rows, it holds 4",
        "bronze holds 4 rows, 5 have a fate or wait for one",
        "bronze holds 4 rows, silver took 5 and 0 wait",
    ]


def test_bronze_that_lost_one_row_and_doubled_another_is_told_by_its_fingerprint() -> None:
    assert problems(bronze=held(b0=[A, B, C, D, D])) == [
        "bronze: it holds as many rows as its commits wrote, but not the same ones",
        "silver took as many rows as bronze holds, but not the same ones",
    ]


def test_two_equal_rows_in_place_of_two_other_equal_ones_are_told_by_their_sum() -> None:
    twice = [commit(2, A, A), *TAKEN]
    assert problems(taken=twice, bronze=held(b0=[A, B, C, D, E, B, B]))[0] == (
        "bronze: it holds as many rows as its commits wrote, but not the same ones"
    )


def test_rows_of_no_batch_and_of_one_after_the_last_are_named() -> None:
    last = BATCHES[-1]
    keys = [*TABLES["silver"].batches, (None, None), (last.generation, last.number + 1)]
    marks = [*TABLES["silver"].batches.values(), Mark(1), Mark(2)]
    more = Tally(dict(zip(keys, marks, strict=True)))
    assert problems(silver=more) == [
        "3 rows as silver are of no batch: another writer inserted them"
    ]


# Batches arrived at noon, a minute later, and again a minute later as the clock was set back.
_MINUTE = NOON + timedelta(minutes=1)
_ARRIVED = ((NOON, [A, B]), (_MINUTE, [C]), (_MINUTE, [D, E]))


def arrived(at: datetime, ids: Iterable[str]) -> str:
    rows = ", ".join(f"('{one}', TIMESTAMPTZ '{at}')" for one in ids)
    return f"SELECT * FROM (VALUES {rows}) AS t(record_id, ingested_at)"


def altered(lake: Lake, *, erased: Sequence[Arrival] = ()) -> list[str]:
    taken = [
        commit(number, *ids, ingested_at=at.isoformat())
        for number, (at, ids) in enumerate(_ARRIVED)
    ]
    if erased:
        taken.append(commit(2, **{**taken[-1].note, ERASED: arrivals_note("now", erased)}))
    bronze = lake.bronze("shop")
    return list(altered_batches(lake, bronze, {}, tally_bronze(lake, bronze, {}), taken[::-1]))


@pytest.fixture
def bronze(tmp_path: Path) -> Lake:
    lake = Lake(tmp_path)
    for number, (at, ids) in enumerate(_ARRIVED):
        write_rows(lake.bronze("shop"), arrived(at, ids), note={"batch": number})
    return lake


def test_a_batch_of_bronze_that_was_altered_is_told(bronze: Lake) -> None:
    assert altered(bronze) == []
    stored = DeltaTable(str(bronze.bronze("shop").path))
    stored.delete(f"record_id = '{B}'")
    assert altered(bronze) == [
        "bronze, batch 0: its commit wrote 2 rows that were not erased, the table has 1"
    ]
    write_rows(bronze.bronze("shop"), arrived(NOON, [A]), note={})
    assert altered(bronze) == ["bronze, batch 0: its commit and the table have different rows"]
    stored.update_incremental()
    stored.delete(f"record_id = '{E}'")
    assert altered(bronze)[1:] == [
        "bronze, batch 1 and 2: its commit wrote 3 rows that were not erased, the table has 2"
    ]


def test_rows_of_bronze_that_no_batch_wrote_are_told(bronze: Lake) -> None:
    later = NOON + timedelta(hours=1)
    write_rows(bronze.bronze("shop"), arrived(later, ["f:x"]), note={})
    assert altered(bronze) == [
        "bronze holds 1 rows that arrived at 2024-01-01 13:00:00+00:00, which no batch wrote"
    ]


def test_what_was_erased_from_a_batch_of_bronze_does_not_alter_it(bronze: Lake) -> None:
    stored = DeltaTable(str(bronze.bronze("shop").path))
    stored.delete(f"record_id IN ('{A}', '{C}')")
    erased = [
        Arrival(at, 1, fingerprint_of([one]), 0, sum_of([one]))
        for at, one in ((NOON, A), (_MINUTE, C))
    ]
    assert altered(bronze, erased=erased) == []
    stored.delete(f"record_id = '{B}'")
    assert altered(bronze, erased=erased) == [
        "bronze, batch 0: its commit wrote 1 rows that were not erased, the table has 0"
    ]


def test_commits_of_earlier_versions_are_compared_by_what_they_have() -> None:
    """They carry the exclusive or alone; so does the total of books with one of them."""
    del (older := commit(0, A, B, C)).note["id_sum"]
    fates = FateCount("silver", None, "bronze", 2, fingerprint_of([A, B]))
    batches = [batch(0, fates, fated("duplicate", C)), BATCHES[1]]
    taken = [TAKEN[0], older, TAKEN[2]]
    assert problems(batches=batches, taken=taken) == []
    assert problems(batches=batches, taken=taken, bronze=held(b0=[A, B, C, D, D])) == [
        "bronze: it holds as many rows as its commits wrote, but not the same ones",
        "silver took as many rows as bronze holds, but not the same ones",
    ]
    assert problems(batches=batches, taken=taken, silver=held(b0=[A, A])) == [
        "silver, batch 0: its commit and the table have different rows as silver"
    ]
    short = commit(1, **{ERASED: {"by": "x", "arrivals": [[NOON.isoformat(), 2, 5, 0]]}})
    assert arrivals_in([short]) == [Arrival(NOON, 2, 5, 0)]


def test_a_batch_that_gave_fewer_fates_than_it_took_rows_is_told() -> None:
    lost = batch(1, *BATCHES[1].counts, taken=3)
    assert problems(batches=[BATCHES[0], lost]) == [
        "silver, batch 1: it took 3 rows from bronze and gave 2 fates"
    ]


def test_batches_whose_errors_cancel_each_other_are_both_told() -> None:
    first = batch(0, *BATCHES[0].counts, taken=4)
    second = batch(1, *BATCHES[1].counts, taken=1)
    assert problems(batches=[first, second]) == [
        "silver, batch 0: it took 4 rows from bronze and gave 3 fates",
        "silver, batch 1: it took 1 rows from bronze and gave 2 fates",
    ]


def test_rows_from_the_requeue_are_booked_apart() -> None:
    back = batch(2, fated("silver", D, origin="quarantine"), taken=0, returned=1)
    now = Counter(silver=3, duplicate=1, late=1)
    silver = held(b0=[A, B], b2=[D])
    assert problems(batches=[*BATCHES, back], fates=now, silver=silver) == []

    mixed = batch(2, fated("silver", D, origin="quarantine"), taken=1, returned=0)
    assert problems(batches=[*BATCHES, mixed], fates=now, silver=silver) == [
        "silver, batch 2: it took 1 rows from bronze and gave 0 fates",
        "silver, batch 2: it took 0 rows from the requeue and gave 1 fates",
    ]


@pytest.mark.parametrize(
    ("fate", "number", "lost", "swapped"),
    [
        ("silver", 0, held(b0=[A]), held(b0=[A, "f:x"])),
        ("quarantined", 1, held(), held(b1=["f:x"])),
        ("late", 1, held(b0=[E]), held(b1=["f:x"])),
    ],
)
def test_a_table_that_does_not_hold_what_is_booked_is_told(
    fate: str, number: int, lost: Tally, swapped: Tally
) -> None:
    booked = 2 if fate == "silver" else 1
    told = (
        f"silver, batch {number}: its commit counts {booked} rows as {fate}, "
        f"the table has {booked - 1}"
    )
    assert told in problems(**{fate: lost})
    assert problems(**{fate: swapped}) == [
        f"silver, batch {number}: its commit and the table have different rows as {fate}"
    ]


def test_rows_in_the_wrong_batch_are_told_though_the_sums_agree() -> None:
    assert problems(
        batches=[BATCHES[0], BATCHES[1], batch(2, fated("silver", "f:x"), taken=1)],
        silver=held(b0=[A, B, "f:x"]),
    )[:2] == [
        "silver, batch 0: its commit counts 2 rows as silver, the table has 3",
        "silver, batch 2: its commit counts 1 rows as silver, the table has 0",
    ]


def test_a_row_of_a_generation_that_is_not_booked_is_no_row_of_the_booked_one() -> None:
    other = Tally({("g2", 0): mark(A, B)})
    told = "silver, batch 0: its commit counts 2 rows as silver, the table has 0"
    assert told in problems(silver=other)


def test_a_row_without_a_fate_that_does_not_wait_is_told() -> None:
    assert problems(fates=Counter(silver=2, duplicate=1, quarantined=1)) == [
        "bronze holds 5 rows, 4 have a fate or wait for one"
    ]
    assert problems(fates=Counter(silver=2, duplicate=1, late=1), requeued=1) == []


def test_a_row_that_silver_took_twice_in_place_of_another_is_told() -> None:
    twice = batch(0, fated("silver", A, B), fated("duplicate", A))
    assert problems(batches=[twice, BATCHES[1]]) == [
        "silver took as many rows as bronze holds, but not the same ones"
    ]


def test_rows_that_wait_are_neither_lost_nor_taken() -> None:
    only = [BATCHES[0]]
    none = {"quarantined": held(), "late": held()}
    waiting = Counter(silver=2, duplicate=1)
    assert problems(batches=only, fates=waiting, pending=2, **none) == []
    assert problems(batches=only, fates=waiting, pending=1, **none) == [
        "bronze holds 5 rows, 4 have a fate or wait for one",
        "bronze holds 5 rows, silver took 3 and 1 wait",
    ]


def test_the_earliest_problem_comes_first() -> None:
    wrong = batch(0, *BATCHES[0].counts, taken=9)
    broken = commit(1, D, E, records=9)
    assert problems(batches=[wrong, BATCHES[1]], taken=[broken, *TAKEN[1:]]) == [
        "bronze, batch 1: the source held 9 records, 2 rows were written",
        "silver, batch 0: it took 9 rows from bronze and gave 3 fates",
    ]


def test_a_batch_is_read_from_silvers_commit() -> None:
    counts = [
        ["silver", None, "bronze", 2, 5],
        ["quarantined", "conflicting_duplicate", "bronze", 1, 6],
        ["quarantined", "parse", "late", 4, 7],
    ]
    note = {
        "generation": "g2",
        "batch": 3,
        "watermark_in": None,
        "watermark": "2024-01-01T12:00:00+00:00",
        "partitions": {},
        "counts": counts,
        "taken": {"bronze": 3, "requeue": 4},
        "until": {},
        "warnings": {},
        "dedup": {"searched": 0, "seconds": 0.0},
        "prefiltered": None,
        "columns": [],
    }
    found = Batch.of(Commit(4, NOON, 2, note))

    assert (found.generation, found.number, found.taken, found.returned) == ("g2", 3, 3, 4)
    fresh = sum(count.rows for count in found.counts if count.origin == "bronze")
    (line,) = ledger_by([found], "batch")
    assert (fresh, line.fates.total() - fresh, line.conflicts) == (3, 4, 1)
    assert (line.fates["silver"], line.fates["quarantined"]) == (2, 5)
    assert found.closed_at == NOON


def test_a_table_is_tallied_by_the_batch_that_wrote_each_row_and_open_ones_are_left_out(
    tmp_path: Path,
) -> None:
    lake = Lake(tmp_path)
    rows = ", ".join(
        f"('{one}', '{generation}', {number})"
        for one, generation, number in [
            (A, "g1", 0),
            (B, "g1", 1),
            (C, "g1", 1),
            (D, "g1", 2),
            (E, "g0", 9),
        ]
    )
    # Another writer inserted one of no batch.
    values = f"{rows}, ('g', NULL, NULL)"
    sql = f"SELECT * FROM (VALUES {values}) AS t(record_id, _generation, _batch)"
    write_rows(lake.silver("shop"), sql, note={})

    found = tally(lake, lake.silver("shop"), {}, in_closed_batch(commit(1)))
    assert found.batches == {
        ("g1", 0): mark(A),
        ("g1", 1): mark(B, C),
        ("g0", 9): mark(E),
        (None, None): mark("g"),
    }
    assert found.total == mark(A, B, C, E, "g")
    whole = tally_bronze(lake, lake.silver("shop"), {})
    assert whole.batches == {("", 0): mark(A, B, C, D, E, "g")}


def test_a_table_that_is_missing_or_empty_has_nothing(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    assert tally(lake, lake.bronze("shop"), {}) == Tally({})

    write_rows(lake.bronze("shop"), "SELECT 'x' AS record_id WHERE FALSE", note={})
    assert tally_bronze(lake, lake.bronze("shop"), {}) == Tally({("", 0): Mark(0, EMPTY)}, 0)


def test_spark_duckdb_and_python_agree_on_the_fingerprint_of_strange_ids(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = Lake(tmp_path)
    rows = spark.createDataFrame(list(enumerate(STRANGE)), "n int, record_id string")
    stored = rows.withColumns({"_generation": F.lit("g1"), "_batch": F.col("n").cast("bigint")})
    stored.coalesce(1).write.format("delta").save(str(lake.silver("shop").path))

    by_id = {
        row["n"]: Fingerprint.of(*row["mark"])
        for row in rows.groupBy("n").agg(fingerprint().alias("mark")).collect()
    }
    found = tally(lake, lake.silver("shop"), {})

    assert by_id == {n: mark(one).fingerprint for n, one in enumerate(STRANGE)}
    assert {number: told.fingerprint for (_, number), told in found.batches.items()} == by_id
    assert combined(by_id.values()) == found.total.fingerprint == mark(*STRANGE).fingerprint
    assert all(0 <= told.xor < 1 << 60 for told in by_id.values())


def test_sums_past_64_bits_fail_nowhere_and_are_the_same_everywhere(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Eighty of these numbers exceed what Spark's BIGINT holds, and its sum fails there."""
    lake, ids = Lake(tmp_path), [f"f:{n}" for n in range(40)] * 2
    rows = spark.createDataFrame(
        [(one, "g1", 0) for one in ids], "record_id string, _generation string, _batch bigint"
    )
    rows.coalesce(1).write.format("delta").save(str(lake.silver("shop").path))
    found = rows.agg(fingerprint().alias("mark")).collect()[0]["mark"]
    in_sql = rows.selectExpr(IN_SPARK[DUCKDB_XOR], IN_SPARK[DUCKDB_SUM]).collect()[0]
    stored = tally(lake, lake.silver("shop"), {}).batches["g1", 0]
    assert Fingerprint.of(*found) == Fingerprint.of(*in_sql) == stored.fingerprint
    assert stored == mark(*ids)
    # Every id is there twice, so that nothing of them is left in the exclusive or.
    assert (stored.fingerprint.xor, stored.fingerprint.total == 0) == (0, False)


def test_no_rows_have_the_fingerprint_zero(spark: SparkSession) -> None:
    nothing = spark.createDataFrame([], "record_id string").agg(fingerprint().alias("mark"))
    assert Fingerprint.of(*nothing.collect()[0]["mark"]) == combined([]) == EMPTY


# B and C, an accepted event and its copy, were erased; the delete wrote A again.
_GONE = [Arrival(NOON, 2, fingerprint_of([B, C]), 0, sum_of([B, C]), 0)]
_ERASED = [
    commit(1, rows=1, **{ERASED: arrivals_note("now", _GONE)}),
    *TAKEN,
]
_BEHIND = Batch(
    1,
    "g2",
    NOON,
    0,
    0,
    (),
    (
        Deduction("g1", 0, "silver", 1, fingerprint_of([B]), sum_of([B])),
        Deduction("", -1, "duplicate", 1, 0, 0),
        Deduction("", -1, "bronze", 2, fingerprint_of([B, C]), sum_of([B, C])),
    ),
)


def after_erasure(**tables: Tally) -> list[str]:
    left = {"bronze": held(b0=[A, D, E]), "silver": held(b0=[A]), **tables}
    held_rows = left["silver"].total.rows
    fates = Counter(silver=held_rows, duplicate=0, quarantined=1, late=1, filtered=0)
    return problems(batches=[*BATCHES, _BEHIND], taken=_ERASED, fates=fates, **left)


def test_books_add_up_less_what_was_erased() -> None:
    assert after_erasure() == []


def test_a_row_that_is_lost_beside_an_erasure_is_told() -> None:
    assert after_erasure(silver=held()) == [
        "silver, batch 0: its commit counts 1 rows as silver, the table has 0",
        "bronze holds 3 rows, 2 have a fate or wait for one",
    ]
    assert after_erasure(bronze=held(b0=[A, D])) == [
        "bronze: its commits wrote 5 rows and 2 were erased, it holds 2",
        "bronze holds 2 rows, 3 have a fate or wait for one",
        "bronze holds 2 rows, silver took 5, less 2 that were erased, and 0 wait",
    ]


def test_another_row_that_went_instead_of_the_erased_one_is_told() -> None:
    assert after_erasure(silver=held(b0=[B]), bronze=held(b0=[B, D, E])) == [
        "bronze: it holds as many rows as its commits wrote, but not the same ones",
        "silver, batch 0: its commit and the table have different rows as silver",
        "silver took as many rows as bronze holds, but not the same ones",
    ]


def test_what_notes_say_of_an_erasure_is_read_back() -> None:
    told = deductions_note("now", _BEHIND.erased)
    read = Commit(3, NOON, 0, {"generation": "g2", "batch": 1, ERASED: told})
    assert Batch.of(read).erased == _BEHIND.erased
    assert read.added_rows == _ERASED[0].added_rows == 0
