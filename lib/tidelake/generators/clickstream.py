"""The clickstream: a shop's clicks, and everything that goes wrong on their way.

The number of lines of each kind follows from ``RATES`` exactly; only which ones it hits is drawn.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta

from tidelake.errors import UsageError
from tidelake.folders import Folder
from tidelake.generators.damage import damage
from tidelake.generators.landing import Delivery, Summary, in_files, land
from tidelake.generators.shop import (
    HOUR,
    MINUTE,
    PRICED,
    SECOND,
    Click,
    draw_clicks,
    other_product,
    price,
)

START = datetime(2026, 1, 5)
# Smaller streams are sparser, not shorter: an event can always be a day late.
_SHORTEST = 36 * HOUR
_EVENTS_PER_SHORTEST = 200_000
_LATE_MIN, _LATE_MAX = 10 * MINUTE, 20 * HOUR
_TOO_LATE_MIN = 26 * HOUR
_SOON = 0.8


@dataclass(frozen=True)
class Rates:
    """Share of each kind among all lines; the rest is ordinary.

    Attributes:
        duplicate: Byte-identical copies, delivered after the original.
        conflicting: Other payloads with the id of an earlier line.
        malformed: Lines that do not parse or break the contract.
        implausible: Lines with a negative value, which the suite refuses.
        filtered: Lines without an action, which the pipeline's ``where`` leaves out.
        late: Delivered 10 minutes to 20 hours after the event.
        too_late: From the stream's first twentieth, delivered more than 26 hours later, in its
            last fifth: too late even where a batch takes in a quarter of the stream.
        future: Events of the year 2099.
    """

    duplicate: float = 0.05
    conflicting: float = 0.001
    malformed: float = 0.02
    implausible: float = 0.001
    filtered: float = 0.005
    late: float = 0.01
    too_late: float = 0.003
    future: float = 0.001

    def count(self, kind: str, events: int) -> int:
        """Give the number of lines of a kind in a stream of ``events`` lines."""
        rate: float = getattr(self, kind)
        return round(rate * events)


RATES = Rates()


def generate_clickstream(
    to: Folder, *, events: int, seed: int, progress: Callable[[str], None] | None = None
) -> Summary:
    """Write a clickstream.

    Streams of another seed or size have other ids and other file names, so they add to a folder;
    products and their prices are the same in all of them.

    Args:
        to: The folder, made if it is missing.
        events: Number of lines, at least 1.
        seed: Chooses the stream.
        progress: Called with a line of text now and then.

    Returns:
        What the folder now holds of this stream. Its kinds are those of ``Rates`` and ``valid``.

    Raises:
        UsageError: ``events`` is below 1, or a file is there with other bytes.
    """
    if events < 1:
        raise UsageError(f"a clickstream needs at least 1 event, not {events}")
    stream = f"clickstream/{seed}/{events}"
    rng = random.Random(stream)
    span = max(_SHORTEST, _SHORTEST * events // _EVENTS_PER_SHORTEST)
    copies = {kind: RATES.count(kind, events) for kind in ("duplicate", "conflicting")}
    clicks = draw_clicks(rng, count=events - sum(copies.values()), span=span)
    kinds = _draw_kinds(rng, clicks, events=events, span=span)
    if progress is not None:
        progress(f"drew {len(clicks):,} clicks over {span / HOUR:.0f} hours")

    prefix = hashlib.sha256(stream.encode()).hexdigest()[:8]
    sent = [
        _send(rng, f"{prefix}-{number:08d}", click, kind=kinds.get(number, "valid"), span=span)
        for number, click in enumerate(clicks)
    ]
    ordinary = [number for number in range(len(clicks)) if number not in kinds]
    again = [
        Delivery(_later(rng, sent[number].at, span), sent[number].line)
        for number in rng.sample(ordinary, copies["duplicate"])
    ]
    for number in rng.sample(ordinary, copies["conflicting"]):
        changed = clicks[number]._replace(product=other_product(clicks[number].product))
        line = _line(f"{prefix}-{number:08d}", changed).encode()
        again.append(Delivery(_later(rng, sent[number].at, span), line))

    files = in_files([*sent, *again], name=f"clickstream-s{seed}-{events}")
    tally = {"valid": len(ordinary)} | {rate.name: 0 for rate in fields(Rates)} | copies
    for kind in kinds.values():
        tally[kind] += 1
    written = land(to, files, progress=progress)
    return Summary(files=len(files), written=written, records=events, kinds=tally)


def _draw_kinds(
    rng: random.Random, clicks: Sequence[Click], *, events: int, span: int
) -> dict[int, str]:
    """Choose the clicks that something happens to, by their numbers; none is hit twice."""
    # A late event needs room to arrive in; the line that ends the stream is an ordinary one.
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
    """Give a click's line the fault of its kind, and say when it arrives."""
    at = click.at + 50 + int(min(20 * SECOND, rng.expovariate(1 / (2 * SECOND))))
    line = _line(
        event_id,
        click,
        action="null" if kind == "filtered" else None,
        time=_future(rng) if kind == "future" else None,
        value="-9.99" if kind == "implausible" else None,
    )
    if kind == "malformed":
        return Delivery(at, damage(rng, line))
    if kind == "late":
        at = click.at + _between(rng, _LATE_MIN, min(_LATE_MAX, span - click.at))
    elif kind == "too_late":
        at = _between(rng, span * 80 // 100, span * 97 // 100)
        at = max(at, click.at + _TOO_LATE_MIN + _between(rng, SECOND, MINUTE))
    return Delivery(at, line.encode())


def _line(
    event_id: str,
    click: Click,
    *,
    action: str | None = None,
    time: str | None = None,
    value: str | None = None,
) -> str:
    if time is None:
        stamp = START + timedelta(milliseconds=click.at)
        time = stamp.isoformat(timespec="milliseconds") + "Z"
    if value is None:
        value = str(price(click.product)) if click.action.lower() in PRICED else "null"
    return (
        f'{{"event_id":"{event_id}","user_id":"u{click.user:05d}","event_time":"{time}",'
        f'"action":{action or _quoted(click.action)},"product_id":"p{click.product:04d}",'
        f'"value":{value}}}'
    )


def _quoted(text: str) -> str:
    return f'"{text}"'


def _future(rng: random.Random) -> str:
    stamp = datetime(2099, 1, 1) + timedelta(seconds=_between(rng, 0, 300 * 24 * 3600))
    return stamp.isoformat(timespec="milliseconds") + "Z"


def _later(rng: random.Random, at: int, span: int) -> int:
    """Say when a copy arrives: mostly within a minute or so, else any time until the end."""
    if rng.random() < _SOON:
        soon = at + 1 + int(rng.expovariate(1 / (30 * SECOND)))
        if soon < span:
            return soon
    return at + 1 + _between(rng, 0, max(SECOND, min(12 * HOUR, span - at)))


def _between(rng: random.Random, low: int, high: int) -> int:
    return low + int((high - low) * rng.random())
