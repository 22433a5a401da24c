"""Make the small lake of tests/data by the code of an earlier commit, with its command line.

``python -m tests.earlier_lake COMMIT`` makes the archive again. This file imports nothing of
Tidelake's, whose modules have moved since.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml

PROJECT = Path(__file__).parents[1]
ARCHIVE = Path(__file__).parent / "data" / "lake-958509e.tar.xz"
START = datetime(2026, 1, 5, tzinfo=UTC)
# Of the reference pipeline: each kind of window that merges in its own way, and the join.
_GOLD = ("user_activity_1m", "user_sessions", "product_totals")
_DAY = 24 * 60
PARTS = 4
_PART = 60
LONG_NAME = "u" * 65
_LATE_DAYS = 2


def line(number: int, *, minute: float, **changes: object) -> bytes:
    """Write one event of user ``number % 5``, so many minutes after the start."""
    when = (START + timedelta(minutes=minute)).isoformat(timespec="milliseconds")
    values = {
        "event_id": f"e{number}",
        "user_id": f"u{number % 5}",
        "event_time": when.replace("+00:00", "Z"),
        "action": ("view", "Click", "purchase", "bot")[number % 4],
        "product_id": f"p{number % 3}",
        "value": number % 4 * 10.25 if number % 4 else None,
    }
    return json.dumps(values | changes).encode()


def own(number: int, **changes: object) -> bytes:
    """Write an event that is on time; its minute follows from its number."""
    return line(number, minute=3 * _DAY + 1.5 * number, **changes)


def lines(part: int) -> list[bytes]:
    """Write a file of every fate; from the second on, some rows repeat earlier events."""
    first = part * _PART
    found = [*(own(number) for number in range(first, first + _PART)), b"garbage %d" % part]
    if part:
        found += [own(number) for number in range(first - 3, first + 1)]
        found += [own(0), own(1, product_id="other"), own(first - 9, product_id="other")]
        late = 900 + 10 * part
        found += [line(late + n, minute=(n % _LATE_DAYS) * _DAY + n) for n in range(4)]
        found += [own(800 + part, value="12,50"), own(810 + part, value=-1)]
        found += [own(820 + part, user_id=LONG_NAME), own(830 + part, action=None)]
    return found


def pack(folder: Path, archive: Path) -> None:
    """Write the files of a folder into an archive."""
    with tarfile.open(archive, "w:xz", preset=9) as packed:
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                packed.add(file, file.relative_to(folder))


def unpack(folder: Path) -> None:
    """Unpack the lake ``lake``, its definition and its expectations into a folder."""
    with tarfile.open(ARCHIVE) as packed:
        packed.extractall(folder, filter="data")


def make(code: Path, archive: Path) -> None:
    """Make the lake and pack it.

    Args:
        code: The checked out project whose ``lib`` makes it.
        archive: Is written.
    """
    with tempfile.TemporaryDirectory(prefix="earlier-lake-") as scratch:
        folder = Path(scratch)
        landing = folder / "landing"
        _write_conf(code, folder)

        def land(*parts: int) -> None:
            for part in parts:
                _land(landing, f"{part}.jsonl", lines(part))

        # The code that made the archive in tests/ called this --event-date.
        day = ("--start", f"{START:%F}", "--end", f"{START + timedelta(days=1):%F}")

        def tidelake(*arguments: str) -> None:
            _tidelake(code, folder, *arguments)

        land(0, 1)
        tidelake("run", "clickstream")
        _loosen(folder / "conf" / "expectations" / "clickstream.yml")
        tidelake("quarantine", "replay", "clickstream", "--rule", "user_id: ")
        tidelake("late", "apply", "clickstream", *day)
        tidelake("run", "clickstream")
        tidelake("backfill", "run", "clickstream")
        tidelake("backfill", "promote", "clickstream")
        land(2, 3)
        tidelake("run", "clickstream")
        # These wait in the requeue, for the code of a later day.
        tidelake("late", "apply", "clickstream", *day)
        tidelake("ledger", "clickstream")
        tidelake("verify", "clickstream")

        kept = folder / "kept"
        shutil.move(folder / "lake", kept / "lake")
        shutil.move(folder / "conf" / "pipelines" / "clickstream.yml", kept)
        shutil.move(folder / "conf" / "expectations", kept / "expectations")
        pack(kept, archive)


def _land(folder: Path, name: str, content: Iterable[bytes]) -> None:
    folder.mkdir(exist_ok=True)
    hidden = folder / f".{name}"
    hidden.write_bytes(b"".join(one + b"\n" for one in content))
    hidden.rename(folder / name)


def _write_conf(code: Path, folder: Path) -> None:
    """Copy that code's configuration, with few gold tables and small batches."""
    conf = folder / "conf"
    shutil.copytree(code / "conf", conf)
    file = conf / "pipelines" / "clickstream.yml"
    content = _read(file)
    content = {key: value for key, value in content.items() if key not in ("enrich", "comments")}
    content["source"] |= {"path": str(folder / "landing"), "max_files_per_trigger": 1}
    content["gold"] = [one for one in content["gold"] if one["name"] in _GOLD]
    _write(file, content)
    for other in file.parent.glob("*.yml"):
        if other != file:
            other.unlink()
    for other in (conf / "expectations").glob("*.yml"):
        if other.name != file.name:
            other.unlink()
    suite = conf / "expectations" / file.name
    _write(suite, _read(suite) | {"gold": {}})
    local = conf / "environments" / "local.yml"
    _write(local, _read(local) | {"limits": {"silver_bytes": "1k", "gold_bytes": "1k"}})


def _loosen(suite: Path) -> None:
    """Raise the suite's limit on the length of names of users."""
    content = _read(suite)
    for one in content["expectations"]:
        if one["type"] == "expect_column_value_lengths_to_be_between":
            one["kwargs"]["max_value"] = 2 * len(LONG_NAME)
    _write(suite, content)


def _read(file: Path) -> dict[str, Any]:
    return dict(yaml.safe_load(file.read_text(encoding="utf-8")))


def _write(file: Path, content: Mapping[str, Any]) -> None:
    file.write_text(yaml.safe_dump(dict(content), sort_keys=False), encoding="utf-8")


def _tidelake(code: Path, folder: Path, *arguments: str) -> None:
    command = [sys.executable, "-m", "tidelake.cli", *arguments, "--root", str(folder / "lake")]
    environment = {**os.environ, "PYTHONPATH": str(code / "lib")}
    subprocess.run(command, cwd=folder, env=environment, check=True)


def _main(commit: str) -> None:
    with tempfile.TemporaryDirectory(prefix="earlier-code-") as scratch:
        code = Path(scratch) / "code"
        git = ["git", "-C", str(PROJECT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(code), commit], check=True)
        try:
            make(code, ARCHIVE.with_name(f"lake-{commit}.tar.xz"))
        finally:
            subprocess.run([*git, "remove", "--force", str(code)], check=True)


if __name__ == "__main__":
    _main(sys.argv[1])
