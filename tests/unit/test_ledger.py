"""The books, added up from logs written by hand: when they balance and when they do not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import duckdb
import pytest
import yaml
from deltalake import CommitProperties, write_deltalake

from tests.unit.handmade import write_commit, write_offset
from tidelake.cli import app
from tidelake.cli.failures import run_command
from tidelake.config import load_environment, load_pipeline
from tidelake.errors import GenerationError, UsageError
from tidelake.ops.ledger import Ledger, SourceBooks, read_ledger
from tidelake.sinks.commits import encode
from tidelake.tables import Lake

SHOP = {
    "name": "shop",
    "source": {"kind": "files", "path": "${root}/landing"},
    "event": {
        "schema": "event_id STRING, event_time TIMESTAMP, user_id STRING",
        "id": "event_id",
        "time": "event_time",
    },
    "gold": [
        {
            "name": "totals",
            "window": {"kind": "global"},
            "keys": ["user_id"],
            "measures": {"events": {"count": "*"}},
        }
    ],
}
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
FATES = [
    ["silver", None, False, 5],
    ["duplicate", None, False, 2],
    ["quarantined", "parse", False, 1],
    ["late", None, False, 1],
    ["filtered", None, False, 1],
]


def note(batch: int, **more: Any) -> dict[str, Any]:
    return {"generation": "g1", "batch": batch, **more}


def silver_note(batch: int, counts: list[list[Any]]) -> dict[str, Any]:
    mark = "2024-01-01T00:00:00+00:00"
    return note(batch, watermark_in=None, watermark=mark, partitions={}, counts=counts)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Give ten records of one file, each with a fate, five of them counted in gold."""
    lake = Lake(tmp_path / "lake")
    file = tmp_path / "lake" / "landing" / "a.json"
    file.parent.mkdir(parents=True)
    file.write_text("{}\n" * 10)
    (tmp_path / "shop.yml").write_text(yaml.safe_dump(SHOP))

    bronze = lake.bronze("shop")
    write_commit(bronze, 0, note=note(-1))
    files = [[str(file), 30, file.stat().st_mtime_ns // 1_000_000, 10]]
    write_commit(bronze, 1, note=note(0, files=files), rows=10, adds=[(6, True), (4, True)])
    write_silver(lake, FATES)
    write_offset(
        lake.checkpoints("shop", "silver") / "g1",
        0,
        {"reservoirVersion": 2, "index": -1},
        {"reservoirVersion": 1, "index": -1},
    )
    write_gold(lake, eligible=5)
    return lake


def write_silver(lake: Lake, counts: list[list[Any]]) -> None:
    write_commit(lake.silver("shop"), 0, note=note(-1))
    write_commit(lake.silver("shop"), 1, note=silver_note(0, counts))


def write_gold(lake: Lake, *, eligible: int) -> None:
    shutil.rmtree(lake.gold("totals").path, ignore_errors=True)
    metadata = {"userMetadata": encode(note(0, eligible=eligible, rows=5))}
    write_deltalake(
        str(lake.gold("totals").path),
        duckdb.sql("SELECT * FROM (VALUES ('u1', 3), ('u2', 2)) AS t(user_id, events)"),
        commit_properties=CommitProperties(custom_metadata=metadata),
    )


def books(lake: Lake) -> Ledger:
    environment = load_environment("local", root=str(lake.root))
    return read_ledger(lake, load_pipeline(str(lake.root.parent / "shop.yml"), environment))


def told(lake: Lake, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any], str]:
    """Run `tidelake ledger --json`: exit code, books, messages."""
    pipeline = str(lake.root.parent / "shop.yml")
    code = run_command(app, ["ledger", pipeline, "--json", "--root", str(lake.root)])
    captured = capsys.readouterr()
    return code, json.loads(captured.out), captured.err


def test_books_balance_when_every_row_has_one_fate(lake: Lake) -> None:
    found = books(lake)

    assert found.balanced
    assert found.source == SourceBooks(10, 1, 1, 30, 30)
    assert found.bronze == found.fates.total() == 10
    assert found.pending == 0


def test_json_has_the_contracts_terms_first_and_later_ones_beside_them(
    lake: Lake, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found, messages = told(lake, capsys)

    assert code == 0
    assert messages == ""
    assert [key for key in found if key in CONTRACT] == CONTRACT
    assert found.keys() - set(CONTRACT) == {"pending", "source_files"}
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


def test_a_missing_silver_row_unbalances_the_books_and_exits_3(
    lake: Lake, capsys: pytest.CaptureFixture[str]
) -> None:
    write_silver(lake, [["silver", None, False, 4], *FATES[1:]])

    code, found, messages = told(lake, capsys)

    assert (code, found["silver"], found["balanced"]) == (3, 4, False)
    assert "do not balance" in messages


def test_the_table_for_people_says_whether_the_books_balance(
    lake: Lake, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["ledger", str(lake.root.parent / "shop.yml"), "--root", str(lake.root)]
    assert run_command(app, arguments) == 0
    assert "Ledger of shop: balanced" in capsys.readouterr().out

    write_gold(lake, eligible=6)
    assert run_command(app, arguments) == 3
    assert "Ledger of shop: NOT BALANCED" in capsys.readouterr().out


@pytest.mark.parametrize(
    "counts",
    [
        [*FATES, ["silver", None, False, 1]],
        FATES[:-1],
        [["silver", None, False, 11]],
        [],
    ],
)
def test_a_row_too_many_or_too_few_unbalances_the_books(
    lake: Lake, counts: list[list[Any]]
) -> None:
    write_silver(lake, counts)

    assert not books(lake).balanced


def test_gold_that_counted_another_number_of_events_unbalances_the_books(lake: Lake) -> None:
    write_gold(lake, eligible=6)

    found = books(lake)

    assert not found.balanced
    assert found.to_json()["gold"] == {"totals": {"expected": 6, "counted": 5}}


def test_bronze_that_holds_less_than_the_source_unbalances_the_books(lake: Lake) -> None:
    files = [[str(lake.root / "landing" / "a.json"), 30, 0, 11]]
    write_commit(
        lake.bronze("shop"), 1, note=note(0, files=files), rows=10, adds=[(6, True), (4, True)]
    )

    found = books(lake)

    assert (found.to_json()["source"], found.bronze, found.balanced) == (11, 10, False)


def test_rows_that_silver_has_yet_to_take_are_pending_and_balance(lake: Lake) -> None:
    write_commit(lake.bronze("shop"), 2, note=note(1, files=[["/b", 9, 0, 3]]), rows=3)
    waiting = [(3, True)]
    write_commit(
        lake.bronze("shop"), 2, note=note(1, files=[["/b", 9, 0, 3]]), rows=3, adds=waiting
    )

    found = books(lake)

    assert (found.bronze, found.pending, found.balanced) == (13, 3, True)


def test_without_silver_everything_is_pending(lake: Lake) -> None:
    (lake.silver("shop").path / "_delta_log" / f"{0:020}.json").unlink()
    (lake.silver("shop").path / "_delta_log" / f"{1:020}.json").unlink()

    found = books(lake)

    assert (found.pending, found.fates.total(), found.balanced) == (10, 0, True)


def test_a_file_that_waits_and_one_that_is_gone_count_as_offered(lake: Lake) -> None:
    (lake.root / "landing" / "a.json").unlink()
    (lake.root / "landing" / "b.json").write_text("{}\n")

    found = books(lake)

    assert found.source == SourceBooks(10, 2, 1, 33, 30)
    assert found.balanced


def test_a_landing_folder_that_was_cleared_away_changes_no_book(lake: Lake) -> None:
    (lake.root / "landing" / "a.json").unlink()
    (lake.root / "landing").rmdir()

    assert books(lake).balanced


def test_a_landing_folder_that_was_emptied_changes_no_book(lake: Lake) -> None:
    (lake.root / "landing" / "a.json").unlink()

    assert books(lake).balanced


def test_a_checkpoint_that_does_not_know_silvers_batch_is_refused_with_the_repair(
    lake: Lake,
) -> None:
    (lake.checkpoints("shop", "silver") / "g1" / "offsets" / "0").unlink()

    with pytest.raises(GenerationError, match=r"tidelake repair shop --hop silver$"):
        books(lake)


def test_a_pipeline_that_never_ran_says_how_to_run_it(lake: Lake) -> None:
    (lake.bronze("shop").path / "_delta_log" / f"{0:020}.json").unlink()
    (lake.bronze("shop").path / "_delta_log" / f"{1:020}.json").unlink()

    with pytest.raises(UsageError, match=r"shop has no tables under .*tidelake run shop"):
        books(lake)


def test_the_status_tells_where_each_hop_stands(
    lake: Lake, capsys: pytest.CaptureFixture[str]
) -> None:
    write_offset(lake.checkpoints("shop", "gold") / "g1", 0, {"reservoirVersion": 2, "index": -1})
    pipeline = str(lake.root.parent / "shop.yml")

    assert run_command(app, ["status", pipeline, "--json", "--root", str(lake.root)]) == 0

    found = json.loads(capsys.readouterr().out)
    assert found["watermark"] == "2024-01-01T00:00:00+00:00"
    assert [(hop["hop"], hop["batch"], hop["rows"], hop["waiting"]) for hop in found["hops"]] == [
        ("bronze", 0, 10, 0),
        ("silver", 0, 10, 0),
        ("gold", 0, 5, 0),
    ]


def test_the_status_needs_no_source_folder(lake: Lake) -> None:
    write_offset(lake.checkpoints("shop", "gold") / "g1", 0, {"reservoirVersion": 2, "index": -1})
    (lake.root / "landing" / "a.json").unlink()
    (lake.root / "landing").rmdir()
    pipeline = str(lake.root.parent / "shop.yml")

    assert run_command(app, ["status", pipeline, "--root", str(lake.root)]) == 0
