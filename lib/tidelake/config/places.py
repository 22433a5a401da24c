"""Locate configuration files."""

from __future__ import annotations

import os
from pathlib import Path

from tidelake.config.model import suggestion
from tidelake.config.sharing import find_definition, names_in
from tidelake.errors import UsageError

# The pipeline of the demo.
DEFAULT_PIPELINE = "clickstream"
_PACKAGE = Path(__file__).resolve().parent.parent


def conf_dir() -> Path:
    """Return the first conf folder with ``pipelines`` in it, or raise a UsageError."""
    folders = _conf_folders()
    for folder in folders:
        if (folder / "pipelines").is_dir():
            return folder
    searched = ", ".join(map(str, folders))
    raise UsageError(f"no conf folder with pipelines in it; searched {searched}")


def _conf_folders() -> tuple[Path, ...]:
    """Return the ``conf`` folders of the working directory, the wheel and the repository."""
    return (Path.cwd() / "conf", _PACKAGE / "conf", _PACKAGE.parent.parent / "conf")


def conf_file(name: str) -> Path:
    """Return a file of the user's conf folder, else of Tidelake's, where it may not exist."""
    files = [folder / name for folder in _conf_folders()]
    return next((file for file in files if file.is_file()), files[-1])


def pipeline_names() -> list[str]:
    """List the pipelines of the conf folder, sorted, those of ``for_each`` one by one."""
    return names_in(conf_dir() / "pipelines")


def is_found_by_name(file: Path) -> bool:
    """Return whether a file is in the folder of pipelines, where a name must be that of one file.

    Elsewhere files are named by their paths, and versions of a definition may stand side by side.
    """
    return any(file.resolve().parent == (one / "pipelines").resolve() for one in _conf_folders())


def only_pipeline() -> str:
    """Return the only pipeline of the conf folder, or raise a UsageError that lists them."""
    names = pipeline_names()
    if len(names) == 1:
        return names[0]
    raise UsageError(f"name a pipeline ({known_pipelines()})")


def known_pipelines() -> str:
    """Return the names of the pipelines and their folder, for messages."""
    return f"known in {conf_dir() / 'pipelines'}: {', '.join(pipeline_names()) or 'none'}"


def find_file(name: str, kind: str) -> Path:
    """Find the file of a ``pipeline`` or an ``environment`` by name.

    Tidelake's own environments are found from a user's conf folder too. Its pipelines are not,
    because a misspelt name must not find one of them.

    Raises:
        UsageError: There is no such file; lists the known names.
    """
    own = conf_dir() / f"{kind}s"
    others = [folder / f"{kind}s" for folder in _conf_folders()] if kind == "environment" else []
    folders = list(dict.fromkeys([own, *others]))
    for folder in folders if name and os.sep not in name else ():
        file = find_definition(name, folder)
        if file is not None:
            return file
    known = sorted({name for folder in folders for name in names_in(folder)})
    raise UsageError(
        f"there is no {kind} '{name}'{suggestion(name, known)} "
        f"(known in {own}: {', '.join(known) or 'none'})"
    )
