"""What pipeline files share: a folder's ``_defaults.yml``, and ``for_each`` in one file.

Both are resolved here, on the parsed YAML, so that the models know neither of them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from tidelake.config.document import (
    Document,
    Finding,
    KeyPath,
    dotted,
    mappings_in,
    quick_content,
    read_document,
)
from tidelake.config.model import suggestion
from tidelake.errors import ConfigError, UsageError
from tidelake.names import table_name

SUFFIXES = (".yml", ".yaml")
# The keys under which a pipeline file names its tables.
_TABLES = (
    *(("gold", "name"), ("joins", "name"), ("queries", "name")),
    *(("detections", "name"), ("detections", "features")),
)
REFERENCE = re.compile(r"\$\{([^}]*)\}")
_DEFAULTS, _FOR_EACH = "_defaults", "for_each"
_PARAMETER = re.compile(r"[a-z][a-z0-9_]*")
_IN_SQL = re.compile(r"[A-Za-z0-9_]+")
# Sections whose texts are neither names nor SQL, so that a parameter may be any text there; of
# `quality` only the suite.
_PLAIN = ("source", "quality", "watermark", "dedup", "alerts", "description", "comments")
# Keys of a table whose texts are neither; its topics and brokers are the client's.
_WORDS = ("description", "comments", "tags")
_OF_TOPICS = (("publish", "topic"), ("publish", "bootstrap"), ("fast", "topic"))
_RESERVED = ("root", "landing")
Parameters = Mapping[str, str]


def is_pipeline_file(file: Path) -> bool:
    """Return whether a file is YAML and not one that begins with ``_``, as the defaults do."""
    return file.suffix in SUFFIXES and not file.name.startswith("_")


def _files_in(folder: Path) -> list[Path]:
    """List a folder's pipeline files, sorted; none if there is no such folder."""
    if not folder.is_dir():
        return []
    # A folder or a link to nothing is no file, whatever its name is.
    return sorted(
        folder / entry.name
        for entry in os.scandir(folder)
        if is_pipeline_file(folder / entry.name) and entry.is_file()
    )


def find_definition(name: str, folder: Path) -> Path | None:
    """Find the file in a folder that defines a pipeline, alone or by ``for_each``.

    Raises:
        UsageError: Several files define it.
        ConfigError: No file defines it, and the ``for_each`` of one that might is invalid.
    """
    named = [folder / f"{name}{suffix}" for suffix in SUFFIXES]
    # Unlike Path.is_file(), false for a name that is too long.
    found = [file for file in named if is_pipeline_file(file) and os.path.isfile(file)][:1]
    broken: ConfigError | None = None
    for file in _files_with_for_each(folder):
        try:
            members = members_in(read_document(file))
        except ConfigError as error:
            broken = broken or error
            continue
        if name in members and file not in found:
            found.append(file)
    if len(found) > 1:
        raise _defined_twice(name, found)
    if broken is not None and not found:
        raise broken
    return found[0] if found else None


def refuse_second(name: str, file: Path, tables: Collection[str]) -> None:
    """Raise a UsageError if another file in a pipeline's folder defines its name or its tables."""
    # Without an escape a name stands in the text as it is; parsing takes a millisecond a file.
    hints = [one.encode() for one in (name, *tables, _FOR_EACH, "\\")]
    for other in _files_in(file.parent):
        if other == file:
            continue
        try:
            content = other.read_bytes()
            if not any(hint in content for hint in hints):
                continue
            pipelines, filled = _defined_by(other, content)
        except (OSError, UsageError):
            # Reading that file by its own name reports why.
            continue
        if name in pipelines:
            raise _defined_twice(name, [file, other])
        if twice := sorted(filled.intersection(tables)):
            raise UsageError(
                f"{', '.join(twice)}: {file} and {other} would both fill this table; rename it in "
                "one of them"
            )


@lru_cache(maxsize=1024)
def _defined_by(file: Path, content: bytes) -> tuple[frozenset[str], frozenset[str]]:
    """Return the pipelines and the tables that a file defines, as long as its content is the same.

    A command asks this of each file beside its own, one on all pipelines for each pair of files.
    """
    found = quick_content(content)
    is_single = isinstance(found, dict) and _FOR_EACH not in found
    document = Document(str(file), found) if is_single else read_document(file)
    members = members_in(document) or {str(document.content.get("name")): {}}
    names = [name for _, name in table_names(document.content)]
    tables = (replaced(name, (), one, []) for name in names for one in members.values())
    return frozenset(members), frozenset(tables)


