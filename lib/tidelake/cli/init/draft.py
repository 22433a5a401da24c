"""Write a pipeline definition, suite and test from a sample and the user's options.

No existing file is changed except ``.gitignore``.
"""

from __future__ import annotations

import os
import tempfile
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment as Templates
from jinja2 import PackageLoader, StrictUndefined

from tidelake.cli.init import guesses
from tidelake.cli.init.guesses import DraftChoice
from tidelake.cli.init.payload import Column, Payload, column_named
from tidelake.cli.init.sample import Sample
from tidelake.config import CsvFormat, Environment, load_pipeline
from tidelake.config.canonical import canonical
from tidelake.config.expressions import expression_problems
from tidelake.config.json_schema import FileKind, schema_of
from tidelake.config.loading import Address
from tidelake.config.model import suggestion, written
from tidelake.config.source import CHANGE_COLUMNS
from tidelake.config.types import Field
from tidelake.errors import ConfigError, UsageError
from tidelake.folders import absolute
from tidelake.names import BRONZE_COLUMNS, DIMENSION_RESERVED, quoted, table_name

NO_KEY = "none"
_GIVEN = "as given"
_KINDS: tuple[FileKind, ...] = ("pipeline", "suite")
_SAMPLE_LINES = 20
_WIDTH = 96
# What is in the folder, and not the folder: a project keeps its example's input.
_IGNORED = ("/lakehouse/*", "/spark-warehouse/")
_FLAGS = {
    "event.id": "--id",
    "event.time": "--time",
    "gold[0].keys[0]": "--key",
    "dimension.key": "--key",
}


