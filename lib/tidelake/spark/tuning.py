"""Thresholds and settings that decide how fast a batch runs, never what it computes.

Byte counts are of Parquet files unless a comment says otherwise.
"""

from __future__ import annotations

_MIB = 1 << 20

SMALL_BATCH_ROWS = 20_000
# Text is a tenth of its size, or less, in Parquet.
SMALL_BATCH_BYTES = 4 * _MIB
# Compiling an expression costs more than interpreting it for a few thousand rows, and the literals
# of a batch of gold make its code new.
SMALL_BATCH_SETTINGS = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "1",
    # A job that lists files takes longer than visiting some hundreds one after the other.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "500",
}
# Searching this many accepted ids costs as much as deciding the fate of one row.
SEARCHED_PER_ROW = 50
# Bytes of source files, some twenty thousand events: with more, what a JVM saves by never
# optimizing its code is lost again.
BRIEF_RUN_BYTES = 4 * _MIB
# A batch of bronze with fewer bytes of source files is written as one file.
BRONZE_BYTES_A_FILE = 4 * _MIB
# Files that a batch reads where the pipeline file sets no limit.
FILES_A_BATCH = 1000


def is_small(rows: int, size: int) -> bool:
    """Return whether a batch easily fits into the driver's memory.

    Args:
        rows: How many it reads.
        size: Their bytes in files.
    """
    return rows <= SMALL_BATCH_ROWS and size <= SMALL_BATCH_BYTES


# Rows, and hashes of ids, of which every task may hold a copy.
BROADCAST = 200_000
HASHES = 1_000_000
# Rows of a batch of which the driver takes hashes, numbers and what it counts, some ninety bytes
# each, and accepted ids whose hashes and places, of twelve bytes, it remembers.
NUMBERED_ROWS = 4_000_000
# Rows with such hashes, of some two hundred bytes each, that the driver compares: as many of the
# batch, and as many accepted ones.
COMPARED_ROWS = 1_000_000
INDEXED_IDS = 16_000_000
# Spark lists more paths than these by a job of its own.
MOST_PATHS = 30
# A list of data files may exceed the range of a batch by this many days, in arrivals and event
# dates, once the files hold more rows than a broadcast may.
SPARE_DAYS = 1
SPARE_ROWS = BROADCAST
# Sessions of fewer events are sorted quickly. Splitting and joining them again costs up to twice
# the work (benchmarks/hot_keys.py), and pays off where the largest key's share exceeds a slot's.
SPLIT_EVENTS, SPLIT_COST, SPLIT_STRETCHES = 100_000, 2, 4

# Without the second compiler, which takes most of a core for as long as everything is new.
BRIEF_DRIVER = "-XX:TieredStopAtLevel=1"
# Room for the machine code of a thousand generated classes. The collector marks what is garbage
# among old objects, on a core of its own, when they fill two thirds of the heap: left to itself it
# begins much earlier, goes through kept rows again and again, and takes a tenth of silver's cores.
LASTING_DRIVER = (
    "-XX:ReservedCodeCacheSize=512m -XX:-G1UseAdaptiveIHOP -XX:InitiatingHeapOccupancyPercent=65"
)
SESSION_SETTINGS = {
    "spark.sql.adaptive.enabled": "false",
    # A large batch of silver takes 180 generated classes, and Spark keeps 100 by default: each
    # batch would compile all of them anew, and the JVM after it.
    "spark.sql.codegen.cache.maxEntries": "1000",
    # Without its pages only benchmarks read what Spark keeps of past executions, plans included:
    # as many as their longest run has, where Spark's default is a thousand.
    "spark.sql.ui.retainedExecutions": "400",
    "spark.ui.retainedJobs": "400",
    "spark.ui.retainedStages": "400",
    # Plans are formatted for those pages too; the long form takes a twentieth of a small batch.
    "spark.sql.ui.explainMode": "simple",
    # Spark would cache each file that a plan names, up to 250 MB, for that plan alone.
    "spark.sql.hive.filesourcePartitionFileCacheSize": "0",
    "spark.databricks.delta.snapshotPartitions": "2",
    # Hardly two rows share a value there: Parquet would fill a dictionary and throw it away.
    **{
        f"parquet.enable.dictionary#{column}": "false"
        for column in ("event_id", "event_time", "record_id", "_payload_hash", "_id_hash")
    },
    # Otherwise each call on a column makes a dozen calls into the JVM, to note its source line.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
}
# The prefilter's state is on disk, and each batch writes only its changes.
STATE_SETTINGS = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # Otherwise each batch is followed by an empty one, only to evict.
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
}

# A checkpoint of the log every tenth commit, Delta's default, doubles the time of that commit.
LOG_CHECKPOINT_COMMITS = 50
# As often as the log's checkpoint, which then finds few files to list.
COMPACTION_BATCHES = 50
_COMPACTED_BYTES = str(16 * _MIB)
_CUBE = "spark.databricks.delta.optimize.clustering.mergeStrategy.minCubeSize"
COMPACTION_SETTINGS = {
    "spark.databricks.delta.optimize.minFileSize": _COMPACTED_BYTES,
    "spark.databricks.delta.optimize.maxFileSize": _COMPACTED_BYTES,
    # How much sorted data may be sorted again with new rows; Delta's default is 100 GB, which
    # means the whole table each time.
    f"{_CUBE}.threshold": str(256 * _MIB),
    f"{_CUBE}.targetCubeSize": str(512 * _MIB),
}
# A merge that copies fewer rows is faster without deletion vectors.
COPIED_ROWS = 50_000
# MERGE reads its source twice and would cache it for that; ours is checkpointed already.
MERGE_SETTINGS = {"spark.databricks.delta.merge.materializeSource": "none"}
VACUUM_SETTINGS = {
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
    # Spark lists folders in 10,000 tasks otherwise.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "8",
}
