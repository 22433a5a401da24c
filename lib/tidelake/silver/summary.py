"""Summarize a silver batch: fates, fingerprints, warnings, partition progress, unknown fields."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidelake.config import Pipeline
from tidelake.fingerprints import Fingerprint, fingerprint, id_number
from tidelake.instants import from_micros
from tidelake.silver.driver_dedup import NUMBER, Numbers, members
from tidelake.silver.enrich import looked_up
from tidelake.silver.fates import FATE, LATE, OF_REPEATS, SILVER
from tidelake.silver.payloads import UNKNOWN
from tidelake.silver.search_bounds import ARRIVED_AT
from tidelake.silver.stages import ORIGIN, STAGE, WARNINGS, rule_texts
from tidelake.silver.watermark import PartitionProgress, partition_of

_NAME = r"^[A-Za-z][A-Za-z0-9_]{0,62}$"
_ACCEPTED = (SILVER, LATE)
_KEYS = (ORIGIN, FATE, STAGE, "partition")
Group = Mapping[str, Any]
# Origin, fate, stage.
Key = tuple[str, str, str | None]


@dataclass(frozen=True)
class Summary:
    """The counts of a batch, by origin, fate, stage and source partition."""

    groups: Sequence[Group]

    def rows(self) -> dict[Key, int]:
        """Return row counts by origin, fate and stage, summed over the partitions."""
        total: dict[Key, int] = defaultdict(int)
        for group in self.groups:
            total[_key(group)] += group["rows"]
        return dict(total)

    @cached_property
    def marks(self) -> Mapping[Key, Fingerprint]:
        """Fingerprints of the record ids, by origin, fate and stage."""
        marks: defaultdict[Key, Fingerprint] = defaultdict(Fingerprint)
        for group in self.groups:
            marks[_key(group)] = marks[_key(group)].plus(Fingerprint.of(*group["fingerprint"]))
        return marks

    def of_accepted(self, name: str) -> int:
        """Sum a count over the rows written to silver."""
        return sum(group.get(name, 0) for group in self.groups if group[FATE] == SILVER)

    def warnings(self, pipeline: Pipeline) -> dict[str, int]:
        """Return the number of new silver rows by the warning rule that they fail."""
        found = {text: self.of_accepted(f"_w{n}") for n, text in enumerate(rule_texts(pipeline))}
        return {text: rows for text, rows in found.items() if rows}

    def unmatched(self, pipeline: Pipeline) -> tuple[int, ...]:
        """Return the number of new silver rows without a dimension match, per ``enrich`` entry."""
        return tuple(self.of_accepted(f"_d{n}") for n in range(len(pipeline.enrich)))

    def has_unknown(self) -> bool:
        """Return whether an accepted row has a payload field that is not in the schema."""
        return any(group.get("unknown") for group in self.groups if group[FATE] in _ACCEPTED)

    def partitions(self, before: Mapping[str, PartitionProgress]) -> dict[str, PartitionProgress]:
        """Return the source partitions' progress after the batch's rows from bronze."""
        now = dict(before)
        for group in self.groups:
            if group[ORIGIN] != "bronze":
                continue
            arrived = from_micros(group["last"])
            reached = from_micros(group["newest"]) if group[FATE] == SILVER else None
            earlier = now.get(group["partition"])
            if earlier is not None:
                arrived = _latest(arrived, earlier.last_ingested_at)
                reached = _latest(reached, earlier.max_event_time)
            if arrived is not None:
                now[group["partition"]] = PartitionProgress(reached, arrived)
        return now


def _latest(*instants: datetime | None) -> datetime | None:
    return max((instant for instant in instants if instant is not None), default=None)


class Counting:
    """The columns that count a pipeline's rows, built once.

    ``flags`` names the conditions whose rows are counted: warnings, missed dimension matches, and
    unknown fields. The driver needs the columns ``row`` to count a row, besides its fate and
    arrival.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        """Build the columns."""
        texts, enrichments = rule_texts(pipeline), range(len(pipeline.enrich))
        flags = {f"_w{n}": F.array_contains(WARNINGS, text) for n, text in enumerate(texts)}
        flags |= {f"_d{n}": F.col(looked_up(n)).isNull() for n in enrichments}
        is_additive = pipeline.event.evolution == "additive"
        flags["unknown"] = F.col(UNKNOWN).isNotNull() if is_additive else F.lit(False)
        self.flags = tuple(flags)
        partition = partition_of(pipeline.source).alias("partition")
        arrived, event = F.unix_micros("ingested_at"), F.unix_micros("event_time")
        self.keys = [F.col(ORIGIN), F.col(FATE), F.col(STAGE), partition]
        self.counts = [
            F.count("*").alias("rows"),
            F.max(arrived).alias("last"),
            F.max(event).alias("newest"),
            *[F.count_if(flag).alias(name) for name, flag in flags.items()],
            fingerprint().alias("fingerprint"),
        ]
        self.row = [
            *[F.col(ORIGIN), partition],
            event.alias("newest"),
            *[flag.alias(name) for name, flag in flags.items()],
            id_number().alias("fingerprint"),
        ]


