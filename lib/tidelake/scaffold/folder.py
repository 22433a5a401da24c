"""Where the files of a new pipeline go; none that is there already is touched."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from tidelake.config import Environment, load_pipeline
from tidelake.config.names import TableName
from tidelake.errors import ConfigError, UsageError
from tidelake.scaffold.draft import Draft
from tidelake.scaffold.texts import pipeline_text, sample_bytes, suite_text, test_text

_IGNORED = ("/lakehouse/", "/spark-warehouse/")
_FLAGS = {"event.id": "--id", "event.time": "--time", "gold[0].keys[0]": "--key"}


@dataclass(frozen=True)
class NewFiles:
    """The files of a new pipeline, by their paths."""

    folder: Path
    name: str

    @property
    def paths(self) -> dict[str, Path]:
        """Where each goes."""
        return {
            "pipeline": self.folder / "conf" / "pipelines" / f"{self.name}.yml",
            "suite": self.folder / "conf" / "expectations" / f"{self.name}.yml",
            "test": self.folder / "tests" / f"test_{self.name}.py",
            "sample": self.folder / "tests" / f"{self.name}.sample.jsonl",
        }


def files_for(folder: Path, name: str) -> NewFiles:
    """Say where files will go.

    Raises:
        UsageError: The name cannot be a pipeline's, the folder is none, or a file is there.
    """
    try:
        TypeAdapter(TableName).validate_python(name)
    except ValidationError as error:
        raise UsageError(str(error.errors()[0]["ctx"]["error"])) from error
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"--to {folder} is a file, not a folder.")
    files = NewFiles(folder, name)
    there = [path for path in files.paths.values() if path.exists()]
    if there:
        raise UsageError(
            f"nothing was written, {'this is' if len(there) == 1 else 'these are'} there already: "
            f"{', '.join(map(str, there))}. Choose another NAME or another folder with --to."
        )
    return files


def write(files: NewFiles, draft: Draft, environment: Environment) -> list[Path]:
    """Write the files, once the definition has passed the checks that each command makes.

    Returns:
        What was written or, of ``.gitignore``, added to.

    Raises:
        UsageError: What was asked for makes no sound definition; nothing was written.
    """
    content: dict[str, bytes] = {
        "pipeline": pipeline_text(draft).encode(),
        "suite": suite_text(draft).encode(),
        "test": test_text(draft).encode(),
        "sample": sample_bytes(draft),
    }
    if not draft.examples:
        # A test without a line would say nothing.
        del content["test"], content["sample"]
    _refuse_unsound(files.name, content, environment)
    written = []
    for what, data in content.items():
        path = files.paths[what]
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as stream:
            stream.write(data)
        written.append(path)
    ignore = files.folder / ".gitignore"
    if _ignore(ignore):
        written.append(ignore)
    return written


def source_in(folder: Path, source: Path) -> str:
    """Write a source's path as commands that are called in the folder find it."""
    whole = Path(os.path.abspath(source))
    home = Path(os.path.abspath(folder))
    return str(whole.relative_to(home)) if whole.is_relative_to(home) else str(whole)


def _refuse_unsound(name: str, content: dict[str, bytes], environment: Environment) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        trial = NewFiles(Path(temporary), name)
        for what in ("pipeline", "suite"):
            trial.paths[what].parent.mkdir(parents=True)
            trial.paths[what].write_bytes(content[what])
        try:
            load_pipeline(str(trial.paths["pipeline"]), environment)
        except ConfigError as error:
            told = "\n".join(
                f"  - {_FLAGS.get(one.path, one.path)}: {one.message}" for one in error.violations
            )
            raise UsageError(
                f"nothing was written, this would be no sound definition:\n{told}"
            ) from error


def _ignore(file: Path) -> bool:
    """Keep the tables out of git; tell whether a line was missing."""
    there = file.read_text(encoding="utf-8") if file.exists() else ""
    missing = [line for line in _IGNORED if line not in there.splitlines()]
    if missing:
        gap = "" if not there or there.endswith("\n") else "\n"
        file.write_text(there + gap + "\n".join(missing) + "\n", encoding="utf-8")
    return bool(missing)
