"""The command ``new``: a project of one's own, from the files in ``skeleton``."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from tidelake import __version__
from tidelake.cli.exits import say, say_next
from tidelake.cli.init import (
    SOURCE,
    Given,
    create,
    document_of,
    inferring,
    plain_name,
    show,
    show_files,
)
from tidelake.cli.options import as_json, unwritten
from tidelake.cli.render import print_json
from tidelake.config import Environment
from tidelake.config.json_schema import FOLDERS, schema_of
from tidelake.config.loading import Address
from tidelake.config.locations import standard_environments
from tidelake.errors import MachineError, SourceError, UsageError
from tidelake.folders import SCHEME
from tidelake.typed import PLAIN

if TYPE_CHECKING:
    from tidelake.cli.init.draft import Draft

_SKELETON = Path(__file__).parent / "skeleton"
# Under their real names, tools would take these for files of the package.
_HIDDEN = {"gitignore": ".gitignore", "github": ".github"}
_EXAMPLE = "orders"
# Begins a line that is true of the example's input alone.
_OF_EXAMPLE = re.compile("^__example__(.*\n)", re.MULTILINE)
# The project's name, in the files here and in those of a bundle template.
_PROJECT, _VARIABLE = "__project__", "{{.project_name}}"


@click.command()
@click.argument("folder", metavar="DIR", type=Given(path_type=Path))
@click.option(
    "--from",
    "sample",
    type=SOURCE,
    metavar="PATH|s3://…|kafka://HOST:PORT/TOPIC",
    help="Sample to infer the pipeline from, as init does.",
)
@click.option("--name", help="Name of the pipeline inferred from the sample.")
@click.option("--bundle-template", is_flag=True, help="Make a template for databricks bundle init.")
@inferring
@unwritten
@as_json
def new(
    folder: Path,
    sample: str | None,
    name: str | None,
    bundle_template: bool,
    yes: bool,
    dry_run: bool,
    json_: bool,
    **choices: Any,
) -> None:
    """Create a project: a pipeline, tests, bundle and CI file."""
    project = _PROJECT if bundle_template else _project_of(folder)
    _refuse_used(folder)
    is_any_given = _is_any_given(click.get_current_context())
    if bundle_template:
        if sample is not None or is_any_given:
            raise UsageError(
                "a template has no sample: its projects begin with the example of tidelake new "
                "DIR. Leave out --from and the options about a sample"
            )
    elif sample is None and is_any_given:
        raise UsageError("options about a sample need one: tidelake new DIR --from SAMPLE")
    is_asked = sample is not None and not (yes or json_) and sys.stdin.isatty()
    draft: Draft | None = None
    written: list[str] = []
    # A dry run makes the project elsewhere: what is in it does not depend on its place.
    with TemporaryDirectory() as elsewhere:
        made = Path(elsewhere) / "project" if dry_run else folder
        if bundle_template:
            _write_template(made, **choices)
        else:
            draft, written = _make(made, project, sample, name, interactive=is_asked, **choices)
        every = sorted(file for file in made.rglob("*") if file.is_file())
    files = [str(folder / file.relative_to(made)) for file in every]
    if json_:
        about = document_of(draft, files) if draft else {"files": files}
        print_json({"folder": str(folder), **about, "dry_run": dry_run})
    elif draft:
        show(draft, files if dry_run else written, dry_run=dry_run)
    else:
        show_files(files if dry_run else written, dry_run=dry_run)
    if not (json_ or dry_run):
        _say_next(folder, draft, is_inferred=sample is not None)


def _say_next(folder: Path, draft: Draft | None, *, is_inferred: bool) -> None:
    if draft is None:
        say(f"Made a template in {folder}; its projects are those of tidelake new.")
        say_next([f"databricks bundle init {shlex.quote(str(folder))}"])
        return
    say(f"Made a project in {folder}; README.md says what each file is.")
    if is_inferred and isinstance(draft.source, str):
        say(
            f"Note: {draft.name} reads {draft.source}. To deploy it, write a path under "
            f"${{landing}}, such as ${{landing}}/{draft.name}"
        )
    test = ["pytest -q"] if find_spec("pytest") else ["pip install pytest", "pytest -q"]
    say_next([f"cd {shlex.quote(str(folder))}", PLAIN("tidelake run", draft.name), *test])


def _make(
    folder: Path, project: str, sample: str | None, name: str | None, **choices: Any
) -> tuple[Draft, list[str]]:
    """Write the files of a project; return its pipeline, and the paths of the pipeline's files."""
    # Any place will do to validate a definition; not that of a project around this one.
    environment = Environment(name="local", root=folder / "lakehouse")
    path = None
    if sample is None:
        # A folder that each environment has one of, so that the pipeline deploys unchanged.
        landed = folder / "lakehouse" / "landing" / _EXAMPLE / f"{_EXAMPLE}.jsonl"
        _write(landed, (_SKELETON / landed.name).read_text(encoding="utf-8"))
        sample, name, path = str(landed.parent), _EXAMPLE, f"${{landing}}/{_EXAMPLE}"
    try:
        draft, written = create(
            name,
            sample,
            None,
            layout=(folder, folder),
            environment=environment,
            path=path,
            **choices,
        )
    except (MachineError, SourceError) as error:
        # Options of init, for which there is one here.
        text = re.sub("--(sample|source)\\b", "--from", str(error))
        raise type(error)(text) from error
    # The extra that the source needs, after a comma.
    is_topic = isinstance(draft.source, Address)
    extra = ",kafka" if is_topic else ",s3" if str(draft.source).startswith(SCHEME) else ""
    names = {
        _PROJECT: project,
        "__pipeline__": draft.name,
        "__version__": __version__,
        "__extra__": extra,
    }
    for file in filter(Path.is_file, (_SKELETON / "files").rglob("*")):
        parts = file.relative_to(_SKELETON / "files").parts
        lines = _OF_EXAMPLE.sub("" if path is None else r"\1", file.read_text(encoding="utf-8"))
        text = re.sub("|".join(names), lambda match: names[match[0]], lines)
        _write(folder.joinpath(*(_HIDDEN.get(part, part) for part in parts)), text)
    for file in standard_environments():
        text = file.read_text(encoding="utf-8").replace("catalog: tidelake", f"catalog: {project}")
        _write(folder / "environments" / file.name, text)
    _add_schemas(folder)
    return draft, written


