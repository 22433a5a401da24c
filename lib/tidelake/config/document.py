"""Read YAML with line numbers, and convert pydantic's validation errors to findings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError

from tidelake.config.model import Problems, suggestion
from tidelake.errors import ConfigError, UsageError, Violation

KeyPath = tuple[str | int, ...]
_M = TypeVar("_M", bound=BaseModel)

# Limits far above any file written by hand: aliases in 1 KB of YAML could fill the memory.
_MAX_CHARACTERS = 1 << 20
_MAX_LEVELS = 50
_MAX_DIGITS = 1000
_YAML = "tag:yaml.org,2002:"
_TEXT, _NULL = f"{_YAML}str", f"{_YAML}null"
# What YAML makes of an unquoted text.
_CONVERTED = {f"{_YAML}{kind}": kind for kind in ("int", "float", "bool", "timestamp")}
# Sections of texts that are shown to people, also those that YAML reads as numbers.
_OF_TEXTS = frozenset(["tags", "properties"])
_NOT_YAML = (yaml.YAMLError, RecursionError, ValueError, IndexError)
# A number in base 8 or 60.
_OTHER_NUMBER = re.compile(r"[-+]?0[0-9]|.*:")
_REFERS_TO_ITSELF = "refers to itself"
_HALF = r"contains half of a character, such as \ud83d; write the character itself"


@dataclass(frozen=True)
class Finding:
    """A problem at a path of keys; beside one that ``is_cause`` no others of the path are told."""

    path: KeyPath
    message: str
    is_cause: bool = False


@dataclass
class Document:
    """A parsed file: its path, its mapping, and the line of each key and item, from 1.

    ``files`` has the keys and items that come from another file: a folder's defaults.
    ``findings`` are the problems found so far; after reading, those that do not stop the parser.
    """

    file: str
    content: dict[str, Any] = field(default_factory=dict)
    lines: dict[KeyPath, int] = field(default_factory=dict)
    files: dict[KeyPath, str] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    def validated(self, model: type[_M], raw: object) -> _M | None:
        """Validate ``raw`` as a ``model``; if it is invalid, add to the findings, return None."""
        try:
            return model.model_validate(raw)
        except ValidationError as error:
            self.findings += findings_of(error, model, raw)
            return None

    def error(
        self, findings: Iterable[Finding], of_others: Iterable[Violation] = ()
    ) -> ConfigError:
        """Return one error with all findings, and those of other files, in the order of lines."""
        found = dict.fromkeys(findings)
        causes = {one.path for one in found if one.is_cause}
        told = [one for one in found if one.is_cause or one.path not in causes]
        violations = [self._violation(finding) for finding in told]
        violations += of_others
        return ConfigError(
            self.file, sorted(violations, key=lambda one: (one.file or "", one.line or 0))
        )

    def _violation(self, finding: Finding) -> Violation:
        """Add the line and the file of the key, or of the nearest enclosing key in the file."""
        path = finding.path
        enclosing = (path[:length] for length in range(len(path), -1, -1))
        nearest = next((part for part in enclosing if part in self.lines), ())
        line, file = self.lines.get(nearest), self.files.get(nearest)
        return Violation(dotted(path), finding.message, line, file)


def mappings_in(items: object, path: KeyPath) -> Iterator[tuple[KeyPath, dict[str, Any]]]:
    """Yield the mappings in a list of a file, each with its path; the model reports other items."""
    for index, item in enumerate(items if isinstance(items, list) else []):
        if isinstance(item, dict):
            yield (*path, index), item


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


def read_document(path: Path, *, may_be_empty: bool = False) -> Document:
    """Read a YAML file that contains a mapping; the caller reports the document's findings.

    With ``may_be_empty``, a file without content or with comments only is an empty mapping.

    Raises:
        UsageError: The file cannot be read.
        ConfigError: It is not YAML, not a mapping, empty, too large or nested too deeply.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_CHARACTERS + 1)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
    parsed = _parsed(str(path), content, may_be_empty)
    # The caller may change its document.
    return replace(
        parsed,
        content=deepcopy(parsed.content),
        lines=dict(parsed.lines),
        files={},
        findings=list(parsed.findings),
    )


def quick_content(content: bytes) -> Any:
    """Return what YAML contains; None if only :func:`read_document` can tell, by libyaml's scanner.

    It takes a sixth of the time, but accepts some text that PyYAML's does not, such as a tab
    between words, and the other way round.
    """
    if len(content) > _MAX_CHARACTERS:
        return None
    try:
        text = content.decode("utf-8")
        loader, events = _Loader(text), getattr(yaml, "CBaseLoader", yaml.BaseLoader)(text)
        for name in ("check_event", "peek_event", "get_event"):
            setattr(loader, name, getattr(events, name))
        return loader.get_single_data()
    except _NOT_YAML:
        return None


@lru_cache(maxsize=128)
def _parsed(path: str, content: bytes, may_be_empty: bool) -> Document:
    """Parse a file once, as long as its content is the same: it takes 20 ms per 100 lines."""
    document = Document(path)
    if len(content) > _MAX_CHARACTERS:
        raise document.error([Finding((), "is larger than 1 MiB")])
    try:
        loader = _Loader(content.decode("utf-8"))
        root = loader.get_single_node()
        if may_be_empty and (root is None or root.tag == _NULL):
            return document
        if not isinstance(root, yaml.MappingNode):
            message = "is not a mapping of keys to values" if root else "is empty"
            raise document.error([Finding((), message)])
        document.lines[()] = root.start_mark.line + 1
        document.findings.extend(_walk(root, (), document.lines, ()))
        if any(finding.message == _REFERS_TO_ITSELF for finding in document.findings):
            raise document.error(document.findings)
        document.content = loader.construct_document(root)
    except UnicodeDecodeError as error:
        raise document.error([Finding((), f"is not UTF-8: {error.reason}")]) from error
    except _NOT_YAML as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        message = problem if isinstance(error, _TooLarge) else f"is not YAML: {problem}"
        message += "; write blanks, not tabs" if r"'\t'" in problem else ""
        document.lines = {(): mark.line + 1} if mark else {}
        raise document.error([Finding((), message)]) from error
    return document


