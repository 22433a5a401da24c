"""Read sources as raw records, and convert them to bronze rows with unchanged payloads.

A Spark stream cannot compute a line's position in its file. :func:`identify` adds it to each
micro-batch, while the partitions are still those of the read. Of formats that need a whole file,
the stream has chunks of records, which become rows in the batch: a *file row* per file, without
position and payload, and then the file's records. A file row has ``_bytes``, how many were read; if
the file is broken, a second one has the reason as ``_error``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from itertools import takewhile
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from tidelake.bronze.whole_files import reader_of, to_chunks
from tidelake.columns import EXACT_TIMES
from tidelake.config import DeltaSource, FilesSource, RateSource, Source
from tidelake.config.model import bytes_of
from tidelake.config.source import described
from tidelake.errors import TidelakeError
from tidelake.external import FILE_NAMES
from tidelake.folders import absolute, as_pattern
from tidelake.kafka.topic_source import read_topics
from tidelake.names import quoted
from tidelake.spark.tuning import FILES_A_BATCH, WHOLE_FILE_BYTES

RECORD = ("record_id", "key", "payload", "headers", "source", "source_timestamp")
HEADERS_DDL = "array<struct<key: string, value: binary>>"
BRONZE_DDL = (
    "record_id string, key binary, payload binary, "
    f"headers {HEADERS_DDL}, source string, source_timestamp timestamp, "
    "ingested_at timestamp, ingest_date date"
)
REQUEUE_DDL = f"{BRONZE_DDL}, reason string, requeued_at timestamp"
POSITION = "_position"
# The columns of a record before it has an id.
_READ = {
    "key": "binary",
    "payload": "binary",
    "headers": HEADERS_DDL,
    "source": "string",
    "source_timestamp": "timestamp",
    POSITION: "string",
}

# monotonically_increasing_id() has the partition in the upper bits and the row in the lower 33.
_PARTITION_BITS = 33
_ROW_IN_PARTITION = (1 << _PARTITION_BITS) - 1

# A row's number in its micro-batch, the start offset of its block in the file, and the file's size
# when Spark planned the read.
NUMBER, BLOCK, SIZE = "_number", "_block", "_size"
# In a file row: the bytes that were read of the file, and why they cannot be read.
BYTES, ERROR = "_bytes", "_error"
_CHUNK_DDL = (
    f"_payloads array<binary>, headers {HEADERS_DDL}, source string, source_timestamp timestamp, "
    f"_begin bigint, {SIZE} bigint, {BYTES} bigint, {ERROR} string"
)
_FILE_DDL = "path string, modificationTime timestamp, length bigint, content binary"


def read_stream(spark: SparkSession, source: Source) -> DataFrame:
    """Open a source as a stream; for files, the session must read each file into one partition.

    Returns:
        ``key``, ``payload``, ``headers``, ``source``, ``source_timestamp`` of each record, and
        ``_position``, its place in its source, which is null for lines of files and Delta tables:
        :func:`identify` numbers those. Files also have ``_size``, the file's bytes; lines have
        ``_block``, where their block begins in the file. Of formats that need a whole file, the
        stream has chunks: see :func:`records_in`.
    """
    if isinstance(source, FilesSource):
        return _read_files(spark, source)
    if isinstance(source, DeltaSource):
        return _read_delta(spark, source)
    if isinstance(source, RateSource):
        reader = spark.readStream.format("rate").option("rowsPerSecond", source.rows_per_second)
        return _records(
            reader.load(),
            payload=F.to_json(F.struct("timestamp", "value")),
            source=F.lit("rate"),
            source_timestamp=F.col("timestamp"),
            _position=F.col("value"),
        )
    return _records(
        read_topics(spark, source),
        key=F.col("key"),
        payload=F.col("value"),
        headers=F.col("headers"),
        source=F.col("topic"),
        source_timestamp=F.col("timestamp"),
        _position=F.concat_ws(":", F.col("partition"), F.col("offset")),
    )


def records_in(chunks: DataFrame) -> DataFrame:
    """Turn chunks of whole files into a row per record, and one or two file rows a file."""
    rows = chunks.select("*", F.posexplode_outer("_payloads").alias("_index", "_payload"))
    columns = {name: F.col(name) for name in ("headers", "source", "source_timestamp")}
    return _records(
        rows,
        *[F.col(name) for name in (SIZE, BYTES, ERROR)],
        payload=F.col("_payload"),
        # Null in a file row, as it has no payloads.
        _position=F.col("_begin") + F.col("_index"),
        **columns,
    )


def identify(rows: DataFrame, source: Source, batch: int) -> DataFrame:
    """Add ``record_id`` (``<source>:<position>``) to a micro-batch as it was read.

    Must be applied to the frame passed by the stream, before any shuffle or coalesce. A row of a
    file without a position is numbered from 0 in its partition, which is its file. Delta streams
    have no positions: the batch and the row's number are used. Rows of files keep their number in
    the micro-batch as ``_number``.
    """
    if isinstance(source, FilesSource) and ERROR not in rows.columns:
        rows = rows if NUMBER in rows.columns else numbered(rows)
        in_partition = F.col(NUMBER).bitwiseAND(F.lit(_ROW_IN_PARTITION)).cast("string")
        position = [F.coalesce("_position", in_partition)]
    elif isinstance(source, DeltaSource):
        position = [F.lit(batch), F.monotonically_increasing_id()]
    else:
        position = [F.col("_position")]
    parts = [F.col("source"), *[part.cast("string") for part in position]]
    return rows.withColumn("record_id", F.concat_ws(":", *parts))


def numbered(rows: DataFrame) -> DataFrame:
    """Number the rows of a micro-batch as it was read; rows of a block are consecutive."""
    return rows.withColumn(NUMBER, F.monotonically_increasing_id())


def last_row() -> list[Column]:
    """Return aggregates: the number of the ``last`` row and its payload's ``last_length``.

    Not the maximum of a struct of both, for which Spark would sort the rows by their group.
    """
    length = F.max_by(F.length("payload"), F.col(NUMBER))
    return [F.max(NUMBER).alias("last"), length.alias("last_length")]


def refuse_more(rows: DataFrame, ends: Sequence[tuple[int, int]]) -> DataFrame:
    """Fail if a second read of a micro-batch of files returns more than the first.

    Spark fixes the files and their lengths when it plans a batch, but reads the last line to its
    end. So a file that grew may return one more line, or a longer last line.

    Args:
        rows: Numbered, in the partitions of the read.
        ends: From :func:`last_row`, for each file or block of the first read; the last of each
            partition is compared.
    """
    by_partition = {number >> _PARTITION_BITS: (number, length) for number, length in sorted(ends)}
    last_rows = [
        by_partition.get(partition, (-1, 0))
        for partition in range(max(by_partition, default=0) + 1)
    ]
    # As strings, which Spark folds to one literal each: generated code is the same in each batch.
    numbers, lengths = (
        f"CAST(split('{','.join(map(str, values))}', ',') AS ARRAY<BIGINT>)"
        for values in zip(*last_rows, strict=True)
    )
    partition = f"CAST(shiftright({NUMBER}, {_PARTITION_BITS}) AS INT)"
    last = f"coalesce(get({numbers}, {partition}), -1)"
    longer = f"{NUMBER} = {last} AND length(payload) > get({lengths}, {partition})"
    return rows.where(
        F.expr(
            f"CASE WHEN {NUMBER} > {last} OR {longer} "
            "THEN raise_error('a file grew between two reads') ELSE true END"
        )
    )


class Block(NamedTuple):
    """Rows of a file from byte ``start`` on, with their first and last row numbers and count."""

    source: str
    start: int
    first: int
    last: int
    records: int


def shifts(blocks: Sequence[Block]) -> list[tuple[str, int, int]]:
    """Return each block's file, first byte and offset from row number to index in the file.

    A block that several tasks read is refused.
    """
    before: dict[str, int] = defaultdict(int)
    found = []
    for block in sorted(blocks):
        if block.last - block.first + 1 != block.records:
            raise TidelakeError(
                f"{block.source}: several tasks read the rows from byte {block.start:,} on, so "
                "their positions in the file are unknown. Nothing was written. Run again; if it "
                "repeats, split the file and report it."
            )
        found.append((block.source, block.start, before[block.source] - block.first))
        before[block.source] += block.records
    return found


def only_records(rows: DataFrame) -> DataFrame:
    """Drop the file rows of a second read; fail if a file is not as it was in the first."""
    changed = f"{ERROR} IS NOT NULL OR {BYTES} <> {SIZE}"
    return rows.where(
        F.expr(
            f"CASE WHEN {changed} THEN raise_error('a file changed between two reads') "
            f"ELSE {POSITION} IS NOT NULL END"
        )
    )


def to_bronze(records: DataFrame, *, ingested_at: datetime) -> DataFrame:
    """Add the batch's ingestion time (UTC) to records; it is never before the previous batch's."""
    return records.select(
        *RECORD,
        F.lit(ingested_at).alias("ingested_at"),
        F.lit(ingested_at.date()).alias("ingest_date"),
    )


def with_requeue_columns(rows: DataFrame) -> DataFrame:
    """Add the requeue's columns as nulls, so that bronze and requeue have the same schema."""
    null = F.lit(None)
    return rows.withColumns({"reason": null.cast("string"), "requeued_at": null.cast("timestamp")})


