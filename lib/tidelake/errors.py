"""The tree of Tidelake's errors, with their exit codes, and imports of optional packages.

TidelakeError                    1  any other failure with a message for the user
├── UnpublishedError             1  tables are committed, but changes did not reach their topic
├── UsageError                   2  the call, the config or the input is wrong; nothing was written
│   ├── ConfigError                 all violations in a file, each with its path and line
│   ├── TransformError              a transform function cannot be used
│   ├── NotBuiltError               a documented feature that this version does not implement
│   └── SourceError                 the source is missing, empty or unreadable
│       └── SourceNameError         Spark cannot read a file because of its name
├── RefusedError                 3  a check failed; no table was changed, unless it says so
│   ├── SourceChangedError          a file changed, or is gone, before, during or after its read
│   ├── LostError                   unread records of a topic are gone
│   ├── GenerationError             table and checkpoint do not match
│   │   └── RewrittenError          another writer replaced rows of an input
│   ├── LockedError                 another process writes this hop
│   │   └── LeaseLostError          the lock was lost; the message lists the completed steps
│   ├── RowsChangedError            a transform function added or removed rows
│   ├── UnbalancedError             the ledger does not balance
│   ├── UnequalError                a table differs from what bronze implies
│   └── SchemaChangedError          the stored table does not fit the current definition
└── MachineError                 4  the machine lacks something; `tidelake doctor` lists it
    ├── JarError                    a jar is missing or its hash differs from the lock
    └── NoLocksError                the file system of the tables has no locks
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

# The problems that a message lists.
_SHOWN = 10


class TidelakeError(Exception):
    """The base class; its message is written for the user."""

    exit_code = 1


class UnpublishedError(TidelakeError):
    """Tables are committed, but changes did not reach their topic; the next run publishes them."""


class DamagedError(TidelakeError, ValueError):
    """A file of a table is missing or cannot be read."""

    def __init__(self, what: str, why: str = "") -> None:
        """Add the remedy, and ``why`` the reader refused it, to the message."""
        more = f" ({why if len(why) < 200 else f'{why[:200]}…'})" if why else ""
        super().__init__(f"{what}{more}. Restore the table's folder from a backup.")


class UsageError(TidelakeError):
    """The call, the configuration or the input is wrong; nothing was written."""

    exit_code = 2


@dataclass(frozen=True)
class Violation:
    """One error in a file: the path of keys (``gold[1].window.size``), and its line if known.

    ``message`` says what is wrong and, where it helps, what to write instead. ``file`` is set if it
    is not the file of the error: the defaults of a folder.
    """

    path: str
    message: str
    line: int | None = None
    file: str | None = None

    def __str__(self) -> str:
        """Return ``path (line n): message``."""
        places = [self.file] if self.file else []
        places += [f"line {self.line}"] if self.line else []
        place = f"{self.path} ({', '.join(places)})" if places else self.path
        return f"{place}: {self.message}"


class ConfigError(UsageError):
    """A configuration file is invalid; the message lists all violations."""

    def __init__(self, file: str, violations: Sequence[Violation]) -> None:
        """Store the file and its violations, and list them in the message."""
        self.file = file
        self.violations = tuple(violations)
        lines = "\n".join(f"  - {violation}" for violation in self.violations)
        count = len(self.violations)
        super().__init__(f"{file}: {count} {'error' if count == 1 else 'errors'}\n{lines}")


class TransformError(UsageError):
    """A transform function cannot be imported, failed, or returns other columns than declared."""


class NotBuiltError(UsageError):
    """A documented feature that this version does not implement."""

    def __init__(self, feature: str, remedy: str = "") -> None:
        """Name the feature and, if there is one, a workaround."""
        self.feature = feature
        super().__init__(f"{feature} is not built yet." + (f" {remedy}" if remedy else ""))


class SourceError(UsageError):
    """The source is missing, empty or unreadable."""


class SourceNameError(SourceError):
    """Spark cannot read a file of the source because of its name."""

    def __init__(self, path: str, problem: str) -> None:
        """Name the file; ``problem`` is what in its name is not readable."""
        shown = os.fsencode(path).decode(errors="backslashreplace")
        super().__init__(
            f"the source holds {shown}, and Spark cannot read a file with {problem} in its name. "
            "Rename it, then run again."
        )


class RefusedError(TidelakeError):
    """A check failed; no table was changed, unless the message lists completed steps."""

    exit_code = 3


class SourceChangedError(RefusedError):
    """A file changed, or is gone, before, during or after its read."""

    def __init__(self, changes: Sequence[str], *, taken: bool = True, repair: str = "") -> None:
        """Store the changes, one text per file.

        ``taken``: whether bronze has the old content. ``repair``: for files of a planned batch that
        are gone, the command after which the batch is planned anew, without them.
        """
        self.changes = tuple(changes)
        what = "after they were read, so their new content was not ingested"
        remedy = "Move them out of the folder, put their new lines into new files, then run again."
        if repair:
            what = "before they were read, and none of their batch was ingested"
            remedy = f"Put them back, or leave them out with: {repair}; then run again."
        elif not taken:
            what = "while they were read, and none of them was ingested"
            remedy = "Wait until their writer is done, or restore them, then run again."
        super().__init__(f"{problem_list(f'files changed {what}', self.changes)}\n{remedy}")


class LostError(RefusedError):
    """Unread records of a topic are gone, or the topic was recreated."""

    def __init__(self, what: str) -> None:
        """Describe the loss and the possible remedies."""
        super().__init__(
            f"{what}. Nothing was written. Restore the records, or read what is left of the topic "
            "from its beginning into new tables, with another --root."
        )


class GenerationError(RefusedError):
    """Table and checkpoint do not match."""

    def __init__(self, what: str, remedy: str = "") -> None:
        """Store the mismatch, and add the remedy to the message."""
        self.what = what
        super().__init__(f"{what}. Nothing was written. {remedy}" if remedy else what)


class RewrittenError(GenerationError):
    """Another writer replaced rows of an input, which a repair would carry on."""

    def __init__(self, what: str, remedy: str, *, is_own: bool) -> None:
        """Store whether the input is of the same pipeline, whose ``verify`` compares it."""
        self.is_own = is_own
        super().__init__(what, remedy)


class LockedError(RefusedError):
    """Another process writes this hop."""


class LeaseLostError(LockedError):
    """A lock on an object store was lost while a command held it."""

    def __init__(
        self,
        what: str,
        place: str,
        *,
        done: Sequence[str] = (),
        interrupted: str = "",
        not_begun: str = "",
        command: str = "",
    ) -> None:
        """List the completed steps, and name the command that resumes the work.

        ``what`` is written under the lock at the path ``place``. The ``interrupted`` step may or
        may not be done, ``not_begun`` is the next one; both may be unknown. An empty ``command``
        stands for the same command.
        """
        self.what, self.place, self.done = what, place, tuple(done)
        sentences = [
            f"{what} the lock at {place} was lost: the store was unreachable, or this process was "
            "paused, for too long. Another process may hold it now."
        ]
        if done or interrupted or not_begun:
            sentences.append(f"Done: {'; '.join(done) or 'nothing'}.")
        if interrupted:
            sentences.append(f"Interrupted, done or not: {interrupted}.")
        if not_begun:
            sentences.append(f"Not begun: {not_begun}.")
        sentences.append(
            f"Continue with: {command}" if command else "Committed batches are kept; run again."
        )
        super().__init__(" ".join(sentences))


class RowsChangedError(RefusedError):
    """A transform function added or removed rows of a batch."""


class UnbalancedError(RefusedError):
    """The ledger does not balance."""


class UnequalError(RefusedError):
    """A table differs from what bronze implies."""


class SchemaChangedError(RefusedError):
    """The stored table does not fit the current definition."""


class MachineError(TidelakeError):
    """The machine lacks something; ``tidelake doctor`` lists it."""

    exit_code = 4


class NoLocksError(MachineError):
    """The file system has no locks, so that two processes could write the same hop."""


class JarError(MachineError):
    """A jar is missing, or its hash differs from the lock."""


def problem_list(what: str, problems: Sequence[str]) -> str:
    """Return a message with a line for each problem, of many for the first ones."""
    shown = "\n".join(f"  - {problem}" for problem in problems[:_SHOWN])
    more = f"\n  … and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
    return f"{what}:\n{shown}{more}"


def imported(what: str, *modules: str, extra: str) -> list[Any]:
    """Import modules of an extra; raise a MachineError if ``what`` is not installed."""
    try:
        return [import_module(module) for module in modules]
    except ImportError as error:
        raise MachineError(
            f"{what} is not installed. Install it with: pip install 'tidelake[{extra}]'"
        ) from error