def _walk(
    node: yaml.Node, path: KeyPath, lines: dict[KeyPath, int], ancestors: tuple[int, ...]
) -> Iterator[Finding]:
    if id(node) in ancestors:
        yield Finding(path, _REFERS_TO_ITSELF)
        return
    ancestors = (*ancestors, id(node))
    if isinstance(node, yaml.ScalarNode):
        yield from _scalar_findings(node, path)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            lines[(*path, index)] = item.start_mark.line + 1
            yield from _walk(item, (*path, index), lines, ancestors)
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                lines.setdefault(path, key.start_mark.line + 1)
                yield Finding(path, "has a key that is not text")
                continue
            name = _encoded(str(key.value))
            place = (*path, name)
            line = key.start_mark.line + 1
            if place in lines:
                yield Finding(place, f"appears twice (lines {lines[place]} and {line})")
            elif key.tag == "tag:yaml.org,2002:bool":
                message = f'YAML reads an unquoted {name} as true or false; write "{name}"'
                yield Finding(place, message)
            lines.setdefault(place, line)
            if name != key.value:
                yield Finding(place, _HALF)
                key.value = name
            yield from _walk(value, place, lines, ancestors)


def _encoded(text: str) -> str:
    """Return a text with the halves of characters as escapes, which can be sent to Spark."""
    return text.encode(errors="backslashreplace").decode()


def _scalar_findings(node: yaml.ScalarNode, path: KeyPath) -> Iterator[Finding]:
    """Find texts that cannot be encoded, and unquoted ones that YAML 1.1 changes silently."""
    text, kind = _encoded(node.value), _CONVERTED.get(node.tag)
    if text != node.value:
        yield Finding(path, _HALF)
        node.value = text
    if kind is None or node.style is not None:
        return
    try:
        value = yaml.constructor.SafeConstructor().construct_object(node)
    except (ValueError, OverflowError) as error:
        yield Finding(path, f"YAML reads {text} as a {kind}: {error}; put it in quotes")
        # The rest of the file can be checked.
        node.tag = _TEXT
        return
    shown = str(value).lower() if kind == "bool" else str(value)
    is_changed = shown != (text.lower() if kind == "bool" else text)
    if kind in ("int", "float") and _OTHER_NUMBER.match(text):
        yield Finding(path, f"YAML reads {text} as {shown}; write {shown}, or put it in quotes")
    elif kind != "timestamp" and is_changed and not _OF_TEXTS.isdisjoint(path):
        yield Finding(path, f"YAML reads {text} as {shown}; put it in quotes")


_MESSAGES = {
    **dict.fromkeys(("missing", "union_tag_not_found"), "required key is missing"),
    "string_type": "must be text; put it in quotes",
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "must be a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "must be a number"),
    **dict.fromkeys(("decimal_type", "decimal_parsing"), "must be a number"),
    "finite_number": "must be a finite number",
    "decimal_max_digits": "must have at most {max_digits} digits",
    "decimal_max_places": "must have at most {decimal_places} decimal places",
    **dict.fromkeys(("bool_type", "bool_parsing"), "must be true or false"),
    **dict.fromkeys(
        ("dict_type", "model_type", "model_attributes_type"), "must be a mapping of keys to values"
    ),
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
        if kind.startswith("union_tag"):
            path = (*path, "kind")
        cause = context.get("error")
        if isinstance(cause, Problems):
            yield from (Finding(path, problem) for problem in cause.problems)
        elif isinstance(cause, ValueError):
            yield Finding(path, str(cause))
        elif kind == "extra_forbidden":
            yield Finding(path, _unknown_key(details["loc"], model))
        elif kind in {"union_tag_invalid", "literal_error"}:
            written = str(context.get("tag", details["input"]))
            expected = context.get("expected_tags") or context["expected"].replace(" or ", ",")
            known = [tag.strip(" '") for tag in expected.split(",")]
            hint = suggestion(written, known)
            yield Finding(path, f"'{written}' is not one of: {', '.join(known)}{hint}")
        else:
            message = _MESSAGES.get(kind)
            yield Finding(path, message.format(**context) if message else details["msg"])


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
        elif isinstance(part, int):
            path.append(part)
            node = node[part] if isinstance(node, list) and part < len(node) else None
    return tuple(path)


def _unknown_key(loc: tuple[str | int, ...], model: type[BaseModel]) -> str:
    """Name the known keys of the model at a location, which has field names and union tags."""
    found = [model]
    for part in loc[:-1]:
        inner = [
            field.annotation
            for owner in found
            for name, field in owner.model_fields.items()
            if part in {name, field.alias}
        ]
        tagged = [
            owner
            for owner in found
            if (kind := owner.model_fields.get("kind")) and part == get_args(kind.annotation)[0]
        ]
        found = list(_models_in(inner)) or tagged or found
    known = [field.alias or name for name, field in found[0].model_fields.items()]
    known += getattr(found[0], "keys_of_loader", ())
    elsewhere: dict[str, str] = getattr(found[0], "keys_elsewhere", {})
    message = f"unknown key{suggestion(str(loc[-1]), known)} (known: {', '.join(known)})"
    return elsewhere.get(str(loc[-1]), message)


def _models_in(annotations: Iterable[Any]) -> Iterator[type[BaseModel]]:
    for annotation in annotations:
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield annotation
        yield from _models_in(get_args(annotation))
