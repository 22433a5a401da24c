"""Generate card payments with known frauds and faulty, late and duplicate lines.

A fraudulent payment carries the name of its case, to compare with alerts. A card's other payments
are near its home, around its usual amount and far apart in time.
"""

from __future__ import annotations

import json
import random
from datetime import datetime, timedelta
from typing import NamedTuple

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
_SPAN = 72 * HOUR
_PER_CARD, _MERCHANTS = 60, 400
_CASES = ("unusual_amount", "burst", "impossible_travel")
_BURST = 6
_NEAR, _FAR_DEGREES = 0.05, 40
# Shares of all lines; a fraud case is one line, a burst several.
_DUPLICATE, _BROKEN, _LATE, _CASE = 0.03, 0.01, 0.01, 0.004


class City(NamedTuple):
    """A city with its coordinates in degrees (WGS 84, rounded to a hundredth)."""

    name: str
    latitude: float
    longitude: float


CITIES = (
    City("Amsterdam", 52.37, 4.90), City("Athens", 37.98, 23.73), City("Bangkok", 13.76, 100.50),
    City("Berlin", 52.52, 13.41), City("Bogota", 4.71, -74.07),
    City("Buenos Aires", -34.60, -58.38), City("Cairo", 30.04, 31.24),
    City("Chicago", 41.88, -87.63), City("Delhi", 28.61, 77.21), City("Istanbul", 41.01, 28.98),
    City("Jakarta", -6.21, 106.85), City("Johannesburg", -26.20, 28.05), City("Lagos", 6.52, 3.38),
    City("Lima", -12.05, -77.04), City("London", 51.51, -0.13),
    City("Los Angeles", 34.05, -118.24), City("Madrid", 40.42, -3.70),
    City("Mexico City", 19.43, -99.13), City("Mumbai", 19.08, 72.88),
    City("Nairobi", -1.29, 36.82), City("New York", 40.71, -74.01),
    City("Sao Paulo", -23.55, -46.63), City("Seoul", 37.57, 126.98),
    City("Singapore", 1.35, 103.82), City("Sydney", -33.87, 151.21), City("Tokyo", 35.68, 139.69),
    City("Toronto", 43.65, -79.38), City("Vienna", 48.21, 16.37), City("Warsaw", 52.23, 21.01),
    City("Zurich", 47.37, 8.54),
)  # fmt: skip


class Card(NamedTuple):
    """A card with the city where it is used and the median of its amounts."""

    name: str
    home: City
    usual: float


class Payment(NamedTuple):
    """A payment, in milliseconds since the start of the stream."""

    at: int
    card: Card
    amount: float
    city: City
    case: str | None = None


def generate_payments(to: Folder, *, events: int, seed: int, progress: Say) -> Generated:
    """Write a stream of payments over three days.

    Its kinds are ``valid``, ``duplicate``, ``malformed``, ``late`` and each kind of fraud.
    See :func:`tidelake.examples.generate`.
    """
    rng, prefix = seeded("payments", seed, events)
    copies, broken = round(_DUPLICATE * events), round(_BROKEN * events)
    paid = _draw_payments(rng, prefix, events - copies)
    progress(f"drew {len(paid):,} payments over {_SPAN / HOUR:.0f} hours")
    lines = [line_of(payment, f"{prefix}-{n:08d}").encode() for n, payment in enumerate(paid)]
    # Frauds are never damaged or late, so that every one can be detected.
    ordinary = [n for n, payment in enumerate(paid) if payment.case is None]
    chosen = rng.sample(ordinary, min(len(ordinary), broken + round(_LATE * events)))
    damaged, late = set(chosen[:broken]), set(chosen[broken:])
    sent = []
    for n, (payment, line) in enumerate(zip(paid, lines, strict=True)):
        wait = 10 * MINUTE + int(rng.random() * 18 * HOUR) if n in late else SECOND
        bytes_sent = _damaged(rng, line) if n in damaged else line
        sent.append(Delivery(payment.at + int(rng.expovariate(1 / wait)), bytes_sent))
    whole = [n for n in ordinary if n not in damaged] or list(range(len(paid)))
    for _ in range(copies):
        n = pick(rng, whole)
        sent.append(Delivery(sent[n].at + 1 + int(rng.expovariate(1 / MINUTE)), lines[n]))
    tally = {"valid": len(ordinary) - len(chosen), "duplicate": copies, "malformed": len(damaged)}
    tally |= {"late": len(late)} | dict.fromkeys(_CASES, 0)
    for payment in paid:
        if payment.case is not None:
            tally[payment.case.partition(":")[0]] += 1
    return land(to, in_files(sent, name=f"payments-s{seed}-{events}"), tally, progress)


