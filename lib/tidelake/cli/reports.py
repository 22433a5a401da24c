"""Lay out the ledger, the status and the top of the gold tables."""

from __future__ import annotations

from tidelake.cli.render import print_table
from tidelake.config import GoldTable, Pipeline
from tidelake.ops.ledger import Ledger
from tidelake.ops.query import ask
from tidelake.ops.status import Status
from tidelake.tables import Lake

_TOP = 3


def show_ledger(books: Ledger) -> None:
    """Print the books: source, bronze and its fates, then gold."""
    told = books.to_json()
    rows = [
        ["source", told["source"], "records that the source held"],
        ["bronze", told["bronze"], "rows, each payload verbatim"],
        ["  silver", told["silver"], "accepted events"],
        ["  duplicates", told["duplicates"], "copies of an accepted event"],
        ["  quarantined", told["quarantined"], f"see silver.{books.pipeline}__quarantine"],
        ["  late", told["late"], f"too late, see silver.{books.pipeline}__late"],
        ["  filtered", told["filtered"], "outside the pipeline's where"],
        ["  pending", told["pending"], "not yet taken by silver"],
    ]
    verdict = "balanced" if books.balanced else "NOT BALANCED"
    print_table(["term", "rows", ""], rows, title=f"Ledger of {books.pipeline}: {verdict}")
    if books.gold:
        print_table(
            ["gold table", "expected", "counted"],
            [[name, gold.expected, gold.counted] for name, gold in books.gold.items()],
        )


def show_status(status: Status) -> None:
    """Print each hop and the watermark."""
    mark = f"{status.watermark:%Y-%m-%d %H:%M:%SZ}" if status.watermark else "none yet"
    print_table(
        ["hop", "generation", "batch", "rows", "waiting", "last commit"],
        [
            [
                hop.hop,
                hop.generation,
                hop.batch,
                hop.rows,
                None
                if hop.waiting is None
                else f"{hop.waiting:,} {'files' if hop.hop == 'bronze' else 'rows'}",
                f"{hop.last_commit:%Y-%m-%d %H:%M:%SZ}" if hop.last_commit else None,
            ]
            for hop in status.hops
        ],
        title=f"{status.pipeline}: watermark {mark}",
    )


def show_gold(lake: Lake, pipeline: Pipeline) -> None:
    """Print the first rows of each gold table, the largest first."""
    for gold in pipeline.gold:
        table = lake.gold(gold.name)
        if not table.exists:
            continue
        columns = ", ".join(f'"{name}"' for name in _public(gold))
        largest = f'"{gold.measures[0].name}"'
        answer = ask(
            lake,
            f"SELECT {columns} FROM {table.name} "
            f"ORDER BY {largest} DESC NULLS LAST, {columns} LIMIT {_TOP}",
        )
        print_table(answer.columns, answer.rows, title=table.name)


def _public(gold: GoldTable) -> list[str]:
    """Name a table's columns as analysts read them, without the system's own."""
    bounds = {
        "tumbling": ["window_start", "window_end"],
        "hopping": ["window_start", "window_end"],
        "session": ["session_start", "session_end"],
        "global": [],
    }[gold.window.kind]
    return [*bounds, *gold.keys, *[measure.name for measure in gold.measures]]
