"""The commands ``validate``, ``fmt``, ``schema`` and ``list``: the files, without Spark."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import click
import yaml

from tidelake.cli.exits import say
from tidelake.cli.flow import chosen_names, refuse_namesake
from tidelake.cli.options import Place, as_json, located, on_files
from tidelake.cli.render import print_json, print_line, print_table
from tidelake.config import Pipeline, load_environment
from tidelake.config.canonical import canonical
from tidelake.config.document import read_document
from tidelake.config.expectations import load_suite
from tidelake.config.json_schema import FILE_KINDS, FOLDERS, FileKind, schema_of
from tidelake.config.locations import (
    conf_dir,
    find_file,
    own_conf,
    pipeline_names,
    without_project,
)
from tidelake.config.pipeline import written_out
from tidelake.config.sharing import SUFFIXES, is_pipeline_file, members_in, names_in
from tidelake.config.source import described
from tidelake.delta.log import last_commit
from tidelake.delta.positions import slowest_of, unfilled_tables
from tidelake.delta.tables import HOPS, Table
from tidelake.errors import ConfigError, DamagedError, UsageError, Violation
from tidelake.folders import write_whole
from tidelake.instants import now, to_json
from tidelake.visible import visible

_INVALID, _DIFFERS = 2, 3
_SUITE = re.compile(rb"^[\"']?expectations[\"']?\s*:", re.MULTILINE)
# The largest unit that fits at least once is printed.
_UNITS = (("d", timedelta(days=1)), ("h", timedelta(hours=1)), ("min", timedelta(minutes=1)))


@click.command()
@click.argument("pipelines", metavar="[PIPELINE]...", nargs=-1)
@click.option("--all", "all_", is_flag=True, help="All pipelines and all environments.")
@click.option("--resolved", is_flag=True, help="Print definitions with all their values.")
@as_json
@on_files
def validate(pipelines: tuple[str, ...], all_: bool, resolved: bool, where: Place) -> int:
    """Check files of pipelines, offline; exit 2 if one is invalid."""
    names = chosen_names(pipelines, None, all_)
    known: dict[str, Pipeline] = {}
    definitions: dict[str, Pipeline] = {}

    def load(name: str) -> str:
        found = where.load(name)
        refuse_namesake(known, found)
        definitions[name] = found
        return found.file

    def load_place(name: str) -> str:
        load_environment(name, root=where.typed.root)
        return str(find_file(name, "environment"))

    judged = [_judged("pipeline", name, load) for name in names]
    environments = names_in(conf_dir() / "environments") if all_ else []
    if where.is_broken:
        environments = [*dict.fromkeys([*environments, where.environment.name])]
    judged += [_judged("environment", name, load_place) for name in environments]
    if where.is_broken:
        # Their paths would be those of the environment that stands in for it.
        definitions.clear()
    is_valid = not any(one["errors"] for one in judged)
    if where.json:
        for one in judged if resolved else ():
            if one["name"] in definitions and one["kind"] == "pipeline":
                one["definition"] = written_out(definitions[one["name"]])
        print_json({"valid": is_valid, "files": judged})
    else:
        # With --resolved stdout has the definitions alone.
        for line in (line for one in judged for line in _lines(one)):
            (say if resolved else print_line)(line)
        if resolved:
            texts = (_as_yaml(one) for one in definitions.values())
            click.echo("---\n".join(texts), nl=False)
    return 0 if is_valid else _INVALID


def _judged(kind: str, name: str, load: Callable[[str], str]) -> dict[str, Any]:
    """Load a file; return its name, path and errors as JSON, the path None if it is unknown."""
    violations: list[Violation] = []
    file = None
    try:
        file = load(name)
    except ConfigError as error:
        file = error.file
        violations = [replace(one, file=one.file or file) for one in error.violations]
    except UsageError as error:
        violations = [Violation("", str(error))]
    errors = [{**vars(one), "path": one.path or None} for one in violations]
    return {"kind": kind, "name": name, "file": file, "errors": errors}


def _lines(one: dict[str, Any]) -> Iterator[str]:
    name = one["name"] if one["kind"] == "pipeline" else f"{one['kind']} {one['name']}"
    found = one["errors"]
    if not found:
        yield f"{name}: ok ({one['file']})"
        return
    yield f"{name}: {len(found)} {'error' if len(found) == 1 else 'errors'}"
    for error in found:
        message = error["message"]
        yield f"  - {Violation(**error) if error['path'] else message}"


def _as_yaml(pipeline: Pipeline) -> str:
    content = written_out(pipeline)
    text: str = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=100)
    # YAML prints bidirectional overrides as they are.
    return text if visible(text, lines=True) == text else yaml.safe_dump(content, sort_keys=False)


@click.command()
@click.argument("kind", type=click.Choice(FILE_KINDS))
def schema(kind: FileKind) -> None:
    """Print the JSON Schema of a kind of file, for editors."""
    click.echo(json.dumps(schema_of(kind), indent=1))


@click.command()
@click.argument("files", metavar="[PIPELINE|FILE]...", nargs=-1)
@click.option("--check", is_flag=True, help="Change nothing; exit 3 if a file would change.")
@as_json
@on_files
def fmt(files: tuple[str, ...], check: bool, where: Place) -> int:
    """Format files of pipelines, suites, environments."""
    changed: list[str] = []
    found = [_file_of(name) for name in files] if files else _conf_files()
    kinds = {str(file): _kind_of(file) for file in found}
    schemas = {kind: schema_of(kind) for kind in {*kinds.values()}}

    def formed(name: str) -> str:
        file, kind = Path(name), kinds[name]
        _load(file, kind, where)
        text = file.read_bytes().decode()
        try:
            form = canonical(text, schemas[kind])
        except ValueError as error:
            raise UsageError(f"{file} is left as it is: {error}. Please report this") from error
        if form != text:
            changed.append(name)
            if not check:
                _replace(file, form)
        return name

    judged = [_judged(kind, name, formed) for name, kind in kinds.items()]
    is_valid = not any(one["errors"] for one in judged)
    if where.json:
        for one in judged:
            one["changed"] = one["name"] in changed
        print_json({"check": check, "files": judged})
    else:
        for one in judged:
            if one["errors"]:
                for line in _lines(one):
                    print_line(line)
            elif one["name"] in changed:
                print_line(f"{'would change' if check else 'formatted'} {one['name']}")
        count = f"{len(judged)} {'file' if len(judged) == 1 else 'files'}"
        say(f"{count}, {len(changed)} {'to change' if check else 'changed'}")
    if not is_valid:
        return _INVALID
    return _DIFFERS if check and changed else 0


def _replace(file: Path, text: str) -> None:
    """Replace a file's text; a link is kept, and the file behind it replaced."""
    if not os.access(file, os.W_OK):
        raise UsageError(f"no write permission on {file}; grant it, or name other files")
    try:
        write_whole(file.resolve(), text)
    except OSError as error:
        raise UsageError(
            f"{file} cannot be written: {error.strerror or error}; "
            "correct that, or name other files"
        ) from error


