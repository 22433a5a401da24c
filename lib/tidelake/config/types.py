"""Types of a payload's fields, as Spark's DDL names them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, get_args

Kind = Literal[
    "string",
    "boolean",
    "tinyint",
    "smallint",
    "int",
    "bigint",
    "float",
    "double",
    "decimal",
    "date",
    "timestamp",
    "timestamp_ntz",
    "binary",
    "array",
    "map",
    "struct",
]
KINDS: tuple[Kind, ...] = get_args(Kind)
SYNONYMS: dict[str, Kind] = {
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "real": "float",
    "dec": "decimal",
    "numeric": "decimal",
    "timestamp_ltz": "timestamp",
}
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


def quoted(name: str) -> str:
    """Give a name in backquotes, whatever it holds."""
    return "`" + name.replace("`", "``") + "`"


@dataclass(frozen=True)
class Field:
    """A named part of a payload or of a struct."""

    name: str
    type: FieldType


@dataclass(frozen=True)
class FieldType:
    """A type, with the types inside it.

    Attributes:
        kind: The outermost type.
        precision: Of a decimal: digits in all.
        scale: Of a decimal: digits after the point.
        element: Of an array.
        key: Of a map; always a string.
        value: Of a map.
        fields: Of a struct, in order.
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
