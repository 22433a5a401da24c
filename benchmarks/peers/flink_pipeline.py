"""The pipeline in Flink SQL: parse, first arrival of each id, one-minute sums, two Parquet tables.

One job reads the bounded files in streaming mode: state in RocksDB, incremental checkpoints, both
sinks exactly once. Runs in the environment that `make peers` creates for it.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.peers.rounds import Pipeline, drive, landed

_CHECKPOINT = re.compile(r"Completed checkpoint \d+ for job \S+ \((\d+) bytes")
_SETTINGS = {
    "execution.runtime-mode": "STREAMING",
    "parallelism.default": "2",
    "table.local-time-zone": "UTC",
    # The same as Tidelake's TTL.
    "table.exec.state.ttl": "1 h",
    "state.backend.type": "rocksdb",
    "state.backend.rocksdb.use-bloom-filter": "true",
    "execution.checkpointing.interval": "5 s",
    "execution.checkpointing.mode": "EXACTLY_ONCE",
    "execution.checkpointing.incremental": "true",
    # RocksDB uses managed memory, of which a local cluster has 128 MB by default.
    "taskmanager.memory.managed.size": "2g",
    "taskmanager.memory.network.min": "128m",
    "taskmanager.memory.network.max": "128m",
    "pipeline.object-reuse": "true",
}
# The file source reads files in no order, so a watermark delay of minutes would drop most rows.
# The delay is longer than the files' time span, so windows close at the end of the input.
_EVENTS = """
CREATE TEMPORARY TABLE events (
    event_id STRING, user_id STRING, event_time TIMESTAMP_LTZ(3), action STRING,
    product_id STRING, `value` DECIMAL(18, 2),
    arrived AS PROCTIME(),
    WATERMARK FOR event_time AS event_time - INTERVAL '2' DAY
) WITH (
    'connector' = 'filesystem', 'path' = '{landing}', 'format' = 'json',
    'json.timestamp-format.standard' = 'ISO-8601'
)"""
_CLEAN = """
CREATE TEMPORARY VIEW clean AS
SELECT event_id, user_id, event_time, LOWER(action) AS action, product_id, `value`
FROM (
    SELECT *, ROW_NUMBER() OVER (PARTITION BY event_id ORDER BY arrived) AS nth FROM events
) WHERE nth = 1"""
_SINK = """ WITH (
    'connector' = 'filesystem', 'path' = '{path}',
    'format' = 'parquet', 'parquet.utc-timezone' = 'true'
)"""
_SILVER = """
CREATE TEMPORARY TABLE silver (
    event_id STRING, user_id STRING, event_time TIMESTAMP_LTZ(3), action STRING,
    product_id STRING, `value` DECIMAL(18, 2)
)"""
_GOLD = """
CREATE TEMPORARY TABLE gold (
    window_start TIMESTAMP(3), user_id STRING, events BIGINT, total DECIMAL(38, 2)
)"""
_MINUTES = """
INSERT INTO gold
SELECT window_start, user_id, COUNT(*), SUM(`value`)
FROM TUMBLE(TABLE clean, DESCRIPTOR(event_time), INTERVAL '1' MINUTE)
GROUP BY window_start, window_end, user_id"""


def start() -> Pipeline:
    """Start the JVM that the jobs run in."""
    logs = Path(tempfile.mkdtemp(prefix="flink-log-"))
    os.environ["FLINK_LOG_DIR"] = str(logs)
    from pyflink.java_gateway import get_gateway  # noqa: PLC0415  reads the variable

    get_gateway()

    def pipeline(files: list[Path], out: Path) -> Mapping[str, Any]:
        return _run(files, out, logs)

    return pipeline


def _run(files: list[Path], out: Path, logs: Path) -> Mapping[str, Any]:
    from pyflink.common import Configuration  # noqa: PLC0415
    from pyflink.table import EnvironmentSettings, TableEnvironment  # noqa: PLC0415

    jars = sorted((Path(sys.prefix) / "jars").glob("*.jar"))
    wanted = {
        **_SETTINGS,
        "execution.checkpointing.dir": f"file://{out}/checkpoints",
        "state.backend.rocksdb.localdir": str(out / "rocksdb"),
        "pipeline.jars": ";".join(f"file://{jar}" for jar in jars),
    }
    settings = Configuration()
    for key, value in wanted.items():
        settings.set_string(key, value)
    known = len(_read(logs))
    environment = TableEnvironment.create(
        EnvironmentSettings.new_instance().with_configuration(settings).build()
    )
    environment.execute_sql(_EVENTS.format(landing=landed(files, out)))
    environment.execute_sql(_CLEAN)
    environment.execute_sql(_SILVER + _SINK.format(path=out / "silver"))
    environment.execute_sql(_GOLD + _SINK.format(path=out / "gold"))
    both = environment.create_statement_set()
    both.add_insert_sql("INSERT INTO silver SELECT * FROM clean")
    both.add_insert_sql(_MINUTES)
    both.execute().wait()
    log = _read(logs)[known:]
    sizes = [int(size) for size in _CHECKPOINT.findall(log)]
    return {
        "checkpoints": len(sizes),
        "largest_checkpoint_bytes": max(sizes, default=0),
        "rocksdb": "EmbeddedRocksDBStateBackend" in log,
    }


def _read(logs: Path) -> str:
    return "".join(log.read_text(errors="replace") for log in sorted(logs.glob("*.log")))


if __name__ == "__main__":
    drive(__doc__, start)
