"""Find the files of the configuration."""

from __future__ import annotations

import os
from pathlib import Path

from tidelake.config.model import suggestion
from tidelake.errors import UsageError

SUFFIXES = (".yml", ".yaml")
# The pipeline of the demo.
DEFAULT_PIPELINE = "clickstream"
_PACKAGE = Path(__file__).resolve().parent.parent


def conf_dir() -> Path:
    """Return the first folder that has ``pipelines``, or raise a UsageError."""
    for place in _places():
        if (place / "pipelines").is_dir():
            return place
    looked = ", ".join(map(str, _places()))
    raise UsageError(f"no conf folder with pipelines in it; looked at {looked}")


def _places() -> tuple[Path, ...]:
    """Return the working directory's ``conf``, that of the wheel and that of the repository."""
    return (Path.cwd() / "conf", _PACKAGE / "conf", _PACKAGE.parent.parent / "conf")


def conf_file(name: str) -> Path:
    """Return a file of the own conf folder, else of Tidelake's; it need not exist there."""
    files = [place / name for place in _places()]
    return next((file for file in files if file.is_file()), files[-1])


def pipeline_names() -> list[str]:
    """List the pipelines of the conf folder, sorted."""
    return _names(conf_dir() / "pipelines")


def usual_pipeline() -> str:
    """Return the pipeline for commands without a name: the demo's, or the only one there is.

    Raises:
        UsageError: There are several others, or none.
    """
    names = pipeline_names()
    if DEFAULT_PIPELINE in names:
        return DEFAULT_PIPELINE
    if len(names) == 1:
        return names[0]
    known = ", ".join(names) or "none"
    raise UsageError(f"name a pipeline (known in {conf_dir() / 'pipelines'}: {known})")


def _names(folder: Path) -> list[str]:
    files = folder.iterdir() if folder.is_dir() else ()
    return sorted({file.stem for file in files if file.suffix in SUFFIXES})


def find_file(name: str, kind: str) -> Path:
    """Find the file of a ``pipeline`` or an ``environment`` by name.

    Tidelake's environments serve an own conf folder too; its pipelines do not, because a misspelt
    name must not find one of them.

    Raises:
        UsageError: There is no such file; lists the known names.
    """
    own = conf_dir() / f"{kind}s"
    others = [place / f"{kind}s" for place in _places()] if kind == "environment" else []
    folders = list(dict.fromkeys([own, *others]))
    for folder in folders:
        for suffix in SUFFIXES:
            if name and os.sep not in name and (folder / f"{name}{suffix}").is_file():
                return folder / f"{name}{suffix}"
    known = sorted({name for folder in folders for name in _names(folder)})
    raise UsageError(
        f"there is no {kind} '{name}'{suggestion(name, known)} "
        f"(known in {own}: {', '.join(known) or 'none'})"
    )
