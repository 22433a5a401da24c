"""Guess event id, event time, lateness, gold table and rules from a sample, with reasons."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import product
from typing import Any, TypeVar

from tidelake.cli.init.field_names import TIMES, has_word, is_money, words_of
from tidelake.cli.init.payload import SUMMED_DIGITS, Column, Payload, sql_name
from tidelake.cli.init.sample import Record, Sample
from tidelake.config.model import written
from tidelake.instants import lasting
from tidelake.names import GOLD_RESERVED
from tidelake.visible import shortened

_KINDS = (
    "action category channel class country currency event kind level method operation platform "
    "region severity source state status type"
)
# Devices send one reading at a time, so device and time identify it; a user may send two a second.
_DEVICES = "device machine meter node plant probe sensor station turbine vehicle"
_OWNERS = (
    "account client customer host member owner parent player product session shop sku store "
    f"subject tenant user visitor {_DEVICES}"
)
_COORDINATES = "lat latitude lng lon long longitude"
_IDS = "guid id key oid uid uuid"


def _is_owner(name: str) -> bool:
    """Return whether a field of this name identifies the event's owner, not the event."""
    return has_word(name, _OWNERS) and "agent" not in words_of(name)


def _is_bare_id(name: str) -> bool:
    """Return whether a field within an object identifies what the object is: ``id``."""
    words = words_of(name)
    return bool(words) and set(words) <= set(_IDS.split())


def _is_kind(name: str) -> bool:
    """Return whether a field of this name holds one of few kinds; its last word decides."""
    return not set(words_of(name)[-1:]).isdisjoint(_KINDS.split())


def _id_rank(path: Sequence[str]) -> int:
    """Rank how likely a field is the event id, from 0 to 4; ``device.id`` is that of an owner."""
    words = words_of(path[-1])
    if not has_word(path[-1], _IDS):
        return 0
    if "event" in words:
        return 4
    if _is_owner(path[-1]) or (_is_bare_id(path[-1]) and any(map(_is_owner, path[:-1]))):
        return 1
    return 4 if words in (("uuid",), ("guid",)) else 3


def _time_rank(name: str) -> int:
    """Rank how likely a name is that of the event time, from 0 to 4."""
    if not has_word(name, TIMES):
        return 0
    if has_word(name, "updated modified expires expiry due birth ingested received"):
        return 1
    return 4 if has_word(name, "event occurred timestamp ts") else 3


# A date in a text, with the year first or last.
_DATE = (
    "(?<![0-9])(?:19|20)[0-9]{2}[-/. ][0-9]{1,2}[-/. ][0-9]"
    "|(?<![0-9])[0-9]{1,2}(?:[-/. ][0-9A-Za-z]+)?[-/., ]+(?:19|20)[0-9]{2}(?![0-9.])"
)
_STEPS = tuple(
    timedelta(**{unit: number})
    for unit, numbers in (
        ("minutes", (1, 2, 5, 10, 15, 30)), ("hours", (1, 2, 6, 12)), ("days", (1, 2, 7, 14, 30))
    )
    for number in numbers
)  # fmt: skip
_MOST_ON_TIME = 0.99
_DEFAULT_DELAY, _A_DAY = timedelta(minutes=10), timedelta(days=1)
_FEW_TIMES = 20
# A record further behind has an unset clock, such as Go's zero time, the Unix epoch, or the year
# 2000 of a device. It says nothing about lateness.
_FARTHEST_YEARS = 10


@dataclass(frozen=True)
class Lateness:
    """The watermark delay and allowed lateness, with the reason."""

    delay: timedelta
    allowed: timedelta
    why: str


def lateness_in_table(times: Sequence[datetime | None], records: Sequence[Record]) -> Lateness:
    """Derive the lateness from how far rows of a Delta table trail those of earlier commits.

    Rows of one commit arrive together, in no order. A commit may be unknown, for example of rows
    that a compaction rewrote; then the default is taken.
    """
    timed = [(r.commit, at) for r, at in zip(records, times, strict=True) if at is not None]
    commits = {record.commit for record in records}
    if None in commits or len(commits) < 2:
        why = "the sample does not show in which order the rows of the table arrived; the default"
        return Lateness(_DEFAULT_DELAY, _A_DAY, why)
    in_order = [at for _, at in sorted(timed)]
    return lateness_of(in_order, ["table"] * len(in_order))


