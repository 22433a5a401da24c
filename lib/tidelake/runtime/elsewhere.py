"""Let a hop's batches be worked on in another process, which is what Spark Connect does with them.

Nothing of the driver's memory is there, and what the worker remembers is gone when it ends. So it
gets a description, from which it builds the hop anew, and of what goes wrong only a text comes
back; the error is written into it.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession

import tidelake
from tidelake import errors
from tidelake.errors import MachineError, TidelakeError
from tidelake.runtime.again import InputGrewError

_CARRIED = re.compile(r"tidelake-error<([A-Za-z0-9_-]+=*)>")


class Worker(Protocol):
    """What works on batches: a hop."""

    def take(self, rows: DataFrame, batch: int) -> None:
        """Write a batch."""

    def named(self, error: Exception) -> TidelakeError:
        """Name what stopped a batch."""


class CarriedError(Exception):
    """Holds another error in its text, which is all that comes back from a worker."""

    def __init__(self, error: TidelakeError) -> None:
        """Write the error down, beside its message for those who read a server's log."""
        told = {"kind": type(error).__name__, "message": str(error)}
        text = base64.urlsafe_b64encode(json.dumps(told).encode()).decode()
        super().__init__(f"{error}\ntidelake-error<{text}>")


@dataclass(frozen=True)
class Elsewhere:
    """A hop's work on batches, as a function that can be sent.

    Attributes:
        build: Makes the worker from the session that a batch comes with.
        version: Of the Tidelake that sends it.
    """

    build: Callable[[SparkSession], Worker]
    version: str = tidelake.__version__

    def __call__(self, rows: DataFrame, batch: int) -> None:
        """Work on a batch.

        Raises:
            CarriedError: Whatever stopped it, by its name.
        """
        if self.version != tidelake.__version__:
            raise CarriedError(
                MachineError(
                    f"the Spark Connect server has tidelake {tidelake.__version__}, this is "
                    f"{self.version}. Install the same on both."
                )
            )
        worker = self.build(rows.sparkSession)
        try:
            worker.take(rows, batch)
        except Exception as error:
            raise CarriedError(worker.named(error)) from error


def carried(text: str) -> TidelakeError | None:
    """Read the error that a worker wrote down; None where none did.

    Args:
        text: What the query says that it ended with.
    """
    found = _CARRIED.search(text)
    if found is None:
        return None
    told = json.loads(base64.urlsafe_b64decode(found[1]))
    kind: type[TidelakeError] = _KINDS.get(told["kind"], TidelakeError)
    # Some take other arguments than their message.
    error: TidelakeError = Exception.__new__(kind)
    Exception.__init__(error, told["message"])
    return error


def _known(kind: type[TidelakeError]) -> Iterator[type[TidelakeError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _known(child)


_KINDS = {kind.__name__: kind for kind in (*_known(errors.TidelakeError), InputGrewError)}
