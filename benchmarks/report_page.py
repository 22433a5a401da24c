"""Write docs/benchmarks.md and its plots from the reports of a run.

What a row measures is told by its script's docstring, what came out of it by people in
benchmarks/notes: P1.md and so on, and summary.md for all of it. None of that is written here, so
that the page can be made again.

Usage: python -m benchmarks.report_page [--reports build/bench] [--docs docs]
"""

from __future__ import annotations

import argparse
import ast
import json
import shutil
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import plots
from benchmarks.measuring import say
from benchmarks.runner import HERE, REPORTS, rows
from benchmarks.svg import short

Found = Mapping[str, Any]
_DOCS = HERE.parent / "docs"
# Figures that stand in one line, and in a table of their own.
_FEW, _MANY = 8, 30

_HEAD = (
    "# Benchmarks\n\nHow fast Tidelake is, held against goals that are ratios: both sides run in "
    "turns on the same rows, their outputs are compared before times count, and medians are told "
    "with the least and the largest of the rounds.\n\nRun all with `make bench`, one with "
    "`make bench B=P1`; `make bench-page` writes this page anew from the reports. What a cluster "
    "needs for more is in [the model of capacity](capacity.md).\n"
)


def written(reports: Path, docs: Path, folder: Path = HERE) -> Path:
    """Write page, plots and the reports' copies; gives the page.

    Args:
        reports: Where a run left its reports.
        docs: The site's folder.
        folder: Where scripts and notes are.

    Raises:
        SystemExit: There is no report: the page that stands would be lost.
    """
    known = rows(folder)
    found = {
        row: json.loads((reports / f"{row}.json").read_text(encoding="utf-8"))
        for row in known
        if (reports / f"{row}.json").is_file()
    }
    if not found:
        raise SystemExit(
            f"{reports} holds no report. Measure with: make bench; or write the page from the "
            f"reports that it has: python -m benchmarks.report_page --reports {docs}/benchmarks"
        )
    places = docs / "benchmarks"
    places.mkdir(parents=True, exist_ok=True)
    for old in places.glob("*.svg"):
        old.unlink()
    summary = _note(folder / "notes", "summary")
    parts = [_HEAD, *summary, _where(found.values()), *_overview(found, known, places)]
    for row, report in found.items():
        if reports.resolve() != places.resolve():
            shutil.copyfile(reports / f"{row}.json", places / f"{row}.json")
        parts += _section(report, folder / f"{known[row]}.py", folder / "notes", places)
    page = docs / "benchmarks.md"
    page.write_text("\n".join(parts).rstrip() + "\n", encoding="utf-8")
    return page


def _where(found: Iterable[Found]) -> str:
    """Describe the machines; most often it is one, and one commit."""
    told: dict[tuple[Any, ...], list[tuple[str, str]]] = {}
    for report in found:
        here = report["machine"]
        key = (here["cores"], here["memory_gb"], here["system"], here["python"], here["commit"])
        told.setdefault(key, []).append((report["row"], here["at"][:10]))
    lines = []
    for (cores, memory, system, python, commit), seen in told.items():
        days = sorted({day for _, day in seen})
        which = "" if len(told) == 1 else f"{', '.join(row for row, _ in seen)}: "
        lines.append(
            f"{which}{cores} cores, {memory:g} GB, {system}, Python {python}; commit "
            f"`{commit}`, {' to '.join({days[0]: 0, days[-1]: 0})}."
        )
    return "\n".join(["Measured on:", "", *[f"- {line}" for line in lines], ""])


def _overview(found: Mapping[str, Found], known: Iterable[str], places: Path) -> list[str]:
    lines = ["| | what | goal | measured | |", "|---|---|---|---|---|"]
    scores = []
    for row in known:
        if row not in found:
            lines.append(f"| {row} | not measured in this run | | | |")
            continue
        for one in found[row]["findings"]:
            goal, measured = one["goal"], _measured(one)
            asked = f"{_sign(goal)} {goal['limit']:g} {goal['unit']}"
            lines.append(
                f"| [{row}](#{row.lower()}) | {goal['what']} | {asked} | {measured} "
                f"| {verdict(one)} |"
            )
            scores.append(score(row, one))
    if not scores:
        return lines
    title = "How each figure stands to its goal"
    (places / "goals.svg").write_text(plots.scores(title, scores), encoding="utf-8")
    return [*lines, "", f"![{title}](benchmarks/goals.svg)", ""]


def verdict(one: Found) -> str:
    """Say whether a goal is met, and by how much not."""
    goal, value = one["goal"], one["value"]
    if not goal["limit"]:
        return "met" if one["met"] else "**not met**"
    off = value / goal["limit"] - 1
    side = "over" if off > 0 else "under"
    return f"{'met' if one['met'] else '**not met**'}, {abs(off):.0%} {side}"


def _sign(goal: Found) -> str:
    return "≥" if goal["at_least"] else "≤"


def _measured(one: Found) -> str:
    unit, told = one["goal"]["unit"], short(one["value"])
    if one["low"] == one["high"]:
        return f"**{told}** {unit}"
    return f"**{told}** {unit} ({short(one['low'])} to {short(one['high'])})"


