"""Validate a hop's checkpoint against the commits of its tables; write one that goes on after them.

The table is the truth: its newest note says the generation and the last closed batch. A checkpoint
that is not exactly there, or one batch behind because the process died in between, belongs to
another history, and writing on would double or skip a batch.

The formats of a checkpoint's files are Spark's: a version line and JSON. The offset log has a line
of metadata and then a line for each input.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tidelake.delta.log import (
    CREATION,
    FIRST_GENERATION,
    Commit,
    last_commit,
    newest_version,
    oldest_version,
)
from tidelake.delta.notes import positions
from tidelake.delta.positions import (
    BEGINNING,
    Position,
    bytes_between,
    rewritten_after,
    rows_between,
    size_between,
)
from tidelake.delta.tables import Hop, Table
from tidelake.errors import GenerationError
from tidelake.folders import Folder, remove_tree
from tidelake.runtime.landing import LandedFile

_VERSION, _NO_DATA = "v1", "-"
# Of the offset log.
_FIRST_INPUT = 2
# No batch ends here.
_NOWHERE: Position = (-1, -1)


@dataclass(frozen=True)
class Fence:
    """Admits each batch of a hop to a table exactly once, in the one generation that may write.

    ``closed`` is the newest batch that one of its tables held when the hop was opened.
    """

    pipeline: str
    hop: Hop
    generation: str
    closed: int = field(default=CREATION, compare=False)

    def admits(
        self,
        table: Table,
        last: Commit | None,
        batch: int,
        until: Mapping[str, Position] | None = None,
    ) -> Commit | None:
        """Return the commit after which a batch is the table's next; None if it holds the batch.

        Args:
            table: That the batch is to be written to.
            last: Its newest commit of a batch.
            batch: The number of the batch.
            until: The end of the batch in each of its inputs; None where none of them is a table.

        Raises:
            GenerationError: The table is at another batch, by another writer or as an old copy, or
                it holds the batch with other rows.
        """
        if last is None:
            raise self.refusal(f"{table.name} has lost the notes of its commits")
        if last.generation != self.generation:
            raise self.refusal(
                f"{table.name} is of generation {last.generation}, this writer of {self.generation}"
            )
        if last.batch == batch:
            if until is not None and positions(last) != dict(until):
                raise self.refusal(f"{table.name} holds batch {batch} with other rows")
            return None
        if last.batch == batch - 1:
            return last
        raise self.refusal(f"{table.name} stands at batch {last.batch}, batch {batch} came")

    def refusal(self, what: str) -> GenerationError:
        """Say what does not fit, and which command mends it."""
        command = f"tidelake repair {self.pipeline} --hop {self.hop}"
        return GenerationError(what, f"Mend it with: {command}")


def open_generation(pipeline: str, hop: Hop, tables: Sequence[Table], checkpoints: Folder) -> Fence:
    """Find the generation in which a hop goes on, and check that its checkpoint fits.

    ``tables`` are those whose commits close a batch, none of which may exist yet; ``checkpoints``
    has one checkpoint a generation. A GenerationError where it is missing, older or of another
    history.
    """
    last = {table.name: last_commit(table) for table in tables}
    notes = [commit for commit in last.values() if commit is not None]
    generation = notes[0].generation if notes else FIRST_GENERATION
    newest = max((commit.batch for commit in notes), default=CREATION)
    fence = Fence(pipeline, hop, generation, closed=newest)
    others = sorted({commit.generation for commit in notes} - {generation})
    if others:
        raise fence.refusal(f"the tables are of generations {generation} and {', '.join(others)}")
    checkpoint = checkpoints / generation
    committed = _newest(checkpoint / "commits")
    planned = max(committed, _newest(checkpoint / "offsets"))
    for name, commit in last.items():
        batch = CREATION if commit is None else commit.batch
        if batch in (committed, planned):
            continue
        if not checkpoint.exists():
            raise fence.refusal(f"{name} holds batch {batch}, but its checkpoint is gone")
        if batch == CREATION and newest > CREATION:
            raise fence.refusal(f"{name} is new beside tables that already hold batches")
        raise fence.refusal(
            f"{name} stands at batch {batch}, its checkpoint at {committed}: "
            "one of them is an older copy"
        )
    return fence


@dataclass(frozen=True)
class CheckpointGuard:
    """Compares a hop's checkpoint with its tables, and both with the tables that it follows.

    ``closing`` are the tables whose commits close a batch, ``inputs`` those that it follows, in the
    order in which its stream names them.
    """

    fence: Fence
    checkpoint: Folder
    closing: tuple[Table, ...]
    inputs: Mapping[str, Table]

    def idle(self) -> frozenset[str]:
        """Name the inputs that have no commit behind what the hop has taken."""
        reached = positions(last_commit(self.closing[0]))
        return frozenset(
            key
            for key, table in self.inputs.items()
            if newest_version(table) < reached.get(key, BEGINNING)[0]
        )

    def is_at_the_end(self) -> bool:
        """Return whether there is nothing to take in: no row, and no batch of those it follows.

        A stream would close a batch without rows for a mere compaction, in every table.
        """
        notes = [last_commit(table) for table in self.closing]
        reached = positions(notes[0])
        if not self.inputs or any(positions(note) != reached for note in notes):
            return False
        if not set(reached) >= set(self.inputs):
            return False
        for key, table in self.inputs.items():
            last = last_commit(table)
            is_behind = last is not None and last.version >= reached[key][0]
            if is_behind or rows_between(table, reached[key]):
                return False
        return True

    def planned(self, batch: int, reached: Mapping[str, Position]) -> dict[str, Position]:
        """Return the end of a batch in each input; Spark writes its offsets before it runs.

        Args:
            batch: The number of the batch.
            reached: The end of the last committed batch in each input; empty before the first.

        Raises:
            GenerationError: The end lies before what the table holds, or after what the input
                holds: rows would be taken twice, or never.
        """
        ends = planned_positions(self.checkpoint, batch, len(self.inputs))
        if len(ends) != len(self.inputs):
            raise self.fence.refusal(f"offsets/{batch} of its checkpoint lacks an input")
        until = dict(zip(self.inputs, ends, strict=True))
        for key, table in self.inputs.items():
            if table.store.takes_whole_commits and until[key][1] >= 0:
                raise self.fence.refusal(
                    f"its checkpoint lets batch {batch} end inside a commit of {table.name}"
                )
        for key, start in reached.items():
            followed, end = self.inputs.get(key), until.get(key)
            if followed and end and not start <= end <= (newest_version(followed) + 1, -1):
                raise self.fence.refusal(
                    f"its checkpoint lets batch {batch} end at version {end[0]} of {followed.name}"
                )
        return until

    def sizes(
        self, reached: Mapping[str, Position], until: Mapping[str, Position]
    ) -> dict[str, tuple[int, int]]:
        """Return the rows, by Delta's statistics, and bytes of a batch, by input."""
        return {
            key: size_between(table, reached.get(key, BEGINNING), until[key])
            for key, table in self.inputs.items()
        }

    def taken(self, before: Commit | None, batch: int) -> tuple[int, int] | None:
        """Return how many bytes a closed batch took after a commit, and how many still wait.

        Of the largest input, since Delta's limit holds for each; None without any.
        """
        if not self.inputs:
            return None
        was = positions(before)
        ends = planned_positions(self.checkpoint, batch, len(self.inputs))
        inputs = list(zip(self.inputs.items(), ends, strict=True))
        sizes = [bytes_between(table, was.get(key, BEGINNING), end) for (key, table), end in inputs]
        return max(sizes), max(bytes_between(table, end) for (_, table), end in inputs)

    def offset_mismatch(self, closed: Commit) -> str:
        """Describe how the offsets of a table's newest batch differ from its commit, if they do."""
        told = positions(closed)
        if not told or set(told) != set(self.inputs):
            return ""
        lines = _inputs(self.checkpoint, closed.batch)
        if len(lines) != len(self.inputs):
            return f"offsets/{closed.batch} of its checkpoint lacks an input"
        for (key, table), line in zip(self.inputs.items(), lines, strict=True):
            known = None if line == _NO_DATA else json.loads(line)["reservoirId"]
            if known and table.store.id not in (None, known):
                return f"{table.name} is another table now than the one that was read"
            position = _position(line)
            if told[key] != position:
                return (
                    f"its checkpoint stands at version {position[0]} of {table.name}, "
                    f"batch {closed.batch} ended at version {told[key][0]}"
                )
        return ""

    def refuse_mismatch(self, mismatch: Callable[[Commit], str]) -> None:
        """Raise a GenerationError where the checkpoint would skip rows, or take some twice."""
        for table in self.closing:
            closed = last_commit(table)
            if closed is None or closed.batch <= CREATION:
                continue
            problem = unreadable(self.checkpoint, closed.batch) or mismatch(closed)
            if problem:
                raise self.fence.refusal(f"{self.fence.pipeline}, hop {self.fence.hop}: {problem}")

    def refuse_rewritten(self) -> None:
        """Raise a GenerationError where rows that were read may have changed since."""
        reached = positions(last_commit(self.closing[0]))
        for key, table in self.inputs.items():
            position = reached.get(key, BEGINNING)
            if position == BEGINNING and oldest_version(table) > 0:
                raise self.fence.refusal(f"the first commits of {table.name} are gone")
            version = rewritten_after(table, position) if table.exists else None
            if version is not None:
                raise self.fence.refusal(
                    f"version {version} of {table.name} took out or replaced rows "
                    f"that hop {self.fence.hop} may have read"
                )


