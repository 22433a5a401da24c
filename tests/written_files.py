"""Write events of the clickstream into files that are not lines of text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from io import BytesIO
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq

from tests.running import START, event

_AVRO_TYPES = {
    "event_time": {"type": "long", "logicalType": "timestamp-micros"},
    "value": ["null", {"type": "bytes", "logicalType": "decimal", "precision": 18, "scale": 2}],
}
_PARQUET_TYPES = {"event_time": pa.timestamp("us", "UTC"), "value": pa.decimal128(18, 2)}


def typed_events(numbers: Sequence[int], **more: Any) -> list[dict[str, Any]]:
    """Make events of the clickstream with values of Python, some fields added."""
    found = [event(number, START + timedelta(minutes=number)) | more for number in numbers]
    for one in found:
        one["event_time"] = datetime.fromisoformat(one["event_time"]).astimezone(UTC)
        if one["value"] is not None:
            one["value"] = Decimal(str(one["value"])).quantize(Decimal("0.01"))
    return found


def to_parquet(events: Sequence[dict[str, Any]]) -> bytes:
    """Write events as a Parquet file of several row groups."""
    names = events[0] if events else event(0, START)
    schema = pa.schema([(name, _PARQUET_TYPES.get(name, pa.string())) for name in names])
    written = BytesIO()
    pq.write_table(pa.Table.from_pylist(list(events), schema), written, row_group_size=2)
    return written.getvalue()


def to_avro(events: Sequence[dict[str, Any]]) -> bytes:
    """Write events as an Avro container file of several blocks."""
    names = events[0] if events else event(0, START)
    fields = [{"name": name, "type": _AVRO_TYPES.get(name, "string")} for name in names]
    written = BytesIO()
    schema = {"type": "record", "name": "Click", "fields": fields}
    fastavro.writer(written, schema, events, codec="deflate", sync_interval=100)
    return written.getvalue()


WRITERS: dict[str, Callable[[Sequence[dict[str, Any]]], bytes]] = {
    "parquet": to_parquet,
    "avro": to_avro,
}
