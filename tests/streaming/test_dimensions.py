"""Dimensions: changes in any order give one latest state and one history; silver looks them up."""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import SparkSession

from tests.running import START, click, read
from tests.worlds import World, world
from tidelake.config import DimensionSpec, load_pipeline
from tidelake.delta.commit_metadata import SilverNote
from tidelake.delta.log import last_commit
from tidelake.errors import GenerationError, UsageError
from tidelake.gold.dimensions import Dimension
from tidelake.gold.kinds import Inputs
from tidelake.ledger.terms import read_ledger
from tidelake.names import IS_DELETE, SEQUENCE
from tidelake.ops.status import read_status
from tidelake.replay.backfill import build
from tidelake.replay.backfill_promotion import promote
from tidelake.replay.repairing import repair
from tidelake.replay.verify import verify

_SEED = int(os.environ.get("TIDELAKE_SEED", str(time.time_ns() % 1_000_000)))
_KEYS = int(os.environ.get("TIDELAKE_GOLD_EXAMPLES", "100"))


@dataclass(frozen=True)
class Change:
    """One change of a product, as the catalogue tells it."""

    product: str
    revision: int
    at: datetime
    category: str | None
    deletes: bool = False

    @property
    def line(self) -> bytes:
        fields = {
            "change_id": f"{self.product}@{self.revision}",
            "product_id": self.product,
            "revision": self.revision,
            "changed_at": self.at.isoformat(),
            "op": "delete" if self.deletes else "upsert",
            "category": self.category,
            "price": 1.5,
        }
        return json.dumps(fields).encode()


def minute(number: int) -> datetime:
    return START + timedelta(minutes=number)


_KNOWN = Change("known", 1, minute(0), "books")


def latest_of(changes: Sequence[Change]) -> list[tuple[Any, ...]]:
    """Give each product's last revision, unless it deletes."""
    last: dict[str, Change] = {}
    for change in sorted(changes, key=lambda c: c.revision):
        last[change.product] = change
    return sorted((c.product, c.category) for c in last.values() if not c.deletes)


def history_of(changes: Sequence[Change]) -> list[tuple[Any, ...]]:
    """Ask at every instant of a product which revision holds then."""
    rows = []
    by_product: dict[str, list[Change]] = defaultdict(list)
    for change in changes:
        by_product[change.product].append(change)
    for product, mine in by_product.items():
        held: list[tuple[datetime, Change]] = []
        for at in sorted({change.at for change in mine}):
            holds = max((c for c in mine if c.at <= at), key=lambda c: c.revision)
            if not held or held[-1][1] is not holds:
                held.append((at, holds))
        ends: list[datetime | None] = [at for at, _ in held[1:]]
        for (at, change), end in zip(held, [*ends, None], strict=True):
            if not change.deletes:
                rows.append((product, change.category, at, end, end is None))
    return sorted(rows, key=repr)


def products(spark: SparkSession, folder: Path) -> World:
    return world(spark, folder, base="products")


@dataclass(frozen=True)
class Seen:
    """The rows of both tables of a dimension, and the changes that it had taken."""

    changes: Sequence[Change]
    latest: list[tuple[Any, ...]]
    history: list[tuple[Any, ...]]


def seen(dimension: World, changes: Sequence[Change]) -> Seen:
    columns = "product_id, category, valid_from, valid_to, is_current"
    latest = read(dimension.lake, "dim.products", "product_id, category")
    return Seen(changes, latest, read(dimension.lake, "dim.products__history", columns))


def assert_follows(found: Seen) -> None:
    assert found.latest == latest_of(found.changes)
    assert found.history == history_of(found.changes)


def drawn(chance: random.Random) -> list[Change]:
    """Draw changes whose order of revision is mostly, but not always, that of their time."""
    changes = []
    for key in range(_KEYS):
        at = 0
        for revision in range(chance.randrange(1, 8)):
            at = max(0, at + chance.choice([0, 1, 5, 60, -30]))
            deletes = chance.random() < 0.2
            category = None if deletes else chance.choice("abc")
            changes.append(Change(f"p{key}", revision, minute(at), category, deletes))
    return changes


