"""Check literals: patterns of times and names of time zones, which Spark reads before any row.

With a wrong one Spark fails when it compiles the expression, which no guard of a row catches, so
that every run would stop. Only what Spark certainly refuses is reported.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from zoneinfo import available_timezones

from sqlglot import Token, TokenType
from sqlglot.dialects import Spark

from tidelake.config.model import suggestion

# Functions whose second argument is a pattern, to write or to read a time, or a time zone.
_WRITING = ("date_format", "from_unixtime")
_READING = (
    *("to_timestamp", "to_timestamp_ltz", "to_timestamp_ntz", "try_to_timestamp"),
    *("to_date", "try_to_date", "to_unix_timestamp", "unix_timestamp"),
)
_SHIFTING = ("from_utc_timestamp", "to_utc_timestamp")
_CALLS = re.compile("|".join((*_WRITING, *_READING, *_SHIFTING)), re.IGNORECASE)
# A repeated group, for which Java's matcher takes several stack frames per character.
_REPEATED_GROUP = re.compile(r"\)(?:[*+]|\{\d*,\}|\{\d*,?\d{3,}\})(?!\+)")
# Letters that Spark's patterns may have outside of quotes.
_READ = frozenset("GyMLdDgaHhKkmsSVvzOXxZ")
_WRITTEN = _READ | frozenset("EFQq")
# Offsets and abbreviations are not judged, and zones of old Java versions.
_REGION = re.compile(r"(?!SystemV/)[A-Za-z]+(?:/[A-Za-z][A-Za-z0-9_+-]*)+")


def literal_problems(sql: str, kind_of: Callable[[str], str | None]) -> Iterator[str]:
    """List the problems of the literals in an expression that is valid SQL.

    ``kind_of`` infers the type of an expression; None where only Spark can infer it.
    """
    tokens = Spark().tokenize(sql) if _CALLS.search(sql) else []
    for at, token in enumerate(tokens):
        name = token.text.lower()
        if name not in (*_WRITING, *_READING, *_SHIFTING):
            continue
        arguments = _arguments(tokens[at + 1 :])
        first, second = arguments[:2] if len(arguments) > 1 else ([], [])
        if not first or [one.token_type for one in second] != [TokenType.STRING]:
            continue
        # Of a date or a timestamp Spark reads no pattern.
        if name in _READING and kind_of(sql[first[0].start : first[-1].end + 1]) != "STRING":
            continue
        text = second[0].text
        problem = _zone_problem(text) if name in _SHIFTING else _pattern_problem(text, name)
        if problem:
            yield f"calls {name} with {problem}"


def _arguments(tokens: Sequence[Token]) -> list[list[Token]]:
    """Return the tokens of each argument of the call that begins with a parenthesis."""
    depth = 0
    found: list[list[Token]] = [[]]
    for token in tokens:
        kind = token.token_type
        depth += (kind is TokenType.L_PAREN) - (kind is TokenType.R_PAREN)
        if depth < 1:
            break
        if depth == 1 and kind is TokenType.COMMA:
            found.append([])
        else:
            found[-1].append(token)
    return [[*found[0][1:]], *found[1:]]


def _pattern_problem(pattern: str, function: str) -> str:
    letters = re.findall("[A-Za-z]", "".join(pattern.split("'")[::2]))
    allowed = _WRITTEN if function in _WRITING else _READ
    refused = [letter for letter in dict.fromkeys(letters) if letter not in allowed]
    if not refused:
        return ""
    hint = "write a year as y" if {"Y", "u"} & {*refused} else "put text between single quotes"
    return f"the pattern '{pattern}', in which Spark refuses {', '.join(refused)}; {hint}"


def _zone_problem(zone: str) -> str:
    # Some systems lack the older names, which Java knows.
    if "US/Pacific" not in _zones() or zone in _zones() or not _REGION.fullmatch(zone):
        return ""
    return f"the time zone '{zone}', which does not exist{suggestion(zone, _zones())}"


@cache
def _zones() -> frozenset[str]:
    return frozenset(available_timezones())


def may_overflow(pattern: str) -> bool:
    """Return whether a pattern repeats a group, so that a long text may overflow Java's stack.

    Possessive groups (``(a|b)*+``) and repeated classes are matched in a loop.
    """
    bare = re.sub(r"\\.|\[(?:[^\]\\]|\\.)*\]", "x", pattern, flags=re.DOTALL)
    return _REPEATED_GROUP.search(bare) is not None
