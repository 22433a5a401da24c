"""The bundle of a project that `tidelake new` makes keeps the rules of the repository's."""

from __future__ import annotations

import copy
import re
from pathlib import Path

import pytest
import yaml

from tests.bundle.calls import problems_of, runs_in
from tests.bundle.project import PROJECT, Bundle, read_bundle
from tests.bundle.rules import RULES, Rule, production_runs_no_demo
from tidelake.cli import app
from tidelake.cli.exits import run_command


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "shop"
    assert run_command(app, ["new", str(folder)]) == 0
    return folder


@pytest.fixture
def bundle(project: Path, monkeypatch: pytest.MonkeyPatch) -> Bundle:
    for name in ("TIDELAKE_ENV", "TIDELAKE_ROOT", "TIDELAKE_CATALOG", "TIDELAKE_VOLUME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(project)
    found = read_bundle(project)
    # Where a deployment puts the project's files.
    return Bundle({**found.raw, "workspace": {"file_path": str(project)}})


# A project has no demo.
_RULES = [rule for rule in RULES if rule is not production_runs_no_demo]


@pytest.mark.parametrize("target", ["dev", "prod"])
@pytest.mark.parametrize("rule", _RULES, ids=lambda rule: rule.__name__)
def test_a_new_projects_bundle_keeps_the_rules(rule: Rule, target: str, bundle: Bundle) -> None:
    assert list(rule(bundle.at(target))) == []


def test_a_run_of_a_pipeline_ends_after_hours_that_a_variable_sets(bundle: Bundle) -> None:
    assert (
        bundle.raw["resources"]["jobs"]["flow"]["timeout_seconds"] == "${var.run_timeout_seconds}"
    )
    assert bundle.jobs["flow"]["timeout_seconds"] == 14400


def test_each_task_passes_the_folder_of_the_deployed_files(bundle: Bundle) -> None:
    tasks = list(bundle.tasks())
    assert {task.job for task in tasks} == bundle.jobs.keys() - {"scheduled", "maintenance"}
    for task in tasks:
        assert f"--conf={bundle.raw['workspace']['file_path']}" in next(bundle.calls(task))


def test_a_job_that_runs_when_asked_to_is_that_of_the_repository(bundle: Bundle) -> None:
    ours = read_bundle()
    asked = {
        key
        for key, job in ours.jobs.items()
        if not {"schedule", "trigger", "continuous"} & job.keys()
    }
    own = bundle.raw["resources"]["jobs"]
    # A project's own is flow, whose hops are one task.
    shared = asked - {"scheduled"}
    recovery = {"backfill", "rollback", "repair", "replay", "late", "erase"}
    assert recovery | {"doctor", "upkeep"} <= shared
    assert {key: own.get(key) for key in shared} == {
        key: ours.raw["resources"]["jobs"][key] for key in shared
    }


def test_the_scheduled_job_starts_a_run_for_each_pipeline(bundle: Bundle) -> None:
    (each,) = bundle.jobs["scheduled"]["tasks"]
    called = each["for_each_task"]["task"]["run_job_task"]
    chain = {
        task["task_key"]: [other["task_key"] for other in task.get("depends_on", [])]
        for task in bundle.jobs["flow"]["tasks"]
    }

    assert called["job_id"] == "id:flow"
    assert called["job_parameters"].keys() == {
        one["name"] for one in bundle.jobs["flow"]["parameters"]
    }
    assert chain == {
        "dimensions": [],
        "run": ["dimensions"],
        "gate": ["run"],
        "verify": ["gate"],
        "alerts": ["run"],
    }


def test_what_a_target_changes_has_what_the_clis_schema_requires(bundle: Bundle) -> None:
    # The CLI merges it into the resource; its schema, which editors use, wants it whole.
    changed = bundle.raw["targets"]["prod"]["resources"]
    for kind, required in (("schemas", {"catalog_name"}), ("volumes", {"schema_name"})):
        assert changed[kind].keys() == bundle.raw["resources"][kind].keys()
        for name, one in changed[kind].items():
            assert one["name"] == name
            assert required | {"catalog_name", "lifecycle"} <= one.keys()


def test_the_folder_of_the_pipelines_is_not_left_out_of_a_deployment(bundle: Bundle) -> None:
    sync = copy.deepcopy(bundle.raw["sync"])
    assert "paths" not in sync
    assert not [one for one in sync["exclude"] if one.startswith(("pipelines", "environments"))]


def test_what_a_text_starts_is_a_job_of_a_new_project(project: Path, bundle: Bundle) -> None:
    for page in (project / "README.md", PROJECT / "docs" / "how-to" / "project.md"):
        runs = runs_in(page.read_text(encoding="utf-8"))
        assert runs
        assert [problem for run in runs for problem in problems_of(run, bundle)] == []


@pytest.mark.parametrize("target", ["dev", "prod"])
def test_a_pipeline_may_have_a_job_of_its_own_as_the_page_shows_it(
    bundle: Bundle, target: str
) -> None:
    page = (PROJECT / "docs" / "how-to" / "project.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```yaml\n(resources:\n.*?)```", page, re.DOTALL)
    raw = copy.deepcopy(dict(bundle.raw))
    raw["resources"]["jobs"] |= yaml.safe_load(block)["resources"]["jobs"]

    found = Bundle(raw).at(target)
    assert "file_arrival" in found.jobs["orders"]["trigger"]
    assert [problem for rule in _RULES for problem in rule(found)] == []
