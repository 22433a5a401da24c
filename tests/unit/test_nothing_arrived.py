"""What a scheduled job is told of a pipeline that has a definition and no tables, or no suite."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

import pytest

from tidelake.cli import app
from tidelake.cli.exits import run_command
from tidelake.errors import RefusedError

_COMMANDS = [["check", "--tables"], ["verify"], ["maintain"], ["alerts"]]
_WITHOUT_SPARK = [["verify"], ["maintain"], ["alerts"]]


@pytest.fixture(autouse=True)
def _no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("checking", "operating"):
        monkeypatch.setattr(f"tidelake.cli.{module}.started", _refused)


def _refused(*_: object) -> None:
    raise RefusedError("Spark would start")


@pytest.mark.parametrize("command", _WITHOUT_SPARK, ids=" ".join)
@pytest.mark.parametrize("given", [[], ["--json"]], ids=["text", "json"])
def test_a_pipeline_without_tables_is_no_failure_and_starts_no_spark(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: list[str], given: list[str]
) -> None:
    assert run_command(app, [*command, "clickstream", *given, "--root", str(tmp_path)]) == 0

    told = capsys.readouterr()
    assert "clickstream has no tables" in told.err
    found = json.loads(told.out) if given else None
    if found and command == ["verify"]:
        # Nothing was compared, so nothing is equal.
        assert (found["equal"], found["tables"]) == (None, {})


@pytest.mark.parametrize("command", _COMMANDS, ids=" ".join)
def test_a_name_that_is_no_pipeline_is_an_error(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: list[str]
) -> None:
    assert run_command(app, [*command, "clickstraem", "--root", str(tmp_path)]) == 2
    assert "no pipeline 'clickstraem'" in capsys.readouterr().err


@pytest.mark.parametrize("left", ["bronze/clickstream", "silver/clickstream", "gold/user_sessions"])
@pytest.mark.parametrize("command", [["alerts"], ["verify"]], ids=" ".join)
def test_tables_that_are_missing_beside_others_are_not_called_nothing(
    tmp_path: Path, command: list[str], left: str
) -> None:
    log = tmp_path / left / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020}.json").write_text('{"commitInfo": {}}\n')

    assert run_command(app, [*command, "clickstream", "--root", str(tmp_path)]) != 0


@pytest.mark.parametrize("command", [["alerts"], ["verify"]], ids=" ".join)
def test_a_root_that_is_not_there_may_be_misspelt(tmp_path: Path, command: list[str]) -> None:
    root = str(tmp_path / "lkae")
    assert run_command(app, [*command, "clickstream", "--root", root]) != 0


@pytest.mark.parametrize(
    ("pipeline", "why"),
    [
        ("clickstream", "clickstream has no tables"),
        ("products", "has neither a suite nor rules; add"),
    ],
)
def test_a_gate_with_nothing_to_judge_is_open_and_says_why(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    pipeline: str,
    why: str,
) -> None:
    monkeypatch.setattr("tidelake.cli.checking.started", lambda _: nullcontext())
    for name in ("replay.compatibility.judge_tables", "replay.compatibility.payload_drift"):
        monkeypatch.setattr(f"tidelake.{name}", lambda *_: [])
    monkeypatch.setattr("tidelake.runtime.runner.refusals", lambda _: {})
    arguments = ["check", pipeline, "--tables", "--json", "--root", str(tmp_path)]

    assert run_command(app, arguments) == 0
    told = capsys.readouterr()
    document = json.loads(told.out)
    assert document["gate"] is None
    assert why in document["not_judged"]
    assert why in told.err
