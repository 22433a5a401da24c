"""The books, added up from small tables: when they balance, and what they say when they do not."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pytest
import yaml
from deltalake import DeltaTable

from tests.pipelines import shop
from tests.unit.handmade import SHOP, fingerprint_of, write_commit, write_rows
from tidelake.cli import app
from tidelake.cli.exits import run_command
from tidelake.config import Pipeline, load_environment, load_pipeline
from tidelake.delta.commit_metadata import FateCount
from tidelake.delta.log import TABLES, newest_version
from tidelake.delta.positions import unfilled_tables
from tidelake.delta.tables import Lake, Table
from tidelake.errors import RefusedError, UsageError
from tidelake.instants import Range
from tidelake.ledger import terms as ledger_module
from tidelake.ledger.commit_checks import Batch
from tidelake.ledger.history import closed_version
from tidelake.ledger.side_tables import LateDay, ReasonGroup, list_late, list_quarantine
from tidelake.ledger.terms import Ledger, SourceCounts, _ahead, ledger_by, read_ledger
from tidelake.ops import refused_hops
from tidelake.ops.alerts import alerts_of

CONTRACT = [
    "pipeline",
    "source",
    "bronze",
    "silver",
    "duplicates",
    "quarantined",
    "late",
    "filtered",
    "balanced",
    "gold",
]
BESIDE = {
    "erased",
    "pending",
    "requeued",
    "problems",
    "conflicts",
    "discarded",
    "quarantined_by_stage",
    "quarantined_by_reason",
    "source_files",
}
IDS = [f"f:{number}" for number in range(10)]
SILVER, DUPLICATES, QUARANTINED, LATE, FILTERED = IDS[:5], IDS[5:7], IDS[7:8], IDS[8:9], IDS[9:]
MARK = "2024-01-01T00:00:00+00:00"
SENT, BACK = "2024-01-02 00:00:00", "2024-01-02 00:00:01"


def count(fate: str, ids: list[str], *, stage: str | None = None, origin: str = "bronze") -> Any:
    return [fate, stage, origin, len(ids), fingerprint_of(ids)]


FATES = [
    count("silver", SILVER),
    count("duplicate", DUPLICATES),
    count("quarantined", QUARANTINED, stage="parse"),
    count("late", LATE),
    count("filtered", FILTERED),
]


def note(batch: int, **more: Any) -> dict[str, Any]:
    return {"generation": "g1", "batch": batch, **more}


def silver_note(batch: int, counts: list[Any], **more: Any) -> dict[str, Any]:
    told = {
        "watermark_in": None,
        "watermark": MARK,
        "partitions": {"0": [MARK, "2024-01-01T00:10:00+00:00"]},
        "counts": counts,
        "taken": {"bronze": 10, "requeue": 0},
        "until": {"bronze": [2, -1], "requeue": [1, -1]},
        "warnings": {},
        "dedup": {"searched": 4, "seconds": 0.5},
        "prefiltered": None,
        "columns": [],
    }
    return note(batch, **{**told, **more})


def write_bronze(lake: Lake, ids: list[str], batch: int, **more: Any) -> None:
    """Append a batch to bronze; ``more`` replaces what its note says of it."""
    said = {"records": len(ids), "fingerprint": fingerprint_of(ids), "files": [], **more}
    write_rows(lake.bronze("shop"), _ids(ids), note=note(batch, **said))


def write_side(
    table: Table, ids: list[str], batch: int, *, extra: str = "", again: str | None = None
) -> None:
    """Append rows of a batch to silver, quarantine or late."""
    stamp = f"TIMESTAMPTZ '{again}+00'" if again else "NULL::TIMESTAMPTZ"
    columns = f"record_id, 'g1' AS _generation, {batch}::BIGINT AS _batch, {stamp} AS _requeued_at"
    write_rows(table, f"SELECT {columns}{extra} FROM ({_ids(ids)})", note=note(batch))


def quarantine(lake: Lake, ids: list[str], batch: int, *, again: str | None = None) -> None:
    extra = ", 'parse' AS stage, ['payload: not one JSON object', 'other'] AS reasons"
    write_side(lake.quarantine("shop"), ids, batch, extra=extra, again=again)


def close(lake: Lake, ids: list[str], batch: int, counts: list[Any], **more: Any) -> None:
    """Append a batch to silver, whose commit closes it."""
    columns = f"record_id, 'g1' AS _generation, {batch}::BIGINT AS _batch"
    sql = f"SELECT {columns} FROM ({_ids(ids)})"
    write_rows(lake.silver("shop"), sql, note=silver_note(batch, counts, **more))


def requeue(lake: Lake, ids: list[str], batch: int, *, at: str = SENT) -> None:
    sql = f"SELECT record_id, TIMESTAMPTZ '{at}+00' AS requeued_at FROM ({_ids(ids)})"
    write_rows(lake.requeue("shop"), sql, note=note(batch))


def _ids(ids: list[str]) -> str:
    listed = ", ".join(f"('{one}')" for one in ids)
    if not ids:
        return "SELECT ''::VARCHAR AS record_id WHERE FALSE"
    return f"SELECT record_id FROM (VALUES {listed}) AS t(record_id)"


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Give ten records of one file, each with a fate, five of them counted in gold."""
    lake = Lake(tmp_path / "lake")
    file = tmp_path / "lake" / "landing" / "a.json"
    file.parent.mkdir(parents=True)
    file.write_text("{}\n" * 10)
    (tmp_path / "shop.yml").write_text(yaml.safe_dump(SHOP))

    write_bronze(lake, [], -1)
    files = [[str(file), 30, file.stat().st_mtime_ns // 1_000_000, 10]]
    write_bronze(lake, IDS, 0, files=files)
    requeue(lake, [], -1)
    quarantine(lake, QUARANTINED, 0)
    write_side(lake.late("shop"), LATE, 0)
    write_rows(lake.silver("shop"), _stamped([]), note=note(-1))
    close(lake, SILVER, 0, FATES)
    write_gold(lake, eligible=5)
    return lake


def _stamped(ids: list[str]) -> str:
    return f"SELECT record_id, 'g1' AS _generation, 0::BIGINT AS _batch FROM ({_ids(ids)})"


def reclose(lake: Lake, counts: list[Any], ids: list[str] = SILVER, **more: Any) -> None:
    """Write silver anew: other rows, or a note that says something else."""
    shutil.rmtree(lake.silver("shop").path)
    write_rows(lake.silver("shop"), _stamped([]), note=note(-1))
    close(lake, ids, 0, counts, **more)


def write_gold(lake: Lake, *, eligible: int) -> None:
    shutil.rmtree(lake.gold("totals").path, ignore_errors=True)
    write_rows(
        lake.gold("totals"),
        "SELECT * FROM (VALUES ('u1', 3), ('u2', 2)) AS t(user_id, events)",
        note=note(0, eligible=eligible, rows=5, until={"silver": [2, -1]}),
    )


def definition(lake: Lake) -> Pipeline:
    environment = load_environment("local", root=str(lake.root))
    return load_pipeline(str(lake.root.parent / "shop.yml"), environment)


def books(lake: Lake) -> Ledger:
    return read_ledger(lake, definition(lake))


def told(
    lake: Lake, capsys: pytest.CaptureFixture[str], *options: str
) -> tuple[int, dict[str, Any], str]:
    """Run `tidelake ledger --json`: exit code, books, messages."""
    pipeline = str(lake.root.parent / "shop.yml")
    code = run_command(app, ["ledger", pipeline, "--json", "--root", str(lake.root), *options])
    captured = capsys.readouterr()
    return code, json.loads(captured.out), captured.err


def test_books_balance_when_every_row_has_one_fate(lake: Lake) -> None:
    found = books(lake)

    assert found.problems == ()
    assert found.balanced
    assert found.source == SourceCounts(1, 1, 30, 30)
    assert found.records == found.bronze == found.fates.total() == 10
    assert (found.pending, found.requeued, found.discarded) == (0, 0, 0)


def test_json_has_the_contracts_terms_first_and_later_ones_beside_them(
    lake: Lake, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found, messages = told(lake, capsys)

    assert code == 0
    assert messages == ""
    assert [key for key in found if key in CONTRACT] == CONTRACT
    assert found.keys() - set(CONTRACT) == BESIDE
    assert {key: found[key] for key in CONTRACT} == {
        "pipeline": "shop",
        "source": 10,
        "bronze": 10,
        "silver": 5,
        "duplicates": 2,
        "quarantined": 1,
        "late": 1,
        "filtered": 1,
        "balanced": True,
        "gold": {"totals": {"expected": 5, "counted": 5}},
    }
    assert {key: found[key] for key in BESIDE} == {
        "erased": 0,
        "pending": 0,
        "requeued": 0,
        "problems": [],
        "conflicts": 0,
        "discarded": 0,
        "quarantined_by_stage": {"parse": 1},
        "quarantined_by_reason": {"other": 1, "payload: not one JSON object": 1},
        "source_files": {"offered": 1, "taken": 1, "bytes_offered": 30, "bytes_taken": 30},
    }


def test_a_missing_silver_row_unbalances_the_books_and_exits_3(
    lake: Lake, capsys: pytest.CaptureFixture[str]
) -> None:
    reclose(lake, FATES, SILVER[:4])

    code, found, messages = told(lake, capsys)

    assert (code, found["silver"], found["balanced"]) == (3, 4, False)
    assert found["problems"] == [
        "silver, batch 0: its commit counts 5 rows as silver, the table has 4",
        "bronze holds 10 rows, 9 have a fate or wait for one",
    ]
    assert "shop.yml does not balance. silver, batch 0: its commit counts 5 rows" in messages
    assert "See the batches with: tidelake ledger" in messages


def test_books_that_do_not_balance_are_a_critical_alert(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No run writes meanwhile.
    monkeypatch.setattr(refused_hops, "_PAUSE_SECONDS", 0)
    environment = load_environment("local", root=str(lake.root))
    pipeline = load_pipeline(str(lake.root.parent / "shop.yml"), environment)
    at = datetime(2024, 1, 3, tzinfo=UTC)
    assert "books_unbalanced" not in {one.rule for one in alerts_of(lake, pipeline, now=at)}
    reclose(lake, FATES, SILVER[:4])

    found = {one.rule: one for one in alerts_of(lake, pipeline, now=at)}["books_unbalanced"]

    assert (found.severity, found.command) == ("critical", "tidelake ledger shop")
    assert found.message == (
        "silver, batch 0: its commit counts 5 rows as silver, the table has 4; and 1 more"
    )
    told = {one.rule for one in alerts_of(lake, pipeline, now=at, counts=False)}
    assert "books_unbalanced" not in told


def test_a_row_lost_and_another_doubled_keep_the_count_and_unbalance_the_books(lake: Lake) -> None:
    reclose(lake, FATES, [*SILVER[:4], SILVER[0]])

    found = books(lake)

    assert found.fates.total() == found.bronze == 10
    assert found.problems == (
        "silver, batch 0: its commit and the table have different rows as silver",
    )


def test_the_table_for_people_says_whether_the_books_balance(
    lake: Lake, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["ledger", str(lake.root.parent / "shop.yml"), "--root", str(lake.root)]
    assert run_command(app, arguments) == 0
    out = capsys.readouterr().out
    assert "Ledger of shop: balanced" in out
    assert "!!" not in out

    write_gold(lake, eligible=6)
    assert run_command(app, arguments) == 3
    out = capsys.readouterr().out
    assert "Ledger of shop: NOT BALANCED" in out
    assert "  !! gold.totals: 6 events were merged, it counts 5" in out


@pytest.mark.parametrize(
    "counts",
    [
        [*FATES, count("silver", ["f:x"])],
        FATES[:-1],
        [count("silver", [*IDS, "f:x"])],
        [],
    ],
)
def test_a_row_too_many_or_too_few_unbalances_the_books(lake: Lake, counts: list[Any]) -> None:
    reclose(lake, counts)

    assert not books(lake).balanced


def test_gold_that_counted_another_number_of_events_unbalances_the_books(lake: Lake) -> None:
    write_gold(lake, eligible=6)

    found = books(lake)

    assert found.problems == ("gold.totals: 6 events were merged, it counts 5",)
    assert found.to_json()["gold"] == {"totals": {"expected": 6, "counted": 5}}


def test_rows_of_an_open_batch_of_gold_do_not_count_and_those_of_another_writer_do(
    lake: Lake,
) -> None:
    """Where compute refuses commit metadata, a batch is merged before a commit closes it."""
    totals = lake.gold("totals")
    stored = "'g1' AS _generation, 0::BIGINT AS _batch"
    shutil.rmtree(totals.path)
    write_rows(totals, f"SELECT 'u1' AS user_id, 5 AS events, {stored}", note=note(0, eligible=5))
    closed = newest_version(totals)

    def merge(user: str, events: int, batch: int) -> None:
        rows = duckdb.sql(
            f"SELECT '{user}' AS user_id, {events}::INT AS events, 'g1' AS _generation, "
            f"{batch}::BIGINT AS _batch"
        )
        merger = DeltaTable(str(totals.path)).merge(
            rows.to_arrow_table(), "t.user_id = s.user_id", source_alias="s", target_alias="t"
        )
        merger.when_matched_update_all().when_not_matched_insert_all().execute()

    merge("u2", 1, 1)
    assert closed_version(lake, totals) == closed < newest_version(totals)
    assert books(lake).problems == ()

    DeltaTable(str(totals.path)).restore(closed)
    merge("u1", 4, 0)
    assert closed_version(lake, totals) == newest_version(totals)
    assert books(lake).problems == ("gold.totals: 5 events were merged, it counts 4",)


def test_bronze_that_holds_less_than_the_source_unbalances_the_books(lake: Lake) -> None:
    shutil.rmtree(lake.bronze("shop").path)
    write_bronze(lake, [], -1)
    write_bronze(lake, IDS, 0, records=11)

    found = books(lake)

    assert (found.to_json()["source"], found.bronze, found.balanced) == (11, 10, False)
    assert found.problems == ("bronze, batch 0: the source held 11 records, 10 rows were written",)


def test_the_batch_is_named_of_which_bronze_lost_a_row(lake: Lake) -> None:
    shutil.rmtree(lake.bronze("shop").path)
    for number, ids in enumerate((IDS[:6], IDS[6:])):
        at = f"2024-01-01T00:0{number}:00+00:00"
        told = {"records": len(ids), "fingerprint": fingerprint_of(ids), "files": []}
        sql = f"SELECT record_id, TIMESTAMPTZ '{at}' AS ingested_at FROM ({_ids(ids)})"
        write_rows(lake.bronze("shop"), sql, note=note(number, ingested_at=at, **told))
    assert books(lake).problems == ()

    DeltaTable(str(lake.bronze("shop").path)).delete("record_id = 'f:7'")

    assert books(lake).problems[0] == (
        "bronze, batch 1: its commit wrote 4 rows that were not erased, the table has 3"
    )


def test_a_bronze_that_another_writer_changed_is_named_before_what_follows_from_it(
    lake: Lake,
) -> None:
    DeltaTable(str(lake.bronze("shop").path)).update({"record_id": "record_id"})
    first, *others = books(lake).problems
    assert first == (
        "bronze: another writer's version 2 of bronze.shop (UPDATE) deleted or replaced rows"
    )
    assert any("have a fate or wait for one" in other for other in others)


def test_rows_that_silver_has_yet_to_take_are_pending_and_balance(lake: Lake) -> None:
    write_bronze(lake, ["g:0", "g:1", "g:2"], 1)

    found = books(lake)

    assert (found.bronze, found.pending, found.problems) == (13, 3, ())


def test_before_silver_has_run_everything_is_pending(lake: Lake) -> None:
    for folder in ("silver", "gold"):
        shutil.rmtree(lake.root / folder)

    found = books(lake)

    assert (found.pending, found.fates.total(), found.problems) == (10, 0, ())
    assert list_late(lake, definition(lake)) == list_quarantine(lake, definition(lake)) == []
    # Created, and without a batch.
    write_rows(lake.silver("shop"), _stamped([]), note=note(-1))
    assert list_late(lake, definition(lake)) == list_quarantine(lake, definition(lake)) == []


def test_a_silver_that_was_deleted_unbalances_the_books(lake: Lake) -> None:
    shutil.rmtree(lake.silver("shop").path)
    merged = "gold.totals was merged up to version 1 of silver.shop, which is gone"
    assert books(lake).problems == (
        "silver.shop is gone, although silver.shop__quarantine holds batch 0. Restore its folder "
        "from a backup, or recompute it from bronze with: tidelake repair shop --hop silver",
        merged,
    )

    # With its side tables; and beside a gold table that is to be filled.
    shutil.rmtree(lake.root / "silver")
    added = {**SHOP["gold"][0], "name": "added"}
    definition_of = lake.root.parent / "shop.yml"
    definition_of.write_text(yaml.safe_dump(SHOP | {"gold": [added, *SHOP["gold"]]}))
    assert books(lake).problems == (merged,)


@pytest.mark.parametrize(
    ("stage", "command"), [("promoting", "promote"), ("rolling back", "rollback")]
)
def test_books_of_tables_that_are_half_swapped_name_the_swap_first(
    lake: Lake, stage: str, command: str
) -> None:
    shutil.rmtree(lake.silver("shop").path)
    lake.swap("shop").parent.mkdir(parents=True)
    lake.swap("shop").write_text(stage)
    first, *others = books(lake).problems
    assert first == (
        "a swap of shop's tables has not finished; if none is running, continue it: "
        f"tidelake backfill {command} shop"
        + (", or roll it back: tidelake backfill rollback shop" if command == "promote" else "")
    )
    assert others


def test_positions_of_a_gold_table_that_the_next_run_fills_do_not_count(tmp_path: Path) -> None:
    """It left the definition, silver was made anew, and it was added again."""
    file = tmp_path / "shop.yml"
    older = {**SHOP["gold"][0], "name": "older"}
    file.write_text(yaml.safe_dump(SHOP | {"gold": [*SHOP["gold"], older]}))
    pipeline = load_pipeline(str(file), load_environment("local", root=str(tmp_path / "lake")))
    lake, own = Lake(tmp_path / "lake"), {"pipeline": "shop"}
    silver = {**own, "hop": "silver", "generation": "g2", "batch": 0}
    write_commit(lake.silver("shop"), 0, note=silver, adds=[(1, True)], second=100)
    for name, generation, batch, until, second in (
        ("older", "g1", 40, 51, 0),
        ("totals", "g2", 1, 1, 200),
    ):
        gold = {**own, "hop": "gold", "generation": generation, "batch": batch}
        filled = {"until": {"silver": [until, -1]}, TABLES: [f"gold.{name}"]}
        write_commit(lake.gold(name), 0, note={**gold, **filled}, adds=[(1, True)], second=second)
    assert unfilled_tables(lake.closing_tables(pipeline, "gold")) == [lake.gold("older")]
    assert list(_ahead(lake, pipeline)) == []


@pytest.mark.parametrize(("command", "side"), [("late", "late"), ("quarantine", "quarantine")])
def test_a_side_table_that_was_deleted_is_not_listed_as_empty(
    lake: Lake, capsys: pytest.CaptureFixture[str], command: str, side: str
) -> None:
    shutil.rmtree(lake.table(f"silver.shop__{side}").path)
    place = [str(lake.root.parent / "shop.yml"), "--root", str(lake.root)]
    assert run_command(app, [command, "list", *place]) == 2
    said = capsys.readouterr()
    assert f"silver.shop__{side} is gone, although silver has run" in said.err
    assert said.out == ""


def test_the_lists_of_side_tables_tell_when_rows_came_how_many_and_how_late(lake: Lake) -> None:
    """The newest row is the example, whatever order the table has."""
    for table in (lake.quarantine("shop"), lake.late("shop"), lake.silver("shop")):
        shutil.rmtree(table.path)
    first, newest = datetime(2024, 1, 1, tzinfo=UTC), datetime(2024, 1, 3, tzinfo=UTC)
    reasons = ", 'parse' AS stage, ['no object'] AS reasons"
    for batch, ids, day in ((1, ["q:1"], 3), (0, ["q:2", "q:3"], 1), (2, ["q:4"], 2)):
        arrived = f", TIMESTAMPTZ '2024-01-0{day} 00:00:00+00' AS ingested_at"
        extra = f"{reasons}{arrived}, 'of {day}'::BLOB AS payload"
        write_side(lake.quarantine("shop"), ids, batch, extra=extra)
    for batch, (ids, seconds) in enumerate(((["l:1"], 5), (["l:2"], 7), (["l:3"], 30))):
        late = f", DATE '2024-01-01' AS event_date, {seconds}::DOUBLE AS lateness_seconds"
        mark = f", TIMESTAMPTZ '2024-01-0{3 - batch} 00:00:00+00' AS watermark"
        write_side(lake.late("shop"), ids, batch, extra=late + mark)
    for batch in range(3):
        close(lake, [f"s:{batch}"], batch, [])

    assert list_quarantine(lake, definition(lake)) == [
        ReasonGroup(
            stage="parse",
            reason="no object",
            rows=4,
            discarded=0,
            attempts=0,
            first=first,
            last=newest,
            trend=(0, 0, 0, 0, 0, 2, 1, 1),
            example=b"of 3",
        )
    ]
    assert list_late(lake, definition(lake)) == [
        LateDay(first.date(), 3, 3, 5.0, 7.0, 30.0, watermark=newest)
    ]


def test_side_rows_of_a_batch_that_silver_has_not_closed_do_not_count(lake: Lake) -> None:
    write_bronze(lake, ["g:0"], 1)
    quarantine(lake, ["g:0"], 1)

    found = books(lake)

    assert (found.pending, found.fates["quarantined"], found.problems) == (1, 1, ())
    assert found.stages == {"parse": 1}


def test_a_row_that_was_sent_again_waits_and_then_has_its_new_fate(lake: Lake) -> None:
    requeue(lake, QUARANTINED, 0)

    found = books(lake)
    assert (found.fates["quarantined"], found.requeued, found.problems) == (0, 1, ())
    assert found.stages == {}

    counts = [count("silver", QUARANTINED, origin="quarantine")]
    until = {"bronze": [2, -1], "requeue": [2, -1]}
    close(lake, QUARANTINED, 1, counts, taken={"bronze": 0, "requeue": 1}, until=until)
    found = books(lake)
    assert (found.fates["silver"], found.fates["quarantined"], found.requeued) == (6, 0, 0)
    assert (found.bronze, found.problems) == (10, ())


def test_a_row_that_was_sent_again_and_failed_again_counts_once(lake: Lake) -> None:
    requeue(lake, QUARANTINED, 0, at=SENT)
    quarantine(lake, QUARANTINED, 1, again=SENT)
    counts = [count("quarantined", QUARANTINED, stage="parse", origin="quarantine")]
    until = {"bronze": [2, -1], "requeue": [2, -1]}
    close(lake, [], 1, counts, taken={"bronze": 0, "requeue": 1}, until=until)

    found = books(lake)

    assert (found.fates["quarantined"], found.requeued, found.problems) == (1, 0, ())

    requeue(lake, QUARANTINED, 1, at=BACK)
    found = books(lake)
    assert (found.fates["quarantined"], found.requeued, found.problems) == (0, 1, ())


def test_a_discarded_row_stays_in_quarantine_and_is_told_apart(
    lake: Lake, capsys: pytest.CaptureFixture[str]
) -> None:
    write_rows(lake.discarded("shop"), _ids(QUARANTINED), note=note(0))

    found = books(lake)
    assert (found.fates["quarantined"], found.discarded, found.problems) == (1, 1, ())

    run_command(app, ["ledger", str(lake.root.parent / "shop.yml"), "--root", str(lake.root)])
    assert "1 of them discarded" in capsys.readouterr().out


def test_terms_read_while_a_run_writes_are_of_one_moment(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, tally = ledger_module._read, ledger_module.tally_bronze
    reads: list[Ledger] = []

    def write_meanwhile(*args: Any) -> Any:
        write_bronze(lake, ["g:0", "g:1"], 1)
        requeue(lake, LATE, 0)
        quarantine(lake, ["g:0"], 1)
        fates = [count("silver", ["g:1"]), count("quarantined", ["g:0"], stage="parse")]
        until = {"bronze": [3, -1], "requeue": [1, -1]}
        close(lake, ["g:1"], 1, fates, taken={"bronze": 2, "requeue": 0}, until=until)
        write_rows(
            lake.gold("totals"),
            "SELECT 'u3' AS user_id, 1 AS events",
            note=note(1, eligible=1, rows=1, until={"silver": [3, -1]}),
        )
        return tally(*args)

    monkeypatch.setattr(ledger_module, "tally_bronze", write_meanwhile)
    monkeypatch.setattr(ledger_module, "_read", lambda *a: reads.append(read(*a)) or reads[-1])
    found = books(lake)

    assert len(reads) == 1
    assert (found.bronze, found.pending, found.requeued, found.problems) == (10, 0, 0, ())
    assert found.stages == {"parse": 1}
    assert (found.fates["silver"], found.fates["late"]) == (5, 1)


def test_books_read_while_tables_are_replaced_are_read_again(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = ledger_module.tally_bronze
    calls: list[int] = []

    def replace_meanwhile(*args: Any) -> Any:
        calls.append(1)
        shutil.rmtree(lake.quarantine("shop").path)
        quarantine(lake, [] if len(calls) == 1 else QUARANTINED, 0)
        if len(calls) == 1:
            write_bronze(lake, ["g:0"], 1)
        return real(*args)

    monkeypatch.setattr(ledger_module, "tally_bronze", replace_meanwhile)
    found = books(lake)
    assert len(calls) == 2
    assert (found.pending, found.problems) == (1, ())


def test_books_that_stay_unbalanced_are_not_read_again(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_gold(lake, eligible=6)
    real = ledger_module._read
    calls: list[Ledger] = []
    monkeypatch.setattr(
        ledger_module, "_read", lambda *args: calls.append(real(*args)) or calls[-1]
    )

    assert not books(lake).balanced
    assert len(calls) == 1


def batch(number: int, *, hours: int, counts: tuple[FateCount, ...]) -> Batch:
    closed_at = datetime(2024, 1, 1, tzinfo=UTC) + timedelta(hours=hours)
    return Batch(number, "g1", closed_at, 10, 1, counts)


BATCHES = [
    batch(0, hours=22, counts=(FateCount("silver", None, "bronze", 9),)),
    batch(
        1,
        hours=23,
        counts=(
            FateCount("silver", None, "bronze", 2),
            FateCount("quarantined", "parse", "bronze", 3),
            FateCount("quarantined", "conflicting_duplicate", "late", 1),
        ),
    ),
    batch(2, hours=24, counts=(FateCount("late", None, "bronze", 4),)),
]


def test_books_by_batch_have_a_line_for_each() -> None:
    lines = ledger_by(BATCHES, "batch")

    assert [line.name for line in lines] == ["batch 0", "batch 1", "batch 2"]
    assert [line.taken for line in lines] == [10, 10, 10]
    assert lines[1].to_json() == {
        "name": "batch 1",
        "taken": 10,
        "returned": 1,
        "silver": 2,
        "duplicates": 0,
        "quarantined": 4,
        "conflicts": 1,
        "late": 0,
        "filtered": 0,
        "closed_at": "2024-01-01T23:00:00+00:00",
    }


def test_books_by_day_add_up_the_batches_that_were_closed_on_it() -> None:
    monday, tuesday = ledger_by(BATCHES, "day")

    assert (monday.name, monday.taken, monday.returned, monday.conflicts) == (
        "2024-01-01",
        20,
        2,
        1,
    )
    assert (monday.fates["silver"], monday.fates["quarantined"]) == (11, 4)
    assert monday.closed_at == datetime(2024, 1, 1, 23, tzinfo=UTC)
    assert (tuesday.name, tuesday.taken, tuesday.fates["late"]) == ("2024-01-02", 10, 4)


def test_books_of_a_range_add_up_the_batches_that_were_closed_in_it() -> None:
    first, last = BATCHES[1].closed_at, BATCHES[2].closed_at

    (line,) = ledger_by(BATCHES, "range", Range(first))
    assert (line.name, line.taken, line.fates["quarantined"], line.fates["late"]) == (
        "range",
        20,
        4,
        4,
    )
    assert [one.name for one in ledger_by(BATCHES, "batch", Range(first, last))] == ["batch 1"]
    assert ledger_by(BATCHES, "range", Range(end=BATCHES[0].closed_at)) == []


def test_the_command_adds_the_lines_that_were_asked_for(
    lake: Lake, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found, _ = told(lake, capsys, "--by", "batch")
    assert code == 0
    assert [(line["name"], line["taken"], line["silver"]) for line in found["by_batch"]] == [
        ("batch 0", 10, 5)
    ]
    code, found, _ = told(lake, capsys, "--start", "2000-01-01")
    assert [(line["taken"], line["silver"]) for line in found["by_range"]] == [(10, 5)]
    code, found, _ = told(lake, capsys, "--by", "day", "--end", "2000-01-01")
    assert (code, found["by_day"], found["silver"]) == (0, [], 5)

    reclose(lake, FATES, SILVER[:4])
    arguments = ["ledger", str(lake.root.parent / "shop.yml"), "--by", "day"]
    assert run_command(app, [*arguments, "--root", str(lake.root)]) == 3
    out = capsys.readouterr().out
    assert "NOT BALANCED" in out
    assert "!! silver, batch 0: its commit counts 5 rows as silver, the table has 4" in out


def test_a_file_that_waits_and_one_that_is_gone_count_as_offered(lake: Lake) -> None:
    (lake.root / "landing" / "a.json").unlink()
    (lake.root / "landing" / "b.json").write_text("{}\n")

    found = books(lake)

    assert found.source == SourceCounts(2, 1, 33, 30)
    assert found.balanced


def test_a_file_that_changed_after_it_was_read_unbalances_the_books(lake: Lake) -> None:
    file = lake.root / "landing" / "a.json"
    file.write_text(file.read_text() + "{}\n")
    assert books(lake).problems == (f"{file}: bronze read 30 bytes, it has 33 now",)


def test_a_landing_folder_that_was_cleared_away_changes_no_book(
    lake: Lake, capsys: pytest.CaptureFixture[str]
) -> None:
    (lake.root / "landing" / "a.json").unlink()
    landing = lake.root / "landing"
    landing.rmdir()

    found = books(lake)
    assert found.balanced
    # Not as if nothing waited.
    assert found.source == SourceCounts(1, 1, 30, 30, (str(landing),))
    assert found.to_json()["source_files"]["unlisted"] == (str(landing),)
    arguments = ["ledger", str(lake.root.parent / "shop.yml"), "--root", str(lake.root)]
    assert run_command(app, arguments) == 0
    assert f"  {landing} cannot be listed: what waits" in capsys.readouterr().out


def test_a_landing_folder_that_was_emptied_changes_no_book(lake: Lake) -> None:
    (lake.root / "landing" / "a.json").unlink()

    assert books(lake).balanced


def test_a_pipeline_that_never_ran_says_how_to_run_it(lake: Lake) -> None:
    for layer in ("bronze", "silver", "gold"):
        shutil.rmtree(lake.root / layer)

    with pytest.raises(UsageError, match=r"shop has no tables under .*tidelake run shop"):
        books(lake)


def test_tables_that_were_all_deleted_are_not_those_of_a_pipeline_that_never_ran(
    lake: Lake, capsys: pytest.CaptureFixture[str]
) -> None:
    for layer in ("bronze", "silver", "gold"):
        shutil.rmtree(lake.root / layer)
    words = ["alerts", str(lake.root.parent / "shop.yml"), "--root", str(lake.root)]
    assert run_command(app, words) == 0
    assert "Nothing to watch" in capsys.readouterr().err
    commits = lake.checkpoints("shop", "bronze") / "g1" / "commits"
    commits.mkdir(parents=True)
    (commits / "0").write_text("v1\n{}")

    with pytest.raises(RefusedError, match=r"^bronze\.shop was deleted"):
        books(lake)
    assert run_command(app, words) == 3
    assert "hop_refused" in capsys.readouterr().out


def test_a_bronze_that_was_deleted_is_not_a_pipeline_that_never_ran(lake: Lake) -> None:
    shutil.rmtree(lake.bronze("shop").path)

    with pytest.raises(RefusedError, match=r"^bronze\.shop was deleted"):
        books(lake)


def status(lake: Lake, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    pipeline = str(lake.root.parent / "shop.yml")
    assert run_command(app, ["status", pipeline, "--json", "--root", str(lake.root)]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_the_status_tells_where_each_hop_stands(
    lake: Lake, capsys: pytest.CaptureFixture[str]
) -> None:
    found = status(lake, capsys)
    assert found["watermark"] == MARK
    assert [(hop["hop"], hop["batch"], hop["rows"], hop["waiting"]) for hop in found["hops"]] == [
        ("bronze", 0, 10, 0),
        ("silver", 0, 10, 0),
        ("gold", 0, 5, 0),
    ]
    assert found["dedup"] == {"searched": 4, "seconds": 0.5, "prefiltered": None}
    assert (found["held_back_by"], found["idle"], found["warnings"]) == ("0", [], {})


def test_the_status_tells_what_waits_for_each_hop(
    lake: Lake, capsys: pytest.CaptureFixture[str]
) -> None:
    (lake.root / "landing" / "b.json").write_text("{}\n")
    write_bronze(lake, ["g:0", "g:1"], 1)
    close(lake, ["g:x"], 1, [])

    assert [hop["waiting"] for hop in status(lake, capsys)["hops"]] == [1, 2, 1]


def test_the_status_adds_up_warnings_and_names_the_partition_that_holds_back(
    lake: Lake, capsys: pytest.CaptureFixture[str]
) -> None:
    partitions = {
        "t:0": ["2024-01-01T00:05:00+00:00", "2024-01-01T00:10:00+00:00"],
        "t:1": ["2024-01-01T00:01:00+00:00", "2024-01-01T00:10:00+00:00"],
        "t:2": ["2023-01-01T00:00:00+00:00", "2023-01-01T00:10:00+00:00"],
    }
    reclose(lake, FATES, warnings={"r1": 2})
    close(lake, [], 1, [], warnings={"r1": 1, "r2": 4}, partitions=partitions)

    found = status(lake, capsys)
    assert (found["held_back_by"], found["idle"]) == ("t:1", ["t:2"])
    assert found["warnings"] == {"r1": 3, "r2": 4}

    run_command(app, ["status", str(lake.root.parent / "shop.yml"), "--root", str(lake.root)])
    out = capsys.readouterr().out
    assert "the watermark waits for source partition t:1; idle: t:2" in out
    assert "warning: 4 rows of silver fail r2" in out


def test_the_status_needs_no_source_folder(lake: Lake) -> None:
    (lake.root / "landing" / "a.json").unlink()
    (lake.root / "landing").rmdir()
    pipeline = str(lake.root.parent / "shop.yml")

    assert run_command(app, ["status", pipeline, "--root", str(lake.root)]) == 0


def _topic_batch(
    lake: Lake, batch: int, until: dict[str, int], offsets: dict[str, list[int]], **more: Any
) -> None:
    """Append a batch of bronze from topic ``t``: the rows' offsets by partition."""
    ids = [f"t:{partition}:{one}" for partition, taken in offsets.items() for one in taken]
    read = {partition: len(taken) for partition, taken in offsets.items()}
    told = {"offsets": {"t": until}, "read": {"t": read}, **more}
    write_bronze(lake, ids, batch, **told)


def _topics(lake: Lake, folder: Path) -> tuple[Any, tuple[str, ...]]:
    ledger = read_ledger(lake, shop(folder))
    return ledger.to_json()["source_offsets"], ledger.problems


def test_offsets_without_a_record_are_no_loss_and_are_counted(
    tmp_path: Path,
) -> None:
    """Markers of transactions, and records that were aborted or compacted away."""
    lake = Lake(tmp_path)
    _topic_batch(lake, 0, {"0": 5, "10": 3}, {"0": [1, 2, 4], "10": [0]}, **_since(t0=1, t10=0))
    _topic_batch(lake, 1, {"0": 9, "10": 3, "2": 2}, {"0": [6], "2": [0, 1]}, **_since(t0=5, t10=3))
    told = {"offered": 8 + 3 + 2, "taken": 7, "without_record": 6}
    assert _topics(lake, tmp_path) == (told, ())
    # And a partition of which only such offsets were read.
    _topic_batch(lake, 2, {"0": 9, "10": 3, "2": 2, "3": 9}, {}, **_since(t0=9, t10=3, t2=2, t3=5))
    told = {"offered": 13 + 4, "taken": 7, "without_record": 10}
    assert _topics(lake, tmp_path) == (told, ())


def test_offsets_of_a_topic_that_are_not_the_rows_of_bronze_are_told_by_their_partition(
    tmp_path: Path,
) -> None:
    lake = Lake(tmp_path)
    _topic_batch(lake, 0, {"0": 5, "1": 4}, {"0": [0, 1, 2], "1": [0, 1]}, **_since(t0=0, t1=0))
    # One batch begins behind the end of the last one, and one before it.
    _topic_batch(lake, 1, {"0": 9, "1": 6}, {"0": [7], "1": [4, 5]}, **_since(t0=7, t1=3))
    # Rows that are gone from bronze, rows of nowhere, and more rows than offsets.
    told = {"t": {"0": 3, "1": 3, "2": 1}}
    ids = {"0": [9, 12], "1": [6, 6, 6], "2": [0, 0, 0]}
    more = {**_since(t0=9, t1=6, t2=0), "read": told}
    _topic_batch(lake, 2, {"0": 12, "1": 8, "2": 2}, ids, **more)
    problems = [one for one in _topics(lake, tmp_path)[1] if "partition" in one]
    assert problems == [
        "bronze, batch 1: it read partition 0 of t from offset 7 on, and 5 to 6 before that were "
        "never read",
        "bronze holds 6 rows of partition 0 of t, 7 records were read",
        "bronze holds offsets 0 to 12 of partition 0 of t, its batches read 0 to 11",
        "bronze, batch 1: it read partition 1 of t from offset 3 on, and 3 had been read before",
        "bronze holds 3 rows of partition 2 of t, 1 records were read",
        "bronze holds 3 rows of partition 2 of t, its batches read 2 offsets",
    ]


def test_commits_of_earlier_versions_tell_only_where_a_batch_of_a_topic_ended(
    tmp_path: Path,
) -> None:
    lake = Lake(tmp_path)
    write_bronze(lake, ["t:0:3", "t:0:4"], 0, offsets={"t": {"0": 6}})
    _topic_batch(lake, 1, {"0": 8}, {"0": [6, 7]}, **_since(t0=6))
    told = {"offered": 5, "taken": 4, "without_record": 1}
    assert _topics(lake, tmp_path) == (told, ())


def _since(**offsets: int) -> dict[str, Any]:
    """Give what a commit says of where its batch begins, by partition."""
    return {"from": {"t": {name[1:]: offset for name, offset in offsets.items()}}}
