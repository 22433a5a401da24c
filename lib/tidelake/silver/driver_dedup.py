"""Compare few arrivals in the driver as Arrow arrays, and ship sets of integers to Spark's rows.

No Spark job or shuffle is needed. The rules are those of :mod:`tidelake.silver.dedup`, where Spark
compares larger sets. Testing rows for membership in a set is faster than a join, which takes five
times as long for 200,000 numbers to build, broadcast and probe its hash table. A small set becomes
an IN expression; a large one becomes a bitmap, which Spark ships to the tasks as the value of a
scalar subquery.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from tidelake.config.pipeline import Dedup
from tidelake.names import ID_HASH
from tidelake.silver.search_bounds import ARRIVED_AT, DAY, arrival_order
from tidelake.silver.stages import ORIGIN, PAYLOAD_HASH, ROW

Numbers = np.ndarray[Any, np.dtype[np.int64]]

_FEW = 1_000
_WORD = 64
# monotonically_increasing_id() holds the partition above these low bits, which number its rows.
_PARTITION_BITS = 33
_WITHIN = (1 << _PARTITION_BITS) - 1
# 32 bits or more per hash (below the cap of 2^26 bits): at most one in 32 other hashes matches by
# chance.
_SPARSE_BITS, _MOST_BITS = 5, 26


def has_number(spark: SparkSession, column: str, numbers: Numbers) -> Column:
    """Return whether a row's number (``monotonically_increasing_id``) is in ``numbers``."""
    if numbers.size <= _FEW:
        return _is_one_of(column, numbers)
    partitions, places = numbers >> _PARTITION_BITS, numbers & _WITHIN
    count = int(partitions.max()) + 1
    sizes = np.zeros(count, dtype=np.int64)
    np.maximum.at(sizes, partitions, places + 1)
    # Layout: start of each partition's bits, size of each partition, then the bits.
    starts = np.cumsum(sizes) - sizes
    bitmap = _bitmap(starts[partitions] + places, int(sizes.sum()))
    shipped = _scalar(spark, np.concatenate((starts, sizes, bitmap)))
    partition = F.shiftright(column, _PARTITION_BITS).cast("int")
    place = F.col(column).bitwiseAND(F.lit(_WITHIN))
    is_known = (partition < count) & (place < F.get(shipped, partition + F.lit(count)))
    bit = F.get(shipped, partition) + place + F.lit(2 * count * _WORD)
    return is_known & _is_set(shipped, bit)


def may_have_hash(spark: SparkSession, column: str, hashes: Numbers) -> Column:
    """Return whether a row's 64-bit hash may be in ``hashes``, with few false positives."""
    if hashes.size <= _FEW:
        return _is_one_of(column, hashes)
    bits = min(int(hashes.size).bit_length() + _SPARSE_BITS, _MOST_BITS)
    # The bitmap is indexed by a hash's leading bits.
    places = (hashes.view(np.uint64) >> np.uint64(64 - bits)).astype(np.int64)
    shipped = _scalar(spark, _bitmap(places, 1 << bits))
    return _is_set(shipped, F.shiftrightunsigned(F.col(column), 64 - bits))


