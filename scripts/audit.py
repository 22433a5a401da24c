"""Ask for known vulnerabilities of every pinned package.

Exit 0: none is known. 3: some are. 4: some packages could not be asked about, so that nothing is
known; pip-audit itself calls that a success.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
LOCKS = ("requirements.lock", "requirements-release.lock", "docs/requirements.lock")
FOUND, UNKNOWN = 3, 4


@dataclass(frozen=True)
class Audit:
    """What is known of a lock's packages.

    Attributes:
        asked: How many were asked about.
        found: A line a vulnerability.
        unknown: A line a package that could not be asked about.
    """

    asked: int
    found: tuple[str, ...]
    unknown: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        """What the answer means; what is found counts even where not all is known."""
        if self.found:
            return FOUND
        return UNKNOWN if self.unknown or not self.asked else 0


def read_answer(text: str) -> Audit:
    """Read what pip-audit prints as JSON.

    Raises:
        ValueError: It is none.
    """
    packages = json.loads(text)["dependencies"]
    return Audit(
        asked=sum("skip_reason" not in one for one in packages),
        found=tuple(
            f"{one['name']} {one['version']}: {bug['id']}, "
            f"fixed in {', '.join(bug['fix_versions']) or 'no version'}"
            for one in packages
            for bug in one.get("vulns", [])
        ),
        unknown=tuple(
            f"{one['name']}: {one['skip_reason']}" for one in packages if "skip_reason" in one
        ),
    )


def ask(lock: str) -> Audit:
    """Run pip-audit on a lock; one that answers nothing leaves everything unknown."""
    command: Sequence[str] = (
        *(sys.executable, "-m", "pip_audit", "--format", "json", "--progress-spinner", "off"),
        *("--require-hashes", "--disable-pip", "--requirement", str(PROJECT / lock)),
    )
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        return read_answer(ended.stdout)
    except ValueError:
        words = ended.stderr.strip().splitlines() or ["no answer"]
        return Audit(0, (), (words[-1],))


def main() -> None:
    """Ask about every lock, tell what came of it, and exit with the worst."""
    codes = []
    for lock in LOCKS:
        audit = ask(lock)
        codes.append(audit.exit_code)
        print(f"{lock}: {audit.asked} packages asked about, {len(audit.found)} vulnerabilities")
        for line in audit.found:
            print(f"  {line}")
        if audit.unknown:
            print(
                f"audit: {lock}: {len(audit.unknown)} could not be asked about, the first is "
                f"{audit.unknown[0]}. Try again where the advisory service can be reached.",
                file=sys.stderr,
            )
    sys.exit(FOUND if FOUND in codes else max(codes))


if __name__ == "__main__":
    main()
