"""A database's change events, by the files of the page: rows, history, fates and erasure."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from pyspark.sql import SparkSession

from tests.brokers import Followed, Kafka
from tests.changes import Json, line, postgres, with_schema
from tests.running import read
from tests.worlds import World, world
from tidelake.cli.reports import show_ledger
from tidelake.config import load_environment, load_pipeline
from tidelake.ledger.terms import read_ledger
from tidelake.replay.compatibility import payload_drift
from tidelake.replay.erase import erase
from tidelake.replay.fate import fates_of
from tidelake.replay.requeue import Choice, replay_quarantine
from tidelake.replay.subject import Subject
from tidelake.replay.verify import verify

PAGE = Path(__file__).parents[2] / "docs/how-to/change-events.md"
START = datetime(2026, 1, 5, tzinfo=UTC)


def on_the_page(number: int) -> dict[str, Any]:
    """Give a pipeline file of the page."""
    blocks = PAGE.read_text(encoding="utf-8").split("```yaml\n")[1:]
    found: dict[str, Any] = yaml.safe_load(blocks[number].split("```")[0])
    return found


def over(spark: SparkSession, folder: Path, number: int, **changes: Any) -> World:
    """Make the page's pipeline over a folder of files."""
    content = on_the_page(number)
    content["source"] = {"kind": "files", "path": "landing", "envelope": "debezium"}
    return world(spark, folder, base=content, small=False, **changes)


def change(op: str, number: int, before: Json | None, after: Json | None) -> bytes:
    """Write the change of a row; ``number`` gives its position, and its time in minutes."""
    at = int((START + timedelta(minutes=number)).timestamp()) * 1_000_000
    event = postgres(op, at=at, lsn=1000 + number, before=before, after=after)
    return line(with_schema(event) if number % 2 else event)


def customer(key: int, name: str) -> Json:
    return {"id": key, "first_name": name, "last_name": "K", "email": f"{name}@x.org"}


def minute(number: int) -> datetime:
    return START + timedelta(minutes=number)


# A snapshot of two rows, then changes; 3 is created and deleted, with the key alone in `before`.
CHANGES = [
    change("r", 0, None, customer(1, "Ann")),
    change("r", 0, None, customer(2, "Bob")),
    change("c", 1, None, customer(3, "Cid")),
    change("u", 2, {"id": 1}, customer(1, "Anna")),
    change("d", 3, {"id": 3}, None),
    change("u", 4, customer(1, "Anna"), customer(1, "Annie")),
    change("d", 9, customer(2, "Bob"), None),
    change("c", 12, None, customer(2, "Ben")),
]
LATEST = [(1, "Annie"), (2, "Ben"), (4, "Dot")]
HISTORY = [
    (1, "Ann", minute(0), minute(2), False),
    (1, "Anna", minute(2), minute(4), False),
    (1, "Annie", minute(4), None, True),
    (2, "Ben", minute(12), None, True),
    (2, "Bob", minute(0), minute(9), False),
    (3, "Cid", minute(1), minute(3), False),
    (4, "Dot", minute(14), None, True),
]


def assert_whole(changes: World | Followed) -> None:
    ledger = read_ledger(changes.lake, changes.pipeline)
    assert ledger.balanced, ledger.problems
    found = verify(changes.context)
    assert found.equal, found


