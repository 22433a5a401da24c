"""What `verify` prints beside the comparison of tables."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast
from unittest.mock import MagicMock

import pytest

from tests.pipelines import shop
from tests.shops import Shop
from tests.unit.handmade import write_commit
from tidelake.cli import app, checking
from tidelake.cli.checking import _show_verdict
from tidelake.cli.exits import run_command
from tidelake.config import load_environment
from tidelake.delta.commit_metadata import SilverNote, silver_note
from tidelake.delta.log import newest_version
from tidelake.delta.tables import Lake
from tidelake.errors import RefusedError, UnequalError, UsageError
from tidelake.replay import verify as verifying
from tidelake.replay.certificates import certify, read_certificate
from tidelake.replay.compare import RowDifference, TableComparison
from tidelake.replay.compatibility import kept_note, unknown_columns
from tidelake.replay.verify import (
    Judged,
    RepeatedIds,
    Verification,
)
from tidelake.runtime.hop import Run
from tidelake.runtime.progress import Progress


def test_repeated_ids_and_waiting_rows_are_listed_and_are_no_difference(
    capsys: pytest.CaptureFixture[str],
) -> None:
    first = tuple(f"e{number}" for number in range(20))
    verdict = Verification("shop", None, (), RepeatedIds(1021, first), {})
    _show_verdict(verdict)
    told = capsys.readouterr().out
    assert verdict.equal
    assert "1,021 event ids were accepted more than once" in told
    assert told.rstrip().endswith("e18, e19, …")
    waiting = {"silver": 1200, "gold": 0}
    verdict = Verification("shop", None, (), RepeatedIds(0, ()), waiting)
    _show_verdict(verdict)
    told = capsys.readouterr().out
    assert "more than once" not in told
    assert "  1,200 rows that silver has not read yet are not compared\n" in told
    assert "gold" not in told
    assert verdict.to_json()["waiting"] == waiting


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"format": 1}, "not a certificate of this Tidelake version; an earlier one computed"),
        ({"made_at": "yesterday"}, "cannot be read as a certificate: Invalid RFC3339"),
        ({"tables": {}}, "not a certificate: it lacks bronze.shop"),
        ({"tables": {"bronze.shop": {"version": 1}}}, "missing required field `id`"),
        ({"pipeline": "flights"}, "a certificate of flights, not of shop"),
    ],
)
def test_a_file_that_is_no_certificate_is_named_with_the_remedy(
    changes: dict[str, Any], why: str, tmp_path: Path
) -> None:
    table = Judged(Lake(tmp_path).bronze("shop"), 1, TableComparison(0, {}, {}))
    silver = table._replace(table=Lake(tmp_path).silver("shop"))
    verdict = Verification("shop", None, (table, silver), RepeatedIds(0, ()), {})
    made, file = certify(verdict, shop(tmp_path)), tmp_path / "certificate.json"
    file.write_text(json.dumps(made))
    assert set(read_certificate(file, "shop").tables) == {"bronze.shop", "silver.shop"}
    file.write_text(json.dumps({**made, **changes}))
    with pytest.raises(UsageError, match=why) as refused:
        read_certificate(file, "shop")
    assert str(refused.value).startswith(str(file))
    assert str(refused.value).endswith("Give another file with --certificate.")


def test_a_certificate_is_of_equal_tables_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shop, file = Shop(tmp_path).run(2), tmp_path / "certificate.json"
    missing = RowDifference("missing", {"record_id": "f:1"})
    bronze = Judged(Lake(shop.root).bronze("shop"), 1, TableComparison(0, {}, {}, 1, (missing,)))
    off = Verification("shop", None, (bronze,), RepeatedIds(0, ()), {})
    monkeypatch.setattr(checking, "started", lambda _: nullcontext())
    monkeypatch.setattr(verifying, "verify", lambda *_, **__: off)
    words = ["verify", str(shop.file), "--certificate", str(file), "--root", str(shop.root)]
    assert run_command(app, words) == 3
    assert f"{file} is not written: a certificate is of equal tables" in capsys.readouterr().err
    assert not file.exists()


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("erasure", "an erasure of shop has not finished; if none is running, .* tidelake erase "),
        ("swap", "a swap of shop's tables has not finished; if .* tidelake backfill promote "),
    ],
)
def test_where_tables_differ_because_of_an_unfinished_operation_it_comes_first(
    name: str,
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    played = Shop(tmp_path).run(2)
    missing = RowDifference("missing", {"record_id": "f:1"})
    bronze = Judged(Lake(played.root).bronze("shop"), 1, TableComparison(0, {}, {}, 1, (missing,)))
    off = Verification("shop", None, (bronze,), RepeatedIds(0, ()), {})
    monkeypatch.setattr(checking, "started", lambda _: nullcontext())
    monkeypatch.setattr(verifying, "verify", lambda *_, **__: off)
    begun = getattr(played.lake, name)("shop")
    begun.parent.mkdir(parents=True, exist_ok=True)
    begun.write_text("{}")
    assert run_command(app, ["verify", str(played.file), "--root", str(played.root)]) == 3
    said = " ".join(capsys.readouterr().err.split())
    assert re.search(f"not equal to the recomputation from bronze: {told}", said)
    assert "restore the version" not in said and "backfill run" not in said


@pytest.mark.parametrize("table", ["silver.shop", "silver.shop__late", "gold.totals"])
@pytest.mark.parametrize("is_equal", [True, False])
def test_tables_that_are_replaced_meanwhile_are_not_called_unequal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str, is_equal: bool
) -> None:
    """Such as by a promotion: verify takes no lock, and reads one table after the other."""
    played = Shop(tmp_path).run(2)
    missing = () if is_equal else (RowDifference("missing", {"record_id": "f:1"}),)
    late = Judged(played.lake.late("shop"), 1, TableComparison(0, {}, {}, len(missing), missing))
    generations = iter(["g1", "g2"])

    def judged(*_: object) -> Iterator[Judged]:
        note = {"pipeline": "shop", "generation": next(generations), "batch": 2}
        last = newest_version(played.lake.table(table))
        write_commit(played.lake.table(table), last + 1, note=note)
        yield late

    for name in ("fitted_to_bronze", "read_inputs", "find_repeated_ids"):
        monkeypatch.setattr(verifying, name, MagicMock())
    monkeypatch.setattr(verifying, "_judged", judged)
    said = Progress(lambda _: None)
    environment = load_environment("local", root=str(played.root))
    run = Run(cast(Any, None), played.pipeline, played.lake, environment, said)
    # A batch of a run beside it.
    assert verifying.verify(run).equal is is_equal
    if is_equal:
        assert verifying.verify(run).equal
        return
    with pytest.raises(
        RefusedError, match=r"replaced meanwhile.* tidelake verify shop$"
    ) as refused:
        verifying.verify(run)
    assert not isinstance(refused.value, UnequalError)
    assert refused.value.exit_code == 3


def test_batches_that_were_decided_under_other_rules_are_named_with_the_comparison(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lake = Lake(tmp_path)
    table, missing = lake.silver("shop"), RowDifference("missing", {"record_id": "f:1"})
    silver = Judged(table, 1, TableComparison(0, {}, {}, 1, (missing,)))
    off = Verification("shop", None, (silver,), RepeatedIds(0, ()), {})
    monkeypatch.setattr(checking, "started", lambda _: nullcontext())
    monkeypatch.setattr(verifying, "verify", lambda *_, **__: off)
    before = shop(tmp_path, quality={"rules": {"has_id": "event_id > ''"}})
    after = shop(tmp_path)

    def told() -> str:
        words = ["verify", str(tmp_path / "shop.yml"), "--root", str(tmp_path)]
        assert run_command(app, words) == 3
        return " ".join(capsys.readouterr().err.split())

    def write(version: int, pipeline: Any, generation: str = "g1", **more: Any) -> None:
        note = {"generation": generation, "batch": version, **silver_note(pipeline), **more}
        write_commit(table, version, note=note)

    write(0, after)
    assert "definition" not in told()
    for version, pipeline in enumerate((before, before, after), start=1):
        write(version, pipeline)
    message = told()
    assert "Batches 1 to 2 of silver were decided under another definition (quality)" in message
    assert message.index("backfill run") < message.index("backfill compare")
    assert message.index("backfill compare") < message.index("backfill promote")
    # A generation that keeps the rows keeps what is known of them.
    write(4, after, "g2", follows=3)
    assert message.partition(". Recompute")[0] in told()
    # A promoted backfill has decided all rows anew, or with --start those that arrived later.
    kept = kept_note(lake, after)
    write(5, after, "g3", rebuilt=True)
    assert "definition" not in told()
    assert kept_note(lake, after) == {"kept_definitions": []}
    write(6, after, "g4", rebuilt=True, **kept)
    write(7, after, "g4")
    assert "Batch 6 of silver was decided under another definition (quality)" in told()
    # The next promotion keeps them too; a definition that is today's again is no other.
    assert kept_note(lake, after) == kept
    assert kept_note(lake, before) == {"kept_definitions": [silver_note(after)["definition"]]}


def test_a_text_column_that_left_the_definition_is_not_one_of_an_unknown_field(
    tmp_path: Path,
) -> None:
    """Verify would expect null in it, where older rows have values."""
    lake, pipeline = Lake(tmp_path), shop(tmp_path)
    run = Run(*[cast(Any, one) for one in (None, pipeline, lake, None, None)])
    stored = {"event_id": "string", "channel": "string", "dropped": "string", "n": "int"}
    note = {"generation": "g1", "batch": 0, **SilverNote(columns=("channel",)).to_json()}
    write_commit(lake.silver("shop"), 0, note=note)
    assert unknown_columns(run, stored) == ("channel",)
    # A rebuild finds columns of both kinds, and adds neither.
    note = {"generation": "g2", "batch": 1, "rebuilt": True, **SilverNote().to_json()}
    write_commit(lake.silver("shop"), 1, note=note)
    assert unknown_columns(run, stored) == ("channel", "dropped")