def _file_of(name: str) -> Path:
    """Return the file of a pipeline, or the one at a path."""
    if "/" not in name and not name.endswith(SUFFIXES):
        return find_file(name, "pipeline")
    if not Path(name).is_file():
        raise UsageError(f"there is no file {name}; name an existing one, or a pipeline")
    return Path(name)


def _conf_files() -> list[Path]:
    """List the files of pipelines, suites and environments in the user's conf folder."""
    conf, _ = own_conf()
    if not (conf / "pipelines").is_dir():
        raise UsageError("there is no conf folder here; name the files to format")
    return [
        file
        for folder in FOLDERS
        for file in sorted((conf / folder).glob("*"))
        if file.suffix in SUFFIXES and file.is_file()
        # As `validate --all` and `list`, which take a name with _ for a copy.
        if folder == "expectations" or file.stem == "_defaults" or is_pipeline_file(file)
    ]


def _kind_of(file: Path) -> FileKind:
    """Return what a file defines: by its folder, elsewhere by its content."""
    known = FOLDERS.get(file.absolute().parent.name)
    return known or ("suite" if _SUITE.search(file.read_bytes()) else "pipeline")


def _load(file: Path, kind: FileKind, where: Place) -> None:
    """Load a file; raises a UsageError if it is invalid."""
    if kind == "suite":
        load_suite(file, columns=None, gold=None)
        return
    if kind == "environment":
        known = find_file(file.stem, "environment")
        if known.resolve() != file.resolve():
            raise UsageError(f"{file} is not an environment here, where {file.stem} is {known}")
        load_environment(file.stem, root=where.typed.root)
        return
    document = read_document(file, may_be_empty=file.stem == "_defaults")
    if document.findings:
        raise document.error(document.findings)
    # Defaults are validated in the files that they are for.
    for name in members_in(document) or {file.stem: {}} if file.stem != "_defaults" else ():
        where.load(str(file.with_name(f"{name}{file.suffix}")))


