"""Load and validate a pipeline file, and report all violations of the file at once.

Checks across several sections use the valid sections only, so that one invalid section does not
hide violations in others.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tidelake import names
from tidelake.config.document import Document, Finding, KeyPath
from tidelake.config.environment import Environment
from tidelake.config.expectations import Suite, load_suite
from tidelake.config.expressions import type_of
from tidelake.config.gold_definitions import Join
from tidelake.config.locations import base_of, conf_dir, find_file, is_found_by_name
from tidelake.config.model import url_of
from tidelake.config.pipeline import (
    Enrich,
    Pipeline,
    PipelineFile,
    Quality,
    completed_changes,
    payload_types,
    silver_types,
)
from tidelake.config.queries import Query
from tidelake.config.sections import (
    combination_findings,
    envelope_of,
    name_findings,
    prefilter_findings,
    section_findings,
    settings_findings,
    side_findings,
    validated_section,
)
from tidelake.config.sharing import (
    REFERENCE,
    SUFFIXES,
    Parameters,
    defined_tables,
    duplicate_tables,
    find_definition,
    read_definition,
    refuse_second,
    replaced,
    table_names,
)
from tidelake.config.source import source_findings
from tidelake.config.table_settings import publish_findings
from tidelake.config.types import incomparable, is_comparable, unstorable_names
from tidelake.errors import ConfigError, UsageError, Violation
from tidelake.folders import absolute, counted_from, problem_of
from tidelake.names import quoted

# The keys of a source that describe its payloads, whatever it is read from.
_PAYLOAD_KEYS = ("format", "envelope", "registry", "schema")
# A folder that is yet to be made may have a brace in its name.
_PATTERN = re.compile(r"[*?]|\{[^}]*,")
# Types of different groups have no common one, to which Spark would cast both sides of a lookup.
_GROUPS = {
    **dict.fromkeys(("TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE"), "number"),
    **dict.fromkeys(("DATE", "TIMESTAMP", "TIMESTAMP_NTZ"), "time"),
    **{"DECIMAL": "number", "BOOLEAN": "truth", "BINARY": "bytes"},
}


@dataclass(frozen=True)
class Address:
    """A topic and its broker, written ``kafka://host:port/topic``."""

    bootstrap: str
    topic: str


def is_address(text: str) -> bool:
    """Return whether text is the address of a topic rather than a path."""
    return text.startswith("kafka://")


def address_of(text: str) -> Address:
    """Parse ``kafka://host:port/topic``, or raise a UsageError."""
    parts = url_of(text)
    topic = parts.path.strip("/")
    if parts.scheme != "kafka" or not parts.netloc or not topic or "/" in topic or parts.query:
        raise UsageError(f"{text} is not the address of a topic: write kafka://HOST:PORT/TOPIC")
    return Address(parts.netloc, topic)


def override_source(document: Document, path: str) -> None:
    """Override the source of a pipeline file with a path or a topic.

    Raises:
        UsageError: The source generates its own records.
    """
    source = document.content.get("source")
    if not isinstance(source, dict):
        return
    kind = source.get("kind")
    if is_address(path):
        to = address_of(path)
        keys = source.keys() - {"topic", "pattern"} if kind == "kafka" else _PAYLOAD_KEYS
        kept = {key: value for key, value in source.items() if key in keys}
        topic_source = {"kind": "kafka", "bootstrap": to.bootstrap, "topic": to.topic}
        document.content["source"] = kept | topic_source
    elif kind == "kafka":
        kept = {key: source[key] for key in ("format", "envelope") if key in source}
        document.content["source"] = {**kept, "kind": "files", "path": path}
    elif kind == "rate":
        raise UsageError(
            f"{document.file}: --source cannot replace a source of kind rate, which generates its "
            "own records"
        )
    else:
        source.pop("table", None)
        source["path"] = path
        # Files are deleted only where the pipeline file itself says so.
        for key in ("clean_source", "archive_dir"):
            source.pop(key, None)


