"""What goes into a release: the locks, the bill of materials, the audit, the workflows' actions."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from scripts.audit import FOUND, UNKNOWN, read_answer
from scripts.audit import LOCKS as AUDITED
from scripts.sbom import with_jars

from tests.bundle.project import PROJECT
from tidelake.spark.java import read_lock

LOCKS = [
    *sorted(PROJECT.glob("requirements*.lock")),
    PROJECT / "docs" / "requirements.lock",
]
# What only the benchmarks run, and no release holds.
PEERS = sorted((PROJECT / "benchmarks" / "peers").glob("*requirements.lock"))
WORKFLOWS = sorted((PROJECT / ".github" / "workflows").glob("*.yml"))


def pins(lock: Path) -> dict[str, list[str]]:
    """Read a lock: hashes by package and version, with the marker where it has one."""
    found: dict[str, list[str]] = {}
    for line in lock.read_text(encoding="utf-8").splitlines():
        if re.match(r"[a-z0-9]", line):
            name = line.rstrip("\\ ")
            found[name] = []
        elif "--hash=" in line:
            found[name].append(line.split("--hash=")[1].rstrip("\\ "))
    return found


def names(requirements: list[str]) -> set[str]:
    """Give the packages of a list of requirements."""
    return {re.split(r"[\[<>=~! ]", one)[0].lower() for one in requirements}


@pytest.mark.parametrize(
    "lock", [*LOCKS, *PEERS], ids=lambda lock: f"{lock.parent.name}-{lock.name}"
)
def test_every_pin_has_hashes_and_no_address(lock: Path) -> None:
    found = pins(lock)

    assert found
    assert all(hashes for hashes in found.values())
    assert all("==" in pin for pin in found)
    assert "://" not in lock.read_text(encoding="utf-8")


def test_the_locks_hold_what_the_project_asks_for_and_agree() -> None:
    document = tomllib.loads((PROJECT / "pyproject.toml").read_text())
    package = document["project"]
    extras = package["optional-dependencies"]
    runtime, everything, tools = (
        {pin.split("==")[0]: pin for pin in pins(PROJECT / f"requirements{name}.lock")}
        for name in ("-runtime", "", "-release")
    )
    # Tools, each set with an environment of its own.
    asked = package["dependencies"] + [
        one for extra, group in extras.items() if extra not in ("dev", "docs") for one in group
    ]

    assert names(asked) <= set(runtime)
    assert names(extras["dev"]) <= set(everything)
    assert names(document["dependency-groups"]["release"]) <= set(tools)
    version = {name: pin.split(" ;")[0] for name, pin in everything.items()}
    assert {name: pin.split(" ;")[0] for name, pin in runtime.items()}.items() <= version.items()


def test_the_bill_of_materials_names_every_jar_with_its_hash() -> None:
    python: dict[str, Any] = {
        "metadata": {"component": {"bom-ref": "root", "name": "tidelake"}},
        "components": [{"bom-ref": "click", "name": "click"}],
        "dependencies": [{"ref": "root"}, {"ref": "click"}],
    }

    whole = with_jars(python, version="1.2.3")

    assert whole["metadata"]["component"]["version"] == "1.2.3"
    locks = sorted((PROJECT / "conf").glob("*.lock"))
    assert len(locks) == 3
    for lock in locks:
        listed = {
            (f"{one['group']}:{one['name']}:{one['version']}", one["hashes"][0]["content"])
            for one in whole["components"]
            if one["bom-ref"].startswith(f"{lock.name}:")
            and one["scope"] == ("required" if lock.name == "jars.lock" else "optional")
        }
        assert listed == {(jar.coordinates, jar.sha256) for jar in read_lock(lock)}
    refs = [one["bom-ref"] for one in whole["components"]]
    assert len(set(refs)) == len(refs)
    assert whole["dependencies"][0] == {"ref": "root", "dependsOn": sorted(refs)}


@pytest.mark.parametrize(
    ("packages", "code"),
    [
        ([{"name": "a", "version": "1", "vulns": []}], 0),
        ([], UNKNOWN),
        ([{"name": "a", "skip_reason": "not found"}], UNKNOWN),
        (
            [
                {"name": "a", "version": "1", "vulns": []},
                {"name": "b", "skip_reason": "not found"},
            ],
            UNKNOWN,
        ),
        (
            [
                {"name": "a", "version": "1", "vulns": [{"id": "V-1", "fix_versions": []}]},
                {"name": "b", "skip_reason": "not found"},
            ],
            FOUND,
        ),
    ],
)
def test_a_package_that_could_not_be_asked_about_is_no_pass(
    packages: list[dict[str, Any]], code: int
) -> None:
    assert read_answer(json.dumps({"dependencies": packages})).exit_code == code


def test_the_audit_asks_about_every_lock_of_python() -> None:
    # The runtime's is a part of the developers'.
    part = PROJECT / "requirements-runtime.lock"
    assert {PROJECT / name for name in AUDITED} == {*LOCKS} - {part}
    told = (PROJECT / "docs" / "releasing.md").read_text(encoding="utf-8")
    for lock in (*LOCKS, *(PROJECT / "conf").glob("*.lock")):
        assert f"| `{lock.relative_to(PROJECT)}` |" in told


def test_no_workflow_checks_without_a_browser() -> None:
    steps = [
        step
        for file in WORKFLOWS
        for job in yaml.safe_load(file.read_text(encoding="utf-8"))["jobs"].values()
        for step in job["steps"]
        if "make check" in step.get("run", "")
    ]
    assert [step["env"]["TIDELAKE_BROWSER"] for step in steps] == ["required"] * 2


def test_an_audit_names_the_version_that_helps() -> None:
    bug = {"id": "V-1", "fix_versions": ["1.1", "2.0"]}
    package = {"name": "a", "version": "1.0", "vulns": [bug]}

    assert read_answer(json.dumps({"dependencies": [package]})).found == (
        "a 1.0: V-1, fixed in 1.1, 2.0",
    )


def test_every_action_is_one_commit_that_its_comment_names() -> None:
    used = [
        line.split("uses:")[1].strip()
        for file in WORKFLOWS
        for line in file.read_text(encoding="utf-8").splitlines()
        if "uses:" in line
    ]

    assert used
    assert all(re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", one) for one in used)
    assert len({one.split("@")[0] for one in used}) == len(set(used))


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_a_workflow_may_read_the_code_and_only_the_draft_may_write(file: Path) -> None:
    workflow = yaml.safe_load(file.read_text(encoding="utf-8"))

    assert workflow["permissions"] == {}
    may_write = {
        name
        for name, job in workflow["jobs"].items()
        if any(level == "write" for level in job["permissions"].values())
    }
    assert may_write <= {"draft"}
    assert "secrets." not in file.read_text(encoding="utf-8")
