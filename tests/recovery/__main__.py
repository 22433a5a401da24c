"""Run all tests of recovery and all long ones, a file at a time, and go on where a run stopped.

Usage: python -m tests.recovery [--folder DIR] [--workers N] [--only WORDS] [--published] [--list]

A file whose tests passed at this size is not run again until its result in ``--folder`` is deleted;
with ``--published`` the results on the docs' page count too.
Sizes are variables such as ``TIDELAKE_KILLS``; the Makefile has their defaults.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.recovery.reporting import Report, read, table

_TESTS = Path(__file__).parent.parent
_PROJECT = _TESTS.parent
RESULTS = _PROJECT / "build" / "recovery"
PUBLISHED = _PROJECT / "docs" / "recovery.json"
_BREAKS = "tests/recovery/break_tables.py"
# Variables that say how much is tried, as the Makefile sets them.
SIZES = (
    *("KILLS", "RACES", "CORRUPTIONS", "CHAINS", "LEVELS", "EXAMPLES", "GOLD_EXAMPLES", "EDGES"),
    *("OUTAGES", "LOST", "TRANSACTIONS", "KAFKA_EVENTS", "FULL"),
)
_SIZE = re.compile(rf"\bTIDELAKE_(?:{'|'.join(SIZES)})\b")
# What an interrupted part may take until its processes end by themselves.
_GRACE_SECONDS = 60.0


@dataclass
class Part:
    """What came of a file of tests.

    Attributes:
        file: Its path from the project's root.
        sizes: The variables that it reads and that are set.
        is_whole: Its cheap tests run too.
        commit: What was checked out; with ``+`` after it if files differed from it.
        ended: When, in UTC.
        seconds: How long it took.
        passed: The number of tests that passed.
        failed: The names of those that did not.
        left_out: The names of those that the machine could not run.
        reports: What they tried.
    """

    file: str
    sizes: dict[str, str]
    is_whole: bool = True
    commit: str = ""
    ended: str = ""
    seconds: float = 0.0
    passed: int = 0
    failed: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)

    @property
    def stem(self) -> str:
        """The name of its files in the folder of results."""
        return self.file.removeprefix("tests/").removesuffix(".py").replace("/", "-")

    @staticmethod
    def of(content: dict[str, Any]) -> Part:
        """Read one that was kept."""
        return Part(**content | {"reports": [Report(**one) for one in content["reports"]]})


def parts() -> list[Part]:
    """List the files to run: those of recovery first, those with a size, the ones with long tests.

    The first two run whole, of the others the long tests.
    """
    texts = {
        str(file.relative_to(_PROJECT)): file.read_text(encoding="utf-8")
        for file in sorted(_TESTS.rglob("test_*.py"))
    }
    recovery = [file for file in texts if file.startswith("tests/recovery/")]
    sized = [file for file, text in texts.items() if _SIZE.search(text)]
    others = [file for file, text in texts.items() if "pytest.mark.long" in text]
    files = dict.fromkeys([_BREAKS, *recovery, *sized, *others])
    return [
        Part(file, _sizes_of(file), is_whole=file in recovery or file in sized) for file in files
    ]


def kept(folder: Path) -> list[Part]:
    """Read the results in a folder, in the order of :func:`parts`."""
    order = {part.file: number for number, part in enumerate(parts())}
    found = [Part.of(json.loads(file.read_text("utf-8"))) for file in folder.glob("*.json")]
    return sorted(found, key=lambda part: (order.get(part.file, len(order)), part.file))


def keep(part: Part, folder: Path) -> None:
    """Keep a part's result in a folder."""
    content = json.dumps(asdict(part), indent=1) + "\n"
    (folder / f"{part.stem}.json").write_text(content, encoding="utf-8")


def _sizes_of(file: str) -> dict[str, str]:
    names = sorted(set(_SIZE.findall((_PROJECT / file).read_text(encoding="utf-8"))))
    return {name: os.environ[name] for name in names if name in os.environ}


def _commit() -> str:
    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", *words], cwd=_PROJECT, check=False, capture_output=True, text=True
        )
        return done.stdout.strip()

    return git("rev-parse", "--short=8", "HEAD") + ("+" if git("status", "--porcelain") else "")


