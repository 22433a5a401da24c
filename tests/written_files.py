"""Write events of the clickstream into files of each format."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from io import BytesIO
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq

from tests.changes import line, postgres, with_schema
from tests.running import START, event

Event = dict[str, Any]

_AVRO_TYPES = {
    "event_id": ["null", "string"],
    "event_time": {"type": "long", "logicalType": "timestamp-micros"},
    "value": ["null", {"type": "bytes", "logicalType": "decimal", "precision": 18, "scale": 2}],
}
_PARQUET_TYPES = {"event_time": pa.timestamp("us", "UTC"), "value": pa.decimal128(18, 2)}
_ARCHIVES: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "zst": lambda content: pa.compress(content, "zstd", asbytes=True),
}


def typed_events(numbers: Sequence[int], **more: Any) -> list[Event]:
    """Make events of the clickstream with values of Python, some fields added."""
    found = [event(number, START + timedelta(minutes=number)) | more for number in numbers]
    for one in found:
        one["event_time"] = datetime.fromisoformat(one["event_time"]).astimezone(UTC)
        if one["value"] is not None:
            one["value"] = Decimal(str(one["value"])).quantize(Decimal("0.01"))
    return found


def to_parquet(events: Sequence[Event]) -> bytes:
    """Write events as a Parquet file of several row groups."""
    names = events[0] if events else event(0, START)
    schema = pa.schema([(name, _PARQUET_TYPES.get(name, pa.string())) for name in names])
    written = BytesIO()
    pq.write_table(pa.Table.from_pylist(list(events), schema), written, row_group_size=2)
    return written.getvalue()


def to_avro(events: Sequence[Event]) -> bytes:
    """Write events as an Avro container file of several blocks."""
    names = events[0] if events else event(0, START)
    fields = [{"name": name, "type": _AVRO_TYPES.get(name, "string")} for name in names]
    written = BytesIO()
    schema = {"type": "record", "name": "Click", "fields": fields}
    fastavro.writer(written, schema, events, codec="deflate", sync_interval=100)
    return written.getvalue()


def to_lines(events: Sequence[Event], broken: Sequence[bytes] = ()) -> bytes:
    """Write events as JSON lines, broken ones behind them."""
    return _lines([*(line(plain(one)) for one in events), *broken])


def to_archive(suffix: str, events: Sequence[Event], broken: Sequence[bytes] = ()) -> bytes:
    """Write events as compressed JSON lines; ``suffix`` is of the file's name."""
    return _ARCHIVES[suffix](to_lines(events, broken))


def to_changes(events: Sequence[Event], broken: Sequence[bytes] = ()) -> bytes:
    """Write events as rows that a database inserted or deleted, as Debezium tells of them."""
    return _lines([*map(_change, events), *broken])


def to_csv(
    events: Sequence[Event], broken: Sequence[bytes] = (), *, dialect: str = "plain"
) -> bytes:
    """Write events as CSV, broken ones behind them.

    ``dialect``: ``plain``; ``marked`` begins with a byte-order mark; ``turned`` has the columns in
    reverse and lines that end in CRLF.
    """
    names = list(events[0] if events else event(0, START))
    end = "\r\n" if dialect == "turned" else "\n"
    written = io.StringIO()
    rows = csv.DictWriter(
        written, names[::-1] if dialect == "turned" else names, lineterminator=end
    )
    rows.writeheader()
    rows.writerows(map(plain, events))
    mark = b"\xef\xbb\xbf" if dialect == "marked" else b""
    return mark + written.getvalue().encode() + b"\n".join(broken)


def plain(one: Event) -> dict[str, str | None]:
    """Write an event's values as text."""
    return {name: None if value is None else _text(value) for name, value in one.items()}


def _text(value: Any) -> str:
    return value.isoformat().replace("+00:00", "Z") if isinstance(value, datetime) else str(value)


def _lines(lines: Sequence[bytes]) -> bytes:
    return b"".join(one + b"\n" for one in lines)


def _change(one: Event) -> bytes:
    row = plain(one)
    minutes = (one["event_time"] - START) // timedelta(minutes=1)
    images = {"before": row, "after": None} if minutes % 4 == 1 else {"before": None, "after": row}
    at = int(one["event_time"].timestamp()) * 1_000_000
    told = postgres("d" if images["before"] else "c", at=at, lsn=10_000 + minutes, **images)
    if minutes % 2 == 0:
        return line(told)
    row_schema = [{"type": "string", "optional": True, "field": name} for name in row]
    return line(with_schema(told, row_schema))