@click.command("list")
@as_json
@located
def list_pipelines(where: Place) -> None:
    """List pipelines with their sources, tables and last runs."""
    found = [_listed(name, where) for name in pipeline_names()]
    if where.printed({"pipelines": found}):
        return
    at, above = now(), f"{where.environment.files}/"
    rows = []
    for one in found:
        ages = [_age(at, one["runs"][hop]) for hop in HOPS]
        source = (one["source"] or "invalid").replace(above, "")
        # The file of for_each, which has no pipeline's name.
        file = Path(one["file"] or one["pipeline"])
        shared = "" if file.stem == one["pipeline"] else f" in {file.name}"
        shown = one["pipeline"] + shared
        rows.append([shown, one["kind"], source, len(one["tables"]), *ages])
    title = f"Pipelines in {conf_dir() / 'pipelines'}; time since the last commit of each hop"
    columns = ["pipeline", "kind", "source", "tables", *HOPS]
    print_table(columns, rows, title=title)
    if note := without_project():
        say(f"Note: {note}")
    if where.lake.catalog is not None:
        command = where.typed("tidelake status PIPELINE")
        say(f"Last commits in a catalog are not read here; see {command}")
    for one in found:
        for table in one["to_fill"]:
            say(f"{table} is not filled yet: the next run of {one['pipeline']} fills it")
        if one["error"]:
            name = one["pipeline"]
            invalid = f"{name} is invalid; see {where.typed('tidelake validate', name)}"
            say(f"{name}: {one['error']}" if one["kind"] else invalid)


def _listed(name: str, where: Place) -> dict[str, Any]:
    """Describe a pipeline as JSON; of an invalid one only its name, its file and the error."""
    runs: dict[str, str | None] = dict.fromkeys(HOPS)
    try:
        pipeline = where.load(name)
    except UsageError as error:
        known = {"pipeline": name, "file": getattr(error, "file", None), "error": str(error)}
        return known | {"kind": None, "source": None, "tables": [], "to_fill": [], "runs": runs}
    tables = {hop: where.lake.closing_tables(pipeline, hop) for hop in HOPS}
    to_fill, damaged = list[Table](), None
    try:
        # The log of a table in a catalog is read through Spark.
        for hop, own in tables.items() if where.lake.catalog is None else ():
            table = slowest_of(own)
            last = None if table is None else last_commit(table)
            runs[hop] = None if last is None else to_json(last.written_at)
        to_fill = unfilled_tables(tables["gold"]) if where.lake.catalog is None else []
    except DamagedError as error:
        damaged = str(error)
    return {
        "pipeline": name,
        "file": pipeline.file,
        "kind": pipeline.kind,
        "source": described(pipeline.source),
        "tables": [table.name for own in tables.values() for table in own],
        "to_fill": [table.name for table in to_fill],
        "runs": runs,
        "error": damaged,
    }


def _age(at: datetime, instant: str | None) -> str | None:
    """Return how long ago an instant was, in one unit: ``12 min``."""
    if instant is None:
        return None
    age = at - datetime.fromisoformat(instant)
    unit, size = next((one for one in _UNITS if age >= one[1]), ("s", timedelta(seconds=1)))
    return f"{max(age // size, 0)} {unit}"
