"""Read a source as a stream of raw records, each with its payload as the very bytes.

What Spark may not compute on a stream, a row's place in its file, is added to each micro-batch by
:func:`identify`, while the partitions are still those of the read.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from tidelake.config import DeltaSource, FilesSource, KafkaSource, RateSource, Source
from tidelake.config.sizes import bytes_of
from tidelake.config.types import quoted
from tidelake.kafka.source import read_topics
from tidelake.store.folders import absolute

RECORD = ("record_id", "key", "payload", "headers", "source", "source_timestamp")
HEADERS_DDL = "array<struct<key: string, value: binary>>"

# How many files a batch takes where the pipeline file says nothing.
_FILES = 1000

# monotonically_increasing_id() holds the partition in its upper bits, the row in the lower 33.
_ROW_IN_PARTITION = (1 << 33) - 1

# A row's number in its micro-batch, and the first byte of the block of its file that it is in.
NUMBER, BLOCK = "_number", "_block"


def read_stream(spark: SparkSession, source: Source) -> DataFrame:
    """Open a source as a stream.

    Args:
        spark: For files, a session that puts each file whole in its own partition.
        source: The pipeline's source.

    Returns:
        ``key``, ``payload``, ``headers``, ``source``, ``source_timestamp`` and ``_position``,
        null unless the source numbers its records itself; of files also ``_block``.
    """
    if isinstance(source, FilesSource):
        return _read_files(spark, source)
    if isinstance(source, DeltaSource):
        return _read_delta(spark, source)
    if isinstance(source, RateSource):
        return _read_rate(spark, source)
    return _read_kafka(spark, source)


def identify(rows: DataFrame, source: Source, batch: int) -> DataFrame:
    """Add ``record_id`` (``<source>:<position>``) to a micro-batch as it was read.

    It holds only on the frame that the stream handed over, before any shuffle or coalesce. Where
    the file's rows have no position yet, a row is numbered in its partition, which is its file,
    from 0. A Delta table's stream tells no position: there the batch and the row's number serve.
    """
    number = F.monotonically_increasing_id()
    if isinstance(source, FilesSource):
        in_partition = number.bitwiseAND(F.lit(_ROW_IN_PARTITION)).cast("string")
        place = [F.coalesce("_position", in_partition)]
    elif isinstance(source, DeltaSource):
        place = [F.lit(batch), number]
    else:
        place = [F.col("_position")]
    parts = [F.col("source"), *[part.cast("string") for part in place]]
    return rows.withColumn("record_id", F.concat_ws(":", *parts))


def numbered(rows: DataFrame) -> DataFrame:
    """Number a micro-batch's rows as it was read: those of a block follow each other."""
    return rows.withColumn(NUMBER, F.monotonically_increasing_id())


def _read_files(spark: SparkSession, source: FilesSource) -> DataFrame:
    lines = (
        spark.readStream.format("text")
        # The line feed alone: a carriage return is part of the payload.
        .option("lineSep", "\n")
        .option("recursiveFileLookup", True)
        # Without it, a file seven days older than the newest is never read.
        .option("maxFileAge", "36500d")
        .options(**_limits(source))
        .load(absolute(source.path))
    )
    return _records(
        lines,
        payload=F.col("value").cast("binary"),
        source=F.col("_metadata.file_path"),
        timestamp=F.col("_metadata.file_modification_time"),
        block=F.col("_metadata.file_block_start"),
    )


def _read_delta(spark: SparkSession, source: DeltaSource) -> DataFrame:
    table = spark.readStream.format("delta").options(**_limits(source)).load(source.path)
    names = [field.name for field in table.schema.fields]
    row = F.to_json(F.struct(*[F.col(quoted(name)) for name in names]))
    return _records(
        table,
        payload=row.cast("binary"),
        source=F.lit(source.path),
        timestamp=F.lit(None),
    )


def _limits(source: FilesSource | DeltaSource) -> dict[str, str]:
    """Say to Spark how much a batch takes at most; the first file always comes whole."""
    files, size = source.max_files_per_trigger, source.max_bytes_per_trigger
    if files is None and size is None:
        files = _FILES
    told = {
        "maxFilesPerTrigger": files,
        # For files Spark wants the plain number.
        "maxBytesPerTrigger": None if size is None else bytes_of(size),
    }
    return {name: str(value) for name, value in told.items() if value is not None}


def _read_rate(spark: SparkSession, source: RateSource) -> DataFrame:
    ticks = spark.readStream.format("rate").option("rowsPerSecond", source.rows_per_second).load()
    return _records(
        ticks,
        payload=F.to_json(F.struct("timestamp", "value")).cast("binary"),
        source=F.lit("rate"),
        timestamp=F.col("timestamp"),
        position=F.col("value"),
    )


def _read_kafka(spark: SparkSession, source: KafkaSource) -> DataFrame:
    return _records(
        read_topics(spark, source),
        key=F.col("key"),
        payload=F.col("value"),
        headers=F.col("headers"),
        source=F.col("topic"),
        timestamp=F.col("timestamp"),
        position=F.concat_ws(":", F.col("partition"), F.col("offset")),
    )


def _records(
    rows: DataFrame,
    *,
    payload: Column,
    source: Column,
    timestamp: Column,
    key: Column | None = None,
    headers: Column | None = None,
    position: Column | None = None,
    block: Column | None = None,
) -> DataFrame:
    nothing = F.lit(None)
    blocks = [] if block is None else [block.alias(BLOCK)]
    return rows.select(
        (nothing if key is None else key).cast("binary").alias("key"),
        payload.alias("payload"),
        (nothing if headers is None else headers).cast(HEADERS_DDL).alias("headers"),
        source.alias("source"),
        timestamp.cast("timestamp").alias("source_timestamp"),
        (nothing if position is None else position).cast("string").alias("_position"),
        *blocks,
    )