def lateness_of(times: Sequence[datetime | None], partitions: Sequence[str]) -> Lateness:
    """Derive the lateness from how far events trail the latest event of their partition.

    Times and partitions are in order of arrival.
    """
    newest: dict[str, datetime] = {}
    behind = []
    for instant, partition in zip(times, partitions, strict=True):
        if instant is None:
            continue
        latest = newest.setdefault(partition, instant)
        behind.append(max(latest - instant, timedelta(0)))
        newest[partition] = max(latest, instant)
    near = sorted(one for one in behind if one <= timedelta(days=365 * _FARTHEST_YEARS))
    far, left_out = len(behind) - len(near), ""
    if far:
        share = f"{far:,} of {len(behind):,} records"
        left_out = f"; {share} are more than {_FARTHEST_YEARS} years behind and left out"
    if len(near) < _FEW_TIMES:
        why = f"too few event times in the sample{left_out}; the default"
        return Lateness(_DEFAULT_DELAY, _A_DAY, why)
    usual, most = near[int(len(near) * _MOST_ON_TIME) - 1], near[-1]
    delay = step_above(usual)
    allowed = max(_A_DAY, step_above(max(most - delay, timedelta(0))))
    if not most:
        return Lateness(delay, allowed, f"the sample is in order{left_out}")
    behind_text = f"at most {lasting(usual)} after a later one, all at most {lasting(most)}"
    return Lateness(delay, allowed, f"99 of 100 records arrive {behind_text}{left_out}")


def step_above(length: timedelta) -> timedelta:
    """Round up to the next customary duration, such as 5 minutes or 1 hour."""
    return next((step for step in _STEPS if step >= length), timedelta(days=length.days + 1))


# Below 1 because a sender may reuse an id by mistake; such events are quarantined.
_UNIQUE = 0.99
_LONG_ID = 16
_FEW_OWNERS = 50
_T = TypeVar("_T")


@dataclass(frozen=True)
class DraftChoice:
    """An SQL expression over the payload and bronze's columns, with the reason.

    ``column`` is set if the SQL is one column; ``ids`` holds the values of an id that is not one.
    """

    sql: str
    why: str
    column: Column | None = None
    ids: tuple[str | None, ...] | None = None


def event_ids(sample: Sample, payload: Payload) -> list[DraftChoice]:
    """Rank the candidates for the event id, best first; ``record_id`` is last.

    Identical copies of a record do not count against an id, whose purpose is to detect them.
    """
    if sample.changes:
        return [DraftChoice("record_id", "each record of the source is one change")]
    first: dict[bytes, int] = {}
    for at, record in enumerate(sample.records):
        first.setdefault(record.payload.strip(), at)
    distinct = list(first.values())
    ranked, unnamed = [], list[str]()
    for column in payload.columns:
        is_time = column.clock is not None and column.clock.has_time
        kinds = ("boolean", "double", "float", "date")
        found = _uniqueness(column, distinct)
        if not column.is_scalar or column.type.kind in kinds or is_time or found is None:
            continue
        share, why = found
        rank, is_random = _id_rank(column.path), _looks_random(column)
        # An owner's id, such as user_id, may be unique in a small sample by chance.
        if rank == 1 and len(distinct) < _FEW_OWNERS and len(payload.columns) > 1:
            rank = 0
        if rank or is_random:
            choice = DraftChoice(as_text(column), why, column)
            ranked.append(((rank, share, is_random, -len(column.path)), choice))
        else:
            unnamed.append(column.field)
    of_payload = [*_best_first(ranked), *_pairs(payload, distinct)]
    why = "the record's position is used, so a copy sent again counts as another event"
    if not of_payload:
        what = "no field is unique per event"
        if unnamed:
            what += f" and named like an id ({', '.join(unnamed[:3])} may be chosen with --id)"
        why = f"{what}; {why}"
    return [*of_payload, DraftChoice("record_id", why)]


