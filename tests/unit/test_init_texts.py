"""`tidelake init` and its relatives: empty arguments, and texts that no file can hold."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tidelake.cli import app
from tidelake.cli.exits import run_command
from tidelake.config import load_environment, load_pipeline


@pytest.mark.parametrize(
    ("command", "named"),
    [
        (["init", "shop", "--source", ""], "'--source'"),
        (["init", "shop", "--source", " "], "'--source'"),
        (["init", "shop", "--sample", ""], "'--sample'"),
        (["init", "shop", "--source", "events", "--to", ""], "'--to'"),
        (["new", "shop", "--from", ""], "'--from'"),
        (["new", ""], "'DIR'"),
        (["generate", "clickstream", "--to", "", "--events", "1"], "'--to'"),
        (["kafka", "down", "--dir", ""], "'--dir'"),
    ],
)
def test_an_empty_path_is_refused_by_its_option(
    empty_folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command: list[str],
    named: str,
) -> None:
    """A variable that is not set must not mean the whole disk or the current folder."""
    # Else a failure would read the disk.
    monkeypatch.setattr("tidelake.cli.init.sample.read_source", None)
    Path("events").mkdir()
    Path("events/a.jsonl").write_text('{"id": 1}\n')
    assert run_command(app, command) == 2
    told = capsys.readouterr().err
    assert f"Invalid value for {named}: is empty" in told
    assert sorted(Path().rglob("*")) == [Path("events"), Path("events/a.jsonl")]


def test_half_a_character_is_written_into_no_file(empty_folder: Path) -> None:
    """JSON may escape one; UTF-8 has no bytes for it."""
    Path("events").mkdir()
    rows = [
        {"id": f"e{n}", "type": "\udc00" if n % 2 else "a", "mode": "ab"[n % 2]} for n in range(30)
    ]
    Path("events/a.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert run_command(app, ["init", "shop", "--source", "events", "--yes"]) == 0
    suite = Path("conf/expectations/shop.yml").read_text()
    assert "value_set: [a, b]" in suite
    assert suite.count("value_set") == 1
    assert "\\ud" not in suite.lower()
    assert load_pipeline("shop", load_environment()).gold[0].keys == ("mode",)


@pytest.mark.parametrize("line", ["[1,2]", " [1, 2]", "[2026-01-05 10:00:00] started, ready"])
def test_an_array_is_not_called_csv(
    empty_folder: Path, capsys: pytest.CaptureFixture[str], line: str
) -> None:
    Path("events").mkdir()
    Path("events/a.json").write_text(f"{line}\n")
    assert run_command(app, ["init", "shop", "--source", "events", "--yes"]) == 2
    told = capsys.readouterr().err
    assert "A source is JSON, one object per line." in told
    assert "CSV" not in told
