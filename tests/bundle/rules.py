"""Rules that a deployment would break late, or never say: each yields what breaks it.

The CLI's schema knows keys and types, and nothing of what they mean together.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import click

from tests.bundle.calls import command_of, parse
from tests.bundle.project import DYNAMIC, REFERENCE, Bundle, read_package, strings_in
from tidelake.config import load_environment, load_pipeline
from tidelake.config.locations import pipeline_names

Rule = Callable[[Bundle], Iterator[str]]

_RETRIES = ("max_retries", "min_retry_interval_millis", "retry_on_timeout")
# Levels at which a job, its files or a dashboard can be changed.
_CHANGING = ("CAN_MANAGE", "CAN_EDIT", "IS_OWNER")
# Scripts that read a source.
_READERS = ("tidelake-run", "tidelake-ingest", "tidelake-stream")
_CHECKS = ("tidelake-gate", "tidelake-verify", "tidelake-alerts", "tidelake-doctor")
_OF_A_PLACE = {
    "an address": re.compile(r"https?://|\.cloud\.databricks\.com|\.azuredatabricks\.net"),
    "an id": re.compile(
        r"\b[0-9a-f]{16}\b|\b\d{4}-\d{6}-|\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-|\b\d{12,}\b"
    ),
    "a mail address": re.compile(r"[\w.]+@[\w.]+\.\w+"),
}


def entry_points_exist(bundle: Bundle) -> Iterator[str]:
    """Each task names this package and one of its scripts."""
    package = read_package()
    for task in bundle.tasks():
        wheel = task.body["python_wheel_task"]
        if wheel["package_name"] != package["name"]:
            yield f"{task.job}.{task.key}: package {wheel['package_name']}"
        if wheel["entry_point"] not in package["scripts"]:
            yield f"{task.job}.{task.key}: no script {wheel['entry_point']}"


def arguments_parse(bundle: Bundle) -> Iterator[str]:
    """Each task's arguments are what its command takes, of a pipeline and environment there are."""
    for task in bundle.tasks():
        script = task.body["python_wheel_task"]["entry_point"]
        for arguments in bundle.calls(task):
            try:
                found = parse(command_of(script, arguments))
            except click.UsageError as error:
                yield f"{task.job}.{task.key}: {error.message}"
                continue
            # run takes several, doctor none.
            named = found.get("pipelines") or [found[key] for key in ("pipeline",) if key in found]
            for called in {*named} - {*pipeline_names()}:
                yield f"{task.job}.{task.key}: no pipeline {called}"
            if found["env"] != bundle.target:
                yield f"{task.job}.{task.key}: environment {found['env']}"


def serverless_ends(bundle: Bundle) -> Iterator[str]:
    """A task without a cluster runs no stream that goes on for ever."""
    usual = load_environment(bundle.target).triggers.model_dump()
    for task in bundle.tasks():
        script = task.body["python_wheel_task"]["entry_point"]
        for arguments in bundle.calls(task) if task.is_serverless else ():
            told = parse(command_of(script, arguments))
            trigger = told.get("trigger") or usual.get(told.get("hop"), "available-now")
            if trigger != "available-now":
                yield f"{task.job}.{task.key}: trigger {trigger} on serverless compute"


def keys_exist(bundle: Bundle) -> Iterator[str]:
    """Tasks name tasks before them, environments and clusters of their job."""
    for key, job in bundle.jobs.items():
        environments = {one["environment_key"] for one in job.get("environments", [])}
        clusters = {one["job_cluster_key"] for one in job.get("job_clusters", [])}
        earlier: set[str] = set()
        for task in job["tasks"]:
            for other in task.get("depends_on", []):
                if other["task_key"] not in earlier:
                    yield f"{key}.{task['task_key']}: no task {other['task_key']} before it"
            earlier.add(task["task_key"])
        for task in (one.body for one in bundle.tasks() if one.job == key):
            compute = [task.get("environment_key"), task.get("job_cluster_key")]
            if sum(one is not None for one in compute) != 1:
                yield f"{key}.{task['task_key']}: an environment or a cluster, one of them"
            elif not {one for one in compute if one} <= environments | clusters:
                yield f"{key}.{task['task_key']}: no environment or cluster {compute}"