def load_pipeline(
    name_or_path: str,
    environment: Environment,
    *,
    source: str | None = None,
    follows_dimensions: bool = True,
) -> Pipeline:
    """Load and validate a pipeline; features that are not built yet are accepted here.

    Args:
        name_or_path: A name in the conf folder's ``pipelines``, or a path, recognized by a slash or
            the suffix ``.yml`` or ``.yaml``.
        environment: Its root or volume replaces ``${root}``, its landing folder ``${landing}``.
        source: Overrides ``source.path``; ``kafka://host:port/topic`` replaces the source by a
            Kafka topic.
        follows_dimensions: Whether the definitions to which ``enrich`` and ``joins`` refer are
            loaded, and what these read of them is checked.

    Raises:
        UsageError: There is no such pipeline, or ``source`` cannot replace its source.
        ConfigError: The file is invalid; lists all violations. What it says about dimensions and
            the names in its suite is checked once the types of all its keys are right.
    """
    is_path = "/" in name_or_path or name_or_path.endswith(SUFFIXES)
    file = Path(name_or_path) if is_path else find_file(name_or_path, "pipeline")
    document, parameters = read_definition(file, None if is_path else name_or_path)
    findings = document.findings
    if source is not None:
        override_source(document, source)
    raw: dict[str, Any] = _interpolated(document.content, (), environment, parameters, findings)
    _base_paths(raw.get("source"), base_of(file) if source is None else None)
    if source is None:
        written = document.content.get("source")
        findings += _pattern_findings(written, raw.get("source"), parameters)
    if envelope_of(raw) is not None and isinstance(raw.get("event"), dict):
        raw["event"] = completed_changes(raw["event"], is_dimension=raw.get("kind") == "dimension")
    if isinstance(raw.get("name"), str) and is_found_by_name(file):
        tables = {name for _, name in table_names(raw)}
        refuse_second(raw["name"], Path(document.file), tables)
        if not parameters and raw["name"] != Path(document.file).stem:
            findings.append(Finding(("name",), _not_the_files(raw["name"], document.file)))
    pipeline = document.validated(PipelineFile, raw)
    findings += [*section_findings(raw), *combination_findings(raw), *duplicate_tables(raw)]
    findings += source_findings(raw.get("source"), in_prod=environment.name == "prod")
    findings += publish_findings(raw, in_prod=environment.name == "prod")
    dimensions: dict[str, Pipeline] = {}
    suite = avro = None
    of_suite: list[Violation] = []
    if pipeline is not None:
        findings += [*settings_findings(pipeline, environment), *prefilter_findings(pipeline)]
        findings += _type_findings(pipeline)
        if follows_dimensions:
            dimensions = _dimensions(pipeline, file, environment, findings)
            _check_joins(pipeline, file, environment, findings)
        avro = _avro_schema(pipeline, file, findings)
    try:
        suite = _suite(raw, pipeline, file, findings)
    except ConfigError as error:
        of_suite = [replace(one, file=one.file or error.file) for one in error.violations]
    if findings or of_suite or pipeline is None:
        raise document.error(findings, of_suite)
    links = {"file": document.file, "dimensions": dimensions, "suite": suite, "avro_schema": avro}
    return Pipeline.model_validate({**dict(pipeline), **links})


def _not_the_files(name: str, file: str) -> str:
    """Describe a pipeline's name by which commands and lookups do not find its file."""
    return (
        f"{name} is not the file's name, {Path(file).stem}; rename the file to "
        f"{name}{Path(file).suffix}, since the pipeline's tables have the name {name}"
    )


def _dimensions(
    pipeline: PipelineFile, file: Path, environment: Environment, findings: list[Finding]
) -> dict[str, Pipeline]:
    """Load the definition of each dimension, and check ``enrich`` against it."""
    read: dict[str, Pipeline] = {}
    for index, enrich in enumerate(pipeline.enrich):
        try:
            definition = _definition(enrich.dimension, file, environment)
        except UsageError as error:
            findings.append(Finding(("enrich", index, "dimension"), str(error)))
            continue
        named = {one.path for one in findings}
        looked = [*_lookup_findings(pipeline, enrich, definition, index)]
        findings += [one for one in looked if one.path not in named]
        read[definition.name] = definition
    return read


def _check_joins(
    pipeline: PipelineFile, file: Path, environment: Environment, findings: list[Finding]
) -> None:
    """Check the right side of each join with another pipeline against that one's definition."""
    for index, join in enumerate(pipeline.joins):
        if join.right.pipeline == pipeline.name:
            continue
        try:
            other = _definition(join.right.pipeline, file, environment)
        except UsageError as error:
            # A file outside of the folder of pipelines may be alone, without the other's.
            place = ("joins", index, "right", "pipeline")
            if isinstance(error, ConfigError):
                # A join reads silver's columns alone. These depend neither on the suite or another
                # file, nor on where rows come from and how they are judged.
                if not all(
                    one.file not in (None, error.file)
                    or one.path.partition(".")[0] in ("source", "quality")
                    for one in error.violations
                ):
                    findings.append(Finding(place, str(error)))
            elif is_found_by_name(file):
                beside = "; a join needs that pipeline's file beside this one or in the conf folder"
                findings.append(Finding(place, f"{error}{beside}"))
            continue
        named = {one.path for one in findings}
        looked = [*_right_findings(pipeline, join, other, index)]
        findings += [one for one in looked if one.path not in named]