class Catalogue(NamedTuple):
    """Products after two files of changes, and what their tables held after each."""

    world: World
    seen: list[Seen]


@pytest.fixture(scope="module")
def catalogue(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Catalogue:
    """Let changes arrive in any order, some twice, and one without key and one without sequence."""
    print(f"seed {_SEED}; repeat with TIDELAKE_SEED={_SEED}")
    chance = random.Random(_SEED)
    changes = [*drawn(chance), _KNOWN]
    arriving = [change for change in changes for _ in range(chance.choice([1, 1, 2]))]
    chance.shuffle(arriving)
    dimension = products(spark, tmp_path_factory.mktemp("products"))
    good = json.loads(Change("p0", 1, minute(0), "a").line)
    flaws = [{"product_id": None, "change_id": "x"}, {"revision": None, "change_id": "y"}]
    broken = [json.dumps(good | flaw).encode() for flaw in flaws]
    half = len(arriving) // 2
    for number, part in enumerate((arriving[:half], arriving[half:])):
        lines = [change.line for change in part]
        dimension.land(f"{number}.jsonl", [*lines, *broken[number:][:1]])
    found: list[Seen] = []

    def look(line: str) -> None:
        # When a batch of gold has closed: one for each file.
        if line.startswith("gold"):
            taken = arriving[: None if found else half]
            found.append(seen(dimension, list(dict.fromkeys(taken))))

    dimension.run(look=look)
    return Catalogue(dimension, found)


def test_changes_in_any_order_give_the_latest_state_and_a_history_without_holes(
    catalogue: Catalogue,
) -> None:
    """A change without key or sequence is quarantined, and changes nothing."""
    dimension, after = catalogue
    assert len(after) == 2
    for found in after:
        assert_follows(found)
    assert read(dimension.lake, "silver.products__quarantine", "event_id, reasons, stage") == [
        ("x", ["product_id: missing"], "contract"),
        ("y", ["sequence: missing"], "contract"),
    ]
    assert read_ledger(dimension.lake, dimension.pipeline).balanced


def test_of_changes_at_one_place_the_one_furthest_on_is_the_last(spark: SparkSession) -> None:
    """One transaction of a database without positions gives its changes one time."""
    told = [
        ("k", "update", "shop:0:9"),
        ("k", "delete", "shop:0:10"),
        ("f", "first", "/landing/a.jsonl:99"),
        ("f", "last", "/landing/a.jsonl:100"),
        ("two files", "last", "/landing/b.jsonl:2"),
        ("two files", "first", "/landing/a.jsonl:10"),
    ]
    rows = [(*one, START, 1, one[1] == "delete", one[2]) for one in told]
    # Ids that are none of records order them first, as before.
    rows += [("ids", "last", "shop:0:3", START, 1, False, "id 2")]
    rows += [("ids", "first", "shop:0:4", START, 1, False, "id 1")]
    names = "key STRING, v STRING, record_id STRING, event_time TIMESTAMP"
    names += f", {SEQUENCE} INT, {IS_DELETE} BOOLEAN, event_id STRING"
    spec = DimensionSpec.model_validate({"key": ["key"]})
    for history in (False, True):
        kind = Dimension("dim.told", spec, ("v",), history=history)
        inputs = Inputs({}, lambda _: spark.createDataFrame(rows, names))
        found = {(row["key"], row["v"]) for row in kind.of_all(inputs).collect()}
        assert found == {("f", "last"), ("two files", "last"), ("ids", "last")}


@pytest.mark.long
def test_a_batch_of_changes_that_change_nothing_closes(spark: SparkSession, tmp_path: Path) -> None:
    dimension = products(spark, tmp_path)
    newest = Change("p1", 2, minute(0), "a")
    overtaken = Change("p1", 1, minute(5), "b")
    dimension.land("0.jsonl", [newest.line])
    dimension.run()
    dimension.land("1.jsonl", [overtaken.line])
    dimension.run()
    assert_follows(seen(dimension, [newest, overtaken]))
    last = [last_commit(dimension.lake.table(name)) for name in dimension.pipeline.gold_names]
    assert [commit.batch for commit in last if commit] == [1, 1]
    dimension.land("2.jsonl", [Change("p1", 3, minute(9), "c").line])
    dimension.run()
    assert_follows(seen(dimension, [newest, overtaken, Change("p1", 3, minute(9), "c")]))


ENRICH = [
    {
        "dimension": "products",
        "on": {"product_id": "product_id"},
        "columns": ["category"],
        "as_of": "event_time",
    },
    {"dimension": "products", "on": {"product_id": "product_id"}, "columns": ["price"]},
]
GOLD = [
    {
        "name": "by_category",
        "window": {"kind": "global"},
        "keys": ["category"],
        "measures": {"events": {"count": "*"}},
    }
]


@pytest.fixture
def shop(spark: SparkSession, tmp_path: Path) -> tuple[World, World]:
    """Give products, and a clickstream that looks them up; both in one lake."""
    clicks = world(spark, tmp_path, enrich=ENRICH, gold=GOLD, joins=[], quality=None)
    landing = tmp_path / "catalogue"
    definition = load_pipeline("products", clicks.environment, source=str(landing))
    return World(spark, clicks.environment, definition, tmp_path, landing), clicks


def found(clicks: World) -> list[tuple[Any, ...]]:
    return read(clicks.lake, "silver.clickstream", "event_id, category, price")


def use(clicks: World) -> list[tuple[str, int, int]]:
    note = SilverNote.of(last_commit(clicks.lake.silver("clickstream")))
    return [tuple(one) for one in note.dimensions]


@pytest.mark.long
def test_silver_finds_the_version_that_held_and_the_latest(shop: tuple[World, World]) -> None:
    catalogue, clicks = shop
    catalogue.land(
        "0.jsonl",
        [
            Change("p0", 1, minute(0), "books").line,
            Change("p0", 2, minute(10), "games").line,
            Change("p1", 1, minute(5), "toys").line,
        ],
    )
    catalogue.run()
    # p0 before and at its change; p1 before its first version; p2 is unknown, and so is no product.
    lines = [
        click(0, minute=9.5),
        click(3, minute=10),
        click(1, minute=4),
        click(4, minute=6),
        click(2, minute=7),
        click(5, minute=7, product_id=None),
    ]
    clicks.land("0.jsonl", lines)
    clicks.run()
    price = read(catalogue.lake, "dim.products", "price")[0][0]
    assert found(clicks) == [
        ("e0", "books", price),
        ("e1", None, price),
        ("e2", None, None),
        ("e3", "games", price),
        ("e4", "toys", price),
        ("e5", None, None),
    ]
    assert use(clicks) == [("dim.products__history", 1, 3), ("dim.products", 1, 2)]
    counted = [("books", 1), ("games", 1), ("toys", 1), (None, 3)]
    assert read(clicks.lake, "gold.by_category", "category, events") == sorted(counted, key=repr)
    shown = {one.table: one for one in read_status(clicks.lake, clicks.pipeline).dimensions}
    assert shown["dim.products"].unmatched == 2


@pytest.mark.long
def test_all_rows_of_a_promotion_are_looked_up_in_one_version(shop: tuple[World, World]) -> None:
    """Its commit records one, from which `verify` looks them up again."""
    catalogue, clicks = shop
    arrivals = [START + timedelta(hours=n) for n in range(1, 4)]

    def changes(number: int, category: str) -> None:
        line = Change("p0", number, minute(-10 + number), category).line
        catalogue.land(f"{number}.jsonl", [line])
        catalogue.run()

    def clicks_again(number: int) -> None:
        clicks.land(f"{number}.jsonl", [click(3 * number, minute=number)])
        clicks.run(arrivals[number])

    changes(1, "books")
    clicks_again(0)
    build(clicks.context, "bronze")
    changes(2, "games")
    clicks_again(1)
    promote(clicks.context)
    assert verify(clicks.context).equal
    changes(3, "toys")
    clicks_again(2)
    build(clicks.context, "bronze", since=arrivals[2])
    promote(clicks.context)
    assert verify(clicks.context).equal
    assert len(found(clicks)) == 3
    # Looked up by a column that stored rows lack: they have no entry.
    select = {**(clicks.pipeline.event.select or {}), "other": "product_id"}
    enrich = [{"dimension": "products", "on": {"other": "product_id"}, "columns": ["category"]}]
    added = clicks.redefined(event={"select": select}, enrich=enrich, gold=GOLD)
    build(added.context, "bronze", since=arrivals[2])
    promote(added.context)
    categories = read(added.lake, "silver.clickstream", "event_id, category")
    assert categories == [("e0", None), ("e3", None), ("e6", "toys")]


@pytest.mark.long
def test_rows_are_looked_up_again_once_a_dimension_was_recreated(shop: tuple[World, World]) -> None:
    """A version's number means another content then, also to a backfill that was filled before."""
    catalogue, clicks = shop
    for number, category in enumerate(["books", "games"]):
        catalogue.land(f"{number}.jsonl", [Change("p0", number, minute(number), category).line])
        catalogue.run()
    clicks.land("0.jsonl", [click(0, minute=9)])
    clicks.run()
    build(clicks.context, "bronze")
    shutil.rmtree(catalogue.lake.table("dim.products").path)
    clicks.land("1.jsonl", [click(3, minute=10)])
    for why in ("deleted", "recreated since"):
        with pytest.raises(GenerationError, match=rf"version 2 of dim\.products, which was {why}"):
            clicks.run()
        catalogue.run()
    # It continues silver, whose rows were looked up in the table that is gone.
    repair(clicks.context, "silver")
    with pytest.raises(GenerationError, match=r"run products, then .* backfill run clickstream"):
        clicks.run()
    with pytest.raises(UsageError, match=r"recreated since\. .* backfill run clickstream"):
        verify(clicks.context)
    assert build(clicks.context, "bronze").stage == "built"
    promote(clicks.context)
    clicks.land("2.jsonl", [click(6, minute=11)])
    clicks.run()
    price = read(catalogue.lake, "dim.products", "price")[0][0]
    assert found(clicks) == [(one, "games", price) for one in ("e0", "e3", "e6")]
    assert verify(clicks.context).equal


def test_a_changed_dimension_does_not_rewrite_the_past(
    spark: SparkSession, catalogue: Catalogue, tmp_path: Path
) -> None:
    lake = catalogue.world.copied(tmp_path / "copy").lake
    # As before the first run of the dimension's pipeline.
    dimension = lake.root / "dim"
    filled = dimension.rename(tmp_path / "filled")
    environment = catalogue.world.environment.model_copy(update={"root": lake.root})
    changes: dict[str, Any] = {"enrich": ENRICH, "gold": [], "quality": None}
    clicks = world(spark, tmp_path / "clicks", environment=environment, **changes)
    clicks.land("0.jsonl", [click(0, minute=20, product_id=_KNOWN.product)])
    lines = clicks.run()
    assert any("dim.products" in line for line in lines)
    assert found(clicks) == [("e0", None, None)]
    assert use(clicks) == [("dim.products__history", -1, 1), ("dim.products", -1, 1)]
    filled.rename(dimension)
    clicks.land("1.jsonl", [click(3, minute=21, product_id=_KNOWN.product)])
    clicks.run()
    assert [row[:2] for row in found(clicks)] == [("e0", None), ("e3", _KNOWN.category)]
    # The version after two batches; no row without a match.
    assert [row[1:] for row in use(clicks)] == [(2, 0), (2, 0)]
    # Each row as of the version that its batch saw.
    assert verify(clicks.context).equal
    # As after the horizon: Delta reads versions older than this no more.
    history = clicks.lake.table("dim.products__history").path
    kept = "'delta.deletedFileRetentionDuration' = 'interval 0 seconds'"
    clicks.spark.sql(f"ALTER TABLE delta.`{history}` SET TBLPROPERTIES ({kept})")
    with pytest.raises(UsageError, match=r"can no longer be read: .* clickstream --start 20"):
        verify(clicks.context)
