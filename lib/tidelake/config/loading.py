"""Read a pipeline file and report everything wrong with it at once."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tidelake.config.checks import check, comment_findings, dimension_findings, prefilter_findings
from tidelake.config.document import Document, Finding, KeyPath, findings_of, read_document
from tidelake.config.environment import Environment
from tidelake.config.expectations import load_suite
from tidelake.config.names import SILVER_RESERVED
from tidelake.config.pipeline import Pipeline, selected_columns
from tidelake.config.places import SUFFIXES, conf_dir, find_file
from tidelake.config.source import address_of, source_findings
from tidelake.errors import UsageError

_REFERENCE = re.compile(r"\$\{([^}]*)\}")
_OF_THE_PAYLOAD = ("format", "registry", "schema")


def load_pipeline(
    name_or_path: str, environment: Environment, *, source: str | None = None
) -> Pipeline:
    """Read a pipeline and check it against its whole contract.

    Args:
        name_or_path: A name in the conf folder's ``pipelines``; or a path, told by a slash or by
            ending in ``.yml`` or ``.yaml``.
        environment: Its root, or its volume, stands for ``${root}``.
        source: Overrides ``source.path``; ``kafka://host:port/topic`` makes a topic the source.

    Returns:
        The pipeline. What this version cannot run yet is not refused here; see
        ``unbuilt_features``.

    Raises:
        UsageError: There is no such pipeline, its source has no path to override, or ``source``
            is no topic's address.
        ConfigError: The file breaks the contract; all violations at once.
    """
    is_path = "/" in name_or_path or name_or_path.endswith(SUFFIXES)
    file = Path(name_or_path) if is_path else find_file(name_or_path, "pipeline")
    document = read_document(file)
    findings = list(document.findings)
    if source is not None:
        _override(document, source)
    raw: dict[str, Any] = _interpolated(document.content, (), environment, findings)
    pipeline = None
    try:
        pipeline = Pipeline.model_validate(raw)
    except ValidationError as error:
        findings += findings_of(error, Pipeline, raw)
    findings += check(raw)
    findings += _combination_findings(raw)
    findings += source_findings(raw.get("source"), in_prod=environment.name == "prod")
    findings += _duplicate_tables(raw)
    dimensions: dict[str, Pipeline] = {}
    suite_file: Path | None = None
    avro: str | None = None
    if pipeline is not None:
        findings += comment_findings(pipeline)
        if not findings:
            findings += prefilter_findings(pipeline)
        if not findings:
            dimensions = _dimensions(pipeline, file, environment, findings)
        if pipeline.quality is not None:
            suite_file = _named_file(pipeline.quality.suite, ("quality", "suite"), file, findings)
        avro = _avro_schema(pipeline, file, findings)
    if findings or pipeline is None:
        raise document.error(findings)
    suite = None
    if suite_file is not None:
        gold = {table.name: table.columns for table in pipeline.aggregates}
        gold |= {one.name: one.shown for one in pipeline.detections}
        # Rules judge rows before dimensions are looked up.
        columns = (*SILVER_RESERVED, *selected_columns(pipeline.event))
        suite = load_suite(suite_file, columns=columns, gold=gold)
    return pipeline.completed(file=file, dimensions=dimensions, suite=suite, avro_schema=avro)


def _dimensions(
    pipeline: Pipeline, file: Path, environment: Environment, findings: list[Finding]
) -> dict[str, Pipeline]:
    """Read the definition of each dimension that a pipeline names, and hold ``enrich`` against it.

    Raises:
        ConfigError: A dimension's own file breaks its contract.
    """
    read: dict[str, Pipeline] = {}
    for index, enrich in enumerate(pipeline.enrich):
        name = enrich.dimension
        beside = [file.with_name(f"{name}{suffix}") for suffix in SUFFIXES]
        try:
            found = next((path for path in beside if path.is_file()), None)
            definition = load_pipeline(str(found or find_file(name, "pipeline")), environment)
        except UsageError as error:
            findings.append(Finding(("enrich", index, "dimension"), str(error)))
            continue
        findings += dimension_findings(enrich, definition, index)
        read[name] = definition
    return read


def _avro_schema(pipeline: Pipeline, file: Path, findings: list[Finding]) -> str | None:
    """Read the Avro schema that a source names."""
    name = getattr(pipeline.source, "schema_file", None)
    place = ("source", "schema")
    found = None if name is None else _named_file(name, place, file, findings)
    if found is None:
        return None
    try:
        text = found.read_text(encoding="utf-8")
        json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        findings.append(Finding(place, f"{found} holds no Avro schema: {error}"))
        return None
    return text


def _named_file(name: str, place: KeyPath, file: Path, findings: list[Finding]) -> Path | None:
    """Find a file beside the pipeline's folder, beside its file or in the conf folder."""
    places = [folder / name for folder in (file.parent.parent, file.parent, conf_dir())]
    for candidate in places:
        if candidate.is_file():
            return candidate
    findings.append(Finding(place, f"there is no file {name}; looked at {places[0]}"))
    return None


