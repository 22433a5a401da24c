"""The keys of ``source.csv``: their defaults, and each mistake named by its path."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.unit.test_config_loading import GOOD, LAPTOP, changed, violations, write
from tidelake.config import CsvFormat, FilesSource, Pipeline, load_pipeline
from tidelake.delta.commit_metadata import silver_note
from tidelake.replay.fate import Fate, _is_of_event


def _source(**csv: Any) -> dict[str, Any]:
    return {"kind": "files", "path": "landing", "format": "csv", "csv": csv}


def _loaded(folder: Path, source: dict[str, Any]) -> Pipeline:
    return load_pipeline(write(folder, changed(source=source)), LAPTOP)


def test_the_defaults_are_a_header_commas_and_quotes_in_utf_8(tmp_path: Path) -> None:
    pipeline = _loaded(tmp_path, {"kind": "files", "path": "landing", "format": "csv"})
    assert isinstance(pipeline.source, FilesSource)
    assert pipeline.csv
    assert pipeline.source.csv == CsvFormat(
        header=True, columns=None, delimiter=",", quote='"', escape=None, encoding="utf-8", nulls=()
    )
    assert not load_pipeline(write(tmp_path, GOOD), LAPTOP).csv


def test_every_key_can_be_written(tmp_path: Path) -> None:
    keys = {"header": False, "columns": ["a", "b"], "delimiter": "\t", "quote": None}
    keys |= {"escape": "\\", "encoding": "utf-16", "nulls": ["NA", "\\N"]}
    source = _loaded(tmp_path, _source(**keys)).source
    assert isinstance(source, FilesSource)
    assert source.csv.model_dump(mode="json") == keys


@pytest.mark.parametrize(
    ("csv", "path", "words"),
    [
        ({"delimiter": "||"}, "source.csv.delimiter", "must be one ASCII character, not '||'"),
        ({"delimiter": "é"}, "source.csv.delimiter", "must be one ASCII character"),
        ({"delimiter": "\n"}, "source.csv.delimiter", "must be one ASCII character"),
        ({"quote": ""}, "source.csv.quote", "must be one ASCII character"),
        ({"delimiter": '"'}, "source.csv.quote", "is the delimiter too; write another"),
        ({"escape": '"'}, "source.csv.escape", "is the quote too; leave it out, quotes are"),
        ({"escape": ","}, "source.csv.escape", "is the delimiter too; write another"),
        ({"encoding": "utf8000"}, "source.csv.encoding", "'utf8000' is no known encoding"),
        ({"encoding": "base64"}, "source.csv.encoding", "'base64' is no known encoding"),
        ({"encoding": "utf-7"}, "source.csv.encoding", "'utf-7' is no known encoding"),
        ({"header": False}, "source.csv.columns", "is needed for files without a header"),
        ({"header": True, "columns": ["a"]}, "source.csv.columns", "cannot be combined"),
        ({"columns": []}, "source.csv.columns", "needs at least one"),
        ({"columns": ["a", "b", "a"]}, "source.csv.columns[2]", "a appears twice"),
        ({"columns": ["a", " "]}, "source.csv.columns[1]", "must not be empty"),
        ({"header": "yes"}, "source.csv.header", "true or false"),
        ({"separator": ";"}, "source.csv.separator", "unknown key"),
    ],
)
def test_each_mistake_is_named_by_its_path(
    tmp_path: Path, csv: dict[str, Any], path: str, words: str
) -> None:
    (found,) = violations(tmp_path, changed(source=_source(**csv)))
    assert found.path == path
    assert words in found.message


def test_only_csv_takes_these_keys(tmp_path: Path) -> None:
    (found,) = violations(tmp_path, changed(source={**_source(), "format": "json"}))
    assert (found.path, found.message) == ("source.csv", "is allowed with format: csv only")


def test_other_texts_of_null_are_another_definition_of_silver(tmp_path: Path) -> None:
    notes = [silver_note(_loaded(tmp_path, _source(nulls=nulls))) for nulls in ([], ["NA"])]
    first, second = (note["definition"] for note in notes)
    assert {name for name in first if first[name] != second[name]} == {"source.csv.nulls"}
    assert (
        "source.csv.nulls"
        not in silver_note(load_pipeline(write(tmp_path, GOOD), LAPTOP))["definition"]
    )


@pytest.mark.parametrize(("payload", "is_its"), [(b"7", True), (b"x,7", True), (b"77", False)])
def test_a_record_of_csv_that_is_json_by_chance_is_found_by_its_text(
    tmp_path: Path, payload: bytes, is_its: bool
) -> None:
    fate = Fate("a.csv:0", "quarantined", None, "a.csv", datetime(2026, 1, 5, tzinfo=UTC), payload)
    assert _is_of_event(fate, _loaded(tmp_path, _source()), "7") is is_its
