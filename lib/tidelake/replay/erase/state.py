"""What is written down of an erasure between its steps, so that it can go on after any of them.

Record ids and sums, and a hash of the subject; neither the subject nor a value of any row.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from tidelake.errors import UsageError
from tidelake.replay.erase.books import Loss
from tidelake.replay.erase.subject import Subject
from tidelake.runtime.hop import Run
from tidelake.sinks.definitions import hash_of
from tidelake.sinks.erased import Arrival, Deduction

_STATE, _RECORDS, _NEIGHBOURS = "erasure.json", "records", "neighbours"


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
    folder: Path

    def records(self, run: Run) -> DataFrame:
        """Read ``record_id`` and ``ingested_at`` of what is erased."""
        return run.spark.read.parquet(str(self.folder / _RECORDS))

    def neighbours(self, run: Run) -> DataFrame:
        """Read those of the neighbours that are to be sent again."""
        return run.spark.read.parquet(str(self.folder / _NEIGHBOURS))


def begin(
    run: Run, name: str, subject: Subject, loss: Loss, records: DataFrame, neighbours: DataFrame
) -> Begun:
    """Write an erasure down, whole or not at all."""
    folder = run.lake.erasure(run.pipeline.name)
    made = folder.with_name(f".{folder.name}.new")
    shutil.rmtree(made, ignore_errors=True)
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
    records.select(*columns).coalesce(1).write.parquet(str(made / _RECORDS))
    neighbours.select(*columns).coalesce(1).write.parquet(str(made / _NEIGHBOURS))
    (made / _STATE).write_text(json.dumps(told, indent=1), encoding="utf-8")
    made.rename(folder)
    return _begun(folder, told)


def read_begun(run: Run, subject: Subject) -> Begun | None:
    """Read an erasure that was interrupted; None where there is none.

    Raises:
        UsageError: It is one of another subject, or the definition is another one now.
    """
    folder = run.lake.erasure(run.pipeline.name)
    if not folder.exists():
        return None
    begun = _begun(folder, json.loads((folder / _STATE).read_text(encoding="utf-8")))
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


def end(begun: Begun) -> None:
    """Take an erasure's notes away, whole or not at all."""
    gone = begun.folder.with_name(f".{begun.folder.name}.done")
    shutil.rmtree(gone, ignore_errors=True)
    begun.folder.rename(gone)
    shutil.rmtree(gone)


def _begun(folder: Path, told: dict[str, Any]) -> Begun:
    loss = Loss(
        rows=told["rows"],
        arrivals=tuple(
            Arrival(datetime.fromisoformat(at), *map(int, rest)) for at, *rest in told["arrivals"]
        ),
        deductions=tuple(Deduction(*one) for one in told["deductions"]),
        sources=tuple(told["sources"]),
    )
    return Begun(told["name"], told["subject"], told["definition"], loss, folder)
