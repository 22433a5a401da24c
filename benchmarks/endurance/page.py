"""Generate docs/endurance.md and its plots from the report of a run.

Usage: python -m benchmarks.endurance.page [--report build/endurance/endurance.json] [--docs docs]
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import plots
from benchmarks.measuring import lines, say
from benchmarks.report_page import note_of
from benchmarks.runner import HERE

_REPORT = HERE.parent / "build" / "endurance" / "endurance.json"
_DOCS = HERE.parent / "docs"
_HOPS = ("bronze", "silver", "gold")
_MINUTE = 60.0
# Memory of a life counts from here: before, the JVM starts.
_WARM_SECONDS = 15.0
# The part of the run at its beginning and end over which figures are medians.
_EDGE = 1 / 12
# Points of a line over which batches are summed up.
_PARTS = 120
# Settings that are part of the text.
_SAID = ("minutes", "records a second", "seconds between kills", "of a thousand records")

_HEAD = """# Endurance

A continuous run from Kafka, killed again and again for hours, at whose end an oracle without the \
pipeline's code finds each record where it belongs. `make endurance` repeats it (`MINUTES`, `RATE` \
and `EVERY` are its size), and `make endurance-page` generates this page from its report.
"""


def written(report: Path, docs: Path) -> Path:
    """Write the page, the plots and a copy of the report; return the page's path."""
    found = json.loads(report.read_text(encoding="utf-8"))
    pictures = docs / "endurance"
    pictures.mkdir(parents=True, exist_ok=True)
    for old in pictures.glob("*.svg"):
        old.unlink()
    copy = pictures / "endurance.json"
    if report.resolve() != copy.resolve():
        shutil.copyfile(report, copy)
    parts = [_HEAD, _story(found), *note_of(HERE / "notes", "endurance"), *_table(found), ""]
    for name, plot, text in _plots(found):
        (pictures / f"{name}.svg").write_text(plots.drawn(plot), encoding="utf-8")
        parts += [f"![{plot['title']}](endurance/{name}.svg)", "", *([text, ""] if text else [])]
    parts += ["[All figures](endurance/endurance.json)", ""]
    page = docs / "endurance.md"
    page.write_text("\n".join(parts).rstrip() + "\n", encoding="utf-8")
    return page


def _story(found: Mapping[str, Any]) -> str:
    setting, here = found["setting"], found["machine"]
    shares = ", ".join(
        f"{share} {kind}" for kind, share in setting["of a thousand records"].items()
    )
    marks = "\n".join(f"- minute {one['minutes']:.0f}: {one['what']}" for one in found["marks"])
    rest = ", ".join(f"`{name}` {value}" for name, value in setting.items() if name not in _SAID)
    return (
        f"{setting['minutes']:g} minutes at {setting['records a second']:g} records a second, "
        f"SIGKILL to the process group about every {setting['seconds between kills']:g} seconds, "
        f"and a new start at once. Of a thousand records: {shares}. Meanwhile:\n\n{marks}\n\n"
        f"Settings: {rest}. Times are short so that ids leave the memory of duplicates, the topic "
        "forgets records, and files are deleted within the run. `maintain` keeps a removed file "
        "for an hour at least.\n\n"
        f"Measured on {here['cores']} cores, {here['memory_gb']:g} GB, {here['system']}, Python "
        f"{here['python']}; commit `{here['commit']}`, {found['at'][:10]}; broker and sender on "
        "the same machine.\n"
    )


def _table(found: Mapping[str, Any]) -> list[str]:
    lives = found["lives"]
    killed = [life for life in lives if life["how"] == "killed"]
    again = [
        max(golds)
        for before, life in pairwise(lives)
        if before["how"] == "killed"
        and (golds := [at for one, at in life["first_commit"].items() if one.startswith("gold.")])
    ]
    planned = sum(len(life["planned"]) for life in killed)
    committed = sum(len(life["committed"]) for life in killed)
    each = [operations.get("OPTIMIZE", 0) for operations in found["operations"].values()]
    deleted = sum(row["deleted"] for one in found["upkeep"] for row in one)
    batches = found["batches"]
    rows = {
        "minutes": f"{found['setting']['minutes']:g}",
        "minutes until all of it was in gold": f"{_length(found):.0f}",
        "records sent": f"{found['sent']:,}",
        "kills": f"{len(killed)}",
        "seconds from a start after a kill to gold's first commit": _range(again),
        "batches: bronze, silver, gold": ", ".join(
            f"{most:,}"
            for hop in _HOPS
            if (most := max(n for table, n in batches.items() if table.startswith(f"{hop}.")))
        ),
        "batches that a kill interrupted, each tried again": (
            f"{planned}, {committed} of them committed already"
        ),
        "compactions": f"{sum(each)} in {sum(map(bool, each))} tables",
        "files deleted by `maintain`": f"{deleted:,}",
        "records that the topic forgot meanwhile": f"{found['forgotten']:,}",
        **_checks(found),
        "memory of the run, first and last twelfth, MB": _edges(found, _memory(found)),
        "heap after collections, first and last twelfth, MB": _edges(found, _heap(found)),
        "data files, first and last twelfth": _edges(found, _files(found, 0)),
        "log files, first and last twelfth": _edges(found, _files(found, 1)),
        "checkpoints, first and last twelfth, kB": _edges(found, _checkpoints(found)),
    }
    if found["problems"]:
        rows["**problems**"] = "; ".join(found["problems"])
    return ["| | |", "|---|---|", *[f"| {name} | {value} |" for name, value in rows.items()]]


