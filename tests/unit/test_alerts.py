"""Alerts, judged from logs written by hand: when each rule opens, and when it does not."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from tests.listening import listening
from tests.unit.handmade import (
    SHOP,
    write_checkpoint,
    write_commit,
    write_measures,
    write_offset,
)
from tidelake.cli import app
from tidelake.cli.exits import run_command
from tidelake.config import Pipeline, load_environment, load_pipeline
from tidelake.delta.locks import hold_hops
from tidelake.delta.positions import TopicPosition
from tidelake.delta.tables import HOPS, Lake
from tidelake.errors import GenerationError, RefusedError, SourceError, UsageError
from tidelake.ledger.history import BacklogReader
from tidelake.ops import alert_delivery
from tidelake.ops.alert_delivery import AlertReporter, watching
from tidelake.ops.alerts import (
    MEASURED,
    RULES,
    RUNNING,
    Alert,
    AlertContext,
    Found,
    _latency_over_sla,
    alerts_of,
)
from tidelake.ops.metrics import Measured
from tidelake.replay.backfill_state import Stage, State, write_state
from tidelake.runtime import lookups
from tidelake.typed import PLAIN

NEW_YEAR = datetime(2024, 1, 1, tzinfo=UTC)
IDS = {"reservoirId": "x"}


def at(second: float) -> datetime:
    return NEW_YEAR + timedelta(seconds=second)


class Shop:
    """A lake of logs: each batch of bronze has ten rows, silver and gold follow it."""

    def __init__(self, root: Path) -> None:
        self.lake = Lake(root)
        self.landing = root / "landing"
        self.landing.mkdir(parents=True)
        self.batches = 0
        self.more: dict[str, Any] = {}
        self._made: set[str] = set()

    def define(self, **alerts: Any) -> Pipeline:
        file = self.lake.root / "shop.yml"
        file.write_text(yaml.safe_dump(SHOP | self.more | ({"alerts": alerts} if alerts else {})))
        return load_pipeline(str(file), load_environment("local", root=str(self.lake.root)))

    def land(self, name: str, second: float) -> Path:
        file = self.landing / name
        file.write_text("{}\n" * 10)
        os.utime(file, (at(second).timestamp(),) * 2)
        return file

    def bronze(self, second: float, *files: Path, **more: Any) -> None:
        names = [[str(f), 30, int(f.stat().st_mtime * 1000), 10] for f in files]
        note = {"ingested_at": at(second).isoformat(), "files": names, "records": 10, **more}
        self._write("bronze", self.batches, second, note, rows=10)

    def silver(
        self, second: float, *, mark: float | None = 0, counts: Sequence[Any] | None = None
    ) -> None:
        told = at(mark).isoformat() if mark is not None else None
        note = {
            "watermark_in": None,
            "watermark": told,
            "partitions": {"0": [told, at(second).isoformat()]},
            "counts": counts or [["silver", None, "bronze", 10, 0]],
            "taken": {"bronze": 10, "requeue": 0},
            "until": {"bronze": [self.batches + 2, -1], "requeue": [0, -1]},
            "warnings": {},
            "dedup": {"searched": 0, "seconds": 0.0},
            "prefiltered": None,
            "columns": [],
        }
        self._write("silver", self.batches, second, note, rows=10)

    def gold(self, second: float, **more: int) -> None:
        note = {"rows": 10, "eligible": 10, **more, "until": {"silver": [self.batches + 2, -1]}}
        self._write("gold", self.batches, second, note, rows=10)

    def batch(self, second: float, *, mark: float | None = 0, counts: Any = None) -> None:
        """Let a batch go through all hops."""
        self.bronze(second)
        self.silver(second + 1, mark=mark, counts=counts)
        self.gold(second + 2)
        self.batches += 1

    def _write(self, hop: str, batch: int, second: float, note: dict[str, Any], rows: int) -> None:
        table = {
            "bronze": self.lake.bronze("shop"),
            "silver": self.lake.silver("shop"),
            "gold": self.lake.gold("totals"),
        }[hop]
        stamp = {"pipeline": "shop", "hop": hop, "generation": "g1"}
        if hop not in self._made:
            write_commit(table, 0, note={**stamp, "batch": -1}, second=second)
            if hop == "silver":
                write_commit(self.lake.requeue("shop"), 0, note={**stamp, "batch": -1})
            self._made.add(hop)
        told = {**stamp, "batch": batch, **note}
        write_commit(table, batch + 1, note=told, rows=rows, adds=[(rows, True)], second=second)
        self._close(hop, batch)

    def _close(self, hop: str, batch: int) -> None:
        folder = self.checkpoint(hop)
        write_checkpoint(folder, planned=batch, committed=batch)
        (folder / "metadata").write_text('{"id": "x"}')
        until = {"reservoirVersion": batch + 2, "index": -1, **IDS}
        other = {"reservoirVersion": 0, "index": -1, **IDS}
        write_offset(folder, batch, *{"silver": (until, other), "gold": (until,)}.get(hop, (None,)))

    def checkpoint(self, hop: Any) -> Path:
        return self.lake.checkpoints("shop", hop) / "g1"

    def judge(
        self, second: float, *, measures: Sequence[Measured] = (), **alerts: Any
    ) -> dict[str, Alert]:
        """Give the first open alert of each rule; the books are another test's."""
        found = alerts_of(
            self.lake, self.define(**alerts), now=at(second), measures=measures, counts=False
        )
        return {one.rule: one for one in reversed(found)}


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def test_a_pipeline_that_keeps_up_has_no_alert(shop: Shop) -> None:
    for second in (0, 10, 20):
        shop.batch(second, mark=second)
    assert shop.judge(30) == {}


def test_a_pipeline_that_never_ran_is_told_how_to_run(shop: Shop) -> None:
    with pytest.raises(UsageError, match="Fill them with: tidelake run shop"):
        shop.judge(0)


def test_the_lag_grows_where_files_wait_for_long_and_none_is_taken(shop: Shop) -> None:
    shop.batch(0)
    shop.land("a.json", 100)
    shop.land("b.json", 200)
    assert shop.judge(399) == {}
    found = shop.judge(401)["lag_growing"]
    assert (found.hop, found.severity, found.since) == ("bronze", "warning", at(100))
    assert found.message == (
        "2 files are waiting, the oldest for 5 minutes; "
        "in the last 5 minutes 1 arrived and 0 were read"
    )
    assert found.command == "tidelake status shop"


