"""Generate docs/benchmarks.md and its plots from the reports of a run.

The description of a row is its script's docstring. Explanations of the figures are hand-written in
benchmarks/notes: P1.md and so on, and summary.md for the whole page. The page has no other
hand-written text, so it can be regenerated.

Usage: python -m benchmarks.report_page [--reports build/bench] [--docs docs]
"""

from __future__ import annotations

import argparse
import ast
import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks import plots
from benchmarks.measuring import say
from benchmarks.runner import HERE, REPORTS, rows
from benchmarks.svg import short

Json = Mapping[str, Any]
_DOCS = HERE.parent / "docs"

_HEAD = (
    "# Benchmarks\n\nTidelake measured against goals, most of them ratios to another program. Two "
    "sides process the same rows, in alternating rounds where there are several, and their outputs "
    "are compared. Figures with two numbers in parentheses are medians of the rounds, with the "
    "least and the largest; those without are of a single run. The number of rounds is with the "
    "settings of each row.\n\nRun all rows with "
    "`make bench`, one with `make bench B=P1`; `make bench-page` regenerates this page from the "
    "reports. What was tried is listed under [experiments](experiments.md); for clusters see "
    "[the capacity model](capacity.md).\n"
)


def written(reports: Path, docs: Path, folder: Path = HERE) -> Path:
    """Write the page, the plots and copies of the reports; return the page's path.

    Args:
        reports: Folder with the reports of a run.
        docs: Folder of the site.
        folder: Folder of the scripts and notes.

    Raises:
        SystemExit: There is no report; the existing page is kept.
    """
    known = rows(folder)
    found = {
        row: json.loads((reports / f"{row}.json").read_text(encoding="utf-8"))
        for row in known
        if (reports / f"{row}.json").is_file()
    }
    if not found:
        raise SystemExit(
            f"{reports} holds no report. Measure with: make bench; or regenerate the page from "
            f"its own reports: python -m benchmarks.report_page --reports {docs}/benchmarks"
        )
    pictures = docs / "benchmarks"
    pictures.mkdir(parents=True, exist_ok=True)
    for old in pictures.glob("*.svg"):
        old.unlink()
    summary = note_of(folder / "notes", "summary")
    parts = [_HEAD, *summary, _where(found.values()), *_overview(found, known, pictures)]
    for row, report in found.items():
        if reports.resolve() != pictures.resolve():
            shutil.copyfile(reports / f"{row}.json", pictures / f"{row}.json")
        parts += _section(report, folder / f"{known[row]}.py", folder / "notes", pictures)
    page = docs / "benchmarks.md"
    page.write_text("\n".join(parts).rstrip() + "\n", encoding="utf-8")
    return page


def _where(found: Iterable[Json]) -> str:
    """List the machines and commits; usually one."""
    machines: dict[tuple[Any, ...], list[tuple[str, str]]] = {}
    for report in found:
        here = report["machine"]
        key = (here["cores"], here["memory_gb"], here["system"], here["python"], here["commit"])
        machines.setdefault(key, []).append((report["row"], here["at"][:10]))
    lines = []
    for (cores, memory, system, python, commit), runs in machines.items():
        days = sorted({day for _, day in runs})
        which = "" if len(machines) == 1 else f"{', '.join(row for row, _ in runs)}: "
        lines.append(
            f"{which}{cores} cores, {memory:g} GB, {system}, Python {python}; commit "
            f"`{commit}`, {' to '.join({days[0]: 0, days[-1]: 0})}."
        )
    return "\n".join(["Measured on:", "", *[f"- {line}" for line in lines], ""])


def _overview(found: Mapping[str, Json], known: Iterable[str], pictures: Path) -> list[str]:
    lines = ["| row | figure | goal | measured | result |", "|---|---|---|---|---|"]
    scores = []
    for row in known:
        if row not in found:
            lines.append(f"| {row} | not measured in this run | | | |")
            continue
        for finding in found[row]["findings"]:
            goal, measured = finding["goal"], _measured(finding)
            goal_text = f"{_sign(goal)} {goal['limit']:g} {goal['unit']}"
            lines.append(
                f"| [{row}](#{row.lower()}) | {goal['what']} | {goal_text} | {measured} "
                f"| {verdict(finding)} |"
            )
            scores.append(score(row, finding))
    if not scores:
        return lines
    title = "Each figure relative to its goal"
    (pictures / "goals.svg").write_text(plots.scores(title, scores), encoding="utf-8")
    return [*lines, "", f"![{title}](benchmarks/goals.svg)", ""]


def verdict(finding: Json) -> str:
    """Return whether a goal is met, and the distance in percent."""
    goal, value = finding["goal"], finding["value"]
    if not goal["limit"]:
        return "met" if finding["met"] else "**not met**"
    off = value / goal["limit"] - 1
    side = "over" if off > 0 else "under"
    return f"{'met' if finding['met'] else '**not met**'}, {abs(off):.0%} {side}"


