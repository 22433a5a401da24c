"""Types of payload fields in Spark's DDL, and a parser of schemas that needs no Spark.

sqlglot is not used: it accepts types that Spark rejects, and suggests no name for unknown types.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

from tidelake.config.model import Problems, suggestion
from tidelake.names import quoted

_Numeric = Literal["tinyint", "smallint", "int", "bigint", "float", "double", "decimal"]
_Scalar = Literal["string", "boolean", "date", "timestamp", "timestamp_ntz", "binary"]
_Nested = Literal["array", "map", "struct"]
Kind = Literal[_Numeric, _Scalar, _Nested]
NUMERIC: tuple[Kind, ...] = get_args(_Numeric)
_KINDS: tuple[Kind, ...] = get_args(Kind)
_KIND_OF: dict[str, Kind] = {str(kind): kind for kind in _KINDS} | {
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "real": "float",
    "dec": "decimal",
    "numeric": "decimal",
    "timestamp_ltz": "timestamp",
}
_SPECIAL = re.compile(r"[ ,;{}()\n\t=]")
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
# Names of the columns beside which silver and the fast lane have a payload's fields.
_INTERNAL = re.compile(
    "_(?:(?:in|own|tidelake)_.*|broken|corrupt_record|parsed|refusal|skipped|unknown)",
    re.DOTALL | re.IGNORECASE,
)


@dataclass(frozen=True)
class Field:
    """A field of a payload or of a struct."""

    name: str
    type: FieldType


@dataclass(frozen=True)
class FieldType:
    """The type of a field.

    A decimal has ``precision`` (total digits) and ``scale`` (digits after the point), an array
    ``element``, a map ``key`` (a string) and ``value``, a struct ``fields``.
    """

    kind: Kind
    precision: int | None = None
    scale: int | None = None
    element: FieldType | None = None
    key: FieldType | None = None
    value: FieldType | None = None
    fields: tuple[Field, ...] = ()

    @property
    def sql(self) -> str:
        """The type in Spark's DDL: ``DECIMAL(18,2)``, ``ARRAY<STRUCT<a: INT>>``."""
        if self.kind == "decimal":
            return f"DECIMAL({self.precision},{self.scale})"
        if self.kind == "array" and self.element:
            return f"ARRAY<{self.element.sql}>"
        if self.kind == "map" and self.key and self.value:
            return f"MAP<{self.key.sql}, {self.value.sql}>"
        if self.kind == "struct":
            inner = ", ".join(
                f"{f.name if _PLAIN.fullmatch(f.name) else quoted(f.name)}: {f.type.sql}"
                for f in self.fields
            )
            return f"STRUCT<{inner}>"
        return self.kind.upper()


def is_internal(name: str) -> bool:
    """Return whether a field of a payload would have the name of an internal column."""
    return _INTERNAL.fullmatch(name) is not None


def unstorable_names(found: FieldType) -> Iterator[str]:
    """Yield the names in a type's structs that no Delta table can store."""
    for inner in (found.element, found.key, found.value):
        yield from unstorable_names(inner) if inner else ()
    for field in found.fields:
        if _SPECIAL.search(field.name):
            yield field.name
        yield from unstorable_names(field.type)


_MAX_PRECISION = 38
_MAX_DEPTH = 50
_TOKEN = re.compile(
    r"`(?:[^`]|``)+`|[A-Za-z_][A-Za-z0-9_]*|[0-9]+|'[^']*'|[<>(),:]|(?P<other>\S.{,19})", re.DOTALL
)


class _Syntax(ValueError):
    """The schema cannot be parsed beyond this point."""


