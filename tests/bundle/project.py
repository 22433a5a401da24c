"""Read the Databricks bundle as the CLI would see it in one of its targets."""

from __future__ import annotations

import copy
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

PROJECT = Path(__file__).parents[2]
REFERENCE = re.compile(r"\$\{([^}]+)\}")
DYNAMIC = re.compile(r"\{\{([^}]+)\}\}")
# What has no default, since no command guesses it, and a person gives.
REQUIRED = {"pipeline": "clickstream", "hop": "silver", "subject": "user_id=u1"}
# What Databricks puts in when a run starts.
SAMPLES = {"job.start_time.iso_date": "2026-01-05"}
# Given at deploy, by a person.
GIVEN = {"service_principal": "the-application-id"}


@dataclass(frozen=True)
class Task:
    """A task that runs the wheel.

    Attributes:
        job: Its job's key.
        key: Its own.
        body: What it says.
        inputs: Over which it is repeated; None where it is not.
    """

    job: str
    key: str
    body: Mapping[str, Any]
    inputs: str | None = None

    @property
    def is_serverless(self) -> bool:
        """Whether it runs on serverless compute."""
        return "environment_key" in self.body


@dataclass(frozen=True)
class Bundle:
    """The bundle.

    Attributes:
        raw: As written, the included files merged in.
        target: Which target it was resolved for.
    """

    raw: Mapping[str, Any]
    target: str = "dev"

    def at(self, target: str) -> Bundle:
        """Give the bundle of another target."""
        return replace(self, target=target)

    @property
    def variables(self) -> dict[str, Any]:
        """Values by name; what is found in the workspace stays a placeholder."""
        own = self.raw["targets"][self.target].get("variables", {})
        values = {}
        for name, declared in self.raw["variables"].items():
            if name in own or "default" in declared:
                values[name] = own.get(name, declared.get("default"))
            elif "lookup" in declared or name in GIVEN:
                values[name] = GIVEN.get(name, f"found:{name}")
        return values

    @property
    def resources(self) -> dict[str, Any]:
        """The target's resources, references replaced."""
        own = self.raw["targets"][self.target].get("resources", {})
        merged: dict[str, Any] = self._resolved(_merged(self.raw["resources"], own))
        return merged

    @property
    def target_settings(self) -> dict[str, Any]:
        """What the target says of itself, references replaced."""
        found: dict[str, Any] = self._resolved(self.raw["targets"][self.target])
        return found

    @property
    def jobs(self) -> dict[str, Any]:
        """The jobs by key."""
        found: dict[str, Any] = self.resources["jobs"]
        return found

    def raw_jobs(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Give key and body of each job as written; a job may be in several targets."""
        for place in (self.raw, *self.raw["targets"].values()):
            yield from place.get("resources", {}).get("jobs", {}).items()

    def tasks_run(self, job: str, **given: str) -> list[str]:
        """List the tasks that a run with these parameters comes to, conditions included."""
        body = self.jobs[job]
        values = {one["name"]: one["default"] for one in body["parameters"]} | given
        known = {f"job.parameters.{name}": value for name, value in values.items()}
        outcomes: dict[str, str | None] = {}
        for task in body["tasks"]:
            if all(
                one["task_key"] in outcomes and outcomes[one["task_key"]] == one.get("outcome")
                for one in task.get("depends_on", [])
            ):
                asked = task.get("condition_task")
                if asked is None:
                    outcomes[task["task_key"]] = None
                    continue
                left, right = (_filled(asked[side], known) for side in ("left", "right"))
                is_met = (left == right) is (asked["op"] == "EQUAL_TO")
                outcomes[task["task_key"]] = str(is_met).lower()
        return list(outcomes)

    def tasks(self) -> Iterator[Task]:
        """Give every task that runs the wheel."""
        for job, body in self.jobs.items():
            for task in body["tasks"]:
                loop = task.get("for_each_task")
                inner = loop["task"] if loop else task
                if "python_wheel_task" in inner:
                    yield Task(job, inner["task_key"], inner, loop and loop["inputs"])

    def calls(self, task: Task, **given: str) -> Iterator[list[str]]:
        """Give the arguments of a task's calls: one, or one an input.

        Args:
            task: Which.
            given: Job parameters that the one who starts the run gives.
        """
        defaults = {
            one["name"]: one["default"] for one in self.jobs[task.job].get("parameters", [])
        }
        # A new project has a pipeline of another name.
        own = json.loads(self.variables.get("pipelines", "[]"))
        usual = REQUIRED | ({"pipeline": own[0]} if own else {})
        required = {name: usual[name] for name in usual if defaults.get(name) == ""}
        values = SAMPLES | {
            f"job.parameters.{name}": _filled(value, SAMPLES)
            for name, value in (defaults | required | given).items()
        }
        arguments = task.body["python_wheel_task"].get("parameters", [])
        inputs = json.loads(_filled(task.inputs, values)) if task.inputs else [None]
        for one in inputs:
            known = values if one is None else values | {"input": one}
            yield [_filled(argument, known) for argument in arguments]

    def _resolved(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: self._resolved(one) for key, one in value.items()}
        if isinstance(value, list):
            return [self._resolved(one) for one in value]
        if not isinstance(value, str):
            return value
        whole = REFERENCE.fullmatch(value)
        if whole:
            return self._value(whole[1])
        return REFERENCE.sub(lambda match: str(self._value(match[1])), value)

    def _value(self, reference: str) -> Any:
        first, *rest = reference.split(".")
        if first == "var":
            return self._resolved(self.variables[rest[0]])
        if reference == "bundle.target":
            return self.target
        if rest[-1] == "id":
            # Known once it is deployed.
            return f"id:{rest[-2]}"
        place: Any = self.raw
        for step in (first, *rest):
            place = place[step]
        return self._resolved(place)


def read_bundle(root: Path = PROJECT) -> Bundle:
    """Read ``databricks.yml`` and what it includes."""
    raw = yaml.safe_load((root / "databricks.yml").read_text(encoding="utf-8"))
    raw.setdefault("resources", {})
    for pattern in raw["include"]:
        for file in sorted(root.glob(pattern)):
            found = yaml.safe_load(file.read_text(encoding="utf-8"))
            for part in ("resources", "targets"):
                raw[part] = _merged(raw[part], found.get(part, {}))
    return Bundle(raw)


def read_package(root: Path = PROJECT) -> dict[str, Any]:
    """Read what ``pyproject.toml`` says of the wheel."""
    found: dict[str, Any] = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    return found


def strings_in(value: Any) -> Iterator[str]:
    """Give every text in a document, keys included."""
    if isinstance(value, dict):
        for key, one in value.items():
            yield key
            yield from strings_in(one)
    elif isinstance(value, list):
        for one in value:
            yield from strings_in(one)
    elif isinstance(value, str):
        yield value


def _filled(text: str, values: Mapping[str, str]) -> str:
    return DYNAMIC.sub(lambda match: values[match[1]], text)


def _merged(one: Any, other: Any) -> Any:
    if isinstance(one, dict) and isinstance(other, dict):
        keys = {**one, **other}
        return {
            key: _merged(one[key], other[key])
            if key in one and key in other
            else copy.deepcopy(keys[key])
            for key in keys
        }
    return copy.deepcopy(other)
