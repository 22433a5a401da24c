"""Build what a release holds, and leave the repository behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.bundle.project import PROJECT


def build_wheel(into: Path) -> Path:
    """Build the source archive, and from that the wheel; give the latter."""
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
