"""The files of a draft: pipeline, expectations, test, sample. None that is there is touched."""

from __future__ import annotations

import os
import tempfile
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError

from tidelake.config import Environment, load_pipeline
from tidelake.config.model import written
from tidelake.config.names import TableName
from tidelake.config.source import Address
from tidelake.config.types import Field, quoted
from tidelake.errors import ConfigError, UsageError
from tidelake.scaffold.draft import Draft
from tidelake.scaffold.guesses import FirstTable
from tidelake.scaffold.payload import Column

_WIDTH = 96


def pipeline_text(draft: Draft) -> str:
    """Write the pipeline file."""
    source = draft.source
    origin = f"the topic {source.topic}" if isinstance(source, Address) else source
    lines = [
        *_comment(
            f"{draft.name}, from {draft.records:,} records of {origin} by tidelake init. "
            "The file is yours now: change it, look with `tidelake check "
            f"{draft.name}` whether the stored tables go along, and run.",
            0,
        ),
        f"name: {draft.name}",
        "source:",
        *_source(draft.source),
        "event:",
        *_comment(
            "The fields of a payload. A value that is not exactly of its type (a comma in a "
            "number, too many digits, a time without a date) is quarantined and never bent.",
            2,
        ),
        "  schema: >-",
        *_schema(draft.fields),
        *_select(draft.columns),
        *_comment(f"Tells events apart, so that a copy counts once: {draft.id.why}.", 2),
        f"  id: {_scalar(draft.id.sql)}",
        *_comment(f"When it happened: {draft.time.why}.", 2),
        f"  time: {_scalar(draft.time.sql)}",
        "  evolution: additive          # fields that the schema lacks become text columns",
        "watermark:",
        *_comment(f"How far events may come out of order; {draft.lateness.why}.", 2),
        f"  delay: {written(draft.lateness.delay)}",
        *_comment(
            "So much later an event still changes gold; after that it is kept in the late table.", 2
        ),
        f"  allowed_lateness: {written(draft.lateness.allowed)}",
        "  max_future_skew: 5 minutes   # further ahead of its arrival: quarantined",
        *_comment(
            "How long an id is remembered after its arrival; with merge, ids of the same event "
            "date for good.",
            0,
        ),
        "dedup: {ttl: 1 hour, beyond_ttl: merge}",
        f"quality: {{suite: expectations/{draft.name}.yml}}",
        "gold:",
        *_gold(draft.table),
    ]
    return "\n".join(lines) + "\n"


def suite_text(draft: Draft) -> str:
    """Write the expectations."""
    lines = [
        *_comment(
            "What is expected of each row of silver. A row that fails a critical expectation is "
            "quarantined with its reason; a warning is counted, see `tidelake status "
            f"{draft.name}`. All of these hold in the sample; make critical what must hold, delete "
            "what was chance.",
            0,
        ),
        f"name: {draft.name}",
        "expectations:",
    ]
    for rule in draft.rules:
        lines.append(f"  - type: {rule['type']}")
        lines += _wrapped("    kwargs: ", rule["kwargs"])
        if "severity" in rule:
            lines.append(f"    severity: {rule['severity']}")
    table = draft.table
    lines += [
        "gold:",
        f"  {table.name}:",
        "    - type: expect_column_min_to_be_between",
        f"      kwargs: {{column: {table.measures[0][0]}, min_value: 1}}",
    ]
    if table.key:
        lines += [
            "    - type: expect_compound_columns_to_be_unique",
            f"      kwargs: {{column_list: [{_scalar(table.key)}, window_start]}}",
        ]
    return "\n".join(lines) + "\n"