def _definition(name: str, file: Path, environment: Environment) -> Pipeline:
    """Load another pipeline's definition, from the folder of a file or else the conf folder.

    Raises a UsageError if there is none, or if it is invalid.
    """
    found = find_definition(name, file.parent)
    sibling = None if found is None else str(file.with_name(f"{name}{found.suffix}"))
    # What it refers to is checked by its own load, and following it could lead back to this file.
    # A dimension enriches from none.
    definition = load_pipeline(sibling or name, environment, follows_dimensions=False)
    if definition.name != name:
        # No pipeline would fill the table that is read.
        message = _not_the_files(definition.name, definition.file)
        raise UsageError(f"{definition.file}: {message}")
    return definition


def _lookup_findings(
    pipeline: PipelineFile, enrich: Enrich, dimension: Pipeline, index: int
) -> Iterator[Finding]:
    """Check an entry of ``enrich`` against the definition of its dimension."""
    path: KeyPath = ("enrich", index)
    spec = dimension.dimension
    if spec is None:
        message = f"{dimension.name} is a pipeline of kind events; name one of kind dimension"
        yield Finding((*path, "dimension"), message)
        return
    if sorted(enrich.on.values()) != sorted(spec.key):
        message = f"must name every key column of {dimension.name}: {', '.join(spec.key)}"
        yield Finding((*path, "on"), message)
    known = tuple(column for column in dimension.silver_columns if not column.startswith("_"))
    yield from name_findings((*path, "columns"), enrich.columns, known)
    if enrich.as_of is not None and not spec.history:
        yield Finding((*path, "as_of"), f"needs dimension.history: true in {dimension.name}")
    for column, key in enrich.on.items():
        if problem := _type_problem(pipeline, column, dimension, key):
            yield Finding((*path, "on", column), problem)


def _right_findings(
    pipeline: PipelineFile, join: Join, other: Pipeline, index: int
) -> Iterator[Finding]:
    """Check the right side of a join against the silver of its pipeline."""
    path: KeyPath = ("joins", index)
    plain = other.model_copy(update={"enrich": ()})
    known = dict.fromkeys(other.defined_columns) | silver_types(plain)
    yield from side_findings(join.right, (*path, "right"), known)
    for at, column in enumerate(join.on):
        place = (*path, "on", at)
        if column not in known:
            message = (
                f"{other.name} has no column {column}, and on names columns of both sides; rename "
                "one in event.select"
            )
            yield Finding(place, message)
        elif problem := _type_problem(pipeline, column, other, column):
            yield Finding(place, problem)


def _type_problem(pipeline: PipelineFile, column: str, other: Pipeline, key: str) -> str:
    """Return why Spark cannot compare a column with another pipeline's; "" if it can, or may."""
    own, theirs = _own_type(pipeline, column), _own_type(other, key)
    # Texts and nested types are in no group.
    groups = {_GROUPS.get((kind or "").partition("(")[0]) for kind in (own, theirs)} - {None}
    if len(groups) < 2:
        return ""
    return f"{column} is {own}, {other.name}'s {key} is {theirs}; cast one of them"


def _own_type(pipeline: PipelineFile, column: str) -> str | None:
    """Infer the type of a column of the event; None where only Spark can, and for other columns."""
    if column in pipeline.transformed:
        return pipeline.transformed[column]
    sql = pipeline.selected.get(column)
    return type_of(sql, payload_types(pipeline.event, pipeline.envelope)) if sql else None


def _suite(
    raw: Mapping[str, Any], pipeline: PipelineFile | None, file: Path, findings: list[Finding]
) -> Suite | None:
    """Load a pipeline's suite; None as pipeline means that the names in it are not checked."""
    quality = validated_section(Quality, raw.get("quality"))
    place = ("quality", "suite")
    name = None if quality is None else quality.suite
    found = None if name is None else _named_file(name, place, file, findings)
    if found is None:
        return None
    if pipeline is None:
        return load_suite(found, columns=None, gold=None)
    gold = {table.name: table.columns for table in pipeline.aggregates}
    gold |= {join.name: join.columns for join in pipeline.joins}
    gold |= {detection.name: detection.shown for detection in pipeline.detections}
    gold |= {query.name: query.columns for query in pipeline.queries}

    def of_others() -> set[str]:
        folders = {file.parent, conf_dir() / "pipelines"}
        return set().union(*map(defined_tables, folders))

    # Rules are evaluated before dimensions are joined.
    columns = (*names.SILVER_RESERVED, *pipeline.silver_columns)
    return load_suite(found, columns=columns, gold=gold, of_others=of_others)


