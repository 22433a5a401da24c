"""Alerts recomputed one payment at a time, from the files of silver that gold has consumed."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any

import duckdb

from tests.oracles.gold import consumed, files_until

Payment = dict[str, Any]
Alert = tuple[str, str, str]

_COLUMNS = ("event_id", "event_time", "card_id", "amount", "latitude", "longitude")
_HOUR = timedelta(hours=1)
_EARTH_KM = 6371.0088


def consumed_payments(silver: Path, gold: Path) -> list[Payment]:
    """Read the rows of silver that a gold table has taken in."""
    files = files_until(silver, consumed(gold)["silver"])
    if not files:
        return []
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        rows = connection.read_parquet(files).select(", ".join(_COLUMNS)).fetchall()
    return [dict(zip(_COLUMNS, row, strict=True)) for row in rows]


def alerts(payments: Iterable[Payment]) -> set[Alert]:
    """Judge payments by the rules of ``conf/pipelines/payments.yml``: event id, rule, evidence."""
    by_card: dict[str, list[Payment]] = defaultdict(list)
    for payment in payments:
        if payment["card_id"] is not None:
            by_card[payment["card_id"]].append(payment)
    found: set[Alert] = set()
    for card in by_card.values():
        card.sort(key=lambda one: (one["event_time"], one["event_id"]))
        for number, payment in enumerate(card):
            for rule, why in (
                ("unusual_amount", _unusual(payment, card)),
                ("burst", _burst(payment, card)),
                ("impossible_travel", _travel(payment, card[:number])),
            ):
                if why is not None:
                    found.add((payment["event_id"], rule, json.dumps(why, sort_keys=True)))
    return found


def _unusual(payment: Payment, card: list[Payment]) -> dict[str, Any] | None:
    if payment["amount"] is None:
        return None
    hour = payment["event_time"].replace(minute=0, second=0, microsecond=0)
    history = [
        one["amount"]
        for one in card
        if hour - 30 * 24 * _HOUR <= _hour_of(one) < hour and one["amount"] is not None
    ]
    if len(history) < 5 or payment["amount"] * len(history) <= 5 * sum(history):
        return None
    mean = (sum(history) / len(history)).quantize(Decimal("0.01"), ROUND_HALF_UP)
    return {"value": float(payment["amount"]), "mean": float(mean), "values": len(history)}


def _hour_of(payment: Payment) -> datetime:
    at: datetime = payment["event_time"]
    return at.replace(minute=0, second=0, microsecond=0)


def _burst(payment: Payment, card: list[Payment]) -> dict[str, Any] | None:
    at = payment["event_time"]
    recent = [
        one["event_time"] for one in card if at - timedelta(minutes=1) < one["event_time"] <= at
    ]
    return {"events": len(recent), "since": _iso(min(recent))} if len(recent) >= 5 else None


def _travel(payment: Payment, before: list[Payment]) -> dict[str, Any] | None:
    if payment["latitude"] is None or payment["longitude"] is None:
        return None
    placed = [p for p in before if p["latitude"] is not None and p["longitude"] is not None]
    if not placed:
        return None
    last = placed[-1]
    km = _km(last, payment)
    seconds = (payment["event_time"] - last["event_time"]).total_seconds()
    if km < 50 or km * 3600 <= 900 * seconds:
        return None
    return {
        "km": round(km),
        "seconds": math.floor(seconds + 0.5),
        "since": _iso(last["event_time"]),
        "latitude": float(last["latitude"]),
        "longitude": float(last["longitude"]),
    }


def _km(one: Payment, other: Payment) -> float:
    """Compute the distance as an angle between two vectors, not by the haversine formula."""
    a, b = _vector(one), _vector(other)
    cross = math.hypot(
        a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]
    )
    return _EARTH_KM * math.atan2(cross, sum(x * y for x, y in zip(a, b, strict=True)))


def _vector(payment: Payment) -> tuple[float, float, float]:
    latitude = math.radians(float(payment["latitude"]))
    longitude = math.radians(float(payment["longitude"]))
    return (
        math.cos(latitude) * math.cos(longitude),
        math.cos(latitude) * math.sin(longitude),
        math.sin(latitude),
    )


def _iso(instant: datetime) -> str:
    return instant.strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