def test_text(draft: Draft) -> str:
    """Write the test that runs the sample through the definition."""
    name, count = draft.name, len(draft.examples)
    counted = draft.table.measures[0][0]
    copies = draft.id.sql != "record_id"
    heard = "What a sender repeats, and what it cuts off" if copies else "What a sender cuts off"
    sent = "[*LINES, LINES[0], LINES[0][:-1]]" if copies else "[*LINES, LINES[0][:-1]]"
    fates = f'{{"silver": {count}, "duplicate": 1, "quarantined": 1}}'
    if not copies:
        fates = f'{{"silver": {count}, "quarantined": 1}}'
    return f'''"""The sample of {name} through its definition: each line has its fate."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tidelake.testing import Played, playing

HERE = Path(__file__).parent
PIPELINE = HERE.parent / "conf" / "pipelines" / "{name}.yml"
LINES = (HERE / "{name}.sample.jsonl").read_bytes().splitlines()
# {heard}.
SENT = {sent}


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Played]:
    with playing() as play:
        yield play(PIPELINE, SENT, tmp_path_factory.mktemp("{name}"))


def test_each_line_of_the_sample_is_accepted_once(played: Played) -> None:
    assert played.fates == {fates}


def test_a_line_that_is_cut_off_is_quarantined_with_its_reason(played: Played) -> None:
    assert played.reasons == {{"payload: not one JSON object": 1}}


def test_nothing_is_lost(played: Played) -> None:
    assert played.problems == ()


def test_gold_counts_every_accepted_event(played: Played) -> None:
    assert played.ask("SELECT sum({counted}) FROM gold.{draft.table.name}") == [({count},)]
'''


def _source(source: str | Address) -> Iterator[str]:
    if isinstance(source, Address):
        yield "  kind: kafka"
        yield "  format: json                 # one JSON object a record"
        yield f"  bootstrap: {_scalar(source.bootstrap)}"
        yield f"  topic: {_scalar(source.topic)}"
        yield "  starting: earliest           # or latest, or an instant; for the first run"
        yield "  # options: {kafka.security.protocol: SASL_SSL, …}; a secret as env:NAME"
        return
    yield "  kind: files"
    yield "  format: json                 # one JSON object a line"
    yield "  # Read recursively; where it is relative, from the folder that a command is called in."
    yield f"  path: {_scalar(source)}"


def _schema(fields: Sequence[Field]) -> Iterator[str]:
    for number, field in enumerate(fields, start=1):
        plain = field.name.isidentifier() and field.name.isascii()
        name = field.name if plain else quoted(field.name)
        yield f"    {name} {field.type.sql}{',' if number < len(fields) else ''}"


def _select(columns: Sequence[Column]) -> Iterator[str]:
    if not columns:
        return
    yield "  # Silver's columns beside event_id and event_time: a name, and SQL over the payload."
    yield "  select:"
    for column in columns:
        notes = f"    # {'; '.join(column.notes)}" if column.notes else ""
        yield f"    {_scalar(column.name)}: {_scalar(column.sql)}{notes}"


def _gold(table: FirstTable) -> Iterator[str]:
    yield f"  - name: {table.name}"
    yield f"    window: {{kind: tumbling, size: {written(table.size)}}}"
    if table.key:
        yield f"    keys: [{_scalar(table.key)}]             # {table.why}"
    yield "    measures:"
    for name, aggregate, sql in table.measures:
        yield f"      {name}: {{{aggregate}: {_scalar(sql, flow=True)}}}"


def _comment(text: str, indent: int) -> list[str]:
    lead = " " * indent + "# "
    return textwrap.wrap(
        text, _WIDTH, initial_indent=lead, subsequent_indent=lead, break_on_hyphens=False
    )


def _scalar(value: str, *, flow: bool = False) -> str:
    """Write a text as YAML, in quotes where it needs them."""
    if flow and not value.isidentifier():
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return (
        str(yaml.safe_dump(value, width=10_000, allow_unicode=True)).removesuffix("\n...\n").strip()
    )


def _wrapped(lead: str, value: dict[str, Any]) -> list[str]:
    room = _WIDTH - len(lead)
    text = yaml.safe_dump(
        value, default_flow_style=True, sort_keys=False, width=room, allow_unicode=True
    )
    first, *others = text.rstrip("\n").splitlines()
    return [lead + first, *(" " * len(lead) + other.strip() for other in others)]


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
    content = {"pipeline": pipeline_text(draft).encode(), "suite": suite_text(draft).encode()}
    _refuse_unsound(draft.name, content, environment)
    if draft.examples:
        # Without a line the test would say nothing.
        content["test"] = test_text(draft).encode()
        content["sample"] = b"".join(payload + b"\n" for payload in draft.examples)
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
        for what, data in content.items():
            trial[what].parent.mkdir(parents=True)
            trial[what].write_bytes(data)
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
