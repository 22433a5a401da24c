"""SIGKILL of the whole process group at any moment, then a run: the tables as without it."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.comparing import assert_gold_equals_oracle, distinct_events
from tests.running import click, land, read
from tidelake.config import load_environment, load_pipeline
from tidelake.ops.ledger import read_ledger
from tidelake.tables import Lake

_KILLS = int(os.environ.get("TIDELAKE_KILLS", "2"))
_SEED = int(os.environ.get("TIDELAKE_SEED", str(time.time_ns() % 1_000_000)))
# From Spark's start to some time after a run's usual end, so that every step is hit.
_EARLIEST, _LATEST = 3.0, 24.0


def _lines(part: int, chance: random.Random) -> list[bytes]:
    """Write one file's lines, among them copies, garbage and a conflict, none too late."""
    first = part * 40
    lines = [click(n, minute=chance.uniform(0, 600)) for n in range(first, first + 40)]
    lines += [lines[3], b'{"event_id": "cut off', click(first, minute=1, product_id="other")]
    if part:
        lines.append(click(first - 1, minute=2, product_id="other"))
    chance.shuffle(lines)
    return lines


def _start(root: Path, landing: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tidelake.cli", "run", "clickstream"]
    command += ["--root", str(root), "--source", str(landing)]
    # Its own group: the JVM dies with Python, or it would go on committing.
    return subprocess.Popen(
        command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )


def test_a_kill_at_any_moment_changes_nothing(tmp_path: Path) -> None:
    print(f"seed {_SEED}, {_KILLS} kills; repeat with TIDELAKE_SEED={_SEED}")
    chance = random.Random(_SEED)
    root, landing = tmp_path / "lake", tmp_path / "landing"
    delivered: list[bytes] = []
    reached = []
    for part in range(_KILLS):
        lines = _lines(part, chance)
        land(landing, f"part-{part:04d}.jsonl", lines)
        delivered += lines
        process = _start(root, landing)
        moment = chance.uniform(_EARLIEST, _LATEST)
        try:
            process.wait(timeout=moment)
            reached.append("end")
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            reached.append(f"{moment:.1f}s")
        assert process.stderr is not None
        process.stderr.close()
    print(f"killed at: {', '.join(reached)}")

    last = _start(root, landing)
    _, told = last.communicate()
    assert last.returncode == 0, told.decode()

    lake = Lake(root)
    pipeline = load_pipeline(
        "clickstream", load_environment("local", root=str(root)), source=str(landing)
    )
    books = read_ledger(lake, pipeline).to_json()
    assert books["balanced"]
    assert books["source"] == books["bronze"] == len(delivered)
    assert sorted(bytes(row[0]) for row in read(lake, "bronze.clickstream", "payload")) == sorted(
        delivered
    )
    expected = distinct_events(delivered)
    assert read(lake, "silver.clickstream__late", "event_id") == []
    assert [row[0] for row in read(lake, "silver.clickstream", "event_id")] == sorted(
        event["event_id"] for event in expected
    )
    assert_gold_equals_oracle(lake, expected)
