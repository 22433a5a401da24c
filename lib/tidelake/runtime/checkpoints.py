"""Validate a hop's checkpoint against its tables' commits; write one that resumes after them.

The tables are authoritative: the newest commit's metadata has the generation and the last closed
batch. A checkpoint must be at that batch, or one behind if the process died between the two
commits. Any other checkpoint does not match the tables: continuing would double or skip a batch.

The file formats are Spark's: a version line and JSON. The offset log has a line of metadata and
then a line for each source.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from tidelake.config import Pipeline
from tidelake.delta.commit_metadata import positions
from tidelake.delta.log import (
    CREATION,
    ERASED,
    FIRST_GENERATION,
    REBUILT,
    Added,
    Commit,
    Entry,
    commits,
    entries_since,
    last_commit,
    newest_version,
    note_of,
)
from tidelake.delta.positions import (
    BEGINNING,
    RECREATED,
    Position,
    added_between,
    stream_breaks,
    unfilled_tables,
)
from tidelake.delta.tables import Hop, Lake, Table, refuse_unusable
from tidelake.errors import GenerationError, RefusedError, RewrittenError
from tidelake.folders import Folder, place_of, remove_tree, write_whole
from tidelake.runtime.fence import Fence, bronze_is_gone, overtaken
from tidelake.runtime.landed_files import LandedFile
from tidelake.typed import runnable

_VERSION, _NO_DATA, _COMPACTED = "v1", "-", ".compact"
_PARTITIONS = "spark.sql.shuffle.partitions"
# Lines of the offset log before the first source: version and metadata.
_FIRST_INPUT = 2
# A position at which no batch ends.
_INVALID: Position = (-1, -1)


def refuse_foreign(pipeline: str, last: Mapping[str, Commit | None]) -> None:
    """Raise a RefusedError if another pipeline made the last commit of one of the tables."""
    for name, commit in last.items():
        other = pipeline if commit is None else commit.note.get("pipeline", pipeline)
        if other != pipeline:
            raise RefusedError(
                f"{name} is filled by the pipeline {other}; two cannot fill one table. Give "
                f"it another name in {pipeline}, or if {other} no longer exists, delete its "
                "folder. None of these tables was changed"
            )


def refuse_foreign_gold(lake: Lake, pipeline: Pipeline) -> None:
    """Raise a RefusedError if another pipeline fills one of a pipeline's gold tables."""
    golds = lake.closing_tables(pipeline, "gold")
    refuse_foreign(pipeline.name, {one.name: last_commit(one) for one in golds})


def replaced_sides(lake: Lake, pipeline: str, closed: Commit) -> str:
    """Describe a side table that was rebuilt after silver's newest commit, or return "".

    Silver was restored to a version before a rebuild, or a rebuild was interrupted.
    """
    for side in (lake.quarantine(pipeline), lake.late(pipeline)):
        newer = takewhile(lambda one: one.order[0] > closed.order[0], commits(side))
        rebuilt = next((one for one in newer if REBUILT in one.note), None)
        if rebuilt is not None:
            return (
                f"{side.name} was rebuilt in generation {rebuilt.generation}, and silver is of "
                f"{closed.generation}: one of them is an older copy, or a rebuild was interrupted"
            )
    return ""


