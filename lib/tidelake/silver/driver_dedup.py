"""Compare few arrivals in the driver as Arrow arrays, without a Spark job or shuffle.

The rules are those of :mod:`tidelake.silver.dedup`, where Spark compares larger sets.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from datetime import timedelta
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column
from pyspark.sql import functions as F

from tidelake.config.pipeline import Dedup
from tidelake.names import ID_HASH
from tidelake.silver.classify import ORIGIN, PAYLOAD_HASH, ROW
from tidelake.silver.row_sets import NOTHING, Numbers
from tidelake.silver.scope import ARRIVED_AT, DAY, arrival_order

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
_REQUEUED_RECORD = "again"
_OPEN, _SAME, _OTHER = range(3)
_NULL = np.iinfo(np.int64).min


def compared_columns() -> list[Column]:
    """Return the compared columns that :func:`tidelake.silver.scope.arrival_columns` lacks."""
    arrived, _, *others = arrival_order()
    return [
        F.col("event_id"),
        F.when(F.col(ORIGIN) != "bronze", F.col("record_id")).alias(_REQUEUED_RECORD),
        F.unix_micros(arrived).alias("arrived"),
        *others,
    ]


def judge_arrivals(new: pa.Table, accepted: pa.Table, rules: Dedup) -> dict[str, Numbers] | None:
    """Compare rows with accepted rows, then with the first arrivals among themselves.

    Args:
        new: Columns of :func:`compared_columns`, the arrival columns, and ``_number``.
        accepted: Rows with schema :data:`ACCEPTED`.
        rules: The pipeline's dedup rules.

    Returns:
        Row numbers of the repeats, by verdict; None if there are more than :data:`MOST_PAIRS`.
    """
    chunks = [*new["event_id"].chunks, *accepted["event_id"].chunks]
    ids = _codes(pa.chunked_array(chunks, pa.string()))
    order = _in_order_of_arrival(ids[: new.num_rows], new)
    new_ids = ids[: new.num_rows][order]
    # Drop the text columns that only the sort needs.
    new = new.select([ARRIVED_AT, DAY, PAYLOAD_HASH, _REQUEUED_RECORD, NUMBER]).take(
        pa.array(order)
    )
    pairs = _pairs(new_ids, ids[new.num_rows :], accepted)
    if pairs is None:
        return None
    arrivals = _Arrivals(*[new[name].to_numpy() for name in (ARRIVED_AT, DAY, PAYLOAD_HASH)])
    verdicts = np.full(new.num_rows, _OPEN, dtype=np.int8)
    _match_accepted(verdicts, pairs, arrivals, new[_REQUEUED_RECORD], accepted, rules)
    running = np.flatnonzero(verdicts == _OPEN)
    left = _match_firsts(verdicts, running, new_ids[running], arrivals, rules)
    at, day, payload = arrivals
    # Rare: within one batch, an id recurs after the TTL on another date.
    recurring = np.unique(new_ids[left])
    starts, ends = (
        np.searchsorted(new_ids[running], recurring, side) for side in ("left", "right")
    )
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        rows = running[start:end]
        verdicts[rows] = _one_by_one(at[rows].tolist(), day[rows].tolist(), payload[rows], rules)
    numbers = new[NUMBER].to_numpy()
    found = {DUPLICATE: numbers[verdicts == _SAME], CONFLICT: numbers[verdicts == _OTHER]}
    return {verdict: rows for verdict, rows in found.items() if rows.size}


def _in_order_of_arrival(ids: Numbers, new: pa.Table) -> Numbers:
    """Return the row order by id, then arrival."""
    arrived = [new[name].to_numpy() for name in ("arrived", ARRIVED_AT)]
    place = new["position"].fill_null(_NULL).to_numpy()
    keys = [ids, *arrived, _ranks(new["source"]), _ranks(new["place"]), place]
    last = [new[PAYLOAD_HASH].to_numpy(), new[NUMBER].to_numpy()]
    order = _ascending([*keys, *last])
    if np.logical_and.reduce([np.diff(key[order]) == 0 for key in keys]).any():
        # Ties are rare: rank the long row keys only then.
        order = _ascending([*keys, _ranks(new[ROW]), *last])
    return order


def _ascending(keys: Sequence[Numbers]) -> Numbers:
    varied = [key for key in keys if key.size and (key != key[0]).any()]
    return np.lexsort(varied[::-1]) if varied else np.arange(keys[0].size)


def _codes(texts: pa.ChunkedArray) -> Numbers:
    """Encode texts as integers, equal for equal texts; -1 for null."""
    encoded = texts.combine_chunks().dictionary_encode()
    return np.asarray(encoded.indices.fill_null(-1).to_numpy(), dtype=np.int64)


def _ranks(texts: pa.ChunkedArray) -> Numbers:
    """Rank texts in Spark's order: by bytes, null first."""
    encoded = texts.combine_chunks().dictionary_encode()
    ranks = np.empty(len(encoded.dictionary) + 1, dtype=np.int64)
    ranks[pc.array_sort_indices(encoded.dictionary).to_numpy()] = np.arange(ranks.size - 1)
    ranks[-1] = -1
    return np.asarray(ranks[encoded.indices.fill_null(-1).to_numpy()])


