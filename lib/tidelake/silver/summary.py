"""Count a batch of silver: fates, fingerprints, warnings, watermark, unknown fields."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from tidelake.config import Pipeline
from tidelake.fingerprints import Fingerprint, fingerprint
from tidelake.instants import from_micros
from tidelake.silver.classify import ORIGIN, STAGE, WARNINGS, rule_texts
from tidelake.silver.enrich import looked_up
from tidelake.silver.payloads import UNKNOWN
from tidelake.silver.route import FATE, LATE, SILVER
from tidelake.silver.watermark import PartitionProgress, partition_of

_NAME = r"^[A-Za-z][A-Za-z0-9_]{0,62}$"
_ACCEPTED = (SILVER, LATE)
Group = Row | Mapping[str, Any]
# Origin, fate, stage.
Key = tuple[str, str, str | None]


@dataclass(frozen=True)
class Summary:
    """What was counted of a batch.

    Attributes:
        groups: Rows by origin, fate, stage and partition of the source.
        marks: The fingerprints of their record ids, by origin, fate and stage.
    """

    groups: Sequence[Group]
    marks: Mapping[Key, Fingerprint]

    def rows(self) -> dict[Key, int]:
        """Add up over the partitions."""
        total: dict[Key, int] = defaultdict(int)
        for group in self.groups:
            total[_key(group)] += group["rows"]
        return dict(total)

    def of_accepted(self, name: str) -> int:
        """Add up a count over the rows that go into silver."""
        accepted = [group for group in self.groups if group[FATE] == SILVER]
        return sum(group[name] for group in accepted if name in group)

    def warnings(self, pipeline: Pipeline) -> dict[str, int]:
        """Count silver's new rows by the warning that they fail."""
        found = {text: self.of_accepted(f"_w{n}") for n, text in enumerate(rule_texts(pipeline))}
        return {text: rows for text, rows in found.items() if rows}

    def unmatched(self, pipeline: Pipeline) -> tuple[int, ...]:
        """Count silver's new rows that found nothing in a dimension, by ``enrich``."""
        return tuple(self.of_accepted(f"_d{n}") for n in range(len(pipeline.enrich)))

    def has_unknown(self) -> bool:
        """Tell whether an accepted row has a payload field that the schema does not hold."""
        accepted = [group for group in self.groups if group[FATE] in _ACCEPTED]
        return any(group["unknown"] for group in accepted if "unknown" in group)

    def beside(self, others: Sequence[Mapping[str, Any]]) -> Summary:
        """Add groups of rows that were not in the batch's frame."""
        marks = _marks(others)
        for key, mark in self.marks.items():
            marks[key] = marks[key].plus(mark)
        return Summary([*self.groups, *others], marks)

    def partitions(self, before: Mapping[str, PartitionProgress]) -> dict[str, PartitionProgress]:
        """Bring the source's partitions up to date with the batch's fresh rows."""
        fresh = [group for group in self.groups if group[ORIGIN] == "bronze"]
        now = dict(before)
        for name in {group["partition"] for group in fresh}:
            mine = [group for group in fresh if group["partition"] == name]
            earlier = before.get(name)
            arrivals = [from_micros(group["last"]) for group in mine]
            times = [from_micros(group["newest"]) for group in mine]
            if earlier is not None:
                arrivals.append(earlier.last_ingested_at)
                times.append(earlier.max_event_time)
            arrived = _latest(arrivals)
            if arrived is not None:
                now[name] = PartitionProgress(_latest(times), arrived)
        return now


class Counting:
    """The columns by which a definition's rows are counted, built once.

    Attributes:
        keys: What rows are grouped by.
        counts: What is counted of a group.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        """Build them."""
        self.keys, self.counts = _columns(pipeline)


def summarize(decided: DataFrame, counting: Counting) -> Summary:
    """Count rows by fate.

    Args:
        decided: From :func:`tidelake.silver.route.decide`, enriched.
        counting: The definition's columns.
    """
    found = decided.groupBy(*counting.keys).agg(*counting.counts).collect()
    return Summary(found, _marks(found))


def _columns(pipeline: Pipeline) -> tuple[list[Column], list[Column]]:
    """Give what rows are grouped by, and what is counted of a group."""
    kept = F.when(F.col(FATE) == SILVER, F.unix_micros("event_time"))
    warned = [
        F.count_if(F.array_contains(WARNINGS, text)).alias(f"_w{n}")
        for n, text in enumerate(rule_texts(pipeline))
    ]
    missed = [
        F.count_if(F.col(looked_up(n)).isNull()).alias(f"_d{n}")
        for n in range(len(pipeline.enrich))
    ]
    additive = pipeline.event.evolution == "additive"
    unknown = F.count(UNKNOWN) if additive else F.count_if(F.lit(False))
    partition = partition_of(pipeline.source).alias("partition")
    return [F.col(ORIGIN), F.col(FATE), F.col(STAGE), partition], [
        F.count("*").alias("rows"),
        F.max(F.unix_micros("ingested_at")).alias("last"),
        F.max(kept).alias("newest"),
        *warned,
        *missed,
        unknown.alias("unknown"),
        fingerprint().alias("fingerprint"),
    ]


def unknown_fields(decided: DataFrame) -> frozenset[str]:
    """Collect the unknown fields of accepted rows that hold a value and could be columns.

    Apart from the counts: few batches have any, and an aggregate that holds names is not compiled.
    """
    filled = F.map_filter(UNKNOWN, lambda name, value: name.rlike(_NAME) & value.isNotNull())
    names = F.explode(F.map_keys(filled)).alias("name")
    found = decided.where(F.col(FATE).isin(*_ACCEPTED)).select(names).distinct().collect()
    return frozenset(row["name"] for row in found)


def _key(group: Group) -> Key:
    return group[ORIGIN], group[FATE], group[STAGE]


def _marks(groups: Iterable[Group]) -> defaultdict[Key, Fingerprint]:
    marks: defaultdict[Key, Fingerprint] = defaultdict(Fingerprint)
    for group in groups:
        marks[_key(group)] = marks[_key(group)].plus(Fingerprint.of(*group["fingerprint"]))
    return marks


def _latest(instants: Sequence[datetime | None]) -> datetime | None:
    return max((instant for instant in instants if instant is not None), default=None)
