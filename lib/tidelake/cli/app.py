"""The commands of ``tidelake``.

What is slow to import waits inside the command that needs it, so that ``--help`` answers at once.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict
from typing import Literal

import click

from tidelake import __version__
from tidelake.cli.alerting import alerts
from tidelake.cli.asking import sql
from tidelake.cli.backfilling import backfill
from tidelake.cli.broker import kafka
from tidelake.cli.checking import check
from tidelake.cli.describing import dictionary
from tidelake.cli.erasing import erase
from tidelake.cli.failures import say
from tidelake.cli.fast import fast
from tidelake.cli.flow import run_dimensions, run_pipeline
from tidelake.cli.init import init
from tidelake.cli.maintaining import maintain
from tidelake.cli.options import Place, as_json, of_pipeline, place, placed
from tidelake.cli.render import print_json, print_table
from tidelake.cli.repairing import repair
from tidelake.cli.reports import show_batches, show_gold, show_ledger, show_status, tops_of
from tidelake.cli.serving import serve
from tidelake.cli.sides import late, quarantine
from tidelake.cli.tracing import fate
from tidelake.cli.ui import ui
from tidelake.cli.verifying import verify
from tidelake.config.addresses import address_of, is_address
from tidelake.config.places import DEFAULT_PIPELINE
from tidelake.errors import UnbalancedError, UsageError
from tidelake.runtime.triggers import AVAILABLE_NOW
from tidelake.store.folders import folder, is_stored
from tidelake.tables import HOPS, Hop
from tidelake.typed import Typed

_DEMO_EVENTS = {"clickstream": 200_000, "payments": 50_000}


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="tidelake")
def app() -> None:
    """Streaming medallion pipelines on Delta Lake that can prove they lost nothing."""


@app.command()
@click.argument("pipeline", default=DEFAULT_PIPELINE)
@click.option("--events", type=click.IntRange(min=1), help="How many records to generate.")
@click.option("--seed", default=1, show_default=True, help="Chooses one stream among many.")
@as_json
@placed
def demo(
    pipeline: str,
    events: int | None,
    seed: int,
    json_: bool,
    root: str | None,
    env: str | None,
) -> None:
    """Generate a stream, run it through all hops and show what came out."""
    from tidelake.generators import generate as write_stream  # noqa: PLC0415
    from tidelake.ops.ledger import read_ledger  # noqa: PLC0415

    where = place(root, env)
    landing = where.lake.root / "landing" / pipeline
    definition = where.pipeline(pipeline, source=str(landing))
    count = events or _DEMO_EVENTS.get(pipeline, 0)
    for dimension in definition.dimensions:
        changes = where.lake.root / "landing" / dimension
        write_stream(dimension, changes, events=0, seed=seed)
    summary = write_stream(pipeline, landing, events=count, seed=seed, progress=say)
    say(f"{summary.records:,} records in {summary.files} files under {landing}")
    dimensions = tuple(definition.dimensions.values())
    run_pipeline(where, definition, HOPS, AVAILABLE_NOW, first=dimensions)
    ledger = read_ledger(where.lake, definition)
    tops = tops_of(where.lake, definition)
    if json_:
        gold = {name: answer.as_dicts() for name, answer in tops.items()}
        print_json({"ledger": ledger.to_json(), "gold": gold})
    else:
        show_ledger(ledger, where.typed, pipeline)
        show_gold(tops)
    commands = (
        where.typed(f'tidelake sql "SELECT * FROM {definition.gold_names[0]} LIMIT 10"'),
        where.typed(
            f'tidelake sql "SELECT stage, reasons, count(*) FROM silver.{pipeline}__quarantine '
            'GROUP BY ALL"'
        ),
        where.typed("tidelake ledger", pipeline),
        where.typed("tidelake status", pipeline),
    )
    say("Where to look next:\n" + "\n".join(f"  {command}" for command in commands))
    _refuse_unbalanced(ledger.problems, where, pipeline)


@app.command()
@click.argument("pipeline")
@click.option(
    "--to",
    "target",
    required=True,
    metavar="DIR|s3://…|kafka://HOST:PORT/TOPIC",
    help="Where to write: files into a folder, or records into a topic.",
)
@click.option("--events", type=click.IntRange(min=1), help="How many records.")
@click.option("--seed", default=1, show_default=True, help="Chooses one stream among many.")
@as_json
@placed
def generate(
    pipeline: str,
    target: str,
    events: int | None,
    seed: int,
    json_: bool,
    root: str | None,
    env: str | None,
) -> None:
    """Write a reference pipeline's stream as JSON."""
    from tidelake.generators import generate as write_stream  # noqa: PLC0415

    count = events or _DEMO_EVENTS.get(pipeline, 0)
    if is_address(target):
        from tidelake.kafka.generating import generate_into  # noqa: PLC0415

        summary = generate_into(pipeline, address_of(target), events=count, seed=seed, progress=say)
        written = f"{summary.records:,} records to {target}"
    else:
        summary = write_stream(pipeline, folder(target), events=count, seed=seed, progress=say)
        written = f"{summary.records:,} records in {summary.files} files under {target}"
    options = f"--source {shlex.quote(target)}"
    typed = Typed(root, env)
    say(f"{written}. Run them with: {typed('tidelake run', pipeline, options)}")
    if json_:
        told = {"pipeline": pipeline, "to": target} | asdict(summary)
        if is_address(target):
            # Of the files in between nothing is left.
            del told["files"], told["written"]
        print_json(told)
    else:
        print_table(["kind", "records"], sorted(summary.kinds.items()))