def test_a_backlog_that_is_worked_off_is_no_growing_lag(shop: Shop) -> None:
    old = [shop.land(f"{n}.json", 0) for n in range(3)]
    shop.bronze(500, *old[:2])
    assert "lag_growing" not in shop.judge(600)
    # Nothing was taken for longer than the limit.
    assert shop.judge(801)["lag_growing"].hop == "bronze"


def test_rows_that_wait_for_silver_or_gold_are_a_lag_too(shop: Shop) -> None:
    shop.batch(0)
    shop.bronze(100)
    found = shop.judge(500)["lag_growing"]
    assert (found.hop, found.since) == ("silver", at(100))
    assert found.message.startswith("10 rows are waiting, the oldest for 7 minutes")
    shop.silver(501)
    found = shop.judge(802)["lag_growing"]
    assert (found.hop, found.since) == ("gold", at(501))


def test_a_limit_of_the_definition_replaces_the_default_and_null_turns_it_off(shop: Shop) -> None:
    shop.batch(0)
    shop.land("a.json", 100)
    assert shop.judge(106, lag_seconds=5)["lag_growing"].since == at(100)
    assert shop.judge(10_000, lag_seconds=None) == {}


def test_no_batch_for_long_is_critical_where_something_waits(shop: Shop) -> None:
    shop.batch(0)
    day = 86_400
    found = shop.judge(day + 10)["stale"]
    assert (found.severity, found.command) == ("warning", "tidelake status shop")
    assert "no batch was committed for 24 hours, and no input is waiting" in found.message
    shop.land("a.json", 5)
    found = shop.judge(day + 10)["stale"]
    assert (found.severity, found.command) == ("critical", "tidelake run shop")
    assert "1 file for bronze" in found.message
    assert "stale" not in shop.judge(day - 10)


def test_one_hop_that_commits_nothing_while_its_rows_wait_for_long_is_critical(shop: Shop) -> None:
    """As gold in a job of its own that is killed each time, beside hourly runs of the others."""
    shop.batch(0)
    for hour in range(1, 30):
        shop.bronze(hour * 3600)
        shop.silver(hour * 3600 + 1, mark=hour * 3600)
        shop.batches += 1
    day = 86_400
    # The first row has not waited for a day.
    assert "stale" not in shop.judge(day + 3601, lag_seconds=None)
    found = shop.judge(day + 3602, lag_seconds=None)["stale"]
    assert (found.hop, found.severity, found.since) == ("gold", "critical", at(2))
    assert found.command == "tidelake run shop --hop gold"
    assert found.message == (
        "no batch was committed for 25 hours, and 290 rows are waiting, the oldest for 24 hours"
    )
    # A hop that works off old rows is not dead.
    shop.batches = 1
    shop.gold(day + 3600)
    assert "stale" not in shop.judge(day + 3602, lag_seconds=None)


def requeue(shop: Shop, rows: int, second: float) -> None:
    note = {"pipeline": "shop", "hop": "requeue", "generation": "g1", "batch": 0}
    table = shop.lake.requeue("shop")
    write_commit(table, 1, note=note, rows=rows, adds=[(rows, True)], second=second)


def test_rows_that_were_requeued_are_input_that_waits_for_silver(shop: Shop) -> None:
    shop.batch(0)
    requeue(shop, 500, 100)
    found = shop.judge(401)["lag_growing"]
    assert (found.hop, found.since) == ("silver", at(100))
    assert found.message.startswith("500 rows are waiting, the oldest for 5 minutes; in the last")
    found = shop.judge(2 * 86_400)["stale"]
    assert (found.severity, found.command) == ("critical", "tidelake run shop")
    assert found.message.endswith("input is waiting: 500 rows for silver")
    # Rows of bronze wait beside them, and longer.
    shop.bronze(50)
    found = shop.judge(401)["lag_growing"]
    assert (found.since, found.message[:8]) == (at(50), "510 rows")


def test_rows_of_another_pipelines_silver_wait_for_gold_that_joins_it(shop: Shop) -> None:
    join = {
        "name": "paid",
        "left": {"columns": {"user_id": "user_id"}},
        "right": {"pipeline": "paying", "columns": {"paid_at": "event_time"}},
        "on": ["user_id"],
        "within": "1 hour",
    }
    paying = SHOP | {"name": "paying", "gold": []}
    (shop.lake.root / "paying.yml").write_text(yaml.safe_dump(paying))
    shop.more = {"gold": [], "joins": [join]}
    shop.bronze(0)
    shop.silver(1)
    note = {"pipeline": "paying", "hop": "silver", "generation": "g1", "batch": 0}
    for version, rows in enumerate((30, 12)):
        adds, second = [(rows, True)], 100 + version
        other = shop.lake.silver("paying")
        write_commit(other, version, note=note, rows=rows, adds=adds, second=second)
    stamp = {"pipeline": "shop", "hop": "gold", "generation": "g1", "batch": 0}
    until = {"silver": [2, -1], "silver.paying": [1, -1]}
    paid = shop.lake.gold("paid")
    write_commit(paid, 0, note=stamp | {"until": until}, rows=1, adds=[(1, True)], second=90)
    found = shop.judge(500, latency_seconds=60)
    assert (found["lag_growing"].hop, found["lag_growing"].since) == ("gold", at(101))
    assert found["lag_growing"].message.startswith("12 rows are waiting")
    # No row of its own bronze is late.
    assert "are not in gold" not in str(found.get("latency_over_sla"))


