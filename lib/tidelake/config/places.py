"""Where configuration lies."""

from __future__ import annotations

import os
from pathlib import Path

from tidelake.config.model import suggestion
from tidelake.errors import UsageError

SUFFIXES = (".yml", ".yaml")
_PACKAGE = Path(__file__).resolve().parent.parent


def conf_dir() -> Path:
    """Find the folder that holds ``pipelines`` and ``environments``.

    The working directory's own ``conf`` comes first, then the one packed into the wheel, then that
    of the repository the package is used from.

    Raises:
        UsageError: There is none.
    """
    places = (Path.cwd() / "conf", _PACKAGE / "conf", _PACKAGE.parent.parent / "conf")
    for place in places:
        if (place / "pipelines").is_dir():
            return place
    looked = ", ".join(map(str, places))
    raise UsageError(f"no conf folder with pipelines in it; looked at {looked}")


def pipeline_names() -> list[str]:
    """Name the pipelines of the conf folder, sorted."""
    return _names(conf_dir() / "pipelines")


def _names(folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    return sorted({file.stem for file in folder.iterdir() if file.suffix in SUFFIXES})


def find_file(name: str, kind: str) -> Path:
    """Find the file of a name.

    Args:
        name: A bare name, such as ``clickstream``.
        kind: What it names, one word: ``pipeline``, ``environment``.

    Raises:
        UsageError: There is no such file; the known names are listed.
    """
    folder = conf_dir() / f"{kind}s"
    for suffix in SUFFIXES:
        if name and os.sep not in name and (folder / f"{name}{suffix}").is_file():
            return folder / f"{name}{suffix}"
    known = _names(folder)
    raise UsageError(
        f"there is no {kind} '{name}'{suggestion(name, known)} "
        f"(known in {folder}: {', '.join(known) or 'none'})"
    )
