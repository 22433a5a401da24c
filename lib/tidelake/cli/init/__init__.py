"""The command ``init``: create a pipeline from a sample, by prompts or options."""

from __future__ import annotations

import functools
import os
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tidelake.cli.exits import say, say_next
from tidelake.cli.options import (
    Command,
    Place,
    as_json,
    duration_option,
    path_option,
    placed,
    unwritten,
)
from tidelake.cli.render import print_table
from tidelake.config import Environment, Registry
from tidelake.config.descriptions import in_sql
from tidelake.config.loading import Address, address_of, is_address
from tidelake.config.locations import MARKER, lacks_marker, layout_of
from tidelake.config.model import parse_duration
from tidelake.config.model import written as as_text
from tidelake.errors import MachineError, SourceError, UsageError
from tidelake.folders import expanded
from tidelake.kafka.client import first_records
from tidelake.names import logical_name

if TYPE_CHECKING:
    from tidelake.cli.init.draft import Draft
    from tidelake.cli.init.payload import Payload
    from tidelake.cli.init.sample import Sample

# Number of candidates listed before a prompt, and of columns in the query that is suggested.
_SHOWN, _SHOWN_COLUMNS = 3, 6


class Given(click.Path):
    """A path or URL that is not empty: a shell makes that of an unset variable.

    As a path it would be the current folder, as a source the whole disk.
    """

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Refuse an empty text."""
        if not str(value).strip():
            self.fail("is empty; if it is a variable of the shell, set that", param, ctx)
        return super().convert(value, param, ctx)


# What cannot be read is refused where it is read, by name.
SOURCE = Given(readable=False)

_INFERENCE = (
    click.option("--registry", metavar="URL", help="Schema registry of a topic of Avro records."),
    click.option(
        "--subject", help="Registry subject of the topic's Avro schemas.  [default: TOPIC-value]"
    ),
    click.option(
        "--kind",
        type=click.Choice(["dimension", "events"]),
        help="Kind of a pipeline of change events.",
    ),
    click.option("--id", "id_", metavar="SQL", help="Event id: a field, or SQL."),
    click.option("--time", metavar="SQL", help="Event time: a field, or SQL."),
    click.option("--key", metavar="COLUMN", help="Key of the first gold table or the dimension."),
    duration_option("--window", help="Window size of the first gold table: '1 hour'."),
    duration_option("--delay", help="Watermark delay: '10 minutes'."),
    click.option(
        "--lines",
        type=click.IntRange(min=1),
        default=10_000,
        show_default=True,
        help="Maximum number of records to sample.",
    ),
    click.option("--yes", "-y", is_flag=True, help="Do not prompt; use what the sample suggests."),
)


def inferring(command: Command) -> Command:
    """Add the options that decide what is inferred from a sample."""
    return functools.reduce(lambda decorated, option: option(decorated), _INFERENCE[::-1], command)


@click.command()
@click.argument("name", required=False)
@click.option(
    "--source",
    type=SOURCE,
    metavar="PATH|s3://…|kafka://HOST:PORT/TOPIC",
    help="Files of JSON, CSV, Parquet, Avro; a Delta table; a topic.",
)
@click.option(
    "--sample",
    type=SOURCE,
    metavar="PATH|s3://…",
    help="Infer from these files, not the source.",
)
@path_option(
    "--to",
    "target",
    type=Given(path_type=Path),
    default=Path(),
    metavar="DIR",
    help="Write to this project, not to the current one.",
)
@inferring
@unwritten
@as_json
@placed
def init(
    name: str | None,
    sample: str | None,
    target: Path,
    yes: bool,
    dry_run: bool,
    where: Place,
    **choices: Any,
) -> None:
    """Create a pipeline, expectations and a test from a sample."""
    source = where.source
    interactive = not yes and not where.json and sys.stdin.isatty()
    if source is None and interactive:
        source = click.prompt("Source (folder, file, table, s3://… or kafka://…)", err=True)
    if source is None and sample is None:
        raise UsageError(
            f"No source was given: {where.typed('tidelake init NAME --source PATH')}, or "
            "--source kafka://HOST:PORT/TOPIC."
        )
    if interactive and name is None:
        suggested = name_from(source or sample or "")
        name = click.prompt("Name of the pipeline", default=suggested, err=True)
    root, conf = layout_of(target)
    is_unmarked, had_conf = lacks_marker(root, conf), os.path.lexists(conf)
    draft, written = create(
        name,
        source,
        sample,
        layout=(root, conf),
        environment=where.environment,
        interactive=interactive,
        dry_run=dry_run,
        **choices,
    )
    note = ""
    if is_unmarked and had_conf:
        # It would move the tables and sources of pipelines that commands in other folders run.
        note = (
            f"commands find {conf} from {root.resolve()} alone; to let them find it from the "
            f"folders below, write the line conf: conf to {root / MARKER}, from whose folder "
            "relative paths then count"
        )
    elif is_unmarked:
        written.append(str(root / MARKER))
        if not dry_run:
            marker = files("tidelake.cli") / "skeleton" / "files" / MARKER
            text = marker.read_text(encoding="utf-8").replace("\nconf: .\n", "\nconf: conf\n")
            (root / MARKER).write_text(text, encoding="utf-8")
    noted = {"notes": [*draft.notes, note]} if note else {}
    if where.printed(document_of(draft, written) | noted | {"dry_run": dry_run}):
        return
    show(draft, written, dry_run=dry_run)
    if note:
        say(f"Note: {note}")
    if not dry_run:
        _say_next(draft, root, where)


def create(
    name: str | None,
    source: str | None,
    sample: str | None,
    *,
    layout: tuple[Path, Path],
    environment: Environment,
    interactive: bool,
    lines: int,
    registry: str | None,
    subject: str | None,
    path: str | None = None,
    dry_run: bool = False,
    **choices: Any,
) -> tuple[Draft, list[str]]:
    """Infer a pipeline and write its files.

    Args:
        name: By default the name of the source.
        source: What the pipeline reads; by default the sample.
        sample: What to infer from; by default the source.
        layout: The root and the conf folder of the files.
        environment: To validate the definition in.
        interactive: Whether to ask for the choices that are None.
        lines: Maximum number of records to sample.
        registry: URL of the schemas of a topic.
        subject: Subject of the schemas.
        path: The path to write for files, instead of theirs.
        dry_run: Whether to write nothing.
        choices: As of :func:`draft_of`.

    Returns:
        The draft, and the paths of the files.
    """
    from tidelake.cli.init.draft import draft_of, files_for, source_in, write  # noqa: PLC0415
    from tidelake.cli.init.payload import payload_of  # noqa: PLC0415

    if choices["window"] == timedelta(0):
        raise UsageError("--window must be longer than 0")
    origin = source if source is not None else sample or ""
    name = name or name_from(origin)
    paths = files_for(*layout, name)
    topic = address_of(origin) if is_address(origin) else None
    sampled = _take_sample(topic, sample, origin, lines, registry, subject)
    place: str | Address = topic or path or source_in(layout[0], origin)
    payload = payload_of(sampled.values, sampled.types, sampled.changes)
    if interactive:
        choices = _prompt_for_choices(sampled, payload, choices, from_topic=topic is not None)
    draft = draft_of(name, place, sampled, payload, **choices)
    return draft, [str(file) for file in write(paths, draft, environment, dry_run=dry_run)]


def show(draft: Draft, written: Sequence[str], *, dry_run: bool = False) -> None:
    """Print the choices of a draft with their reasons, and the files."""
    table = draft.table
    rows = [
        ["event id", draft.id.sql, draft.id.why],
        ["event time", draft.time.sql, draft.time.why],
        ["watermark delay", as_text(draft.lateness.delay), draft.lateness.why],
    ]
    if table is not None:
        why = f"by {table.key or 'nothing'}: {table.why}"
        rows.append(["first gold table", logical_name("gold", table.name), why])
    else:
        keys = ", ".join(column.name for column in draft.key)
        rows.append(["dimension", logical_name("dim", draft.name), f"by {keys}: {draft.why}"])
    print_table(["what", "chosen", "why"], rows)
    for note in draft.notes:
        say(f"Note: {note}")
    show_files(written, dry_run=dry_run)


def show_files(written: Sequence[str], *, dry_run: bool) -> None:
    """Print the files that were written, or would be."""
    for path in written:
        say(f"{'Would write' if dry_run else 'Wrote'} {path}")
    if dry_run:
        say("Nothing was written.")


def _prompt_for_choices(
    sample: Sample, payload: Payload, choices: dict[str, Any], *, from_topic: bool
) -> dict[str, Any]:
    """Prompt for each choice without an option; repeat a prompt whose answer does not fit."""
    from tidelake.cli.init.draft import NO_KEY, draft_of, pipeline_kind  # noqa: PLC0415
    from tidelake.cli.init.guesses import event_ids, event_times  # noqa: PLC0415

    def draft(**answer: Any) -> Draft:
        return draft_of("new", "", sample, payload, **{**choices, **answer})

    def ask(option: str, question: str, default: str) -> None:
        def read(text: str) -> str | timedelta:
            try:
                answer = parse_duration(text) if option in ("window", "delay") else text
                # A dimension's draft needs its key, which is asked for next.
                _ = pipeline_kind(sample, text) if option == "kind" else draft(**{option: answer})
            except (UsageError, ValueError) as error:
                raise click.BadParameter(str(error)) from error
            return answer

        if choices[option] is None:
            choices[option] = click.prompt(question, default=default, value_proc=read, err=True)

    ids = event_ids(sample, payload)
    times = event_times(sample, payload, from_topic=from_topic)
    say(f"{len(sample.records):,} records, {len(payload.fields)} fields.")
    if sample.changes:
        ask("kind", "Change events: a dimension or events", pipeline_kind(sample, None))
    for what, candidates in (("id", ids), ("time", times)):
        for candidate in candidates[:_SHOWN]:
            say(f"  {what:<5} {candidate.sql}: {candidate.why}")
    if pipeline_kind(sample, choices["kind"]) == "dimension":
        ask("key", "Key of the dimension", ",".join(sample.key[0]))
    ask("id_", "Event id", ids[0].sql)
    ask("time", "Event time", times[0].sql)
    if table := draft().table:
        ask("key", "Key of the first gold table", table.key or NO_KEY)
        ask("window", "Window size of that table", as_text(table.size))
    late = draft().lateness
    ask("delay", f"Watermark delay ({late.why})", as_text(late.delay))
    return choices


def _take_sample(
    topic: Address | None,
    sample: str | None,
    origin: str,
    lines: int,
    registry: str | None,
    subject: str | None,
) -> Sample:
    from tidelake.cli.init.sample import Record, read_source, sample_of  # noqa: PLC0415

    if registry is not None and (topic is None or sample is not None):
        raise UsageError("--registry is for the records of a topic; Avro files have their schema.")
    if topic is None or sample is not None:
        return read_source(sample or origin, lines=lines)
    try:
        found = first_records(topic, count=lines)
    except (SourceError, MachineError) as error:
        # Also where the cluster requires a login: Kafka options exist only in a pipeline file.
        message = f"{error}\nOr pass a file of its records: --sample FILE."
        raise type(error)(message) from error
    records = (
        Record(
            f"{topic.topic} partition {one.partition} offset {one.offset}",
            str(one.partition),
            one.value,
            one.key,
        )
        for one in found
    )
    if not registry:
        return sample_of(records)
    from tidelake.cli.init.avro_topic import sample_avro  # noqa: PLC0415

    return sample_avro(records, Registry(url=registry, subject=subject or f"{topic.topic}-value"))


def _absolute(place: str | None) -> str | None:
    return place if place is None or "://" in place else os.path.abspath(expanded(place))


def plain_name(text: str) -> str:
    """Return a text in lower-case Latin letters and digits, anything else between them as ``_``."""
    return re.sub("[^a-z0-9]+", "_", text.lower()).strip("_")


def name_from(source: str) -> str:
    """Derive a pipeline's name from a topic or a path."""
    file_name = Path(source).resolve().name
    stem = address_of(source).topic if is_address(source) else file_name.split(".")[0]
    plain = plain_name(stem)[:60]
    return plain if plain[:1].isalpha() else f"p_{plain}".rstrip("_")