def open_generation(pipeline: str, hop: Hop, tables: Sequence[Table], checkpoints: Folder) -> Fence:
    """Return the fence of a hop's current generation, unless its checkpoint has another history.

    ``tables`` are those whose commits close a batch, of which none need exist yet; ``checkpoints``
    is the folder with one checkpoint per generation. Nothing is written.
    """
    last = {table.name: last_commit(table) for table in tables}
    refuse_foreign(pipeline, last)
    empty = {table.name for table in unfilled_tables(tables)}
    notes = {name: commit for name, commit in last.items() if commit is not None}
    filled = [commit for name, commit in notes.items() if name not in empty]
    generation = filled[0].generation if filled else FIRST_GENERATION
    newest = max((commit.batch for commit in filled), default=CREATION)
    checkpoint = checkpoints / generation
    committed = newest_logged(checkpoint / "commits")
    planned = max(committed, newest_logged(checkpoint / "offsets"))
    if CREATION in (committed, planned):
        # The first batch is still open, or the checkpoint is gone, which is refused below.
        empty = set()
    unfilled = tuple(table.name for table in tables if table.name in empty)
    fence = Fence(pipeline, hop, generation, closed=newest, unfilled=unfilled)
    used = {commit.generation for name, commit in notes.items() if name not in empty}
    if others := sorted(used - {generation}):
        raise fence.refusal(f"the tables are of generations {generation} and {', '.join(others)}")
    for name, commit in last.items():
        batch = CREATION if commit is None else commit.batch
        if name in empty or batch in (committed, planned):
            continue
        why = f"is at batch {batch}, its checkpoint at {committed}: one of them is an older copy"
        if not checkpoint.exists():
            # Also where the bucket is.
            refuse_unusable(checkpoints)
            why = f"holds batch {batch}, but its checkpoint is gone"
        if hop == "bronze" and commit is None:
            raise bronze_is_gone(name)
        raise fence.refusal(f"{name} {why}")
    for problem in filter(None, (overtaken(table, checkpoints) for table in tables)):
        # A repair of bronze continues: nothing can recompute its rows.
        more = "; then see `tidelake ledger`, and restore bronze if records are there twice"
        raise fence.refusal(problem, more if hop == "bronze" else "")
    return fence


