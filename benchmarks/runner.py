"""Run rows of the benchmarks in sequence, each in a separate process.

Reports go to build/bench. A row that fails does not stop the others; it is reported at the end.

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
# Timeout of a row (the longest runs the fast lane for ten minutes), and of its own cleanup.
_PATIENCE_SECONDS, _ORDER_SECONDS = 2400, 60


@dataclass(frozen=True)
class Ended:
    """The result of a script.

    Attributes:
        name: The row, or the module.
        seconds: Elapsed seconds.
        failure: What failed; empty on success.
        figures: Its figures, one line each.
    """

    name: str
    seconds: float
    failure: str
    figures: tuple[str, ...] = ()


def rows(folder: Path = HERE) -> dict[str, str]:
    """Return the module of each row: ``P1`` is ``p01_…``."""
    names = sorted(path.stem for path in folder.glob("p[0-9][0-9]_*.py"))
    return {f"P{int(match[1])}": name for name in names if (match := _ROW.fullmatch(name))}


def chosen(names: Sequence[str], known: Mapping[str, str], folder: Path = HERE) -> dict[str, str]:
    """Return the modules for row or module names; without names all rows.

    Raises:
        SystemExit: There is no such row or module.
    """
    if not names:
        return dict(known)
    found: dict[str, str] = {}
    for name in names:
        row = name.upper()
        if row in known:
            found[row] = known[row]
        elif name.isidentifier() and (folder / f"{name}.py").is_file():
            found[name] = name
        else:
            available = ", ".join(known)
            raise SystemExit(f"there is no benchmark {name}: name one of {available}, or a module")
    return found


def run(name: str, module: str, reports: Path, options: Sequence[str]) -> Ended:
    """Run one script, after deleting the row's report of an earlier run."""
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
    return Ended(name, seconds, failure, () if failure else _figures(report))


def _ended(command: Sequence[str]) -> str:
    """Run a command in its own process group, end the group, and return the failure if any."""
    process = subprocess.Popen(command, cwd=HERE.parent, start_new_session=True)
    try:
        code = process.wait(_PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        return f"did not end within {_PATIENCE_SECONDS} s"
    finally:
        _end_group(process)
    return f"ended with {code}" if code else ""


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Terminate a script that still runs, so that it stops its children, then kill its group."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_ORDER_SECONDS)
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


def _figures(report: Path) -> tuple[str, ...]:
    found = json.loads(report.read_text(encoding="utf-8"))["findings"]
    lines = []
    for finding in found:
        goal, verdict = finding["goal"], "met" if finding["met"] else "NOT MET"
        sign = "≥" if goal["at_least"] else "≤"
        limit = f"goal {sign} {goal['limit']:g} {goal['unit']}"
        lines.append(f"{goal['what']}: {finding['value']:,.2f}, {limit}: {verdict}")
    return tuple(lines)


def main() -> None:
    """Run the given rows and modules, and print a summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="rows (P1) or modules (burst); default: all rows")
    parser.add_argument("--reports", type=Path, default=REPORTS, help="directory of the reports")
    words = sys.argv[1:]
    cut = words.index("--") if "--" in words else len(words)
    arguments, options = parser.parse_args(words[:cut]), words[cut + 1 :]
    wanted = chosen(arguments.names, rows())
    arguments.reports.mkdir(parents=True, exist_ok=True)
    end_in_order()
    results = []
    for number, (name, module) in enumerate(wanted.items(), start=1):
        say(f"== {name} ({number} of {len(wanted)}): {module}, {time.strftime('%H:%M:%S')}")
        results.append(run(name, module, arguments.reports.resolve(), options))
    say("== all")
    for result in results:
        say(f"{result.name:<8} {result.seconds:6.0f} s  {result.failure or 'done'}")
        for line in result.figures:
            say(f"           {line}")
    failed = [result.name for result in results if result.failure]
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