@pytest.mark.long
def test_a_dimension_of_five_lines_follows_a_table_in_any_order(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = PAGE.read_text(encoding="utf-8").split("```yaml\n")[1].split("```")[0]
    assert len(written.strip().splitlines()) == 5
    customers = over(spark, tmp_path, 0)
    arriving = CHANGES + CHANGES[::2]
    random.Random(7).shuffle(arriving)
    truncate = line(postgres("t", at=1_767_571_200_000_000, lsn=9999))
    customers.land("0.jsonl", [*arriving[:6], b"null", line(with_schema(None))])
    customers.run()
    # A column that the schema does not know.
    dot = change("c", 14, None, customer(4, "Dot") | {"vip": True})
    customers.land("1.jsonl", [*arriving[6:], b"null", b"{", truncate, dot])
    customers.run()
    assert read(customers.lake, "dim.customers", "id, first_name") == LATEST
    columns = "id, first_name, valid_from, valid_to, is_current"
    assert read(customers.lake, "dim.customers__history", columns) == sorted(HISTORY, key=repr)
    ledger = read_ledger(customers.lake, customers.pipeline)
    assert {fate: rows for fate, rows in ledger.fates.items() if rows} == {
        "silver": len(arriving) + 1,
        "quarantined": 2,
        "filtered": 3,
    }
    assert ledger.stages == {"parse": 2}
    reasons = read(customers.lake, "silver.customers__quarantine", "unnest(reasons)")
    assert reasons == [
        ("payload: not one change event (before, after, source, op)",),
        ("payload: op t empties the whole table, which no row expresses",),
    ]
    assert_whole(customers)
    # The fields of the rows are compared with the schema, not those around them.
    drift = payload_drift(customers.context)
    assert [(one.field, one.kind, one.rows) for one in drift] == [("vip", "unknown", 1)]
    where: Any = SimpleNamespace(pipeline=customers.pipeline, command=str)
    show_ledger(ledger, where)
    assert "or without a row, such as tombstones" in capsys.readouterr().out
    ((tombstone,),) = read(
        customers.lake,
        "bronze.customers WHERE decode(payload) = 'null' AND record_id LIKE '%1.jsonl%'",
        "record_id",
    )
    (traced,) = fates_of(customers.lake, customers.pipeline, record_id=tombstone)
    assert (traced.state, traced.reasons) == ("filtered", ("payload: a tombstone",))
    assert replay_quarantine(customers.context, Choice()).requeued == 0


@pytest.mark.long
def test_events_keep_every_change_with_op_time_and_position(
    spark: SparkSession, tmp_path: Path
) -> None:
    orders = over(spark, tmp_path, 1)

    def order(op: str, number: int, total: str, status: str = "open") -> bytes:
        row = {"id": number, "status": status, "total": total}
        images = {"before": row, "after": None} if op == "d" else {"before": None, "after": row}
        return change(op, number, images["before"], images["after"])

    orders.land("0.jsonl", [order("c", 1, "9.90"), order("u", 2, "9.90"), order("d", 3, "7")])
    orders.land("1.jsonl", [order("c", 61, "0.10"), b"null", order("c", 4, "1.234")])
    orders.run()
    silver = read(orders.lake, "silver.order_changes", "id, total, op, source_time, event_time")
    assert [(key, str(total), op) for key, total, op, *_ in silver] == [
        (1, "9.90", "c"),
        (2, "9.90", "u"),
        (3, "7.00", "d"),
        (61, "0.10", "c"),
    ]
    assert [one[3:] for one in silver] == [(minute(n), minute(n)) for n in (1, 2, 3, 61)]
    positions = read(orders.lake, "silver.order_changes", "source_position")
    assert positions[0] == ("00000000000000001001",)
    gold = read(orders.lake, "gold.order_changes_per_hour", "created, deleted, ordered")
    assert [(*counts, str(total)) for *counts, total in gold] == [(1, 0, "0.10"), (1, 1, "9.90")]
    assert read(orders.lake, "silver.order_changes__quarantine", "stage, reasons") == [
        ("contract", ["total: not exactly DECIMAL(12,2)"])
    ]
    assert_whole(orders)


@pytest.mark.long
def test_tombstones_of_a_topic_are_filtered_and_erased_with_their_key(
    spark: SparkSession, tmp_path: Path, kafka: Kafka
) -> None:
    topic = kafka.topic(partitions=1)
    content = on_the_page(0)
    content["source"] |= {"bootstrap": kafka.bootstrap, "topic": topic}
    file = tmp_path / "customers.yml"
    file.write_text(yaml.safe_dump(content), encoding="utf-8")
    environment = load_environment("local", root=str(tmp_path / "lake"))
    customers = Followed(spark, environment, load_pipeline(str(file), environment))
    for key, records in {
        3: [change("c", 1, None, customer(3, "Cid")), change("d", 3, None, None), None],
        33: [change("c", 1, None, customer(33, "Dan")), None],
    }.items():
        kafka.send(topic, records, key=b'{"id":%d}' % key)
    customers.run()
    stored = read(customers.lake, "bronze.customers", "payload IS NULL")
    assert [one for (one,) in stored].count(True) == 2
    # The delete has no `before`: its key says which row it was.
    assert read(customers.lake, "dim.customers", "id") == [(33,)]
    ledger = read_ledger(customers.lake, customers.pipeline)
    assert (ledger.fates["silver"], ledger.fates["filtered"]) == (3, 2)
    assert_whole(customers)
    erase(customers.context, Subject("id", "3"), now=True)
    kept = read(customers.lake, "bronze.customers", "decode(key)")
    assert kept == [('{"id":33}',)] * 2
    assert_whole(customers)