def as_text(column: Column) -> str:
    """Return the SQL of a field that is part of an id; bytes are seldom text."""
    return f"base64({column.field})" if column.type.kind == "binary" else column.field


def _best_first(ranked: list[tuple[Any, _T]]) -> list[_T]:
    """Sort by score; of equal ones the first stays first."""
    return [candidate for _, candidate in sorted(ranked, key=lambda pair: pair[0], reverse=True)]


def event_times(sample: Sample, payload: Payload, *, from_topic: bool) -> list[DraftChoice]:
    """Rank the candidates for the event time, best first; the last is that of the arrival."""
    ranked = []
    for column in payload.columns:
        clock = column.clock
        if clock is None:
            continue
        missing = sum(value is None for value in column.values)
        words = clock.words if clock.has_time else "a date without a time of day"
        why = words + (f", missing in {missing:,}" if missing else ", never missing")
        if is_change := bool(sample.changes) and column.path == ("source_time",):
            why = "when the database made the change"
        rank = _time_rank(column.path[-1])
        score = (is_change, not missing, clock.has_time, rank, -len(column.path))
        ranked.append((score, DraftChoice(clock.sql.format(column.field), why, column)))
    sql, what = "source_timestamp", "the file's modification time"
    if from_topic:
        what = "the record's Kafka timestamp"
    elif sample.format == "delta":
        sql, what = "ingested_at", "the time of its arrival"
    why = f"{what} is used" if ranked else f"{_without_time(payload)}; {what} is used"
    return [*_best_first(ranked), DraftChoice(sql, why)]


def _without_time(payload: Payload) -> str:
    """Say that no field holds a time, and which may hold one in a format that is not recognised."""
    for column in payload.columns:
        texts = [value for value in column.values if isinstance(value, str)]
        wanted = "[0-9]" if _time_rank(column.path[-1]) else _DATE
        if column.is_scalar and texts and all(re.search(wanted, text) for text in texts):
            return (
                f"no field holds a time in a known format; if {column.shown} does "
                f"({shortened(texts[0], 40)!r}), give --time with SQL, such as "
                f"to_timestamp({column.field}, 'PATTERN')"
            )
    return "no field holds a time"


def instants(choice: DraftChoice, count: int) -> list[datetime | None]:
    """Return the event time of each record of the sample, or None where it is unknown."""
    column = choice.column
    if column is None or column.clock is None:
        return [None] * count
    return [None if v is None else column.clock.read(v) for v in column.values]


def identities(choice: DraftChoice, count: int) -> Sequence[str | None]:
    """Return the id of each record of the sample; its number if only Spark can compute the id."""
    if choice.column is not None:
        return [None if value is None else str(value) for value in choice.column.values]
    return choice.ids or [str(at) for at in range(count)]


def in_future(found: Sequence[datetime | None]) -> int:
    """Count the instants in the future."""
    return sum(instant is not None and instant > datetime.now(UTC) for instant in found)


def _uniqueness(column: Column, distinct: Sequence[int]) -> tuple[float, str] | None:
    """Return the share of distinct values and a reason; None if too small for an id."""
    values = [column.values[at] for at in distinct]
    missing = sum(value is None for value in values)
    different = len({str(value) for value in values if value is not None})
    share = different / len(values)
    if share < _UNIQUE or len(values) < 2:
        return None
    why = f"{different:,} values in {len(values):,} different records"
    if missing:
        why += f"; missing in {missing:,}, which are quarantined"
    if different + missing < len(values):
        why += f"; {len(values) - missing - different:,} repeated, which are quarantined"
    return share, why


def _looks_random(column: Column) -> bool:
    texts = [value for value in column.values if isinstance(value, str)]
    return bool(texts) and all(
        len(text) >= _LONG_ID and " " not in text and any(c.isdigit() for c in text)
        for text in texts
    )


def _is_device(path: Sequence[str]) -> bool:
    """Return whether a field names a device: by its own name, or as the id within its object."""
    is_inside = len(path) > 1 and _is_bare_id(path[-1]) and has_word(path[-2], _DEVICES)
    return is_inside or has_word(path[-1], _DEVICES)


