"""Which fields say what an event is and when it was, each guess with its reason."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import product

from tidelake.scaffold.columns import Column, Payload
from tidelake.scaffold.sample import Sample
from tidelake.scaffold.words import id_rank, is_device, time_rank

# Fewer records tell nothing about which values repeat.
_FEW = 2
# An id of the sender's may be given twice by mistake; those events end up in quarantine.
_UNIQUE = 0.99
_LONG_ID = 16


@dataclass(frozen=True)
class Choice:
    """What was chosen, and why.

    Attributes:
        sql: Over the payload and bronze's columns.
        why: For people.
        column: The column that it is; None for more than a column, or none of the payload's.
    """

    sql: str
    why: str
    column: Column | None = None


def event_ids(sample: Sample, payload: Payload) -> list[Choice]:
    """Rank what could tell events apart, the best first; a record's own place is the last resort.

    Copies of a record do not count against an id: it is there to find them.
    """
    distinct = _distinct(sample)
    ranked = []
    for position, column in enumerate(payload.columns):
        if not column.is_scalar or column.type.kind in ("boolean", "double", "float", "date"):
            continue
        found = _uniqueness(column, distinct)
        name = column.path[-1]
        rank = id_rank(name)
        if found is None or not (rank or _looks_random(column)):
            continue
        if column.clock is not None and column.clock.has_time:
            continue
        # An owner's id may be unique in a small sample by chance.
        share, why = found
        if rank == 1 and len(distinct) < 50 and len(payload.columns) > 1:
            rank = 0
        score = (rank, share, _looks_random(column), -len(column.path), -position)
        if rank or _looks_random(column):
            ranked.append((score, Choice(column.field, why, column)))
    ranked.sort(key=lambda one: one[0], reverse=True)
    of_payload = [*[choice for _, choice in ranked], *_pairs(payload, distinct)]
    why = "each record's place serves, so a copy that is sent again counts as an event of its own"
    if not of_payload:
        why = f"no field tells events apart; {why}"
    return [*of_payload, Choice("record_id", why)]


def event_times(payload: Payload, *, from_topic: bool) -> list[Choice]:
    """Rank what could tell when an event was, the best first."""
    ranked = []
    for position, column in enumerate(payload.columns):
        clock = column.clock
        if clock is None:
            continue
        rank = time_rank(column.path[-1])
        missing = sum(value is None for value in column.values)
        whole = missing == 0
        words = clock.words if clock.has_time else "a date without a time of day"
        why = words + (f", missing in {missing:,}" if missing else ", always there")
        score = (whole, clock.has_time, rank, -len(column.path), -position)
        ranked.append((score, Choice(clock.sql.format(column.field), why, column)))
    ranked.sort(key=lambda one: one[0], reverse=True)
    what = "the record's timestamp in the topic" if from_topic else "the file's last change"
    why = f"{what} serves" if ranked else f"no field tells the time; {what} serves"
    return [*[choice for _, choice in ranked], Choice("source_timestamp", why)]


def instants(choice: Choice, count: int) -> list[datetime | None]:
    """Give the event time of each record of the sample, None where it cannot be told."""
    column = choice.column
    if column is None or column.clock is None:
        return [None] * count
    return [None if v is None else column.clock.read(v) for v in column.values]


def identities(choice: Choice, payload: Payload, count: int) -> list[str | None] | None:
    """Give the id of each record of the sample; None where only Spark could tell."""
    if choice.column is not None:
        return [None if value is None else str(value) for value in choice.column.values]
    pair = next((p for p in _device_times(payload) if _pair_sql(*p) == choice.sql), None)
    if pair is not None:
        values = zip(pair[0].values, pair[1].values, strict=True)
        return [None if a is None or b is None else f"{a}|{b}" for a, b in values]
    return [str(at) for at in range(count)] if choice.sql == "record_id" else None


def in_future(found: Sequence[datetime | None], now: datetime | None = None) -> int:
    """Count the instants that lie ahead."""
    this = now or datetime.now(UTC)
    return sum(one is not None and one > this for one in found)


def _distinct(sample: Sample) -> list[int]:
    """Give the first position of each payload; copies are left out."""
    first: dict[bytes, int] = {}
    for at, record in enumerate(sample.records):
        first.setdefault(record.payload.strip(), at)
    return list(first.values())


def _uniqueness(column: Column, distinct: Sequence[int]) -> tuple[float, str] | None:
    """Give the share of values that are one of a kind, with words for it; None where too few."""
    values = [column.values[at] for at in distinct]
    missing = sum(value is None for value in values)
    different = len({str(value) for value in values if value is not None})
    share = different / len(values)
    if share < _UNIQUE or len(values) < _FEW:
        return None
    why = f"{different:,} values in {len(values):,} different records"
    if missing:
        why += f"; missing in {missing:,}, which go to quarantine"
    if different + missing < len(values):
        why += f"; {len(values) - missing - different:,} given twice, which go to quarantine"
    return share, why


def _looks_random(column: Column) -> bool:
    texts = [value for value in column.values if isinstance(value, str)]
    return bool(texts) and all(
        len(text) >= _LONG_ID and " " not in text and any(c.isdigit() for c in text)
        for text in texts
    )


def _pairs(payload: Payload, distinct: Sequence[int]) -> Iterator[Choice]:
    """Try which device spoke together with when it did."""
    if len(distinct) < _FEW:
        return
    for device, time in _device_times(payload):
        pairs = [(device.values[at], time.values[at]) for at in distinct]
        sound = all(a is not None and b is not None for a, b in pairs)
        if sound and len(set(pairs)) == len(pairs):
            why = (
                f"no single field is unique; {device.shown} and {time.shown} together are, in "
                f"{len(pairs):,} different records"
            )
            yield Choice(_pair_sql(device, time), why)


def _device_times(payload: Payload) -> Iterator[tuple[Column, Column]]:
    devices = [c for c in payload.columns if c.is_scalar and is_device(c.path[-1])]
    times = [c for c in payload.columns if c.clock is not None and c.clock.has_time]
    yield from product(devices, times)


def _pair_sql(device: Column, time: Column) -> str:
    return f"concat_ws('|', {device.field}, {time.field})"
