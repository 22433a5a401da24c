"""The list of mutations fits the code; and what is told of one that no test kills."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests import mutate
from tests.mutate import PROJECT, main, read_list

_CODE = """
def withdraw(balance, amount):
    if amount > balance:
        raise ValueError
    if amount < 0:
        raise ValueError
    return balance - amount
"""
_TESTS = """
import pytest
from bank import withdraw

def test_no_more_is_paid_than_there_is():
    with pytest.raises(ValueError):
        withdraw(1, 2)

def test_of_nothing():
    assert withdraw(0, 0) == 1
"""


def _entry(
    name: str, was: str, test: str = "test_no_more_is_paid_than_there_is"
) -> dict[str, object]:
    tests = [f"tests/test_bank.py::{test}"]
    return {
        "name": name,
        "file": "lib/bank.py",
        "was": was,
        "becomes": "if False:",
        "killed_by": tests,
    }


def test_each_mutation_fits_its_file_and_names_tests_that_exist() -> None:
    wrong = []
    for mutation in read_list(PROJECT):
        try:
            mutation.mutated(PROJECT)
        except ValueError as error:
            wrong.append(f"{mutation.name}: {error}")
    assert wrong == []


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Give a project with two guards, of which one has a test."""
    for folder in ("lib", "tests", "conf", "benchmarks"):
        (tmp_path / folder).mkdir()
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "lib" / "bank.py").write_text(_CODE)
    (tmp_path / "tests" / "test_bank.py").write_text(_TESTS)
    entries = [
        _entry("more than there is", "if amount > balance:"),
        _entry("less than nothing", "if amount < 0:"),
        _entry("twice", "raise ValueError"),
        _entry("no test", "if amount < 0:", "test_gone"),
        _entry("a test that fails", "if amount < 0:", "test_of_nothing"),
    ]
    (tmp_path / "tests" / "mutations.yml").write_text(yaml.safe_dump(entries))
    return tmp_path


def test_a_mutation_is_killed_or_survives_or_could_not_be_tried(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {file: file.read_bytes() for file in project.rglob("*.py")}
    assert main(["--json"], project=project) == 1
    found = {one["name"]: one for one in json.loads(capsys.readouterr().out)}
    assert {name: one["outcome"] for name, one in found.items()} == {
        "more than there is": "killed",
        "less than nothing": "survived",
        "twice": "error",
        "no test": "error",
        "a test that fails": "error",
    }
    by = "tests/test_bank.py::test_no_more_is_paid_than_there_is"
    assert found["more than there is"]["by"] == by
    assert found["twice"]["why"] == "its text occurs 2 times in lib/bank.py, not once"
    assert found["no test"]["why"] == "there is no test tests/test_bank.py::test_gone"
    assert "fails without it" in found["a test that fails"]["why"]
    assert {file: file.read_bytes() for file in project.rglob("*.py")} == before

    # What is known is not tried again until its file changes.
    monkeypatch.setattr(mutate, "_run", lambda *_: pytest.fail("it was tried again"))
    assert main(["--only", "More than"], project=project) == 0
    assert main(["--only", "LESS than"], project=project) == 1
    told = capsys.readouterr().out.splitlines()
    assert told[-1] == "1 mutations: 0 killed, 1 survived, 0 error"
    assert max(map(len, told)) <= 100
    assert main(["--list", "--only", "twice"], project=project) == 0
    assert capsys.readouterr().out == f"twice\n    {by}\n"
    (project / "lib" / "bank.py").write_text(_CODE + "\n")
    with pytest.raises(pytest.fail.Exception, match="tried again"):
        main(["--only", "More than"], project=project)


@pytest.mark.parametrize(
    ("change", "told"),
    [({"why": "because"}, "an entry has the keys"), ({"killed_by": []}, "an entry has the keys")],
)
def test_an_entry_that_is_none_is_refused(
    project: Path, change: dict[str, object], told: str
) -> None:
    entries = [_entry("a", "x"), _entry("b", "y") | change]
    (project / "tests" / "mutations.yml").write_text(yaml.safe_dump(entries))
    with pytest.raises(ValueError, match=told):
        read_list(project)
    (project / "tests" / "mutations.yml").write_text(yaml.safe_dump([entries[0]] * 2))
    with pytest.raises(ValueError, match="two entries are named: a"):
        read_list(project)
