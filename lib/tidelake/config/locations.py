"""Locate configuration files, and the folder that relative paths in them count from.

The conf folder is that of ``--conf``; else ``conf`` in the working directory or, if it is nearer,
that of a project: the working directory or a folder above it with the file ``tidelake.yml``, whose
key ``conf`` names the conf folder; else the wheel's or the repository's.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tidelake.config.document import Finding, read_document
from tidelake.config.model import suggestion
from tidelake.config.sharing import find_definition, names_in
from tidelake.errors import UsageError
from tidelake.folders import expanded

# The pipeline of the demo.
DEFAULT_PIPELINE = "clickstream"
# The file in a project's root.
MARKER = "tidelake.yml"
_PACKAGE = Path(__file__).resolve().parent.parent
# The conf folder of ``--conf``, and what paths in its files count from.
_given: tuple[Path, Path] | None = None


def conf_dir() -> Path:
    """Return the conf folder; of a project, also if it has no pipelines yet.

    Raises:
        UsageError: There is no project, and no conf folder with ``pipelines`` in it.
        ConfigError: A ``tidelake.yml`` is invalid.
    """
    own, base = own_conf()
    if base is not None:
        return own
    folders = _conf_folders()
    for folder in folders:
        if (folder / "pipelines").is_dir():
            return folder
    searched = ", ".join(map(str, folders))
    raise UsageError(
        f"no conf folder with pipelines in it; searched {searched}. Name one with --conf, or "
        "create a project: tidelake new DIR"
    )


@contextmanager
def given_conf(folder: str | None) -> Iterator[None]:
    """Use the folder of ``--conf``, a project or a conf folder, within the block.

    Raises:
        UsageError: The folder is neither.
    """
    global _given  # noqa: PLW0603  threads of the command need it too, so it is no ContextVar
    before = _given
    if folder:
        path = Path(os.path.abspath(expanded(folder)))
        conf = _conf_of(path) if (path / MARKER).is_file() else path
        if not (conf / "pipelines").is_dir():
            raise UsageError(
                f"--conf {folder} has no folder pipelines, and no {MARKER} that names one which "
                "has it. Make a project with: tidelake new DIR"
            )
        # The root of the project whose conf folder this is, else the folder that has it.
        root = project_above(path)
        _given = conf, root if root is not None and _conf_of(root) == conf else conf.parent
    try:
        yield
    finally:
        _given = before


def project_above(place: Path) -> Path | None:
    """Return the nearest folder with a ``tidelake.yml``: this one, or one above it."""
    folder = Path(os.path.abspath(place))
    return next((one for one in (folder, *folder.parents) if (one / MARKER).is_file()), None)


def layout_of(folder: Path) -> tuple[Path, Path]:
    """Return the root and the conf folder for a new pipeline: of a folder's project, or the folder.

    The working directory, ``Path()``, gives way to ``--conf``.
    """
    conf, base = own_conf()
    if _given is not None and folder == Path():
        return base or folder, conf
    root = project_above(folder)
    return (folder, folder / "conf") if root is None else (root, _conf_of(root))


def lacks_marker(root: Path, conf: Path) -> bool:
    """Return whether the layout for a new pipeline is that of a folder without a project.

    Neither a conf folder of ``--conf`` nor one of Tidelake's own is to make a project.
    """
    is_own = conf.resolve() in {one.resolve() for one in _conf_folders()[1:]}
    is_plain = conf == root / "conf" and _given is None and not is_own
    return is_plain and project_above(root) is None and not os.path.lexists(root / MARKER)


def base_of(file: Path) -> Path | None:
    """Return the folder that relative paths in a pipeline file count from.

    It is the root of the file's project. Without a project, it is the parent of the folder of
    ``--conf``, or None: the working directory, which is the parent of its ``conf``.
    """
    conf, base = own_conf()
    if file.resolve().is_relative_to(conf.resolve()):
        return base
    return project_above(file.parent)


def own_conf() -> tuple[Path, Path | None]:
    """Return the user's conf folder, which may not exist, and what paths in its files count from.

    That is as in :func:`base_of`.
    """
    here = Path.cwd()
    if _given is not None:
        return _given
    root = project_above(here)
    # A conf of the working directory is nearer than a project above it.
    if root is None or (root != here and (here / "conf" / "pipelines").is_dir()):
        return here / "conf", None
    return _conf_of(root), root


def _conf_of(root: Path) -> Path:
    """Return the conf folder that a project's ``tidelake.yml`` names."""
    document = read_document(root / MARKER)
    message = "is not a key of this file; its only key is conf"
    others = [Finding((key,), message) for key in document.content if key != "conf"]
    findings = [*document.findings, *others]
    conf = document.content.get("conf")
    if not isinstance(conf, str) or not conf:
        message = "must name the folder that has pipelines in it; write conf: . for this folder"
        findings.append(Finding(("conf",), message))
    found = Path(os.path.normpath(root / expanded(str(conf))))
    if not findings and not found.is_dir():
        findings.append(Finding(("conf",), f"there is no folder {found}"))
    if findings:
        raise document.error(findings)
    return found


def _conf_folders() -> tuple[Path, ...]:
    """Return the user's conf folder, the wheel's and the repository's."""
    return (own_conf()[0], _PACKAGE / "conf", _PACKAGE.parent.parent / "conf")


def conf_file(name: str) -> Path:
    """Return a file of the user's conf folder, else of Tidelake's, where it may not exist."""
    files = [folder / name for folder in _conf_folders()]
    return next((file for file in files if file.is_file()), files[-1])


def standard_environments() -> list[Path]:
    """Return the files of Tidelake's own environments."""
    folders = [folder / "environments" for folder in _conf_folders()[1:]]
    return sorted(next(one for one in folders if one.is_dir()).iterdir())


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
    return _known(conf_dir() / "pipelines", pipeline_names())


def _known(folder: Path, names: list[str]) -> str:
    note = without_project()
    return f"known in {folder}: {', '.join(names) or 'none'}{f'; {note}' if note else ''}"


def without_project() -> str:
    """Return for messages why the conf folder is Tidelake's own; "" if it is the user's."""
    if conf_dir() == own_conf()[0]:
        return ""
    return (
        "these are Tidelake's own, because there is no project here: this folder has no "
        f"conf/pipelines, and neither it nor one above has a {MARKER}. Pass --conf DIR"
    )


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
    raise UsageError(f"there is no {kind} '{name}'{suggestion(name, known)} ({_known(own, known)})")
