"""Write the data dictionary of pipelines as a page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tidelake.config import Pipeline
from tidelake.config.dictionary import TableEntry, entries_of, shared_entries

_HEAD = """\
# Data dictionary

Every table of these pipelines, as their files define it: what a row is, what each column means, and a query to begin with (`tidelake sql "…"`). Columns that begin with `_` are the system's own. Instants are UTC. This page is written by `tidelake dictionary`.
"""  # noqa: E501  a paragraph is a line


# No pipeline can have this name.
SHARED = "All pipelines"


def to_markdown(pipelines: Iterable[Pipeline], *, with_shared: bool) -> str:
    """Write a page: a section a pipeline, a part a table; last, where wanted, the shared tables."""
    lines = [_HEAD]
    for pipeline in pipelines:
        lines.append(f"## {pipeline.name}\n")
        if pipeline.description:
            lines.append(f"{pipeline.description}\n")
        for entry in entries_of(pipeline):
            lines += _part(entry)
    if with_shared:
        lines.append(f"## {SHARED}\n\nTables that all pipelines write to.\n")
        for entry in shared_entries():
            lines += _part(entry)
    return "\n".join(lines)


def _part(entry: TableEntry) -> Iterator[str]:
    yield f"### {entry.table}\n"
    told = [entry.description]
    if entry.keys:
        told.append(f"Rows are told apart by {_listed(entry.keys)}.")
    if entry.window:
        told.append(f"Time: {entry.window}.")
    yield " ".join(told) + "\n"
    yield "| column | type | meaning |\n|---|---|---|"
    for column in entry.columns:
        kind = column.type or ""
        # A type in angle brackets would be taken for HTML.
        kind = f"`{kind}`" if "<" in kind else kind
        yield f"| `{column.name}` | {kind} | {_cell(column.meaning)} |"
    yield f"\n```sql\n{entry.example}\n```\n"


def _listed(names: Sequence[str]) -> str:
    *most, last = (f"`{name}`" for name in names)
    return f"{', '.join(most)} and {last}" if most else last


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
