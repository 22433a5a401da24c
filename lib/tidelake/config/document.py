"""Read YAML with line numbers, and convert pydantic's validation errors to findings."""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from tidelake.config.model import Problems, suggestion
from tidelake.errors import ConfigError, UsageError, Violation

KeyPath = tuple[str | int, ...]

# Limits far above any file written by hand: aliases in 1 KB of YAML could fill the memory.
_MAX_CHARACTERS = 1 << 20
_MAX_LEVELS = 50
_MAX_DIGITS = 1000
_TEXT = "tag:yaml.org,2002:str"


@dataclass(frozen=True)
class Finding:
    """A problem at a path of keys."""

    path: KeyPath
    message: str


@dataclass
class Document:
    """A parsed file: its path, its mapping, and the line of each key and item, from 1.

    ``findings`` are problems of the YAML that do not stop the parser.
    """

    file: str
    content: dict[str, Any] = field(default_factory=dict)
    lines: dict[KeyPath, int] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    def error(self, findings: Iterable[Finding]) -> ConfigError:
        """Return one error with all findings, in the order of lines."""
        violations = [
            Violation(dotted(f.path), f.message, self.line(f.path)) for f in dict.fromkeys(findings)
        ]
        violations.sort(key=lambda violation: violation.line or 0)
        return ConfigError(self.file, violations)

    def line(self, path: KeyPath) -> int | None:
        """Return the line of a key, or of the nearest enclosing key in the file."""
        for length in range(len(path), -1, -1):
            if path[:length] in self.lines:
                return self.lines[path[:length]]
        return None


def dotted(path: KeyPath) -> str:
    """Format a path of keys: ``gold[1].measures.clicks``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text or "(whole file)"


class _TooLarge(yaml.MarkedYAMLError):
    """A node that makes the file too large or nested too deeply."""

    def __init__(self, message: str, node: yaml.Node | None) -> None:
        super().__init__(problem=message, problem_mark=node.start_mark if node else None)


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with limits, and with keys as text.

    YAML 1.1 reads an unquoted ``on:`` as true. :func:`_walk` reports it; here the key stays text,
    so that it causes no second finding. Aliases repeat whole nodes, so the size is counted with
    every alias expanded.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._level = 0
        self._expanded_size = 0
        self._sizes: dict[int, int] = {}

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self._level += 1
        if self._level > _MAX_LEVELS:
            raise _TooLarge(f"is nested more than {_MAX_LEVELS} levels deep", parent)
        before = self._expanded_size
        node = super().compose_node(parent, index)
        if id(node) in self._sizes:
            self._expanded_size += self._sizes[id(node)]
        else:
            text = node.value if isinstance(node, yaml.ScalarNode) else ""
            if len(text) > _MAX_DIGITS and node is not None and node.tag != _TEXT:
                # Parsing a long number in base 60 takes minutes.
                raise _TooLarge(f"contains a number of {len(text)} characters", parent)
            self._expanded_size += 1 + len(text)
            self._sizes[id(node)] = self._expanded_size - before
        if self._expanded_size > _MAX_CHARACTERS:
            raise _TooLarge("repeats more than 1 MiB of text by aliases (*name)", parent)
        self._level -= 1
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        self.flatten_mapping(node)
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                key.tag = _TEXT
        return super().construct_mapping(node, deep=deep)


def read_document(path: Path) -> Document:
    """Read a YAML file that contains a mapping; the caller reports the document's findings.

    Raises:
        UsageError: The file cannot be read.
        ConfigError: It is not YAML, not a mapping, empty, too large or nested too deeply.
    """
    document = Document(str(path))
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_CHARACTERS + 1)
        if len(content) > _MAX_CHARACTERS:
            raise document.error([Finding((), "is larger than 1 MiB")])
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise document.error([Finding((), f"is not UTF-8: {error.reason}")]) from error
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
    try:
        _parse(text, document)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        message = error.problem if isinstance(error, _TooLarge) else f"is not YAML: {error.problem}"
        violation = Violation("(whole file)", str(message), mark.line + 1 if mark else None)
        raise ConfigError(document.file, [violation]) from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        violation = Violation("(whole file)", f"is not YAML: {str(error).splitlines()[0]}")
        raise ConfigError(document.file, [violation]) from error
    return document


def _parse(text: str, document: Document) -> None:
    loader = _Loader(text)
    root = loader.get_single_node()
    if root is None:
        raise document.error([Finding((), "is empty")])
    if not isinstance(root, yaml.MappingNode):
        raise document.error([Finding((), "is not a mapping of keys to values")])
    document.lines[()] = root.start_mark.line + 1
    document.findings.extend(_walk(root, (), document.lines, ()))
    if any(finding.message.startswith("refers to itself") for finding in document.findings):
        raise document.error(document.findings)
    document.content = loader.construct_document(root)


def _walk(
    node: yaml.Node, path: KeyPath, lines: dict[KeyPath, int], ancestors: tuple[int, ...]
) -> Iterator[Finding]:
    if id(node) in ancestors:
        yield Finding(path, "refers to itself")
        return
    ancestors = (*ancestors, id(node))
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            lines[(*path, index)] = item.start_mark.line + 1
            yield from _walk(item, (*path, index), lines, ancestors)
    elif isinstance(node, yaml.MappingNode):
        seen: dict[str, int] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                lines.setdefault(path, key.start_mark.line + 1)
                yield Finding(path, "has a key that is not text")
                continue
            name = str(key.value)
            place = (*path, name)
            line = key.start_mark.line + 1
            if name in seen:
                yield Finding(place, f"appears twice (lines {seen[name]} and {line})")
            elif key.tag == "tag:yaml.org,2002:bool":
                message = f'YAML reads an unquoted {name} as true or false; write "{name}"'
                yield Finding(place, message)
            seen.setdefault(name, line)
            lines.setdefault(place, line)
            yield from _walk(value, place, lines, ancestors)


_MESSAGES = {
    "missing": "required key is missing",
    "string_type": "must be text; put it in quotes",
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "dict_type": "must be a mapping of keys to values",
    "model_type": "must be a mapping of keys to values",
    "model_attributes_type": "must be a mapping of keys to values",
    "tuple_type": "must be a list",
    "too_short": "needs at least one",
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "path_type": "must be the path of a folder",
}


def findings_of(error: ValidationError, model: type[BaseModel], raw: object) -> Iterator[Finding]:
    """Convert the error of validating ``raw`` as a ``model`` to findings."""
    for details in error.errors():
        kind, context = details["type"], details.get("ctx", {})
        path = _key_path(details["loc"], raw, is_missing=kind == "missing")
        cause = context.get("error")
        if isinstance(cause, Problems):
            yield from (Finding(path, problem) for problem in cause.problems)
        elif isinstance(cause, ValueError):
            yield Finding(path, str(cause))
        elif kind == "extra_forbidden":
            yield Finding(path, _unknown_key(details["loc"], model))
        elif kind in {"union_tag_invalid", "literal_error"}:
            path = (*path, "kind") if kind == "union_tag_invalid" else path
            yield Finding(path, _not_one_of(details))
        elif kind == "union_tag_not_found":
            yield Finding((*path, "kind"), "required key is missing")
        else:
            message = _MESSAGES.get(kind, details["msg"])
            yield Finding(path, message.format(**context) if kind in _MESSAGES else message)


def _key_path(loc: tuple[str | int, ...], raw: object, *, is_missing: bool) -> KeyPath:
    """Convert pydantic's location to a path of keys, without the tags of unions."""
    path: list[str | int] = []
    node = raw
    for position, part in enumerate(loc):
        if part == "[key]":
            break
        if isinstance(node, Mapping):
            # Measures are a mapping in the file and a tuple in the model.
            key = list(node)[part] if isinstance(part, int) and part < len(node) else part
            if key not in node and not (is_missing and position == len(loc) - 1):
                continue
            path.append(key)
            node = node.get(key)
        elif isinstance(node, list) and isinstance(part, int):
            path.append(part)
            node = node[part] if part < len(node) else None
        elif isinstance(part, int):
            path.append(part)
    return tuple(path)


