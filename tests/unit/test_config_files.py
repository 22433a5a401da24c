"""What YAML 1.1 makes of a file's texts, and which files of a folder are pipelines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.test_config_loading import GOOD, LAPTOP, TOPIC, changed, violations, write
from tidelake.cli import app
from tidelake.cli.exits import run_command
from tidelake.config import load_pipeline
from tidelake.config.document import read_document
from tidelake.errors import ConfigError, UsageError

_WINDOW = "window: {kind: tumbling, size: 1 hour}"


def _text_with(**lines: str) -> str:
    """Write the valid file with keys as they stand, one a line at the end."""
    return yaml.safe_dump(GOOD, sort_keys=False) + "".join(f"{k}: {v}\n" for k, v in lines.items())


@pytest.mark.parametrize(
    ("key", "value", "path"),
    [
        ("description", r'"an \ud800 alone"', "description"),
        ("comments", r'{user_id: "\udfff"}', "comments.user_id"),
        ("quality", r"""{rules: {known: "action <> '\ud83d\ude00'"}}""", "quality.rules.known"),
    ],
)
def test_half_a_character_is_found_with_its_line(
    tmp_path: Path, key: str, value: str, path: str
) -> None:
    text = _text_with(**{key: value})
    (violation,) = violations(tmp_path, text)
    assert (violation.path, violation.line) == (path, text.count("\n"))
    assert violation.message.startswith("contains half of a character")
    load_pipeline(write(tmp_path, _text_with(description=r'"\U0001F600"')), LAPTOP)


def test_half_a_character_in_a_key_is_printed_and_no_crash(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path, _text_with(comments=r'{"\ud800": x}'))
    assert run_command(app, ["validate", file]) == 2
    printed = capsys.readouterr().out
    printed.encode()
    assert "half of a character" in printed


def test_half_a_character_in_a_suite_is_found(tmp_path: Path) -> None:
    file = tmp_path / "s.yml"
    file.write_text('expectations:\n  - {kwargs: {regex: "a\\ud800"}}\n')
    (finding,) = read_document(file).findings
    assert finding.path == ("expectations", 0, "kwargs", "regex")
    assert "half of a character" in finding.message


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        *(("1.10", "1.1"), ("0420", "272"), ("12:30", "750"), ("1_000", "1000"), ("off", "false")),
        *(("0x1F", "31"), (".5", "0.5"), ("+5", "5"), ("Yes", "true"), ("1.0e+3", "1000.0")),
    ],
)
def test_a_text_that_yaml_changes_is_found(tmp_path: Path, value: str, shown: str) -> None:
    gold = f"  - {{name: t, {_WINDOW}, keys: [user_id], measures: {{e: {{count: '*'}}}}, tags: "
    raw = yaml.safe_dump(changed(gold=None), sort_keys=False) + "gold:\n" + gold
    (violation,) = violations(tmp_path, f"{raw}{{cost: {value}}}}}\n")
    assert violation.path == "gold[0].tags.cost" and violation.line is not None
    assert violation.message.startswith(f"YAML reads {value} as {shown}; ")
    assert violation.message.endswith("put it in quotes")
    loaded = load_pipeline(write(tmp_path, f'{raw}{{cost: "{value}"}}}}\n'), LAPTOP)
    assert loaded.gold[0].tags == {"cost": value}


@pytest.mark.parametrize(
    ("section", "value"),
    [
        ("options: {kafka.client.id: 007}", "YAML reads 007 as 7"),
        ("max_offsets_per_trigger: 010", "YAML reads 010 as 8; write 8, or put it in quotes"),
        ("min_partitions: 1:30", "YAML reads 1:30 as 90"),
    ],
)
def test_a_number_that_yaml_changes_is_found_everywhere(
    tmp_path: Path, section: str, value: str
) -> None:
    text = yaml.safe_dump(changed(source=TOPIC), sort_keys=False)
    (violation,) = violations(tmp_path, text.replace("  topic:", f"  {section}\n  topic:"))
    assert violation.message.startswith(value)


def test_numbers_and_truths_that_keep_their_value_are_settings(tmp_path: Path) -> None:
    options = "{kafka.a: 8, kafka.b: 1.50, kafka.c: True, kafka.d: off, kafka.e: -3_000}"
    text = yaml.safe_dump(changed(source=TOPIC), sort_keys=False)
    text = text.replace("  topic:", f"  options: {options}\n  topic:")
    loaded: Any = load_pipeline(
        write(tmp_path, f"{text}alerts: {{late_rate: .050, lag_seconds: 0x1F}}\n"), LAPTOP
    )
    assert list(loaded.source.options.values()) == ["8", "1.5", "true", "false", "-3000"]
    assert (loaded.alerts.late_rate, loaded.alerts.lag_seconds) == (0.05, 31)


def test_a_date_that_there_is_not_is_found_with_its_key_and_the_other_problems(
    tmp_path: Path,
) -> None:
    text = _text_with(description="2020-13-45", unknown="1")
    first, second = violations(tmp_path, text)
    assert (first.path, first.line) == ("description", text.count("\n") - 1)
    assert first.message == (
        "YAML reads 2020-13-45 as a timestamp: month must be in 1..12; put it in quotes"
    )
    assert second.path == "unknown"


@pytest.fixture
def conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "conf" / "pipelines"
    folder.mkdir(parents=True)
    write(folder, GOOD)
    monkeypatch.chdir(tmp_path)
    return folder


def test_a_copy_with_an_underscore_is_no_file_to_format_but_defaults_are(
    conf: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(app, ["fmt"]) == 0
    (conf / "_copy.yml").write_text("not: [a pipeline\n")
    (conf / "_defaults.yml").write_text("watermark: {delay: 1 hour}\n")
    assert run_command(app, ["validate", "--all"]) == 0
    assert run_command(app, ["fmt", "--check"]) == 0
    assert "2 files, 0 to change" in capsys.readouterr().err


def test_a_folder_or_a_link_to_nothing_is_no_pipeline(conf: Path) -> None:
    (conf / "sub.yml").mkdir()
    (conf / "gone.yml").symlink_to("nowhere.yml")
    with pytest.raises(UsageError) as refused:
        load_pipeline("sub", LAPTOP)
    assert "did you mean sub?" not in str(refused.value)
    assert not isinstance(refused.value, ConfigError)
    assert run_command(app, ["validate", "--all"]) == 0
