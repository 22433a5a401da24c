"""Turn errors into messages and exit codes."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterable, Sequence

import click

from tidelake.errors import MachineError, TidelakeError, UsageError
from tidelake.object_store import store_error
from tidelake.spark.session import kept_log
from tidelake.visible import is_of_spark, kind_of, visible

UNEXPECTED = 1
INTERRUPTED = 130
# After an interrupt without a text of its own.
_CONTINUES = "Committed batches are kept; the next run continues from there."
# What the extra `local` installs, and what comes with it.
_LOCAL = frozenset({"delta", "numpy", "pandas", "py4j", "pyarrow", "pyspark"})


def say(message: str) -> None:
    """Print a message on stderr."""
    print(visible(message, lines=True), file=sys.stderr, flush=True)


def say_next(commands: Iterable[str]) -> None:
    """Print the commands that a user may type next."""
    say("Next:\n" + "\n".join(f"  {command}" for command in commands))


def run_command(command: click.Command, arguments: Sequence[str]) -> int:
    """Run a command; 0 ok, 1 unexpected, 2 usage, 3 refused, 4 environment, 130 interrupted.

    The text of a KeyboardInterrupt says what holds after it, if the general sentence does not.
    """
    try:
        result = command.main(list(arguments), standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return 2
    except (click.Abort, KeyboardInterrupt) as error:
        # Click replaces an interrupt by its own error.
        interrupt = error.__cause__ or error
        said = str(interrupt) if isinstance(interrupt, KeyboardInterrupt) else ""
        say(f"Stopped. {said or _CONTINUES}")
        return INTERRUPTED
    except Exception as error:
        message, code = message_of(error)
        say(message)
        return code
    return int(result) if isinstance(result, int) else 0


def message_of(error: Exception) -> tuple[str, int]:
    """Return the message and exit code of Tidelake's or a library's error; re-raise any other."""
    if isinstance(error, TidelakeError):
        return f"tidelake: {error}", error.exit_code
    stored = store_error(error, "stopped")
    if stored is not None:
        return f"tidelake: {stored}", stored.exit_code
    if is_of_spark(error):
        return f"tidelake: {kind_of(error)}\nFull log: {kept_log(error)}", UNEXPECTED
    package = (error.name or "").partition(".")[0] if isinstance(error, ImportError) else ""
    if package in _LOCAL and isinstance(error, ModuleNotFoundError):
        remedy = "Install it with: pip install 'tidelake[local]'"
        return f"tidelake: {package} is not installed. {remedy}", MachineError.exit_code
    if not isinstance(error, OSError):
        raise error
    # Most often a full disk; the operating system's message is enough.
    place = f"{error.filename}: " if error.filename else ""
    # Files are named after what users name: pipelines, tables, folders.
    code = UsageError.exit_code if error.errno == errno.ENAMETOOLONG else UNEXPECTED
    return f"tidelake: {place}{error.strerror or error}", code
