"""The canonical form of a YAML file: order of keys, indentation and quotes; comments are kept.

The text is rewritten from PyYAML's events. Comments, which these leave out, are read from the
gaps between its tokens and belong to the key or item that follows, or that stands before them in
their line, or by their indentation to the end of a block. Braces and brackets that are on one line
stay there; others become indented blocks, whose comments have places. With the command that uses
it, the file would exceed 500 lines.
"""

from __future__ import annotations

import io
import json
import re
from bisect import bisect
from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import yaml
from yaml.emitter import Emitter

from tidelake.config.json_schema import Json
from tidelake.visible import visible

_INDENT = 2
# Before the text of a block scalar; the second is without a digit, which says where it begins.
_ANY_HEADER = re.compile(r"(?:[&!]\S* +)*[|>][-+0-9]* *(#.*)?")
_HEADER = re.compile(r"(?:[&!]\S* +)*[|>][-+]? *(#.*)?")
_STRING, _NULL, _BOOL = (f"tag:yaml.org,2002:{name}" for name in ("str", "null", "bool"))
_RESOLVER = yaml.resolver.Resolver()
# Text in YAML 1.1, a number in YAML 1.2, which editors read.
_NUMBER_LATER = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|0o[0-7]+")


@dataclass
class _Node:
    """A scalar, an alias, a sequence or a mapping, with its text and its span in the file.

    ``below`` are comments at the end of a block.
    """

    event: Any
    raw: str
    start: int
    end: int
    entries: list[_Entry] = field(default_factory=list)
    below: list[str] = field(default_factory=list)

    @property
    def in_braces(self) -> bool:
        """Whether it is a collection in braces or brackets."""
        return bool(getattr(self.event, "flow_style", False))

    @property
    def is_block(self) -> bool:
        """Whether it is a collection that is written as indented lines."""
        return bool(self.entries) and not (self.in_braces and "\n" not in self.raw)

    @property
    def is_kept(self) -> bool:
        """Whether it is a block scalar, whose lines are kept as they are."""
        header, _, content = self.raw.partition("\n")
        return bool(_HEADER.fullmatch(header) and content.strip(" \n"))


@dataclass
class _Entry:
    """An item of a sequence, or a key of a mapping with its value, and its comments.

    ``above`` are lines, "" for an empty one; ``trailing`` is the comment of the first line, in
    ``column`` if there is room.
    """

    key: _Node | None
    value: _Node
    above: list[str] = field(default_factory=list)
    trailing: str = ""
    column: int = 0

    @property
    def start(self) -> int:
        """The index of its first character."""
        return (self.key or self.value).start


def canonical(text: str, schema: Json) -> str:
    """Return the canonical form of a file that loads, its keys in the order of the schema.

    Keys of the user's own, such as the columns of ``select``, keep their order, because tables
    follow it. So do all keys of a file with aliases (``*name``), which must follow their anchors.

    Raises:
        ValueError: The form would have another content or lack a comment: a bug.
    """
    text = re.sub("\r\n?", "\n", text.removeprefix("\ufeff"))
    events = yaml.parse(text, Loader=yaml.SafeLoader)
    begin = next((event for event in events if isinstance(event, yaml.NodeEvent)), None)
    if begin is None:
        # Defaults of a folder may consist of comments.
        return text
    root = _node(begin, events, text)
    _place_comments(root, text)
    if not any(isinstance(token, yaml.AliasToken) for token in _tokens(text)):
        _sort(root, schema, schema)
    formed = "\n".join(_block(root, 0)) + "\n"
    try:
        is_same = _content(formed) == _content(text)
    except (yaml.YAMLError, KeyError, ValueError):
        is_same = False
    if not is_same:
        raise ValueError("its canonical form would differ in content or comments")
    return formed


def _content(text: str) -> tuple[object, list[str]]:
    """Return what a text says and its comments, in a form that can be compared."""
    comments = [comment for _, comment in _comments(text)]
    for token in _tokens(text):
        if isinstance(token, yaml.ScalarToken) and token.style in ("|", ">"):
            comments += [_header_comment(text[token.start_mark.index :]) or "#"]
    return _comparable(yaml.safe_load(text)), sorted(one for one in comments if one != "#")


def _comparable(value: object) -> object:
    """Return a value without the order of its keys, which need not be texts."""
    if isinstance(value, dict):
        return sorted((repr(key), _comparable(one)) for key, one in value.items())
    return [_comparable(one) for one in value] if isinstance(value, list) else repr(value)


def _tokens(text: str) -> Iterator[yaml.Token]:
    return iter(yaml.scan(text, Loader=yaml.SafeLoader))


def _comments(text: str) -> Iterator[tuple[int, str]]:
    """List the comments with their indexes, without those behind ``|`` and ``>``."""
    end = 0
    for token in _tokens(text):
        for found in re.finditer("#.*", text[end : token.start_mark.index]):
            yield end + found.start(), found[0].rstrip()
        end = max(end, token.end_mark.index)


