"""The files of a draft: pipeline, expectations, test, sample. None that is there is touched."""

from __future__ import annotations

import os
import tempfile
import textwrap
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment as Templates
from jinja2 import PackageLoader, StrictUndefined
from pydantic import TypeAdapter, ValidationError

from tidelake.config import Environment, load_pipeline
from tidelake.config.model import written
from tidelake.config.names import TableName
from tidelake.config.source import Address
from tidelake.config.types import Field, quoted
from tidelake.errors import ConfigError, UsageError
from tidelake.scaffold.draft import Draft

_WIDTH = 96
_IGNORED = ("/lakehouse/", "/spark-warehouse/")
_FLAGS = {"event.id": "--id", "event.time": "--time", "gold[0].keys[0]": "--key"}


def files_for(folder: Path, name: str) -> dict[str, Path]:
    """Say where the files of a new pipeline go; none of them is there yet.

    Raises:
        UsageError: The name cannot be a pipeline's, the folder is none, or a file is there.
    """
    try:
        TypeAdapter(TableName).validate_python(name)
    except ValidationError as error:
        raise UsageError(str(error.errors()[0]["ctx"]["error"])) from error
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"--to {folder} is a file, not a folder.")
    files = {
        "pipeline": folder / "conf" / "pipelines" / f"{name}.yml",
        "suite": folder / "conf" / "expectations" / f"{name}.yml",
        "test": folder / "tests" / f"test_{name}.py",
        "sample": folder / "tests" / f"{name}.sample.jsonl",
    }
    there = [path for path in files.values() if path.exists()]
    if there:
        raise UsageError(
            f"nothing was written, {'this is' if len(there) == 1 else 'these are'} there already: "
            f"{', '.join(map(str, there))}. Choose another NAME or another folder with --to."
        )
    return files


def write(files: dict[str, Path], draft: Draft, environment: Environment) -> list[Path]:
    """Write the files, once the definition has passed the checks that each command makes.

    Returns:
        What was written or, of ``.gitignore``, added to.

    Raises:
        UsageError: What was asked for makes no sound definition; nothing was written.
    """
    content = _content(draft)
    _refuse_unsound(draft.name, content, environment)
    for what, data in content.items():
        files[what].parent.mkdir(parents=True, exist_ok=True)
        with files[what].open("xb") as stream:
            stream.write(data)
    ignore = files["pipeline"].parents[2] / ".gitignore"
    return [*(files[what] for what in content), *([ignore] if _ignore(ignore) else [])]


def source_in(folder: Path, source: Path) -> str:
    """Write a source's path as commands that are called in the folder find it."""
    whole = Path(os.path.abspath(source))
    home = Path(os.path.abspath(folder))
    return str(whole.relative_to(home)) if whole.is_relative_to(home) else str(whole)


def _refuse_unsound(name: str, content: dict[str, bytes], environment: Environment) -> None:
    """Load the definition from a temporary folder."""
    with tempfile.TemporaryDirectory() as temporary:
        trial = files_for(Path(temporary), name)
        for what in ("pipeline", "suite"):
            trial[what].parent.mkdir(parents=True)
            trial[what].write_bytes(content[what])
        try:
            load_pipeline(str(trial["pipeline"]), environment)
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


def _content(draft: Draft) -> dict[str, bytes]:
    """Write the files as text; without an example the test would say nothing, and is left out."""
    topic = draft.source if isinstance(draft.source, Address) else None
    facts = {
        "draft": draft,
        "topic": topic,
        "origin": f"the topic {topic.topic}" if topic else draft.source,
        "copies": draft.id.sql != "record_id",
        "count": len(draft.examples),
    }
    names = {"pipeline": "pipeline.yml.j2", "suite": "suite.yml.j2"}
    if draft.examples:
        names["test"] = "test.py.j2"
    content = {
        what: _templates().get_template(name).render(facts).encode() for what, name in names.items()
    }
    if draft.examples:
        content["sample"] = b"".join(payload + b"\n" for payload in draft.examples)
    return content


@cache
def _templates() -> Templates:
    # What is written is YAML and Python, not HTML: quoting is the filters' work.
    templates = Templates(
        loader=PackageLoader("tidelake.scaffold"),
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    own = (_comment, _ddl, _flow, _scalar, _scalar_in_flow, written)
    templates.filters |= {one.__name__.removeprefix("_"): one for one in own}
    return templates


def _comment(text: str, indent: int) -> str:
    lead = " " * indent + "# "
    lines = textwrap.wrap(
        " ".join(text.split()),
        _WIDTH,
        initial_indent=lead,
        subsequent_indent=lead,
        break_on_hyphens=False,
    )
    return "\n".join(lines) + "\n"


def _ddl(field: Field) -> str:
    plain = field.name.isidentifier() and field.name.isascii()
    return f"{field.name if plain else quoted(field.name)} {field.type.sql}"


def _scalar(value: str) -> str:
    """Write a text as YAML, in quotes where it needs them."""
    text = str(yaml.safe_dump(value, width=10_000, allow_unicode=True))
    return text.removesuffix("\n...\n").strip()


def _scalar_in_flow(value: str) -> str:
    if value.isidentifier():
        return _scalar(value)
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _flow(value: dict[str, Any], indent: int) -> str:
    """Write a mapping on as few lines as fit, from a column on."""
    text = yaml.safe_dump(
        value, default_flow_style=True, sort_keys=False, width=_WIDTH - indent, allow_unicode=True
    )
    first, *others = text.rstrip("\n").splitlines()
    return "\n".join([first, *(" " * indent + other.strip() for other in others)])
