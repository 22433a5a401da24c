"""Change events as Debezium publishes them, for PostgreSQL and MySQL."""

from __future__ import annotations

import json
from typing import Any

Json = dict[str, Any]
_STRING = ("first_name", "last_name", "email")
ROW: list[Json] = [
    {"type": "int32", "optional": False, "field": "id"},
    *({"type": "string", "optional": False, "field": name} for name in _STRING),
]
_INTS = ("ts_ms", "ts_us", "ts_ns")


def schema_of(row: list[Json], source: str = "postgresql") -> Json:
    """Give the schema that a converter sends with each message; ``row`` describes the columns."""
    image = {"type": "struct", "fields": row, "optional": True, "name": "shop.customers.Value"}
    told = [{"type": "int64", "optional": False, "field": name} for name in _INTS]
    return {
        "type": "struct",
        "fields": [
            {**image, "field": "before"},
            {**image, "field": "after"},
            {
                "type": "struct",
                "fields": [{"type": "string", "optional": False, "field": "version"}, *told],
                "optional": False,
                "name": f"io.debezium.connector.{source}.Source",
                "field": "source",
            },
            {"type": "string", "optional": False, "field": "op"},
            *({"type": "int64", "optional": True, "field": name} for name in _INTS),
        ],
        "optional": False,
        "name": "shop.customers.Envelope",
    }


def postgres(op: str, *, at: int, lsn: int | None, **images: Json | None) -> Json:
    """Give an event of PostgreSQL; ``at`` is in microseconds, ``images`` are before and after."""
    return {
        **images,
        "source": {
            "version": "2.7.0.Final",
            "connector": "postgresql",
            "name": "PostgreSQL_server",
            "ts_ms": at // 1000,
            "ts_us": at,
            "ts_ns": at * 1000,
            "snapshot": op == "r",
            "db": "postgres",
            "sequence": f'["{lsn}","{lsn}"]',
            "schema": "public",
            "table": "customers",
            "txId": 556,
            "lsn": lsn,
            "xmin": None,
        },
        "op": op,
        "ts_ms": at // 1000 + 20,
        "ts_us": at + 20_123,
        "ts_ns": at * 1000 + 20_123_456,
    }


def mysql(op: str, *, millis: int, pos: int, row: int = 0, **images: Json | None) -> Json:
    """Give an event of MySQL; ``millis`` is its time, 0 as old snapshots have it."""
    return {
        **images,
        "source": {
            "version": "2.7.0.Final",
            "connector": "mysql",
            "name": "mysql-server-1",
            "ts_ms": millis,
            "snapshot": op == "r",
            "db": "inventory",
            "table": "customers",
            "server_id": 223344,
            "gtid": None,
            "file": "mysql-bin.000003",
            "pos": pos,
            "row": row,
            "thread": 7,
            "query": "UPDATE customers SET first_name='Anne Marie' WHERE id=1004",
        },
        "op": op,
        "ts_ms": 1465581902461,
    }


def with_schema(event: Json | None, row: list[Json] | None = None) -> Json:
    """Wrap an event as the JSON converter does with ``schemas.enable``."""
    return {"schema": schema_of(ROW if row is None else row), "payload": event}


def line(event: Json | None) -> bytes:
    """Write an event on one line."""
    return json.dumps(event, separators=(",", ":")).encode()