@dataclass(frozen=True)
class Draft:
    """A pipeline definition before it is written to files.

    ``columns`` are silver's columns except the event id and time; ``times`` are the event times of
    the sample. ``table`` is the first gold table of an events pipeline; a dimension has a ``key``
    instead, with the reason ``why``.
    """

    name: str
    source: str | Address
    sample: Sample
    payload: Payload
    columns: Sequence[Column]
    id: DraftChoice
    time: DraftChoice
    times: Sequence[datetime | None]
    lateness: guesses.Lateness
    table: guesses.FirstTable | None = None
    key: Sequence[Column] = ()
    why: str = ""

    @property
    def sequence(self) -> str:
        """What orders the changes of a row: their position in the database's log, or the time."""
        changes = self.sample.changes
        has_positions = all(change.source_position is not None for change in changes)
        return "source_position" if has_positions else "source_time"

    @property
    def examples(self) -> list[bytes]:
        """The first payloads that silver accepts: with a new id, not in the future, in one line."""
        return [self.sample.records[at].payload for at in self._chosen]

    @property
    def members(self) -> int:
        """How many rows of a dimension exist after the examples."""
        ordered = sorted((self._change(at) for at in self._chosen), key=lambda found: found[1])
        latest = {key: is_deleted for key, _, is_deleted in ordered}
        return sum(not is_deleted for is_deleted in latest.values())

    def _change(self, at: int) -> tuple[tuple[str, ...], Any, bool]:
        """Return a change's key, its place in the order of changes, and whether it is a delete."""
        change = self.sample.changes[at]
        key = tuple(str(column.values[at]) for column in self.key)
        return key, getattr(change, self.sequence), change.op == "d"

    def _is_sound(self, at: int, seen: set[Any]) -> bool:
        """Return whether a record's change is a row that is complete without the record's key."""
        changes = self.sample.changes
        if not changes:
            return True
        from tidelake.silver.envelope import unwrap  # noqa: PLC0415  pyarrow is slow to import

        again = unwrap(self.sample.records[at].payload)
        is_whole = not (again.refusal or again.unavailable)
        if not (is_whole and self.key):
            return is_whole
        # Of two changes at one place of the order, either may be the later one.
        place = self._change(at)[:2]
        is_new = place not in seen
        seen.add(place)
        has_key = all(column.values[at] is not None for column in self.key)
        return is_new and has_key and place[1] is not None

    @cached_property
    def _chosen(self) -> list[int]:
        ids = guesses.identities(self.id, len(self.times))
        seen: set[str | None] = {None}
        found: list[int] = []
        places: set[Any] = set()
        csv, values = self.sample.csv, self.sample.values
        if csv is not None and csv.encoding == "utf-16":
            # The test splits the sample at bytes of ASCII.
            return []
        arrived = zip(self.sample.records, ids, self.times, strict=True)
        for at, (record, event_id, instant) in enumerate(arrived):
            if len(found) == _SAMPLE_LINES:
                break
            is_new = event_id not in seen
            seen.add(event_id)
            timed = self.time.column is None or (instant and not guesses.in_future([instant]))
            # Of CSV, all examples have the columns of one header.
            fits = csv is None or tuple(values[at]) == tuple(values[0])
            one_line = len(record.payload.splitlines()) == 1
            if is_new and timed and fits and one_line and self._is_sound(at, places):
                found.append(at)
        return found

    @property
    def notes(self) -> Iterator[str]:
        """What the user should know about the sample and the definition."""
        yield from (*self.sample.notes, *self.payload.notes)
        for column in self.columns:
            yield from (f"{column.shown}: {note}" for note in column.notes)
        for column in self.columns:
            if column.name != column.shown.replace(".", "_"):
                yield f"{column.shown} is named {column.name} in silver"
        broken, sound = self.sample.broken, self.sample.records
        if broken:
            first, why = broken[0]
            refused = "not one JSON object"
            if self.sample.csv:
                refused = "not CSV of that kind"
            elif self.sample.changes:
                refused = "without a row"
            yield (
                f"{len(broken):,} of {len(broken) + len(sound):,} records will "
                f"be quarantined: {refused}; the first: {first.place}: {why}"
            )
        if self.sample.skipped:
            yield f"{self.sample.skipped:,} records have no row, such as tombstones; filtered"
        lateness, is_of_files = self.lateness, isinstance(self.source, str)
        is_of_files = is_of_files and self.sample.format != "delta"
        if is_of_files and lateness.delay > timedelta(days=1) and lateness.why != _GIVEN:
            yield (
                f"watermark.delay is {written(lateness.delay)}, because the events of these files "
                "are that far out of order, as after a copy of an archive. If only a first load is "
                "so, keep the delay small (--delay '10 minutes') and set "
                "watermark.allowed_lateness to the span of the history for that load, or run "
                "`tidelake late apply` after it"
            )
        if ahead := guesses.in_future(self.times):
            yield (
                f"{ahead:,} of {len(self.times):,} records are in the future by {self.time.sql}; "
                "those further ahead than watermark.max_future_skew will be quarantined"
            )


