"""The commands ``status``, ``ledger`` and ``doctor``."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill
from typing import TYPE_CHECKING, Literal

import click

from tidelake.cli.exits import say
from tidelake.cli.options import Place, as_json, located, of_pipeline
from tidelake.cli.render import print_json, print_line, print_table
from tidelake.config import Pipeline
from tidelake.config.pipeline import selected_columns
from tidelake.delta.tables import Lake
from tidelake.errors import UnbalancedError
from tidelake.typed import Typed

if TYPE_CHECKING:
    # These modules import Spark, which not every command needs.
    from tidelake.ledger.query import Answer
    from tidelake.ledger.terms import Ledger
    from tidelake.ops.status import SourceLag, Status

_TOP = 3
# Partitions shown; --json lists all.
_PARTITIONS = 20
_TIME = "%Y-%m-%d %H:%M:%SZ"
_Rows = Sequence[Sequence[object]]


@click.command()
@of_pipeline
@as_json
@located
def status(pipeline: str, json_: bool, where: Place) -> None:
    """Show the progress and lag of each hop."""
    from tidelake.ops.status import read_status  # noqa: PLC0415

    found = read_status(where.lake, where.pipeline(pipeline))
    if json_:
        print_json(found.to_json())
    else:
        _show_status(found)


@click.command()
@of_pipeline
@click.option(
    "--by", type=click.Choice(["batch", "day"]), help="Show one line per batch or per day."
)
@as_json
@located
def ledger(pipeline: str, by: Literal["batch", "day"] | None, json_: bool, where: Place) -> None:
    """Print the ledger; exit 3 if it does not balance."""
    from tidelake.ledger.terms import ledger_by, read_ledger  # noqa: PLC0415

    found = read_ledger(where.lake, where.pipeline(pipeline))
    lines = ledger_by(found.batches, by) if by else []
    if json_:
        print_json(
            found.to_json() | ({f"by_{by}": [line.to_json() for line in lines]} if by else {})
        )
    elif by:
        columns = ["", "taken", "silver", "dup", "quarant.", "late", "filtered"]
        columns += ["requeued", "until"]
        fates = ("silver", "duplicate", "quarantined", "late", "filtered")
        rows = [
            [
                line.name,
                line.taken,
                *(line.fates[fate] for fate in fates),
                line.returned,
                f"{line.closed_at:{_TIME}}",
            ]
            for line in lines
        ]
        _print_ledger(found, columns, rows)
    else:
        show_ledger(found, where.typed, pipeline)
    refuse_unbalanced(found.problems, where.typed, pipeline)


@click.command()
@click.option("--fetch", is_flag=True, help="First fetch the jars that the cache lacks.")
@click.option(
    "--archive", is_flag=True, help="Archive Spark's classes for faster starts (1 minute)."
)
@as_json
@located
def doctor(fetch: bool, archive: bool, json_: bool, where: Place) -> int:
    """Check the machine or catalog; failures name a remedy."""
    from tidelake.ops.doctor import examine_lake  # noqa: PLC0415
    from tidelake.spark.jars import ensure_jars, jars_for  # noqa: PLC0415
    from tidelake.spark.java import make_archive  # noqa: PLC0415

    if fetch:
        ensure_jars(jars_for(where.lake.root))
    if archive:
        say(f"Archived Spark's classes in {make_archive(ensure_jars())}")
    findings = examine_lake(where.lake)
    if json_:
        keys = ("what", "found", "well", "remedy")
        print_json([{key: getattr(finding, key) for key in keys} for finding in findings])
    else:
        print_table(
            ["", "what", "found", "remedy"],
            [["ok" if f.well else "!!", f.what, f.found, f.remedy] for f in findings],
        )
    return 0 if all(finding.well for finding in findings) else 4


def show_ledger(ledger: Ledger, typed: Typed, pipeline: str) -> None:
    """Print the ledger: source, bronze, the fates of its rows, gold, and problems."""
    terms = ledger.to_json()
    stages = ", ".join(f"{stage} {rows:,}" for stage, rows in ledger.stages.items())
    discarded = f"; {ledger.discarded:,} of them discarded" if ledger.discarded else ""
    source = "records in the source"
    if ledger.topics:
        offsets = terms["source_offsets"]
        source += f", at {offsets['offered']:,} offsets ({offsets['without_record']:,} without one)"
    rows = [
        ["source", terms["source"], source],
        ["erased", terms["erased"], "records removed by an erasure"],
        ["bronze", terms["bronze"], "rows, each payload verbatim"],
        ["  silver", terms["silver"], "accepted events"],
        ["  duplicates", terms["duplicates"], "copies of an accepted event"],
        ["  quarantined", terms["quarantined"], (stages or "none") + discarded],
        ["  late", terms["late"], f"too late: {typed('tidelake late list', pipeline)}"],
        ["  filtered", terms["filtered"], "excluded by the pipeline's where"],
        ["  pending", terms["pending"], "not yet read by silver"],
        ["  requeued", terms["requeued"], "requeued, not yet read by silver"],
    ]
    gold = [[name, term.expected, term.counted] for name, term in ledger.gold.items()]
    _print_ledger(ledger, ["term", "rows", ""], rows, gold)


def _print_ledger(ledger: Ledger, columns: Sequence[str], rows: _Rows, gold: _Rows = ()) -> None:
    verdict = "balanced" if ledger.balanced else "NOT BALANCED"
    print_table(columns, rows, title=f"Ledger of {ledger.pipeline}: {verdict}")
    if gold:
        print_table(["gold table", "expected", "counted"], gold)
    for problem in ledger.problems:
        print_line(f"  !! {problem}")


def _show_status(status: Status) -> None:
    source_unit = "files" if status.source is None else "records"
    watermark = f"{status.watermark:{_TIME}}" if status.watermark else "none yet"
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
                else f"{hop.waiting:,} {'rows' if hop.hop != 'bronze' else source_unit}",
                f"{hop.last_commit:{_TIME}}" if hop.last_commit else None,
            ]
            for hop in status.hops
        ],
        title=f"{status.pipeline}: watermark {watermark}",
    )
    dedup = status.dedup
    if status.held_back_by is not None:
        idle = f"; idle: {', '.join(status.idle)}" if status.idle else ""
        print_line(f"  the watermark waits for source partition {status.held_back_by}{idle}")
    print_line(
        f"  the last batch searched {dedup.searched:,} ids for duplicates in {dedup.seconds:.1f} s"
    )
    if dedup.prefiltered is not None:
        print_line(f"  its prefilter held back {dedup.prefiltered:,} rows")
    for dimension in status.dimensions:
        at = f"at version {dimension.version}" if dimension.version >= 0 else "does not exist yet"
        print_line(f"  {dimension.table} {at}; {dimension.unmatched:,} rows of silver had no match")
    for rule, rows in status.warnings.items():
        print_line(f"  warning: {rows:,} rows of silver fail {rule}")
    for table, rows in status.failed.items():
        print_line(
            f"  {table}: an expression failed on {rows:,} events; its value is null for them"
        )
    if status.source is not None:
        _show_lag(status.source)


def _show_lag(source: SourceLag) -> None:
    shown = source.partitions[:_PARTITIONS]
    print_table(
        ["partition", "read up to", "end offset", "lag", ""],
        [[f"{p.topic}:{p.partition}", p.taken, p.end, p.lag, p.trend] for p in shown],
        title=f"Kafka at {source.checked_at:{_TIME}}: {source.lag:,} records wait",
    )
    if len(source.partitions) > len(shown):
        print_line(f"  and {len(source.partitions) - len(shown)} partitions more, with --json")
    if source.not_asked:
        note = f"as of the last batch; the broker was not asked: {source.not_asked}"
        print(fill(note, width=100, initial_indent="  ", subsequent_indent="  "))
    if source.rows_per_second is not None and source.arriving_per_second is not None:
        seconds = source.catch_up_seconds
        print(
            f"  bronze reads {source.rows_per_second:,.0f} rows/s while a batch runs, "
            f"{source.arriving_per_second:,.0f} rows/s arrive: "
            + ("never caught up" if seconds is None else f"caught up in {seconds:,.0f} s")
        )
    print_line(f"  {source.advice.text}")


def tops_of(lake: Lake, pipeline: Pipeline) -> dict[str, Answer]:
    """Read the first rows of each gold table, ordered by its first measure or by time."""
    from tidelake.ledger.query import ask  # noqa: PLC0415

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
    found: dict[str, Answer] = {}
    for name, (wanted, first) in tops.items():
        if lake.table(name).exists:
            shown = ", ".join(f'"{column}"' for column in wanted)
            query = f"SELECT {shown} FROM {name} ORDER BY {first}, {shown} LIMIT {_TOP}"
            found[name] = ask(lake, query)
    return found


def refuse_unbalanced(problems: Sequence[str], typed: Typed, pipeline: str) -> None:
    """Raise an UnbalancedError if the ledger has problems."""
    if problems:
        raise UnbalancedError(
            f"the ledger of {pipeline} does not balance. {problems[0]}. "
            f"See the batches with: {typed('tidelake ledger', pipeline, '--by batch')}"
        )
