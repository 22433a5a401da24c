"""Print results to stdout: tables of at most 100 columns for people, JSON for machines."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from tidelake.visible import visible, visible_json

_WIDTH = 100
# Below this a column cannot be read.
_NARROWEST = 8


def print_json(data: object) -> None:
    """Print one JSON document."""
    print(visible_json(json.dumps(for_json(data), ensure_ascii=False, allow_nan=False)))


def print_line(text: str) -> None:
    """Print one line."""
    print(visible(text))


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str | None = None
) -> None:
    """Print rows as a table, numbers to the right; one block a row where it would not fit."""
    kept = [list(row) for row in rows]
    columns = [visible(column) for column in columns]
    title = None if title is None else visible(title)
    console = Console(file=sys.stdout)
    width = min(console.width, _WIDTH) if sys.stdout.isatty() else _WIDTH
    if len(columns) * _NARROWEST > width:
        _print_blocks(columns, kept)
        return
    table = Table(title=title, box=SIMPLE_HEAD, title_justify="left", title_style="bold")
    for index, column in enumerate(columns):
        numeric = bool(kept) and all(
            isinstance(row[index], int | float | Decimal) or row[index] is None for row in kept
        )
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in kept:
        table.add_row(*[cell(value) for value in row])
    Console(file=sys.stdout, width=width, markup=False, highlight=False).print(table)


def _print_blocks(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    longest = max(len(column) for column in columns)
    for number, row in enumerate(rows, start=1):
        print(f"row {number}")
        for column, value in zip(columns, row, strict=True):
            print(f"  {column:<{longest}}  {cell(value)}")


def for_json(value: object) -> object:
    """Make a value fit for JSON: text for what JSON has no form for, null for NaN."""
    if isinstance(value, dict):
        return {str(_plain(key)): for_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [for_json(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    return _plain(value)


def cell(value: object) -> str:
    """Write a value the way people read it, in one line."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.3f}"
    return visible(str(_plain(value)))


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        precision = "microseconds" if value.microsecond % 1000 else "milliseconds"
        written = value.isoformat(sep=" ", timespec=precision if value.microsecond else "seconds")
        return written.replace("+00:00", "Z")
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode("utf-8", errors="backslashreplace")
    return str(value)