def _override(document: Document, path: str) -> None:
    """Put another place of the records into the raw source."""
    source = document.content.get("source")
    if not isinstance(source, dict):
        return
    kind = source.get("kind")
    if path.startswith("kafka://"):
        to = address_of(path)
        kept = {
            key: value
            for key, value in source.items()
            if (key not in ("topic", "pattern") if kind == "kafka" else key in _OF_THE_PAYLOAD)
        }
        ours = {"kind": "kafka", "bootstrap": to.bootstrap, "topic": to.topic}
        document.content["source"] = kept | ours
    elif kind == "kafka":
        kept = {key: value for key, value in source.items() if key == "format"}
        document.content["source"] = {**kept, "kind": "files", "path": path}
    elif kind == "rate":
        raise UsageError(
            f"{document.file}: --source replaces where records come from, and a source of kind "
            "rate makes its own"
        )
    else:
        source["path"] = path


def _interpolated(
    value: Any, path: KeyPath, environment: Environment, findings: list[Finding]
) -> Any:
    if isinstance(value, dict):
        return {k: _interpolated(v, (*path, k), environment, findings) for k, v in value.items()}
    if isinstance(value, list):
        return [_interpolated(v, (*path, i), environment, findings) for i, v in enumerate(value)]
    if not isinstance(value, str):
        return value

    def replace(match: re.Match[str]) -> str:
        if match[1] != "root":
            message = f"{match[0]} stands for nothing; only ${{root}} does"
        elif environment.files is None:
            message = (
                f"${{root}} stands for nothing in environment {environment.name}, whose tables lie "
                f"in catalog {environment.catalog}; give it a volume, or write the whole path"
            )
        else:
            return str(environment.files)
        findings.append(Finding(path, message))
        return match[0]

    return _REFERENCE.sub(replace, value)


def _combination_findings(raw: dict[str, Any]) -> Iterator[Finding]:
    """Find keys that are each right but do not go together."""
    event = raw.get("event")
    event = event if isinstance(event, dict) else {}
    kind = raw.get("kind", "events")
    if kind == "events":
        if not any(raw.get(part) for part in ("gold", "joins", "detections")):
            yield Finding(("gold",), "at least one gold table or join is required")
        if "dimension" in raw:
            yield Finding(("dimension",), "goes with kind: dimension only")
        for key in ("sequence", "delete_when"):
            if key in event:
                yield Finding(("event", key), "goes with kind: dimension only")
    elif kind == "dimension":
        if raw.get("dimension") is None:
            yield Finding(("dimension",), "required key is missing (kind: dimension)")
        if event.get("sequence") is None:
            yield Finding(("event", "sequence"), "required key is missing (kind: dimension)")
        for key in ("gold", "joins", "detections", "enrich"):
            if raw.get(key):
                yield Finding((key,), "goes with kind: events only")


def _duplicate_tables(raw: dict[str, Any]) -> Iterator[Finding]:
    first: dict[str, str] = {}
    for part, key in (
        ("gold", "name"),
        ("joins", "name"),
        ("detections", "name"),
        ("detections", "features"),
    ):
        items = raw.get(part)
        for index, item in enumerate(items if isinstance(items, list) else []):
            name = item.get(key) if isinstance(item, dict) else None
            if not isinstance(name, str):
                continue
            if name in first:
                yield Finding((part, index, key), f"{name} is the name of {first[name]} already")
            first.setdefault(name, f"{part}[{index}]")
