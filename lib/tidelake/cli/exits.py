"""Turn errors into messages and exit codes."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from tidelake.errors import TidelakeError
from tidelake.object_store import told_of
from tidelake.visible import is_of_spark, kind_of, visible

UNEXPECTED = 1
INTERRUPTED = 130


def say(message: str) -> None:
    """Print a message on stderr."""
    print(visible(message, lines=True), file=sys.stderr, flush=True)


def run_command(command: click.Command, arguments: Sequence[str]) -> int:
    """Run a command; 0 done, 1 unexpected, 2 wrong use, 3 refused, 4 machine, 130 interrupted."""
    try:
        result = command.main(list(arguments), standalone_mode=False)
    except TidelakeError as error:
        say(f"tidelake: {error}")
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return 2
    except (click.Abort, KeyboardInterrupt):
        say("Stopped. What was closed stays; the next run goes on from there.")
        return INTERRUPTED
    except Exception as error:
        message, code = _told(error)
        say(message)
        return code
    return int(result) if isinstance(result, int) else 0


def _told(error: Exception) -> tuple[str, int]:
    """Return message and exit code of an error of a library; raise any other again."""
    stored = told_of(error, "stopped")
    if stored is not None:
        return f"tidelake: {stored}", stored.exit_code
    if is_of_spark(error):
        from tidelake.spark.session import kept_log  # noqa: PLC0415  Spark is loaded only when needed

        log = kept_log(error)
        return f"tidelake: {kind_of(error)}\nAll of its words: {log}", UNEXPECTED
    if not isinstance(error, OSError):
        raise error
    # Most often a full disk; the system's message is enough.
    place = f"{error.filename}: " if error.filename else ""
    return f"tidelake: {place}{error.strerror or error}", UNEXPECTED