def parameters_are_used(bundle: Bundle) -> Iterator[str]:
    """Job parameters are declared and read."""
    for key, job in bundle.jobs.items():
        declared = {one["name"] for one in job.get("parameters", [])}
        read = {
            reference.removeprefix("job.parameters.")
            for text in strings_in(job["tasks"])
            for reference in DYNAMIC.findall(text)
            if reference.startswith("job.parameters.")
        }
        yield from (f"{key}: nothing reads {name}" for name in sorted(declared - read))
        yield from (f"{key}: no parameter {name}" for name in sorted(read - declared))


def variables_are_used(bundle: Bundle) -> Iterator[str]:
    """Variables are declared, described and read."""
    declared = bundle.raw["variables"]
    texts = [*strings_in(bundle.raw["resources"]), *strings_in(bundle.raw["targets"])]
    read = {
        reference.split(".")[1]
        for text in texts
        for reference in REFERENCE.findall(text)
        if reference.startswith("var.")
    }
    yield from (f"nothing reads {name}" for name in sorted(set(declared) - read))
    yield from (f"no variable {name}" for name in sorted(read - set(declared)))
    yield from (f"{name} has no description" for name in declared if not _described(declared[name]))
    for target, settings in bundle.raw["targets"].items():
        unknown = sorted(set(settings.get("variables", {})) - set(declared))
        yield from (f"{target} sets {name}, which there is not" for name in unknown)


def continuous_jobs_are_alone(bundle: Bundle) -> Iterator[str]:
    """A continuous job has one task on a cluster, no schedule, no queue, no retries of a task."""
    for key, job in bundle.jobs.items():
        if "continuous" not in job:
            continue
        for other in ("schedule", "trigger", "queue"):
            if other in job:
                yield f"{key}: continuous and {other}"
        for task in job["tasks"]:
            for setting in (*_RETRIES, "depends_on", "environment_key"):
                if setting in task:
                    yield f"{key}.{task['task_key']}: continuous and {setting}"


def one_writer_a_hop(bundle: Bundle) -> Iterator[str]:
    """No job may run beside itself; no pipeline is scheduled and continuous."""
    for key, job in bundle.jobs.items():
        if job.get("max_concurrent_runs") != 1:
            yield f"{key}: more than one run at once"
        if "continuous" not in job and not job.get("queue", {}).get("enabled"):
            yield f"{key}: a run that comes too early is skipped, not queued"
    for name in sorted(_started(bundle, "schedule", "trigger") & _started(bundle, "continuous")):
        yield f"{name} is both scheduled and continuous"


def _started(bundle: Bundle, *ways: str) -> set[str]:
    """Give the pipelines whose jobs start by themselves in one of some ways."""
    return {
        arguments[0]
        for task in bundle.tasks()
        if any(way in bundle.jobs[task.job] for way in ways)
        for arguments in bundle.calls(task)
    }


def production_runs_no_demo(bundle: Bundle) -> Iterator[str]:
    """Nothing of the demo starts by itself in production."""
    prod = bundle.at("prod")
    for name in sorted(_started(prod, "schedule", "trigger", "continuous")):
        yield f"prod: {name} starts by itself"
    if json.loads(prod.variables["maintained_pipelines"]):
        yield "prod: maintenance names pipelines"


def dimensions_run_first(bundle: Bundle) -> Iterator[str]:
    """A run of one pipeline leaves its dimensions out: a task before it runs them, of the same."""
    calls = {(task.job, task.key): (task, list(bundle.calls(task))) for task in bundle.tasks()}
    for (job, key), (task, arguments) in calls.items():
        if task.body["python_wheel_task"]["entry_point"] not in ("tidelake-run", "tidelake-ingest"):
            continue
        before = (calls.get((job, one["task_key"])) for one in task.body.get("depends_on", []))
        if not any(
            one[0].body["python_wheel_task"]["entry_point"] == "tidelake-dimensions"
            and one[1] == arguments
            for one in before
            if one
        ):
            yield f"{job}.{key}: its dimensions do not run before it"


def pipelines_fail_alone(bundle: Bundle) -> Iterator[str]:
    """No task waits for all runs of a loop: it would not run once one of them failed."""
    for key, job in bundle.jobs.items():
        loops = {task["task_key"] for task in job["tasks"] if "for_each_task" in task}
        for task in job["tasks"]:
            for other in task.get("depends_on", []):
                if other["task_key"] in loops:
                    yield f"{key}.{task['task_key']}: waits for every run of {other['task_key']}"