def summarize(decided: DataFrame, counting: Counting) -> Summary:
    """Count rows by fate in Spark."""
    found = decided.groupBy(*counting.keys).agg(*counting.counts).collect()
    return Summary([row.asDict() for row in found])


def summarize_in_driver(
    rows: pa.Table, repeats: Mapping[str, Numbers], counting: Counting
) -> Summary:
    """Count a batch's rows and fingerprint their record ids in the driver, by origin and fate.

    ``rows`` are :attr:`.dedup.Repeats.batch`: ``_number``, ``_stage``, ``_arrived_at``, the columns
    that ``counting.row`` adds, and in ``_fate`` the fate of each row unless it is a repeat.
    ``repeats`` has the row numbers of repeats by verdict, which replaces their fate and stage.
    """
    keys = {name: rows[name] for name in _KEYS}
    for verdict, numbers in repeats.items():
        is_repeat = pa.array(members(rows[NUMBER].to_numpy(), np.sort(numbers)))
        fate, stage = OF_REPEATS[verdict]
        keys[FATE] = pc.if_else(is_repeat, fate, keys[FATE])
        keys[STAGE] = pc.if_else(is_repeat, pa.scalar(stage, pa.string()), keys[STAGE])
    values = {name: rows[name] for name in (ARRIVED_AT, "newest", "fingerprint")}
    values |= {name: rows[name].fill_null(False) for name in counting.flags}
    aggregates = [
        *[([], "count_all"), (ARRIVED_AT, "max"), ("newest", "max")],
        *[(name, "sum") for name in counting.flags],
        ("fingerprint", "list"),
    ]
    found = pa.table({**keys, **values}).group_by(list(keys)).aggregate(aggregates)
    names = [*keys, "rows", "last", "newest", *counting.flags, "fingerprint"]
    groups = []
    for *counts, numbers in zip(*found.columns, strict=True):
        mark = Fingerprint.of_numbers(numbers.values.to_numpy())
        counted = [*[count.as_py() for count in counts], (mark.xor, mark.total)]
        groups.append(dict(zip(names, counted, strict=True)))
    return Summary(groups)


def unknown_fields(decided: DataFrame) -> frozenset[str]:
    """Return the names of unknown fields that are valid columns, and not null in an accepted row.

    Accepted rows are those of silver and late. Separate from the counts: few batches have unknown
    fields, and Spark does not generate code for an aggregate that collects names.
    """
    filled = F.map_filter(UNKNOWN, lambda name, value: name.rlike(_NAME) & value.isNotNull())
    names = F.explode(F.map_keys(filled)).alias("name")
    found = decided.where(F.col(FATE).isin(*_ACCEPTED)).select(names).distinct().collect()
    return frozenset(row["name"] for row in found)


def _key(group: Group) -> Key:
    return group[ORIGIN], group[FATE], group[STAGE]