@dataclass(frozen=True)
class CheckpointGuard:
    """Compares a hop's checkpoint with the tables that close its batches, and with its inputs.

    ``inputs`` are the tables that the hop reads, in the order of the stream's sources; ``closing``
    are without the fence's unfilled tables.
    """

    fence: Fence
    checkpoint: Folder
    closing: tuple[Table, ...]
    inputs: Mapping[str, Table]

    def idle(self) -> frozenset[str]:
        """Return which inputs, by key, have no commit of any kind after the hop's last batch."""
        reached = positions(last_commit(self.closing[0]))
        inputs = self.inputs.items()
        return frozenset(
            key for key, one in inputs if newest_version(one) < reached.get(key, BEGINNING)[0]
        )

    def planned(self, batch: int, reached: Mapping[str, Position]) -> dict[str, Position]:
        """Return the planned end of a batch in each input, from Spark's offset log.

        An end before ``reached``, the end of the last committed batch, or after the input's newest
        commit is refused: rows would be read twice or never.
        """
        until = self._ends(batch)
        if len(until) != len(self.inputs):
            raise self.fence.refusal(f"offsets/{batch} of its checkpoint lacks an input")
        for key, table in self.inputs.items():
            start, end = reached.get(key), until[key]
            if table.takes_whole_commits and end[1] >= 0:
                raise self.fence.refusal(
                    f"its checkpoint ends batch {batch} inside a commit of {table.name}"
                )
            if start and not start <= end <= (newest_version(table) + 1, -1):
                raise self.fence.refusal(
                    f"its checkpoint ends batch {batch} at version {end[0]} of {table.name}, "
                    "which is before the last committed batch or after the newest version"
                )
        return until

    def _ends(self, batch: int) -> dict[str, Position]:
        ends = planned_positions(self.checkpoint, batch, len(self.inputs))
        return dict(zip(self.inputs, ends, strict=False))

    def sizes(
        self, reached: Mapping[str, Position], until: Mapping[str, Position]
    ) -> dict[str, Added]:
        """Return the rows and bytes of each input in a batch, by Delta's file statistics."""
        return {
            key: added_between(table, reached.get(key, BEGINNING), until[key])
            for key, table in self.inputs.items()
        }

    def taken(self, before: Commit | None, batch: int) -> tuple[int, int] | None:
        """Return the bytes that a batch read after the commit ``before``, and the unread bytes.

        Each is the maximum over the inputs, since Delta's limit applies to each; None without any.
        """
        if not self.inputs:
            return None
        was, ends = positions(before), self._ends(batch)
        read = [
            added_between(table, was.get(key, BEGINNING), ends[key]).size
            for key, table in self.inputs.items()
        ]
        left = [added_between(self.inputs[key], end).size for key, end in ends.items()]
        return max(read), max(left)

    def offset_mismatch(self, closed: Commit | None) -> str:
        """Describe how the checkpoint differs from a table's newest commit, or return ""."""
        committed = positions(closed)
        if closed is None or not committed or set(committed) != set(self.inputs):
            return ""
        lines = _inputs(self.checkpoint, closed.batch)
        if len(lines) != len(self.inputs):
            return f"offsets/{closed.batch} of its checkpoint lacks an input"
        for (key, table), line in zip(self.inputs.items(), lines, strict=True):
            known = None if line == _NO_DATA else json.loads(line)["reservoirId"]
            if known and table.id not in (None, known):
                return f"{table.name} {RECREATED}"
            position = _position(line)
            if committed[key] != position:
                return (
                    f"its checkpoint is at version {position[0]} of {table.name}, "
                    f"but batch {closed.batch} ended at version {committed[key][0]}"
                )
        return ""

    def refuse_mismatch(self, mismatch: Callable[[Commit | None], str]) -> None:
        """Raise a GenerationError if the checkpoint would skip rows or read some twice.

        ``mismatch`` gets each table's newest batch; None if no table has closed one.
        """
        heads = [one for one in map(last_commit, self.closing) if one and one.batch > CREATION]
        found = (
            unreadable(self.checkpoint, one.batch if one else CREATION) or mismatch(one)
            for one in heads or (None,)
        )
        if problem := next(filter(None, found), "") or self._inputs_added_or_removed():
            raise self.fence.refusal(f"{self.fence.pipeline}, hop {self.fence.hop}: {problem}")

    def _inputs_added_or_removed(self) -> str:
        """Describe how many inputs the newest planned batch has, if the definition has others.

        Spark resumes only with as many sources, also where that batch is the first and still open.
        """
        newest = newest_logged(self.checkpoint / "offsets")
        # Bronze has no inputs.
        if not self.inputs or newest == CREATION:
            return ""
        had, has = len(_inputs(self.checkpoint, newest)), len(self.inputs)
        if not had or had == has:
            return ""
        counts = f"({had} in offsets/{newest} of its checkpoint, {has} in the definition)"
        if had < has:
            return f"a table is a new input {counts}"
        read = positions(last_commit(self.closing[0])) if self.closing else {}
        gone = [key for key in read if key not in self.inputs]
        return f"{', '.join(gone) or 'a table'} is no longer an input {counts}"

    def refuse_rewritten(self) -> None:
        """Raise a GenerationError if an input's rows may have changed after they were read."""
        last = last_commit(self.closing[0])
        since = last.written_at if last else None
        for key, table in self.inputs.items():
            position = positions(last).get(key, BEGINNING)
            for found in stream_breaks(table, self.fence.hop, position, since):
                if found.rewriting is not None:
                    raise self._rewritten(key, found.rewriting, position)
                raise self.fence.refusal(found.reason)

    def _rewritten(self, key: str, found: Entry, position: Position) -> GenerationError:
        """Build the error for a commit that replaced rows; a repair would carry damage on."""
        table = self.inputs[key]
        what = (
            f"version {found.version} of {table.name} deleted or replaced rows "
            f"that hop {self.fence.hop} may have read"
        )
        # An erasure's own commit follows those that delete, which have no metadata. The requeue has
        # copies of bronze's rows, and a reset that was interrupted has emptied it.
        notes = [note_of(entry) or {} for entry in entries_since(table, position[0])]
        is_known = key == "requeue" or note_of(found) or any(ERASED in note for note in notes)
        if is_known or found.info.operation == "RESTORE":
            return self.fence.refusal(what)
        return RewrittenError(
            f"{what}: another writer's {found.info.operation}",
            f"First see what differs: {runnable('tidelake verify', table.bare)}. Only if the "
            f"change is intended, repair with: {self.fence.repair}",
            is_own=table.bare == self.fence.pipeline,
        )


def ordered_inputs(checkpoint: Folder, inputs: Mapping[str, Table]) -> Mapping[str, Table]:
    """Return a hop's inputs in the order of its checkpoint's sources.

    A join that is added to the definition above others changes the definition's order, but Spark
    assigns the offsets by position. The order is left as it is where the checkpoint or the logs do
    not name the tables.
    """
    # The first input is the pipeline's own silver, so a single other one is the second.
    if len(inputs) <= 2:
        return inputs
    newest = newest_logged(checkpoint / "offsets")
    if newest == CREATION or not _is_readable(checkpoint / "offsets" / str(newest)):
        return inputs
    lines = _inputs(checkpoint, newest)
    ids = [None if line == _NO_DATA else json.loads(line).get("reservoirId") for line in lines]
    keys = {table.id: key for key, table in inputs.items()}
    if set(ids) != set(keys) or not len(keys) == len(ids) == len(inputs):
        return inputs
    return {keys[one]: inputs[keys[one]] for one in ids}


