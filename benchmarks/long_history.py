"""Write a long history of the visits pipeline without running each of its batches.

The hops process the whole history in one batch each, on a separate root. Their output is split by
source file and appended to the tables one batch at a time, with the commit metadata that the hops
write; bronze and silver are compacted as often as the hops do it. Finally each checkpoint is set
to the offsets that the hop would have. The commits have the same content as the hops', with one
exception: a gold window that several batches change is written with the last of them only.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, write_deltalake

from benchmarks.visits import MINUTES, NAME, opened, version_of
from tidelake.delta.commit_metadata import SilverNote, positions
from tidelake.delta.log import encode, last_commit, newest_version
from tidelake.delta.merge import compact, is_due
from tidelake.delta.tables import Hop, Table
from tidelake.folders import listed
from tidelake.instants import to_json
from tidelake.runtime.checkpoints import delta_offset, file_entry, prepare
from tidelake.runtime.hop import Run
from tidelake.runtime.landed_files import LandedFile
from tidelake.runtime.runner import run_hops
from tidelake.runtime.triggers import AVAILABLE_NOW, parse_trigger
from tidelake.silver.watermark import PartitionProgress

MINUTE = timedelta(minutes=1)
_USERS, _LATE = 40, 0.01
# Batches that Spark retains in a checkpoint.
_KEPT = 100


@dataclass(frozen=True)
class Minutes:
    """Generates a file of events a minute; one event in a hundred is one to nine minutes late.

    Attributes:
        start: Start of the first minute (UTC).
        rows: Events in a file.
        calm: Numbers of the minutes without late events.
    """

    start: datetime
    rows: int
    calm: Collection[int] = ()

    def land(self, landing: Path, number: int) -> Path:
        """Write the file of a minute, with a later modification time than those before."""
        landing.mkdir(parents=True, exist_ok=True)
        file = landing / f"{number:06d}.jsonl"
        file.write_bytes(b"".join(line + b"\n" for line in self._lines(number)))
        os.utime(file, (1_700_000_000 + number, 1_700_000_000 + number))
        return file

    def newest(self, number: int) -> datetime:
        """Return the latest event time up to a minute."""
        return self.start + number * MINUTE + (self.rows - 1) * MINUTE / self.rows

    def arrival(self, number: int) -> datetime:
        """Return the ingestion time of a minute's file in the written history."""
        return self.start + (number + 1) * MINUTE

    def _lines(self, number: int) -> list[bytes]:
        rng, found = random.Random(number), []
        for event in range(self.rows):
            at = self.start + number * MINUTE + event * MINUTE / self.rows
            if rng.random() < _LATE and number not in self.calm:
                at -= rng.uniform(1, 9) * MINUTE
            record = {
                "event_id": f"{number:06d}-{event:05d}",
                "user_id": f"u{rng.randrange(_USERS)}",
                "event_time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
                "action": rng.choice(("view", "click", "purchase")),
                "value": rng.randrange(10_000) / 100,
            }
            found.append(json.dumps(record).encode())
        return found


def fill(run: Run, landing: Path, minutes: Minutes, first: int, last: int) -> None:
    """Append batches ``first`` to ``last - 1`` to tables that hold the batches before.

    Args:
        run: The hops' context.
        landing: The source folder; the files are written here.
        minutes: Generates the files; without late events for ten minutes from ``first`` on.
        first: Number of the first batch.
        last: Number after the last batch.
    """
    files = {number: minutes.land(landing, number) for number in range(first, last)}
    separate = landing.with_name(f"{landing.name}-whole")
    whole = opened(run.spark, separate, landing, bytes_a_batch="1g", files=last)
    run_hops(whole, ["bronze", "silver", "gold"], parse_trigger(AVAILABLE_NOW))
    bronze, silver, gold = (
        DeltaTable(str(table.path)).to_pyarrow_table()
        for table in (whole.lake.bronze(NAME), whole.lake.silver(NAME), whole.lake.gold(MINUTES))
    )
    shutil.rmtree(separate)
    versions: dict[Hop, Mapping[int, int]] = {}
    parts: dict[Hop, Callable[[int], pa.Table]] = {
        "bronze": _split(bronze, _file_of(bronze), minutes),
        "silver": _split(silver, _file_of(silver), minutes),
        "gold": _split(gold, _last_changing(gold, silver), minutes),
    }
    tables = _tables(run)
    for hop, part in parts.items():
        note = _notes(hop, tables, minutes, files, first, versions)
        made: dict[int, int] = {}
        version = newest_version(tables[hop])
        for number in range(first, last):
            properties = CommitProperties({"userMetadata": encode(note(number))})
            write_deltalake(
                str(tables[hop].path), part(number), mode="append", commit_properties=properties
            )
            version += 1
            made[number] = version
            if hop != "gold" and is_due(number, hop):
                compact(run.spark, tables[hop])
                version = newest_version(tables[hop])
        assert version == newest_version(tables[hop])
        versions[hop] = made
    for hop in tables:
        _set_checkpoint(run, hop, tables, sorted(landing.iterdir()), first, last)


def _tables(run: Run) -> dict[Hop, Table]:
    lake = run.lake
    return {"bronze": lake.bronze(NAME), "silver": lake.silver(NAME), "gold": lake.gold(MINUTES)}


def _file_of(rows: pa.Table) -> pa.Array:
    """Return the number of each row's source file."""
    number = pc.extract_regex(rows["record_id"], r"(?P<number>\d{6})\.jsonl")
    return pc.struct_field(number.combine_chunks(), "number").cast(pa.int64())


