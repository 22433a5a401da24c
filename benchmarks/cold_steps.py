"""Run ``tidelake run`` and time each of its steps; write them to a file as JSON.

Usage: python -m benchmarks.cold_steps FILE BEGAN run PIPELINE ...  (BEGAN: time.time at the start)
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_AT = time.time


class Steps:
    """Seconds of each step, in the order in which they ended."""

    def __init__(self, began: float) -> None:
        """Start with the start of the process."""
        self.spent: dict[str, float] = {}
        self._mark = began

    def ends(self, name: str) -> None:
        """Add the time since the last step to this one."""
        now = _AT()
        self.spent[name] = round(self.spent.get(name, 0.0) + now - self._mark, 3)
        self._mark = now

    def around(self, owner: Any, attribute: str, before: str, after: Callable[..., str]) -> None:
        """Replace a function by one that ends the step before it and counts itself as a step."""
        inner = getattr(owner, attribute)

        def clocked(*arguments: Any, **named: Any) -> Any:
            if threading.current_thread() is not threading.main_thread():
                # It takes none of the run's time unless the main thread waits for it.
                return inner(*arguments, **named)
            self.ends(before)
            try:
                return inner(*arguments, **named)
            finally:
                self.ends(after(*arguments))

        setattr(owner, attribute, clocked)


def main() -> None:
    """Run the command and write its steps to the file."""
    file, began, *arguments = sys.argv[1:]
    steps = Steps(float(began))
    from tidelake.cli import app  # noqa: PLC0415  is a step
    from tidelake.cli.exits import run_command  # noqa: PLC0415  likewise

    steps.ends("start Python, import the command line")

    # Heavy: the command itself imports it after reading the definition.
    from tidelake.spark import session  # noqa: PLC0415  is a step

    steps.ends("import what starts a session")
    steps.around(session, "build_session", "read the definition, look at the source", _of_session)
    inner = session.build_session

    def build_and_clock(*arguments: Any, **named: Any) -> Any:
        spark = inner(*arguments, **named)
        _clock_hops(steps)
        stop = spark.stop

        def stopped() -> None:
            steps.ends("end metrics and alerts")
            stop()
            steps.ends("stop Spark")

        spark.stop = stopped  # type: ignore[method-assign]  # clocked
        return spark

    session.build_session = build_and_clock
    code = run_command(app, arguments)
    steps.ends("end")
    Path(file).write_text(json.dumps(steps.spent) + "\n", encoding="utf-8")
    sys.exit(code)


def _of_session(*_: Any) -> str:
    return "start Spark"


def _clock_hops(steps: Steps) -> None:
    from tidelake.runtime import runner  # noqa: PLC0415  is a step
    from tidelake.runtime.hop import HopQuery  # noqa: PLC0415  likewise

    steps.ends("import what a run needs")
    steps.around(runner, "check_definition", "observe the run", lambda _: "check the definition")
    steps.around(
        *(runner, "_open", "between hops", lambda run, hop: f"{hop}: open and create tables")
    )
    start_query, check = runner._start_query, HopQuery.check

    def clocked(query: Any, trigger: Any) -> Any:
        streaming = start_query(query, trigger)
        steps.ends(f"{query.hop}: start the stream")
        return streaming

    def checked(query: Any, streaming: Any, *seconds: float) -> None:
        check(query, streaming, *seconds)
        if not streaming.isActive:
            steps.ends(f"{query.hop}: its batch")

    runner._start_query, HopQuery.check = clocked, checked  # type: ignore[method-assign, assignment]  # clocked
    steps.around(runner, "_copy_books", "between hops", lambda *_: "copy the books")
    steps.around(runner, "_close_epoch", "between hops", lambda *_: "close an epoch")


if __name__ == "__main__":
    main()
