"""Detect changes to source files after bronze ingested them; delete or archive the unchanged ones.

Spark's file source reads each path once: lines that are appended later would be lost silently.
Files are compared at a run's start, at intervals during it, around each read of a batch, and before
they are deleted.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from tidelake.bronze.archives import OPENERS, has_text
from tidelake.config.source import FileFormat, FilesSource
from tidelake.delta.log import CREATION, Commit, commits
from tidelake.delta.tables import Table
from tidelake.errors import SourceChangedError, SourceError, SourceNameError, problem_list
from tidelake.external import is_external
from tidelake.folders import (
    SCHEME,
    file_states,
    folder,
    for_each,
    is_url,
    list_external,
    move_new,
    name_problem,
    next_listing,
    planned_time,
    remove_file,
    state_of,
)
from tidelake.object_store import translating_errors
from tidelake.spark.tuning import WHOLE_FILE_BYTES

if TYPE_CHECKING:
    from upath import UPath

# Archives that Spark would read as if they were text, or a truncated one as if it were whole.
_ARCHIVES = frozenset(
    {".xz", ".lzma", ".z", ".zip", ".7z", ".rar", ".br", ".lzo", ".sz", ".tar", ".tgz", ".tbz2"}
) | {".lz4", ".snappy", ".deflate"}
# Other names of compressions that are supported.
_RENAMED = {".gzip": ".gz", ".zstd": ".zst"}
_NOT_TEXT = {".parquet": "parquet", ".avro": "avro", ".orc": "", ".xlsx": "", ".xls": ""}
# A missing last line feed adds one byte, a byte order mark that Spark drops takes three.
_HARMLESS = frozenset({0, 1, -3, -2})


@dataclass(frozen=True, slots=True)
class LandedFile:
    """A file's path, size in bytes and modification time in milliseconds when it was listed."""

    path: str
    size: int
    modified: int


def list_files(
    *sources: str, may_be_empty: bool = False, recent: bool = False
) -> dict[str, LandedFile]:
    """List the files of a source's paths by path, without hidden ones.

    ``recent`` is for :func:`list_external`.

    Raises:
        SourceError: A path does not exist, which for a store means that it holds no file; or none
            of the paths holds one, unless they ``may_be_empty``; or they cannot be read.
    """
    found: dict[str, LandedFile] = {}
    for source in sources:
        if is_external(source):
            states = list_external(source, recent=recent)
            files = {path: LandedFile(path, *state) for path, state in states.items()}
        else:
            # Links are not resolved: Spark names files by the path that it was given.
            root = folder(source)
            files = _list_disk(root, source) if isinstance(root, Path) else _list_store(root)
            if _is_ignored(root.name):
                # A source that is a folder may have any name, one that is a file may not.
                files.pop(str(root), None)
        found |= files
        if is_url(source) and not (files or may_be_empty):
            raise _empty(source, ", or does not exist")
    if not (found or may_be_empty):
        raise _empty(", ".join(sources))
    return found


def _empty(source: str, missing: str = "") -> SourceError:
    return SourceError(
        f"the source {source} holds no file{missing}. Put files into it "
        "(names that begin with . or _ are ignored), then run again."
    )


def _list_disk(root: Path, source: str) -> dict[str, LandedFile]:
    if not root.exists():
        if set(source) & set("*?{"):
            source += " (patterns are not expanded; name the folder, it is read whole)"
        raise SourceError(
            f"the source {source} does not exist. Create it and put files into it, "
            "or name another with --source."
        )
    try:
        files = present_files([str(root)]) if root.is_file() else _walk(str(root))
        found = {file.path: file for file in files}
    except OSError as error:
        raise SourceError(
            f"the source {error.filename} cannot be read: {error.strerror}"
        ) from error
    for name in found:
        if problem := name_problem(name, str(root)):
            raise SourceNameError(name, problem)
    return found