def _write_template(folder: Path, **choices: Any) -> None:
    """Write the files of a project with the project's name as a variable of a Go template."""
    with TemporaryDirectory() as above:
        made = Path(above) / "project"
        _make(made, _PROJECT, None, None, interactive=False, **choices)
        for file in sorted(one for one in made.rglob("*") if one.is_file()):
            place = folder / "template" / _VARIABLE / file.relative_to(made)
            text = file.read_text(encoding="utf-8")
            # Any other file is copied as it is. Git would take a .gitignore for one of its own,
            # and leave the example's data out of a repository of templates.
            if _PROJECT in text or file.name == ".gitignore":
                place = place.with_name(f"{place.name}.tmpl")
                text = text.replace("{{", '{{"{{"}}').replace(_PROJECT, _VARIABLE)
            _write(place, text)
    schema = "databricks_template_schema.json"
    _write(folder / schema, (_SKELETON / schema).read_text(encoding="utf-8"))


def _add_schemas(folder: Path) -> None:
    """Write the JSON Schemas, and name them in the files, so that editors complete keys."""
    for place, kind in FOLDERS.items():
        schema = f"schemas/{kind}.json"
        _write(folder / schema, f"{json.dumps(schema_of(kind), indent=1)}\n")
        for file in (folder / place).glob("*.yml"):
            line = f"# yaml-language-server: $schema=../{schema}\n"
            _write(file, line + file.read_text(encoding="utf-8"))


def _project_of(folder: Path) -> str:
    """Return the name of a folder as that of a bundle and of catalogs."""
    name = plain_name(Path(os.path.abspath(folder)).name)
    if not name[:1].isalpha():
        raise UsageError(
            f"catalogs are named after the folder, and '{folder.name}' does not begin with a "
            "Latin letter. Name one that does"
        )
    return name


def _refuse_used(folder: Path) -> None:
    if os.path.lexists(folder) and not folder.is_dir():
        raise UsageError(f"{folder} is no folder; name a new folder, or an empty one")
    above = next(one for one in (folder, *folder.absolute().parents) if one.exists())
    if not above.is_dir() or not os.access(above, os.W_OK):
        why = f"no write permission on {above}" if above.is_dir() else f"{above} is no folder"
        raise UsageError(f"{folder} cannot be created: {why}. Name another folder")
    if folder.is_dir() and any(folder.iterdir()):
        raise UsageError(
            f"{folder} is not empty; name a new folder, or an empty one. A pipeline is added to a "
            "project with: tidelake init NAME --source PATH"
        )


def _is_any_given(context: click.Context) -> bool:
    given = click.core.ParameterSource.COMMANDLINE
    return any(
        context.get_parameter_source(name) == given
        for name in context.params
        if name not in ("folder", "sample", "yes", "bundle_template", "dry_run", "json_")
    )


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
