"""A shop's lake of any number of batches, written by hand: Delta's JSON and Parquet, no Spark."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import yaml

from tests.unit.handmade import fingerprint_of
from tidelake.config import Pipeline, load_environment, load_pipeline
from tidelake.delta.log import encode
from tidelake.delta.tables import HOPS, Lake, Table
from tidelake.runtime.checkpoints import delta_offset, prepare

DEFINITION: dict[str, Any] = {
    "name": "shop",
    "source": {"kind": "files", "path": "${root}/landing"},
    "event": {
        "schema": "event_id STRING, event_time TIMESTAMP, user_id STRING, value DECIMAL(18,2)",
        "id": "event_id",
        "time": "event_time",
    },
    "gold": [
        {
            "name": "takings_1m",
            "window": {"kind": "tumbling", "size": "1 minute"},
            "keys": ["user_id"],
            "measures": {"events": {"count": "*"}, "takings": {"sum": "value"}},
        },
        {
            "name": "visits",
            "window": {"kind": "session", "gap": "30 minutes"},
            "keys": ["user_id"],
            "measures": {"events": {"count": "*"}},
        },
        {
            "name": "totals",
            "window": {"kind": "global"},
            "keys": ["user_id"],
            "measures": {"events": {"count": "*"}},
        },
    ],
}
# Of each batch: eight rows become silver, one is quarantined, one comes too late.
ACCEPTED, BATCH_ROWS = 8, 10
_REQUEUE = "bronze.shop__requeue"
_TYPES = {
    "VARCHAR": "string",
    "BLOB": "binary",
    "BIGINT": "long",
    "BOOLEAN": "boolean",
    "DATE": "date",
    "DOUBLE": "double",
    "DECIMAL(18,2)": "decimal(18,2)",
    "TIMESTAMP WITH TIME ZONE": "timestamp",
    "VARCHAR[]": {"type": "array", "elementType": "string", "containsNull": True},
}
_MARK = ", 'g1' AS _generation, {batch}::BIGINT AS _batch, NULL::TIMESTAMPTZ AS _requeued_at"


@dataclass
class Shop:
    """A pipeline ``shop`` under a root, and what makes batches of it.

    Attributes:
        root: Of the lake; the pipeline's file lies in it, too.
        began: When its first batch was closed (UTC); each takes ten seconds.
        reason: Why a row of each batch is in quarantine.
        payload: What that row holds.
    """

    root: Path
    began: datetime = datetime(2026, 3, 1, tzinfo=UTC)
    reason: str = "payload: not one JSON object"
    payload: str = "{oh no"
    definition: dict[str, Any] = field(default_factory=lambda: dict(DEFINITION))
    batches: int = 0

    def __post_init__(self) -> None:
        """Write the pipeline's file, and one file into its landing folder."""
        (self.root / "landing").mkdir(parents=True, exist_ok=True)
        self.write_definition()
        self.land("taken.json")

    def write_definition(self) -> None:
        """Write the pipeline's file."""
        self.file.write_text(yaml.safe_dump(self.definition, sort_keys=False), encoding="utf-8")

    @property
    def file(self) -> Path:
        """The pipeline's file."""
        return self.root / "shop.yml"

    @property
    def lake(self) -> Lake:
        """The tables."""
        return Lake(self.root)

    @property
    def pipeline(self) -> Pipeline:
        """The definition as it is read."""
        return load_pipeline(str(self.file), load_environment("local", root=str(self.root)))

    def land(self, name: str) -> Path:
        """Put a file into the landing folder."""
        file = self.root / "landing" / name
        file.write_text('{"event_id": "e"}\n', encoding="utf-8")
        return file

    def run(self, batches: int) -> Shop:
        """Close ``batches`` batches in all hops."""
        with duckdb.connect() as connection:
            connection.execute("SET TimeZone = 'UTC'")
            for _ in range(batches):
                _Batch(self, connection, self.batches).write()
                self.batches += 1
        if self.batches > 1:
            self.lay_checkpoints()
        return self

    def lay_checkpoints(self) -> None:
        """Write each hop's checkpoint at its tables' position; needs two batches or more."""
        last, taken = self.batches - 1, (self.batches, -1)
        followed = {
            "bronze": ['{"logOffset":0}'],
            "silver": [delta_offset("bronze.shop", taken), delta_offset(_REQUEUE, (1, -1))],
            "gold": [delta_offset("silver.shop", taken)],
        }
        for hop in HOPS:
            prepare(self.lake.checkpoints("shop", hop) / "g1", last, followed[hop])


