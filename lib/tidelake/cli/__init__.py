"""The command line: parse, call, print. Messages go to stderr, results to stdout."""

from __future__ import annotations

import sys

from tidelake.cli.app import app
from tidelake.cli.exits import run_command


def main() -> None:
    """Run ``tidelake`` and exit with the contract's code."""
    sys.exit(run_command(app, sys.argv[1:]))
