"""Compute from measured coefficients what a cluster needs, and write docs/capacity.md.

The text around the tables is written by hand in benchmarks/notes/capacity.md; the formulas there
are those of this module. The coefficients are measured by ``python -m benchmarks.coefficients``.

Usage: python -m benchmarks.capacity [--reports build/bench] [--docs docs]
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measuring import say
from benchmarks.runner import HERE, REPORTS
from benchmarks.svg import short
from tidelake.delta.tables import HOPS

_DAY = 86_400
# What a slot should be busy at most, so that a backlog can be caught up with.
_USE = 0.6
# What a compacted file holds, and what one Kafka partition carries without effort.
_FILE_BYTES, _PARTITION_BYTES = 128 << 20, 4 << 20
# Comparing one id with a batch's, where ids are read as a column: a scan and a hash.
_US_AN_ID = 0.03
_SLOT_GB = 2.0


@dataclass(frozen=True)
class Coefficients:
    """What was measured.

    Attributes:
        fixed: Seconds of a trigger without rows, by hop: what it takes however few rows come.
        fixed_cores: Seconds of cores of the same.
        us: Microseconds of a core a row, by hop.
        stored: Bytes a row of bronze and silver, and of gold a row.
        rows: Rows of silver and gold that an event makes.
        payload: Bytes of an event.
        us_an_id: Microseconds of a core an id that deduplication compares with.
    """

    fixed: Mapping[str, float]
    fixed_cores: Mapping[str, float]
    us: Mapping[str, float]
    stored: Mapping[str, float]
    rows: Mapping[str, float]
    payload: float
    us_an_id: float = _US_AN_ID

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Coefficients:
        """Take them from a report."""
        hops, tables = found["hops"], found["tables"]
        return cls(
            fixed={hop: hops[hop]["fixed_seconds"] for hop in HOPS},
            fixed_cores={hop: hops[hop]["fixed_core_seconds"] for hop in HOPS},
            us={hop: hops[hop]["core_us_a_row"] for hop in HOPS},
            stored={hop: tables[hop]["bytes_a_row"] for hop in HOPS},
            rows={hop: tables[hop]["rows_an_event"] for hop in HOPS},
            payload=found["payload_bytes"],
        )


@dataclass(frozen=True)
class Load:
    """What a pipeline is to take.

    Attributes:
        rate: Events a second.
        interval: Seconds between batches.
        ttl_hours: How far back deduplication looks.
    """

    rate: int
    interval: int
    ttl_hours: int


@dataclass(frozen=True)
class Need:
    """What a load needs.

    Attributes:
        row_cores: Cores that work on rows all the time.
        id_cores: Cores that compare ids all the time.
        plan_cores: Cores that plan and commit all the time.
        slots: Cores to have.
        shortest: Seconds of the shortest interval that these slots keep up with.
        partitions: Of the topic.
        ids: Within the TTL.
        id_gb: That they take as 16 bytes each.
        memory_gb: Of all executors.
        bronze_gb: A day.
        silver_gb: A day.
        gold_rows: A day.
        commits: A day and table.
        files: A day, of bronze and silver, before they are put together.
        compacted: The same afterwards.
        core_hours: A day.
        core_hours_a_billion: For a billion events.
    """

    row_cores: float
    id_cores: float
    plan_cores: float
    slots: int
    shortest: float
    partitions: int
    ids: float
    id_gb: float
    memory_gb: float
    bronze_gb: float
    silver_gb: float
    gold_rows: float
    commits: int
    files: float
    compacted: float
    core_hours: float
    core_hours_a_billion: float


def needed(load: Load, found: Coefficients) -> Need:
    """Apply the formulas of the page."""
    rate, interval = load.rate, load.interval
    row_cores = rate * sum(found.us.values()) / 1e6
    ids = rate * found.rows["silver"] * load.ttl_hours * 3_600
    id_cores = ids * found.us_an_id / 1e6 / interval
    plan_cores = sum(found.fixed_cores.values()) / interval
    slots = max(2, math.ceil((row_cores + id_cores + plan_cores) / _USE))
    # What is fixed has to fit into the time that rows leave.
    shortest = max(found.fixed.values()) / (1 - (row_cores + id_cores) / slots)
    bronze = rate * found.stored["bronze"] * _DAY
    silver = rate * found.rows["silver"] * found.stored["silver"] * _DAY
    commits = _DAY // interval
    return Need(
        row_cores=row_cores,
        id_cores=id_cores,
        plan_cores=plan_cores,
        slots=slots,
        shortest=shortest,
        partitions=max(slots, math.ceil(rate * found.payload / _PARTITION_BYTES)),
        ids=ids,
        id_gb=ids * 16 / 1e9,
        memory_gb=slots * _SLOT_GB,
        bronze_gb=bronze / 1e9,
        silver_gb=silver / 1e9,
        gold_rows=rate * found.rows["gold"] * _DAY,
        commits=commits,
        files=2 * commits * slots,
        compacted=(bronze + silver) / _FILE_BYTES,
        core_hours=slots * 24,
        core_hours_a_billion=slots * 24 / (rate * _DAY) * 1e9,
    )


_LINES: tuple[tuple[str, str], ...] = (
    ("cores that work on rows", "row_cores"),
    ("cores that compare ids", "id_cores"),
    ("cores that plan and commit", "plan_cores"),
    ("**slots to have**, 60 % busy", "slots"),
    ("shortest interval that keeps up, s", "shortest"),
    ("partitions of the topic", "partitions"),
    ("ids within the TTL, millions", "ids"),
    ("the same, 16 bytes each, GB", "id_gb"),
    ("memory of executors, GB", "memory_gb"),
    ("bronze, GB a day", "bronze_gb"),
    ("silver, GB a day", "silver_gb"),
    ("rows of gold, millions a day", "gold_rows"),
    ("commits a day and table", "commits"),
    ("files a day, before compaction", "files"),
    ("files a day, after it", "compacted"),
    ("**core-hours a day**", "core_hours"),
    ("core-hours a billion events", "core_hours_a_billion"),
)
_MILLIONS = ("ids", "gold_rows")
LOADS = (
    Load(10_000, 10, 1),
    Load(10_000, 60, 24),
    Load(100_000, 10, 1),
    Load(100_000, 60, 24),
    Load(1_000_000, 10, 1),
    Load(1_000_000, 60, 24),
)


def needs_table(loads: Sequence[Load], found: Coefficients) -> str:
    """Write a column for each load."""
    needs = [needed(load, found) for load in loads]
    heads = [f"{load.rate:,}/s, {load.interval} s, {load.ttl_hours} h" for load in loads]
    rows = []
    for words, name in _LINES:
        values = [float(getattr(one, name)) / (1e6 if name in _MILLIONS else 1) for one in needs]
        rows.append([words, *(short(value) for value in values)])
    return _table(["events a second, interval, TTL", *heads], rows)


def inputs_table(found: Mapping[str, Any]) -> str:
    """Write what was measured of each hop and layer."""
    heads = ["fixed s a batch", "core-s of it", "core-µs a row", "bytes a row", "rows an event"]
    rows = []
    for hop in HOPS:
        line, stored = found["hops"][hop], found["tables"][hop]
        values = [line["fixed_seconds"], line["fixed_core_seconds"], line["core_us_a_row"]]
        values += [stored["bytes_a_row"], stored["rows_an_event"]]
        files = stored["files_a_commit_large"]
        rows.append([hop, *(short(value) for value in values), short(files)])
    return _table(["", *heads, "files a commit, 2 slots"], rows)


def slots_table(found: Mapping[str, Any]) -> str:
    """Write what slots make of a catch-up."""
    rows = [
        [slots, *(short(one[name]) for name in (*HOPS, "all")), f"{one['events_per_second']:,}"]
        for slots, one in found["slots"].items()
    ]
    return _table(["slots", *(f"{hop}, s" for hop in HOPS), "all, s", "events/s"], rows)


def _table(heads: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    heads = list(heads)
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def page(text: str, found: Mapping[str, Any], slots: Mapping[str, Any] | None) -> str:
    """Put the tables into the text."""
    here = found["machine"]
    parts = {
        "inputs": inputs_table(found),
        "needs": needs_table(LOADS, Coefficients.of(found)),
        "slots": slots_table(slots) if slots else "Not measured in this run.",
        "events": f"{slots['events']:,}" if slots else "no",
        "small": f"{found['setting']['small']:,}",
        "large": f"{found['setting']['large']:,}",
        "payload": short(found["payload_bytes"]),
        "machine": f"{here['cores']} cores, {here['memory_gb']:g} GB, commit `{here['commit']}`, "
        f"{here['at'][:10]}",
    }
    for name, told in parts.items():
        text = text.replace("{{ " + name + " }}", told)
    return text


def main() -> None:
    """Write the page, and keep the coefficients beside it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reports", type=Path, default=REPORTS)
    parser.add_argument("--docs", type=Path, default=HERE.parent / "docs")
    told = parser.parse_args()
    file, slots = told.reports / "coefficients.json", told.reports / "slots.json"
    found = json.loads(file.read_text(encoding="utf-8"))
    measured = json.loads(slots.read_text(encoding="utf-8")) if slots.is_file() else None
    text = (HERE / "notes" / "capacity.md").read_text(encoding="utf-8")
    (told.docs / "benchmarks").mkdir(exist_ok=True)
    shutil.copyfile(file, told.docs / "benchmarks" / file.name)
    (told.docs / "capacity.md").write_text(page(text, found, measured), encoding="utf-8")
    say(f"wrote {told.docs / 'capacity.md'}")


if __name__ == "__main__":
    main()
