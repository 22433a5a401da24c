"""Where configuration lies."""

from __future__ import annotations

import os
from pathlib import Path

from tidelake.config.model import suggestion
from tidelake.errors import UsageError

SUFFIXES = (".yml", ".yaml")
# The pipeline that comes with Tidelake for a first look.
DEFAULT_PIPELINE = "clickstream"
_PACKAGE = Path(__file__).resolve().parent.parent


def conf_dir() -> Path:
    """Find the folder that holds ``pipelines``.

    The working directory's own ``conf`` comes first, then the one packed into the wheel, then that
    of the repository the package is used from.

    Raises:
        UsageError: There is none.
    """
    places = _places()
    for place in places:
        if (place / "pipelines").is_dir():
            return place
    looked = ", ".join(map(str, places))
    raise UsageError(f"no conf folder with pipelines in it; looked at {looked}")


def _places() -> tuple[Path, ...]:
    return (Path.cwd() / "conf", _PACKAGE / "conf", _PACKAGE.parent.parent / "conf")


def conf_file(name: str) -> Path:
    """Find a file such as a lock: the own conf folder's, else the one that came with Tidelake.

    Where there is none at all, give the path at which it was looked for last.
    """
    files = [place / name for place in _places()]
    return next((file for file in files if file.is_file()), files[-1])


def pipeline_names() -> list[str]:
    """Name the pipelines of the conf folder, sorted."""
    return _names(conf_dir() / "pipelines")


def usual_pipeline() -> str:
    """Name the pipeline that is meant where none is named.

    Raises:
        UsageError: There are others, and more than one, or none at all.
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
    """Find the file of a bare name, such as ``clickstream``, of a ``pipeline`` or ``environment``.

    An own conf folder need not repeat the environments that come with Tidelake. Its pipelines are
    all there are: a name that is misspelt must not find one of Tidelake's.

    Raises:
        UsageError: There is no such file; the known names are listed.
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
