"""Tell before Spark starts whether a run will have little to do."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from tidelake.config import FilesSource, Pipeline
from tidelake.delta.log import last_commit
from tidelake.delta.notes import position
from tidelake.delta.positions import bytes_between
from tidelake.delta.tables import Lake
from tidelake.errors import SourceError
from tidelake.runtime.landing import list_files
from tidelake.spark.tuning import BRIEF_RUN_BYTES

# A file may be written for a while before it lands, and clocks differ.
_BEFORE = timedelta(hours=1)


def little_waits(lake: Lake, pipeline: Pipeline) -> bool:
    """Tell whether few bytes wait for the hops; False where nobody can tell without asking.

    A hint: files of the last hour may have been taken already, and older ones copied in late.

    Args:
        lake: Where the tables are.
        pipeline: Whose hops.
    """
    if lake.catalog is not None or not isinstance(pipeline.source, FilesSource):
        return False
    bronze, silver = lake.bronze(pipeline.name), lake.silver(pipeline.name)
    last = last_commit(bronze)
    since = None if last is None else last.written_at - _BEFORE
    try:
        offered = list_files(pipeline.source.path).values()
    except SourceError:
        return False
    landed = sum(file.size for file in offered if since is None or _came(file.modified) >= since)
    if landed > BRIEF_RUN_BYTES:
        return False
    for_silver = bytes_between(bronze, position(last_commit(silver), "bronze"))
    golds = (lake.table(name) for name in pipeline.gold_names)
    for_gold = max(
        (bytes_between(silver, position(last_commit(one), "silver")) for one in golds), default=0
    )
    return landed + for_silver + for_gold <= BRIEF_RUN_BYTES


def _came(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, tz=UTC)
