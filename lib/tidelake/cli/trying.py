"""Commands for trying out: ``demo``, ``generate``, and ``kafka``, a local broker."""

from __future__ import annotations

import shlex
import tempfile
from dataclasses import asdict, replace
from pathlib import Path

import click

from tidelake.cli.exits import say, say_next
from tidelake.cli.flow import exit_code_of, run_pipelines
from tidelake.cli.init import SOURCE, Given
from tidelake.cli.options import Place, as_json, located, placed, port_option, unwritten
from tidelake.cli.render import print_line, print_table
from tidelake.cli.reports import refuse_unbalanced, show_ledger, tops_of
from tidelake.config.loading import Address, address_of, is_address
from tidelake.config.locations import DEFAULT_PIPELINE
from tidelake.delta.tables import HOPS
from tidelake.errors import UsageError
from tidelake.examples import Generated, missing_in
from tidelake.examples import generate as write_stream
from tidelake.folders import folder as named_folder
from tidelake.kafka.broker import down as stop_broker
from tidelake.kafka.broker import up as start_broker
from tidelake.kafka.client import produce
from tidelake.names import logical_name
from tidelake.runtime.triggers import AVAILABLE_NOW, parse_trigger
from tidelake.typed import runnable

_EVENTS = {"clickstream": 200_000, "payments": 50_000}
_seed = click.option("--seed", default=1, show_default=True, help="Random seed of the stream.")


@click.command()
@click.argument("pipeline", default=DEFAULT_PIPELINE)
@click.option("--events", type=click.IntRange(min=1), help="Number of records to generate.")
@_seed
@as_json
@located
def demo(events: int | None, seed: int, where: Place) -> int:
    """Generate a stream, run all hops and show the results."""
    from tidelake.ledger.terms import read_ledger  # noqa: PLC0415

    # Small silver batches: no event is late in the first batch, which has no watermark. For a short
    # stream the limit is below the size of each of bronze's four batches.
    size = "1m" if events is None else f"{min(1024, max(16, events // 125))}k"
    limits = where.environment.limits.model_copy(update={"silver_bytes": size})
    environment = where.environment.model_copy(update={"limits": limits})
    pipeline, landings = where.called, where.lake.root / "landing"
    landing = landings / pipeline
    where = replace(where, environment=environment, source=str(landing))
    definition = where.pipeline
    for dimension in definition.dimensions:
        write_stream(dimension, landings / dimension, events=0, seed=seed)
    count = events or _EVENTS.get(pipeline, 0)
    summary = write_stream(pipeline, landing, events=count, seed=seed, progress=say)
    say(f"{summary.records:,} records in {summary.files} files in {landing}")
    # As any several pipelines, of which the user names none.
    several = replace(where, typed=replace(where.typed, called=None))
    pipelines = [*definition.dimensions.values(), definition]
    results = run_pipelines(several, pipelines, HOPS, parse_trigger(AVAILABLE_NOW))
    if code := exit_code_of(results):
        return code
    ledger = read_ledger(where.lake, definition)
    tops = tops_of(where.lake, definition)
    gold = {name: answer.as_dicts() for name, answer in tops.items()}
    if not where.printed({"ledger": ledger.to_json(), "gold": gold}):
        show_ledger(ledger, where)
        for name, answer in tops.items():
            print_table(answer.columns, answer.rows, title=name)
    newest = (*definition.gold_names, logical_name("silver", pipeline))[0]
    quarantine = logical_name("silver", pipeline, "quarantine")
    commands = (
        where.typed(f'tidelake sql "SELECT * FROM {newest} LIMIT 10"'),
        where.typed(
            f'tidelake sql "SELECT stage, reasons, count(*) FROM {quarantine} GROUP BY ALL"'
        ),
        where.command("ledger"),
        where.command("status"),
    )
    say_next(commands)
    refuse_unbalanced(ledger.problems, where)
    return 0


