"""Write an answer as text: a table cut to the width, a block a row, CSV or JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from decimal import Decimal
from typing import Literal, get_args

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

from tidelake.cli.render import cell, for_json
from tidelake.ops.query import Answer
from tidelake.visible import visible, visible_json

Format = Literal["table", "vertical", "csv", "json"]
FORMATS: tuple[Format, ...] = get_args(Format)
# Between two columns, and on both sides.
_PADDING = 3
# Below this a column cannot be read.
_NARROWEST = 8


def laid_out(answer: Answer, how: Format, width: int) -> tuple[str, bool]:
    """Write an answer.

    Args:
        answer: Columns and rows.
        how: The format.
        width: Of the terminal, in characters.

    Returns:
        The text, and whether a table had to be cut to the width.
    """
    if how == "csv":
        return _as_csv(answer), False
    if how == "json":
        lines = [json.dumps(for_json(row), ensure_ascii=False) for row in answer.as_dicts()]
        return "".join(f"{visible_json(line)}\n" for line in lines), False
    if how == "vertical":
        return _as_blocks(answer), False
    return _as_table(answer, width)


def _as_csv(answer: Answer) -> str:
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(answer.columns)
    for row in answer.rows:
        writer.writerow(["" if value is None else for_json(value) for value in row])
    return written.getvalue()


def _as_blocks(answer: Answer) -> str:
    columns = [visible(column) for column in answer.columns]
    longest = max(map(len, columns), default=0)
    lines = []
    for number, row in enumerate(answer.rows, start=1):
        lines.append(f"row {number}")
        for column, value in zip(columns, row, strict=True):
            lines.append(f"  {column:<{longest}}  {cell(value)}")
    return "".join(f"{line}\n" for line in lines)


def _as_table(answer: Answer, width: int) -> tuple[str, bool]:
    cells = [[cell(value) for value in row] for row in answer.rows]
    fitting = max(1, width // (_NARROWEST + _PADDING))
    shown = [visible(column) for column in answer.columns[:fitting]]
    needed = [_needed(column, [row[index] for row in cells]) for index, column in enumerate(shown)]
    cut = len(shown) < len(answer.columns) or sum(needed) + _PADDING * len(shown) + 1 > width
    table = Table(box=SIMPLE_HEAD)
    for index, column in enumerate(shown):
        table.add_column(column, justify=_side(answer, index), no_wrap=True, overflow="ellipsis")
    for row in cells:
        table.add_row(*row[: len(shown)])
    written = io.StringIO()
    Console(file=written, width=width, markup=False, highlight=False).print(table)
    return "".join(f"{line.rstrip()}\n" for line in written.getvalue().splitlines()), cut


def _needed(column: str, cells: Sequence[str]) -> int:
    return max(cell_len(text) for text in (column, *cells))


def _side(answer: Answer, index: int) -> Literal["left", "right"]:
    values = [row[index] for row in answer.rows if row[index] is not None]
    return (
        "right" if values and all(isinstance(v, int | float | Decimal) for v in values) else "left"
    )
