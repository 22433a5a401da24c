"""Say what an error of Spark's, of the JVM's or of Python's is, without any value of a row.

Spark quotes values in its messages (the text that is no number, the record that is malformed, the
row that breaks a constraint), and messages go to terminals, webhooks, lineage and logs. What is
passed on is the error's kind, its condition (``[CAST_INVALID_INPUT]``) and those of its parameters
that name types, tables and files. The whole text stays in a private file.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from tidelake.errors import TidelakeError
from tidelake.visible import visible

# What may stand in front of a message: a payload can hold its words, but not begin a message.
HEAD = (
    r"^(?:Caused by: |: )?(?:\[\w+\] Query[^\n'\"]*? exception: )?(?:[\w.$]+(?:Exception|Error): )*"
)
_CONDITION = re.compile(HEAD + r"\[([A-Z][A-Z0-9_]*(?:\.[A-Z0-9_]+)*)\]", re.MULTILINE)
_KIND = re.compile(r"^Caused by: ([\w.$]+(?:Exception|Error))\b", re.MULTILINE)
_ANY_CONDITION = re.compile(
    r"(?:^|Exception: |Error: |Error\(|Exception\()['\"]?\[([A-Z][A-Z0-9_]*(?:\.[A-Z0-9_]+)*)\]",
    re.MULTILINE,
)
# Parameters of Spark's messages that come from a definition, a catalog or a file system.
_SAFE = ("sourceType", "targetType", "tableName", "columnName", "fieldName", "functionName", "path")
_MOST_CAUSES = 8
_LONGEST = 300


def kind_of(error: BaseException) -> str:
    """Name an error in one line: its kind, its condition, what caused it.

    Args:
        error: Any; the message of a :class:`TidelakeError` is our own and is given as it is.
    """
    if isinstance(error, TidelakeError):
        return visible(next((line for line in str(error).splitlines() if line.strip()), ""))
    found = list(dict.fromkeys(_links(error)))
    return visible(", caused by ".join(found))[:_LONGEST]


def kind_of_text(text: str) -> str:
    """Name an error that another library passed on as a text.

    The first line where the text is that library's own; of one of Spark's, only its condition.
    """
    lines = text.strip().splitlines()
    found = _ANY_CONDITION.findall(text)
    if found:
        return ", ".join(dict.fromkeys(f"[{one}]" for one in found[:3]))
    if not lines or "py4j" in text or "Exception" in text:
        return ", caused by ".join(name.rsplit(".", 1)[-1] for name in _KIND.findall(text)[:3])
    return visible(lines[0])[:_LONGEST]


def is_of_spark(error: BaseException) -> bool:
    """Tell whether an error comes out of Spark or of the bridge to its JVM."""
    return type(error).__module__.split(".")[0] in ("pyspark", "py4j")


def _links(error: BaseException) -> Iterator[str]:
    """Give an error and what caused it, each by its kind."""
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, OSError):
            named = f": {found.filename}" if found.filename else ""
            yield f"{found.strerror or type(found).__name__}{named}"
        elif is_of_spark(found):
            yield from _of_spark(found)
        else:
            yield type(found).__name__
        # What Spark itself names as the cause is no cause to Python.
        found = found.__cause__ or getattr(found, "_cause", None)


def _of_spark(error: Any) -> Iterator[str]:
    condition: object = None
    parameters: Mapping[str, str] = {}
    with contextlib.suppress(Exception):  # the JVM may be gone
        condition, parameters = error.getCondition(), error.getMessageParameters() or {}
    text = str(getattr(error, "_stackTrace", None) or error)
    told = [] if condition is None else [str(condition)]
    told += [one for one in _CONDITION.findall(text) if one not in told]
    yield f"{type(error).__name__}{''.join(f' [{one}]' for one in told[:3])}{_safe(parameters)}"
    for name in _KIND.findall(text)[:_MOST_CAUSES]:
        yield name.rsplit(".", 1)[-1]


def _safe(parameters: Mapping[str, str]) -> str:
    kept = [f"{name} {parameters[name]}" for name in _SAFE if parameters.get(name)]
    return f" ({', '.join(kept)})" if kept else ""
