"""The commands of ``fast``: alerts at once, and what became of them."""

from __future__ import annotations

from dataclasses import replace

import click

from tidelake.cli.failures import say
from tidelake.cli.flow import started
from tidelake.cli.options import Place, as_json, place, placed
from tidelake.cli.render import print_json, print_table
from tidelake.config import Detection, Pipeline
from tidelake.config.gold import FastLane
from tidelake.errors import NotBuiltError, UsageError

# In real-time mode each partition of the topic keeps a slot for itself.
_SLOTS = 16


@click.group()
def fast() -> None:
    """Send alerts within milliseconds, and hold them against the tables."""


@fast.command()
@click.argument("pipeline")
@click.option(
    "--source",
    metavar="PATH|kafka://HOST:PORT/TOPIC",
    help="Read from here instead of the file's source.",
)
@placed
def run(pipeline: str, source: str | None, root: str | None, env: str | None) -> None:
    """Follow a source and send alerts until stopped; begins with the newest records."""
    from tidelake.delta.locks import hold  # noqa: PLC0415

    where = _place(root, env)
    definition = where.pipeline(pipeline, source=source)
    detection, lane = fast_lane(definition)
    folder = where.lake.fast(detection.name)
    with (
        hold(
            folder,
            f"{definition.name}, fast lane of {detection.name},",
            optional=not where.lake.needs_locks,
        ),
        started(_with_slots(where), definition) as context,
    ):
        from tidelake.runtime.fast_lane import Lane  # noqa: PLC0415

        Lane(context, detection, lane).go()


@fast.command()
@click.argument("pipeline")
@as_json
@placed
def reconcile(pipeline: str, json_: bool, root: str | None, env: str | None) -> None:
    """Confirm or retract each alert of the fast lane, and list what it missed."""
    where = _place(root, env)
    definition = where.pipeline(pipeline)
    detection, lane = fast_lane(definition)
    with started(where, definition) as context:
        from tidelake.runtime.fast_lane import VERDICTS  # noqa: PLC0415
        from tidelake.runtime.fast_lane import reconcile as judge  # noqa: PLC0415

        found = judge(context, detection, lane)
    if json_:
        print_json({"detection": detection.name, "table": found.table, "rules": found.counts})
        return
    rows = [[rule, *(counts[one] for one in VERDICTS)] for rule, counts in found.counts.items()]
    print_table(["rule", *VERDICTS], rows, title=f"Fast alerts of {detection.name}")
    query = f"SELECT * FROM {found.table} WHERE verdict = 'missed'"
    asked = where.typed(f'tidelake sql "{query}"')
    say(f"See each with: {asked}")


def fast_lane(pipeline: Pipeline) -> tuple[Detection, FastLane]:
    """Find the detection of a pipeline that has a fast lane.

    Raises:
        UsageError: None has, or several.
    """
    found = [(one, one.fast) for one in pipeline.detections if one.fast]
    if len(found) != 1:
        raise UsageError(
            f"{pipeline.file}: {len(found)} detections have a fast lane, and it takes one: write "
            "fast: {topic: …} under it"
        )
    return found[0]


def _with_slots(where: Place) -> Place:
    environment = where.environment
    if environment.master != "local[*]":
        return where
    return replace(where, environment=environment.model_copy(update={"master": f"local[{_SLOTS}]"}))


def _place(root: str | None, env: str | None) -> Place:
    """Resolve where; the lane's own copies of tables lie in folders.

    Raises:
        NotBuiltError: In a catalog.
    """
    where = place(root, env)
    if where.lake.catalog is not None:
        raise NotBuiltError("The fast lane on a catalog", "Give --root DIR to run it on paths.")
    return where
