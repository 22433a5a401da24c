"""Generate a shop's clickstream, with faulty, late and duplicate lines, and its product catalogue.

``RATES`` determines the exact number of lines of each kind; which lines they are is random.

Only ``random.Random.random`` and methods built on it are used: unlike numpy, Python guarantees the
same sequence for a seed in every version.
"""

from __future__ import annotations

import random
import re
from bisect import bisect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from itertools import accumulate
from typing import Any, NamedTuple

from tidelake.examples.output import (
    HOUR,
    MINUTE,
    SECOND,
    Delivery,
    Generated,
    Say,
    in_files,
    land,
    pick,
    seeded,
    stamp,
)
from tidelake.folders import Folder

START = datetime(2026, 1, 5)
# Smaller streams are sparser, not shorter, so that an event can be more than a day late.
_SHORTEST = 36 * HOUR
_EVENTS_PER_SHORTEST = 200_000
_LATE_MIN, _LATE_MAX = 10 * MINUTE, 20 * HOUR
_TOO_LATE_MIN = 26 * HOUR
_SOON = 0.8

# A visitor's actions on a product, each with its probability after the previous one.
_FUNNEL = (("view", 1.0), ("click", 0.5), ("add_to_cart", 0.3), ("purchase", 0.5))
_LEAVES = 0.22
PRODUCTS = 400
_CLICKS_PER_USER = 40
_LONG_PAUSE = 0.12
_CAPITALISED = 0.03
_BOT_EVERY, _BOT_FIRST = 120, 7
PRICED = frozenset({"purchase", "add_to_cart"})

# Product catalogue.
_CATEGORIES = (
    *("books", "games", "garden", "kitchen", "lamps", "music"),
    *("pets", "shoes", "sports", "tools", "toys", "travel"),
)
_OPENED = datetime(2025, 12, 6)
_MOVES_WITHIN = timedelta(hours=36)
_MOVED, _ENDED, _REOPENED = 0.25, 0.04, 0.5


@dataclass(frozen=True)
class Rates:
    """Share of each kind among all lines; all other lines are valid."""

    # Byte-identical copies, delivered after the original.
    duplicate: float = 0.05
    # Lines with the id of an earlier line and another payload.
    conflicting: float = 0.001
    # Lines that do not parse or violate the schema.
    malformed: float = 0.02
    # Lines with a negative value, which fail an expectation.
    implausible: float = 0.001
    # Lines without an action, which the pipeline's `where` excludes.
    filtered: float = 0.005
    # Delivered 10 minutes to 20 hours after the event.
    late: float = 0.01
    # Events of the stream's first twentieth, delivered more than 26 hours later, in its last fifth:
    # too late even if one batch reads a quarter of the stream.
    too_late: float = 0.003
    # Events of the year 2099.
    future: float = 0.001

    def count(self, kind: str, events: int) -> int:
        """Return the number of lines of a kind in a stream of ``events`` lines."""
        rate: float = getattr(self, kind)
        return round(rate * events)


RATES = Rates()


class Click(NamedTuple):
    """A visitor's action on a product, in milliseconds since the start of the stream."""

    at: int
    user: int
    action: str
    product: int