def _not_one_of(details: ErrorDetails) -> str:
    context = details.get("ctx", {})
    if details["type"] == "union_tag_invalid":
        written, expected = str(context["tag"]), str(context["expected_tags"])
    else:
        written, expected = str(details["input"]), str(context["expected"]).replace(" or ", ",")
    known = [tag.strip(" '") for tag in expected.split(",")]
    return f"'{written}' is not one of: {', '.join(known)}{suggestion(written, known)}"


def _unknown_key(loc: tuple[str | int, ...], model: type[BaseModel]) -> str:
    owner = _model_at(model, loc[:-1])
    if owner is None:
        return "unknown key"
    known = [field.alias or name for name, field in owner.model_fields.items()]
    return f"unknown key{suggestion(str(loc[-1]), known)} (known: {', '.join(known)})"


def _model_at(annotation: Any, loc: tuple[str | int, ...]) -> type[BaseModel] | None:
    """Return the model at a location within an annotation; None if there is none."""
    origin = get_origin(annotation)
    inner = [arg for arg in get_args(annotation) if arg is not type(None)]
    is_union = origin in {Union, types.UnionType}
    if origin is Annotated or (is_union and len(inner) == 1):
        return _model_at(inner[0], loc)
    is_model = isinstance(annotation, type) and issubclass(annotation, BaseModel)
    if not loc:
        return annotation if is_model else None
    if is_model:
        fields = annotation.model_fields.items()
        inner = [field.annotation for name, field in fields if loc[0] in {name, field.alias}]
    elif is_union:
        inner = [member for member in inner if _tag(member) == loc[0]]
    elif origin is dict:
        inner = inner[1:]
    elif origin is not tuple:
        return None
    return _model_at(inner[0], loc[1:]) if inner else None


def _tag(member: Any) -> str | None:
    kind = getattr(member, "model_fields", {}).get("kind")
    return None if kind is None else str(get_args(kind.annotation)[0])