def _pairs(payload: Payload, distinct: Sequence[int]) -> Iterator[DraftChoice]:
    """Yield pairs of a device field and a time field that are unique together."""
    devices = [c for c in payload.columns if c.is_scalar and _is_device(c.path)]
    devices.sort(key=lambda column: len(column.path))
    times = [c for c in payload.columns if c.clock is not None and c.clock.has_time]
    for device, time in product(devices, times) if len(distinct) > 1 else ():
        pairs = zip(device.values, time.values, strict=True)
        ids = [None if a is None or b is None else f"{a}|{b}" for a, b in pairs]
        unique = {ids[at] for at in distinct} - {None}
        if len(unique) == len(distinct):
            both = f"{device.shown} and {time.shown} together are"
            why = f"no single field is unique; {both}, in {len(unique):,} different records"
            # Not concat_ws, which skips nulls: readings without a device would share an id.
            sql = f"concat({as_text(device)}, '|', {time.field})"
            yield DraftChoice(sql, why, ids=tuple(ids))


_MOST_KINDS, _MOST_MEASURES = 50, 2
# Maximum span of a sample -> window size.
_SIZES = ((timedelta(hours=3), timedelta(minutes=1)), (timedelta(days=3), timedelta(hours=1)))


@dataclass(frozen=True)
class FirstTable:
    """The first gold table; a measure is a column name, an aggregate and SQL."""

    name: str
    key: str | None
    size: timedelta
    measures: tuple[tuple[str, str, str], ...]
    why: str


def gold_key(columns: Sequence[Column], left_out: Sequence[Column | None]) -> Column | None:
    """Return the column with few distinct values that suits a gold key best, or None."""
    ranked = []
    for column in columns:
        if any(column is other for other in left_out) or column.name.lower() in GOLD_RESERVED:
            continue
        name, text, kinds = column.path[-1], column.type.kind == "string", kinds_of(column)
        if kinds is not None:
            score = (_is_kind(name), -len(column.path), text, _is_owner(name), -len(kinds))
            ranked.append((score, column))
    return next(iter(_best_first(ranked)), None)