def have_consumed(closing: Sequence[Table], inputs: Mapping[str, Table]) -> bool:
    """Return whether a hop's tables are at the end of its inputs: no unread row, no unread batch.

    False for a hop without input tables.
    """
    reached = [positions(last_commit(table)) for table in closing]
    if not inputs or any(one != reached[0] or not one.keys() >= inputs.keys() for one in reached):
        return False
    for key, table in inputs.items():
        last = last_commit(table)
        is_behind = last is not None and last.version >= reached[0][key][0]
        if is_behind or added_between(table, reached[0][key]).rows:
            return False
    return True


def planned_positions(checkpoint: Folder, batch: int, inputs: int) -> list[Position]:
    """Read a planned micro-batch's end in each input table, in the order of the sources."""
    return [_position(line) for line in _inputs(checkpoint, batch)[:inputs]]


def _inputs(checkpoint: Folder, batch: int) -> list[str]:
    log = checkpoint / "offsets" / str(batch)
    return log.read_text(encoding="utf-8").splitlines()[_FIRST_INPUT:]


def _position(line: str) -> Position:
    if line == _NO_DATA:
        return BEGINNING
    offset = json.loads(line)
    # Tidelake's streams start at the first commit, never with a snapshot.
    if offset.get("isStartingVersion"):
        return _INVALID
    return int(offset["reservoirVersion"]), int(offset["index"])


def unreadable(checkpoint: Folder, closed: int) -> str:
    """Return which file of a checkpoint is missing or corrupt, and how; empty for none.

    Checks the files that a query reads at its start: ``metadata``, and the offsets and commits
    from the batch before ``closed``, the last in the hop's table; without one, what there is.
    """
    wanted = [checkpoint / "metadata"]
    for log in (checkpoint / "offsets", checkpoint / "commits"):
        last = newest_logged(log)
        wanted += [log / str(n) for n in range(max(min(closed - 1, last), 0), last + 1)]
    for file in (*wanted, checkpoint / "offsets" / str(closed)):
        exists = file.exists()
        if not (exists and _is_readable(file)) and (exists or closed > CREATION):
            problem = "cannot be read" if exists else "is missing"
            return f"{file.parent.name}/{file.name} of its checkpoint {problem}"
    return ""


def newest_logged(folder: Folder) -> int:
    """Return the highest batch number in a log of a checkpoint, -1 for none."""
    numbers = [int(file.name) for file in folder.glob("[0-9]*") if file.name.isdigit()]
    return max(numbers, default=CREATION)


def has_batches(checkpoints: Folder) -> bool:
    """Return whether a query of any generation has closed a batch in a hop's checkpoints."""
    return any(newest_logged(folder / "commits") > CREATION for folder in checkpoints.glob("*"))