def draft_of(
    name: str,
    source: str | Address,
    sample: Sample,
    payload: Payload,
    *,
    kind: str | None = None,
    id_: str | None = None,
    time: str | None = None,
    key: str | None = None,
    window: timedelta | None = None,
    delay: timedelta | None = None,
) -> Draft:
    """Draft a pipeline from a sample.

    Options override what the sample suggests: ``id_`` and ``time`` are a field or SQL; ``key`` is
    a column for the first gold table, or ``none``; ``window`` is its window size. Change events of
    a table whose primary key is known become a dimension; ``key`` then names that key's columns.

    Raises:
        UsageError: An option names an unknown field, is not valid SQL, or does not fit the kind.
    """
    is_dimension = pipeline_kind(sample, kind) == "dimension"
    if is_dimension and window is not None:
        raise UsageError("--window is for events: a dimension has no gold table with a window.")
    chosen_id = _choice(id_, payload, guesses.event_ids(sample, payload), "--id")
    ranked = guesses.event_times(sample, payload, from_topic=isinstance(source, Address))
    chosen_time = _choice(time, payload, ranked, "--time")
    times = guesses.instants(chosen_time, len(sample.records))
    if sample.format == "delta":
        lateness = guesses.lateness_in_table(times, sample.records)
    else:
        lateness = guesses.lateness_of(times, [record.partition for record in sample.records])
    if delay is not None and delay != lateness.delay:
        lateness = replace(lateness, delay=delay, why=_GIVEN)
    columns = _columns(payload, chosen_id, chosen_time, is_dimension=is_dimension)
    draft = Draft(name, source, sample, payload, columns, chosen_id, chosen_time, times, lateness)
    if is_dimension:
        members, why = _member_key(key, sample, columns)
        return replace(draft, key=members, why=why)
    best = guesses.gold_key(columns, (chosen_id.column, chosen_time.column))
    if sample.changes:
        best = column_named("op", columns)
    chosen_key = best if key is None else _key(key, columns)
    # A sum or mean over the changes of a row counts the row more than once.
    measured = [] if sample.changes else columns
    table = guesses.first_table(name, measured, key=chosen_key, times=times, size=window)
    if chosen_key is not best:
        table = replace(table, why=_GIVEN)
    elif sample.changes:
        table = replace(table, why="the operation: create, update, delete, row of a snapshot")
    return replace(draft, table=table)


def pipeline_kind(sample: Sample, kind: str | None) -> str:
    """Return the kind of the pipeline, dimension or events: as given, or what the sample suggests.

    Raises:
        UsageError: It is neither, or a dimension of a sample that is not of change events.
    """
    if kind not in (None, "dimension", "events"):
        raise UsageError(f"'{kind}' is not a kind: write dimension or events")
    if kind == "dimension" and not sample.changes:
        raise UsageError(
            "--kind dimension needs change events in Debezium's envelope. For another changelog "
            "write the pipeline file by hand, with event.sequence and dimension.key."
        )
    return kind or ("dimension" if sample.key[0] else "events")


def _rows_own(columns: Sequence[Column]) -> list[Column]:
    """Return the columns that are not of the envelope."""
    return [column for column in columns if column.shown not in CHANGE_COLUMNS]


def _member_key(
    requested: str | None, sample: Sample, columns: Sequence[Column]
) -> tuple[list[Column], str]:
    names, why = sample.key
    if requested is not None:
        names, why = tuple(name for name in requested.split(",") if name.strip()), _GIVEN
    found = [_key(name, columns) for name in names]
    if not found or None in found:
        raise UsageError(
            "the primary key of the rows is needed for a dimension: --key COLUMN[,COLUMN…]"
        )
    return [column for column in found if column is not None], why


def _choice(
    requested: str | None, payload: Payload, ranked: Sequence[DraftChoice], option: str
) -> DraftChoice:
    """Return the requested choice, a field's name or SQL, or else the best ranked one."""
    if requested is None:
        return ranked[0]
    column = column_named(requested, payload.columns)
    for choice in ranked:
        if (choice.sql == requested) if column is None else (choice.column is column):
            return choice
    if column is not None:
        return DraftChoice(guesses.as_text(column), _GIVEN, column)
    known = [*(field.name for field in payload.fields), *BRONZE_COLUMNS]
    known += [column.name for column in payload.columns if column.shown in CHANGE_COLUMNS]
    problems = expression_problems(requested, known)
    if problems:
        raise UsageError(f"{option} '{requested}' {'; '.join(problems)}")
    return DraftChoice(requested, _GIVEN)


def _columns(
    payload: Payload, id_: DraftChoice, time: DraftChoice, *, is_dimension: bool
) -> list[Column]:
    """Return silver's columns, omitting fields that event_id or event_time already holds.

    A dimension has those of the row alone, none of them named like a column of its history.
    """
    reserved = {"event_id": id_.column, "event_time": time.column}
    reserved |= dict.fromkeys(DIMENSION_RESERVED if is_dimension else ())
    kept = []
    for column in _rows_own(payload.columns) if is_dimension else payload.columns:
        name = column.name.lower()
        if name not in reserved:
            kept.append(column)
        elif reserved[name] is not column:
            kept.append(replace(column, name=f"payload_{column.name}"))
    return kept


