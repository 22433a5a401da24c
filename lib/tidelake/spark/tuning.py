"""Thresholds and settings that decide how fast a batch runs, never what it computes.

Byte counts are of Parquet files unless a comment says otherwise.
"""

from __future__ import annotations

_MIB = 1 << 20

SMALL_BATCH_ROWS = 20_000
# Parquet stores text in a tenth of its size or less.
SMALL_BATCH_BYTES = 4 * _MIB
# Compiling an expression costs more than interpreting it for a few thousand rows, and a gold batch
# has new literals, so that its code is compiled each time.
SMALL_BATCH_SETTINGS = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "1",
    # A job that lists files takes longer than listing some hundreds of paths in the driver.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "500",
}
# Searching this many accepted ids costs as much as classifying one row.
SEARCHED_PER_ROW = 50
# Bytes of source files, some twenty thousand events. With more, a JVM without its optimizing
# compiler takes longer than one with it.
BRIEF_RUN_BYTES = 4 * _MIB
# A bronze batch with fewer bytes of source files is written as one file.
BRONZE_BYTES_A_FILE = 4 * _MIB
# The files that a batch reads if the pipeline file sets no limit.
FILES_A_BATCH = 1000
# Larger files of formats that need a whole file are refused: a task holds the content about four
# times, in the JVM, in Arrow and in Python.
WHOLE_FILE_BYTES = 256 * _MIB
# A batch of such files is converted once if it has at most this many bytes: its payloads, which of
# compressed files may be ten times as large, are kept in memory, or on the local disk if they do
# not fit, until they are written.
KEPT_FILE_BYTES = 64 * _MIB


def is_small(rows: int, size: int) -> bool:
    """Return whether a batch easily fits into the driver's memory.

    Args:
        rows: The number of rows that it reads.
        size: Their bytes in files.
    """
    return rows <= SMALL_BATCH_ROWS and size <= SMALL_BATCH_BYTES


# The most rows, and hashes of ids, that are broadcast to every task.
BROADCAST = 200_000
HASHES = 1_000_000
# The most rows of a batch whose hashes, numbers and counted columns the driver holds, about 90
# bytes each.
NUMBERED_ROWS = 4_000_000
# The most rows with equal hashes that the driver compares, about 200 bytes each: this many of the
# batch, and this many accepted ones.
COMPARED_ROWS = 1_000_000
# The most accepted ids whose hashes and positions the driver caches, 12 bytes each.
INDEXED_IDS = 16_000_000
# Ids in files that a batch does not need: as many stay cached as the batch needs, at least these.
SPARE_IDS = 1_000_000
# DuckDB reads some rows of a file if it has this many times more; otherwise Arrow reads all.
SPARSE = 400
# Fewer events of a key are sorted quickly. Splitting and rejoining sessions costs up to twice the
# work (benchmarks/hot_keys.py), and pays off if the largest key's share exceeds a slot's.
SPLIT_EVENTS, SPLIT_COST, SPLIT_STRETCHES = 100_000, 2, 4