def test_no_batch_for_long_is_critical_where_records_of_a_topic_wait_or_may_wait(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.more = {"source": {"kind": "kafka", "bootstrap": "127.0.0.1:1", "topic": "t"}}
    note = {"began": at(0).isoformat(), "slots": 1, "limit": None, "bootstrap": "127.0.0.1:1"}
    read = {"offsets": {"t": {"0": 10}}, "behind": {"t": {"0": 0}}}
    shop.bronze(1, looked_at=at(1).isoformat(), **note, **read)
    shop.silver(2)
    shop.gold(3)
    end, later = 15_000_010, 2 * 86_400

    def ends_of(*_: object) -> dict[str, dict[str, int]]:
        if end is None:
            raise SourceError("no Kafka broker can be reached")
        return {"t": {"0": end}}

    monkeypatch.setattr("tidelake.ops.status.ends_of", ends_of)
    found = shop.judge(later)["stale"]
    assert (found.severity, found.command) == ("critical", "tidelake run shop")
    assert found.message == (
        "no batch was committed for 48 hours, and input is waiting: 15,000,000 records for bronze"
    )
    # A run exports them too.
    given: list[Any] = []
    pipeline = shop.define()
    backlogs = BacklogReader(shop.lake, pipeline)
    context = AlertContext(shop.lake, pipeline, at(later), (), backlogs, PLAIN)
    reporter = AlertReporter(shop.lake, "shop", lambda _: None, None)
    with watching(lambda: context, reporter, lambda *one: given.append(one), pytest.fail):
        pass
    assert given[0][2].lag == end - 10
    end = 10
    assert shop.judge(later)["stale"].severity == "warning"
    end = None
    found = shop.judge(later)["stale"]
    assert found.severity == "critical"
    assert found.message.endswith("and whether input waits for bronze is unknown")
    # Nor is it known of a Delta table, and of a folder that cannot be listed.
    shop.more = {"source": {"kind": "delta", "path": "${root}/other"}}
    assert shop.judge(later)["stale"].severity == "critical"
    shop.more = {"source": {"kind": "files", "path": "${root}/gone"}}
    assert shop.judge(later)["stale"].severity == "critical"


def test_what_is_not_in_gold_within_the_agreed_time_is_critical(shop: Shop) -> None:
    shop.batch(0)
    shop.bronze(100)
    assert "latency_over_sla" not in shop.judge(1000, lag_seconds=None)
    assert shop.judge(159, latency_seconds=60) == {}
    found = shop.judge(161, latency_seconds=60)["latency_over_sla"]
    assert (found.severity, found.hop, found.since) == ("critical", "gold", at(100))
    assert "are not in gold yet after 61 seconds; the limit is 60 seconds" in found.message
    # The batch that came too late is told until the next one.
    shop.silver(170)
    shop.gold(200)
    shop.batches += 1
    assert "reached gold in 100 seconds" in (
        shop.judge(201, latency_seconds=60)["latency_over_sla"].message
    )
    shop.batch(210)
    assert shop.judge(220, latency_seconds=60) == {}


def test_a_gold_that_was_rebuilt_made_no_row_late(shop: Shop) -> None:
    for batch in range(3):
        shop.batch(batch * 10)
    stamp = {"pipeline": "shop", "hop": "gold", "generation": "g2", "batch": 0, "rebuilt": True}
    note = {**stamp, "rows": 30, "eligible": 30, "until": {"silver": [4, -1]}}
    gold = shop.lake.gold("totals")
    write_commit(gold, 4, note=note, rows=30, adds=[(30, True)], second=1000)
    found = alerts_of(shop.lake, shop.define(latency_seconds=60), now=at(1001), counts=False)
    assert "latency_over_sla" not in {one.rule for one in found}
    # Rows that it does not include may be.
    shop.bronze(1010)
    assert shop.judge(1071, latency_seconds=60)["latency_over_sla"].since == at(1010)


def test_the_agreed_time_is_looked_up_without_reading_old_commits(shop: Shop) -> None:
    for batch in range(6):
        shop.batch(batch * 10)
    shop.bronze(100)
    pipeline = shop.define(latency_seconds=60)
    backlogs = BacklogReader(shop.lake, pipeline)
    context = AlertContext(shop.lake, pipeline, at(161), (), backlogs, PLAIN)
    # Which files were taken is read once in a run.
    assert context.waiting
    for table in (shop.lake.bronze("shop"), shop.lake.silver("shop"), shop.lake.gold("totals")):
        for version in range(4):
            (table.path / "_delta_log" / f"{version:020d}.json").write_text("unreadable")
    (found,) = _latency_over_sla(context, 60)
    assert found.since == at(100)


def test_without_gold_the_agreed_time_is_that_into_silver(shop: Shop) -> None:
    shop.more = {"gold": []}
    shop.bronze(0)
    shop.silver(1)
    shop.batches += 1
    shop.bronze(100)
    assert shop.judge(159, latency_seconds=60) == {}
    found = shop.judge(161, latency_seconds=60)["latency_over_sla"]
    assert (found.severity, found.hop, found.since) == ("critical", "silver", at(100))
    assert "are not in silver yet after 61 seconds; the limit is 60 seconds" in found.message
    shop.silver(200)
    shop.batches += 1
    found = shop.judge(201, latency_seconds=60)["latency_over_sla"]
    assert "reached silver in 100 seconds" in found.message
    shop.bronze(210)
    shop.silver(211)
    assert shop.judge(220, latency_seconds=60) == {}


def test_a_commit_that_leaves_no_row_for_gold_is_not_late(shop: Shop) -> None:
    shop.batch(0)
    shop.bronze(100)
    # All of them were copies: silver got no row, and gold no batch.
    stamp = {"pipeline": "shop", "hop": "silver", "generation": "g1", "batch": 1}
    note = {**stamp, "until": {"bronze": [3, -1], "requeue": [0, -1]}}
    write_commit(shop.lake.silver("shop"), 2, note=note, rows=0, second=110)
    found = shop.judge(500, latency_seconds=60)
    assert "latency_over_sla" not in found
    # Nor does it wait because other rows were requeued.
    requeue(shop, 500, 400)
    found = shop.judge(500, latency_seconds=60)
    assert "latency_over_sla" not in found


def test_rows_that_wait_for_a_gold_that_never_ran_are_late(shop: Shop) -> None:
    shop.bronze(0)
    # Silver's job has not begun either.
    assert "latency_over_sla" not in shop.judge(3600, latency_seconds=60)
    shop.silver(1)
    assert shop.judge(59, latency_seconds=60) == {}
    found = shop.judge(3600, latency_seconds=60)["latency_over_sla"]
    assert (found.severity, found.hop, found.since) == ("critical", "gold", at(0))
    assert "are not in gold yet after 60 minutes; the limit is 60 seconds" in found.message


def test_rows_from_before_the_first_gold_table_of_a_definition_are_not_late(shop: Shop) -> None:
    shop.bronze(0)
    shop.silver(1)
    shop.batches += 1
    # An epoch was closed without gold.
    last = {"shop": {"epoch": 1, "versions": {"bronze.shop": 1, "silver.shop": 1}}}
    note = {"pipeline": "shop", "hop": "epochs", "generation": "g1", "batch": 0, "last": last}
    write_commit(shop.lake.epochs(), 0, note=note, rows=1, adds=[(1, True)], second=2)
    assert "latency_over_sla" not in shop.judge(3600, latency_seconds=60)
    shop.bronze(3500)
    shop.silver(3501)
    assert "latency_over_sla" not in shop.judge(3550, latency_seconds=60)
    assert shop.judge(3561, latency_seconds=60)["latency_over_sla"].since == at(3500)


def test_a_watermark_that_rows_do_not_move_is_stuck(shop: Shop) -> None:
    shop.batch(0, mark=-100)
    for second in (100, 300, 600):
        shop.batch(second, mark=-50)
    assert "watermark_stuck" not in shop.judge(650)
    shop.batch(750, mark=-50)
    found = shop.judge(760)["watermark_stuck"]
    assert found.since == at(101)
    assert found.message == (
        "30 events were accepted in 11 minutes and the watermark stays at 2023-12-31 23:59:10Z"
    )
    shop.batch(800, mark=0)
    assert "watermark_stuck" not in shop.judge(810)


def test_the_batch_that_set_the_watermark_does_not_make_it_stuck(shop: Shop) -> None:
    shop.batch(0, mark=-50)
    shop.batch(86_400, mark=-50, counts=[["duplicate", None, "bronze", 10, 0]])
    assert "watermark_stuck" not in shop.judge(86_410)
    shop.batch(86_420, mark=-50)
    assert shop.judge(86_430)["watermark_stuck"].message.startswith("10 events were accepted")


def test_a_watermark_rests_where_nothing_is_accepted(shop: Shop) -> None:
    for second in (0, 800):
        shop.batch(second, mark=-50, counts=[["duplicate", None, "bronze", 10, 0]])
    assert "watermark_stuck" not in shop.judge(810)


def test_expressions_that_failed_in_the_last_hour_of_gold_are_reported(shop: Shop) -> None:
    for second, failed in ((0, 9), (4000, 2), (5000, 0), (6000, 1)):
        shop.bronze(second)
        shop.silver(second + 1)
        shop.gold(second + 2, failed=failed)
        shop.batches += 1
    found = shop.judge(6100)["expression_failed"]
    assert (found.severity, found.hop, found.since) == ("warning", "gold", at(4002))
    assert found.message == "expressions failed on events or rows and gave null: gold.totals 3"
    shop.batch(9700)
    assert "expression_failed" not in shop.judge(9800)


def test_a_topic_that_lacks_changes_for_longer_than_the_limit_is_told(shop: Shop) -> None:
    to = {"topic": "totals", "bootstrap": "127.0.0.1:1"}
    shop.more = {"gold": [SHOP["gold"][0] | {"publish": to}]}
    table = shop.lake.gold("totals")
    shop.batch(0)
    shop.batch(100)
    # An environment may publish nothing.
    assert "unpublished" not in shop.judge(9999)

    def published(version: int, commit: int, second: float) -> None:
        reached = TopicPosition("totals", "id-1", ("user_id",), version)
        metadata = reached.options(table)["userMetadata"]
        write_commit(table, commit, metadata=metadata, second=second)

    published(1, 3, 103)
    assert "unpublished" not in shop.judge(402)
    found = shop.judge(403)["unpublished"]
    assert (found.severity, found.hop, found.since) == ("warning", "gold", at(102))
    assert found.command == "tidelake status shop"
    told = "versions of gold.totals wait for topic totals: 1, the oldest for 5 minutes"
    assert found.message == told
    assert "unpublished" not in shop.judge(403, lag_seconds=400)
    assert "unpublished" not in shop.judge(403, lag_seconds=None)
    published(2, 4, 404)
    assert "unpublished" not in shop.judge(9999)
    # The log was cleaned up.
    published(0, 5, 405)
    for version in (0, 1):
        (table.path / "_delta_log" / f"{version:020}.json").unlink()
    found = shop.judge(406)["unpublished"]
    assert "published up to version 0, and its log begins at version 2" in found.message
    assert (found.severity, found.since) == ("warning", None)


def two_topics(shop: Shop) -> None:
    """Let two tables wait for their topics: one since second 12, one since its log was cut."""
    to = {"bootstrap": "127.0.0.1:1"}
    totals = SHOP["gold"][0] | {"publish": {"topic": "totals", **to}}
    visits = SHOP["gold"][0] | {"name": "visits", "publish": {"topic": "visits", **to}}
    clicks = SHOP["gold"][0] | {"name": "clicks", "publish": {"topic": "clicks", **to}}
    shop.more = {"gold": [visits, totals, clicks]}
    shop.batch(0)
    shop.batch(10)
    stamp = {"pipeline": "shop", "hop": "gold", "generation": "g1"}
    for name in ("visits", "clicks"):
        for batch in (-1, 0, 1):
            adds = [(10, True)] if batch >= 0 else []
            note = {**stamp, "batch": batch, "rows": 10}
            write_commit(shop.lake.gold(name), batch + 1, note=note, adds=adds, second=20)
    for name in ("totals", "visits", "clicks"):
        table = shop.lake.gold(name)
        reached = TopicPosition(name, "id-1", ("user_id",), 1 if name != "clicks" else 0)
        write_commit(table, 3, metadata=reached.options(table)["userMetadata"], second=21)
    for version in (0, 1):
        (shop.lake.gold("clicks").path / "_delta_log" / f"{version:020}.json").unlink()


def test_all_topics_that_lack_changes_are_told_in_one_alert(shop: Shop) -> None:
    """An alert has no table in its key: of two, people would hear of one."""
    two_topics(shop)
    found = [one for one in alerts_of(shop.lake, shop.define(), now=at(9999), counts=False)]
    (told,) = [one for one in found if one.rule == "unpublished"]
    for part in ("topic visits: 1", "topic totals: 1", "gold.clicks is published up to version 0"):
        assert part in told.message
    assert told.since == at(12)


def test_where_nothing_is_published_no_topic_lacks_changes(
    shop: Shop, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a copy of another environment's tables: it has the positions too."""
    two_topics(shop)
    pipeline = shop.define()
    conf, root = shop.lake.root / "conf", str(shop.lake.root)
    for folder in ("environments", "pipelines"):
        (conf / folder).mkdir(parents=True)
    environment = conf / "environments" / "local.yml"
    given: list[bool] = []

    def page(*_: object, publishes: bool, **__: object) -> None:
        given.append(publishes)
        raise UsageError("the page")

    monkeypatch.setattr("tidelake.ops.page.facts_cache.FactsCache", page)
    for publishes in (True, False):
        environment.write_text(f"publish: {str(publishes).lower()}")
        run_command(
            app, ["alerts", str(shop.lake.root / "shop.yml"), "--root", root, "--conf", str(conf)]
        )
        assert ("unpublished" in capsys.readouterr().out) is publishes
        run_command(app, ["ui", "--root", root, "--conf", str(conf)])
        found = alerts_of(shop.lake, pipeline, now=at(9999), counts=False, publishes=publishes)
        assert ("unpublished" in {one.rule for one in found}) is publishes
    assert given == [True, False]


def test_rates_are_those_of_the_last_hour_and_of_fresh_rows(shop: Shop) -> None:
    well = [["silver", None, "bronze", 990, 0]]
    shop.batch(0, counts=[["quarantined", "parse", "bronze", 1000, 0]])
    shop.batch(4000, mark=1, counts=[*well, ["late", None, "requeue", 500, 0]])
    assert shop.judge(4100) == {}
    bad = [
        ["quarantined", "parse", "bronze", 20, 0],
        ["quarantined", "contract", "bronze", 30, 0],
        ["late", None, "bronze", 60, 0],
        ["filtered", "where", "bronze", 5, 0],
    ]
    shop.batch(4100, mark=2, counts=[*well, *bad])
    found = shop.judge(4200)
    assert found["quarantine_rate"].message == (
        "2.4% of the last 2,095 rows were quarantined (contract 30, parse 20); the limit is 2.0%"
    )
    assert found["quarantine_rate"].command == "tidelake quarantine list shop"
    assert "late_rate" not in found
    assert shop.judge(4200, late_rate=0.02)["late_rate"].message.startswith("2.9% of the last")


def test_of_few_rows_a_rate_says_nothing(shop: Shop) -> None:
    shop.batch(0, counts=[["quarantined", "parse", "bronze", 99, 0]])
    assert shop.judge(10) == {}


def test_a_deleted_checkpoint_refuses_a_hop(shop: Shop) -> None:
    shop.batch(0)
    for file in sorted(shop.checkpoint("silver").rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() else file.unlink()
    shop.checkpoint("silver").rmdir()
    found = shop.judge(10)["hop_refused"]
    assert (found.hop, found.severity) == ("silver", "critical")
    assert found.message == "silver.shop holds batch 0, but its checkpoint is gone"
    assert found.command == "tidelake repair shop --hop silver"


def test_a_silver_that_has_closed_no_batch_yet_is_no_mismatch(shop: Shop) -> None:
    shop.bronze(0)
    stamp = {"pipeline": "shop", "hop": "silver", "generation": "g1", "batch": -1}
    for table in (shop.lake.silver("shop"), shop.lake.requeue("shop")):
        write_commit(table, 0, note=stamp)
    for side in (shop.lake.late("shop"), shop.lake.quarantine("shop")):
        write_commit(side, 0, note=stamp)
    shop.checkpoint("silver").mkdir(parents=True)
    assert "hop_refused" not in shop.judge(10)


def test_a_dimension_that_was_replaced_refuses_silver(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise GenerationError("rows were looked up in version 3 of dim.users", "Restore it")

    monkeypatch.setattr(lookups, "refuse_replaced", refuse)
    shop.batch(0)
    assert "hop_refused" not in shop.judge(10)
    enriched = shop.define().model_copy(update={"enrich": (SimpleNamespace(),)})
    found = alerts_of(shop.lake, enriched, now=at(10), counts=False)
    (refused,) = [one for one in found if one.rule == "hop_refused"]
    assert refused.message.startswith("rows were looked up in version 3 of dim.users")


@pytest.mark.parametrize(("hop", "name"), [("silver", "silver.shop"), ("gold", "gold.totals")])
def test_a_hop_whose_only_table_was_deleted_is_refused(shop: Shop, hop: str, name: str) -> None:
    for second in (0, 10, 20):
        shop.batch(second, mark=second)
    shutil.rmtree(shop.lake.table(name).path)
    found = shop.judge(30)["hop_refused"]
    assert (found.hop, found.severity) == (hop, "critical")
    assert found.message == (
        f"{name} is at batch -1, its checkpoint at 2: one of them is an older copy"
    )
    assert found.command == f"tidelake repair shop --hop {hop}"


def test_a_hop_that_has_not_run_yet_is_not_refused(shop: Shop) -> None:
    shop.bronze(0)
    assert shop.judge(10) == {}
    # Its first batch is planned, and its table not created yet.
    write_offset(shop.checkpoint("silver"), 0, None, None)
    assert shop.judge(10) == {}
    shop.silver(11)
    # Its job never ran, or the pipeline had no gold table before.
    assert shop.judge(20) == {}


def test_a_table_that_waits_to_be_filled_refuses_nothing(shop: Shop) -> None:
    for second in (0, 3, 6):
        shop.batch(second)
    # It comes first, and a run that died had created it.
    shop.more = {"gold": [{**SHOP["gold"][0], "name": "added"}, *SHOP["gold"]]}
    note = {"pipeline": "shop", "hop": "gold", "generation": "g1", "batch": -1}
    write_commit(shop.lake.gold("added"), 0, note=note, second=9)
    # Silver's log no longer has its first commits, which a table without a batch would read.
    (shop.lake.silver("shop").path / "_delta_log" / f"{0:020}.json").unlink()
    assert "hop_refused" not in shop.judge(10)


def test_a_file_that_changed_after_it_was_read_refuses_bronze(shop: Shop) -> None:
    file = shop.land("a.json", 0)
    shop.bronze(1, file)
    file.write_text("{}\n" * 11)
    found = shop.judge(2)["hop_refused"]
    assert (found.hop, found.command) == ("bronze", "tidelake check shop")
    assert "files changed after they were read" in found.message
    assert "\n" not in found.message


def test_work_that_was_left_half_done_refuses_all_hops(shop: Shop) -> None:
    shop.batch(0)
    shop.lake.erasure("shop").mkdir(parents=True)
    shop.lake.swap("shop").parent.mkdir(parents=True)
    shop.lake.swap("shop").write_text("")
    found = [one for one in alerts_of(shop.lake, shop.define(), now=at(5), counts=False)]
    assert [(one.rule, one.hop, one.command) for one in found] == [
        ("hop_refused", None, "tidelake erase shop --subject COLUMN=VALUE"),
        ("hop_refused", None, "tidelake backfill promote shop"),
    ]


def test_of_hops_that_wait_for_unfinished_work_no_other_remedy_is_named(shop: Shop) -> None:
    shop.batch(0)
    for hop in HOPS:
        shutil.rmtree(shop.checkpoint(hop))

    def refused() -> list[str]:
        found = alerts_of(shop.lake, shop.define(), now=at(5), counts=False, measures=())
        return [one.hop or "all" for one in found if one.rule == "hop_refused"]

    assert refused() == ["bronze", "silver", "gold"]
    swap, erasure = shop.lake.swap("shop"), shop.lake.erasure("shop")
    for marker in (swap, erasure):
        marker.parent.mkdir(parents=True)
    swap.write_text("promoting")
    # Beside a swap, bronze may run.
    assert refused() == ["all", "bronze"]
    swap.unlink()
    erasure.write_text("")
    assert refused() == ["all"]


def test_a_bronze_that_was_deleted_is_a_refused_hop_and_is_told_to_the_webhook(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shop.batch(0)
    shutil.rmtree(shop.lake.bronze("shop").path)
    found = shop.judge(10)["hop_refused"]
    assert (found.hop, found.severity) == ("bronze", "critical")
    assert found.message.startswith(
        "bronze.shop was deleted, but its checkpoint, or tables filled from it, are still there."
    )

    conf = shop.lake.root / "conf"
    for folder in ("environments", "pipelines"):
        (conf / folder).mkdir(parents=True)
    (conf / "environments" / "local.yml").write_text("alerts: {webhook: env:HOOK}")
    place = [str(shop.lake.root / "shop.yml"), "--root", str(shop.lake.root), "--conf", str(conf)]
    with listening() as server:
        monkeypatch.setenv("HOOK", server.address)
        assert run_command(app, ["alerts", *place, "--tell"]) == 3
    assert found.message in {one["message"] for one in server.heard[0]["opened"]}
    capsys.readouterr()
    for report in (["status"], ["ledger"], ["late", "list"]):
        assert run_command(app, [*report, *place]) == 3
        assert found.message in " ".join(capsys.readouterr().err.split())


def test_an_erasure_or_swap_that_is_running_refuses_nothing_and_unbalances_nothing(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.batch(0)
    unequal = RULES["books_unbalanced"]._replace(find=lambda *_: iter([Found("unequal")]))
    monkeypatch.setitem(RULES, "books_unbalanced", unequal)
    pipeline = shop.define()

    def opened() -> list[str]:
        """Give the open alerts of the two rules."""
        found = alerts_of(shop.lake, pipeline, now=at(5), measures=())
        return [one.rule for one in found if one.rule in ("books_unbalanced", "hop_refused")]

    erasure, swap = shop.lake.erasure("shop"), shop.lake.swap("shop")
    for marker in (erasure, swap):
        marker.parent.mkdir(parents=True)
    # A run that appends leaves tables that agree.
    with hold_hops(shop.lake, "shop", HOPS):
        assert opened() == ["books_unbalanced"]
    erasure.write_text("")
    with hold_hops(shop.lake, "shop", HOPS, resumes="erasure"):
        assert opened() == []
    assert opened() == ["books_unbalanced", "hop_refused"]
    erasure.unlink()
    swap.write_text("promoting")
    with hold_hops(shop.lake, "shop", ["silver", "gold"], resumes="swap"):
        assert opened() == []
    # Beside an interrupted swap, bronze may run.
    with hold_hops(shop.lake, "shop", ["bronze"]):
        assert opened() == ["books_unbalanced", "hop_refused"]


@pytest.mark.parametrize(
    ("stage", "command"),
    [
        ("promoting", "tidelake backfill promote shop"),
        ("rolling back", "tidelake backfill rollback shop"),
    ],
)
def test_a_swap_left_half_done_is_gone_on_with_the_way_that_it_went(
    shop: Shop, stage: Stage, command: str
) -> None:
    shop.batch(0)
    write_state(shop.lake, shop.define(), State("bronze", "hash", stage))
    assert shop.judge(5)["hop_refused"].command == command
    with (
        pytest.raises(RefusedError, match=f"continue it: {command}"),
        hold_hops(shop.lake, "shop", ["gold"]),
    ):
        pass


def test_a_batch_that_its_checkpoint_does_not_close_for_minutes_is_critical(shop: Shop) -> None:
    shop.batch(0, mark=0)
    (shop.checkpoint("gold") / "commits" / "0").unlink()
    assert "checkpoint_failing" not in shop.judge(300)
    found = shop.judge(303)["checkpoint_failing"]
    assert (found.hop, found.since, found.command) == ("gold", at(2), "tidelake run shop")
    assert found.message.startswith(
        "batch 0 was committed to the tables 5 minutes ago but not to the"
    )
    assert "checkpoint_failing" not in shop.judge(303, checkpoint_failing="10 minutes")
    assert "checkpoint_failing" not in shop.judge(9999, checkpoint_failing=None)
    # A hop of a run may wait with a batch until the next one is full.
    with hold_hops(shop.lake, "shop", ["gold"]):
        assert "checkpoint_failing" not in shop.judge(303)


def slow(hop: str, batch: int, second: float, **changes: Any) -> Measured:
    """Give a batch of 100 seconds in a run with an interval of a minute."""
    values: dict[str, Any] = {
        "pipeline": "shop",
        "hop": hop,
        "generation": "g1",
        "batch": batch,
        "run": "r",
        "started_at": at(second),
        "ended_at": at(second + 100),
        "seconds": 100.0,
        "interval_seconds": 60.0,
    }
    return Measured(**{**values, **changes})


def test_batches_that_all_take_longer_than_their_interval_are_told(shop: Shop) -> None:
    shop.batch(0)
    measures = [slow("silver", n, 100 * n) for n in range(4)]
    found = shop.judge(410, measures=measures)["batch_over_interval"]
    assert (found.hop, found.since) == ("silver", at(0))
    assert found.message == (
        "the last 4 batches took 100.0 seconds each, the interval is 60 seconds"
    )
    # Not for minutes yet; one of them was in time; the run is over.
    assert "batch_over_interval" not in shop.judge(310, measures=measures[:3])
    quick = slow("silver", 2, 200, seconds=5.0)
    assert "batch_over_interval" not in shop.judge(
        410, measures=[*measures[:2], quick, measures[3]]
    )
    assert "batch_over_interval" not in shop.judge(4100, measures=measures)


def test_a_hop_that_failed_is_told_until_it_closes_a_batch(shop: Shop) -> None:
    shop.batch(0)
    failed = slow("gold", 1, 10, error_class="TidelakeError", error="No space left on device.")
    found = shop.judge(230, measures=[failed])["hop_failed"]
    assert (found.hop, found.severity, found.command) == ("gold", "critical", "tidelake run shop")
    assert found.message == "stopped 2 minutes ago, TidelakeError: No space left on device"
    assert "hop_failed" not in shop.judge(300, measures=[failed, slow("gold", 1, 150)])
    shop.batch(220)
    assert "hop_failed" not in shop.judge(300, measures=[failed])


def test_a_first_run_that_fails_is_told_before_there_is_a_table(
    shop: Shop, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline, said, given = shop.define(), list[str](), list[Any]()
    place = [str(shop.lake.root / "shop.yml"), "--root", str(shop.lake.root)]
    assert run_command(app, ["alerts", *place]) == 0
    assert "Nothing to watch: shop has no tables" in capsys.readouterr().err
    failed = slow("bronze", -1, 10, error_class="SourceError", error="no broker can be reached")
    # The run itself.
    backlogs = BacklogReader(shop.lake, pipeline)
    context = AlertContext(shop.lake, pipeline, at(200), (failed,), backlogs, PLAIN)
    reporter = AlertReporter(shop.lake, "shop", said.append, None)
    with watching(lambda: context, reporter, lambda *one: given.append(one), pytest.fail):
        pass
    assert [line.split(", SourceError")[0] for line in said] == [
        "alert opens: critical hop_failed: shop, hop bronze: stopped 90 seconds ago"
    ]
    assert [one.rule for one in given[0][0]] == ["hop_failed"]
    # And the command afterwards.
    write_measures(shop.lake, [failed])
    monkeypatch.setattr("tidelake.cli.operating.now", lambda: at(200))
    assert run_command(app, ["alerts", *place]) == 3
    assert "no broker can be reached" in " ".join(capsys.readouterr().out.split())


def test_a_first_run_that_has_just_begun_does_not_complain_of_old_files(shop: Shop) -> None:
    """Its first batch reads them; only one that hangs is told."""
    pipeline, said = shop.define(), list[str]()
    shop.land("a.json", 0)
    note = {"pipeline": "shop", "hop": "bronze", "generation": "g1", "batch": -1}
    write_commit(shop.lake.bronze("shop"), 0, note=note, second=1000)

    def tell(second: float) -> list[str]:
        said.clear()
        backlogs = BacklogReader(shop.lake, pipeline)
        context = AlertContext(shop.lake, pipeline, at(second), (), backlogs, PLAIN)
        reporter = AlertReporter(shop.lake, "shop", said.append, None)
        with watching(lambda: context, reporter, None, pytest.fail):
            pass
        return [line.split(": 1 file")[0] for line in said]

    assert tell(1010) == []
    assert tell(1310) == ["alert opens: warning lag_growing: shop, hop bronze"]
    # From outside nobody knows whether a run is about to read them.
    assert shop.judge(1010)["lag_growing"].hop == "bronze"


def test_metrics_that_cannot_be_read_close_no_alert(shop: Shop) -> None:
    shop.batch(0)
    write_measures(shop.lake, [slow("gold", 1, 10, error_class="TidelakeError", error="full")])
    said: list[str] = []

    def tell(second: float) -> list[str]:
        said.clear()
        found = alerts_of(shop.lake, shop.define(), now=at(second), counts=False)
        AlertReporter(shop.lake, "shop", said.append, None).report(found, rules=RULES)
        return [line.split(" cannot be")[0].split(": stopped")[0] for line in said]

    assert tell(200) == ["alert opens: critical hop_failed: shop, hop gold"]
    (file,) = shop.lake.progress().path.glob("*.parquet")
    gone = file.rename(file.with_suffix(".gone"))
    assert tell(210) == [f"alert opens: critical {rule}: shop:" for rule in MEASURED]
    gone.rename(file)
    assert tell(220) == [f"alert closes: shop: {rule}" for rule in MEASURED]


def test_a_look_at_the_tables_that_fails_is_said_and_ends_neither_run_nor_alerts(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a listing of an object store that does not answer."""
    shop.batch(0)
    pipeline, said, looks = shop.define(), list[str](), list[str]()
    monkeypatch.setattr(alert_delivery, "_EVERY_SECONDS", 0.01)

    def context() -> AlertContext:
        looks.append("look")
        if len(looks) in (1, 2, 4):
            raise OSError("the store does not answer")
        return AlertContext(
            shop.lake, pipeline, at(410), (), BacklogReader(shop.lake, pipeline), PLAIN
        )

    reporter = AlertReporter(shop.lake, "shop", said.append, None)
    judged: list[object] = []
    with watching(context, reporter, lambda *one: judged.append(one), said.append):
        ends = time.monotonic() + 20
        while len(looks) < 6 and time.monotonic() < ends:
            time.sleep(0.01)
    assert judged
    told = "alerts: the rules could not be evaluated: OSError. The run continues."
    # Once while it lasts, and again when it has come back.
    assert said[0] == told and said.count(told) == 2


def test_alerts_are_reported_even_if_the_lag_cannot_be_computed(shop: Shop) -> None:
    shop.batch(0)
    pipeline, said = shop.define(), []
    failed = slow("gold", 1, 10, seconds=0.0, error_class="TidelakeError", error="No space left")
    backlogs = BacklogReader(shop.lake, pipeline)
    context = AlertContext(shop.lake, pipeline, at(410), (failed,), backlogs, PLAIN)
    reporter = AlertReporter(shop.lake, "shop", said.append, None)

    def on_result(*_: object) -> None:
        raise TimeoutError

    with watching(lambda: context, reporter, on_result, said.append):
        pass
    assert [line.startswith("alert opens: ") for line in said] == [True, False]


def test_a_run_leaves_alerts_on_batches_of_hops_that_it_does_not_run_open(shop: Shop) -> None:
    shop.batch(0)
    pipeline, said = shop.define(), []

    def run(*measures: Measured) -> list[str]:
        """Evaluate the rules as one run does at its end; return what it says."""
        said.clear()
        backlogs = BacklogReader(shop.lake, pipeline)
        context = AlertContext(shop.lake, pipeline, at(410), measures, backlogs, PLAIN)
        reporter = AlertReporter(shop.lake, "shop", said.append, None)
        with watching(lambda: context, reporter, None, said.append):
            pass
        return [line.split(". See:")[0] for line in said]

    failed = slow("gold", 1, 10, seconds=0.0, error_class="TidelakeError", error="No space left")
    slow_batches = [slow("silver", n, 100 * n) for n in range(4)]
    assert [line.split(": ")[1] for line in run(failed, *slow_batches)] == [
        "critical hop_failed",
        "warning batch_over_interval",
    ]
    # Of bronze in a process of its own, of gold before its failure, and of gold that fails again.
    assert run(slow("bronze", 1, 300, seconds=1.0)) == []
    assert run(slow("gold", 0, -200, seconds=1.0)) == []
    assert run(failed) == []
    later = [slow(hop, 4, 300, seconds=1.0) for hop in ("gold", "silver")]
    assert run(*later) == [
        "alert closes: shop, hop gold: hop_failed",
        "alert closes: shop, hop silver: batch_over_interval",
    ]


@pytest.mark.parametrize("has_table", [True, False])
def test_a_rule_on_batches_that_can_be_evaluated_again_closes_its_alert(
    shop: Shop, has_table: bool
) -> None:
    """As a table's damaged log that was restored."""
    shop.batch(0)
    said: list[str] = []
    newest = max((shop.lake.silver("shop").path / "_delta_log").glob("*.json"))
    before = newest.read_text(encoding="utf-8")

    def tell(second: float, *, in_a_run: bool) -> list[str]:
        """Return what is said of the rule."""
        said.clear()
        rules = RUNNING if in_a_run else RULES if has_table else set(RULES) - set(MEASURED)
        found = alerts_of(shop.lake, shop.define(), now=at(second), measures=(), counts=False)
        measures = () if in_a_run else None
        reporter = AlertReporter(shop.lake, "shop", said.append, None)
        reporter.report(found, rules=rules, measures=measures)
        return [line.split(" cannot be")[0] for line in said if "hop_failed" in line]

    for in_a_run in (True, False):
        newest.write_text('{"add": {"pa', encoding="utf-8")
        assert tell(5, in_a_run=in_a_run) == ["alert opens: critical hop_failed: shop:"]
        newest.write_text(before, encoding="utf-8")
        assert tell(10, in_a_run=in_a_run) == ["alert closes: shop: hop_failed"]


@pytest.mark.parametrize("has_table", [True, False])
def test_the_command_closes_an_alert_on_batches_where_their_metrics_are_kept(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, has_table: bool
) -> None:
    balanced = RULES["books_unbalanced"]._replace(find=lambda *_: iter(()))
    monkeypatch.setitem(RULES, "books_unbalanced", balanced)
    monkeypatch.setattr("tidelake.cli.operating.now", lambda: at(310))
    shop.batch(0)
    shop.batch(290)
    shop.define()
    failed = Alert("hop_failed", "shop", "gold", "critical", "stopped", at(10), "tidelake run shop")
    stale = Alert("stale", "shop", None, "warning", "no batch", None, "tidelake status shop")
    AlertReporter(shop.lake, "shop", lambda _: None, None).report([failed, stale], rules=RULES)
    conf = shop.lake.root / "conf"
    for folder in ("environments", "pipelines"):
        (conf / folder).mkdir(parents=True)
    (conf / "environments" / "local.yml").write_text(
        f"metrics: {{table: {str(has_table).lower()}}}"
    )
    file, root = str(shop.lake.root / "shop.yml"), str(shop.lake.root)
    assert run_command(app, ["alerts", file, "--root", root, "--conf", str(conf), "--tell"]) == 0
    told = json.loads((shop.lake.alerts("shop") / "told.json").read_text())
    assert [one["rule"] for one in told["open"]] == ([] if has_table else ["hop_failed"])
    # Only who tells needs the secret.
    (conf / "environments" / "local.yml").write_text("alerts: {webhook: env:NOT_SET_HERE}")
    command = ["alerts", file, "--root", root, "--conf", str(conf)]
    assert [run_command(app, [*command, *more]) for more in ([], ["--tell"])] == [0, 2]


def test_critical_alerts_come_first_and_every_rule_is_listed(shop: Shop) -> None:
    shop.batch(0, counts=[["quarantined", "parse", "bronze", 200, 0]])
    (shop.checkpoint("gold") / "commits" / "0").unlink()
    failed = slow("gold", 1, 10, error_class="TidelakeError", error="full")
    found = alerts_of(shop.lake, shop.define(), now=at(2 * 86_400), measures=[failed], counts=False)
    assert [(one.rule, one.severity) for one in found] == [
        ("hop_failed", "critical"),
        ("checkpoint_failing", "critical"),
        ("stale", "warning"),
        ("quarantine_rate", "warning"),
    ]
    assert {one.rule for one in found} <= set(RULES)


def test_the_command_prints_alerts_and_exits_3_where_one_is_critical(
    shop: Shop, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    balanced = RULES["books_unbalanced"]._replace(find=lambda *_: iter(()))
    monkeypatch.setitem(RULES, "books_unbalanced", balanced)
    monkeypatch.setattr("tidelake.cli.operating.now", lambda: at(310))
    shop.batch(0)
    shop.define()
    file, root = str(shop.lake.root / "shop.yml"), str(shop.lake.root)
    arguments = ["alerts", file, "--root", root]
    assert run_command(app, arguments) == 0
    assert "No alert of shop is open." in capsys.readouterr().out
    shop.bronze(0)
    assert run_command(app, arguments) == 0
    assert "lag_growing" in capsys.readouterr().out
    shop.lake.erasure("shop").mkdir(parents=True)
    assert run_command(app, [*arguments, "--json"]) == 3
    found = json.loads(capsys.readouterr().out)
    assert [(one["rule"], one["severity"]) for one in found] == [
        ("hop_refused", "critical"),
        ("lag_growing", "warning"),
    ]
    assert found[1]["since"] == "2024-01-01T00:00:00+00:00"
    run_command(app, arguments)
    out = capsys.readouterr().out
    assert f"hop_refused: tidelake erase {file} --subject COLUMN=VALUE --root {root}\n" in out
    table = [line for line in out.splitlines() if "tidelake" not in line]
    assert max(len(line.rstrip()) for line in table) <= 100


def test_a_table_that_cannot_be_read_is_critical_and_other_rules_go_on(shop: Shop) -> None:
    shop.batch(0)
    log = shop.lake.silver("shop").path / "_delta_log"
    newest = max(log.glob("*.json"))
    before = newest.read_text(encoding="utf-8")
    newest.write_text('{"add": {"pa', encoding="utf-8")
    found = shop.judge(10)["hop_refused"]
    assert found.severity == "critical"
    assert f"{newest} cannot be read" in found.message
    # What ends a line elsewhere is part of a text here.
    newest.write_text(before.replace('"WRITE"', '"WRITE\x85\u2028"'), encoding="utf-8")
    assert "hop_refused" not in shop.judge(10)
    newest.write_text("", encoding="utf-8")
    assert f"{newest} is empty" in shop.judge(10)["hop_refused"].message