def calls_of_jobs_fit(bundle: Bundle) -> Iterator[str]:
    """A task that starts a job names one there is, and gives it parameters that it declares."""
    for key, job in bundle.jobs.items():
        for task in job["tasks"]:
            called = task.get("for_each_task", {}).get("task", task).get("run_job_task")
            if called is None:
                continue
            name = called["job_id"].removeprefix("id:")
            if name not in bundle.jobs:
                yield f"{key}.{task['task_key']}: no job {name}"
                continue
            declared = {one["name"] for one in bundle.jobs[name].get("parameters", [])}
            for unknown in sorted(called.get("job_parameters", {}).keys() - declared):
                yield f"{key}.{task['task_key']}: {name} takes no {unknown}"


def triggers_wait_for_their_volume(bundle: Bundle) -> Iterator[str]:
    """A path that a trigger watches refers to its volume, which a first deploy then makes first."""
    for key, job in bundle.raw_jobs():
        url = job.get("trigger", {}).get("file_arrival", {}).get("url")
        if url and "${resources.volumes." not in url:
            yield f"{key}: {url} refers to no volume"


def jobs_end(bundle: Bundle) -> Iterator[str]:
    """A job that hangs is ended, and its compute has a budget policy and tags."""
    if not bundle.target_settings.get("presets", {}).get("tags"):
        yield f"{bundle.target}: no tags"
    for key, job in bundle.jobs.items():
        if "continuous" not in job and not job.get("timeout_seconds"):
            yield f"{key}: no timeout_seconds"
        serverless = any(task.is_serverless for task in bundle.tasks() if task.job == key)
        if serverless and "budget_policy_id" not in job:
            yield f"{key}: no budget policy"


def only_jobs_write_the_books(bundle: Bundle) -> Iterator[str]:
    """No group may write the ledger's tables or the checkpoints, itself or through a job.

    Input has a volume of its own.
    """
    resources = bundle.resources
    for kind, name, least in (("schemas", "ops", "SELECT"), ("volumes", "files", "READ_VOLUME")):
        for grant in resources[kind][name]["grants"]:
            more = sorted(set(grant["privileges"]) - {"USE_SCHEMA", least})
            if more:
                yield f"{kind}.{name}: {grant['principal']} may {', '.join(more)}"
    # In a developer's copy the deployer runs the jobs.
    prod = bundle.at("prod")
    of_resources = (
        one.get("permissions", []) for kind in prod.resources.values() for one in kind.values()
    )
    for permission in chain(prod.target_settings.get("permissions", []), *of_resources):
        if "group_name" in permission and permission["level"] in _CHANGING:
            yield f"prod: {permission['group_name']} has {permission['level']}"


def who_sees_jobs_may_read_bronze(bundle: Bundle) -> Iterator[str]:
    """No group sees values in the parameters and output of jobs that it may not read in tables."""
    prod = bundle.at("prod")
    readers = {grant["principal"] for grant in prod.resources["schemas"]["bronze"]["grants"]}
    of_jobs = (job.get("permissions", []) for job in prod.resources["jobs"].values())
    for permission in chain(prod.target_settings.get("permissions", []), *of_jobs):
        group = permission.get("group_name")
        if group is not None and group not in readers:
            yield f"prod: {group} sees jobs, and may not read bronze"


def thresholds_are_variables(bundle: Bundle) -> Iterator[str]:
    """Streams are watched; at which threshold, and who hears of it, is for each place to say."""
    for key, job in bundle.raw_jobs():
        rules = job.get("health", {}).get("rules", [])
        for rule in rules:
            if not REFERENCE.fullmatch(str(rule["value"])):
                yield f"{key}: {rule['metric']} is a number"
        wheels = [task.get("python_wheel_task", {}) for task in job["tasks"]]
        backlog = {rule["metric"] for rule in rules if rule["metric"].startswith("STREAMING_")}
        if not backlog and any(wheel.get("entry_point") in _READERS for wheel in wheels):
            yield f"{key}: nobody hears of its backlog"
        for kind in ("email_notifications", "webhook_notifications"):
            told = job.get(kind, {})
            if "on_failure" not in told:
                yield f"{key}: {kind} are silent on a failure"
            if backlog and "on_streaming_backlog_exceeded" not in told:
                yield f"{key}: {kind} are silent on a backlog"
            if not all(REFERENCE.fullmatch(str(whom)) for whom in told.values()):
                yield f"{key}: {kind} name somebody"


