"""What functions do in Spark's Python workers beside their work."""

from __future__ import annotations

import gc
from functools import cache


@cache
def leave_loaded_alone() -> None:
    """Exempt what this process has loaded from garbage collections; once is enough.

    A worker collects after each task, and would look at all modules each time: 35 ms of CPU, as
    much as decoding 30,000 records.
    """
    gc.freeze()
