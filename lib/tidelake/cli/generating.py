"""Reference streams: ``demo`` and ``generate``."""

from __future__ import annotations

import shlex
from dataclasses import asdict, replace

import click

from tidelake.cli.failures import say
from tidelake.cli.flow import run_pipeline
from tidelake.cli.options import Place, as_json, place, placed
from tidelake.cli.render import print_json, print_table
from tidelake.cli.reports import refuse_unbalanced, show_gold, show_ledger, tops_of
from tidelake.config.places import DEFAULT_PIPELINE
from tidelake.config.source import address_of, is_address
from tidelake.delta.tables import HOPS
from tidelake.folders import folder
from tidelake.runtime.triggers import AVAILABLE_NOW
from tidelake.typed import Typed

_EVENTS = {"clickstream": 200_000, "payments": 50_000}


@click.command()
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

    where = _in_small_batches(place(root, env))
    landing = where.lake.root / "landing" / pipeline
    definition = where.pipeline(pipeline, source=str(landing))
    count = events or _EVENTS.get(pipeline, 0)
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
    refuse_unbalanced(ledger.problems, where.typed, pipeline)


def _in_small_batches(where: Place) -> Place:
    """Let silver take the stream in several batches: in the first of them nothing is late."""
    limits = where.environment.limits.model_copy(update={"silver_bytes": "1m"})
    return replace(where, environment=where.environment.model_copy(update={"limits": limits}))


@click.command()
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

    count = events or _EVENTS.get(pipeline, 0)
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
