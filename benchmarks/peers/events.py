"""The input of every side: the project's clickstream with duplicates and without invalid lines.

Events are in order of arrival, which is close to event time: none is more than five minutes
behind, so that Spark's watermark delay of ten minutes drops no row.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from tidelake.examples.clickstream import PRICED, draw_clicks, price
from tidelake.examples.output import HOUR, MINUTE, SECOND

START = datetime(2026, 1, 5)
DAY = 24 * HOUR
_MOST_BEHIND = 5 * MINUTE
# Modification time of the first file; each following file is one second newer.
_FIRST_FILE = 1_767_600_000


@dataclass(frozen=True)
class Stream:
    """A stream of batches, each a day of event time.

    Attributes:
        events: Lines a batch.
        duplicates: Share of the lines that are duplicates.
        files: Files a batch.
        seed: Random seed of the stream.
    """

    events: int
    duplicates: float = 0.05
    files: int = 10
    seed: int = 1

    def land(self, to: Path, batch: int) -> list[Path]:
        """Write a batch's files unless they exist; return their paths.

        Args:
            to: The folder.
            batch: Number of the batch, which is also its day.
        """
        stem = f"{self.events}-{self.duplicates:g}-s{self.seed}-{batch:03d}"
        paths = [to / f"{stem}-{number:03d}.jsonl" for number in range(self.files)]
        if not all(path.is_file() for path in paths):
            to.mkdir(parents=True, exist_ok=True)
            lines = self._lines(batch)
            size = -(-len(lines) // self.files)
            for number, path in enumerate(paths):
                path.write_bytes(b"".join(lines[number * size : (number + 1) * size]))
                written = _FIRST_FILE + batch * self.files + number
                os.utime(path, (written, written))
        return paths

    def _lines(self, batch: int) -> list[bytes]:
        rng = random.Random(f"peers/{self.seed}/{self.events}/{batch}")
        twice = round(self.events * self.duplicates)
        clicks = draw_clicks(rng, count=self.events - twice, span=DAY)
        day = START + timedelta(days=batch)
        arrivals: list[tuple[int, bytes]] = []
        for click in clicks:
            stamp = day + timedelta(milliseconds=click.at)
            value = price(click.product) if click.action.lower() in PRICED else "null"
            line = (
                f'{{"event_id":"{rng.getrandbits(128):032x}","user_id":"u{click.user:05d}",'
                f'"event_time":"{stamp.isoformat(timespec="milliseconds")}Z",'
                f'"action":"{click.action}","product_id":"p{click.product:04d}","value":{value}}}\n'
            )
            waits = min(20 * SECOND, rng.expovariate(1 / (2 * SECOND)))
            arrivals.append((click.at + int(waits), line.encode()))
        for number in rng.sample(range(len(clicks)), twice):
            at, sent = arrivals[number]
            behind = min(_MOST_BEHIND - 21 * SECOND, rng.expovariate(1 / (30 * SECOND)))
            arrivals.append((at + int(behind) + 1, sent))
        return [line for _, line in sorted(arrivals, key=lambda arrival: arrival[0])]