def score(row: str, one: Found) -> plots.Score:
    """Say how often a figure is as good as asked."""
    goal = one["goal"]
    limit, values = goal["limit"], [one["value"], one["low"], one["high"]]
    if goal["at_least"]:
        good = [value / limit if limit else 1.0 for value in values]
    else:
        # At a limit of 0 every figure is either as good as asked or as bad as can be. One
        # below 0, a difference the other way, is better than any.
        good = [limit / value if value > 0 else 1e9 for value in values]
    label = f"{row}   {goal['what']}, {_sign(goal)} {limit:g} {goal['unit']}"
    told = f"{short(one['value'])} {goal['unit']}"
    return plots.Score(_cut(label, 92), told, good[0], min(good[1:]), max(good[1:]))


def _cut(words: str, most: int) -> str:
    return words if len(words) <= most else words[: most - 1].rstrip() + "…"


def _section(report: Found, script: Path, notes: Path, places: Path) -> list[str]:
    row = report["row"]
    parts = [f"## {row}", "", f"**{report['title']}**", "", *_about(script), ""]
    for one in report["findings"]:
        asked = f"{_sign(one['goal'])} {one['goal']['limit']:g}"
        parts.append(f"- {one['goal']['what']}: {_measured(one)}, asked {asked}: {verdict(one)}")
    parts += ["", f"Checked first: {report['checked']}", ""]
    parts += _sides(report, places)
    parts += _note(notes, row)
    for number, plot in enumerate(report["details"].get("plots", ()), start=1):
        file = f"{row}-{number}.svg"
        (places / file).write_text(plots.drawn(plot), encoding="utf-8")
        parts += [f"![{plot['title']}](benchmarks/{file})", ""]
    setting = ", ".join(
        f"{key.replace('_', ' ')} {_value(v)}" for key, v in _flat(report["setting"])
    )
    parts += [f"Settings: {setting}.", "", *_details(report)]
    commit = report["machine"]["commit"]
    parts += [f"[All numbers](benchmarks/{row}.json), measured at commit `{commit}`.", ""]
    return parts


def _note(notes: Path, name: str) -> list[str]:
    """Read what people wrote; nothing where they did not."""
    file = notes / f"{name}.md"
    return [file.read_text(encoding="utf-8").strip(), ""] if file.is_file() else []


def _about(script: Path) -> list[str]:
    """Take the docstring's paragraphs, but for how to call the script."""
    told = ast.get_docstring(ast.parse(script.read_text(encoding="utf-8"))) or ""
    told = told.replace("``", "`")
    paragraphs = [" ".join(one.split()) for one in told.split("\n\n")]
    kept = [one for one in paragraphs if not one.startswith("Usage")]
    return "\n\n".join(kept).splitlines()


def _sides(report: Found, places: Path) -> list[str]:
    """Tell and draw the seconds of the sides."""
    sides = {name: values for name, values in report["seconds"].items() if values}
    if not sides:
        return []
    lines = ["| side | median | least | largest | rounds |", "|---|---|---|---|---|"]
    for name, values in sides.items():
        told = " | ".join(short(one) for one in (statistics.median(values), *_ends(values)))
        lines.append(f"| {name} | {told} | {len(values)} |")
    title = f"{report['row']}: seconds of each side, medians and single rounds"
    file = f"{report['row']}.svg"
    (places / file).write_text(plots.bars(title, sides), encoding="utf-8")
    return [*lines, "", f"![{title}](benchmarks/{file})", ""]


def _ends(values: Sequence[float]) -> tuple[float, float]:
    return min(values), max(values)


def _details(report: Found) -> list[str]:
    """Put what is small enough of the details into tables; the rest is in the numbers."""
    lines, tables = [], []
    for key, value in report["details"].items():
        words = key.replace("_", " ")
        if isinstance(value, str | int | float):
            lines.append(f"| {words} | {_value(value)} |")
        elif isinstance(value, dict) and 0 < len(value) <= _MANY:
            inner = {k.replace("_", " "): v for k, v in value.items() if not _is_nested(v)}
            if len(inner) < len(value):
                continue
            if len(inner) <= _FEW:
                told = ", ".join(f"{k} {_value(v)}" for k, v in inner.items())
                lines.append(f"| {words} | {told} |")
            else:
                tables += ["", f"| {words} | |", "|---|---|"]
                tables += [f"| {k} | {_value(v)} |" for k, v in inner.items()]
    head = ["| more | |", "|---|---|", *lines] if lines else []
    return [*head, *tables, ""] if head or tables else []


def _is_nested(value: Any) -> bool:
    return not isinstance(value, str | int | float)


def _flat(setting: Found) -> list[tuple[str, Any]]:
    flat: list[tuple[str, Any]] = []
    for key, value in setting.items():
        if isinstance(value, dict):
            flat += [(f"{key} {inner}", one) for inner, one in _flat(value)]
        else:
            flat.append((key, value))
    return flat


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return short(value) if isinstance(value, float) else f"{value:,}"
    if isinstance(value, list):
        return " ".join(_value(one) for one in value)
    return str(value)


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reports", type=Path, default=REPORTS)
    parser.add_argument("--docs", type=Path, default=_DOCS)
    asked = parser.parse_args()
    say(f"wrote {written(asked.reports, asked.docs)}")


if __name__ == "__main__":
    main()
