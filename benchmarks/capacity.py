"""Compute the resources of a cluster from measured coefficients, and generate docs/capacity.md.

The text around the tables is hand-written in benchmarks/notes/capacity.md; its formulas are those
of this module. ``python -m benchmarks.coefficients`` measures the coefficients.

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
# Highest planned utilization of a slot; the rest is for catching up with a backlog.
_USE = 0.6
# Bytes of a compacted file, and bytes a second that one Kafka partition carries easily.
_FILE_BYTES, _PARTITION_BYTES = 128 << 20, 4 << 20
# CPU time to compare one stored id with a batch in a join of Spark: scan of a column and a hash.
# The driver's index, for up to 16 million ids (decision 45), costs less.
_US_AN_ID = 0.03
_SLOT_GB = 2.0


@dataclass(frozen=True)
class Coefficients:
    """Measured coefficients.

    Attributes:
        fixed: Seconds of a trigger without rows, by hop.
        fixed_cores: CPU seconds of the same.
        us: CPU microseconds a row, by hop.
        stored: Bytes a row, by layer.
        rows: Stored rows an event, by layer.
        payload: Bytes an event.
        us_an_id: CPU microseconds for each id that deduplication compares.
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
        """Read them from a report of ``benchmarks.coefficients``."""
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
    """The load of a pipeline.

    Attributes:
        rate: Events a second.
        interval: Seconds between batches.
        ttl_hours: The TTL of deduplication.
    """

    rate: int
    interval: int
    ttl_hours: int


@dataclass(frozen=True)
class Need:
    """The resources for a load.

    Attributes:
        row_cores: Average number of cores busy with rows.
        id_cores: Average number of cores busy comparing ids.
        plan_cores: Average number of cores busy planning and committing.
        slots: Slots to provision.
        shortest: Shortest interval in seconds at which these slots keep up.
        partitions: Partitions of the topic.
        ids: Ids within the TTL.
        id_gb: Gigabytes of these ids at 16 bytes each.
        memory_gb: Memory of all executors.
        bronze_gb: Gigabytes of bronze a day.
        silver_gb: Gigabytes of silver a day.
        gold_rows: Rows of gold a day.
        commits: Commits a day and table.
        files: Files of bronze and silver a day, before compaction.
        compacted: The same after compaction.
        core_hours: Core-hours a day.
        core_hours_a_billion: Core-hours for a billion events.
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


def needed(load: Load, coefficients: Coefficients) -> Need:
    """Apply the page's formulas to a load."""
    rate, interval = load.rate, load.interval
    row_cores = rate * sum(coefficients.us.values()) / 1e6
    ids = rate * coefficients.rows["silver"] * load.ttl_hours * 3_600
    id_cores = ids * coefficients.us_an_id / 1e6 / interval
    plan_cores = sum(coefficients.fixed_cores.values()) / interval
    slots = max(2, math.ceil((row_cores + id_cores + plan_cores) / _USE))
    # The fixed time must fit into what the rows leave of the interval.
    shortest = max(coefficients.fixed.values()) / (1 - (row_cores + id_cores) / slots)
    bronze = rate * coefficients.stored["bronze"] * _DAY
    silver = rate * coefficients.rows["silver"] * coefficients.stored["silver"] * _DAY
    commits = _DAY // interval
    return Need(
        row_cores=row_cores,
        id_cores=id_cores,
        plan_cores=plan_cores,
        slots=slots,
        shortest=shortest,
        partitions=max(slots, math.ceil(rate * coefficients.payload / _PARTITION_BYTES)),
        ids=ids,
        id_gb=ids * 16 / 1e9,
        memory_gb=slots * _SLOT_GB,
        bronze_gb=bronze / 1e9,
        silver_gb=silver / 1e9,
        gold_rows=rate * coefficients.rows["gold"] * _DAY,
        commits=commits,
        files=2 * commits * slots,
        compacted=(bronze + silver) / _FILE_BYTES,
        core_hours=slots * 24,
        core_hours_a_billion=slots * 24 / (rate * _DAY) * 1e9,
    )


_LINES: tuple[tuple[str, str], ...] = (
    ("cores for rows", "row_cores"),
    ("cores for comparing ids", "id_cores"),
    ("cores for planning and commits", "plan_cores"),
    ("**slots**, 60 % busy", "slots"),
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
    ("files a day, after compaction", "compacted"),
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


def needs_table(loads: Sequence[Load], coefficients: Coefficients) -> str:
    """Return a table with a column for each load."""
    needs = [needed(load, coefficients) for load in loads]
    heads = [f"{load.rate:,}/s, {load.interval} s, {load.ttl_hours} h" for load in loads]
    rows = []
    for label, name in _LINES:
        values = [float(getattr(need, name)) / (1e6 if name in _MILLIONS else 1) for need in needs]
        rows.append([label, *(short(value) for value in values)])
    return _table(["events a second, interval, TTL", *heads], rows)


def inputs_table(found: Mapping[str, Any]) -> str:
    """Return a table of the coefficients of each hop and layer."""
    heads = ["fixed s a batch", "core-s of it", "core-µs a row", "bytes a row", "rows an event"]
    rows = []
    for hop in HOPS:
        line, stored = found["hops"][hop], found["tables"][hop]
        values = [line["fixed_seconds"], line["fixed_core_seconds"], line["core_us_a_row"]]
        values += [stored["bytes_a_row"], stored["rows_an_event"]]
        files = stored["files_a_commit_large"]
        rows.append([hop, *(short(value) for value in values), short(files)])
    return _table(["", *heads, "files a commit, 2 slots"], rows)


def _table(heads: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    heads = list(heads)
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def page(text: str, found: Mapping[str, Any]) -> str:
    """Replace the placeholders in the text."""
    here = found["machine"]
    values = {
        "inputs": inputs_table(found),
        "needs": needs_table(LOADS, Coefficients.of(found)),
        "small": f"{found['setting']['small']:,}",
        "large": f"{found['setting']['large']:,}",
        "payload": short(found["payload_bytes"]),
        "machine": f"{here['cores']} cores, {here['memory_gb']:g} GB, {here['at'][:10]}",
        "commit": here["commit"],
    }
    for name, value in values.items():
        text = text.replace("{{ " + name + " }}", value)
    return text


def written(reports: Path, docs: Path) -> Path:
    """Write the page, and copy the coefficients into the docs; return the page's path.

    Args:
        reports: Folder with ``coefficients.json``; the copy in the docs will do.
        docs: Folder of the site.

    Raises:
        SystemExit: There are no coefficients; the existing page is kept.
    """
    file, copy = reports / "coefficients.json", docs / "benchmarks" / "coefficients.json"
    if not file.is_file():
        raise SystemExit(
            f"{file} does not exist. Measure with: python -m benchmarks.coefficients; or "
            f"regenerate the page from its own: python -m benchmarks.capacity --reports "
            f"{copy.parent}"
        )
    text = (HERE / "notes" / "capacity.md").read_text(encoding="utf-8")
    generated = page(text, json.loads(file.read_text(encoding="utf-8")))
    copy.parent.mkdir(parents=True, exist_ok=True)
    if file.resolve() != copy.resolve():
        shutil.copyfile(file, copy)
    (docs / "capacity.md").write_text(generated, encoding="utf-8")
    return docs / "capacity.md"


def main() -> None:
    """Generate the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reports", type=Path, default=REPORTS)
    parser.add_argument("--docs", type=Path, default=HERE.parent / "docs")
    options = parser.parse_args()
    say(f"wrote {written(options.reports, options.docs)}")


if __name__ == "__main__":
    main()
