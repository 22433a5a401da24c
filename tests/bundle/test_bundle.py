"""The Databricks bundle: what would fail at deploy, at run, or never be noticed."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import yaml

from tests.bundle import rules
from tests.bundle.calls import command_of, parse, problems_of, runs_in, runs_in_dev
from tests.bundle.project import PROJECT, Bundle, read_bundle, read_package
from tests.bundle.rules import RULES, Rule
from tests.typed import typed_in
from tidelake.cli import app
from tidelake.cli.exits import run_command

BUNDLE = read_bundle()
Raw = dict[str, Any]


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TIDELAKE_ENV", "TIDELAKE_ROOT", "TIDELAKE_CATALOG", "TIDELAKE_VOLUME"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("target", ["dev", "prod"])
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_bundle_keeps_the_rules(rule: Rule, target: str) -> None:
    assert list(rule(BUNDLE.at(target))) == []


def _job(raw: Raw, key: str = "scheduled") -> Raw:
    found: Raw = raw["resources"]["jobs"][key]
    return found


def _dev(raw: Raw, key: str) -> Raw:
    found: Raw = raw["targets"]["dev"]["resources"]["jobs"][key]
    return found


def _task(raw: Raw, index: int = 0, job: str = "scheduled") -> Raw:
    found: Raw = _job(raw, job)["tasks"][index]
    return found


def _call(raw: Raw, *, entry: str | None = None, arguments: list[str] | None = None) -> None:
    """Give the first task of the scheduled job another call."""
    wheel = dict(_task(raw)["python_wheel_task"])
    wheel |= {"entry_point": entry} if entry else {}
    wheel |= {"parameters": arguments} if arguments else {}
    _task(raw)["python_wheel_task"] = wheel


@pytest.mark.parametrize(
    ("rule", "change", "words"),
    [
        (rules.entry_points_exist, lambda raw: _call(raw, entry="tidelake-no"), "no script"),
        (
            rules.arguments_parse,
            lambda raw: _call(raw, arguments=["clickstream", "--envv", "dev"]),
            "No such option",
        ),
        (
            rules.arguments_parse,
            lambda raw: _call(raw, arguments=["nope", "--env", "dev"]),
            "no pipeline nope",
        ),
        (
            rules.arguments_parse,
            lambda raw: _call(raw, arguments=["clickstream", "--env", "local"]),
            "environment local",
        ),
        (rules.serverless_ends, lambda raw: _call(raw, entry="tidelake-stream"), "continuous on"),
        (
            rules.keys_exist,
            lambda raw: _task(raw, 2).update(depends_on=[{"task_key": "gold"}]),
            "no task gold before it",
        ),
        (
            rules.keys_exist,
            lambda raw: _task(raw).update(environment_key="other"),
            "no environment or cluster",
        ),
        (
            rules.parameters_are_used,
            lambda raw: _job(raw)["parameters"].append({"name": "x", "default": ""}),
            "nothing reads x",
        ),
        (
            rules.parameters_are_used,
            lambda raw: _job(raw)["parameters"].pop(),
            "no parameter verify_since",
        ),
        (
            rules.variables_are_used,
            lambda raw: raw["variables"].update(x={"description": "X"}),
            "nothing reads x",
        ),
        (
            rules.variables_are_used,
            lambda raw: _job(raw).update(description="${var.x}"),
            "no variable x",
        ),
        (
            rules.continuous_jobs_are_alone,
            lambda raw: _dev(raw, "continuous").update(schedule={}),
            "continuous and schedule",
        ),
        (
            rules.continuous_jobs_are_alone,
            lambda raw: _dev(raw, "continuous")["tasks"][0].update(max_retries=3),
            "continuous and max_retries",
        ),
        (
            rules.one_writer_a_hop,
            lambda raw: _job(raw).update(max_concurrent_runs=2),
            "more than one run",
        ),
        (rules.one_writer_a_hop, lambda raw: _job(raw).pop("queue"), "skipped, not queued"),
        (
            rules.one_writer_a_hop,
            lambda raw: _dev(raw, "clickstream")["parameters"][0].update(default="payments"),
            "payments is both scheduled and continuous",
        ),
        (
            rules.thresholds_are_variables,
            lambda raw: _job(raw)["health"]["rules"][0].update(value=900),
            "RUN_DURATION_SECONDS is a number",
        ),
        (
            rules.thresholds_are_variables,
            lambda raw: _job(raw)["email_notifications"].pop("on_streaming_backlog_exceeded"),
            "silent on a backlog",
        ),
        (
            rules.thresholds_are_variables,
            lambda raw: _dev(raw, "continuous").pop("health"),
            "continuous: nobody hears of its backlog",
        ),
        (
            rules.thresholds_are_variables,
            lambda raw: _dev(raw, "flights").update(email_notifications={}),
            "flights: email_notifications are silent on a failure",
        ),
        (
            rules.thresholds_are_variables,
            lambda raw: _job(raw)["email_notifications"].update(on_failure=["somebody"]),
            "name somebody",
        ),
        (rules.checks_are_not_repeated, lambda raw: _task(raw, 4).update(max_retries=1), "retried"),
        (
            rules.production_is_guarded,
            lambda raw: raw["targets"]["prod"].pop("run_as"),
            "no service principal",
        ),
        (
            rules.production_is_guarded,
            lambda raw: raw["targets"]["prod"].pop("permissions"),
            "no permissions",
        ),
        (
            rules.production_is_guarded,
            lambda raw: raw["targets"]["prod"]["resources"]["schemas"].pop("gold"),
            "schemas.gold may be destroyed",
        ),
        (
            rules.production_runs_no_demo,
            lambda raw: _job(raw, "late").update(schedule={}),
            "prod: apply starts by itself",
        ),
        (
            rules.production_runs_no_demo,
            lambda raw: raw["variables"]["maintained_pipelines"].update(default='["x"]'),
            "maintenance names pipelines",
        ),
        (
            rules.dimensions_run_first,
            lambda raw: _task(raw, 1).pop("depends_on"),
            "scheduled.bronze: its dimensions do not run before it",
        ),
        (
            rules.dimensions_run_first,
            lambda raw: _call(raw, arguments=["flights", "--env", "dev"]),
            "scheduled.bronze: its dimensions do not run before it",
        ),
        (
            rules.pipelines_fail_alone,
            lambda raw: _job(raw, "maintenance")["tasks"].append(
                {"task_key": "after", "depends_on": [{"task_key": "each"}]}
            ),
            "maintenance.after: waits for every run of each",
        ),
        (
            rules.calls_of_jobs_fit,
            lambda raw: _job(raw, "upkeep")["parameters"][0].update(name="name"),
            "maintenance.each: upkeep takes no pipeline",
        ),
        (
            rules.calls_of_jobs_fit,
            lambda raw: raw["resources"]["jobs"].pop("upkeep"),
            "maintenance.each: no job upkeep",
        ),
        (
            rules.triggers_wait_for_their_volume,
            lambda raw: _dev(raw, "flights")["trigger"]["file_arrival"].update(
                url="/Volumes/tidelake_dev/ops/files/landing/flights/"
            ),
            "flights: /Volumes/tidelake_dev/ops/files/landing/flights/ refers to no volume",
        ),
        (rules.jobs_end, lambda raw: _job(raw, "late").pop("timeout_seconds"), "no timeout"),
        (rules.jobs_end, lambda raw: _job(raw, "late").pop("budget_policy_id"), "no budget"),
        (rules.jobs_end, lambda raw: raw["targets"]["dev"].pop("presets"), "dev: no tags"),
        (
            rules.deploys_replace_the_code,
            lambda raw: raw["targets"]["dev"]["presets"].pop("artifacts_dynamic_version"),
            "dev: a deploy of the same version may run the code of the last one",
        ),
        (
            rules.deploys_replace_the_code,
            lambda raw: raw["experimental"].pop("skip_artifact_cleanup"),
            "a deploy deletes the wheels of running jobs",
        ),
        (
            rules.only_jobs_write_the_books,
            lambda raw: raw["resources"]["schemas"]["ops"]["grants"][0].update(
                privileges=["MODIFY"]
            ),
            "schemas.ops: engineers may MODIFY",
        ),
        (
            rules.only_jobs_write_the_books,
            lambda raw: raw["targets"]["prod"]["permissions"][1].update(level="CAN_MANAGE"),
            "prod: engineers has CAN_MANAGE",
        ),
        (
            rules.only_jobs_write_the_books,
            lambda raw: _job(raw).update(
                permissions=[{"group_name": "engineers", "level": "CAN_MANAGE"}]
            ),
            "prod: engineers has CAN_MANAGE",
        ),
        (
            rules.who_sees_jobs_may_read_bronze,
            lambda raw: raw["targets"]["prod"]["permissions"].append(
                {"group_name": "analysts", "level": "CAN_VIEW"}
            ),
            "prod: analysts sees jobs",
        ),
        (
            rules.names_no_place,
            lambda raw: raw["targets"]["dev"].update(workspace={"host": "x"}),
            "host",
        ),
        (
            rules.names_no_place,
            lambda raw: raw["variables"]["warehouse_id"].update(default="0123456789abcdef"),
            "an id",
        ),
        (
            rules.fits_the_config,
            lambda raw: raw["targets"]["dev"]["variables"].update(catalog="main"),
            "conf says tidelake_dev",
        ),
        (
            rules.fits_the_config,
            lambda raw: raw["resources"]["volumes"]["files"].update(name="other"),
            "conf says /Volumes/tidelake_dev/ops/files",
        ),
        (
            rules.fits_the_config,
            lambda raw: raw["targets"]["dev"]["variables"].pop("maintained_pipelines"),
            "products is run and never maintained",
        ),
        (
            rules.fits_the_config,
            lambda raw: _job(raw)["environments"][1]["spec"]["dependencies"].append("pandas"),
            "pandas is not what pyproject.toml says",
        ),
    ],
)
def test_a_rule_finds_what_breaks_it(
    rule: Rule, change: Callable[[Raw], object], words: str
) -> None:
    raw = copy.deepcopy(dict(BUNDLE.raw))
    change(raw)

    assert words in "\n".join(rule(Bundle(raw)))


def test_the_scheduled_job_goes_from_the_dimensions_to_the_proof() -> None:
    chain = [
        (task["task_key"], [other["task_key"] for other in task.get("depends_on", [])])
        for task in BUNDLE.jobs["scheduled"]["tasks"]
    ]

    keys = ["dimensions", "bronze", "silver", "gold", "gate", "verify"]
    in_a_row = [(key, keys[:number][-1:]) for number, key in enumerate(keys)]
    assert chain == [*in_a_row, ("alerts", ["gold"])]


def test_a_run_of_a_pipeline_ends_after_hours_that_a_variable_sets() -> None:
    longer = copy.deepcopy(dict(BUNDLE.raw))
    longer["variables"]["run_timeout_seconds"]["default"] = 86400
    for raw, seconds in ((dict(BUNDLE.raw), 14400), (longer, 86400)):
        jobs = Bundle(raw).jobs
        told = [jobs[name]["timeout_seconds"] for name in ("scheduled", "clickstream", "flights")]
        assert told == [seconds] * 3


def test_the_backfill_screen_fills_a_range() -> None:
    run = next(task for task in BUNDLE.tasks() if (task.job, task.key) == ("backfill", "run"))

    (arguments,) = BUNDLE.calls(
        run, **{"from": "silver"}, start="2025-08-09T00:00:00.000Z", length="1 day"
    )
    found = parse(command_of("tidelake-backfill", arguments))

    assert (found["start"], found["first"], found["last"], found["length"]) == (
        "silver",
        datetime(2025, 8, 9, tzinfo=UTC),
        None,
        timedelta(days=1),
    )


def test_a_promotion_waits_for_a_yes_after_the_comparison() -> None:
    tasks = {task["task_key"]: task for task in BUNDLE.jobs["backfill"]["tasks"]}

    assert tasks["promote"]["depends_on"] == [{"task_key": "wanted", "outcome": "true"}]
    assert tasks["wanted"]["depends_on"] == [{"task_key": "compare"}]
    defaults = {one["name"]: one["default"] for one in BUNDLE.jobs["backfill"]["parameters"]}
    assert defaults["promote"] == "false"


def test_an_erasure_waits_for_a_yes_after_a_dry_run() -> None:
    tasks = {task.key: task for task in BUNDLE.tasks() if task.job == "erase"}
    ((look,), (erase,)) = (list(BUNDLE.calls(tasks[key])) for key in ("look", "erase"))

    assert ("--dry-run" in look, "--yes" in look) == (True, False)
    assert ("--dry-run" in erase, "--yes" in erase) == (False, True)
    assert tasks["erase"].body["depends_on"] == [{"task_key": "wanted", "outcome": "true"}]
    assert {"name": "erase", "default": "false"} in BUNDLE.jobs["erase"]["parameters"]


@pytest.mark.parametrize(("job", "parameter"), [("backfill", "promote"), ("erase", "erase")])
@pytest.mark.parametrize("word", ["true", "false", "True", "yes", "TRUE ", ""])
def test_a_word_that_is_neither_true_nor_false_fails_the_run(
    job: str, parameter: str, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    last = BUNDLE.tasks_run(job, **{parameter: word})[-1]

    assert last == {"true": parameter, "false": "declined"}.get(word, "neither_true_nor_false")
    if last == "neither_true_nor_false":
        task = next(one for one in BUNDLE.tasks() if (one.job, one.key) == (job, last))
        (arguments,) = BUNDLE.calls(task, **{parameter: word})
        assert run_command(app, command_of("tidelake", arguments)) == 2
        assert f"{parameter} must be true or false, not {word}'" in capsys.readouterr().err


def test_a_repair_rebuilds_only_when_it_may() -> None:
    tasks = {task.key: task for task in BUNDLE.tasks() if task.job == "repair"}
    asked = {key: "--yes" in next(iter(BUNDLE.calls(tasks[key]))) for key in ("repair", "rebuild")}

    assert asked == {"repair": False, "rebuild": True}
    assert {key: tasks[key].body["depends_on"] for key in ("repair", "rebuild")} == {
        "repair": [{"task_key": "wanted", "outcome": "false"}],
        "rebuild": [{"task_key": "wanted", "outcome": "true"}],
    }
    assert {"name": "rebuild", "default": "false"} in BUNDLE.jobs["repair"]["parameters"]


def test_a_pipeline_that_fails_stops_its_own_maintenance_and_no_other() -> None:
    _, each = BUNDLE.jobs["maintenance"]["tasks"]
    verify, maintain = BUNDLE.jobs["upkeep"]["tasks"]

    assert each["for_each_task"]["task"]["run_job_task"]["job_id"] == "id:upkeep"
    assert maintain["depends_on"] == [{"task_key": verify["task_key"]}]


def test_the_dashboard_is_shown_to_those_who_may_read_what_it_shows() -> None:
    prod = BUNDLE.at("prod")
    allowed = {one["group_name"] for one in prod.resources["dashboards"]["tidelake"]["permissions"]}
    of_all = {one.get("group_name") for one in prod.target_settings["permissions"]}
    readers = {
        grant["principal"]
        for grant in prod.resources["schemas"]["ops"]["grants"]
        if "SELECT" in grant["privileges"]
    }

    assert not prod.resources["dashboards"]["tidelake"]["embed_credentials"]
    assert allowed == readers == (of_all - {None})


@pytest.mark.parametrize("target", ["dev", "prod"])
def test_analysts_read_gold_and_dimensions_and_nothing_else(target: str) -> None:
    schemas = BUNDLE.at(target).resources["schemas"]

    readable = {
        body["name"]
        for body in schemas.values()
        for grant in body["grants"]
        if grant["principal"] == "analysts"
    }
    assert readable == {"gold", "dim"}
    assert {body["name"] for body in schemas.values()} == {"bronze", "silver", "gold", "dim", "ops"}


def test_nothing_runs_by_itself_in_a_developers_copy() -> None:
    # Development mode pauses only what says nothing itself.
    jobs = BUNDLE.at("dev").jobs

    found = {
        key: job[way]["pause_status"]
        for key, job in jobs.items()
        for way in ("schedule", "trigger", "continuous")
        if way in job
    }
    started = ("clickstream", "flights", "continuous", "maintenance")
    assert found == dict.fromkeys(started, "PAUSED")


def test_the_page_names_every_variable_parameter_job_and_script() -> None:
    page = (PROJECT / "docs" / "databricks.md").read_text(encoding="utf-8")

    parameters = [one["name"] for job in BUNDLE.jobs.values() for one in job.get("parameters", [])]
    scripts = {f"-{name.split('-')[1]}`" for name in read_package()["scripts"] if "-" in name}
    names = {f"`{name}`" for name in (*BUNDLE.raw["variables"], *parameters, *BUNDLE.jobs)}
    assert not [name for name in sorted(names | scripts) if name not in page]


@pytest.mark.parametrize("name", ["databricks.md", "databricks-tables.md"])
def test_a_page_shows_only_jobs_and_parameters_that_there_are(name: str) -> None:
    page = (PROJECT / "docs" / name).read_text(encoding="utf-8")

    assert runs_in(page)
    assert [problem for run in runs_in(page) for problem in problems_of(run, BUNDLE)] == []
    assert not re.findall(r"url: /Volumes/(?!.*\$\{resources\.volumes\.).*", page)
    # A catalog is read and written within Databricks: what has no job cannot be typed.
    assert not [line for line in typed_in(page) if re.search("--env (dev|prod)", line)]


def test_a_page_recovers_production() -> None:
    page = (PROJECT / "docs" / "databricks.md").read_text(encoding="utf-8")
    skeleton = PROJECT / "lib/tidelake/cli/skeleton/files/README.md"

    assert runs_in_dev(page) == []
    assert runs_in_dev(skeleton.read_text(encoding="utf-8")) == []
    # Without the target, or without the principal that it needs.
    assert runs_in_dev(page.replace(" -t prod", ""))
    assert runs_in_dev(page.replace("BUNDLE_VAR_", ""))


def test_the_packages_beside_the_wheel_are_those_of_its_extras() -> None:
    page = (PROJECT / "docs" / "databricks.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```yaml\n(variables:\n  wheel:\n.*?)```", page, re.DOTALL)
    raw = copy.deepcopy(dict(BUNDLE.raw))
    raw["variables"]["wheel"] |= yaml.safe_load(block)["variables"]["wheel"]
    listed = Bundle(raw).jobs["erase"]["environments"][0]["spec"]["dependencies"]

    assert list(rules.fits_the_config(Bundle(raw))) == []
    names = [one.split(">=")[0].split("[")[0] for one in listed[1:]]
    assert names == ["confluent-kafka", "avro", "openlineage-python"]
    # A comment of a new project names the same.
    skeleton = PROJECT / "lib/tidelake/cli/skeleton/files/databricks.yml"
    comment = skeleton.read_text(encoding="utf-8").split("bring no extras of a wheel")[1]
    named = re.findall(r'"([^"]+>=[^"]+)"', comment.split("default:")[0])
    assert sorted(named) == sorted(listed[1:])


def test_the_cli_drops_an_empty_budget_policy() -> None:
    skeleton = PROJECT / "lib/tidelake/cli/skeleton/files/databricks.yml"
    own = yaml.safe_load(skeleton.read_text(encoding="utf-8"))["bundle"]
    page = (PROJECT / "docs" / "databricks.md").read_text(encoding="utf-8")

    # Earlier ones send it as it is, which the Jobs API refuses.
    assert BUNDLE.raw["variables"]["budget_policy_id"]["default"] == ""
    for needed in (BUNDLE.raw["bundle"], own):
        assert needed["databricks_cli_version"] == ">= 1.10.0"
    assert "the Databricks CLI, 1.10 or newer" in page


@pytest.mark.parametrize(
    ("run", "problem"),
    [("mend", "no job mend"), ("repair --params pipelin=x", "repair takes no pipelin")],
)
def test_a_run_that_there_is_not_is_found(run: str, problem: str) -> None:
    assert list(problems_of(run, BUNDLE)) == [problem]
