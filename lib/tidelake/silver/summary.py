"""Count a batch of silver: fates, fingerprints, warnings, watermark, unknown fields."""

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
            times = [from_micros(group["newest"]) for group in mine if group[FATE] == SILVER]
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
        flags: The names of conditions whose rows are counted.
        row: What the driver takes of a row to count it, beside its fate and its arrival.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        """Build them."""
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
    """Return a condition for each warning, each dimension, and unknown fields."""
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
    """Count rows by fate."""
    found = decided.groupBy(*counting.keys).agg(*counting.counts).collect()
    return Summary(found, _marks(found))


def summarize_in_driver(
    rows: pa.Table, repeats: Mapping[str, Numbers], counting: Counting
) -> Summary:
    """Count rows that the driver has by fate.

    Args:
        rows: With ``_number``, ``_stage``, ``_arrived_at``, the counting's columns of a row, and
            ``_fate`` as if none were a repeat.
        repeats: The numbers of those that are, by verdict.
        counting: Of the definition.
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
    """Group rows, of which there are few kinds, as Spark does by a counting's columns."""
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
