"""The same rows as files of JSON lines, CSV, Parquet and Avro, through bronze and silver.

One warm session; each round fills a new lake from each format in turn, bronze first, then silver.
Silver's rows must be the same for all formats. Prints medians of elapsed and CPU seconds (driver,
JVM and Python workers) and the ratios to JSON of the same round, or JSON with ``--json``.

``clicks``: six columns, 4 files of about 16 MiB of JSON. ``orders``: fifteen columns with decimals,
times, a struct and lists, as many bytes. ``small``: clicks in 100 files of 1,000 rows.

Usage: python -m benchmarks.file_formats [--rows clicks orders small] [--repeats 3] [--json]
    [--share 1.0] [--hops bronze silver]
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import duckdb
import fastavro
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from pyspark.sql import SparkSession

from benchmarks.measuring import in_turns, machine, ratios, say
from tidelake.cli.render import print_table
from tidelake.config import load_environment, load_pipeline
from tidelake.delta.tables import Hop, Lake
from tidelake.ledger.query import ask
from tidelake.runtime.hop import Run
from tidelake.runtime.progress import Progress
from tidelake.runtime.runner import run_hops
from tidelake.runtime.triggers import AVAILABLE_NOW, parse_trigger
from tidelake.spark.session import build_session

_HOPS: tuple[Hop, ...] = ("bronze", "silver")
_FORMATS = ("json", "csv", "parquet", "avro")
_DRAW = "CREATE MACRO draw(k, n, below) AS (hash(k, n) % below)::BIGINT"
# A twentieth are duplicates.
_CLICKS = """
    SELECT 'e' || k AS event_id, 'u' || draw(k, 0, 200000) AS user_id,
        make_timestamp(1767571200000000 + k * 3001) AS event_time,
        ['view', 'view', 'click', 'add_to_cart', 'purchase', 'bot'][1 + draw(k, 1, 6)] AS action,
        'p' || draw(k, 2, 500) AS product_id,
        CASE WHEN action IN ('add_to_cart', 'purchase')
            THEN (draw(k, 3, 20000) / 100)::DECIMAL(18, 2) END AS value
    FROM (SELECT CASE WHEN i % 20 = 19 THEN i - 7 ELSE i END AS k FROM range(?, ?) AS rows (i))
"""
_CLICKS_FIELDS = {
    "event_id": "STRING",
    "user_id": "STRING",
    "event_time": "TIMESTAMP",
    "action": "STRING",
    "product_id": "STRING",
    "value": "DECIMAL(18,2)",
}
_ORDERS = """
    SELECT 'o' || k AS event_id, 'c' || draw(k, 0, 100000) AS customer,
        make_timestamp(1767571200000000 + k * 3001) AS event_time,
        CASE WHEN k % 3 > 0 THEN (event_time + INTERVAL 3 DAY)::DATE END AS shipped_on,
        draw(k, 1, 9)::INTEGER AS quantity, (hash(k, 2) >> 4)::BIGINT AS reference,
        (draw(k, 3, 9999999) / 10000)::DECIMAL(18, 4) AS price,
        (draw(k, 4, 99999999999) / 100)::DECIMAL(18, 2) AS total,
        (draw(k, 5, 1000003) / 1000003)::DOUBLE AS score,
        (draw(k, 6, 2001) / 1000 - 1)::DOUBLE AS ratio, k % 7 = 0 AS is_gift,
        [NULL, 'fragile', 'say "hello", twice', 'a, b; c', 'ä and ß'][1 + draw(k, 7, 5)] AS note,
        {'street': draw(k, 8, 999) || ' Main Street', 'city': ['Berlin', 'Köln'][1 + k % 2],
            'zip': lpad(draw(k, 9, 99999)::VARCHAR, 5, '0')} AS address,
        ['red', 'new', 'sale', 'old'][1 : 1 + draw(k, 10, 4)] AS tags,
        list_transform(range(1 + draw(k, 11, 2)), lambda n: {
            'sku': 's' || (k + n) % 9999,
            'amount': ((k * 7 + n) % 9999 / 100)::DECIMAL(9, 2)}) AS items
    FROM range(?, ?) AS rows (k)