def _key(requested: str, columns: Sequence[Column]) -> Column | None:
    if requested.strip().lower() in (NO_KEY, ""):
        return None
    scalars = [column for column in columns if column.is_scalar]
    found = column_named(requested, scalars)
    if found is not None:
        return found
    names = [column.name for column in scalars]
    raise UsageError(
        f"--key '{requested}' is not a scalar column of silver{suggestion(requested, names)} "
        f"(known: {', '.join(names)}; {NO_KEY} for no key)"
    )


def files_for(root: Path, conf: Path, name: str) -> dict[str, Path]:
    """Return the paths of a new pipeline's files.

    Args:
        root: Folder of the project, for the test.
        conf: Folder of definitions.
        name: The pipeline's.

    Raises:
        UsageError: The name is invalid, the folder is a file, or one of the files exists.
    """
    try:
        table_name(name)
    except ValueError as error:
        raise UsageError(str(error)) from error
    if root.exists() and not root.is_dir():
        raise UsageError(f"--to {root} is a file, not a folder.")
    files = {
        "pipeline": conf / "pipelines" / f"{name}.yml",
        "suite": conf / "expectations" / f"{name}.yml",
        "test": root / "tests" / f"test_{name}.py",
        "sample": root / "tests" / f"{name}.sample.jsonl",
        "csv_sample": root / "tests" / f"{name}.sample.csv",
    }
    existing = [path for path in files.values() if path.exists()]
    if existing:
        raise UsageError(
            f"nothing was written: {', '.join(map(str, existing))} already "
            f"{'exists' if len(existing) == 1 else 'exist'}. Choose another NAME or another folder "
            "with --to."
        )
    return files


def source_in(folder: Path, source: str) -> str:
    """Return a source's path: relative if inside the folder, else absolute; URLs are kept."""
    path, base = absolute(source), Path(os.path.abspath(folder))
    inside = Path(path).is_relative_to(base)
    return str(Path(path).relative_to(base)) if inside else path


def write(
    files: dict[str, Path], draft: Draft, environment: Environment, *, dry_run: bool = False
) -> list[Path]:
    """Write the files, after validating the definition as every command does.

    Returns:
        The written files, including ``.gitignore`` if lines were added to it; with ``dry_run``
        those that would be written.

    Raises:
        UsageError: The definition is invalid because of an option; nothing was written.
    """
    content = _content(draft, os.path.relpath(files["pipeline"], files["test"].parents[1]))
    _refuse_invalid(draft.name, content, environment)
    # Keeps tables out of git. First, because nothing is written if it cannot be changed; as bytes,
    # because its encoding is the user's.
    ignore = files["test"].parents[1] / ".gitignore"
    existing = ignore.read_bytes() if ignore.exists() else b""
    missing = [line for line in _IGNORED if line.encode() not in existing.splitlines()]
    if missing and not dry_run:
        gap = "" if not existing or existing.endswith(b"\n") else "\n"
        ignore.parent.mkdir(parents=True, exist_ok=True)
        with ignore.open("ab") as stream:
            stream.write((gap + "\n".join(missing) + "\n").encode())
    for what, data in content.items() if not dry_run else ():
        files[what].parent.mkdir(parents=True, exist_ok=True)
        with files[what].open("xb") as stream:
            stream.write(data)
    return [*(files[what] for what in content), *([ignore] if missing else [])]