def _checks(found: Mapping[str, Any]) -> dict[str, str]:
    """Give the rows of the checks, none if they did not come to their end."""
    if "oracle" not in found:
        return {}
    oracle, balanced = found["oracle"], found["ledger"]["balanced"]
    return {
        "lost": f"**{oracle['lost']:,}**",
        "doubled": f"**{oracle['doubled']:,}**",
        "other values": f"**{oracle['different']:,}**",
        "ledger": "balanced" if balanced else "**not balanced**",
        "verify": "equal" if found["verify"]["equal"] else "**not equal**",
    }


def _plots(found: Mapping[str, Any]) -> list[tuple[str, dict[str, Any], str]]:
    """Give name, plot and explanation of each."""
    x = "minutes; dashed: a kill"
    kills = [_minutes(found, life["ended"]) for life in found["lives"] if life["how"] == "killed"]
    lag = {
        hop: [
            (_minutes(found, one["at"]), one["lag"][hop])
            for one in found["samples"]
            if one["lag"][hop] is not None
        ]
        for hop in _HOPS
    }
    tables = sorted(found["samples"][-1]["files"], key=lambda name: -_last(found, name))[:6]

    def files(kind: int) -> dict[str, list[tuple[float, float]]]:
        return {
            name: [
                (_minutes(found, one["at"]), one["files"].get(name, (0, 0))[kind])
                for one in found["samples"]
            ]
            for name in tables
        }

    made = [
        (
            "memory",
            lines(
                "Memory of the run, in MB",
                {
                    "resident, all processes": _memory(found),
                    "heap after a collection, most in a minute": _most(_heap(found)),
                },
                x=x,
                y="MB",
            ),
            "Each start begins with a new JVM. What grows from life to life would be a leak of the "
            "tables into memory.",
        ),
        (
            "lag",
            lines("Records and rows that a hop has not read", lag, x=x, y="rows"),
            "The backlog of a kill, of the backfill beside the run, and of the two stops.",
        ),
        (
            "batches",
            lines("Seconds of a batch, medians", _seconds(found), x=x, y="seconds"),
            "",
        ),
        (
            "data-files",
            lines(
                "Data files on disk, of the tables with the most files", files(0), x=x, y="files"
            ),
            "Files that were put together stay on disk until `maintain` deletes them.",
        ),
        (
            "log-files",
            lines("Files of the tables' logs", files(1), x=x, y="files"),
            "A log is kept for 30 days, the least that Tidelake allows: it grows with the commits.",
        ),
        (
            "checkpoints",
            lines("Checkpoints of the hops, in kB", {"kB": _checkpoints(found)}, x=x, y="kB"),
            "",
        ),
    ]
    return [(name, plot | {"marks": kills}, text) for name, plot, text in made]


def _minutes(found: Mapping[str, Any], at: float) -> float:
    return float(round((at - found["began"]) / _MINUTE, 2))


def _length(found: Mapping[str, Any]) -> float:
    """Give the minutes of the run, with what it took to catch up at its end."""
    return _minutes(found, found["samples"][-1]["at"])


def _last(found: Mapping[str, Any], table: str) -> int:
    return int(sum(found["samples"][-1]["files"][table]))


def _memory(found: Mapping[str, Any]) -> list[tuple[float, float]]:
    starts = [life["started"] for life in found["lives"]]
    return [
        (_minutes(found, one["at"]), one["java"] + one["python"])
        for one in found["samples"]
        if one["java"] and one["at"] - max(s for s in starts if s <= one["at"]) > _WARM_SECONDS
    ]


def _heap(found: Mapping[str, Any]) -> list[tuple[float, float]]:
    return [(_minutes(found, at), left) for at, left in found["heap"] if at >= found["began"]]


def _files(found: Mapping[str, Any], kind: int) -> list[tuple[float, float]]:
    return [
        (_minutes(found, one["at"]), sum(each[kind] for each in one["files"].values()))
        for one in found["samples"]
    ]


def _checkpoints(found: Mapping[str, Any]) -> list[tuple[float, float]]:
    return [(_minutes(found, one["at"]), one["checkpoints"] / 1e3) for one in found["samples"]]


def _seconds(found: Mapping[str, Any]) -> dict[str, list[tuple[float, float]]]:
    """Sum up the batches of each hop: medians of equal parts of the run."""
    part = _length(found) / _PARTS
    grouped: dict[str, dict[int, list[float]]] = {hop: defaultdict(list) for hop in _HOPS}
    for hop, at, seconds, _ in found["progress"]:
        if at >= found["began"] and hop in grouped:
            grouped[hop][int(_minutes(found, at) / part)].append(seconds)
    return {
        hop: [(round(number * part, 2), median(took)) for number, took in sorted(parts.items())]
        for hop, parts in grouped.items()
        if parts
    }


def _most(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    most: dict[float, float] = {}
    for minute, value in points:
        most[float(int(minute))] = max(value, most.get(float(int(minute)), 0.0))
    return sorted(most.items())


def _edges(found: Mapping[str, Any], points: Sequence[tuple[float, float]]) -> str:
    end = max(minute for minute, _ in points)
    edge = _length(found) * _EDGE
    first = [value for minute, value in points if minute <= edge]
    last = [value for minute, value in points if minute >= end - edge]
    return " → ".join(
        f"{median(part):,.1f}".removesuffix(".0") if part else "none" for part in (first, last)
    )


def _range(values: Sequence[float]) -> str:
    if not values:
        return "none"
    return f"{median(values):.0f} ({min(values):.0f} to {max(values):.0f})"


def main() -> None:
    """Generate the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--report", type=Path, default=_REPORT)
    parser.add_argument("--docs", type=Path, default=_DOCS)
    arguments = parser.parse_args()
    say(f"wrote {written(arguments.report, arguments.docs)}")


if __name__ == "__main__":
    main()