def planned_positions(checkpoint: Folder, batch: int, inputs: int) -> list[Position]:
    """Read how far a planned micro-batch goes in each followed table, in the stream's order."""
    return [_position(line) for line in _inputs(checkpoint, batch)[:inputs]]


def _inputs(checkpoint: Folder, batch: int) -> list[str]:
    log = checkpoint / "offsets" / str(batch)
    return log.read_text(encoding="utf-8").splitlines()[_FIRST_INPUT:]


def _position(line: str) -> Position:
    # An input without any data yet has a dash.
    if line == _NO_DATA:
        return BEGINNING
    offset = json.loads(line)
    # Ours begin with the first commit, never with a snapshot.
    if offset.get("isStartingVersion"):
        return _NOWHERE
    return int(offset["reservoirVersion"]), int(offset["index"])


def unreadable(checkpoint: Folder, closed: int) -> str:
    """Say which file of a checkpoint is missing or is not what Spark wrote; empty for none.

    Looks at what a query reads when it starts: who it is, and its batches around the one that the
    hop's table closed last.
    """
    wanted = [checkpoint / "metadata"]
    for log in ("offsets", "commits"):
        last = _newest(checkpoint / log)
        first = min(max(closed - 1, 0), last)
        wanted += [checkpoint / log / str(n) for n in range(first, last + 1) if n >= 0]
    wanted.append(checkpoint / "offsets" / str(closed))
    for file in wanted:
        problem = _broken(file)
        if problem:
            return f"{file.parent.name}/{file.name} of its checkpoint {problem}"
    return ""