def spread(starts: Numbers, counts: Numbers) -> tuple[Numbers, Numbers]:
    """Concatenate ranges of integers; return the integers and the range index of each."""
    of = np.repeat(np.arange(counts.size), counts)
    before = np.cumsum(counts) - counts
    return starts[of] + np.arange(of.size) - before[of], of


_Pairs = tuple[Numbers, Numbers]


class _Arrivals(NamedTuple):
    """Arrival times (microseconds), event dates (days) and payload hashes of rows."""

    at: Numbers
    day: Numbers
    payload: Numbers


def _pairs(new_ids: Numbers, accepted_ids: Numbers, accepted: pa.Table) -> _Pairs | None:
    """Pair each new row with the accepted rows of its id, in order of arrival."""
    # Accepted rows with equal id and arrival are the same record in late and silver, so their
    # order does not matter.
    keys = [
        accepted_ids,
        _micros(accepted["ingested_at"]),
        _flags(accepted["_late"]).astype(np.int64),
    ]
    ordered = _ascending(keys)
    starts = np.searchsorted(accepted_ids[ordered], new_ids, "left")
    counts = np.searchsorted(accepted_ids[ordered], new_ids, "right") - starts
    if counts.sum() > MOST_PAIRS:
        return None
    places, rows = spread(starts, counts)
    return rows, ordered[places]


def _match_accepted(
    verdicts: np.ndarray,
    pairs: _Pairs,
    arrivals: _Arrivals,
    requeued: pa.ChunkedArray,
    accepted: pa.Table,
    rules: Dedup,
) -> None:
    rows, others = pairs
    if not rows.size:
        return
    at, day, payload = arrivals
    accepted_at = _micros(accepted["ingested_at"])[others]
    days = accepted["event_date"].cast(pa.int32()).to_numpy()[others]
    meets = _in_scope(at[rows], day[rows], accepted_at, days, rules)
    if requeued.null_count < len(requeued):
        # A requeued late row is not a duplicate of itself.
        names = pa.chunked_array([*requeued.chunks, *accepted["record_id"].chunks], pa.string())
        codes = _codes(names)
        own, other = codes[: len(requeued)][rows], codes[len(requeued) :][others]
        meets &= ~(_flags(accepted["_late"])[others] & (own == other) & (own >= 0))
    met = np.flatnonzero(meets)
    settled, first = np.unique(rows[met], return_index=True)
    earliest = accepted[PAYLOAD_HASH].to_numpy()[others[met[first]]]
    verdicts[settled] = np.where(payload[settled] == earliest, _SAME, _OTHER)


def _match_firsts(
    verdicts: np.ndarray, running: Numbers, ids: Numbers, arrivals: _Arrivals, rules: Dedup
) -> Numbers:
    """Compare rows with the first arrival of their id; return those out of its scope."""
    if not running.size:
        return NOTHING
    at, day, payload = arrivals
    starts = np.flatnonzero(np.diff(ids, prepend=-1))
    firsts = np.repeat(running[starts], np.diff(starts, append=ids.size))
    meets = _in_scope(at[running], day[running], at[firsts], day[firsts], rules)
    compared = np.where(payload[running] == payload[firsts], _SAME, _OTHER)
    verdicts[running] = np.where(meets & (running != firsts), compared, _OPEN)
    left: Numbers = running[~meets]
    return left


def _one_by_one(at: list[int], day: list[int], payload: Numbers, rules: Dedup) -> list[int]:
    """Compare the rows of a recurring id in order, each with those accepted so far."""
    span = rules.ttl // timedelta(microseconds=1)
    verdicts: list[int] = []
    # Accepted rows by instant and by date; no two are within the TTL of each other.
    instants: list[int] = []
    rows: list[int] = []
    of_day: dict[int, int] = {}
    for row, (instant, date) in enumerate(zip(at, day, strict=True)):
        near = slice(bisect_left(instants, instant - span), bisect_right(instants, instant + span))
        met = rows[near]
        if rules.widened and date in of_day:
            met = [*met, of_day[date]]
        if met:
            verdicts.append(_SAME if payload[row] == payload[min(met)] else _OTHER)
            continue
        verdicts.append(_OPEN)
        instants.insert(near.start, instant)
        rows.insert(near.start, row)
        of_day[date] = row
    return verdicts


def _in_scope(
    at: Numbers, day: Numbers, other_at: Numbers, other_day: Numbers, rules: Dedup
) -> np.ndarray:
    # In both directions: a requeued row may follow rows that arrived after it.
    within = np.abs(at - other_at) <= rules.ttl // timedelta(microseconds=1)
    return np.asarray(within | (day == other_day) if rules.widened else within)


def _micros(instants: pa.ChunkedArray) -> Numbers:
    return np.asarray(instants.cast(pa.int64()).to_numpy())


def _flags(values: pa.ChunkedArray) -> np.ndarray:
    return np.asarray(values.to_numpy(zero_copy_only=False), dtype=np.bool_)
