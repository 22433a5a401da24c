"""A pipeline with a landing folder and tables of its own, for tests that play several runs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml
from pyspark.sql import SparkSession

from tests.fates import arriving_at
from tests.running import land, run, small_batches
from tidelake.config import Environment, Limits, Pipeline, load_environment, load_pipeline
from tidelake.config.locations import conf_dir, find_file
from tidelake.delta.tables import HOPS, Hop, Lake, lake_of
from tidelake.runtime.hop import Run
from tidelake.runtime.progress import Progress

TO_SILVER: tuple[Hop, ...] = ("bronze", "silver")
_AGE = 1_700_000_000
# Of the reference pipeline's gold, what merges rows and what merges partial sums.
_KEPT = ("user_sessions", "product_totals")

_STATE_STORE = "spark.sql.streaming.stateStore"
_OF_THE_PREFILTER = (
    f"{_STATE_STORE}.providerClass",
    f"{_STATE_STORE}.rocksdb.changelogCheckpointing.enabled",
    "spark.sql.streaming.noDataMicroBatches.enabled",
)


@dataclass(frozen=True)
class World:
    """Where a pipeline runs.

    Attributes:
        spark: The session.
        environment: With the root of the tables.
        pipeline: The definition.
        folder: Holds the tables and the definition's file.
        landing: Where files arrive.
    """

    spark: SparkSession
    environment: Environment
    pipeline: Pipeline
    folder: Path
    landing: Path

    @property
    def lake(self) -> Lake:
        """The tables."""
        return lake_of(self.environment)

    @property
    def context(self) -> Run:
        """What a command works with."""
        return Run(self.spark, self.pipeline, self.lake, self.environment, Progress(lambda _: None))

    def land(self, name: str, lines: Iterable[bytes]) -> Path:
        """Put a file into the landing folder, younger than those before it."""
        land(self.landing, name, lines)
        file = self.landing / name
        age = _AGE + 10 * len(list(self.landing.iterdir()))
        os.utime(file, (age, age))
        return file

    def land_bytes(self, name: str, *parts: bytes) -> Path:
        """Land a file of any content, younger than those before it."""
        file = self.land(name, [])
        found = file.stat()
        file.write_bytes(b"".join(parts))
        os.utime(file, ns=(found.st_atime_ns, found.st_mtime_ns))
        return file

    def run(
        self,
        *arrivals: datetime,
        hops: Sequence[Hop] = HOPS,
        look: Callable[[str], object] = lambda _: None,
    ) -> list[str]:
        """Run hops; bronze's batches arrive at these instants, by default now.

        ``look`` gets each progress line when it is said.
        """
        with ExitStack() as clock:
            if arrivals:
                clock.enter_context(arriving_at(*arrivals))
            return run(self.spark, self.environment, self.pipeline, hops=hops, look=look)

    def redefined(self, **changes: Any) -> World:
        """Give the same tables under another definition."""
        pipeline = define(
            self.folder, self.environment, self.landing, self.pipeline.name, **changes
        )
        return replace(self, pipeline=pipeline)

    def with_limits(self, **limits: str) -> World:
        """Give the same tables with these limits of a batch, and no others."""
        environment = self.environment.model_copy(update={"limits": Limits(**limits)})
        return replace(self, environment=environment)

    def copied(self, folder: Path) -> World:
        """Give a copy of the tables and checkpoints; files arrive where they did."""
        shutil.copytree(self.folder, folder, ignore=shutil.ignore_patterns("landing"))
        environment = self.environment.model_copy(update={"root": folder / "lake"})
        return replace(self, environment=environment, folder=folder)


@contextmanager
def without_prefilter(spark: SparkSession) -> Iterator[None]:
    """Take back, at the end, what a run with the prefilter sets in the session."""
    try:
        yield
    finally:
        for name in _OF_THE_PREFILTER:
            spark.conf.unset(name)


def define(
    folder: Path,
    environment: Environment,
    landing: Path,
    base: str = "clickstream",
    **changes: Any,
) -> Pipeline:
    """Load a pipeline file with some keys overridden.

    Args:
        folder: Takes the file.
        environment: Its root stands for ``${root}``.
        landing: The source.
        base: A reference pipeline, or the name of a file of this folder.
        changes: By section; the keys of a mapping override those of the section, anything else
            replaces it.
    """
    content = _overridden(_content(folder, base), changes)
    written = folder / f"{content['name']}.yml"
    written.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    return load_pipeline(str(written), environment, source=str(landing))


def _content(folder: Path, base: str) -> dict[str, Any]:
    """Read the definition that a folder's world began with, or a reference pipeline."""
    kept = folder / f"{base}.base.yml"
    file = kept if kept.exists() else find_file(base, "pipeline")
    content = dict(yaml.safe_load(file.read_text(encoding="utf-8")))
    return content if kept.exists() or base != "clickstream" else _plain(content)


