"""Every job of the deployed bundle, and of a new project's, against the stand-in catalog."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.bundle.calls import command_of
from tests.bundle.project import Bundle, read_bundle
from tests.catalogs import a_catalog
from tidelake.cli import app
from tidelake.cli.exits import run_command

pytestmark = pytest.mark.long
BUNDLE = read_bundle().at("prod")


@pytest.fixture
def volume(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Point the environment prod at an empty stand-in catalog."""
    with a_catalog(spark, tmp_path) as environment:
        monkeypatch.setenv("TIDELAKE_CATALOG", str(environment.catalog))
        monkeypatch.setenv("TIDELAKE_VOLUME", str(environment.volume))
        monkeypatch.chdir(tmp_path)
        yield tmp_path / "volume"


def walked(bundle: Bundle, job: str, **given: str) -> dict[str, int]:
    """Run the wheel's tasks of a job in order and give the exit code of each.

    Conditions are taken to hold.
    """
    codes = {}
    for task in bundle.tasks():
        if task.job == job:
            for arguments in bundle.calls(task, **given):
                script = task.body["python_wheel_task"]["entry_point"]
                codes[task.key] = run_command(app, command_of(script, arguments))
    return codes


def landed(volume: Path) -> None:
    for name in ("clickstream", "products"):
        folder = volume / "landing" / name
        command = ["generate", name, "--to", str(folder), "--events", "200"]
        assert run_command(app, command) == 0


def green(codes: dict[str, int]) -> bool:
    return bool(codes) and not any(codes.values())


def test_the_upkeep_and_the_checks_are_green_before_anything_has_arrived(volume: Path) -> None:
    for name in json.loads(BUNDLE.at("dev").variables["maintained_pipelines"]):
        assert green(walked(BUNDLE, "upkeep", pipeline=name)), name
    scheduled = {
        task.key: run_command(
            app, command_of(task.body["python_wheel_task"]["entry_point"], arguments)
        )
        for task in BUNDLE.tasks()
        if task.job == "scheduled" and task.key in ("gate", "verify", "alerts")
        for arguments in BUNDLE.calls(task, pipeline="products")
    }
    assert green(scheduled)


def test_each_job_is_green_on_a_pipeline_that_has_run(volume: Path) -> None:
    landed(volume)
    given = {"verify_since": "2020-01-01"}
    assert green(walked(BUNDLE, "scheduled", pipeline="clickstream", **given))
    assert green(walked(BUNDLE, "scheduled", pipeline="products", **given))
    assert green(walked(BUNDLE, "upkeep"))
    for job in ("late", "replay", "repair", "backfill", "rollback"):
        assert green(walked(BUNDLE, job)), job
    assert green(walked(BUNDLE, "erase", subject="user_id=nobody"))
    assert green(walked(BUNDLE, "upkeep"))


def test_each_job_of_a_new_project_is_green_once_its_input_is_there(volume: Path) -> None:
    project = volume.parent / "shop"
    assert run_command(app, ["new", str(project)]) == 0
    # The stand-in for the volume bronze.landing.
    with (project / "environments" / "prod.yml").open("a") as file:
        file.write(f"landing: {project / 'lakehouse' / 'landing'}\n")
    written = read_bundle(project)
    bundle = Bundle({**written.raw, "workspace": {"file_path": str(project)}}, "prod")

    flow = walked(bundle, "flow", verify_since="2020-01-01")
    assert green(flow)
    assert [*flow] == ["dimensions", "run", "gate", "verify", "alerts"]
    for job in ("upkeep", "late", "replay", "repair", "backfill", "rollback", "doctor"):
        assert green(walked(bundle, job)), job
    assert green(walked(bundle, "erase", subject="order_id=nobody"))
    assert green(walked(bundle, "flow", verify_since="2020-01-01"))
