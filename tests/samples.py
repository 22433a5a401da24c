"""Samples of what people have: web logs, readings of sensors, orders with money and items."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

START = datetime(2026, 1, 5, 8, tzinfo=UTC)


def order(number: int, **changes: Any) -> dict[str, Any]:
    """Make an order with money, a customer and items."""
    return {
        "order_id": f"o-{number}",
        "createdAt": _iso(START + timedelta(minutes=number)),
        "status": ("placed", "paid", "shipped")[number % 3],
        "customer": {"id": number % 7, "country": ("DE", "FR")[number % 2]},
        "items": [{"sku": f"p{number % 4}", "qty": 1, "price": 9.99}][: number % 3],
        "total": number * 1.25,
        "order": number,
        "gift-note": None,
    } | changes


def reading(number: int, **changes: Any) -> dict[str, Any]:
    """Make a sensor's reading, its time in milliseconds since the epoch."""
    return {
        "sensor": f"s{number % 5}",
        "ts": int(START.timestamp() * 1000) + number * 1500,
        "temperature": 20 + number % 9 / 8,
        "latitude": 52.5,
        "ok": number % 2 == 0,
    } | changes


def hit(number: int, **changes: Any) -> dict[str, Any]:
    """Make a line of a web server's log, its time as Apache writes it."""
    return {
        "@timestamp": (START + timedelta(seconds=number)).strftime("%d/%b/%Y:%H:%M:%S +0000"),
        "remote.addr": f"10.0.0.{number % 9}",
        "method": ("GET", "POST")[number % 2],
        "bytes": number,
    } | changes


def lines_of(values: list[dict[str, Any]]) -> bytes:
    """Write one object a line."""
    return b"".join(json.dumps(value).encode() + b"\n" for value in values)


def land(file: Path, values: list[dict[str, Any]]) -> Path:
    """Write a file of lines, with its folder."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(lines_of(values))
    return file


def _iso(instant: datetime) -> str:
    return instant.isoformat().replace("+00:00", "Z")
