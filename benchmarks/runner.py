"""Run rows of the benchmarks, one after the other, each in a process of its own.

Each report goes to build/bench; a row that fails is told at the end, and the others go on.

Usage: python -m benchmarks.runner [P1 p7 burst ...] [--reports DIR] [-- OPTIONS OF THE ROWS]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measuring import end_in_order, say

HERE = Path(__file__).parent
REPORTS = HERE.parent / "build" / "bench"
_ROW = re.compile(r"p(\d\d)_\w+")
# What a row takes at most: the longest lets a lane run for ten minutes.
_PATIENCE_SECONDS, _ORDER_SECONDS = 2400, 60


@dataclass(frozen=True)
class Ended:
    """How a script ended.

    Attributes:
        name: The row, or the module.
        seconds: What it took.
        failure: What went wrong; empty where nothing did.
        told: Its figures, a line each.
    """

    name: str
    seconds: float
    failure: str
    told: tuple[str, ...] = ()


def rows(folder: Path = HERE) -> dict[str, str]:
    """Give the module of each row: ``P1`` is ``p01_…``."""
    names = sorted(path.stem for path in folder.glob("p[0-9][0-9]_*.py"))
    return {f"P{int(match[1])}": name for name in names if (match := _ROW.fullmatch(name))}


def chosen(words: Sequence[str], known: Mapping[str, str], folder: Path = HERE) -> dict[str, str]:
    """Give the modules that words ask for, rows or modules by name; without words all rows.

    Raises:
        SystemExit: There is no such script.
    """
    if not words:
        return dict(known)
    found: dict[str, str] = {}
    for word in words:
        row = word.upper()
        if row in known:
            found[row] = known[row]
        elif word.isidentifier() and (folder / f"{word}.py").is_file():
            found[word] = word
        else:
            there = ", ".join(known)
            raise SystemExit(f"there is no benchmark {word}: name one of {there}, or a module")
    return found


def run(name: str, module: str, reports: Path, options: Sequence[str]) -> Ended:
    """Run one script; what an earlier run of the row reported is removed before."""
    command = [sys.executable, "-m", f"benchmarks.{module}", *options]
    report = reports / f"{name}.json"
    if _ROW.fullmatch(module):
        report.unlink(missing_ok=True)
        command += ["--json", str(report)]
    began = time.monotonic()
    failure = _ended(command)
    seconds = time.monotonic() - began
    if not _ROW.fullmatch(module):
        return Ended(name, seconds, failure)
    if not failure and not report.is_file():
        failure = "wrote no report"
    return Ended(name, seconds, failure, () if failure else _told(report))


def _ended(command: Sequence[str]) -> str:
    """Run a command in a process group of its own, so that nothing of it stays; say what failed."""
    process = subprocess.Popen(command, cwd=HERE.parent, start_new_session=True)
    try:
        code = process.wait(_PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        return f"did not end within {_PATIENCE_SECONDS} s"
    finally:
        _end_group(process)
    return f"ended with {code}" if code else ""


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Let a script that still runs stop what it started, then end what is left of its group."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_ORDER_SECONDS)
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


def _told(report: Path) -> tuple[str, ...]:
    found = json.loads(report.read_text(encoding="utf-8"))["findings"]
    lines = []
    for one in found:
        goal, verdict = one["goal"], "met" if one["met"] else "NOT MET"
        sign = "≥" if goal["at_least"] else "≤"
        asked = f"asked {sign} {goal['limit']:g} {goal['unit']}"
        lines.append(f"{goal['what']}: {one['value']:,.2f}, {asked}: {verdict}")
    return tuple(lines)


def main() -> None:
    """Run what was asked for, and sum up."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="rows (P1) or modules (burst); without, all rows")
    parser.add_argument("--reports", type=Path, default=REPORTS, help="where reports go")
    words = sys.argv[1:]
    cut = words.index("--") if "--" in words else len(words)
    asked, options = parser.parse_args(words[:cut]), words[cut + 1 :]
    wanted = chosen(asked.names, rows())
    asked.reports.mkdir(parents=True, exist_ok=True)
    end_in_order()
    ended = []
    for number, (name, module) in enumerate(wanted.items(), start=1):
        say(f"== {name} ({number} of {len(wanted)}): {module}, {time.strftime('%H:%M:%S')}")
        ended.append(run(name, module, asked.reports.resolve(), options))
    say("== all")
    for one in ended:
        say(f"{one.name:<8} {one.seconds:6.0f} s  {one.failure or 'done'}")
        for line in one.told:
            say(f"           {line}")
    failed = [one.name for one in ended if one.failure]
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
