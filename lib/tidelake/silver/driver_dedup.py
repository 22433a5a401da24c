"""Compare arrivals in the driver: few rows, as Arrow arrays, without a job and a shuffle.

The rules are those of :mod:`tidelake.silver.dedup`, which lets Spark compare what is too much here.
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

from tidelake.config.names import ID_HASH
from tidelake.config.pipeline import Dedup
from tidelake.silver.classify import ORIGIN, PAYLOAD_HASH, ROW
from tidelake.silver.row_sets import NOTHING, Numbers
from tidelake.silver.scope import ARRIVED_AT, DAY, arrival_order

# The number of a row in a frame that stays as it is, by monotonically_increasing_id().
NUMBER = "_number"
DUPLICATE = "duplicate"
CONFLICT = "conflict"

# Of an accepted row; the record id of late ones alone.
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
# Pairs of a row and an accepted one of its id, of some fifty bytes each while they are compared.
MOST_PAIRS = 4_000_000
# A late row's own name, for rows that were sent again.
_AGAIN = "again"
_OPEN, _SAME, _OTHER = range(3)
_NULL = np.iinfo(np.int64).min


def compared_columns() -> list[Column]:
    """Give what is compared of a row, beside :func:`tidelake.silver.scope.arrival_columns`."""
    arrived, _, *others = arrival_order()
    return [
        F.col("event_id"),
        F.when(F.col(ORIGIN) != "bronze", F.col("record_id")).alias(_AGAIN),
        F.unix_micros(arrived).alias("arrived"),
        *others,
    ]


def judge_arrivals(new: pa.Table, accepted: pa.Table, rules: Dedup) -> dict[str, Numbers] | None:
    """Judge rows against accepted ones, and then against the first arrivals among themselves.

    Args:
        new: The columns of :func:`compared_columns`, those of the arrival, and ``_number``.
        accepted: Of :data:`ACCEPTED`.
        rules: The pipeline's.

    Returns:
        The numbers of the repeats, by verdict; None where there are too many pairs.
    """
    chunks = [*new["event_id"].chunks, *accepted["event_id"].chunks]
    ids = _codes(pa.chunked_array(chunks, pa.string()))
    order = _in_order_of_arrival(ids[: new.num_rows], new)
    mine = ids[: new.num_rows][order]
    # Without the texts that only the order needs.
    new = new.select([ARRIVED_AT, DAY, PAYLOAD_HASH, _AGAIN, NUMBER]).take(pa.array(order))
    pairs = _pairs(mine, ids[new.num_rows :], accepted)
    if pairs is None:
        return None
    arrivals = _Arrivals(*[new[name].to_numpy() for name in (ARRIVED_AT, DAY, PAYLOAD_HASH)])
    told = np.full(new.num_rows, _OPEN, dtype=np.int8)
    _meet_accepted(told, pairs, arrivals, new[_AGAIN], accepted, rules)
    running = np.flatnonzero(told == _OPEN)
    left = _meet_firsts(told, running, mine[running], arrivals, rules)
    at, day, payload = arrivals
    # Rare: an id that comes back past the TTL on another date within one batch.
    come_back = np.unique(mine[left])
    starts, ends = (np.searchsorted(mine[running], come_back, side) for side in ("left", "right"))
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        rows = running[start:end]
        told[rows] = _one_by_one(at[rows].tolist(), day[rows].tolist(), payload[rows], rules)
    numbers = new[NUMBER].to_numpy()
    found = {DUPLICATE: numbers[told == _SAME], CONFLICT: numbers[told == _OTHER]}
    return {verdict: rows for verdict, rows in found.items() if rows.size}


def _in_order_of_arrival(ids: Numbers, new: pa.Table) -> Numbers:
    """Order rows by id, and those of an id by their arrival."""
    arrived = [new[name].to_numpy() for name in ("arrived", ARRIVED_AT)]
    place = new["position"].fill_null(_NULL).to_numpy()
    keys = [ids, *arrived, _ranks(new["source"]), _ranks(new["place"]), place]
    last = [new[PAYLOAD_HASH].to_numpy(), new[NUMBER].to_numpy()]
    order = _ascending([*keys, *last])
    if np.logical_and.reduce([np.diff(key[order]) == 0 for key in keys]).any():
        # Few records have one place, and only for those the whole text counts.
        order = _ascending([*keys, _ranks(new[ROW]), *last])
    return order


def _ascending(keys: Sequence[Numbers]) -> Numbers:
    varied = [key for key in keys if key.size and (key != key[0]).any()]
    return np.lexsort(varied[::-1]) if varied else np.arange(keys[0].size)


def _codes(texts: pa.ChunkedArray) -> Numbers:
    """Number texts so that equal ones have equal numbers; -1 for null."""
    encoded = texts.combine_chunks().dictionary_encode()
    return np.asarray(encoded.indices.fill_null(-1).to_numpy(), dtype=np.int64)


def _ranks(texts: pa.ChunkedArray) -> Numbers:
    """Number texts in their order, as Spark has it: that of their bytes, null first."""
    encoded = texts.combine_chunks().dictionary_encode()
    ranks = np.empty(len(encoded.dictionary) + 1, dtype=np.int64)
    ranks[pc.array_sort_indices(encoded.dictionary).to_numpy()] = np.arange(ranks.size - 1)
    ranks[-1] = -1
    return np.asarray(ranks[encoded.indices.fill_null(-1).to_numpy()])


def spread(starts: Numbers, counts: Numbers) -> tuple[Numbers, Numbers]:
    """List the numbers of ranges one after the other, and which range each is of."""
    of = np.repeat(np.arange(counts.size), counts)
    before = np.cumsum(counts) - counts
    return starts[of] + np.arange(of.size) - before[of], of


_Pairs = tuple[Numbers, Numbers]


class _Arrivals(NamedTuple):
    """When rows arrived, in microseconds, the dates of their events, in days, and their hashes."""

    at: Numbers
    day: Numbers
    payload: Numbers


def _pairs(mine: Numbers, theirs: Numbers, accepted: pa.Table) -> _Pairs | None:
    """Pair each row with the accepted ones of its id, those that arrived first before others."""
    # Accepted rows of one id and instant are one record, in late and in silver: which of them is
    # first makes no difference.
    keys = [theirs, _micros(accepted["ingested_at"]), _flags(accepted["_late"]).astype(np.int64)]
    ordered = _ascending(keys)
    starts = np.searchsorted(theirs[ordered], mine, "left")
    counts = np.searchsorted(theirs[ordered], mine, "right") - starts
    if counts.sum() > MOST_PAIRS:
        return None
    places, rows = spread(starts, counts)
    return rows, ordered[places]


def _meet_accepted(
    told: np.ndarray,
    pairs: _Pairs,
    arrivals: _Arrivals,
    again: pa.ChunkedArray,
    accepted: pa.Table,
    rules: Dedup,
) -> None:
    rows, others = pairs
    if not rows.size:
        return
    at, day, payload = arrivals
    theirs = _micros(accepted["ingested_at"])[others]
    days = accepted["event_date"].cast(pa.int32()).to_numpy()[others]
    meets = _in_scope(at[rows], day[rows], theirs, days, rules)
    if again.null_count < len(again):
        # A late row that is sent again does not repeat itself.
        names = pa.chunked_array([*again.chunks, *accepted["record_id"].chunks], pa.string())
        codes = _codes(names)
        own, other = codes[: len(again)][rows], codes[len(again) :][others]
        meets &= ~(_flags(accepted["_late"])[others] & (own == other) & (own >= 0))
    met = np.flatnonzero(meets)
    settled, first = np.unique(rows[met], return_index=True)
    earliest = accepted[PAYLOAD_HASH].to_numpy()[others[met[first]]]
    told[settled] = np.where(payload[settled] == earliest, _SAME, _OTHER)


def _meet_firsts(
    told: np.ndarray,
    running: Numbers,
    ids: Numbers,
    arrivals: _Arrivals,
    rules: Dedup,
) -> Numbers:
    """Judge rows against the first of their id; give those that are out of its scope."""
    if not running.size:
        return NOTHING
    at, day, payload = arrivals
    starts = np.flatnonzero(np.diff(ids, prepend=-1))
    firsts = np.repeat(running[starts], np.diff(starts, append=ids.size))
    meets = _in_scope(at[running], day[running], at[firsts], day[firsts], rules)
    verdicts = np.where(payload[running] == payload[firsts], _SAME, _OTHER)
    told[running] = np.where(meets & (running != firsts), verdicts, _OPEN)
    left: Numbers = running[~meets]
    return left


def _one_by_one(at: list[int], day: list[int], payload: Numbers, rules: Dedup) -> list[int]:
    """Judge the rows of an id that comes back out of scope, each against those accepted so far."""
    span = rules.ttl // timedelta(microseconds=1)
    told: list[int] = []
    # Those accepted, by instant and by date. No two of them are within a TTL of each other.
    instants: list[int] = []
    rows: list[int] = []
    of_day: dict[int, int] = {}
    for row, (instant, date) in enumerate(zip(at, day, strict=True)):
        near = slice(bisect_left(instants, instant - span), bisect_right(instants, instant + span))
        met = rows[near]
        if rules.widened and date in of_day:
            met = [*met, of_day[date]]
        if met:
            told.append(_SAME if payload[row] == payload[min(met)] else _OTHER)
            continue
        told.append(_OPEN)
        instants.insert(near.start, instant)
        rows.insert(near.start, row)
        of_day[date] = row
    return told


def _in_scope(
    at: Numbers, day: Numbers, other_at: Numbers, other_day: Numbers, rules: Dedup
) -> np.ndarray:
    # Both ways: a requeued row comes after rows that arrived later than it did.
    within = np.abs(at - other_at) <= rules.ttl // timedelta(microseconds=1)
    return np.asarray(within | (day == other_day) if rules.widened else within)


def _micros(instants: pa.ChunkedArray) -> Numbers:
    return np.asarray(instants.cast(pa.int64()).to_numpy())


def _flags(values: pa.ChunkedArray) -> np.ndarray:
    return np.asarray(values.to_numpy(zero_copy_only=False), dtype=np.bool_)
