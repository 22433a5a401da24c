"""Format output on stdout: tables, JSON and the result formats of the SQL prompt."""

from __future__ import annotations

import codecs
import csv
import io
import json
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import fields, is_dataclass
from datetime import datetime
from decimal import Decimal
from typing import IO, TYPE_CHECKING, Any, Literal, get_args

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

from tidelake.visible import visible, visible_json

if TYPE_CHECKING:
    # Imports Spark.
    from tidelake.ledger.query import Answer

Format = Literal["table", "vertical", "csv", "json"]
FORMATS: tuple[Format, ...] = get_args(Format)
_WIDTH = 100
# Minimum characters of a column.
_MIN_WIDTH = 8
# Characters between two columns, and in total at both edges.
_PADDING = 3
# Numbers outside of this range are written with an exponent, not with three decimals.
_LEAST, _MOST = 1e-3, 1e15
_ESCAPED = "tidelake_escaped"


def escape_on_stdout() -> None:
    r"""Print characters that the locale's encoding lacks as ``\u2581``, also valid in JSON."""
    codecs.register_error(_ESCAPED, _escape)
    # Tests and managed runtimes may replace the stream.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors=_ESCAPED)


def _escape(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


def print_json(data: object) -> None:
    """Print one JSON document."""
    print(_encoded(data))


def _encoded(data: object) -> str:
    return visible_json(json.dumps(for_json(data), ensure_ascii=False, allow_nan=False))


def print_line(text: str) -> None:
    """Print one line."""
    print(visible(text))


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str | None = None
) -> None:
    """Print rows as a table, or as one block per row if a table would be too wide."""
    kept = [list(row) for row in rows]
    columns = [visible(column) for column in columns]
    width = min(Console(file=sys.stdout).width, _WIDTH) if sys.stdout.isatty() else _WIDTH
    if len(columns) * _MIN_WIDTH > width:
        print(_blocks(columns, kept), end="")
    else:
        title = None if title is None else visible(title)
        _draw(columns, kept, sys.stdout, width, title=title, overflow="fold")


def _draw(
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    file: IO[str],
    width: int,
    *,
    title: str | None = None,
    **options: Any,
) -> None:
    """Draw a table of the leading columns; a column that holds only numbers is right-aligned."""
    table = Table(title=title, box=SIMPLE_HEAD, title_justify="left", title_style="bold")
    for column, *values in zip(columns, *rows, strict=False):
        numeric = all(value is None or isinstance(value, int | float | Decimal) for value in values)
        table.add_column(column, justify="right" if values and numeric else "left", **options)
    for row in rows:
        table.add_row(*map(cell, row[: len(columns)]))
    Console(file=file, width=width, markup=False, emoji=False, highlight=False).print(table)


def format_answer(answer: Answer, output_format: Format, width: int) -> tuple[str, bool]:
    """Format a query result; return the text and whether a table was truncated to the width."""
    columns = [visible(column) for column in answer.columns]
    if output_format == "vertical":
        return _blocks(columns, answer.rows), False
    if output_format == "json":
        return "".join(f"{_encoded(row)}\n" for row in answer.as_dicts()), False
    buffer = io.StringIO()
    if output_format == "csv":
        writer = csv.writer(buffer, lineterminator="\n")
        writer.writerow(answer.columns)
        for row in answer.rows:
            writer.writerow(["" if value is None else _in_csv(value) for value in row])
        return buffer.getvalue(), False
    shown = columns[: max(1, width // (_MIN_WIDTH + _PADDING))]
    cells = [[cell(value) for value in row[: len(shown)]] for row in answer.rows]
    needed = sum(max(map(cell_len, column)) for column in zip(shown, *cells, strict=True))
    cut = len(shown) < len(columns) or needed + _PADDING * len(shown) + 1 > width
    _draw(shown, answer.rows, buffer, width, no_wrap=True, overflow="ellipsis")
    return "".join(f"{line.rstrip()}\n" for line in buffer.getvalue().splitlines()), cut


def _blocks(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    longest = max(map(len, columns), default=0)
    lines = []
    for number, row in enumerate(rows, start=1):
        lines.append(f"row {number}\n")
        for column, value in zip(columns, row, strict=True):
            lines.append(f"  {column:<{longest}}  {cell(value)}\n")
    return "".join(lines)


def for_json(value: object) -> object:
    """Convert a value for JSON: NaN and infinity become null, types unknown to JSON text."""
    if is_dataclass(value):
        return {item.name: for_json(getattr(value, item.name)) for item in fields(value)}
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
    """Format a value as one line of text."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        is_usual = value == 0 or not math.isfinite(value) or _LEAST <= abs(value) < _MOST
        return f"{value:,.3f}" if is_usual else str(value)
    if isinstance(value, list | tuple | dict):
        value = _encoded(value)
    return visible(str(_plain(value)))


def _in_csv(value: object) -> object:
    """Convert a value for CSV, where DuckDB writes ``true``; a list, struct or map becomes JSON."""
    if isinstance(value, bool):
        return str(value).lower()
    return _encoded(value) if isinstance(value, list | tuple | dict) else for_json(value)


def to_second(moment: datetime | None) -> str | None:
    """Format an instant in UTC, to the second."""
    return f"{moment:%Y-%m-%d %H:%M:%SZ}" if moment else None


def to_minute(moment: datetime | None) -> str | None:
    """Format an instant in UTC, to the minute."""
    return f"{moment:%Y-%m-%d %H:%MZ}" if moment else None


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


def counted(rows: int) -> str:
    """Return ``1 row`` or ``2,000 rows``."""
    return "1 row" if rows == 1 else f"{rows:,} rows"