"""
_ORDERS_FIELDS = {
    "event_id": "STRING",
    "customer": "STRING",
    "event_time": "TIMESTAMP",
    "shipped_on": "DATE",
    "quantity": "INT",
    "reference": "BIGINT",
    "price": "DECIMAL(18,4)",
    "total": "DECIMAL(18,2)",
    "score": "DOUBLE",
    "ratio": "DOUBLE",
    "is_gift": "BOOLEAN",
    "note": "STRING",
    "address": "STRUCT<street: STRING, city: STRING, zip: STRING>",
    "tags": "ARRAY<STRING>",
    "items": "ARRAY<STRUCT<sku: STRING, amount: DECIMAL(9,2)>>",
}
_MIB = 1 << 20


class _Rows(NamedTuple):
    """Rows to measure: their query, the types of their fields, and how many in how many files."""

    query: str
    fields: Mapping[str, str]
    files: int
    rows_a_file: int


_ROWS = {
    "clicks": _Rows(_CLICKS, _CLICKS_FIELDS, 4, 116_000),
    "orders": _Rows(_ORDERS, _ORDERS_FIELDS, 4, 43_000),
    "small": _Rows(_CLICKS, _CLICKS_FIELDS, 100, 1_000),
}


def main() -> None:
    """Measure each kind of rows, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", nargs="+", choices=_ROWS, default=list(_ROWS))
    parser.add_argument("--formats", nargs="+", choices=_FORMATS, default=_FORMATS)
    parser.add_argument("--repeats", type=int, default=3, help="counted rounds")
    parser.add_argument("--share", type=float, default=1, help="of the rows of each file")
    parser.add_argument("--hops", nargs="+", choices=_HOPS, default=_HOPS, help="default: both")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = {}
    with tempfile.TemporaryDirectory(prefix="tidelake-formats-") as name:
        spark = build_session(load_environment("local", root=name), use="bulk")
        try:
            for kind in options.rows:
                rows, folder = _ROWS[kind], Path(name) / kind
                rows = rows._replace(rows_a_file=int(rows.rows_a_file * options.share))
                land(rows, folder / "landing")
                found[kind] = measured(spark, rows, folder, options)
                shutil.rmtree(folder)
        finally:
            spark.stop()
    if options.json:
        print(json.dumps({"figures": found, "machine": machine()}))
    else:
        for kind, figures in found.items():
            _print(kind, figures)


def land(rows: _Rows, folder: Path) -> None:
    """Write the rows in each format, into a folder each."""
    for format_ in _FORMATS:
        (folder / format_).mkdir(parents=True)
    with duckdb.connect() as connection:
        connection.execute(_DRAW)
        for number in range(rows.files):
            first, last = number * rows.rows_a_file, (number + 1) * rows.rows_a_file
            connection.execute(f"CREATE OR REPLACE TABLE landed AS {rows.query}", [first, last])
            table = _in_utc(connection.execute("SELECT * FROM landed").to_arrow_table())
            for format_, write in _WRITERS.items():
                write(connection, table, folder / format_ / f"{number:04d}.{format_}")


def _in_utc(table: pa.Table) -> pa.Table:
    instant = pa.timestamp("us", "UTC")
    return table.cast(
        pa.schema(
            field.with_type(instant) if pa.types.is_timestamp(field.type) else field
            for field in table.schema
        )
    )


def _write_text(connection: Any, table: pa.Table, file: Path) -> None:
    columns = []
    for field in table.schema:
        if pa.types.is_timestamp(field.type):
            columns.append(f"strftime({field.name}, '%Y-%m-%dT%H:%M:%S.%fZ') AS {field.name}")
        elif pa.types.is_nested(field.type) and file.suffix == ".csv":
            columns.append(f"to_json({field.name}) AS {field.name}")
        else:
            columns.append(field.name)
    options = "FORMAT json" if file.suffix == ".json" else "FORMAT csv, HEADER"
    connection.execute(f"COPY (SELECT {', '.join(columns)} FROM landed) TO '{file}' ({options})")


def _write_parquet(_: Any, table: pa.Table, file: Path) -> None:
    pq.write_table(table, file)


def _write_avro(_: Any, table: pa.Table, file: Path) -> None:
    fields = [
        {"name": field.name, "type": ["null", _avro_type(field.type, field.name)]}
        for field in table.schema
    ]
    schema = {"type": "record", "name": "landed", "fields": fields}
    with file.open("wb") as stream:
        fastavro.writer(stream, schema, table.to_pylist(), codec="deflate")


_WRITERS: Mapping[str, Callable[[Any, pa.Table, Path], None]] = {
    "json": _write_text,
    "csv": _write_text,
    "parquet": _write_parquet,
    "avro": _write_avro,
}
_AVRO_TYPES: Mapping[pa.DataType, Any] = {
    pa.string(): "string",
    pa.bool_(): "boolean",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float64(): "double",
    pa.date32(): {"type": "int", "logicalType": "date"},
    pa.timestamp("us", "UTC"): {"type": "long", "logicalType": "timestamp-micros"},
}


def _avro_type(kind: pa.DataType, name: str) -> Any:
    if pa.types.is_list(kind):
        return {"type": "array", "items": ["null", _avro_type(kind.value_type, f"{name}_item")]}
    if pa.types.is_struct(kind):
        fields = [
            {"name": field.name, "type": ["null", _avro_type(field.type, f"{name}_{field.name}")]}
            for field in kind
        ]
        return {"type": "record", "name": name, "fields": fields}
    if pa.types.is_decimal(kind):
        digits = {"precision": kind.precision, "scale": kind.scale}
        return {"type": "bytes", "logicalType": "decimal", **digits}
    return _AVRO_TYPES[kind]