class _Runs:
    """Parts that run side by side, and how to end them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.is_over = threading.Event()
        self._processes: list[subprocess.Popen[bytes]] = []

    def run(self, part: Part) -> None:
        """Run a part, keep its result and say it."""
        if self.is_over.is_set():
            return
        part.commit = _commit()
        begun = time.monotonic()
        told = self.folder / f"{part.stem}.reports"
        told.unlink(missing_ok=True)
        result = self.folder / f"{part.stem}.xml"
        result.unlink(missing_ok=True)
        with (self.folder / f"{part.stem}.log").open("wb") as log:
            process = subprocess.Popen(
                self._command(part, result),
                cwd=_PROJECT,
                env=os.environ
                | {"TIDELAKE_REPORT": str(told), "TIDELAKE_RESUME": str(self.folder / "kills")},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            self._processes.append(process)
            code = process.wait()
        if self.is_over.is_set():
            return
        part.seconds = round(time.monotonic() - begun, 1)
        part.ended = datetime.now(UTC).strftime("%Y-%m-%d %H:%M")
        part.reports = read(told) if told.exists() else []
        judge(part, result, code)
        keep(part, self.folder)
        failed = f", {len(part.failed)} FAILED: {log.name}" if part.failed else ""
        said = f"{part.file}: {part.passed} passed{failed} in {part.seconds / 60:.1f} minutes"
        print(f"{part.ended}  {said}", flush=True)

    @staticmethod
    def _command(part: Part, result: Path) -> list[str]:
        if part.file == _BREAKS:
            return [sys.executable, "-m", "tests.recovery.break_tables"]
        which = "" if part.is_whole else "long"
        more = ["-p", "no:cacheprovider", f"--junitxml={result}", "-m", which, part.file]
        return [sys.executable, "-m", "pytest", "-s", *more]

    def end(self) -> None:
        """Interrupt what runs; after a grace, kill it."""
        self.is_over.set()
        running = [one for one in self._processes if one.poll() is None]
        for process in running:
            os.killpg(process.pid, signal.SIGINT)
        ends = time.monotonic() + _GRACE_SECONDS
        for process in running:
            try:
                process.wait(max(ends - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)


def judge(part: Part, result: Path, code: int) -> None:
    """Count a part's tests in pytest's report; without one, its exit code is its only test."""
    if not result.exists():
        part.passed, part.failed = (1, []) if code == 0 else (0, [f"exit code {code}"])
        return
    for case in ET.parse(result).iter("testcase"):
        kinds = {child.tag for child in case}
        name = case.attrib["name"]
        if kinds & {"failure", "error"}:
            part.failed.append(name)
        elif "skipped" in kinds:
            part.left_out.append(name)
        else:
            part.passed += 1
    if code != 0 and not part.failed:
        part.failed.append(f"exit code {code}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what has not passed yet; return the exit code."""
    # As Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    asked = argparse.ArgumentParser(prog="python -m tests.recovery")
    asked.add_argument("--folder", type=Path, default=RESULTS, help="where results are kept")
    asked.add_argument("--workers", type=int, default=1, help="files that run at the same time")
    asked.add_argument("--only", default="", help="only files with these words in their path")
    asked.add_argument("--published", action="store_true", help="go on from the docs' results")
    asked.add_argument("--list", action="store_true", help="list the files that would run")
    given = asked.parse_args(arguments)
    folder = given.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    if given.published:
        files = {part.file for part in kept(folder)}
        for part in map(Part.of, json.loads(PUBLISHED.read_text(encoding="utf-8"))):
            if part.file not in files:
                keep(part, folder)
    passed = {one.file: one for one in kept(folder) if not one.failed}
    wanted = [
        part
        for part in parts()
        if given.only in part.file
        and not (part.file in passed and passed[part.file].sizes == part.sizes)
    ]
    if given.list:
        print("\n".join(part.file for part in wanted))
        return 0
    print(f"{len(wanted)} files to run, {len(passed)} passed before, results in {folder}")
    runs = _Runs(folder)
    with ThreadPoolExecutor(given.workers) as pool:
        started = [pool.submit(runs.run, part) for part in wanted]
        try:
            for one in started:
                one.result()
        except KeyboardInterrupt:
            runs.end()
            print("Stopped. The same command goes on with the files that are left.")
            return 130
    found = kept(folder)
    print("\n".join(table([report for part in found for report in part.reports])))
    failed = [f"{part.file}: {name}" for part in found for name in part.failed]
    print(
        "\n".join([*failed, f"{sum(part.passed for part in found)} passed, {len(failed)} failed"])
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
