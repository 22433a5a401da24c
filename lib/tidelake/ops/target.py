"""The file that an answer is written to: never half of one, never over another unasked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tidelake.errors import UsageError

# What DuckDB is told for each ending. A line of JSON is a row.
_OPTIONS = {
    ".csv": "FORMAT csv, HEADER",
    ".parquet": "FORMAT parquet",
    ".json": "FORMAT json",
}


@dataclass(frozen=True)
class Target:
    """Where an answer goes.

    Attributes:
        file: Its path.
        overwrite: Whether a file that is there may be replaced.
    """

    file: Path
    overwrite: bool = False

    def __post_init__(self) -> None:
        """Refuse what cannot be written, before anything is read.

        Raises:
            UsageError: Says what to do instead.
        """
        if self.file.suffix.lower() not in _OPTIONS:
            raise UsageError(
                f"{self.file} ends in none of {', '.join(_OPTIONS)}, which say how to write it."
            )
        if not self.file.parent.is_dir():
            raise UsageError(f"the folder {self.file.parent} does not exist.")
        if self.file.is_dir():
            raise UsageError(f"{self.file} is a folder.")
        if self.file.exists() and not self.overwrite:
            raise UsageError(f"{self.file} exists already. Replace it with --overwrite.")

    @property
    def options(self) -> str:
        """How DuckDB is to write it."""
        return _OPTIONS[self.file.suffix.lower()]

    @contextmanager
    def whole(self) -> Iterator[Path]:
        """Give the path to write to; it becomes the file when all went well, else it goes."""
        part = self.file.with_name(f".{self.file.name}.part").absolute()
        try:
            yield part
            part.replace(self.file)
        finally:
            part.unlink(missing_ok=True)
