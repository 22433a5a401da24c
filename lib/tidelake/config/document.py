"""A YAML file with the line of each key, and everything that YAML itself lets pass."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tidelake.errors import ConfigError, UsageError, Violation

KeyPath = tuple[str | int, ...]


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


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader; keys stay the text they were written as.

    YAML 1.1 reads an unquoted ``on:`` as the boolean true. The walk over the nodes reports that;
    here the text is kept, so that nothing else goes wrong because of it.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        self.flatten_mapping(node)
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                key.tag = "tag:yaml.org,2002:str"
        return super().construct_mapping(node, deep=deep)


def read_document(path: Path) -> Document:
    """Read a YAML file whose top is a mapping.

    Args:
        path: The file.

    Returns:
        The document; its ``findings`` still have to be reported.

    Raises:
        UsageError: The file cannot be read.
        ConfigError: It is no YAML, is empty, or holds no mapping.
    """
    document = Document(str(path))
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise document.error([Finding((), f"is not UTF-8: {error.reason}")]) from error
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
    try:
        _parse(text, document)
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
