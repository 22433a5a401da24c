"""Source to bronze: ingest each record exactly once, verbatim, with its source files or offsets."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from itertools import accumulate, takewhile
from typing import Any

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from tidelake.bronze.archives import broken_archives, suspect_archives
from tidelake.bronze.records import (
    BLOCK,
    BRONZE_DDL,
    BYTES,
    ERROR,
    NUMBER,
    POSITION,
    REQUEUE_DDL,
    SIZE,
    Block,
    identify,
    last_row,
    numbered,
    only_records,
    read_stream,
    records_in,
    refuse_more,
    shifts,
    to_bronze,
)
from tidelake.bronze.whole_files import reader_of
from tidelake.config import DeltaSource, FilesSource, KafkaSource
from tidelake.delta.append import append, ensure_table
from tidelake.delta.log import CREATION, Commit, commits, last_commit, oldest_version
from tidelake.delta.store import FolderTable
from tidelake.errors import RefusedError, SourceError
from tidelake.fingerprints import Fingerprint, bronze_marks, combined, contents, fingerprint
from tidelake.folders import absolute, ensure_folder, folder, place_of, remove_tree
from tidelake.instants import now, now_after
from tidelake.kafka.client import (
    Contact,
    begun_offsets,
    offset_difference,
    offsets_behind,
    offsets_between,
    planned_offsets,
    refuse_unreachable,
    total_offsets,
)
from tidelake.kafka.topic_source import (
    describe_topics,
    known_ids,
    refuse_changed,
    refuse_unselected,
)
from tidelake.runtime import landed_files
from tidelake.runtime.checkpointed_frames import CheckpointedFrames
from tidelake.runtime.checkpoints import batch_paths, logged_files, newest_logged
from tidelake.runtime.epochs import taken_before
from tidelake.runtime.failures import FOREIGN, refuse_for_memory
from tidelake.runtime.fence import Fence
from tidelake.runtime.hop import POLL_SECONDS, Heads, HopQuery, Run
from tidelake.runtime.landed_files import LandedFile
from tidelake.runtime.schemas import from_ddl, from_records
from tidelake.spark.engine import runs_in_process, slots_of
from tidelake.spark.tuning import BRONZE_BYTES_A_FILE, KEPT_FILE_BYTES

_READ_IN_TURN = 8
_PARTITION, _OFFSET = (f"split_part(record_id, ':', {n})" for n in (2, 3))


class BronzeHop(HopQuery):
    """The streaming query that appends the source's records to bronze."""

    hop = "bronze"
    unit = "records"

    def __init__(self, run: Run, *, creates: bool = True, fence: Fence | None = None) -> None:
        """Prepare the checks of the source, then open the hop; see :class:`HopQuery`."""
        # Whether a topic is compacted, by name.
        self._compacted: dict[str, bool] = {}
        source, say = run.pipeline.source, run.progress.say
        self._contact = Contact(source.bootstrap, say) if source.kind == "kafka" else None
        self._landing: landed_files.LandingGuard | None = None
        if isinstance(source, FilesSource):
            table = run.lake.bronze(run.pipeline.name)
            self._landing = landed_files.LandingGuard(
                source.paths,
                table,
                lambda paths: taken_before(run, table, paths),
                source.format,
                logged=self._logged,
                is_cleaned=source.is_cleaned,
            )
        # The version up to which bronze's files are cleaned, if any, and whether to look again.
        self._cleaned: int | None = None
        self._may_clean = True
        super().__init__(run, creates=creates, fence=fence)

    @property
    def most(self) -> int | None:
        """Kafka's ``max_offsets_per_trigger``; None for other sources: their limit is fixed."""
        source = self.run.pipeline.source
        return source.max_offsets_per_trigger if isinstance(source, KafkaSource) else None

    def taken(self, before: Commit | None, batch: int) -> tuple[int, int] | None:
        """Return a batch's offsets and the backlog in offsets, the unit of Kafka's limit."""
        if not isinstance(self.run.pipeline.source, KafkaSource):
            return None
        was, new = (commit.note if commit else {} for commit in (before, last_commit(self.table)))
        took = offsets_between(was.get("offsets", {}), new.get("offsets", {}))
        return took, total_offsets(new.get("behind", {}))

    def offset_mismatch(self, closed: Commit | None) -> str:
        """Compare the checkpoint's offsets or source log with bronze's commits and the source."""
        source, is_csv = self.run.pipeline.source, self.run.pipeline.csv is not None
        note = closed.note if closed else {}
        remedy = "restore it, or use another pipeline or --root."  # no repair helps
        if (was := note.get("source", source.kind)) != source.kind:
            filled = f"{self.table.name} was filled from a source of kind {was}"
            raise RefusedError(f"{filled}, source.kind is now {source.kind}: {remedy}")
        if note.get("csv", is_csv) != is_csv:
            words = f"{'not ' if is_csv else ''}CSV, which source.format would change"
            raise RefusedError(f"the payloads in {self.table.name} are {words}: {remedy}")
        if isinstance(source, KafkaSource):
            return self._topic_mismatch(source, closed)
        if self._landing is None or not isinstance(source, FilesSource):
            return ""
        newest = newest_logged(self.checkpoint / "offsets")
        numbers = closed.batch if closed else CREATION, newest
        try:
            logged = logged_files(self.checkpoint)
            batch, planned = (set(batch_paths(self.checkpoint, one)) for one in numbers)
        except (OSError, ValueError, LookupError, TypeError):
            return "the list of files in its checkpoint (sources) cannot be read"
        if unknown := self._landing.read().keys() - logged:
            return f"{min(unknown)} was ingested, but its checkpoint does not list it"
        if batch != {path for path, *_ in note.get("files", [])}:
            return "the newest files in its checkpoint are not those of bronze"
        # Spark would read them all the same.
        roots = tuple(f"{absolute(path)}/" for path in source.paths)
        other = [path for path in planned - batch if not f"{path}/".startswith(roots)]
        return f"a batch is planned with files of another source, {min(other)}" if other else ""

    def _topic_mismatch(self, source: KafkaSource, closed: Commit | None) -> str:
        if closed:
            refuse_unselected(self.run.spark, source, closed.note["offsets"])
            offsets = planned_offsets(self.checkpoint, closed.batch)
            return offset_difference(offsets, closed.note["offsets"])
        with suppress(ValueError, LookupError):
            begun_offsets(self.checkpoint, 0)
            return ""
        return "the first offsets in its checkpoint (sources) cannot be read"

    def create_tables(self) -> None:
        """Create bronze and the requeue, after checking that the source can be read."""
        source = self.run.pipeline.source
        if self._landing is not None:
            self._landing.check(self.run.progress.say)
            self._clean()
        if isinstance(source, KafkaSource):
            refuse_unreachable(source.bootstrap)
            self._refuse_lost(source)
        spark, requeue = self.run.spark, self.run.lake.requeue(self.run.pipeline.name)
        if isinstance(source, DeltaSource):
            if source.path is not None:
                if not FolderTable("", folder(source.path)).exists:
                    raise SourceError(f"the source {source.path} is not a Delta table.")
            elif not spark.catalog.tableExists(source.sql):
                raise SourceError(
                    f"the source {source.table} does not exist, or may not be seen: it needs USE "
                    "CATALOG, USE SCHEMA and SELECT."
                )
        for table, ddl in ((self.table, BRONZE_DDL), (requeue, REQUEUE_DDL)):
            ensure_table(spark, table, from_ddl(spark, ddl), self.creation_note())

    def stream(self) -> DataFrame:
        """Stream the source, with each file in one partition if the engine supports it."""
        source = self.run.pipeline.source
        if isinstance(source, KafkaSource):
            source = source.model_copy(update={"max_offsets_per_trigger": self.limit})
        session = self.run.whole_files
        self.run.progress.observer.attach(session)
        return read_stream(session, source)

    def check(self, query: StreamingQuery, seconds: float = POLL_SECONDS) -> None:
        """Check the source too: the broker's availability, or changes to ingested files."""
        if self._contact is not None:
            self._contact.look()
        if self._landing is not None:
            self._landing.check_if_due()
        super().check(query, seconds)
        self._clean()

    def take(self, rows: DataFrame, batch: int) -> None:
        """Write one micro-batch, whose files may then be cleaned."""
        super().take(rows, batch)
        self._may_clean = True

    def _clean(self) -> None:
        """Delete or archive the files of batches that are closed: in bronze, and by Spark.

        Spark's own ``cleanSource`` would delete a file that changed after it was read, and replace
        an archived one of the same name. At the start also the files that earlier runs left.
        """
        source, landing = self.run.pipeline.source, self._landing
        if landing is None or not (isinstance(source, FilesSource) and source.is_cleaned):
            return
        if not self._may_clean:
            return
        # Through Spark Connect, batches end in another process.
        self._may_clean = not runs_in_process()
        since = -1 if self._cleaned is None else self._cleaned
        new = list(takewhile(lambda commit: commit.version > since, commits(self.table)))
        committed, mine = newest_logged(self.checkpoint / "commits"), self.fence.generation
        is_open = [commit.generation == mine and commit.batch > committed for commit in new]
        still_open, closed = new[: sum(is_open)], new[sum(is_open) :]
        files = landed_files.taken_files(closed)
        if self._cleaned is None:
            # Most of the files that bronze ever took are gone.
            left = landed_files.taken_files(still_open)
            files = {path: file for path, file in landing.taken.items() if path not in left}
            # An empty prefix of a store would not exist for Spark.
            for path in source.paths:
                ensure_folder(folder(path))
        self._may_clean |= bool(still_open)
        self._cleaned = closed[0].version if closed else since
        if problems := landed_files.clean_landing(source, files.values()):
            self.run.progress.say(f"warning: {landed_files.uncleaned_text(source, problems)}")

    def write(self, rows: DataFrame, batch: int, heads: Heads) -> None:
        """Append a batch, after comparing the bytes read with the files' sizes."""
        with CheckpointedFrames() as frames:
            self._write(rows, batch, heads, frames)

    def _write(self, rows: DataFrame, batch: int, heads: Heads, frames: CheckpointedFrames) -> None:
        began, begun_at = time.monotonic(), now()
        before = self.fence.admits(self.table, heads[0], batch)
        if before is None:
            return
        source = self.run.pipeline.source
        paths: list[str] = []
        if isinstance(source, FilesSource):
            paths = batch_paths(self.checkpoint, batch)
            landed_files.refuse_unreadable(paths, source.format, repair=self.fence.repair)
            if self._reads_lines:
                # A missing file is refused after the read.
                with suppress(OSError):
                    landed_files.refuse_broken(broken_archives(suspect_archives(paths)))
        cut = self._reads_lines and not runs_in_process()
        with self._naming_broken(paths):
            if self._reads_whole_files:
                rows = records_in(frames.checkpoint(rows) if self._are_kept(paths) else rows)
            identified = identify(with_positions(rows) if cut else rows, source, batch)
            if isinstance(source, KafkaSource) and self._may_be_compacted(source, batch):
                # A second read might find fewer records, and nothing could tell.
                identified = frames.checkpoint(identified)
            offered = self._offered(identified)
        files = self._files(offered, paths)
        # ``ingested_at`` must increase, even if the clock went back: silver accepts the first
        # arrival, and batches with one stamp would be told apart by the names of their files.
        stamp = now_after(before.note.get("ingested_at"))
        if self._reads_whole_files:
            identified = only_records(identified)
        elif files and not cut:
            ends = [(row["last"], row["last_length"]) for row in offered]
            identified = refuse_more(identified, ends)
        # Of other formats than text, the payloads are larger than the files; a topic has no files.
        payloads = 0 if self._reads_lines else sum(row["bytes"] or 0 for row in offered)
        size = max(payloads, sum(file.size for file, _ in files))
        slots = slots_of(self.run.spark)
        parts = max(1, min(slots, size // BRONZE_BYTES_A_FILE))
        records = in_order(to_bronze(identified, ingested_at=stamp), offered, int(parts))
        count = sum(row["records"] for row in offered)
        marks = (
            combined(Fingerprint.of(*row[name]) for row in offered)
            for name in ("fingerprint", "contents")
        )
        note = self.note(
            batch,
            source=source.kind,
            csv=self.run.pipeline.csv is not None,
            ingested_at=stamp.isoformat(),
            records=count,
            **bronze_marks(*marks),
            began=begun_at.isoformat(),
            slots=slots,
            files=[[file.path, file.size, file.modified, count] for file, count in files],
            **self._offsets(batch, offered, before.note),
        )
        if self.fence.admits(self.table, last_commit(self.table), batch) is None:
            return
        try:
            append(records, self.table, note, even_empty=count == 0)
        except FOREIGN:
            if not self.run.stop.is_set():
                with suppress(*FOREIGN):
                    landed_files.check_unchanged([file for file, _ in files], self.fence.repair)
            raise
        written = (last.rows if (last := last_commit(self.table)) else None) or 0
        detail = f"{len(files)} files" if files else ""
        self.run.progress.closed(self.hop, batch, written, began, detail=detail)

    def _refuse_lost(self, source: KafkaSource) -> None:
        last, place = last_commit(self.table), f"{self.run.pipeline.name}, hop bronze"
        note = last.note if last else {}
        planned = planned_offsets(self.checkpoint, newest_logged(self.checkpoint / "offsets"))
        if not (planned or note.get("offsets") or begun_offsets(self.checkpoint, 0)):
            # A run found no topic. Spark would read later ones from their beginning.
            remove_tree(self.checkpoint / "sources")
        if other := refuse_changed(self.run.spark, source, note, planned, place):
            what = f"{place}: a batch is planned with other topics than the source has"
            raise self.fence.refusal(f"{what}, {', '.join(sorted(other))}")

    def _may_be_compacted(self, source: KafkaSource, batch: int) -> bool:
        """Return whether a topic of a batch was compacted at the batch before, or is not known."""
        names = planned_offsets(self.checkpoint, batch).keys()
        if names - self._compacted.keys():
            topics = describe_topics(self.run.spark, source, names, in_batch=True) or {}
            self._compacted = {name: topic.is_compacted for name, topic in topics.items()}
        return any(self._compacted.get(name, True) for name in names)

    def _offsets(
        self, batch: int, offered: Sequence[Row], before: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return a Kafka batch's commit metadata: offsets, topics, records read and backlog."""
        source = self.run.pipeline.source
        if not isinstance(source, KafkaSource):
            return {}
        offsets = planned_offsets(self.checkpoint, batch)
        topics = describe_topics(self.run.spark, source, offsets.keys(), in_batch=True) or {}
        self._compacted.update({name: topic.is_compacted for name, topic in topics.items()})
        place = f"{self.run.pipeline.name}, hop bronze"
        read: dict[str, dict[str, int]] = {}
        for row in offered:
            read.setdefault(row["source"], {})[row["partition"]] = row["records"]
        return {
            "from": begun_offsets(self.checkpoint, batch),
            "offsets": offsets,
            "topics": known_ids(before.get("topics", {}), topics, place),
            "bootstrap": source.bootstrap,
            "limit": self.limit,
            "behind": offsets_behind(offsets, {name: topic.ends for name, topic in topics.items()}),
            "looked_at": now().isoformat(),
            "read": read,
        }

    def _offered(self, identified: DataFrame) -> list[Row]:
        """Count the source's records in a separate read: the first term of the ledger."""
        keys = [F.col("source")]
        if isinstance(self.run.pipeline.source, KafkaSource):
            keys.append(F.expr(_PARTITION).alias("partition"))
        return identified.groupBy(*keys).agg(*self._measured).collect()

    @cached_property
    def _reads_whole_files(self) -> bool:
        source = self.run.pipeline.source
        return isinstance(source, FilesSource) and reader_of(source) is not None

    @cached_property
    def _reads_lines(self) -> bool:
        return isinstance(self.run.pipeline.source, FilesSource) and not self._reads_whole_files

    @cached_property
    def _measured(self) -> list[Column]:
        """Aggregates over a source's records, built once for all batches."""
        # The file's state when the batch was planned.
        planned = [
            F.max(SIZE).alias("size"),
            F.max(F.unix_millis("source_timestamp")).alias("modified"),
        ]
        if self._reads_whole_files:
            is_record = F.col(POSITION).isNotNull()
            return [
                F.count(POSITION).alias("records"),
                F.max(BYTES).alias("content_bytes"),
                F.sum(F.length("payload")).alias("bytes"),
                F.max(ERROR).alias("error"),
                fingerprint(F.when(is_record, F.col("record_id"))).alias("fingerprint"),
                contents(is_record).alias("contents"),
                *planned,
            ]
        counted = [
            F.count("*").alias("records"),
            # In a file each record ends with a line feed.
            F.sum(F.length("payload") + 1).alias("bytes"),
            fingerprint().alias("fingerprint"),
            contents().alias("contents"),
        ]
        if isinstance(self.run.pipeline.source, KafkaSource):
            counted += [F.expr(f"{name}(bigint({_OFFSET}))").alias(name) for name in ("min", "max")]
        return [*counted, *planned, *last_row()] if self._reads_lines else counted

    def _files(self, offered: Sequence[Row], paths: Sequence[str]) -> list[tuple[LandedFile, int]]:
        """Return the batch's files with their records, after comparing them with what was read."""
        if not isinstance(self.run.pipeline.source, FilesSource):
            return []
        read = {place_of(row["source"]): row for row in offered}
        files = []
        whole, errors = self._reads_whole_files, {}
        for file in landed_files.planned_files(paths, self.fence.repair):
            row = read.get(file.path)
            if row is None:
                if whole:
                    # Only a large file has no file row.
                    landed_files.refuse_too_large([file], repair=self.fence.repair)
                landed_files.check_bytes(file, 0, whole=whole)
                files.append((file, 0))
            else:
                planned = LandedFile(file.path, row["size"], row["modified"])
                size = row["content_bytes" if whole else "bytes"]
                landed_files.check_bytes(file, size, planned, whole=whole)
                files.append((file, row["records"]))
                if whole and row["error"]:
                    errors[file.path] = row["error"]
        landed_files.refuse_broken(errors)
        return files

    def _are_kept(self, paths: Sequence[str]) -> bool:
        """Return whether whole files are converted once, and kept until they are written."""
        if not runs_in_process():
            return False
        planned = landed_files.planned_files(paths, self.fence.repair)
        return sum(file.size for file in planned) <= KEPT_FILE_BYTES

    @contextmanager
    def _naming_broken(self, paths: Sequence[str]) -> Iterator[None]:
        """After a failure, look for missing, too large and broken files, to name them."""
        try:
            yield
        except FOREIGN as error:
            # A requested stop interrupts a read anywhere.
            if not self.run.stop.is_set():
                with suppress(*FOREIGN):
                    refuse_for_memory(error, paths, self.fence.repair)
                    landed_files.refuse_broken(broken_archives(paths) if self._reads_lines else {})
            raise

    def _logged(self) -> Collection[str]:
        """List the files in Spark's log; none while bronze's log has all commits that name them."""
        return logged_files(self.checkpoint) if oldest_version(self.table) else ()


def in_order(records: DataFrame, offered: Sequence[Row], parts: int) -> DataFrame:
    """Repartition a bronze batch into parts of about equal bytes, in the order of its sources.

    Silver may read a commit part by part, each of which is a file. Of equal arrivals the first is
    that by source, by partition as a text with a colon, and by offset (``arrival_order``).
    """
    is_topic = bool(offered) and "partition" in offered[0]
    if parts == 1 or len(offered) < 2:
        # One task would read many partitions of a topic in turn.
        is_wide = is_topic and len(offered) > _READ_IN_TURN
        return records.repartition(1) if is_wide else records.coalesce(parts)
    keys = ["source", "partition"] if is_topic else ["source"]
    ordered = sorted(offered, key=lambda row: [row["source"], *[f"{row[k]}:" for k in keys[1:]]])
    before = [*accumulate((row["bytes"] or 0 for row in ordered), initial=0)]
    names = [*keys, "min", "max"] if is_topic else keys
    places = [
        {name: row[name] for name in names} | {"bytes": row["bytes"] or 0, "_before": size}
        for row, size in zip(ordered, before, strict=False)
    ]
    ddl = ", ".join(f"{name} {'string' if name in keys else 'bigint'}" for name in places[0])
    frame = from_records(records.sparkSession, places, ddl)
    rows = records.withColumn("partition", F.expr(_PARTITION)) if is_topic else records
    within = f"bytes * ((bigint({_OFFSET}) - min) / (max - min + 1D))" if is_topic else "0"
    part = f"int((_before + {within}) * {parts} / {max(1, before[-1])})"
    # Rows of an unknown file go into the last part instead of being lost.
    place = F.expr(f"coalesce(least({parts - 1}, {part}), {parts - 1})")
    together = rows.join(F.broadcast(frame), on=keys, how="left")
    # Spark 4.0, and Databricks Connect before 17.3, have no repartitionById; ranges keep the order.
    spread = getattr(together, "repartitionById", together.repartitionByRange)
    return spread(parts, place).select(*records.columns)


def with_positions(rows: DataFrame) -> DataFrame:
    """Add each row's index in its file, from 0, as ``_position``, if Spark splits and packs files.

    Spark reads a micro-batch block by block, and a block's rows are consecutive in one partition.
    So a row's index is its index in the block plus the rows of the file's earlier blocks. This is
    an extra read, valid only on the frame that the stream passed; a later one with more rows fails.
    """
    counted = numbered(rows)
    counts = F.min(NUMBER), F.count("*")
    found = counted.groupBy("source", BLOCK).agg(*counts, *last_row()).collect()
    moved = shifts([Block(name, at, first, last, n) for name, at, first, n, last, _ in found])
    counted = refuse_more(counted, [(last, length) for *_, last, length in found])
    records = [{"source": source, BLOCK: start, "_shift": by} for source, start, by in moved]
    ddl = f"source string, {BLOCK} bigint, _shift bigint"
    found_shifts = F.broadcast(from_records(rows.sparkSession, records, ddl))
    together = counted.join(found_shifts, on=["source", BLOCK], how="left")
    position = (F.col(NUMBER) + F.col("_shift")).cast("string")
    return together.withColumn("_position", position)
