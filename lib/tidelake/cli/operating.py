"""The commands ``alerts``, ``maintain``, ``doctor``, ``ui`` and ``serve``."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import click

from tidelake.cli.checking import no_tables
from tidelake.cli.exits import say
from tidelake.cli.flow import started, stop_on_signal
from tidelake.cli.options import (
    Place,
    as_json,
    changing,
    duration_option,
    host_option,
    located,
    port_option,
    reporting,
)
from tidelake.cli.render import print_json, print_line, print_table, to_minute, to_second
from tidelake.config.locations import pipeline_names
from tidelake.delta.locks import HopLocks, hold_upkeep
from tidelake.errors import NotBuiltError, UsageError
from tidelake.instants import now
from tidelake.typed import first_command

if TYPE_CHECKING:
    # Imports Spark.
    from tidelake.ops.maintenance import Done, Plan

_CRITICAL, _UNFIT = 3, 4
_PREVIEW = ("table", "keeps hours", "needed since", "by")
_DONE = ("table", "files before", "files", "deleted")
# How often ``serve`` registers new tables and new bounds of final rows.
_REFRESH_SECONDS = 10


@click.command()
@click.option("--tell", is_flag=True, help="Send changes since the last report.")
@reporting
def alerts(tell: bool, where: Place) -> int:
    """Show open alerts; exit 3 if any of them is critical."""
    from tidelake.ops.alert_delivery import AlertReporter, sender_of  # noqa: PLC0415
    from tidelake.ops.alerts import MEASURED, RULES, alerts_of  # noqa: PLC0415

    name = where.pipeline.name
    # Only `--tell` needs the webhook's secret.
    deliver = sender_of(where.environment) if tell else None
    typed, publishes = where.typed, where.environment.publish
    try:
        found = alerts_of(where.lake, where.pipeline, now=now(), typed=typed, publishes=publishes)
    except UsageError:
        # Before the first batch nothing but a failure can be found; a job that watches is not red.
        if not (unfilled := no_tables(where)):
            raise
        found = ()
        say(f"Nothing to watch: {unfilled}.")
    critical = [alert.severity == "critical" for alert in found]
    if where.json:
        print_json([alert.to_json() for alert in found])
    elif not found:
        print_line(f"No alert of {name} is open.")
    else:
        rows = [
            ["!!" if severe else "!", a.rule, a.hop or "all", to_second(a.since), a.message]
            for a, severe in zip(found, critical, strict=True)
        ]
        title = f"Open alerts of {name}; !! critical, ! warning"
        print_table(["", "rule", "hop", "since", "found"], rows, title=title)
        # Not in the table: cells wrap, and a wrapped command cannot be copied.
        for alert in found:
            print_line(f"  {alert.rule}: {alert.command}")
    if tell:
        # Without a table of metrics only the runs know whether theirs are over.
        unknown = () if where.environment.metrics.table else MEASURED
        rules = [rule for rule in RULES if rule not in unknown]
        AlertReporter(where.lake, name, say, deliver).report(found, rules=rules)
    return _CRITICAL if any(critical) else 0


@click.command()
@duration_option("--keep", help="Retention of removed files; default: recovery horizon.")
@changing
def maintain(keep: timedelta | None, dry_run: bool, where: Place) -> None:
    """Compact small files and delete unneeded old ones.

    Files that a reader, an epoch or a rollback needs are kept. Under a root, tables of a running
    hop are not compacted, and a hop that starts while one of its tables is compacted is refused.
    An erasure and a rollback are refused until it ends.
    """
    from tidelake.ops.maintenance import plan_upkeep  # noqa: PLC0415

    horizon, name = where.environment.recovery_horizon, where.pipeline.name
    rows: list[list[object]] = []
    unfilled, locks = no_tables(where), HopLocks()
    # A lock would make a root that is misspelt.
    is_there = where.lake.catalog is not None or where.lake.root.exists()
    with ExitStack() as held:
        if is_there and not (dry_run or unfilled):
            # Before the plan, which would not keep what a rollback that begins after it needs.
            locks.checks.append(held.enter_context(hold_upkeep(where.lake, name)))
        plans = plan_upkeep(
            where.lake,
            where.pipeline,
            horizon=horizon,
            keep=keep,
            publishes=where.environment.publish,
            environment=where.environment,
        )
        if unfilled:
            # Tables that all pipelines share are maintained with one that has run.
            plans = []
            say(f"Nothing to maintain: {unfilled}.")
        if dry_run:
            title, columns = f"Old files of {name}", _PREVIEW
            for plan in plans:
                since, by = plan.reason
                at = to_minute(since) if since else None
                rows.append([plan.table.name, round(plan.keep / timedelta(hours=1)), at, by])
        else:
            for plan in plans if keep is None else ():
                if plan.keep > horizon:
                    kept = f"{round(plan.keep / timedelta(hours=1)):,} hours: {plan.reason[1]}"
                    say(f"{plan.table.name}: old files are kept for {kept}")
            title, columns = f"Maintained {name}", _DONE
            for result in _kept_up(where, plans, locks) if plans else ():
                say(f"{result.table.name}: {result.files_before:,} files, now {result.files:,}")
                rows.append([result.table.name, result.files_before, result.files, result.deleted])
    if not where.printed([dict(zip(columns, row, strict=True)) for row in rows]):
        print_table(columns, rows, title=title)


def _kept_up(where: Place, plans: Sequence[Plan], locks: HopLocks) -> Iterator[Done]:
    from tidelake.ops.maintenance import upkeep  # noqa: PLC0415

    with started(where) as run:
        yield from upkeep(replace(run, locks=locks), plans)


@click.command()
@click.option("--fetch", is_flag=True, help="First fetch the jars that the cache lacks.")
@click.option(
    "--archive", is_flag=True, help="Archive Spark's classes for faster starts (1 minute)."
)
@as_json
@located
def doctor(fetch: bool, archive: bool, where: Place) -> int:
    """Check the machine or catalog; failures name a remedy."""
    from tidelake.ops.doctor import examine_lake  # noqa: PLC0415
    from tidelake.spark.java import ensure_jars, jars_for, make_archive  # noqa: PLC0415

    if fetch:
        ensure_jars(jars_for(where.lake.root))
    if archive:
        say(f"Archived Spark's classes in {make_archive(ensure_jars())}")
    findings = examine_lake(where.lake, landing=where.environment.landing_folder)
    keys = ("what", "found", "well", "remedy")
    if not where.printed([{key: getattr(f, key) for key in keys} for f in findings]):
        rows = [["ok" if f.well else "!!", f.what, f.found, f.remedy] for f in findings]
        print_table(["", "what", "found", "remedy"], rows)
    return 0 if all(finding.well for finding in findings) else _UNFIT


@click.command()
@click.argument("pipelines", nargs=-1, metavar="[PIPELINE]...")
@port_option(
    type=click.IntRange(0, 65535), default=8050, help="Port to listen on; 0 for any free port."
)
@host_option(help="Address to listen on; no login, and payloads are shown.")
@located
def ui(pipelines: tuple[str, ...], port: int, host: str, where: Place) -> None:
    """Serve a page with the state of pipelines and remedies.

    Without a name it shows all pipelines of the conf folder. It is read-only.
    """
    from tidelake.ops.page.facts_cache import FactsCache  # noqa: PLC0415
    from tidelake.ops.page.server import PageServer, Renderer, is_loopback  # noqa: PLC0415

    if where.lake.catalog is not None:
        raise NotBuiltError(
            "The live page on a catalog",
            "Use tidelake status, tidelake alerts and tidelake ledger instead, "
            "or pass --root DIR to serve tables by path.",
        )
    # A pipeline given by name must load; of all others, broken ones are shown as broken.
    called = {where.load(name).name: name for name in pipelines}
    called = called or {name: name for name in pipeline_names()}
    cache = FactsCache(where.lake, called, where.load, publishes=where.environment.publish)
    renderer = Renderer(tuple(called), where.lake.root, where.typed)
    with PageServer(host, port, cache, renderer) as server:
        # Service managers stop it with SIGTERM: end as after Ctrl-C.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        cache.start()
        say(f"The page is at {server.url} (Ctrl-C stops it)")
        if not is_loopback(host):
            say("Anyone who can reach this machine can read it, payloads included: no login.")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            say("Stopped.")
        finally:
            cache.stop()


@click.command()
@port_option(type=click.IntRange(1, 65535), default=10000, help="Port to listen on.")
@host_option(help="Address to listen on; no login, all tables are readable.")
@located
def serve(port: int, host: str, where: Place) -> None:
    """Serve the tables read-only over JDBC, until Ctrl-C."""
    if where.lake.catalog is None and not where.lake.existing():
        raise UsageError(
            f"there is no table {where.lake.place} yet. "
            f"Fill them with: {where.typed(first_command())}"
        )
    from tidelake.ops.serving import OPEN, login_method, serving  # noqa: PLC0415

    stop = threading.Event()
    say(f"Starting Spark for the tables {where.lake.place} …")
    with serving(where.environment, where.lake, host=host, port=port) as registered:
        # After Spark has started: it installs its own handlers.
        stop_on_signal(stop)
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        method = login_method(where.environment)
        login = "no password" if method in OPEN else f"login by {method}"
        say(
            f"{len(registered.tables)} tables at jdbc:hive2://{address}/gold "
            f"(read-only, {login}). Ctrl-C stops it."
        )
        for problem in registered.problems():
            say(problem)
        while not stop.wait(_REFRESH_SECONDS):
            for name in registered.refresh():
                say(f"new table: {name}")
            for problem in registered.problems():
                say(problem)
    say("Stopped.")
