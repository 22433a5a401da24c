"""Ask the broker that bronze was filled from how far its topics have gone."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from tidelake.config import KafkaSource, Pipeline
from tidelake.delta.log import Commit
from tidelake.errors import TidelakeError
from tidelake.kafka.ends import ends_of
from tidelake.kafka.lag import behind
from tidelake.ops.lag import Check, SourceLag, lag_of

# How long a backlog may last where the pipeline file does not say.
_LAG_SECONDS = 300.0


def source_lag(
    pipeline: Pipeline, newest_first: Sequence[Commit], *, now: datetime
) -> SourceLag | None:
    """Tell how far bronze lags behind its topics.

    The tables tell where the records came from: the run may have been given another source than
    the pipeline file has. A broker that is away takes nothing from what was noted.

    Args:
        pipeline: The definition.
        newest_first: Bronze's commits.
        now: The moment, in UTC.

    Returns:
        None where bronze was not filled from Kafka.
    """
    noted = next((commit.note for commit in newest_first if commit.note.get("behind")), None)
    if noted is None:
        return None
    source = pipeline.source
    if not isinstance(source, KafkaSource):
        source = KafkaSource(kind="kafka", bootstrap=noted["bootstrap"])
    asked, not_asked = None, ""
    try:
        ends = ends_of(source, noted["offsets"])
        asked = Check(datetime.now(UTC), noted["offsets"], behind(noted["offsets"], ends))
    except TidelakeError as error:
        not_asked = str(error)
    return lag_of(
        newest_first,
        asked,
        not_asked=not_asked,
        min_partitions=source.min_partitions or 0,
        seconds=pipeline.alerts.lag_seconds or _LAG_SECONDS,
        now=now,
    )
