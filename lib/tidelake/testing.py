"""Run a pipeline's hops, or a transform function alone, in a test.

Example::

    with playing() as play:
        played = play("conf/pipelines/shop.yml", [b'{"id": "a", …}'], tmp_path)
        assert played.fates == {"silver": 1}

    def test_risk() -> None:
        rows = [{"user_id": "u1", "value": 700.0}]
        found = transformed(risk, rows, schema="user_id STRING, value DOUBLE", columns="score INT")
        assert found == [{"score": 7}]
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tidelake.config import DeltaSource, FilesSource, Pipeline, load_environment, load_pipeline
from tidelake.config.model import unknown
from tidelake.delta.tables import HOPS, Lake
from tidelake.errors import RowsChangedError, TransformError, UsageError
from tidelake.ledger.query import ask
from tidelake.ledger.terms import read_ledger
from tidelake.names import logical_name
from tidelake.silver.transform import RECORD, UserFunction

Lines = Iterable[bytes | str]


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


@dataclass(frozen=True)
class Play:
    """What :func:`playing` yields: runs a pipeline's hops, with one Spark session."""

    spark: SparkSession

    def __call__(
        self,
        pipeline: str | Path,
        lines: Lines,
        folder: Path,
        *,
        dimensions: Mapping[str, Lines] | None = None,
    ) -> Played:
        """Run all hops on the lines, in an empty folder.

        Args:
            pipeline: A name or a path.
            lines: The content of one file, which replaces the pipeline's source.
            folder: Gets the file and the tables.
            dimensions: The lines of dimensions in ``enrich``, by name; their pipelines run first.
                Columns of the others are null, with a warning.

        Raises:
            UsageError: A line is no text, the folder was used before, or the pipeline looks up
                nothing in one of ``dimensions``.
        """
        from tidelake.runtime.hop import Run  # noqa: PLC0415
        from tidelake.runtime.progress import Progress  # noqa: PLC0415
        from tidelake.runtime.runner import run_hops  # noqa: PLC0415
        from tidelake.runtime.triggers import AVAILABLE_NOW, parse_trigger  # noqa: PLC0415

        given = {name: _content(of_one) for name, of_one in (dimensions or {}).items()}
        content, landing = _content(lines), folder / "landing"
        if landing.exists():
            raise UsageError(f"{folder} was used by an earlier play; give each play a new folder.")
        environment = load_environment("local", root=str(folder / "lake"))
        assert environment.root is not None
        lake = Lake(environment.root)

        def defined(name: str, place: Path) -> Pipeline:
            return _reading(load_pipeline(name, environment, source=str(place)), place)

        definition = defined(str(pipeline), landing)
        _compare_dimensions(definition, given)
        files = [(folder / "landing-of-dimensions" / name, given[name]) for name in given]
        steps = [(defined(place.name, place), place, of_one) for place, of_one in files]
        for step, place, written in [*steps, (definition, landing, content)]:
            place.mkdir(parents=True)
            (place / "lines.jsonl").write_bytes(written)
            run = Run(self.spark, step, lake, environment, Progress(lambda _: None))
            run_hops(run, HOPS, parse_trigger(AVAILABLE_NOW))
        ledger = read_ledger(lake, definition)
        return Played(
            fates={fate: rows for fate, rows in ledger.fates.items() if rows},
            reasons=dict(ledger.reasons),
            problems=ledger.problems,
            lake=lake,
        )