def _sign(goal: Json) -> str:
    return "≥" if goal["at_least"] else "≤"


def _measured(finding: Json) -> str:
    unit, figure = finding["goal"]["unit"], short(finding["value"])
    if finding["low"] == finding["high"]:
        return f"**{figure}** {unit}"
    return f"**{figure}** {unit} ({short(finding['low'])} to {short(finding['high'])})"


def score(row: str, finding: Json) -> plots.Score:
    """Return a figure relative to its goal, for the plot."""
    goal = finding["goal"]
    limit, values = goal["limit"], [finding["value"], finding["low"], finding["high"]]
    if goal["at_least"]:
        good = [value / limit if limit else 1.0 for value in values]
    else:
        # At a limit of 0 a figure either meets the goal or gets the worst score. One below 0,
        # a difference in the other direction, gets the best.
        good = [limit / value if value > 0 else 1e9 for value in values]
    label = f"{row}   {goal['what']}, {_sign(goal)} {limit:g} {goal['unit']}"
    figure = f"{short(finding['value'])} {goal['unit']}"
    return plots.Score(_cut(label, 92), figure, good[0], min(good[1:]), max(good[1:]))


def _cut(words: str, most: int) -> str:
    return words if len(words) <= most else words[: most - 1].rstrip() + "…"


def _section(report: Json, script: Path, notes: Path, pictures: Path) -> list[str]:
    row = report["row"]
    parts = [f"## {row}", "", f"**{report['title']}**", "", *_about(script), ""]
    for finding in report["findings"]:
        limit = f"{_sign(finding['goal'])} {finding['goal']['limit']:g}"
        parts.append(
            f"- {finding['goal']['what']}: {_measured(finding)}, goal {limit}: {verdict(finding)}"
        )
    parts += ["", *_sides(report, pictures)]
    for number, plot in enumerate(report["details"].get("plots", ()), start=1):
        file = f"{row}-{number}.svg"
        (pictures / file).write_text(plots.drawn(plot), encoding="utf-8")
        parts += [f"![{plot['title']}](benchmarks/{file})", ""]
    parts += note_of(notes, row)
    setting = ", ".join(
        f"{key.replace('_', ' ')} {_value(v)}" for key, v in _flat(report["setting"])
    )
    commit = report["machine"]["commit"]
    parts += [
        f"Settings: {setting}. {_rounds(report['seconds'])}Compared: {report['checked']}. "
        f"[All figures](benchmarks/{row}.json), measured at commit `{commit}`.",
        "",
    ]
    return parts


def note_of(notes: Path, name: str) -> list[str]:
    """Read a hand-written note; an empty list if there is none."""
    file = notes / f"{name}.md"
    return [file.read_text(encoding="utf-8").strip(), ""] if file.is_file() else []


def _about(script: Path) -> list[str]:
    """Return the paragraphs of the script's docstring, except its usage."""
    text = ast.get_docstring(ast.parse(script.read_text(encoding="utf-8"))) or ""
    text = text.replace("``", "`")
    paragraphs = [" ".join(paragraph.split()) for paragraph in text.split("\n\n")]
    kept = [paragraph for paragraph in paragraphs if not paragraph.startswith("Usage")]
    return "\n\n".join(kept).splitlines()


def _sides(report: Json, pictures: Path) -> list[str]:
    """Draw the seconds of each side."""
    sides = {name: values for name, values in report["seconds"].items() if values}
    if not sides:
        return []
    title = f"{report['row']}: seconds of each side, medians and single rounds"
    file = f"{report['row']}.svg"
    (pictures / file).write_text(plots.bars(title, sides), encoding="utf-8")
    return [f"![{title}](benchmarks/{file})", ""]


def _rounds(seconds: Mapping[str, list[float]]) -> str:
    """Say how many rounds each side ran; nothing if the report has no rounds."""
    sides: dict[int, list[str]] = {}
    for side, values in seconds.items():
        if values:
            sides.setdefault(len(values), []).append(side)
    if len(sides) < 2:
        return "".join(f"Rounds: {number}. " for number in sides)
    listed = [f"{number} ({'; '.join(names)})" for number, names in sides.items()]
    return f"Rounds: {', '.join(listed)}. "


def _flat(setting: Json) -> list[tuple[str, Any]]:
    flat: list[tuple[str, Any]] = []
    for key, value in setting.items():
        if isinstance(value, dict):
            flat += [(f"{key} {inner}", nested) for inner, nested in _flat(value)]
        else:
            flat.append((key, value))
    return flat


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return short(value) if isinstance(value, float) else f"{value:,}"
    if isinstance(value, list):
        return " ".join(_value(item) for item in value)
    return str(value)


def main() -> None:
    """Generate the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reports", type=Path, default=REPORTS)
    parser.add_argument("--docs", type=Path, default=_DOCS)
    arguments = parser.parse_args()
    say(f"wrote {written(arguments.reports, arguments.docs)}")


if __name__ == "__main__":
    main()