def measured(
    spark: SparkSession, rows: _Rows, folder: Path, options: argparse.Namespace
) -> dict[str, Any]:
    """Run the formats in alternating rounds, and return their figures."""
    spent: dict[str, list[dict[str, float]]] = {name: [] for name in options.formats}
    answers: set[str] = set()

    def side(format_: str, number: int) -> float:
        root = folder / f"{format_}-{number}"
        run = _run(spark, rows, folder / "landing" / format_, root, format_)
        figures: dict[str, float] = {}
        for hop in options.hops:
            figures[f"{hop}_s"], figures[f"{hop}_cpu_s"] = _timed(run, hop)
        answers.add(_held(run.lake, rows, options.hops[-1]))
        if len(answers) > 1:
            raise SystemExit(f"the tables differ with {format_}: {sorted(answers)}")
        shutil.rmtree(root)
        for unit in ("s", "cpu_s"):
            figures[f"all_{unit}"] = sum(figures[f"{hop}_{unit}"] for hop in options.hops)
        spent[format_].append(figures)
        say(f"  {' '.join(f'{name} {value:.2f}' for name, value in figures.items())}")
        return figures["all_s"]

    in_turns({name: partial(side, name) for name in options.formats}, options.repeats)
    counted = {name: figures[-options.repeats :] for name, figures in spent.items()}
    sizes = {
        name: sum(file.stat().st_size for file in (folder / "landing" / name).iterdir()) / _MIB
        for name in options.formats
    }
    return {
        "rows": rows.files * rows.rows_a_file,
        "files": rows.files,
        "mib": {name: round(size, 1) for name, size in sizes.items()},
        "rounds": counted,
        "formats": {
            name: _summary(rows, figures, counted.get("json")) for name, figures in counted.items()
        },
    }


def _run(spark: SparkSession, rows: _Rows, landing: Path, root: Path, format_: str) -> Run:
    """Define the pipeline of a round, on a new root."""
    root.mkdir()
    file = root / "landed.yml"
    definition = {
        "name": "landed",
        "source": {"kind": "files", "format": format_, "path": str(landing)},
        "event": {
            "schema": ", ".join(f"{name} {kind}" for name, kind in rows.fields.items()),
            "id": "event_id",
            "time": "event_time",
        },
        # Required, and not filled.
        "gold": [
            {
                "name": "totals",
                "window": {"kind": "global"},
                "keys": ["event_id"],
                "measures": {"events": {"count": "*"}},
            }
        ],
    }
    file.write_text(yaml.safe_dump(definition, sort_keys=False), encoding="utf-8")
    environment = load_environment("local", root=str(root / "lake"))
    pipeline = load_pipeline(str(file), environment)
    return Run(spark, pipeline, Lake(root / "lake"), environment, Progress(lambda _: None))


def _timed(run: Run, hop: Hop) -> tuple[float, float]:
    """Run a hop to the end of its input; return the elapsed and the CPU seconds."""
    began, used = time.monotonic(), _cpu_seconds()
    run_hops(run, [hop], parse_trigger(AVAILABLE_NOW))
    return time.monotonic() - began, _cpu_seconds() - used


def _cpu_seconds() -> float:
    """Return the CPU seconds of this process and its descendants, ended ones included."""
    found = 0.0
    own = psutil.Process()
    for process in (own, *own.children(recursive=True)):
        try:
            found += sum(process.cpu_times()[:4])
        except psutil.NoSuchProcess:
            continue
    return found


def _held(lake: Lake, rows: _Rows, hop: Hop) -> str:
    """Return row count and hash of silver's rows, and the row counts of its side tables."""
    if hop == "bronze":
        return str(ask(lake, "SELECT count(*) FROM bronze.landed").rows)
    found = [f"SELECT count(*), sum(hash({', '.join(rows.fields)})::HUGEINT) FROM silver.landed"]
    found += [f"SELECT count(*) FROM silver.landed__{side}" for side in ("quarantine", "late")]
    return str([ask(lake, sql).rows[0] for sql in found])


def _summary(
    rows: _Rows, figures: list[dict[str, float]], of_json: list[dict[str, float]] | None
) -> dict[str, float]:
    """Return the medians, each with the median of its ratios to JSON of the same round."""
    found = {}
    for name in figures[0]:
        values = [one[name] for one in figures]
        found[name] = round(median(values), 2)
        if of_json:
            by_round = ratios(values, [one[name] for one in of_json])
            found[f"{name}_of_json"] = round(median(by_round), 3)
    found["rows_a_s"] = round(rows.files * rows.rows_a_file / found["all_s"])
    return found


def _print(kind: str, figures: dict[str, Any]) -> None:
    names = [name for name in next(iter(figures["formats"].values()))]
    print_table(
        ["figure", *figures["formats"]],
        [[name, *(found.get(name) for found in figures["formats"].values())] for name in names],
        title=f"{kind}: {figures['rows']:,} rows in {figures['files']} files, {figures['mib']} MiB",
    )


if __name__ == "__main__":
    main()