@dataclass(frozen=True)
class _Batch:
    """One batch of all hops."""

    shop: Shop
    connection: duckdb.DuckDBPyConnection
    number: int

    @property
    def closed_at(self) -> datetime:
        return self.shop.began + timedelta(seconds=10 * self.number)

    def write(self) -> None:
        """Write bronze, the side tables, silver, and gold, in this order."""
        lake, ids = self.shop.lake, [f"f:{self.number}:{row}" for row in range(BATCH_ROWS)]
        accepted, broken, late = ids[:ACCEPTED], ids[8:9], ids[9:]
        if self.number == 0:
            nothing = f"SELECT record_id, now() AS requeued_at FROM ({self._rows(ids)}) LIMIT 0"
            self._commit(lake.requeue("shop"), nothing, self._note(-1))
        self._commit(lake.bronze("shop"), self._bronze(ids), self._bronze_note(ids))
        self._commit(lake.quarantine("shop"), self._quarantine(broken), self._note())
        self._commit(lake.late("shop"), self._late(late), self._note())
        note = self._silver_note(accepted, broken, late)
        self._commit(lake.silver("shop"), self._silver(accepted), note)
        for table, sql in self._gold().items():
            until = {"silver": [self.number + 1, -1]}
            told = self._note(rows=ACCEPTED, eligible=ACCEPTED, until=until)
            self._commit(lake.gold(table), sql, told)

    def _rows(self, ids: Sequence[str]) -> str:
        listed = ", ".join(f"('{one}', {n})" for n, one in enumerate(ids))
        return f"SELECT record_id, n FROM (VALUES {listed}) AS t(record_id, n)"

    def _at(self, column: str = "ingested_at") -> str:
        return f"TIMESTAMPTZ '{self.closed_at.isoformat()}' AS {column}"

    def _bronze(self, ids: Sequence[str]) -> str:
        return (
            "SELECT record_id, encode('{\"event_id\": \"' || record_id || '\"}') AS payload, "
            f"{self._at()} FROM ({self._rows(ids)})"
        )

    def _event(self) -> str:
        at = self._at("event_time")
        return (
            f"record_id AS event_id, {at}, 'u' || (n % 5) AS user_id, "
            "(n * 1.25)::DECIMAL(18,2) AS value, record_id, "
            f"{self._at()}, DATE '{self.closed_at:%Y-%m-%d}' AS event_date"
        )

    def _silver(self, ids: Sequence[str]) -> str:
        mark = _MARK.format(batch=self.number)
        return f"SELECT {self._event()}, false AS is_late{mark} FROM ({self._rows(ids)})"

    def _late(self, ids: Sequence[str]) -> str:
        mark = _MARK.format(batch=self.number)
        return (
            f"SELECT {self._event()}, encode('x') AS payload, {self._at('watermark')}, "
            f"90.0::DOUBLE AS lateness_seconds{mark} FROM ({self._rows(ids)})"
        )

    def _quarantine(self, ids: Sequence[str]) -> str:
        reason, payload = (
            text.replace("'", "''") for text in (self.shop.reason, self.shop.payload)
        )
        return (
            f"SELECT record_id, encode('{payload}') AS payload, NULL::VARCHAR AS event_id, "
            f"['{reason}'] AS reasons, 'parse' AS stage, {self._at()}"
            f"{_MARK.format(batch=self.number)} FROM ({self._rows(ids)})"
        )

    def _gold(self) -> dict[str, str]:
        rows = self._rows([str(n) for n in range(ACCEPTED)])
        grouped = f"FROM ({rows}) GROUP BY 1"
        count, user = "count(*) AS events", "'u' || (n % 5) AS user_id"
        start = self._at("window_start")
        end = f"TIMESTAMPTZ '{(self.closed_at + timedelta(minutes=1)).isoformat()}' AS window_end"
        return {
            "takings_1m": f"SELECT {user}, {start}, {end}, {count}, "
            f"sum((n * 1.25)::DECIMAL(18,2))::DECIMAL(18,2) AS takings {grouped}",
            "visits": f"SELECT {user}, 's' AS session_id, {self._at('session_start')}, "
            f"{self._at('session_end')}, {count} {grouped}",
            "totals": f"SELECT {user}, {count} {grouped}",
        }

    def _note(self, batch: int | None = None, **more: Any) -> dict[str, Any]:
        number = self.number if batch is None else batch
        return {"pipeline": "shop", "generation": "g1", "batch": number, **more}

    def _bronze_note(self, ids: Sequence[str]) -> dict[str, Any]:
        taken = self.shop.root / "landing" / "taken.json"
        found = taken.stat()
        file = [str(taken), found.st_size, found.st_mtime_ns // 1_000_000, len(ids)]
        return self._note(
            records=len(ids),
            fingerprint=fingerprint_of(ids),
            files=[file],
            began=(self.closed_at - timedelta(seconds=5)).isoformat(),
            source="files",
        )

    def _silver_note(self, *fates: Sequence[str]) -> dict[str, Any]:
        named = (("silver", None), ("quarantined", "parse"), ("late", None))
        mark = (self.closed_at - timedelta(minutes=10)).isoformat()
        return self._note(
            watermark_in=mark,
            watermark=mark,
            settled=None,
            partitions={"0": [mark, self.closed_at.isoformat()]},
            counts=[
                [fate, stage, "bronze", len(ids), fingerprint_of(ids)]
                for (fate, stage), ids in zip(named, fates, strict=True)
            ],
            taken={"bronze": BATCH_ROWS, "requeue": 0},
            until={"bronze": [self.number + 1, -1], "requeue": [1, -1]},
            warnings={},
            dedup={"searched": 4, "seconds": 0.5},
            prefiltered=None,
            columns=[],
        )

    def _commit(self, table: Table, sql: str, note: dict[str, Any]) -> None:
        """Write one commit with one file."""
        log = table.path / "_delta_log"
        is_new = not log.exists()
        log.mkdir(parents=True, exist_ok=True)
        version = 0 if note["batch"] < 0 else self.number
        path = table.path / f"part-{version}.parquet"
        described = self.connection.execute(f"DESCRIBE {sql}").fetchall() if is_new else []
        copied = self.connection.execute(f"COPY ({sql}) TO '{path}' (FORMAT parquet)").fetchone()
        rows = int(copied[0]) if copied else 0
        info = {
            "timestamp": int(self.closed_at.timestamp() * 1000),
            "operation": "WRITE",
            "operationMetrics": {"numOutputRows": str(rows)},
            "userMetadata": encode(note),
        }
        add = {
            "path": path.name,
            "partitionValues": {},
            "size": path.stat().st_size,
            "modificationTime": info["timestamp"],
            "dataChange": True,
            "stats": json.dumps({"numRecords": rows}),
        }
        actions: list[dict[str, Any]] = [{"commitInfo": info}]
        if is_new:
            actions += _beginning(table.name, described)
        actions.append({"add": add})
        text = "".join(json.dumps(action) + "\n" for action in actions)
        (log / f"{version:020}.json").write_text(text, encoding="utf-8")


def _beginning(name: str, described: Sequence[tuple[Any, ...]]) -> list[dict[str, Any]]:
    fields = [
        {"name": name, "type": _TYPES[kind], "nullable": True, "metadata": {}}
        for name, kind, *_ in described
    ]
    schema = {"type": "struct", "fields": fields}
    return [
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        {
            "metaData": {
                "id": name,
                "format": {"provider": "parquet", "options": {}},
                "schemaString": json.dumps(schema),
                "partitionColumns": [],
                "configuration": {},
            }
        },
    ]