def members(numbers: Numbers, of: Numbers) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return a mask of the numbers that are in the ascending set ``of``."""
    if not of.size:
        return np.zeros(numbers.size, dtype=np.bool_)
    found = np.minimum(np.searchsorted(of, numbers), of.size - 1)
    return np.asarray(of[found] == numbers)


def _is_one_of(column: str, numbers: Numbers) -> Column:
    if not numbers.size:
        return F.lit(False)
    return F.expr(f"{column} IN ({', '.join(f'{number}L' for number in numbers.tolist())})")


def _bitmap(places: Numbers, size: int) -> Numbers:
    words = np.zeros(-(-size // _WORD), dtype=np.uint64)
    set_bits = np.uint64(1) << (places % _WORD).astype(np.uint64)
    np.bitwise_or.at(words, places // _WORD, set_bits)
    return words.view(np.int64)


def _is_set(shipped: Column, place: Column) -> Column:
    word = F.get(shipped, F.shiftright(place, 6).cast("int"))
    return F.getbit(word, place.bitwiseAND(F.lit(_WORD - 1)).cast("int")) == 1


def _scalar(spark: SparkSession, words: Numbers) -> Column:
    """Return an array as a scalar subquery, which each task holds once."""
    array = pa.ListArray.from_arrays(pa.array([0, words.size], pa.int32()), pa.array(words))
    return spark.createDataFrame(pa.table({"words": array})).scalar()


# A row's number by monotonically_increasing_id(), stable because the frame is checkpointed.
NUMBER = "_number"
DUPLICATE = "duplicate"
CONFLICT = "conflict"

# Columns of accepted rows; record_id is set for late rows only.
ACCEPTED = pa.schema(
    [
        ("event_id", pa.string()),
        ("record_id", pa.string()),
        ("event_date", pa.date32()),
        ("ingested_at", pa.timestamp("us", "UTC")),
        (PAYLOAD_HASH, pa.int64()),
        (ID_HASH, pa.int64()),
        ("_late", pa.bool_()),
    ]
)
# Maximum pairs of a new and an accepted row with equal ids; each takes about 50 bytes.
MOST_PAIRS = 4_000_000
# The record id of requeued rows, to recognize the late row that they were requeued from.
_REQUEUED_RECORD = "requeued_record"
# Arrival order within an id. The last column makes it total.
_ORDER = ("arrived", ARRIVED_AT, "source", "place", "position", ROW, PAYLOAD_HASH, NUMBER)
_OPEN, _SAME, _OTHER = range(3)


def compared_columns() -> list[Column]:
    """Return the compared columns that ``search_bounds.arrival_columns`` lacks."""
    arrived, _, *others = arrival_order()
    return [
        F.col("event_id"),
        F.when(F.col(ORIGIN) != "bronze", F.col("record_id")).alias(_REQUEUED_RECORD),
        F.unix_micros(arrived).alias("arrived"),
        *others,
    ]


def judge_arrivals(new: pa.Table, accepted: pa.Table, rules: Dedup) -> dict[str, Numbers] | None:
    """Compare rows with accepted rows, then with the first arrivals among themselves.

    ``new`` has the columns of :func:`compared_columns`, the arrival columns, and ``_number``;
    ``accepted`` has the schema :data:`ACCEPTED`.

    Returns:
        Row numbers of the repeats, by verdict; None if more than :data:`MOST_PAIRS` pairs of a new
        and an accepted row have the same id.
    """
    ids = _codes([*new["event_id"].chunks, *accepted["event_id"].chunks])
    new_ids, accepted_ids = np.split(ids, [new.num_rows])
    # Spark sorts null first, Arrow last.
    position = new["position"].fill_null(np.iinfo(np.int64).min)
    order = _order(new_ids, {**{name: new[name] for name in _ORDER}, "position": position})
    new_ids = new_ids[order]
    # Drop the text columns that only the sort needs.
    kept = [ARRIVED_AT, DAY, PAYLOAD_HASH, _REQUEUED_RECORD, NUMBER]
    new = new.select(kept).take(pa.array(order))
    # Accepted rows with equal id and arrival are the same record in late and silver, so their
    # order does not matter.
    by_arrival = _order(accepted_ids, {name: accepted[name] for name in ("ingested_at", "_late")})
    starts, ends = (
        np.searchsorted(accepted_ids[by_arrival], new_ids, side) for side in ("left", "right")
    )
    if (ends - starts).sum() > MOST_PAIRS:
        return None
    places, rows = spread(starts, ends - starts)
    arrivals = _Arrivals(*[new[name].to_numpy() for name in (ARRIVED_AT, DAY, PAYLOAD_HASH)])
    stored = _Arrivals(
        accepted["ingested_at"].cast(pa.int64()).to_numpy(),
        accepted["event_date"].cast(pa.int32()).to_numpy(),
        accepted[PAYLOAD_HASH].to_numpy(),
    )
    others = by_arrival[places]
    meets = _in_scope(arrivals, rows, stored, others, rules)
    requeued = new[_REQUEUED_RECORD]
    if requeued.null_count < len(requeued):
        # A requeued late row is not a duplicate of itself.
        codes = _codes([*requeued.chunks, *accepted["record_id"].chunks])
        own, other = codes[: len(requeued)][rows], codes[len(requeued) :][others]
        is_late = accepted["_late"].to_numpy(zero_copy_only=False)[others]
        meets &= ~(is_late & (own == other) & (own >= 0))
    met = np.flatnonzero(meets)
    settled, first = np.unique(rows[met], return_index=True)
    is_same = arrivals.payload[settled] == stored.payload[others[met[first]]]
    verdicts = np.full(new.num_rows, _OPEN, dtype=np.int8)
    verdicts[settled] = np.where(is_same, _SAME, _OTHER)
    _match_firsts(verdicts, arrivals, new_ids, rules)
    numbers = new[NUMBER].to_numpy()
    found = {DUPLICATE: numbers[verdicts == _SAME], CONFLICT: numbers[verdicts == _OTHER]}
    return {verdict: repeats for verdict, repeats in found.items() if repeats.size}


def _order(ids: Numbers, columns: dict[str, pa.ChunkedArray]) -> Numbers:
    """Return the row order by id, then by the columns; texts by bytes, as in Spark."""
    table = pa.table({"_id": ids, **columns})
    keys = [(name, "ascending") for name in table.column_names]
    return np.asarray(pc.sort_indices(table, sort_keys=keys).to_numpy(), dtype=np.int64)


def _codes(chunks: Iterable[pa.Array]) -> Numbers:
    """Encode texts as integers, equal for equal texts; -1 for null."""
    encoded = pa.chunked_array(chunks, pa.string()).combine_chunks().dictionary_encode()
    return np.asarray(encoded.indices.fill_null(-1).to_numpy(), dtype=np.int64)


def spread(starts: Numbers, counts: Numbers) -> tuple[Numbers, Numbers]:
    """Concatenate ranges of integers; return the integers and the range index of each."""
    of = np.repeat(np.arange(counts.size), counts)
    before = np.cumsum(counts) - counts
    return starts[of] + np.arange(of.size) - before[of], of


class _Arrivals(NamedTuple):
    """Arrival times (microseconds), event dates (days) and payload hashes of rows."""

    at: Numbers
    day: Numbers
    payload: Numbers


def _in_scope(
    arrivals: _Arrivals, rows: Numbers, others: _Arrivals, other_rows: Numbers, rules: Dedup
) -> np.ndarray:
    # In both directions: a requeued row may follow rows that arrived after it.
    apart = np.abs(arrivals.at[rows] - others.at[other_rows])
    within = apart <= rules.ttl // timedelta(microseconds=1)
    if not rules.widened:
        return np.asarray(within)
    return np.asarray(within | (arrivals.day[rows] == others.day[other_rows]))


def _match_firsts(verdicts: np.ndarray, arrivals: _Arrivals, ids: Numbers, rules: Dedup) -> None:
    """Compare the rows without a verdict with the first arrival of their id among them."""
    running = np.flatnonzero(verdicts == _OPEN)
    if not running.size:
        return
    ids = ids[running]
    starts = np.flatnonzero(np.diff(ids, prepend=-1))
    firsts = np.repeat(running[starts], np.diff(starts, append=ids.size))
    meets = _in_scope(arrivals, running, arrivals, firsts, rules)
    is_same = arrivals.payload[running] == arrivals.payload[firsts]
    compared = np.where(is_same, _SAME, _OTHER)
    verdicts[running] = np.where(meets & (running != firsts), compared, _OPEN)
    # Rare: within one batch, an id recurs after the TTL on another date.
    recurring = np.unique(ids[~meets])
    starts, ends = (np.searchsorted(ids, recurring, side) for side in ("left", "right"))
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        of_id = running[start:end]
        at, days, payloads = (column[of_id].tolist() for column in arrivals)
        verdicts[of_id] = _one_by_one(at, days, payloads, rules)


def _one_by_one(at: list[int], days: list[int], payloads: list[int], rules: Dedup) -> list[int]:
    """Compare the rows of a recurring id in order, each with those accepted so far."""
    span = rules.ttl // timedelta(microseconds=1)
    verdicts: list[int] = []
    # Accepted rows by instant and by date; no two are within the TTL of each other.
    instants: list[int] = []
    rows: list[int] = []
    of_day: dict[int, int] = {}
    for row, (instant, day) in enumerate(zip(at, days, strict=True)):
        near = slice(bisect_left(instants, instant - span), bisect_right(instants, instant + span))
        met = rows[near]
        if rules.widened and day in of_day:
            met = [*met, of_day[day]]
        if met:
            verdicts.append(_SAME if payloads[row] == payloads[min(met)] else _OTHER)
            continue
        verdicts.append(_OPEN)
        instants.insert(near.start, instant)
        rows.insert(near.start, row)
        of_day[day] = row
    return verdicts
