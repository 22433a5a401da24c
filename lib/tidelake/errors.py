"""Every error Tidelake raises on purpose, and the exit code each one means.

TidelakeError                    1  unexpected, but named
├── UsageError                   2  the call, the config or the input is wrong; nothing was written
│   ├── ConfigError                 every violation of a file at once, each with its place
│   ├── NotBuiltError               the contract knows it, this version does not do it yet
│   └── SourceError                 the source is missing, empty or unreadable
├── RefusedError                 3  a check said no; no table was changed
│   ├── SourceChangedError          a file changed after it was read, or while it was
│   ├── LostError                   records of a topic are gone that were not taken
│   ├── GenerationError             table and checkpoint do not belong together
│   ├── LockedError                 another process writes this hop
│   │   └── LeaseLostError          the lock was lost meanwhile; the message says what was done
│   ├── UnbalancedError             the books do not add up
│   ├── UnequalError                a table is not what follows from bronze
│   └── SchemaChangedError          today's definition does not fit the stored table
└── MachineError                 4  the machine lacks something; `tidelake doctor` says what
    ├── JarError                    a jar is missing or its hash differs from the lock
    └── NoLocksError                the file system of the tables has no locks
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class TidelakeError(Exception):
    """The root of the tree; its message is written for the user."""

    exit_code = 1


class UsageError(TidelakeError):
    """The call, the configuration or the input is wrong; nothing was written."""

    exit_code = 2


@dataclass(frozen=True)
class Violation:
    """One error in a file.

    Attributes:
        path: The path of keys: ``gold[1].window.size``.
        message: What is wrong and, where it helps, what to write instead.
        line: Line in the file, counted from 1; None where it has none.
    """

    path: str
    message: str
    line: int | None = None

    def __str__(self) -> str:
        """Return ``path (line n): message``."""
        place = f"{self.path} (line {self.line})" if self.line else self.path
        return f"{place}: {self.message}"


class ConfigError(UsageError):
    """A configuration file breaks its model; all violations are listed at once."""

    def __init__(self, file: str, violations: Sequence[Violation]) -> None:
        """Keep the file and its violations, and list them in the message."""
        self.file = file
        self.violations = tuple(violations)
        lines = "\n".join(f"  - {violation}" for violation in self.violations)
        count = len(self.violations)
        super().__init__(f"{file}: {count} {'error' if count == 1 else 'errors'}\n{lines}")


class NotBuiltError(UsageError):
    """The contract knows this feature; this version does not do it yet."""

    def __init__(self, feature: str, remedy: str = "") -> None:
        """Name the feature and, where there is one, the way around."""
        self.feature = feature
        super().__init__(f"{feature} is not built yet." + (f" {remedy}" if remedy else ""))


class SourceError(UsageError):
    """The source is missing, empty or unreadable."""


class RefusedError(TidelakeError):
    """A check said no; no table was changed."""

    exit_code = 3


class SourceChangedError(RefusedError):
    """A file changed after it was read, or while it was."""

    def __init__(self, changes: Sequence[str], *, taken: bool = True) -> None:
        """Keep the changes, one text per file; without ``taken`` nothing of them is in bronze."""
        self.changes = tuple(changes)
        shown = "\n".join(f"  - {change}" for change in self.changes[:10])
        more = f"\n  … and {len(self.changes) - 10} more" if len(self.changes) > 10 else ""
        what = "after they were read, so their new content was never taken"
        remedy = "Move them out of the folder, put their new lines into new files, then run again."
        if not taken:
            what = "while they were read, and nothing of them was taken"
            remedy = "Wait until their writer is done, or put them back, then run again."
        super().__init__(f"files changed {what}:\n{shown}{more}\n{remedy}")


class LostError(RefusedError):
    """Records of a topic are gone that were not taken, or the topic is another one."""

    def __init__(self, what: str) -> None:
        """Name what is gone, and the ways on."""
        super().__init__(
            f"{what}. Nothing was written. Bring the records back, or follow what is left from "
            "its beginning into tables of their own, with another --root."
        )


class GenerationError(RefusedError):
    """Table and checkpoint do not belong together."""

    def __init__(self, what: str, remedy: str = "") -> None:
        """Keep what does not fit, and add to the message what mends it."""
        self.what = what
        super().__init__(f"{what}. Nothing was written. {remedy}" if remedy else what)


class LockedError(RefusedError):
    """Another process writes this hop."""


class LeaseLostError(LockedError):
    """A lock on an object store was lost while a command worked under it."""

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
        """List the steps that are done, and name the command that goes on.

        Args:
            what: What is written under the lock.
            place: The path of the lock.
            done: Steps that are done.
            interrupted: A step that may be done or not; empty: none.
            not_begun: The next step; empty: not known.
            command: The one that goes on; empty: the same.
        """
        self.what, self.place = what, place
        self.done = tuple(done)
        told = [
            f"{what} the lock at {place} was lost: the store was out of reach, or this process "
            "stood still, for too long. Another process may hold it now."
        ]
        if done or interrupted or not_begun:
            told.append(f"Done: {'; '.join(done) or 'nothing'}.")
        if interrupted:
            told.append(f"Interrupted, done or not: {interrupted}.")
        if not_begun:
            told.append(f"Not begun: {not_begun}.")
        told.append(
            f"Go on with: {command}" if command else "Committed batches are kept; run again."
        )
        super().__init__(" ".join(told))


class UnbalancedError(RefusedError):
    """The books do not add up."""


class UnequalError(RefusedError):
    """A table does not hold what follows from bronze."""


class SchemaChangedError(RefusedError):
    """Today's definition does not fit the stored table."""


class MachineError(TidelakeError):
    """The machine lacks something; ``tidelake doctor`` says what."""

    exit_code = 4


class NoLocksError(MachineError):
    """The file system has no locks, so that two processes could write the same hop."""


class JarError(MachineError):
    """A jar is missing, or its hash differs from the lock."""
