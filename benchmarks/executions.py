"""Where a batch's time goes: the SQL executions of a session, and the Spark jobs under them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

# An operator's name, and the first word of what it takes where that tells more.
_OPERATOR = re.compile(
    r"^[\s:+\-|]*\*?(\(\d+\) )?"
    r"(?P<name>Scan ExistingRDD[^#\[]*|(Execute |FileScan )?\w+)"
    r"(.*?\b(?P<join>Inner|(Left|Right|Full)Outer|Left(Semi|Anti)|ExistenceJoin)\b)?"
)
_PLACE = re.compile(
    r"\[?file:/+[^\s,\]]*?(?P<place>[^/\s,\]]+/[^/\s,\[\]]+?)(/_delta_log)?(?=[\s,\[\]]|$)"
)
_BETWEEN = "\x1f"
_DULL = {"AdaptiveSparkPlan", "ColumnarToRow", "InputAdapter", "WholeStageCodegen", "Project"}


@dataclass(frozen=True)
class Execution:
    """A SQL execution.

    Attributes:
        number: Spark's, in the order in which they began.
        label: What it does: what Delta says of it, else its operators and the tables it reads.
        began: Milliseconds since the epoch.
        ended: Likewise.
        jobs: The Spark jobs that it started.
        stages: Those that ran, not those that were skipped.
        tasks: Likewise.
    """

    number: int
    label: str
    began: int
    ended: int
    jobs: int
    stages: int
    tasks: int


def newest(spark: SparkSession) -> tuple[int, int]:
    """Give the number of the newest execution and of the newest job; -1 for none."""
    return (
        max((one.executionId() for one in _listed(_sql(spark).executionsList())), default=-1),
        max((one.jobId() for one in _listed(_core(spark).jobsList(None))), default=-1),
    )


def since(spark: SparkSession, mark: tuple[int, int]) -> list[Execution]:
    """Give what was executed since a mark of :func:`newest`; the session keeps the last 400."""
    jobs = {
        one.jobId(): one for one in _listed(_core(spark).jobsList(None)) if one.jobId() > mark[1]
    }
    found = []
    taken: set[int] = set()
    for one in _listed(_sql(spark).executionsList()):
        if one.executionId() <= mark[0] or not one.completionTime().isDefined():
            continue
        numbers = [int(text) for text in one.jobs().keys().mkString(",").split(",") if text]
        mine = [jobs[number] for number in numbers if number in jobs]
        taken.update(numbers)
        found.append(
            Execution(
                number=one.executionId(),
                label=_label(one.description(), one.physicalPlanDescription()),
                began=one.submissionTime(),
                ended=one.completionTime().get().getTime(),
                jobs=len(mine),
                stages=sum(job.numCompletedStages() for job in mine),
                tasks=sum(job.numCompletedTasks() for job in mine),
            )
        )
    for number in jobs.keys() - taken:
        job = jobs[number]
        began = job.submissionTime().get().getTime() if job.submissionTime().isDefined() else 0
        ended = job.completionTime().get().getTime() if job.completionTime().isDefined() else began
        label = f"a job of no execution: {job.name() or 'empty'}"
        found.append(
            Execution(-1, label, began, ended, 1, job.numCompletedStages(), job.numCompletedTasks())
        )
    return found


def metrics(spark: SparkSession, mark: tuple[int, int], kind: str) -> list[dict[str, int]]:
    """Give what Spark counted in the executions since a mark whose plan begins with a word."""
    store, found = _sql(spark), []
    for one in _listed(store.executionsList()):
        if one.executionId() <= mark[0] or kind not in one.physicalPlanDescription()[:200]:
            continue
        # Texts; those of times and of several tasks are no plain numbers.
        told = store.executionMetrics(one.executionId()).mkString(_BETWEEN).split(_BETWEEN)
        values = dict(pair.split(" -> ", 1) for pair in told if pair)
        counted = {
            metric.name(): values.get(str(metric.accumulatorId()), "").replace(",", "")
            for metric in _listed(one.metrics())
        }
        found.append({name: int(text) for name, text in counted.items() if text.isdigit()})
    return found


def counts(executions: Iterable[Execution], batches: int) -> dict[str, float]:
    """Count what a batch costs in the mean."""
    all_ = list(executions)
    return {
        "executions": round(sum(one.number >= 0 for one in all_) / batches, 1),
        "jobs": round(sum(one.jobs for one in all_) / batches, 1),
        "stages": round(sum(one.stages for one in all_) / batches, 1),
        "tasks": round(sum(one.tasks for one in all_) / batches, 1),
    }


def by_label(executions: Sequence[Execution], batches: int, most: int = 20) -> list[dict[str, Any]]:
    """Sum up by what an execution does, the longest first, in the mean of a batch.

    Milliseconds are its own: without those of executions that ran within it.
    """
    summed: dict[str, list[float]] = {}
    for one in executions:
        row = summed.setdefault(one.label, [0.0, 0.0, 0.0])
        row[0] += _own(one, executions)
        row[1] += 1
        row[2] += one.jobs
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


def _own(one: Execution, executions: Sequence[Execution]) -> int:
    """Give an execution's milliseconds without those that began and ended within it."""
    inner = sorted(
        (other.began, other.ended)
        for other in executions
        if other.number > one.number >= 0 and one.began <= other.began and other.ended <= one.ended
    )
    covered, reached = 0, one.began
    for began, ended in inner:
        covered += max(0, ended - max(began, reached))
        reached = max(reached, ended)
    return one.ended - one.began - covered


def _label(description: str, plan: str) -> str:
    told = (
        description.rpartition("batch = ")[2].partition(" - ")[2]
        if "batch = " in description
        else ""
    )
    tree = plan.removeprefix("== Physical Plan ==").lstrip("\n").partition("\n\n")[0]
    names: list[str] = []
    for line in tree.splitlines():
        match = _OPERATOR.match(line)
        name = " ".join(filter(None, [match["name"].strip(), match["join"]])) if match else ""
        if name and name not in _DULL and (not names or names[-1] != name):
            names.append(name)
    shown = names if len(names) <= 5 else [*names[:2], "…", *names[-2:]]
    places = sorted({match["place"] for match in _PLACE.finditer(plan)})
    read = f" [{', '.join(places[:3])}]" if places else ""
    return ": ".join(filter(None, [told[:60], " < ".join(shown)])) + read


def _sql(spark: SparkSession) -> Any:
    return spark._jsparkSession.sharedState().statusStore()


def _core(spark: SparkSession) -> Any:
    return spark.sparkContext._jsc.sc().statusStore()


def _listed(found: Any) -> list[Any]:
    return [found.apply(number) for number in range(found.size())]
