"""The commands of ``tidelake``.

What is slow to import waits inside the command that needs it, so that ``--help`` answers at once.
"""

from __future__ import annotations

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
from tidelake.cli.generating import demo, generate
from tidelake.cli.init import init
from tidelake.cli.maintaining import maintain
from tidelake.cli.options import as_json, of_pipeline, place, placed
from tidelake.cli.render import print_json, print_table
from tidelake.cli.repairing import repair
from tidelake.cli.reports import refuse_unbalanced, show_batches, show_ledger, show_status
from tidelake.cli.serving import serve
from tidelake.cli.sides import late, quarantine
from tidelake.cli.tracing import fate
from tidelake.cli.ui import ui
from tidelake.cli.verifying import verify
from tidelake.delta.tables import HOPS, Hop
from tidelake.errors import UsageError
from tidelake.runtime.triggers import AVAILABLE_NOW


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="tidelake")
def app() -> None:
    """Streaming medallion pipelines on Delta Lake that can prove they lost nothing."""


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
    from tidelake.ops.ledger import books_by, read_ledger  # noqa: PLC0415

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
    refuse_unbalanced(books.problems, where.typed, pipeline)


@app.command()
@click.option("--fetch", is_flag=True, help="Fetch the jars that the cache lacks first.")
@click.option(
    "--archive",
    is_flag=True,
    help="Archive the classes that Spark loads, so that runs start sooner; takes a minute.",
)
@as_json
@placed
def doctor(fetch: bool, archive: bool, json_: bool, root: str | None, env: str | None) -> int:
    """Check the machine, or the catalog; each failing line says the remedy."""
    from tidelake.ops.doctor import examine_lake  # noqa: PLC0415
    from tidelake.spark.jars import ensure_jars, jars_for  # noqa: PLC0415
    from tidelake.spark.java import make_archive  # noqa: PLC0415

    where = place(root, env)
    if fetch:
        ensure_jars(jars_for(where.lake.root))
    if archive:
        say(f"Archived Spark's classes in {make_archive(ensure_jars())}")
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


_BESIDE = (
    demo,
    generate,
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
