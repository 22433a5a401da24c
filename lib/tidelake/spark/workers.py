"""What functions do in Spark's Python workers beside their work."""

from __future__ import annotations

import gc
from functools import cache

import pyarrow as pa

from tidelake.without_pandas import hide_pandas, show_pandas


@cache
def prepare_worker() -> None:
    """Keep pandas out of this process, and its modules out of garbage collections; once is enough.

    A worker collects after each task, and would look at all modules each time: 35 ms of CPU, as
    much as decoding 30,000 records.
    """
    hide_pandas()
    # pyarrow looks for pandas here and not again; functions of users that run here may import it.
    pa.array([0])
    show_pandas()
    gc.freeze()