def generate_clickstream(to: Folder, *, events: int, seed: int, progress: Say) -> Generated:
    """Write a clickstream; its kinds are those of ``Rates`` plus ``valid``.

    Streams with other seeds or sizes have other ids and file names, so a folder may hold several;
    products and prices are the same in all of them. See :func:`tidelake.examples.generate`.
    """
    rng, prefix = seeded("clickstream", seed, events)
    span = max(_SHORTEST, _SHORTEST * events // _EVENTS_PER_SHORTEST)
    copies = {kind: RATES.count(kind, events) for kind in ("duplicate", "conflicting")}
    clicks = draw_clicks(rng, count=events - sum(copies.values()), span=span)
    kinds = _draw_kinds(rng, clicks, events=events, span=span)
    progress(f"drew {len(clicks):,} clicks over {span / HOUR:.0f} hours")
    sent = [
        _send(rng, f"{prefix}-{number:08d}", click, kind=kinds.get(number, "valid"), span=span)
        for number, click in enumerate(clicks)
    ]
    ordinary = [number for number in range(len(clicks)) if number not in kinds]
    repeats = [
        Delivery(_later(rng, sent[number].at, span), sent[number].line)
        for number in rng.sample(ordinary, copies["duplicate"])
    ]
    for number in rng.sample(ordinary, copies["conflicting"]):
        changed = clicks[number]._replace(product=(clicks[number].product + 1) % PRODUCTS)
        line = _line(f"{prefix}-{number:08d}", changed).encode()
        repeats.append(Delivery(_later(rng, sent[number].at, span), line))

    files = in_files([*sent, *repeats], name=f"clickstream-s{seed}-{events}")
    tally = {"valid": len(ordinary)} | {rate.name: 0 for rate in fields(Rates)} | copies
    for kind in kinds.values():
        tally[kind] += 1
    return land(to, files, tally, progress)


def draw_clicks(rng: random.Random, *, count: int, span: int) -> list[Click]:
    """Draw exactly ``count`` clicks with ``0 <= at < span`` (milliseconds), ordered by time.

    Visits start uniformly over the span and are cut off at its end, for a constant density.
    """
    visitors = _popularity(max(5, count // _CLICKS_PER_USER), exponent=0.8, shift=20)
    clicks: list[Click] = []
    while len(clicks) < count:
        for click in _visit(rng, int(rng.random() * span), _weighted(rng, visitors)):
            if click.at >= span:
                break
            clicks.append(click)
    del clicks[count:]
    clicks.sort()
    return clicks


def price(product: int) -> str:
    """Return the price of a product (0 to ``PRODUCTS`` - 1) with exactly two decimals."""
    return f"{_CENTS[product] // 100}.{_CENTS[product] % 100:02d}"


def _popularity(count: int, *, exponent: float, shift: float) -> list[float]:
    """Return cumulated Zipf-Mandelbrot weights: a few are popular, none dominates."""
    return list(accumulate((rank + shift) ** -exponent for rank in range(1, count + 1)))


# The same for every seed of a stream.
_PRICING = random.Random("tidelake/clickstream/products")
_CENTS = [99 + round(2000 * _PRICING.lognormvariate(0.0, 0.9)) for _ in range(PRODUCTS)]
_PRODUCT_POPULARITY = _popularity(PRODUCTS, exponent=0.9, shift=2)


def _weighted(rng: random.Random, cumulated: list[float]) -> int:
    return bisect(cumulated, rng.random() * cumulated[-1], hi=len(cumulated) - 1)


def _visit(rng: random.Random, start: int, user: int) -> Iterator[Click]:
    """Yield the clicks of one visit."""
    at = start
    if user % _BOT_EVERY == _BOT_FIRST:
        for _ in range(10 + int(30 * rng.random())):
            yield Click(at, user, "bot", _weighted(rng, _PRODUCT_POPULARITY))
            at += 200 + int(rng.expovariate(1 / (2 * SECOND)))
        return
    while True:
        product = _weighted(rng, _PRODUCT_POPULARITY)
        for action, chance in _FUNNEL:
            if rng.random() >= chance:
                break
            spelled = action.capitalize() if rng.random() < _CAPITALISED else action
            yield Click(at, user, spelled, product)
            pause = 4 * MINUTE if rng.random() < _LONG_PAUSE else 25 * SECOND
            at += 300 + int(rng.expovariate(1 / pause))
        if rng.random() < _LEAVES:
            return


def _draw_kinds(
    rng: random.Random, clicks: Sequence[Click], *, events: int, span: int
) -> dict[int, str]:
    """Choose the clicks that are not ``valid``; map the index of a click to its kind."""
    # A late event must arrive before the stream ends, so it must happen early enough.
    late_before = span - _LATE_MIN
    early = len(clicks) // 20
    too_late = min(early, RATES.count("too_late", events))
    kinds = dict.fromkeys(rng.sample(range(early), too_late), "too_late")
    wanted = [
        kind
        for kind in ("malformed", "implausible", "filtered", "future", "late")
        for _ in range(RATES.count(kind, events))
    ]
    for number in rng.sample(range(len(clicks)), len(clicks)):
        if not wanted:
            break
        if number not in kinds and (wanted[-1] != "late" or clicks[number].at < late_before):
            kinds[number] = wanted.pop()
    return kinds


def _send(rng: random.Random, event_id: str, click: Click, *, kind: str, span: int) -> Delivery:
    """Return the delivery of a click: its line, with the fault of its kind, and arrival."""
    at = click.at + 50 + int(min(20 * SECOND, rng.expovariate(1 / (2 * SECOND))))
    faults = {"filtered": {"action": "null"}, "implausible": {"value": "-9.99"}}.get(kind, {})
    if kind == "future":
        time = datetime(2099, 1, 1) + timedelta(seconds=_between(rng, 0, 300 * 24 * 3600))
        faults = {"event_time": f'"{stamp(time)}"'}
    line = _line(event_id, click, **faults)
    if kind == "malformed":
        return Delivery(at, pick(rng, _DAMAGES)(rng, line))
    if kind == "late":
        at = click.at + _between(rng, _LATE_MIN, min(_LATE_MAX, span - click.at))
    elif kind == "too_late":
        at = _between(rng, span * 80 // 100, span * 97 // 100)
        at = max(at, click.at + _TOO_LATE_MIN + _between(rng, SECOND, MINUTE))
    return Delivery(at, line.encode())


def _line(event_id: str, click: Click, **faults: str) -> str:
    """Format a click as JSON; ``faults`` replace the JSON text of fields."""
    fields_text = {
        "event_id": f'"{event_id}"',
        "user_id": f'"u{click.user:05d}"',
        "event_time": f'"{stamp(START + timedelta(milliseconds=click.at))}"',
        "action": f'"{click.action}"',
        "product_id": f'"p{click.product:04d}"',
        "value": price(click.product) if click.action.lower() in PRICED else "null",
    }
    return "{" + ",".join(f'"{name}":{text}' for name, text in (fields_text | faults).items()) + "}"


def _later(rng: random.Random, at: int, span: int) -> int:
    """Draw the arrival of a repeated line: usually within a minute or so, else within 12 hours."""
    if rng.random() < _SOON:
        soon = at + 1 + int(rng.expovariate(1 / (30 * SECOND)))
        if soon < span:
            return soon
    return at + 1 + _between(rng, 0, max(SECOND, min(12 * HOUR, span - at)))


def _between(rng: random.Random, low: int, high: int) -> int:
    return low + int((high - low) * rng.random())


_Damage = Callable[[random.Random, str], bytes]


def _setting(field: str, *values: str) -> _Damage:
    """Return a function that sets a field to one of several broken values."""

    def damage(rng: random.Random, line: str) -> bytes:
        broken = f'"{field}":{pick(rng, values)}'
        return re.sub(rf'"{field}":("[^"]*"|[^,}}]*)', lambda _: broken, line).encode()

    return damage


def _truncated(rng: random.Random, line: str) -> bytes:
    return line[: 10 + int((len(line) - 12) * rng.random())].encode()


_GARBAGE = (b"<html><h1>502 Bad Gateway</h1></html>", b"-- MARK --", b"\x00\x00\x00\x00")
# Each makes a line that does not parse or violates the schema. The result has no line break, is
# never empty, and may be invalid UTF-8.
_DAMAGES: tuple[_Damage, ...] = (
    _truncated,
    _truncated,
    lambda rng, _: pick(rng, _GARBAGE),
    lambda _, line: line.encode().replace(b'"user_id":"u', b'"user_id":"\xff\xfe', 1),
    lambda _, line: f"[{line}]".encode(),
    lambda _, line: f"{line}{line}".encode(),
    lambda _, line: re.sub(r'"value":("[^"]*"|[^,}]*)', '"value":NaN', line).encode(),
    _setting("value", '"12,50"', '"1,250.00"', "12.999", "12345678901234567.00", '"free"', "true"),
    _setting("event_time", '"10:15"', '"2026-02-30T10:15:00.000Z"', '"yesterday"', "null"),
    _setting("event_id", "null", '""'),
    lambda _, line: re.sub(r'"event_id":"[^"]*",', "", line).encode(),
)


def products() -> list[dict[str, Any]]:
    """Return the changelog of the shop's catalogue.

    Each product is inserted a month before the clickstream starts. During the clickstream some
    products change category, some are deleted and half of those return; some changes arrive out of
    order.
    """
    rng = random.Random("tidelake/clickstream/catalogue")
    inserted = [
        _product(number, 1, _OPENED + timedelta(minutes=number), rng.choice(_CATEGORIES))
        for number in range(PRODUCTS)
    ]
    moved = [change for number in range(PRODUCTS) for change in _moves(rng, number)]
    moved.sort(key=lambda change: change["changed_at"])
    # The newer revision of a product may arrive first.
    rng.shuffle(moved)
    return [*inserted, *moved]


def _moves(rng: random.Random, number: int) -> Iterator[dict[str, Any]]:
    """Yield the later changes of a product."""
    at = START + _MOVES_WITHIN * rng.random()
    if rng.random() < _MOVED:
        yield _product(number, 2, at, rng.choice(_CATEGORIES))
    if rng.random() < _ENDED:
        at += timedelta(hours=1)
        yield _product(number, 3, at, None)
        if rng.random() < _REOPENED:
            yield _product(number, 4, at + timedelta(hours=2), rng.choice(_CATEGORIES))


def _product(number: int, revision: int, at: datetime, category: str | None) -> dict[str, Any]:
    name = f"p{number:04d}"
    return {
        "change_id": f"{name}@{revision}",
        "product_id": name,
        "revision": revision,
        "changed_at": stamp(at),
        "op": "delete" if category is None else "upsert",
        "category": category,
        "price": float(price(number)),
    }
