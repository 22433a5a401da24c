"""How long the live page takes to open on logs of 1,000 commits, and its CPU time while idle.

The logs are written without Spark and without Delta checkpoints, the worst case for every reader.

Usage: python -m benchmarks.page [--commits N] [--seconds S] [--lake DIR]
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path

from tests.shops import Shop

_TICKS = os.sysconf("SC_CLK_TCK")
# Polling interval of the page's own script.
_EVERY = 2.0
# Placeholder texts of parts that are not read yet.
_PLACEHOLDERS = {
    "the flow": "The hops are being",
    "quarantine and late": "Quarantine is being",
    "the plots": "The gold tables are being",
    "the ledger": "The ledger is being",
}


@dataclass(frozen=True)
class Page:
    """A running page server.

    Attributes:
        process: Process id.
        port: Port it listens on.
    """

    process: int
    port: int

    def get(self, tag: str | None = None) -> tuple[int, str, str]:
        """Request the page; return status, ETag and text."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("GET", "/", headers={"If-None-Match": tag} if tag else {})
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, answer.headers["ETag"], text

    def cpu(self) -> float:
        """Return the CPU seconds of the server with all its threads."""
        fields = Path(f"/proc/{self.process}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS


@contextmanager
def served(shop: Shop) -> Iterator[Page]:
    """Start the page server in a separate process."""
    command = [sys.executable, "-m", "tidelake.cli", "ui", str(shop.file), "--port", "0"]
    with subprocess.Popen(
        [*command, "--root", str(shop.root)], stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stderr is not None
            found = re.search(r":(\d+)/", process.stderr.readline())
            assert found
            yield Page(process.pid, int(found[1]))
        finally:
            process.send_signal(signal.SIGINT)


def open_cold(page: Page) -> None:
    """Open the page right after the server's start, and wait until all parts are shown."""
    began, cpu, first = time.monotonic(), page.cpu(), 0.0
    shown: dict[str, float] = {}
    while len(shown) < len(_PLACEHOLDERS):
        _, _, text = page.get()
        took = time.monotonic() - began
        first = first or took
        for part, placeholder in _PLACEHOLDERS.items():
            if placeholder not in text:
                shown.setdefault(part, took)
        time.sleep(0.05)
    print(f"first page after the server's start: {first:.2f} s")
    parts = ", ".join(f"{part} {took:.1f} s" for part, took in shown.items())
    print(f"parts shown after: {parts}; {page.cpu() - cpu:.1f} CPU seconds for all")


def open_warm(page: Page) -> None:
    """Open the page after the server has read everything."""
    took = []
    for _ in range(20):
        began = time.monotonic()
        _, _, text = page.get()
        took.append(time.monotonic() - began)
    median, most = sorted(took)[10] * 1000, max(took) * 1000
    print(
        f"page of a warm server: median {median:.0f} ms, largest {most:.0f} ms, "
        f"{len(text) / 1024:.0f} KiB"
    )


def open_in_a_browser(page: Page) -> None:
    """Open the page in Chromium, until its text is painted and its script has run."""
    from selenium.common.exceptions import WebDriverException  # noqa: PLC0415  only for the browser
    from tests.browsers import a_browser  # noqa: PLC0415  same

    with tempfile.TemporaryDirectory() as profile, a_browser(Path(profile)) as browser:
        paint = "return performance.getEntriesByName('first-contentful-paint')[0].startTime"
        load = "return performance.getEntriesByType('navigation')[0].loadEventEnd"
        for which in ("first time", "again"):
            browser.get(f"http://127.0.0.1:{page.port}/")
            try:
                painted = f"painted {browser.execute_script(paint):.0f} ms"
            except WebDriverException:
                painted = "no paint time reported"
            print(f"in Chromium, {which}: {painted}, loaded {browser.execute_script(load):.0f} ms")


def rest(page: Page, seconds: float, *, viewed: bool) -> None:
    """Measure the CPU share of a server on unchanged tables."""
    _, tag, _ = page.get()
    sent, before, began = 0, page.cpu(), time.monotonic()
    while time.monotonic() - began < seconds:
        if viewed:
            status, tag, _ = page.get(tag)
            sent += status == 200
        time.sleep(_EVERY)
    share = (page.cpu() - before) / (time.monotonic() - began)
    state = f"open page, no changes ({sent} full responses)" if viewed else "no open page"
    print(f"{state}: {share:.2%} of a core over {seconds:.0f} s")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commits", type=int, default=1000, help="commits of each table")
    parser.add_argument(
        "--seconds", type=float, default=120, help="seconds of each idle measurement"
    )
    parser.add_argument("--lake", type=Path, help="keep the tables here and reuse them")
    options = parser.parse_args()
    folder = nullcontext(options.lake) if options.lake else tempfile.TemporaryDirectory()
    with folder as root:
        shop = Shop(Path(root))
        if not shop.lake.bronze("shop").exists:
            shop.run(options.commits)
        tables = len(shop.lake.existing())
        print(f"{tables} tables, {options.commits:,} commits each, none in a Delta checkpoint")
        with served(shop) as page:
            open_cold(page)
            open_warm(page)
            rest(page, options.seconds, viewed=True)
            # The server keeps reading for a while after the last request.
            time.sleep(15)
            rest(page, options.seconds, viewed=False)
            open_in_a_browser(page)


if __name__ == "__main__":
    main()