def _refuse_invalid(name: str, content: dict[str, bytes], environment: Environment) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        trial = files_for(Path(temporary), Path(temporary, "conf"), name)
        for what in ("pipeline", "suite"):
            trial[what].parent.mkdir(parents=True)
            trial[what].write_bytes(content[what])
        try:
            load_pipeline(str(trial["pipeline"]), environment)
        except ConfigError as error:
            problems = "\n".join(
                f"  - {_FLAGS.get(violation.path, violation.path)}: {violation.message}"
                for violation in error.violations
            )
            raise UsageError(
                f"nothing was written: the definition would be invalid:\n{problems}"
            ) from error


def _content(draft: Draft, pipeline: str) -> dict[str, bytes]:
    """Render the files; without examples no test is written.

    ``pipeline`` is the pipeline file's path from the folder above the test.
    """
    # No HTML autoescaping: the output is YAML and Python, which the filters quote.
    templates = Templates(
        loader=PackageLoader("tidelake.cli.init"),
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    filters = (_comment, _ddl, _flow, _scalar, written)
    templates.filters |= {function.__name__.removeprefix("_"): function for function in filters}
    topic = draft.source if isinstance(draft.source, Address) else None
    used = [choice.column.path for choice in (draft.id, draft.time) if choice.column]
    sample, key = draft.sample, [column.name for column in draft.key]
    rows = [column for column in draft.columns if column.path not in used]
    facts: Mapping[str, Any] = {
        "draft": draft,
        "path": Path(pipeline).parts,
        "topic": topic,
        "origin": f"the topic {topic.topic}" if topic else draft.source,
        "copies": draft.id.sql != "record_id",
        "key": key,
        "csv": _csv_keys(draft.sample.csv) if draft.sample.csv else None,
        "width": len(draft.sample.values[0]),
        "count": len(draft.examples),
        # The image of a deleted row may have nothing but its key.
        "rules": guesses.rules_of(_rows_own(rows), required=key)
        if sample.changes
        else guesses.rules_of(rows),
    }
    names = {"pipeline": "pipeline.yml.j2", "suite": "suite.yml.j2"}
    names |= {"test": "test.py.j2"} if draft.examples else {}
    texts = {what: templates.get_template(name).render(facts) for what, name in names.items()}
    texts |= {kind: canonical(texts[kind], schema_of(kind)) for kind in _KINDS}
    content = {what: text.encode() for what, text in texts.items()}
    if draft.examples:
        header = [draft.sample.header] if draft.sample.header is not None else []
        lines = b"".join(payload + b"\n" for payload in (*header, *draft.examples))
        if draft.sample.csv:
            lines = lines.decode().encode(draft.sample.csv.encoding)
        content["csv_sample" if draft.sample.csv else "sample"] = lines
    return content


def _csv_keys(layout: CsvFormat) -> dict[str, Any]:
    """Return the keys of ``source.csv`` that the template writes."""
    keys: dict[str, Any] = {"header": True}
    if layout.columns is not None:
        keys = {"columns": list(layout.columns)}
    keys["delimiter"] = layout.delimiter
    if layout.encoding != "utf-8":
        keys["encoding"] = layout.encoding
    return keys | ({"nulls": list(layout.nulls)} if layout.nulls else {})


def _comment(text: str, indent: int) -> str:
    lead, words = " " * indent + "# ", " ".join(text.split())
    lines = textwrap.wrap(words, _WIDTH - len(lead), break_on_hyphens=False)
    return "".join(f"{lead}{line}\n" for line in lines)


def _ddl(field: Field) -> str:
    plain = field.name.isidentifier() and field.name.isascii()
    return f"{field.name if plain else quoted(field.name)} {field.type.sql}"


def _scalar(value: str) -> str:
    text = str(yaml.safe_dump(value, width=10_000, allow_unicode=True))
    return text.removesuffix("\n...\n").strip()


def _flow(value: dict[str, Any], indent: int) -> str:
    """Write a mapping in braces, on several lines if it is too long; these become a block."""
    text = yaml.safe_dump(
        value, default_flow_style=True, sort_keys=False, width=_WIDTH - indent, allow_unicode=True
    )
    return str(text).rstrip("\n")
