r"""Make text safe to display: escape control characters, omit values of rows.

Payloads, ids and keys are untrusted. An escape sequence in them could clear a screen or forge a
line of a report, and a bidirectional override could reverse a line.

Spark's messages contain values (the text that failed to cast, the malformed record, the row that
violates a constraint), and messages go to terminals, webhooks, lineage and logs. So only the
error's class, its condition (``[CAST_INVALID_INPUT]``) and parameters that name types, tables and
files are shown; the full text is kept in a private file.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from tidelake.errors import TidelakeError

# C0 and DEL, C1, bidirectional marks and overrides, line separators, surrogates.
_DIRECTIONS = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
_HIDDEN = f"\x7f-\x9f{_DIRECTIONS}\u2028\u2029\ufeff\ud800-\udfff"
_UNSEEN = re.compile(f"[\\0-\x1f{_HIDDEN}]")
_UNSEEN_IN_LINES = re.compile(f"[\\0-\x09\x0b-\x1f{_HIDDEN}]")

# The start of a message: a payload may contain the same text, but only after it.
HEAD = (
    r"^(?:Caused by: |: )?(?:\[\w+\] Query[^\n'\"]*? exception: )?(?:[\w.$]+(?:Exception|Error): )*"
)
_CONDITION = re.compile(HEAD + r"\[([A-Z][A-Z0-9_]*(?:\.[A-Z0-9_]+)*)\]", re.MULTILINE)
_KIND = re.compile(r"^(?:Caused by)?: ([\w.$]+(?:Exception|Error))\b", re.MULTILINE)
_ANY_CONDITION = re.compile(
    r"(?:^|Exception: |Error: |Error\(|Exception\()['\"]?\[([A-Z][A-Z0-9_]*(?:\.[A-Z0-9_]+)*)\]",
    re.MULTILINE,
)
# Parameters of Spark's messages that come from a definition, a catalog or a file system.
_SAFE = ("sourceType", "targetType", "tableName", "columnName", "fieldName", "functionName", "path")
_MOST_CAUSES = 8
_LONGEST = 300


def visible(text: str, *, lines: bool = False) -> str:
    r"""Escape control characters and bidirectional overrides: ``\x1b``, ``\u202e``.

    With ``lines``, line breaks are kept; else they are escaped too.
    """
    unseen = _UNSEEN_IN_LINES if lines else _UNSEEN
    return unseen.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def shortened(text: str, limit: int) -> str:
    """Cut a text off after ``limit`` characters, and mark the cut."""
    return text if len(text) <= limit else f"{text[:limit]}…"


def some(count: int, things: str, state: str = "") -> str:
    """Format a count with its noun, given in the plural: ``1 file``, ``2 files are waiting``."""
    noun, verb = (things.removesuffix("s"), "is") if count == 1 else (things, "are")
    return f"{count:,} {noun}" + (f" {verb} {state}" if state else "")


def visible_json(document: str) -> str:
    """Escape control characters that are raw in the strings of a JSON document."""
    return _UNSEEN_IN_LINES.sub(lambda found: f"\\u{ord(found[0]):04x}", document)


def kind_of(error: BaseException) -> str:
    """Describe an error in one line: its class, its condition and its causes.

    For a :class:`TidelakeError` that is the first line of its message. If it announces a list, the
    name of the first item follows: a file, a column. What is wrong with it may contain values.
    """
    if isinstance(error, TidelakeError):
        what, *more = [line for line in str(error).splitlines() if line.strip()] or [""]
        if what.endswith(":") and more:
            what += " " + more[0].removeprefix("  - ").partition(": ")[0]
        return visible(what)
    found = list(dict.fromkeys(_links(error)))
    return visible(", caused by ".join(found))[:_LONGEST]


def first_line(error: BaseException) -> str:
    """Return an error's class and its message without values of rows."""
    text, kind = kind_of(error), type(error).__name__
    return (text if text.startswith(kind) else f"{kind}: {text}").rstrip(".")


def kind_of_text(text: str) -> str:
    """Describe an error by its text: the first line, or the conditions of a Spark error."""
    lines = text.strip().splitlines()
    if found := _ANY_CONDITION.findall(text):
        return ", ".join(dict.fromkeys(f"[{condition}]" for condition in found[:3]))
    if not lines or "py4j" in text or "Exception" in text:
        return ", caused by ".join(name.rsplit(".", 1)[-1] for name in _KIND.findall(text)[:3])
    return visible(lines[0])[:_LONGEST]


def is_of_spark(error: BaseException) -> bool:
    """Return whether an error comes from Spark or from the bridge to its JVM."""
    return type(error).__module__.split(".")[0] in ("pyspark", "py4j")


def _links(error: BaseException) -> Iterator[str]:
    """Yield the classes of an error and of its causes."""
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, OSError):
            named = f": {found.filename}" if found.filename else ""
            yield f"{found.strerror or type(found).__name__}{named}"
        elif is_of_spark(found):
            yield from _of_spark(found)
        else:
            yield type(found).__name__
        # PySpark stores the cause of a JVM exception in `_cause`.
        found = found.__cause__ or getattr(found, "_cause", None)


def _of_spark(error: Any) -> Iterator[str]:
    condition: object = None
    parameters: Mapping[str, str] = {}
    with contextlib.suppress(Exception):  # the JVM may have ended
        condition, parameters = error.getCondition(), error.getMessageParameters() or {}
    text = str(getattr(error, "_stackTrace", None) or error)
    conditions = [] if condition is None else [str(condition)]
    conditions += [found for found in _CONDITION.findall(text) if found not in conditions]
    safe = [f"{name} {parameters[name]}" for name in _SAFE if parameters.get(name)]
    details = f" ({', '.join(safe)})" if safe else ""
    shown = "".join(f" [{name}]" for name in conditions[:3])
    yield f"{type(error).__name__}{shown}{details}"
    yield from (name.rsplit(".", 1)[-1] for name in _KIND.findall(text)[:_MOST_CAUSES])