def _read_files(spark: SparkSession, source: FilesSource) -> DataFrame:
    stream = (
        spark.readStream.option("recursiveFileLookup", True)
        # By default Spark ignores files seven days older than the newest. Through a wrong clock the
        # newest may be of any year: ten thousand years are more than file systems can store.
        .option("maxFileAge", "3650000d")
        .option("pathGlobFilter", FILE_NAMES)
        .options(**_limits(source))
    )
    path, size = pattern_of(source.paths), F.col("_metadata.file_size").alias(SIZE)
    columns = {
        "source": F.col("_metadata.file_path"),
        "source_timestamp": F.col("_metadata.file_modification_time"),
    }
    reader = reader_of(source)
    if reader is None:
        # A carriage return is part of the payload.
        lines = stream.format("text").option("lineSep", "\n").load(path)
        block = F.col("_metadata.file_block_start").alias(BLOCK)
        return _records(lines, block, size, payload=F.col("value"), **columns)
    files = stream.format("binaryFile").schema(_FILE_DDL).load(path)
    # Spark does not read the content of the files that this leaves out.
    small = files.where(F.col("length") <= WHOLE_FILE_BYTES)
    of_file = [column.alias(name) for name, column in columns.items()]
    whole = small.select("content", *of_file, size)
    return whole.mapInArrow(to_chunks(reader), _CHUNK_DDL)