def _is_readable(file: Folder) -> bool:
    """Return whether a checkpoint file consists of JSON lines, in a log after a version line."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
        if file.name != "metadata":
            version, *lines = lines or [""]
            if version != _VERSION:
                return False
        objects = [json.loads(line) for line in lines if line != _NO_DATA]
    except ValueError:
        return False
    # Later lines have the format of each source: an object, or a number.
    least = 2 if file.parent.name == "offsets" else 1
    return len(lines) >= least and bool(objects) and isinstance(objects[0], dict)


def prepare(
    folder: Folder, batch: int, offsets: Sequence[str], *, files: Sequence[str] = ()
) -> None:
    """Write a checkpoint from which a query resumes after a batch.

    Whatever ``folder`` holds is deleted. For the batch :data:`CREATION` (there was none) it is left
    empty, and the query makes its own checkpoint. ``offsets`` has a line per source, ``files`` the
    entries of a file source's log. The metadata is written last, since Tidelake refuses a
    checkpoint without it. The caller names the generation in a table only afterwards: a repair that
    is interrupted before that has no effect, and the next one overwrites its checkpoint.

    Raises:
        ValueError: The batch is 0: Spark resumes from a batch and the one before it.
    """
    if batch == 0:
        raise ValueError("a checkpoint cannot resume after batch 0")
    remove_tree(folder)
    if isinstance(folder, Path):
        folder.mkdir(parents=True)
    if batch == CREATION:
        return
    state = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 0, "conf": {}})
    done = json.dumps({"nextBatchWatermarkMs": 0})
    # At its start a query requests the last batch from its sources again, from the end of the one
    # before. Both get the same end, so that no row is read again, and both get a commit, so that
    # the query treats them as done.
    written: dict[str, list[str]] = {}
    for number in (batch - 1, batch):
        written[f"offsets/{number}"] = [_VERSION, state, *offsets]
        written[f"commits/{number}"] = [_VERSION, done]
    if files:
        written["sources/0/0"] = [_VERSION, *files]
    written["metadata"] = [json.dumps({"id": str(uuid.uuid4())})]
    for name, lines in written.items():
        write_whole(folder / name, "\n".join(lines))


def complete_prepared(checkpoint: Folder) -> None:
    """Make a checkpoint of :func:`prepare` readable whose first batch was planned, but not closed.

    Spark compares the shuffle partitions of an open batch with those of the batch before, and fails
    if that has none. A prepared batch gets them only here, since the query that continues decides
    how many it uses. Does nothing to any other checkpoint.
    """
    opened = newest_logged(checkpoint / "offsets")
    if opened <= max(newest_logged(checkpoint / "commits"), 0):
        return
    files = [checkpoint / "offsets" / str(batch) for batch in (opened - 1, opened)]
    before, lines = [file.read_text(encoding="utf-8").splitlines() for file in files]
    state, planned = json.loads(before[1]), json.loads(lines[1])
    partitions = planned.get("conf", {}).get(_PARTITIONS)
    if partitions and not state.get("conf"):
        state["conf"] = {_PARTITIONS: partitions}
        write_whole(files[0], "\n".join([before[0], json.dumps(state), *before[_FIRST_INPUT:]]))


def batch_paths(checkpoint: Folder, batch: int) -> list[str]:
    """Return the paths of a planned micro-batch's files from Spark's file source log."""
    last, before = (
        int(json.loads(file.read_text(encoding="utf-8").splitlines()[2])["logOffset"])
        if (file := checkpoint / "offsets" / str(number)).exists()
        else -1
        for number in (batch, batch - 1)
    )
    paths: list[str] = []
    for number in range(before + 1, last + 1):
        file = checkpoint / "sources" / "0" / str(number)
        log = file if file.exists() else file.with_name(f"{number}{_COMPACTED}")
        # A compacted log lists all files ever read.
        its_own = re.compile(rf'"batchId"\s*:\s*{number}\b').search
        paths += [place_of(json.loads(line)["path"]) for line in _entries(log) if its_own(line)]
    return paths


def _entries(file: Folder) -> list[str]:
    """Read the entries of a file of Spark's file source log; a ValueError if it is empty."""
    _, *lines = file.read_text(encoding="utf-8").splitlines()
    return lines


def logged_files(checkpoint: Folder) -> set[str]:
    """List the paths in Spark's file source log, which Spark will not read again."""
    log = checkpoint / "sources" / "0"
    numbers = {
        file: int(number)
        for file in log.glob("[0-9]*")
        if (number := file.name.removesuffix(_COMPACTED)).isdigit()
    }
    # Each compacted file repeats all entries before it.
    first = max((n for file, n in numbers.items() if file.name.endswith(_COMPACTED)), default=-1)
    return {
        place_of(json.loads(line)["path"])
        for file, number in numbers.items()
        if number > first or file.name == f"{first}{_COMPACTED}"
        for line in _entries(file)
    }


def delta_offset(table_id: str, position: Position) -> str:
    """Format a position in a Delta table as an offset of Delta's streaming source."""
    offset = {"sourceVersion": 1, "reservoirId": table_id, "reservoirVersion": position[0]}
    return json.dumps({**offset, "index": position[1], "isStartingVersion": False})


def file_entry(uri: str, file: LandedFile) -> str:
    """Format an ingested file, listed by Spark at ``uri``, as an entry of the file source's log."""
    return json.dumps({"path": uri, "timestamp": file.modified, "batchId": 0})