def _walk(folder: str) -> Iterator[LandedFile]:
    with os.scandir(folder) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    for entry in found:
        is_folder = entry.is_dir()
        if _is_ignored(entry.name, is_folder=is_folder):
            continue
        if is_folder:
            yield from _walk(entry.path)
            continue
        try:
            state = entry.stat()
        except FileNotFoundError:
            if entry.is_symlink():
                raise
            # A running hop cleans its source meanwhile.
            continue
        yield LandedFile(entry.path, state.st_size, state.st_mtime_ns // 1_000_000)


def _list_store(root: UPath) -> dict[str, LandedFile]:
    with translating_errors(f"the source {root}"):
        entries = root.fs.find(root.path, detail=True).values()
    found = {}
    for entry in entries:
        path = f"{SCHEME}{entry['name']}"
        *folders, name = path.removeprefix(str(root)).split("/")
        kept = [part for part in folders if part not in ("", ".", "..")]
        is_ignored = any(_is_ignored(part, is_folder=True) for part in kept) or _is_ignored(name)
        # Objects that represent a folder are not files.
        if entry["type"] == "file" and (name or path == str(root)) and not is_ignored:
            # Hadoop resolves such parts: Spark would plan `a//b` as `a/b`.
            if len(kept) < len(folders) - 1:
                raise SourceNameError(path, "//, /./ or /../")
            found[path] = LandedFile(path, *state_of(entry))
    return found


def _is_ignored(name: str, *, is_folder: bool = False) -> bool:
    """Return whether bronze's stream leaves out a file, or all files in a folder, by its name.

    Spark's rule, except that the stream leaves out Parquet's files ``_metadata`` too. A name such
    as ``_day=1`` is one of a partitioned table, and is read.
    """
    if is_folder and name.startswith(("_metadata", "_common_metadata")):
        return False
    is_hidden = name.startswith("_") and "=" not in name
    return is_hidden or name.startswith(".") or name.endswith("._COPYING_")


def present_files(paths: Sequence[str]) -> list[LandedFile]:
    """Return files in their present state, without those that are gone."""
    states = zip(paths, file_states(paths), strict=True)
    return [LandedFile(path, *state) for path, state in states if state is not None]


def planned_files(paths: Sequence[str], repair: str) -> list[LandedFile]:
    """Return files of a planned batch in their present state.

    Raises a SourceChangedError that lists those that are gone, of which Spark would read nothing,
    with the command ``repair``, which drops the plan.
    """
    found = present_files(paths)
    present = {file.path for file in found}
    gone = [f"{path}: does not exist" for path in paths if path not in present]
    if gone:
        raise SourceChangedError(gone, repair=repair)
    return found


def taken_files(bronze: Iterable[Commit]) -> dict[str, LandedFile]:
    """List the files that bronze's commits ingested.

    Call this before listing the source: otherwise a file that changes and is then ingested in
    between looks changed.
    """
    return {
        path: LandedFile(path, size, modified)
        for commit in bronze
        for path, size, modified, _ in commit.note.get("files", [])
    }


def refuse_changed(
    offered: Mapping[str, LandedFile],
    taken: Mapping[str, LandedFile],
    *,
    when: str = "bytes when read",
    ingested: bool = True,
) -> None:
    """Raise a SourceChangedError that lists the files whose size or time changed.

    ``taken`` has the files as they were before; ``when`` says when, as in ``bytes when counted``.
    ``ingested``: whether bronze has that content.
    """
    changes = [
        f"{path}: {before.size:,} {when}, {offered[path].size:,} bytes now, modified since"
        for path, before in taken.items()
        if path in offered and offered[path] != before
    ]
    if changes:
        raise SourceChangedError(changes, taken=ingested)


def refuse_unreadable(paths: Sequence[str], format_: FileFormat, *, repair: str = "") -> None:
    """Raise a SourceError that lists the files that cannot be of the format, by their names.

    ``repair``: for files of a planned batch, the command of :func:`planned_files`. If some of the
    files are gone, the user has moved them already, and that function's error is raised instead.
    """
    problems = [
        f"{path}: {problem}"
        for path in paths
        if (problem := _problem_of(Path(path).suffix, format_))
    ]
    if problems and repair:
        planned_files(paths, repair)
    if problems:
        what = problem_list("files of the source cannot be read", problems)
        raise SourceError(f"{what}{planned_with(repair)}")


def planned_with(repair: str) -> str:
    """Return what to do once files of a planned batch are moved; empty without a ``repair``."""
    if not repair:
        return ""
    return (
        "\nTheir batch is planned. Once they are moved or renamed, let it be planned anew with: "
        f"{repair}; then run again."
    )


def _problem_of(suffix: str, format_: FileFormat) -> str:
    plain = suffix.lower()
    if plain in _ARCHIVES:
        return "is an archive that is not supported: unpack it, or compress it as .gz, .bz2 or .zst"
    known = _RENAMED.get(plain, plain)
    if known in OPENERS and known != suffix:
        return f"this compression is known as {known} only: rename it"
    if format_ in ("json", "csv") and plain in _NOT_TEXT:
        fitting = _NOT_TEXT[plain]
        remedy = f"write source.format: {fitting}" if fitting else "convert it to Parquet or CSV"
        return f"is not text: {remedy}, or move it out of the folder"
    return ""


def refuse_unfit(files: Sequence[LandedFile], format_: FileFormat) -> None:
    """Raise a SourceError that lists the files whose name or size does not fit the format."""
    refuse_unreadable([file.path for file in files], format_)
    if format_ != "json":
        refuse_too_large(files)


def refuse_too_large(files: Iterable[LandedFile], *, repair: str = "") -> None:
    """Raise a SourceError that lists the files too large for a format that needs whole files.

    ``repair`` is as in :func:`refuse_unreadable`.
    """
    problems = [
        f"{file.path}: {file.size:,} bytes, at most {WHOLE_FILE_BYTES:,}: split it into several "
        "files, or convert it to a Delta table, which kind: delta reads"
        for file in files
        if file.size > WHOLE_FILE_BYTES
    ]
    if problems:
        what = problem_list("files of the source are too large", problems)
        raise SourceError(f"{what}{planned_with(repair)}")


def refuse_broken(errors: Mapping[str, str]) -> None:
    """Raise a SourceError that lists files with the reasons why they cannot be read, if any."""
    if errors:
        problems = [f"{path}: {reason}" for path, reason in sorted(errors.items())]
        what = "files of the source are broken, and none of their batch was ingested"
        raise SourceError(
            f"{problem_list(what, problems)}\nReplace each by a whole file of the same name "
            "(one without records leaves it out), then run again."
        )


def check_landing(
    sources: tuple[str, ...],
    taken: Mapping[str, LandedFile],
    format_: FileFormat | None = None,
    *,
    is_cleaned: bool = False,
) -> None:
    """Compare the files of paths with those that bronze ingested; see :func:`refuse_changed`.

    With a format, files that are not ingested yet must also be readable in it. A source that
    ``is_cleaned`` may be empty once bronze has ingested files.
    """
    offered = list_files(*sources, may_be_empty=is_cleaned and bool(taken))
    refuse_changed(offered, taken)
    if format_ is not None:
        refuse_unfit([file for path, file in offered.items() if path not in taken], format_)


def moved_text(offered: Mapping[str, LandedFile], taken: Mapping[str, LandedFile]) -> str:
    """Describe new files that are like ingested ones of another folder; empty without any."""
    new = {_alike(file): path for path, file in offered.items() if path not in taken}
    was = ((_alike(file), path) for path, file in taken.items() if new and path not in offered)
    if not (moved := [(new[one], path) for one, path in was if one in new]):
        return ""
    path, before = min(moved)
    return (
        f"{len(moved):,} files have the name, size and time of files that were ingested from "
        f"another folder, and are read again as new records: {path} was {before}"
    )


def _alike(file: LandedFile) -> tuple[str, int, int]:
    return file.path.rpartition("/")[2], file.size, file.modified


class LandingGuard:
    """Compares a source's files with those that bronze ingested, repeatedly during a run.

    Caches the ingested files that are still in the folder, and reads only new commits of bronze.
    """

    def __init__(
        self,
        sources: tuple[str, ...],
        bronze: Table,
        taken_before: Callable[[Collection[str]], Mapping[str, LandedFile]],
        format_: FileFormat | None = None,
        *,
        logged: Callable[[], Collection[str]] = tuple,
        is_cleaned: bool = False,
    ) -> None:
        """Prepare a guard; the first check reads the commits.

        ``taken_before`` finds, among some paths, the files that bronze ingested in commits that are
        no longer in its log; ``logged`` returns all paths that Spark will not read again. Both are
        called only if the log may lack commits. With a format, the first check also refuses new
        files that cannot be read in it; a batch checks those that land later. A source that
        ``is_cleaned`` is a folder, and may be empty once bronze has ingested files.
        """
        self._sources, self._bronze = sources, bronze
        self._taken_before, self._logged = taken_before, logged
        self._format, self._is_cleaned = format_, is_cleaned
        # The ingested files that were in the folders at the last check.
        self.taken: dict[str, LandedFile] = {}
        # Hashes of the paths of those that were not.
        self._gone: set[int] = set()
        self._version = -1
        self._unread: list[Commit] | None = None
        self._due = 0.0

    def read(self) -> dict[str, LandedFile]:
        """Return all files that bronze ingested; the first check does not read the log again."""
        self._unread = list(commits(self._bronze))
        return taken_files(self._unread)

    def check(self, say: Callable[[str], None] | None = None) -> None:
        """Compare all files as :func:`check_landing` does; first ``say`` which ones were moved."""
        began, is_first = time.monotonic(), self._version < 0
        new, self._unread = self._unread, None
        if new is None or not is_first:
            later = takewhile(lambda commit: commit.version > self._version, commits(self._bronze))
            new = list(later)
        taken = self.taken | taken_files(new)
        is_filled = not is_first or any(commit.batch > CREATION for commit in new)
        offered = list_files(*self._sources, may_be_empty=self._is_cleaned and is_filled)
        for source in self._sources if self._is_cleaned else ():
            if str(folder(source)) in offered:
                raise SourceError(f"source.clean_source needs a folder, and {source} is a file.")
        if self._gone.intersection(map(hash, offered.keys() - taken.keys())):
            # Spark will not read a file whose name was used before: compare with all commits.
            self._gone, self._version = set(), -1
            self.check(say)
            return
        if is_first and not (new and new[-1].version == 0):
            logged = set(self._logged())
            taken.update(self._taken_before(logged & (offered.keys() - taken.keys())))
            # Their names may come back when bronze's log does not name them any more.
            self._gone.update(map(hash, logged - offered.keys()))
        refuse_changed(offered, taken)
        if is_first and say is not None and (moved := moved_text(offered, taken)):
            say(moved)
        if is_first and self._format is not None:
            unread = [file for path, file in offered.items() if path not in taken]
            refuse_unfit(unread, self._format)
        self.taken = {path: file for path, file in taken.items() if path in offered}
        self._gone.update(hash(path) for path in taken if path not in offered)
        self._version = new[0].version if new else self._version
        self._due = next_listing(began)

    def check_if_due(self) -> None:
        """Compare all files if the interval since the last check has passed.

        A source that is empty, missing or unreadable is not an error here: the next batch or run
        reports it. A file that Spark does not see by its name gets into no batch.
        """
        if time.monotonic() >= self._due:
            try:
                self.check()
            except SourceError as error:
                if isinstance(error, SourceNameError):
                    raise


def check_bytes(
    file: LandedFile, read: int, planned: LandedFile | None = None, *, whole: bool = False
) -> None:
    """Raise a SourceChangedError if a file was being written while a batch read it.

    Compares ``file``, its state after the read, with its state when the batch was ``planned`` (None
    if it had no rows), and with the bytes read: those of the ``whole`` file, or of its rows with a
    line feed for each. Of a compressed file the bytes are not compared, only whether any were read.
    """
    if planned is not None:
        at = planned_time(file.path, planned.modified, file.modified)
        before = {file.path: replace(planned, modified=at)}
        refuse_changed(
            {file.path: file}, before, when="bytes when the batch was planned", ingested=False
        )
    is_equal = read == file.size if whole else read - file.size in _HARMLESS
    if not whole and Path(file.path).suffix in OPENERS:
        # Of a file that was empty when Spark planned its reads, a batch reads nothing.
        is_equal = read > 0 or file.size == 0 or not has_text(file.path)
    if not is_equal:
        change = f"{file.path}: {file.size:,} bytes listed, {read:,} bytes read"
        raise SourceChangedError([change], taken=False)


def check_unchanged(files: Collection[LandedFile], repair: str) -> None:
    """Raise a SourceChangedError that lists the files that changed before they were ingested.

    If some are gone, it lists those, as that of :func:`planned_files` does.
    """
    counted = {file.path: file for file in files}
    now = {file.path: file for file in planned_files(list(counted), repair)}
    refuse_changed(now, counted, when="bytes when counted", ingested=False)


def clean_landing(source: FilesSource, files: Iterable[LandedFile]) -> list[str]:
    """Delete or archive ingested files that are still as they were; return what failed, and why.

    Pass only files of batches that are closed in bronze and in Spark's checkpoint: Spark reads an
    open batch again. A file is archived under its path below the source, and never replaces another
    one. A missing file counts as done, so if interrupted, the same files can be given again.

    Raises:
        SourceChangedError: Files changed after they were ingested. They are left where they are;
            all others were tried.
    """
    # With an archive there is one path.
    root, changed = str(folder(source.paths[0])), dict[str, LandedFile]()
    archive = None if source.archive_dir is None else str(folder(source.archive_dir))
    taken = {file.path: file for file in files}

    def clean(path: str) -> str:
        now = next(iter(present_files([path])), None)
        if now is None:
            return ""
        try:
            if now != taken[path]:
                changed[path] = now
            elif archive is None:
                remove_file(path)
            else:
                move_new(path, archive + path.removeprefix(root))
        except OSError as error:
            return f"{path}: {error.strerror or error}"
        return ""

    with translating_errors(f"the source {root}"):
        problems = for_each(clean, list(taken))
    refuse_changed(changed, taken)
    return [problem for problem in problems if problem]


def uncleaned_text(source: FilesSource, problems: Sequence[str]) -> str:
    """Return a warning that lists the files that could not be deleted or archived."""
    done = "deleted" if source.archive_dir is None else "archived"
    return problem_list(f"ingested files could not be {done}; the next run tries again", problems)
