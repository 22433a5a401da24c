"""Where a run can die: a point before or after each step of each hop, found by its name.

The product has no hooks. What a hop appends comes by its table, whoever calls it; the other
points are steps of a hop's script. Armed, the n-th pass of a point does not come through.
``python -m tests.recovery.failpoints run clickstream …`` is the command line, armed by
``TIDELAKE_FAIL=point:nth:mode``.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tidelake import cli
from tidelake.delta.store import FolderTable
from tidelake.delta.tables import Table
from tidelake.runtime import bronze_hop as bronze
from tidelake.runtime import gold, hop, runner, schemas, session_pool, silver
from tidelake.runtime.gold_tables import Target
from tidelake.spark import tuning

_KILLED = 137


@dataclass(frozen=True)
class Point:
    """A step of a hop.

    Attributes:
        name: ``hop/step/before`` or ``hop/step/after``.
        owner: The module or class that holds the function.
        function: Its name there.
        table: Only calls for a table whose logical name matches.
    """

    name: str
    owner: Any
    function: str
    table: str = ""

    @property
    def hop(self) -> str:
        """Which hop comes by; ``books`` and ``epochs`` come after the last."""
        return self.name.split("/")[0]

    @property
    def is_after(self) -> bool:
        """Whether the step is done when a run dies there."""
        return self.name.endswith("/after")

    def concerns(self, arguments: tuple[Any, ...]) -> bool:
        """Tell whether a call comes by."""
        if not self.table:
            return True
        if "error" in arguments:
            # A table is made.
            return False
        names = [value.table.name for value in arguments if isinstance(value, Target)]
        names += [value.name for value in arguments if isinstance(value, Table)]
        return any(re.search(self.table, name) for name in names)


def _around(step: str, owner: Any, function: str, table: str = "") -> list[Point]:
    return [Point(f"{step}/{side}", owner, function, table) for side in ("before", "after")]


def _saved(step: str, table: str) -> list[Point]:
    return _around(step, FolderTable, "save", table)


# In the order of the flow.
POINTS: dict[str, Point] = {
    point.name: point
    for point in [
        *_around("bronze/create", bronze, "ensure_table"),
        Point("bronze/read/before", bronze.BronzeHop, "_offered"),
        *_saved("bronze/append", r"^bronze\.[a-z]+$"),
        Point("bronze/batch/after", bronze.BronzeHop, "write"),
        *_around("bronze/compact", hop, "compact", r"^bronze\."),
        *_around("silver/create", schemas, "ensure_table", r"^silver\."),
        Point("silver/parse/before", silver, "find_repeats"),
        Point("silver/decide/after", silver, "find_repeats"),
        Point("silver/count/after", silver, "decide_fates"),
        *_saved("silver/quarantine", "__quarantine$"),
        *_saved("silver/late", "__late$"),
        *_saved("silver/append", r"^silver\.[a-z]+$"),
        Point("silver/batch/after", silver.SilverHop, "write"),
        *_around("silver/compact", hop, "compact", r"^silver\."),
        *_around("gold/create", gold, "ensure_table"),
        Point("gold/read/before", gold, "by_input"),
        *_around("gold/merge", gold.GoldHop, "_merge"),
        *_around("gold/close", gold, "append_nothing"),
        Point("gold/batch/after", gold.GoldHop, "write"),
        Point("books/copy/before", runner, "copy_books"),
        *_around("books/create", schemas, "ensure_table", r"^ops\.books$"),
        *_saved("books/append", r"^ops\.books$"),
        Point("epochs/close/before", runner, "close_epoch"),
        *_around("epochs/create", schemas, "ensure_table", r"^ops\.epochs$"),
        *_saved("epochs/append", r"^ops\.epochs$"),
    ]
}


class DiedError(Exception):
    """What a run dies of at an armed point."""


@dataclass
class Passes:
    """How often a run came by an armed point.

    Attributes:
        count: Passes so far.
        reached: Whether the one came at which it was to die.
    """

    count: int = 0
    reached: bool = False


@contextmanager
def armed(name: str, act: Callable[[], None], *, nth: int = 1) -> Iterator[Passes]:
    """Arm a point.

    Args:
        name: The point's.
        act: What happens there.
        nth: At which pass, from 1.

    Yields:
        What a run did there.
    """
    point, passes = POINTS[name], Passes()
    # Gold's tables are merged side by side.
    one_by_one = threading.Lock()
    real = getattr(point.owner, point.function)

    def come_by(*arguments: Any, **options: Any) -> Any:
        with one_by_one:
            passes.count += point.concerns(arguments)
            due = passes.count == nth and not passes.reached
            passes.reached = passes.reached or due
        if due and not point.is_after:
            act()
        result = real(*arguments, **options)
        if due and point.is_after:
            act()
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(point.owner, point.function, come_by)
        if point.function == "compact":
            # After each batch, and not every fiftieth.
            patch.setattr(tuning, "COMPACTION_BATCHES", 1)
        yield passes


def die() -> NoReturn:
    """End the run by an error."""
    raise DiedError("cut off")


def _exit() -> None:
    """End Python at once; its JVM hears of it by itself."""
    os._exit(_KILLED)


def _hang() -> None:
    """Stay until somebody kills the process group."""
    while True:
        time.sleep(60)


def _wait() -> None:
    """Stay until somebody takes the mark away that tells that the point was reached."""
    while Path(os.environ["TIDELAKE_FAIL_TOLD"]).exists():
        time.sleep(0.05)


MODES: dict[str, Callable[[], None]] = {"raise": die, "exit": _exit, "hang": _hang, "wait": _wait}


def main() -> None:
    """Run the command line with a point armed."""
    name, nth, mode = os.environ["TIDELAKE_FAIL"].split(":")
    told = os.environ.get("TIDELAKE_FAIL_TOLD")

    def act() -> None:
        if told:
            Path(told).touch()
        MODES[mode]()

    with armed(name, act, nth=int(nth)), pytest.MonkeyPatch.context() as patch:
        # A table beside the one that dies would come further than the script of deaths knows.
        patch.setattr(session_pool, "slots_of", lambda session: 1)
        cli.main()


if __name__ == "__main__":
    main()