def _type_findings(pipeline: PipelineFile) -> Iterator[Finding]:
    """Find keys that no MERGE can compare, and fields whose nested names Delta refuses."""
    keys: dict[KeyPath, tuple[str, ...]] = {}
    if pipeline.dimension is not None:
        keys["dimension", "key"] = pipeline.dimension.key
    for path, table in pipeline.tables.items():
        if not isinstance(table, Query):
            name = "on" if isinstance(table, Join) else "keys"
            keys[*path, name] = getattr(table, name)
    for path, columns in keys.items():
        for at, column in enumerate(columns):
            kind = _own_type(pipeline, column)
            if kind is not None and not is_comparable(kind):
                yield Finding((*path, at), f"{column} {incomparable(kind)}")
    fields = {quoted(field.name): field for field in pipeline.event.fields}
    fields |= {field.name: field for field in pipeline.event.fields}
    for column, sql in pipeline.selected.items():
        field = fields.get(sql.strip())
        odd = None if field is None else next(unstorable_names(field.type), None)
        if odd is not None:
            place = ("event", "select", column) if pipeline.event.select else ("event", "schema")
            message = (
                f"{column} has the nested field '{odd}', and no Delta table stores a name "
                "with one of ' ,;{}()=', a tab or a line feed; select its values by expressions"
            )
            yield Finding(place, message)


def _avro_schema(pipeline: PipelineFile, file: Path, findings: list[Finding]) -> str | None:
    name = getattr(pipeline.source, "schema_file", None)
    place = ("source", "schema")
    found = None if name is None else _named_file(name, place, file, findings)
    if found is None:
        return None
    try:
        text = found.read_text(encoding="utf-8")
        json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        findings.append(Finding(place, f"{found} is not an Avro schema: {error}"))
        return None
    return text


def _named_file(name: str, place: KeyPath, file: Path, findings: list[Finding]) -> Path | None:
    """Find a file in the parent of the pipelines folder, in that folder, or in the conf folder."""
    # The parent of "." would be "." again.
    pipelines = Path(os.path.abspath(file)).parent
    places = [folder / name for folder in (pipelines.parent, pipelines, conf_dir())]
    for candidate in places:
        # Unlike Path.is_file(), false for a name that is too long.
        if os.path.isfile(candidate):
            return candidate
    findings.append(Finding(place, f"there is no file {name}; expected at {places[0]}"))
    return None


def _interpolated(
    value: Any,
    path: KeyPath,
    environment: Environment,
    parameters: Parameters,
    findings: list[Finding],
) -> Any:
    def inner(key: str | int, value: Any) -> Any:
        return _interpolated(value, (*path, key), environment, parameters, findings)

    if isinstance(value, dict):
        return {key: inner(key, item) for key, item in value.items()}
    if isinstance(value, list):
        return [inner(index, item) for index, item in enumerate(value)]
    if not isinstance(value, str):
        return value
    value = replaced(value, path, parameters, findings)

    def replace(match: re.Match[str]) -> str:
        if match[1] == "landing":
            return environment.landing_folder
        if match[1] != "root":
            known = ", ".join(f"${{{name}}}" for name in ("root", "landing", *parameters))
            message = f"{match[0]} is not a known variable; only {known} are"
        elif environment.files is None:
            message = (
                f"${{root}} has no value in environment {environment.name}, whose tables are in "
                f"catalog {environment.catalog}; set its volume, or write the whole path"
            )
        else:
            return str(environment.files)
        findings.append(Finding(path, message))
        return match[0]

    return REFERENCE.sub(replace, value)


def _pattern_findings(written: Any, source: Any, parameters: Parameters) -> Iterator[Finding]:
    """Find a path of files that is a pattern as it is written, unless something has this name.

    The project's root and the landing folder may have any name. A pattern on a store or in a list
    of several paths is another problem.
    """
    if not isinstance(source, dict) or source.get("kind") != "files":
        return
    text, path = _only(written.get("path")), _only(source.get("path"))
    # A reference that is left has no value, which is another problem too.
    if not isinstance(path, str) or "${" in path or problem_of(path, in_catalog=True):
        return
    is_pattern = _PATTERN.search(replaced(text, (), parameters, []))
    if is_pattern and not os.path.exists(absolute(path)):
        message = f"{path}: patterns are not expanded; name the folder, it is read whole"
        yield Finding(("source", "path"), message)


def _only(paths: Any) -> Any:
    """Return the path of a list of one."""
    return paths[0] if isinstance(paths, list) and len(paths) == 1 else paths


def _base_paths(source: object, base: Path | None) -> None:
    """Let the relative paths of a source count from ``base``, in place; not if that is None."""
    if not isinstance(source, dict) or source.get("kind") not in ("files", "delta"):
        return
    for key in ("path", "archive_dir"):
        value = source.get(key)
        if isinstance(value, str):
            source[key] = counted_from(base, value)
        elif isinstance(value, list):
            source[key] = [counted_from(base, x) if isinstance(x, str) else x for x in value]
