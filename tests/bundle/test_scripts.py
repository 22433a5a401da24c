"""The scripts of a release: what they say where a machine lacks something."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.bundle.project import PROJECT

# What the scripts use beside the tools that they are about.
_COMMANDS = ("bash", "dirname", "mktemp", "sed", "cat", "env")


def called(
    folder: Path, script: str, tool: str, *arguments: str, **commands: str
) -> subprocess.CompletedProcess[str]:
    """Run a script where only a few commands exist.

    Args:
        folder: Where these are put.
        script: Its name.
        tool: What the given tool does, as a script.
        arguments: What the script is given beside the tool.
        commands: More commands, as scripts.
    """
    for name in _COMMANDS:
        found = shutil.which(name)
        assert found
        (folder / name).symlink_to(found)
    for name, text in {"tool": tool, **commands}.items():
        (folder / name).write_text(f"#!/usr/bin/env bash\n{text}\n")
        (folder / name).chmod(0o755)
    return subprocess.run(
        [str(folder / "bash"), str(PROJECT / "scripts" / script), str(folder / "tool"), *arguments],
        env={"PATH": str(folder), "HOME": os.environ.get("HOME", "/")},
        capture_output=True,
        text=True,
        check=False,
    )


def answer(sum_: str) -> str:
    """Write a Go that fetched a module with this sum."""
    fields = {"Dir": "/module", "Sum": sum_, "GoModSum": "h1:x="}
    return f"cat <<'END'\n{json.dumps(fields, indent=4)}\nEND"


PINNED = next(
    line.removeprefix("sum=")
    for line in (PROJECT / "scripts" / "bundle_schema.sh").read_text().splitlines()
    if line.startswith("sum=")
)


def test_the_schema_is_the_pinned_one_and_judges_every_file(tmp_path: Path) -> None:
    ended = called(tmp_path, "bundle_schema.sh", 'echo "$@"', go=answer(PINNED))

    assert ended.returncode == 0
    included = yaml.safe_load((PROJECT / "databricks.yml").read_text())["include"]
    files = [file for pattern in included for file in sorted(PROJECT.glob(pattern))]
    assert len(files) > len(included)
    assert ended.stdout.split() == [
        "--schemafile",
        "/module/bundle/schema/jsonschema.json",
        "databricks.yml",
        *(str(file.relative_to(PROJECT)) for file in files),
    ]


def test_the_files_of_a_project_are_judged_too(tmp_path: Path) -> None:
    project = tmp_path / "shop"
    files = [project / "resources" / "a.job.yml", project / "resources" / "standard" / "b.job.yml"]
    files[1].parent.mkdir(parents=True)
    for file in files:
        file.touch()
    bins = tmp_path / "bin"
    bins.mkdir()

    ended = called(bins, "bundle_schema.sh", 'echo "$@"', str(project), go=answer(PINNED))

    judged = ended.stdout.split()
    assert "databricks.yml" in judged
    assert judged[-3:] == [f"{project}/databricks.yml", *map(str, files)]


def test_a_bundle_that_breaks_the_schema_fails(tmp_path: Path) -> None:
    assert called(tmp_path, "bundle_schema.sh", "exit 1", go=answer(PINNED)).returncode == 1


@pytest.mark.parametrize(
    ("commands", "code", "words"),
    [
        ({}, 4, "the schema was not checked: it comes in a Go module"),
        ({"go": "echo no network >&2; exit 1"}, 4, "cannot be fetched.\nno network"),
        ({"go": answer("h1:other=")}, 3, "is not what it was: h1:other="),
    ],
)
def test_a_schema_that_cannot_be_had_is_no_pass(
    tmp_path: Path, commands: dict[str, str], code: int, words: str
) -> None:
    ended = called(tmp_path, "bundle_schema.sh", "exit 0", **commands)

    assert (ended.returncode, ended.stdout) == (code, "")
    assert words in ended.stderr


def test_workflows_are_not_passed_by_half_of_the_linters(tmp_path: Path) -> None:
    ended = called(tmp_path, "workflows.sh", "exit 0")

    assert ended.returncode == 4
    assert "actionlint did not run" in ended.stderr
    assert called_again(tmp_path, "exit 14").returncode == 14


def called_again(folder: Path, tool: str) -> subprocess.CompletedProcess[str]:
    """Run the linters of workflows with another answer of the first."""
    inner = folder / "again"
    inner.mkdir()
    return called(inner, "workflows.sh", tool)
