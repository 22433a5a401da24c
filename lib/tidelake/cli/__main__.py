"""Run the command line as ``python -m tidelake.cli``."""

from __future__ import annotations

from tidelake.cli import main

if __name__ == "__main__":
    main()
