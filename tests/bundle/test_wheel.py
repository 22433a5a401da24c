"""The wheel, as somebody gets it who has nothing but Python and Java."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from tests.bundle.project import PROJECT, read_package
from tidelake.spark.jars import read_lock


def built(into: Path) -> Path:
    """Build the source archive, and from that the wheel."""
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", into, PROJECT],
        check=True,
        env=os.environ | {"SOURCE_DATE_EPOCH": "1767225600"},
        capture_output=True,
    )
    (wheel,) = into.glob("*.whl")
    return wheel


def outside() -> dict[str, str]:
    """Give the surroundings of somebody who never saw the repository."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("TIDELAKE", "PYTHON", "VIRTUAL_ENV", "COV"))
    }


def test_the_same_commit_gives_the_same_bytes_with_all_of_conf(tmp_path: Path) -> None:
    first, second = built(tmp_path / "a"), built(tmp_path / "b")

    assert first.read_bytes() == second.read_bytes()
    archives = [next((tmp_path / side).glob("*.tar.gz")).read_bytes() for side in "ab"]
    assert archives[0] == archives[1]
    with zipfile.ZipFile(first) as archive:
        held = set(archive.namelist())
        scripts = archive.read(next(n for n in held if n.endswith("entry_points.txt"))).decode()
    conf = [file for file in (PROJECT / "conf").rglob("*") if file.is_file()]
    assert {f"tidelake/conf/{file.relative_to(PROJECT / 'conf')}" for file in conf} <= held
    assert not [name for name in held if name.startswith(("tests/", "resources/", "docs/"))]
    assert all(f"{name} = " in scripts for name in read_package()["scripts"])


@pytest.mark.long
def test_the_demo_runs_from_the_wheel_in_an_empty_folder(tmp_path: Path) -> None:
    wheel = built(tmp_path / "dist")
    venv.create(tmp_path / "env", with_pip=True)
    # pip takes no hashes in constraints; versions are what matters here.
    lock = (PROJECT / "requirements-runtime.lock").read_text(encoding="utf-8")
    constraints = tmp_path / "constraints.txt"
    constraints.write_text("\n".join(re.findall(r"^[a-z0-9][^\\\n]*", lock, re.MULTILINE)))
    folder = tmp_path / "empty"
    folder.mkdir()
    surroundings = outside() | {"TIDELAKE_JARS": str(tmp_path / "jars")}
    python = tmp_path / "env" / "bin" / "python"
    subprocess.run(
        [python, "-m", "pip", "install", "-q", "-c", constraints, f"{wheel}[local]"],
        check=True,
        env=surroundings,
        cwd=folder,
    )

    demo = subprocess.run(
        [tmp_path / "env" / "bin" / "tidelake", "demo", "--events", "2000"],
        env=surroundings,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )

    assert demo.returncode == 0, demo.stderr
    assert "Ledger of clickstream: balanced" in demo.stdout
    assert (folder / "lakehouse" / "gold" / "user_sessions" / "_delta_log").is_dir()
    assert len([*(tmp_path / "jars").glob("*.jar")]) == len(read_lock())
