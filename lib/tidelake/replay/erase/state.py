"""What is written down of an erasure between its steps, so that it can go on after any of them.

Record ids and sums, and a hash of the subject; neither the subject nor a value of any row.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pyspark.sql import DataFrame

from tidelake.delta.notes import Arrival, Deduction, hash_of
from tidelake.errors import UsageError
from tidelake.folders import Folder, remove_tree, write_whole
from tidelake.replay.erase.books import Loss
from tidelake.replay.erase.subject import Subject
from tidelake.runtime.hop import Run

_RECORDS, _NEIGHBOURS = "records", "neighbours"


@dataclass(frozen=True)
class Begun:
    """An erasure that has begun.

    Attributes:
        name: Tells it from others; the instant at which it began.
        subject: A hash.
        definition: A hash of the definition that found the records.
        loss: What tables lose.
        folder: Holds all of it, and the record ids.
    """

    name: str
    subject: str
    definition: str
    loss: Loss
    folder: Folder

    def records(self, run: Run) -> DataFrame:
        """Read ``record_id`` and ``ingested_at`` of what is erased."""
        return run.spark.read.parquet(str(self.folder / _RECORDS))

    def neighbours(self, run: Run) -> DataFrame:
        """Read those of the neighbours that are to be sent again."""
        return run.spark.read.parquet(str(self.folder / _NEIGHBOURS))


def begin(
    run: Run, name: str, subject: Subject, loss: Loss, records: DataFrame, neighbours: DataFrame
) -> Begun:
    """Write an erasure down; it has begun once its last file is there."""
    state = run.lake.erasure(run.pipeline.name)
    folder = state.parent
    remove_tree(folder)
    told = {
        "name": name,
        "subject": subject.hashed,
        "definition": hash_of(run.pipeline),
        "rows": loss.rows,
        "arrivals": [[one.ingested_at.isoformat(), *one[1:]] for one in loss.arrivals],
        "deductions": [list(one) for one in loss.deductions],
        "sources": list(loss.sources),
    }
    columns = ("record_id", "ingested_at")
    records.select(*columns).coalesce(1).write.parquet(str(folder / _RECORDS))
    neighbours.select(*columns).coalesce(1).write.parquet(str(folder / _NEIGHBOURS))
    write_whole(state, json.dumps(told, indent=1))
    return _begun(folder, told)


def read_begun(run: Run, subject: Subject) -> Begun | None:
    """Read an erasure that was interrupted; None where there is none.

    Raises:
        UsageError: It is one of another subject, or the definition is another one now.
    """
    state = run.lake.erasure(run.pipeline.name)
    if not state.exists():
        return None
    begun = _begun(state.parent, json.loads(state.read_text(encoding="utf-8")))
    if begun.subject != subject.hashed:
        raise UsageError(
            f"an erasure of another subject of {run.pipeline.name} was interrupted at some point "
            f"after {begun.name}. Go on with that one first; its subject is not written down."
        )
    if begun.definition != hash_of(run.pipeline):
        raise UsageError(
            f"the definition of {run.pipeline.name} is not the one under which its erasure began. "
            "Restore it, erase again, and change it then."
        )
    return begun


def end(run: Run, begun: Begun) -> None:
    """Take an erasure's notes away; it has ended once the first is gone."""
    run.lake.erasure(run.pipeline.name).unlink()
    remove_tree(begun.folder)


def _begun(folder: Folder, told: dict[str, Any]) -> Begun:
    loss = Loss(
        rows=told["rows"],
        arrivals=tuple(
            Arrival(datetime.fromisoformat(at), *rest) for at, *rest in told["arrivals"]
        ),
        deductions=tuple(Deduction(*one) for one in told["deductions"]),
        sources=tuple(told["sources"]),
    )
    return Begun(told["name"], told["subject"], told["definition"], loss, folder)
