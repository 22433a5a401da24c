"""Run pipelines in tests, and read their tables the way an analyst would."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from pyspark.sql import SparkSession

from tidelake.config import Environment, Limits, Pipeline, load_pipeline
from tidelake.delta.log import last_commit
from tidelake.delta.tables import HOPS, Hop, Lake, Table, lake_of
from tidelake.ledger.query import ask
from tidelake.runtime.hop import Run
from tidelake.runtime.progress import Progress
from tidelake.runtime.runner import run_hops
from tidelake.runtime.triggers import AVAILABLE_NOW, parse_trigger

START = datetime(2026, 1, 5, tzinfo=UTC)


def small_batches(environment: Environment) -> Environment:
    """Let one bronze commit make one silver batch."""
    return environment.model_copy(update={"limits": Limits(silver_bytes="1k", gold_bytes="1k")})


def run(
    spark: SparkSession,
    environment: Environment,
    pipeline: Pipeline,
    *,
    hops: Sequence[Hop] = HOPS,
    look: Callable[[str], object] = lambda _: None,
) -> list[str]:
    """Run hops until the source is exhausted; give the progress lines, each to ``look`` at once."""
    lines: list[str] = []

    def say(line: str) -> None:
        lines.append(line)
        look(line)

    context = Run(spark, pipeline, lake_of(environment), environment, Progress(say))
    run_hops(context, hops, parse_trigger(AVAILABLE_NOW))
    return lines


def clickstream(environment: Environment, landing: Path) -> Pipeline:
    """Load the reference pipeline on a landing folder."""
    return load_pipeline("clickstream", environment, source=str(landing))


def read(lake: Lake, table: str, columns: str) -> list[tuple[Any, ...]]:
    """Read a table, its rows in order."""
    return sorted(ask(lake, f"SELECT {columns} FROM {table}").rows, key=repr)


def versions(lake: Lake) -> dict[str, int]:
    """Give the version of each table's newest commit of ours."""
    found = {table.name: last_commit(table) for table in lake.existing()}
    return {name: -1 if commit is None else commit.version for name, commit in found.items()}


def operations(table: Table) -> list[str]:
    """Name what a table's commits did, oldest first."""
    logs = sorted((table.path / "_delta_log").glob("*.json"))
    actions = [json.loads(line) for log in logs for line in log.read_text().splitlines()]
    return [action["commitInfo"]["operation"] for action in actions if "commitInfo" in action]


def place_of(record_id: str) -> tuple[str, int]:
    """Split a record's id into its file's name and its line, from 0."""
    uri, _, line = record_id.rpartition(":")
    return Path(unquote(urlsplit(uri).path)).name, int(line)


def land(folder: Path, name: str, lines: Iterable[bytes]) -> None:
    """Put a file of lines into a landing folder, whole."""
    folder.mkdir(parents=True, exist_ok=True)
    hidden = folder / f".{name}"
    hidden.write_bytes(b"".join(line + b"\n" for line in lines))
    hidden.rename(folder / name)


def click(number: int, *, minute: float, **changes: object) -> bytes:
    """Write one click of user ``number % 5``, so many minutes after the start."""
    return json.dumps(event(number, START + timedelta(minutes=minute), **changes)).encode()


def event(number: int, when: datetime, **changes: object) -> dict[str, Any]:
    """Make an event of the clickstream, with some of its values replaced."""
    values = {
        "event_id": f"e{number}",
        "user_id": f"u{number % 5}",
        "event_time": when.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "action": ("view", "Click", "purchase", "bot")[number % 4],
        "product_id": f"p{number % 3}",
        "value": number % 4 * 10.25 if number % 4 else None,
    }
    return values | changes
