"""What a text names: a folder on a disk, a prefix on a store, or nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidelake.config import load_environment
from tidelake.errors import ConfigError, UsageError
from tidelake.folders import absolute, folder, is_stored, is_url, listed, namespace_of, place_of


def test_a_relative_path_lies_under_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    assert folder("lake") == tmp_path / "lake"
    assert not is_stored(folder("lake"))


def test_an_address_names_a_prefix_and_its_parts_are_joined_as_those_of_a_path() -> None:
    root = folder("s3://bucket/lake/")

    assert is_stored(root)
    assert str(root / "silver" / "clicks") == "s3://bucket/lake/silver/clicks"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("ftp://host/lake", "ftp is not supported. Write a path, or s3://bucket/prefix"),
        ("s3a://bucket/lake", "s3a is not supported. Write s3://bucket/prefix"),
        ("gs://bucket/lake", "gs is not supported. On Databricks make an external volume of"),
        ("abfss://c@a.host/x", "abfss is not supported. On Databricks make an external volume of"),
        ("s3://Bucket/lake", "names no bucket"),
        ("s3://bucket", "names a whole bucket"),
        ("s3://bucket/a/../b", "would be misread"),
        ("s3://bucket/a//b", "would be misread"),
        ("s3://bucket/a?b", "would be misread"),
        ("s3://bucket/a*", "would be misread"),
    ],
)
def test_what_names_no_folder_is_refused_with_what_to_write(text: str, told: str) -> None:
    with pytest.raises(UsageError, match=told.replace("?", r"\?")) as refused:
        folder(text)

    assert refused.value.exit_code == 2


def test_a_root_on_a_store_may_come_from_the_option_the_variable_or_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert str(load_environment("local", root="s3://bucket/a").root) == "s3://bucket/a"
    monkeypatch.setenv("TIDELAKE_ROOT", "s3://bucket/b")
    assert str(load_environment("local").root) == "s3://bucket/b"
    monkeypatch.delenv("TIDELAKE_ROOT")
    for name, root in (("good", "s3://bucket/c"), ("bad", "gs://bucket/c")):
        file = tmp_path / "conf" / "environments" / f"{name}.yml"
        file.parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "conf" / "pipelines").mkdir(exist_ok=True)
        file.write_text(f"root: {root}\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)

    assert str(load_environment("good").root) == "s3://bucket/c"
    with pytest.raises(ConfigError, match=r"root .*gs://bucket/c .*: gs is not supported"):
        load_environment("bad")


@pytest.mark.parametrize(
    ("uri", "place"),
    [
        ("file:///landing/a%20b.jsonl", "/landing/a b.jsonl"),
        ("s3://bucket/landing/a%20b.jsonl", "s3://bucket/landing/a b.jsonl"),
        ("s3://bucket/50%25", "s3://bucket/50%"),
        ("gs://bucket/a%20b/%5B1%5D", "gs://bucket/a b/[1]"),
        ("abfss://c@a.host/landing/50%25", "abfss://c@a.host/landing/50%"),
    ],
)
def test_the_address_of_a_listed_file_becomes_its_place(uri: str, place: str) -> None:
    assert place_of(uri) == place
    if is_url(place):
        assert place_of(listed(place)) == place


def test_a_source_on_a_store_stays_as_it_is_written() -> None:
    assert absolute("s3://bucket/landing/") == "s3://bucket/landing"
    assert absolute("abfss://c@a.host/landing/") == "abfss://c@a.host/landing"
    assert namespace_of("abfss://c@a.host/landing") == ("abfss://c@a.host", "landing")
    assert absolute("/landing/../landing") == "/landing"