@click.command()
@click.argument("pipeline")
@click.option(
    "--to",
    "target",
    type=SOURCE,
    required=True,
    metavar="DIR|s3://…|kafka://HOST:PORT/TOPIC",
    help="Target: a folder for files, or a topic for records.",
)
@click.option("--events", type=click.IntRange(min=1), help="Number of records.")
@_seed
@unwritten
@as_json
@placed
def generate(target: str, events: int | None, seed: int, dry_run: bool, where: Place) -> None:
    """Write an example pipeline's stream as JSON."""
    name = where.called
    count = events or _EVENTS.get(name, 0)
    if dry_run:
        _show_stream(name, target, count, seed, where)
        return
    if is_address(target):
        summary = _produce_stream(name, address_of(target), events=count, seed=seed)
        written = f"{summary.records:,} records to {target}"
        # The intermediate files were temporary.
        counts: dict[str, object] = {"records": summary.records, "kinds": summary.kinds}
    else:
        summary = write_stream(name, named_folder(target), events=count, seed=seed, progress=say)
        written = f"{summary.records:,} records in {summary.files} files in {target}"
        counts = asdict(summary)
    command = where.command("run", f"--source {shlex.quote(target)}")
    say(f"{written}. Run them with: {command}")
    if not where.printed({"pipeline": name, "to": target} | counts):
        print_table(["kind", "records"], sorted(summary.kinds.items()))


def _show_stream(pipeline: str, target: str, events: int, seed: int, where: Place) -> None:
    """List the files that ``generate`` would write, or the records; write only temporary files."""
    paths: list[str] = []
    with tempfile.TemporaryDirectory(prefix="tidelake-") as landing:
        summary = write_stream(pipeline, Path(landing), events=events, seed=seed)
        if is_address(target):
            # Refuses an address that is none.
            address_of(target)
        else:
            content = {file.name: file.read_bytes() for file in sorted(Path(landing).iterdir())}
            folder = named_folder(target)
            paths = [str(folder / name) for name in missing_in(folder, content)]
    document = {"pipeline": pipeline, "to": target, "records": summary.records}
    if where.printed(document | {"kinds": summary.kinds, "paths": paths, "dry_run": True}):
        return
    for path in paths:
        print_line(path)
    files = "" if is_address(target) else f" in {len(paths)} files"
    say(f"{summary.records:,} records{files} would be written to {target}. Nothing was written.")


def _produce_stream(pipeline: str, to: Address, *, events: int, seed: int) -> Generated:
    """Produce the lines of the generated files to a topic, in file order."""
    with tempfile.TemporaryDirectory(prefix="tidelake-") as landing:
        summary = write_stream(pipeline, Path(landing), events=events, seed=seed)
        lines = (
            line
            for file in sorted(Path(landing).iterdir())
            for line in file.read_bytes().split(b"\n")[:-1]
        )
        produce(to, lines, progress=say)
    return summary


@click.group()
def kafka() -> None:
    """Run a Kafka broker on this machine, to try things out."""


_folder = click.option(
    "--dir",
    "folder",
    type=Given(path_type=Path, file_okay=False),
    help="Folder of the topics; default: kafka in the root.",
)


def _broker_folder(folder: Path | None, where: Place) -> Path:
    if folder is not None:
        return folder
    root = where.lake.root
    if not isinstance(root, Path):
        raise UsageError(f"a broker needs a local folder, not {root}. Give one with --dir.")
    return root / "kafka"


@kafka.command()
@port_option(
    default=9092, type=click.IntRange(0, 65535), help="Port to listen on; 0 for any free port."
)
@_folder
@as_json
@placed
def up(port: int, folder: Path | None, where: Place) -> None:
    """Start a broker in the background."""
    broker = start_broker(_broker_folder(folder, where), port)
    found = {"bootstrap": broker.bootstrap, "process": broker.process, "dir": str(broker.folder)}
    if where.printed(found):
        return
    say(
        f"Kafka is running at {broker.bootstrap}, process {broker.process}. "
        f"Stop it with: {runnable('tidelake kafka down --dir', str(broker.folder))}"
    )


@kafka.command()
@_folder
@as_json
@placed
def down(folder: Path | None, where: Place) -> None:
    """Stop the broker; its topics are kept."""
    kept = _broker_folder(folder, where)
    stopped = stop_broker(kept)
    if where.printed({"stopped": stopped, "dir": str(kept)}):
        return
    say(f"Stopped. Topics are kept in {kept}" if stopped else f"No broker runs in {kept}")