def kinds_of(column: Column) -> list[str] | None:
    """Return the distinct values of a column if they are few and most repeat; else None."""
    if column.type.kind not in ("string", "boolean", "bigint") or column.clock is not None:
        return None
    present = [value for value in column.values if value is not None]
    if column.type.kind == "string" and not all(isinstance(value, str) for value in present):
        return None
    texts = [str(value) for value in present]
    kinds = sorted(set(texts))
    enough = len(texts) >= max(0.8 * len(column.values), 1)
    whole = column.type.kind == "bigint" and not _is_kind(column.path[-1])
    most = min(_MOST_KINDS, max(len(texts) // 4, 3))
    return kinds if enough and not whole and 1 < len(kinds) <= most else None


def first_table(
    pipeline: str,
    columns: Sequence[Column],
    *,
    key: Column | None,
    times: Sequence[datetime | None],
    size: timedelta | None,
) -> FirstTable:
    """Define the first gold table; without ``size`` the span of the times sets the window."""
    known = [instant for instant in times if instant is not None]
    span = max(known) - min(known) if known else timedelta(0)
    window = size or next((length for most, length in _SIZES if span <= most), _A_DAY)
    taken = {*GOLD_RESERVED, *([key.name.lower()] if key else [])}
    count = next(name for name in ("events", "records") if name not in taken)
    measures = [(count, "count", "*"), *_measures(columns, key, taken | {count})]
    by = f"_by_{key.name.lower()}" if key else ""
    number, unit = written(window).split()
    short = f"{number}{'ms' if unit.startswith('milli') else unit[0]}"
    name = f"{pipeline}{by}"[:58].rstrip("_").replace("__", "_") + f"_{short}"
    kinds = kinds_of(key) if key else None
    why = f"{len(kinds or ())} values in the sample" if key else "no field has few distinct values"
    return FirstTable(name, key.name if key else None, window, tuple(measures), why)


def _measures(
    columns: Sequence[Column], key: Column | None, taken: set[str]
) -> list[tuple[str, str, str]]:
    found: list[tuple[str, str, str]] = []
    numbers = [c for c in columns if c.clock is None and c is not key]
    sums = [c for c in numbers if is_money(c.path[-1]) and _is_summed(c)]
    # A mean of coordinates is not meaningful.
    means = [c for c in numbers if c.type.kind == "double"]
    means = [c for c in means if not has_word(c.path[-1], _COORDINATES)]
    owners = [c for c in numbers if c.is_scalar and _is_owner(c.path[-1])]
    owners = [c for c in owners if c.type.kind != "binary"]
    owners = [c for c in owners if has_word(c.path[-1], _IDS) or c.type.kind == "string"]
    for prefix, aggregate, some in (
        ("total", "sum", sums[:_MOST_MEASURES]),
        ("mean", "avg", means[:_MOST_MEASURES]),
        ("different", "approx_count_distinct", owners[:1]),
    ):
        for column in some:
            name = f"{prefix}_{column.name.lower()}".replace("total_total", "total")[:62]
            if name not in taken:
                taken.add(name)
                found.append((name, aggregate, sql_name(column.name)))
    return found


def _is_summed(column: Column) -> bool:
    """Return whether gold sums each value of the sample, of a DECIMAL."""
    precision, scale = column.type.precision, column.type.scale
    if precision is None or scale is None:
        return False
    numbers = [Decimal(v) for v in column.values if isinstance(v, int | Decimal)]
    digits = max((number.adjusted() + 1 for number in numbers), default=0)
    return precision <= SUMMED_DIGITS or max(digits, 1) + scale <= SUMMED_DIGITS


_RANGES = (
    ("lat latitude", -90, 90),
    ("lon lng long longitude", -180, 180),
    ("percent percentage pct", 0, 100),
    ("port", 0, 65_535),
)
_NOT_NEGATIVE = (
    "age bytes count duration elapsed height items latency length ms qty quantity seconds size "
    "speed weight width"
)
_PLAIN = frozenset(["string", "boolean", "bigint", "double", "decimal"])


def rules_of(
    columns: Sequence[Column], *, required: Collection[str] | None = None
) -> list[dict[str, Any]]:
    """Return expectations in suite format; all except those on id and time are warnings.

    ``required`` names the columns that are expected to have a value; by default any may be.
    """
    rules = [_rule("event_id", "not_be_null"), _rule("event_time", "not_be_null")]
    rules.append(_rule("event_id", "be_unique"))
    for column in columns:
        for what, arguments in _expectations_met(column):
            if what == "not_be_null" and required is not None and column.name not in required:
                continue
            rules.append(_rule(column.name, what, **arguments) | {"severity": "warning"})
    return rules


def _rule(column: str, what: str, **arguments: Any) -> dict[str, Any]:
    kwargs = {"column": column, **arguments}
    return {"type": f"expect_column_values_to_{what}", "kwargs": kwargs}


def _expectations_met(column: Column) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield expectations that all values of a column in the sample meet."""
    if column.clock is None and column.type.kind not in _PLAIN:
        return
    if all(value is not None for value in column.values):
        yield "not_be_null", {}
    if column.type.kind == "string" and (kinds := kinds_of(column)) is not None:
        yield "be_in_set", {"value_set": kinds}
    if bounds := _bounds(column):
        yield "be_between", bounds


def _bounds(column: Column) -> dict[str, int]:
    if column.clock is not None or column.type.kind not in ("bigint", "double", "decimal"):
        return {}
    numbers = [Decimal(v) for v in column.values if isinstance(v, int | Decimal)]
    if not numbers:
        return {}
    name, least, most = column.path[-1], min(numbers), max(numbers)
    for words, low, high in _RANGES:
        if has_word(name, words) and low <= least and most <= high:
            return {"min_value": low, "max_value": high}
    counted = is_money(name) or has_word(name, _NOT_NEGATIVE)
    return {"min_value": 0} if counted and least >= 0 else {}
