"""A disk that is full: the run says so and ends, and goes on where there is room again."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.recovery.deliveries import deliver
from tests.recovery.reporting import Report

pytestmark = pytest.mark.long
_LEVELS = int(os.environ.get("TIDELAKE_LEVELS", "5"))
_SEED = int(os.environ.get("TIDELAKE_SEED", "10"))
_PARTS = 3
# In KiB, from not enough to begin to about what a run takes. Spark copies its jars first.
_SIZES = {"lake": (4, 800), "spill": (8_000, 20_000)}


def test_a_run_on_a_full_disk_ends_by_name_and_goes_on_when_there_is_room(
    tmp_path: Path, report: Callable[..., Report]
) -> None:
    told = report("full disk: tables, checkpoints, spills", tried=_LEVELS, seed=_SEED, full=50)
    chance = random.Random(_SEED)
    for level in range(_LEVELS):
        folder = tmp_path / str(level)
        for part in range(_PARTS):
            deliver(folder, part, _SEED)
        disk = chance.choice(["lake", "lake", "lake", "spill"])
        least, most = _SIZES[disk]
        kibibytes = round(least * (most / least) ** chance.random())
        made = subprocess.run(
            [
                *["unshare", "--map-root-user", "--mount", sys.executable],
                *["-m", "tests.recovery.disk", str(folder), disk],
                *[str(kibibytes), str(_SEED), str(_PARTS)],
            ],
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=False,
        )
        assert made.returncode == 0, made.stderr
        first = json.loads(made.stdout.splitlines()[-1])
        print(f"{disk} of {kibibytes} KiB: exit {first['code']}: {first['said'].splitlines()[-2:]}")
        assert "Traceback" not in first["said"]
        if first["code"] == 0:
            continue
        told.reached += 1
        told.refused += 1
        assert first["code"] in (1, 4), first
        assert re.search(r"^tidelake: .*No space left on device", first["said"], re.MULTILINE)