def pattern_of(paths: Sequence[str]) -> str:
    """Return the path that a file stream opens: a pattern of alternatives for several.

    One stream has one source log, with the files of all paths. Hadoop expands alternatives that
    contain a slash into paths, without listing the folders above them; so each ends with one.
    A single path is escaped: ``[1]`` would match ``1``, and ``*`` other folders too. The paths of a
    list have no such characters; in alternatives Hadoop would drop the escapes.
    """
    places = [absolute(path).split("/") for path in paths]
    if len(places) == 1:
        return as_pattern("/".join(places[0]))
    above = [
        same[0] for same in takewhile(lambda one: len(set(one)) == 1, zip(*places, strict=False))
    ]
    below = ("/".join([*place[len(above) :], ""]) for place in places)
    return "/".join([*above, f"{{{','.join(below)}}}"])


def _read_delta(spark: SparkSession, source: DeltaSource) -> DataFrame:
    reader = spark.readStream.format("delta").options(**_limits(source))
    # Spark knows no ~.
    table = reader.table(source.sql) if source.path is None else reader.load(absolute(source.path))
    names = [field.name for field in table.schema.fields]
    row = F.to_json(F.struct(*[F.col(quoted(name)) for name in names]), EXACT_TIMES)
    return _records(table, payload=row, source=F.lit(described(source)))


def _limits(source: FilesSource | DeltaSource) -> dict[str, str]:
    """Return Spark's limits on a batch; the first file is always read whole."""
    files, size = source.max_files_per_trigger, source.max_bytes_per_trigger
    if files is None and size is None:
        files = FILES_A_BATCH
    limits = {
        "maxFilesPerTrigger": files,
        # The file source accepts only a plain number of bytes.
        "maxBytesPerTrigger": None if size is None else bytes_of(size),
    }
    return {name: str(value) for name, value in limits.items() if value is not None}


def _records(rows: DataFrame, *of_file: Column, **columns: Column) -> DataFrame:
    """Select the columns of a record, null if not given, and those of its file."""
    return rows.select(
        *[columns.get(name, F.lit(None)).cast(kind).alias(name) for name, kind in _READ.items()],
        *of_file,
    )
