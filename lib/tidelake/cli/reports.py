"""Lay out the ledger, the status and the top of the gold tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import TYPE_CHECKING

from tidelake.cli.render import print_line, print_table
from tidelake.config import Pipeline
from tidelake.config.pipeline import selected_columns
from tidelake.delta.tables import Lake
from tidelake.errors import UnbalancedError
from tidelake.typed import Typed

if TYPE_CHECKING:
    # Spark comes with them, and not every command needs it.
    from tidelake.ops.lag import SourceLag
    from tidelake.ops.ledger import BooksLine, Ledger
    from tidelake.ops.query import Answer
    from tidelake.ops.status import Status

_TOP = 3
# The others would push the rest off the screen.
_PARTITIONS = 20


def show_ledger(books: Ledger, typed: Typed, pipeline: str) -> None:
    """Print the books: source, bronze and its fates, then gold, then what does not add up.

    Args:
        books: What to print.
        typed: Completes the command that lists late rows.
        pipeline: What the pipeline was called by.
    """
    told = books.to_json()
    stages = ", ".join(f"{stage} {rows:,}" for stage, rows in books.stages.items())
    given_up = f"; {books.discarded:,} of them discarded" if books.discarded else ""
    held = "records that the source held"
    if books.topics:
        offsets = told["source_offsets"]
        held += f", at {offsets['offered']:,} offsets ({offsets['without_record']:,} without one)"
    rows = [
        ["source", told["source"], held],
        ["erased", told["erased"], "records that an erasure took out"],
        ["bronze", told["bronze"], "rows, each payload verbatim"],
        ["  silver", told["silver"], "accepted events"],
        ["  duplicates", told["duplicates"], "copies of an accepted event"],
        ["  quarantined", told["quarantined"], (stages or "none") + given_up],
        ["  late", told["late"], f"too late: {typed('tidelake late list', pipeline)}"],
        ["  filtered", told["filtered"], "outside the pipeline's where"],
        ["  pending", told["pending"], "not yet taken by silver"],
        ["  requeued", told["requeued"], "sent again, not yet taken by silver"],
    ]
    verdict = "balanced" if books.balanced else "NOT BALANCED"
    print_table(["term", "rows", ""], rows, title=f"Ledger of {books.pipeline}: {verdict}")
    if books.gold:
        print_table(
            ["gold table", "expected", "counted"],
            [[name, gold.expected, gold.counted] for name, gold in books.gold.items()],
        )
    for problem in books.problems:
        print_line(f"  !! {problem}")


def show_batches(books: Ledger, lines: Sequence[BooksLine]) -> None:
    """Print the books of each batch or day."""
    verdict = "balanced" if books.balanced else "NOT BALANCED"
    columns = ["", "taken", "silver", "dup", "quarant.", "late", "filtered", "again", "until"]
    rows = [
        [
            line.name,
            line.taken,
            line.fates["silver"],
            line.fates["duplicate"],
            line.fates["quarantined"],
            line.fates["late"],
            line.fates["filtered"],
            line.returned,
            f"{line.closed_at:%Y-%m-%d %H:%M:%SZ}",
        ]
        for line in lines
    ]
    print_table(columns, rows, title=f"Ledger of {books.pipeline}: {verdict}")
    for problem in books.problems:
        print_line(f"  !! {problem}")


def show_status(status: Status) -> None:
    """Print each hop, the watermark and what holds it back."""
    offered = "files" if status.source is None else "records"
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
                else f"{hop.waiting:,} {'rows' if hop.hop != 'bronze' else offered}",
                f"{hop.last_commit:%Y-%m-%d %H:%M:%SZ}" if hop.last_commit else None,
            ]
            for hop in status.hops
        ],
        title=f"{status.pipeline}: watermark {mark}",
    )
    dedup = status.dedup
    if status.held_back_by is not None:
        idle = f"; idle: {', '.join(status.idle)}" if status.idle else ""
        print_line(f"  the watermark waits for source partition {status.held_back_by}{idle}")
    print_line(
        f"  the last batch searched {dedup.searched:,} ids for copies in {dedup.seconds:.1f} s"
    )
    if dedup.prefiltered is not None:
        print_line(f"  its prefilter held back {dedup.prefiltered:,} rows")
    for dimension in status.dimensions:
        at = f"at version {dimension.version}" if dimension.version >= 0 else "is not there yet"
        print_line(
            f"  {dimension.table} {at}; {dimension.unmatched:,} rows of silver found nothing"
        )
    for rule, rows in status.warnings.items():
        print_line(f"  warning: {rows:,} rows of silver fail {rule}")
    for table, rows in status.failed.items():
        print_line(f"  {table}: an expression failed on {rows:,} events, which count as null there")
    if status.source is not None:
        _show_lag(status.source)


def _show_lag(source: SourceLag) -> None:
    """Print the partitions, the largest lag first, and what to do."""
    shown = source.partitions[:_PARTITIONS]
    print_table(
        ["partition", "taken up to", "ends at", "lag", ""],
        [[f"{one.topic}:{one.partition}", one.taken, one.end, one.lag, one.trend] for one in shown],
        title=f"Kafka at {source.checked_at:%Y-%m-%d %H:%M:%SZ}: {source.lag:,} records wait",
    )
    if len(source.partitions) > len(shown):
        print_line(f"  and {len(source.partitions) - len(shown)} partitions more, with --json")
    if source.not_asked:
        told = f"as the last batch saw it; the broker was not asked: {source.not_asked}"
        print(fill(told, width=100, initial_indent="  ", subsequent_indent="  "))
    if source.rows_per_second is not None and source.arriving_per_second is not None:
        lasts = source.catch_up_seconds
        print(
            f"  bronze takes {source.rows_per_second:,.0f} rows/s while it works, "
            f"{source.arriving_per_second:,.0f} rows/s arrive: "
            + ("never caught up" if lasts is None else f"caught up in {lasts:,.0f} s")
        )
    print_line(f"  {source.advice.text}")


def tops_of(lake: Lake, pipeline: Pipeline) -> dict[str, Answer]:
    """Read the first rows of each table that gold fills."""
    from tidelake.ops.query import ask  # noqa: PLC0415

    found: dict[str, Answer] = {}
    for name, (columns, first) in _tops(pipeline).items():
        if not lake.table(name).exists:
            continue
        shown = ", ".join(f'"{column}"' for column in columns)
        query = f"SELECT {shown} FROM {name} ORDER BY {first}, {shown} LIMIT {_TOP}"
        found[name] = ask(lake, query)
    return found


def show_gold(tops: Mapping[str, Answer]) -> None:
    """Print the first rows of each table that gold fills."""
    for name, answer in tops.items():
        print_table(answer.columns, answer.rows, title=name)


def _tops(pipeline: Pipeline) -> dict[str, tuple[Sequence[str], str]]:
    """Give each table's columns, and what puts telling rows first."""
    tops: dict[str, tuple[Sequence[str], str]] = {}
    for gold in pipeline.gold:
        columns = [name for name in gold.columns if name != "session_id"]
        tops[f"gold.{gold.name}"] = columns, f'"{gold.measures[0].name}" DESC NULLS LAST'
    for join in pipeline.joins:
        columns = [*join.left.columns, *join.right.columns]
        tops[f"gold.{join.name}"] = columns, "_right_time IS NULL"
    for detection in pipeline.detections:
        columns = ["rule", "event_time", *detection.keys, "evidence"]
        tops[f"gold.{detection.name}"] = columns, "event_time DESC"
    if pipeline.dimension is not None:
        key, columns = pipeline.dimension.key, list(selected_columns(pipeline.event))
        for name in pipeline.gold_names:
            tops[name] = columns, ", ".join(f'"{column}"' for column in key)
    return tops


def refuse_unbalanced(problems: Sequence[str], typed: Typed, pipeline: str) -> None:
    """End with an error where books do not balance; arguments as for :func:`show_ledger`."""
    if problems:
        raise UnbalancedError(
            f"the books of {pipeline} do not balance. {problems[0]}. "
            f"See the batches with: {typed('tidelake ledger', pipeline, '--by batch')}"
        )