def _node(event: Any, events: Iterator[Any], text: str) -> _Node:
    start = event.start_mark.index
    entries: list[_Entry] = []
    last = event
    if isinstance(event, yaml.CollectionStartEvent):
        while not isinstance(last := next(events), yaml.CollectionEndEvent):
            first = _node(last, events, text)
            if isinstance(event, yaml.SequenceStartEvent):
                entries.append(_Entry(None, first))
            else:
                entries.append(_Entry(first, _node(next(events), events, text)))
                # A key may be a block scalar too, behind a question mark.
                entries[-1].above += filter(None, [_header_comment(first.raw)])
            entries[-1].trailing = _header_comment(entries[-1].value.raw)
    end = last.end_mark.index
    return _Node(event, text[start:end], start, end, entries)


def _header_comment(raw: str) -> str:
    """Return the comment behind the mark of a block scalar; empty if there is none."""
    header = _ANY_HEADER.fullmatch(raw.partition("\n")[0])
    return ((header and header[1]) or "").rstrip()


def _nodes(node: _Node) -> Iterator[_Node]:
    """List the collections that are written as blocks, outer ones first."""
    if node.is_block:
        yield node
        for entry in node.entries:
            yield from _nodes(entry.value)


def _place_comments(root: _Node, text: str) -> None:
    """Give each comment and each empty line to the entry or the block that it belongs to."""
    blocks = list(_nodes(root))
    # Of entries that begin with the same character the outer one comes first.
    entries = sorted(
        (entry for block in blocks for entry in block.entries), key=attrgetter("start")
    )
    starts = [entry.start for entry in entries]
    kept = [entry.value for entry in entries if entry.value.raw.startswith(("|+", ">+"))]

    def line_of(index: int) -> int:
        return text.rfind("\n", 0, index) + 1

    def column(index: int) -> int:
        return index - line_of(index)

    def follows_empty(line: int) -> bool:
        above = line_of(line - 1) if line else 0
        is_content = any(one.start < above < one.end for one in kept)
        return line > 0 and not text[above:line].strip(" \t\n") and not is_content

    last, depth = -1, len(text)
    for index, comment in _comments(text):
        line, at = line_of(index), bisect(starts, index)
        before = text[line:index].strip()
        following = entries[at] if at < len(entries) else None
        if at and before.strip("- "):
            owner = entries[at - 1]
            if owner.trailing:
                owner.above.append(owner.trailing)
            owner.trailing, owner.column = comment, index - line
            continue
        if at != last:
            last, depth = at, len(text)
        # Blocks that end here, and that the comment is indented for.
        # An item begins behind its dash.
        indented = text[line_of(following.start) : following.start + 1] if following else ""
        least = len(indented) - len(indented.lstrip(" ")) if following else -1
        ending = [
            block
            for block in blocks
            if block.start < index < block.end
            and block.start <= depth
            and (following is None or following.start >= block.end)
            and not before
            and (block.in_braces or least < column(block.start) <= index - line)
        ]
        if following is not None and not ending:
            depth, lines = -1, following.above
        else:
            # The items of a sequence may be indented as its key is: then it is about the key.
            block = next(
                (one for one in ending if column(one.start) == column(ending[-1].start)), root
            )
            depth, lines = block.start, block.below
        lines += ["", comment] if follows_empty(line) else [comment]
    seen: set[int] = set()
    for entry in entries:
        line = line_of(entry.start)
        if line not in seen and not text[line : entry.start].strip("- ") and follows_empty(line):
            entry.above.append("")
        seen.add(line)


def _sort(node: _Node, schema: Json, whole: Json) -> None:
    """Sort the keys that a schema names in its order; comments on top of the file stay there."""
    form = _form(schema, node, whole)
    order = {key: position for position, key in enumerate(form.get("properties", ()))}
    for entry in node.entries:
        inner = form.get("items") or form.get("additionalProperties")
        if entry.key is not None and entry.key.event.value in order:
            inner = form["properties"][entry.key.event.value]
        _sort(entry.value, inner if isinstance(inner, dict) else {}, whole)
    if not order or not node.entries:
        return
    top = node.entries[0]
    node.entries.sort(key=lambda entry: order.get(_key(entry), len(order)))
    if schema is whole and top is not node.entries[0]:
        # Comments directly above the first key are about the file, unless others come before.
        empty = [at for at, line in enumerate(top.above) if not line]
        size = empty[-1] + 1 if empty and top.above[-1] else len(top.above)
        node.entries[0].above[:0] = top.above[:size]
        del top.above[:size]


def _key(entry: _Entry) -> str:
    return "" if entry.key is None else str(entry.key.event.value)


def _form(schema: Json, node: _Node, whole: Json) -> Json:
    """Return the part of a schema that is about a collection: of alternatives, by its ``kind``."""
    if "$ref" in schema:
        return _form(whole["$defs"][schema["$ref"].rpartition("/")[2]], node, whole)
    if "properties" in schema or "anyOf" not in schema:
        return schema
    forms = [_form(one, node, whole) for one in schema["anyOf"]]
    forms = [one for one in forms if one.get("type") in ("object", "array")]
    kinds = [entry.value.event.value for entry in node.entries if _key(entry) == "kind"]
    if kinds:
        forms = [one for one in forms if f'"{kinds[0]}"' in json.dumps(one.get("properties"))]
    return forms[0] if len(forms) == 1 else {}


