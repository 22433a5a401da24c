"""Count a decided batch: fates, fingerprints, warnings, watermark, unknown fields."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from tidelake.config import Pipeline
from tidelake.fingerprints import Fingerprint, fingerprint
from tidelake.instants import from_micros
from tidelake.reuse import reused
from tidelake.silver.classify import ORIGIN, STAGE, WARNINGS, rule_texts
from tidelake.silver.enrich import looked_up
from tidelake.silver.payloads import UNKNOWN
from tidelake.silver.route import FATE, LATE, SILVER
from tidelake.silver.watermark import PartitionProgress, partition_of
from tidelake.sinks.notes import FRESH, FateCount

_NAME = r"^[A-Za-z][A-Za-z0-9_]{0,62}$"
_ACCEPTED = (SILVER, LATE)
_Group = Row | Mapping[str, Any]


@dataclass(frozen=True)
class Counted:
    """What one pass over a decided batch found.

    Attributes:
        counts: Rows by fate, stage and origin.
        partitions: How far each source partition has come with the batch.
        warnings: Silver's new rows by the rule that they fail.
        unknown: Payload fields of accepted rows that the schema does not hold and a column could.
        unmatched: Silver's new rows that found nothing in a dimension, by ``enrich``.
    """

    counts: tuple[FateCount, ...]
    partitions: Mapping[str, PartitionProgress]
    warnings: Mapping[str, int]
    unknown: frozenset[str]
    unmatched: tuple[int, ...]


def count(
    decided: DataFrame,
    pipeline: Pipeline,
    before: Mapping[str, PartitionProgress],
    beside: Sequence[Mapping[str, Any]] = (),
) -> Counted:
    """Count a batch.

    Args:
        decided: From :func:`tidelake.silver.route.decide`.
        pipeline: The definition.
        before: The source's partitions before the batch.
        beside: Groups of rows that are not in ``decided``: the prefilter's sure copies.
    """
    texts, enrichments = rule_texts(pipeline), len(pipeline.enrich)
    additive = pipeline.event.evolution == "additive"
    keys, counters = _columns(pipeline)
    groups = decided.groupBy(*keys).agg(*counters).collect()
    accepted = [row for row in groups if row[FATE] == SILVER]
    found = {text: sum(row[f"_w{n}"] for row in accepted) for n, text in enumerate(texts)}
    return Counted(
        counts=_counts([*groups, *beside]),
        partitions={**before, **_progress(before, [*groups, *beside])},
        warnings={text: rows for text, rows in found.items() if rows},
        unknown=_names(decided)
        if additive and any(row["unknown"] for row in groups if row[FATE] in _ACCEPTED)
        else frozenset(),
        unmatched=tuple(sum(row[f"_d{n}"] for row in accepted) for n in range(enrichments)),
    )


@reused
def _columns(pipeline: Pipeline) -> tuple[list[Column], list[Column]]:
    """Give what rows are grouped by, and what is counted of a group."""
    kept = F.when(F.col(FATE) == SILVER, F.unix_micros("event_time"))
    texts = rule_texts(pipeline)
    warned = [
        F.count_if(F.array_contains(WARNINGS, text)).alias(f"_w{n}") for n, text in enumerate(texts)
    ]
    missed = [
        F.count_if(F.col(looked_up(n)).isNull()).alias(f"_d{n}")
        for n in range(len(pipeline.enrich))
    ]
    additive = pipeline.event.evolution == "additive"
    counters = [
        F.count("*").alias("rows"),
        fingerprint().alias("fingerprint"),
        F.max(kept).alias("newest"),
        F.max(F.unix_micros("ingested_at")).alias("arrived"),
        *warned,
        *missed,
        *([F.count(UNKNOWN).alias("unknown")] if additive else []),
    ]
    partition = partition_of(pipeline.source).alias("partition")
    return [F.col(ORIGIN), F.col(FATE), F.col(STAGE), partition], counters


def _names(decided: DataFrame) -> frozenset[str]:
    """Collect the unknown fields of accepted rows that hold a value and could be columns.

    Apart from the count: few batches have any, and an aggregate that holds names is not compiled.
    """
    filled = F.map_filter(UNKNOWN, lambda name, value: name.rlike(_NAME) & value.isNotNull())
    names = F.explode(F.map_keys(filled)).alias("name")
    found = decided.where(F.col(FATE).isin(*_ACCEPTED)).select(names).distinct().collect()
    return frozenset(row["name"] for row in found)


def _counts(groups: Sequence[_Group]) -> tuple[FateCount, ...]:
    """Add up over the partitions."""
    rows: dict[tuple[str, str | None, str], int] = defaultdict(int)
    marks: dict[tuple[str, str | None, str], Fingerprint] = defaultdict(Fingerprint)
    for group in groups:
        key = (group[FATE], group[STAGE], group[ORIGIN])
        rows[key] += group["rows"]
        marks[key] = marks[key].plus(Fingerprint.of(*group["fingerprint"]))
    return tuple(FateCount.of(key, rows[key], marks[key]) for key in sorted(rows, key=repr))


def _progress(
    before: Mapping[str, PartitionProgress], groups: Sequence[_Group]
) -> dict[str, PartitionProgress]:
    """Bring the source's partitions up to date with a batch's fresh rows."""
    fresh = [group for group in groups if group[ORIGIN] == FRESH]
    now = {}
    for name in {group["partition"] for group in fresh}:
        mine = [group for group in fresh if group["partition"] == name]
        earlier = before.get(name)
        arrivals = [from_micros(group["arrived"]) for group in mine]
        times = [from_micros(group["newest"]) for group in mine]
        if earlier is not None:
            arrivals.append(earlier.last_ingested_at)
            times.append(earlier.max_event_time)
        arrived = _latest(arrivals)
        if arrived is not None:
            now[name] = PartitionProgress(_latest(times), arrived)
    return now


def _latest(instants: Sequence[datetime | None]) -> datetime | None:
    return max((instant for instant in instants if instant is not None), default=None)
