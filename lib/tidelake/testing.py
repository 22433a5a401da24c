"""Run a pipeline's hops in a test, on given lines and in a separate lake.

Example::

    with playing() as play:
        played = play("conf/pipelines/shop.yml", [b'{"id": "a", …}'], tmp_path)
        assert played.fates == {"silver": 1}
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidelake.config import FilesSource, load_environment, load_pipeline
from tidelake.delta.tables import HOPS, Lake
from tidelake.errors import UsageError
from tidelake.ledger.query import ask
from tidelake.ledger.terms import read_ledger

Play = Callable[[str | Path, Iterable[bytes], Path], "Played"]


@dataclass(frozen=True)
class Played:
    """The result of a test run: the fates of the lines.

    Attributes:
        fates: Rows by fate, without zeros: ``silver``, ``duplicate``, ``quarantined``, ``late``,
            ``filtered``.
        reasons: Quarantined rows by reason; a row may have several.
        problems: Imbalances of the ledger.
        lake: The tables.
    """

    fates: Mapping[str, int]
    reasons: Mapping[str, int]
    problems: tuple[str, ...]
    lake: Lake

    def ask(self, sql: str) -> list[tuple[Any, ...]]:
        """Return the rows of a SELECT, with tables by their logical names."""
        return list(ask(self.lake, sql).rows)


@contextmanager
def playing() -> Iterator[Play]:
    """Start Spark for any number of test runs, or use the active session.

    Yields:
        ``play(pipeline, lines, folder)``: writes the lines into one file, which replaces the
        pipeline's source, and runs all hops. ``pipeline`` is a name or a path; ``folder`` must be
        empty. The records of a pipeline that reads Parquet or Avro files are JSON lines too;
        the lines of one that reads CSV are a file's, the header included.
    """
    from pyspark.sql import SparkSession  # noqa: PLC0415

    from tidelake.runtime.hop import Run  # noqa: PLC0415
    from tidelake.runtime.progress import Progress  # noqa: PLC0415
    from tidelake.runtime.runner import run_hops  # noqa: PLC0415
    from tidelake.runtime.triggers import AVAILABLE_NOW, parse_trigger  # noqa: PLC0415
    from tidelake.spark.session import build_session  # noqa: PLC0415

    before = SparkSession.getActiveSession()
    spark = before or build_session(load_environment("local", root="unused"))

    def play(pipeline: str | Path, lines: Iterable[bytes], folder: Path) -> Played:
        landing = folder / "landing"
        if landing.exists():
            raise UsageError(f"{folder} was used by an earlier play; give each play a new folder.")
        landing.mkdir(parents=True)
        (landing / "lines.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
        environment = load_environment("local", root=str(folder / "lake"))
        assert environment.root is not None
        lake = Lake(environment.root)
        definition = load_pipeline(str(pipeline), environment, source=str(landing))
        if isinstance(definition.source, FilesSource) and not definition.reads_csv:
            # Rows of other formats have JSON payloads too.
            source = definition.source.model_copy(update={"format": "json"})
            definition = definition.model_copy(update={"source": source})
        run = Run(spark, definition, lake, environment, Progress(lambda _: None))
        run_hops(run, HOPS, parse_trigger(AVAILABLE_NOW))
        ledger = read_ledger(lake, definition)
        return Played(
            fates={fate: rows for fate, rows in ledger.fates.items() if rows},
            reasons=dict(ledger.reasons),
            problems=ledger.problems,
            lake=lake,
        )

    try:
        yield play
    finally:
        if before is None:
            spark.stop()