class _Reader:
    """A recursive descent parser that raises syntax errors and collects all other problems."""

    def __init__(self, text: str, problems: list[str]) -> None:
        self.tokens: list[str] = []
        self.at = 0
        self.depth = 0
        self.problems = problems
        for match in _TOKEN.finditer(text):
            if match["other"]:
                raise _Syntax(f"cannot read the schema at '{match['other'].strip()}'")
            self.tokens.append(match[0])

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self, wanted: str = "") -> str:
        token = self.peek()
        if not token or (wanted and token.upper() != wanted):
            found = f"'{token}'" if token else "the end"
            raise _Syntax(f"the schema has {found} where {wanted or 'more'} was expected")
        self.at += 1
        return token

    def take_if(self, wanted: str) -> bool:
        is_next = self.peek().upper() == wanted
        self.at += is_next
        return is_next

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
            path = f"{place}{name}"
            if name.lower() in seen:
                self.problems.append(f"field '{path}' appears twice (names are case-insensitive)")
            if is_internal(name) and not place:
                self.problems.append(
                    f"field '{name}' has the name of an internal column; leave it out. Of payloads "
                    "that are JSON, event.select can read it: "
                    f"get_json_object(CAST(payload AS STRING), '$.{name}'); "
                    "of others, rename it where it is written"
                )
            seen.add(name.lower())
            self.take_if(":")
            found.append(Field(name, self.type(path)))
            if self.take_if("NOT"):
                self.take("NULL")
                self.problems.append(
                    f"field '{path}': NOT NULL is not supported in this schema; use event.where"
                )
            if self.take_if("COMMENT") and not self.take().startswith("'"):
                raise _Syntax(f"field '{path}': COMMENT requires text in quotes")
        return tuple(found)

    def type(self, place: str) -> FieldType:
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise _Syntax("the schema is nested too deeply")
        word = self.take()
        kind = _KIND_OF.get(word.lower())
        if kind is None:
            found = self.unknown(word, place)
        elif kind == "decimal":
            found = self.decimal(place)
        elif kind in {"array", "map", "struct"}:
            self.take("<")
            found = self.nested(kind, place)
            self.take(">")
        else:
            found = FieldType(kind)
        self.depth -= 1
        return found

    def nested(self, kind: Kind, place: str) -> FieldType:
        if kind == "array":
            return FieldType("array", element=self.type(f"{place}[]"))
        if kind == "struct":
            return FieldType("struct", fields=self.fields(">", f"{place}."))
        key = self.type(f"{place} (key)")
        self.take(",")
        if key.kind != "string":
            self.problems.append(f"field '{place}': a map's keys must be STRING, not {key.sql}")
        return FieldType("map", key=key, value=self.type(f"{place} (value)"))

    def decimal(self, place: str) -> FieldType:
        precision, scale = 10, 0
        if self.take_if("("):
            precision = self.number(place)
            scale = self.number(place) if self.take_if(",") else 0
            self.take(")")
        if not 1 <= precision <= _MAX_PRECISION:
            message = f"a decimal's precision must be 1 to {_MAX_PRECISION}"
            self.problems.append(f"field '{place}': {message}")
        if scale > precision:
            self.problems.append(f"field '{place}': scale {scale} exceeds precision {precision}")
        return FieldType("decimal", precision=precision, scale=scale)

    def number(self, place: str) -> int:
        token = self.take()
        if not token.isdigit():
            raise _Syntax(f"field '{place}': '{token}' is not a whole number")
        return int(token)

    def unknown(self, word: str, place: str) -> FieldType:
        """Report an unknown type, and skip its arguments."""
        hint = "; use STRING" if word.lower() in {"varchar", "char", "text"} else ""
        hint = hint or suggestion(word, (name.upper() for name in _KIND_OF))
        self.problems.append(f"field '{place}': unknown type {word}{hint}")
        opened = 0
        while (token := self.peek()) and (opened or token in {"(", "<"}):
            self.take()
            opened += (token in {"(", "<"}) - (token in {")", ">"})
            if not opened:
                break
        return FieldType("string")


@lru_cache(maxsize=256)
def parse_schema(ddl: str) -> tuple[Field, ...]:
    """Parse a payload's schema, such as ``event_id STRING, value DECIMAL(18,2)``.

    Returns:
        The fields in order; at least one.

    Raises:
        Problems: All problems of the schema, up to the first syntax error.
    """
    fields: tuple[Field, ...] = ()
    problems: list[str] = []
    try:
        fields = _Reader(ddl, problems).fields("")
    except _Syntax as error:
        problems.append(str(error))
    if problems:
        raise Problems(problems)
    return fields


def is_comparable(kind: str) -> bool:
    """Return whether Spark orders and joins by values of a type: not by maps and variants."""
    return not any(word in kind.lower() for word in ("map<", "variant"))


def incomparable(kind: str) -> str:
    """Say why a column of a type is no key."""
    return f"is {kind}, whose values cannot be compared; cast it"


def unstorable(kind: str) -> str:
    """Say why there is no column of a type."""
    return f"is {kind}, which a Delta table cannot store; cast it"
