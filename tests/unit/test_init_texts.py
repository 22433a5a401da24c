"""`tidelake init` and its relatives: empty arguments, and texts that no file can hold."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest
import yaml

from tests.samples import land, order
from tests.unit.test_many_pipelines import write
from tidelake.cli import app
from tidelake.cli.exits import run_command
from tidelake.cli.init.sample import Record, sample_of
from tidelake.config import load_environment, load_pipeline
from tidelake.errors import SourceError


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


def test_half_a_character_is_written_into_no_file(
    empty_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """JSON may escape one; UTF-8 has no bytes for it, and silver quarantines the record."""
    Path("events").mkdir()
    rows = [
        {"id": f"e{n}", "type": "a" if n % 3 else "\udc00", "mode": "ab"[n % 2]} for n in range(30)
    ]
    Path("events/a.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert run_command(app, ["init", "shop", "--source", "events", "--yes"]) == 0
    told = " ".join(capsys.readouterr().err.split())
    assert "10 of 30 records will be quarantined: not one JSON object; the first: " in told
    assert "events/a.jsonl line 1: not JSON: half of a character, \\udc00" in told
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


@pytest.mark.parametrize("name", ["a.json", "a.csv", "a"])
def test_gzip_that_its_name_hides_is_refused(
    empty_folder: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    Path("events").mkdir()
    Path("events", name).write_bytes(gzip.compress(b'{"id": 1}\n'))
    assert run_command(app, ["init", "shop", "--source", "events", "--yes"]) == 2
    told = capsys.readouterr().err
    assert f"events/{name} is compressed with gzip: let its name end in .gz" in told


_HIT = '10.0.0.1 - - [05/Jan/2026:10:00:00 +0000] "GET / HTTP/1.1" 200 12 "-" "A (like B, C)"'


def test_fields_between_blanks_have_a_form_that_validates(
    empty_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("events").mkdir()
    Path("events/access.jsonl").write_text(f"{_HIT}\n" * 2)
    assert run_command(app, ["init", "web", "--source", "events", "--yes"]) == 2
    told = capsys.readouterr().err
    assert "neither JSON lines nor CSV with one of , ; tab |" in told
    form = re.search(r"csv: (\{columns: .*\})\n", told)
    assert form
    names = [f"f{number}" for number in range(10)]
    csv = yaml.safe_load(form[1].replace("…", ", ".join(names)))
    path = str(empty_folder / "events")
    source = {"kind": "files", "format": "csv", "csv": csv, "path": path}
    fields = ", ".join(f"{name} STRING" for name in names)
    event = {"schema": fields, "id": "record_id", "time": "source_timestamp"}
    window = {"kind": "tumbling", "size": "1 hour"}
    gold = [{"name": "hits", "window": window, "measures": {"n": {"count": "*"}}}]
    write(Path("web.yml"), {"name": "web", "source": source, "event": event, "gold": gold})
    assert load_pipeline("web.yml", load_environment()).source.csv.delimiter == " "  # type: ignore[union-attr]


def test_of_a_topics_records_no_form_of_files_is_named() -> None:
    with pytest.raises(SourceError, match="A source is JSON, one object per line"):
        sample_of([Record("web partition 0 offset 0", "0", _HIT.encode())])


def _notes(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    command = ["init", "shop", "--source", "events", "--dry-run", "--json", *arguments]
    assert run_command(app, command) == 0
    found: list[str] = json.loads(capsys.readouterr().out)["notes"]
    return found


@pytest.mark.usefixtures("empty_folder")
def test_money_in_text_is_summed_as_decimal_with_a_note(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [order(n, total=f"{n}.50", gift_note="a") for n in range(60)]
    land(Path("events/a.jsonl"), rows)
    note = (
        "total: numbers in text; as DECIMAL their sums are exact, and other texts are quarantined"
    )
    assert note in _notes(capsys)
    assert run_command(app, ["init", "shop", "--source", "events", "--yes"]) == 0
    shop = load_pipeline("shop", load_environment())
    assert "total" in [measure.name for measure in shop.gold[0].measures]
    assert [r.kwargs["min_value"] for r in shop.rules if r.type.endswith("between")] == [0]


@pytest.mark.usefixtures("empty_folder")
def test_an_array_of_objects_is_noted_and_one_of_texts_is_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    land(Path("events/a.jsonl"), [order(n, tags=["a"]) for n in range(9)])
    notes = _notes(capsys)
    assert "items: an array: gold counts a record, not its elements" in notes
    assert not [note for note in notes if note.startswith("tags")]


@pytest.mark.usefixtures("empty_folder")
def test_a_delay_of_days_is_noted_unless_it_was_given(capsys: pytest.CaptureFixture[str]) -> None:
    """Copied files have the time of the copy, so an archive may seem to be out of order."""
    days = [order(n, createdAt=f"2026-01-{31 - n // 2:02}T10:00:00Z") for n in range(60)]
    land(Path("events/a.jsonl"), days)
    (note,) = [note for note in _notes(capsys) if "watermark.delay" in note]
    assert note.startswith("watermark.delay is 30 days, because the events of these files are")
    assert note.endswith("or run `tidelake late apply` after it")
    assert not any("watermark.delay" in note for note in _notes(capsys, "--delay", "29 days"))
    land(Path("events/a.jsonl"), [order(n) for n in range(60)])
    assert not any("watermark.delay" in note for note in _notes(capsys))