def document_of(draft: Draft, written: list[str]) -> dict[str, object]:
    """Return the choices of a draft, and the files, as JSON."""
    keys = [column.name for column in draft.key]
    filled: dict[str, object] = {"dimension": {"key": keys, "why": draft.why}}
    if (table := draft.table) is not None:
        filled = {"gold": {"name": table.name, "key": table.key, "why": table.why}}
    return {
        "pipeline": draft.name,
        "files": written,
        "records": len(draft.sample.records),
        "schema": {field.name: field.type.sql for field in draft.payload.fields},
        "id": {"sql": draft.id.sql, "why": draft.id.why},
        "time": {"sql": draft.time.sql, "why": draft.time.why},
        **filled,
        "delay": as_text(draft.lateness.delay),
        "allowed_lateness": as_text(draft.lateness.allowed),
        "notes": list(draft.notes),
    }


def _say_next(draft: Draft, target: Path, where: Place) -> None:
    from tidelake.ledger.statements import dialect_of  # noqa: PLC0415

    typed = where.typed
    first = [] if target.resolve() == Path.cwd() else [f"cd {shlex.quote(str(target))}"]
    if first:
        # What was given counts from the folder that is left.
        typed = replace(typed, root=_absolute(typed.root), conf=_absolute(typed.conf))
    test: list[str] = []
    if draft.examples:
        suffix = "csv" if draft.sample.csv else "jsonl"
        say(
            f"tests/{draft.name}.sample.{suffix} holds {len(draft.examples)} records of the sample."
        )
        install = [] if find_spec("pytest") else ["pip install pytest"]
        test = [*install, f"pytest tests/test_{draft.name}.py"]
    table, name = draft.table, logical_name("dim", draft.name)
    # SELECT * would include the system columns and not fit a screen.
    shown = [column.name for column in (*draft.key, *draft.columns)]
    if table is not None:
        name, keys = logical_name("gold", table.name), [table.key] if table.key else []
        shown = ["window_start", *keys, *(measure for measure, _, _ in table.measures)]
    dialect = dialect_of(where.environment.catalog)
    columns = in_sql([*dict.fromkeys(shown)][:_SHOWN_COLUMNS], dialect)
    query = f"SELECT {columns} FROM {name} LIMIT 10"
    # In single quotes, a shell keeps the quotes of a name.
    argument = shlex.quote(query) if {'"', "`"} & set(query) else f'"{query}"'
    commands = [
        *first,
        typed("tidelake run", draft.name),
        typed("tidelake sql", "", argument),
        typed("tidelake ledger", draft.name),
        typed("tidelake check", draft.name),
        *test,
    ]
    say_next(commands)
