"""What functions do in Spark's Python workers beside their work."""

from __future__ import annotations

import gc
from functools import cache

import pyarrow as pa

from tidelake.without_pandas import hide_pandas, is_left_out_of_workers, show_pandas


@cache
def prepare_worker() -> None:
    """Keep modules out of garbage collections, and pandas out of this process if it is not used.

    A worker collects after each task, and would look at all modules each time: 35 ms of CPU, as
    much as decoding 30,000 records.
    """
    if is_left_out_of_workers():
        hide_pandas()
        # pyarrow looks for pandas here and not again: in this process it takes no null of pandas
        # inside of a list or struct.
        pa.array([0])
        show_pandas()
    gc.freeze()