def _newest(folder: Folder) -> int:
    """Return the highest batch number in a checkpoint's folder, -1 for none."""
    numbers = [int(file.name) for file in folder.glob("[0-9]*") if file.name.isdigit()]
    return max(numbers, default=CREATION)


def _broken(file: Folder) -> str:
    """Say what is wrong with a file of JSON objects, one a line; a log has its version first."""
    if not file.exists():
        return "is missing"
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
        is_log = file.name != "metadata"
        objects = lines[1:] if is_log else lines
        whole = bool(objects) and (not is_log or lines[0] == _VERSION)
        # What follows the first is each source's own: an object, or a number.
        first, *_ = [json.loads(line) for line in objects if line != _NO_DATA] or [None]
    except ValueError:
        return "cannot be read"
    return "" if whole and isinstance(first, dict) else "cannot be read"


def prepare(
    folder: Folder, batch: int, offsets: Sequence[str], *, files: Sequence[str] = ()
) -> None:
    """Write a checkpoint whose last closed batch is given, so that a query goes on after it.

    Its metadata comes last: a checkpoint without is refused. And no table names the generation
    until the checkpoint is whole, so that an interrupted repair leaves nothing that counts.

    Args:
        folder: The generation's checkpoint; what an interrupted repair left there is replaced.
        batch: The last closed batch, at least 1; -1 leaves the checkpoint to the query.
        offsets: One line an input, in the order in which the stream names them.
        files: Entries of the file source's log, if the input is one.
    """
    remove_tree(folder)
    folder.mkdir(parents=True)
    if batch < 0:
        return
    state = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 0, "conf": {}})
    done = json.dumps({"nextBatchWatermarkMs": 0})
    # A query that starts asks its sources for the last batch once more, from the end of the one
    # before it. Both end alike, so that nothing is read again. An offset is written with its
    # commit, so that the query takes the batch as done.
    written = {
        **{f"offsets/{number}": [_VERSION, state, *offsets] for number in (batch - 1, batch)},
        **{f"commits/{number}": [_VERSION, done] for number in (batch - 1, batch)},
        **({"sources/0/0": [_VERSION, *files]} if files else {}),
        "metadata": [json.dumps({"id": str(uuid.uuid4())})],
    }
    for name, lines in written.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("\n".join(lines), encoding="utf-8")


def delta_offset(table_id: str, position: Position) -> str:
    """Write a position in a Delta table as its stream's offset."""
    version, index = position
    return json.dumps(
        {
            "sourceVersion": 1,
            "reservoirId": table_id,
            "reservoirVersion": version,
            "index": index,
            "isStartingVersion": False,
        }
    )


def file_entry(uri: str, file: LandedFile) -> str:
    """Write a file that was taken, listed by Spark at ``uri``, as an entry of the source's log."""
    return json.dumps({"path": uri, "timestamp": file.modified, "batchId": 0})
