"""Events into a large gold table, in Polars and deltalake: sums by minute, then the merge alone.

A round takes one Parquet file of events; its folder is the table's. Set `bounded` to false for a
merge as the first page of the manual has it, on the keys and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.peers.polars_pipeline import merge, minutes_of
from benchmarks.peers.rounds import Pipeline, drive


def start() -> Pipeline:
    """Load the libraries."""
    import deltalake  # noqa: F401, PLC0415
    import polars as pl  # noqa: PLC0415

    def pipeline(files: list[Path], out: Path, *, bounded: bool = True) -> Mapping[str, Any]:
        return {"merged": merge(minutes_of(pl.read_parquet(files)), out, bounded=bounded)}

    return pipeline


if __name__ == "__main__":
    drive(__doc__, start)
