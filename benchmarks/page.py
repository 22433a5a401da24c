"""How long the live page takes to open on logs of 1,000 commits, and what it costs while idle.

The logs are written by hand, without Spark and without Delta's own checkpoints: the worst case for
every reader. Usage: python -m benchmarks.page [--commits N] [--seconds S] [--lake DIR]
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
# As the page itself asks.
_EVERY = 2.0
# What the page says while a part is missing.
_READING = {
    "the flow": "The hops are being",
    "quarantine and late": "Quarantine is being",
    "the plots": "Its tables are being",
    "the books": "The books are being",
}


@dataclass(frozen=True)
class Page:
    """A server of the page.

    Attributes:
        process: Its number.
        port: Where it listens.
    """

    process: int
    port: int

    def get(self, tag: str | None = None) -> tuple[int, str, str]:
        """Ask for the page; gives status, tag and text."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("GET", "/", headers={"If-None-Match": tag} if tag else {})
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, answer.headers["ETag"], text

    def cpu(self) -> float:
        """Give the seconds of a core that it has used, its threads included."""
        told = Path(f"/proc/{self.process}/stat").read_text().rpartition(")")[2].split()
        return (int(told[11]) + int(told[12])) / _TICKS


@contextmanager
def served(shop: Shop) -> Iterator[Page]:
    """Start the page in a process of its own."""
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
    """Open the page of a server that has read nothing yet, and wait until all parts are there."""
    began, cpu, first = time.monotonic(), page.cpu(), 0.0
    there: dict[str, float] = {}
    while len(there) < len(_READING):
        _, _, text = page.get()
        took = time.monotonic() - began
        first = first or took
        for part, words in _READING.items():
            if words not in text:
                there.setdefault(part, took)
        time.sleep(0.05)
    print(f"first page of a server just started: {first:.2f} s")
    parts = ", ".join(f"{part} {took:.1f} s" for part, took in there.items())
    print(f"parts were there after: {parts}; {page.cpu() - cpu:.1f} s of a core for all")


def open_warm(page: Page) -> None:
    """Open the page where everything was read."""
    took = []
    for _ in range(20):
        began = time.monotonic()
        _, _, text = page.get()
        took.append(time.monotonic() - began)
    median, most = sorted(took)[10] * 1000, max(took) * 1000
    print(
        f"page of a server that has read: median {median:.0f} ms, most {most:.0f} ms, "
        f"{len(text) / 1024:.0f} KiB"
    )


def open_in_a_browser(page: Page) -> None:
    """Open the page in Chromium: until its text is painted and its script has run."""
    from selenium.common.exceptions import WebDriverException  # noqa: PLC0415  of the browser alone
    from tests.browsers import a_browser  # noqa: PLC0415  likewise

    with tempfile.TemporaryDirectory() as profile, a_browser(Path(profile)) as browser:
        paint = "return performance.getEntriesByName('first-contentful-paint')[0].startTime"
        load = "return performance.getEntriesByType('navigation')[0].loadEventEnd"
        for which in ("first time", "again"):
            browser.get(f"http://127.0.0.1:{page.port}/")
            try:
                told = f"painted {browser.execute_script(paint):.0f} ms"
            except WebDriverException:
                told = "painting was not told"
            print(f"in Chromium, {which}: {told}, loaded {browser.execute_script(load):.0f} ms")


def rest(page: Page, seconds: float, *, looked_at: bool) -> None:
    """Measure what nothing costs."""
    _, tag, _ = page.get()
    sent, before, began = 0, page.cpu(), time.monotonic()
    while time.monotonic() - began < seconds:
        if looked_at:
            status, tag, _ = page.get(tag)
            sent += status == 200
        time.sleep(_EVERY)
    share = (page.cpu() - before) / (time.monotonic() - began)
    told = f"open, nothing new ({sent} times sent)" if looked_at else "nobody looks"
    print(f"{told}: {share:.2%} of a core over {seconds:.0f} s")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commits", type=int, default=1000, help="of each table")
    parser.add_argument("--seconds", type=float, default=120, help="of rest")
    parser.add_argument("--lake", type=Path, help="keep the tables here, and use them again")
    asked = parser.parse_args()
    folder = nullcontext(asked.lake) if asked.lake else tempfile.TemporaryDirectory()
    with folder as root:
        shop = Shop(Path(root))
        if not shop.lake.bronze("shop").exists:
            shop.run(asked.commits)
        tables = len(shop.lake.existing())
        print(f"{tables} tables, {asked.commits:,} commits each, none in a Delta checkpoint")
        with served(shop) as page:
            open_cold(page)
            open_warm(page)
            rest(page, asked.seconds, looked_at=True)
            # What somebody looked at is looked at a while longer.
            time.sleep(15)
            rest(page, asked.seconds, looked_at=False)
            open_in_a_browser(page)


if __name__ == "__main__":
    main()
