"""A YAML file with the line of each key, and everything that YAML itself lets pass."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tidelake.errors import ConfigError, UsageError, Violation

KeyPath = tuple[str | int, ...]

# No file written by hand comes near these; without them a file of a kilobyte could fill the memory.
_MOST_CHARACTERS = 1 << 20
_MOST_LEVELS = 50
_MOST_DIGITS = 1000
_TEXT = "tag:yaml.org,2002:str"


@dataclass(frozen=True)
class Finding:
    """Something wrong at a place, before its line is known."""

    path: KeyPath
    message: str


@dataclass
class Document:
    """A parsed file.

    Attributes:
        file: Its path, for messages.
        content: The mapping it holds.
        lines: The line of each key or item, counted from 1.
        findings: What is wrong with the YAML but does not stop reading.
    """

    file: str
    content: dict[str, Any] = field(default_factory=dict)
    lines: dict[KeyPath, int] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    def error(self, findings: Iterable[Finding]) -> ConfigError:
        """Make one error of findings, each once, in the file's order."""
        violations = [
            Violation(dotted(f.path), f.message, self.line(f.path)) for f in dict.fromkeys(findings)
        ]
        violations.sort(key=lambda violation: violation.line or 0)
        return ConfigError(self.file, violations)

    def line(self, path: KeyPath) -> int | None:
        """Find the line of a key, or of the nearest thing around it that is there."""
        for length in range(len(path), -1, -1):
            if path[:length] in self.lines:
                return self.lines[path[:length]]
        return None


def dotted(path: KeyPath) -> str:
    """Write a path of keys as ``gold[1].measures.clicks``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text or "(whole file)"


class _TooLarge(Exception):
    """A file would become too large, or too deep; says at which node."""

    def __init__(self, message: str, node: yaml.Node | None) -> None:
        super().__init__(message)
        self.line = node.start_mark.line + 1 if node is not None else None


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, bounded; keys stay the text they were written as.

    YAML 1.1 reads an unquoted ``on:`` as the boolean true. The walk over the nodes reports that;
    here the text is kept, so that nothing else goes wrong because of it.

    An alias costs a few characters and repeats a whole node, which may hold aliases itself: what
    the file would hold with every alias written out is counted while the nodes are composed.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._level = 0
        self._written_out = 0
        self._sizes: dict[int, int] = {}

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self._level += 1
        if self._level > _MOST_LEVELS:
            raise _TooLarge(f"is nested more than {_MOST_LEVELS} levels deep", parent)
        before = self._written_out
        node = super().compose_node(parent, index)
        if id(node) in self._sizes:
            self._written_out += self._sizes[id(node)]
        else:
            text = node.value if isinstance(node, yaml.ScalarNode) else ""
            if len(text) > _MOST_DIGITS and node is not None and node.tag != _TEXT:
                # Digits in base 60 take minutes to become a number.
                raise _TooLarge(f"holds a number of {len(text)} characters", parent)
            self._written_out += 1 + len(text)
            self._sizes[id(node)] = self._written_out - before
        if self._written_out > _MOST_CHARACTERS:
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
    """Read a YAML file whose top is a mapping.

    Args:
        path: The file.

    Returns:
        The document; its ``findings`` still have to be reported.

    Raises:
        UsageError: The file cannot be read.
        ConfigError: It is no YAML, is empty, too large or too deep, or holds no mapping.
    """
    document = Document(str(path))
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_CHARACTERS + 1)
        if len(content) > _MOST_CHARACTERS:
            raise document.error([Finding((), "is larger than 1 MiB")])
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise document.error([Finding((), f"is not UTF-8: {error.reason}")]) from error
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
    try:
        _parse(text, document)
    except _TooLarge as error:
        said = Violation("(whole file)", str(error), error.line)
        raise ConfigError(document.file, [said]) from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        said = Violation(
            "(whole file)", f"is not YAML: {error.problem}", mark.line + 1 if mark else None
        )
        raise ConfigError(document.file, [said]) from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        said = Violation("(whole file)", f"is not YAML: {str(error).splitlines()[0]}")
        raise ConfigError(document.file, [said]) from error
    return document


def _parse(text: str, document: Document) -> None:
    loader = _Loader(text)
    try:
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
    finally:
        loader.dispose()


def _walk(
    node: yaml.Node, path: KeyPath, lines: dict[KeyPath, int], above: tuple[int, ...]
) -> Iterator[Finding]:
    if id(node) in above:
        yield Finding(path, "refers to itself")
        return
    above = (*above, id(node))
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            lines[(*path, index)] = item.start_mark.line + 1
            yield from _walk(item, (*path, index), lines, above)
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
                yield Finding(place, f"is there twice (lines {seen[name]} and {line})")
            elif key.tag == "tag:yaml.org,2002:bool":
                message = f'YAML reads an unquoted {name} as true or false; write "{name}"'
                yield Finding(place, message)
            seen.setdefault(name, line)
            lines.setdefault(place, line)
            yield from _walk(value, place, lines, above)
