"""Let ``python -m tidelake.cli`` work where no script is installed."""

from __future__ import annotations

from tidelake.cli import main

if __name__ == "__main__":
    main()