def checks_are_not_repeated(bundle: Bundle) -> Iterator[str]:
    """What judges tables is not asked again until it says yes."""
    for task in bundle.tasks():
        if task.body["python_wheel_task"]["entry_point"] in _CHECKS:
            again = task.body.get("max_retries"), task.body.get("disable_auto_optimization")
            if again != (0, True):
                yield f"{task.job}.{task.key}: retried"


def production_is_guarded(bundle: Bundle) -> Iterator[str]:
    """Production runs as a service principal, says who may what, and keeps its data."""
    settings = bundle.at("prod").target_settings
    if settings.get("mode") != "production" or "root_path" not in settings.get("workspace", {}):
        yield "prod: no production mode, or no root_path"
    if not settings.get("run_as", {}).get("service_principal_name"):
        yield "prod: no service principal in run_as"
    if not settings.get("permissions"):
        yield "prod: no permissions"
    resources = bundle.at("prod").resources
    for kind in ("schemas", "volumes"):
        for name, body in resources[kind].items():
            if not body.get("lifecycle", {}).get("prevent_destroy"):
                yield f"prod: {kind}.{name} may be destroyed"


def deploys_replace_the_code(bundle: Bundle) -> Iterator[str]:
    """A deploy of a wheel is what runs next, and takes none away from a job that is running."""
    if not bundle.raw.get("experimental", {}).get("skip_artifact_cleanup"):
        yield "a deploy deletes the wheels of running jobs"
    # A wheel that is not built by the bundle is one of a release, whose version tells it.
    presets = bundle.target_settings.get("presets", {})
    if "artifacts" in bundle.raw and not presets.get("artifacts_dynamic_version"):
        yield f"{bundle.target}: a deploy of the same version may run the code of the last one"


def names_no_place(bundle: Bundle) -> Iterator[str]:
    """No workspace, id or person is committed."""
    for text in strings_in(dict(bundle.raw)):
        if text == "host":
            yield "a workspace is named: host"
        yield from (f"{what}: {text}" for what, form in _OF_A_PLACE.items() if form.search(text))


def fits_the_config(bundle: Bundle) -> Iterator[str]:
    """Catalog, volume, pipelines and pinned packages are those of conf/ and pyproject.toml."""
    environment = load_environment(bundle.target)
    if environment.catalog != bundle.variables["catalog"]:
        yield f"catalog {bundle.variables['catalog']}, but conf says {environment.catalog}"
    files = bundle.resources["volumes"]["files"]
    volume = "/".join(["/Volumes", *(files[f"{part}_name"] for part in ("catalog", "schema"))])
    if str(environment.volume) != f"{volume}/{files['name']}":
        yield f"volume {volume}/{files['name']}, but conf says {environment.volume}"
    variables = bundle.variables
    # The jobs of a new project go through one list.
    listed = json.loads(variables.get("pipelines", "[]"))
    maintained = set(json.loads(variables.get("maintained_pipelines", "[]"))) | set(listed)
    # A root, so that paths of sources resolve without a workspace.
    local = load_environment("local")
    for name in sorted(_started(bundle, "schedule", "trigger", "continuous") | set(listed)):
        for needed in sorted({name, *load_pipeline(name, local).dimensions} - maintained):
            yield f"{needed} is run and never maintained"
    pinned = {pin for pins in read_package()["optional-dependencies"].values() for pin in pins}
    for key, job in bundle.jobs.items():
        for one in job.get("environments", []):
            for dependency in one["spec"]["dependencies"]:
                if not dependency.endswith(".whl") and dependency not in pinned:
                    yield f"{key}: {dependency} is not what pyproject.toml says"


def _described(variable: dict[str, Any]) -> bool:
    return bool(variable.get("description"))


RULES: tuple[Rule, ...] = (
    entry_points_exist,
    arguments_parse,
    serverless_ends,
    keys_exist,
    parameters_are_used,
    variables_are_used,
    continuous_jobs_are_alone,
    one_writer_a_hop,
    thresholds_are_variables,
    checks_are_not_repeated,
    production_is_guarded,
    production_runs_no_demo,
    dimensions_run_first,
    pipelines_fail_alone,
    calls_of_jobs_fit,
    triggers_wait_for_their_volume,
    jobs_end,
    deploys_replace_the_code,
    only_jobs_write_the_books,
    who_sees_jobs_may_read_bronze,
    names_no_place,
    fits_the_config,
)