def _last_changing(gold: pa.Table, silver: pa.Table) -> pa.Array:
    """Return the last batch that changes each window of gold."""
    changes = pa.table(
        {
            "window_start": pc.floor_temporal(silver["event_time"], unit="minute"),
            "user_id": silver["user_id"],
            "number": _file_of(silver),
        }
    )
    keys = ["window_start", "user_id"]
    last = changes.group_by(keys).aggregate([("number", "max")])
    numbers = {
        (at, user): number
        for at, user, number in zip(
            last["window_start"].cast(pa.int64()).to_pylist(),
            last["user_id"].to_pylist(),
            last["number_max"].to_pylist(),
            strict=True,
        )
    }
    windows = zip(
        gold["window_start"].cast(pa.int64()).to_pylist(), gold["user_id"].to_pylist(), strict=True
    )
    return pa.array([numbers[window] for window in windows], pa.int64())


def _split(rows: pa.Table, numbers: pa.Array, minutes: Minutes) -> Callable[[int], pa.Table]:
    """Return a function that gives a batch's rows, with that batch's number and ingestion time."""
    order = pc.sort_indices(numbers)
    rows, numbers = rows.take(order), numbers.take(order)
    firsts: dict[int, int] = {}
    lengths: dict[int, int] = {}
    for at, number in enumerate(numbers.to_pylist()):
        firsts.setdefault(number, at)
        lengths[number] = lengths.get(number, 0) + 1

    def part(number: int) -> pa.Table:
        found = rows.slice(firsts[number], lengths[number])
        arrived = minutes.arrival(number)
        values = {"_batch": number, "ingested_at": arrived, "ingest_date": arrived.date()}
        for name, value in values.items():
            if name in found.column_names:
                at, kind = found.column_names.index(name), found.schema.field(name).type
                column = pa.array([value] * len(found), kind)
                found = found.set_column(at, found.schema.field(name), column)
        return found

    return part


def _notes(
    hop: Hop,
    tables: Mapping[Hop, Table],
    minutes: Minutes,
    files: Mapping[int, Path],
    first: int,
    versions: Mapping[Hop, Mapping[int, int]],
) -> Callable[[int], dict[str, Any]]:
    """Return a function that gives a batch's commit metadata, modelled on the hop's last commit."""
    last = last_commit(tables[hop])
    assert last is not None and last.batch == first - 1
    template = last.note
    settings = {"delay": timedelta(minutes=10), "allowed": timedelta(days=1)}

    def of_bronze(number: int) -> dict[str, Any]:
        arrived = minutes.arrival(number).isoformat()
        file = _landed(files[number])
        entries = [[file.path, file.size, file.modified, minutes.rows]]
        return {"ingested_at": arrived, "records": minutes.rows, "files": entries, "began": arrived}

    def of_silver(number: int) -> dict[str, Any]:
        before = SilverNote.of(last)
        newest, arrived = minutes.newest(number), minutes.arrival(number)
        mark = newest - settings["delay"]
        note = replace(
            before,
            watermark_in=mark - MINUTE,
            watermark=mark,
            settled=mark - settings["allowed"],
            partitions={key: PartitionProgress(newest, arrived) for key in before.partitions},
            until={**before.until, "bronze": _end_position(number, "bronze", "bronze")},
        )
        return note.to_json()

    def of_gold(number: int) -> dict[str, Any]:
        settled = minutes.newest(number) - settings["delay"] - settings["allowed"]
        return {
            "until": {
                **template["until"],
                "silver": list(_end_position(number, "silver", "silver")),
            },
            "final": {**template["final"], "until": to_json(settled)},
        }

    def _end_position(number: int, key: str, followed: Hop) -> tuple[int, int]:
        """Return the end position, as far from the input's commit as in the hop's last batch."""
        version, index = template["until"][key]
        return versions[followed][number] + version - own, index

    followed: dict[Hop, Hop] = {"silver": "bronze", "gold": "silver"}
    own = version_of(tables[followed[hop]])[first - 1] if hop in followed else 0
    kinds = {"bronze": of_bronze, "silver": of_silver, "gold": of_gold}
    return lambda number: {**template, **kinds[hop](number), "batch": number}


def _set_checkpoint(
    run: Run, hop: Hop, tables: Mapping[Hop, Table], files: Collection[Path], first: int, last: int
) -> None:
    """Set a checkpoint to the offsets after the last batch."""
    checkpoint = run.lake.checkpoints(NAME, hop) / "g1"
    real = (checkpoint / "offsets" / str(first - 1)).read_text("utf-8").splitlines()[2:]
    entries: list[str] = []
    if hop == "bronze":
        lines = [json.dumps({"logOffset": 0})]
        entries = [file_entry(listed(str(file)), _landed(file)) for file in files]
        *entries, newest_entry = entries
    else:
        followed: Hop = "bronze" if hop == "silver" else "silver"
        newest = last_commit(tables[hop])
        lines = [delta_offset(str(tables[followed].id), positions(newest)[followed])]
        lines += real[1:]
    prepare(checkpoint, last - 1, lines, files=entries)
    for log in ("offsets", "commits"):
        whole = (checkpoint / log / str(last - 1)).read_text("utf-8")
        for number in range(max(0, last - _KEPT), last - 2):
            (checkpoint / log / str(number)).write_text(whole, "utf-8")
    if hop == "bronze":
        # The newest batch has its own file entry, to match its commit.
        newest_entry = json.dumps({**json.loads(newest_entry), "batchId": 1})
        (checkpoint / "sources" / "0" / "1").write_text(f"v1\n{newest_entry}", "utf-8")
        offsets = checkpoint / "offsets" / str(last - 1)
        offsets.write_text(
            offsets.read_text("utf-8").replace(lines[0], '{"logOffset": 1}'), "utf-8"
        )


def _landed(file: Path) -> LandedFile:
    found = file.stat()
    return LandedFile(str(file), found.st_size, found.st_mtime_ns // 1_000_000)