def _defined_twice(name: str, files: Iterable[Path]) -> UsageError:
    found = " and ".join(map(str, files))
    return UsageError(f"pipeline '{name}' is defined by both {found}; rename one of them")


def defined_tables(folder: Path) -> set[str]:
    """List the gold tables, without layer, that the pipeline files of a folder define.

    ``for_each`` is resolved; files that cannot be read are left out.
    """
    found: set[str] = set()
    for file in _files_in(folder):
        with suppress(OSError, UsageError):
            found |= _defined_by(file, file.read_bytes())[1]
    return found


def names_in(folder: Path) -> list[str]:
    """List the pipelines that a folder's files define, sorted.

    A file whose ``for_each`` is invalid is listed by its own name, so that loading it reports why.
    """
    shared = set(_files_with_for_each(folder))
    found: set[str] = set()
    for file in _files_in(folder):
        try:
            members = members_in(read_document(file)) if file in shared else {}
        except ConfigError:
            members = {}
        found.update(members or {file.stem})
    return sorted(found)


def read_definition(file: Path, name: str | None = None) -> tuple[Document, Parameters]:
    """Read a pipeline file with its folder's defaults below it, and its ``for_each`` parameters.

    ``file`` is the file of the pipeline ``name``. Without a name it is a path as the user wrote it:
    the file itself or, for a pipeline of ``for_each``, a path in the same folder with the
    pipeline's name, where there is no file.

    Raises:
        UsageError: The file cannot be read, or stands for several pipelines.
        ConfigError: The file or the defaults are not readable YAML, or ``for_each`` is invalid.
    """
    if name is None:
        name = file.stem
        if not file.is_file() and file.parent.is_dir():
            file = find_definition(name, file.parent) or file
    document = read_document(file)
    members = members_in(document)
    present = defaults_beside(file)
    if len(present) > 1:
        raise UsageError(f"{file.parent} has both {_DEFAULTS}.yml and .yaml; keep one of them")
    for path in present:
        merge_defaults(document, read_document(path, may_be_empty=True))
    if not members:
        return document, {}
    document.content.pop(_FOR_EACH)
    if name not in members:
        known = ", ".join(members)
        raise UsageError(
            f"{file} stands for several pipelines; name one of them: {known}"
            f"{suggestion(name, members)}"
        )
    return document, members[name]


def defaults_beside(file: Path) -> list[Path]:
    """List the defaults in a file's folder: one at most, unless the folder is invalid."""
    places = [file.with_name(f"{_DEFAULTS}{suffix}") for suffix in SUFFIXES]
    return [path for path in places if path.is_file()]


def merge_defaults(document: Document, defaults: Document) -> None:
    """Add a folder's defaults to a document: mappings are merged, any other value is overridden.

    Keys of the defaults come first, as silver's columns follow the order of ``select``. Findings at
    a value of the defaults name that file and its line.
    """
    # Two pipelines must not write one table.
    for key in ("name", _FOR_EACH, *dict(_TABLES)):
        if key in defaults.content:
            message = "belongs to one pipeline file, not to the defaults of a folder; remove it"
            defaults.findings.append(Finding((key,), message))
            del defaults.content[key]
    taken: list[KeyPath] = []

    def merged(own: dict[str, Any], below: dict[str, Any], path: KeyPath) -> dict[str, Any]:
        values = {**below, **own}
        for key, value in below.items():
            if key not in own:
                taken.append((*path, key))
            elif isinstance(value, dict) and isinstance(own[key], dict):
                values[key] = merged(own[key], value, (*path, key))
        return values

    document.content = merged(document.content, defaults.content, ())
    # What the parser found is reported even if the document replaces the value.
    places = {finding.path for finding in defaults.findings}
    for path, line in defaults.lines.items():
        if path in places or any(path[: len(one)] == one for one in taken):
            document.lines[path] = line
            document.files[path] = defaults.file
    document.findings += defaults.findings


def replaced(text: str, path: KeyPath, parameters: Parameters, findings: list[Finding]) -> str:
    """Replace ``${parameter}`` in a text; other references are kept.

    A value inside a name or SQL must consist of letters, digits and ``_``, so that it cannot
    end a quoted text or an expression; any other is a finding.
    """

    def value_of(match: re.Match[str]) -> str:
        value = parameters.get(match[1])
        if value is None:
            return match[0]
        if path and not _is_plain(path) and not _IN_SQL.fullmatch(value):
            message = (
                f"{match[0]} is {value!r}; in a name or an expression a parameter has letters, "
                "digits and underscores only"
            )
            findings.append(Finding(path, message))
        return value

    return REFERENCE.sub(value_of, text)


