"""What a sample's payloads become: the payload's schema, and silver's columns."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tidelake.config.expressions import columns_in, expression_problems
from tidelake.config.names import SILVER_RESERVED, is_column_name
from tidelake.config.types import Field, FieldType, quoted
from tidelake.errors import SourceError
from tidelake.scaffold.shapes import Shape, fields_of
from tidelake.scaffold.times import Clock, clock_of
from tidelake.scaffold.words import is_time

_DEEPEST = 4
_NOT_A_COLUMN = re.compile(r"[^A-Za-z0-9_]+")


@dataclass(frozen=True)
class Column:
    """One column of silver.

    Attributes:
        name: In silver.
        path: The field's, from the payload's top.
        sql: Gives the column's value, over the payload.
        type: The field's, before ``sql``.
        values: The field's in each record of the sample, None where it lacks it.
        clock: How it tells time; None where it does not.
        notes: What a reader should know.
    """

    name: str
    path: tuple[str, ...]
    sql: str
    type: FieldType
    values: tuple[object, ...]
    clock: Clock | None
    notes: tuple[str, ...]

    @property
    def is_scalar(self) -> bool:
        """Tell whether a value of it stands for itself, as a key or an id must."""
        return self.type.kind not in ("array", "map", "struct")

    @property
    def field(self) -> str:
        """The field as SQL over the payload, whatever ``sql`` makes of it."""
        return sql_name(*self.path)

    @property
    def shown(self) -> str:
        """The field as people name it."""
        return ".".join(self.path)


@dataclass(frozen=True)
class Payload:
    """What the payloads of a sample hold.

    Attributes:
        fields: The schema.
        columns: Silver's, in the same order; a struct's fields are columns of their own.
        notes: On fields that are left out.
    """

    fields: tuple[Field, ...]
    columns: tuple[Column, ...]
    notes: tuple[str, ...]

    def column(self, name: str) -> Column | None:
        """Find a column by its name, or by its field's."""
        wanted = name.strip().replace("`", "").lower()
        for column in self.columns:
            if wanted in (column.name.lower(), column.shown.lower()):
                return column
        return None


def payload_of(values: Sequence[Mapping[str, Any]]) -> Payload:
    """Infer schema and columns from the objects of a sample.

    Raises:
        SourceError: No field can stand in a schema.
    """
    fields: list[Field] = []
    columns: list[Column] = []
    notes: list[str] = []
    seen: set[str] = set()
    for name, shape in fields_of(values):
        why = _unfit(name, seen)
        if why:
            notes.append(f"{name!r} is left out: {why}")
            continue
        seen.add(name.lower())
        held = [value.get(name) for value in values]
        found = [_with_clock(one) for one in _leaves((name,), shape, held)]
        columns += found
        # An epoch with a fraction is no DOUBLE: its clock knows the exact type.
        kind = shape.type
        if len(found) == 1 and found[0].path == (name,):
            kind = found[0].type
        fields.append(Field(name, kind))
    if not fields:
        raise SourceError(f"the sample holds no field to make columns of. {'. '.join(notes)}")
    return Payload(tuple(fields), _named(columns), tuple(notes))


def _unfit(name: str, seen: Collection[str]) -> str:
    """Say why a field cannot stand in a schema; empty where it can."""
    if not name.strip() or not name.isprintable():
        return "no name that can be written"
    if name.startswith("_"):
        return "names beginning with _ are the system's own"
    return "another field has the name, in another case" if name.lower() in seen else ""


def _leaves(path: tuple[str, ...], shape: Shape, held: list[Any]) -> Iterator[Column]:
    inner = shape.type
    if inner.kind != "struct" or len(path) >= _DEEPEST:
        yield Column("", path, "", inner, tuple(held), None, shape.notes)
        return
    for field in inner.fields:
        below = [one.get(field.name) if isinstance(one, dict) else None for one in held]
        prefix = f"{field.name}: "
        notes = tuple(n.removeprefix(prefix) for n in shape.notes if n.startswith(prefix))
        yield from _leaves((*path, field.name), Shape(field.type, notes), below)


def _with_clock(column: Column) -> Column:
    """Find out how a column tells time; a number needs a name that says so, too."""
    clock = clock_of(column.values) if column.is_scalar else None
    name = column.path[-1]
    if clock is None or (clock.sql != "{0}" and clock.has_time and not is_time(name)):
        return replace(column, sql=column.field)
    nested = len(column.path) > 1
    if clock.type.kind == "decimal" and nested:
        # A struct's own type holds the field.
        clock = replace(
            clock, sql="timestamp_seconds(CAST({0} AS DECIMAL(20,6)))", type=column.type
        )
    sql = clock.sql if clock.has_time else "{0}"
    notes = (*column.notes, *(() if sql == "{0}" else (clock.words,)))
    if clock.note and clock.note not in notes:
        notes = (*notes, clock.note)
    return replace(column, sql=sql.format(column.field), type=clock.type, clock=clock, notes=notes)


def _named(columns: Sequence[Column]) -> tuple[Column, ...]:
    """Give each column a name that silver can bear and no other has."""
    silvers = {name.lower() for name in SILVER_RESERVED} - {"event_id", "event_time"}
    taken = set(silvers)
    named = []
    for column in columns:
        plain = _NOT_A_COLUMN.sub("_", "_".join(column.path)).strip("_") or "field"
        if not plain[0].isalpha():
            plain = f"field_{plain}"
        plain = plain[:60]
        name = f"payload_{plain}"[:60] if plain.lower() in silvers else plain
        number = 2
        while name.lower() in taken or not is_column_name(name):
            name = f"{plain[:56]}_{number}"
            number += 1
        taken.add(name.lower())
        named.append(replace(column, name=name))
    return tuple(named)


def sql_name(*path: str) -> str:
    """Write a field as SQL: bare where SQL then reads the same, else in backquotes."""
    bare = ".".join(path)
    plain = all(re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) for name in path)
    if plain and not expression_problems(bare, path[:1]) and columns_in(bare) == {path[0].lower()}:
        return bare
    return ".".join(map(quoted, path))