def _block(node: _Node, indent: int) -> list[str]:
    """Write a collection as lines, with at most one empty line between two others."""
    pad = " " * indent
    lines: list[str] = []

    def add(comments: list[str]) -> None:
        for line in comments:
            if line:
                lines.append(pad + line)
            elif lines and lines[-1]:
                lines.append("")

    for entry in node.entries:
        body = _body(entry, indent)
        add(entry.above)
        lines += body
    add(node.below)
    return lines


def _body(entry: _Entry, indent: int) -> list[str]:
    """Write an entry without the lines above it."""
    key, value, inner = entry.key, entry.value, indent + _INDENT
    head = " " * indent + ("-" if key is None else f"{_inline(key, is_key=True)}:")
    if value.is_block:
        mark = _mark(value)
        # Takes comments from the block.
        entry.above += _from_behind_the_dash(entry)
        lines = _block(value, inner)
        if key is None and not mark:
            return [f"{head} {lines[0][inner:]}", *lines[1:]]
        return [_with_comment(f"{head} {mark}".rstrip(), entry), *lines]
    if value.is_kept:
        header, *lines = value.raw.split("\n")
        style = header.partition("#")[0].rstrip()
        while not style.endswith("+") and lines and not lines[-1].strip(" "):
            lines.pop()
        if style.endswith("+") and not lines[-1]:
            lines.pop()
        size = next(len(line) - len(line.lstrip(" ")) for line in lines if line.strip(" "))
        moved = [" " * inner + line[size:] if line[size:] else "" for line in lines]
        return [_with_comment(f"{head} {style}", entry), *moved]
    return [_with_comment(f"{head} {_inline(value)}", entry)]


def _from_behind_the_dash(entry: _Entry) -> list[str]:
    """Take the comments from the entries that begin in an item's line: they come above the item."""
    value = entry.value
    if entry.key is not None or not value.is_block or _mark(value):
        return []
    first = value.entries[0]
    taken = [entry.trailing, *first.above, *_from_behind_the_dash(first)]
    entry.trailing, first.above = "", []
    return [line for line in taken if line]


def _with_comment(line: str, entry: _Entry) -> str:
    return line + (
        " " * max(entry.column - len(line), 2) + entry.trailing if entry.trailing else ""
    )


def _mark(node: _Node) -> str:
    """Return a collection's anchor and tag."""
    anchor = f"&{node.event.anchor}" if node.event.anchor else ""
    tag = (node.event.tag or "").replace("tag:yaml.org,2002:", "!!")
    return f"{anchor} {tag}".strip()


def _inline(node: _Node, *, is_key: bool = False, in_braces: bool = False) -> str:
    """Write a node in one line."""
    event = node.event
    if isinstance(event, yaml.AliasEvent):
        return f"*{event.anchor}"
    if isinstance(event, yaml.ScalarEvent):
        text = _quoted(event.value) if event.tag else _scalar(event, is_key, in_braces)
    else:
        parts = [
            (f"{_inline(entry.key, is_key=True, in_braces=True)}: " if entry.key else "")
            + _inline(entry.value, in_braces=True)
            for entry in node.entries
        ]
        inner = ", ".join(parts)
        text = f"{{{inner}}}" if isinstance(event, yaml.MappingStartEvent) else f"[{inner}]"
    mark = _mark(node)
    return f"{mark} {text}" if mark else text


def _scalar(event: yaml.ScalarEvent, is_key: bool, in_braces: bool) -> str:
    """Write a scalar, in quotes only where it would be read as something else without them."""
    value: str = event.value
    tag = _RESOLVER.resolve(yaml.ScalarNode, value, (True, False))  # type: ignore[no-untyped-call]
    if event.style is None and tag != _STRING:
        # A key is text, whatever it looks like.
        if tag == _NULL and not is_key:
            return "null"
        if tag == _BOOL and not is_key:
            return str(yaml.SafeLoader.bool_values[value.lower()]).lower()
        return value
    analysis = Emitter(io.StringIO(), allow_unicode=True).analyze_scalar(value)
    can_be_plain = analysis.allow_flow_plain if in_braces else analysis.allow_block_plain
    is_text = tag == _STRING and not _NUMBER_LATER.fullmatch(value)
    return value if can_be_plain and is_text and visible(value) == value else _quoted(value)


def _quoted(value: str) -> str:
    """Write a text in quotes; characters that are not shown are escaped, so that a reader sees."""
    is_shown = visible(value) == value
    analysis = Emitter(io.StringIO(), allow_unicode=True).analyze_scalar(value)
    if not is_shown or not analysis.allow_single_quoted:
        text = yaml.dump(value, default_style='"', width=float("inf"), allow_unicode=is_shown)
        return str(text).rstrip("\n")
    if '"' in value or "\\" in value:
        return "'" + value.replace("'", "''") + "'"
    return f'"{value}"'
