"""Summarize a silver batch: fates, fingerprints, warnings, partition progress, unknown fields."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from tidelake.config import Pipeline
from tidelake.fingerprints import Fingerprint, fingerprint, id_number
from tidelake.instants import from_micros
from tidelake.silver.classify import ORIGIN, STAGE, WARNINGS, rule_texts
from tidelake.silver.driver_dedup import NUMBER
from tidelake.silver.enrich import looked_up
from tidelake.silver.payloads import UNKNOWN
from tidelake.silver.route import FATE, LATE, OF_REPEATS, SILVER
from tidelake.silver.row_sets import Numbers, members
from tidelake.silver.scope import ARRIVED_AT
from tidelake.silver.watermark import PartitionProgress, partition_of

_NAME = r"^[A-Za-z][A-Za-z0-9_]{0,62}$"
_ACCEPTED = (SILVER, LATE)
_KEYS = (ORIGIN, FATE, STAGE, "partition")
_NULL = np.iinfo(np.int64).min
Group = Row | Mapping[str, Any]
# Origin, fate, stage.
Key = tuple[str, str, str | None]


@dataclass(frozen=True)
class Summary:
    """The counts of a batch.

    Attributes:
        groups: Counts by origin, fate, stage and source partition.
        marks: Fingerprints of the record ids, by origin, fate and stage.
    """

    groups: Sequence[Group]
    marks: Mapping[Key, Fingerprint]

    def rows(self) -> dict[Key, int]:
        """Return row counts by origin, fate and stage, summed over the partitions."""
        total: dict[Key, int] = defaultdict(int)
        for group in self.groups:
            total[_key(group)] += group["rows"]
        return dict(total)

    def of_accepted(self, name: str) -> int:
        """Sum a count over the rows written to silver."""
        accepted = [group for group in self.groups if group[FATE] == SILVER]
        return sum(group[name] for group in accepted if name in group)

    def warnings(self, pipeline: Pipeline) -> dict[str, int]:
        """Return the number of new silver rows by the warning rule that they fail."""
        found = {text: self.of_accepted(f"_w{n}") for n, text in enumerate(rule_texts(pipeline))}
        return {text: rows for text, rows in found.items() if rows}

    def unmatched(self, pipeline: Pipeline) -> tuple[int, ...]:
        """Return the number of new silver rows without a dimension match, per ``enrich`` entry."""
        return tuple(self.of_accepted(f"_d{n}") for n in range(len(pipeline.enrich)))

    def has_unknown(self) -> bool:
        """Return whether an accepted row has a payload field that is not in the schema."""
        accepted = [group for group in self.groups if group[FATE] in _ACCEPTED]
        return any(group["unknown"] for group in accepted if "unknown" in group)

    def with_groups(self, others: Sequence[Mapping[str, Any]]) -> Summary:
        """Add groups of rows that were not part of the batch's frame."""
        marks = _marks(others)
        for key, mark in self.marks.items():
            marks[key] = marks[key].plus(mark)
        return Summary([*self.groups, *others], marks)

    def partitions(self, before: Mapping[str, PartitionProgress]) -> dict[str, PartitionProgress]:
        """Return the source partitions' progress after the batch's rows from bronze."""
        fresh = [group for group in self.groups if group[ORIGIN] == "bronze"]
        now = dict(before)
        for name in {group["partition"] for group in fresh}:
            groups = [group for group in fresh if group["partition"] == name]
            earlier = before.get(name)
            arrivals = [from_micros(group["last"]) for group in groups]
            times = [from_micros(group["newest"]) for group in groups if group[FATE] == SILVER]
            if earlier is not None:
                arrivals.append(earlier.last_ingested_at)
                times.append(earlier.max_event_time)
            arrived = _latest(arrivals)
            if arrived is not None:
                now[name] = PartitionProgress(_latest(times), arrived)
        return now


class Counting:
    """The columns that count a pipeline's rows, built once.

    Attributes:
        flags: Names of the conditions whose rows are counted.
        row: Columns that the driver needs to count a row, besides its fate and arrival.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        """Build the columns."""
        flags = _flags(pipeline)
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


def _flags(pipeline: Pipeline) -> dict[str, Column]:
    """Return a condition for each warning, each missed dimension match, and unknown fields."""
    is_additive = pipeline.event.evolution == "additive"
    return {
        **{
            f"_w{n}": F.array_contains(WARNINGS, text)
            for n, text in enumerate(rule_texts(pipeline))
        },
        **{f"_d{n}": F.col(looked_up(n)).isNull() for n in range(len(pipeline.enrich))},
        "unknown": F.col(UNKNOWN).isNotNull() if is_additive else F.lit(False),
    }


def summarize(decided: DataFrame, counting: Counting) -> Summary:
    """Count rows by fate in Spark."""
    found = decided.groupBy(*counting.keys).agg(*counting.counts).collect()
    return Summary(found, _marks(found))


def summarize_in_driver(
    rows: pa.Table, repeats: Mapping[str, Numbers], counting: Counting
) -> Summary:
    """Count rows by fate in the driver.

    Args:
        rows: ``_number``, ``_stage``, ``_arrived_at``, the columns of ``counting.row``, and the
            ``_fate`` that each row has if it is not a repeat.
        repeats: Row numbers of the repeats, by verdict.
        counting: The pipeline's counting columns.
    """
    keys = {name: rows[name] for name in _KEYS}
    for verdict, numbers in repeats.items():
        is_repeat = pa.array(members(rows[NUMBER].to_numpy(), np.sort(numbers)))
        fate, stage = OF_REPEATS[verdict]
        keys[FATE] = pc.if_else(is_repeat, fate, keys[FATE])
        keys[STAGE] = pc.if_else(is_repeat, pa.scalar(stage, pa.string()), keys[STAGE])
    groups = _groups(rows, keys, counting.flags)
    return Summary(groups, _marks(groups))


def _groups(
    rows: pa.Table, keys: Mapping[str, pa.ChunkedArray], flags: Sequence[str]
) -> list[Group]:
    """Group rows as :func:`summarize` does in Spark; few distinct keys are expected."""
    kind = np.zeros(rows.num_rows, dtype=np.int64)
    for column in keys.values():
        encoded = column.combine_chunks().dictionary_encode()
        codes = encoded.indices.fill_null(len(encoded.dictionary)).to_numpy()
        kind = kind * (len(encoded.dictionary) + 1) + codes
    order = np.argsort(kind, kind="stable")
    starts = np.flatnonzero(np.diff(kind[order], prepend=-1))
    newest = rows["newest"].fill_null(_NULL).to_numpy()[order]
    last, marks = (rows[name].to_numpy()[order] for name in (ARRIVED_AT, "fingerprint"))
    flagged = {
        name: rows[name].fill_null(False).to_numpy(zero_copy_only=False)[order] for name in flags
    }
    found: list[Group] = []
    for start, end in zip(starts, np.append(starts, order.size)[1:], strict=True):
        mark = Fingerprint.of_numbers(marks[start:end])
        latest = int(newest[start:end].max())
        found.append(
            {
                **{name: column[int(order[start])].as_py() for name, column in keys.items()},
                "rows": int(end - start),
                "last": int(last[start:end].max()),
                "newest": None if latest == _NULL else latest,
                **{name: int(flag[start:end].sum()) for name, flag in flagged.items()},
                "fingerprint": (mark.xor, mark.total),
            }
        )
    return found


def unknown_fields(decided: DataFrame) -> frozenset[str]:
    """Return the non-null unknown fields of accepted rows whose names are valid columns.

    Separate from the counts: few batches have unknown fields, and Spark does not generate code for
    an aggregate that collects names.
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
