"""SQL executions of a session and their Spark jobs, to show where a batch spends its time."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from tidelake.config import Environment

# An operator's name, and the join type if it has one.
_OPERATOR = re.compile(
    r"^[\s:+\-|]*\*?(\(\d+\) )?"
    r"(?P<name>Scan ExistingRDD[^#\[]*|(Execute |FileScan )?\w+)"
    r"(.*?\b(?P<join>Inner|(Left|Right|Full)Outer|Left(Semi|Anti)|ExistenceJoin)\b)?"
)
_PLACE = re.compile(
    r"\[?file:/+[^\s,\]]*?(?P<place>[^/\s,\]]+/[^/\s,\[\]]+?)(/_delta_log)?(?=[\s,\[\]]|$)"
)
_SEPARATOR = "\x1f"
_OMITTED = {"AdaptiveSparkPlan", "ColumnarToRow", "InputAdapter", "WholeStageCodegen", "Project"}


@dataclass(frozen=True)
class Execution:
    """A SQL execution.

    Attributes:
        number: Spark's execution id, increasing in order of start.
        label: Delta's description, operators, and the tables it reads.
        began: Start, in milliseconds since the epoch.
        ended: End, in milliseconds since the epoch.
        jobs: Number of Spark jobs that it started.
        stages: Number of completed stages, without skipped ones.
        tasks: Number of completed tasks.
    """

    number: int
    label: str
    began: int
    ended: int
    jobs: int
    stages: int
    tasks: int


def recorded(environment: Environment) -> Environment:
    """Return an environment whose session retains the executions of a benchmark's longest round."""
    names = ("spark.sql.ui.retainedExecutions", "spark.ui.retainedJobs", "spark.ui.retainedStages")
    spark = environment.spark | dict.fromkeys(names, "400")
    return environment.model_copy(update={"spark": spark})


def newest(spark: SparkSession) -> tuple[int, int]:
    """Return the ids of the newest execution and of the newest job; -1 if there is none."""
    return (
        max((one.executionId() for one in _listed(_sql(spark).executionsList())), default=-1),
        max((one.jobId() for one in _listed(_core(spark).jobsList(None))), default=-1),
    )


def since(spark: SparkSession, mark: tuple[int, int]) -> list[Execution]:
    """Return the executions since a mark of :func:`newest`; see :func:`recorded`."""
    jobs = {
        execution.jobId(): execution
        for execution in _listed(_core(spark).jobsList(None))
        if execution.jobId() > mark[1]
    }
    found = []
    taken: set[int] = set()
    for execution in _listed(_sql(spark).executionsList()):
        if execution.executionId() <= mark[0] or not execution.completionTime().isDefined():
            continue
        numbers = [int(text) for text in execution.jobs().keys().mkString(",").split(",") if text]
        own_jobs = [jobs[number] for number in numbers if number in jobs]
        taken.update(numbers)
        found.append(
            Execution(
                number=execution.executionId(),
                label=_label(execution.description(), execution.physicalPlanDescription()),
                began=execution.submissionTime(),
                ended=execution.completionTime().get().getTime(),
                jobs=len(own_jobs),
                stages=sum(job.numCompletedStages() for job in own_jobs),
                tasks=sum(job.numCompletedTasks() for job in own_jobs),
            )
        )
    for number in jobs.keys() - taken:
        job = jobs[number]
        began = job.submissionTime().get().getTime() if job.submissionTime().isDefined() else 0
        ended = job.completionTime().get().getTime() if job.completionTime().isDefined() else began
        label = f"a job without an execution: {job.name() or 'empty'}"
        found.append(
            Execution(-1, label, began, ended, 1, job.numCompletedStages(), job.numCompletedTasks())
        )
    return found


def metrics(spark: SparkSession, mark: tuple[int, int], kind: str) -> list[dict[str, int]]:
    """Return the SQL metrics of executions since a mark whose plan starts with ``kind``."""
    store, found = _sql(spark), []
    for execution in _listed(store.executionsList()):
        if (
            execution.executionId() <= mark[0]
            or kind not in execution.physicalPlanDescription()[:200]
        ):
            continue
        # Values are text; those of times and of several tasks are not plain numbers.
        pairs = (
            store.executionMetrics(execution.executionId()).mkString(_SEPARATOR).split(_SEPARATOR)
        )
        values = dict(pair.split(" -> ", 1) for pair in pairs if pair)
        counted = {
            metric.name(): values.get(str(metric.accumulatorId()), "").replace(",", "")
            for metric in _listed(execution.metrics())
        }
        found.append({name: int(text) for name, text in counted.items() if text.isdigit()})
    return found


def counts(executions: Iterable[Execution], batches: int) -> dict[str, float]:
    """Return mean counts per batch."""
    all_ = list(executions)
    return {
        "executions": round(sum(execution.number >= 0 for execution in all_) / batches, 1),
        "jobs": round(sum(execution.jobs for execution in all_) / batches, 1),
        "stages": round(sum(execution.stages for execution in all_) / batches, 1),
        "tasks": round(sum(execution.tasks for execution in all_) / batches, 1),
    }


def by_label(executions: Sequence[Execution], batches: int, most: int = 20) -> list[dict[str, Any]]:
    """Sum up executions by label, longest first, as means per batch.

    Milliseconds exclude executions nested in another one.
    """
    summed: dict[str, list[float]] = {}
    for execution in executions:
        row = summed.setdefault(execution.label, [0.0, 0.0, 0.0])
        row[0] += _own(execution, executions)
        row[1] += 1
        row[2] += execution.jobs
    longest = sorted(summed.items(), key=lambda item: -item[1][0])[:most]
    return [
        {
            "what": label,
            "ms": round(spent / batches, 1),
            "times": round(times / batches, 2),
            "jobs": round(jobs / batches, 2),
        }
        for label, (spent, times, jobs) in longest
    ]


def _own(execution: Execution, executions: Sequence[Execution]) -> int:
    """Return an execution's milliseconds without those of executions nested in it."""
    inner = sorted(
        (other.began, other.ended)
        for other in executions
        if other.number > execution.number >= 0
        and execution.began <= other.began
        and other.ended <= execution.ended
    )
    covered, reached = 0, execution.began
    for began, ended in inner:
        covered += max(0, ended - max(began, reached))
        reached = max(reached, ended)
    return execution.ended - execution.began - covered


def _label(description: str, plan: str) -> str:
    step = (
        description.rpartition("batch = ")[2].partition(" - ")[2]
        if "batch = " in description
        else ""
    )
    tree = plan.removeprefix("== Physical Plan ==").lstrip("\n").partition("\n\n")[0]
    names: list[str] = []
    for line in tree.splitlines():
        match = _OPERATOR.match(line)
        name = " ".join(filter(None, [match["name"].strip(), match["join"]])) if match else ""
        if name and name not in _OMITTED and (not names or names[-1] != name):
            names.append(name)
    shown = names if len(names) <= 5 else [*names[:2], "…", *names[-2:]]
    paths = sorted({match["place"] for match in _PLACE.finditer(plan)})
    read = f" [{', '.join(paths[:3])}]" if paths else ""
    return ": ".join(filter(None, [step[:60], " < ".join(shown)])) + read


def _sql(spark: SparkSession) -> Any:
    return spark._jsparkSession.sharedState().statusStore()


def _core(spark: SparkSession) -> Any:
    return spark.sparkContext._jsc.sc().statusStore()


def _listed(found: Any) -> list[Any]:
    return [found.apply(number) for number in range(found.size())]