@app.command()
@click.argument("pipeline")
@click.option(
    "--source",
    metavar="PATH|s3://…|kafka://HOST:PORT/TOPIC",
    help="Read from here instead of the file's source.",
)
@click.option(
    "--hop",
    type=click.Choice([*HOPS, "all", "dimensions"]),
    default="all",
    show_default=True,
    help="Which of them; dimensions runs those that the pipeline looks up instead, whole.",
)
@click.option(
    "--trigger",
    show_default="the environment's, else available-now",
    metavar="WHEN",
    help="available-now, continuous, or an interval such as '10 seconds'.",
)
@placed
def run(
    pipeline: str,
    source: str | None,
    hop: str,
    trigger: str | None,
    root: str | None,
    env: str | None,
) -> None:
    """Run a pipeline's hops; by default until the source is exhausted through gold."""
    where = place(root, env)
    definition = where.pipeline(pipeline, source=source)
    if hop == "dimensions":
        if source is not None:
            raise UsageError("--source is the pipeline's; each dimension has its own. Leave it out")
        run_dimensions(where, definition, trigger or AVAILABLE_NOW, called=pipeline)
        return
    hops: tuple[Hop, ...] = tuple(name for name in HOPS if hop in (name, "all"))
    usual: str = getattr(where.environment.triggers, hop)
    run_pipeline(where, definition, hops, trigger or usual, called=pipeline)
    say(f"Done. See the books with: {where.typed('tidelake ledger', pipeline)}")


@app.command()
@of_pipeline
@as_json
@placed
def status(pipeline: str, json_: bool, root: str | None, env: str | None) -> None:
    """Show how far each hop has come and how far it lags."""
    from tidelake.ops.status import read_status  # noqa: PLC0415

    where = place(root, env)
    found = read_status(where.lake, where.pipeline(pipeline))
    if json_:
        print_json(found.to_json())
    else:
        show_status(found)


@app.command()
@of_pipeline
@click.option("--by", type=click.Choice(["batch", "day"]), help="One line a batch, or a day.")
@as_json
@placed
def ledger(
    pipeline: str,
    by: Literal["batch", "day"] | None,
    json_: bool,
    root: str | None,
    env: str | None,
) -> None:
    """Add up the books; exit 3 when they do not balance."""
    from tidelake.ops.ledger import read_ledger  # noqa: PLC0415
    from tidelake.ops.lines import books_by  # noqa: PLC0415

    where = place(root, env)
    books = read_ledger(where.lake, where.pipeline(pipeline))
    lines = books_by(books.batches, by) if by else []
    if json_:
        print_json(
            books.to_json() | ({f"by_{by}": [line.to_json() for line in lines]} if by else {})
        )
    elif by:
        show_batches(books, lines)
    else:
        show_ledger(books, where.typed, pipeline)
    _refuse_unbalanced(books.problems, where, pipeline)


@app.command()
@click.option("--fetch", is_flag=True, help="Fetch the jars that the cache lacks first.")
@as_json
@placed
def doctor(fetch: bool, json_: bool, root: str | None, env: str | None) -> int:
    """Check the machine, or the catalog; each failing line says the remedy."""
    from tidelake.jars import ensure_jars, read_lock, store_lock  # noqa: PLC0415
    from tidelake.ops.doctor import examine_lake  # noqa: PLC0415

    where = place(root, env)
    if fetch:
        ensure_jars()
        if is_stored(where.lake.root):
            ensure_jars(read_lock(store_lock()))
    findings = examine_lake(where.lake)
    if json_:
        print_json(
            [
                {"what": f.what, "found": f.found, "well": f.well, "remedy": f.remedy}
                for f in findings
            ]
        )
    else:
        print_table(
            ["", "what", "found", "remedy"],
            [["ok" if f.well else "!!", f.what, f.found, f.remedy] for f in findings],
        )
    return 0 if all(finding.well for finding in findings) else 4


def _refuse_unbalanced(problems: Sequence[str], where: Place, pipeline: str) -> None:
    if problems:
        raise UnbalancedError(
            f"the books of {pipeline} do not balance. {problems[0]}. "
            f"See the batches with: {where.typed('tidelake ledger', pipeline, '--by batch')}"
        )


_BESIDE = (
    alerts,
    late,
    quarantine,
    check,
    repair,
    verify,
    backfill,
    maintain,
    erase,
    kafka,
    fast,
    init,
    ui,
    dictionary,
    fate,
    serve,
    sql,
)
for _command in _BESIDE:
    app.add_command(_command)