def cards_of(rng: random.Random, prefix: str, count: int) -> list[Card]:
    """Draw cards, each with a home and a usual amount."""
    return [
        Card(f"card-{prefix}-{n:06d}", pick(rng, CITIES), 5 + 75 * rng.random())
        for n in range(count)
    ]


def ordinary(rng: random.Random, card: Card, at: int) -> Payment:
    """Draw a payment at home, of about the usual amount."""
    return Payment(at, card, card.usual * (0.4 + 1.4 * rng.random()), _near(rng, card.home))


def frauds(rng: random.Random, card: Card, at: int, *, rule: str, case: str) -> list[Payment]:
    """Draw the payments of a fraud case."""
    if rule == "unusual_amount":
        amount = card.usual * (15 + 20 * rng.random())
        return [Payment(at, card, amount, _near(rng, card.home), case)]
    if rule == "burst":
        times = sorted(at + int(rng.random() * 50 * SECOND) for _ in range(_BURST))
        return [Payment(when, card, card.usual, _near(rng, card.home), case) for when in times]
    # Usually on another continent.
    away = [city for city in CITIES if abs(city.longitude - card.home.longitude) > _FAR_DEGREES]
    return [Payment(at, card, card.usual, _near(rng, pick(rng, away)), case)]


def line_of(payment: Payment, payment_id: str, *, time: str | None = None) -> str:
    """Format a payment as JSON; without ``time``, ``payment.at`` counts from :data:`START`."""
    record = {
        "payment_id": payment_id,
        "card_id": payment.card.name,
        "paid_at": time or stamp(START + timedelta(milliseconds=payment.at)),
        "amount": f"{payment.amount:.2f}",
        "merchant_id": f"m{int(payment.at * 7919 % _MERCHANTS):04d}",
        "city": payment.city.name,
        "latitude": payment.city.latitude,
        "longitude": payment.city.longitude,
        "fraud_case": payment.case,
    }
    return json.dumps(record, separators=(",", ":"))


def _draw_payments(rng: random.Random, prefix: str, count: int) -> list[Payment]:
    """Draw all payments, ordered by time; frauds start once cards have a history."""
    cards = cards_of(rng, prefix, max(5, count // _PER_CARD))
    cases: list[Payment] = []
    for number in range(round(_CASE * count)):
        rule = _CASES[number % len(_CASES)]
        card, at = pick(rng, cards), int(_SPAN * (0.5 + 0.45 * rng.random()))
        cases += frauds(rng, card, at, rule=rule, case=f"{rule}:{number}")
        if rule == "impossible_travel":
            before = at - 5 * MINUTE - int(rng.random() * 25 * MINUTE)
            cases.append(ordinary(rng, card, before))
    cases = cases[:count]
    times = (int(rng.random() * _SPAN) for _ in range(count - len(cases)))
    drawn = [ordinary(rng, pick(rng, cards), at) for at in times]
    return sorted([*drawn, *cases], key=lambda payment: payment.at)


def _near(rng: random.Random, city: City) -> City:
    """Return a random location in a city, at most about 8 km from its centre."""
    latitude = round(city.latitude + _NEAR * (2 * rng.random() - 1), 5)
    longitude = round(city.longitude + _NEAR * (2 * rng.random() - 1), 5)
    return City(city.name, latitude, longitude)


def _damaged(rng: random.Random, line: bytes) -> bytes:
    ways = (
        line[: len(line) // 2],
        line.replace(b'"amount":"', b'"amount":"1,', 1),
        line.replace(b'"payment_id"', b'"payment"', 1),
        line.replace(b'"paid_at":"2026', b'"paid_at":"26', 1),
    )
    return pick(rng, ways)