def reference_gold(*names: str) -> list[dict[str, Any]]:
    """Give the definitions of gold tables of the clickstream."""
    content = yaml.safe_load(find_file("clickstream", "pipeline").read_text(encoding="utf-8"))
    return [table for table in content["gold"] if table["name"] in names]


def _plain(content: dict[str, Any]) -> dict[str, Any]:
    """Return the clickstream's definition with only sessions and totals, for most tests."""
    kept = {
        key: value for key, value in content.items() if key not in ("enrich", "joins", "comments")
    }
    return kept | {"gold": reference_gold(*_KEPT)}


def _write_suite(folder: Path, content: Mapping[str, Any]) -> None:
    """Put the clickstream's suite beside a definition, for the gold tables that this has."""
    suite = yaml.safe_load((conf_dir() / "expectations" / "clickstream.yml").read_text())
    names = {table["name"] for table in content["gold"]}
    suite["gold"] = {name: rules for name, rules in suite["gold"].items() if name in names}
    written = folder / "expectations" / "clickstream.yml"
    written.parent.mkdir(exist_ok=True)
    written.write_text(yaml.safe_dump(suite, sort_keys=False), encoding="utf-8")


def write_clickstream(folder: Path, **source: Any) -> Path:
    """Write a clickstream of few gold tables that reads another source, for the command line."""
    file = folder / "clickstream.yml"
    content = _content(folder, "clickstream") | {"source": source}
    _write_suite(folder, content)
    file.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    return file


def _overridden(content: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(content)
    for section, change in changes.items():
        is_part = isinstance(change, Mapping) and isinstance(found.get(section), Mapping)
        found[section] = {**found[section], **change} if is_part else change
    return found


def world(
    spark: SparkSession,
    folder: Path,
    *,
    base: str | Mapping[str, Any] = "clickstream",
    small: bool = True,
    environment: Environment | None = None,
    **changes: Any,
) -> World:
    """Make a pipeline in a folder of its own.

    Args:
        spark: The session.
        folder: An empty one.
        base: A reference pipeline, or the content of a new one.
        environment: Where its tables are; by default a root in the folder.
        small: Let one bronze commit make one silver batch, and one file one bronze commit.
        changes: Sections of the definition, as in :func:`define`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    environment = environment or load_environment("local", root=str(folder / "lake"))
    environment = small_batches(environment) if small else environment
    if small:
        changes["source"] = {"max_files_per_trigger": 1, **changes.get("source", {})}
    content = _content(folder, base) if isinstance(base, str) else base
    begun = _overridden(content, changes)
    if base == "clickstream":
        _write_suite(folder, begun)
    file = folder / f"{begun['name']}.base.yml"
    file.write_text(yaml.safe_dump(begun, sort_keys=False), encoding="utf-8")
    landing = folder / "landing"
    pipeline = define(folder, environment, landing, begun["name"])
    return World(spark, environment, pipeline, folder, landing)
