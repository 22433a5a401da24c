"""What the first line says, and which alerts stand under it."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.shops import BATCH_ROWS, Shop
from tests.unit.handmade import write_measures
from tidelake.delta.log import Commit
from tidelake.delta.tables import HOPS
from tidelake.ledger.history import rate_of
from tidelake.ledger.query import Answer, ask
from tidelake.ledger.terms import read_ledger
from tidelake.ops import metrics, status
from tidelake.ops.alerts import Alert
from tidelake.ops.metrics import Measured
from tidelake.ops.page.facts import Facts, read_flow, read_sides
from tidelake.ops.page.server import verdict_of

NOW = datetime(2026, 3, 1, 1, tzinfo=UTC)
WARNING = Alert("stale", "shop", None, "warning", "no batch", None, "tidelake status shop")
REFUSED = Alert("hop_refused", "shop", "gold", "critical", "gone", None, "tidelake repair shop")


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    """Give a lake of three batches."""
    return Shop(tmp_path).run(3)


def facts_of(shop: Shop, *alerts: Alert) -> Facts:
    """Read all parts but the alerts."""
    lake, pipeline = shop.lake, shop.pipeline
    return Facts(
        "shop",
        pipeline,
        looked_at=NOW,
        has_run=True,
        flow=read_flow(lake, pipeline, now=NOW),
        alerts=alerts,
        sides=read_sides(lake, pipeline),
        books=read_ledger(lake, pipeline),
    )


def test_balanced_books_without_an_alert_are_well(shop: Shop) -> None:
    verdict = verdict_of([facts_of(shop)])

    assert (verdict.state, verdict.text, verdict.alerts) == ("well", "All is well", ())


def test_books_that_do_not_balance_come_first_with_their_command(shop: Shop) -> None:
    log = sorted((shop.lake.silver("shop").path / "_delta_log").glob("*.json"))[1]
    log.write_text(log.read_text().replace('[\\"silver\\",null,\\"bronze\\",8', "[", 1))
    # The note of batch 1 is no JSON any more: the batch is not booked.
    found = facts_of(shop, WARNING)

    first, second = verdict_of([found]).alerts

    assert verdict_of([found]).text == "1 thing is wrong, and 1 to look at today"
    assert (first.rule, first.severity) == ("books_unbalanced", "critical")
    assert first.command == "tidelake ledger shop --by batch"
    assert second == WARNING


def test_the_worst_of_several_pipelines_comes_first(shop: Shop) -> None:
    calm, ill = facts_of(shop, WARNING), facts_of(shop, REFUSED)

    assert verdict_of([calm, ill]).alerts == (REFUSED, WARNING)
    assert verdict_of([calm]).state == "warning"
    assert verdict_of([calm]).text == "1 thing to look at today"


def test_nothing_is_called_well_before_alerts_and_books_were_read(shop: Shop) -> None:
    whole = facts_of(shop)

    for missing in (replace(whole, alerts=None), replace(whole, books=None)):
        assert verdict_of([whole, missing]).state == "unknown"
    assert verdict_of([Facts("shop")]).text == "The tables are being read"


def test_a_pipeline_that_never_ran_is_new_and_spoils_nobody_elses_verdict(shop: Shop) -> None:
    new = Facts("other", shop.pipeline, looked_at=NOW)

    assert verdict_of([new]).state == "new"
    assert verdict_of([new, facts_of(shop)]).state == "well"


def test_one_message_of_several_rules_counts_once_and_keeps_their_names() -> None:
    told = "cannot be evaluated: DamagedError: the log of silver.shop lacks a commit"
    one, other = (replace(REFUSED, rule=rule, hop=None, message=told) for rule in ("stale", "rate"))
    late = replace(WARNING, message=told)
    facts = Facts("shop", looked_at=NOW, alerts=(late, one, other, REFUSED))

    verdict = verdict_of([facts])

    assert verdict.text == "2 things are wrong"
    assert verdict.alerts == (one, other, REFUSED, late)
    elsewhere = replace(one, pipeline="other")
    assert verdict_of([replace(facts, alerts=(one, elsewhere))]).text == "2 things are wrong"


@pytest.mark.parametrize(
    ("part", "command"),
    [
        ("fingerprint", "status"),
        ("flow", "status"),
        ("alerts", "alerts"),
        ("sides", "quarantine list"),
        ("plots", "status"),
        ("books", "ledger"),
    ],
)
def test_the_command_of_a_part_that_cannot_be_read_says_more_of_it(part: str, command: str) -> None:
    (alert,) = Facts("shop", broken=((part, "gone"),)).open
    assert alert.command == f"tidelake {command} shop"


def test_what_cannot_be_read_is_an_alert_of_its_own() -> None:
    broken = Facts("shop", broken=(("definition", "shop.yml: 1 error"),), looked_at=NOW)

    (alert,) = verdict_of([broken]).alerts

    assert alert.message == "shop.yml: 1 error"
    assert alert.command == "tidelake check shop"


def test_the_flow_tells_pace_sizes_and_what_waits(shop: Shop) -> None:
    shop.land("more.json")
    os.utime(shop.root / "landing" / "more.json", ((NOW - timedelta(hours=5)).timestamp(),) * 2)
    # Of the last batch, after which nothing waited.
    ended = NOW - timedelta(hours=9)
    write_measures(shop.lake, [Measured("shop", "bronze", "g1", 2, "r", ended, ended)])

    flow = read_flow(shop.lake, shop.pipeline, now=NOW)

    bronze, silver, gold = flow.hops
    assert [hop.lag_seconds for hop in flow.hops] == [5 * 3600, 0, 0]
    assert bronze.status.waiting == 1
    assert bronze.sizes == silver.sizes == (BATCH_ROWS,) * 3
    assert bronze.status.rows_per_second == pytest.approx(1.0)
    assert gold.status.rows_per_second == pytest.approx(0.8)
    assert list(flow.golds) == list(shop.pipeline.gold_names)
    assert not flow.runs
    assert flow.requeued == 0


def test_the_pace_is_that_of_the_batches_since_the_last_pause(shop: Shop) -> None:
    shop.began += timedelta(hours=1)
    shop.run(1)
    bronze = read_flow(shop.lake, shop.pipeline, now=NOW).hops[0]
    assert bronze.status.rows_per_second is None

    shop.run(2)
    bronze = read_flow(shop.lake, shop.pipeline, now=NOW).hops[0]

    assert bronze.sizes == (BATCH_ROWS,) * 6
    assert bronze.status.rows_per_second == pytest.approx(1.0)


def test_the_creation_of_a_table_is_no_batch_of_its_pace() -> None:
    created, *closed = [
        Commit(n, NOW + timedelta(seconds=10 * n), 8, {"batch": n - 1, "records": 8})
        for n in range(3)
    ]
    assert rate_of([closed[0], created]) is None
    assert rate_of([*reversed(closed), created]) == pytest.approx(0.8)


def test_the_pace_of_a_hop_is_that_of_its_newest_batches(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(status, "rate_of", lambda commits: asked.append(len(commits)))
    for _ in range(12):
        shop.run(1)
    status.read_status(shop.lake, shop.pipeline)
    assert max(asked) == 10


def test_the_flow_reads_the_newest_metrics_of_each_hop_and_no_others(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def batch(hop: str, number: int) -> Measured:
        ended = NOW - timedelta(minutes=10 - number)
        return Measured("shop", hop, "g1", number, "r", ended - timedelta(seconds=1), ended)

    write_measures(shop.lake, [batch(hop, number) for hop in HOPS for number in range(9)])
    read: list[int] = []

    def counting(*arguments: Any) -> Answer:
        answer = ask(*arguments)
        read.append(len(answer.rows))
        return answer

    monkeypatch.setattr(metrics, "ask", counting)
    flow = read_flow(shop.lake, shop.pipeline, now=NOW)

    assert [(one.status.hop, one.measured) for one in flow.hops] == [
        (hop, batch(hop, 8)) for hop in HOPS
    ]
    assert read == [3]


def test_a_process_that_holds_a_hop_is_told_and_one_that_ended_is_not(shop: Shop) -> None:
    lock = shop.lake.checkpoints("shop", "silver") / ".lock"
    lock.write_text(str(os.getpid()))
    assert read_flow(shop.lake, shop.pipeline, now=NOW).runs

    lock.write_text("4194305")
    assert not read_flow(shop.lake, shop.pipeline, now=NOW).runs


def test_sides_hold_reasons_with_an_example_and_late_rows_by_date(shop: Shop) -> None:
    sides = read_sides(shop.lake, shop.pipeline)

    (group,) = sides.quarantine
    assert (group.rows, group.reason) == (3, "payload: not one JSON object")
    assert group.example == b"{oh no"
    assert sum(day.waiting for day in sides.late) == 3
