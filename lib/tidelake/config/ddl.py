"""Read a schema in Spark's DDL without Spark.

Written by hand rather than with sqlglot, whose types are those of many dialects: it takes types
that Spark refuses, and turns others into synonyms.
"""

from __future__ import annotations

import re
from functools import lru_cache

from tidelake.config.model import Problems, suggestion
from tidelake.config.types import KINDS, SYNONYMS, Field, FieldType, Kind

MAX_PRECISION = 38
MAX_DEPTH = 50
_TOKEN = re.compile(r"\s*(?:(`(?:[^`]|``)+`)|([A-Za-z_][A-Za-z0-9_]*)|(\d+)|('[^']*')|([<>(),:]))")
_KIND_OF: dict[str, Kind] = {str(kind): kind for kind in KINDS} | SYNONYMS


class _Syntax(ValueError):
    """The text cannot be read further."""


def _tokens(text: str) -> list[str]:
    tokens, at = [], 0
    text = text.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise _Syntax(f"cannot read the schema at '{text[at : at + 20].strip()}'")
        tokens.append(match[0].strip())
        at = match.end()
    return tokens


class _Reader:
    """Recursive descent; problems with a meaning are collected, syntax stops it."""

    def __init__(self, text: str) -> None:
        self.tokens = _tokens(text)
        self.at = 0
        self.depth = 0
        self.problems: list[str] = []

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self, wanted: str = "") -> str:
        token = self.peek()
        if not token or (wanted and token.upper() != wanted):
            found = f"'{token}'" if token else "the end"
            raise _Syntax(f"the schema has {found} where {wanted or 'more'} was expected")
        self.at += 1
        return token

    def name(self) -> str:
        token = self.take()
        if token.startswith("`"):
            return token[1:-1].replace("``", "`")
        if not re.match(r"[A-Za-z_]", token):
            raise _Syntax(f"the schema has '{token}' where a field's name was expected")
        return token

    def fields(self, end: str, place: str = "") -> tuple[Field, ...]:
        found: list[Field] = []
        seen: set[str] = set()
        while self.peek() != end or not found:
            if found:
                self.take(",")
            name = self.name()
            if name.lower() in seen:
                self.problems.append(f"field '{place}{name}' is there twice (case does not count)")
            if name.startswith("_") and not place:
                self.problems.append(f"field '{name}': names beginning with _ are the system's own")
            seen.add(name.lower())
            if self.peek() == ":":
                self.take()
            found.append(Field(name, self.type(f"{place}{name}")))
            self.extras(f"{place}{name}")
        return tuple(found)

    def extras(self, place: str) -> None:
        if self.peek().upper() == "NOT":
            self.take()
            self.take("NULL")
            self.problems.append(
                f"field '{place}': NOT NULL is not part of a payload's schema; use event.where"
            )
        if self.peek().upper() == "COMMENT":
            self.take()
            if not self.take().startswith("'"):
                raise _Syntax(f"field '{place}': COMMENT takes a text in quotes")

    def type(self, place: str) -> FieldType:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise _Syntax("the schema is nested too deeply")
        try:
            return self.type_at(place)
        finally:
            self.depth -= 1

    def type_at(self, place: str) -> FieldType:
        word = self.take()
        kind = _KIND_OF.get(word.lower())
        if kind is None:
            hint = "; use STRING" if word.lower() in {"varchar", "char", "text"} else ""
            hint = hint or suggestion(word, (name.upper() for name in _KIND_OF))
            self.problems.append(f"field '{place}': unknown type {word}{hint}")
            self.skip_arguments()
            return FieldType("string")
        if kind == "decimal":
            return self.decimal(place)
        if kind not in {"array", "map", "struct"}:
            return FieldType(kind)
        self.take("<")
        inner = self.nested(kind, place)
        self.take(">")
        return inner

    def nested(self, kind: Kind, place: str) -> FieldType:
        if kind == "array":
            return FieldType("array", element=self.type(f"{place}[]"))
        if kind == "struct":
            return FieldType("struct", fields=self.fields(">", f"{place}."))
        key = self.type(f"{place} (key)")
        self.take(",")
        if key.kind != "string":
            self.problems.append(f"field '{place}': a map's keys are STRING, not {key.sql}")
        return FieldType("map", key=key, value=self.type(f"{place} (value)"))

    def decimal(self, place: str) -> FieldType:
        precision, scale = 10, 0
        if self.peek() == "(":
            self.take()
            precision = self.number(place)
            if self.peek() == ",":
                self.take()
                scale = self.number(place)
            self.take(")")
        if not 1 <= precision <= MAX_PRECISION:
            self.problems.append(f"field '{place}': a decimal's precision is 1 to {MAX_PRECISION}")
        if scale > precision:
            self.problems.append(f"field '{place}': scale {scale} exceeds precision {precision}")
        return FieldType("decimal", precision=precision, scale=scale)

    def number(self, place: str) -> int:
        token = self.take()
        if not token.isdigit():
            raise _Syntax(f"field '{place}': '{token}' is no whole number")
        return int(token)

    def skip_arguments(self) -> None:
        if self.peek() in {"(", "<"}:
            opened = 0
            while token := self.peek():
                self.take()
                opened += (token in {"(", "<"}) - (token in {")", ">"})
                if not opened:
                    break


@lru_cache(maxsize=256)
def parse_schema(ddl: str) -> tuple[Field, ...]:
    """Read a payload's schema.

    Args:
        ddl: Fields as in ``event_id STRING, value DECIMAL(18,2)``.

    Returns:
        The fields in order; at least one.

    Raises:
        Problems: Everything wrong with the schema, or the place where reading stopped.
    """
    problems: list[str] = []
    fields: tuple[Field, ...] = ()
    try:
        reader = _Reader(ddl)
        problems = reader.problems
        fields = reader.fields("")
    except _Syntax as error:
        problems.append(str(error))
    if problems:
        raise Problems(problems)
    return fields