def _is_plain(path: KeyPath) -> bool:
    """Return whether the text at a path is neither a name nor SQL."""
    if path[0] in _PLAIN:
        return path[:2] != ("quality", "rules")
    match path:
        case ("dimension", key, *_) | (_, int(), key, *_) if key in _WORDS:
            return True
        case (_, int(), section, key):
            return (section, key) in _OF_TOPICS
    return False


def _files_with_for_each(folder: Path) -> list[Path]:
    """List the pipeline files that may have ``for_each``, without parsing them."""
    found = []
    for file in _files_in(folder):
        # Of a file that cannot be read, reading it by name reports why.
        with suppress(OSError):
            if _FOR_EACH.encode() in file.read_bytes():
                found.append(file)
    return found


def members_in(document: Document) -> dict[str, Parameters]:
    """Return the parameters of each pipeline by name; empty without ``for_each``.

    Raises a ConfigError that lists all problems of ``for_each`` and of the names.
    """
    if _FOR_EACH not in document.content:
        return {}
    items = document.content[_FOR_EACH]
    findings = [*document.findings, *_parameter_findings(items)]
    if findings:
        raise document.error(findings)
    members: dict[str, Parameters] = {}
    template = document.content.get("name")
    for index, parameters in enumerate(items):
        name = template if isinstance(template, str) else ""
        name = replaced(name, ("name",), parameters, findings)
        try:
            table_name(name)
        except ValueError as error:
            findings.append(Finding(("name",), f"{error} ({_FOR_EACH}[{index}])"))
        if name in members:
            message = f"a second pipeline named {name or 'nothing'}"
            findings.append(Finding((_FOR_EACH, index), message))
        members[name] = parameters
    if not any(f"${{{key}}}" in str(template) for key in items[0]):
        hint = ", ".join(f"${{{key}}}" for key in items[0])
        findings.append(Finding(("name",), f"must contain a parameter: one of {hint}"))
    findings += _shared_tables(document.content, list(items))
    if findings:
        raise document.error(findings)
    return members


def _parameter_findings(items: object) -> Iterator[Finding]:
    if not isinstance(items, list) or not items:
        yield Finding((_FOR_EACH,), "must be a list with a mapping of parameters for each pipeline")
        return
    first = items[0] if isinstance(items[0], dict) else {}
    for index, item in enumerate(items):
        place: KeyPath = (_FOR_EACH, index)
        if not isinstance(item, dict) or not item:
            yield Finding(place, "must be a mapping of parameters to texts")
            continue
        if item.keys() != first.keys() and first:
            keys = ", ".join(first)
            yield Finding(place, f"must have the parameters of the first item: {keys}")
        for key, value in item.items():
            if key in _RESERVED or not _PARAMETER.fullmatch(str(key)):
                message = (
                    "is not a name for a parameter: write lower-case letters, digits and "
                    "underscores, a letter first; root and landing are reserved"
                )
                yield Finding((*place, key), message)
            if not isinstance(value, str):
                yield Finding((*place, key), "must be text; put it in quotes")
            elif not value.strip() or "${" in value or ".." in value or not value.isprintable():
                message = "must be printable text without ${ and without .."
                yield Finding((*place, key), message)


def _shared_tables(content: Mapping[str, Any], items: list[Parameters]) -> Iterator[Finding]:
    """Find tables that two pipelines of a file would both write."""
    for place, name in table_names(content):
        resolved = [replaced(name, place, item, []) for item in items]
        if len(set(resolved)) < len(resolved):
            message = (
                f"{name} is the same table for several pipelines of {_FOR_EACH}; write a "
                "parameter that differs into the name"
            )
            yield Finding(place, message)


def table_names(content: Mapping[str, Any]) -> Iterator[tuple[KeyPath, str]]:
    """List the names of tables in a pipeline file, each with its place."""
    for part, key in _TABLES:
        for path, table in mappings_in(content.get(part), (part,)):
            if isinstance(table.get(key), str):
                yield (*path, key), table[key]


def duplicate_tables(raw: dict[str, Any]) -> Iterator[Finding]:
    """Find names that two tables of the file have."""
    first: dict[str, str] = {}
    for place, name in table_names(raw):
        if name in first:
            yield Finding(place, f"{name} is already the name of {first[name]}; choose another")
        first.setdefault(name, dotted(place[:2]))
