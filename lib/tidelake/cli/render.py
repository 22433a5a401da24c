"""Print results to stdout: tables of at most 100 columns for people, JSON for machines."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

_WIDTH = 100


def print_json(data: object) -> None:
    """Print one JSON document."""
    print(json.dumps(data, default=_plain, ensure_ascii=False))


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str | None = None
) -> None:
    """Print rows as a table; numbers to the right."""
    kept = [list(row) for row in rows]
    table = Table(title=title, box=SIMPLE_HEAD, title_justify="left", title_style="bold")
    for index, column in enumerate(columns):
        numeric = bool(kept) and all(
            isinstance(row[index], int | float | Decimal) or row[index] is None for row in kept
        )
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in kept:
        table.add_row(*[cell(value) for value in row])
    console = Console(file=sys.stdout)
    width = min(console.width, _WIDTH) if sys.stdout.isatty() else _WIDTH
    Console(file=sys.stdout, width=width, markup=False, highlight=False).print(table)


def cell(value: object) -> str:
    """Write a value the way people read it."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.3f}"
    return str(_plain(value))


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        precision = "microseconds" if value.microsecond % 1000 else "milliseconds"
        written = value.isoformat(sep=" ", timespec=precision if value.microsecond else "seconds")
        return written.replace("+00:00", "Z")
    if isinstance(value, date | Decimal):
        return str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode("utf-8", errors="backslashreplace")
    return str(value)
