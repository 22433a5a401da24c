"""Raw records to bronze: every payload verbatim, stamped with the moment it was taken."""

from __future__ import annotations

from datetime import datetime

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidelake.sources import HEADERS_DDL

BRONZE_DDL = (
    "record_id string, key binary, payload binary, "
    f"headers {HEADERS_DDL}, source string, source_timestamp timestamp, "
    "ingested_at timestamp, ingest_date date"
)
REQUEUE_DDL = f"{BRONZE_DDL}, reason string, requeued_at timestamp"


def to_bronze(records: DataFrame, *, ingested_at: datetime) -> DataFrame:
    """Stamp identified records with their arrival.

    Args:
        records: The columns of :data:`tidelake.sources.RECORD`.
        ingested_at: One instant (UTC) for the whole batch; never before the last batch's.

    Returns:
        Bronze's columns in their order.
    """
    stamp = F.lit(ingested_at)
    return records.select(
        "record_id",
        "key",
        "payload",
        "headers",
        "source",
        "source_timestamp",
        stamp.alias("ingested_at"),
        F.lit(ingested_at.date()).alias("ingest_date"),
    )


def as_never_requeued(rows: DataFrame) -> DataFrame:
    """Give bronze's rows the requeue's two columns, null, so that both are read alike."""
    return rows.withColumns(
        {
            "reason": F.lit(None).cast("string"),
            "requeued_at": F.lit(None).cast("timestamp"),
        }
    )