def transformed(
    function: Callable[[DataFrame], DataFrame],
    rows: Sequence[Mapping[str, Any]],
    *,
    schema: str,
    columns: str,
) -> list[dict[str, Any]]:
    """Call a transform function on a few rows, and check its contract.

    Args:
        function: The function, as named by ``transform.function``.
        rows: What it gets, by column; a column that a row lacks is null.
        schema: DDL of the columns of ``rows``.
        columns: DDL of the declared columns, as in ``transform.columns``.

    Returns:
        The declared columns of each row, in the order of ``rows``.

    Raises:
        UsageError: A row has a column that is not in ``schema``.
        TransformError: It failed, returns other columns than declared, or gives a row another
            result when it is called again, or without the other rows.
        RowsChangedError: It added or removed rows.
    """
    with _session() as spark:
        names = spark.createDataFrame([], schema).columns
        if problems := dict.fromkeys(
            unknown("column", name, names) for row in rows for name in row if name not in names
        ):
            raise UsageError(f"rows: {'; '.join(problems)}. Write them as in schema.")
        tried = UserFunction(function, columns, f"transform {function.__name__}")

        def results(chosen: Sequence[int]) -> dict[int, dict[str, Any]]:
            given = [(n, *[rows[n].get(name) for name in names]) for n in chosen]
            frame = spark.createDataFrame(given, f"_n INT, {schema}")
            plain = frame.select(F.struct("*").alias(RECORD), *names)
            found = tried.on(plain).collect()
            # No row has the number -1.
            numbers: list[int] = [row[RECORD]["_n"] if row[RECORD] else -1 for row in found]
            more, fewer = Counter(numbers) - Counter(chosen), Counter(chosen) - Counter(numbers)
            if more or fewer:
                raise RowsChangedError(
                    f"{tried.place} changed the rows: {fewer.total()} vanished, {more.total()} "
                    "appeared"
                )
            values = [row.asDict(recursive=True) for row in found]
            return {
                number: {name: value for name, value in one.items() if name != RECORD}
                for number, one in zip(numbers, values, strict=True)
            }

        everything = range(len(rows))
        together = results(everything)
        apart = results(everything[::2]) | results(everything[1::2])
    # By their text: NaN is not equal to itself.
    differing = [n for n in everything if repr(together[n]) != repr(apart[n])]
    if differing:
        n = differing[0]
        raise TransformError(
            f"{tried.place} gives row {n} another result when it is called again without the "
            f"other rows: {together[n]}, then {apart[n]}"
        )
    return [together[n] for n in everything]


@contextmanager
def _session() -> Iterator[SparkSession]:
    """Give the active session, or one that ends with the block."""
    from tidelake.spark.session import active_session, build_session  # noqa: PLC0415

    before = active_session()
    spark = before or build_session(load_environment("local", root="unused"))
    try:
        yield spark
    finally:
        if before is None:
            spark.stop()


@contextmanager
def playing() -> Iterator[Play]:
    """Start Spark for any number of test runs, or use the active session.

    Yields:
        ``play(pipeline, lines, folder, dimensions={…})``, see :class:`Play`. The records of a
        pipeline that reads Parquet, Avro or a Delta table are JSON lines too; the lines of one
        that reads CSV are a file's, the header included.
    """
    with _session() as spark:
        yield Play(spark)


def _content(lines: Lines) -> bytes:
    """Return the file of the lines; raise a UsageError for a line that is no text."""
    if isinstance(lines, bytes | str):
        raise UsageError("lines is one text. Give a list of lines, such as [line].")
    written = []
    for number, line in enumerate(lines):
        if not isinstance(line, bytes | str):
            raise UsageError(
                f"lines[{number}] is of type {type(line).__name__}. "
                "Give bytes or str, of an object: json.dumps(…)."
            )
        written.append((line.encode() if isinstance(line, str) else line) + b"\n")
    return b"".join(written)


def _reading(definition: Pipeline, place: Path) -> Pipeline:
    """Return a pipeline that reads a folder of lines, whatever its own source is."""
    source = definition.source
    if isinstance(source, DeltaSource):
        source = FilesSource(kind="files", path=str(place))
    if not isinstance(source, FilesSource) or definition.csv:
        return definition
    # Rows of other formats, and of tables, have JSON payloads too.
    source = source.model_copy(update={"format": "json"})
    return definition.model_copy(update={"source": source})


def _compare_dimensions(definition: Pipeline, given: Mapping[str, object]) -> None:
    """Warn of dimensions without lines; raise a UsageError for one that is not looked up."""
    columns: dict[str, list[str]] = {}
    for one in definition.enrich:
        columns.setdefault(one.dimension, []).extend(one.columns)
    problems = [unknown("dimension", name, columns) for name in given if name not in columns]
    if problems:
        raise UsageError(f"dimensions: {'; '.join(problems)}. Name those in enrich.")
    for name, looked_up in columns.items():
        if name not in given:
            # In play's caller.
            warnings.warn(
                f"{logical_name('dim', name)} has no rows in this play, so "
                f"{', '.join(looked_up)} will be null. "
                f'Give its lines: play(…, dimensions={{"{name}": lines}})',
                stacklevel=3,
            )