# Without the optimizing compiler (C2), which takes most of a core while the code is new.
BRIEF_DRIVER = "-XX:TieredStopAtLevel=1"
# Room for the machine code of a thousand generated classes.
_CODE_CACHE = "-XX:ReservedCodeCacheSize=512m"
# Planning is left to C1 (compiled_once.json). Rows are written without G1's barriers, and no thread
# marks the heap meanwhile; a pause of the collector delays nobody in a run that ends.
BULK_DRIVER = f"{_CODE_CACHE} -XX:+UnlockDiagnosticVMOptions -XX:CompilerDirectivesFile={{}}"
BULK_COLLECTOR = "-XX:+UseParallelGC -XX:-UseGCOverheadLimit"
# G1 starts concurrent marking when old objects fill 65 % of the heap. With its adaptive threshold
# it starts much earlier, scans cached rows repeatedly, and takes a tenth of silver's cores.
LASTING_DRIVER = f"{_CODE_CACHE} -XX:-G1UseAdaptiveIHOP -XX:InitiatingHeapOccupancyPercent=65"
SESSION_SETTINGS = {
    "spark.sql.adaptive.enabled": "false",
    # A large silver batch needs 180 generated classes, and Spark caches 100 by default: each batch
    # would compile all of them again, and the JVM too.
    "spark.sql.codegen.cache.maxEntries": "1000",
    # Spark's record of past executions, plans included, is for its UI: of a thousand by default.
    "spark.sql.ui.retainedExecutions": "100",
    "spark.ui.retainedJobs": "100",
    "spark.ui.retainedStages": "100",
    # Plans are formatted for the UI too; the long form takes a twentieth of a small batch.
    "spark.sql.ui.explainMode": "simple",
    # Spark would cache the file listing of each plan, up to 250 MB, for that plan alone.
    "spark.sql.hive.filesourcePartitionFileCacheSize": "0",
    "spark.databricks.delta.snapshotPartitions": "2",
    # Commits would list a small table's files in their checksum file too, which no read of ours
    # uses; for the first commit, a job finds that there are none.
    "spark.databricks.delta.allFilesInCrc.enabled": "false",
    # Nearly unique columns: Parquet would fill a dictionary and discard it.
    **{
        f"parquet.enable.dictionary#{column}": "false"
        for column in ("event_id", "event_time", "record_id", "_payload_hash", "_id_hash")
    },
    # Parquet's own checksums, since local files have none beside them.
    "spark.hadoop.parquet.page.verify-checksum.enabled": "true",
    # Over TCP each task with a Python function waits 40 ms: its last bytes for an acknowledgement
    # (Nagle's algorithm), and that for more bytes (SPARK-51667 tells of the same elsewhere).
    "spark.python.unix.domain.socket.enabled": "true",
    # Otherwise each call on a column makes a dozen calls into the JVM to record its source line.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
}
# The prefilter's state is kept on disk, and each batch writes only its changes.
STATE_SETTINGS = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # Otherwise each batch is followed by an empty one that only evicts state.
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
}

# A checkpoint of the log every tenth commit, Delta's default, doubles the time of that commit.
LOG_CHECKPOINT_COMMITS = 50
# Equal to the log checkpoint interval, so that a log checkpoint lists few files.
COMPACTION_BATCHES = 50
_COMPACTED_BYTES = str(16 * _MIB)
_CUBE = "spark.databricks.delta.optimize.clustering.mergeStrategy.minCubeSize"
COMPACTION_SETTINGS = {
    "spark.databricks.delta.optimize.minFileSize": _COMPACTED_BYTES,
    "spark.databricks.delta.optimize.maxFileSize": _COMPACTED_BYTES,
    # How much clustered data may be sorted again with new rows. Delta's default, 100 GB, would
    # rewrite the whole table each time.
    f"{_CUBE}.threshold": str(256 * _MIB),
    f"{_CUBE}.targetCubeSize": str(512 * _MIB),
}
# A merge that copies fewer rows is faster without deletion vectors.
COPIED_ROWS = 50_000
# A merge that copies more rows than this is faster with compiled expressions, however small its
# batch is. With fewer there is no difference.
COMPILED_ROWS = 20_000
COMPILED_SETTINGS = {"spark.sql.codegen.factoryMode": "FALLBACK"}
# MERGE would cache its source, because it reads it twice; ours is checkpointed already.
MERGE_SETTINGS = {"spark.databricks.delta.merge.materializeSource": "none"}
# Delta refuses a version that is older than its table keeps deleted files (7 days by default) and
# not the newest; maintenance keeps files longer that are still needed.
OLD_VERSION_SETTINGS = {
    "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration": "false"
}
VACUUM_SETTINGS = {
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
    # Otherwise VACUUM takes the table's delta.deletedFileRetentionDuration in place of any hours
    # but 0, so it would delete files that are still needed.
    "spark.databricks.delta.vacuum.retentionWindowIgnore.enabled": "false",
    # Otherwise Spark lists folders in 10,000 tasks.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "8",
}
# VACUUM holds no lock, and its commits could overwrite those of another process.
UNLOGGED_VACUUM = {"spark.databricks.delta.vacuum.logging.enabled": "false"}
